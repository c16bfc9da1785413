"""What the scheduler knows of one host: its gate, its window of URLs, its rules.

Every field is guarded by the scheduler's lock. No method waits or does I/O.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from syncrawl.api import RobotsRules
from syncrawl.frontier.model import Entry
from syncrawl.limits.gate import HostGate
from syncrawl.limits.pause import RefusalPause

# A window holds what the host serves in this many seconds, within these bounds.
_WINDOW_SECONDS = 2.0
_WINDOW_LEAST = 32
_WINDOW_MOST = 2_000


@dataclass(slots=True)
class RobotsJob:
    """A robots.txt to fetch: for `origin`, from `url`, `hops` redirects on."""

    origin: str
    url: str
    hops: int = 0


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
        self.failures = 0
        self.failing_since: float | None = None
        self.delay = 0.0  # Crawl-delay, seconds


class Host:
    """All that shares one gate.

    A host is `loaded` from the moment the commit thread gives it URLs until it has run
    dry; only loaded hosts are in a heap, and at most once (`version` outdates the rest).
    """

    __slots__ = (
        "answers",
        "cap",
        "connect_failures",
        "counted",
        "empty_handed",
        "exchange_seconds",
        "failing_since",
        "gate",
        "held_until",
        "hungry",
        "jobs",
        "key",
        "leases",
        "loaded",
        "more",
        "origins",
        "pages",
        "pause",
        "place",
        "refilled_at",
        "reserved",
        "since_refill",
        "target",
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
        self.window: list[tuple[int, int, Entry]] = []
        self.jobs: deque[RobotsJob] = deque()
        self.origins: dict[str, Origin] = {}
        self.pages = 0  # 2xx pages committed over the life of the state
        self.reserved = 0  # leased pages that may become 2xx
        self.leases = 0  # leases not settled yet
        self.loaded = False
        self.counted = False  # takes one of the [host] active places
        self.empty_handed = False  # counted, and holds no thread
        self.hungry = False  # has exchanges under way and nothing further to lease
        self.more = False  # the frontier has further entries that could be taken now
        self.wanted = False  # a refill was asked for and not given yet
        self.target = _WINDOW_LEAST
        self.since_refill = 0
        self.refilled_at = 0.0
        self.version = 0
        self.place: tuple[int, float] | None = None  # the heap it is in and its rank there
        self.answers = 0  # useful ones or not (404), in this run
        self.exchange_seconds = 0.0  # running mean, redirects included
        self.held_until = float("-inf")  # clock seconds; see Endgame
        self.connect_failures = 0  # in a row, with no answer between
        self.failing_since: float | None = None
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
        if self.verdict is not None:
            return False
        return bool(self.jobs) or (bool(self.window) and not self.capped)

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
