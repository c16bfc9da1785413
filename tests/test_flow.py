"""Flow control under pressure, row by row as in benchmarks/flow.py, on a clock that is moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl.config.model import (
    Config,
    CrawlConfig,
    FetchConfig,
    GatewayConfig,
    HostConfig,
    HostRule,
    ParseConfig,
    QueuesConfig,
    RetryConfig,
    ShedConfig,
)
from syncrawl.engine.bounds import Bounds
from syncrawl.engine.inbox import CommitInbox
from syncrawl.engine.lease import Fetched
from syncrawl.engine.rooms import Rooms
from syncrawl.frontier.model import SHED, Entry, host_of
from tests.flowing import DEAD, Pipeline, SimHost, Simulation, link
from tests.test_scheduler import StandingClock

AGENT = "bot/1.0 (+http://bot.example/)"
CAPACITY = 12


def config(*, workers: int = 64, **tables: Any) -> Config:
    tables = {"crawl": CrawlConfig(user_agent=AGENT), **tables}
    return Config(fetch=FetchConfig(workers=workers), **tables)


def asked(hosts: Iterable[SimHost], start: float, end: float) -> int:
    """Requests that came to any of `hosts`."""
    return sum(host.count(start, end) for host in hosts)


# -- one host that throttles ------------------------------------------------------------------


@pytest.mark.parametrize(("service", "seconds"), [(0.02, 10.0), (0.1, 60.0), (0.5, 60.0)])
def test_a_host_that_refuses_is_used_to_its_capacity(service: float, seconds: float) -> None:
    host = SimHost(service, lambda now: CAPACITY)
    Simulation(config(), {"a": host}).run(seconds)
    assert host.in_service(5.0, seconds) >= 0.85 * CAPACITY
    assert host.count(0.0, seconds, "throttled") <= 0.01 * host.count(0.0, seconds)


@pytest.mark.parametrize("most", [CAPACITY, 40])
def test_a_capacity_that_changes_is_followed_both_ways(most: int) -> None:
    host = SimHost(0.1, lambda now: 4 if 10.0 <= now < 30.0 else most)
    Simulation(config(host=HostConfig(ceiling=64)), {"a": host}).run(45.0)
    assert host.in_service(12.5, 13.5) >= 3.0
    assert host.in_service(13.0, 30.0) >= 0.85 * 4
    assert host.count(13.0, 30.0, "throttled") <= 0.03 * host.count(13.0, 30.0)
    halves = (30.0 + tenth / 10 for tenth in range(100))
    settled = next(at for at in halves if host.in_service(at, at + 0.5) >= 0.85 * most)
    assert settled <= 33.0
    assert host.in_service(33.0, 45.0) >= 0.85 * most


def test_a_host_that_takes_all_gets_its_ceiling_and_never_more() -> None:
    host = SimHost(0.05)
    simulation = Simulation(config(host=HostConfig(ceiling=10)), {"a": host})
    simulation.run(10.0)
    assert simulation.scheduler.live()["a"].in_flight_peak == 10
    assert host.in_service(5.0, 10.0) >= 9.9


# -- hosts beside others ----------------------------------------------------------------------

POLITE = HostConfig(rate=8.0, burst=2)


def polite(count: int) -> dict[str, SimHost]:
    return {f"h{n}": SimHost(0.05) for n in range(count)}


def test_a_slow_a_refusing_and_a_dead_host_cost_the_others_nothing() -> None:
    bad = {
        "slow": SimHost(5.0),
        "full": SimHost(capacity=lambda now: 0),
        "dead": SimHost(dead=True),
    }
    alone, beside = polite(17), polite(17)
    Simulation(config(workers=32, host=POLITE), alone).run(25.0)
    # The slow one takes whatever it is given.
    rule = HostRule(match="slow", start=32, ceiling=32)
    crawl = Simulation(config(workers=32, host=POLITE, host_rules=(rule,)), {**bad, **beside})
    crawl.run(25.0)
    assert asked(beside.values(), 3.0, 25.0) >= 0.95 * asked(alone.values(), 3.0, 25.0)
    assert 8 <= crawl.scheduler.live()["slow"].in_flight_peak <= 16, "half of the workers"


def test_more_dead_hosts_than_workers_leave_half_of_those_to_the_others() -> None:
    dead = {f"d{n}": SimHost(dead=True) for n in range(60)}
    alone, beside = polite(20), polite(20)
    Simulation(config(workers=32, host=POLITE), alone).run(25.0)
    Simulation(config(workers=32, host=POLITE), {**beside, **dead}).run(25.0)
    assert asked(beside.values(), 3.0, 25.0) >= 0.95 * asked(alone.values(), 3.0, 25.0)


def test_twenty_dead_hosts_cost_half_at_most_until_they_are_given_up() -> None:
    dead = {f"d{n}": SimHost(dead=True) for n in range(20)}
    alone, beside = polite(20), polite(20)
    limits = config(workers=32, host=HostConfig(rate=4.0, burst=2))
    Simulation(limits, alone).run(30.0)
    # The dead are listed first: nobody has answered yet when the workers meet them.
    Simulation(limits, {**dead, **beside}).run(78.0)
    usual = asked(alone.values(), 5.0, 30.0) / 25.0
    for start in range(0, 75, 5):
        assert asked(beside.values(), start, start + 5) / 5.0 >= 0.95 * usual, start
    assert asked(dead.values(), 72.0, 78.0) == 0, "they are given up"
    assert asked(beside.values(), 72.0, 78.0) / 6.0 >= 0.98 * usual


@pytest.mark.parametrize("first", [True, False])
def test_hosts_that_hang_after_their_first_answers_do_not_hold_all_workers(first: bool) -> None:
    """Each has earned threads by then: together more than there are."""
    bad = {f"d{n}": SimHost(hangs_after=2) for n in range(20)}
    alone, beside = polite(20), polite(20)
    Simulation(config(workers=32, host=POLITE), alone).run(25.0)
    both = {**bad, **beside} if first else {**beside, **bad}
    Simulation(config(workers=32, host=POLITE), both).run(25.0)
    assert asked(beside.values(), 0.0, 25.0) >= 0.95 * asked(alone.values(), 0.0, 25.0)


def test_few_workers_find_who_answers_behind_dead_hosts() -> None:
    """Once nobody has answered for a second no worker stays idle, and it is drawn by lot."""
    dead = {f"d{n}": SimHost(dead=True) for n in range(20)}
    healthy = polite(4)
    Simulation(config(workers=8, host=POLITE), {**dead, **healthy}).run(12.0)
    assert dead["d0"].count(0.0, 4.9) == 1
    assert (
        asked(dead.values(), 0.0, 4.9)
        + sum(bool(host.count(0.0, 4.9)) for host in healthy.values())
        >= 8
    ), "all workers are at work"
    assert asked(healthy.values(), 5.0, 12.0) >= 0.2 * 4 * 8.0 * 7.0


def test_dead_hosts_that_come_first_hold_up_the_others_for_two_connect_timeouts() -> None:
    """Sixty for 32 workers: 24 are tried at once, and each is only once before all the others."""
    dead = {f"d{n}": SimHost(dead=True) for n in range(60)}
    alone, beside = polite(20), polite(20)
    Simulation(config(workers=32, host=POLITE), alone).run(25.0)
    Simulation(config(workers=32, host=POLITE), {**dead, **beside}).run(25.0)
    late = 2 * DEAD + 0.5
    assert asked(beside.values(), late, 25.0) >= 0.95 * asked(alone.values(), late, 25.0)


def test_a_host_that_takes_all_workers_keeps_no_other_waiting() -> None:
    # It answers all its requests at one moment: who is due in between needs a worker kept.
    greedy = SimHost(0.45, spread=0.0)
    rule = HostRule(match="greedy", start=32, ceiling=32, rate=0.0)
    limits = config(workers=32, host=HostConfig(rate=4.0), host_rules=(rule,))
    alone, beside = polite(8), polite(8)
    Simulation(limits, alone).run(30.0)
    Simulation(limits, {"greedy": greedy, **beside}).run(30.0)
    assert asked(beside.values(), 5.0, 30.0) >= 0.95 * asked(alone.values(), 5.0, 30.0)
    assert greedy.in_service(5.0, 30.0) >= 23.9, "all others are its own"


@pytest.mark.parametrize("restart", [False, True])
def test_retry_after_holds_for_one_host_and_over_a_restart(tmp_path: Path, restart: bool) -> None:
    hosts = {name: SimHost(0.05) for name in "abcde"}
    hosts["a"].retry_after = {20: 3.0}
    limits = config(host=HostConfig(rate=20.0, burst=2))
    urls = [f"http://{name}/{n}" for n in range(140) for name in hosts]
    crawl = Pipeline(limits, hosts, folder=tmp_path)
    crawl.seed(urls)
    crawl.run(2.0)
    (refusal,) = (one for one in hosts["a"].log if one.outcome == "throttled")
    others = [hosts[name] for name in "bcde"]
    if restart:
        crawl.kill()
        # Another process, half a second later: its clock counts from elsewhere.
        wall = crawl.clock.wall() + 0.5
        crawl = Pipeline(
            limits, hosts, folder=tmp_path, clock=StandingClock(77.0, wall), offset=2.5
        )
    crawl.run(6.0)
    again = next(one.arrived for one in hosts["a"].log if one.arrived > refusal.ended)
    assert 3.0 - 1e-6 <= again - refusal.ended <= 3.2
    assert asked(others, refusal.ended, 2.0) >= 0.95 * 80 * (2.0 - refusal.ended)
    assert asked(others, 2.5, 4.0) >= 0.95 * 80 * 1.5
    crawl.run(20.0)
    assert crawl.finished
    assert crawl.frontier.counts().done == len(urls)
    crawl.kill()


# -- our own pipeline -------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [128 << 20, 6 << 20])
def test_a_store_that_stalls_stops_the_requests_and_loses_nothing(
    tmp_path: Path, max_bytes: int
) -> None:
    hosts = {f"h{n}": SimHost(0.1) for n in range(8)}
    queues = QueuesConfig(max_bytes=max_bytes)
    crawl = Pipeline(
        config(workers=64, host=HostConfig(start=8), queues=queues), hosts, folder=tmp_path
    )
    urls = [f"http://h{n % 8}/{n}" for n in range(5_000)]
    crawl.seed(urls)
    crawl.run(4.0)
    crawl.stalled = True
    crawl.run(34.0)
    crawl.stalled = False
    crawl.run(60.0)
    everyone = hosts.values()
    assert asked(everyone, 6.0, 34.0) == 0, "two seconds after the queues are full"
    assert crawl.most["fetched"] <= crawl.bound
    assert crawl.most["inbox"] <= crawl.bound
    assert crawl.most["leases"] <= 2 * crawl.bound
    assert crawl.most["bytes"] <= max_bytes
    full = crawl.most["bytes"] == max_bytes or crawl.most["fetched"] == crawl.bound
    assert full, "the stall was felt"
    assert asked(everyone, 36.0, 37.0) >= 0.95 * asked(everyone, 2.0, 4.0) / 2
    assert crawl.finished
    assert asked(everyone, 0.0, 60.0) == len(urls)
    assert sorted(str(record["url"]) for record in crawl.store.records) == sorted(urls)
    crawl.kill()


def test_fetching_settles_at_what_slow_parsers_do() -> None:
    settings = config(workers=32, parse=ParseConfig(workers=4))
    hosts = {f"h{n}": SimHost(0.05) for n in range(8)}
    crawl = Simulation(settings, hosts)
    parser = SimpleNamespace(items=0, busy_seconds=0.0)
    # What of the real wiring moves the bounds.
    rooms: Any = SimpleNamespace(
        clock=crawl.clock,
        scheduler=crawl.scheduler,
        parse=[parser],
        committer=SimpleNamespace(items=0, busy_seconds=0.0),
        inbox=CommitInbox(64, crawl.clock),
        _bounds=Bounds(settings),
    )
    waiting: list[Fetched] = []
    busy = [0]
    depths: list[tuple[float, int]] = []

    def parse() -> None:
        while waiting and busy[0] < 4:
            fetched = waiting.pop(0)
            busy[0] += 1
            crawl.scheduler.give_credit()
            crawl.at(0.5, partial(parsed, fetched))

    def parsed(fetched: Fetched) -> None:
        busy[0] -= 1
        parser.items += 1
        parser.busy_seconds += 0.5
        crawl.scheduler.settle(fetched.lease, page=True)
        parse()

    def arrived(fetched: Fetched) -> None:
        waiting.append(fetched)
        depths.append((crawl.now, len(waiting) + crawl.flying))
        parse()

    def adjust() -> None:
        Rooms.adjust(rooms)
        crawl.at(0.5, adjust)

    crawl.on_result = arrived
    adjust()
    crawl.run(60.0)
    assert asked(hosts.values(), 20.0, 60.0) / 40.0 == pytest.approx(8.0, rel=0.1)
    deepest = max(depth for at, depth in depths if at >= 20.0)
    # Two seconds of four parsers, and what comes while a page is fetched; without the bound, 64.
    assert 8 <= deepest <= 18
    assert rooms._bounds.fetched(crawl.scheduler.usual_seconds) <= 18


# -- retries and gateway ----------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.1, 0.02])
def test_a_host_where_everything_fails_gets_its_share_of_retries(ratio: float) -> None:
    hosts = {"bad": SimHost(failing=True), "good": SimHost()}
    crawl = Pipeline(config(retry=RetryConfig(budget_ratio=ratio)), hosts)
    crawl.seed(f"http://{name}/{n}" for n in range(200) for name in hosts)
    crawl.run(200.0)
    assert crawl.finished
    requests = {name: len(host.log) for name, host in hosts.items()}
    retries = requests["bad"] - 200
    assert requests["good"] == 200
    assert 2 <= retries <= ratio * 200
    assert crawl.ledger.life.retries == retries <= 0.1 * sum(requests.values())
    counts = crawl.frontier.counts()
    assert (counts.done, counts.failed, counts.dropped) == (200, 200, {})


def test_the_two_retries_of_each_small_host_are_not_granted_to_a_large_one_again() -> None:
    hosts = {f"small{n}": SimHost(failing=True) for n in range(50)}
    hosts["large"] = SimHost(failing=True)
    crawl = Pipeline(config(retry=RetryConfig(budget_ratio=0.1)), hosts)
    crawl.seed(f"http://small{n}/" for n in range(50))
    crawl.run(20.0)
    crawl.seed(f"http://large/{n}" for n in range(200))
    crawl.run(200.0)
    assert crawl.finished
    assert all(len(hosts[f"small{n}"].log) == 3 for n in range(50))
    assert len(hosts["large"].log) == 202, "the share of all is spent; its own two are not"


class SimGateway:
    """`slots` requests at once; more are too many. None is served between the moments `empty`."""

    def __init__(self, slots: int, empty: tuple[float, float] = (0.0, 0.0)) -> None:
        self.slots = slots
        self.empty = empty
        self.taken = 0
        self.calls: list[tuple[float, str]] = []


class Target(SimHost):
    """A host behind a gateway; its own capacity has no end."""

    def __init__(self, gateway: SimGateway) -> None:
        super().__init__(0.1)
        self.gateway = gateway

    def answer(self, now: float) -> tuple[float, str]:
        gateway = self.gateway
        if gateway.empty[0] <= now < gateway.empty[1]:
            answer = 0.002, "gateway_exhausted"
        elif gateway.taken >= gateway.slots:
            answer = 0.002, "gateway_throttled"
        else:
            gateway.taken += 1
            answer = 0.1, "2xx"
        gateway.calls.append((now, answer[1]))
        return answer

    def leave(self, outcome: str) -> None:
        super().leave(outcome)
        self.gateway.taken -= outcome == "2xx"


def behind(gateway: SimGateway, count: int = 6) -> dict[str, SimHost]:
    return {f"t{n}": Target(gateway) for n in range(count)}


def plan(resume_after: float = 0.0, most: int = 10) -> GatewayConfig:
    return GatewayConfig(
        url="http://g.example/?u={url}", max_in_flight=most, resume_after=resume_after
    )


@pytest.mark.parametrize("most", [10, 6])
def test_a_gateways_slots_are_found_without_blaming_a_host(most: int) -> None:
    gateway = SimGateway(5)
    hosts = behind(gateway)
    crawl = Simulation(config(workers=32, gateway=plan(most=most)), hosts)
    crawl.run(30.0)
    settled = Counter(outcome for at, outcome in gateway.calls if at >= 10.0)
    assert settled["2xx"] >= 0.85 * 5 / 0.1 * 20
    assert settled["gateway_throttled"] <= 0.02 * settled["2xx"]
    assert crawl.route is not None
    assert 4 <= int(crawl.route.limit) <= 5
    assert crawl.cuts == dict.fromkeys(hosts, 0)
    assert all(live.limit >= 4 for live in crawl.scheduler.live().values())


@pytest.mark.parametrize("resume_after", [0.0, 60.0])
def test_a_used_up_quota_ends_the_crawl_or_holds_it(tmp_path: Path, resume_after: float) -> None:
    gateway = SimGateway(5, empty=(5.0, 50.0))
    hosts = behind(gateway)
    settings = config(workers=32, gateway=plan(resume_after))
    crawl = Pipeline(settings, hosts, folder=tmp_path)
    urls = [f"http://t{n % 6}/{n}" for n in range(900)]
    crawl.seed(urls)
    crawl.run(64.0)
    first = next(at for at, outcome in gateway.calls if outcome == "gateway_exhausted")
    # What was in flight may be told so too; nothing new is asked for after that.
    assert not [at for at, _ in gateway.calls if first + 0.1 < at < first + 59.0]
    records = crawl.store.records
    if resume_after:
        assert crawl.ends == []
        assert not crawl.finished
    else:
        assert crawl.ends == [4]
        crawl.commit()
        crawl.kill()
        crawl = Pipeline(settings, hosts, folder=tmp_path, clock=crawl.clock, offset=64.0)
    crawl.run(120.0)
    assert crawl.finished
    records = records if resume_after else records + crawl.store.records
    assert sorted(str(record["url"]) for record in records) == sorted(urls)
    assert crawl.cuts == dict.fromkeys(hosts, 0)
    crawl.kill()


# -- shedding ---------------------------------------------------------------------------------

HIGH, INDEXES, ROOM = 500, 20, 2_000


def flood(hosts: list[str], low: int, number: int) -> list[Entry]:
    """What index page `number` links to: its share of the low ones, then of the high ones.

    Every host has low ones, the first third of them has the high ones.
    """
    links = []
    some = hosts[: max(1, len(hosts) // 3)]
    for kind, total, priority, on in (("low", low, 0, hosts), ("high", HIGH, 10, some)):
        share = total // INDEXES
        span = range(number * share, (number + 1) * share)
        links += [link(on[n % len(on)], f"{kind}/{n}", priority) for n in span]
    return links


@pytest.mark.parametrize(("count", "low"), [(1, 10_000), (25, 20_000)])
@pytest.mark.parametrize("action", ["defer", "drop"])
def test_a_flood_of_low_priority_waits_behind_the_high(
    tmp_path: Path, count: int, low: int, action: str
) -> None:
    names = [f"h{n}" for n in range(count)]
    shed = ShedConfig(max_pending=ROOM, action=action)  # type: ignore[arg-type]
    settings = config(shed=shed, queues=QueuesConfig(max_items=512))
    crawl = Pipeline(settings, {name: SimHost() for name in names}, folder=tmp_path)
    crawl.seed(f"http://{names[n % count]}/index/{n}" for n in range(INDEXES))
    number = iter(range(INDEXES))
    crawl.links = lambda url: flood(names, low, next(number)) if "/index/" in url else []
    order: list[str] = []
    for _ in range(INDEXES + HIGH + 100):
        order.append(crawl.fetch())
        crawl.commit()
    kinds = [url.split("/")[3] for url in order]
    assert kinds == ["index"] * INDEXES + ["high"] * HIGH + ["low"] * 100
    counts, shelved = crawl.frontier.counts(), crawl.frontier.shelved()
    dropped = counts.dropped.get(SHED, 0)
    assert counts.seen == INDEXES + HIGH + low
    assert counts.unfinished - shelved <= ROOM
    assert counts.unfinished + dropped == low - 100
    assert (shelved > 0, dropped > 0) == (action == "defer", action == "drop")
    # What was put off comes back, what was dropped does not.
    while crawl.frontier.counts().unfinished:
        assert crawl.scheduler.has_ready
        while crawl.scheduler.has_ready and len(crawl.inbox) < crawl.bound:
            order.append(crawl.fetch())
        crawl.commit()
    dropped = crawl.frontier.counts().dropped.get(SHED, 0)
    assert len(order) == len(set(order)) == INDEXES + HIGH + low - dropped
    assert (dropped == 0) is (action == "defer")
    assert {host_of(url) for url in order} == set(names)
    crawl.kill()


@pytest.mark.parametrize(
    "shed", [ShedConfig(max_pending=10), ShedConfig(full_after=1.0)], ids=["room", "full"]
)
def test_a_crawl_does_not_end_before_what_was_put_off(tmp_path: Path, shed: ShedConfig) -> None:
    """One bundle holds more than may be pending: put off as a whole, it leaves nothing to do."""
    crawl = Pipeline(config(shed=shed), {name: SimHost() for name in "ab"}, folder=tmp_path)
    pages = {"http://a/": ["index"], "http://a/index": [f"page/{n}" for n in range(250)]}
    crawl.links = lambda url: [link("a", path) for path in pages.get(url, [])]
    crawl.seed(["http://a/"])
    crawl.seeds.ended = True
    rounds = 0
    while not crawl.committer.nothing_left:
        rounds += 1
        assert rounds < 500
        while crawl.scheduler.has_ready and len(crawl.inbox) < crawl.bound:
            crawl.fetch()
        items, crawl.inbox = crawl.inbox, []
        # As for the commit loop, which sees a queue full before it takes what was in it.
        crawl.clock.advance(2.0)
        crawl.committer.step(items, full=True)
    counts = crawl.frontier.counts()
    assert (counts.done, counts.unfinished) == (252, 0)
    crawl.kill()


def test_a_slow_host_that_fills_the_room_keeps_no_other_waiting(tmp_path: Path) -> None:
    """What it has pending is older and takes all of max_pending; others were put off as a whole."""
    hosts = {name: SimHost(0.05) for name in ("slow", "h0", "h1", "h2")}
    rule = HostRule(match="slow", rate=1.0, burst=1)
    crawl = Pipeline(
        config(shed=ShedConfig(max_pending=1_000), host_rules=(rule,)), hosts, folder=tmp_path
    )
    pages = {
        "http://slow/": [link("slow", str(n)) for n in range(1_500)] + [link("h0", "index")],
        "http://h0/index": [link(f"h{n % 3}", str(n)) for n in range(300)],
    }
    crawl.links = lambda url: pages.get(url, [])
    crawl.seed(["http://slow/"])
    crawl.run(60.0)
    quick = [hosts[name] for name in ("h0", "h1", "h2")]
    assert asked(quick, 0.0, 30.0) == 301
    assert hosts["slow"].count(30.0, 60.0) >= 28, "nor is it kept waiting itself"
    crawl.kill()
