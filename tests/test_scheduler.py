"""The scheduler: order, gates, robots as a state, verdicts, bounds, and no lost wake-up.

Most tests are single-threaded on a clock that does not wait: a `lease` that would block
comes back as None. The last part runs real threads.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from syncrawl.api import Headers, Response
from syncrawl.clock import SystemClock
from syncrawl.config.model import (
    Config,
    CrawlConfig,
    FetchConfig,
    HostConfig,
    QueuesConfig,
    RetryConfig,
    RobotsConfig,
    ScopeConfig,
)
from syncrawl.engine.budget import RESERVATION, ByteBudget
from syncrawl.engine.gates import HostMaker
from syncrawl.engine.hosts import RobotsJob, Wants
from syncrawl.engine.lease import Lease
from syncrawl.engine.robots import RobotsStep
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.scheduler import Scheduler
from syncrawl.errors import FetchError
from syncrawl.fetch.robots import ALLOW_ALL, DISALLOW_ALL, protego_engine
from syncrawl.frontier.model import Entry
from syncrawl.limits.retry import RetryPolicy
from syncrawl.log import NullLog
from syncrawl.testing.clock import FakeClock
from syncrawl.urls import Canonicalizer, fingerprint

# Real seconds after which a threaded test counts as hung; each takes well under one.
DRAIN_TIMEOUT = 20.0
# Real seconds in which a thread that was woken must have come back with a lease.
PATIENCE = 5.0
NEVER = float("inf")


class WouldBlock(Exception):
    """A `lease` would wait now."""


class StandingClock(FakeClock):
    """A FakeClock for one thread: a wait, which nobody could end, raises instead."""

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        raise WouldBlock


def config(
    *,
    workers: int = 32,
    max_items: int = 256,
    max_bytes: int = 1 << 30,
    max_pages: int = 0,
    per_host: int = 0,
    give_up_after: float = 3600.0,
    **host: float,
) -> Config:
    return Config(
        crawl=CrawlConfig(
            max_pages=max_pages,
            give_up_after=give_up_after,
            user_agent="bot/1.0 (+http://bot.example/)",
        ),
        scope=ScopeConfig(max_pages_per_host=per_host),
        host=HostConfig(**host),  # type: ignore[arg-type]
        fetch=FetchConfig(workers=workers),
        queues=QueuesConfig(max_items=max_items, max_bytes=max_bytes),
        retry=RetryConfig(max_attempts=3),
    )


def entry(key: str, number: int, priority: int = 0) -> Entry:
    url = f"http://{key}/{number}"
    return Entry(url, fingerprint(url), priority=priority)


def entries(key: str, count: int, first: int = 0) -> list[Entry]:
    return [entry(key, number) for number in range(first, first + count)]


class Bench:
    """A scheduler with all that it is made of."""

    def __init__(self, settings: Config | None = None, clock: Any = None, seed: int = 5) -> None:
        self.config = settings or config()
        self.clock: Any = clock or StandingClock()
        self.budget = ByteBudget(self.config.queues.max_bytes, self.clock)
        self.calls = 0
        rng = random.Random(seed)
        self.scheduler = Scheduler(
            self.config,
            clock=self.clock,
            budget=self.budget,
            new_host=HostMaker(self.config, {}, clock=self.clock, rng=rng).new_host,
            queue_of=str,
            on_wanted=self._wanted,
            rng=rng,
        )

    def _wanted(self) -> None:
        self.calls += 1

    def offer(self, key: str, count: int, *, more: bool | None = False, first: int = 0) -> None:
        self.scheduler.windows.offer(key, entries(key, count, first), [], more=more)

    def lease(self) -> Lease | None:
        """A lease, or None where the call would wait."""
        try:
            return self.scheduler.lease()
        except WouldBlock:
            return None

    def take(self) -> Lease:
        lease = self.lease()
        assert lease is not None, f"nothing to lease from {self.scheduler!r}"
        return lease

    def take_all(self) -> list[Lease]:
        return list(iter(self.lease, None))

    def finish(self, lease: Lease, outcome: str = "2xx", **more: Any) -> None:
        """What fetch, parse and commit do with a lease, at once."""
        self.scheduler.release(lease, outcome, **more)
        self.scheduler.give_credit()
        self.scheduler.settle(lease, page=outcome == "2xx")

    def prove(self, *keys: str) -> None:
        """Let hosts answer once."""
        for key in keys:
            self.offer(key, 1, first=10_000)
            lease = self.take()
            assert lease.host.key == key
            self.finish(lease, "4xx")

    def until(self, instant: float) -> None:
        self.clock.advance(instant - self.clock.monotonic())


def keys_of(leases: Iterable[Lease]) -> list[str]:
    return [lease.host.key for lease in leases]


def test_live_figures_are_of_the_hosts_asked_for_that_it_knows() -> None:
    bench = Bench()
    bench.offer("a", 1)
    bench.offer("b", 1)
    assert bench.scheduler.live(["b", "never offered"]).keys() == {"b"}
    assert bench.scheduler.live().keys() == {"a", "b"}
    bench.take()
    assert bench.scheduler.loads() == {"a": (1, 1), "b": (0, 0)}


# -- order, and who blocks whom ---------------------------------------------------------------


def test_the_ready_host_with_the_fewest_threads_goes_first() -> None:
    bench = Bench(config(start=3))
    bench.prove("a", "b", "c")
    for key in "abc":
        bench.offer(key, 5)
    assert [set(keys_of(bench.take() for _ in range(3))) for _ in range(3)] == [set("abc")] * 3
    assert bench.lease() is None


def test_a_host_that_got_free_goes_before_one_that_is_busy() -> None:
    bench = Bench(config(start=4))
    bench.prove("a", "b")
    bench.offer("a", 9)
    bench.offer("b", 9)
    leases = [bench.take() for _ in range(6)]
    for lease in leases:
        if lease.host.key == "b":
            bench.finish(lease)
    assert keys_of(bench.take() for _ in range(3)) == ["b"] * 3


def test_in_a_window_the_higher_priority_goes_first_then_the_older() -> None:
    bench = Bench(config(start=9))
    window = [entry("a", 1), entry("a", 2, 5), entry("a", 3), entry("a", 4, 5), entry("a", 5, 100)]
    bench.scheduler.windows.offer("a", window, [], more=False)
    assert [lease.url[-1] for lease in bench.take_all()] == ["5", "2", "4", "1", "3"]


def test_a_full_host_blocks_nobody() -> None:
    bench = Bench(config(start=2))
    bench.offer("full", 50)
    full = bench.take_all()
    assert keys_of(full) == ["full"] * 2
    bench.offer("other", 1)
    assert keys_of(bench.take_all()) == ["other"]
    bench.scheduler.release(full[0], "4xx")
    assert keys_of(bench.take_all()) == ["full"], "its slot is free before its result is settled"


def test_a_delayed_host_blocks_nobody_and_comes_back_in_time() -> None:
    bench = Bench(config(start=4))
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 10.0, NEVER)
    bench.offer("slow", 3)
    bench.offer("quick", 3)
    start = bench.clock.monotonic()
    assert Counter(keys_of(bench.take_all())) == {"slow": 1, "quick": 3}
    due = bench.scheduler.waits_until()
    assert due is not None
    assert due == pytest.approx(start + 10.005)
    bench.until(due - 0.001)
    assert bench.lease() is None
    bench.until(due)
    assert keys_of(bench.take_all()) == ["slow"]


def test_a_paused_host_blocks_nobody_and_its_pause_is_what_it_asked_for() -> None:
    bench = Bench(config(start=1))
    bench.offer("busy", 5)
    bench.offer("other", 2)
    first, second = bench.take(), bench.take()
    busy = first if first.host.key == "busy" else second
    bench.finish(busy, "throttled", retry_after=30.0)
    other = second if busy is first else first
    bench.finish(other)
    assert keys_of(bench.take_all()) == ["other"]
    assert bench.scheduler.live()["busy"].paused_until == bench.clock.wall() + 30.0
    bench.clock.advance(29.9)
    assert bench.lease() is None
    bench.clock.advance(0.2)
    assert keys_of(bench.take_all()) == ["busy"]


def test_refusals_at_the_floor_pause_only_their_host() -> None:
    bench = Bench(config(start=1))
    bench.offer("no", 10)
    for _ in range(3):
        bench.finish(bench.take(), "throttled")
    assert bench.lease() is None
    paused = bench.scheduler.live()["no"].paused_until - bench.clock.wall()
    assert 60.0 <= paused <= 75.0
    bench.offer("yes", 1)
    assert keys_of(bench.take_all()) == ["yes"]


@pytest.mark.parametrize("outcome", ["pressure", "stale", "proxy", "address", "internal"])
def test_what_we_caused_leaves_the_gate_as_it_was(outcome: str) -> None:
    bench = Bench(config(start=4, give_up_after=0.0))
    bench.offer("a", 30)
    before = bench.scheduler.live()["a"].limit
    for _ in range(20):
        bench.clock.advance(10.0)
        bench.finish(bench.take(), outcome)
    live = bench.scheduler.live()["a"]
    assert (live.limit, live.paused_until, live.verdict) == (before, 0.0, None)


def test_the_limit_follows_what_the_host_says() -> None:
    bench = Bench(config(start=4))
    bench.offer("a", 50)
    for lease in bench.take_all():
        bench.finish(lease)
    risen = bench.scheduler.live()["a"].limit
    assert 4.2 <= risen <= 4.3, "only the one admitted with the limit used up counts"
    for lease in bench.take_all():
        bench.finish(lease, "throttled", retry_after=1.0)
    assert bench.scheduler.live()["a"].limit == pytest.approx(risen / 2, abs=0.01)


def test_starts_keep_the_crawl_delay_exactly_robots_included() -> None:
    bench = Bench(config(start=8))
    unknown = entries("a", 6)
    bench.scheduler.windows.offer("a", [], unknown, more=False)
    rules = bench.take()
    times = [bench.clock.monotonic()]
    bench.clock.advance(0.125)
    bench.scheduler.release(rules, "304")
    parked = bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.5, NEVER)
    bench.scheduler.settle(rules, page=False)
    bench.scheduler.give_credit()
    bench.scheduler.windows.offer("a", parked, [], more=False)
    while len(times) < 7:
        due = bench.scheduler.waits_until()
        assert due is not None
        bench.until(due)
        leases = bench.take_all()
        assert len(leases) == 1
        times.append(bench.clock.monotonic())
    apart = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert apart == pytest.approx([0.505] * 6)
    assert min(apart) >= 0.5


def test_releasing_twice_frees_one_slot() -> None:
    bench = Bench(config(start=2))
    bench.offer("a", 9)
    first, second = bench.take(), bench.take()
    bench.scheduler.release(first, "4xx")
    bench.scheduler.release(first, "4xx")
    assert bench.scheduler.live()["a"].in_flight == 1
    bench.scheduler.release(second, "4xx")
    assert bench.scheduler.live()["a"].in_flight == 0


# -- hops on a held slot ----------------------------------------------------------------------


def test_a_hop_stays_on_its_gate() -> None:
    bench = Bench()
    bench.offer("a", 1)
    lease = bench.take()
    assert not bench.scheduler.readmit(lease, "http://b/x")
    assert bench.scheduler.requests == 1
    assert bench.scheduler.readmit(lease, "http://a/x")
    assert bench.scheduler.readmit(lease)
    assert bench.scheduler.requests == 3
    assert bench.scheduler.live()["a"].in_flight == 1


def test_a_hop_waits_for_the_delay_and_the_pause_like_any_request() -> None:
    bench = Bench(config(start=4))
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 1.0, NEVER)
    bench.offer("a", 2)
    lease = bench.take()
    bench.clock.advance(0.9)
    assert not bench.scheduler.readmit(lease, "http://a/x")
    bench.clock.advance(0.2)
    assert bench.scheduler.readmit(lease, "http://a/x")
    assert bench.lease() is None, "the hop was a start: the next one waits for it"
    bench.clock.advance(0.9)
    assert bench.lease() is None
    bench.clock.advance(0.2)
    assert bench.lease() is not None


def test_a_hop_that_takes_the_last_token_takes_the_host_out_of_the_ready_ones() -> None:
    bench = Bench(config(rate=1.0, burst=2, start=4))
    bench.offer("a", 5)
    lease = bench.take()
    assert bench.scheduler.readmit(lease, "http://a/x")
    assert bench.lease() is None
    bench.clock.advance(1.0)
    assert bench.lease() is not None


# -- robots as a state ------------------------------------------------------------------------


def test_a_host_without_rules_offers_one_lease_the_robots_fetch() -> None:
    bench = Bench()
    bench.scheduler.windows.offer("a", [], entries("a", 5), more=True)
    bench.scheduler.windows.offer("a", [], entries("a", 5, first=5), more=True)
    job = bench.take().job
    assert job == RobotsJob("http://a", "http://a/robots.txt", priority=0)
    assert bench.lease() is None


def test_two_origins_behind_one_gate_ask_each_for_its_own() -> None:
    bench = Bench()
    secure = [Entry("https://a/1", 1), Entry("https://a/2", 2)]
    bench.scheduler.windows.offer("a", [], [*entries("a", 2), *secure], more=False)
    jobs = [lease.job for lease in bench.take_all()]
    assert {job.url for job in jobs if job} == {"http://a/robots.txt", "https://a/robots.txt"}
    parked = bench.scheduler.rules_known("https://a", ALLOW_ALL, 2.0, NEVER)
    assert parked == secure
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, NEVER)
    bench.scheduler.windows.offer("a", secure, [], more=False)
    bench.clock.advance(2.1)
    assert len(bench.take_all()) == 1, "the slower of the two delays holds for the gate"


def test_what_was_parked_comes_back_with_the_rules() -> None:
    bench = Bench()
    waiting = entries("a", 4)
    bench.scheduler.windows.offer("a", [], waiting, more=False)
    bench.finish(bench.take(), "304")
    assert bench.scheduler.rules_known("http://a", DISALLOW_ALL, 0.0, NEVER) == waiting
    assert bench.scheduler.rules_of("http://a/x") is DISALLOW_ALL
    assert bench.scheduler.rules_of("https://a/x") is None
    assert bench.lease() is None, "only what is offered as allowed is leased"


def test_what_is_offered_as_unknown_after_the_rules_came_is_handed_back() -> None:
    bench = Bench()
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, NEVER)
    late = entries("a", 3)
    assert bench.scheduler.windows.offer("a", [], late, more=False) == late
    assert bench.lease() is None


def test_rules_that_are_too_old_are_asked_for_once_and_stand_meanwhile() -> None:
    bench = Bench(config(start=9))
    expires = bench.clock.monotonic() + 60.0
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, expires)
    bench.offer("a", 6)
    assert bench.take().entry is not None
    bench.clock.advance(61.0)
    leases = bench.take_all()
    assert [lease.entry is None for lease in leases].count(True) == 1
    assert len(leases) == 6, "five pages and one robots.txt"


def test_robots_that_moved_are_asked_for_at_the_other_gate() -> None:
    bench = Bench(config(start=1))
    bench.offer("b", 2)
    busy = bench.take()
    bench.scheduler.windows.offer("a", [], entries("a", 1), more=False)
    first = bench.take()
    assert first.job is not None
    moved = RobotsJob("http://a", "http://b/robots.txt", 1)
    bench.scheduler.robots_moved(moved)
    bench.finish(first, "redirect")
    assert bench.lease() is None, "b is full: the hop is admitted there like anything else"
    bench.finish(busy)
    lease = bench.take()
    assert (lease.host.key, lease.job) == ("b", moved)
    assert bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, NEVER) == entries("a", 1)


def test_failed_robots_are_tried_again_later_and_later() -> None:
    bench = Bench()
    bench.scheduler.windows.offer("a", [], entries("a", 2), more=False)
    for failures in range(1, 12):
        lease = bench.take()
        assert lease.job is not None
        bench.finish(lease, "5xx")
        bench.scheduler.robots_failed(lease.job, "5xx")
        assert bench.lease() is None
        due = bench.scheduler.waits_until()
        assert due is not None
        bound = min(300.0, 2.0**failures)
        assert bound / 2 <= due - bench.clock.monotonic() <= bound
        bench.until(due)
    assert bench.scheduler.windows.verdict("a") is None


def test_failed_robots_leave_rules_that_are_known_in_force() -> None:
    bench = Bench()
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, bench.clock.monotonic() - 1.0)
    bench.offer("a", 3)
    leases = bench.take_all()
    job = next(lease for lease in leases if lease.job)
    assert job.job is not None
    bench.finish(job, "timeout")
    bench.scheduler.robots_failed(job.job, "timeout")
    assert bench.scheduler.rules_of("http://a/x") is ALLOW_ALL
    assert bench.scheduler.waits_until() is None


def test_a_host_that_never_answered_its_robots_is_unreachable() -> None:
    bench = Bench()
    waiting = entries("a", 2)
    bench.scheduler.windows.offer("a", [], waiting, more=False)
    for _ in range(3):
        lease = bench.take()
        assert lease.job is not None
        bench.finish(lease, "dns")
        bench.scheduler.robots_failed(lease.job, "dns")
        due = bench.scheduler.waits_until()
        if due is not None:
            bench.until(due)
    assert bench.scheduler.take_notes().verdicts == [("a", "unreachable")]
    assert bench.lease() is None
    assert bench.scheduler.windows.unload("a") == waiting


def vain(bench: Bench, outcome: str) -> float | None:
    """Try for a's robots.txt in vain; the seconds until it is tried again, None where it is not."""
    lease = bench.take()
    assert lease.job is not None
    bench.finish(lease, outcome)
    bench.scheduler.robots_failed(lease.job, outcome)
    assert bench.lease() is None
    due = bench.scheduler.waits_until()
    if due is None:
        return None
    wait = due - bench.clock.monotonic()
    bench.until(due)
    return wait


