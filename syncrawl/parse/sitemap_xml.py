"""Entries out of the text of an XML sitemap or feed, a block at a time.

Any thread, one document per object; imports lxml and `feed`. No tree is built: lxml tells
of each element and forgets it, so memory does not grow with the document. No entity that
the document declares is ever expanded, because no reference to one reaches lxml.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from lxml import etree

from syncrawl.parse.feed import SHAPES, Entry, LinkElement, Shape, entry_of

BLOCK = 64 * 1024
"""Characters given to lxml at a time; always so many, so that the pieces that come do not show."""

LONGEST_TEXT = 64 * 1024
"""Characters of a location beyond which it is dropped, not cut."""

MOST_LINKS = 500
_MOST_ERRORS = 1_000

_CDATA = re.compile(r"(<!\[CDATA\[|\]\]>)")
# Kept: what XML itself knows. Dropped: a reference to an entity of the document's own. Mended:
# an ampersand that is just that, as in `?a=1&b=2`, which lxml would turn into `?a=1=2`.
_AMPERSAND = re.compile(
    r"&(?:(amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});|([A-Za-z_:][\w.:-]*;))?"
)
_NO_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class XmlEntries:
    """Takes text, gives entries. `problem` is the first fault met, "" for none."""

    def __init__(self) -> None:
        self.problem = ""
        self.ended = False
        self._target = _Target()
        target: Any = self._target  # lxml's stubs want names that may be bytes, which none is
        self._parser: Any = etree.XMLParser(
            target=target,
            encoding="utf-8",
            recover=True,
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            dtd_validation=False,
            huge_tree=False,
        )
        self._parts: list[str] = []  # less than a block, joined when there is one
        self._size = 0
        self._buffer = ""
        self._in_cdata = False

    @property
    def kind(self) -> str | None:
        return self._target.shape.kind if self._target.shape else None

    def feed(self, text: str) -> list[Entry]:
        """The entries that end within what has come so far, but for a block held back."""
        self._parts.append(text)
        self._size += len(text)
        if self._size >= BLOCK:
            self._gather()
        while len(self._buffer) >= BLOCK and not self.ended:
            self._block(_cut(self._buffer))
        return self._target.taken()

    def close(self) -> list[Entry]:
        """The rest; an element that the text ends in is dropped."""
        self._gather()
        if not self.ended:
            # lxml would take `</lo` for an end tag, and half a location for a whole one.
            self._block(self._buffer.rfind(">") + 1)
            if self._buffer.strip():
                self._fault("the document is cut short")
            self._finish()
        self._target.flush()
        if not self.kind and not self.problem:
            self.problem = "neither a sitemap nor a feed"
        return self._target.taken()

    def _gather(self) -> None:
        self._buffer += "".join(self._parts)
        self._parts, self._size = [], 0

    def _block(self, end: int) -> None:
        block, self._buffer = self._buffer[:end], self._buffer[end:]
        if not block:
            return
        try:
            self._parser.feed(self._mended(block).encode("utf-8", "replace"))
        except etree.LxmlError:
            self._fault("the XML is broken beyond reading")
            self.ended = True
        if self._target.foreign:
            self._fault("neither a sitemap nor a feed")
            self.ended = True
        elif len(self._parser.feed_error_log) > _MOST_ERRORS:
            self._fault("the XML is broken in too many places")
            self.ended = True

    def _finish(self) -> None:
        self.ended = True
        try:
            self._parser.close()
        except etree.LxmlError:
            self._fault("no XML document")
        for error in self._parser.feed_error_log:
            # The message itself may quote the document; its kind cannot.
            # A prefix nobody declared is a lesser error, and costs nothing here.
            if error.level >= etree.ErrorLevels.FATAL:
                self._fault(f"the XML is broken: {error.type_name} in line {error.line}")
                break
        if self._target.dropped:
            self._fault("a location is no text, or too long")

    def _fault(self, what: str) -> None:
        self.problem = self.problem or what

    def _mended(self, block: str) -> str:
        if _NO_XML.search(block):
            block = _NO_XML.sub("\ufffd", block)
        if "&" not in block and "[CDATA[" not in block and not self._in_cdata:
            return block
        parts = _CDATA.split(block)
        for at, part in enumerate(parts):
            if at % 2:
                self._in_cdata = part != "]]>"
            elif not self._in_cdata:
                parts[at] = _AMPERSAND.sub(self._reference, part)
        return "".join(parts)

    def _reference(self, found: re.Match[str]) -> str:
        if found[1]:
            return found[0].replace("&#X", "&#x")
        if found[2]:
            return ""
        self._fault("an ampersand is not escaped")
        return "&amp;"


def _cut(text: str) -> int:
    """Where a block ends: after a tag, so that neither a reference nor a CDATA mark is split."""
    return text.rfind(">", 0, BLOCK) + 1 or max(text.rfind("<", 0, BLOCK), 0) or BLOCK


@lru_cache(maxsize=256)
def _local(tag: str) -> str:
    return tag.rpartition("}")[2].rpartition(":")[2].lower()


class _Target:
    """What lxml calls for each element; collects the entry it is in and those that ended."""

    def __init__(self) -> None:
        self.shape: Shape | None = None
        self.foreign = False
        self.dropped = False
        self._depth = 0
        self._entry_depth = 0  # of the entry's element; 0 outside
        self._field = ""  # that text goes to
        self._field_depth = 0
        self._text: list[str] = []
        self._length = 0
        self._fields: dict[str, str] = {}
        self._links: list[LinkElement] = []
        self._found: list[Entry] = []

    def taken(self) -> list[Entry]:
        found, self._found = self._found, []
        return found

    def start(self, tag: str, attributes: Any) -> None:
        self._depth += 1
        name = _local(tag)
        shape = self.shape
        if shape is None:
            if self._depth == 1 and not self.foreign:
                self.shape = SHAPES.get(name)
                self.foreign = self.shape is None
            return
        if self._field:
            return  # markup inside a text: only its text counts
        if name == shape.entry:
            # One inside another was not closed before it.
            self.flush()
            self._entry_depth = self._depth
        elif self._entry_depth and self._depth == self._entry_depth + 1:
            if name == "link":
                self._link(attributes)
            if field := shape.fields.get(name):
                self._field, self._field_depth = field, self._depth

    def data(self, text: str) -> None:
        if self._field and self._length <= LONGEST_TEXT:
            self._text.append(text)
            self._length += len(text)

    def end(self, tag: str) -> None:
        if self._field and self._depth <= self._field_depth:
            self._end_of_field()
        if self._entry_depth and self._depth <= self._entry_depth:
            self.flush()
        self._depth -= 1

    def close(self) -> None:
        return None

    def flush(self) -> None:
        """The entry is over; a text that is not, is dropped."""
        if self.shape is not None and (self._fields or self._links):
            entry = entry_of(self.shape, self._fields, self._links)
            if entry is not None:
                self._found.append(entry)
            elif "\ufffd" in self._fields.get("loc", ""):
                self.dropped = True
        self._fields, self._links = {}, []
        self._entry_depth = 0
        self._field, self._text, self._length = "", [], 0

    def _link(self, attributes: Any) -> None:
        href = attributes.get("href", "").strip()
        if href and "\ufffd" not in href and len(self._links) < MOST_LINKS:
            rel, hreflang = attributes.get("rel", ""), attributes.get("hreflang", "")
            self._links.append(LinkElement(rel.strip().lower(), hreflang.strip(), href))

    def _end_of_field(self) -> None:
        field, text = self._field, "".join(self._text).strip()
        too_long = self._length > LONGEST_TEXT
        self._field, self._text, self._length = "", [], 0
        if too_long:
            self.dropped = self.dropped or field == "loc"
        elif text and field == "loc" and field in self._fields:
            if self.shape is not None and self.shape.several:
                depth = self._entry_depth
                self.flush()
                self._entry_depth = depth
                self._fields[field] = text
        elif text:
            self._fields.setdefault(field, text)
