"""The command line as a process: start-up cost, signals, pipes, whole crawls of a loopback site."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Answer, Host, Reply
from syncrawl.testing.site_pages import PageTree
from tests.crawling import links

# A process that should have ended by now is stuck.
STUCK_SECONDS = 40.0
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "dumb"}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "syncrawl", *map(str, words)]


def syncrawl(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=STUCK_SECONDS,
        env=ENVIRONMENT,
        check=False,
        **options,
    )


@pytest.fixture
def site() -> Iterator[Site]:
    """A site that takes longer than any test here wants to wait for its end."""
    with Site(Host(pages=PageTree(100_000), delay=0.02)) as served:
        yield served


def write_config(folder: Path, seed: str, extra: str = "") -> Path:
    path = folder / "crawl.toml"
    path.write_text(
        f"""
        crawl.seeds = ["{seed}"]
        crawl.user_agent = "testbot/1.0 (+http://bot.example/)"
        fetch.workers = 8
        {extra}
        [[stores]]
        type = "jsonl"
        path = "pages.jsonl"
        """
    )
    return path


@pytest.fixture
def config(tmp_path: Path, site: Site) -> Path:
    return write_config(tmp_path, site.hosts[0].url())


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "pages.jsonl").read_text().splitlines()]


def start(site: Site, *words: object, **options: Any) -> subprocess.Popen[str]:
    """A crawl that has made some requests."""
    pipe = subprocess.PIPE
    options = {"stdout": pipe, "stderr": pipe, "text": True, "env": ENVIRONMENT} | options
    process = subprocess.Popen(command(*words), **options)
    try:
        site.wait_until(lambda: len(site.hosts[0].log) >= 20)
    except BaseException as error:
        process.kill()
        error.add_note(str(process.communicate()))
        raise
    return process


def test_version_is_quick_and_loads_no_crawler() -> None:
    program = (
        "import sys; from syncrawl.cli import main; code = main(['--version']); "
        "heavy = {'urllib3', 'lxml', 'diskcache', 'rich', 'structlog', 'msgspec', 'requests'};"
        "print(sorted(heavy & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines()[0].startswith("syncrawl ")
    assert done.stdout.splitlines()[1] == "[]"
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        syncrawl("--version")
        best = min(best, time.perf_counter() - begun)
    assert best <= 0.25


class TestRun:
    def test_to_a_limit_then_on_then_afresh(self, config: Path) -> None:
        first = syncrawl(config, "--max-pages", 5)
        assert first.returncode == 0, first.stderr
        assert first.stdout == ""
        assert "limit, exit code 0" in first.stderr
        assert len(records(config.parent)) == 5
        second = syncrawl("--max-pages=8", "run", config, "-q")
        assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
        assert len({record["url"] for record in records(config.parent)}) == 8
        afresh = syncrawl("--fresh", "--max-pages", 3, config)
        assert afresh.returncode == 0
        assert len(records(config.parent)) == 3
        assert (config.parent / "pages.jsonl.1").read_text().count("\n") == 8
        assert (config.parent / "state.1").is_dir()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_stops_it_resumably(self, site: Site, config: Path, number: int) -> None:
        with start(site, config) as process:
            process.send_signal(number)
            _, told = process.communicate(timeout=STUCK_SECONDS)
        assert process.returncode == 3, told
        assert "stopped, exit code 3" in told
        report = json.loads((config.parent / "state/report.json").read_text())
        assert (report["status"], report["exit_code"]) == ("stopped", 3)
        assert report["urls"]["leased"] == 0
        assert report["pages"] == len(records(config.parent))
        status = json.loads(syncrawl("status", config, "--json").stdout)
        assert (status["status"], status["alive"]) == ("stopped", False)

    def test_a_storm_of_signals_ends_it_at_once(self, tmp_path: Path) -> None:
        with Site(Host(pages={"/": Reply(b"late", delay=8.0)})) as site:
            config = write_config(tmp_path, site.hosts[0].url())
            pipe = subprocess.PIPE
            with subprocess.Popen(command(config), stderr=pipe, env=ENVIRONMENT) as process:
                site.wait_until(lambda: bool(site.hosts[0].log.pages))
                begun = time.monotonic()
                while process.poll() is None and time.monotonic() - begun < STUCK_SECONDS:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(0.02)
                    except subprocess.TimeoutExpired:
                        continue
                took = time.monotonic() - begun
                process.communicate(timeout=STUCK_SECONDS)
        assert process.returncode == 3
        # What is in flight takes 8 s, the grace 10: the second signal waited for neither.
        assert took < 3.0
        assert syncrawl("status", config).returncode == 0

    def test_beside_a_run_status_works_and_a_second_run_is_refused(
        self, site: Site, config: Path
    ) -> None:
        with start(site, config, "-q") as process:
            status = json.loads(syncrawl("status", config, "--json").stdout)
            assert (status["alive"], status["pid"]) == (True, process.pid)
            assert status["status"] == "running"
            for words in ((config,), ("--fresh", config)):
                second = syncrawl(*words)
                assert second.returncode == 4
                assert f"pid {process.pid}" in second.stderr
                assert second.stderr.count("\n") == 1
            assert not (config.parent / "state.1").exists()
            process.terminate()
            process.communicate(timeout=STUCK_SECONDS)
        assert process.returncode == 3

    def test_records_to_standard_output_and_nothing_else(self, config: Path) -> None:
        done = syncrawl(config, "--max-pages", 4, "--set", "stores=[{type='jsonl', path='-'}]")
        assert done.returncode == 0, done.stderr
        assert len([json.loads(line) for line in done.stdout.splitlines()]) == 4

    def test_a_reader_that_goes_away_is_a_condition(self, site: Site, config: Path) -> None:
        with start(site, config, "-q", "--set", "stores=[{type='jsonl', path='-'}]") as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            told = process.stderr.read()
            process.wait(STUCK_SECONDS)
        assert process.returncode == 4, told
        assert "Traceback" not in told
        assert told.strip()

    def test_with_every_standard_stream_closed(self, config: Path) -> None:
        shell = "exec 0<&- 1>&- 2>&-; exec " + " ".join(command(config, "--max-pages", 3))
        done = subprocess.run(
            ["/bin/sh", "-c", shell], timeout=STUCK_SECONDS, env=ENVIRONMENT, check=False
        )
        assert done.returncode == 0
        assert len(records(config.parent)) == 3


def test_no_file_gets_the_number_of_a_closed_standard_stream(tmp_path: Path) -> None:
    program = (
        "import os, sys; from syncrawl.cli.common import guard_standard_streams as guard; "
        "guard(); descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY); "
        "os.write(1, b'a record'); os.write(descriptor, b'%d' % descriptor)"
    )
    path = tmp_path / "state"
    shell = f'exec 0<&- 1>&- 2>&-; exec "{sys.executable}" -c "{program}" "{path}"'
    subprocess.run(["/bin/sh", "-c", shell], timeout=STUCK_SECONDS, check=True)
    assert path.read_text() == "3"


class TestFetch:
    @pytest.fixture
    def served(self) -> Iterator[Site]:
        pages: dict[str, Any] = {
            "/a": Reply.redirect("/b", 301),
            "/b": Reply.redirect("/c"),
            "/c": "<p>here</p>",
            "/gone": 410,
            "/loop": Reply.redirect("/loop"),
        }
        with Site(Host(pages=pages)) as site:
            yield site

    def test_follows_and_tells(self, served: Site, tmp_path: Path) -> None:
        url = served.hosts[0].url("/a")
        told = syncrawl("fetch", url)
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("301  ")
        assert "status      200" in told.stdout
        assert "Content-Type: text/html" in told.stdout
        data = json.loads(syncrawl("fetch", url, "--json").stdout)
        assert [hop["status"] for hop in data["hops"]] == [301, 302]
        assert (data["status"], data["outcome"]) == (200, "2xx")
        assert data["length"] == len("<p>here</p>")
        assert syncrawl("fetch", url, "--body").stdout == "<p>here</p>"
        saved = tmp_path / "saved"
        assert syncrawl("fetch", url, "-o", saved).returncode == 0
        assert saved.read_text() == "<p>here</p>"

    def test_outcomes(self, served: Site) -> None:
        gone = json.loads(syncrawl("fetch", served.hosts[0].url("/gone"), "--json").stdout)
        assert (gone["status"], gone["outcome"]) == (410, "4xx")
        loop = syncrawl("fetch", served.hosts[0].url("/loop"), "--json")
        assert json.loads(loop.stdout)["outcome"] == "redirect_limit"
        refused = syncrawl("fetch", "http://127.0.0.1:1/", "--json")
        assert (json.loads(refused.stdout)["outcome"], refused.returncode) == ("connect", 4)
        assert syncrawl("fetch", "ftp://x.example/").returncode == 2

    def test_parse_of_a_url(self, served: Site) -> None:
        done = syncrawl("parse", served.hosts[0].url("/a"))
        record = json.loads(done.stdout)["records"][0]
        assert record["final_url"] == served.hosts[0].url("/c")
        assert record["text_excerpt"] == "here"


def test_a_listing_into_a_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command("plugins"),
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=STUCK_SECONDS,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_output_that_is_full_is_told_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("plugins"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=STUCK_SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        ("raise ZeroDivisionError('by zero')", 1, "internal error: ZeroDivisionError: by zero"),
        ("raise errors.PluginError('a factory raised')", 2, "error: a factory raised"),
        ("raise errors.DiskFull('no room')", 4, "error: no room"),
        ("raise KeyboardInterrupt", 3, ""),
        ("return real(self)", 0, "exit code 0"),
    ],
)
def test_a_thread_that_hangs_does_not_hold_up_the_end(
    config: Path, ending: str, code: int, told: str
) -> None:
    """Whoever started it, a parser for instance, and however the run ends."""
    program = (
        "import sys, threading, syncrawl.engine.crawl as engine\n"
        "from syncrawl import errors\n"
        "from syncrawl.cli import main\n"
        "real = engine.Crawl.run\n"
        "def run(self):\n"
        "    threading.Thread(target=threading.Event().wait, name='stays').start()\n"
        f"    {ending}\n"
        "engine.Crawl.run = run\n"
        "sys.exit(main([*sys.argv[1:], '--max-pages', '2']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(config)],
        capture_output=True,
        text=True,
        timeout=STUCK_SECONDS,
        check=False,
    )
    assert done.returncode == code
    assert told in done.stderr
    assert "leaving without 1 hung thread(s): stays" in done.stderr


@pytest.mark.slow
def test_the_demo_shows_every_host(tmp_path: Path) -> None:
    done = syncrawl("demo", "--seconds", 4, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("quick", "slow", "polite", "busy", "mixed"):
        assert done.stderr.count(f"{name}.demo.test") >= 2
    assert "records were stored" in done.stderr
    assert os.listdir(tmp_path) == []


def test_out_of_descriptors_in_mid_crawl_loses_nothing(tmp_path: Path) -> None:
    pages = [f"/{number}" for number in range(120)]

    def answer(target: str) -> Answer:
        # Each exchange needs a socket of its own.
        body = links(*pages) if target == "/" else "leaf"
        return Reply(body.encode(), close=True, delay=0.01)

    with Site(Host(pages=answer)) as site:
        host = site.hosts[0]
        config = write_config(tmp_path, host.url(), "retry.max_attempts = 3")
        process = start(site, config)
        held = len(os.listdir(f"/proc/{process.pid}/fd"))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, held + 100))
        asked = len(host.log)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        meanwhile = len(host.log) - asked
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (held + 100, held + 100))
        _, told = process.communicate(timeout=STUCK_SECONDS)
        answered = Counter(one.target for one in host.log.exchanges)

    # Those that had a socket already; without the limit it would be over by then.
    assert meanwhile <= 8
    assert process.returncode == 0, told
    assert {record["url"] for record in records(tmp_path)} == {host.url(p) for p in ["/", *pages]}
    assert max(answered.values()) == 1
    assert len(records(tmp_path)) == 121
    assert "Traceback" not in told
