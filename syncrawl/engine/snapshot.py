"""The crawl's state in the shape of report.json, put together from what each part counts.

Any thread but commit's files: reads counters, the scheduler's live view, and the
frontier's counts as of its last commit.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from typing import Any

from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.notes import LiveHost
from syncrawl.engine.rooms import Rooms
from syncrawl.frontier.model import SHED
from syncrawl.limits.health import condition
from syncrawl.observe import report as reports
from syncrawl.observe.metrics import Reading, RecentReadings, bottleneck, growth

# What idle fetch workers wait for, by what it is put down to: limits that others set us (a host's,
# a gateway's), and those with what our own later stages and the limits that the user has set hold
# back.
_POLITE = ("politeness", "kept", "route", "held")
_STARVED = (*_POLITE, "links", "pages")


class Pressure:
    """Readings over the run, and snapshots made of them."""

    def __init__(self, config: Config, rooms: Rooms, clock: Clock) -> None:
        self._config = config
        self._rooms = rooms
        self._clock = clock
        self._started = clock.monotonic()
        self._seconds_before = rooms.ledger.life.seconds
        self._pages_before = {key: host.pages for key, host in rooms.ledger.hosts.items()}
        self._first = self._reading()
        self._last: Reading | None = None
        # Guards _recent: snapshots are taken by the observer, a live view and a scrape.
        self._lock = threading.Lock()
        self._recent = RecentReadings()

    def finish(self) -> None:
        """The run is over: the bottleneck from now on is the whole run's."""
        self._last = self._reading()

    def snapshot(
        self, status: str, exit_code: int | None, reason: str, *, most_hosts: int = 0
    ) -> dict[str, Any]:
        """The report's dictionary, with the `most_hosts` busiest hosts (0 = all)."""
        rooms = self._rooms
        chosen, omitted = self._chosen(most_hosts)
        counted = rooms.ledger.snapshot(chosen)
        life, life_groups = counted["life"]
        run, run_groups = counted["run"]
        end = self._last.at if self._last is not None else self._clock.monotonic()
        run["seconds"] = round(end - self._started, 3)
        life["seconds"] = round(self._seconds_before + end - self._started, 3)
        requests = rooms.scheduler.requests
        life["requests"] += requests - run["requests"]
        run["requests"] = requests
        return reports.assemble(
            status=status,
            exit_code=exit_code,
            reason=reason,
            totals=life,
            run=run,
            groups=life_groups,
            run_groups=run_groups,
            urls=self._urls(running=exit_code is None),
            hosts=self._hosts(counted["hosts"], run["seconds"], chosen),
            hosts_omitted=omitted,
            stages=self._stages(run, run_groups),
            bottleneck=self._bottleneck(),
            frontier=self._growth(),
            updated_at=self._clock.wall(),
        )

    def _urls(self, *, running: bool) -> dict[str, int]:
        counts = self._rooms.frontier.counts()
        deferred = min(self._rooms.committer.deferred_now, counts.unfinished)
        leased = self._rooms.scheduler.leased if running else 0
        # A lease is settled a moment after its URL's end was committed.
        leased = min(leased, counts.unfinished - deferred)
        return {
            "seen": counts.seen,
            "pending": counts.unfinished - deferred - leased,
            "deferred": deferred,
            "leased": leased,
            "done": counts.done,
            "failed": counts.failed,
            "dropped": sum(counts.dropped.values()),
        }

    def _chosen(self, most: int) -> tuple[Sequence[str], int]:
        """The hosts to tell of, and how many there are beside them.

        Chosen by a few numbers, before anything is put together: of 10,000 hosts, status.json
        wants a tenth, and a live view a handful twice a second.
        """
        counted = self._rooms.ledger.requests_by_host()
        loads = self._rooms.scheduler.loads()
        pending = self._rooms.committer.pending
        known = counted.keys() | loads.keys()

        def busy(key: str) -> tuple[int, int, int]:
            in_flight, requests = loads.get(key) or (0, counted[key])
            return (in_flight, pending.get(key, 0), requests)

        if not 0 < most < len(known):
            return list(known), 0
        return heapq.nlargest(most, known, key=busy), len(known) - most

    def _hosts(
        self, counted: dict[str, dict[str, Any]], seconds: float, chosen: Sequence[str]
    ) -> dict[str, Any]:
        live = self._rooms.scheduler.live(chosen)
        pending = self._rooms.committer.pending
        hosts: dict[str, Any] = {}
        for key in chosen:
            sums = counted.get(key, {})
            now = live.get(key)
            requests = now.requests if now else sums.get("requests", 0)
            paused = now.paused_until if now else sums.get("paused_until", 0.0)
            fresh = sums.get("pages", 0) - self._pages_before.get(key, 0)
            hosts[key] = {
                "pages": sums.get("pages", 0),
                "requests": requests,
                "pending": max(0, pending.get(key, 0) - (now.leased if now else 0)),
                "in_flight": now.in_flight if now else 0,
                "in_flight_peak": now.in_flight_peak if now else 0,
                "limit": now.limit if now else 0,
                "paused_until": paused or None,
                "retry_share": round(sums.get("retries", 0) / max(1, requests), 6),
                # Pages a second in this run.
                "rate": round(fresh / seconds, 3) if seconds else 0.0,
                "outcomes": sums.get("outcomes", {}),
                "health": round(sums.get("health", 1.0), 3),
                "latency": round(now.latency, 4) if now and now.latency is not None else None,
                "condition": self._condition(sums.get("recent", ""), now),
            }
        return hosts

    @staticmethod
    def _condition(recent: str, now: LiveHost | None) -> str:
        if now is not None and now.verdict is not None:
            return now.verdict
        return condition(recent, risen=now.risen if now else False)

    def _stages(self, run: dict[str, Any], groups: dict[str, dict[str, int]]) -> dict[str, Any]:
        rooms = self._rooms
        waited = rooms.scheduler.waited()
        blocked = round(waited["credit"] + waited["bytes"], 6)
        fetch = {
            "depth": rooms.scheduler.exchanging,
            "oldest_age": round(rooms.scheduler.oldest_lease_age(), 6),
            "blocked_put_seconds": 0.0,
            "starved_get_seconds": round(sum(waited[name] for name in _STARVED), 6),
            # What there was no room for, before it cost a fetch: URLs, and retries beyond the
            # budget.
            "rejected": groups["dropped"].get(SHED, 0) + run["unaffordable"],
        }
        # A fetch worker is held back before it fetches: by the credit it does not get.
        parse = {
            **rooms.fetched.snapshot(),
            "blocked_put_seconds": blocked,
            "rejected": groups["outcomes"].get("parse_timeout", 0),
        }
        return {"fetch": fetch, "parse": parse, "commit": rooms.inbox.snapshot()}

    def _reading(self) -> Reading:
        rooms = self._rooms
        waited = rooms.scheduler.waited()
        counts = rooms.frontier.counts()
        now = self._clock.monotonic()
        polite = sum(waited[name] for name in _POLITE)
        commit_blocked = rooms.inbox.snapshot()["blocked_put_seconds"]
        idle_parsers = rooms.fetched.snapshot()["starved_get_seconds"] + commit_blocked
        return Reading(
            at=now,
            cpu=time.process_time(),
            polite=polite,
            starved=sum(waited[name] for name in _STARVED),
            parse_blocked=waited["credit"] + waited["bytes"],
            parse_busy=self._config.parse.threads * (now - self._started) - idle_parsers,
            commit_blocked=commit_blocked,
            commit_busy=rooms.committer.busy_until(now),
            found=counts.seen,
            finished=counts.seen - counts.unfinished,
        )

    def _bottleneck(self) -> dict[str, Any]:
        workers = {
            "fetch_workers": self._config.fetch.workers,
            "parse_workers": self._config.parse.threads,
        }
        if self._last is not None:
            return dict(bottleneck(self._first, self._last, **workers))
        reading = self._reading()
        with self._lock:
            self._recent.add(reading)
            return dict(self._recent.verdict(**workers))

    def _growth(self) -> dict[str, Any]:
        if self._last is not None:
            return dict(growth(self._first, self._last))
        with self._lock:
            return dict(self._recent.growth())