@pytest.mark.parametrize("outcome", ["gateway_throttled", "pressure", "gateway_exhausted"])
def test_robots_that_we_hold_up_wait_longer_and_longer_and_blame_no_host(outcome: str) -> None:
    bench = Bench(config(give_up_after=60.0))
    bench.scheduler.windows.offer("a", [], entries("a", 2), more=False)
    for times in range(12):
        wait = vain(bench, outcome)
        bound = min(60.0, 2.0**times)
        assert wait is not None
        assert bound / 2 <= wait <= bound + 1e-6
    assert bench.scheduler.windows.verdict("a") is None


@pytest.mark.parametrize(
    ("outcome", "tries"),
    [("proxy_denied", 1), ("gateway_failed", 3), ("proxy", 20), ("gateway_unreached", 20)],
)
def test_robots_that_our_route_fails_end_like_a_page(outcome: str, tries: int) -> None:
    bench = Bench()
    waiting = entries("a", 2)
    bench.scheduler.windows.offer("a", [], waiting, more=False)
    waits = [vain(bench, outcome) for _ in range(tries)]
    assert waits[-1] is None
    for times, wait in enumerate(waits[:-1], 1):
        assert wait is not None
        assert wait <= min(60.0, 2.0**times)
    assert bench.scheduler.take_notes().verdicts == [("a", outcome)]
    assert bench.scheduler.windows.unload("a") == waiting


