"""`retry-failed` where a host was given up, behind redirects, and where there is nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host, Reply
from syncrawl.testing.site_pages import PageTree
from tests.crawling import links
from tests.test_cli_process import records, syncrawl, write_config
from tests.test_flow_process import states

RETRIES = "retry.max_attempts = 1\n"


def test_a_host_that_was_given_up_gets_a_new_chance(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound and not listening: connections are refused, and nobody else gets the port.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        config = write_config(
            tmp_path, f"http://127.0.0.1:{port}/", RETRIES + "robots.obey = false\n"
        )
        first = syncrawl(config, "-q")
        assert first.returncode == 0, first.stderr
        assert states(tmp_path)["failed"] == 1
    report = json.loads((tmp_path / "state" / "report.json").read_text())
    [outcome] = [name for name, count in report["outcomes"].items() if count]
    with Site(Host(pages=PageTree(3), port=port)):
        assert syncrawl(config, "-q").returncode == 0
        assert records(tmp_path) == [], "a finished crawl is over"
        again = syncrawl("retry-failed", config, "--class", outcome)
        assert again.stdout == f"one URL that failed with {outcome} is pending again\n"
        assert syncrawl(config, "-q").returncode == 0
    assert states(tmp_path)["failed"] == 0
    assert states(tmp_path)["done"] == states(tmp_path)["seen"] == len(records(tmp_path)) > 1


def test_a_state_directory_without_a_state_is_no_crawl(tmp_path: Path) -> None:
    config = write_config(tmp_path, "http://127.0.0.1:1/")
    (tmp_path / "state").mkdir()
    none = syncrawl("retry-failed", config)
    assert (none.returncode, none.stdout) == (4, "")
    assert "there is no crawl in" in none.stderr
    assert list((tmp_path / "state").iterdir()) == []


def test_a_class_that_is_none_is_told(tmp_path: Path) -> None:
    with Site(Host(pages={"/": "x"})) as site:
        config = write_config(tmp_path, site.hosts[0].url("/"))
        assert syncrawl("run", config, "-q").returncode == 0
    told = syncrawl("retry-failed", config, "--class", "timeuot").stdout
    assert "timeuot is no class that we know: did you mean timeout?" in told
    assert "no class" not in syncrawl("retry-failed", config, "--class", "timeout").stdout


def test_a_page_that_failed_behind_a_redirect_is_had_at_last(tmp_path: Path) -> None:
    mended = False

    def pages(target: str) -> Reply | int | str:
        match target:
            case "/":
                return links("/moved", "/far")
            case "/moved":
                return Reply.redirect("/page")
            case "/far":
                return Reply.redirect(f"{site.hosts[1].url()}elsewhere")
            case "/page":
                return "x" if mended else 500
        return 404

    def elsewhere(target: str) -> int | str:
        return ("y" if mended else 500) if target == "/elsewhere" else 404

    with Site(Host(pages=pages), Host(pages=elsewhere)) as site:
        extra = RETRIES + 'scope.follow = "any"\nfetch.private_addresses = "allow"\n'
        config = write_config(tmp_path, site.hosts[0].url(), extra)
        assert syncrawl(config, "-q").returncode == 0
        assert states(tmp_path)["failed"] == 2
        mended = True
        assert syncrawl("retry-failed", config).returncode == 0
        assert syncrawl(config, "-q").returncode == 0
        assert states(tmp_path)["failed"] == 0
        found = {record["url"].rsplit("/", 1)[1]: record for record in records(tmp_path)}
    assert sorted(found) == ["", "far", "moved"]
    assert found["moved"]["final_url"].endswith("/page")
    assert found["far"]["final_url"].endswith("/elsewhere")
