"""The progress view: what it says, that it stays off stdout, and that it harms nobody."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from syncrawl.observe.live import LiveView
from syncrawl.observe.pace import Pace
from syncrawl.observe.progress import (
    LogLines,
    PlainView,
    Progress,
    choose_mode,
    one_line,
    start_progress,
)
from syncrawl.observe.report import RUNNING, assemble
from syncrawl.observe.ticker import Ticker
from syncrawl.testing import FakeClock

EVIL_HOST = "\x1b[2J[red]evil\r\n.example"


def snapshot(pages: int = 0, *, max_leased: int = 0, **hosts: dict[str, Any]) -> dict[str, Any]:
    pending = sum(host.get("pending", 0) for host in hosts.values())
    return assemble(
        status=RUNNING,
        exit_code=None,
        totals={"pages": pages},
        run={"pages": pages, "bytes": 1024 * pages, "seconds": 3.0},
        urls={"seen": 10, "pending": pending, "leased": max_leased},
        hosts=hosts,
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestPace:
    def test_rates_are_of_the_window_not_of_the_whole_run(self) -> None:
        pace = Pace(seconds=10)
        for second in range(31):
            fast, slow = min(second, 20) * 100, max(0, second - 20) * 2
            pace.add(float(second), snapshot(fast + slow))
        assert pace.pages() == pytest.approx(2.0)
        assert pace.bytes() == pytest.approx(2048.0)

    def test_the_slowest_host_bounds_what_is_left(self) -> None:
        pace = Pace()
        fast = {"pending": 100, "requests": 0}
        slow = {"pending": 50, "requests": 0}
        pace.add(0.0, snapshot(0, fast=fast, slow=slow))
        pace.add(10.0, snapshot(1000, fast=fast | {"requests": 990}, slow=slow | {"requests": 10}))
        # 150 URLs at 100 pages/s would be 1.5 s, but 50 of them come at 1/s.
        assert pace.eta() == pytest.approx(50.0)

    def test_a_page_limit_may_be_reached_without_the_slowest_host(self) -> None:
        pace = Pace(max_pages=1200)
        slow = {"pending": 5000, "requests": 10}
        pace.add(0.0, snapshot(0, slow=slow))
        pace.add(10.0, snapshot(1000, slow=slow | {"requests": 20}))
        assert pace.eta() == pytest.approx(2.0)

    def test_nothing_moves_nothing_is_promised(self) -> None:
        pace = Pace()
        assert pace.eta() is None
        pace.add(0.0, snapshot(0, a={"pending": 5}))
        pace.add(1.0, snapshot(0, a={"pending": 5}))
        assert pace.eta() is None
        assert pace.pages() == 0.0

    def test_a_host_that_is_new_in_the_window_speaks_for_itself(self) -> None:
        pace = Pace()
        pace.add(0.0, snapshot(0))
        pace.add(1.0, snapshot(10, a={"pending": 20, "requests": 900, "rate": 4.0}))
        assert pace.host("a") == 4.0
        assert pace.host("unheard-of") == 0.0


def test_one_line_says_what_matters() -> None:
    pace = Pace()
    host = {"pending": 50, "requests": 0}
    pace.add(0.0, snapshot(0, **{EVIL_HOST: host}))
    now = snapshot(1000, max_leased=4, **{EVIL_HOST: host | {"requests": 10}})
    now["urls"]["failed"] = 3
    pace.add(10.0, now)
    told = one_line(now, pace)
    assert told.isprintable()
    for part in ("1,000 pages (100.0/s)", "50 pending", "4 in flight", "3 failed", "evil"):
        assert part in told
    assert "about 50.0 s to go" in told


class TestLiveView:
    def test_draws_hosts_queues_and_pauses(self) -> None:
        stream = Terminal()
        view = LiveView(stream, wall=lambda: 1000.0, max_items=10)
        paused = {"pending": 5, "paused_until": 1012.0, "requests": 1}
        evil: dict[str, Any] = {"condition": "blocking"}
        now = snapshot(7, **{"a.example": paused, EVIL_HOST: evil})
        now["stages"]["parse"] |= {"depth": 8, "oldest_age": 2.0}
        view.show(now, Pace())
        view.log("an event\n")
        view.close()
        drawn = stream.getvalue()
        assert "7 pages" in drawn
        assert "paused for 12.0 s" in drawn
        assert "oldest 2.0 s" in drawn
        assert "turning against us (blocking)" in drawn
        assert "an event" in drawn
        assert "\x1b[2J" not in drawn
        assert "\\x1b[2J[red]evil\\r\\n.example" in drawn

    def test_leaves_stdout_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        import sys

        before = sys.stdout
        view = LiveView(Terminal(), wall=lambda: 0.0)
        assert sys.stdout is before
        print("a record")
        view.show(snapshot(), Pace())
        view.close()
        assert capsys.readouterr().out == "a record\n"


class TestMode:
    def test_live_only_on_a_terminal_that_can(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")
        assert choose_mode(Terminal()) == "live"
        assert choose_mode(io.StringIO()) == "plain"
        assert choose_mode(None) == "off"
        assert choose_mode(Terminal(), quiet=True) == "off"
        assert choose_mode(Terminal(), progress=False) == "off"
        monkeypatch.setenv("TERM", "dumb")
        assert choose_mode(Terminal()) == "plain"

    def test_off_starts_nothing(self) -> None:
        assert start_progress(snapshot, mode="off", stream=io.StringIO()) is None


class TestLogLines:
    def test_go_through_except_while_captured(self) -> None:
        stream = io.StringIO()
        lines = LogLines(stream)
        lines.write("before\n")
        lines.capture()
        lines.write("during\n")
        assert stream.getvalue() == "before\n"
        assert lines.take() == ["during\n"]
        lines.write("late\n")
        lines.release()
        lines.write("after\n")
        assert stream.getvalue() == "before\nlate\nafter\n"

    def test_a_slow_terminal_costs_lines_never_time(self) -> None:
        lines = LogLines(io.StringIO(), limit=2)
        lines.capture()
        for number in range(5):
            lines.write(f"{number}\n")
        told = lines.take()
        assert told[1:] == ["3\n", "4\n"]
        assert told[0].startswith("(3 log lines were dropped")
        assert lines.take() == []


class TestTicker:
    class Clock:
        """Time passes in waits alone, and by hand."""

        now = 100.0

        def monotonic(self) -> float:
            return self.now

        wall = monotonic

        def wait(self, condition: object, timeout: float | None) -> None:
            assert timeout is not None
            self.now += timeout

    @pytest.mark.parametrize(("step", "pause"), [(0.0, 1.0), (0.04, 1.0), (0.2, 4.0), (60.0, 10.0)])
    def test_a_step_that_takes_long_comes_less_often(self, step: float, pause: float) -> None:
        clock = self.Clock()
        ticker = Ticker(clock, 1.0)
        assert ticker.tick()
        assert clock.now == pytest.approx(101.0)
        clock.now += step
        assert ticker.tick()
        assert clock.now == pytest.approx(101.0 + step + pause)
        ticker.stop()
        assert not ticker.tick()


class TestProgress:
    def test_shows_each_interval_until_stopped(self) -> None:
        clock, stream = FakeClock(), io.StringIO()
        shown = threading.Semaphore(0)

        class View(PlainView):
            def show(self, snapshot: Any, pace: Pace) -> None:
                super().show(snapshot, pace)
                shown.release()

        with Progress(snapshot, lambda: View(stream), interval=5.0, clock=clock) as progress:
            for _ in range(3):
                clock.wait_for_waiters(1)
                clock.advance(5.0)
                assert shown.acquire(timeout=10)
            assert progress.stop()
        assert stream.getvalue().count("\n") == 3

    def test_a_view_that_breaks_ends_alone_and_lets_the_log_through(self) -> None:
        clock, stream = FakeClock(), io.StringIO()
        lines = LogLines(stream)

        class Broken(PlainView):
            def show(self, snapshot: Any, pace: Pace) -> None:
                raise BrokenPipeError

        progress = Progress(
            snapshot, lambda: Broken(stream), interval=1.0, clock=clock, lines=lines
        )
        with progress:
            clock.wait_for_waiters(1)
            lines.write("kept\n")
            clock.advance(1.0)
            assert progress.stop()
        lines.write("later\n")
        assert stream.getvalue() == "kept\nlater\n"

    def test_a_terminal_that_hangs_does_not_hold_up_the_end(self) -> None:
        clock = FakeClock()
        reached, let_go = threading.Event(), threading.Event()

        class Hanging(PlainView):
            def show(self, snapshot: Any, pace: Pace) -> None:
                reached.set()
                assert let_go.wait(10)

        with Progress(snapshot, lambda: Hanging(io.StringIO()), interval=1.0, clock=clock) as one:
            clock.wait_for_waiters(1)
            clock.advance(1.0)
            assert reached.wait(10)
            assert not one.stop(timeout=0.05)
            let_go.set()
            assert one.stop()
