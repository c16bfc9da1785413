"""The urllib3 client, and what both clients share: settings and the course of an exchange.

`fetch` runs on every fetch thread at once. Imports the rest of this room, the config's
model for defaults, and urllib3. One exchange each: no redirect is followed, no cookie kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from urllib3.util import Retry, Timeout

from syncrawl.api import Headers, Request, Response
from syncrawl.clock import Clock, SystemClock
from syncrawl.config.model import FetchConfig
from syncrawl.errors import ConfigError, FetchError
from syncrawl.fetch.body import Body, read_body
from syncrawl.fetch.codings import Codings
from syncrawl.fetch.connect import Dialer, tls_context
from syncrawl.fetch.deadline import Exchange, making
from syncrawl.fetch.failures import is_stale, translate
from syncrawl.fetch.pools import Pools
from syncrawl.fetch.proxy import Proxies, Route, check_own_answer
from syncrawl.fetch.resolve import Resolver, is_private_as_written
from syncrawl.fetch.target import Target, location, split

__all__ = ["Course", "Urllib3Fetcher", "location", "urllib3_fetcher"]

MAX_HEADER_SETS = 64
"""Distinct sets of request fields remembered in their merged form."""

# Both are policies that never change, so one of each serves every request. Retries and
# waits are the engine's to decide; the real bounds sit in the sockets.
_NO_RETRY = Retry(False, redirect=False)
_NO_TIMEOUT = Timeout(connect=None, read=None)

Open = Callable[[Target, "Route | None", Mapping[str, str]], Any]
"""Sends the request and reads the head; gives urllib3's response, its body unread."""


class Course:
    """The course of one exchange, whichever client makes it. Shared by all fetch threads.

    Built from the [fetch] table; missing keys take their defaults. Raises ConfigError for a
    static address, a proxy or a list of certificates that cannot be used.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        config = _config(options)
        self.clock: Clock = clock or SystemClock()
        self.codings = Codings()
        self.proxies = Proxies(config.proxy)
        self._connect_timeout = config.connect_timeout or float("inf")
        self._read_timeout = config.read_timeout or float("inf")
        self._min_pace = config.min_pace
        resolver = resolver or Resolver(
            clock=self.clock,
            static=config.resolve,
            ttl=config.dns_ttl,
            negative_ttl=config.dns_negative_ttl,
        )
        self.pools = Pools(
            dialer=Dialer(resolver),
            tls=tls_context(config.ca_bundle, verify=config.verify),
            clock=self.clock,
            max_idle=_idle_bound(config.workers),
        )
        self._base = _checked_fields(config.headers)
        # Written without a lock: two threads that merge the same set write the same value.
        self._merged: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}

    def run(self, request: Request, on_stale: Callable[[], bool] | None, open_: Open) -> Response:
        """Make the exchange; raises FetchError and nothing else."""
        target = split(request.url)
        route = self.proxies.route(target.scheme, target.authority)
        exchange = Exchange(
            clock=self.clock,
            deadline=request.deadline,
            connect_timeout=self._connect_timeout,
            read_timeout=self._read_timeout,
            min_pace=self._min_pace,
            allow_private=request.allow_private,
            target=target.absolute if route and target.scheme == "http" else target.path,
            authority=target.authority,
        )
        try:
            # A direct connection is checked where its addresses are known.
            if route is not None and not request.allow_private:
                _refuse_private(target)
            with making(exchange):
                return self._exchange(request, exchange, target, route, on_stale, open_)
        except Exception as error:
            # The contract is FetchError and nothing else, whatever a library came up with.
            failure = translate(error, exchange)
            if failure.ours and failure.outcome == "connect":
                self.pools.idle.release_all()
            failure.url = failure.url or request.url
            failure.host = failure.host or target.authority
            failure.phase = failure.phase or exchange.phase
            failure.wire_bytes = failure.wire_bytes or exchange.wire_bytes
            if failure is error:
                raise
            raise failure from error

    def _exchange(
        self,
        request: Request,
        exchange: Exchange,
        target: Target,
        route: Route | None,
        on_stale: Callable[[], bool] | None,
        open_: Open,
    ) -> Response:
        fields = self._fields(request.headers)
        retried = False
        try:
            raw = open_(target, route, fields)
        except Exception as error:
            if not is_stale(error, exchange):
                raise
            if on_stale is not None and not on_stale():
                raise FetchError(
                    "a kept-alive connection was dead, and another request is not due yet",
                    outcome="stale",
                    ours=True,
                ) from error
            retried = True
        if retried:
            exchange.restart()
            raw = open_(target, route, fields)
        status: int = raw.status
        headers = Headers(_pairs(raw))
        try:
            if route is not None:
                check_own_answer(route, status, headers)
        except FetchError:
            raw.close()
            raise
        body = read_body(raw, headers, status, request, exchange, self.codings)
        now = self.clock.monotonic()
        return Response(
            url=request.url,
            status=status,
            headers=_as_left(headers, body) if body.decoded else headers,
            body=body.data,
            ttfb=(exchange.first_byte_at or now) - exchange.started,
            elapsed=now - exchange.started,
            wire_bytes=exchange.wire_bytes,
            complete=body.complete,
            retried_stale=retried,
            address=exchange.address,
            latency=exchange.latency,
        )

    def _fields(self, headers: Headers) -> dict[str, str]:
        """The request's fields over the configured ones over the defaults."""
        key = headers.pairs()
        merged = self._merged.get(key)
        if merged is None:
            by_name = {
                "accept": (
                    "Accept",
                    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                ),
                "accept-encoding": ("Accept-Encoding", self.codings.accept_encoding),
                "user-agent": ("User-Agent", "syncrawl"),
            }
            by_name.update((name.lower(), (name, value)) for name, value in self._base)
            by_name.update((name.lower(), (name, value)) for name, value in key)
            merged = dict(by_name.values())
            if len(self._merged) < MAX_HEADER_SETS:
                self._merged[key] = merged
        return merged

    def close(self) -> None:
        """Close every idle connection; those in use close when their exchange ends."""
        self.pools.close()


