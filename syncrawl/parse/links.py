"""A page's outlinks, in document order, and the base they resolve against.

Runs on parse threads, or in a parse child; imports the API, `urls`, and the parse stage's
own modules. Links stay as relative as they were written: the engine resolves them with
`urls.Canonicalizer.resolver(base_of(page), page.encoding)`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from syncrawl.api import Page
from syncrawl.parse.directives import NONE, Directives, from_meta
from syncrawl.urls import Canonicalizer

_ANCHORS = ("a", "area")
_TAGS = (*_ANCHORS, "link", "frame", "iframe", "meta")
_PAGE_RELATIONS = frozenset({"next", "canonical", "alternate"})
_RESOURCE_RELATIONS = frozenset({"stylesheet", "icon", "preload", "prefetch", "modulepreload"})

# Never pages, and frequent. Any other scheme is left to the scope, which counts what it refuses.
_NO_PAGE = frozenset(
    {"about", "blob", "callto", "cid", "data", "javascript", "mailto", "sms", "tel", "vbscript"}
)
_LONGEST_SCHEME = 16
_C0_AND_SPACE = "".join(map(chr, range(0x21)))  # what a URL is stripped of (WHATWG URL section 4.4)

# "Shared declarative refresh steps", https://html.spec.whatwg.org/ section 4.2.5.3.
_REFRESH = re.compile(
    r"[\t\n\f\r ]*(?:[0-9]+|(?=\.))[0-9.]*(?:[;,]|[\t\n\f\r ])[\t\n\f\r ]*[;,]?[\t\n\f\r ]*"
    r"(?:url[\t\n\f\r ]*=[\t\n\f\r ]*)?"
    r"(?:\"([^\"]*)|'([^']*)|(.*))",
    re.IGNORECASE | re.DOTALL,
)


class Outlinks(NamedTuple):
    """What one walk over a tree finds.

    `nofollow` maps each target, in document order and without repeats or fragments, to
    whether every link to it says rel=nofollow. `directives` are those of `<meta>` alone.
    """

    nofollow: dict[str, bool]
    directives: Directives


def outlinks_of(root: Any, agent: str = "", *, refuse: str = "") -> Outlinks:
    """The targets of a, area, frame, iframe, page-like link elements and meta refresh.

    `agent` is our product token, for `<meta name=AGENT>`; a target that holds the character
    `refuse` is left out.
    """
    found: dict[str, bool] = {}
    directives = NONE
    for element in root.iter(*_TAGS):
        tag = element.tag
        nofollow = False
        if tag in _ANCHORS:
            raw = element.get("href")
            if (rel := element.get("rel")) is not None:
                nofollow = "nofollow" in rel.lower().split()
        elif tag == "meta":
            directives |= from_meta(element.get("name", ""), element.get("content", ""), agent)
            raw = _refresh_target(element)
        elif tag == "link":
            raw, nofollow = _page_link(element)
        else:
            raw = element.get("src")
        if not raw:
            continue
        target = raw.strip(_C0_AND_SPACE)
        if "#" in target:
            target = target[: target.index("#")]
        if ":" in target and _is_no_page(target):
            continue
        if target and not (refuse and refuse in target):
            found[target] = nofollow and found.get(target, True)
    return Outlinks(found, directives)


def base_of(page: Page) -> str:
    """What the page's links resolve against: its first `<base href>`, else its final URL.

    A base that is no http(s) URL, or that stands in `<noscript>`, does not count.
    """
    base = page._cache.get("base")
    if base is None:
        base = page._cache["base"] = _base_in(page.tree(), page.final_url)
    return str(base)


def _base_in(root: Any, final_url: str) -> str:
    if root is not None:
        for element in root.iter("base"):
            href = element.get("href")
            if href is not None and not _in_noscript(element):
                resolved = _plain_canonicalizer().resolver(final_url).resolve(href)
                return resolved.spelling if resolved else final_url
    return final_url


@cache
def _plain_canonicalizer() -> Canonicalizer:
    return Canonicalizer(())


def _in_noscript(element: Any) -> bool:
    return next(element.iterancestors("noscript"), None) is not None


def _page_link(element: Any) -> tuple[str | None, bool]:
    """The href of a `<link>` that leads to a page, and whether it says nofollow."""
    rel = element.get("rel")
    if rel is None:
        return None, False
    relations = frozenset(rel.lower().split())
    if not relations & _PAGE_RELATIONS or relations & _RESOURCE_RELATIONS:
        return None, False
    return element.get("href"), "nofollow" in relations


def _refresh_target(meta: Any) -> str | None:
    """Where a meta refresh leads; None for other metas, and for those in `<noscript>`."""
    if meta.get("http-equiv", "").strip().lower() != "refresh" or _in_noscript(meta):
        return None
    found = _REFRESH.match(meta.get("content", ""))
    return (found[1] or found[2] or found[3]) if found else None


def _is_no_page(target: str) -> bool:
    return target[:_LONGEST_SCHEME].partition(":")[0].lower() in _NO_PAGE
