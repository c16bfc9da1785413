"""Flow control under pressure, row by row as in benchmarks/flow.py, on a clock that is moved."""

from __future__ import annotations

import pytest

from syncrawl.config.model import (
    Config,
    CrawlConfig,
    FetchConfig,
    GatewayConfig,
    HostConfig,
    ParseConfig,
    QueuesConfig,
    ShedConfig,
)
from syncrawl.engine.bounds import Bounds
from syncrawl.engine.lease import Lease
from syncrawl.engine.ledger import HostTotals
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.shedding import Shedder
from syncrawl.frontier.model import SHED, Entry, host_of
from syncrawl.log import NullLog
from syncrawl.urls import fingerprint
from tests.flowing import SimHost, Simulation
from tests.test_commit import Bench

AGENT = "bot/1.0 (+http://bot.example/)"
CAPACITY = 12


def config(*, workers: int = 64, **tables: object) -> Config:
    tables = {"crawl": CrawlConfig(user_agent=AGENT), **tables}
    return Config(fetch=FetchConfig(workers=workers), **tables)  # type: ignore[arg-type]


# -- one host that throttles ------------------------------------------------------------------


@pytest.mark.parametrize("service", [0.02, 0.1, 0.5])
def test_a_host_that_refuses_is_used_to_its_capacity(service: float) -> None:
    host = SimHost(service, lambda now: CAPACITY)
    Simulation(config(), {"a": host}).run(60.0)
    assert host.in_service(5.0, 60.0) >= 0.85 * CAPACITY
    assert host.count(5.0, 60.0, "throttled") <= 0.01 * host.count(5.0, 60.0) + 1


def test_a_capacity_that_changes_is_followed_both_ways() -> None:
    host = SimHost(0.1, lambda now: 4 if 20.0 <= now < 50.0 else CAPACITY)
    simulation = Simulation(config(), {"a": host})
    simulation.run(80.0)
    assert 3.0 <= host.in_service(22.5, 23.5) <= 4.0
    assert host.count(23.0, 50.0, "throttled") <= 0.03 * host.count(23.0, 50.0)
    assert host.in_service(52.0, 53.0) >= 0.8 * CAPACITY
    assert host.in_service(55.0, 80.0) >= 0.85 * CAPACITY
    assert simulation.scheduler.live()["a"].in_flight_peak <= 32


# -- hosts beside others ----------------------------------------------------------------------


def healthy_rate(bad: dict[str, SimHost], count: int, *, end: float, start: float = 5.0) -> float:
    healthy = {f"h{n}": SimHost(0.05) for n in range(count)}
    limits = HostConfig(rate=8.0, burst=2)
    Simulation(config(workers=32, host=limits), {**bad, **healthy}).run(end)
    return sum(host.count(start, end) for host in healthy.values()) / (end - start)


def test_a_slow_a_refusing_and_a_dead_host_cost_the_others_nothing() -> None:
    bad = {
        "slow": SimHost(5.0),
        "full": SimHost(capacity=lambda now: 0),
        "dead": SimHost(dead=True),
    }
    assert healthy_rate(bad, 17, end=40.0) >= 0.95 * healthy_rate({}, 17, end=40.0)


def test_twenty_dead_hosts_cost_half_at_most_until_they_are_given_up() -> None:
    def dead() -> dict[str, SimHost]:
        return {f"d{n}": SimHost(dead=True) for n in range(20)}

    alone = healthy_rate({}, 20, end=30.0)
    assert healthy_rate(dead(), 20, end=30.0) >= 0.5 * alone
    assert healthy_rate(dead(), 20, start=80.0, end=95.0) >= 0.98 * alone
    hosts = dead()
    healthy_rate(hosts, 20, end=95.0)
    assert max(host.count(75.0, 95.0) for host in hosts.values()) == 0, "they were given up"


def test_retry_after_is_kept_over_a_restart_and_holds_for_one_host() -> None:
    hosts = {name: SimHost(0.05) for name in "abcde"}
    hosts["a"].retry_after = {20: 3.0}
    limits = config(host=HostConfig(rate=20.0, burst=2))
    first = Simulation(limits, hosts)
    first.run(2.0)
    refused = next(one.ended for one in hosts["a"].log if one.outcome == "throttled")
    live = first.scheduler.live()
    saved = {key: HostTotals(paused_until=live[key].paused_until) for key in hosts}
    before = {key: len(host.log) for key, host in hosts.items()}
    first.clock.advance(0.5)
    second = Simulation(limits, hosts, saved=saved, clock=first.clock)
    offset = second.started - first.started
    second.run(6.0)
    again = hosts["a"].log[before["a"]]
    assert again.arrived + offset - refused == pytest.approx(3.0, abs=0.1)
    for other in "bcde":
        assert hosts[other].count(0.1, 1.0) >= 16, other


