"""What a plugin imports: the data it is handed and the protocols it fulfils.

Everything here is stable within one major `API_VERSION`. The package's own parsers,
stores, fetchers and robots engines are written against the same names and enter by
the same entry points. Imports nothing but the errors; no third-party package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from syncrawl.errors import ConfigError, FetchError, StoreDamaged, SyncrawlError

__all__ = [
    "API_VERSION",
    "ChallengeRecogniser",
    "ConfigError",
    "FetchError",
    "Fetcher",
    "Headers",
    "Link",
    "Page",
    "Parser",
    "Record",
    "Request",
    "Response",
    "RobotsEngine",
    "RobotsRules",
    "Store",
    "StoreDamaged",
    "SyncrawlError",
]

API_VERSION = "1.0"
"""Major.minor. A plugin may declare `SYNCRAWL_API = "1.0"` in its module."""

Record = Mapping[str, Any]
"""A JSON-able mapping; what parsers yield and stores write."""


class Headers(Mapping[str, str]):
    """Response or request header fields: case-insensitive, order and repeats kept.

    `headers["X"]` joins repeated fields with ", " (RFC 9110 section 5.2);
    `get_all("X")` gives them apart, which Set-Cookie and X-Robots-Tag need.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[str, str]] | Mapping[str, str] = ()) -> None:
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        self._pairs: tuple[tuple[str, str], ...] = tuple(items)

    def get_all(self, name: str) -> list[str]:
        """Every value of field `name`, in order of appearance."""
        wanted = name.lower()
        return [value for key, value in self._pairs if key.lower() == wanted]

    def __getitem__(self, name: str) -> str:
        values = self.get_all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.lower() for key, _ in self._pairs))

    def __len__(self) -> int:
        return len({key.lower() for key, _ in self._pairs})

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The fields as received."""
        return self._pairs

    def __repr__(self) -> str:
        return f"Headers({list(self._pairs)!r})"


# Not frozen: a page makes dozens of these, and a frozen one costs twice as much to make.
@dataclass(slots=True, unsafe_hash=True)
class Link:
    """A URL a parser wants crawled.

    `url` may be relative; it is resolved against the page's base URL. `priority` is an
    integer, higher first (links default to 0, seeds to 100); `label` comes back as
    `Page.label` when the page is fetched. `nofollow` links are counted, not followed.
    """

    url: str
    priority: int | None = None
    label: str | None = None
    nofollow: bool = False


@dataclass(slots=True)
class Page:
    """One fetched 2xx response, handed to each parser on a parse thread.

    `url` is the spelling first requested, `final_url` the one that answered,
    `body` the decoded bytes, `encoding` a Python codec name or None where the body is no
    text. `fetched_at` is RFC 3339 UTC, `elapsed` seconds.
    """

    url: str
    final_url: str
    status: int
    headers: Headers
    body: bytes
    encoding: str | None = None
    depth: int = 0
    label: str | None = None
    canonical_url: str = ""
    referrer: str | None = None
    fetched_at: str = ""
    elapsed: float = 0.0
    _tree: Callable[[Page], Any] | None = field(default=None, repr=False)
    _text: Callable[[Page], str] | None = field(default=None, repr=False)
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def content_type(self) -> str:
        """The media type, lower case, without parameters; "" when none was sent."""
        return self.headers.get("content-type", "").split(";", 1)[0].strip().lower()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the body in hexadecimal, computed once."""
        if "sha256" not in self._cache:
            self._cache["sha256"] = hashlib.sha256(self.body).hexdigest()
        digest: str = self._cache["sha256"]
        return digest

    def tree(self) -> Any:
        """The lxml.html root element, parsed once; None where the body is not markup."""
        if "tree" not in self._cache:
            self._cache["tree"] = self._tree(self) if self._tree else None
        return self._cache["tree"]

    def text(self) -> str:
        """The body decoded with `encoding`, undecodable bytes replaced; "" where it is no text."""
        if "text" not in self._cache:
            self._cache["text"] = self._text(self) if self._text else ""
        text: str = self._cache["text"]
        return text


