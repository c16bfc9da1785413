"""What a body is, by its media type and, where none was sent, by its first bytes.

Any thread; pure functions; imports nothing from the package.
"""

from __future__ import annotations

import re
from functools import lru_cache

_MARKUP = frozenset({"text/html", "application/xhtml+xml", "application/xml", "text/xml"})
_TEXT = frozenset(
    {
        "application/json",
        "application/javascript",
        "application/ecmascript",
        "application/x-javascript",
        "application/x-ndjson",
        "application/yaml",
        "application/toml",
    }
)
# Types that say nothing (https://mimesniff.spec.whatwg.org/ section 7): sniffed as if missing.
_UNKNOWN = frozenset({"", "unknown/unknown", "application/unknown", "*/*"})

_SNIFFED_BYTES = 1024
_LOOKS_LIKE_MARKUP = re.compile(
    rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*"
    rb"(?:<(?:!doctype html|html|head|body|title|meta|link|base|script|style|iframe|frameset"
    rb"|h1|div|font|table|a|b|br|p)[\t\n\f\r />]|<!--|<\?xml)",
    re.IGNORECASE,
)
_BINARY_BYTE = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@lru_cache(maxsize=256)
def essence(content_type: str) -> str:
    """The media type of a Content-Type field, lower case, without parameters; "" for none.

    Of a field that was sent twice and joined with a comma, the last type counts.
    """
    named = content_type.split(";", 1)[0].rpartition(",")[2].strip().lower()
    return named if "/" in named else ""


def is_markup(content_type: str, body: bytes) -> bool:
    """Whether the body is HTML or XML, so that a tree can be had of it."""
    kind = essence(content_type)
    if kind in _MARKUP or kind.endswith("+xml"):
        return True
    return kind in _UNKNOWN and _sniffs_as_markup(body)


def is_text(content_type: str, body: bytes) -> bool:
    """Whether the body is text of any kind, markup included, so that it has an encoding."""
    kind = essence(content_type)
    if kind in _UNKNOWN:
        head = body[:_SNIFFED_BYTES]
        return head.startswith(_UTF16_BOMS) or _BINARY_BYTE.search(head) is None
    return kind.startswith("text/") or kind in _TEXT or kind.endswith(("+xml", "+json", "/xml"))


def may_declare_inside(content_type: str) -> bool:
    """Whether a `<meta charset>` or an XML declaration in the body says anything about it."""
    kind = essence(content_type)
    return kind in _UNKNOWN or kind in _MARKUP or kind.endswith("+xml")


def _sniffs_as_markup(body: bytes) -> bool:
    head = body[:_SNIFFED_BYTES]
    if head.startswith(_UTF16_BOMS):
        # Half of the bytes of UTF-16 markup are zero; without them it reads as ASCII.
        head = head[2:].replace(b"\0", b"")
    return _LOOKS_LIKE_MARKUP.match(head) is not None
