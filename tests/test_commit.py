"""COMMIT: each fate, one transaction a step, stores that fail, counters that agree."""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from syncrawl.api import Record
from syncrawl.config.model import (
    Config,
    CrawlConfig,
    FetchConfig,
    HostConfig,
    QueuesConfig,
    RetryConfig,
    ScopeConfig,
)
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.commit import LIFE, TOKENS, Committer
from syncrawl.engine.feeder import Feeder
from syncrawl.engine.gates import HostMaker
from syncrawl.engine.lease import Fetched, Lease, Parsed
from syncrawl.engine.ledger import HostTotals, Ledger, Totals
from syncrawl.engine.outputs import NamedStore, Outputs, tokens_of
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.seeds import Chunk, SeedReader
from syncrawl.engine.shedding import Shedder
from syncrawl.errors import ConfigError, DiskFull, StoreFailed
from syncrawl.frontier.memory import MemoryFrontier
from syncrawl.frontier.model import SEED_PRIORITY, Batch, Entry, host_of
from syncrawl.limits.retry import RetryPolicy
from syncrawl.limits.signals import RULES, Fate
from syncrawl.log import NullLog
from syncrawl.scope import Scope
from syncrawl.testing.clock import FakeClock
from syncrawl.urls import Canonicalizer, fingerprint

CANON = Canonicalizer(())


def entry(url: str, **more: Any) -> Entry:
    parsed = CANON.parse(url)
    assert parsed is not None
    return Entry(url, fingerprint(parsed.key), **more)


class ListStore:
    """A store in memory; its token is how many records it holds. Told to, it raises."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.calls: list[str] = []
        # Exceptions for the next calls of a method, in order; None lets one pass.
        self.trouble: dict[str, list[BaseException | None]] = {}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        waiting = self.trouble.get(name)
        if waiting and (error := waiting.pop(0)):
            raise error

    def open(self) -> None:
        self._called("open")

    def write(self, records: Iterable[Record]) -> None:
        for number, record in enumerate(records):
            if number == 1:
                self._called("tear")
            self.records.append(record)
        self._called("write")

    def checkpoint(self) -> bytes:
        self._called("checkpoint")
        return str(len(self.records)).encode()

    def recover(self, token: bytes) -> None:
        self._called("recover")
        assert len(self.records) >= int(token)
        del self.records[int(token) :]

    def close(self) -> None:
        self._called("close")


class WatchedFrontier(MemoryFrontier):
    """Remembers each transaction and checks that no URL was lost in it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, queue_of=str)
        self.batches: list[Batch] = []

    def commit(self, batch: Batch) -> set[str]:
        self.batches.append(batch)
        touched = super().commit(batch)
        counts = self.counts()
        ended = counts.done + counts.failed + sum(counts.dropped.values())
        assert counts.seen == counts.unfinished + ended
        assert counts.unfinished == sum(self.unfinished_by_queue().values())
        return touched


class StubSeeds:
    """Seeds that the test hands over chunk by chunk."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.ended = False

    def add(self, *urls: str, refused: int = 0) -> None:
        chunk = Chunk()
        chunk.entries = [entry(url, priority=SEED_PRIORITY, seed=True) for url in urls]
        if refused:
            chunk.refused = {"host": refused}
        self.chunks.append(chunk)

    def take(self) -> Chunk | None:
        return self.chunks.pop(0) if self.chunks else None


class OpenRobots:
    """Everything is allowed, and nobody is asked."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.loaded: list[bytes] = []

    def sort_out(
        self,
        entries: Sequence[Entry],
        *,
        more: bool | None = None,
        best_cold: int | None = None,
    ) -> None:
        key = host_of(entries[0].request_url)
        self._scheduler.windows.offer(key, list(entries), [], more=more, best_cold=best_cold)

    def load(self, packed: bytes) -> None:
        self.loaded.append(packed)


