"""robots.txt as the engine sees it: fetched once per origin, kept, applied.

`RobotsStep.run` and `sort_out` run on fetch threads (the commit thread also sorts);
nobody waits on a lock for an answer: the scheduler offers nothing of an origin until
its rules are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from syncrawl.api import ChallengeRecogniser, Response, RobotsEngine, RobotsRules
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.hosts import RobotsJob
from syncrawl.engine.lease import Lease
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.watch import WorkWatch
from syncrawl.errors import FetchError
from syncrawl.fetch.challenge import Challenges
from syncrawl.fetch.gateway import GatewayError
from syncrawl.fetch.robots import RobotsEntry, rules_for_status
from syncrawl.fetch.target import location
from syncrawl.frontier.model import Entry, host_of, origin_of
from syncrawl.limits.retry import RetryPolicy
from syncrawl.limits.signals import outcome_of_error, outcome_of_status
from syncrawl.log import Log
from syncrawl.urls import Canonicalizer

# RFC 9309 section 2.3.1.2: at least five consecutive redirects are followed.
_MAX_HOPS = 5


class Getter(Protocol):
    """One request on a lease's slot; see fetching.Exchanger."""

    def get(self, lease: Lease, url: str, *, max_bytes: int = 0) -> Response: ...


class RobotsStep:
    """Turns a robots lease into rules for its origin, or into a later try."""

    def __init__(
        self,
        config: Config,
        *,
        engine: RobotsEngine,
        scheduler: Scheduler,
        exchanger: Getter,
        canonicalizer: Canonicalizer,
        budget: ByteBudget,
        retry: RetryPolicy,
        clock: Clock,
        log: Log,
        queue_of: Callable[[str], str],
        on_notes: Callable[[], None],
        denied: Callable[[str], bool],
        watch: WorkWatch,
        route: RouteWatch,
        recognisers: Sequence[tuple[str, ChallengeRecogniser]] = (),
    ) -> None:
        self._config = config.robots
        self._user_agent = config.crawl.user_agent
        self._engine = engine
        self._scheduler = scheduler
        self._exchanger = exchanger
        self._canonicalizer = canonicalizer
        self._budget = budget
        self._retry = retry
        self._clock = clock
        self._log = log
        self._queue_of = queue_of
        self._denied = denied
        self._on_notes = on_notes
        self._watch = watch
        self._route = route
        self._challenges = Challenges(recognisers, log)

    def run(self, lease: Lease) -> bool:
        """Make the exchange of a robots lease and settle it; False where the watch has done so."""
        job = lease.job
        assert job is not None
        outcome = "internal"
        retry_after = None
        moved: RobotsJob | None = None
        kept: RobotsEntry | None = None
        try:
            response, moved = self._get(lease, job)
            outcome = self._outcome(response)
            if response is not None and outcome in ("throttled", "challenge"):
                value = response.headers.get("retry-after")
                retry_after = self._retry.retry_after(value, self._clock.wall())
            # A challenge says nothing of the rules, whatever its status.
            if response is not None and outcome != "challenge":
                kept = RobotsEntry(
                    origin=job.origin,
                    fetched_at=self._clock.wall(),
                    status=response.status,
                    body=response.body if outcome == "2xx" else b"",
                )
            self._route.note(outcome, "", final=False)
        except FetchError as exc:
            outcome = outcome_of_error(exc)
            if isinstance(exc, GatewayError):
                retry_after = self._retry.retry_after(exc.retry_after, self._clock.wall())
            self._route.note(outcome, exc.message, final=not exc.retryable, retry_after=retry_after)
            self._log.info(
                "robots.txt unreachable", origin=job.origin, outcome=outcome, why=exc.message
            )
        except BaseException as exc:  # noqa: BLE001 - one bad item never ends a worker
            self._log.error("robots step failed", origin=job.origin, error=repr(exc))
        if not self._watch.end():
            # The watch has settled the lease in this worker's place.
            self._budget.release([lease.ticket])
            return False
        # An answer to robots.txt shows a live host; it does not raise the limit.
        signal = "304" if outcome == "2xx" else outcome
        self._scheduler.release(lease, signal, retry_after=retry_after)
        self._scheduler.settle(lease, page=False)
        self._scheduler.give_credit()
        try:
            self._apply(job, outcome, moved, kept)
        except BaseException as exc:  # noqa: BLE001 - an engine is a plugin, may raise anything
            self._log.error("robots rules failed", origin=job.origin, error=repr(exc))
            self._scheduler.robots_failed(job, "internal")
        return True

    def load(self, packed: bytes) -> RobotsRules | None:
        """Rules kept by an earlier run, put in force; None where they are too old or unusable."""
        try:
            entry = RobotsEntry.decode(packed)
        except ValueError:
            self._log.warning("a kept robots.txt cannot be read; it is fetched again")
            return None
        now = self._clock.wall()
        if not entry.fresh(now, self._config.cache_seconds):
            return None
        rules = self._rules(entry)
        if rules is not None:
            age = now - entry.fetched_at
            self._enforce(entry.origin, rules, self._config.cache_seconds - age)
        return rules

    def sort_out(
        self,
        entries: Iterable[Entry],
        *,
        more: bool | None = None,
        best_cold: int | None = None,
    ) -> None:
        """Offer entries (of one host) to the scheduler: allowed, disallowed, or not known yet."""
        waiting = list(entries)
        if not waiting:
            return
        key = self._queue_of(host_of(waiting[0].request_url))
        while waiting:
            ready, unknown, dropped = self._split(waiting)
            waiting = self._scheduler.windows.offer(
                key, ready, unknown, more=more, best_cold=best_cold
            )
            if dropped:
                self._scheduler.drop(dropped, "robots")
                self._on_notes()

    def _split(self, entries: list[Entry]) -> tuple[list[Entry], list[Entry], list[Entry]]:
        if not self._config.obey:
            return entries, [], []
        ready: list[Entry] = []
        unknown: list[Entry] = []
        dropped: list[Entry] = []
        known: dict[str, RobotsRules | None] = {}
        for entry in entries:
            url = entry.request_url
            origin = origin_of(url)
            if origin not in known:
                known[origin] = self._scheduler.rules_of(url)
            rules = known[origin]
            if rules is None:
                unknown.append(entry)
            elif self._allowed(rules, url):
                ready.append(entry)
            else:
                dropped.append(entry)
        return ready, unknown, dropped

    def _allowed(self, rules: RobotsRules, url: str) -> bool:
        try:
            return rules.allowed(url)
        except BaseException as exc:  # noqa: BLE001 - a plugin's; this may be the commit thread
            self._log.error("robots rules failed; the URL is left out", url=url, error=repr(exc))
            return False

    def _get(self, lease: Lease, job: RobotsJob) -> tuple[Response | None, RobotsJob | None]:
        """The final answer, or where another gate has to ask for it."""
        url, hops = job.url, job.hops
        while True:
            response = self._exchanger.get(lease, url, max_bytes=self._config.max_bytes)
            if not 300 <= response.status < 400:
                return response, None
            where = location(response, url)
            target = self._canonicalizer.parse(where) if where else None
            hops += 1
            if target is None or hops > _MAX_HOPS or self._denied(target.host):
                return response, None
            if not self._scheduler.readmit(lease, target.spelling):
                return None, RobotsJob(job.origin, target.spelling, hops)
            url = target.spelling

    def _outcome(self, response: Response | None) -> str:
        if response is None:
            return "redirect"
        if self._challenges.name_of(response) is not None:
            return "challenge"
        return outcome_of_status(response.status)

    def _apply(
        self, job: RobotsJob, outcome: str, moved: RobotsJob | None, kept: RobotsEntry | None
    ) -> None:
        if moved is not None:
            self._scheduler.robots_moved(moved)
            return
        rules = self._rules(kept) if kept is not None else None
        if rules is None or kept is None:
            if kept is not None:
                # What could not be fetched at all was told by who tried.
                self._log.info("robots.txt unavailable", origin=job.origin, outcome=outcome)
            self._scheduler.robots_failed(job, outcome)
            self._on_notes()
            return
        self._scheduler.keep_robots(job.origin, kept.encode())
        self._enforce(job.origin, rules, self._config.cache_seconds)
        self._on_notes()

    def _rules(self, entry: RobotsEntry) -> RobotsRules | None:
        return rules_for_status(
            entry.status, entry.body, self._engine, self._user_agent, self._config.max_bytes
        )

    def _enforce(self, origin: str, rules: RobotsRules, seconds: float) -> None:
        delay = rules.crawl_delay or 0.0
        if delay > self._config.max_crawl_delay:
            self._log.warning(
                "Crawl-delay is longer than robots.max_crawl_delay; the host is crawled at that",
                origin=origin,
                crawl_delay=delay,
                used=self._config.max_crawl_delay,
            )
            delay = self._config.max_crawl_delay
        expires_at = self._clock.monotonic() + seconds
        self.sort_out(self._scheduler.rules_known(origin, rules, delay, expires_at))
