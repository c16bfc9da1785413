"""Hosts by when they are ready: which goes first, and when the next one will be.

Guarded by the scheduler's lock; no method waits.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence

from syncrawl.engine.hosts import LOWEST, Host
from syncrawl.engine.machines import MachineGate
from syncrawl.limits.gate import NEVER, HostGate

# A host that is not due within this many seconds gives its active place to another.
_SOON = 5.0

# A host's exchanges may take this many times the usual, or this many seconds, before the host
# is doubted.
_SLOWER = 10.0
# Answers after which a host is proven.
_PROVEN = 4
# Seconds in which somebody should have answered.
_PATIENCE = 1.0
# How often a lot is drawn that may fall on a void entry.
_LOTS = 8
_QUICK = 0.5

_Heap = list[tuple[tuple[float, float], int, int, Host]]


class Standings:
    """A host is in at most one heap: ready (something to lease now) or delayed (until a time).

    A host that is full, or has nothing to offer, is in neither; the change that ends this
    puts it back. Entries are (rank, sequence, version, host); an entry of an older version is
    void. The rank of a ready host is its priority, best first, then the requests that its
    gate has in flight and its connect failures in a row, fewest first; that of a delayed one
    is when it is due.
    """

    def __init__(self, workers: int, rng: random.Random) -> None:
        self.share(workers)
        self._rng = rng
        # Of each kind, the first heap is of hosts that hold no thread, the second of those that
        # do. Hosts that have yet to earn the next thread, or are far slower than usual, share at
        # most half of the workers; see `trusts`.
        self._doubted: tuple[_Heap, _Heap] = ([], [])
        # Trusted hosts, proven ones apart. While there are proven ones, a quarter is theirs: many
        # hosts may hang soon after their first answers, each with the threads that it earned.
        self._young: tuple[_Heap, _Heap] = ([], [])
        self._proven: tuple[_Heap, _Heap] = ([], [])
        # Hosts that have not been asked for anything yet, and hold none. While no trusted one is
        # ready they may have as much as all unproven ones, and where nobody has answered for a
        # while, all: where dead hosts come first, who answers is found only behind them.
        self._untried: tuple[_Heap, _Heap] = ([], [])
        # Clock seconds, as of the last `ripen`, and when the first host was asked.
        self._now = float("-inf")
        self._asked_at: float | None = None
        # How many hosts that take an active place have answered, and are proven.
        self._merits = [0, 0, 0]
        self._delayed: _Heap = []
        self._sequence = itertools.count()
        self._known = 0
        self.doubted_in_flight = 0
        self.young_in_flight = 0
        # Seconds that an exchange usually takes, over all hosts; the scheduler keeps it.
        self.usual = 0.0
        # By priority: hosts that take one of the [host] active places, and those among them
        # that hold no thread.
        self._active: dict[int, int] = {}
        self._empty_handed: dict[int, int] = {}
        # Hosts with exchanges under way and nothing further to lease.
        self.hungry = 0
        # Hosts with something to lease, whether their gates let it now or not.
        self.offering = 0

    def share(self, workers: int) -> None:
        """So many may be at work at once: what doubted, untried and greedy hosts get of them."""
        self._all = workers
        self._half = max(1, workers // 2)
        self._most_unproven = max(1, workers - max(1, workers // 4))
        self._least_young = max(1, workers // 8)
        # How many are kept for hosts that hold none.
        self._most_kept = workers // 4

    def enter(self) -> None:
        """One more host may be placed."""
        self._known += 1

    def place(self, host: Host, now: float) -> None:
        """Put a host where it belongs after any change."""
        gate = host.gate
        offers = host.has_offer
        due = max(gate.ready_at(), host.held_until) if offers else NEVER
        if host.window or host.jobs:
            # One that waits for what its last page will bring stands as it stood.
            host.standing = host.priority
        priority = host.standing
        if due <= now:
            # Who has failed to answer goes behind those that were not asked yet.
            rank = (-priority, gate.in_flight + host.connect_failures)
            self._put(host, self._kind(host)[host.in_flight > 0], rank)
        elif due < NEVER:
            self._put(host, self._delayed, (due, 0))
        else:
            host.version += 1
            host.place = None
        if isinstance(gate, MachineGate):
            if offers and due == NEVER:
                gate.queue[host] = None
            else:
                gate.queue.pop(host, None)
        if host.loaded and not (host.leases or host.jobs or host.more or host.depth):
            host.loaded = False
        if offers != host.offering:
            host.offering = offers
            self.offering += 1 if offers else -1
        hungry = bool(host.leases) and not offers and not host.capped
        if hungry != host.hungry:
            host.hungry = hungry
            self.hungry += 1 if hungry else -1
        # Asleep: loaded, but nothing of it can start soon, so another may have its place.
        asleep = not host.leases and (not offers or due > now + _SOON)
        counted = priority if host.loaded and not asleep else None
        if counted != host.counted:
            _recount(self._active, host.counted, counted)
            host.counted = counted
        merit = 0 if counted is None or not host.answers else 1 + self.is_proven(host)
        if merit != host.merit:
            self._merits[host.merit] -= 1
            self._merits[merit] += 1
            host.merit = merit
        empty_handed = None if host.in_flight else counted
        if empty_handed != host.empty_handed:
            _recount(self._empty_handed, host.empty_handed, empty_handed)
            host.empty_handed = empty_handed

    def freed(self, gate: HostGate, now: float) -> None:
        """A slot of `gate` came free: let in whom it had found full."""
        if not isinstance(gate, MachineGate):
            return
        for _ in range(min(len(gate.queue), int(gate.limiter.limit) - gate.in_flight)):
            host = next(iter(gate.queue))
            del gate.queue[host]
            self.place(host, now)

    def trusts(self, host: Host) -> bool:
        """Whether one more thread on `host` is a safe one.

        A host earns its threads by answers, one each, so that one which hangs soon after
        its first answer cannot hold all workers before anybody knows. And a host whose
        exchanges take ten times the usual shares the half, however reliable it is.
        """
        if host.answers <= host.in_flight:
            return False
        return host.exchange_seconds <= max(_SLOWER * self.usual, _QUICK)

    @staticmethod
    def is_proven(host: Host) -> bool:
        """Whether a host has answered often enough to have a share of the workers kept for it."""
        return host.answers >= _PROVEN

    def _kind(self, host: Host) -> tuple[_Heap, _Heap]:
        if self.trusts(host):
            return self._proven if self.is_proven(host) else self._young
        if host.answers or host.in_flight or host.connect_failures:
            return self._doubted
        return self._untried

    def active(self, priority: int = LOWEST) -> int:
        """How many hosts of `priority` or more take an active place."""
        return sum(count for level, count in self._active.items() if level >= priority)

    def keeps(self, host: Host, free: int) -> bool:
        """Whether `host`, which holds threads, must leave the last `free` workers to others.

        They are kept for hosts of its priority or more that have none.
        """
        if not host.in_flight or free > self._most_kept:
            return False
        level = host.standing
        return free <= sum(n for each, n in self._empty_handed.items() if each >= level)

    def ripen(self, now: float) -> None:
        """Move hosts whose time has come to where they belong now."""
        self._now = now
        if self._asked_at is None and self.doubted_in_flight:
            self._asked_at = now
        while self._delayed and self._delayed[0][0][0] <= now:
            _, _, version, host = heapq.heappop(self._delayed)
            if version == host.version:
                host.place = None
                self.place(host, now)

    def take_first(self, *, empty_handed: bool = False) -> Host | None:
        """The ready host of the best rank, out of its heap; place it again.

        Asked for an `empty_handed` one, it is among those that hold no thread.
        """
        heaps = self._usable(empty_handed=empty_handed)
        if not heaps:
            return None
        heap = min(heaps, key=lambda heap: heap[0][:2])
        if heap is self._untried[0] and self.doubted_in_flight >= self._most_unproven:
            host = self._by_lot(heap)
        else:
            host = heapq.heappop(heap)[3]
        host.place = None
        return host

    def _by_lot(self, heap: _Heap) -> Host:
        """Any host of the heap of as much priority as the first, out of it.

        A list may have its dead hosts in one place, so who is next in it tells nothing new.
        """
        for _ in range(min(len(heap), _LOTS)):
            rank, _, version, host = self._rng.choice(heap)
            if version == host.version and rank == heap[0][0]:
                # Its entry stays, and is void from now on.
                host.version += 1
                return host
        return heapq.heappop(heap)[3]

    @property
    def any_ready(self) -> bool:
        """True where `take_first` would give a host."""
        return bool(self._usable())

    def next_due(self) -> float | None:
        """Clock seconds at which the next delayed host is due."""
        heap = self._delayed
        while heap and heap[0][2] != heap[0][3].version:
            heapq.heappop(heap)
        due = heap[0][0][0] if heap else None
        if self._asked_at is not None and not any(self._merits[1:]) and self._untried[0]:
            patience = self._asked_at + _PATIENCE
            if self._now < patience:
                due = patience if due is None else min(due, patience)
        return due

    def _usable(self, *, empty_handed: bool = False) -> list[_Heap]:
        upto = 1 if empty_handed else 2
        proven = self._merits[2]
        unproven = self.doubted_in_flight + self.young_in_flight
        full = bool(proven) and unproven >= self._most_unproven
        usable = _swept(self._proven[:upto])
        if not full or self.young_in_flight < self._least_young:
            usable += _swept(self._young[:upto])
        if not full and self.doubted_in_flight < self._half:
            return usable + _swept(self._doubted[:upto]) + _swept(self._untried[:1])
        most = self._all if self._is_desperate() else self._most_unproven
        if not usable and not full and self.doubted_in_flight < most:
            return _swept(self._untried[:1])
        return usable

    def _is_desperate(self) -> bool:
        """Whether nobody has answered though there was time enough."""
        return not any(self._merits[1:]) and self._now >= (self._asked_at or 0.0) + _PATIENCE

    def _put(self, host: Host, heap: _Heap, rank: tuple[float, float]) -> None:
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
            f"Standings({self._known} hosts, {self.active()} active, {self.hungry} hungry, "
            f"next due {self.next_due()})"
        )


def _swept(heaps: Sequence[_Heap]) -> list[_Heap]:
    """Those of `heaps` that are not empty, a valid entry first in each."""
    for heap in heaps:
        while heap and heap[0][2] != heap[0][3].version:
            heapq.heappop(heap)
    return [heap for heap in heaps if heap]


def _recount(counts: dict[int, int], before: int | None, after: int | None) -> None:
    """Move one host from one priority's count to another's."""
    if before is not None:
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
    if after is not None:
        counts[after] = counts.get(after, 0) + 1