class Bench:
    """A committer with real scheduler, ledger and outputs, on a frontier in memory."""

    def __init__(
        self,
        *stores: ListStore,
        per_host: int = 0,
        ratio: float = 1.0,
        start: int = 8,
        give_up_after: float = 1e6,
        life: bytes | None = None,
        hosts: Iterable[tuple[str, bytes]] = (),
        first_bundle: int = 0,
        deny: tuple[str, ...] = (),
    ) -> None:
        self.config = Config(
            crawl=CrawlConfig(give_up_after=give_up_after),
            scope=ScopeConfig(follow="any", max_pages_per_host=per_host, deny=deny),
            host=HostConfig(start=start, ceiling=64),
            fetch=FetchConfig(workers=64),
            queues=QueuesConfig(max_items=256),
            retry=RetryConfig(budget_ratio=ratio, backoff_base=1.0),
        )
        self.clock = FakeClock()
        self.wanted = False
        self.budget = ByteBudget(1 << 30, self.clock)
        self.ledger = Ledger(self.config.retry.budget_ratio)
        self.ledger.load(life, hosts)
        rng = random.Random(11)
        maker = HostMaker(self.config, self.ledger.hosts, clock=self.clock, rng=rng)
        self.scheduler = Scheduler(
            self.config,
            clock=self.clock,
            budget=self.budget,
            new_host=maker.new_host,
            queue_of=str,
            on_wanted=self._wanted,
            rng=rng,
        )
        self.frontier = WatchedFrontier(self.clock)
        self.stores = stores or (ListStore(),)
        named = [NamedStore(f"list:{n}", store) for n, store in enumerate(self.stores)]
        self.outputs = Outputs(named, log=NullLog())
        self.frontier.commit(Batch(notes={TOKENS: self.outputs.open(None)}))
        self.seeds = StubSeeds()
        self.robots = OpenRobots(self.scheduler)
        self.feeder = Feeder(
            frontier=self.frontier,
            windows=self.scheduler.windows,
            robots=self.robots,  # type: ignore[arg-type]
            ledger=self.ledger,
            scope=Scope(self.config.scope, ()),
            canonicalizer=CANON,
            clock=self.clock,
            log=NullLog(),
            cap=self.config.scope.max_pages_per_host,
            first_bundle=first_bundle,
        )
        self.committer = Committer(
            frontier=self.frontier,
            outputs=self.outputs,
            scheduler=self.scheduler,
            feeder=self.feeder,
            shedder=Shedder(self.config.shed, self.frontier, lambda: self.feeder.set_apart),
            seeds=self.seeds,  # type: ignore[arg-type]
            ledger=self.ledger,
            retry=RetryPolicy(self.config.retry, rng),
            queue_of=str,
            clock=self.clock,
            log=NullLog(),
            body_row=0,
            followed=(),
        )

    def _wanted(self) -> None:
        self.wanted = True

    def step(self, *items: Parsed) -> None:
        """Commit `items` and go on as the loop does: while refills are wanted or ends wait."""
        self.committer.step(list(items))
        while self.wanted or self.committer.has_ends:
            self.wanted = False
            self.committer.step([])

    def seed(self, *urls: str) -> None:
        self.seeds.add(*urls)
        self.step()

    def lease(self) -> Lease:
        assert self.scheduler.has_ready, f"nothing to lease: {self.scheduler!r}"
        lease = self.scheduler.lease()
        assert lease is not None
        return lease

    def parsed(self, lease: Lease, outcome: str = "2xx", **more: Any) -> Parsed:
        """What fetch and parse make of a lease; a page holds one record and no links."""
        records = more.pop("records", [{"url": lease.url}] if outcome == "2xx" else [])
        links = more.pop("links", [])
        body = more.pop("body", lease.id)
        length = more.pop("length", 0)
        fetched = Fetched(lease, outcome, **more)
        self.scheduler.release(lease, outcome, retry_after=fetched.retry_after)
        self.scheduler.give_credit()
        body_hash = body if outcome == "2xx" else None
        return Parsed(fetched, records=records, links=links, body_hash=body_hash, length=length)

    def end(self, outcome: str = "2xx", **more: Any) -> Entry:
        """Lease one URL and commit what came of it; the entry as it was."""
        lease = self.lease()
        assert lease.entry is not None
        self.step(self.parsed(lease, outcome, **more))
        return lease.entry

    def last(self) -> Batch:
        """The last transaction that ended or moved a URL."""
        return next(b for b in reversed(self.frontier.batches) if b.finished or b.moved)

    def successor(self) -> Entry:
        """The entry that the last transaction put in place of another."""
        ((_, new),) = self.last().moved
        return new

    def ripen(self) -> None:
        """Let what waits become due, and feed it."""
        due = self.committer.next_due()
        if due is not None:
            self.clock.advance(max(0.0, due - self.clock.wall()))
        self.step()

    @property
    def states(self) -> tuple[int, int, int, dict[str, int]]:
        """unfinished, done, failed, dropped."""
        counts = self.frontier.counts()
        return counts.unfinished, counts.done, counts.failed, counts.dropped


