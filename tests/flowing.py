"""Hosts that push back, simulated around the real scheduler on a clock that only events move."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from syncrawl.config.model import Config
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.gates import HostMaker, route_limit
from syncrawl.engine.lease import Lease
from syncrawl.engine.ledger import HostTotals
from syncrawl.engine.scheduler import Scheduler
from syncrawl.fetch.robots import ALLOW_ALL
from syncrawl.frontier.model import Entry
from syncrawl.urls import fingerprint
from tests.test_scheduler import StandingClock, WouldBlock

NEVER = float("inf")
# What a refusal takes, and a connect to a host that is gone.
QUICK = 0.002
DEAD = 5.0


@dataclass
class Served:
    """One request as its host saw it."""

    arrived: float
    ended: float
    outcome: str


@dataclass
class SimHost:
    """`service` seconds an answer; `capacity(now)` served at once, None = any number."""

    service: float = 0.02
    capacity: Callable[[float], int | None] = lambda now: None
    dead: bool = False
    retry_after: dict[int, float] = field(default_factory=dict)
    log: list[Served] = field(default_factory=list)
    busy: int = 0

    def serve(self, now: float, rng: random.Random) -> tuple[float, str, float | None]:
        """When the exchange ends, how, and the Retry-After that comes with it."""
        number = len(self.log)
        most = self.capacity(now)
        if self.dead:
            end, outcome, asked = now + DEAD, "timeout", None
        elif number in self.retry_after:
            end, outcome, asked = now + QUICK, "throttled", self.retry_after[number]
        elif most is not None and self.busy >= most:
            end, outcome, asked = now + QUICK, "throttled", None
        else:
            self.busy += 1
            end, outcome, asked = now + self.service * rng.uniform(0.95, 1.05), "2xx", None
        self.log.append(Served(now, end, outcome))
        return end, outcome, asked

    def in_service(self, start: float, end: float) -> float:
        """Requests served at once between two moments, averaged over time."""
        good = [one for one in self.log if one.outcome == "2xx"]
        return sum(max(0.0, min(s.ended, end) - max(s.arrived, start)) for s in good) / (
            end - start
        )

    def count(self, start: float, end: float, outcome: str | None = None) -> int:
        """Requests that came between two moments."""
        found = [one for one in self.log if start <= one.arrived < end]
        return sum(outcome is None or one.outcome == outcome for one in found)


class Simulation:
    """Workers that lease, exchanges that end, results that are committed at once or later.

    `hosts` never run out of URLs. `parse` and `commit`, where given, are called with what an
    exchange brought and decide when its credit and its lease come back; by default at once.
    """

    def __init__(
        self,
        config: Config,
        hosts: dict[str, SimHost],
        *,
        saved: dict[str, HostTotals] | None = None,
        clock: StandingClock | None = None,
        seed: int = 7,
    ) -> None:
        self.config = config
        self.hosts = hosts
        self.clock: Any = clock or StandingClock()
        self.rng = random.Random(seed)
        maker = HostMaker(config, saved or {}, clock=self.clock, rng=self.rng)
        self.budget = ByteBudget(1 << 40, self.clock)
        self.scheduler = Scheduler(
            config,
            clock=self.clock,
            budget=self.budget,
            new_host=maker.new_host,
            new_gate=maker.new_gate,
            queue_of=str,
            on_wanted=lambda: None,
            rng=self.rng,
            route=route_limit(config),
        )
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.started = self.clock.monotonic()
        self.flying = 0
        self.alive = 0  # leases not settled yet
        self.most_alive = 0
        self.done: list[tuple[float, str]] = []
        self.on_result: Callable[[Lease, str], None] = self.settle
        for name in hosts:
            self.scheduler.rules_known(f"http://{name}", ALLOW_ALL, 0.0, NEVER)
            self.feed(name, 64)

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return float(self.clock.monotonic() - self.started)

    def feed(self, name: str, count: int) -> None:
        urls = [f"http://{name}/{next(self.numbers)}" for _ in range(count)]
        self.scheduler.offer(name, [Entry(url, fingerprint(url)) for url in urls], [], more=True)

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen `seconds` from now."""
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), what))

    def settle(self, lease: Lease, outcome: str) -> None:
        """Parsed and committed at once."""
        self.scheduler.give_credit()
        self.commit(lease, outcome)

    def commit(self, lease: Lease, outcome: str) -> None:
        self.alive -= 1
        self.scheduler.settle(lease, page=outcome == "2xx")
        self.done.append((self.now, lease.url))

    def run(self, until: float) -> None:
        """Let time pass until `until` seconds after the start."""
        while True:
            self._lease_all()
            due = self.scheduler.waits_until()
            waits = [until]
            if self.events:
                waits.append(self.events[0][0])
            if due is not None and self.flying < self.config.fetch.workers:
                waits.append(max(due - self.started, self.now + 1e-6))
            at = min(waits)
            self.clock.advance(max(0.0, at - self.now))
            while self.events and self.events[0][0] <= self.now + 1e-9:
                heapq.heappop(self.events)[2]()
            if at >= until:
                return

    def _lease_all(self) -> None:
        for key, wants in self.scheduler.take_wanted():
            self.feed(key, wants.room)
        while self.flying < self.config.fetch.workers:
            try:
                lease = self.scheduler.lease()
            except WouldBlock:
                return
            assert lease is not None
            self._fly(lease)

    def _fly(self, lease: Lease) -> None:
        host = self.hosts[lease.host.key]
        end, outcome, asked = host.serve(self.now, self.rng)
        self.flying += 1
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)

        def land() -> None:
            self.flying -= 1
            if outcome == "2xx":
                host.busy -= 1
            self.scheduler.release(lease, outcome, retry_after=asked)
            self.on_result(lease, outcome)

        self.at(end - self.now, land)