# -- our own pipeline -------------------------------------------------------------------------


def test_a_store_that_stalls_stops_the_leases_and_loses_nothing() -> None:
    hosts = {f"h{n}": SimHost(0.1) for n in range(8)}
    simulation = Simulation(config(workers=64, host=HostConfig(start=8)), hosts)
    stalled: list[tuple[Lease, str]] = []
    bound = QueuesConfig().bound(64)

    def result(lease: Lease, outcome: str) -> None:
        if 10.0 <= simulation.now < 40.0:
            stalled.append((lease, outcome))
        else:
            simulation.settle(lease, outcome)

    def resume() -> None:
        while stalled:
            simulation.settle(*stalled.pop())

    simulation.on_result = result
    simulation.at(40.0, resume)
    simulation.run(60.0)
    asked = sorted(one.arrived for host in hosts.values() for one in host.log)
    assert not [at for at in asked if 12.0 <= at < 40.0], "two seconds after the queues are full"
    assert simulation.most_alive <= bound
    before = sum(5.0 <= at < 10.0 for at in asked) / 5.0
    after = sum(42.0 <= at < 47.0 for at in asked) / 5.0
    assert after >= 0.95 * before
    urls = [url for _, url in simulation.done]
    assert len(urls) == len(set(urls)) == len(asked) - simulation.flying


def test_fetching_settles_at_what_slow_parsers_do() -> None:
    settings = config(
        workers=32, parse=ParseConfig(workers=4), queues=QueuesConfig(latency_seconds=2.0)
    )
    hosts = {f"h{n}": SimHost(0.05) for n in range(8)}
    simulation = Simulation(settings, hosts)
    bounds = Bounds(settings)
    queue: list[tuple[Lease, str]] = []
    totals = {"busy": 0, "items": 0, "seconds": 0.0}
    depths: list[tuple[float, int]] = []

    def parse() -> None:
        while queue and totals["busy"] < 4:
            lease, outcome = queue.pop(0)
            totals["busy"] += 1
            simulation.scheduler.give_credit()
            simulation.at(0.5, lambda lease=lease, outcome=outcome: parsed(lease, outcome))  # type: ignore[misc]

    def parsed(lease: Lease, outcome: str) -> None:
        totals["busy"] -= 1
        totals["items"] += 1
        totals["seconds"] += 0.5
        simulation.commit(lease, outcome)
        parse()

    def result(lease: Lease, outcome: str) -> None:
        queue.append((lease, outcome))
        depths.append((simulation.now, len(queue)))
        parse()

    def adjust() -> None:
        bounds.note_parse(int(totals["items"]), totals["seconds"])
        simulation.scheduler.set_bound(bounds.fetched(simulation.scheduler.usual_seconds))
        simulation.at(0.5, adjust)

    simulation.on_result = result
    adjust()
    simulation.run(60.0)
    rate = sum(host.count(20.0, 60.0) for host in hosts.values()) / 40.0
    assert rate == pytest.approx(8.0, rel=0.1)
    assert max(depth for at, depth in depths if at >= 20.0) <= 18, "two seconds' work, not 64"


# -- retries, gateway, shedding ---------------------------------------------------------------


def test_a_host_where_everything_fails_gets_its_share_of_retries() -> None:
    bench = Bench(ratio=0.1)
    bench.seed(*(f"http://bad/{n}" for n in range(200)), *(f"http://good/{n}" for n in range(300)))
    asked = {"bad": 0, "good": 0}
    while bench.frontier.counts().unfinished:
        if not bench.scheduler.has_ready:
            bench.clock.advance(5.0)
            bench.step()
            continue
        lease = bench.lease()
        key = lease.host.key
        asked[key] += 1
        bench.step(bench.parsed(lease, "5xx" if key == "bad" else "2xx"))
    assert asked["bad"] <= 220
    assert asked["good"] == 300
    life = bench.ledger.life
    assert life.retries <= 0.1 * sum(asked.values())
    assert bench.states == (0, 300, 200, {})