# -- fates ------------------------------------------------------------------------------------


def test_a_page_is_done_and_its_record_links_and_token_are_one_transaction() -> None:
    bench = Bench()
    bench.seed("http://a/")
    links = [entry("http://a/1"), entry("http://b/1")]
    bench.end(links=links, length=700, wire_bytes=300)
    batch = bench.last()
    assert [(end.state, end.reason) for end in batch.finished] == [("done", "2xx")]
    assert batch.found == links
    assert tokens_of(batch.notes[TOKENS]) == {"list:0": b"1"}
    assert LIFE in batch.notes
    assert bench.stores[0].records == [{"url": "http://a/"}]
    assert bench.states == (2, 1, 0, {})
    assert bench.scheduler.unsettled == bench.budget.held == 0
    life = bench.ledger.life
    assert (life.pages, life.bytes, life.wire_bytes, life.requests) == (1, 700, 300, 1)


@pytest.mark.parametrize("outcome", [name for name, r in RULES.items() if r.fate is Fate.DONE])
def test_done_for_good(outcome: str) -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end(outcome)
    assert bench.states == (0, 1, 0, {})
    assert len(bench.stores[0].records) == int(outcome == "2xx")


@pytest.mark.parametrize("outcome", [n for n, r in RULES.items() if r.fate is Fate.FAILED])
def test_failed_for_good(outcome: str) -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end(outcome)
    assert bench.states == (0, 0, 1, {})
    assert bench.ledger.life.outcomes == {outcome: 1}
    assert bench.stores[0].records == []


def test_dropped_with_its_reason() -> None:
    bench = Bench()
    bench.seed("http://a/", "http://a/2")
    bench.end("redirect_scope", dropped="redirect_host")
    bench.end("robots", dropped="robots")
    assert bench.states == (0, 0, 0, {"redirect_host": 1, "robots": 1})
    assert bench.ledger.life.dropped == {"redirect_host": 1, "robots": 1}


def test_a_page_whose_parser_failed_has_no_record_and_counts_as_no_page() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("parse_error", records=[{"half": True}])
    assert bench.stores[0].records == []
    assert bench.ledger.life.pages == 0


@pytest.mark.parametrize("outcome", [n for n, r in RULES.items() if r.fate is Fate.RETRY])
def test_a_failure_is_tried_three_times_and_later_each_time(outcome: str) -> None:
    bench = Bench()
    bench.seed("http://a/")
    for attempt in (1, 2):
        bench.end(outcome)
        after = bench.successor()
        assert (after.attempts, after.refusals) == (attempt, 0)
        assert 0.0 <= after.due - bench.clock.wall() <= 2.0**attempt + 0.1
        assert bench.states == (1, 0, 0, {})
        bench.ripen()
    bench.end(outcome)
    assert bench.states == (0, 0, 1, {})
    assert bench.ledger.life.outcomes == {outcome: 3}
    assert bench.ledger.life.retries == 2


def test_a_failure_that_no_attempt_can_mend_is_final() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("dns", final=True)
    assert bench.states == (0, 0, 1, {})


def test_a_spent_budget_makes_failures_final() -> None:
    bench = Bench(ratio=0.0)
    bench.seed(*(f"http://a/{n}" for n in range(5)))
    for _ in range(5):
        bench.end("5xx")
    unfinished, _, failed, _ = bench.states
    assert (unfinished, failed) == (2, 3), "two retries are granted whatever the ratio"


def test_one_hosts_failures_spend_no_other_hosts_budget() -> None:
    bench = Bench(ratio=0.0)
    bench.seed(*(f"http://a/{n}" for n in range(4)), "http://b/")
    by_host: dict[str, list[Parsed]] = {"a": [], "b": []}
    for _ in range(5):
        lease = bench.lease()
        by_host[lease.host.key].append(bench.parsed(lease, "5xx"))
    bench.step(*by_host["a"])
    bench.step(*by_host["b"])
    assert bench.successor().url == "http://b/"


