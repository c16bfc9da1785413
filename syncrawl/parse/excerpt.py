"""The text a reader sees: a page's title and the beginning of its visible text.

Runs on parse threads, or in a parse child; imports lxml and nothing from the package.
Walks no further through a tree than the text asked for.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

from lxml import etree

MAX_TITLE_CHARS = 1_000

# A page that shows nothing in its first elements has no excerpt worth a walk through the rest.
_MAX_NODES = 4_000
# No single text is looked at beyond this many times what is wanted: the rest may be blanks.
_SLACK = 16

_NO_ELEMENTS = (etree.Comment, etree.ProcessingInstruction, etree.Entity)
_UNRENDERED = ("noscript", "script", "style", "template")
_REPLACED = "head iframe math noembed noframes object svg title"
_UNSEEN: frozenset[Any] = frozenset((*_NO_ELEMENTS, *_UNRENDERED, *_REPLACED.split()))
# All others part words: <p>a</p><p>b</p> reads "a b", where <b>a</b>b reads "ab".
_PHRASING = """
    a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark nobr
    q rp rt ruby s samp small span strike strong sub sup time tt u var wbr
"""
_INLINE: frozenset[Any] = frozenset((*_NO_ELEMENTS, *_UNRENDERED, *_PHRASING.split()))


def collapsed(text: str, limit: int) -> str:
    """`text` with every run of white space made one blank, cut to `limit` characters."""
    return " ".join(text[: limit * _SLACK].split())[:limit].rstrip()


def title_of(root: Any) -> str | None:
    """The text of the first `<title>` that is not a drawing's; None where there is none."""
    for element in root.iter("title"):
        parent = element.getparent()
        if parent is None or parent.tag != "svg":
            return collapsed(element.text or "", MAX_TITLE_CHARS) or None
    return None


def excerpt_of(root: Any, limit: int) -> str:
    """The first `limit` characters of the visible text below `root`, white space collapsed.

    Leaves out the head, scripts, styles, `<noscript>`, templates and drawings.
    """
    body = next(root.iter("body", "frameset"), root)
    longest = limit * _SLACK
    pieces = [(body.text or "")[:longest]]
    append = pieces.append
    chars = len(pieces[0])
    # Start tags alone cost half of what start and end events do: the text that follows an
    # element is due when the next element turns out not to be inside it.
    opened = [body]
    hidden = None
    for node in chain(islice(body.iterdescendants(), _MAX_NODES), (None,)):
        parent = body if node is None else node.getparent()
        while (last := opened[-1]) is not parent:
            opened.pop()
            if last is hidden:
                hidden = None
            if hidden is None:
                if last.tag not in _INLINE:
                    append(" ")
                if tail := last.tail:
                    append(tail[:longest])
                    chars += len(tail)
        if node is None:
            break
        if chars > limit:
            chars = _squeeze(pieces)
            if chars >= limit:
                break
        opened.append(node)
        if hidden is None:
            tag = node.tag
            if tag not in _INLINE:
                append(" ")
            if tag in _UNSEEN:
                hidden = node
            elif text := node.text:
                append(text[:longest])
                chars += len(text)
    return " ".join("".join(pieces).split())[:limit].rstrip()


def _squeeze(pieces: list[str]) -> int:
    """Makes the pieces one, and a blank where more text would be parted from it; its length."""
    text = "".join(pieces)
    pieces[:] = (" ".join(text.split()), " " if text[-1:].isspace() else "")
    return len(pieces[0])