def test_robots_that_our_route_fails_leave_rules_that_are_known_in_force() -> None:
    bench = Bench()
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, bench.clock.monotonic() - 1.0)
    bench.offer("a", 3)
    job = next(lease for lease in bench.take_all() if lease.job)
    assert job.job is not None
    bench.finish(job, "gateway_failed")
    bench.scheduler.robots_failed(job.job, "gateway_failed")
    assert bench.scheduler.rules_of("http://a/x") is ALLOW_ALL
    assert bench.scheduler.waits_until() is None
    assert bench.scheduler.windows.verdict("a") is None


@pytest.mark.parametrize("moved_before", [True, False])
def test_robots_that_moved_to_a_dead_gate_count_as_failed(moved_before: bool) -> None:
    bench = Bench(config(start=1))
    bench.scheduler.windows.offer("a", [], entries("a", 1), more=False)
    bench.finish(bench.take(), "redirect")
    bench.offer("dead", 20)
    for _ in range(9):
        bench.finish(bench.take(), "connect")
    last = bench.take()
    moved = RobotsJob("http://a", "http://dead/robots.txt", 1)
    if moved_before:
        bench.scheduler.robots_moved(moved)
    bench.finish(last, "connect")
    assert bench.scheduler.windows.verdict("dead") == "unreachable"
    if not moved_before:
        bench.scheduler.robots_moved(moved)
    given_up = bench.scheduler.windows.verdict("a") is not None
    assert given_up or bench.scheduler.waits_until() is not None


def test_entries_offered_to_a_host_that_was_just_given_up_are_not_lost() -> None:
    bench = Bench(config(give_up_after=5.0))
    bench.scheduler.windows.offer("a", [], entries("a", 1), more=False)
    bench.finish(bench.take(), "304")
    parked = bench.scheduler.rules_known("http://a", ALLOW_ALL, 0.0, NEVER)
    bench.offer("a", 2, first=5)
    lease = bench.take()
    bench.finish(lease, "5xx")
    lease = bench.take()
    bench.clock.advance(6.0)
    bench.finish(lease, "5xx")
    assert bench.scheduler.take_notes().verdicts == [("a", "refusing")]
    assert bench.scheduler.windows.unload("a") == []
    back = bench.scheduler.windows.offer("a", parked, [], more=None)
    later = bench.scheduler.take_notes()
    assert back == []
    assert later.failed == [(entry, "refusing") for entry in parked]


@pytest.mark.parametrize(("asked", "least", "most"), [(4.0, 19, 30), (1.0, 6, 8)])
def test_waits_that_a_host_asks_for_are_excused_and_each_second_once(
    asked: float, least: int, most: int
) -> None:
    """A burst of refusals names the same wait many times; the host still has to be given up.

    Waits so short that it has its four tries within `give_up_after` are not excused.
    """
    bench = Bench(config(start=4, floor=4, give_up_after=10.0))
    bench.prove("a")
    cycles = 0
    while bench.scheduler.windows.verdict("a") is None:
        bench.offer("a", 4, first=10 * cycles)
        leases = bench.take_all()
        assert len(leases) == 4
        bench.clock.advance(0.5)
        for lease in leases:
            bench.finish(lease, "throttled", retry_after=asked)
        bench.clock.advance(asked + 0.01)
        cycles += 1
        assert cycles <= most, "half a second of each cycle is the host's own doing"
    assert cycles >= least, "what it asked for is not held against it"