def test_a_refusal_costs_no_attempt_until_there_are_twenty() -> None:
    bench = Bench(ratio=0.0, start=1)
    bench.seed("http://a/")
    for refusal in range(1, bench.config.retry.max_refusals):
        bench.end("throttled")
        after = bench.successor()
        assert (after.attempts, after.refusals) == (0, refusal)
        assert bench.states == (1, 0, 0, {})
        bench.ripen()
        if not bench.scheduler.has_ready:
            wait = bench.scheduler.waits_until()
            assert wait is not None
            bench.clock.advance(wait - bench.clock.monotonic())
            lease = bench.scheduler.lease()
            assert lease is not None
            bench.scheduler.release(lease, "stale")
            bench.scheduler.give_credit()
            bench.step(Parsed(Fetched(lease, "stale")))
    bench.end("throttled")
    assert bench.states == (0, 0, 1, {})


def test_retry_after_is_the_hosts_pause_not_the_urls() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("throttled", retry_after=500.0)
    assert bench.successor().due == 0.0
    bench.step()
    assert not bench.scheduler.has_ready
    packed = bench.frontier.note("host/a")
    assert packed is not None
    saved = msgspec.msgpack.decode(packed, type=HostTotals)
    assert saved.paused_until == bench.clock.wall() + 500.0


@pytest.mark.parametrize(("outcome", "delay"), [("pressure", 0.5), ("stale", 0.0)])
def test_what_we_caused_costs_nothing(outcome: str, delay: float) -> None:
    bench = Bench(ratio=0.0)
    bench.seed("http://a/")
    for _ in range(30):
        bench.end(outcome)
        after = bench.successor()
        assert (after.attempts, after.refusals) == (0, 0)
        assert max(0.0, after.due - bench.clock.wall()) == pytest.approx(delay, abs=0.06)
        bench.ripen()
    assert bench.ledger.life.retries == 0


def test_a_redirect_goes_on_where_it_points() -> None:
    bench = Bench()
    bench.seed("http://a/")
    target = entry("http://b/x")
    bench.end("redirect", target=target.url, hops=1, aliases=[target.fp])
    after = bench.successor()
    assert (after.url, after.request_url, after.hops) == ("http://a/", "http://b/x", 1)
    assert (after.fp, after.seed, after.priority) == (entry("http://a/").fp, True, 100)
    assert target.fp in bench.frontier.seen
    lease = bench.lease()
    assert (lease.host.key, lease.url) == ("b", "http://b/x")
    bench.step(bench.parsed(lease, hops=1, links=[target]))
    assert bench.states == (0, 1, 0, {}), "the target is known: a link to it is not another URL"


def test_a_failure_after_a_hop_is_tried_again_at_the_hop() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("timeout", target="http://a/x", hops=2, aliases=[7])
    after = bench.successor()
    assert (after.request_url, after.hops, after.attempts) == ("http://a/x", 2, 1)
    assert 7 in bench.frontier.seen
    bench.ripen()
    assert bench.lease().url == "http://a/x"


def test_attempts_and_refusals_travel_along_a_redirect() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("timeout")
    bench.ripen()
    bench.end("redirect", target="http://b/x", hops=1)
    assert bench.successor().attempts == 1


# -- links, refusals, duplicates --------------------------------------------------------------


def test_a_link_is_one_url_however_often_it_is_found() -> None:
    bench = Bench()
    bench.seed("http://a/", "http://a/2")
    same = [entry("http://a/x"), entry("http://a/x"), entry("http://a/")]
    batch = [bench.parsed(bench.lease(), links=list(same)) for _ in range(2)]
    bench.step(*batch)
    assert bench.states == (1, 2, 0, {})


def test_what_scope_refused_is_counted_and_takes_no_state() -> None:
    bench = Bench()
    bench.seeds.add("http://a/", refused=3)
    bench.step()
    parsed = bench.parsed(bench.lease())
    parsed.refused = {"host": 2, "nofollow": 1}
    bench.step(parsed)
    assert bench.ledger.life.refused == {"host": 5, "nofollow": 1}
    assert bench.frontier.counts().seen == 1


def test_equal_bodies_are_counted_as_duplicates() -> None:
    bench = Bench()
    bench.seed(*(f"http://a/{n}" for n in range(3)))
    for _ in range(3):
        bench.end(body=99)
    assert bench.ledger.life.duplicates == 2
    assert len(bench.stores[0].records) == 3, "each is a record all the same"


def test_a_link_to_a_redirects_target_in_the_same_batch_is_known() -> None:
    bench = Bench()
    bench.seed("http://a/1", "http://a/2")
    target = entry("http://a/t")
    first, second = bench.lease(), bench.lease()
    batch = [
        bench.parsed(first, links=[target]),
        bench.parsed(second, hops=1, aliases=[target.fp]),
    ]
    bench.step(*batch)
    assert bench.states == (0, 2, 0, {})


