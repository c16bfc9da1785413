"""Flow control from the command line, with real signals, real kills and a real scrape."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host, Reply
from syncrawl.testing.site_pages import PageTree
from tests.crawling import links
from tests.test_cli_process import STUCK_SECONDS, records, start, syncrawl, write_config


def states(folder: Path) -> dict[str, int]:
    """The report's URL states; every URL is in one of them."""
    urls: dict[str, int] = json.loads((folder / "state" / "report.json").read_text())["urls"]
    assert urls["seen"] == sum(urls.values()) - urls["seen"]
    return urls


def dropped(folder: Path) -> int:
    """What status.json tells of a running crawl."""
    status = folder / "state" / "status.json"
    return json.loads(status.read_text())["urls"]["dropped"] if status.exists() else 0


class Flaky:
    """Answers 500 for some paths until told that it is mended."""

    def __init__(self, bad: int, good: int) -> None:
        self.mended = False
        self.bad = [f"/bad/{n}" for n in range(bad)]
        self.good = [f"/good/{n}" for n in range(good)]

    def __call__(self, target: str) -> Reply | int | str:
        if target == "/":
            return links(*self.bad, *self.good)
        if target in self.bad and not self.mended:
            return 500
        return "x" if target in (*self.bad, *self.good) else 404


class TestRetryFailed:
    EXTRA = "retry.max_attempts = 1\n"

    def test_failed_urls_are_tried_again_and_counts_stay_right(self, tmp_path: Path) -> None:
        pages = Flaky(30, 5)
        with Site(Host(pages=pages)) as site:
            config = write_config(tmp_path, site.hosts[0].url(), self.EXTRA)
            first = syncrawl(config, "-q")
            assert first.returncode == 0, first.stderr
            assert states(tmp_path)["failed"] == 30
            assert syncrawl(config, "-q").returncode == 0
            asked = len(site.hosts[0].log)
            again = syncrawl("retry-failed", config)
            assert (again.returncode, again.stdout) == (
                0,
                "30 URLs that failed are pending again\n",
            )
            assert (states(tmp_path)["failed"], states(tmp_path)["pending"]) == (0, 30)
            assert len(site.hosts[0].log) == asked, "the command itself fetches nothing"
            pages.mended = True
            assert syncrawl(config, "-q").returncode == 0
        assert states(tmp_path) == {
            **dict.fromkeys(("pending", "deferred", "leased", "failed", "dropped"), 0),
            "seen": 36,
            "done": 36,
        }
        urls = [record["url"] for record in records(tmp_path)]
        assert len(urls) == len(set(urls)) == 36

    def test_a_class_picks_and_nothing_is_nothing(self, tmp_path: Path) -> None:
        with Site(Host(pages=Flaky(3, 1))) as site:
            config = write_config(tmp_path, site.hosts[0].url(), self.EXTRA)
            assert syncrawl(config, "-q").returncode == 0
        none = syncrawl("retry-failed", config, "--class", "timeout")
        assert (none.returncode, none.stdout) == (0, "no URLs that failed with timeout\n")
        assert states(tmp_path)["failed"] == 3
        some = syncrawl("retry-failed", config, "--class", "timeout", "--class", "5xx")
        assert some.stdout.startswith("3 URLs that failed with timeout, 5xx")
        assert syncrawl("retry-failed", config).stdout == "no URLs that failed\n"

    def test_explain_tells_of_the_new_state(self, tmp_path: Path) -> None:
        with Site(Host(pages=Flaky(1, 0))) as site:
            url = site.hosts[0].url
            config = write_config(tmp_path, url(), self.EXTRA)
            assert syncrawl(config, "-q").returncode == 0
            for expected in ("failed", "pending"):
                told = syncrawl("explain", url("/bad/0"), config, "--json")
                assert json.loads(told.stdout)["state"].startswith(expected)
                syncrawl("retry-failed", config)

    def test_not_on_a_running_crawl_nor_without_one(self, tmp_path: Path) -> None:
        with Site(Host(pages=PageTree(100_000), delay=0.02)) as site:
            config = write_config(tmp_path, site.hosts[0].url())
            assert syncrawl("retry-failed", config).returncode == 4
            process = start(site, config, "-q")
            refused = syncrawl("retry-failed", config)
            process.kill()
            process.communicate()
        assert refused.returncode == 4
        assert f"pid {process.pid}" in refused.stderr


