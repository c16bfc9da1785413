"""The selectors parser: what it takes from a page, and what it says of bad rules."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from syncrawl_selectors import selectors_parser

from syncrawl.api import ConfigError, Parser
from syncrawl.testing.pages import page

HTML = """
<html><body>
  <h1> A <b>lamp</b>
  </h1>
  <span itemprop="price">12.50</span>
  <ul class="tags"><li><a href="/t/home">home</a></li><li><a href="/t/light">light</a></li></ul>
  <img class="main" src="/7.jpg"><!-- a comment -->
</body></html>
"""
URL = "http://shop.test/item/7"


def records(rules: dict[str, Any], html: str = HTML, **options: Any) -> list[Any]:
    return list(selectors_parser({"rules": rules, **options}).parse(page(html, URL)))


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("h1", "A lamp"),
        ({"css": "span[itemprop=price]"}, "12.50"),
        ({"xpath": "//span[@itemprop='price']/text()"}, "12.50"),
        ({"css": "ul.tags a", "many": True}, ["home", "light"]),
        ({"css": "ul.tags a"}, "home"),
        ({"css": "img.main", "attr": "src"}, "/7.jpg"),
        ({"xpath": "//ul/li/a/@href", "many": True}, ["/t/home", "/t/light"]),
        ({"xpath": "count(//li)"}, 2.0),
        ({"xpath": "boolean(//video)"}, False),
        ({"xpath": "//comment() | //img/@src"}, "/7.jpg"),
        ("#absent, h1", "A lamp"),
    ],
)
def test_a_rule_finds_its_value(rule: Any, value: Any) -> None:
    assert records({"field": rule}) == [{"url": URL, "field": value}]


def test_fields_come_in_the_order_of_the_rules_with_null_for_the_absent() -> None:
    found = records({"b": "h1", "a": "video", "c": {"css": "video", "many": True}})
    assert found == [{"url": URL, "b": "A lamp", "a": None, "c": []}]
    assert list(found[0]) == ["url", "b", "a", "c"]


def test_a_page_where_nothing_is_found_gives_no_record() -> None:
    assert records({"a": "video", "b": {"css": "video", "many": True}}) == []


def test_rules_apply_where_they_match() -> None:
    assert records({"a": {"css": "h1", "match": "/item/"}, "b": {"css": "h1", "match": "/x/"}}) == [
        {"url": URL, "a": "A lamp"}
    ]
    assert records({"a": {"css": "h1", "match": "/x/"}}) == []
    assert records({"a": "h1"}, match=r"/item/\d+$") == [{"url": URL, "a": "A lamp"}]
    assert records({"a": "h1"}, match="/x/") == []


def test_a_body_that_is_no_markup_gives_no_record() -> None:
    picture = page(b"\x89PNG\r\n", URL, content_type="image/png")
    assert list(selectors_parser({"rules": {"a": "h1"}}).parse(picture)) == []


def test_the_parser_is_one_and_records_hold_plain_text() -> None:
    parser = selectors_parser({"rules": {"a": {"xpath": "//h1/b/text()"}}})
    assert isinstance(parser, Parser)
    again = pickle.loads(pickle.dumps(parser))
    (record,) = again.parse(page(HTML, URL))
    assert type(record["a"]) is str


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "rules"),
        ({"rules": {}}, "rules"),
        ({"rules": ["h1"]}, "rules"),
        ({"rule": {"a": "h1"}}, "rule"),
        ({"rules": {"url": "h1"}}, "rules.url"),
        ({"rules": {"a": 1}}, "rules.a"),
        ({"rules": {"a": {}}}, "rules.a"),
        ({"rules": {"a": {"css": "h1", "xpath": "//h1"}}}, "rules.a"),
        ({"rules": {"a": {"css": "h1["}}}, "rules.a.css"),
        ({"rules": {"a": ""}}, "rules.a.css"),
        ({"rules": {"a": {"xpath": 3}}}, "rules.a.xpath"),
        ({"rules": {"a": {"css": "h1", "many": "yes"}}}, "rules.a.many"),
        ({"rules": {"a": {"css": "h1", "attr": 1}}}, "rules.a.attr"),
        ({"rules": {"a": {"css": "h1", "match": "("}}}, "rules.a.match"),
        ({"rules": {"a": {"css": "h1", "regex": "x"}}}, "rules.a.regex"),
        ({"rules": {"a": "h1"}, "match": 1}, "match"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        selectors_parser(options)
    assert raised.value.key == f"parse.options.selectors.{key}"
    assert "\n" not in str(raised.value)
