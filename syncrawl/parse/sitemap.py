"""Reads sitemaps and feeds from bytes as they come: what they list, and what is wrong with them.

Any thread, one document per object; imports the parse stage's own modules. Bytes pass
gzip (by its first bytes, twice at most), the encoding, and then lines or XML, each of
which holds a block at most: memory stays flat whatever the document's size, and counts
what it expands to, not what was sent.

No library does this that we could use: ultimate-sitemap-parser is GPL, fetches by itself and
holds a document as one string; feedparser and Scrapy's reader want it whole. lxml streams,
and what it would do with entities and stray ampersands is taken care of in `sitemap_xml`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from syncrawl.parse.encoding import declared_encoding
from syncrawl.parse.feed import Alternate, Entry
from syncrawl.parse.gunzip import Gunzip
from syncrawl.parse.sitemap_xml import LONGEST_TEXT, XmlEntries

__all__ = ["MAX_BYTES", "MAX_ENTRIES", "Alternate", "Entry", "SitemapReader"]

MAX_BYTES = 50 * 1024 * 1024
"""Decoded bytes of one file, and locations below: the protocol's limits (sitemaps.org)."""

MAX_ENTRIES = 50_000

_HEAD = 1_024
"""Bytes that the encoding is told by, and characters that the kind is told by."""

_BLANKS = "\ufeff \t\r\n\f\0"
_URL_LINE = re.compile(r"https?://\S+", re.IGNORECASE)


class SitemapReader:
    """Takes a document's bytes in pieces of any size and yields what it lists.

        reader = SitemapReader()
        for piece in pieces:
            for entry in reader.feed(piece): ...
        for entry in reader.close(): ...

    `kind` is "urlset", "sitemapindex" (each `loc` is another sitemap), "text", "rss", "atom",
    or None as long as nothing was recognised. `problem` says in one clause, without quoting
    the document, what is wrong with it, "" for nothing; all that was read before stands.
    `done`: more bytes would be ignored, so the caller may stop reading. Never raises for
    anything in the document.
    """

    def __init__(
        self, *, content_type: str = "", max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES
    ) -> None:
        self.problem = ""
        self.done = False
        self.entries = 0
        self.decoded_bytes = 0
        self._content_type = content_type
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._outer, self._inner = Gunzip(max_bytes), Gunzip(max_bytes)
        self._head = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._xml: XmlEntries | None = None
        self._lines: _Lines | None = None

    @property
    def kind(self) -> str | None:
        if self._xml is not None:
            return self._xml.kind
        return "text" if self._lines is not None and self._lines.found else None

    def feed(self, data: bytes) -> Iterator[Entry]:
        """What ends within `data`; must be read to its end before the next call."""
        for outer in self._outer.feed(data):
            yield from self._inflated(outer)
        self._look_at_gzip()

    def close(self, *, complete: bool = True) -> Iterator[Entry]:
        """What is left. `complete=False`: the body was cut, so that its last line may be half."""
        for outer in self._outer.close():
            yield from self._inflated(outer)
        for inner in self._inner.close():
            yield from self._decoded(inner)
        self._look_at_gzip()
        if not complete:
            self._fault("the body is cut short")
        whole = complete and self._outer.intact and self._inner.intact and not self.done
        yield from self._capped(self._text(self._decode(b"", True)))
        yield from self._capped(self._rest(whole))
        self._tell()
        self.done = True

    def read(self, pieces: Iterable[bytes], *, complete: bool = True) -> Iterator[Entry]:
        """All of `pieces`, which are taken no further than there is use for them."""
        for piece in pieces:
            yield from self.feed(piece)
            if self.done:
                break
        yield from self.close(complete=complete)

    def _inflated(self, outer: bytes) -> Iterator[Entry]:
        for inner in self._inner.feed(outer):
            yield from self._decoded(inner)
            if self.done:
                return

    def _decoded(self, data: bytes) -> Iterator[Entry]:
        if self.done:
            return
        self.decoded_bytes += len(data)
        if self._decoder is None:
            self._head += data
            if len(self._head) < _HEAD:
                return
            data, self._head = self._head, b""
            if not self._begin(data):
                return
        yield from self._capped(self._text(self._decode(data, False)))

    def _begin(self, head: bytes) -> bool:
        """Settle the encoding; False where the bytes are compressed still."""
        if self._inner.zipped and head.startswith(b"\x1f\x8b"):
            self._fault("compressed more than twice")
            self.done = True
            return False
        first = head[:_HEAD]
        name = declared_encoding(first, self._content_type) or declared_encoding(first, "")
        self._decoder = codecs.getincrementaldecoder(name or "utf-8")("replace")
        return True

    def _decode(self, data: bytes, final: bool) -> str:
        if self._decoder is None:
            data, self._head = self._head + data, b""
            if not self._begin(data):
                return ""
        assert self._decoder is not None
        return self._decoder.decode(data, final)

    def _text(self, text: str) -> list[Entry]:
        if self._xml is None and self._lines is None:
            text = text.lstrip(_BLANKS)
            if not text:
                return []
            if text[0] == "<":
                self._xml = XmlEntries()
            else:
                self._lines = _Lines()
        if self._xml is not None:
            found = self._xml.feed(text)
            if self._xml.ended:
                self.done = True
            return found
        return self._lines.feed(text) if self._lines is not None else []

    def _rest(self, whole: bool) -> list[Entry]:
        if self._xml is not None:
            return self._xml.close()
        return self._lines.close(whole) if self._lines is not None else []

    def _capped(self, found: list[Entry]) -> Iterator[Entry]:
        for entry in found:
            if self.entries >= self._max_entries:
                self._fault(f"more than {self._max_entries} locations")
                self.done = True
                return
            self.entries += 1
            yield entry

    def _look_at_gzip(self) -> None:
        if self._outer.over or self._inner.over:
            self._fault(f"more than {self._max_bytes} bytes")
            self.done = True

    def _tell(self) -> None:
        if not (self._outer.intact and self._inner.intact):
            self._fault("the gzip data are damaged or cut short")
        if self._xml is not None:
            self._fault(self._xml.problem)
        elif self.kind is None:
            self._fault("neither a sitemap nor a feed")

    def _fault(self, what: str) -> None:
        self.problem = self.problem or what


class _Lines:
    """A text sitemap: a URL a line; lines that are none are passed over."""

    def __init__(self) -> None:
        self.found = False
        self._rest = ""
        self._skipping = False  # a line longer than any URL may be

    def feed(self, text: str) -> list[Entry]:
        *lines, rest = re.split(r"[\r\n]", self._rest + text)
        if self._skipping and lines:
            lines[0], self._skipping = "", False
        if len(rest) > LONGEST_TEXT:
            rest, self._skipping = "", True
        self._rest = rest
        return self._urls(lines)

    def close(self, whole: bool) -> list[Entry]:
        """The last line, unless it may be half of one."""
        lines = [self._rest] if whole and not self._skipping else []
        self._rest = ""
        return self._urls(lines)

    def _urls(self, lines: list[str]) -> list[Entry]:
        found = []
        for line in lines:
            url = line.strip(_BLANKS)
            if len(url) <= LONGEST_TEXT and "\ufffd" not in url and _URL_LINE.fullmatch(url):
                found.append(Entry(url))
        self.found = self.found or bool(found)
        return found
