"""A host under a gate, simulated: what a limiter makes of a server that has its own bound.

Discrete events on a clock of its own, no thread and no socket; a seed tells one run from
another. The client is a closed loop: it asks for more whenever the gate lets it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket
from syncrawl.limits.gate import HostGate
from syncrawl.limits.latency import Climate, LatencyWatch


@dataclass(slots=True)
class Server:
    """Answers up to `capacity` requests at once and refuses the others fast.

    `service`, `refusal` and `transit` (each way) are seconds; times vary by the share `jitter`,
    and service times by the factor that `spread` draws as well. Above `knee` requests at once each
    takes longer in proportion, as on a machine whose processors are all busy.
    """

    capacity: int = 1_000
    service: float = 0.1
    refusal: float = 0.002
    transit: float = 0.0003
    jitter: float = 0.1
    knee: int = 1_000
    spread: Callable[[random.Random], float] = lambda rng: 1.0
    active: int = 0


@dataclass(slots=True)
class Simulation:
    """One host behind one gate.

    `workers` bounds how many requests we have under way whatever the gate says. Series hold
    (seconds, value) at each change; the server's own view of what is in flight is `active`.
    """

    server: Server
    limiter: AimdLimiter = field(default_factory=lambda: AimdLimiter(4, 1, 32))
    climate: Climate | None = None
    seed: int = 1
    workers: int = 64
    now: float = 0.0
    active: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    refusals: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    # When each gentle cut was made.
    eased: list[float] = field(default_factory=list)
    peak: int = 0
    gate: HostGate = field(init=False)
    watch: LatencyWatch = field(default_factory=LatencyWatch)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: itertools.count[int] = field(default_factory=itertools.count)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.gate = HostGate(TokenBucket(), self.limiter)
        self._rng = random.Random(self.seed)

    def run(self, until: float) -> None:
        """Let time pass up to `until` seconds."""
        self._ask()
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def mean(self, since: float, until: float) -> float:
        """Requests the server worked on at once, on average over that time."""
        area, at, level = 0.0, since, 0
        for moment, active in self.active:
            if moment > until:
                break
            if moment > at:
                area += level * (moment - at)
                at = moment
            level = active
        return (area + level * (until - at)) / (until - since)

    def refused(self, since: float, until: float) -> float:
        """The share of the requests answered in that time that were refused."""
        refusals = sum(since <= moment < until for moment in self.refusals)
        answers = sum(since <= moment < until for moment in self.answers)
        return refusals / max(1, refusals + answers)

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        varied = seconds * self._rng.uniform(1.0 - self.server.jitter, 1.0 + self.server.jitter)
        heapq.heappush(self._events, (self.now + varied, next(self._number), event))

    def _ask(self) -> None:
        while self.gate.in_flight < self.workers:
            tested, level = self.gate.tested, self.gate.in_flight + 1
            if not self.gate.try_admit(self.now):
                return
            self.peak = max(self.peak, self.gate.in_flight)
            self._after(self.server.transit, self._arrival(self.now, tested, level))

    def _arrival(self, admitted_at: float, tested: bool, level: int) -> Callable[[], None]:
        def arrive() -> None:
            server = self.server
            if server.active >= server.capacity:
                self._after(server.refusal, lambda: self._refuse(admitted_at, level))
                return
            self._occupy(+1)
            seconds = server.service * server.spread(self._rng)
            seconds *= max(1.0, server.active / server.knee)
            self._after(seconds, lambda: self._answer(admitted_at, tested))

        return arrive

    def _occupy(self, by: int) -> None:
        self.server.active += by
        self.active.append((self.now, self.server.active))

    def _answer(self, admitted_at: float, tested: bool) -> None:
        self._occupy(-1)
        self._after(self.server.transit, lambda: self._heed(admitted_at, tested))

    def _heed(self, admitted_at: float, tested: bool) -> None:
        self.answers.append(self.now)
        self.gate.release()
        self.limiter.on_success(self.now, admitted_at, tested=tested)
        if self.climate is not None:
            self.watch.note(self.now - admitted_at, self.now)
            if self.climate.judge(self.watch, self.now, tested=tested):
                self.eased.append(self.now)
                self.limiter.on_latency(self.now)
        self._ask()

    def _refuse(self, admitted_at: float, level: int) -> None:
        self.refusals.append(self.now)
        self.gate.release()
        self.limiter.on_refusal(self.now, admitted_at, level)
        self._ask()
