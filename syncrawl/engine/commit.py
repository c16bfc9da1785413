"""COMMIT: the one thread that owns the frontier and the stores.

Each step makes a batch of results durable: records in every store up to its checkpoint,
then ONE frontier transaction with the URLs' new states, the new links, the counters and
the stores' tokens. Only after that are leases settled and new URLs offered. It never
blocks on a queue, so the cycle of stages cannot deadlock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from syncrawl.api import Record
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.lease import Parsed
from syncrawl.engine.ledger import Ledger, bump
from syncrawl.engine.outputs import Outputs
from syncrawl.engine.robots import RobotsStep
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.seeds import SeedReader
from syncrawl.frontier.model import Batch, Entry, Finish, Frontier, QueueOf, host_of, origin_of
from syncrawl.frontier.seen import SeenSet
from syncrawl.limits.retry import MAX_REFUSALS, RetryPolicy
from syncrawl.limits.signals import Fate, Signal, rule_of
from syncrawl.log import Log
from syncrawl.scope import Scope
from syncrawl.urls import Canonicalizer

# Notes in the frontier.
TOKENS = "tokens"
LIFE = "life"
FOLLOWED = "followed"
HOST = "host/"
ROBOTS = "robots/"
BODIES = "bodies/"

# A result that only our own memory bound held up is tried again this much later.
_PRESSURE_DELAY = 0.5
_CAP = "max_pages_per_host"


class Committer:
    """Makes results durable and keeps the scheduler fed. Commit thread only."""

    def __init__(
        self,
        config: Config,
        *,
        frontier: Frontier,
        outputs: Outputs,
        scheduler: Scheduler,
        robots: RobotsStep,
        seeds: SeedReader,
        ledger: Ledger,
        retry: RetryPolicy,
        scope: Scope,
        canonicalizer: Canonicalizer,
        queue_of: QueueOf,
        clock: Clock,
        log: Log,
        first_bundle: int,
        body_row: int,
        followed: Iterable[str],
    ) -> None:
        self._frontier = frontier
        self._outputs = outputs
        self._scheduler = scheduler
        self._robots = robots
        self._seeds = seeds
        self._ledger = ledger
        self._retry = retry
        self._scope = scope
        self._canonicalizer = canonicalizer
        self._queue_of = queue_of
        self._clock = clock
        self._log = log
        self._cap = config.scope.max_pages_per_host
        # Entries in bundles before this one are an earlier run's: scope may have tightened.
        self._first_bundle = first_bundle
        # Hosts whose page cap is reached: what they have pending counts as deferred.
        self._retired: set[str] = set()
        self._robots_looked_up: set[str] = set()
        # Ends decided outside a batch (given up, out of scope now), for the next one.
        self._ends: list[Finish] = []
        self._body_row = body_row
        # What seeds' redirects added to the scope, in this run and earlier ones.
        self._followed = list(followed)
        # Unfinished URLs by host, for readers on other threads; replaced, never changed.
        self.pending: Mapping[str, int] = {}
        self.deferred_now = 0
        self._published = float("-inf")
        self._requests_before = ledger.life.requests

    # -- what the loop asks -----------------------------------------------------------

    @property
    def deferred(self) -> int:
        """URLs kept on disk that this configuration does not get to."""
        return sum(self._frontier.unfinished(key) for key in self._retired)

    @property
    def has_ends(self) -> bool:
        """True where a further step has something to write at once."""
        return bool(self._ends)

    @property
    def nothing_left(self) -> bool:
        """True when the inputs are read and nothing is pending, leased or uncommitted."""
        return (
            self._seeds.ended
            and not self._ends
            and self._frontier.counts().unfinished == self.deferred
        )

    def next_due(self) -> float | None:
        """Wall-clock seconds at which a waiting URL becomes due."""
        return self._frontier.next_due()

    # -- the step ---------------------------------------------------------------------

    def step(self, items: list[Parsed]) -> None:
        """Commit one batch and refill. Raises StopCondition where it cannot be made durable."""
        hosts: set[str] = set()
        with self._ledger.transaction():
            touched = self._commit(items, hosts)
        self._scheduler.settle_all([(i.fetched.lease, i.fetched.is_page) for i in items])
        for key in hosts:
            self._retire_if_capped(key)
        self._refill(touched)
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
        if not (batch or records or hosts):
            return set()
        if records:
            batch.notes[TOKENS] = self._outputs.write(records)
        self._write_counters(batch, hosts, bodies)
        return self._frontier.commit(batch)

    def publish(self, every: float = 1.0) -> None:
        """Let other threads see the frontier's numbers, which they may not read themselves."""
        now = self._clock.monotonic()
        if now - self._published >= every:
            self._published = now
            self.pending = dict(self._frontier.unfinished_by_queue())
            self.deferred_now = self.deferred

    # -- one result -------------------------------------------------------------------

    def _take(self, item: Parsed, batch: Batch, hosts: set[str], bodies: list[int]) -> None:
        fetched = item.fetched
        entry = fetched.lease.entry
        assert entry is not None
        key = fetched.lease.host.key
        hosts.add(key)
        rule = rule_of(fetched.outcome)
        host = self._ledger.host(key)
        ours = rule.signal is Signal.NOTHING
        good = rule.signal in (Signal.SUCCESS, Signal.ANSWER)
        host.note(fetched.outcome, good=None if ours else good)
        if not (ours or entry.attempts or entry.refusals or entry.hops):
            host.first_attempts += 1
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
        if fate is Fate.REFUSED and entry.refusals + 1 >= MAX_REFUSALS:
            fate = Fate.FAILED
        if fate is Fate.DONE:
            batch.finished.append(Finish(entry, "done", fetched.outcome))
        elif fate is Fate.FAILED:
            batch.finished.append(Finish(entry, "failed", fetched.outcome))
            self._log.info("failed", url=entry.url, outcome=fetched.outcome, why=fetched.detail)
        elif fate is Fate.DROPPED:
            self._drop(entry, fetched.dropped, batch)
        else:
            batch.moved.append((entry, self._successor(item, fate)))

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
        elif fetched.outcome == "pressure":
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
        if not self._retired:
            batch.found.extend(links)
            return
        for entry in links:
            if self._queue_of(host_of(entry.url)) in self._retired:
                for totals in self._ledger.each():
                    bump(totals.refused, _CAP)
            else:
                batch.found.append(entry)

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
            self._robots_looked_up.add(origin)
        self._ends.extend(Finish(entry, "failed", verdict) for entry, verdict in notes.failed)
        for key, verdict in notes.verdicts:
            self._log.warning("host given up", host=key, verdict=verdict)
            self._fail_host(key, verdict)
        ends, self._ends = self._ends, []
        for end in ends:
            if end.state == "dropped":
                self._drop(end.entry, end.reason, batch)
            else:
                batch.finished.append(end)
                for totals in self._ledger.each():
                    bump(totals.outcomes, end.reason)

    def _fail_host(self, key: str, verdict: str) -> None:
        """Everything that waits for a given-up host fails now."""
        entries = self._scheduler.unload(key)
        while more := self._frontier.take(key, 10_000):
            entries.extend(more)
        self._ends.extend(Finish(entry, "failed", verdict) for entry in entries)

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
            self._ledger.life.requests = self._requests_before + requests
            for key in hosts:
                host = self._ledger.host(key)
                host.paused_until = live[key].paused_until
                host.requests = live[key].requests
                batch.notes[HOST + key] = msgspec.msgpack.encode(host)
            batch.notes[LIFE] = msgspec.msgpack.encode(self._ledger.life)
        if bodies:
            self._body_row += 1
            batch.notes[f"{BODIES}{self._body_row}"] = SeenSet.pack(bodies)

    # -- feeding the scheduler ----------------------------------------------------------

    def _refill(self, touched: set[str]) -> None:
        for key, room in self._scheduler.take_wanted():
            self._feed(key, room)
        touched |= self._frontier.ripen(self._clock.wall())
        for key in touched:
            room = self._scheduler.room(key)
            if room:
                self._feed(key, room)
        places = self._scheduler.free_places()
        if places > 0:
            waiting = (
                key
                for key in self._frontier.backlog()
                if key not in self._retired and not self._scheduler.is_loaded(key)
            )
            for key in list(itertools.islice(waiting, places)):
                self._feed(key, 1)

    def _feed(self, key: str, room: int) -> None:
        """Move entries of one host from the frontier to the scheduler."""
        if self._cap and self._ledger.host(key).pages >= self._cap:
            self._retired.add(key)
            return
        entries = self._frontier.take(key, room)
        verdict = self._scheduler.verdict(key)
        if verdict is not None:
            self._ends.extend(Finish(entry, "failed", verdict) for entry in entries)
            return
        entries = [entry for entry in entries if self._in_scope(entry)]
        for origin in {origin_of(entry.request_url) for entry in entries}:
            self._look_up_robots(origin)
        more = self._frontier.has_more(key)
        if entries:
            self._robots.sort_out(entries, more=more)
        else:
            self._scheduler.offer(key, [], [], more=more)

    def _in_scope(self, entry: Entry) -> bool:
        """False where a resumed run's tighter scope refuses an entry; it is then dropped."""
        if entry.bundle >= self._first_bundle:
            return True
        url = self._canonicalizer.parse(entry.request_url)
        if url is None:
            reason: str | None = "invalid"
        elif entry.seed:
            reason = self._scope.refuse_seed(url)
        else:
            reason = self._scope.refuse(url, entry.depth)
        if reason is None:
            return True
        self._ends.append(Finish(entry, "dropped", reason))
        return False

    def _look_up_robots(self, origin: str) -> None:
        """Put an earlier run's robots.txt in force, the first time an origin is met."""
        if origin in self._robots_looked_up:
            return
        self._robots_looked_up.add(origin)
        packed = self._frontier.note(ROBOTS + origin)
        if packed is not None:
            self._robots.load(packed)

    def _retire_if_capped(self, key: str) -> None:
        if self._cap and key not in self._retired and self._scheduler.exhausted(key):
            self._retired.add(key)
            self._scheduler.unload(key)
            self._log.info("host has all its pages", host=key, max_pages_per_host=self._cap)
