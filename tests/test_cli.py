"""The command line in this process: finding commands, errors, exit codes, what is printed."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from syncrawl.cli import COMMANDS, find_command, main
from syncrawl.cli import run as running
from syncrawl.cli.common import one_line, out
from syncrawl.cli.explain import explain
from syncrawl.cli.run import Stopper, run_command
from syncrawl.cli.status import current
from syncrawl.config.load import load_config
from syncrawl.engine.preflight import StateLock
from syncrawl.errors import OutputClosed, StateLocked
from syncrawl.observe import report as reports
from syncrawl.observe.report import Report, assemble
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host
from tests.crawling import crawl, links, settings

CONFIG = """\
[crawl]
seeds = ["http://site.example/"]
user_agent = "testbot/1.0 (+http://bot.example/)"
[scope]
deny = ["/private/"]
[[stores]]
type = "jsonl"
path = "pages.jsonl"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "crawl.toml"
    path.write_text(CONFIG)
    return path


class TestFindCommand:
    @pytest.mark.parametrize(
        ("words", "command", "rest"),
        [
            ("c.toml", "run", "c.toml"),
            ("run c.toml", "run", "c.toml"),
            ("--fresh c.toml", "run", "--fresh c.toml"),
            ("c.toml --fresh -q", "run", "c.toml --fresh -q"),
            ("--set crawl.max_pages=1 c.toml", "run", "--set crawl.max_pages=1 c.toml"),
            ("--max-pages 5 run c.toml", "run", "--max-pages 5 c.toml"),
            ("-v check c.toml", "check", "-v c.toml"),
            ("status c.toml --json", "status", "c.toml --json"),
            ("./run", "run", "./run"),
            ("run.toml", "run", "run.toml"),
            ("explain http://x/ c.toml", "explain", "http://x/ c.toml"),
            ("demo", "demo", ""),
            ("-- run", "run", "-- run"),
            ("--version", "", "--version"),
            ("", "", ""),
        ],
    )
    def test_finds(self, words: str, command: str, rest: str) -> None:
        assert find_command(words.split()) == (command, rest.split())

    def test_a_typing_error_gets_a_suggestion(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["statsu", "c.toml"]) == 2
        assert "did you mean status?" in capsys.readouterr().err

    def test_every_command_explains_itself(self, capsys: pytest.CaptureFixture[str]) -> None:
        for command in COMMANDS:
            assert main([command, "--help"]) == 0
            assert f"syncrawl {command}" in capsys.readouterr().out


class TestUsage:
    def test_no_arguments(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 2
        assert "usage: syncrawl" in capsys.readouterr().err

    def test_help_tells_commands_exit_codes_and_the_rule_for_names(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--help"]) == 0
        told = capsys.readouterr().out
        for word in (*COMMANDS, "exit codes", "./NAME"):
            assert word in told

    @pytest.mark.parametrize(
        "words",
        [
            ["run"],
            ["c.toml", "--no-such-flag"],
            ["c.toml", "--max-pages", "many"],
            ["demo", "--seconds", "0"],
            ["missing.toml"],
            ["check", "missing.toml"],
        ],
    )
    def test_bad_usage_is_exit_2(self, words: list[str]) -> None:
        assert main(words) == 2

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("crawl.user_agent=anonymous", "crawl.user_agent = 'anonymous'"),
            ("crawl.max_pagse=3", "max_pages"),
            ("fetch.workers='many'", "fetch.workers"),
            ("crawl.seeds=['mailto:x']", "mailto:x"),
        ],
    )
    def test_bad_config_is_one_line_with_key_and_remedy(
        self, config: Path, capsys: pytest.CaptureFixture[str], line: str, told: str
    ) -> None:
        for command in ("run", "check"):
            assert main([command, str(config), "--set", line]) == 2
            error = capsys.readouterr().err
            assert error.startswith("syncrawl: error: ")
            assert error.count("\n") == 1
            assert told in error
        assert os.listdir(config.parent) == ["crawl.toml"]


