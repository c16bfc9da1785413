"""Hosts that push back, simulated around the engine's real parts on a clock that only events move.

`Simulation` has the scheduler and what judges outcomes; its hosts never run out of URLs.
`Pipeline` adds the frontier, the committer with feeder and shedder, and the ledger, so that it
can be given URLs, stalled, killed and started again on the same disk.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from syncrawl.config.model import Config
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.commit import HOST, LIFE, TOKENS, Committer
from syncrawl.engine.feeder import Feeder
from syncrawl.engine.gates import HostMaker, route_limit
from syncrawl.engine.lease import Fetched, Lease, Parsed
from syncrawl.engine.ledger import HostTotals, Ledger
from syncrawl.engine.outputs import NamedStore, Outputs
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.shedding import Shedder
from syncrawl.fetch.robots import ALLOW_ALL
from syncrawl.frontier.disk import DiskFrontier
from syncrawl.frontier.memory import MemoryFrontier
from syncrawl.frontier.model import Batch, Entry
from syncrawl.limits.retry import RetryPolicy
from syncrawl.log import NullLog
from syncrawl.scope import Scope
from syncrawl.urls import fingerprint
from tests.test_commit import CANON, ListStore, OpenRobots, StubSeeds
from tests.test_scheduler import StandingClock, WouldBlock

NEVER = float("inf")
# Seconds that a refusal takes, and that a connect to a host which is gone is waited for.
QUICK = 0.002
DEAD = 5.0
# Seconds between two commits.
COMMIT_EVERY = 0.05


@dataclass
class Served:
    """One request as its host saw it."""

    arrived: float
    ended: float
    outcome: str


@dataclass
class SimHost:
    """`service` seconds an answer; `capacity(now)` served at once, None = any number.

    From request number `hangs_after` on it answers none. `spread` is how far a service time may
    be from `service`, as a share of it; `failing` answers every request with an error;
    `retry_after` has what refusals ask for, by request number.
    """

    service: float = 0.02
    capacity: Callable[[float], int | None] = lambda now: None
    dead: bool = False
    failing: bool = False
    hangs_after: int | None = None
    spread: float = 0.05
    retry_after: dict[int, float] = field(default_factory=dict)
    log: list[Served] = field(default_factory=list)
    busy: int = 0

    def serve(self, now: float, rng: random.Random) -> tuple[float, str, float | None]:
        """When the exchange ends, how, and the Retry-After that comes with it."""
        seconds, outcome = self.answer(now)
        if outcome == "2xx":
            self.busy += 1
            seconds *= rng.uniform(1.0 - self.spread, 1.0 + self.spread)
        asked = self.retry_after.get(len(self.log)) if outcome == "throttled" else None
        self.log.append(Served(now, now + seconds, outcome))
        return now + seconds, outcome, asked

    def answer(self, now: float) -> tuple[float, str]:
        """Seconds until the next answer, and what it says."""
        most = self.capacity(now)
        if self.dead or (self.hangs_after is not None and len(self.log) >= self.hangs_after):
            return DEAD, "timeout"
        if self.failing:
            return self.service, "5xx"
        if len(self.log) in self.retry_after or (most is not None and self.busy >= most):
            return QUICK, "throttled"
        return self.service, "2xx"

    def leave(self, outcome: str) -> None:
        """An exchange has ended."""
        self.busy -= outcome == "2xx"

    def in_service(self, start: float, end: float) -> float:
        """Requests served at once between two moments, averaged over time."""
        seconds = 0.0
        for one in self.log:
            if one.arrived < end and one.ended > start and one.outcome == "2xx":
                seconds += min(one.ended, end) - max(one.arrived, start)
        return seconds / (end - start)

    def count(self, start: float, end: float, outcome: str | None = None) -> int:
        """Requests that came between two moments."""
        found = [one for one in self.log if start <= one.arrived < end]
        return sum(outcome is None or one.outcome == outcome for one in found)


class Simulation:
    """Workers that lease, and exchanges that end; each result is handed to `on_result`.

    By default that parses and commits it at once. `now`, what hosts log and `run(until)` are
    seconds since `offset` before the start, so that a second run can go on with the first one's.
    Every admission is checked against the limits of its gate.
    """

    def __init__(
        self,
        config: Config,
        hosts: dict[str, SimHost],
        *,
        saved: dict[str, HostTotals] | None = None,
        clock: StandingClock | None = None,
        offset: float = 0.0,
        seed: int = 7,
    ) -> None:
        self.config = config
        self.hosts = hosts
        self.clock: Any = clock or StandingClock()
        self.rng = random.Random(seed)
        self.ends: list[int] = []
        self.wanted = False
        maker = HostMaker(config, saved or {}, clock=self.clock, rng=self.rng)
        self.budget = ByteBudget(config.queues.max_bytes, self.clock)
        self.route = route_limit(config)
        self.scheduler = Scheduler(
            config,
            clock=self.clock,
            budget=self.budget,
            new_host=maker.new_host,
            new_gate=maker.new_gate,
            queue_of=str,
            on_wanted=self._wanted,
            rng=self.rng,
            route=self.route,
        )
        self.watch = RouteWatch(
            resume_after=config.gateway.resume_after,
            hold=self.scheduler.hold,
            end_with=lambda code, why: self.ends.append(code),
            log=NullLog(),
        )
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.zero = self.clock.monotonic() - offset
        self.flights: dict[int, tuple[Lease, str]] = {}
        self.cuts: dict[str, int] = {}
        self.on_result: Callable[[Fetched], None] = self.settle
        for name in hosts:
            self.scheduler.rules_known(f"http://{name}", ALLOW_ALL, 0.0, NEVER)
            self.open_host(name)

    def _wanted(self) -> None:
        self.wanted = True

    @property
    def flying(self) -> int:
        """Exchanges under way."""
        return len(self.flights)

    @property
    def now(self) -> float:
        return float(self.clock.monotonic() - self.zero)

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen `seconds` from now."""
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), what))

    def open_host(self, name: str) -> None:
        self._feed(name, 64)

    def refill(self) -> None:
        """Give the hosts what they ask for."""
        for key, wants in self.scheduler.windows.take_wanted():
            self._feed(key, wants.room)

    def _feed(self, name: str, count: int) -> None:
        urls = [f"http://{name}/{next(self.numbers)}" for _ in range(count)]
        entries = [Entry(url, number) for number, url in enumerate(urls)]
        self.scheduler.windows.offer(name, entries, [], more=True)

    def settle(self, fetched: Fetched) -> None:
        """Parsed and committed at once."""
        self.scheduler.give_credit()
        self.scheduler.settle(fetched.lease, page=fetched.is_page)

    def run(self, until: float) -> None:
        """Let time pass until `until`, or until the crawl is told to end."""
        while not self.ends:
            self._lease_all()
            due = self.scheduler.waits_until()
            waits = [until]
            if self.events:
                waits.append(self.events[0][0])
            if due is not None and self.flying < self.config.fetch.workers:
                waits.append(max(due - self.zero, self.now + 1e-6))
            at = min(waits)
            self.clock.advance(max(0.0, at - self.now))
            while self.events and self.events[0][0] <= self.now + 1e-9:
                heapq.heappop(self.events)[2]()
            if at >= until:
                return

    def _lease_all(self) -> None:
        self.refill()
        while self.flying < self.config.fetch.workers:
            try:
                lease = self.scheduler.lease()
            except WouldBlock:
                return
            assert lease is not None
            self._fly(lease)

    def _fly(self, lease: Lease) -> None:
        limiter = lease.host.gate.limiter
        assert lease.level <= int(limiter.limit) <= limiter.ceiling
        host = self.hosts[lease.host.key]
        end, outcome, asked = host.serve(self.now, self.rng)
        self.flights[lease.id] = lease, outcome

        def land() -> None:
            del self.flights[lease.id]
            host.leave(outcome)
            self.watch.note(outcome, "", final=False, retry_after=asked)
            self.scheduler.release(lease, outcome, retry_after=asked)
            self.cuts[lease.host.key] = limiter.cuts
            self.on_result(Fetched(lease, outcome, retry_after=asked))

        self.at(end - self.now, land)


