"""Queues, waits and the verdict on what limits a crawl, on a clock that only we move."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from syncrawl.clock import SystemClock
from syncrawl.observe.metrics import (
    MeteredQueue,
    Reading,
    RecentReadings,
    StageMeter,
    bottleneck,
    growth,
)
from syncrawl.testing import FakeClock

# A thread that should have come back by now is stuck.
STUCK_SECONDS = 10.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def beside(function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """Call something on a thread that a failing test may leave behind."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **options))
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class TestMeteredQueue:
    def test_is_a_fifo_queue(self, clock: FakeClock) -> None:
        items: MeteredQueue[int] = MeteredQueue(3, clock)
        for number in (1, 2, 3):
            items.put(number)
        assert items.full()
        assert [items.get(), items.get_nowait(), items.get()] == [1, 2, 3]
        assert items.empty()
        for _ in range(3):
            items.task_done()
        items.join()

    def test_tells_depth_and_age_of_the_oldest(self, clock: FakeClock) -> None:
        items: MeteredQueue[str] = MeteredQueue(5, clock)
        assert items.snapshot()["oldest_age"] == 0.0
        items.put("a")
        clock.advance(2.0)
        items.put("b")
        clock.advance(1.5)
        assert (items.snapshot()["depth"], items.snapshot()["oldest_age"]) == (2, 3.5)
        items.get()
        assert (items.snapshot()["depth"], items.snapshot()["oldest_age"]) == (1, 1.5)

    def test_counts_a_blocked_put_while_it_lasts_and_after(self, clock: FakeClock) -> None:
        items: MeteredQueue[int] = MeteredQueue(1, clock)
        items.put(1)
        putting = beside(items.put, 2)
        clock.wait_for_waiters(1)
        clock.advance(4.0)
        assert items.snapshot()["blocked_put_seconds"] == 4.0
        assert items.qsize() == 1
        assert items.get() == 1
        putting.result(STUCK_SECONDS)
        clock.advance(100.0)
        assert items.snapshot()["blocked_put_seconds"] == 4.0
        assert items.snapshot()["starved_get_seconds"] == 0.0
        assert items.get() == 2

    def test_counts_starved_gets_of_every_thread(self, clock: FakeClock) -> None:
        items: MeteredQueue[int] = MeteredQueue(4, clock)
        getting = [beside(items.get), beside(items.get)]
        clock.wait_for_waiters(2)
        clock.advance(3.0)
        assert items.snapshot()["starved_get_seconds"] == 6.0
        items.put(7)
        items.put(8)
        assert sorted(one.result(STUCK_SECONDS) for one in getting) == [7, 8]
        clock.advance(50.0)
        assert items.snapshot()["starved_get_seconds"] == 6.0

    def test_a_put_that_finds_no_room_in_time_is_rejected(self, clock: FakeClock) -> None:
        items: MeteredQueue[int] = MeteredQueue(1, clock)
        items.put(1)
        with pytest.raises(queue.Full):
            items.put_nowait(2)
        waiting = beside(items.put, 3, timeout=2.0)
        clock.wait_for_waiters(1)
        clock.advance(2.5)
        assert isinstance(waiting.exception(STUCK_SECONDS), queue.Full)
        assert items.snapshot()["rejected"] == 2
        assert items.snapshot()["depth"] == 1

    def test_a_get_that_finds_nothing_in_time(self, clock: FakeClock) -> None:
        items: MeteredQueue[int] = MeteredQueue(1, clock)
        with pytest.raises(queue.Empty):
            items.get_nowait()
        waiting = beside(items.get, timeout=2.0)
        clock.wait_for_waiters(1)
        clock.advance(2.5)
        assert isinstance(waiting.exception(STUCK_SECONDS), queue.Empty)
        with pytest.raises(ValueError, match="non-negative"):
            items.get(timeout=-1)

    def test_never_holds_more_than_its_bound_and_loses_nothing_under_threads(self) -> None:
        bound, workers, each = 3, 4, 500
        items: MeteredQueue[int] = MeteredQueue(bound, SystemClock())
        too_deep: list[int] = []

        def produce(first: int) -> None:
            for number in range(first, first + each):
                items.put(number, timeout=STUCK_SECONDS)

        def consume() -> list[int]:
            taken = []
            for _ in range(each):
                taken.append(items.get(timeout=STUCK_SECONDS))
                if (depth := items.qsize()) > bound:
                    too_deep.append(depth)
            return taken

        with ThreadPoolExecutor(2 * workers) as pool:
            consumers = [pool.submit(consume) for _ in range(workers)]
            producers = [pool.submit(produce, each * n) for n in range(workers)]
            for producer in producers:
                producer.result(STUCK_SECONDS)
            taken = [number for one in consumers for number in one.result(STUCK_SECONDS)]
        assert sorted(taken) == list(range(workers * each))
        assert not too_deep
        assert items.snapshot()["depth"] == 0


def test_a_stage_without_a_queue_measures_with_the_lock_of_its_owner(clock: FakeClock) -> None:
    lock = threading.Lock()
    meter = StageMeter(clock, lock=lock, depth=lambda: 12, oldest=lambda: clock.monotonic() - 3)
    with meter.waiting(meter.starved):
        clock.advance(1.0)
        assert meter.snapshot()["starved_get_seconds"] == 1.0
    with lock:
        meter.blocked.enter(clock.monotonic())
        clock.advance(2.0)
        meter.blocked.leave(clock.monotonic())
    meter.reject(2)
    clock.advance(9.0)
    assert meter.snapshot() == {
        "depth": 12,
        "oldest_age": 3.0,
        "blocked_put_seconds": 2.0,
        "starved_get_seconds": 1.0,
        "rejected": 2,
    }


