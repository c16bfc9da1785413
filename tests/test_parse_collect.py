"""What parsers may yield, and what is said when they yield something else."""

from __future__ import annotations

import datetime
import enum
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lxml import etree

from syncrawl.api import Link, Page
from syncrawl.errors import SyncrawlError
from syncrawl.parse.collect import ParseError, collect
from syncrawl.parse.html import page_parser
from tests.test_parse_page import page_of


class Yields:
    """A parser whose result is what `result()` returns."""

    def __init__(self, result: Callable[[], Any]) -> None:
        self._result = result

    def parse(self, page: Page) -> Any:
        return self._result()


def test_records_and_links_are_kept_apart_in_order() -> None:
    items = [Link("/a"), {"x": 1}, Link("/b", 5, "l", True), {"y": None}]
    records, links = collect(Yields(lambda: iter(items)), page_of(b""), 4)
    assert records == [{"x": 1}, {"y": None}]
    assert links == [Link("/a"), Link("/b", 5, "l", True)]


def test_the_page_parser_passes() -> None:
    records, links = collect(page_parser({}), page_of(b"<a href=/x>"), 2)
    assert (len(records), links) == (1, [Link("/x")])


def cyclic() -> dict[str, Any]:
    record: dict[str, Any] = {}
    record["self"] = record
    return record


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("text", "type str"),
        (None, "None"),
        ([{"a": 1}], "type list"),
        (Link(None), "url None"),  # type: ignore[arg-type]
        (Link("/x", priority=2**70), "Link with url"),
        (Link("/x", label="\ud800"), "Link with url"),
        (Link("/x", label=3), "Link with url"),  # type: ignore[arg-type] # what a plugin may do
        (Link("/x", priority="high"), "priority an object of type str"),  # type: ignore[arg-type]
        ({"a": object()}, "not JSON-able"),
        ({"a": "\ud800"}, "not JSON-able"),
        ({(1, 2): 1}, "not JSON-able"),
        (cyclic(), "not JSON-able"),
    ],
)
def test_anything_else_is_an_error(item: Any, says: str) -> None:
    with pytest.raises(ParseError, match="parser yielded") as caught:
        collect(Yields(lambda: [{"fine": 1}, item]), page_of(b""), 10)
    assert says in str(caught.value)
    assert caught.value.url == "http://h/first"
    assert isinstance(caught.value, SyncrawlError)


@pytest.mark.parametrize("result", [None, {"a": 1}, Link("/x"), "text", b"bytes", 1])
def test_a_result_that_is_no_collection_of_items_is_named(result: Any) -> None:
    with pytest.raises(ParseError, match=r"parse\(\) returned"):
        collect(Yields(lambda: result), page_of(b""), 10)


def test_what_json_can_hold_passes() -> None:
    record = {"d": datetime.date(2030, 1, 2), "b": b"x", "n": [1, 2.5, None, {"x": True}], "é": "ü"}
    assert collect(Yields(lambda: [record]), page_of(b""), 1)[0] == [record]


def test_too_many_items_end_even_an_endless_parser() -> None:
    with pytest.raises(ParseError, match="more than 1000 records and links"):
        collect(Yields(lambda: map(Link, itertools.repeat("/x"))), page_of(b""), 1_000)


def test_the_last_item_allowed_is_allowed() -> None:
    parser = Yields(lambda: [{"n": 1}, Link("/x")])
    assert len(collect(parser, page_of(b""), 2)[1]) == 1
    with pytest.raises(ParseError, match="more than 1 "):
        collect(parser, page_of(b""), 1)


def test_a_dict_that_is_filled_again_is_not_shared() -> None:
    def reuse() -> Iterator[dict[str, int]]:
        record: dict[str, int] = {}
        for number in range(3):
            record["n"] = number
            yield record

    assert collect(Yields(reuse), page_of(b""), 10)[0] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_what_the_parser_raises_goes_through() -> None:
    def fails() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        collect(Yields(fails), page_of(b""), 10)


class Count(int):
    pass


class Share(float):
    pass


class Shouts(str):
    def __str__(self) -> str:
        return self.upper()


class Level(enum.IntEnum):
    HIGH = 7


def types(value: Any) -> Any:
    """The shape of a record, with types for values."""
    if isinstance(value, dict):
        return {type(key): types(item) for key, item in value.items()}
    return [types(item) for item in value] if isinstance(value, list) else type(value)


def test_what_an_xpath_gives_is_text_in_records_and_links() -> None:
    tree = etree.fromstring("<a href='/x'>one</a>")
    (href,), text = tree.xpath("@href"), tree.xpath("string()")
    assert type(href) is not str
    items = [Link(href, 3, text), {text: [text, {"deep": (href,)}], "n": 1}]
    (record,), (link,) = collect(Yields(lambda: items), page_of(b""), 2)
    assert link == Link("/x", 3, "one")
    assert (type(link.url), type(link.label)) == (str, str)
    assert record == {"one": ["one", {"deep": ["/x"]}], "n": 1}
    assert types(record["one"]) == [str, {str: [str]}]
    assert {type(key) for key in record} == {str}


def test_subclasses_of_plain_types_become_plain_and_keep_their_value() -> None:
    items = [
        {"i": Count(3), "f": Share(0.5), "s": Shouts("quiet"), "b": True, "e": Level.HIGH},
        Link("/x", Level.HIGH, nofollow=1),  # type: ignore[arg-type] # what a plugin may do
        Link(Shouts("/y"), Count(2)),
    ]
    (record,), found = collect(Yields(lambda: items), page_of(b""), 3)
    assert record == {"i": 3, "f": 0.5, "s": "quiet", "b": True, "e": 7}
    assert [type(record[key]) for key in "ifsb"] == [int, float, str, bool]
    assert found == [Link("/x", 7, nofollow=True), Link("/y", 2)]
    assert {type(link.priority) for link in found} == {int}
    assert [type(link.url) for link in found] == [str, str]
    assert found[0].nofollow is True