class Pipeline(Simulation):
    """A simulation of URLs that it was given, written down by the real committer.

    What was fetched is parsed at once while the inbox has room, and committed every 50 ms unless
    `stalled`. With a `folder` the frontier is the one on disk; `kill` leaves it as a crash would.
    """

    def __init__(
        self,
        config: Config,
        hosts: dict[str, SimHost],
        *,
        folder: Path | None = None,
        clock: StandingClock | None = None,
        offset: float = 0.0,
    ) -> None:
        clock = clock or StandingClock()
        self.frontier: DiskFrontier | MemoryFrontier
        if folder is None:
            self.frontier = MemoryFrontier(clock=clock, queue_of=str)
        else:
            self.frontier = DiskFrontier(
                folder, clock=clock, queue_of=str, fingerprint_rules="flow"
            )
        self.frontier.open()
        self.ledger = Ledger(config.retry.budget_ratio)
        kept = [(key[len(HOST) :], packed) for key, packed in self.frontier.notes(HOST)]
        self.ledger.load(self.frontier.note(LIFE), kept)
        self.store = ListStore()
        self.seeds = StubSeeds()
        self.bound = config.queues.bound(config.fetch.workers)
        # Fetched and not parsed, which hold a credit each; parsed and not committed.
        self.fetched: deque[Parsed] = deque()
        self.inbox: list[Parsed] = []
        self.most = {"fetched": 0, "inbox": 0, "leases": 0, "bytes": 0}
        self.stalled = False
        self.links: Callable[[str], list[Entry]] = lambda url: []
        super().__init__(config, hosts, saved=self.ledger.hosts, clock=clock, offset=offset)
        outputs = Outputs([NamedStore("list", self.store)], log=NullLog())
        self.frontier.commit(Batch(notes={TOKENS: outputs.open(None)}))
        self.feeder = Feeder(
            frontier=self.frontier,
            windows=self.scheduler.windows,
            robots=OpenRobots(self.scheduler),  # type: ignore[arg-type]
            ledger=self.ledger,
            scope=Scope(config.scope, ()),
            canonicalizer=CANON,
            clock=clock,
            log=NullLog(),
            cap=config.scope.max_pages_per_host,
            first_bundle=0,
        )
        self.committer = Committer(
            frontier=self.frontier,
            outputs=outputs,
            scheduler=self.scheduler,
            feeder=self.feeder,
            shedder=Shedder(config.shed, self.frontier, lambda: self.feeder.set_apart),
            seeds=self.seeds,  # type: ignore[arg-type]
            ledger=self.ledger,
            retry=RetryPolicy(config.retry, self.rng),
            queue_of=str,
            clock=clock,
            log=NullLog(),
            body_row=0,
            followed=(),
        )
        self.on_result = self._arrived
        self.commit()
        self.at(COMMIT_EVERY, self._tick)

    def open_host(self, name: str) -> None:
        """Its URLs come from the frontier."""

    def refill(self) -> None:
        if self.wanted and not self.stalled:
            self.commit()

    def seed(self, urls: Iterable[str]) -> None:
        self.seeds.add(*urls)
        self.commit()

    def commit(self) -> None:
        """One step of the commit loop, and further ones while they are asked for at once."""
        items, self.inbox = self.inbox, []
        self.committer.step(items)
        while self.wanted or self.committer.has_ends:
            self.wanted = False
            self.committer.step([])
        self.check_sums()
        self._parse()

    def check_sums(self) -> None:
        """Every URL is in one state, and the report counts what the frontier counts."""
        counts = self.frontier.counts()
        ended = counts.done + counts.failed + sum(counts.dropped.values())
        assert counts.seen == counts.unfinished + ended
        assert sum(self.frontier.unfinished_by_queue().values()) == counts.unfinished
        # Entries that are shed wait for the next transaction, in both.
        assert self.ledger.life.dropped == counts.dropped

    def fetch(self) -> str:
        """The next URL, fetched in no time; what it brought waits to be committed."""
        lease = self.scheduler.lease()
        assert lease is not None
        self.scheduler.release(lease, "2xx")
        self._arrived(Fetched(lease, "2xx"))
        return lease.url

    def kill(self) -> None:
        """End without a last commit: what is in memory is gone, connections with it."""
        self.frontier.close()
        for lease, outcome in self.flights.values():
            self.hosts[lease.host.key].leave(outcome)

    @property
    def finished(self) -> bool:
        return not (self.flying or self.frontier.counts().unfinished)

    def _tick(self) -> None:
        if not self.stalled:
            self.commit()
        self.at(COMMIT_EVERY, self._tick)

    def _arrived(self, fetched: Fetched) -> None:
        parsed = Parsed(fetched)
        if fetched.is_page:
            url = fetched.lease.url
            parsed.records = [{"url": url}]
            parsed.links = self.links(url)
            parsed.body_hash = fingerprint(url)
        self.fetched.append(parsed)
        self._parse()
        self._note_most()

    def _parse(self) -> None:
        while self.fetched and len(self.inbox) < self.bound:
            self.inbox.append(self.fetched.popleft())
            self.scheduler.give_credit()

    def _note_most(self) -> None:
        figures = {
            "fetched": len(self.fetched) + len(self.flights),
            "inbox": len(self.inbox),
            "leases": self.scheduler.unsettled,
            "bytes": self.budget.held,
        }
        for name, value in figures.items():
            if value > self.most[name]:
                self.most[name] = value


def link(host: str, path: str, priority: int = 0) -> Entry:
    """A link as the parse stage hands it on."""
    url = f"http://{host}/{path}"
    return Entry(url, fingerprint(url), priority=priority)
