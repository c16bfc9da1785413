"""What parsing one page takes and gives, the same in a parse thread and in a parse child.

Runs on parse threads, or in a parse child. Imports the API, the errors, msgspec, and the parse
stage's own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from syncrawl.api import Headers, Link, Page, Parser, Record
from syncrawl.errors import SyncrawlError
from syncrawl.parse.collect import collect
from syncrawl.parse.html import base_of, make_page


class NamedParser(NamedTuple):
    """A parser and the name it was selected by."""

    name: str
    parser: Parser


class ParserUnusable(SyncrawlError):
    """A parser cannot be opened: no page is to blame, and none can be parsed.

    `parser` is its name, or "" where the message tells.
    """

    def __init__(self, message: str, *, parser: str) -> None:
        super().__init__(message)
        self.parser = parser


class Parts(msgspec.Struct, array_like=True, gc=False):
    """A page to parse but for its body: the fields of `api.Page` of the same names."""

    url: str
    final_url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    depth: int
    label: str | None
    canonical_url: str
    referrer: str | None
    fetched_at: str
    elapsed: float


class Outlink(msgspec.Struct, array_like=True, gc=False):
    """An `api.Link` as it comes from a child; made in C, which a page's dozens of them need."""

    url: str
    priority: int | None = None
    label: str | None = None
    nofollow: bool = False


class Work(NamedTuple):
    """What the parsers made of a page.

    `links` are as relative as they were written and resolve against `base`; `body_hash` is
    the first 8 bytes of the body's SHA-256, `length` the body's bytes.
    """

    records: list[Record]
    links: Sequence[Link | Outlink]
    body_hash: int
    length: int
    encoding: str | None
    base: str


class Bench:
    """The parsers of one parse thread, or of one child, and where they are at.

    `on_parser` is told the index of each parser before it is given the page.
    """

    def __init__(
        self,
        parsers: Sequence[NamedParser],
        max_items: int,
        on_parser: Callable[[int], None] | None = None,
    ) -> None:
        self._parsers = parsers
        self._max_items = max_items
        self._on_parser = on_parser
        # The name of the parser that has, or last had, the page; "" before the first.
        self.at = ""

    def open(self) -> None:
        """Give parsers that want it a start on their own thread. Raises ParserUnusable."""
        for name, parser in self._parsers:
            try:
                getattr(parser, "open", _nothing)()
            except BaseException as exc:
                raise ParserUnusable(f"its open() raised {told(exc)}", parser=name) from exc

    def close(self, on_failure: Callable[[str, BaseException], None]) -> None:
        """The counterpart of `open`; a parser that fails here is told about and left."""
        for name, parser in self._parsers:
            try:
                getattr(parser, "close", _nothing)()
            except BaseException as exc:  # noqa: BLE001 - a plugin may raise anything
                on_failure(name, exc)

    def parse(self, parts: Parts, body: bytes) -> Work:
        """Everything all parsers yield; what one raises goes through, and `at` names it."""
        self.at = ""
        page = _page(parts, body)
        records: list[Record] = []
        links: list[Link] = []
        for index, (name, parser) in enumerate(self._parsers):
            self.at = name
            if self._on_parser is not None:
                self._on_parser(index)
            more, found = collect(parser, page, self._max_items)
            records += more
            links += found
        base = base_of(page) if links else page.final_url
        return Work(records, links, int(page.sha256[:16], 16), len(body), page.encoding, base)


def told(error: BaseException) -> str:
    """An exception as the report and the log show it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a plugin's own class may fail here too
        return type(error).__name__


def _page(parts: Parts, body: bytes) -> Page:
    return make_page(
        url=parts.url,
        final_url=parts.final_url,
        status=parts.status,
        headers=Headers(parts.headers),
        body=body,
        depth=parts.depth,
        label=parts.label,
        canonical_url=parts.canonical_url,
        referrer=parts.referrer,
        fetched_at=parts.fetched_at,
        elapsed=parts.elapsed,
    )


def _nothing() -> None:
    """What a parser without open() or close() does."""
