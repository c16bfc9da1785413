"""Hosts by when they are ready: which goes first, and when the next one will be.

Guarded by the scheduler's lock; no method waits.
"""

from __future__ import annotations

import heapq
import itertools

from syncrawl.engine.hosts import Host
from syncrawl.limits.gate import NEVER

# A host that is not due within this many seconds gives its active place to another.
_SOON = 5.0

# A host's exchanges may take this many times the usual, or this many seconds, before the host
# is doubted.
_SLOWER = 10.0
_QUICK = 0.5

_Heap = list[tuple[float, int, int, Host]]


class Standings:
    """A host is in at most one heap: ready (something to lease now) or delayed (until a time).

    A host that is full, or has nothing to offer, is in neither; the change that ends this
    puts it back. Entries are (rank, sequence, version, host): the rank is the host's
    requests in flight, or when it is due; an entry of an older version is void.
    """

    def __init__(self, workers: int) -> None:
        # Hosts that have yet to earn the next thread, or are far slower than usual, are kept
        # apart: they share at most half of the workers. See `trusts`.
        self._half = max(1, workers // 2)
        self._trusted: _Heap = []
        self._doubted: _Heap = []
        self._delayed: _Heap = []
        self._sequence = itertools.count()
        self._known = 0
        self.doubted_in_flight = 0
        # Seconds that an exchange usually takes, over all hosts; the scheduler keeps it.
        self.usual = 0.0
        # Hosts that take one of the [host] active places.
        self.active = 0
        # Active hosts that hold no thread, and how many of them a worker is kept for.
        self.empty_handed = 0
        self._most_kept = workers // 4
        # Hosts with exchanges under way and nothing further to lease.
        self.hungry = 0

    def enter(self) -> None:
        """One more host may be placed."""
        self._known += 1

    def place(self, host: Host, now: float) -> None:
        """Put a host where it belongs after any change."""
        due = max(host.gate.ready_at(), host.held_until) if host.has_offer else NEVER
        if due <= now:
            heap = self._trusted if self.trusts(host) else self._doubted
            self._put(host, heap, host.gate.in_flight)
        elif due < NEVER:
            self._put(host, self._delayed, due)
        else:
            host.version += 1
            host.place = None
        if host.loaded and not (host.leases or host.jobs or host.more or host.depth):
            host.loaded = False
        hungry = bool(host.leases) and not host.has_offer and not host.capped
        if hungry != host.hungry:
            host.hungry = hungry
            self.hungry += 1 if hungry else -1
        # Asleep: loaded, but nothing of it can start soon, so another may have its place.
        asleep = not host.leases and (not host.has_offer or due > now + _SOON)
        counted = host.loaded and not asleep
        if counted != host.counted:
            host.counted = counted
            self.active += 1 if counted else -1
        empty_handed = counted and not host.gate.in_flight
        if empty_handed != host.empty_handed:
            host.empty_handed = empty_handed
            self.empty_handed += 1 if empty_handed else -1

    def trusts(self, host: Host) -> bool:
        """Whether one more thread on `host` is a safe one.

        A host earns its threads by answers, one each, so that hosts which hang soon after
        their first answer cannot hold all workers before anybody knows. And a host whose
        exchanges take ten times the usual shares the half, however reliable it is.
        """
        if host.answers <= host.gate.in_flight:
            return False
        return host.exchange_seconds <= max(_SLOWER * self.usual, _QUICK)

    @property
    def kept(self) -> int:
        """Workers that hosts which hold a thread already must leave free for those with none."""
        return min(self.empty_handed, self._most_kept)

    def ripen(self, now: float) -> None:
        """Move hosts whose time has come to where they belong now."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, version, host = heapq.heappop(self._delayed)
            if version == host.version:
                host.place = None
                self.place(host, now)

    def take_first(self) -> Host | None:
        """The ready host with the fewest requests in flight, out of its heap; place it again."""
        heaps = self._usable()
        if not heaps:
            return None
        host = heapq.heappop(min(heaps, key=lambda heap: heap[0][:2]))[3]
        host.place = None
        return host

    @property
    def any_ready(self) -> bool:
        """True where `take_first` would give a host."""
        return bool(self._usable())

    def next_due(self) -> float | None:
        """Clock seconds at which the next delayed host is due."""
        heap = self._delayed
        while heap and heap[0][2] != heap[0][3].version:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _usable(self) -> list[_Heap]:
        heaps = [self._trusted]
        if self.doubted_in_flight < self._half:
            heaps.append(self._doubted)
        for heap in heaps:
            while heap and heap[0][2] != heap[0][3].version:
                heapq.heappop(heap)
        return [heap for heap in heaps if heap]

    def _put(self, host: Host, heap: _Heap, rank: float) -> None:
        """File a host in one heap; what older entries say of it is void from now on."""
        place = (id(heap), rank)
        if host.place == place:
            return
        host.version += 1
        host.place = place
        heapq.heappush(heap, (rank, next(self._sequence), host.version, host))
        if len(heap) > 64 + 4 * self._known:
            # Void entries sink below ranks that are never reached; sweep them out.
            heap[:] = [entry for entry in heap if entry[2] == entry[3].version]
            heapq.heapify(heap)

    def __repr__(self) -> str:
        return (
            f"Standings({self._known} hosts, {self.active} active, {self.hungry} hungry, "
            f"next due {self.next_due()})"
        )
