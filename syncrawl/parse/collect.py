"""What a parser yields, checked: the only way a parser's results enter the crawl.

Runs on parse threads, or in a parse child; imports the API, the errors and msgspec.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from syncrawl.api import Link, Page, Parser, Record
from syncrawl.errors import SyncrawlError

_MOST = 2**31
_SURROGATE = re.compile("[\ud800-\udfff]").search

_PLAIN = (str, int, float, bool, type(None))

_encode = msgspec.json.Encoder().encode


class ParseError(SyncrawlError):
    """A parser yielded what it must not; the page's result is thrown away."""


def collect(parser: Parser, page: Page, max_items: int) -> tuple[list[Record], list[Link]]:
    """Everything `parser` yields for `page`: its records, JSON-able for sure, and its links.

    Raises ParseError for anything that is neither a mapping nor a Link, for a record that
    JSON cannot hold, and as soon as there are more than `max_items` records and links.
    What the parser itself raises goes through as it is. Subclasses of str, int and float, such
    as what an XPath expression gives, become what they are made of.
    """
    records: list[Record] = []
    links: list[Link] = []
    room = max_items
    for item in _items(parser.parse(page), page):
        room -= 1
        if room < 0:
            raise ParseError(
                f"the parser yielded more than {max_items} records and links",
                url=page.url,
                remedy="raise [parse] max_items if the page really holds that many",
            )
        if isinstance(item, Link):
            if not _is_sound(item):
                raise _bad_link(item, page)
            links.append(item if _is_plain(item) else _plain_link(item))
        elif isinstance(item, Mapping):
            records.append(_checked_record(item, page))
        else:
            raise ParseError(
                f"the parser yielded {_kind(item)}", url=page.url, remedy="yield mappings and Links"
            )
    return records, links


def _is_sound(link: Link) -> bool:
    """Whether a link's parts are what the frontier can store."""
    if not isinstance(link.url, str):
        return False
    priority = link.priority
    if priority is not None and not (isinstance(priority, int) and abs(priority) < _MOST):
        return False
    label = link.label
    if label is None:
        return True
    # A lone surrogate cannot be written down.
    return isinstance(label, str) and (label.isascii() or not _SURROGATE(label))


def _is_plain(link: Link) -> bool:
    """Whether its parts are of the very types that they are declared to be."""
    return (
        type(link.url) is str
        and type(link.nofollow) is bool
        and (link.priority is None or type(link.priority) is int)
        and (link.label is None or type(link.label) is str)
    )


def _plain_link(link: Link) -> Link:
    return Link(
        _plain(link.url), _plain(link.priority), _plain(link.label), nofollow=bool(link.nofollow)
    )


def _plain(value: Any) -> Any:
    """`value` with str, int and float in place of their subclasses, at any depth.

    By the base class's own methods: what a subclass makes of str() may be another text.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _items(result: Any, page: Page) -> Iterable[Any]:
    # These three can be iterated over, which would only puzzle the plugin's author.
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise ParseError(
            f"parse() returned {_kind(result)}",
            url=page.url,
            remedy="yield records and links, or return a list of them",
        )
    return result


def _bad_link(link: Link, page: Page) -> ParseError:
    return ParseError(
        f"the parser yielded a Link with url {_kind(link.url)}, priority {_kind(link.priority)}",
        url=page.url,
        remedy="url is a str, priority a small int or None, label text or None",
    )


def _checked_record(record: Record, page: Page) -> Record:
    """A copy of `record`, as the parser may go on to fill the same dict for the next one."""
    try:
        try:
            _encode(record)
            return dict(record)
        except TypeError:
            # Hardly ever, and so not looked for in each record: a subclass of a plain type.
            plain: Record = _plain(record)
            _encode(plain)
            return plain
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ParseError(
            f"the parser yielded a record that is not JSON-able: {error}", url=page.url
        ) from error


def _kind(item: object) -> str:
    return f"an object of type {type(item).__name__}" if item is not None else "None"
