"""The parts of a crawl, built from a configuration and wired together.

`Rooms` is built on the caller's thread, `Rooms.open` and `Rooms.close` on the commit thread,
which alone touches the frontier's files and the stores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from syncrawl import registry
from syncrawl.api import Fetcher
from syncrawl.clock import Clock
from syncrawl.config.model import BUILT_IN_STORES, Config, StoreConfig
from syncrawl.engine.addresses import AddressStep
from syncrawl.engine.bounds import Bounds
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.commit import BODIES, FOLLOWED, HOST, LIFE, TOKENS, Committer
from syncrawl.engine.feeder import Feeder
from syncrawl.engine.fetching import Exchanger, FetchStep
from syncrawl.engine.gates import GateKeys, HostMaker, route_limit
from syncrawl.engine.inbox import CommitInbox
from syncrawl.engine.lease import Fetched
from syncrawl.engine.ledger import Ledger
from syncrawl.engine.outputs import NamedStore, Outputs, tokens_of
from syncrawl.engine.parsing import LinkMemo, NamedParser, ParseStep
from syncrawl.engine.robots import RobotsStep
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.seeds import SeedReader
from syncrawl.engine.shedding import Shedder
from syncrawl.engine.watch import WorkWatch
from syncrawl.errors import StateMismatch
from syncrawl.fetch.gateway import Gateway
from syncrawl.frontier.disk import DiskFrontier
from syncrawl.frontier.model import Batch
from syncrawl.frontier.seen import SeenSet
from syncrawl.limits.retry import RetryPolicy
from syncrawl.log import Log
from syncrawl.observe.metrics import MeteredQueue
from syncrawl.parse.keeper import ChildKeeper
from syncrawl.scope import Scope
from syncrawl.store.files import real_path
from syncrawl.urls import Canonicalizer, fingerprint

FRONTIER_DIR = "frontier"
# More rows of body hashes than this are merged when a state is opened.
_BODY_ROWS = 256


class Rooms:
    """Everything one run is made of. `open` must have returned before a worker starts.

    Raises ConfigError or PluginError for what cannot be built.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        log: Log,
        end_with: Callable[[int, str], None],
    ) -> None:
        self.config = config
        self.clock = clock
        self.log = log
        rng = random.Random()
        keys = GateKeys(config)
        self.canonicalizer = Canonicalizer(config.scope.tracking_parameters)
        seeds = [url for seed in config.crawl.seeds if (url := self.canonicalizer.parse(seed))]
        self._seed_urls = seeds
        self.scope = Scope(config.scope, seeds)
        self.retry = RetryPolicy(config.retry, rng)
        self.ledger = Ledger(config.retry.budget_ratio)
        self.budget = ByteBudget(config.queues.max_bytes, clock)
        bound = config.queues.bound(config.fetch.workers)
        # Filled by fetch threads, emptied by parse threads. A lease takes a credit of its
        # bound, so the put never blocks; the end marks of the parse workers come on top.
        self.fetched: MeteredQueue[Fetched | None] = MeteredQueue(
            bound + config.parse.threads, clock
        )
        self.inbox = CommitInbox(bound, clock)
        self.frontier = DiskFrontier(
            Path(config.crawl.state_dir) / FRONTIER_DIR,
            clock=clock,
            queue_of=keys.queue_of,
            fingerprint_rules=self.canonicalizer.rules_id,
            track_depth=config.scope.max_depth is not None,
            power=config.crawl.durability == "power",
        )
        maker = HostMaker(config, self.ledger.hosts, clock=clock, rng=rng)
        self.scheduler = Scheduler(
            config,
            clock=clock,
            budget=self.budget,
            new_host=maker.new_host,
            queue_of=keys.queue_of,
            on_wanted=self.inbox.wake,
            rng=rng,
            new_gate=maker.new_gate,
            route=route_limit(config),
        )
        self.seeds = SeedReader(
            config.crawl,
            canonicalizer=self.canonicalizer,
            scope=self.scope,
            on_chunk=self.inbox.wake,
            log=log,
        )
        self.outputs = Outputs(
            [_store(store, config.crawl.durability) for store in config.stores], log=log
        )
        self.fetcher: Fetcher = registry.construct(
            "fetchers", config.fetch.client, msgspec.to_builtins(config.fetch)
        )

        self.watch = WorkWatch(clock)
        self.route = RouteWatch(
            resume_after=config.gateway.resume_after,
            hold=self.scheduler.hold,
            end_with=end_with,
            log=log,
        )
        recognisers = [
            (name, registry.construct("challenges", name, {})) for name in config.fetch.challenges
        ]
        exchanger = Exchanger(
            config,
            fetcher=self.fetcher,
            scheduler=self.scheduler,
            budget=self.budget,
            clock=clock,
            seed_hosts=self.seeds.hosts,
            watch=self.watch,
            gateway=Gateway(config.gateway) if config.gateway.url else None,
        )
        self.robots = RobotsStep(
            config,
            engine=registry.construct("robots", config.robots.engine, {}),
            scheduler=self.scheduler,
            exchanger=exchanger,
            canonicalizer=self.canonicalizer,
            budget=self.budget,
            retry=self.retry,
            clock=clock,
            log=log,
            queue_of=keys.queue_of,
            denied=self.scope.denied_host,
            on_notes=self.inbox.wake,
            watch=self.watch,
            route=self.route,
            recognisers=recognisers,
        )
        self.fetch = FetchStep(
            config,
            scheduler=self.scheduler,
            exchanger=exchanger,
            robots=self.robots,
            canonicalizer=self.canonicalizer,
            scope=self.scope,
            seen=self.frontier.seen,
            budget=self.budget,
            retry=self.retry,
            clock=clock,
            sink=self.fetched,
            log=log,
            watch=self.watch,
            route=self.route,
            recognisers=recognisers,
            addresses=AddressStep(
                config.fetch,
                scheduler=self.scheduler,
                budget=self.budget,
                watch=self.watch,
                clock=clock,
                log=log,
            ),
        )
        self._memo = LinkMemo()
        # Every parse worker there has been: those that were replaced are among them.
        self.parse: list[ParseStep] = []
        for _ in range(config.parse.threads):
            self.new_parse_step()
        self._keys = keys
        self._bounds = Bounds(config)
        self.committer: Committer

    def new_parse_step(self) -> ParseStep:
        """What one more parse worker runs, with parsers of its own."""
        config = self.config
        options = dict(config.parse.options)
        # Rules on a page may name a crawler; the built-in parser has to know who we are.
        options["page"] = {"agent": config.crawl.user_agent, **options.get("page", {})}
        parsers = [
            NamedParser(name, registry.construct("parsers", name, options.get(name, {})))
            for name in config.parse.parsers
        ]
        child = None
        if config.parse.processes:
            # The parsers above stay idle: making them here tells of bad options at the start.
            child = ChildKeeper(
                config.parse.parsers,
                options,
                max_items=config.parse.max_items,
                deadline=config.parse.deadline,
                clock=self.clock,
                log=self.log,
            )
        step = ParseStep(
            config,
            child=child,
            parsers=parsers,
            canonicalizer=self.canonicalizer,
            memo=self._memo,
            scope=self.scope,
            seen=self.frontier.seen,
            source=self.fetched,
            sink=self.inbox,
            give_credit=self.scheduler.give_credit,
            watch=self.watch,
            clock=self.clock,
            log=self.log,
        )
        self.parse.append(step)
        return step

    # -- the commit thread --------------------------------------------------------------

    def open(self) -> None:
        """Load the state and bring the stores to where it says they were."""
        frontier = self.frontier
        existed = frontier.open()
        tokens = frontier.note(TOKENS)
        if existed:
            self._check_ours(tokens)
        else:
            for path in self.outputs.grown_without_state():
                self.log.warning("output is not empty and there is no state: appending", path=path)
        packed = frontier.note(FOLLOWED)
        followed = msgspec.msgpack.decode(packed, type=list[str]) if packed else []
        if self.config.scope.follow != "any":
            self.scope.restore(followed)
        hosts = [(key[len(HOST) :], packed) for key, packed in frontier.notes(HOST)]
        self.ledger.load(frontier.note(LIFE), hosts)
        self.scheduler.resume(self.ledger.life.pages)
        body_row = self._load_bodies()
        first = frontier.next_bundle
        opened = self.outputs.open(tokens)
        if opened != tokens:
            frontier.commit(Batch(notes={TOKENS: opened}))
        feeder = Feeder(
            frontier=frontier,
            windows=self.scheduler.windows,
            robots=self.robots,
            ledger=self.ledger,
            scope=self.scope,
            canonicalizer=self.canonicalizer,
            clock=self.clock,
            log=self.log,
            cap=self.config.scope.max_pages_per_host,
            first_bundle=first,
        )
        self.committer = Committer(
            frontier=frontier,
            outputs=self.outputs,
            scheduler=self.scheduler,
            feeder=feeder,
            shedder=Shedder(self.config.shed, frontier, lambda: feeder.set_apart),
            seeds=self.seeds,
            ledger=self.ledger,
            retry=self.retry,
            queue_of=self._keys.queue_of,
            clock=self.clock,
            log=self.log,
            body_row=body_row,
            followed=followed,
        )

    def adjust(self) -> None:
        """Let the queues hold what their stages work off in time, by the pace measured so far."""
        now = self.clock.monotonic()
        if not self._bounds.due(now):
            return
        self._bounds.note_parse(
            sum(step.items for step in self.parse), sum(step.busy_seconds for step in self.parse)
        )
        self._bounds.note_commit(self.committer.items, self.committer.busy_seconds)
        items = self._bounds.fetched(self.scheduler.usual_seconds)
        self.scheduler.set_bound(items)
        self.inbox.set_bound(self._bounds.inbox())

    def close(self) -> None:
        """Let go of stores and state; both are already sound."""
        self.outputs.close()
        self.frontier.close()

    def close_fetcher(self) -> None:
        """Let go of connections; what a plugin raises here is told about and left."""
        try:
            self.fetcher.close()
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - a plugin may raise anything
            self.log.error("fetcher failed to close", error=repr(exc))

    def _check_ours(self, tokens: bytes | None) -> None:
        """Refuse a state that shares neither a seed nor an output with this configuration."""
        known = set(tokens_of(tokens))
        if not known or known & self.outputs.keys or not self._seed_urls:
            return
        if any(fingerprint(url.key) in self.frontier.seen for url in self._seed_urls):
            return
        raise StateMismatch(
            "holds the state of another crawl (none of its seeds and outputs are this one's)",
            key="crawl.state_dir",
            value=self.config.crawl.state_dir,
            remedy="choose another state_dir, or start over with --fresh",
        )

    def _load_bodies(self) -> int:
        rows = list(self.frontier.notes(BODIES))
        for _, packed in rows:
            self.ledger.add_bodies(SeenSet.unpack(packed))
        last = max((int(key[len(BODIES) :]) for key, _ in rows), default=0)
        if len(rows) > _BODY_ROWS:
            merged: dict[str, bytes] = dict.fromkeys((key for key, _ in rows), b"")
            merged[f"{BODIES}{last + 1}"] = b"".join(packed for _, packed in rows)
            self.frontier.commit(Batch(notes=merged))
            last += 1
        return last

    def __repr__(self) -> str:
        return f"<{self.scheduler!r}, {self.frontier!r}, {self.budget!r}>"


def _store(config: StoreConfig, durability: str) -> NamedStore:
    options: Mapping[str, Any] = config.options
    if config.path:
        options = {"path": config.path, **options}
    if config.type in BUILT_IN_STORES:
        # What the state survives its outputs must, or it would miss what they have lost.
        options = {"durability": durability, **options}
    store = registry.construct("stores", config.type, options)
    return NamedStore(f"{config.type}:{real_path(options)}", store)
