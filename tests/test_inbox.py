"""The commit thread's inbox: a wake is never lost, a batch lingers, a full half is urgent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl.clock import SystemClock
from syncrawl.engine.inbox import MOST_LINKS, CommitInbox, weight_of
from syncrawl.testing.clock import FakeClock

# Real seconds after which a threaded test counts as hung.
HANG_TIMEOUT = 20.0


class Gathering:
    """A `gather` on a thread of its own."""

    def __init__(self, inbox: CommitInbox, timeout: float, linger: float) -> None:
        self._items: list[Any] | None = None
        self._thread = threading.Thread(target=self._run, args=(inbox, timeout, linger))
        self._thread.daemon = True
        self._thread.start()

    def _run(self, inbox: CommitInbox, timeout: float, linger: float) -> None:
        self._items = inbox.gather(timeout, linger)

    def result(self) -> list[Any]:
        self._thread.join(HANG_TIMEOUT)
        assert self._items is not None, "gather did not return"
        return self._items

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()


def inbox(maxsize: int = 10) -> tuple[Any, FakeClock]:
    clock = FakeClock()
    return CommitInbox(maxsize, clock, weigh=lambda _: 1), clock


def test_without_anything_it_waits_for_its_timeout() -> None:
    subject, clock = inbox()
    gathering = Gathering(subject, 0.5, 0.05)
    clock.wait_for_waiters(1)
    clock.advance(0.4)
    clock.wait_for_waiters(1)
    clock.advance(0.1)
    assert gathering.result() == []
    assert subject.snapshot()["starved_get_seconds"] == pytest.approx(0.5)


def test_no_time_to_wait_means_at_once() -> None:
    subject, clock = inbox()
    assert subject.gather(0.0, 0.0) == []
    subject.put(1)
    clock.advance(1.0)
    assert subject.gather(0.0, 0.05) == [1]


def test_an_item_lingers_for_company_from_its_arrival() -> None:
    subject, clock = inbox()
    gathering = Gathering(subject, 10.0, 0.05)
    clock.wait_for_waiters(1)
    subject.put(1)
    # The item moves the waiter on to the linger; advancing before that is harmless.
    clock.advance(0.03)
    clock.wait_for_waiters(1)
    subject.put(2)
    assert not gathering.over
    clock.advance(0.03)
    assert gathering.result() == [1, 2]


def test_an_item_that_waited_already_lingers_no_more() -> None:
    subject, clock = inbox()
    subject.put(1)
    clock.advance(0.06)
    assert subject.gather(10.0, 0.05) == [1]


def test_half_of_the_bound_is_urgent() -> None:
    subject, clock = inbox(maxsize=6)
    subject.put(1)
    gathering = Gathering(subject, 10.0, 5.0)
    clock.wait_for_waiters(1)
    subject.put(2)
    assert not gathering.over
    subject.put(3)
    assert gathering.result() == [1, 2, 3]


def test_a_bound_of_one_never_lingers() -> None:
    subject, _ = inbox(maxsize=1)
    subject.put(1)
    assert subject.gather(10.0, 5.0) == [1]


@pytest.mark.parametrize("items", [[], [1]])
def test_a_wake_before_gather_is_not_lost(items: list[int]) -> None:
    subject, _ = inbox()
    for item in items:
        subject.put(item)
    subject.wake()
    assert subject.gather(10.0, 5.0) == items
    subject.put(2)
    gathering = Gathering(subject, 10.0, 5.0)
    assert not gathering.over, "one wake ends one gather"
    subject.wake()
    assert gathering.result() == [2]


@pytest.mark.parametrize("items", [[], [1]])
def test_a_wake_ends_a_gather_that_waits_or_lingers(items: list[int]) -> None:
    subject, clock = inbox()
    for item in items:
        subject.put(item)
    gathering = Gathering(subject, 10.0, 5.0)
    clock.wait_for_waiters(1)
    subject.wake()
    assert gathering.result() == items


def test_many_wakes_are_one_and_never_block() -> None:
    subject, _ = inbox(maxsize=1)
    subject.put(1)
    for _ in range(100):
        subject.wake()
    assert subject.gather(10.0, 5.0) == [1]
    assert subject.gather(0.0, 0.0) == []


def test_the_bound_holds_and_a_gather_makes_room() -> None:
    subject, clock = inbox(maxsize=2)
    subject.put(1)
    subject.put(2)
    with pytest.raises(queue.Full):
        subject.put(3, block=False)
    putting = threading.Thread(target=subject.put, args=(3,), daemon=True)
    putting.start()
    clock.wait_for_waiters(1)
    assert subject.qsize() == 2
    assert subject.gather(0.0, 0.0) == [1, 2]
    putting.join(HANG_TIMEOUT)
    assert not putting.is_alive()
    assert subject.gather(0.0, 0.0) == [3]


def test_ages_stay_in_step_with_the_items() -> None:
    subject, clock = inbox()
    subject.put(1)
    clock.advance(2.0)
    assert subject.snapshot()["oldest_age"] == 2.0
    subject.gather(0.0, 0.0)
    subject.put(2)
    clock.advance(0.5)
    assert subject.snapshot()["oldest_age"] == 0.5
    assert subject.snapshot()["depth"] == 1


def test_every_item_and_every_wake_arrives_under_load() -> None:
    """No heartbeat: each gather waits, as far as it is concerned, for ever."""
    subject: Any = CommitInbox(7, SystemClock(), weigh=lambda _: 1)
    wishes = 0
    lock = threading.Lock()

    def produce(number: int) -> None:
        nonlocal wishes
        for item in range(300):
            if item % 3:
                subject.put((number, item))
            else:
                with lock:
                    wishes += 1
                subject.wake()

    seen: list[Any] = []
    granted = 0

    def consume() -> None:
        nonlocal granted, wishes
        while len(seen) < 4 * 200 or granted < 4 * 100:
            batch = subject.gather(1e6, 0.0005)
            assert len(batch) <= 7
            seen.extend(batch)
            with lock:
                granted, wishes = granted + wishes, 0

    bodies: list[Callable[[], None]] = [lambda n=n: produce(n) for n in range(4)]  # type: ignore[misc]
    threads = [threading.Thread(target=body, daemon=True) for body in [*bodies, consume]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert not any(thread.is_alive() for thread in threads), "a wake or an item was lost"
    assert len(set(seen)) == len(seen) == 4 * 200
    for number in range(4):
        assert [item for who, item in seen if who == number] == [n for n in range(300) if n % 3]


def test_an_abandoned_inbox_holds_nobody_up() -> None:
    subject, clock = inbox(1)
    subject.put("first")
    putters = [threading.Thread(target=subject.put, args=[n], daemon=True) for n in range(3)]
    for putter in putters:
        putter.start()
    clock.wait_for_waiters(3)
    subject.abandon()
    for putter in putters:
        putter.join(HANG_TIMEOUT)
        assert not putter.is_alive(), "a put hangs on an inbox that nobody empties"
    subject.put("more")
    assert subject.qsize() == 5


def test_pages_with_many_links_fill_it_by_their_links() -> None:
    clock = FakeClock()
    subject: Any = CommitInbox(100, clock, weigh=len)
    subject.put("x" * (MOST_LINKS - 1))
    subject.put("x" * MOST_LINKS)  # one link short of full: the last may go over by a page
    with pytest.raises(queue.Full):
        subject.put("x", block=False)
    # Half of it is enough for a batch: no lingering.
    assert len(subject.gather(0.0, 60.0)) == 2
    subject.put("x", block=False)


def test_a_page_weighs_its_links_and_records() -> None:
    page: Any = SimpleNamespace(links=[1, 2], records=[3])
    assert weight_of(page) == 3