# -- RobotsStep on the scheduler --------------------------------------------------------------


class Site:
    """A Getter over a table: URL -> (status, body or Location), or an exception to raise."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def get(self, lease: Lease, url: str, *, max_bytes: int = 0) -> Response:
        self.asked.append(url)
        answer = self.answers[url]
        if isinstance(answer, Exception):
            raise answer
        status, text = answer
        where = [("Location", text)] if 300 <= status < 400 else []
        if status in (429, 503) and text:
            where = [("Retry-After", text)]
        return Response(url, status, Headers(where), text.encode(), 0.01, 0.02)


def robots_step(bench: Bench, answers: dict[str, Any], engine: Any = None) -> tuple[Any, Site]:
    site = Site(answers)
    step = RobotsStep(
        bench.config,
        denied=lambda host: False,
        engine=engine or protego_engine({}),
        scheduler=bench.scheduler,
        exchanger=site,
        canonicalizer=Canonicalizer(()),
        budget=bench.budget,
        retry=RetryPolicy(bench.config.retry, random.Random(1)),
        clock=bench.clock,
        log=NullLog(),
        queue_of=str,
        on_notes=lambda: None,
        watch=SimpleNamespace(end=lambda: True, extend=lambda _: None),  # type: ignore[arg-type]
        route=RouteWatch(
            resume_after=0, hold=lambda _: None, end_with=lambda *_: None, log=NullLog()
        ),
    )
    return step, site


RULES_TXT = "User-agent: *\nDisallow: /2\nCrawl-delay: 0.25\n"


def test_disallowed_entries_are_dropped_and_the_rest_leased_at_the_delay() -> None:
    bench = Bench()
    step, site = robots_step(bench, {"http://a/robots.txt": (200, RULES_TXT)})
    step.sort_out(entries("a", 4), more=False)
    step.run(bench.take())
    assert site.asked == ["http://a/robots.txt"]
    notes = bench.scheduler.take_notes()
    assert [(e.url, reason) for e, reason in notes.dropped] == [("http://a/2", "robots")]
    assert [origin for origin, _ in notes.robots] == ["http://a"]
    urls: list[str] = []
    while len(urls) < 3:
        bench.clock.advance(0.27)
        urls += [lease.url for lease in bench.take_all()]
    assert urls == ["http://a/0", "http://a/1", "http://a/3"]
    step.sort_out([entry("a", 2)], more=False)
    assert bench.scheduler.take_notes().dropped == [(entry("a", 2), "robots")]
    live = bench.scheduler.live()["a"]
    assert (live.in_flight, bench.scheduler.unsettled) == (3, 3), "the robots lease is settled"


@pytest.mark.parametrize(
    ("answer", "fetched"),
    [
        ((404, ""), True),
        ((403, ""), True),
        ((500, ""), False),
        ((503, ""), False),
        ((429, ""), False),
        (FetchError("no", outcome="timeout"), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_what_an_answer_means(answer: Any, fetched: bool) -> None:
    bench = Bench()
    step, _ = robots_step(bench, {"http://a/robots.txt": answer})
    step.sort_out(entries("a", 1), more=False)
    step.run(bench.take())
    assert (bench.lease() is not None) is fetched
    assert (bench.scheduler.waits_until() is None) is fetched
    assert bench.scheduler.unsettled == int(fetched)
    assert bench.budget.held == RESERVATION * int(fetched)


def test_redirects_are_followed_on_the_gate_and_then_at_another() -> None:
    bench = Bench()
    answers: dict[str, Any] = {
        "http://a/robots.txt": (301, "/r1"),
        "http://a/r1": (302, "http://b/r2"),
        "http://b/r2": (200, RULES_TXT),
    }
    step, site = robots_step(bench, answers)
    step.sort_out(entries("a", 3), more=False)
    step.run(bench.take())
    assert site.asked == ["http://a/robots.txt", "http://a/r1"]
    moved = bench.take()
    assert moved.host.key == "b"
    assert moved.job == RobotsJob("http://a", "http://b/r2", 2, priority=0)
    step.run(moved)
    dropped = bench.scheduler.take_notes().dropped
    assert [e.url for e, _ in dropped] == ["http://a/2"]
    assert bench.scheduler.rules_of("http://b/x") is None, "the rules are a's, not b's"
    assert bench.scheduler.live()["a"].requests == 2
    assert bench.scheduler.live()["b"].requests == 1


def test_six_redirects_of_robots_are_too_many() -> None:
    bench = Bench()
    answers: dict[str, Any] = {f"http://a/r{n}": (302, f"/r{n + 1}") for n in range(9)}
    answers["http://a/robots.txt"] = (302, "/r0")
    step, site = robots_step(bench, answers)
    step.sort_out(entries("a", 1), more=False)
    step.run(bench.take())
    assert len(site.asked) == 6
    assert bench.take().entry is not None, "unavailable: everything is allowed"


def test_retry_after_on_robots_pauses_the_gate() -> None:
    bench = Bench()
    step, _ = robots_step(bench, {"http://a/robots.txt": (503, "100")})
    step.sort_out(entries("a", 1), more=False)
    step.run(bench.take())
    bench.clock.advance(99.0)
    assert bench.lease() is None
    bench.clock.advance(1.5)
    assert bench.take().job is not None


def test_a_long_crawl_delay_counts_as_the_longest_allowed() -> None:
    bench = Bench(Config(robots=RobotsConfig(max_crawl_delay=5.0)))
    text = "User-agent: *\nCrawl-delay: 900\n"
    step, _ = robots_step(bench, {"http://a/robots.txt": (200, text)})
    step.sort_out(entries("a", 1), more=False)
    step.run(bench.take())
    bench.clock.advance(5.01)
    assert bench.take().entry is not None


def test_robots_are_not_asked_for_where_they_are_not_obeyed() -> None:
    bench = Bench(Config(robots=RobotsConfig(obey=False)))
    step, site = robots_step(bench, {})
    step.sort_out(entries("a", 2), more=False)
    assert [lease.url for lease in bench.take_all()] == ["http://a/0", "http://a/1"]
    assert site.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        FetchError("broken gzip", outcome="decode", retryable=False),
        RuntimeError("a fetch plugin's bug"),
        (301, "http://dead/robots.txt"),
    ],
)
def test_robots_without_success_for_give_up_after_are_the_end_of_their_urls(answer: Any) -> None:
    bench = Bench(config(give_up_after=3600.0))
    dead = FetchError("nobody there", outcome="connect")
    step, _ = robots_step(bench, {"http://a/robots.txt": answer, "http://dead/robots.txt": dead})
    step.sort_out(entries("a", 2), more=False)
    end = bench.clock.monotonic() + 3 * 3600.0
    while bench.clock.monotonic() < end:
        while (lease := bench.lease()) is not None:
            step.run(lease)
        due = bench.scheduler.waits_until()
        if due is None:
            break
        bench.until(due)
    assert bench.scheduler.windows.verdict("a") is not None


def test_an_engine_that_raises_costs_a_later_try_and_no_worker() -> None:
    def broken(body: bytes, user_agent: str) -> Any:
        raise RuntimeError("a plugin's bug")

    bench = Bench()
    engine = SimpleNamespace(parse=broken)
    step, _ = robots_step(bench, {"http://a/robots.txt": (200, RULES_TXT)}, engine)
    step.sort_out(entries("a", 1), more=False)
    step.run(bench.take())
    assert bench.scheduler.waits_until() is not None


def test_one_robots_fetch_an_origin_however_many_threads_offer() -> None:
    keys = [f"h{n}" for n in range(4)]
    bench = Bench(config(workers=16, start=32), clock=SystemClock())
    text = "User-agent: *\nDisallow: /2\n"
    answers = {f"http://{key}/robots.txt": (200, text) for key in keys}
    step, site = robots_step(bench, answers)
    pages: list[str] = []
    gun = threading.Barrier(24)

    def offer(number: int) -> None:
        gun.wait(DRAIN_TIMEOUT)
        for key in keys:
            step.sort_out(entries(key, 3, first=3 + 3 * number), more=False)

    def work() -> None:
        gun.wait(DRAIN_TIMEOUT)
        while (lease := bench.scheduler.lease()) is not None:
            if lease.job is not None:
                step.run(lease)
                continue
            pages.append(lease.url)
            bench.finish(lease)
            if len(pages) == total:
                bench.scheduler.close()

    bench.scheduler.windows.offer("ready", entries("ready", 1), [], more=False)
    total = 1 + 4 * (8 * 3 - 7)  # /20 to /26 of each host are disallowed
    run_threads([lambda n=n: offer(n) for n in range(8)] + [work] * 16, bench.scheduler)
    assert Counter(site.asked) == dict.fromkeys(answers, 1)
    assert len(pages) == len(set(pages)) == total
    assert not any("/2" in url for url in pages)


# -- verdicts and the half rule ---------------------------------------------------------------


def test_a_host_that_never_answers_is_given_up_after_ten_failures() -> None:
    bench = Bench(config(start=1))
    bench.offer("dead", 20)
    for count in range(10):
        assert bench.scheduler.windows.verdict("dead") is None, count
        bench.finish(bench.take(), "connect")
    assert bench.scheduler.windows.verdict("dead") == "unreachable"
    assert bench.lease() is None
    assert bench.scheduler.take_notes().verdicts == [("dead", "unreachable")]
    assert bench.scheduler.take_notes().verdicts == []
    assert len(bench.scheduler.windows.unload("dead")) == 10


def test_a_host_that_has_answered_gets_its_hour() -> None:
    bench = Bench(config(start=1, give_up_after=3600.0))
    bench.prove("a")
    bench.offer("a", 100)
    for _ in range(20):
        bench.finish(bench.take(), "timeout")
    bench.clock.advance(3601.0)
    assert bench.scheduler.windows.verdict("a") is None
    bench.finish(bench.take(), "4xx")  # an answer: the hour begins anew
    bench.finish(bench.take(), "timeout")
    bench.clock.advance(3601.0)
    bench.finish(bench.take(), "timeout")
    assert bench.scheduler.windows.verdict("a") == "unreachable"


def test_an_hour_of_refusals_is_a_verdict_too() -> None:
    bench = Bench(config(start=1, give_up_after=3600.0))
    bench.prove("a")
    bench.offer("a", 100)
    bench.finish(bench.take(), "5xx")
    bench.clock.advance(3601.0)
    bench.finish(bench.take(), "5xx")
    assert bench.scheduler.windows.verdict("a") == "refusing"


def test_hosts_without_an_answer_share_half_of_the_workers() -> None:
    bench = Bench(config(workers=8, start=3))
    for key in "abcd":
        bench.offer(key, 9)
    leases = bench.take_all()
    assert len(leases) == 4
    bench.finish(leases[0], "4xx")
    proven = leases[0].host.key
    assert proven in keys_of(bench.take_all()), "one that answered is not held back"
    for lease in leases[1:]:
        bench.finish(lease, "4xx")
    assert len(bench.take_all()) > 4


def test_a_single_worker_works_on_hosts_without_an_answer() -> None:
    bench = Bench(config(workers=1))
    bench.offer("a", 2)
    assert len(bench.take_all()) == 1


# -- bounds: credits, bytes, pages ------------------------------------------------------------


def test_no_credit_no_lease() -> None:
    bench = Bench(config(max_items=3, start=9))
    bench.prove("a", "a", "a")
    bench.offer("a", 9)
    first = bench.take_all()
    assert len(first) == 3
    bench.scheduler.release(first[0], "4xx")
    bench.scheduler.settle(first[0], page=False)
    assert bench.lease() is None, "the item is still in the queue"
    bench.scheduler.give_credit()
    assert len(bench.take_all()) == 1


def test_no_room_for_a_body_no_lease() -> None:
    bench = Bench(config(max_bytes=3 * RESERVATION, start=9))
    bench.offer("a", 9)
    leases = bench.take_all()
    assert len(leases) == 3
    bench.budget.finish_reading(leases[0].ticket, RESERVATION)
    bench.scheduler.release(leases[0], "2xx")
    assert bench.lease() is None, "a body counts until it is committed"
    bench.scheduler.settle(leases[0], page=True)
    assert len(bench.take_all()) == 1
    assert bench.budget.peak <= 3 * RESERVATION


def test_max_pages_counts_what_is_leased_and_takes_back_what_brought_none() -> None:
    bench = Bench(config(max_pages=3, start=9))
    bench.offer("a", 9)
    leases = bench.take_all()
    assert len(leases) == 3
    bench.finish(leases[0], "2xx")
    assert bench.lease() is None
    bench.finish(leases[1], "4xx")
    assert len(bench.take_all()) == 1
    bench.finish(leases[2], "2xx")
    assert bench.scheduler.pages_left
    assert bench.lease() is None


def test_pages_of_earlier_runs_count() -> None:
    bench = Bench(config(max_pages=3, start=9))
    bench.scheduler.resume(2)
    bench.offer("a", 9)
    lease = bench.take()
    assert bench.lease() is None
    bench.finish(lease)
    assert not bench.scheduler.pages_left


@given(
    limit=st.integers(1, 6),
    per_host=st.booleans(),
    choices=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=40, max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_no_cap_on_pages_is_ever_exceeded_and_each_is_reached(
    limit: int, per_host: bool, choices: list[tuple[int, bool]]
) -> None:
    caps = {"per_host": limit} if per_host else {"max_pages": limit}
    bench = Bench(config(start=4, **caps))
    for key in "ab":
        bench.offer(key, 40)
    pages: Counter[str] = Counter()
    held: list[Lease] = []
    for which, good in choices:
        held += bench.take_all()
        for key in "ab":
            leased = sum(lease.host.key == key for lease in held)
            assert not per_host or pages[key] + leased <= limit
        assert per_host or pages.total() + len(held) <= limit
        if held:
            lease = held.pop(which % len(held))
            bench.finish(lease, "2xx" if good else "4xx")
            pages[lease.host.key] += good
    while held := [*held, *bench.take_all()]:
        lease = held.pop()
        bench.finish(lease)
        pages[lease.host.key] += 1
    assert pages == (Counter(a=limit, b=limit) if per_host else pages)
    assert per_host or pages.total() == limit
    assert bench.scheduler.windows.exhausted("a") is per_host


def test_a_capped_host_blocks_nobody() -> None:
    bench = Bench(config(per_host=1, start=9))
    bench.offer("a", 5)
    bench.offer("b", 5)
    leases = bench.take_all()
    assert sorted(keys_of(leases)) == ["a", "b"]
    bench.finish(leases[0], "2xx")
    bench.finish(leases[1], "4xx")
    assert keys_of(bench.take_all()) == [leases[1].host.key]
    assert len(bench.scheduler.windows.unload(leases[0].host.key)) == 4


# -- windows and refills ----------------------------------------------------------------------


def test_a_low_window_is_wanted_once_until_it_is_refilled() -> None:
    bench = Bench(config(start=32, workers=64))
    bench.offer("a", 32, more=True)
    assert bench.calls == 0
    leases = [bench.take() for _ in range(16)]
    assert bench.calls == 1
    bench.clock.advance(2.0)
    assert bench.scheduler.windows.take_wanted() == [("a", Wants(16))]
    leases += [bench.take() for _ in range(2)]
    assert bench.calls == 1
    assert bench.scheduler.windows.take_wanted() == []
    bench.offer("a", 1, more=True, first=40)
    bench.clock.advance(2.0)
    assert bench.scheduler.windows.take_wanted() == [("a", Wants(17))]
    bench.offer("a", 0, more=False)
    bench.take_all()
    assert bench.scheduler.windows.take_wanted() == []


def test_the_window_grows_with_the_pace_and_is_bounded() -> None:
    bench = Bench(config(start=32))
    bench.offer("a", 64, more=True)
    for _ in range(50):
        bench.finish(bench.take())
    bench.clock.advance(0.5)
    bench.scheduler.windows.take_wanted()
    bench.offer("a", 1, more=True, first=100)
    assert bench.scheduler.windows.wants("a", 0).room == 200 - 15, "two seconds of 100 a second"


def test_a_host_that_has_run_dry_gives_its_place_to_another() -> None:
    bench = Bench(config(active=2))
    bench.offer("a", 1)
    bench.offer("b", 1, more=True)
    assert bench.scheduler.windows.free_places() == 0
    for lease in bench.take_all():
        bench.finish(lease)
    assert not bench.scheduler.windows.is_loaded("a")
    assert bench.scheduler.windows.is_loaded("b")
    assert bench.scheduler.windows.wants("a", 0).room == 0
    assert bench.scheduler.windows.wants("b", 0).room > 0
    bench.offer("b", 0, more=False)
    assert bench.scheduler.windows.free_places() == 2


def test_a_host_that_is_not_due_soon_takes_no_place() -> None:
    bench = Bench(config(active=1, start=1))
    bench.offer("a", 2)
    lease = bench.take()
    assert bench.scheduler.windows.free_places() == 0
    bench.finish(lease, "throttled", retry_after=6.0)
    assert bench.scheduler.windows.free_places() == 1


def test_hungry_is_a_host_with_threads_and_no_url() -> None:
    bench = Bench()
    assert not bench.scheduler.hungry()
    bench.offer("a", 2)
    first, second = bench.take(), bench.take()
    assert bench.scheduler.hungry()
    bench.offer("a", 1, first=9)
    assert not bench.scheduler.hungry()
    third = bench.take()
    assert bench.scheduler.hungry()
    for lease in (first, second, third):
        bench.finish(lease)
    assert not bench.scheduler.hungry()


def test_what_waits_for_rules_fills_the_window_too() -> None:
    bench = Bench()
    bench.scheduler.windows.offer("a", [], entries("a", 40), more=True)
    assert bench.scheduler.windows.take_wanted() == []


def test_a_lease_is_settled_once() -> None:
    bench = Bench()
    bench.offer("a", 2)
    lease = bench.take()
    bench.scheduler.release(lease, "2xx")
    assert bench.scheduler.settle(lease, page=True)
    assert not bench.scheduler.settle(lease, page=True)
    assert bench.scheduler.leased == bench.scheduler.unsettled == 0
    assert bench.budget.held == 0


# -- threads: nobody sleeps through what concerns him -----------------------------------------


def run_threads(bodies: Iterable[Callable[[], None]], scheduler: Scheduler) -> None:
    """Run each body on a thread of its own; fails for one that raises or does not come back."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as exc:  # noqa: BLE001 - handed to the test's thread
            errors.append(exc)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + DRAIN_TIMEOUT
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    hung = [thread for thread in threads if thread.is_alive()]
    state = repr(scheduler)
    scheduler.close()
    for thread in hung:
        thread.join(PATIENCE)
    assert not errors, errors
    assert not hung, f"{len(hung)} threads hung: {state}"


