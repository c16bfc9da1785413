"""What the scheduler knows of one host: its gate, its window of URLs, its rules.

Every field is guarded by the scheduler's lock. No method waits or does I/O.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from syncrawl.api import RobotsRules
from syncrawl.errors import FetchError
from syncrawl.frontier.model import Entry
from syncrawl.limits.forbidden import ForbiddenWatch
from syncrawl.limits.gate import HostGate
from syncrawl.limits.latency import LatencyWatch
from syncrawl.limits.pause import RefusalPause

# Below every priority there is.
LOWEST = -(2**62)

# A window holds what the host serves in this many seconds, within these bounds.
_WINDOW_SECONDS = 2.0
_WINDOW_LEAST = 32
_WINDOW_MOST = 2_000


@dataclass(slots=True)
class RobotsJob:
    """A robots.txt to fetch: for `origin`, from `url`, `hops` redirects on.

    `priority` is that of the best URL that waits for it.
    """

    origin: str
    url: str
    hops: int = 0
    priority: int = LOWEST


class Lookup(enum.Enum):
    """Where a host stands whose gate is its machine's: the address has to be known first."""

    NONE = "none"  # its gate is its own, or found
    DUE = "due"
    ASKED = "asked"  # a worker is at it; nothing else is leased
    FAILED = "failed"  # one exchange ends with what the look-up ended with, then it is due again


class Wants(NamedTuple):
    """About how many entries, and only those above a priority, where one is given."""

    room: int
    above: int | None = None


