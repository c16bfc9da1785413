"""The fetch stage's step: hops on one slot, hops that go elsewhere, and a slot given back once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl.api import ChallengeRecogniser, Headers, Request, Response
from syncrawl.config.model import (
    Config,
    CrawlConfig,
    FetchConfig,
    GatewayConfig,
    HostConfig,
    ScopeConfig,
)
from syncrawl.engine.budget import RESERVATION, ByteBudget
from syncrawl.engine.fetching import Exchanger, FetchStep
from syncrawl.engine.gates import HostMaker
from syncrawl.engine.lease import Fetched
from syncrawl.engine.route import RouteWatch
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.watch import Stuck, WorkWatch
from syncrawl.errors import FetchError
from syncrawl.fetch.challenge import known_challenges
from syncrawl.fetch.gateway import Gateway
from syncrawl.fetch.robots import ALLOW_ALL, protego_engine
from syncrawl.frontier.model import Entry, host_of
from syncrawl.frontier.seen import SeenSet
from syncrawl.limits.retry import RetryPolicy
from syncrawl.limits.signals import outcome_of_status
from syncrawl.log import Log, NullLog
from syncrawl.scope import Scope
from syncrawl.testing.clock import FakeClock
from syncrawl.urls import Canonicalizer, Url, fingerprint

CANON = Canonicalizer(())
AGENT = "bot/1.0 (+http://bot.example/)"


def url(text: str) -> Url:
    found = CANON.parse(text)
    assert found is not None
    return found


def fp(text: str) -> int:
    return fingerprint(url(text).key)


def answer(status: int, body: str = "", **headers: str) -> Response:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Response("", status, Headers(pairs), body.encode(), 0.01, 0.02, wire_bytes=10)


def moved(where: str, status: int = 302) -> Response:
    return answer(status, location=where)


class TableFetcher:
    """Answers from a table: a Response, an exception to raise, or a call to make."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table
        self.requests: list[Request] = []
        self.during: Callable[[], None] = lambda: None

    @property
    def asked(self) -> list[str]:
        return [request.url for request in self.requests]

    def fetch(self, request: Request, on_stale: Callable[[], bool] | None = None) -> Response:
        self.requests.append(request)
        self.during()
        found = self.table[request.url]
        if callable(found):
            found = found(request, on_stale)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Response)
        return found

    def close(self) -> None:
        pass


