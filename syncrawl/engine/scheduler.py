"""Which exchange is made next: hosts by when they are ready, workers that pull.

Any thread, through `lease`, `release` and `settle`. One lock, two conditions on it; nothing
is done under it but decisions. Every admission, of whatever kind, is made here, so a host's
gate cannot be gone around. That is what keeps this module long: whatever decides without
admitting has its own (windows, standings, waiters, judge, endgame, origins, machines).
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence

from syncrawl.api import RobotsRules
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.endgame import Endgame
from syncrawl.engine.hosts import Host, Lookup, RobotsJob
from syncrawl.engine.judge import Judge
from syncrawl.engine.lease import Lease
from syncrawl.engine.machines import MachineGate, Machines
from syncrawl.engine.notes import LiveHost, Notes
from syncrawl.engine.origins import Origins
from syncrawl.engine.roster import Roster
from syncrawl.engine.standings import Standings
from syncrawl.engine.waiters import Waiters
from syncrawl.engine.windows import Windows
from syncrawl.errors import FetchError
from syncrawl.frontier.model import Entry, origin_of
from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.signals import Signal, rule_of

# Waits that time alone may end: a host becomes due, or the gateway's quota is renewed.
_BY_TIME = frozenset({"politeness", "kept", "links", "pages", "held"})


class Scheduler:
    """Every request is admitted by its host's gate, under one lock, at the moment it is leased.

    `Standings` says which host goes first, `Waiters` who is woken, `Judge` what an outcome
    does to its host; a worker never looks at a host that cannot be leased.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        budget: ByteBudget,
        new_host: Callable[[str], Host],
        queue_of: Callable[[str], str],
        on_wanted: Callable[[], None],
        rng: random.Random,
        new_gate: Callable[[str], MachineGate] | None = None,
        route: AimdLimiter | None = None,
    ) -> None:
        """`new_gate` makes the gate of a machine by the first of its names. `route` is the limit
        on all requests together, where they go through a proxy or a gateway.
        """
        self._clock = clock
        self._budget = budget
        self._workers = config.fetch.workers
        self._max_pages = config.crawl.max_pages
        # Guards every field below and all Hosts, Origins and Leases.
        self._lock = threading.Lock()
        self._waiters = Waiters(self._lock, clock)
        self._judge = Judge(config, rng)
        self._endgame = Endgame()
        self._machines = Machines(new_gate) if new_gate else None
        self._route = route
        # Nothing is leased before this: the gateway's quota is used up.
        self._held_until = float("-inf")
        self._closed = False
        self._sequence = itertools.count()
        self._bound = self._credits = config.queues.bound(config.fetch.workers)
        self._standings = Standings(self._at_work, rng)
        self._roster = Roster(new_host, queue_of, entered=self._standings.enter)
        self._origins = Origins(
            host_at=self._roster.of, judge=self._judge, changed=self._place, give_up=self._give_up
        )
        # Where the commit thread lays down what is leased here.
        self.windows = Windows(
            self._lock,
            roster=self._roster,
            origins=self._origins,
            standings=self._standings,
            clock=clock,
            active=config.host.active,
            changed=self._wake,
            failed=self._fail,
            on_wanted=on_wanted,
        )
        self._exchanging = 0
        self._handful = max(1, min(8, self._credits // 4))
        # Whether max_pages_per_host may hold ready hosts back until something is settled.
        self._capped = bool(config.scope.max_pages_per_host)
        self._leases: dict[int, Lease] = {}
        self._pages = 0
        self._reserved = 0
        self._requests = 0
        self._notes = Notes()

    # -- fetch threads ----------------------------------------------------------------

    def lease(self) -> Lease | None:
        """Block until some host has room and the pipeline a credit; None once closed."""
        with self._lock:
            while True:
                if self._closed:
                    return None
                now = self._clock.monotonic()
                lease, reason = self._pick(now)
                if lease is not None:
                    self._pass_on()
                    break
                # Only time brings a host; a credit, a page or room is brought.
                due = self._next_event() if reason in _BY_TIME else None
                self._waiters.sleep(now, reason, due)
            wanted = self.windows.anything_wanted
        if wanted:
            self.windows.on_wanted()
        return lease

    def readmit(self, lease: Lease, url: str | None = None) -> bool:
        """Admit a further request on the lease's slot: a redirect hop to `url`, or a resend.

        False where the hop belongs to another gate or must wait; it then goes back to the
        frontier.
        """
        with self._lock:
            host = lease.host
            if url is not None and self._roster.key_of(url) != host.key:
                return False
            now = self._clock.monotonic()
            if not host.gate.try_readmit(now):
                return False
            # It may have taken the last token: the host is then no longer ready.
            self._standings.place(host, now)
            self._requests += 1
            host.requests += 1
            return True

    def release(
        self,
        lease: Lease,
        outcome: str,
        *,
        retry_after: float | None = None,
        latency: float | None = None,
    ) -> None:
        """The exchange is over: give the slot back and tell the gate what it means.

        `retry_after` is what the host asked for, `latency` what it took to answer, in seconds.
        """
        with self._lock:
            if lease.released:
                return
            lease.released = True
            host = lease.host
            host.gate.release()
            host.in_flight -= 1
            if host.lookup is Lookup.FAILED and not host.in_flight:
                host.lookup = Lookup.DUE
            self._exchanging -= 1
            now = self._clock.monotonic()
            if self._route is not None:
                self._heed_route(self._route, lease, outcome, now)
            self._endgame.note(host, now - lease.admitted_at, now)
            self._standings.usual = self._endgame.usual
            self._standings.doubted_in_flight -= lease.doubted
            self._standings.young_in_flight -= lease.young
            pause, verdict = self._judge.heed(
                lease, outcome, now, retry_after=retry_after, latency=latency
            )
            if pause:
                self._pause(host, now + pause)
            if verdict is not None:
                self._give_up(host, verdict)
            # Nobody is woken: this worker comes back to `lease` at once, takes what it freed
            # and passes on what is left. Waking another would cost a thread switch a page. Who
            # has waited for the slot goes before the one that has just had it.
            self._standings.freed(host.gate, now)
            self._standings.place(host, now)

    def address_known(self, lease: Lease, found: str | FetchError) -> None:
        """The look-up of a lease's host has ended: with its address, or with why there is none."""
        with self._lock:
            host = lease.host
            lease.released = True
            self._exchanging -= 1
            assert self._machines is not None
            self._machines.settle(host, found)
            self._standings.place(host, self._clock.monotonic())
            self._wake()

    def hold(self, seconds: float) -> None:
        """Lease nothing for so long; what is in flight goes on."""
        with self._lock:
            self._held_until = max(self._held_until, self._clock.monotonic() + seconds)

    def rules_of(self, url: str) -> RobotsRules | None:
        """The rules in force for `url`, where they are known."""
        with self._lock:
            host = self._roster.get(self._roster.key_of(url))
            origin = host.origins.get(origin_of(url)) if host else None
            return origin.rules if origin else None

    def rules_known(
        self, name: str, rules: RobotsRules, delay: float, expires_at: float
    ) -> list[Entry]:
        """Rules for origin `name` are here; the entries that waited for them, to be checked."""
        with self._lock:
            parked = self._origins.known(name, rules, delay, expires_at)
            self._wake()
            return parked

    def robots_moved(self, job: RobotsJob) -> None:
        """A robots.txt redirects to another gate: go on there, admitted like anything else."""
        with self._lock:
            self._origins.moved(job, self._clock.monotonic())
            self._wake()

    def robots_failed(self, job: RobotsJob, outcome: str) -> None:
        """robots.txt is unreachable: nothing of the origin is fetched; try again later."""
        with self._lock:
            self._origins.failed(job, outcome, self._clock.monotonic())
            self._wake()

    def drop(self, entries: Iterable[Entry], reason: str) -> None:
        """Hand entries that must not be fetched to the commit thread."""
        with self._lock:
            self._notes.dropped.extend((entry, reason) for entry in entries)

    def keep_robots(self, origin: str, packed: bytes) -> None:
        """Hand a robots.txt to the commit thread, to be kept across runs."""
        with self._lock:
            self._notes.robots.append((origin, packed))

    # -- parse threads ----------------------------------------------------------------

    def give_credit(self) -> None:
        """An item left the `fetched` queue."""
        with self._lock:
            self._credits += 1
            if not self._waiters.waiting["credit"]:
                return
            # Waiting for a handful saves a thread switch an item while parse is the slow one;
            # where nothing is queued, no more will come before an exchange ends.
            queued = self._bound - self._credits - self._exchanging
            if self._credits >= self._handful or (queued <= 0 < self._credits):
                self._wake()

    # -- commit thread ----------------------------------------------------------------

    def resume(self, pages: int) -> None:
        """Take up the count of pages that earlier runs committed."""
        with self._lock:
            self._pages = pages

    def set_bound(self, items: int) -> None:
        """Have the `fetched` queue, what is being fetched included, hold so many from now on.

        It holds for new credits: where more are out, none is given until they have come back.
        """
        with self._lock:
            self._credits += items - self._bound
            self._bound = items
            self._handful = max(1, min(8, items // 4))
            self._standings.share(self._at_work)
            if self._credits > 0:
                self._wake()

    def settle(self, lease: Lease, *, page: bool) -> bool:
        """The lease's result is committed (or thrown away); False where it is not known."""
        return bool(self.settle_all([(lease, page)]))

    def settle_all(self, results: Sequence[tuple[Lease, bool]]) -> int:
        """Settle leases whose results are committed, each with whether it brought a page."""
        self._budget.release(lease.ticket for lease, _ in results)
        settled = 0
        with self._lock:
            now = self._clock.monotonic()
            for lease, page in results:
                if self._leases.pop(lease.id, None) is None:
                    continue
                settled += 1
                self._settle(lease, page)
                self._standings.place(lease.host, now)
            waiting = self._waiters.waiting
            if waiting["bytes"] or waiting["pages"] or waiting["kept"]:
                self._wake()
        return settled

    def _settle(self, lease: Lease, page: bool) -> None:
        host = lease.host
        host.leases -= 1
        if lease.entry is not None:
            host.reserved -= 1
            self._reserved -= 1
            if page:
                host.pages += 1
                self._pages += 1

    def take_notes(self) -> Notes:
        """What the commit thread has to write down, once."""
        with self._lock:
            notes, self._notes = self._notes, Notes()
            return notes

    # -- anyone -----------------------------------------------------------------------

    @property
    def pages_left(self) -> bool:
        """False once max_pages are committed."""
        with self._lock:
            return not self._max_pages or self._pages < self._max_pages

    @property
    def leased(self) -> int:
        """Pages leased and not settled."""
        return self._reserved

    @property
    def saturated(self) -> bool:
        """True while workers wait for room in the `fetched` queue."""
        return self._waiters.waiting["credit"] > 0

    @property
    def exchanging(self) -> int:
        """Exchanges under way."""
        return self._exchanging

    @property
    def unsettled(self) -> int:
        """Leases of any kind that are not settled."""
        return len(self._leases)

    def hungry(self) -> bool:
        """True where a host has room and no URL: new links would be used at once."""
        return self._standings.hungry > 0

    @property
    def has_ready(self) -> bool:
        """True where a host could be leased now."""
        with self._lock:
            return self._standings.any_ready and self._clock.monotonic() >= self._held_until

    @property
    def idle(self) -> int:
        """Workers for which no host is ready, though there is room for what they would bring."""
        with self._lock:
            held = self._credits <= 0 or self._clock.monotonic() < self._held_until
            if held or self._standings.any_ready:
                return 0
            return max(0, self._at_work - self._exchanging)

    def waits_until(self) -> float | None:
        """Clock seconds of the next thing this scheduler waits for; None where of nothing."""
        with self._lock:
            return self._next_event()

    def close(self) -> None:
        """No further lease is given; every waiting worker comes back with None."""
        with self._lock:
            self._closed = True
            self._waiters.release_all()

    def waited(self) -> dict[str, float]:
        """Seconds workers have waited: for a ready host, a credit, or room for a body."""
        with self._lock:
            return self._waiters.waited(self._clock.monotonic())

    @property
    def usual_seconds(self) -> float:
        """What an exchange usually takes, over all hosts."""
        return self._endgame.usual

    def oldest_lease_age(self) -> float:
        """Seconds since the oldest lease that is not settled was given; 0 where there is none."""
        with self._lock:
            # By insertion, which is by time.
            for lease in self._leases.values():
                return self._clock.monotonic() - lease.admitted_at
            return 0.0

    @property
    def requests(self) -> int:
        """Requests admitted in this run: pages, robots.txt, redirect hops and resends."""
        return self._requests

    def live(self, keys: Iterable[str] | None = None) -> dict[str, LiveHost]:
        """What is true of hosts right now: of `keys`, or of all; unknown ones are left out."""
        with self._lock:
            now, wall = self._clock.monotonic(), self._clock.wall()
            hosts = self._roster.chosen(keys)
            return {host.key: LiveHost.of(host, now, wall) for host in hosts}

    def loads(self) -> dict[str, tuple[int, int]]:
        """In flight and requests of each host, as of about now: see Ledger.requests_by_host."""
        with self._lock:
            hosts = self._roster.chosen(None)
        # Read after the lock is let go: whole numbers, each as of a moment ago at most.
        return {host.key: (host.in_flight, host.requests) for host in hosts}

    @property
    def _at_work(self) -> int:
        """How many workers can be at an exchange at once: each needs a credit."""
        return min(self._workers, self._bound)

    # -- under the lock ---------------------------------------------------------------

    def _pick(self, now: float) -> tuple[Lease | None, str]:
        """The next lease, or why there is none."""
        self._origins.ripen(now)
        self._standings.ripen(now)
        if now < self._held_until:
            return None, "held"
        if self._credits <= 0:
            return None, "credit"
        if self._max_pages and self._pages + self._reserved >= self._max_pages:
            return None, "pages"
        if self._route is not None and self._exchanging >= int(self._route.limit):
            return None, "route"
        host = self._take_first(now)
        if host is None:
            return None, self._why_none()
        if self._standings.keeps(host, self._at_work - self._exchanging):
            self._standings.place(host, now)
            host = self._take_first(now, empty_handed=True)
            if host is None:
                return None, "kept"
        ticket = self._budget.reserve()
        if ticket is None:
            self._standings.place(host, now)
            return None, "bytes"
        lease = Lease(next(self._sequence), host, now, ticket)
        if host.lookup is Lookup.DUE:
            host.lookup = Lookup.ASKED
            lease.lookup = True
        else:
            self._admit(lease, now)
        host.leases += 1
        self._leases[lease.id] = lease
        self._credits -= 1
        self._exchanging += 1
        self.windows.want(host)
        self._standings.place(host, now)
        return lease, ""

    def _why_none(self) -> str:
        """What no ready host is for."""
        if self._capped:
            return "pages"
        # No host has a URL, and results are on their way that may bring some: that is not the
        # hosts' doing.
        if not self._standings.offering and len(self._leases) > self._exchanging:
            return "links"
        return "politeness"

    def _admit(self, lease: Lease, now: float) -> None:
        """Let the next request of the lease's host, which is ready, through its gate."""
        host = lease.host
        gate = host.gate
        lease.tested = gate.tested
        lease.unresolved = host.unresolved
        if self._route is not None:
            lease.route_level = self._exchanging + 1
            lease.route_tested = lease.route_level >= int(self._route.limit)
        lease.doubted = not self._standings.trusts(host)
        lease.young = not lease.doubted and not self._standings.is_proven(host)
        self._standings.doubted_in_flight += lease.doubted
        self._standings.young_in_flight += lease.young
        admitted = gate.try_admit(now)
        assert admitted, f"{host!r} was in the ready heap and is not ready"
        lease.level = gate.in_flight
        host.in_flight += 1
        host.in_flight_peak = max(host.in_flight_peak, host.in_flight)
        host.requests += 1
        self._requests += 1
        host.since_refill += 1
        if host.jobs:
            lease.job = host.jobs.popleft()
        else:
            lease.entry = host.pop()
            self._origins.refresh(host, lease.entry, now)
            host.reserved += 1
            self._reserved += 1

    def _heed_route(self, route: AimdLimiter, lease: Lease, outcome: str, now: float) -> None:
        """Tell the limit on all requests together what the proxy or gateway let through."""
        signal = rule_of(outcome).signal
        if signal is Signal.ROUTE:
            route.on_refusal(now, lease.admitted_at, lease.route_level)
        elif signal is not Signal.NOTHING:
            route.on_success(now, lease.admitted_at, tested=lease.route_tested)

    def _pause(self, host: Host, until: float) -> None:
        """Leave `host`, and all that share its gate, alone; the commit thread notes it."""
        gate = host.gate
        gate.pause(until)
        shared = gate.members if isinstance(gate, MachineGate) else [host]
        self._notes.paused.update(each.key for each in shared)

    def _take_first(self, now: float, *, empty_handed: bool = False) -> Host | None:
        """The host that goes first, slow ones held back from the last pages of a limit."""
        left = self._max_pages - self._pages - self._reserved
        while True:
            host = self._standings.take_first(empty_handed=empty_handed)
            if host is not None and host.gate.ready_at() > now:
                # Another name of the same machine was quicker.
                self._standings.place(host, now)
                continue
            if host is None or not self._max_pages or host.jobs:
                return host
            if not self._endgame.outlasts(host, left, now):
                return host
            host.held_until = now + host.exchange_seconds
            self._standings.place(host, now)

    def _wake(self) -> None:
        """Something may be ready, or the next event may have come nearer."""
        self._waiters.wake(ready=self._standings.any_ready, due=self._next_event())

    def _pass_on(self) -> None:
        """A lease was taken: let another worker look at what is left."""
        ready = self._credits > 0 and self._standings.any_ready
        self._waiters.wake(ready=ready, due=None if ready else self._next_event())

    def _next_event(self) -> float | None:
        """Clock seconds at which time alone brings something to lease."""
        due = self._standings.next_due()
        job = self._origins.next_due()
        if job is not None:
            due = job if due is None else min(due, job)
        if self._held_until > self._clock.monotonic():
            due = self._held_until if due is None else max(due, self._held_until)
        return due

    def _give_up(self, host: Host, verdict: str) -> None:
        if host.verdict is not None:
            return
        host.verdict = verdict
        self._notes.verdicts.append((host.key, verdict))
        self._origins.abandon(host, self._clock.monotonic())
        # What it offered is gone with its robots.txt: it must not stand among the ready.
        self._place(host)

    def _fail(self, entries: list[Entry], verdict: str) -> None:
        self._notes.failed += [(entry, verdict) for entry in entries]

    def _place(self, host: Host) -> None:
        self._standings.place(host, self._clock.monotonic())

    def __repr__(self) -> str:
        return (
            f"Scheduler({len(self._leases)} leases, {self._credits} credits, "
            f"{self._standings!r}, {self._waiters!r})"
        )
