"""The higher priority goes first: within a host, among ready hosts, and for a place at all."""

from __future__ import annotations

import pytest

from syncrawl.engine.hosts import Wants
from syncrawl.frontier.model import Entry
from tests.test_scheduler import ALLOW_ALL, NEVER, Bench, config, entries, entry


def high(key: str, count: int, priority: int = 10) -> list[Entry]:
    return [entry(key, 1000 + number, priority) for number in range(count)]


def proven(*keys: str, **limits: float) -> Bench:
    bench = Bench(config(**limits))
    for key in keys:
        bench.scheduler.rules_known(f"http://{key}", ALLOW_ALL, 0.0, NEVER)
        bench.offer(key, 1, first=9_999)
        bench.finish(bench.take())
    return bench


def test_the_host_with_the_better_url_goes_first_whatever_it_has_in_flight() -> None:
    bench = proven("a", "b", start=4, ceiling=4)
    bench.offer("a", 4)
    bench.scheduler.windows.offer("b", high("b", 4), [], more=False)
    assert [bench.take().host.key for _ in range(4)] == ["b"] * 4
    assert bench.take().host.key == "a", "b's limit is used up"


def test_hosts_of_one_priority_take_turns() -> None:
    bench = proven("a", "b", start=4)
    bench.offer("a", 4)
    bench.offer("b", 4)
    assert sorted(bench.take().host.key for _ in range(4)) == ["a", "a", "b", "b"]


def test_robots_are_as_urgent_as_what_waits_for_them() -> None:
    bench = proven("c", start=4)
    bench.scheduler.windows.offer("a", [], entries("a", 2), more=False)
    bench.scheduler.windows.offer("b", [], high("b", 1), more=False)
    bench.offer("c", 3)
    assert bench.take().url == "http://b/robots.txt"
    bench.scheduler.windows.offer("a", [], high("a", 1), more=False)
    assert bench.take().url == "http://a/robots.txt", "it has become as urgent"


def test_a_window_full_of_less_takes_what_is_better_and_nothing_else() -> None:
    bench = proven("a")
    bench.offer("a", 200, more=True)
    assert bench.scheduler.windows.wants("a", best_cold=0) == Wants(0)
    wants = bench.scheduler.windows.wants("a", best_cold=10)
    assert wants.room > 0
    assert wants.above == 0, "what is no better than the window's best stays on disk"
    bench.scheduler.windows.offer("a", high("a", 2), [], more=True, best_cold=10)
    assert bench.scheduler.windows.wants("a", best_cold=10) == Wants(0)


def test_a_better_url_on_disk_is_asked_for_as_soon_as_the_window_has_none() -> None:
    bench = proven("a", start=4)
    bench.scheduler.windows.take_wanted()
    bench.offer("a", 200, more=True)
    bench.scheduler.windows.offer("a", high("a", 2), [], more=True, best_cold=10)
    assert bench.take().url == "http://a/1000"
    assert bench.scheduler.windows.take_wanted() == []
    assert bench.take().url == "http://a/1001"
    assert [key for key, _ in bench.scheduler.windows.take_wanted()] == ["a"]


def test_hosts_of_less_do_not_take_the_places_of_better_ones() -> None:
    bench = proven("a", "b", active=2)
    bench.offer("a", 5)
    bench.offer("b", 5)
    assert bench.scheduler.windows.free_places() == 0
    assert bench.scheduler.windows.free_places(0) == 0
    assert bench.scheduler.windows.free_places(10) == 2
    bench.scheduler.windows.offer("c", high("c", 2), [], more=False)
    assert bench.scheduler.windows.free_places(10) == 1


def test_no_worker_is_kept_for_a_host_of_less() -> None:
    bench = proven("a", start=8, workers=8, rate=0.0)
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 4.0, NEVER)
    bench.offer("slow", 2)
    bench.finish(bench.take())
    for _ in range(20):
        bench.offer("a", 1)
        bench.finish(bench.take())
    bench.scheduler.windows.offer("a", high("a", 8), [], more=False)
    # "slow" is active, holds no thread and is due in 4 s: of its own priority it would keep two.
    assert [lease.host.key for lease in bench.take_all()] == ["a"] * 8


@pytest.mark.parametrize("priority", [0, 10])
def test_a_worker_is_kept_for_a_host_of_as_much(priority: int) -> None:
    bench = proven("a", start=8, workers=8)
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 4.0, NEVER)
    bench.scheduler.windows.offer("slow", high("slow", 2, priority), [], more=False)
    bench.finish(bench.take())
    for _ in range(20):
        bench.offer("a", 1)
        bench.finish(bench.take())
    bench.scheduler.windows.offer("a", high("a", 8, priority), [], more=False)
    assert len(bench.take_all()) == 7


def test_a_worker_is_kept_for_a_host_whose_page_is_still_being_parsed() -> None:
    bench = proven("a", start=8, workers=8)
    bench.scheduler.rules_known("http://b", ALLOW_ALL, 0.0, NEVER)
    bench.offer("b", 1)
    parsing = bench.take()
    bench.scheduler.release(parsing, "2xx")  # its links are not here yet
    for _ in range(20):
        bench.offer("a", 1)
        bench.finish(bench.take())
    bench.offer("a", 8)
    assert len(bench.take_all()) == 7
    bench.offer("b", 1, first=5)
    assert [lease.host.key for lease in bench.take_all()] == ["b"]


def test_an_empty_handed_host_of_less_may_have_the_kept_worker() -> None:
    bench = proven("a", "b", start=8, workers=8)
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 4.0, NEVER)
    bench.scheduler.windows.offer("slow", high("slow", 2), [], more=False)
    bench.finish(bench.take())
    for _ in range(20):
        bench.offer("a", 1)
        bench.finish(bench.take())
    bench.scheduler.windows.offer("a", high("a", 8), [], more=False)
    bench.offer("b", 1)
    keys = [lease.host.key for lease in bench.take_all()]
    assert keys.count("a") == 7
    assert keys[-1] == "b"
