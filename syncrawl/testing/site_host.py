"""How a loopback site's hosts behave: the answers, the host they come from, what it has seen.

`Reply` and `Host` are data and belong to the test that makes them; a `ServedHost` belongs
to the site's loop thread, and other threads only read it or `release()` it. Imports
nothing of the package outside `testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeAlias

from syncrawl.testing.site_log import Exchange, HostLog

HTML = "text/html; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_BODYLESS = frozenset({204, 304})


@dataclass(slots=True)
class Reply:
    """One answer. `delay` (seconds) overrides the host's; `math.inf` holds it till `release()`.

    `drip` sends one byte each that many seconds: of the body, or of everything with
    `drip_head`. `raw` is sent as it stands in place of a rendered response, and so is what
    `stream()` yields: bytes, and pauses in seconds; it may never end. `close` ends the
    connection afterwards; `end` says how a raw or streamed one goes on: "close", "reset"
    (RST), "hold" (open and silent), or "keep" for the next request. With `poisoned`, the next
    request on the connection is answered by a reset. `resource` names what the URL's
    spellings share.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = HTML
    headers: tuple[tuple[str, str], ...] = ()
    delay: float | None = None
    drip: float = 0.0
    drip_head: bool = False
    raw: bytes | None = None
    close: bool = False
    resource: str = ""
    stream: Callable[[], Iterator[bytes | float]] | None = None
    end: Literal["close", "reset", "hold", "keep"] = "close"
    poisoned: bool = False

    @property
    def as_it_stands(self) -> bool:
        """Whether the bytes are the author's, framing and all."""
        return self.raw is not None or self.stream is not None

    def steps(self, *, bodyless: bool = False) -> Iterator[bytes | float]:
        """What goes over the wire: bytes, and the pauses between them in seconds."""
        if self.stream is not None:
            yield from self.stream()
            return
        if self.raw is not None:
            head, data = self.raw, self.raw
        else:
            head = self.head()
            data = head if bodyless else head + self.body
        if not self.drip:
            yield data
            return
        first = 1 if self.drip_head else len(head)
        yield data[:first]
        for place in range(first, len(data)):
            yield self.drip
            yield data[place : place + 1]

    def head(self) -> bytes:
        """The status line and header fields (RFC 9112), the blank line included."""
        lines = [f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, 'Unknown')}\r\n"]
        if self.content_type:
            lines.append(f"Content-Type: {self.content_type}\r\n")
        if self.status not in _BODYLESS:
            lines.append(f"Content-Length: {len(self.body)}\r\n")
        lines += [f"{name}: {value}\r\n" for name, value in self.headers]
        if self.close:
            lines.append("Connection: close\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")

    @classmethod
    def redirect(cls, location: str, status: int = 302) -> Reply:
        """A redirect to `location`."""
        return cls(status=status, headers=(("Location", location),))


Answer: TypeAlias = "Reply | bytes | str | int | None"
"""A Reply, an HTML body, a bare status, or None for 404."""
Pages: TypeAlias = "Mapping[str, Answer] | Callable[[str], Answer]"


def as_reply(answer: Answer) -> Reply:
    """The `Reply` that `answer` is short for."""
    if isinstance(answer, Reply):
        return answer
    if isinstance(answer, int):
        return Reply(status=answer)
    if isinstance(answer, str):
        return Reply(answer.encode())
    return Reply(b"not here", 404) if answer is None else Reply(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """How one host behaves.

    `pages` maps a request target (with its query; a mapping is tried without it next) to an
    `Answer`. `name` is used in its URLs in place of the address and must be resolved by the
    client (`[fetch.resolve]`). `address` defaults to 127.0.0.1, .2, ... by position; `port` 0
    is a free one. `delay` is seconds before each answer. `robots` is the text, or the answer,
    for /robots.txt (None: 404). Beyond `max_concurrent` requests in flight it answers 429 at
    once, with `retry_after` as the field's value where given.
    """

    pages: Pages
    name: str = ""
    address: str = ""
    port: int = 0
    delay: float = 0.0
    robots: Answer = None
    max_concurrent: int | None = None
    retry_after: str | None = None


class ServedHost:
    """A host being served: where it is and what it has seen."""

    def __init__(self, host: Host, address: str, wake: Callable[[Callable[[], None]], None]):
        self.host = host
        self.address = address
        self.port = 0
        self.in_flight = 0  # loop thread only
        self.exchanges: list[Exchange] = []  # appended to by the loop thread alone
        self._parked: list[Callable[[], None]] = []  # loop thread only
        self._wake = wake
        self._robots = Reply(b"", 404, PLAIN) if host.robots is None else as_reply(host.robots)
        if isinstance(host.robots, str):
            self._robots.content_type = PLAIN
        retry = () if host.retry_after is None else (("Retry-After", host.retry_after),)
        self._throttled = Reply(b"slow down", 429, PLAIN, retry, delay=0.0)

    @property
    def netloc(self) -> str:
        """`host:port` as its URLs have it; the default port is left out."""
        name = self.host.name or self.address
        return name if self.port == 80 else f"{name}:{self.port}"

    def url(self, path: str = "/") -> str:
        """The absolute URL of `path`."""
        return f"http://{self.netloc}{path}"

    @property
    def log(self) -> HostLog:
        """What it has seen so far."""
        return HostLog(self.netloc, list(self.exchanges))

    def release(self) -> None:
        """Answer, now, every request whose delay is infinite. Any thread."""
        self._wake(self._answer_parked)

    def park(self, answer: Callable[[], None]) -> None:
        """Keep `answer` until `release`. Loop thread."""
        self._parked.append(answer)

    def _answer_parked(self) -> None:
        parked, self._parked = self._parked, []
        for answer in parked:
            answer()

    def reply_to(self, target: str) -> Reply:
        """The answer to a GET of `target`, the throttle included. Loop thread."""
        limit = self.host.max_concurrent
        if limit is not None and self.in_flight > limit:
            return self._throttled
        pages = self.host.pages
        if target == "/robots.txt" and (self.host.robots is not None or callable(pages)):
            return self._robots
        if callable(pages):
            return as_reply(pages(target))
        if target in pages:
            return as_reply(pages[target])
        return as_reply(pages.get(target.partition("?")[0]))

    def __repr__(self) -> str:
        return f"ServedHost({self.netloc}, seen={len(self.exchanges)}, in_flight={self.in_flight})"
