"""Which elements of a sitemap, an index or a feed say what, and what an entry makes of them.

Any thread; pure data and functions; imports `lastmod`. Names are compared by their local
part and without regard to case: namespaces are wrong, missing or reset too often to tell
anything, and place does tell `<url><loc>` from `<image:image><image:loc>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from syncrawl.parse.lastmod import instant

_FREQUENCIES = frozenset(["always", "hourly", "daily", "weekly", "monthly", "yearly", "never"])
_PRIORITY = re.compile(r"(?:0?\.\d{1,9}|[01](?:\.\d{0,9})?)", re.ASCII)
_HTTP = re.compile(r"https?://", re.IGNORECASE)


class Alternate(NamedTuple):
    """The same page in another language: hreflang and href as written."""

    hreflang: str
    href: str


class Entry(NamedTuple):
    """One location: a page, or in an index another sitemap. `loc` is not yet resolved.

    `lastmod` is in UTC, `priority` 0.0 to 1.0, `changefreq` one of the protocol's words;
    None where missing or nonsense.
    """

    loc: str
    lastmod: datetime | None = None
    priority: float | None = None
    changefreq: str | None = None
    alternates: tuple[Alternate, ...] = ()


class LinkElement(NamedTuple):
    """The attributes of a `<link>` inside an entry; "" for missing ones."""

    rel: str
    hreflang: str
    href: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A document's kind, its entries' element, and which field each child's text goes to.

    `several`: one entry element may hold more than one location.
    """

    kind: str
    entry: str
    fields: Mapping[str, str]
    locate: Callable[[Mapping[str, str], list[LinkElement]], str]
    several: bool = False


def _loc(fields: Mapping[str, str], links: list[LinkElement]) -> str:
    return fields.get("loc", "")


def _rss_loc(fields: Mapping[str, str], links: list[LinkElement]) -> str:
    """The link, else a guid that is a URL whatever isPermaLink says, else an Atom link."""
    if "loc" in fields:
        return fields["loc"]
    guid = fields.get("guid", "")
    return guid if _HTTP.match(guid) else _atom_loc(fields, links)


def _atom_loc(fields: Mapping[str, str], links: list[LinkElement]) -> str:
    """The first alternate link; that is what one without `rel` is (RFC 4287 section 4.2.7.2)."""
    for link in links:
        if link.rel in ("", "alternate"):
            return link.href
    return ""


_SITEMAP_FIELDS = {name: name for name in ("loc", "lastmod", "priority", "changefreq")}
_RSS_FIELDS = {"link": "loc", "guid": "guid", "pubdate": "lastmod", "date": "lastmod"}
_ATOM_FIELDS = {"updated": "lastmod", "modified": "lastmod", "published": "published"}

SHAPES: Mapping[str, Shape] = {
    "urlset": Shape("urlset", "url", _SITEMAP_FIELDS, _loc, several=True),
    "sitemapindex": Shape("sitemapindex", "sitemap", _SITEMAP_FIELDS, _loc, several=True),
    "rss": Shape("rss", "item", _RSS_FIELDS, _rss_loc),
    "rdf": Shape("rss", "item", _RSS_FIELDS, _rss_loc),
    "feed": Shape("atom", "entry", _ATOM_FIELDS, _atom_loc),
}
"""By the root element's local name in lower case."""


def entry_of(shape: Shape, fields: Mapping[str, str], links: list[LinkElement]) -> Entry | None:
    """What an entry's texts, stripped and not empty, come to; None where it has no location."""
    loc = shape.locate(fields, links)
    # U+FFFD stands for bytes that were no text: half a URL is not taken for a whole one.
    if not loc or "\ufffd" in loc:
        return None
    alternates: tuple[Alternate, ...] = ()
    if shape.kind == "urlset" and links:
        alternates = tuple(
            Alternate(link.hreflang, link.href) for link in links if link.rel == "alternate"
        )
    priority = fields.get("priority", "")
    rank = float(priority) if _PRIORITY.fullmatch(priority) else None
    often = fields.get("changefreq", "").lower()
    return Entry(
        loc,
        instant(fields.get("lastmod") or fields.get("published", "")),
        rank if rank is not None and rank <= 1 else None,
        often if often in _FREQUENCIES else None,
        alternates,
    )
