"""The fetch stage's step: pull a lease, make the exchange, give the slot back, hand on.

One instance, run by every fetch thread. Knows the scheduler, the fetcher and the pure
rules (canonical URLs, scope); never the frontier's files, never a store.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from syncrawl.api import ChallengeRecogniser, Fetcher, Headers, Request, Response
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.addresses import AddressStep
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.lease import Fetched, Lease
from syncrawl.engine.robots import RobotsStep
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.watch import GRACE, WorkWatch
from syncrawl.errors import FetchError
from syncrawl.fetch.challenge import Challenges
from syncrawl.fetch.gateway import Gateway, GatewayError
from syncrawl.fetch.robots import ALLOW_ALL
from syncrawl.fetch.target import location
from syncrawl.frontier.model import host_of
from syncrawl.frontier.seen import SeenSet
from syncrawl.limits.retry import RetryPolicy
from syncrawl.limits.signals import outcome_of_error, outcome_of_status
from syncrawl.log import Log
from syncrawl.scope import Scope
from syncrawl.urls import Canonicalizer, fingerprint


class Sink(Protocol):
    """Where results go; with a credit in hand the put never blocks."""

    def put(self, item: Fetched) -> None: ...


class Exchanger:
    """Makes single requests under a lease: deadline, address policy, memory bound."""

    def __init__(
        self,
        config: Config,
        *,
        fetcher: Fetcher,
        scheduler: Scheduler,
        budget: ByteBudget,
        clock: Clock,
        seed_hosts: Set[str],
        watch: WorkWatch,
        gateway: Gateway | None = None,
    ) -> None:
        self._watch = watch
        self.gateway = gateway
        self._fetcher = fetcher
        self._scheduler = scheduler
        self._budget = budget
        self._clock = clock
        self._timeout = config.fetch.total_timeout
        self._max_body = config.fetch.max_body_bytes
        self._private = config.fetch.private_addresses
        self._seed_hosts = seed_hosts
        headers = {"User-Agent": config.crawl.user_agent, **config.fetch.headers}
        self._headers = Headers(headers)

    def get(self, lease: Lease, url: str, *, max_bytes: int = 0) -> Response:
        """One GET of `url` on the lease's slot. Raises FetchError and nothing else.

        `max_bytes`, where given, cuts the body instead of failing it.
        """
        if lease.unresolved is not None:
            # Through a gate of its own it might reach a machine that has enough of us.
            raise lease.unresolved.with_traceback(None)
        ticket = lease.ticket
        ticket.deadline = self._clock.monotonic() + self._timeout
        self._watch.extend(self._timeout + GRACE)
        gateway = self.gateway
        request = Request(
            url=gateway.wrap(url) if gateway else url,
            deadline=ticket.deadline,
            max_body_bytes=max_bytes or self._max_body,
            headers=self._headers,
            # The gateway is the user's own choice; targets are not resolved here.
            allow_private=True if gateway else self._may_be_private(url),
            grow=lambda total: self._budget.grow(ticket, total),
            truncate=bool(max_bytes),
        )
        try:
            response = self._fetcher.fetch(request, lambda: self._scheduler.readmit(lease))
        except FetchError as exc:
            if gateway is None:
                raise
            raise gateway.blame(url, exc) from None
        except BaseException as exc:
            if gateway is None:
                raise
            # A fetch plugin's bug; its words may hold the gateway's URL, and with it the key.
            why = f"the fetcher raised {type(exc).__name__}"
            raise FetchError(why, outcome="internal", retryable=False, url=url) from None
        return gateway.unwrap(url, response) if gateway else response

    def _may_be_private(self, url: str) -> bool:
        if self._private == "seeds":
            return host_of(url) in self._seed_hosts
        return self._private == "allow"


class FetchStep:
    """One lease a step. The slot is given back before anything is handed on."""

    def __init__(
        self,
        config: Config,
        *,
        scheduler: Scheduler,
        exchanger: Exchanger,
        robots: RobotsStep,
        canonicalizer: Canonicalizer,
        scope: Scope,
        seen: SeenSet,
        budget: ByteBudget,
        retry: RetryPolicy,
        clock: Clock,
        sink: Sink,
        log: Log,
        watch: WorkWatch,
        route: RouteWatch,
        recognisers: Sequence[tuple[str, ChallengeRecogniser]] = (),
        addresses: AddressStep | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._exchanger = exchanger
        self._robots = robots
        self._canonicalizer = canonicalizer
        self._scope = scope
        self._seen = seen
        self._budget = budget
        self._retry = retry
        self._clock = clock
        self._sink = sink
        self._log = log
        self._watch = watch
        self._route = route
        self._challenges = Challenges(recognisers, log)
        self._addresses = addresses
        self._max_redirects = config.fetch.max_redirects
        self._obey = config.robots.obey

    def step(self) -> bool:
        """Do one lease; False once the scheduler is closed."""
        lease = self._scheduler.lease()
        if lease is None:
            return False
        self._watch.begin("fetch", lease, GRACE)
        if lease.entry is not None:
            return self._page(lease)
        if lease.job is not None:
            return self._robots.run(lease)
        assert self._addresses is not None
        return self._addresses.run(lease)

    def _page(self, lease: Lease) -> bool:
        """Fetch a page and hand it on; False where the watch has replaced this worker meanwhile."""
        fetched = Fetched(lease, "internal")
        try:
            self._fetch(fetched)
        except BaseException as exc:  # noqa: BLE001 - a plugin may raise SystemExit too
            # One bad item never ends a worker; signals are the main thread's alone.
            fetched.outcome = "internal"
            fetched.detail = f"{type(exc).__name__}: {exc}"
            self._log.error("fetch step failed", url=lease.url, error=fetched.detail)
        if not self._watch.end():
            self._budget.release([lease.ticket])
            return False
        response = fetched.response
        self._budget.finish_reading(lease.ticket, len(response.body) if response else 0)
        self._scheduler.release(
            lease, fetched.outcome, retry_after=fetched.retry_after, latency=fetched.latency
        )
        self._sink.put(fetched)
        self._route.note(
            fetched.outcome,
            fetched.detail,
            final=fetched.final,
            retry_after=fetched.retry_after,
        )
        return True

    def _fetch(self, result: Fetched) -> None:
        """Fetch the lease's URL and follow redirects as far as this slot may."""
        lease = result.lease
        entry = lease.entry
        assert entry is not None
        url = lease.url
        result.hops = entry.hops
        started = self._clock.monotonic()
        while True:
            result.final_url = url
            # What was asked for last is where a retry goes on.
            result.target = url if url != entry.url else None
            try:
                response = self._exchanger.get(lease, url)
            except FetchError as exc:
                result.outcome = outcome_of_error(exc)
                result.detail = exc.message
                result.final = not exc.retryable
                result.wire_bytes += exc.wire_bytes
                if isinstance(exc, GatewayError):
                    result.retry_after = self._retry_after(exc.retry_after)
                    result.final |= not Gateway.may_be_asked_again(exc.outcome, entry.attempts)
                break
            result.wire_bytes += response.wire_bytes
            result.latency = response.latency
            target = location(response, url) if 300 <= response.status < 400 else None
            if target is None:
                self._conclude(result, response)
                break
            next_url = self._follow(result, url, target)
            if next_url is None:
                break
            url = next_url
        result.elapsed = self._clock.monotonic() - started
        result.fetched_at = self._clock.wall()

    def _conclude(self, result: Fetched, response: Response) -> None:
        result.outcome = outcome_of_status(response.status)
        result.detail = str(response.status)
        gateway = self._exchanger.gateway
        result.final = gateway is not None and gateway.has_tried(response.status)
        challenge = self._challenges.name_of(response)
        if challenge is not None:
            result.outcome, result.detail = "challenge", challenge
        if result.is_page:
            result.response = response
        elif result.outcome in ("throttled", "challenge"):
            result.retry_after = self._retry_after(response.headers.get("retry-after"))

    def _retry_after(self, value: str | None) -> float | None:
        return self._retry.retry_after(value, self._clock.wall())

    def _follow(self, result: Fetched, url: str, location: str) -> str | None:
        """The URL to ask for next on this slot, or None with the outcome in `result`."""
        entry = result.lease.entry
        assert entry is not None
        source = self._canonicalizer.parse(url)
        target = self._canonicalizer.parse(location)
        if result.hops >= self._max_redirects:
            result.outcome, result.detail = "redirect_limit", location
            return None
        if target is None or source is None:
            result.outcome, result.detail = "redirect_bad", location
            return None
        if target.spelling == url:
            result.outcome = "redirect_loop"
            return None
        if entry.seed:
            result.followed.extend(self._scope.extend([target]))
            reason = self._scope.refuse_seed(target)
        else:
            reason = self._scope.refuse(target, entry.depth)
        if reason is not None:
            result.outcome, result.dropped = "redirect_scope", f"redirect_{reason}"
            return None
        claims = target.key != source.key
        if claims and not self._claim(result, fingerprint(target.key)):
            return None
        if not self._watch.note(_so_far(result, target.spelling)):
            # The worker is given up, and who settles the page knows nothing of this hop.
            if claims:
                self._seen.release([result.aliases.pop()])
            result.outcome = "lost"
            return None
        rules = self._scheduler.rules_of(target.spelling) if self._obey else ALLOW_ALL
        if rules is not None and not rules.allowed(target.spelling):
            result.outcome, result.dropped = "robots", "robots"
            return None
        result.hops += 1
        if rules is not None and self._scheduler.readmit(result.lease, target.spelling):
            return target.spelling
        # Another gate's business, or not now: it goes back to the frontier.
        result.outcome, result.target = "redirect", target.spelling
        return None

    def _claim(self, result: Fetched, fp: int) -> bool:
        """Reserve a redirect's target; False with the outcome in `result` where it is known."""
        entry = result.lease.entry
        assert entry is not None
        if fp == entry.fp or fp in result.aliases:
            result.outcome = "redirect_loop"
        elif not self._seen.claim(fp):
            result.outcome = "duplicate"
        else:
            result.aliases.append(fp)
            return True
        return False


def _so_far(result: Fetched, target: str) -> Fetched:
    """A copy of `result` for whoever has to settle the page should this worker hang at `target`."""
    return Fetched(
        result.lease,
        "lost",
        target=target,
        hops=result.hops + 1,
        aliases=[*result.aliases],
        followed=[*result.followed],
        wire_bytes=result.wire_bytes,
    )
