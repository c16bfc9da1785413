"""robots.txt as a state of each origin: asked for once, waited for, tried again.

Guarded by the scheduler's lock; no method waits or does I/O. Nobody blocks on an answer:
a host offers nothing of an origin until its rules are here.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from syncrawl.api import RobotsRules
from syncrawl.engine.hosts import Host, Origin, RobotsJob
from syncrawl.engine.judge import Judge
from syncrawl.engine.machines import MachineGate
from syncrawl.frontier.model import Entry, origin_of


class Origins:
    """Each origin with URLs waiting for its rules has one job: queued, leased or due later."""

    def __init__(
        self,
        *,
        host_at: Callable[[str], Host],
        judge: Judge,
        changed: Callable[[Host], None],
        give_up: Callable[[Host, str], None],
    ) -> None:
        # The host, made where need be, that a URL's requests go through.
        self._host_at = host_at
        self._judge = judge
        self._changed = changed
        self._give_up = give_up
        self._sequence = itertools.count()
        # Fetches to try again: (clock seconds, sequence, host, job).
        self._later: list[tuple[float, int, Host, RobotsJob]] = []

    def park(self, host: Host, entry: Entry) -> bool:
        """Let `entry` wait for its origin's rules; False where they are here."""
        origin = host.origin(origin_of(entry.request_url))
        if origin.rules is not None:
            return False
        origin.parked.append(entry)
        self._ask(origin, entry.priority)
        return True

    def known(self, name: str, rules: RobotsRules, delay: float, expires_at: float) -> list[Entry]:
        """Rules for origin `name` are here; the entries that waited for them."""
        host = self._host_at(name + "/")
        origin = host.origin(name)
        origin.rules = rules
        origin.expires_at = expires_at
        origin.asking = False
        origin.job = None
        origin.failures = 0
        origin.held_up = 0
        origin.failing_since = None
        origin.delay = delay
        # Several origins behind one gate: the slowest wins.
        host.gate.bucket.set_delay(_slowest(host))
        parked, origin.parked = origin.parked, []
        self._changed(host)
        return parked

    def moved(self, job: RobotsJob, now: float) -> None:
        """A robots.txt redirects to another gate: go on there, admitted like anything else."""
        origin = self._host_at(job.origin + "/").origin(job.origin)
        if origin.job is not None:
            job.priority = origin.job.priority
        if self._host_at(job.url).verdict is not None:
            self.failed(job, "connect", now)
        else:
            origin.job = job
            self._queue(job)

    def failed(self, job: RobotsJob, outcome: str, now: float) -> None:
        """robots.txt is unreachable: nothing of the origin is fetched; try again later."""
        host = self._host_at(job.origin + "/")
        origin = host.origin(job.origin)
        delay, verdict = self._judge.robots(host, origin, outcome, now)
        if verdict is not None:
            self._give_up(host, verdict)
        elif delay is not None:
            again = RobotsJob(job.origin, job.origin + "/robots.txt", priority=job.priority)
            origin.job = again
            heapq.heappush(self._later, (now + delay, next(self._sequence), host, again))

    def refresh(self, host: Host, entry: Entry, now: float) -> None:
        """Fetch rules again that are too old; until they are here the old ones stand."""
        origin = host.origins.get(origin_of(entry.request_url))
        if origin is not None and now >= origin.expires_at:
            self._ask(origin, entry.priority)

    def abandon(self, host: Host, now: float) -> None:
        """`host` was given up: what other hosts asked of it has failed."""
        jobs = list(host.jobs)
        host.jobs.clear()
        for job in jobs:
            if self._host_at(job.origin + "/") is not host:
                self.failed(job, "connect", now)

    def forget(self, host: Host) -> None:
        """Nothing of `host` is wanted any more: neither are rules of its own."""
        for job in list(host.jobs):
            if self._host_at(job.origin + "/") is host:
                host.jobs.remove(job)
                host.origin(job.origin).asking = False

    def ripen(self, now: float) -> None:
        """Queue the jobs whose time has come."""
        while self._later and self._later[0][0] <= now:
            _, _, waiting, job = heapq.heappop(self._later)
            origin = waiting.origin(job.origin)
            if waiting.verdict is None and origin.parked:
                self._queue(job)
            else:
                origin.asking = False

    def next_due(self) -> float | None:
        """Clock seconds at which the next job becomes due."""
        return self._later[0][0] if self._later else None

    def _ask(self, origin: Origin, priority: int) -> None:
        """Queue the fetch of an origin's robots.txt, once, as urgent as what waits for it."""
        if not origin.asking:
            origin.asking = True
            origin.job = RobotsJob(origin.name, origin.name + "/robots.txt", priority=priority)
            self._queue(origin.job)
        elif origin.job is not None and priority > origin.job.priority:
            origin.job.priority = priority

    def _queue(self, job: RobotsJob) -> None:
        host = self._host_at(job.url)
        host.jobs.append(job)
        host.loaded = True
        self._changed(host)

    def __repr__(self) -> str:
        return f"Origins({len(self._later)} to try again)"


def _slowest(host: Host) -> float:
    """The longest Crawl-delay of all origins that share `host`'s gate."""
    gate = host.gate
    hosts = gate.members if isinstance(gate, MachineGate) else [host]
    return max(origin.delay for each in hosts for origin in each.origins.values())