class PunctualClock:
    """Time that moves when told; a wait ends by a notify or by ITS timeout, as in earnest.

    FakeClock wakes everybody at each step, which would hide that nobody watches the time.
    """

    def __init__(self) -> None:
        self._now = 1_000.0
        # Guards _now and _waits.
        self._lock = threading.Lock()
        self._waits: dict[object, tuple[threading.Condition, float]] = {}

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        key = object()
        with self._lock:
            until = NEVER if timeout is None else self._now + timeout
            self._waits[key] = condition, until
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waits.pop(key, None)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds
            due = [wait[0] for wait in self._waits.values() if wait[1] <= self._now]
        for condition in due:
            with condition:
                condition.notify_all()

    def waiting(self) -> int:
        with self._lock:
            return len(self._waits)


class Crew:
    """Workers on threads: each takes a lease, shows it, and waits to be told that it is over."""

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench = bench
        self.taken: queue.Queue[Lease | None] = queue.Queue()
        self._over: dict[int, queue.Queue[bool]] = {}
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(size)]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.scheduler.close()
        for over in self._over.values():
            over.put(False)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a worker did not come back after close()"

    def next(self) -> Lease:
        """The next lease that any worker takes; queue.Empty where nobody does."""
        lease = self.taken.get(timeout=PATIENCE)
        assert lease is not None
        return lease

    def next_host(self) -> str | None:
        """Whose lease a worker takes next; None where nobody does."""
        try:
            return self.next().host.key
        except queue.Empty:
            return None

    def finish(self, lease: Lease, *, credit: bool = True) -> None:
        """Let the worker of `lease` end it and come back for another."""
        self._over[lease.id].put(credit)

    def until_waiting(self, count: int) -> None:
        limit = time.monotonic() + PATIENCE
        while self.bench.clock.waiting() != count:
            assert time.monotonic() < limit, f"not {count} waiting: {self.bench.scheduler!r}"
            threading.Event().wait(0.001)

    def _work(self) -> None:
        while True:
            lease = self.bench.scheduler.lease()
            if lease is None:
                self.taken.put(None)
                return
            over = self._over[lease.id] = queue.Queue()
            self.taken.put(lease)
            credit = over.get()
            self.bench.scheduler.release(lease, "4xx")
            if credit:
                self.bench.scheduler.give_credit()
            self.bench.scheduler.settle(lease, page=False)