class Releases:
    """Counts how often each slot is given back, and how the gate was told."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.outcomes: list[str] = []
        self._release = scheduler.release
        scheduler.release = self  # type: ignore[method-assign]

    def __call__(self, lease: Any, outcome: str, **more: Any) -> None:
        assert not lease.released, "a slot was given back twice"
        self.outcomes.append(outcome)
        self._release(lease, outcome, **more)


class Bench:
    """A fetch step with real scheduler, exchanger, scope and seen set over a stub fetcher."""

    def __init__(
        self,
        table: dict[str, Any],
        *,
        rate: float = 0.0,
        max_redirects: int = 5,
        deny: tuple[str, ...] = (),
        allow: tuple[str, ...] = (),
        gateway: Gateway | None = None,
        recognisers: Sequence[tuple[str, ChallengeRecogniser]] = (),
        log: Log | None = None,
        **fetch: Any,
    ) -> None:
        self.config = Config(
            crawl=CrawlConfig(user_agent=AGENT),
            scope=ScopeConfig(follow="host", deny=deny, allow=allow),
            host=HostConfig(rate=rate),
            fetch=FetchConfig(max_redirects=max_redirects, **fetch),
        )
        self.clock = FakeClock()
        self.budget = ByteBudget(8 * RESERVATION, self.clock)
        rng = random.Random(2)
        self.scheduler = Scheduler(
            self.config,
            clock=self.clock,
            budget=self.budget,
            new_host=HostMaker(self.config, {}, clock=self.clock, rng=rng).new_host,
            queue_of=str,
            on_wanted=lambda: None,
            rng=rng,
        )
        self.releases = Releases(self.scheduler)
        self.fetcher = TableFetcher(table)
        self.seen = SeenSet()
        self.scope = Scope(self.config.scope, [url("http://a/"), url("http://b/")])
        self.out: list[Fetched] = []
        self.refused: list[str] = []
        self.robots_runs: list[Any] = []
        self.watch = WorkWatch(self.clock)
        exchanger = Exchanger(
            self.config,
            fetcher=self.fetcher,
            scheduler=self.scheduler,
            budget=self.budget,
            clock=self.clock,
            seed_hosts=frozenset({"a"}),
            watch=self.watch,
            gateway=gateway,
        )
        self.step_ = FetchStep(
            self.config,
            scheduler=self.scheduler,
            exchanger=exchanger,
            robots=SimpleNamespace(run=self._run_robots),  # type: ignore[arg-type]
            canonicalizer=CANON,
            scope=self.scope,
            seen=self.seen,
            budget=self.budget,
            retry=RetryPolicy(self.config.retry, rng),
            clock=self.clock,
            sink=SimpleNamespace(put=self.put),
            log=log or NullLog(),
            recognisers=recognisers,
            watch=self.watch,
            route=RouteWatch(
                resume_after=0.0,
                hold=self.scheduler.hold,
                end_with=lambda code, why: self.refused.append(why),
                log=NullLog(),
            ),
        )
        for origin in ("http://a", "http://b"):
            self.scheduler.rules_known(origin, ALLOW_ALL, 0.0, float("inf"))

    def _run_robots(self, lease: Any) -> bool:
        self.robots_runs.append(lease)
        return True

    def put(self, item: Fetched) -> None:
        live = self.scheduler.live()[item.lease.host.key]
        assert live.in_flight == 0, "the slot is given back before anything is handed on"
        self.out.append(item)

    def rules(self, origin: str, text: str) -> None:
        found = protego_engine({}).parse(text.encode(), AGENT)
        self.scheduler.rules_known(origin, found, 0.0, float("inf"))

    def fetch(self, text: str, **more: Any) -> Fetched:
        """Lease the URL, do one step; what was handed on."""
        entry = Entry(text, fp(text), **more)
        self.seen.add([entry.fp])
        self.scheduler.windows.offer(host_of(entry.request_url), [entry], [], more=False)
        count, releases = len(self.out), len(self.releases.outcomes)
        assert self.step_.step()
        assert len(self.out) == count + 1
        assert len(self.releases.outcomes) == releases + 1
        assert self.releases.outcomes[-1] == self.out[-1].outcome
        return self.out[-1]


# -- single exchanges -------------------------------------------------------------------------


def test_a_page_is_handed_on_with_its_body_counted() -> None:
    bench = Bench({"http://a/": answer(200, "hello")})
    bench.fetcher.during = lambda: bench.clock.advance(0.25)
    found = bench.fetch("http://a/")
    assert found.response is not None
    assert (found.outcome, found.final_url, found.wire_bytes) == ("2xx", "http://a/", 10)
    assert (found.elapsed, found.fetched_at) == (0.25, bench.clock.wall())
    assert bench.budget.held == 5
    request = bench.fetcher.requests[0]
    assert request.headers["user-agent"] == AGENT
    assert request.deadline == bench.clock.monotonic() - 0.25 + 15.0


@pytest.mark.parametrize("status", [304, 404, 410, 408, 500, 502, 300, 599])
def test_what_is_no_page_is_handed_on_without_a_body(status: int) -> None:
    bench = Bench({"http://a/": answer(status, "x" * 100)})
    found = bench.fetch("http://a/")
    assert found.outcome == outcome_of_status(status)
    assert found.response is None
    assert bench.budget.held == 0
    assert found.detail == str(status)


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_brings_its_retry_after_to_the_gate(status: int) -> None:
    bench = Bench({"http://a/": answer(status, retry_after="40")})
    assert bench.fetch("http://a/").retry_after == 40.0
    assert bench.scheduler.live()["a"].paused_until == bench.clock.wall() + 40.0


def test_retry_after_on_anything_else_is_not_heeded() -> None:
    bench = Bench({"http://a/": answer(404, retry_after="40")})
    assert bench.fetch("http://a/").retry_after is None
    assert bench.scheduler.live()["a"].paused_until == 0.0


@pytest.mark.parametrize(
    ("error", "outcome", "final"),
    [
        (FetchError("t", outcome="timeout", wire_bytes=7), "timeout", False),
        (FetchError("n", outcome="dns", retryable=False), "dns", True),
        (FetchError("m", outcome="pressure", ours=True), "pressure", False),
        (FetchError("f", outcome="connect", ours=True), "pressure", False),
        (FetchError("l", outcome="too_large", retryable=False), "too_large", True),
    ],
)
def test_a_failed_exchange_is_its_outcome(error: FetchError, outcome: str, final: bool) -> None:
    bench = Bench({"http://a/": error})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.final, found.wire_bytes) == (outcome, final, error.wire_bytes)
    assert bench.budget.held == 0
    assert bench.scheduler.live()["a"].in_flight == 0


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a"), RecursionError()])
def test_a_fetcher_that_raises_anything_costs_the_url_not_the_worker(error: Exception) -> None:
    bench = Bench({"http://a/": error, "http://a/2": answer(200)})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.response) == ("internal", None)
    assert type(error).__name__ in found.detail
    assert bench.fetch("http://a/2").outcome == "2xx"


@pytest.mark.parametrize("final", [True, False])
def test_only_a_refusal_of_the_proxy_ends_the_run(final: bool) -> None:
    error = FetchError("407", outcome="proxy", retryable=not final)
    bench = Bench({"http://a/": error})
    assert bench.fetch("http://a/").outcome == "proxy"
    assert bench.refused == (["the proxy refused: 407"] if final else [])
    assert bench.scheduler.live()["a"].paused_until == 0.0


def test_a_robots_lease_is_the_robots_steps() -> None:
    bench = Bench({})
    bench.scheduler.windows.offer("c", [], [Entry("http://c/", 1)], more=False)
    assert bench.step_.step()
    assert [lease.url for lease in bench.robots_runs] == ["http://c/robots.txt"]
    assert bench.out == []


def test_a_closed_scheduler_ends_the_worker() -> None:
    bench = Bench({})
    bench.scheduler.close()
    assert not bench.step_.step()


@pytest.mark.parametrize(
    ("policy", "host", "allowed"),
    [
        *(("seeds", "a", True), ("seeds", "b", False)),
        *(("allow", "b", True), ("deny", "a", False)),
    ],
)
def test_which_targets_may_be_private(policy: str, host: str, allowed: bool) -> None:
    bench = Bench({f"http://{host}/": answer(200)}, private_addresses=policy)
    bench.fetch(f"http://{host}/")
    assert bench.fetcher.requests[0].allow_private is allowed


def test_a_body_grows_through_the_budget_under_the_exchanges_deadline() -> None:
    bench = Bench({})

    def grow(request: Request, on_stale: Any) -> Response:
        request.grow(2 * RESERVATION)
        assert bench.budget.held == 2 * RESERVATION
        return answer(200, "short")

    bench.fetcher.table["http://a/"] = grow
    found = bench.fetch("http://a/")
    assert found.lease.ticket.deadline == bench.fetcher.requests[0].deadline
    assert bench.budget.held == 5


def test_a_stale_connection_asks_for_leave() -> None:
    answers: list[bool] = []

    def stale(request: Request, on_stale: Any) -> Response | FetchError:
        answers.append(on_stale())
        return answer(200) if answers[-1] else FetchError("dead", outcome="stale", ours=True)

    bench = Bench({"http://a/": stale})
    assert bench.fetch("http://a/").outcome == "2xx"
    assert bench.scheduler.requests == 2
    slow = Bench({"http://a/": stale}, rate=1.0)
    assert slow.fetch("http://a/").outcome == "stale"
    assert slow.scheduler.requests == 1
    assert answers == [True, False]


# -- latency ----------------------------------------------------------------------------------


def heard(bench: Bench) -> list[tuple[str, float | None]]:
    """What the scheduler is told from now on: outcomes with their latency."""
    told: list[tuple[str, float | None]] = []
    release = bench.scheduler.release

    def listen(lease: Any, outcome: str, **more: Any) -> None:
        told.append((outcome, more["latency"]))
        release(lease, outcome, **more)

    bench.scheduler.release = listen  # type: ignore[method-assign]
    return told


def slow(found: Response, latency: float) -> Response:
    found.latency = latency
    return found


def test_the_scheduler_hears_the_latency_of_the_last_hop() -> None:
    table = {"http://a/": slow(moved("/1"), 0.5), "http://a/1": slow(answer(200), 0.2)}
    bench = Bench({**table, "http://a/2": FetchError("t", outcome="timeout")})
    told = heard(bench)
    bench.fetch("http://a/")
    bench.fetch("http://a/2")
    assert told == [("2xx", 0.2), ("timeout", None)]


# -- challenges -------------------------------------------------------------------------------

PAGE = answer(200, "<title>Hm</title><script>window._cf_chl_opt={}</script>")
KNOWN = [("known", known_challenges({}))]


@pytest.mark.parametrize(
    "found",
    [
        PAGE,
        answer(403, cf_mitigated="challenge"),
        answer(503, cf_mitigated="challenge"),
        answer(202, x_amzn_waf_action="challenge"),
    ],
)
def test_a_challenge_is_no_page_and_no_plain_refusal(found: Response) -> None:
    bench = Bench({"http://a/": found}, recognisers=KNOWN)
    item = bench.fetch("http://a/")
    assert (item.outcome, item.response) == ("challenge", None)
    assert item.detail in ("cloudflare", "aws-waf")
    assert bench.budget.held == 0


def test_a_challenge_brings_its_retry_after() -> None:
    found = answer(403, cf_mitigated="challenge", retry_after="40")
    bench = Bench({"http://a/": found}, recognisers=KNOWN)
    assert bench.fetch("http://a/").retry_after == 40.0
    assert bench.scheduler.live()["a"].paused_until == bench.clock.wall() + 40.0


def test_a_redirect_that_is_followed_is_not_looked_at() -> None:
    table = {"http://a/": moved("/1"), "http://a/1": answer(200)}
    table["http://a/"].headers = Headers({"Location": "/1", "cf-mitigated": "challenge"})
    assert Bench(table, recognisers=KNOWN).fetch("http://a/").outcome == "2xx"


class Recogniser:
    """Says `found`, or raises it; counts how often it was asked."""

    def __init__(self, found: str | Exception | None) -> None:
        self.found = found
        self.asked = 0

    def recognise(self, status: int, headers: Headers, body: bytes) -> str | None:
        self.asked += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class ErrorLog(NullLog):
    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, event: str, /, **values: Any) -> None:
        self.errors.append(values)


def test_recognisers_are_asked_in_order_until_one_knows() -> None:
    asked = [Recogniser(None), Recogniser("mine"), Recogniser("other")]
    bench = Bench(
        {"http://a/": answer(200)}, recognisers=[(str(n), r) for n, r in enumerate(asked)]
    )
    assert bench.fetch("http://a/").detail == "mine"
    assert [one.asked for one in asked] == [1, 1, 0]


def test_a_recogniser_that_raises_is_no_hit_and_named_once() -> None:
    log = ErrorLog()
    bad, good = Recogniser(KeyError("a bug")), Recogniser("mine")
    table = {"http://a/": answer(200), "http://a/2": answer(404)}
    bench = Bench(table, recognisers=[("bad", bad), ("good", good)], log=log)
    assert [bench.fetch(url).outcome for url in table] == ["challenge", "challenge"]
    assert bad.asked == 2
    assert log.errors == [{"name": "bad", "error": "KeyError('a bug')"}]


# -- through a gateway ------------------------------------------------------------------------

KEY = "s3cret-key"


def gateway(**config: Any) -> Gateway:
    return Gateway(GatewayConfig(url=f"http://gw/v1?key={KEY}&url={{url}}", **config))


def asked_as(url: str) -> str:
    """What the gateway is asked for, to have `url`."""
    return gateway().wrap(url)


def test_the_gateway_is_asked_and_the_target_is_what_is_known() -> None:
    found = slow(answer(200, "hello"), 0.3)
    bench = Bench({asked_as("http://b/x?y=1"): found}, gateway=gateway(), private_addresses="deny")
    told = heard(bench)
    item = bench.fetch("http://b/x?y=1")
    assert item.response is not None
    assert (item.outcome, item.final_url, item.response.url) == (
        *("2xx", "http://b/x?y=1", "http://b/x?y=1"),
    )
    assert bench.fetcher.requests[0].allow_private
    assert told == [("2xx", None)], "the gateway's pace says nothing of the host"


def test_a_relative_location_is_the_targets() -> None:
    table = {asked_as("http://a/d/"): moved("../x"), asked_as("http://a/x"): answer(200)}
    bench = Bench(table, gateway=gateway())
    assert bench.fetch("http://a/d/").final_url == "http://a/x"


@pytest.mark.parametrize(
    ("status", "final"), [(500, True), (502, True), (408, True), (503, False), (404, False)]
)
def test_what_the_gateway_has_tried_is_not_tried_again(status: int, final: bool) -> None:
    inside = answer(200, x_target=str(status))
    bench = Bench({asked_as("http://a/"): inside}, gateway=gateway(target_status_header="X-Target"))
    item = bench.fetch("http://a/")
    assert (item.outcome, item.final) == (outcome_of_status(status), final)
    direct = Bench({"http://a/": answer(status)})
    assert not direct.fetch("http://a/").final


@pytest.mark.parametrize(
    ("found", "outcome", "ends"),
    [
        (answer(429, retry_after="7"), "gateway_throttled", False),
        (answer(509), "gateway_exhausted", True),
        (answer(401), "gateway_refused", True),
        (answer(500), "gateway_failed", False),
        (FetchError("connect: refused", outcome="connect"), "gateway_unreached", False),
    ],
)
def test_its_own_troubles_blame_no_host(found: Any, outcome: str, ends: bool) -> None:
    bench = Bench({asked_as("http://a/"): found}, gateway=gateway(target_status_header="X-Target"))
    item = bench.fetch("http://a/")
    live = bench.scheduler.live()["a"]
    assert (item.outcome, item.final, bool(bench.refused)) == (outcome, False, ends)
    assert (live.limit, live.paused_until) == (4.0, 0.0)
    assert item.retry_after == (7.0 if outcome == "gateway_throttled" else None)
    assert KEY not in f"{item.detail}{item.final_url}{item.target}{bench.refused}"


def test_a_fetchers_own_words_about_a_gateways_url_are_not_repeated() -> None:
    told: list[Any] = []
    log = SimpleNamespace(error=lambda event, **values: told.append(values))
    found = ValueError(f"cannot parse {asked_as('http://a/')}")
    bench = Bench({asked_as("http://a/"): found}, gateway=gateway(), log=log)  # type: ignore[arg-type]
    item = bench.fetch("http://a/")
    assert (item.outcome, item.detail) == ("internal", "the fetcher raised ValueError")
    assert KEY not in str(told)


def test_a_gateway_that_is_never_reached_ends_the_run() -> None:
    gone = FetchError("connect: refused", outcome="connect")
    table: dict[str, Any] = {asked_as(f"http://a/{n}"): gone for n in range(20)}
    table[asked_as("http://a/9")] = answer(404)
    bench = Bench(table, gateway=gateway())
    for n in range(19):
        bench.fetch(f"http://a/{n}")
    assert bench.refused == [], "an answer between starts the count again"
    bench.fetch("http://a/19")
    assert len(bench.refused) == 1


# -- redirects on the slot --------------------------------------------------------------------


def test_hops_on_the_same_gate_are_followed_on_the_slot() -> None:
    table = {"http://a/": moved("/1"), "http://a/1": moved("2", 307), "http://a/2": answer(200)}
    bench = Bench(table)
    found = bench.fetch("http://a/")
    assert bench.fetcher.asked == ["http://a/", "http://a/1", "http://a/2"]
    assert (found.outcome, found.final_url, found.hops) == ("2xx", "http://a/2", 2)
    assert found.aliases == [fp("http://a/1"), fp("http://a/2")]
    assert found.wire_bytes == 30
    assert bench.scheduler.requests == 3
    live = bench.scheduler.live()["a"]
    assert (live.requests, live.in_flight_peak) == (3, 1)


def test_each_hop_gets_its_own_deadline() -> None:
    bench = Bench({"http://a/": moved("/1"), "http://a/1": answer(200)})
    bench.fetcher.during = lambda: bench.clock.advance(10.0)
    bench.fetch("http://a/")
    first, second = (request.deadline for request in bench.fetcher.requests)
    assert second == first + 10.0


def test_a_hop_to_the_same_comparison_key_is_followed() -> None:
    bench = Bench({"http://a/docs": moved("/docs/"), "http://a/docs/": answer(200)})
    found = bench.fetch("http://a/docs")
    assert (found.outcome, found.final_url, found.aliases) == ("2xx", "http://a/docs/", [])


def test_slash_on_slash_off_ends() -> None:
    bench = Bench({"http://a/docs": moved("/docs/"), "http://a/docs/": moved("/docs")})
    found = bench.fetch("http://a/docs")
    assert found.outcome in ("redirect_loop", "redirect_limit")
    assert len(bench.fetcher.asked) <= 6


def test_a_target_already_seen_is_a_duplicate() -> None:
    bench = Bench({"http://a/": moved("/known")})
    bench.seen.add([fp("http://a/known")])
    found = bench.fetch("http://a/")
    assert (found.outcome, found.aliases) == ("duplicate", [])
    assert bench.fetcher.asked == ["http://a/"]


def test_two_urls_that_lead_to_one_fetch_it_once() -> None:
    bench = Bench({"http://a/1": moved("/t"), "http://a/2": moved("/t"), "http://a/t": answer(200)})
    assert [bench.fetch(f"http://a/{n}").outcome for n in (1, 2)] == ["2xx", "duplicate"]
    assert bench.fetcher.asked.count("http://a/t") == 1


@pytest.mark.parametrize(
    "table",
    [
        {"http://a/": moved("/")},
        {"http://a/": moved("/1"), "http://a/1": moved("/")},
        {"http://a/": moved("/1"), "http://a/1": moved("/2"), "http://a/2": moved("/1")},
    ],
)
def test_a_loop_ends(table: dict[str, Any]) -> None:
    bench = Bench(table)
    assert bench.fetch("http://a/").outcome == "redirect_loop"
    assert len(bench.fetcher.asked) == len(table)


def test_the_limit_counts_hops_of_earlier_leases_too() -> None:
    table = {f"http://a/{n}": moved(f"/{n + 1}") for n in range(9)}
    bench = Bench(table, max_redirects=3)
    assert bench.fetch("http://a/0").outcome == "redirect_limit"
    assert bench.fetcher.asked == [f"http://a/{n}" for n in range(4)]
    bench = Bench(table, max_redirects=3)
    found = bench.fetch("http://a/0", target="http://a/5", hops=2)
    assert (found.outcome, found.hops) == ("redirect_limit", 3)
    assert bench.fetcher.asked == ["http://a/5", "http://a/6"]


def test_no_redirects_allowed_means_none() -> None:
    bench = Bench({"http://a/": moved("/1")}, max_redirects=0)
    assert bench.fetch("http://a/").outcome == "redirect_limit"


@pytest.mark.parametrize("where", ["", "ftp://a/", "http://", "http://[bad/"])
def test_a_redirect_to_nowhere_is_a_final_3xx(where: str) -> None:
    bench = Bench({"http://a/": moved(where)})
    assert bench.fetch("http://a/").outcome in ("3xx", "redirect_bad")


# -- redirects that do not go on here ---------------------------------------------------------


def test_another_gates_hop_goes_back_as_a_continuation() -> None:
    bench = Bench({"http://a/": moved("/1"), "http://a/1": moved("http://b/x")})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.target, found.hops) == ("redirect", "http://b/x", 2)
    assert found.aliases == [fp("http://a/1"), fp("http://b/x")]
    assert bench.scheduler.requests == 2
    assert bench.scheduler.live()["b"].requests == 0


def test_a_continuation_goes_on_at_its_target() -> None:
    bench = Bench({"http://b/x": answer(200)})
    found = bench.fetch("http://a/", target="http://b/x", hops=1)
    assert (found.outcome, found.final_url, found.hops) == ("2xx", "http://b/x", 1)
    assert found.lease.host.key == "b"


def test_a_continuation_back_to_its_origin_is_a_loop() -> None:
    bench = Bench({"http://b/x": moved("http://a/")})
    assert bench.fetch("http://a/", target="http://b/x", hops=1).outcome == "redirect_loop"


def test_without_a_token_the_hop_goes_back() -> None:
    bench = Bench({"http://a/": moved("/1")}, rate=1.0)
    found = bench.fetch("http://a/")
    assert (found.outcome, found.target, found.hops) == ("redirect", "http://a/1", 1)
    assert bench.scheduler.requests == 1


def test_a_hop_to_an_origin_whose_rules_are_not_known_goes_back() -> None:
    bench = Bench({"http://a/": moved("https://a/")})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.target) == ("redirect", "https://a/")


def test_out_of_scope_is_dropped_with_the_reason() -> None:
    bench = Bench({"http://a/": moved("http://elsewhere/")})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.dropped, found.aliases) == ("redirect_scope", "redirect_host", [])
    assert fp("http://elsewhere/") not in bench.seen


def test_denied_by_a_pattern_is_dropped_too() -> None:
    bench = Bench({"http://a/": moved("/private")}, deny=("/private",))
    assert bench.fetch("http://a/").dropped == "redirect_deny"


def test_disallowed_by_robots_is_dropped_without_a_request() -> None:
    bench = Bench({"http://a/": moved("/private/x")})
    bench.rules("http://a", "User-agent: *\nDisallow: /private\n")
    found = bench.fetch("http://a/")
    assert (found.outcome, found.dropped) == ("robots", "robots")
    assert bench.fetcher.asked == ["http://a/"]


def test_disallowed_at_the_other_gate_is_dropped_here() -> None:
    bench = Bench({"http://a/": moved("http://b/private")})
    bench.rules("http://b", "User-agent: *\nDisallow: /private\n")
    assert bench.fetch("http://a/").outcome == "robots"


def test_a_seeds_redirect_extends_what_is_followed() -> None:
    bench = Bench({"http://a/": moved("http://www.a/")})
    found = bench.fetch("http://a/", seed=True)
    assert (found.outcome, found.target, found.followed) == (
        "redirect",
        "http://www.a/",
        ["www.a"],
    )
    assert bench.scope.refuse(url("http://www.a/x"), 1) is None
    assert bench.scope.refuse(url("http://elsewhere/"), 1) == "host"


def test_a_seeds_redirect_need_not_match_allow_but_does_obey_deny() -> None:
    bench = Bench({"http://a/": moved("http://c/start")}, allow=("/docs/",))
    assert bench.fetch("http://a/", seed=True).outcome == "redirect"
    bench = Bench({"http://a/": moved("http://c/start")}, deny=("//c/",))
    assert bench.fetch("http://a/", seed=True).dropped == "redirect_deny"


# -- failing on the way -----------------------------------------------------------------------


def test_a_failure_after_a_hop_is_to_be_tried_again_at_the_hop() -> None:
    bench = Bench({"http://a/": moved("/1"), "http://a/1": FetchError("t", outcome="timeout")})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.target, found.hops) == ("timeout", "http://a/1", 1)
    assert found.aliases == [fp("http://a/1")]
    again = bench.fetch("http://a/", target=found.target, hops=found.hops)
    assert (again.outcome, again.target, again.hops) == ("timeout", "http://a/1", 1)
    assert bench.fetcher.asked == ["http://a/", "http://a/1", "http://a/1"]


def test_a_refusal_after_a_hop_is_the_hops() -> None:
    bench = Bench({"http://a/": moved("/1"), "http://a/1": answer(503, retry_after="9")})
    found = bench.fetch("http://a/")
    assert (found.outcome, found.target, found.retry_after) == ("throttled", "http://a/1", 9.0)


def test_a_failure_without_a_hop_goes_on_where_it_began() -> None:
    bench = Bench({"http://a/": FetchError("t", outcome="timeout")})
    assert bench.fetch("http://a/").target is None


def test_a_bug_after_a_hop_leaves_no_claim_that_nobody_keeps() -> None:
    bench = Bench({"http://a/": moved("/1"), "http://a/1": ValueError("a bug")})
    found = bench.fetch("http://a/")
    assert found.outcome == "internal"
    assert fp("http://a/1") in found.aliases or fp("http://a/1") not in bench.seen


def test_a_worker_given_up_after_a_hop_has_told_of_it_and_of_nothing_later() -> None:
    bench = Bench({"http://a/": moved("/1"), "http://a/1": lambda *_: hang(), "http://a/2": 1})
    given_up: list[Stuck] = []

    def hang() -> Response:
        bench.clock.advance(1_000.0)
        given_up.extend(bench.watch.overdue(bench.clock.monotonic()))
        return moved("/2")

    bench.scheduler.windows.offer("a", [Entry("http://a/", fp("http://a/"))], [], more=False)
    assert not bench.step_.step()
    (stuck,) = given_up
    assert stuck.fetched is not None
    assert (stuck.fetched.target, stuck.fetched.hops) == ("http://a/1", 1)
    assert stuck.fetched.aliases == [fp("http://a/1")]
    assert bench.fetcher.asked == ["http://a/", "http://a/1"]
    assert fp("http://a/1") in bench.seen, "its claim is settled with the page"
    assert fp("http://a/2") not in bench.seen, "a claim that nobody would keep"


def test_a_loop_across_gates_ends() -> None:
    # A continuation knows its origin and its hop count, not the hops between: the target
    # counts as any other URL that was seen.
    bench = Bench({"http://b/1": moved("http://a/2"), "http://a/2": moved("http://b/1")})
    first = bench.fetch("http://a/", target="http://b/1", hops=1)
    bench.seen.add([fp("http://b/1"), *first.aliases])
    second = bench.fetch("http://a/", target="http://a/2", hops=2)
    assert second.outcome == "duplicate"


def test_many_workers_give_back_every_slot_whatever_happens() -> None:
    """32 threads, a table of good, bad and moving answers: no slot, ticket or item is lost."""
    table: dict[str, Any] = {}
    for n in range(300):
        table[f"http://a/{n}"] = (
            answer(200, "x"),
            moved(f"/t{n}"),
            FetchError("t", outcome="timeout"),
            ValueError("a bug"),
            moved("http://elsewhere/"),
        )[n % 5]
        table[f"http://a/t{n}"] = answer(200, "y")
    bench = Bench(table, workers=32)
    bench.step_._sink = SimpleNamespace(put=bench.out.append)
    bench.scheduler.windows.offer("a", [Entry(u, fp(u)) for u in list(table)[::2]], [], more=False)
    settled = threading.Event()

    def work() -> None:
        while bench.step_.step():
            bench.scheduler.give_credit()
            if len(bench.out) == 300:
                settled.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(32)]
    for thread in threads:
        thread.start()
    assert settled.wait(20.0), repr(bench.scheduler)
    bench.scheduler.close()
    for thread in threads:
        thread.join(20.0)
    assert not any(thread.is_alive() for thread in threads)
    bench.scheduler.settle_all([(f.lease, f.is_page) for f in bench.out])
    assert len(bench.releases.outcomes) == 300
    assert bench.scheduler.live()["a"].in_flight == 0
    assert bench.scheduler.unsettled == bench.budget.held == 0