# -- what the scheduler left to be written ----------------------------------------------------


def test_what_robots_drop_ends_in_the_next_transaction() -> None:
    bench = Bench()
    bench.seed("http://a/1", "http://a/2")
    first = bench.lease().entry
    assert first is not None
    bench.scheduler.drop([first], "robots")
    bench.step()
    assert bench.states == (1, 0, 0, {"robots": 1})
    assert bench.ledger.life.dropped == {"robots": 1}


def test_robots_are_kept_and_put_in_force_once() -> None:
    bench = Bench()
    bench.frontier.commit(Batch(notes={"robots/http://a": b"kept"}))
    bench.seed("http://a/1", "http://a/2")
    assert bench.robots.loaded == [b"kept"]
    bench.scheduler.keep_robots("http://b", b"new")
    bench.step()
    assert bench.frontier.note("robots/http://b") == b"new"
    bench.seed("http://a/3", "http://b/1")
    assert bench.robots.loaded == [b"kept"], "what this run fetched is in force already"


def test_a_given_up_host_fails_all_it_has_wherever_it_waits() -> None:
    bench = Bench(start=1)
    bench.seed(*(f"http://dead/{n}" for n in range(60)), "http://b/")
    ended = 0
    while bench.scheduler.windows.verdict("dead") is None:
        lease = bench.lease()
        if lease.host.key == "b":
            bench.step(bench.parsed(lease))
            continue
        bench.step(bench.parsed(lease, "connect"))
        ended += 1
    assert ended == 10
    while bench.committer.next_due():
        bench.ripen()
    assert bench.states == (0, 1, 60, {})
    assert bench.ledger.life.outcomes["unreachable"] >= 50
    bench.seed("http://dead/late")
    assert bench.states == (0, 1, 61, {})


def test_a_tighter_scope_drops_what_an_earlier_run_accepted() -> None:
    bench = Bench(first_bundle=100, deny=("/private",))
    bench.seed("http://a/private/1", "http://a/open")
    assert bench.states == (1, 0, 0, {"deny": 1})
    assert bench.lease().url == "http://a/open"


# -- caps -------------------------------------------------------------------------------------


def test_a_host_with_all_its_pages_keeps_the_rest_deferred() -> None:
    bench = Bench(per_host=2)
    bench.seeds.ended = True
    bench.seed(*(f"http://a/{n}" for n in range(5)), "http://b/")
    while bench.scheduler.has_ready:
        bench.end(links=[entry("http://a/more")])
    assert bench.ledger.hosts["a"].pages == 2
    assert bench.committer.deferred == bench.states[0] > 0
    assert bench.committer.nothing_left
    bench.seed("http://a/seed", "http://b/2")
    assert bench.ledger.life.refused["max_pages_per_host"] >= 1
    assert not bench.committer.nothing_left
    assert bench.lease().host.key == "b"


def test_the_cap_counts_what_earlier_runs_committed() -> None:
    saved = msgspec.msgpack.encode(HostTotals(pages=2))
    bench = Bench(per_host=2, hosts=[("a", saved)])
    bench.seeds.ended = True
    bench.seed("http://a/1")
    assert not bench.scheduler.has_ready
    assert bench.committer.nothing_left
    assert bench.committer.deferred == 1


def test_nothing_is_left_only_when_the_seeds_are_read_and_all_is_committed() -> None:
    bench = Bench()
    assert not bench.committer.nothing_left
    bench.seed("http://a/")
    bench.seeds.ended = True
    assert not bench.committer.nothing_left
    lease = bench.lease()
    assert not bench.committer.nothing_left
    bench.step(bench.parsed(lease))
    assert bench.committer.nothing_left


# -- stores -----------------------------------------------------------------------------------


def test_a_store_that_raises_once_is_recovered_and_the_batch_written_once() -> None:
    good, bad = ListStore(), ListStore()
    bench = Bench(good, bad)
    bench.seed("http://a/1", "http://a/2")
    bench.end()
    bad.trouble["tear"] = [OSError("no")]
    bad.trouble["checkpoint"] = [OSError("no")]
    records = [{"n": 1}, {"n": 2}]
    bench.end(records=records)
    assert good.records[1:] == bad.records[1:] == records
    assert good.calls.count("recover") == bad.calls.count("recover") == 2
    assert tokens_of(bench.frontier.note(TOKENS)) == {"list:0": b"3", "list:1": b"3"}