def test_close_wakes_every_waiter() -> None:
    bench = Bench(clock=PunctualClock())
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 10.0, NEVER)
    bench.offer("slow", 2)
    with Crew(bench, 8) as crew:
        crew.next()
        crew.until_waiting(7)
        bench.scheduler.close()
        assert [crew.taken.get(timeout=PATIENCE) for _ in range(7)] == [None] * 7
    assert bench.scheduler.lease() is None


def test_an_offer_wakes_as_many_as_it_feeds() -> None:
    bench = Bench(config(workers=16, start=6), clock=PunctualClock())
    with Crew(bench, 8) as crew:
        crew.until_waiting(8)
        bench.offer("a", 6)
        assert len({crew.next().id for _ in range(6)}) == 6
        crew.until_waiting(2)


def test_time_brings_a_delayed_host_back_to_sleeping_workers() -> None:
    bench = Bench(clock=PunctualClock())
    bench.scheduler.rules_known("http://a", ALLOW_ALL, 1.0, NEVER)
    with Crew(bench, 4) as crew:
        crew.until_waiting(4)
        bench.offer("a", 3)
        crew.next()
        crew.until_waiting(3)
        bench.clock.advance(0.9)
        crew.until_waiting(3)
        bench.clock.advance(0.2)
        assert crew.next().host.key == "a"