class TestReload:
    def run(self, folder: Path, *, change: str, drops: bool) -> tuple[str, dict[str, int], int]:
        """Crawl two hosts slowly, change the file, send SIGHUP, see what follows.

        What was said, the URLs' states, and how often the second host was still asked.
        """
        second = Host(pages=PageTree(100_000), delay=0.02)
        first = Host(pages=PageTree(100_000), delay=0.02)
        with Site(first, second) as site:
            name = site.hosts[1].url().split("/")[2].partition(":")[0]
            config = write_config(
                folder,
                site.hosts[0].url(),
                'crawl.seed_files = ["seeds.txt"]\nscope.deny_hosts = []\nlog.file = "log.txt"\n',
            )
            # What the crawl says goes to a file, to be waited for.
            log = folder / "log.txt"
            (folder / "seeds.txt").write_text(site.hosts[1].url() + "\n")
            # Whoever runs the tests may have had SIGHUP ignored, as nohup does; that is inherited.
            before_tests = signal.signal(signal.SIGHUP, signal.SIG_DFL)
            try:
                process = start(site, config, "--no-progress")
            finally:
                signal.signal(signal.SIGHUP, before_tests)
            site.wait_until(lambda: len(site.hosts[1].log) >= 20)
            config.write_text(config.read_text().replace("deny_hosts = []", change.format(name)))
            process.send_signal(signal.SIGHUP)
            site.wait_until(lambda: "read again" in log.read_text())
            if drops:
                # The commit thread has acted on it; what was in flight is over soon after.
                site.wait_until(lambda: dropped(folder) > 0)
            more = len(site.hosts[0].log) + 60
            site.wait_until(lambda: len(site.hosts[0].log) >= more)
            before = len(site.hosts[1].log)
            site.wait_until(lambda: len(site.hosts[0].log) >= more + 60)
            after = len(site.hosts[1].log)
            process.send_signal(signal.SIGTERM)
            _, words = process.communicate(timeout=STUCK_SECONDS)
        assert process.returncode == 3, words
        return log.read_text(), states(folder), after - before

    def test_what_is_denied_now_is_dropped_and_not_asked(self, tmp_path: Path) -> None:
        told, urls, asked = self.run(tmp_path, change='deny_hosts = ["{}"]', drops=True)
        assert "scope.deny_hosts read again" in told
        assert asked == 0
        assert urls["dropped"] > 10
        report = json.loads((tmp_path / "state" / "report.json").read_text())
        assert report["dropped"] == {"deny_hosts": urls["dropped"]}

    def test_a_file_that_cannot_be_read_changes_nothing(self, tmp_path: Path) -> None:
        told, urls, asked = self.run(tmp_path, change='deny_hosts = ["{}', drops=False)
        assert "cannot be read again" in told
        assert asked > 0
        assert urls["dropped"] == 0


class TestMetrics:
    def test_figures_are_served_while_it_runs_and_not_after(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with Site(Host(pages=PageTree(100_000), delay=0.02)) as site:
            extra = f'metrics.listen = "127.0.0.1:{port}"'
            config = write_config(tmp_path, site.hosts[0].url(), extra)
            process = start(site, config, "-q")
            address = f"http://127.0.0.1:{port}/metrics"
            text = urllib.request.urlopen(address, timeout=STUCK_SECONDS).read().decode()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=STUCK_SECONDS)
        assert process.returncode == 3
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(address, timeout=STUCK_SECONDS)
        figures = dict(re.findall(r"^(syncrawl_\S+?(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))
        assert float(figures["syncrawl_requests_total"]) >= 20
        host = site.hosts[0].url().split("/")[2]
        assert float(figures[f'syncrawl_host_limit{{host="{host}"}}']) >= 1
        assert 'syncrawl_urls{state="pending"}' in figures
        assert 'syncrawl_stage_depth{stage="commit"}' in figures
        assert 'syncrawl_outcomes_total{class="2xx"}' in figures
        assert any(name.startswith("syncrawl_bottleneck_share{") for name in figures)

    def test_a_port_that_is_taken_is_told_of(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            extra = f'metrics.listen = "127.0.0.1:{taken.getsockname()[1]}"'
            config = write_config(tmp_path, "http://127.0.0.1:9/", extra)
            done = syncrawl(config, "-q")
        assert done.returncode == 2
        assert "metrics.listen" in done.stderr

    def test_it_works_where_asyncio_cannot_be_had(self) -> None:
        program = (
            "import sys; sys.modules['asyncio'] = None\n"
            "from syncrawl.observe.exporter import Exporter\n"
            "from syncrawl.observe.report import empty\n"
            "import urllib.request\n"
            "exporter = Exporter('127.0.0.1:0', empty); exporter.start()\n"
            "url = f'http://127.0.0.1:{exporter.port}/metrics'\n"
            "print(urllib.request.urlopen(url).status); exporter.stop()\n"
        )
        done = subprocess.run(
            [os.sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=STUCK_SECONDS,
            check=False,
        )
        assert (done.stdout, done.returncode) == ("200\n", 0), done.stderr


def contradictions() -> list[Any]:
    return [
        pytest.param(
            "host.floor = 9\nhost.ceiling = 8", ("host.floor", "host.ceiling"), id="floor"
        ),
        pytest.param("retry.budget_ratio = 1.5", ("retry.budget_ratio",), id="ratio"),
        pytest.param("host.rate = -1", ("host.rate",), id="rate"),
        pytest.param(
            'pause.first = "2d"\npause.longest = "1d"', ("pause.first", "pause.longest"), id="pause"
        ),
        pytest.param(
            'gateway.url = "http://g.example/?u={url}"\nhost.key = "address"',
            ("host.key", "gateway.url"),
            id="gateway and address",
        ),
        pytest.param(
            'gateway.url = "http://g.example/?u={url}"\ngateway.exhausted_status = [429]',
            ("gateway.throttled_status", "gateway.exhausted_status"),
            id="gateway statuses",
        ),
        pytest.param('gateway.url = "http://g.example/?key=hush"', ("gateway.url",), id="no {url}"),
        pytest.param('metrics.listen = "0.0.0.0:9464"', ("metrics.listen",), id="listen"),
        pytest.param('scope.priorities = {"[" = 1}', ("scope.priorities",), id="priority"),
    ]


@pytest.mark.parametrize(("extra", "keys"), contradictions())
def test_contradictory_limits_are_one_line_naming_the_keys(
    tmp_path: Path, extra: str, keys: tuple[str, ...]
) -> None:
    config = write_config(tmp_path, "http://127.0.0.1:9/", extra)
    done = syncrawl(config, "-q")
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert all(key in done.stderr for key in keys)
    assert "hush" not in done.stderr
