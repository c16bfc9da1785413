"""Which exchange is made next: hosts by when they are ready, workers that pull.

Any thread, through `lease`, `release`, `settle` and `offer`. One lock, two conditions on
it; nothing is done under it but decisions. Every admission, of whatever kind, is made
here, so a host's gate cannot be gone around. That is what keeps this module long: whatever
decides without admitting has its own (standings, waiters, judge, endgame).
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence

from syncrawl.api import RobotsRules
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.endgame import Endgame
from syncrawl.engine.hosts import Host, Origin, RobotsJob
from syncrawl.engine.judge import Judge
from syncrawl.engine.lease import Lease
from syncrawl.engine.notes import LiveHost, Notes
from syncrawl.engine.standings import Standings
from syncrawl.engine.waiters import Waiters
from syncrawl.frontier.model import Entry, host_of, origin_of

# Waits that time alone may end: a host becomes due.
_BY_TIME = frozenset({"politeness", "kept", "pages"})


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
    ) -> None:
        self._clock = clock
        self._budget = budget
        self._new_host = new_host
        self._queue_of = queue_of
        self._on_wanted = on_wanted
        self._workers = config.fetch.workers
        self._max_pages = config.crawl.max_pages
        self._active_limit = config.host.active
        # Guards every field below and all Hosts, Origins and Leases.
        self._lock = threading.Lock()
        self._waiters = Waiters(self._lock, clock)
        self._standings = Standings(config.fetch.workers)
        self._judge = Judge(config, rng)
        self._endgame = Endgame()
        self._closed = False
        self._sequence = itertools.count()
        self._hosts: dict[str, Host] = {}
        # Robots fetches to try again: (clock seconds, sequence, host, job).
        self._later_jobs: list[tuple[float, int, Host, RobotsJob]] = []
        self._bound = self._credits = config.queues.bound(config.fetch.workers)
        self._exchanging = 0
        self._handful = max(1, min(8, self._credits // 4))
        # Whether max_pages_per_host may hold ready hosts back until something is settled.
        self._capped = bool(config.scope.max_pages_per_host)
        self._leases: dict[int, Lease] = {}
        self._pages = 0
        self._reserved = 0
        self._requests = 0
        self._wanted: set[str] = set()
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
                # Only time brings a host; a credit, a page or room for a body is brought.
                due = self._next_event() if reason in _BY_TIME else None
                self._waiters.sleep(now, reason, due)
            wanted = bool(self._wanted)
        if wanted:
            self._on_wanted()
        return lease

    def readmit(self, lease: Lease, url: str | None = None) -> bool:
        """Admit a further request on the lease's slot: a redirect hop to `url`, or a resend.

        False where the hop belongs to another gate or must wait; it then goes back to the
        frontier.
        """
        with self._lock:
            host = lease.host
            if url is not None and self._queue_of(host_of(url)) != host.key:
                return False
            now = self._clock.monotonic()
            if not host.gate.try_readmit(now):
                return False
            # It may have taken the last token: the host is then no longer ready.
            self._standings.place(host, now)
            self._requests += 1
            return True

    def release(self, lease: Lease, outcome: str, *, retry_after: float | None = None) -> None:
        """The exchange is over: give the slot back and tell the gate what it means."""
        with self._lock:
            if lease.released:
                return
            lease.released = True
            host = lease.host
            host.gate.release()
            self._exchanging -= 1
            now = self._clock.monotonic()
            self._endgame.note(host, now - lease.admitted_at, now)
            self._standings.usual = self._endgame.usual
            if lease.doubted:
                self._standings.doubted_in_flight -= 1
            pause, verdict = self._judge.heed(lease, outcome, retry_after, now)
            if pause:
                host.gate.pause(now + pause)
                self._notes.paused.add(host.key)
            if verdict is not None:
                self._give_up(host, verdict)
            # Nobody is woken: this worker comes back to `lease` at once, takes what it freed
            # and passes on what is left. Waking another would cost a thread switch a page.
            self._standings.place(host, now)

    def rules_of(self, url: str) -> RobotsRules | None:
        """The rules in force for `url`, where they are known."""
        with self._lock:
            host = self._hosts.get(self._queue_of(host_of(url)))
            origin = host.origins.get(origin_of(url)) if host else None
            return origin.rules if origin else None

    def rules_known(
        self, name: str, rules: RobotsRules, delay: float, expires_at: float
    ) -> list[Entry]:
        """Rules for origin `name` are here; the entries that waited for them, to be checked."""
        with self._lock:
            host = self._host(self._queue_of(host_of(name + "/")))
            origin = host.origin(name)
            origin.rules = rules
            origin.expires_at = expires_at
            origin.asking = False
            origin.failures = 0
            origin.failing_since = None
            origin.delay = delay
            # Several origins behind one gate: the slowest wins.
            host.gate.bucket.set_delay(max(each.delay for each in host.origins.values()))
            parked, origin.parked = origin.parked, []
            self._standings.place(host, self._clock.monotonic())
            self._wake()
            return parked

    def robots_moved(self, job: RobotsJob) -> None:
        """A robots.txt redirects to another gate: go on there, admitted like anything else."""
        with self._lock:
            if self._host(self._queue_of(host_of(job.url))).verdict is not None:
                self._robots_failed(job, "connect")
            else:
                self._queue_job(job)
            self._wake()

    def robots_failed(self, job: RobotsJob, outcome: str) -> None:
        """robots.txt is unreachable: nothing of the origin is fetched; try again later."""
        with self._lock:
            self._robots_failed(job, outcome)
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
            if self._credits >= self._handful or queued <= 0:
                self._wake()

    # -- commit thread ----------------------------------------------------------------

    def resume(self, pages: int) -> None:
        """Take up the count of pages that earlier runs committed."""
        with self._lock:
            self._pages = pages

    def offer(
        self, key: str, ready: list[Entry], unknown: list[Entry], *, more: bool | None
    ) -> list[Entry]:
        """Give a host URLs: `ready` passed its rules, for `unknown` the rules were not known.

        `more` is whether the frontier has further ones, None where the caller cannot know.
        Returns those of `unknown` whose rules have arrived meanwhile: check and offer again.
        """
        again = []
        with self._lock:
            host = self._host(key)
            if host.verdict is not None:
                self._notes.failed += [(entry, host.verdict) for entry in (*ready, *unknown)]
                ready, unknown = [], []
            if not host.loaded:
                host.loaded = True
                host.refilled_at = self._clock.monotonic()
            if more is not None:
                host.more = more
                host.wanted = False
            for entry in ready:
                host.push(entry, next(self._sequence))
            for entry in unknown:
                origin = host.origin(origin_of(entry.request_url))
                if origin.rules is not None:
                    again.append(entry)
                    continue
                origin.parked.append(entry)
                self._ask(origin)
            self._want(host)
            self._standings.place(host, self._clock.monotonic())
            self._wake()
            wanted = bool(self._wanted or self._notes.failed)
        if wanted:
            self._on_wanted()
        return again

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

    def take_wanted(self) -> list[tuple[str, int]]:
        """Hosts whose window runs low, and how many entries each would take."""
        with self._lock:
            now = self._clock.monotonic()
            wanted = []
            for key in self._wanted:
                host = self._hosts[key]
                host.resize(now)
                wanted.append((key, max(1, host.target - host.depth)))
            self._wanted.clear()
            return wanted

    def room(self, key: str) -> int:
        """Entries the loaded host `key` would take now; 0 where it is not loaded."""
        with self._lock:
            host = self._hosts.get(key)
            if host is None or not host.loaded:
                return 0
            host.more = True
            return max(0, host.target - host.depth)

    def is_loaded(self, key: str) -> bool:
        with self._lock:
            host = self._hosts.get(key)
            return host is not None and host.loaded

    def free_places(self) -> int:
        """How many more hosts may be worked on."""
        with self._lock:
            return self._active_limit - self._standings.active

    def take_notes(self) -> Notes:
        """What the commit thread has to write down, once."""
        with self._lock:
            notes, self._notes = self._notes, Notes()
            return notes

    def verdict(self, key: str) -> str | None:
        """Why host `key` was given up, if it was."""
        with self._lock:
            host = self._hosts.get(key)
            return host.verdict if host else None

    def unload(self, key: str) -> list[Entry]:
        """Take all that waits in memory for `key` away from it."""
        with self._lock:
            host = self._hosts[key]
            entries = [entry for _, _, entry in host.window]
            host.window.clear()
            for origin in host.origins.values():
                entries.extend(origin.parked)
                origin.parked = []
            host.more = False
            self._standings.place(host, self._clock.monotonic())
            return entries

    def exhausted(self, key: str) -> bool:
        """True where max_pages_per_host pages of `key` are committed."""
        with self._lock:
            host = self._hosts.get(key)
            return host is not None and host.exhausted

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
            return self._standings.any_ready

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
            return dict(self._waiters.waited)

    @property
    def requests(self) -> int:
        """Requests admitted in this run: pages, robots.txt, redirect hops and resends."""
        return self._requests

    def live(self, keys: Iterable[str] | None = None) -> dict[str, LiveHost]:
        """What is true of hosts right now: of `keys`, or of all."""
        with self._lock:
            now, wall = self._clock.monotonic(), self._clock.wall()
            chosen = self._hosts if keys is None else {key: self._hosts[key] for key in keys}
            return {key: LiveHost.of(host, now, wall) for key, host in chosen.items()}

    # -- under the lock ---------------------------------------------------------------

    def _pick(self, now: float) -> tuple[Lease | None, str]:
        """The next lease, or why there is none."""
        while self._later_jobs and self._later_jobs[0][0] <= now:
            _, _, waiting, job = heapq.heappop(self._later_jobs)
            if waiting.verdict is None:
                self._queue_job(job)
        self._standings.ripen(now)
        if self._credits <= 0:
            return None, "credit"
        if self._max_pages and self._pages + self._reserved >= self._max_pages:
            return None, "pages"
        host = self._take_first(now)
        if host is None:
            return None, "pages" if self._capped else "politeness"
        if host.gate.in_flight and self._workers - self._exchanging <= self._standings.kept:
            self._standings.place(host, now)
            return None, "kept"
        ticket = self._budget.reserve()
        if ticket is None:
            self._standings.place(host, now)
            return None, "bytes"
        before = host.gate.in_flight
        doubted = not self._standings.trusts(host)
        admitted = host.gate.try_admit(now)
        assert admitted, f"{host!r} was in the ready heap and is not ready"
        lease = Lease(next(self._sequence), host, now, before, ticket)
        if host.jobs:
            lease.job = host.jobs.popleft()
        else:
            lease.entry = host.pop()
            self._refresh_rules(host, lease.entry, now)
            host.reserved += 1
            self._reserved += 1
        host.leases += 1
        host.since_refill += 1
        self._leases[lease.id] = lease
        self._credits -= 1
        self._exchanging += 1
        self._requests += 1
        if doubted:
            lease.doubted = True
            self._standings.doubted_in_flight += 1
        self._want(host)
        self._standings.place(host, now)
        return lease, ""

    def _take_first(self, now: float) -> Host | None:
        """The host that goes first, slow ones held back from the last pages of a limit."""
        left = self._max_pages - self._pages - self._reserved
        while True:
            host = self._standings.take_first()
            if host is None or not self._max_pages or host.jobs:
                return host
            if not self._endgame.outlasts(host, left, now):
                return host
            host.held_until = now + host.exchange_seconds
            self._standings.place(host, now)

    def _want(self, host: Host) -> None:
        """Ask for a refill where the window runs low and the frontier has more."""
        if host.more and not host.wanted and host.depth <= host.target // 2:
            host.wanted = True
            self._wanted.add(host.key)

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
        if self._later_jobs:
            job = self._later_jobs[0][0]
            due = job if due is None else min(due, job)
        return due

    def _robots_failed(self, job: RobotsJob, outcome: str) -> None:
        host = self._host(self._queue_of(host_of(job.origin + "/")))
        now = self._clock.monotonic()
        delay, verdict = self._judge.robots(host, host.origin(job.origin), outcome, now)
        if verdict is not None:
            self._give_up(host, verdict)
        elif delay is not None:
            again = RobotsJob(job.origin, job.origin + "/robots.txt")
            heapq.heappush(self._later_jobs, (now + delay, next(self._sequence), host, again))

    def _give_up(self, host: Host, verdict: str) -> None:
        if host.verdict is not None:
            return
        host.verdict = verdict
        self._notes.verdicts.append((host.key, verdict))
        jobs = list(host.jobs)
        host.jobs.clear()
        for job in jobs:
            # Another host's robots.txt had moved here.
            if self._queue_of(host_of(job.origin + "/")) != host.key:
                self._robots_failed(job, "connect")

    def _host(self, key: str) -> Host:
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = self._new_host(key)
            self._standings.enter()
        return host

    def _ask(self, origin: Origin) -> None:
        """Queue the fetch of an origin's robots.txt, once."""
        if not origin.asking:
            origin.asking = True
            self._queue_job(RobotsJob(origin.name, origin.name + "/robots.txt"))

    def _refresh_rules(self, host: Host, entry: Entry, now: float) -> None:
        """Fetch rules again that are too old; until they are here the old ones stand."""
        origin = host.origins.get(origin_of(entry.request_url))
        if origin is not None and now >= origin.expires_at:
            self._ask(origin)

    def _queue_job(self, job: RobotsJob) -> None:
        host = self._host(self._queue_of(host_of(job.url)))
        host.jobs.append(job)
        host.loaded = True
        self._standings.place(host, self._clock.monotonic())

    def __repr__(self) -> str:
        return (
            f"Scheduler({len(self._leases)} leases, {self._credits} credits, "
            f"{self._standings!r}, {self._waiters!r})"
        )