@pytest.mark.parametrize(
    "bound", [{"max_bytes": 2 * RESERVATION}, {"max_pages": 2}, {"per_host": 2}]
)
def test_a_settled_lease_wakes_who_waits_for_its_room(bound: dict[str, int]) -> None:
    bench = Bench(config(**bound), clock=PunctualClock())
    bench.offer("a", 3)
    first, second = bench.take(), bench.take()
    bench.scheduler.release(first, "4xx")
    bench.scheduler.release(second, "4xx")
    with Crew(bench, 1) as crew:
        crew.until_waiting(1)
        bench.scheduler.give_credit()
        bench.scheduler.settle(first, page=False)
        assert crew.next_host() == "a"


def test_an_event_made_nearer_from_outside_wakes_the_watcher() -> None:
    bench = Bench(clock=PunctualClock())
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 60.0, NEVER)
    bench.offer("slow", 2)
    assert bench.take().host.key == "slow"
    bench.scheduler.windows.offer("a", [], entries("a", 1), more=False)
    job = bench.take().job
    assert job is not None
    with Crew(bench, 1) as crew:
        crew.until_waiting(1)
        bench.scheduler.robots_failed(job, "5xx")
        bench.clock.advance(2.0)
        assert crew.next_host() == "a"


def test_failed_robots_are_tried_again_by_a_sleeping_worker() -> None:
    bench = Bench(clock=PunctualClock())
    with Crew(bench, 2) as crew:
        crew.until_waiting(2)
        bench.scheduler.windows.offer("a", [], entries("a", 1), more=False)
        lease = crew.next()
        assert lease.job is not None
        bench.scheduler.robots_failed(lease.job, "5xx")
        crew.finish(lease)
        crew.until_waiting(2)
        bench.clock.advance(2.0)
        assert crew.next().job is not None


def test_a_nearer_event_is_watched_though_somebody_watches_a_later_one() -> None:
    bench = Bench(config(workers=6), clock=PunctualClock())
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 10.0, NEVER)
    bench.scheduler.rules_known("http://quick", ALLOW_ALL, 1.0, NEVER)
    bench.offer("slow", 3)
    with Crew(bench, 3) as crew:
        assert crew.next().host.key == "slow"
        crew.until_waiting(2)
        bench.offer("quick", 3)
        lease = crew.next()
        crew.until_waiting(1)
        crew.finish(lease)
        crew.until_waiting(2)
        bench.clock.advance(1.1)
        assert crew.next_host() == "quick"


def test_the_next_start_is_watched_while_the_one_before_is_under_way() -> None:
    bench = Bench(config(workers=6), clock=PunctualClock())
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 10.0, NEVER)
    bench.scheduler.rules_known("http://quick", ALLOW_ALL, 1.0, NEVER)
    bench.offer("slow", 3)
    with Crew(bench, 3) as crew:
        assert crew.next().host.key == "slow"
        crew.until_waiting(2)
        bench.offer("quick", 3)
        assert crew.next().host.key == "quick"
        crew.until_waiting(1)
        bench.clock.advance(1.1)
        assert crew.next_host() == "quick"


def test_who_watches_the_clock_is_called_when_all_others_are_busy() -> None:
    bench = Bench(config(workers=6), clock=PunctualClock())
    bench.scheduler.rules_known("http://slow", ALLOW_ALL, 10.0, NEVER)
    bench.offer("slow", 3)
    with Crew(bench, 3) as crew:
        assert crew.next().host.key == "slow"
        crew.until_waiting(2)
        bench.offer("quick", 2)
        assert [crew.next_host() for _ in range(2)] == ["quick"] * 2


def test_a_single_credit_is_enough_while_slow_hosts_hold_the_others() -> None:
    bench = Bench(config(workers=100, max_items=32, start=40, ceiling=64), clock=PunctualClock())
    bench.prove(*["slow"] * 31)
    bench.offer("slow", 31)
    assert all(bench.take().host.key == "slow" for _ in range(30))
    bench.offer("quick", 3)
    with Crew(bench, 2) as crew:
        first, second = crew.next(), crew.next()
        crew.finish(first, credit=False)
        crew.finish(second, credit=False)
        crew.until_waiting(2)
        bench.scheduler.give_credit()
        bench.scheduler.give_credit()
        assert crew.next_host() == "quick"


class World:
    """A whole cycle on real threads: workers pull, one commit thread settles and feeds.

    The commit thread acts on nothing but a result or `on_wanted`; there is no heartbeat
    that would make good for a lost call.
    """

    def __init__(self, seed: int, settings: Config) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.bench = Bench(settings, clock=SystemClock(), seed=seed)
        self.scheduler = self.bench.scheduler
        # Guards results and called.
        self.news = threading.Condition()
        self.results: list[Lease] = []
        self.called = False
        self.scheduler.windows.on_wanted = self.call
        self.pending: dict[str, list[Entry]] = {}
        self.left = 0
        self.done: Counter[str] = Counter()
        self.peaks: Counter[str] = Counter()

    def add(self, key: str, count: int, *, delay: float = 0.0) -> None:
        self.pending[key] = entries(key, count)
        self.left += count
        self.scheduler.rules_known(f"http://{key}", ALLOW_ALL, delay, NEVER)

    def call(self) -> None:
        with self.news:
            self.called = True
            self.news.notify()

    def work(self) -> None:
        rng = random.Random(threading.get_ident())
        while (lease := self.scheduler.lease()) is not None:
            assert lease.level <= int(lease.host.gate.limiter.ceiling)
            if rng.random() < 0.3:
                threading.Event().wait(rng.random() * 0.004)
            if rng.random() < 0.2:
                self.scheduler.readmit(lease, lease.url)
            outcome = rng.choice(["2xx", "2xx", "2xx", "4xx", "timeout"])
            self.scheduler.release(lease, outcome)
            with self.news:
                self.results.append(lease)
                self.news.notify()

    def commit(self) -> None:
        self.feed([(key, Wants(1)) for key in list(self.pending)[: self.settings.host.active]])
        while self.left:
            with self.news:
                while not self.results and not self.called:
                    self.news.wait()
                results, self.results = self.results, []
                self.called = False
            for lease in results:
                self.scheduler.give_credit()
                self.done[lease.url] += 1
            self.left -= len(results)
            self.scheduler.settle_all([(lease, False) for lease in results])
            self.feed(self.scheduler.windows.take_wanted())
            places = max(0, self.scheduler.windows.free_places())
            idle = [key for key in self.pending if not self.scheduler.windows.is_loaded(key)]
            self.feed([(key, Wants(1)) for key in idle[:places]])
        self.scheduler.close()

    def feed(self, wanted: list[tuple[str, Wants]]) -> None:
        for key, (room, _) in wanted:
            queue_ = self.pending.get(key, [])
            given, rest = queue_[:room], queue_[room:]
            if rest:
                self.pending[key] = rest
            else:
                self.pending.pop(key, None)
            self.scheduler.windows.offer(key, given, [], more=bool(rest))


