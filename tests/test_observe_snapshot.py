"""Snapshots: which hosts they tell of, and the verdict on runs that stand still in different ways.

The parts that are counted by others are stood in for; the clock moves only when told.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl.config.model import Config, FetchConfig, ParseConfig
from syncrawl.engine.ledger import HostTotals, Ledger
from syncrawl.engine.notes import LiveHost
from syncrawl.engine.snapshot import Pressure
from syncrawl.engine.waiters import REASONS
from syncrawl.frontier.model import SHED, Counts
from syncrawl.limits.health import remembered
from syncrawl.observe.metrics import MeteredQueue
from syncrawl.testing import FakeClock

FETCHERS, PARSERS = 10, 2


def live(**changes: Any) -> LiveHost:
    quiet = LiveHost(0, 0, 0, 4.0, 0.0, 0, 0, None)
    return quiet._replace(**changes)


class Crawl:
    """What a snapshot is made of, each figure set by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger = Ledger(0.1)
        self.live: dict[str, LiveHost] = {}
        self.asked: list[str] = []
        self.pending: dict[str, int] = {}
        self.waited = dict.fromkeys(REASONS, 0.0)
        self.busy = 0.0
        self.counts = Counts()
        self.inbox: MeteredQueue[int] = MeteredQueue(4, self.clock)
        self.fetched: MeteredQueue[int] = MeteredQueue(4, self.clock)
        for _ in range(PARSERS):
            self.fetched.meter.starved.enter(self.clock.monotonic())
        scheduler = SimpleNamespace(
            live=self.told_live,
            loads=lambda: {key: (one.in_flight, one.requests) for key, one in self.live.items()},
            waited=lambda: dict(self.waited),
            oldest_lease_age=lambda: 2.5,
            requests=0,
            leased=0,
            exchanging=3,
        )
        committer = SimpleNamespace(
            pending=self.pending, deferred_now=0, busy_until=lambda now: self.busy
        )
        rooms: Any = SimpleNamespace(
            ledger=self.ledger,
            scheduler=scheduler,
            committer=committer,
            frontier=SimpleNamespace(counts=lambda: self.counts),
            fetched=self.fetched,
            inbox=self.inbox,
        )
        config = Config(fetch=FetchConfig(workers=FETCHERS), parse=ParseConfig(workers=PARSERS))
        self.pressure = Pressure(config, rooms, self.clock)

    def told_live(self, keys: Sequence[str]) -> dict[str, LiveHost]:
        self.asked = list(keys)
        return {key: self.live[key] for key in keys if key in self.live}

    def look(self, most_hosts: int = 0) -> dict[str, Any]:
        return self.pressure.snapshot("running", None, "", most_hosts=most_hosts)

    def pass_seconds(self, seconds: int, *, busy: float = 0.0, **waiting: float) -> None:
        """Let time pass; `waiting` workers wait for each reason, the commit thread works."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.busy += busy
            for reason, workers in waiting.items():
                self.waited[reason] += workers
            self.look()


@pytest.fixture
def crawl(monkeypatch: pytest.MonkeyPatch) -> Crawl:
    # The test process's own CPU has nothing to do with a clock that is moved.
    monkeypatch.setattr("syncrawl.engine.snapshot.time.process_time", lambda: 0.0)
    return Crawl()


class TestHosts:
    @pytest.fixture
    def many(self, crawl: Crawl) -> Crawl:
        for number in range(50):
            crawl.ledger.hosts[f"h{number}"] = HostTotals(requests=number)
        crawl.live["h3"] = live(in_flight=2, requests=3)
        crawl.live["new"] = live(in_flight=1)
        crawl.pending.update(h7=90, h8=80)
        return crawl

    def test_the_busiest_are_told_of_and_the_rest_is_counted(self, many: Crawl) -> None:
        data = many.look(6)
        assert data["hosts"].keys() == {"h3", "new", "h7", "h8", "h49", "h48"}
        assert data["hosts_omitted"] == 45
        assert len(many.asked) == 6, "no others are looked at"

    @pytest.mark.parametrize("most", [0, 51, 1000])
    def test_all_of_them_where_there_is_room(self, many: Crawl, most: int) -> None:
        data = many.look(most)
        assert (len(data["hosts"]), data["hosts_omitted"]) == (51, 0)

    def test_what_is_told_of_one(self, crawl: Crawl) -> None:
        host = HostTotals(pages=6, requests=8, retries=2, health=0.25, outcomes={"throttled": 2})
        for _ in range(4):
            host.recent = remembered(host.recent, "t")
        crawl.ledger.hosts["a"] = host
        crawl.live["a"] = live(
            requests=10, in_flight=1, limit=2.5, paused_until=77.0, leased=3, latency=0.123456
        )
        crawl.pending["a"] = 20
        crawl.clock.advance(2.0)
        assert crawl.look()["hosts"]["a"] == {
            "pages": 6,
            "requests": 10,
            "pending": 17,
            "in_flight": 1,
            "in_flight_peak": 0,
            "limit": 2.5,
            "paused_until": 77.0,
            "retry_share": 0.2,
            "rate": 3.0,
            "outcomes": {"throttled": 2},
            "health": 0.25,
            "latency": 0.1235,
            "condition": "throttled",
        }

    def test_slow_by_its_latency_and_given_up_by_its_verdict(self, crawl: Crawl) -> None:
        crawl.live.update(slow=live(risen=True), gone=live(verdict="unreachable"), fine=live())
        told = {key: host["condition"] for key, host in crawl.look()["hosts"].items()}
        assert told == {"slow": "slow", "gone": "unreachable", "fine": "ok"}


class TestVerdict:
    def verdict(self, crawl: Crawl) -> tuple[str, float]:
        found = crawl.look()["bottleneck"]
        return found["stage"], found["share"]

    def test_a_polite_crawl(self, crawl: Crawl) -> None:
        crawl.pass_seconds(12, politeness=9.0)
        assert self.verdict(crawl) == ("politeness", 0.9)

    def test_a_store_that_stalls_is_named_within_its_window_and_forgotten_after(
        self, crawl: Crawl
    ) -> None:
        crawl.pass_seconds(12, politeness=9.0)
        # The queues fill at once: everybody waits for a credit, the commit thread is in a write.
        crawl.pass_seconds(12, credit=10.0, busy=1.0)
        assert self.verdict(crawl) == ("commit", 1.0)
        crawl.pass_seconds(12, politeness=9.0, busy=0.1)
        assert self.verdict(crawl) == ("politeness", 0.9)

    def test_a_slow_parser(self, crawl: Crawl) -> None:
        crawl.pass_seconds(12, credit=8.0, busy=0.01)
        assert self.verdict(crawl) == ("parse", 0.8)

    def test_a_slow_parser_that_holds_the_only_urls(self, crawl: Crawl) -> None:
        for _ in range(PARSERS):
            crawl.fetched.meter.starved.leave(crawl.clock.monotonic())
        crawl.pass_seconds(12, links=9.5, politeness=0.5)
        assert self.verdict(crawl) == ("parse", 1.0)

    def test_a_gateway_that_is_full_is_politeness_too(self, crawl: Crawl) -> None:
        crawl.pass_seconds(12, route=9.0)
        assert self.verdict(crawl) == ("politeness", 0.9)

    def test_busy_fetchers(self, crawl: Crawl) -> None:
        crawl.pass_seconds(12)
        assert self.verdict(crawl) == ("fetch", 1.0)

    def test_workers_kept_back_by_max_pages_are_not_busy(self, crawl: Crawl) -> None:
        crawl.pass_seconds(12, pages=9.0)
        assert self.verdict(crawl) == ("fetch", 0.0)

    def test_at_the_end_it_is_the_whole_runs(self, crawl: Crawl) -> None:
        crawl.pass_seconds(30, politeness=10.0)
        crawl.pass_seconds(12, credit=10.0)
        assert self.verdict(crawl)[0] == "parse"
        crawl.pressure.finish()
        assert self.verdict(crawl)[0] == "politeness"


def test_growth_of_the_frontier(crawl: Crawl) -> None:
    crawl.look()
    crawl.clock.advance(4.0)
    crawl.counts = Counts(seen=100, unfinished=80)
    assert crawl.look()["frontier"] == {"found": 25.0, "finished": 5.0}


def test_stages_tell_what_was_turned_away_and_how_old_the_oldest_lease_is(crawl: Crawl) -> None:
    crawl.ledger.run.dropped[SHED] = 7
    for _ in range(3):
        with crawl.ledger.lock:
            # Two retries a host are granted whatever was spent.
            crawl.ledger.spend_retry("a")
    crawl.ledger.run.outcomes["parse_timeout"] = 2
    stages = crawl.look()["stages"]
    assert stages["fetch"] | {"depth": 3, "oldest_age": 2.5, "rejected": 8} == stages["fetch"]
    assert stages["parse"]["rejected"] == 2
