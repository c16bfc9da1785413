"""What the hostile site's behaviours are made of. Data and bytes; any thread.

Imports nothing of the package outside `testing`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat

from syncrawl.testing.site_host import Answer, Pages, Reply

DONE = "done"
OK = "HTTP/1.1 200 OK"
HTML_FIELD = "Content-Type: text/html; charset=utf-8"
PAGE = b"<!DOCTYPE html><title>A page</title><p>Some text.</p>"
NEVER_READ = 1_000_000_000
"""The length of what is said to be longer than anybody reads, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One way in which a server is bad, on a host of its own.

    `path` is the URL to begin with. `ends` are the ends that it may come to: "done", or the
    outcome class of a failed or dropped URL. `others` are further paths of the host and their
    end. `requests` is the most that a polite crawler asks of the host, robots.txt included.
    """

    name: str
    does: str
    pages: Pages
    ends: tuple[str, ...] = (DONE,)
    path: str = "/"
    robots: Answer = None
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    requests: int = 8


def head(*fields: str, status: str = OK) -> bytes:
    """A status line and fields, whatever they are, and the blank line."""
    return "\r\n".join([status, *fields, "", ""]).encode("latin-1")


def sized(body: bytes, *fields: str, status: str = OK) -> bytes:
    """A well-formed answer with a Content-Length."""
    return head(*fields, f"Content-Length: {len(body)}", status=status) + body


def raw(data: bytes, end: str = "close") -> Reply:
    """An answer that is these bytes; `end` as in `Reply`."""
    return Reply(raw=data, end=end)  # type: ignore[arg-type] # checked where it is used


def streamed(steps: Callable[[], Iterator[bytes | float]], end: str = "close") -> Reply:
    """An answer of steps; `end` as in `Reply`."""
    return Reply(stream=steps, end=end)  # type: ignore[arg-type] # checked where it is used


def for_ever(first: bytes, more: bytes, pause: float = 0.0) -> Reply:
    """`first`, then `more` again and again for as long as somebody reads."""

    def steps() -> Iterator[bytes | float]:
        yield first
        while True:
            if pause:
                yield pause
            yield more

    return streamed(steps)


def coded(body: bytes, *codings: str, fields: tuple[str, ...] = (HTML_FIELD,)) -> Reply:
    """`body`, which is said to be in these codings."""
    return raw(sized(body, *fields, f"Content-Encoding: {', '.join(codings)}"))


@cache
def gzip_bomb() -> bytes:
    """A gzip stream of a thousandth of the bytes that it expands to."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    parts = [packer.compress(block) for block in bomb_blocks()]
    return b"".join([*parts, packer.flush()])


def bomb_blocks() -> Iterator[bytes]:
    """What the bombs are made of: 200 MB in blocks."""
    return repeat(b"a" * (1 << 20), 200)


def gzipped(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def links(*targets: str) -> bytes:
    """A page that links to `targets`."""
    items = "".join(f'<li><a href="{target}">{number}</a>' for number, target in enumerate(targets))
    return f"<!DOCTYPE html><title>Links</title><ul>{items}</ul>".encode()
