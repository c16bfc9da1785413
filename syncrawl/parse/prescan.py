"""The encoding labels that a document names in its own first bytes.

Any thread; pure functions; imports nothing from the package. Follows "prescan a byte
stream to determine its encoding", https://html.spec.whatwg.org/ section 13.2.3.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARK = re.compile(
    rb"<(?:(?P<comment>!--)|(?P<meta>meta)(?=[\t\n\f\r /])|(?P<tag>/?[a-z])|(?P<other>[!/?]))",
    re.IGNORECASE,
)
_AFTER_TAG_NAME = re.compile(rb"[\t\n\f\r >]")
_BETWEEN_ATTRIBUTES = re.compile(rb"[\t\n\f\r /]*+")
_ATTRIBUTE_NAME = re.compile(
    rb"([^\t\n\f\r />][^\t\n\f\r />=]*+)[\t\n\f\r ]*+(?:(=)[\t\n\f\r ]*+)?"
)
_ATTRIBUTE_VALUE = re.compile(
    rb"\"([^\"]*+)\"|'([^']*+)'|([^\t\n\f\r >\"'][^\t\n\f\r >]*+)(?=[\t\n\f\r >])|(?=>)"
)
_IN_CONTENT = re.compile(
    rb"charset[\t\n\f\r ]*+=[\t\n\f\r ]*+"
    rb"(?:\"([^\"]*+)\"|'([^']*+)'|([^\t\n\f\r ;\"'][^\t\n\f\r ;]*+))",
    re.IGNORECASE,
)
_XML_DECLARATION = re.compile(
    rb"<\?xml[\t\n\r ][^>]*?encoding[\t\n\r ]*=[\t\n\r ]*[\"']([A-Za-z0-9._:-]+)[\"']"
)


def labels_inside(head: bytes) -> Iterator[str]:
    """The labels in `<meta>` elements, first to last, then that of an XML declaration.

    `head` is the start of a document in any encoding that extends ASCII. A label may be
    nonsense: the caller takes the first one it knows.
    """
    yield from _meta_labels(head)
    if declaration := _XML_DECLARATION.match(head):
        yield _text(declaration[1])


def _meta_labels(head: bytes) -> Iterator[str]:
    # Nothing after the last mention can matter, and most pages hold an early one or none.
    end = head.lower().rfind(b"charset")
    at = 0
    while (mark := _MARK.search(head, at)) and mark.start() < end:
        if mark["comment"]:
            # `<!-->` is a whole comment.
            closing = head.find(b"-->", mark.start() + 2)
            if closing < 0:
                return
            at = closing + 3
        elif mark["other"]:
            at = head.find(b">", mark.end()) + 1
            if at == 0:
                return
        else:
            begin = mark.end() if mark["meta"] else _end_of_name(head, mark.end())
            attributes, at = _attributes(head, begin)
            if at < 0:
                return
            if mark["meta"] and (label := _label(attributes)):
                yield _text(label)


def _end_of_name(head: bytes, at: int) -> int:
    found = _AFTER_TAG_NAME.search(head, at)
    return found.start() if found else len(head)


def _attributes(head: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """The attributes from `at` on and where their tag ends; -1 where the bytes end first."""
    found: dict[bytes, bytes] = {}
    while True:
        at = _end_of_blanks(head, at)
        if head[at : at + 1] == b">":
            return found, at + 1
        name = _ATTRIBUTE_NAME.match(head, at)
        if name is None or name.end() == len(head):
            return found, -1
        at, content = name.end(), b""
        if name[2]:
            value = _ATTRIBUTE_VALUE.match(head, at)
            if value is None:
                return found, -1
            at, content = value.end(), value[1] or value[2] or value[3] or b""
        found.setdefault(name[1].lower(), content)


def _end_of_blanks(head: bytes, at: int) -> int:
    blanks = _BETWEEN_ATTRIBUTES.match(head, at)
    return blanks.end() if blanks else at


def _label(attributes: dict[bytes, bytes]) -> bytes:
    """What a `<meta>` with these attributes declares; b"" for nothing."""
    if b"charset" in attributes:
        return attributes[b"charset"]
    if attributes.get(b"http-equiv", b"").lower() != b"content-type":
        return b""
    named = _IN_CONTENT.search(attributes.get(b"content", b""))
    return (named[1] or named[2] or named[3] or b"") if named else b""


def _text(label: bytes) -> str:
    return label.decode("ascii", "replace")