class Origin:
    """One scheme://host:port behind a gate and its robots rules.

    While `rules` is None its entries are `parked`: nothing but robots.txt is asked for.
    """

    __slots__ = (
        "asking",
        "delay",
        "expires_at",
        "failing_since",
        "failures",
        "held_up",
        "job",
        "name",
        "parked",
        "rules",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: RobotsRules | None = None
        self.expires_at = float("inf")  # clock seconds
        self.parked: list[Entry] = []
        self.asking = False  # a robots job is queued, leased or waiting for its time
        self.job: RobotsJob | None = None  # that job
        self.failures = 0
        self.failing_since: float | None = None
        self.held_up = 0  # tries in a row that we ourselves held up
        self.delay = 0.0  # Crawl-delay, seconds


class Host:
    """All that shares one queue of URLs, and a gate that it may share with other hosts.

    A host is `loaded` from the moment the commit thread gives it URLs until it has run
    dry; only loaded hosts are in a heap, and at most once (`version` outdates the rest).
    """

    __slots__ = (
        "answers",
        "best_cold",
        "cap",
        "connect_failures",
        "counted",
        "empty_handed",
        "exchange_seconds",
        "excused_until",
        "failing_since",
        "forbidden",
        "gate",
        "held_until",
        "hungry",
        "in_flight",
        "in_flight_peak",
        "jobs",
        "key",
        "latency",
        "leases",
        "loaded",
        "lookup",
        "merit",
        "more",
        "offering",
        "origins",
        "pages",
        "pause",
        "place",
        "refilled_at",
        "requests",
        "reserved",
        "since_refill",
        "standing",
        "target",
        "unresolved",
        "verdict",
        "version",
        "wanted",
        "window",
    )

    def __init__(self, key: str, gate: HostGate, pause: RefusalPause, cap: int) -> None:
        self.key = key
        self.gate = gate
        self.pause = pause
        self.cap = cap  # max_pages_per_host, 0 = none
        self.latency = LatencyWatch()
        self.forbidden = ForbiddenWatch()
        self.lookup = Lookup.NONE
        self.unresolved: FetchError | None = None  # what the last look-up failed with
        self.standing = LOWEST  # its priority, or the last it had; see Standings
        self.requests = 0  # over the life of the state
        self.in_flight = 0
        self.in_flight_peak = 0
        self.window: list[tuple[int, int, Entry]] = []
        self.jobs: deque[RobotsJob] = deque()
        self.origins: dict[str, Origin] = {}
        self.pages = 0  # 2xx pages committed over the life of the state
        self.reserved = 0  # leased pages that may become 2xx
        self.leases = 0  # leases not settled yet
        self.loaded = False
        # The priority at which it takes one of the [host] active places, and at which it does so
        # while it holds no thread; None where it does not.
        self.counted: int | None = None
        self.empty_handed: int | None = None
        self.merit = 0  # 1 once it has answered, 2 once it is proven, while it takes such a place
        self.hungry = False  # has exchanges under way and nothing further to lease
        self.offering = False  # has something to lease, whether its gate lets it or not
        self.more = False  # the frontier has further entries that could be taken now
        self.best_cold = LOWEST  # the best priority among those
        self.wanted = False  # a refill was asked for and not given yet
        self.target = _WINDOW_LEAST
        self.since_refill = 0
        self.refilled_at = 0.0
        self.version = 0
        # The heap it is in and its rank there.
        self.place: tuple[int, tuple[float, float]] | None = None
        self.answers = 0  # useful ones or not (404), in this run
        self.exchange_seconds = 0.0  # running mean, redirects included
        self.held_until = float("-inf")  # clock seconds; see Endgame
        self.connect_failures = 0  # in a row, with no answer between
        # Clock seconds; waits that the host itself asked for move it on, up to `excused_until`.
        self.failing_since: float | None = None
        self.excused_until = float("-inf")
        self.verdict: str | None = None

    def origin(self, name: str) -> Origin:
        found = self.origins.get(name)
        if found is None:
            found = self.origins[name] = Origin(name)
        return found

    def push(self, entry: Entry, sequence: int) -> None:
        heapq.heappush(self.window, (-entry.priority, sequence, entry))

    def pop(self) -> Entry:
        return heapq.heappop(self.window)[2]

    @property
    def depth(self) -> int:
        """Entries in memory, parked ones included."""
        return len(self.window) + sum(len(origin.parked) for origin in self.origins.values())

    @property
    def capped(self) -> bool:
        """True while no further page may be leased because of max_pages_per_host."""
        return bool(self.cap) and self.pages + self.reserved >= self.cap

    @property
    def exhausted(self) -> bool:
        """True once max_pages_per_host pages are committed."""
        return bool(self.cap) and self.pages >= self.cap

    @property
    def proven(self) -> bool:
        """True for a host that has answered at least once in this run."""
        return self.answers > 0

    @property
    def has_offer(self) -> bool:
        """True where something could be leased but for the gate."""
        if self.verdict is not None or self.lookup is Lookup.ASKED:
            return False
        if self.lookup is Lookup.FAILED and self.in_flight:
            return False
        return bool(self.jobs) or (bool(self.window) and not self.capped)

    @property
    def priority(self) -> int:
        """That of the best URL that the next lease would serve."""
        best = -self.window[0][0] if self.window else LOWEST
        for job in self.jobs:
            best = max(best, job.priority)
        return best

    @property
    def wants(self) -> Wants:
        """What the window would take now: what it lacks, or what goes before all it has."""
        room = self.target - self.depth
        if room > 0:
            return Wants(room)
        return Wants(self.target, -self.window[0][0]) if self.outranked else Wants(0)

    @property
    def outranked(self) -> bool:
        """True where something better waits on disk than all that is in the window."""
        return self.more and bool(self.window) and self.best_cold > -self.window[0][0]

    def resize(self, now: float) -> None:
        """Set the window's target from the pace since the last refill."""
        elapsed = max(now - self.refilled_at, 0.05)
        pace = self.since_refill / elapsed
        self.target = int(min(_WINDOW_MOST, max(_WINDOW_LEAST, pace * _WINDOW_SECONDS)))
        self.since_refill = 0
        self.refilled_at = now

    def __repr__(self) -> str:
        return (
            f"Host({self.key}, window={len(self.window)}, jobs={len(self.jobs)}, "
            f"more={self.more}, verdict={self.verdict}, {self.gate!r})"
        )