@pytest.mark.parametrize("most", [10, 6])
def test_a_gateways_slots_are_found_without_blaming_a_host(most: int) -> None:
    slots = [0]

    class Target(SimHost):
        def serve(self, now: float, rng: object) -> tuple[float, str, float | None]:
            taken = slots[0] >= 5
            slots[0] += not taken
            outcome = "gateway_throttled" if taken else "2xx"
            return now + (0.002 if taken else 0.1), outcome, None

    hosts: dict[str, SimHost] = {f"t{n}": Target() for n in range(6)}
    gateway = GatewayConfig(url="http://g.example/?u={url}", max_in_flight=most)
    simulation = Simulation(config(workers=32, gateway=gateway), hosts)
    ended: list[tuple[float, str]] = []

    def result(lease: Lease, outcome: str) -> None:
        ended.append((simulation.now, outcome))
        slots[0] -= outcome == "2xx"
        simulation.settle(lease, outcome)

    for host in hosts.values():
        host.busy = 10**9  # only the gateway's slots count here
    simulation.on_result = result
    simulation.run(30.0)
    served = sum(at >= 10.0 and outcome == "2xx" for at, outcome in ended) / 20.0
    refused = sum(at >= 10.0 and outcome != "2xx" for at, outcome in ended) / 20.0
    assert served >= 0.85 * 50.0, "five slots of 100 ms"
    assert refused <= 0.02 * served
    assert all(live.limit >= 4 for live in simulation.scheduler.live().values())
    assert simulation.scheduler.exchanging <= most


@pytest.mark.parametrize("resume_after", [0.0, 60.0])
def test_a_used_up_quota_ends_the_crawl_or_holds_it(resume_after: float) -> None:
    hosts = {"a": SimHost(0.1)}
    simulation = Simulation(config(workers=4), hosts)
    ends: list[int] = []
    route = RouteWatch(
        resume_after=resume_after,
        hold=simulation.scheduler.hold,
        end_with=lambda code, why: ends.append(code),
        log=NullLog(),
    )
    simulation.run(5.0)
    route.note("gateway_exhausted", "509", final=False)
    simulation.run(64.0)
    if resume_after:
        assert ends == []
        assert hosts["a"].count(5.2, 64.0) == 0
        simulation.run(70.0)
        assert hosts["a"].count(65.0, 70.0) > 0
    else:
        assert ends == [4]


@pytest.mark.parametrize("count", [1, 25])
@pytest.mark.parametrize("action", ["defer", "drop"])
def test_a_flood_of_low_priority_waits_behind_the_high(count: int, action: str) -> None:
    bench = Bench(start=4)
    shed = ShedConfig(max_pending=400, action=action)  # type: ignore[arg-type]
    bench.committer._shedder = Shedder(shed, bench.frontier, lambda: bench.feeder.set_apart)
    hosts = [f"h{n}" for n in range(count)]
    low, high, pages = 4_000, 200, 20
    bench.seed(*(f"http://{hosts[n % count]}/index/{n}" for n in range(pages)))
    order: list[str] = []
    for number in range(pages):
        links = []
        for kind, total, priority in (("low", low, 0), ("high", high, 10)):
            share = total // pages
            for n in range(number * share, (number + 1) * share):
                url = f"http://{hosts[n % count]}/{kind}/{n}"
                links.append(Entry(url, fingerprint(url), priority=priority))
        lease = bench.lease()
        assert "/index/" in lease.url
        bench.step(bench.parsed(lease, links=links))
    for _ in range(high + 100):
        lease = bench.lease()
        order.append(lease.url.split("/")[3])
        bench.step(bench.parsed(lease))
    assert order == ["high"] * high + ["low"] * 100
    counts = bench.frontier.counts()
    assert counts.seen == low + high + pages
    assert counts.done == high + pages + 100
    shelved = bench.frontier.shelved()
    dropped = counts.dropped.get(SHED, 0)
    waiting = counts.unfinished - shelved
    assert waiting <= 400
    assert counts.done + dropped + waiting + shelved == counts.seen
    assert (shelved == 0) is (action == "drop")
    assert (dropped == 0) is (action == "defer")
    life = bench.ledger.life.dropped.get(SHED, 0)
    assert life == dropped, "the report counts what the frontier counts"
    assert {host_of(entry.url) for entry in bench.frontier._all()} == set(hosts)
