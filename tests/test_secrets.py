"""Nothing that is secret leaves: commands, records, logs, metrics, state, modes of directories.

A crawl and every command are given credentials wherever they can stand; what they write is
searched for them byte by byte.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from syncrawl.cli import main
from syncrawl.directories import make_private
from syncrawl.log import make_logger
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Answer, Host, Reply
from tests.crawling import crawl, links, records, settings

SECRETS = ("seed-sesame", "link-sesame", "hop-sesame", "proxy-sesame", "sitting-sesame")


def leaked(text: str | bytes) -> list[str]:
    """The secrets that `text` holds."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return [secret for secret in SECRETS if secret.encode() in data]


def leaks_below(folder: Path) -> dict[str, list[str]]:
    """Files below `folder` that hold a secret, each with which."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return {path.name: found for path in files if (found := leaked(path.read_bytes()))}


def with_user(url: str, password: str) -> str:
    """`url` with userinfo."""
    return url.replace("://", f"://me:{password}@", 1)


class TestCrawl:
    def test_no_file_of_a_crawl_holds_a_password_of_a_url(self, tmp_path: Path) -> None:
        other: list[str] = []

        def pages(target: str) -> Answer:
            return {
                "/": links(
                    with_user(other[0], "link-sesame"), "/moved", "/lost", "/refused", "//[:sesame@"
                ),
                "/moved": Reply.redirect(with_user(other[0], "hop-sesame")),
                # A port nobody listens on: an error text with the URL in it.
                "/lost": Reply.redirect("http://me:hop-sesame@127.0.0.1:1/"),
                "/refused": Reply.redirect("ftp://me:hop-sesame@127.0.0.1/"),
                "/other": "<title>other</title>",
            }.get(target)

        with Site(Host(pages=pages)) as site:
            other.append(site.hosts[0].url("/other"))
            (tmp_path / "seeds").write_text(
                "ftp://me:seed-sesame@127.0.0.1/\n" + f"http://me:seed-sesame@{'x' * 300}:port\n"
            )
            seed = with_user(site.hosts[0].url("/"), "seed-sesame")
            config = settings(
                tmp_path,
                [seed],
                crawl={"seed_files": ["seeds"]},
                log={"file": str(tmp_path / "log"), "level": "debug"},
                stores=[
                    {"type": "jsonl", "path": "pages.jsonl"},
                    {"type": "csv", "path": "pages.csv"},
                    {"type": "sqlite", "path": "pages.db"},
                ],
                retry={"max_attempts": 1},
                scope={"follow": "any"},
            )
            report = crawl(config, log=make_logger(config.log))
            (tmp_path / "seeds").unlink()

        assert {record["url"] for record in records(tmp_path)} >= {site.hosts[0].url("/"), other[0]}
        assert report.data["urls"]["failed"] == 2
        assert leaks_below(tmp_path) == {}

    def test_no_file_of_a_crawl_holds_the_proxy_s_password(self, tmp_path: Path) -> None:
        def answers(target: str) -> Answer:
            if target.endswith("/robots.txt"):
                return 404
            if target.endswith("/closed"):
                return Reply(b"no", 407, headers=(("Proxy-Authenticate", "Basic"),))
            return links("/closed")

        with Site(Host(pages=answers)) as site:
            config = settings(
                tmp_path,
                ["http://site.example/"],
                fetch={"proxy": with_user(site.hosts[0].url("/"), "proxy-sesame")},
                log={"file": str(tmp_path / "log"), "level": "debug"},
            )
            crawl(config, log=make_logger(config.log))
            asked = site.hosts[0].log.exchanges

        assert len(asked) >= 3
        assert len(records(tmp_path)) >= 1
        assert leaks_below(tmp_path) == {}


COMMANDS = [
    ["fetch", "ftp://me:seed-sesame@127.0.0.1/"],
    ["fetch", "http://me:seed-sesame@127.0.0.1:1/"],
    ["fetch", "--json", "http://me:seed-sesame@127.0.0.1:1/"],
    ["parse", "http://me:seed-sesame@127.0.0.1:1/"],
    ["parse", "{url}"],
    ["fetch", "{url}"],
    ["fetch", "--json", "{url}"],
    ["explain", "{url}", "{config}"],
    ["explain", "--json", "{url}", "{config}"],
    ["explain", "ftp://me:seed-sesame@127.0.0.1/", "{config}"],
    ["check", "{config}"],
    ["check", "{config}", "--set", "crawl.seed_files=['http://me:seed-sesame@x/']"],
    ["check", "{config}", "--set", "gateway.url='http://me:seed-sesame@x:port/'"],
    ["check", "{config}", "--set", "fetch.proxy='socks9://me:seed-sesame@x/'"],
    ["run", "http://me:seed-sesame@127.0.0.1/"],
    ["http://me:seed-sesame@127.0.0.1/"],
    ["status", "http://me:seed-sesame@127.0.0.1/"],
    ["nothing", "http://me:seed-sesame@127.0.0.1/"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_shows_a_password_that_was_typed(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Site(Host(pages={"/": "<title>t</title>"})) as site:
        url = with_user(site.hosts[0].url("/"), "seed-sesame")
        config = tmp_path / "crawl.toml"
        config.write_text(
            f'[crawl]\nseeds = ["{url}"]\nuser_agent = "bot/1 (+http://bot.example/)"\n'
            f'[fetch]\nproxy = "http://me:proxy-sesame@127.0.0.1:1/"\n'
        )
        main([word.format(url=url, config=config) for word in words])

    said = capfd.readouterr()
    assert said.out or said.err
    assert leaked(said.out) == leaked(said.err) == []


def test_parsers_are_given_the_url_without_the_password(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Site(Host(pages={"/": "<title>t</title>"})) as site:
        assert main(["parse", with_user(site.hosts[0].url("/"), "seed-sesame")]) == 0
        assert json.loads(capfd.readouterr().out)["url"] == site.hosts[0].url("/")


class TestMakePrivate:
    def test_every_missing_directory_is_the_owner_s_alone(self, tmp_path: Path) -> None:
        make_private(tmp_path / "a/b/c")
        for path in ("a", "a/b", "a/b/c"):
            assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700

    def test_what_exists_stays_as_it_is(self, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o755)
        make_private(shared / "new")
        make_private(shared)
        assert stat.S_IMODE(shared.stat().st_mode) == 0o755

    @pytest.mark.parametrize("below", ["file", "file/more", "dangling"])
    def test_a_file_in_the_way(self, below: str, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "dangling").symlink_to("nowhere")
        with pytest.raises(NotADirectoryError):
            make_private(tmp_path / below)

    def test_a_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        make_private("a/b")
        make_private("")
        assert (tmp_path / "a/b").is_dir()


def test_directories_above_outputs_log_and_state_are_private(tmp_path: Path) -> None:
    with Site(Host(pages={"/": "<title>t</title>"})) as site:
        config = settings(
            tmp_path,
            [site.hosts[0].url("/")],
            crawl={"state_dir": "deep/er/state"},
            log={"file": str(tmp_path / "deep/log/to/log")},
            stores=[{"type": "csv", "path": "deep/out/pages/pages.csv"}],
        )
        old = os.umask(0o022)
        try:
            crawl(config, log=make_logger(config.log))
        finally:
            os.umask(old)

    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert {"deep", "deep/er", "deep/log/to", "deep/out/pages"} <= modes.keys()
    assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o077}