@pytest.mark.parametrize("seed", range(6))
def test_everything_drains_whatever_the_timing(seed: int) -> None:
    rng = random.Random(seed)
    limits = {
        "max_items": rng.choice([32, 64, 256]),
        "max_bytes": rng.choice([8 * RESERVATION, 1 << 30]),
        "per_host": rng.choice([0, 10_000]),
        "active": rng.choice([2, 100]),
        "start": rng.choice([1, 4]),
        "ceiling": 8,
        "rate": rng.choice([0, 400]),
        "burst": rng.choice([1, 5]),
    }
    world = World(seed, config(workers=12, give_up_after=1e6, **limits))
    for number in range(8):
        delay = 0.004 if number == 0 else 0.0
        world.add(f"h{number}", rng.choice([1, 20, 120]), delay=delay)
    # Due in an hour: whoever watches for it must not sleep through what is nearer.
    world.scheduler.rules_known("http://later", ALLOW_ALL, 3600.0, NEVER)
    world.bench.offer("later", 2)
    first = world.scheduler.lease()
    assert first is not None
    world.bench.finish(first, "4xx")
    everything = {e.url for window in world.pending.values() for e in window}
    run_threads([world.work] * 12 + [world.commit], world.scheduler)
    assert world.done == dict.fromkeys(everything, 1)
    assert all(live.in_flight == 0 for live in world.scheduler.live().values())
    assert all(live.in_flight_peak <= 8 for live in world.scheduler.live().values())
    assert world.bench.budget.held == 0
    assert world.scheduler.unsettled == 0


# -- random events ----------------------------------------------------------------------------


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of calls: no entry lost, none leased twice, no gate and no bound overrun."""

    hosts = ("a", "b", "c")

    @initialize(
        start=st.integers(1, 4),
        ceiling=st.integers(4, 6),
        rate=st.sampled_from([0, 2]),
        burst=st.integers(1, 3),
        max_items=st.integers(1, 12),
        bodies=st.integers(1, 10),
        workers=st.integers(1, 9),
    )
    def build(self, bodies: int, **limits: Any) -> None:
        self.max_items: int = limits["max_items"]
        self.max_bytes = bodies * RESERVATION
        self.workers: int = limits["workers"]
        self.bench = Bench(config(max_bytes=self.max_bytes, give_up_after=1e9, **limits))
        self.scheduler = self.bench.scheduler
        self.numbers = itertools.count()
        self.known: set[str] = set()
        self.waiting: set[str] = set()
        self.finished: set[str] = set()
        self.flying: list[Lease] = []
        self.ended: list[Lease] = []
        self.credits = self.max_items
        self.asked: Counter[str] = Counter()

    def delayed(self, key: str) -> float:
        return 0.5 if key == "b" else 0.0

    @rule(key=st.sampled_from(hosts), count=st.integers(1, 5), priority=st.integers(0, 2))
    def offer(self, key: str, count: int, priority: int) -> None:
        fresh = [entry(key, next(self.numbers), priority) for _ in range(count)]
        self.waiting |= {e.url for e in fresh}
        ready, unknown = (fresh, []) if key in self.known else ([], fresh)
        assert self.scheduler.windows.offer(key, ready, unknown, more=False) == []

    @rule()
    def lease(self) -> None:
        limits = {key: live.limit for key, live in self.scheduler.live().items()}
        flying = Counter(keys_of(self.flying))
        held = len(self.flying) + len(self.ended)
        doubted = sum(lease.doubted for lease in self.flying)
        lease = self.bench.lease()
        if lease is None:
            return
        key = lease.host.key
        assert lease.level == flying[key] + 1 <= int(limits[key])
        assert self.credits > 0
        assert held == 0 or (held + 1) * RESERVATION <= self.max_bytes
        if lease.doubted:
            at_work = min(self.workers, self.max_items)
            half, most = at_work // 2, at_work - max(1, at_work // 4)
            if not any(self.scheduler._standings._merits[1:]):
                most = at_work  # nobody has answered for a while
            assert doubted < max(1, most if lease.host.requests == 1 else half)
        self.credits -= 1
        self.flying.append(lease)
        if lease.entry is None:
            assert key not in self.known, "rules are asked for once"
            self.asked[key] += 1
            assert self.asked[key] == 1
        else:
            assert key in self.known
            self.waiting.remove(lease.url)

    @precondition(lambda self: self.flying)
    @rule(
        which=st.integers(0, 50),
        outcome=st.sampled_from(["2xx", "2xx", "4xx", "5xx", "throttled", "pressure"]),
        retry_after=st.sampled_from([None, 3.0]),
    )
    def release(self, which: int, outcome: str, retry_after: float | None) -> None:
        lease = self.flying.pop(which % len(self.flying))
        key = lease.host.key
        if lease.job is not None:
            self.scheduler.release(lease, "304")
            parked = self.scheduler.rules_known(
                f"http://{key}", ALLOW_ALL, self.delayed(key), NEVER
            )
            self.known.add(key)
            self.scheduler.windows.offer(key, parked, [], more=None)
        else:
            self.finished.add(lease.url)
            self.scheduler.release(lease, outcome, retry_after=retry_after)
        self.ended.append(lease)

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 50))
    def readmit(self, which: int) -> None:
        lease = self.flying[which % len(self.flying)]
        others = sum(each.host is lease.host for each in self.flying) - 1
        if self.scheduler.readmit(lease, lease.url):
            assert others < int(self.scheduler.live()[lease.host.key].limit)

    @precondition(lambda self: self.ended)
    @rule(which=st.integers(0, 50))
    def settle(self, which: int) -> None:
        lease = self.ended.pop(which % len(self.ended))
        self.scheduler.give_credit()
        self.credits += 1
        assert self.scheduler.settle(lease, page=False)

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0, 100.0]))
    def advance(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    @invariant()
    def nothing_is_overrun(self) -> None:
        if not hasattr(self, "bench"):
            return
        held = [*self.flying, *self.ended]
        assert self.scheduler.unsettled == len(held)
        assert self.scheduler.leased == sum(lease.entry is not None for lease in held)
        assert self.bench.budget.held == RESERVATION * len(held)
        flying = Counter(keys_of(self.flying))
        for key, live in self.scheduler.live().items():
            assert live.in_flight == flying[key] <= live.in_flight_peak <= 6
            parked_or_ready = sum(url.startswith(f"http://{key}/") for url in self.waiting)
            assert live.window == parked_or_ready

    def teardown(self) -> None:
        """Whatever happened: given time, every entry is leased, once."""
        if not hasattr(self, "bench"):
            return
        for _ in range(2_000):
            self.lease()
            while self.flying:
                self.release(0, "4xx", None)
            while self.ended:
                self.settle(0)
            if not self.waiting:
                break
            if not self.scheduler.has_ready:
                due = self.scheduler.waits_until()
                if due is not None:
                    self.bench.until(max(due, self.bench.clock.monotonic()))
        assert not self.waiting, f"never leased: {self.waiting}, {self.scheduler!r}"
        assert self.bench.lease() is None


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_host_given_up_by_one_of_its_robots_txt_offers_no_other() -> None:
    """Two origins behind one gate: the second one's job is queued when the first one fails."""
    bench = Bench(config(start=1, ceiling=1))
    both = [Entry(f"{scheme}://a/1", fingerprint(scheme)) for scheme in ("http", "https")]
    assert bench.scheduler.windows.offer("a", [], both, more=False) == []
    for _ in range(20):
        lease = bench.lease()
        if lease is None:
            due = bench.scheduler.waits_until()
            assert due is not None
            bench.until(due)
            continue
        assert lease.job is not None
        bench.clock.advance(400.0)
        assert bench.lease() is None, "the other one is due, and waits for the slot"
        bench.scheduler.release(lease, "connect")
        bench.scheduler.give_credit()
        bench.scheduler.robots_failed(lease.job, "connect")
        if bench.scheduler.windows.verdict("a") is not None:
            break
        bench.scheduler.settle(lease, page=False)
    assert bench.scheduler.windows.verdict("a") == "unreachable"
    assert bench.lease() is None