class Urllib3Fetcher:
    """Fetches over urllib3: one pool an origin, no PoolManager on the way (see benchmarks)."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._course = Course(options, clock=clock, resolver=resolver)

    def fetch(self, request: Request, on_stale: Callable[[], bool] | None = None) -> Response:
        """One GET of `request.url`; see api.Fetcher."""
        return self._course.run(request, on_stale, self._open)

    def close(self) -> None:
        self._course.close()

    def _open(self, target: Target, route: Route | None, fields: Mapping[str, str]) -> Any:
        # "/" stands in for the target: urllib3 would re-quote it, the connection knows it.
        return self._course.pools.get(target, route).urlopen(
            "GET",
            "/",
            headers=fields,
            retries=_NO_RETRY,
            redirect=False,
            assert_same_host=False,
            timeout=_NO_TIMEOUT,
            preload_content=False,
            decode_content=False,
        )

    def __repr__(self) -> str:
        return f"<Urllib3Fetcher {self._course.pools!r}>"


def urllib3_fetcher(options: Mapping[str, Any]) -> Urllib3Fetcher:
    """The `urllib3` entry of syncrawl.fetchers; `options` is the [fetch] table."""
    return Urllib3Fetcher(options)


def _config(options: Mapping[str, Any]) -> FetchConfig:
    try:
        return msgspec.convert(dict(options), FetchConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), key="fetch") from None


def _refuse_private(target: Target) -> None:
    """Ask no proxy for what is private as it stands; names are the proxy's to look up."""
    if is_private_as_written(target.host):
        raise FetchError(
            f"{target.host} is no public address, and is not asked of a proxy",
            outcome="address",
            retryable=False,
        )


def _idle_bound(workers: int) -> int:
    """Idle connections to keep: four a worker, and at most a quarter of the descriptors."""
    most = 4 * workers
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError, ValueError):
        return most
    return most if soft < 0 else max(8, min(most, soft // 4))


def _checked_fields(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in fields.items():
        text = name + value
        if not text.isascii() or any(char in text for char in "\r\n\0") or ":" in name:
            raise ConfigError(
                "cannot be sent as a header field",
                key=f"fetch.headers.{name!r}",
                remedy="use ASCII without line breaks",
            )
    return tuple(fields.items())


def _pairs(raw: Any) -> Any:
    """The fields as received; a response that never met a socket has only urllib3's mapping."""
    head = getattr(raw, "_original_response", None)
    pairs = getattr(head, "pairs", None)
    return raw.headers.items() if pairs is None else pairs


def _as_left(headers: Headers, body: Body) -> Headers:
    """`headers` with Content-Encoding naming only what is still to be undone."""
    pairs = [pair for pair in headers.pairs() if pair[0].lower() != "content-encoding"]
    if body.left:
        pairs.append(("Content-Encoding", ", ".join(body.left)))
    return Headers(pairs)