def test_a_store_that_keeps_raising_commits_nothing() -> None:
    good, bad = ListStore(), ListStore()
    bench = Bench(good, bad)
    bench.seed("http://a/1", "http://a/2")
    bench.end()
    before, batches = bench.states, len(bench.frontier.batches)
    bad.trouble["write"] = [OSError("no")] * 3
    with pytest.raises(StoreFailed, match="3 times") as caught:
        bench.end()
    assert caught.value.exit_code == 4
    assert len(good.records) == len(bad.records) == 1, "both are back at their tokens"
    assert bench.states == before
    assert len(bench.frontier.batches) == batches
    assert bench.scheduler.unsettled == 1, "what is not committed stays leased"


def test_a_deliberate_error_is_final_at_once() -> None:
    store = ListStore()
    bench = Bench(store)
    bench.seed("http://a/1")
    store.trouble["checkpoint"] = [DiskFull("no space")]
    with pytest.raises(DiskFull):
        bench.end()
    assert store.records == []
    assert store.calls.count("write") == 1


def test_a_store_that_cannot_go_back_is_not_written_again() -> None:
    store = ListStore()
    bench = Bench(store)
    bench.seed("http://a/1")
    store.trouble["checkpoint"] = [OSError("no")]
    store.trouble["recover"] = [OSError("nor that")]
    with pytest.raises(StoreFailed, match="recovered"):
        bench.end()
    assert store.calls.count("write") == 1, "a second write would be the batch twice"


def test_no_records_no_write() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("4xx")
    assert "write" not in bench.stores[0].calls
    assert TOKENS not in bench.last().notes


def test_stores_are_brought_to_their_tokens_before_any_gets_a_first_one() -> None:
    known, fresh = ListStore(), ListStore()
    known.records = [{"n": n} for n in range(5)]
    outputs = Outputs([NamedStore("known", known), NamedStore("fresh", fresh)], log=NullLog())
    packed = outputs.open(msgspec.msgpack.encode({"known": b"3", "gone": b"9"}))
    assert len(known.records) == 3
    assert tokens_of(packed) == {"known": b"3", "fresh": b"0", "gone": b"9"}
    assert fresh.calls == ["open", "checkpoint"]
    later = outputs.write([{"n": 9}])
    assert tokens_of(later) == {"known": b"4", "fresh": b"1", "gone": b"9"}


def test_every_opened_store_is_closed_though_one_fails_to() -> None:
    first, second = ListStore(), ListStore()
    outputs = Outputs([NamedStore("1", first), NamedStore("2", second)], log=NullLog())
    outputs.open(None)
    first.trouble["close"] = [OSError("no")]
    outputs.close()
    outputs.close()
    assert first.calls[-1] == second.calls[-1] == "close"
    assert second.calls.count("close") == 1


# -- counters ---------------------------------------------------------------------------------


def mixed_run(bench: Bench) -> None:
    bench.seed(*(f"http://a/{n}" for n in range(8)), "http://b/")
    for outcome in ("2xx", "4xx", "5xx", "throttled", "robots", "redirect", "2xx", "duplicate"):
        more: dict[str, Any] = {}
        if outcome == "redirect":
            more = {"target": "http://b/t", "hops": 1}
        if outcome == "robots":
            more = {"dropped": "robots"}
        bench.end(outcome, wire_bytes=10, length=20, **more)


def test_life_and_run_agree_in_a_first_run() -> None:
    bench = Bench()
    mixed_run(bench)
    life, run = bench.ledger.life, bench.ledger.run
    assert life.numbers() == run.numbers()
    assert life.groups() == run.groups()
    assert sum(life.outcomes.values()) == life.requests == 8
    packed = bench.frontier.note(LIFE)
    assert packed is not None
    assert msgspec.msgpack.decode(packed, type=Totals) == life


def test_life_goes_on_in_a_second_run_and_the_run_begins_anew() -> None:
    first = Bench()
    mixed_run(first)
    hosts = [(key[5:], packed) for key, packed in first.frontier.notes("host/")]
    second = Bench(life=first.frontier.note(LIFE), hosts=hosts)
    second.seed("http://c/")
    second.end()
    assert second.ledger.life.pages == 3
    assert second.ledger.run.pages == 1
    assert second.ledger.life.requests == 9
    assert second.ledger.run.requests == 1
    by_host = second.ledger.snapshot()["hosts"]
    assert sum(host["pages"] for host in by_host.values()) == 3


