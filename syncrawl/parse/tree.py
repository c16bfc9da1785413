"""The element tree of a page, whatever the page's bytes are like.

Runs on parse threads, or in a parse child; each call makes its own lxml parser, so nothing
is shared. Imports lxml, the API, and the parse stage's own modules.

lxml is always fed valid UTF-8 without NUL: how it treats anything else differs from
version to version, up to losing the rest of the page without an error.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Any

from lxml import etree, html

from syncrawl.api import Page
from syncrawl.parse.detect import is_utf8
from syncrawl.parse.encoding import decode, find_encoding
from syncrawl.parse.media import is_markup

# libxml2 gives up at 2,048 open elements and loses every link of the page.
_MAX_DEPTH = 1_000
_KEPT_WHEN_DEEP = frozenset({"a", "area", "base", "frame", "iframe", "link", "meta", "title"})
# Fewer tags than this cannot reach libxml2's limit, so its error log need not be read.
_TAGS_WORTH_CHECKING = 2_000

_TAG = re.compile(rb"<[^<>]*>")
_REPLACEMENT = "\ufffd".encode()


def tree_of(page: Page) -> Any:
    """The root element (lxml.html) of a page; None where it is no markup, or holds no element.

    XHTML and XML are read as HTML: element names come in lower case and without namespace.
    Never raises for anything in the body.
    """
    content_type = page.headers.get("content-type", "")
    if not is_markup(content_type, page.body):
        return None
    encoding = page.encoding or find_encoding(page.body, content_type)
    return _parse(_clean_utf8(page.body, encoding))


def _clean_utf8(body: bytes, encoding: str) -> bytes:
    """The same text in valid UTF-8, NULs left out of text and marked U+FFFD inside tags."""
    if not (_is_utf8_codec(encoding) and is_utf8(body)):
        # Decoders may leave unpaired surrogates, which UTF-8 has no bytes for.
        body = decode(body, encoding).encode("utf-8", "replace")
    if b"\0" in body:
        body = _TAG.sub(lambda tag: tag[0].replace(b"\0", _REPLACEMENT), body)
        body = body.replace(b"\0", b"")
    return body


def _is_utf8_codec(encoding: str) -> bool:
    if encoding == "utf-8":
        return True
    try:
        return codecs.lookup(encoding).name in ("utf-8", "ascii")
    except LookupError:
        return True


def _parse(body: bytes) -> Any:
    parser = _new_parser()
    try:
        root = etree.fromstring(body, parser)
    except etree.ParserError:
        # Older libxml2 calls an empty document an error, newer returns None.
        return None
    if body.count(b"<") > _TAGS_WORTH_CHECKING:
        error = parser.error_log.last_error
        if error is not None and error.type == etree.ErrorTypes.ERR_RESOURCE_LIMIT:
            root = etree.fromstring(body, _new_parser(target=_Flattener()))
    return root


def _new_parser(target: Any = None) -> Any:
    # huge_tree lifts the limits of 256 open elements and 10 MB a text; [fetch] max_body_bytes
    # is the limit that counts.
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, target=target)
    parser.set_element_class_lookup(_element_classes())
    return parser


@cache
def _element_classes() -> Any:
    """lxml.html's classes, chosen in C: its own look-up is Python code run for each element."""
    lookup = etree.ElementNamespaceClassLookup(
        etree.ElementDefaultClassLookup(
            element=html.HtmlElement,
            comment=html.HtmlComment,
            pi=html.HtmlProcessingInstruction,
            entity=html.HtmlEntity,
        )
    )
    by_name = lookup.get_namespace(None)
    for name, element_class in (
        ("form", html.FormElement),
        ("input", html.InputElement),
        ("label", html.LabelElement),
        ("select", html.SelectElement),
        ("textarea", html.TextareaElement),
    ):
        by_name[name] = element_class
    return lookup


class _Flattener:
    """A parser target whose tree is at most `_MAX_DEPTH` + 1 deep.

    All text is there, in document order; of the elements beyond the limit only those in
    `_KEPT_WHEN_DEEP` are, and they are empty: their text follows them.
    """

    def __init__(self) -> None:
        builder: Any = etree.TreeBuilder(parser=_new_parser())
        self._start = builder.start
        self._end = builder.end
        self._depth = 0
        self.data = builder.data
        self.close = builder.close

    def start(self, tag: str, attributes: Any) -> None:
        self._depth += 1
        if self._depth <= _MAX_DEPTH:
            self._start(tag, attributes)
        elif tag in _KEPT_WHEN_DEEP:
            self._start(tag, attributes)
            self._end(tag)

    def end(self, tag: str) -> None:
        if self._depth <= _MAX_DEPTH:
            self._end(tag)
        self._depth -= 1
