"""Names of one machine go through one gate, and none before its address is known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from syncrawl.config.model import Config, CrawlConfig, FetchConfig, HostConfig, QueuesConfig
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.gates import HostMaker
from syncrawl.engine.hosts import Lookup
from syncrawl.engine.lease import Lease
from syncrawl.engine.scheduler import Scheduler
from syncrawl.errors import FetchError
from syncrawl.fetch.deadline import Exchange
from syncrawl.fetch.resolve import Address, Resolver
from syncrawl.fetch.robots import ALLOW_ALL
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host
from tests.crawling import crawl, records, settings
from tests.test_scheduler import StandingClock, WouldBlock, entries

NEVER = float("inf")
NAMES = ("a", "b", "c")
NO_NAME = FetchError("DNS: unknown", outcome="dns")


class Bench:
    """Three names, a scheduler that keys gates by address, and no DNS but what a test says."""

    def __init__(self, **host: Any) -> None:
        self.config = Config(
            crawl=CrawlConfig(user_agent="bot/1.0 (+http://bot.example/)"),
            host=HostConfig(key="address", **host),
            fetch=FetchConfig(workers=32),
            queues=QueuesConfig(max_items=256),
        )
        self.clock: Any = StandingClock()
        maker = HostMaker(self.config, {}, clock=self.clock, rng=random.Random(1))
        self.scheduler = Scheduler(
            self.config,
            clock=self.clock,
            budget=ByteBudget(1 << 30, self.clock),
            new_host=maker.new_host,
            new_gate=maker.new_gate,
            queue_of=str,
            on_wanted=lambda: None,
            rng=random.Random(1),
        )
        for name in NAMES:
            self.scheduler.rules_known(f"http://{name}", ALLOW_ALL, 0.0, NEVER)
            self.scheduler.windows.offer(name, entries(name, 20), [], more=False)

    def lease(self) -> Lease | None:
        try:
            return self.scheduler.lease()
        except WouldBlock:
            return None

    def take_all(self) -> list[Lease]:
        return list(iter(self.lease, None))

    def look_up(self, *addresses: str | FetchError) -> None:
        """Work off the look-ups that are offered, in the order of the names."""
        leases = sorted(self.take_all(), key=lambda lease: lease.host.key)
        assert [lease.lookup for lease in leases] == [True] * len(addresses)
        for lease, address in zip(leases, addresses, strict=True):
            self.scheduler.address_known(lease, address)
            self.scheduler.settle(lease, page=False)
            self.scheduler.give_credit()

    def end(self, lease: Lease, outcome: str = "2xx", **more: Any) -> None:
        self.scheduler.release(lease, outcome, **more)
        self.scheduler.give_credit()
        self.scheduler.settle(lease, page=outcome == "2xx")


def test_a_host_offers_one_look_up_and_nothing_else() -> None:
    bench = Bench()
    leases = bench.take_all()
    assert sorted((lease.host.key, lease.lookup) for lease in leases) == [
        (name, True) for name in NAMES
    ]
    assert bench.scheduler.requests == 0, "a look-up is no request"


def test_names_of_one_machine_share_its_limit() -> None:
    bench = Bench(start=4, ceiling=4)
    bench.look_up("192.0.2.1", "192.0.2.1", "192.0.2.2")
    leases = bench.take_all()
    keys = [lease.host.key for lease in leases]
    assert len([key for key in keys if key in "ab"]) == 4, "four for the machine, not for a name"
    assert keys.count("c") == 4
    first = next(lease for lease in leases if lease.host.key in "ab")
    bench.end(first)
    assert [lease.host.key in "ab" for lease in bench.take_all()] == [True]


def test_every_name_of_a_full_machine_gets_its_turn() -> None:
    bench = Bench(start=1, ceiling=1)
    bench.look_up("192.0.2.1", "192.0.2.1", "192.0.2.1")
    served = []
    for _ in range(9):
        (lease,) = bench.take_all()
        served.append(lease.host.key)
        bench.end(lease)
    # The first, which has nobody to wait behind yet, may have it twice.
    assert [served[1:].count(name) for name in NAMES] in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_a_pause_holds_for_every_name_of_the_machine_and_is_noted_for_each() -> None:
    bench = Bench(start=1)
    bench.look_up("192.0.2.1", "192.0.2.1", "192.0.2.2")
    lease = next(lease for lease in bench.take_all() if lease.host.key in "ab")
    bench.end(lease, "throttled", retry_after=30.0)
    assert bench.scheduler.take_notes().paused == {"a", "b"}
    bench.clock.advance(29.0)
    assert not [lease for lease in bench.take_all() if lease.host.key in "ab"]
    bench.clock.advance(1.1)
    assert [lease for lease in bench.take_all() if lease.host.key in "ab"]


def test_the_slowest_crawl_delay_of_a_machine_holds_for_all() -> None:
    bench = Bench(start=4)
    bench.look_up("192.0.2.1", "192.0.2.1", "192.0.2.2")
    bench.scheduler.rules_known("http://b", ALLOW_ALL, 10.0, NEVER)
    ours = [lease for lease in bench.take_all() if lease.host.key in "ab"]
    assert len(ours) == 1
    bench.end(ours[0])
    bench.clock.advance(9.0)
    assert not [lease for lease in bench.take_all() if lease.host.key in "ab"]
    bench.clock.advance(1.5)
    assert [lease for lease in bench.take_all() if lease.host.key in "ab"]


def test_without_an_address_one_request_at_a_time_and_another_look_up() -> None:
    bench = Bench(start=4)
    bench.look_up(NO_NAME, "192.0.2.1", "192.0.2.1")
    (lease,) = [lease for lease in bench.take_all() if lease.host.key == "a"]
    assert not lease.lookup
    assert lease.unresolved is NO_NAME
    bench.end(lease, "dns")
    again = [lease for lease in bench.take_all() if lease.host.key == "a"]
    assert [lease.lookup for lease in again] == [True]
    bench.scheduler.address_known(again[0], "192.0.2.1")
    assert again[0].host.lookup is Lookup.NONE
    assert bench.scheduler.live()["a"].in_flight == 0


class Forgetful(Resolver):
    """Knows a name the second time it is asked."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._asked: set[str] = set()

    def resolve(self, host: str, exchange: Exchange) -> tuple[Address, ...]:
        if host in self._asked:
            return super().resolve(host, exchange)
        self._asked.add(host)
        raise FetchError("DNS: try again", outcome="dns")


def test_a_dns_failure_takes_no_name_around_its_machines_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher knows the names all the time: it may be another resolver's failure."""
    monkeypatch.setattr("syncrawl.engine.addresses.Resolver", Forgetful)
    names = [f"n{number}.test" for number in range(12)]
    with Site(Host(pages=lambda target: "x" if target == "/" else 404, delay=0.05)) as site:
        port = site.hosts[0].port
        config = settings(
            tmp_path,
            [f"http://{name}:{port}/" for name in names],
            fetch={"workers": 32, "resolve": dict.fromkeys(names, site.hosts[0].address)},
            host={"key": "address", "start": 2, "ceiling": 2},
        )
        crawl(config)
        assert len(records(tmp_path)) == len(names)
        assert site.hosts[0].log.peak <= 2