def test_the_sums_of_the_hosts_are_the_whole() -> None:
    bench = Bench()
    mixed_run(bench)
    hosts = bench.ledger.hosts.values()
    assert sum(host.pages for host in hosts) == bench.ledger.life.pages
    assert sum(sum(host.outcomes.values()) for host in hosts) == 8


def test_a_snapshot_shares_nothing_that_changes() -> None:
    bench = Bench()
    mixed_run(bench)
    before = bench.ledger.snapshot()
    frozen = msgspec.json.encode(before)
    bench.end("4xx")
    assert msgspec.json.encode(before) == frozen


def test_the_backlog_is_fed_as_places_become_free() -> None:
    bench = Bench()
    bench.seed(*(f"http://h{n}/{m}" for n in range(150) for m in range(2)))
    done = 0
    while bench.scheduler.has_ready:
        bench.end()
        done += 1
    assert done == 300


def test_numbers_for_other_threads_are_replaced_not_changed() -> None:
    bench = Bench()
    bench.seed("http://a/1", "http://a/2")
    bench.committer.publish(every=0.0)
    before = bench.committer.pending
    assert before == {"a": 2}
    bench.end()
    bench.committer.publish(every=0.0)
    assert before == {"a": 2}
    assert bench.committer.pending == {"a": 1}


# -- known faults, not this file's to mend ----------------------------------------------------


def test_a_first_attempt_is_one_first_attempt() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("4xx")
    assert bench.ledger.hosts["a"].first_attempts == 1


def test_refusals_spend_no_retry_budget_in_the_next_run_either() -> None:
    bench = Bench(start=64)
    bench.seed(*(f"http://a/{n}" for n in range(20)))
    leases = [bench.lease() for _ in range(16)]
    batch = [bench.parsed(lease, "throttled", retry_after=1.0) for lease in leases]
    bench.step(*batch)
    packed = bench.frontier.note("host/a")
    assert packed is not None
    resumed = Ledger(0.1)
    resumed.load(None, [("a", packed)])
    assert bench.ledger.hosts["a"].spent == 0
    assert resumed.hosts["a"].spent == 0


def test_our_own_pressure_says_nothing_about_a_hosts_health() -> None:
    bench = Bench()
    bench.seed("http://a/")
    bench.end("pressure")
    assert bench.ledger.hosts["a"].health == 1.0


def test_going_round_is_not_a_first_attempt() -> None:
    bench = Bench()
    bench.seed("http://a/")
    for _ in range(5):
        bench.end("stale")
        bench.ripen()
    assert bench.ledger.hosts["a"].first_attempts <= 1


def test_what_was_not_committed_is_not_counted() -> None:
    store = ListStore()
    bench = Bench(store)
    bench.seed("http://a/1")
    store.trouble["write"] = [OSError("no")] * 3
    with pytest.raises(StoreFailed):
        bench.end()
    assert bench.ledger.life.pages == 0


def test_a_pause_that_came_with_robots_is_durable_too() -> None:
    bench = Bench()
    bench.scheduler.windows.offer("a", [], [entry("http://a/1")], more=False)
    lease = bench.lease()
    assert lease.job is not None
    bench.scheduler.release(lease, "throttled", retry_after=500.0)
    bench.scheduler.settle(lease, page=False)
    bench.scheduler.give_credit()
    bench.scheduler.robots_failed(lease.job, "throttled")
    bench.step()
    packed = bench.frontier.note("host/a")
    assert packed is not None
    assert msgspec.msgpack.decode(packed, type=HostTotals).paused_until > bench.clock.wall()


# -- seeds ---------------------------------------------------------------------------------


def read_seeds(*files: str, seeds: tuple[str, ...] = ()) -> SeedReader:
    return SeedReader(
        CrawlConfig(seeds=seeds, seed_files=files),
        canonicalizer=CANON,
        scope=Scope(ScopeConfig(), ()),
        on_chunk=lambda: None,
        log=NullLog(),
    )


