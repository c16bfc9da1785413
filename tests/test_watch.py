"""The watch over workers: what is overdue is told once, and each piece of work ends once."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from syncrawl.clock import SystemClock
from syncrawl.engine.budget import Ticket
from syncrawl.engine.lease import Fetched, Lease
from syncrawl.engine.watch import WorkWatch
from syncrawl.frontier.model import Entry
from syncrawl.testing.clock import FakeClock

# Real seconds after which a thread counts as hung.
PATIENCE = 20.0


def lease(number: int = 1) -> Lease:
    host: Any = None
    return Lease(number, host, 0.0, Ticket(), entry=Entry("http://h/", number))


class Standing:
    """A thread that begins a piece of work, stands in `hang_here`, and then ends it."""

    def __init__(self, watch: WorkWatch, limit: float, name: str = "parse_7") -> None:
        self.wanted: bool | None = None
        self.lease = lease()
        self._watch = watch
        self._limit = limit
        self._begun, self._go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()
        assert self._begun.wait(PATIENCE)

    def _run(self) -> None:
        self._watch.begin("parse", self.lease, self._limit)
        self.hang_here()
        self.wanted = self._watch.end()

    def hang_here(self) -> None:
        self._begun.set()
        self._go_on.wait(PATIENCE)

    def go_on(self) -> bool | None:
        self._go_on.set()
        self.thread.join(PATIENCE)
        return self.wanted


def test_work_within_its_limit_is_nobodys_business() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    assert watch.overdue(clock.monotonic()) == []
    watch.begin("parse", lease(), 30.0)
    clock.advance(30.0)
    assert watch.overdue(clock.monotonic()) == []
    assert watch.end()
    clock.advance(1.0)
    assert watch.overdue(clock.monotonic()) == []


def test_what_is_overdue_is_told_once_and_given_up() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    worker = Standing(watch, 30.0)
    clock.advance(30.5)
    (stuck,) = watch.overdue(clock.monotonic())
    assert (stuck.thread, stuck.ident) == ("parse_7", worker.thread.ident)
    assert (stuck.stage, stuck.seconds) == ("parse", 30.5)
    assert stuck.lease is worker.lease
    assert watch.overdue(clock.monotonic()) == []
    assert worker.go_on() is False
    assert "0 at work" in repr(watch)


def test_a_worker_given_up_once_can_begin_again() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    watch.begin("fetch", lease(1), 1.0)
    clock.advance(2.0)
    assert len(watch.overdue(clock.monotonic())) == 1
    assert not watch.end()
    watch.begin("fetch", lease(2), 1.0)
    assert watch.end()
    # Nothing is under way.
    assert not watch.end()


def test_a_new_part_of_the_work_has_its_own_limit() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    watch.extend(1.0)
    watch.begin("fetch", lease(), 10.0)
    clock.advance(9.0)
    watch.extend(10.0)
    clock.advance(9.0)
    assert watch.overdue(clock.monotonic()) == []
    clock.advance(2.0)
    (stuck,) = watch.overdue(clock.monotonic())
    assert stuck.seconds == 20.0
    # Too late: it has been given up.
    watch.extend(10.0)
    assert not watch.end()


def test_what_was_told_last_before_the_end_of_patience_is_gone_on_with() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    one, first, second, late = lease(), *(Fetched(lease(), "lost") for _ in range(3))
    assert not watch.note(first), "nothing is under way"
    watch.begin("fetch", one, 1.0, first, lambda: "a parser")
    assert watch.note(second)
    clock.advance(2.0)
    (stuck,) = watch.overdue(clock.monotonic())
    assert stuck.fetched is second
    assert stuck.at == "a parser"
    assert not watch.note(late)
    assert not watch.end()


def test_each_of_many_workers_has_its_own_limit() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    workers = [Standing(watch, limit, f"parse_{limit:g}") for limit in (1.0, 5.0, 9.0)]
    clock.advance(6.0)
    assert sorted(one.thread for one in watch.overdue(clock.monotonic())) == ["parse_1", "parse_5"]
    assert [worker.go_on() for worker in workers] == [False, False, True]


def test_work_is_ended_or_given_up_and_never_both() -> None:
    """The worker and the watcher meet at every possible moment."""
    watch = WorkWatch(SystemClock())
    ended: list[int] = []
    given_up: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            given_up.extend(stuck.lease.id for stuck in watch.overdue(float("inf")))

    watcher = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    until = SystemClock.monotonic() + PATIENCE
    rounds = 0
    try:
        watcher.start()
        while rounds < 20_000 or not (ended and given_up):
            assert SystemClock.monotonic() < until, "they never met"
            watch.begin("parse", lease(rounds), 1.0)
            if watch.end():
                ended.append(rounds)
            rounds += 1
    finally:
        sys.setswitchinterval(interval)
        done.set()
        watcher.join(PATIENCE)
    assert sorted(ended + given_up) == list(range(rounds))


def test_stacks_name_every_thread_and_where_it_stands() -> None:
    watch = WorkWatch(FakeClock())
    worker = Standing(watch, 1.0)
    ident = worker.thread.ident
    assert ident is not None
    assert "in hang_here" in watch.stack_of(ident)
    told = watch.stacks()
    assert "parse_7:\n" in told
    assert "in hang_here" in told
    assert f"{threading.current_thread().name}:\n" in told
    assert "in test_stacks_name_every_thread_and_where_it_stands" in told
    worker.go_on()
    assert watch.stack_of(ident) == ""


def test_stacks_tell_the_most_first() -> None:
    clock = FakeClock()
    watch = WorkWatch(clock)
    idle = WorkWatch(clock)
    workers = [Standing(idle, 1.0, "parse_1")]
    workers.append(Standing(watch, 99.0, "parse_2"))
    clock.advance(1.0)
    workers += [Standing(watch, 99.0, "fetch_3"), Standing(idle, 1.0, "commit_0")]
    told = watch.stacks()
    ours = threading.current_thread().name
    places = [told.index(f"{name}:\n") for name in ("commit_0", "parse_2", "fetch_3", "parse_1")]
    assert places == sorted(places)
    assert places[0] == 0
    assert told.index(f"{ours}:\n") > places[-1]
    for worker in workers:
        worker.go_on()


def test_stacks_are_bounded() -> None:
    watch = WorkWatch(FakeClock())

    def deep(left: int) -> tuple[str, str]:
        if left:
            # Alternating, so that the frames cannot be told of in one line.
            return deeper(left - 1)
        return watch.stack_of(threading.get_ident()), watch.stacks()

    def deeper(left: int) -> tuple[str, str]:
        return deep(left)

    one, all_of_them = deep(200)
    assert len(one) <= 4_000
    # The innermost calls, which tell the most.
    assert "in stack_of" in one
    assert len(all_of_them) <= 60_000


@pytest.mark.parametrize("stage", ["fetch", "parse"])
def test_cost(stage: str) -> None:
    """An item costs a few microseconds at most; a lock held by the watcher would show here."""
    watch = WorkWatch(SystemClock())
    one = lease()
    best = float("inf")
    for _ in range(5):
        began = SystemClock.monotonic()
        for _ in range(1_000):
            watch.begin(stage, one, 1.0)
            watch.end()
        best = min(best, SystemClock.monotonic() - began)
    assert best / 1_000 < 20e-6