@runtime_checkable
class Parser(Protocol):
    """Turns a page into records and links. One instance per parse thread, never shared.

    `parse` is all or nothing: what it yielded before raising is thrown away, the
    exception is counted against the plugin, and the crawl goes on. An optional
    `open()` runs on the parse thread before the first page and `close()` after the last;
    an `open()` that raises ends the crawl.
    """

    def parse(self, page: Page) -> Iterable[Record | Link]: ...


@runtime_checkable
class Store(Protocol):
    """Where records go. Every method is called on the commit thread, and only there.

    `checkpoint()` returns only when every earlier write survives a SIGKILL of this
    process; its token is kept in the frontier's transaction. `recover(token)` brings
    the store back to exactly what it held at that token, and raises `StoreDamaged`,
    leaving the output untouched, when it holds less or is not the same output.
    Whatever was in an output before the crawl stays. A method that raises means that
    nothing of the batch counts; the store is then recovered to its last token.
    """

    def open(self) -> None: ...

    def write(self, records: Iterable[Record]) -> None: ...

    def checkpoint(self) -> bytes: ...

    def recover(self, token: bytes) -> None: ...

    def close(self) -> None: ...


def _no_growth(total: int) -> None:
    """The default `Request.grow`: no bound but `max_body_bytes`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange to make: a GET of `url`, never following a redirect.

    `deadline` is on `Clock.monotonic`'s scale (seconds) and holds for DNS, connect, TLS,
    headers and body together; `timeout` is the same bound as a length. `max_body_bytes`
    caps the DECODED body. `grow(total)` is called before the reader holds `total`
    decoded bytes; it may block, or raise a FetchError with `ours` set. `truncate` asks for the
    first `max_body_bytes` of a longer body instead of an error (robots.txt).
    `allow_private` permits loopback, private and link-local addresses.
    """

    url: str
    deadline: float
    max_body_bytes: int
    headers: Headers = field(default_factory=Headers)
    allow_private: bool = True
    grow: Callable[[int], None] = _no_growth
    truncate: bool = False


@dataclass(slots=True)
class Response:
    """What one exchange brought. `ttfb` and `elapsed` are seconds from its start.

    `latency` is the host's share of the time to first byte: from the last byte of the request
    sent to the first of the answer, without what this process itself was late; None where
    the fetcher cannot tell. It is what rising latency is judged by.
    `body` is decoded, `wire_bytes` counts body bytes as they came. `complete` is False
    where the body was cut at `max_body_bytes`. `retried_stale` tells that a dead
    kept-alive connection cost one extra request.
    """

    url: str
    status: int
    headers: Headers
    body: bytes
    ttfb: float
    elapsed: float
    wire_bytes: int = 0
    complete: bool = True
    retried_stale: bool = False
    address: str | None = None
    latency: float | None = None


class Fetcher(Protocol):
    """Makes exchanges. One instance per crawl, called from every fetch thread at once.

    Raises FetchError and nothing else; never outlives `request.deadline`. `on_stale` is
    asked for leave before a stale kept-alive connection is replaced by a second request.
    """

    def fetch(self, request: Request, on_stale: Callable[[], bool] | None = None) -> Response: ...

    def close(self) -> None: ...


class ChallengeRecogniser(Protocol):
    """Tells pages that ask for proof of a human from the pages that were asked for.

    Called from every fetch thread at once for each final answer: must be stateless and
    quick (a few microseconds), since most answers are none.
    """

    def recognise(self, status: int, headers: Headers, body: bytes) -> str | None:
        """The name of the challenge ("cloudflare"), or None. `body` is decoded and may be cut."""
        ...


class RobotsRules(Protocol):
    """The rules of one origin as they apply to one user agent. Immutable, any thread."""

    @property
    def crawl_delay(self) -> float | None:
        """Seconds between request starts, fractional; None where not stated."""
        ...

    @property
    def sitemaps(self) -> tuple[str, ...]: ...

    def allowed(self, url: str) -> bool:
        """RFC 9309 section 2.2.2: longest match wins, allow on a tie."""
        ...


class RobotsEngine(Protocol):
    """Parses robots.txt. Called from fetch and commit threads; must be stateless."""

    def parse(self, body: bytes, user_agent: str) -> RobotsRules:
        """`user_agent` is the full header value; the product token is what matches."""
        ...
