"""Shedding: what goes first, what stays, what comes back, and that everything is accounted for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from syncrawl.config.model import ShedConfig
from syncrawl.engine.shedding import Shedder
from syncrawl.frontier.memory import MemoryFrontier
from syncrawl.frontier.model import SHED, Batch, Entry, Finish
from syncrawl.testing.clock import FakeClock
from syncrawl.urls import fingerprint


class Bench:
    """A frontier in memory, its shedder, and the commit that goes with them."""

    def __init__(self, **config: Any) -> None:
        self.frontier = MemoryFrontier(clock=FakeClock(), queue_of=str)
        self.set_apart = 0
        self.shedder = Shedder(ShedConfig(**config), self.frontier, lambda: self.set_apart)
        self.numbers = itertools.count()

    def find(self, priority: int, count: int) -> None:
        """Find URLs, shed what there is no room for, write all of it down."""
        before = self.shedder.pending
        batch = Batch()
        links = []
        for _ in range(count):
            url = f"http://a/{next(self.numbers)}"
            links.append(Entry(url, fingerprint(url), priority=priority))
        batch.found.extend(self.shedder.sift(links, batch))
        self.frontier.commit(batch)
        self.settle(before)

    def settle(self, before: int) -> set[str]:
        surplus, back = self.shedder.settle(before)
        while surplus:
            ends = [Finish(entry, "dropped", SHED) for entry in surplus]
            self.frontier.commit(Batch(finished=ends))
            surplus, _ = self.shedder.settle(before)
        return back

    def work_off(self, count: int) -> set[str]:
        before = self.shedder.pending
        taken = self.frontier.take("a", count)
        self.frontier.commit(Batch(finished=[Finish(entry, "done", "2xx") for entry in taken]))
        return self.settle(before)

    @property
    def priorities(self) -> dict[int, int]:
        """How many can be taken, by priority; nothing is taken for good."""
        found: dict[int, int] = {}
        for entries in self.frontier._cold.values():
            for entry in entries:
                found[entry.priority] = found.get(entry.priority, 0) + 1
        return found

    @property
    def dropped(self) -> int:
        counts = self.frontier.counts()
        assert counts.balanced()
        return counts.dropped.get(SHED, 0)


def test_without_a_limit_nothing_is_shed() -> None:
    bench = Bench()
    bench.find(-5, 1000)
    assert (bench.shedder.active, bench.shedder.pending, bench.dropped) == (False, 1000, 0)


@pytest.mark.parametrize("action", ["defer", "drop"])
def test_the_lowest_priority_goes_first_whenever_it_came(action: str) -> None:
    bench = Bench(max_pending=10, action=action)
    bench.find(0, 6)
    bench.find(-5, 4)
    bench.find(10, 5)
    assert bench.priorities == {10: 5, 0: 5}
    shed = bench.frontier.shelved() if action == "defer" else bench.dropped
    assert shed == 5


@pytest.mark.parametrize("action", ["defer", "drop"])
def test_what_is_worth_enough_is_never_shed(action: str) -> None:
    bench = Bench(max_pending=10, action=action, below_priority=5)
    bench.find(5, 30)
    assert bench.priorities == {5: 30}
    bench.find(4, 7)
    assert bench.priorities == {5: 30}


def test_what_would_be_dropped_at_once_is_not_written_down_first() -> None:
    bench = Bench(max_pending=10, action="drop")
    bench.find(0, 30)
    batch = Batch()
    url = "http://a/new"
    low, high = (Entry(url + str(p), fingerprint(url + str(p)), priority=p) for p in (0, 20))
    assert bench.shedder.sift([low, high], batch) == [high]
    assert batch.shed == [low]
    bench.frontier.commit(batch)
    assert bench.dropped == 21
    assert low.fp in bench.frontier.seen, "it was accepted, so that it is counted once"


def test_the_deferred_come_back_when_there_is_room_best_first() -> None:
    bench = Bench(max_pending=10)
    bench.find(-5, 8)
    bench.find(0, 12)
    assert bench.priorities == {0: 10}
    assert bench.work_off(5) == {"a"}
    assert bench.priorities == {0: 7, -5: 3}
    for _ in range(10):
        bench.work_off(5)
    assert bench.frontier.counts().done == 20, "all are crawled in the end"
    assert bench.frontier.shelved() == 0


def test_what_is_set_apart_takes_no_room() -> None:
    bench = Bench(max_pending=10)
    bench.set_apart = 10
    bench.find(0, 20)
    assert bench.frontier.shelved() == 0


@pytest.mark.parametrize("action", ["defer", "drop"])
def test_while_a_queue_has_been_full_too_long_what_is_found_is_shed(action: str) -> None:
    bench = Bench(action=action, full_after=30.0)
    bench.shedder.note(0.0, full=True, idle=0)
    bench.find(0, 5)
    bench.shedder.note(29.0, full=True, idle=0)
    bench.find(0, 5)
    assert bench.shedder.pending == 10, "not yet"
    bench.shedder.note(30.0, full=True, idle=0)
    bench.find(0, 5)
    bench.find(50, 3)
    assert bench.shedder.pending == 10
    assert bench.priorities.get(50) == 3, "what is worth enough is taken, at the others' cost"
    bench.shedder.note(31.0, full=False, idle=0)
    bench.work_off(1)
    assert bench.frontier.shelved() == 0, "what was deferred comes back"
    bench.shedder.note(32.0, full=True, idle=0)
    bench.find(0, 5)
    assert bench.frontier.shelved() == 0, "the time starts anew"


def test_idle_workers_get_work_of_hosts_that_have_nothing_left_but_what_was_put_off() -> None:
    bench = Bench(max_pending=4)
    links = [f"http://{host}/{n}" for n, host in enumerate("aaaabbbccc")]
    entries = [Entry(url, fingerprint(url)) for url in links]
    for entry in entries:
        bench.frontier.commit(Batch(found=[entry]))
    bench.settle(0)
    assert bench.frontier.shelved_queue("b") == bench.frontier.shelved_queue("c") == 3
    bench.shedder.note(10.0, full=False, idle=5)
    assert bench.settle(4) == set(), "not yet"
    bench.shedder.note(11.5, full=False, idle=1)
    (first,) = bench.settle(4)
    assert first in "bc", "one worker is idle"
    assert len(bench.frontier.take(first, 9)) == 1
    bench.shedder.note(12.0, full=False, idle=5)
    assert bench.settle(4) == set(), "once a second"
    bench.shedder.note(13.0, full=False, idle=5)
    assert bench.settle(5) == {"b", "c"} - {first}, "what is being worked on is not starved"
    bench.shedder.note(13.5, full=False, idle=0)
    bench.shedder.note(14.4, full=False, idle=5)
    bench.settle(5)
    bench.shedder.note(15.3, full=False, idle=5)
    assert bench.settle(5) == set(), "the time starts anew"