def verdict(**window: float) -> tuple[str, float]:
    """The verdict on a window of ten seconds with 10 fetch and 2 parse workers."""
    before = Reading(at=100.0, cpu=5.0, polite=7.0, starved=9.0, parse_blocked=1.0)
    after = Reading(
        at=110.0,
        cpu=5.0 + window.get("cpu", 1.0),
        polite=7.0 + window.get("polite", 0.0),
        starved=9.0 + window.get("starved", 0.0),
        parse_blocked=1.0 + window.get("parse_blocked", 0.0),
        commit_blocked=window.get("commit_blocked", 0.0),
        commit_busy=window.get("commit_busy", 0.0),
        parse_busy=window.get("parse_busy", 0.0),
    )
    found = bottleneck(before, after, fetch_workers=10, parse_workers=2)
    return found["stage"], found["share"]


class TestBottleneck:
    def test_busy_fetch_workers(self) -> None:
        assert verdict() == ("fetch", 1.0)

    def test_idle_workers_while_urls_pend_are_politeness(self) -> None:
        assert verdict(polite=60.0, starved=60.0) == ("politeness", 0.6)

    def test_a_few_busy_workers_are_not_the_limit_if_others_idle(self) -> None:
        assert verdict(polite=20.0, starved=20.0) == ("politeness", 0.2)

    def test_fetchers_held_up_by_parse(self) -> None:
        assert verdict(parse_blocked=70.0) == ("parse", 0.7)

    def test_commit_is_blamed_for_what_it_does_to_parse_and_fetch(self) -> None:
        assert verdict(parse_blocked=90.0, commit_blocked=18.0) == ("commit", 0.9)
        assert verdict(parse_blocked=80.0, commit_blocked=14.0) == ("commit", 0.7)

    def test_a_store_that_hangs_is_to_blame_before_anyone_waits_for_it(self) -> None:
        assert verdict(commit_busy=10.0, polite=60.0, starved=60.0) == ("commit", 1.0)
        assert verdict(commit_busy=9.5, parse_blocked=60.0) == ("commit", 0.95)

    def test_workers_all_in_exchanges_do_not_outdo_a_store_that_hangs(self) -> None:
        assert verdict(commit_busy=10.0) == ("commit", 1.0)

    def test_a_commit_thread_that_is_often_idle_limits_nothing(self) -> None:
        assert verdict(commit_busy=8.0, polite=60.0, starved=60.0) == ("politeness", 0.6)

    def test_a_slow_parser_is_to_blame_while_commit_idles(self) -> None:
        assert verdict(parse_blocked=85.0, commit_busy=0.2, starved=5.0) == ("parse", 0.85)

    def test_parsers_at_work_without_a_break_are_to_blame_where_no_url_is_left(self) -> None:
        assert verdict(parse_busy=19.0, starved=95.0, cpu=1.0) == ("parse", 0.95)
        assert verdict(parse_busy=17.0, starved=95.0, cpu=1.0) == ("cpu", 0.1)

    def test_workers_idle_for_a_limit_of_the_users_are_no_busy_fetchers(self) -> None:
        assert verdict(starved=90.0, cpu=2.0) == ("cpu", 0.2)

    def test_a_full_core_is_the_answer_whatever_waits(self) -> None:
        assert verdict(cpu=9.0, parse_blocked=90.0) == ("cpu", 0.9)
        assert verdict(cpu=19.0) == ("cpu", 1.0)

    def test_no_time_no_verdict(self) -> None:
        now = Reading(at=1.0)
        assert bottleneck(now, now, fetch_workers=1, parse_workers=1)["share"] == 0.0

    def test_recent_readings_forget_what_was(self) -> None:
        recent = RecentReadings(seconds=10)
        assert recent.verdict(fetch_workers=1, parse_workers=1)["share"] == 0.0
        # Thirty seconds held up by parse, then thirty that were not.
        for second in range(61):
            blocked = min(second, 30)
            recent.add(Reading(at=float(second), parse_blocked=float(blocked)))
        assert recent.verdict(fetch_workers=1, parse_workers=1) == {"stage": "fetch", "share": 1.0}

    def test_a_reading_that_was_overtaken_is_passed_over(self) -> None:
        recent = RecentReadings(seconds=10)
        for at in (0.0, 5.0, 4.0):
            recent.add(Reading(at=at, polite=at, starved=at, found=int(at) ** 2))
        assert recent.growth()["found"] == 5.0
        assert recent.verdict(fetch_workers=1, parse_workers=1)["stage"] == "politeness"


def test_growth_is_urls_a_second_over_the_window() -> None:
    before = Reading(at=10.0, found=100, finished=40)
    after = Reading(at=14.0, found=150, finished=48)
    assert growth(before, after) == {"found": 12.5, "finished": 2.0}
    assert growth(after, after) == {"found": 0.0, "finished": 0.0}
    recent = RecentReadings(seconds=10)
    recent.add(before)
    assert recent.growth() == {"found": 0.0, "finished": 0.0}
    recent.add(after)
    assert recent.growth() == {"found": 12.5, "finished": 2.0}