def drained(reader: SeedReader) -> list[Chunk]:
    """All chunks of a reader that has been started."""
    chunks: list[Chunk] = []
    limit = time.monotonic() + 10.0
    while not reader.ended:
        assert time.monotonic() < limit, "the reader does not end"
        chunk = reader.take()
        if chunk is None:
            threading.Event().wait(0.001)
        else:
            chunks.append(chunk)
    return chunks


def test_seeds_come_from_everywhere_and_make_their_hosts_followed(tmp_path: Path) -> None:
    many = tmp_path / "many.txt"
    lines = [f"http://h{n}/" for n in range(1_200)]
    many.write_text("\ufeff# comment\n\n" + "\n".join(lines) + "\nno url\n", encoding="utf-8")
    marked = tmp_path / "marked.txt"
    marked.write_text("\ufeffhttp://first/\r\n", encoding="utf-8")
    reader = read_seeds(str(many), str(marked), seeds=("http://a/",))
    reader.start()
    chunks = drained(reader)
    urls = [e.url for chunk in chunks for e in chunk.entries]
    assert urls == ["http://a/", *lines, "http://first/"]
    assert sum(chunk.refused.get("invalid", 0) for chunk in chunks) == 1
    assert all(e.seed and e.priority == SEED_PRIORITY for c in chunks for e in c.entries)
    assert {"a", "h0", "h1199", "first"} <= reader.hosts


def test_a_seed_on_standard_input_is_there_before_the_next_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: queue.Queue[str | None] = queue.Queue()
    monkeypatch.setattr("sys.stdin", iter(lines.get, None))
    reader = read_seeds("-")
    reader.start()
    for n in range(3):
        lines.put(f"http://a/{n}\n")
        limit = time.monotonic() + 10.0
        while (chunk := reader.take()) is None:
            assert time.monotonic() < limit, "the line is held back"
            threading.Event().wait(0.001)
        assert [e.url for e in chunk.entries] == [f"http://a/{n}"]
    assert not reader.ended
    lines.put(None)
    assert drained(reader) == []


@pytest.mark.parametrize("stdin", [None, "undecodable"])
def test_an_input_that_cannot_be_read_is_an_error_not_an_end(
    stdin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[str]:
        yield "http://a/\n"
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr("sys.stdin", broken() if stdin else None)
    reader = read_seeds("-")
    reader.start()
    with pytest.raises(ConfigError) as caught:
        drained(reader)
    assert (caught.value.key, caught.value.exit_code) == ("crawl.seed_files", 2)
    assert not reader.ended


def test_a_reader_that_is_stopped_ends_though_nobody_takes(tmp_path: Path) -> None:
    endless = tmp_path / "many.txt"
    endless.write_text("".join(f"http://a/{n}\n" for n in range(20_000)))
    reader = read_seeds(str(endless))
    reader.start()
    limit = time.monotonic() + 10.0
    while not reader.ready:
        assert time.monotonic() < limit
        threading.Event().wait(0.001)
    reader.stop()
    reader._thread.join(10.0)
    assert not reader._thread.is_alive()


def test_whoever_looks_in_between_counts_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at before every line of a step: the commit's time grows once, and never falls."""
    bench = Bench()
    bench.seed("http://a/")
    item = bench.parsed(bench.lease())
    looks = [bench.committer.busy_until(bench.clock.monotonic())]
    began = bench.clock.monotonic()
    commit = bench.frontier.commit

    def slow(batch: Batch) -> set[str]:
        bench.clock.advance(2.0)
        return commit(batch)

    monkeypatch.setattr(bench.frontier, "commit", slow)

    def look(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Committer.step.__code__:
            looks.append(bench.committer.busy_until(bench.clock.monotonic()))
            return look
        return None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        bench.committer.step([item])
    finally:
        sys.settrace(before)
    passed = bench.clock.monotonic() - began
    assert passed == 2.0
    assert looks == sorted(looks)
    assert max(looks) - looks[0] == passed
    assert bench.committer.busy_seconds - looks[0] == passed


@pytest.mark.parametrize("call", ["open", "recover"])
@pytest.mark.parametrize("error", [OSError("no such share"), SystemExit(5)])
def test_a_store_that_cannot_be_opened_is_named(call: str, error: BaseException) -> None:
    store = ListStore()
    store.trouble[call] = [error]
    outputs = Outputs([NamedStore("mine:out", store)], log=NullLog())
    with pytest.raises(StoreFailed, match=f"mine:out cannot be opened: {type(error).__name__}"):
        outputs.open(msgspec.msgpack.encode({"mine:out": b"0"}))
