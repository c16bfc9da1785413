"""COMMIT: the one thread that owns the frontier and the stores.

Each step makes a batch of results durable: records in every store up to its checkpoint,
then ONE frontier transaction with the URLs' new states, the new links, the counters and
the stores' tokens. Only after that are leases settled and new URLs offered. It never
blocks on a queue, so the cycle of stages cannot deadlock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from syncrawl.api import Record
from syncrawl.clock import Clock
from syncrawl.engine.feeder import ROBOTS, Feeder
from syncrawl.engine.lease import Parsed
from syncrawl.engine.ledger import Ledger, bump
from syncrawl.engine.outputs import Outputs
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.seeds import SeedReader
from syncrawl.engine.shedding import Shedder
from syncrawl.frontier.model import SHED, Batch, Entry, Finish, Frontier, QueueOf, host_of
from syncrawl.frontier.seen import SeenSet
from syncrawl.limits.retry import RetryPolicy
from syncrawl.limits.signals import Fate, Signal, rule_of
from syncrawl.log import Log

# Notes in the frontier.
TOKENS = "tokens"
LIFE = "life"
FOLLOWED = "followed"
HOST = "host/"
BODIES = "bodies/"

# What only our own memory bound, or our gateway's plan, held up is tried again this much later.
_PRESSURE_DELAY = 0.5
_OUR_PRESSURE = frozenset({"pressure", "gateway_throttled", "gateway_exhausted", "gateway_refused"})
_CAP = "max_pages_per_host"


class Committer:
    """Makes results durable and keeps the scheduler fed. Commit thread only."""

    def __init__(
        self,
        *,
        frontier: Frontier,
        outputs: Outputs,
        scheduler: Scheduler,
        feeder: Feeder,
        shedder: Shedder,
        seeds: SeedReader,
        ledger: Ledger,
        retry: RetryPolicy,
        queue_of: QueueOf,
        clock: Clock,
        log: Log,
        body_row: int,
        followed: Iterable[str],
    ) -> None:
        self._frontier = frontier
        self._outputs = outputs
        self._scheduler = scheduler
        self._feeder = feeder
        self._shedder = shedder
        self._seeds = seeds
        self._ledger = ledger
        self._retry = retry
        # Results that a watchdog gave in for hung workers, and a wish to look at deny_hosts
        # again: added by other threads, taken by this one.
        self._lost: deque[Parsed] = deque()
        self._deny = threading.Event()
        # Results written; and seconds spent in steps that had something to write, with the
        # moment at which the one under way began. Written by the commit thread alone, and the
        # two as one: a reader in between would count a step twice or not at all.
        self.items = 0
        self._busy: tuple[float, float | None] = (0.0, None)
        self._queue_of = queue_of
        self._clock = clock
        self._log = log
        self._body_row = body_row
        # What seeds' redirects added to the scope, in this run and earlier ones.
        self._followed = list(followed)
        # Unfinished URLs by host, for readers on other threads; replaced, never changed.
        self.pending: Mapping[str, int] = {}
        self.deferred_now = 0
        # Wall-clock seconds at which a waiting URL becomes due, as far as is known.
        self.due_at: float | None = None
        self._published = float("-inf")
        self._requests_before = ledger.life.requests
        self._seconds_before = ledger.life.seconds
        self._started = clock.monotonic()

    # -- what the loop asks -----------------------------------------------------------

    @property
    def deferred(self) -> int:
        """URLs kept on disk that this configuration does not get to."""
        return self._feeder.deferred

    @property
    def has_ends(self) -> bool:
        """True where a further step has something to write at once."""
        return bool(self._feeder.ends)

    @property
    def nothing_left(self) -> bool:
        """True when the inputs are read and nothing is left to crawl or to write down.

        What is put off for want of room is left: it comes back when there is some.
        """
        return (
            self._seeds.ended
            and not self._feeder.ends
            and self._frontier.counts().unfinished == self._feeder.out_of_reach
        )

    def next_due(self) -> float | None:
        """Wall-clock seconds at which a waiting URL becomes due."""
        return self._frontier.next_due()

    # -- any thread -------------------------------------------------------------------

    @property
    def busy_seconds(self) -> float:
        """Seconds spent in steps that had something to write and are over."""
        return self._busy[0]

    def busy_until(self, now: float) -> float:
        """`busy_seconds`, the step under way included: a store may hang in it."""
        seconds, since = self._busy
        return seconds + (max(0.0, now - since) if since is not None else 0.0)

    def give_in(self, parsed: Parsed) -> None:
        """Take a result in the name of a worker that hangs; never blocks."""
        self._lost.append(parsed)

    def deny_again(self) -> None:
        """scope.deny_hosts has changed: have the next step drop what it names."""
        self._deny.set()

    # -- the step ---------------------------------------------------------------------

    def step(self, items: list[Parsed], *, full: bool = False) -> None:
        """Commit one batch and refill. Raises StopCondition where it cannot be made durable.

        `full` tells that a stage's queue had no room left when the batch was gathered.
        """
        began = self._clock.monotonic()
        if self._shedder.active:
            self._shedder.note(began, full=full, idle=self._scheduler.idle)
        while self._lost:
            items.append(self._lost.popleft())
        busy = self.busy_seconds
        self._busy = (busy, began if items else None)
        if self._deny.is_set():
            self._deny.clear()
            self._feeder.deny()
        pending = self._shedder.pending if self._shedder.active else 0
        hosts: set[str] = set()
        with self._ledger.transaction():
            touched = self._commit(items, hosts)
        self._scheduler.settle_all([(i.fetched.lease, i.fetched.is_page) for i in items])
        for key in hosts:
            self._feeder.retire_if_capped(key)
        surplus, back = self._shedder.settle(pending)
        self._feeder.shed(surplus)
        self._feeder.refill(touched | back)
        if items:
            busy += self._clock.monotonic() - began
            self.items += len(items)
        self._busy = (busy, None)
        self.publish()

    def _commit(self, items: list[Parsed], hosts: set[str]) -> set[str]:
        """Count, write and commit; fills `hosts` with those concerned. The queues that grew."""
        batch = Batch()
        records: list[Record] = []
        bodies: list[int] = []
        with self._ledger.lock:
            for item in items:
                self._take(item, batch, hosts, bodies)
                if item.fetched.is_page:
                    records.extend(item.records)
            self._take_notes(batch, hosts)
            self._take_seeds(batch)
            self._count_shed(batch)
        if not (batch or records or hosts):
            return set()
        if records:
            batch.notes[TOKENS] = self._outputs.write(records)
        self._write_counters(batch, hosts, bodies)
        return self._frontier.commit(batch)

    def publish(self, every: float = 0.2) -> None:
        """Let other threads see the frontier's numbers, which they may not read themselves."""
        now = self._clock.monotonic()
        if now - self._published >= every:
            self._published = now
            waiting = dict(self._frontier.unfinished_by_queue())
            for key in self._feeder.retired:
                waiting.pop(key, None)
            self.pending = waiting
            self.deferred_now = self.deferred
            self.due_at = self._frontier.next_due()

    # -- one result -------------------------------------------------------------------

    def _take(self, item: Parsed, batch: Batch, hosts: set[str], bodies: list[int]) -> None:
        fetched = item.fetched
        entry = fetched.lease.entry
        assert entry is not None
        key = fetched.lease.host.key
        hosts.add(key)
        rule = rule_of(fetched.outcome)
        host = self._ledger.host(key)
        ours = rule.signal in (Signal.NOTHING, Signal.ROUTE)
        host.note(fetched.outcome)
        if not (ours or entry.attempts or entry.refusals or entry.hops):
            self._ledger.note_first(key)
        for totals in self._ledger.each():
            bump(totals.outcomes, fetched.outcome)
            totals.wire_bytes += fetched.wire_bytes
            totals.bytes += item.length
        if fetched.is_page:
            host.pages += 1
            assert item.body_hash is not None
            bodies.append(item.body_hash)
            duplicate = self._ledger.is_duplicate(item.body_hash)
            for totals in self._ledger.each():
                totals.pages += 1
                totals.duplicates += duplicate
        for totals in self._ledger.each():
            for reason, count in item.refused.items():
                bump(totals.refused, reason, count)
        batch.aliases.extend(fetched.aliases)
        if fetched.followed:
            self._followed += fetched.followed
            batch.notes[FOLLOWED] = msgspec.msgpack.encode(self._followed)
        self._find(item.links, batch)
        self._decide(item, rule.fate, batch)

    def _decide(self, item: Parsed, fate: Fate, batch: Batch) -> None:
        """What becomes of the URL."""
        fetched = item.fetched
        entry = fetched.lease.entry
        assert entry is not None
        if fate is Fate.RETRY and not self._may_retry(item):
            fate = Fate.FAILED
        if fate is Fate.REFUSED and entry.refusals + 1 >= self._retry.max_refusals:
            fate = Fate.FAILED
        if fate is Fate.DONE:
            batch.finished.append(Finish(entry, "done", fetched.outcome))
            self._tell(self._log.debug, "done", item)
        elif fate is Fate.FAILED:
            # Where it failed is where a later attempt begins: the target is seen by then.
            end = msgspec.structs.replace(
                entry, target=fetched.target or entry.target, hops=fetched.hops
            )
            batch.finished.append(Finish(end, "failed", fetched.outcome))
            self._tell(self._log.info, "failed", item)
        elif fate is Fate.DROPPED:
            self._drop(entry, fetched.dropped, batch)
        else:
            batch.moved.append((entry, self._successor(item, fate)))
            self._tell(self._log.debug, fate.value, item)

    @staticmethod
    def _tell(log: Callable[..., Any], event: str, item: Parsed) -> None:
        """Log what became of a URL."""
        fetched = item.fetched
        log(
            event,
            host=fetched.lease.host.key,
            url=fetched.lease.url,
            outcome=fetched.outcome,
            why=fetched.detail,
            elapsed=round(fetched.elapsed, 3),
        )

    def _may_retry(self, item: Parsed) -> bool:
        entry = item.fetched.lease.entry
        assert entry is not None
        if item.fetched.final or not self._retry.may_retry(entry.attempts + 1):
            return False
        return self._ledger.spend_retry(item.fetched.lease.host.key)

    def _successor(self, item: Parsed, fate: Fate) -> Entry:
        """The entry that stands for the same URL from now on."""
        fetched = item.fetched
        entry = fetched.lease.entry
        assert entry is not None
        attempts, refusals = entry.attempts, entry.refusals
        delay = 0.0
        if fate is Fate.RETRY:
            attempts += 1
            delay = self._retry.delay(attempts)
        elif fate is Fate.REFUSED:
            refusals += 1
            # A Retry-After pauses the host as a whole; the URL need not wait on top of that.
            delay = 0.0 if fetched.retry_after else self._retry.delay(refusals)
        elif fetched.outcome in _OUR_PRESSURE:
            delay = _PRESSURE_DELAY
        if fate is not Fate.AGAIN:
            self._ledger.host(fetched.lease.host.key).retries += 1
            for totals in self._ledger.each():
                totals.retries += 1
        # Tenths of a second: what is due together is one row, not a row a URL.
        due = round(self._clock.wall() + delay, 1) if delay else 0.0
        return Entry(
            entry.url,
            entry.fp,
            entry.depth,
            entry.priority,
            entry.referrer,
            entry.label,
            entry.seed,
            attempts,
            refusals,
            due,
            fetched.target,
            fetched.hops,
        )

    def _find(self, links: Iterable[Entry], batch: Batch) -> None:
        """Add links, but for those whose host has all the pages it may have."""
        if not self._feeder.retired:
            batch.found.extend(self._shedder.sift(list(links), batch))
            return
        wanted = []
        for entry in links:
            if self._queue_of(host_of(entry.url)) in self._feeder.retired:
                for totals in self._ledger.each():
                    bump(totals.refused, _CAP)
            else:
                wanted.append(entry)
        batch.found.extend(self._shedder.sift(wanted, batch))

    def _count_shed(self, batch: Batch) -> None:
        """Count what of `batch.shed` the frontier is about to accept, and drop at once."""
        if not batch.shed:
            return
        fresh = self._frontier.seen.unknown(entry.fp for entry in batch.shed)
        fresh.difference_update(batch.aliases, (entry.fp for entry in batch.found))
        for totals in self._ledger.each():
            bump(totals.dropped, SHED, len(fresh))

    def _drop(self, entry: Entry, reason: str, batch: Batch) -> None:
        batch.finished.append(Finish(entry, "dropped", reason))
        for totals in self._ledger.each():
            bump(totals.dropped, reason)

    # -- what others left to be written ------------------------------------------------

    def _take_notes(self, batch: Batch, hosts: set[str]) -> None:
        notes = self._scheduler.take_notes()
        hosts |= notes.paused
        for entry, reason in notes.dropped:
            self._drop(entry, reason, batch)
            for totals in self._ledger.each():
                bump(totals.outcomes, reason)
        for origin, packed in notes.robots:
            batch.notes[ROBOTS + origin] = packed
            self._feeder.rules_are_known(origin)
        for entry, verdict in notes.failed:
            self._feeder.fail([entry], verdict)
        for key, verdict in notes.verdicts:
            self._log.warning("host given up", host=key, verdict=verdict)
            self._feeder.fail_host(key, verdict)
        for end in self._feeder.take_ends():
            if end.state == "dropped":
                self._drop(end.entry, end.reason, batch)
            else:
                batch.finished.append(end)
                for totals in self._ledger.each():
                    bump(totals.outcomes, end.reason)
                key = self._queue_of(host_of(end.entry.request_url))
                self._ledger.host(key).note(end.reason)
                hosts.add(key)

    def _take_seeds(self, batch: Batch) -> None:
        chunk = self._seeds.take()
        if chunk is None:
            return
        self._find(chunk.entries, batch)
        for totals in self._ledger.each():
            for reason, count in chunk.refused.items():
                bump(totals.refused, reason, count)

    def _write_counters(self, batch: Batch, hosts: set[str], bodies: list[int]) -> None:
        live = self._scheduler.live(hosts)
        with self._ledger.lock:
            requests = self._scheduler.requests
            self._ledger.run.requests = requests
            elapsed = self._clock.monotonic() - self._started
            self._ledger.run.seconds = elapsed
            self._ledger.life.seconds = self._seconds_before + elapsed
            self._ledger.life.requests = self._requests_before + requests
            for key in hosts:
                host = self._ledger.host(key)
                if key in live:  # not one whose URLs all ended before they were offered
                    host.paused_until = live[key].paused_until
                    host.requests = live[key].requests
                batch.notes[HOST + key] = msgspec.msgpack.encode(host)
            batch.notes[LIFE] = msgspec.msgpack.encode(self._ledger.life)
        if bodies:
            self._body_row += 1
            batch.notes[f"{BODIES}{self._body_row}"] = SeenSet.pack(bodies)
