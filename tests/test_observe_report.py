"""The report's shape, its summary and its files; the observer that keeps status.json fresh."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from syncrawl.log import NullLog
from syncrawl.observe import observer as observers
from syncrawl.observe import report as reports
from syncrawl.observe.observer import Observer
from syncrawl.observe.report import Report, assemble, empty, read_status, summary, write_json
from syncrawl.observe.text import columns, human_bytes, human_seconds, printable
from syncrawl.testing import FakeClock

# The contract's fields, spelled out here so that a change of the code cannot change them too.
COUNTS = "seconds requests pages bytes wire_bytes retries retry_share dropped refused outcomes"
TOP = f"status exit_code {COUNTS} urls duplicates hosts stages bottleneck run"
HOST = "pages requests pending in_flight in_flight_peak limit paused_until retry_share rate"
STAGE = "depth oldest_age blocked_put_seconds starved_get_seconds rejected"
URLS = "seen pending deferred leased done failed dropped"


def some_report(**changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "status": reports.RUNNING,
        "exit_code": None,
        "totals": {"pages": 80, "requests": 100, "retries": 5, "bytes": 2048, "seconds": 20.0},
        "run": {"pages": 30, "requests": 40, "seconds": 10.0},
        "groups": {"outcomes": {"2xx": 80, "timeout": 3}, "dropped": {"robots": 7}},
        "urls": {"seen": 200, "pending": 110, "done": 80, "dropped": 7, "failed": 3},
        "hosts": {"a.example": {"pages": 80, "pending": 110, "rate": 2.0}},
        "bottleneck": {"stage": "politeness", "share": 0.75},
    }
    return assemble(**(parts | changes))


class TestShape:
    @pytest.mark.parametrize("data", [empty(), some_report()], ids=["empty", "full"])
    def test_every_field_of_the_contract_is_there(self, data: dict[str, Any]) -> None:
        assert set(TOP.split()) <= data.keys()
        assert set(COUNTS.split()) <= data["run"].keys()
        assert data["urls"].keys() == set(URLS.split())
        assert data["stages"].keys() == {"fetch", "parse", "commit"}
        for stage in data["stages"].values():
            assert stage.keys() == set(STAGE.split())
        for host in data["hosts"].values():
            assert set(HOST.split()) | {"outcomes", "health"} <= host.keys()
        assert data["bottleneck"].keys() == {"stage", "share"}

    def test_retry_share_is_of_all_requests(self) -> None:
        data = some_report()
        assert data["retry_share"] == 0.05
        assert data["run"]["retry_share"] == 0.0
        assert empty()["retry_share"] == 0.0

    def test_parts_do_not_share_what_they_default_to(self) -> None:
        first, second = some_report(), some_report()
        first["stages"]["fetch"]["depth"] = 9
        first["urls"]["seen"] = 0
        assert second["stages"]["fetch"]["depth"] == 0
        assert second["urls"]["seen"] == 200

    def test_report_is_what_its_data_says(self, tmp_path: Path) -> None:
        report = Report.of(some_report(status=reports.STOPPED, exit_code=3))
        assert (report.status, report.exit_code) == ("stopped", 3)
        report.as_dict()["status"] = "changed"
        assert report.data["status"] == "stopped"
        report.write(tmp_path / "report.json")
        assert json.loads((tmp_path / "report.json").read_text()) == report.as_dict()


class TestFiles:
    def test_a_file_is_private_and_replaced_in_one_step(self, tmp_path: Path) -> None:
        path = tmp_path / "status.json"
        write_json(path, {"n": 1})
        with path.open() as before:
            write_json(path, {"n": 2})
            assert json.load(before) == {"n": 1}
        assert json.loads(path.read_text()) == {"n": 2}
        assert path.stat().st_mode & 0o777 == 0o600
        assert os.listdir(tmp_path) == ["status.json"]

    def test_a_write_that_fails_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "status.json"
        write_json(path, {"n": 1})
        (tmp_path / "status.json.tmp").mkdir()
        with pytest.raises(OSError, match=r"directory"):
            write_json(path, {"n": 2})
        assert json.loads(path.read_text()) == {"n": 1}

    def test_a_planted_link_is_not_followed(self, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("keep")
        (tmp_path / "status.json.tmp").symlink_to(victim)
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            write_json(tmp_path / "status.json", {})
        assert victim.read_text() == "keep"

    def test_the_later_of_the_two_files_counts(self, tmp_path: Path) -> None:
        assert read_status(tmp_path) is None
        assert read_status(tmp_path / "absent") is None
        for name, status, when in (
            (reports.STATUS_FILE, "running", 1000),
            (reports.REPORT_FILE, "finished", 2000),
        ):
            write_json(tmp_path / name, {"status": status})
            os.utime(tmp_path / name, (when, when))
        assert (read_status(tmp_path) or {})["status"] == "finished"
        os.utime(tmp_path / reports.STATUS_FILE, (3000, 3000))
        assert (read_status(tmp_path) or {})["status"] == "running"

    @pytest.mark.parametrize(
        "content",
        [
            *("", "{", "[1]", "null", '{"hosts": {"a": 1}, "run": 3}'),
            '{"stages": {"fetch": 3, "parse": {"depth": 4}}}',
            '{"stages": {"fetch": 3}, "hosts": {"a": {"pages": 1}}}',
        ],
    )
    def test_damaged_files_are_passed_over_or_filled(self, tmp_path: Path, content: str) -> None:
        (tmp_path / reports.STATUS_FILE).write_text(content)
        data = read_status(tmp_path)
        if data is not None:
            assert summary(data).startswith("status")
            assert data["stages"].keys() == {"fetch", "parse", "commit"}


class TestSummary:
    def test_says_what_happened(self) -> None:
        told = summary(
            some_report(status=reports.CONDITION, exit_code=4, reason="quota is used up")
        )
        assert "condition, exit code 4: quota is used up" in told
        assert "80 (30 in this run), 3.0/s" in told
        assert "100 (40 in this run), 5 of them retries (5.0%)" in told
        assert "2.0 KiB" in told
        assert "2xx 80, timeout 3" in told
        assert "dropped" in told
        assert "robots 7" in told
        assert "bottleneck  politeness, 75% of the time no host, proxy or gateway was ready" in told
        assert "a.example" in told

    def test_nothing_reaches_the_terminal_raw(self) -> None:
        evil = "\x1b]0;owned\x07.example\n\u202e"
        told = summary(some_report(reason=evil, hosts={evil: {"pages": 1}}))
        assert told.replace("\n", "").isprintable()
        assert "\\x1b]0;owned" in told

    def test_of_nothing(self) -> None:
        assert "0, 0.0/s" in summary(empty())

    def test_the_host_that_takes_longest_comes_first(self) -> None:
        hosts = {
            "fast": {"pending": 1000, "rate": 500.0},
            "slow": {"pending": 100, "rate": 1.0},
            "done": {"pending": 0, "rate": 0.1},
        }
        data = some_report(hosts=hosts)
        assert [key for key, _ in reports.slowest_hosts(data["hosts"])] == ["slow", "fast", "done"]


class TestBottleneckLine:
    @pytest.mark.parametrize(
        ("stage", "line"),
        [
            ("commit", "bottleneck: store, 83% of the time blocked"),
            ("parse", "bottleneck: parse, 83% of the time blocked"),
            ("fetch", "bottleneck: fetch, 83% of the workers' time in exchanges"),
            (
                "politeness",
                "bottleneck: politeness, 83% of the time no host, proxy or gateway was ready",
            ),
            ("cpu", "bottleneck: cpu, 83% of one core"),
            ("\x1b[2J", "bottleneck: \\x1b[2J, 83%"),
        ],
    )
    def test_names_the_cause_and_its_share(self, stage: str, line: str) -> None:
        data = some_report(bottleneck={"stage": stage, "share": 0.834})
        assert reports.bottleneck_line(data) == line
        assert data["bottleneck"]["stage"] == stage, "report.json keeps the stage's own name"

    def test_a_share_of_nothing_names_nobody(self) -> None:
        assert reports.bottleneck_line(empty()) == "bottleneck: none"


class TestStanding:
    @pytest.mark.parametrize(
        ("host", "words"),
        [
            ({"condition": "ok"}, "ok"),
            ({"condition": "slow"}, "slow"),
            ({"condition": "unreachable"}, "unreachable"),
            ({"condition": "throttled"}, "turning against us (throttled)"),
            ({"condition": "blocking"}, "turning against us (blocking)"),
            ({"condition": "refusing"}, "turning against us (refusing)"),
            ({"condition": "ok", "paused_until": 1095.0}, "ok, paused for 1 min 35 s"),
            ({"condition": "ok", "paused_until": 999.0}, "ok"),
            ({"condition": "ok", "paused_until": "soon"}, "ok"),
        ],
    )
    def test_in_words(self, host: dict[str, Any], words: str) -> None:
        assert reports.standing({"paused_until": None} | host, 1000.0) == words

    def test_the_summary_shows_it(self) -> None:
        host = {"condition": "blocking", "paused_until": 4e12}
        told = summary(some_report(hosts={"a.example": host}))
        assert "turning against us (blocking), paused for" in told


class RecordingLog(NullLog):
    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, Any]]] = []
        self.infos: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, /, **values: Any) -> None:
        self.infos.append((event, values))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [values for name, values in self.infos if name == event]

    def warning(self, event: str, /, **values: Any) -> None:
        self.warnings.append((event, values))


class TestObserver:
    def test_a_step_writes_a_snapshot(self, tmp_path: Path) -> None:
        path = tmp_path / "status.json"
        observer = Observer(path, lambda: {"n": 7}, clock=FakeClock(), log=NullLog())
        assert observer.step()
        assert json.loads(path.read_text()) == {"n": 7}

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
    def test_a_write_that_fails_is_logged_once_until_one_succeeds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        log = RecordingLog()
        observer = Observer(tmp_path / "status.json", dict, clock=FakeClock(), log=log)

        def fail(path: Any, data: Mapping[str, Any]) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(observers, "write_json", fail)
            assert [observer.step(), observer.step()] == [False, False]
        assert len(log.warnings) == 1
        assert os.strerror(number) in log.warnings[0][1]["error"]
        assert observer.step()
        (tmp_path / "status.json.tmp").mkdir()
        assert not observer.step()
        assert len(log.warnings) == 2

    def test_a_snapshot_that_raises_does_not_end_it(self, tmp_path: Path) -> None:
        log = RecordingLog()

        def fail() -> dict[str, Any]:
            raise RuntimeError("dictionary changed size during iteration")

        assert not Observer(tmp_path / "s", fail, clock=FakeClock(), log=log).step()
        assert len(log.warnings) == 1

    def test_the_thread_writes_each_second_and_once_more_at_the_end(self, tmp_path: Path) -> None:
        clock, path = FakeClock(), tmp_path / "status.json"
        taken = threading.Semaphore(0)
        count = 0

        def snapshot() -> dict[str, Any]:
            nonlocal count
            count += 1
            taken.release()
            return {"n": count}

        observer = Observer(path, lambda: empty() | snapshot(), clock=clock, log=NullLog())
        observer.start()
        for _ in range(2):
            clock.wait_for_waiters(1)
            clock.advance(1.0)
            assert taken.acquire(timeout=10)
        clock.wait_for_waiters(1)
        assert observer.stop()
        assert json.loads(path.read_text())["n"] == 3

    def test_every_half_minute_and_at_the_end_the_log_tells_of_pressure(
        self, tmp_path: Path
    ) -> None:
        clock, log = FakeClock(), RecordingLog()
        data = some_report(bottleneck={"stage": "commit", "share": 0.83})
        observer = Observer(tmp_path / "s", lambda: data, clock=clock, log=log)
        for second in range(1, 61):
            clock.advance(1.0)
            data["run"]["pages"] = 10 * second
            assert observer.step()
        data["run"]["pages"] = 640
        clock.advance(4.0)
        assert observer.step(last=True)
        # The whole, the three stages, the one host.
        assert len(log.infos) == 3 * 5
        lines = log.named("pressure")
        assert [told["pages"] for told in lines] == [300, 600, 640]
        assert [told["pages_per_second"] for told in lines] == [10.0] * 3
        assert [told["stage"] for told in log.named("pressure_stage")[:3]] == [*reports.STAGES]
        assert [told["host"] for told in log.named("pressure_host")] == ["a.example"] * 3
        told = log.infos[0][1]
        assert told["bottleneck"] == "store, 83% of the time blocked"
        assert told["depths"].keys() == {"fetch", "parse", "commit"}
        assert told.keys() >= {"retry_share", "duplicate_share", "pending"}
        assert told.keys() >= {"found_per_second", "finished_per_second"}

    def test_a_step_that_comes_seldom_does_not_make_the_log_rarer(self, tmp_path: Path) -> None:
        clock, log = FakeClock(), RecordingLog()
        observer = Observer(tmp_path / "s", some_report, clock=clock, log=log)
        for _ in range(6):
            clock.advance(10.0)
            observer.step()
        assert len(log.named("pressure")) == 2

    def test_a_full_disk_does_not_silence_the_log(self, tmp_path: Path) -> None:
        clock, log = FakeClock(), RecordingLog()
        observer = Observer(tmp_path / "no" / "s", some_report, clock=clock, log=log)
        clock.advance(30.0)
        assert not observer.step()
        assert len(log.named("pressure")) == 1


def test_numbers_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 3 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5120.0 GiB",
    ]
    assert [human_seconds(n) for n in (0.04, 59.9, 95, 7380, 200_000)] == [
        "0.0 s",
        "59.9 s",
        "1 min 35 s",
        "2 h 3 min",
        "2 d 7 h",
    ]


def test_printable_and_columns() -> None:
    assert printable("grüße") == "grüße"
    assert printable("a" * 300, 10) == "aaaaaaaaa…"
    assert printable("\x9b31m\ud800") == "\\x9b31m\\ud800"
    assert columns([("a", "10"), ("long", "5")], right=frozenset({1})) == ["a     10", "long   5"]
    assert columns([]) == []
