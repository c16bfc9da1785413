"""The requests client: Sessions, so that auth plug-ins, netrc and environment settings work.

`fetch` runs on every fetch thread at once. Requests does not promise that a Session may be
shared, so each thread has its own; below them all lie the same pools, connections, body
reader and deadline as in the urllib3 client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from syncrawl.api import Request, Response
from syncrawl.clock import Clock
from syncrawl.fetch.pools import Pool
from syncrawl.fetch.proxy import Route
from syncrawl.fetch.resolve import Resolver
from syncrawl.fetch.target import Target
from syncrawl.fetch.transport import Course


class _SharedPools(HTTPAdapter):
    """Requests' adapter over the fetcher's pools. One a session; `pool` is set per request."""

    pool: Pool

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> Pool:
        # Proxy, certificates and origin were settled when the pool was chosen.
        return self.pool

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Nothing to do: the pool's connections hold the TLS context."""


class RequestsFetcher:
    """Fetches over requests. `make_session` gives each thread its session, auth and all."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        resolver: Resolver | None = None,
        make_session: Callable[[], requests.Session] = requests.Session,
    ) -> None:
        self._course = Course(options, clock=clock, resolver=resolver)
        self._make_session = make_session
        self._local = threading.local()

    def fetch(self, request: Request, on_stale: Callable[[], bool] | None = None) -> Response:
        """One GET of `request.url`; see api.Fetcher."""
        return self._course.run(request, on_stale, self._open)

    def close(self) -> None:
        # A session holds nothing that outlives its thread: the pools are the course's.
        self._course.close()

    def _open(self, target: Target, route: Route | None, fields: Mapping[str, str]) -> Any:
        session, adapter = self._session()
        adapter.pool = self._course.pools.get(target, route)
        # Prepared and sent apart: `get` would ask the environment for proxies and certificates
        # at every request, and the course has settled those. Auth and netrc come with preparing.
        prepared = session.prepare_request(
            requests.Request("GET", target.absolute, headers=dict(fields))
        )
        response = session.send(
            prepared, stream=True, allow_redirects=False, proxies={target.scheme: ""}
        )
        return response.raw

    def _session(self) -> tuple[requests.Session, _SharedPools]:
        found: tuple[requests.Session, _SharedPools] | None
        found = getattr(self._local, "session", None)
        if found is None:
            session = self._make_session()
            adapter = _SharedPools()
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            # Even where it follows none, a session reads a redirect's whole body, uncapped, to
            # prepare `Response.next`; and a Location of odd bytes makes it raise.
            session.get_redirect_target = _no_target  # type: ignore[assignment,method-assign]
            # No site's cookies travel with a crawl.
            session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
            found = self._local.session = (session, adapter)
        return found

    def __repr__(self) -> str:
        return f"<RequestsFetcher {self._course.pools!r}>"


def _no_target(_resp: requests.Response) -> str | None:
    return None


def requests_fetcher(options: Mapping[str, Any]) -> RequestsFetcher:
    """The `requests` entry of syncrawl.fetchers; `options` is the [fetch] table."""
    return RequestsFetcher(options)
