"""Which proxy an exchange goes through, and which answers are the proxy's own.

Any thread. Imports the errors. The configured proxy serves everything; without one the
environment's HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY are read, once, at the start.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

from syncrawl.api import Headers
from syncrawl.errors import ConfigError, FetchError

DENIED = "proxy_denied"
"""The proxy serves us, but not this target: a policy, which no second try changes."""


class Route:
    """One HTTP proxy: where it listens and how it is told who we are.

    `url` holds no credentials: it may be logged.
    """

    __slots__ = ("authorization", "host", "port", "stamps_via", "url")

    def __init__(self, text: str, *, key: str) -> None:
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # Not the parser's own words: a password with a slash in it is a port to it.
            raise _unusable("is no proxy URL", key) from None
        if parts.scheme.lower() != "http":
            raise _unusable(f"has the scheme {parts.scheme}, only http is supported", key)
        if not parts.hostname:
            raise _unusable("names no host", key)
        self.host = parts.hostname
        self.port = port or 80
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http://{shown}:{self.port}"
        self.authorization: str | None = None
        if parts.username is not None:
            # Escapes are part of URL syntax, not of the name: `name%40corp` means `name@corp`.
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.authorization = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        # Whether the proxy marks what it passes on, once known. Written by any fetch
        # thread without a lock: each writes what it saw, and either value serves.
        self.stamps_via: bool | None = None

    def __repr__(self) -> str:
        return f"<Route {self.url}>"


class Proxies:
    """Chooses the route for an origin; None means a direct connection."""

    def __init__(self, configured: str, environment: Mapping[str, str] | None = None) -> None:
        self._all = Route(configured, key="fetch.proxy") if configured else None
        self._environment: dict[str, str] = {}
        self._routes: dict[str, Route] = {}
        if self._all is not None:
            return
        import urllib.request

        # Not the platform's registries: what counts is the same on every host.
        self._bypassed: Callable[[str, dict[str, str]], bool]
        self._bypassed = getattr(urllib.request, "proxy_bypass_environment")  # noqa: B009 - untyped
        found = (
            urllib.request.getproxies_environment() if environment is None else dict(environment)
        )
        self._environment = found
        for scheme in ("http", "https"):
            text = found.get(scheme) or found.get("all")
            if text:
                name = f"{scheme if found.get(scheme) else 'all'}_proxy"
                self._routes[scheme] = Route(text, key=f"environment {name.upper()}")

    def route(self, scheme: str, authority: str) -> Route | None:
        """The proxy for `scheme://authority`; `authority` is host or host:port."""
        if self._all is not None:
            return self._all
        if not self._routes:
            return None
        if self._bypassed(authority, self._environment):
            return None
        return self._routes.get(scheme)


def check_own_answer(route: Route, status: int, headers: Headers) -> None:
    """Raise FetchError where `status` is the proxy's own word, not the target's.

    407 is always its own. A 403 or 5xx is when it says so (X-Squid-Error, or an error in
    Proxy-Status, RFC 9209), or when its Via differs from what the proxy does with the
    answers it passes on. The outcome is "proxy_denied" for a 403, else "proxy"; `retryable`
    is False for both where a later try is vain.
    """
    if status == 407:
        raise refused(route, "it wants other credentials (407)")
    via = "via" in headers
    if 200 <= status < 300:
        route.stamps_via = via
    elif status == 403 or status >= 500:
        own = "x-squid-error" in headers or "error=" in headers.get("proxy-status", "")
        if own or via != bool(route.stamps_via):
            raise FetchError(
                f"the proxy {route.url} answered {status} itself",
                outcome=DENIED if status == 403 else "proxy",
                retryable=status != 403,
                host=route.host,
            )


def refused(route: Route, reason: str) -> FetchError:
    """The proxy will not serve us whatever the target: no host is to blame, retries are vain."""
    return FetchError(
        f"the proxy {route.url} refused: {reason}",
        outcome="proxy",
        retryable=False,
        host=route.host,
    )


def _unusable(message: str, key: str) -> ConfigError:
    # The value is left out: it may hold a password.
    return ConfigError(message, key=key, remedy="write http://[user:password@]host:port")
