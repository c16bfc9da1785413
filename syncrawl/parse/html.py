"""The parse stage's front door: pages from responses, and the built-in "page" parser.

Runs on parse threads, or in a parse child: a parser instance belongs to one thread.
Imports the API, the errors and the parse stage's own modules.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from syncrawl.api import ConfigError, Headers, Link, Page, Record
from syncrawl.parse.directives import Directives, agent_token, from_headers
from syncrawl.parse.encoding import decode, find_encoding
from syncrawl.parse.excerpt import collapsed, excerpt_of, title_of
from syncrawl.parse.links import base_of, outlinks_of
from syncrawl.parse.media import is_markup, is_text
from syncrawl.parse.tree import tree_of

__all__ = ["PageParser", "base_of", "make_page", "page_parser", "text_of", "tree_of"]

# Bytes decoded for the excerpt of a plain text, for each character wanted.
_BYTES_PER_CHAR = 16

_DEFAULTS: dict[str, Any] = {"excerpt_chars": 500, "obey_noindex": False, "agent": ""}
_SPELLED = {int: "a whole number, 0 or more", bool: "true or false", str: "a string"}


def make_page(
    *,
    url: str,
    final_url: str,
    status: int,
    headers: Headers,
    body: bytes,
    depth: int,
    label: str | None,
    canonical_url: str,
    referrer: str | None,
    fetched_at: str,
    elapsed: float,
) -> Page:
    """A Page that can decode and parse itself; `encoding` is None where the body is no text."""
    content_type = headers.get("content-type", "")
    return Page(
        url=url,
        final_url=final_url,
        status=status,
        headers=headers,
        body=body,
        encoding=find_encoding(body, content_type) if is_text(content_type, body) else None,
        depth=depth,
        label=label,
        canonical_url=canonical_url,
        referrer=referrer,
        fetched_at=fetched_at,
        elapsed=elapsed,
        _tree=tree_of,
        _text=text_of,
    )


def text_of(page: Page) -> str:
    """The whole body as text, undecodable bytes replaced; "" where it is no text."""
    return decode(page.body, page.encoding) if page.encoding else ""


class PageParser:
    """The built-in parser: one record a page, and its links. Options: see `page_parser`."""

    def __init__(self, *, excerpt_chars: int, obey_noindex: bool, agent: str) -> None:
        self._excerpt_chars = excerpt_chars
        self._obey_noindex = obey_noindex
        self._agent = agent_token(agent)

    def parse(self, page: Page) -> list[Record | Link]:
        """The default record, then the links in document order.

        Links of a page that says nofollow, by meta or X-Robots-Tag, are all marked so.
        """
        root = page.tree()
        asked = from_headers(page.headers.get_all("x-robots-tag"), self._agent)
        if root is None:
            return [] if self._silenced(asked) else [_record(page, None, self._plain(page), 0)]
        # The tree holds U+FFFD where a NUL was, and such a link is damaged.
        outlinks = outlinks_of(root, self._agent, refuse="\ufffd" if b"\0" in page.body else "")
        asked |= outlinks.directives
        items: list[Record | Link] = []
        if not self._silenced(asked):
            excerpt = excerpt_of(root, self._excerpt_chars)
            items.append(_record(page, title_of(root), excerpt, len(outlinks.nofollow)))
        items += [
            Link(target, None, None, nofollow or asked.nofollow)
            for target, nofollow in outlinks.nofollow.items()
        ]
        return items

    def _silenced(self, asked: Directives) -> bool:
        return self._obey_noindex and asked.noindex

    def _plain(self, page: Page) -> str | None:
        """The beginning of a text that has no tree; None where the body is no text."""
        if page.encoding is None:
            return None
        if is_markup(page.headers.get("content-type", ""), page.body):
            return ""  # a document of comments, or empty
        head = page.body[: self._excerpt_chars * _BYTES_PER_CHAR]
        return collapsed(decode(head, page.encoding), self._excerpt_chars)

    def __repr__(self) -> str:
        return f"PageParser(excerpt_chars={self._excerpt_chars}, agent={self._agent!r})"


def page_parser(options: Mapping[str, Any]) -> PageParser:
    """The factory behind the entry point "page"; `options` is [parse.options.page].

    `excerpt_chars` = 500: length of text_excerpt, characters. `obey_noindex` = false:
    whether a page that says noindex gets no record; its links are followed either way.
    `agent` = "": our user agent, for rules that name one; only its product token counts.
    Raises ConfigError for any other key, and for values of another type.
    """
    for key, value in options.items():
        if key not in _DEFAULTS:
            near = difflib.get_close_matches(key, _DEFAULTS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(_DEFAULTS)}"
            raise ConfigError("unknown option", key=f"parse.options.page.{key}", remedy=remedy)
        wanted = type(_DEFAULTS[key])
        if type(value) is not wanted or (wanted is int and value < 0):
            raise ConfigError(
                "wrong type or value",
                key=f"parse.options.page.{key}",
                value=value,
                remedy=f"give {_SPELLED[wanted]}",
            )
    return PageParser(**{**_DEFAULTS, **options})


def _record(page: Page, title: str | None, excerpt: str | None, links: int) -> Record:
    """The default record, in the contract's order of fields."""
    return {
        "url": page.url,
        "canonical_url": page.canonical_url,
        "final_url": page.final_url,
        "status": page.status,
        "depth": page.depth,
        "referrer": page.referrer,
        "fetched_at": page.fetched_at,
        "elapsed": page.elapsed,
        "content_type": page.content_type or None,
        "encoding": page.encoding,
        "length": len(page.body),
        "sha256": page.sha256,
        "title": title,
        "text_excerpt": excerpt,
        "links": links,
    }