class StubCrawl:
    """What a run needs of a crawl; `ending` says how it goes."""

    def __init__(self, ending: Callable[[StubCrawl], Any] | None = None) -> None:
        self.ending = ending
        self.stopped: list[str] = []
        self.busy: list[str] = []
        self.made: dict[str, Any] = {}

    def __call__(self, config: Any, **options: Any) -> StubCrawl:
        self.made = {"config": config, **options}
        return self

    def run(self) -> Report:
        result = self.ending(self) if self.ending else None
        if isinstance(result, Report):
            return result
        code = 3 if self.stopped else 0
        return Report.of(self.data("stopped" if self.stopped else "finished", code))

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)

    def hung(self) -> list[str]:
        return self.busy

    def snapshot(self, *, most_hosts: int) -> Mapping[str, Any]:
        return self.data("running", None)

    @staticmethod
    def data(status: str, code: int | None, reason: str = "") -> dict[str, Any]:
        totals = {"pages": 3, "seconds": 1.0}
        return assemble(status=status, exit_code=code, totals=totals, run=totals, reason=reason)


def arguments(config: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("-v", "--verbose", action="store_true")
    running.add_arguments(parser)
    return parser.parse_args([str(config), *words])


class TestRun:
    def test_passes_on_what_was_asked_for(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        crawl = StubCrawl()
        words = ["--fresh", "--max-pages", "7", "--set", "fetch.workers=9", "-v"]
        assert run_command(arguments(config, *words), crawl) == 0
        made = crawl.made["config"]
        assert (made.crawl.max_pages, made.fetch.workers, made.log.level) == (7, 9, "debug")
        assert crawl.made["fresh"] is True
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "finished, exit code 0" in captured.err

    def test_quiet_prints_nothing_of_a_good_end(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        crawl = StubCrawl()
        assert run_command(arguments(config, "-q"), crawl) == 0
        assert crawl.made["config"].log.level == "warning"
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize("words", [[], ["-q"]])
    def test_a_condition_is_named_on_stderr(
        self, config: Path, capsys: pytest.CaptureFixture[str], words: list[str]
    ) -> None:
        crawl = StubCrawl(lambda _: Report.of(StubCrawl.data("condition", 4, "disk is full")))
        assert run_command(arguments(config, *words), crawl) == 4
        assert "syncrawl: stopped: disk is full\n" in capsys.readouterr().err

    @pytest.mark.parametrize("code", [1, 2])
    def test_an_error_that_ended_a_crawl_is_told_as_one(
        self, config: Path, capsys: pytest.CaptureFixture[str], code: int
    ) -> None:
        crawl = StubCrawl(lambda _: Report.of(StubCrawl.data("failed", code, "no model")))
        assert run_command(arguments(config, "-q"), crawl) == code
        assert "syncrawl: error: no model\n" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("error", "code", "told"),
        [
            (StateLocked("another run holds it", key="crawl.state_dir"), 4, "another run holds"),
            (OutputClosed("standard output was closed"), 4, "closed"),
            (BrokenPipeError(), 4, ""),
            (KeyboardInterrupt(), 3, ""),
            (ZeroDivisionError("by zero"), 1, "internal error: ZeroDivisionError: by zero"),
        ],
    )
    def test_what_is_raised_becomes_an_exit_code(
        self,
        config: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        error: BaseException,
        code: int,
        told: str,
    ) -> None:
        def fail(_: StubCrawl) -> None:
            raise error

        monkeypatch.setattr("syncrawl.cli.leave_quietly", lambda code: code)
        monkeypatch.setattr("syncrawl.engine.crawl.Crawl", StubCrawl(fail))
        assert main([str(config), "-q"]) == code
        captured = capsys.readouterr()
        assert told in captured.err
        assert "Traceback" not in captured.err

    def test_a_traceback_only_with_v(
        self,
        config: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(_: StubCrawl) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr("syncrawl.engine.crawl.Crawl", StubCrawl(fail))
        assert main([str(config), "-q", "-v"]) == 1
        assert "Traceback" in capsys.readouterr().err

    def test_hung_threads_do_not_hold_up_the_exit(
        self,
        config: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        crawl = StubCrawl()
        crawl.busy = ["fetch-3"]
        left: list[int] = []
        monkeypatch.setattr(running, "leave_at_once", left.append)
        run_command(arguments(config, "-q"), crawl)
        assert left == [0]
        assert "fetch-3" in capsys.readouterr().err


class TestStopper:
    @pytest.fixture
    def left(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        codes: list[int] = []
        monkeypatch.setattr(os, "_exit", codes.append)
        return codes

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_stops_the_second_leaves(self, left: list[int], number: int) -> None:
        now = [100.0]
        stopper, crawl = Stopper(lambda: now[0]), StubCrawl()
        assert not stopper.attach(crawl)
        stopper.handle(number, None)
        assert crawl.stopped == [signal.Signals(number).name]
        now[0] += 5.0
        stopper.handle(signal.SIGTERM, None)
        assert left == [3]
        assert len(crawl.stopped) == 1

    def test_one_wish_that_arrives_twice_is_one(self, left: list[int]) -> None:
        now = [100.0]
        stopper, crawl = Stopper(lambda: now[0]), StubCrawl()
        stopper.attach(crawl)
        for _ in range(5):
            stopper.handle(signal.SIGTERM, None)
            now[0] += 0.01
        assert (left, len(crawl.stopped)) == ([], 1)

    def test_a_signal_before_the_crawl_exists_is_not_lost(self, config: Path) -> None:
        crawl = StubCrawl()

        def build(config: Any, **_: Any) -> StubCrawl:
            signal.raise_signal(signal.SIGTERM)
            return crawl

        before = signal.getsignal(signal.SIGTERM)
        try:
            assert run_command(arguments(config, "-q"), build) == 3
            # From then on the process is on its way out with exit code 3.
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGTERM, before)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def test_handlers_are_put_back_after_a_run_without_signals(self, config: Path) -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        inside: list[Any] = []
        crawl = StubCrawl(lambda _: inside.append(signal.getsignal(signal.SIGTERM)))
        run_command(arguments(config, "-q"), crawl)
        assert inside != [before[1]]
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class TestStatus:
    def test_where_nothing_has_run(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["status", str(config)]) == 0
        assert "no crawl has left a report here" in capsys.readouterr().out
        assert main(["status", str(config), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["status"], data["alive"], data["urls"]["seen"]) == ("none", False, 0)
        assert not (config.parent / "state").exists()

    def test_of_a_run_that_was_killed(self, tmp_path: Path) -> None:
        reports.write_json(tmp_path / reports.STATUS_FILE, StubCrawl.data("running", None))
        data = current(str(tmp_path))
        assert (data["status"], data["alive"], data["pages"]) == ("interrupted", False, 3)

    def test_of_a_run_that_goes_on(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        state = config.parent / "state"
        with StateLock(state):
            # What is there yet is of the run before.
            reports.write_json(state / reports.REPORT_FILE, StubCrawl.data("stopped", 3))
            data = current(str(state))
            assert (data["status"], data["exit_code"]) == ("running", None)
            assert (data["alive"], data["pid"]) == (True, os.getpid())
            assert main(["status", str(config)]) == 0
        assert f"yes, process {os.getpid()}" in capsys.readouterr().out

    def test_after_it(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        state = config.parent / "state"
        state.mkdir()
        reports.write_json(state / reports.REPORT_FILE, StubCrawl.data("finished", 0))
        assert main(["status", str(config)]) == 0
        told = capsys.readouterr().out
        assert "running     no\n" in told
        assert "finished, exit code 0" in told


class TestCheck:
    def test_tells_what_would_be_used_and_creates_nothing(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["check", str(config)]) == 0
        told = capsys.readouterr().out
        for part in ("http://site.example/", "testbot/1.0", "jsonl", "would be created", "page"):
            assert part in told
        assert told.endswith("ok\n")
        assert os.listdir(config.parent) == ["crawl.toml"]

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("parse.parsers=['pgae']", "page"),
            ("stores=[{type='jsonl', path='crawl.toml/x'}]", "stores.path"),
            ("stores=[{type='jsnol', path='x'}]", "jsonl"),
            ("stores=[{type='jsonl', path='x', colour='red'}]", "colour"),
            ("crawl.state_dir='crawl.toml'", "crawl.state_dir"),
            ("fetch.client='urllib4'", "urllib3"),
            ("robots.engine='protgeo'", "protego"),
        ],
    )
    def test_finds_what_would_fail(
        self, config: Path, capsys: pytest.CaptureFixture[str], line: str, told: str
    ) -> None:
        assert main(["check", str(config), "--set", line]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert told in error
        assert os.listdir(config.parent) == ["crawl.toml"]

    def test_tells_who_stands_between_and_what_is_shed_but_no_key(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = (
            "gateway={url='https://gw.example/get?key=SESAME&url={url}', max_in_flight=7}",
            "fetch.proxy='http://ann:SESAME@proxy.example:3128'",
            "shed={max_pending=5000, action='drop'}",
            "scope.priorities={'/a'=1}",
            "metrics.listen='127.0.0.1:9464'",
            "crawl.durability='power'",
        )
        assert main(["check", str(config), *(f"--set={line}" for line in lines)]) == 0
        told = capsys.readouterr().out
        for part in (
            "gw.example, 7 at once",
            "proxy.example:3128",
            "drop above 5,000 pending, below priority 1",
            "1 patterns",
            "http://127.0.0.1:9464/metrics",
            "every commit is synced",
        ):
            assert part in told
        assert "SESAME" not in told

    def test_says_that_a_run_has_the_state(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with StateLock(config.parent / "state"):
            assert main(["check", str(config)]) == 0
        assert f"by a running crawl, process {os.getpid()}" in capsys.readouterr().out


class TestExplain:
    def test_canonical_form_and_scope(self, config: Path) -> None:
        found = explain("HTTP://Site.Example:80/a/../b?utm_source=x&z=1&a=2#f", load_config(config))
        assert found.canonical == "http://site.example/b?a=2&z=1"
        assert (found.scope, found.state) == ("accepted", "not seen: no crawl has run here")
        assert "a page that links to it" in found.waits_for
        assert len(found.fingerprint or "") == 16

    @pytest.mark.parametrize(
        ("url", "scope"),
        [
            ("http://elsewhere.example/", "refused: host"),
            ("http://site.example/private/x", "refused: deny"),
            ("mailto:a@site.example", "refused: not an http or https URL"),
            ("\x00\ud800", "refused: not an http or https URL"),
            ("http://site.example", "accepted (a seed)"),
        ],
    )
    def test_verdicts(self, config: Path, url: str, scope: str) -> None:
        found = explain(url, load_config(config))
        assert found.scope == scope
        if "refused" in scope:
            assert found.waits_for == "nothing: it will never be fetched"

    def test_seeds_of_a_file_count(self, config: Path) -> None:
        (config.parent / "more.txt").write_text("# more\n\n http://file.example/x \n")
        loaded = load_config(config, ["crawl.seed_files=['more.txt']"])
        assert explain("http://file.example/x", loaded).scope == "accepted (a seed)"

    def test_what_a_crawl_has_left(self, tmp_path: Path) -> None:
        pages = {"/": links("/a", "/secret/x", "/gone"), "/a": links("/later"), "/later": "x"}
        with Site(Host(pages=pages, robots="User-agent: *\nDisallow: /secret")) as site:
            url = site.hosts[0].url
            config = settings(tmp_path, [url()], scope={"max_depth": 1})
            crawl(config)
            found = {path: explain(url(path), config) for path in ("/", "/a", "/gone", "/secret/x")}
            later = explain(url("/later"), config)
        assert found["/"].scope == "accepted (a seed)"
        assert {path: one.state for path, one in found.items()} == {
            "/": "done",
            "/a": "done",
            "/gone": "failed: 4xx",
            "/secret/x": "dropped: robots",
        }
        assert [one.robots for one in found.values()] == ["allowed"] * 3 + ["disallowed"]
        assert {one.waits_for for one in found.values()} == {"nothing: it is finished"}
        assert (later.state, later.robots) == ("not seen", "allowed")

    def test_what_is_still_to_come(
        self, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from syncrawl.cli import explain as explaining

        known = explaining.Known(state="pending", attempts=2, due=9e9)
        monkeypatch.setattr(explaining, "_look_up", lambda config, url: known)
        loaded, url = load_config(config), "http://site.example/x"
        assert explain(url, loaded).waits_for == "a run: none is running"
        state = config.parent / "state"
        with StateLock(state):
            assert explain(url, loaded).waits_for.startswith("its next attempt, in")
            known = explaining.Known(state="pending", attempts=2)
            pending = {"pending": 12, "paused_until": 9e9}
            for host, told in ((pending, "paused for"), (pending | {"paused_until": None}, " 12 ")):
                data = assemble(
                    status="running",
                    exit_code=None,
                    totals={},
                    run={},
                    hosts={"site.example": host},
                )
                reports.write_json(state / reports.STATUS_FILE, data)
                assert told in explain(url, loaded).waits_for
            assert main(["explain", url, str(config), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["attempts"] == 2


class TestParse:
    def test_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        page = tmp_path / "page.html"
        page.write_text("<title>T</title><a href='/x?b=2&a=1#f'>x</a><a href='mailto:m'>m</a>")
        assert main(["parse", str(page), "--url", "http://h.example/d/"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert [record["title"] for record in data["records"]] == ["T"]
        assert data["links"][0]["canonical"] == "http://h.example/x?a=1&b=2"

    def test_standard_input(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"<title>in</title>")))
        assert main(["parse", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["records"][0]["title"] == "in"

    @pytest.mark.parametrize(
        ("words", "told"),
        [(["absent.html"], "absent.html"), (["/dev/null", "--parser", "pgae"], "page")],
    )
    def test_errors(self, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
        assert main(["parse", *words]) == 2
        assert told in capsys.readouterr().err


def test_plugins_lists_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    listed = capsys.readouterr().out
    assert main(["plugins", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"page", "jsonl", "urllib3", "protego"} <= {row["name"] for row in rows}
    for row in rows:
        assert row["name"] in listed
        assert row["error"] is None


def test_output_fits_the_stream_it_goes_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline=""))
    out("grüße \ud800")
    sys.stdout.flush()
    assert raw.getvalue() == b"gr\\xfc\\xdfe \\ud800\n"
    monkeypatch.setattr(sys, "stdout", None)
    out("nobody listens")
    assert one_line("a\n\x1b[2Jb") == "a \\x1b[2Jb"


def test_the_library_has_one_front_door() -> None:
    import syncrawl

    assert syncrawl.Crawl.__name__ == "Crawl"
    assert syncrawl.Config().crawl.state_dir == "state"
    assert syncrawl.load_config is load_config
    assert syncrawl.__version__[0].isdigit()
    assert {"Config", "Crawl", "load_config"} <= set(dir(syncrawl))
    with pytest.raises(AttributeError, match="no attribute 'Crwal'"):
        syncrawl.Crwal  # noqa: B018 - the look-up is the test
