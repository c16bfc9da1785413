"""What parsers may yield, and what is said when they yield something else."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
