"""Trees: whatever the bytes are, every link is found and nothing is raised."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import html

from syncrawl.parse.html import page_parser, tree_of
from syncrawl.parse.tree import _clean_utf8
from tests.test_parse_page import links_of, page_of

SLOW_MACHINE_SECONDS = 10.0


@pytest.mark.parametrize("body", [b"", b"  \n", b"<!-- x -->", b"\0\0", b"<!doctype html>"])
def test_a_document_without_elements_has_no_links_and_no_error(body: bytes) -> None:
    assert links_of(body) == []
    record: Any = page_parser({}).parse(page_of(body))[0]
    assert (record["title"], record["text_excerpt"], record["links"]) == (None, "", 0)


@pytest.mark.parametrize("depth", [260, 1_500, 2_100, 3_000, 50_000])
@pytest.mark.parametrize("tag", [b"div", b"b", b"table><tr><td"])
def test_no_link_is_lost_however_deep(depth: int, tag: bytes) -> None:
    name = tag.split(b">")[0]
    body = b"".join(
        [
            b"<title>t</title><a href=/before>",
            b"<%b>" % tag * depth,
            b"<a href=/deep>deep</a>",
            b"</%b>" % name * depth,
            b"<a href=/after>after</a>",
        ]
    )
    assert links_of(body) == ["/before", "/deep", "/after"]
    record: Any = page_parser({}).parse(page_of(body))[0]
    assert record["title"] == "t"


def test_text_beyond_the_depth_limit_stays_in_order() -> None:
    body = b"<div>" * 3_000 + b"one <a href=/x>two</a> three " + b"</div>" * 3_000 + b"<p>four"
    root = tree_of(page_of(body))
    assert root.text_content().split() == ["one", "two", "three", "four"]
    assert isinstance(root, html.HtmlElement)


def test_long_texts_do_not_end_the_page() -> None:
    long = b"x" * 10_100_000
    assert links_of(b"<a href=/1><script>" + long + b"</script><a href=/2>") == ["/1", "/2"]
    assert links_of(b"<a href=/1></a><p>" + long + b"</p><a href=/2>") == ["/1", "/2"]


def test_nuls_are_dropped_and_a_link_that_held_one_is_refused() -> None:
    body = b"<html>\0<body>he\0llo<a hr\0ef=/no><a href='/bad\0link'><a href=/good></body>"
    assert links_of(body) == ["/good"]
    assert "hello" in tree_of(page_of(body)).text_content()


@pytest.mark.parametrize(
    ("body", "content_type", "title"),
    [
        ("<title>é</title>".encode(), "text/html; charset=utf-8", "é"),
        (b"<title>\xe9</title>", "text/html; charset=latin1", "é"),
        ("<title>あ</title>".encode("cp932"), "text/html; charset=shift_jis", "あ"),
        (b"\xff\xfe" + "<title>é</title>".encode("utf-16le"), "text/html", "é"),
        (b"<meta charset=koi8-r><title>\xf0</title>", "text/html", "П"),
        (b"<title>a\xffb</title><p>c", "text/html; charset=utf-8", "a\ufffdb"),
        (b"<?xml version='1.0' encoding='latin1'?><html><title>\xe9</title></html>", "", "é"),
        ("<?xml version='1.0'?><title>é</title>".encode(), "application/xhtml+xml", "é"),
    ],
)
def test_encodings_reach_the_tree(body: bytes, content_type: str, title: str) -> None:
    assert tree_of(page_of(body, content_type)).find(".//title").text == title


def test_broken_bytes_lose_no_link() -> None:
    body = b"<a href=/1>\xff\xfe</a><p>\xc3<a href=/2>\xe9</a>\xf0<a href=/3>"
    assert links_of(body) == ["/1", "/2", "/3"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp932", "utf-16le", "no-such-codec"])
def test_lxml_is_fed_valid_utf8_only(encoding: str) -> None:
    for body in (b"a\xff\xc3", b"<a\0>b\0", b"\x81\xd8\x00\xd8", b"\xed\xa0\x80"):
        clean = _clean_utf8(body, encoding)
        assert clean.decode("utf-8").encode() == clean
        assert b"\0" not in clean


def test_what_is_no_markup_has_no_tree() -> None:
    assert tree_of(page_of(b"<a href=/x>", "text/plain")) is None
    assert tree_of(page_of(b"<a href=/x>", "image/png")) is None
    assert tree_of(page_of(b"<a href=/x>", "")) is not None


def test_xhtml_is_read_like_html() -> None:
    body = (
        b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title/>"
        b"<script src='x.js'/></head><body><a href='/x'/><A HREF='/y'/></body></html>"
    )
    assert links_of(body, "application/xhtml+xml") == ["/x", "/y"]


def test_elements_are_those_of_lxml_html() -> None:
    root = tree_of(page_of(b"<form action=/go><input name=a value=b><select></form><!-- c -->"))
    (form,) = root.forms
    assert form.form_values() == [("a", "b")]
    assert isinstance(root.find(".//select"), html.SelectElement)


def test_trees_are_made_by_many_threads_at_once() -> None:
    bodies = [b"<title>%d</title><a href=/%d>" % (n, n) * 50 for n in range(8)]
    titles: dict[int, list[str]] = {}

    def work(number: int) -> None:
        pages = [page_of(bodies[number]) for _ in range(50)]
        titles[number] = [tree_of(page).findtext(".//title") for page in pages]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert titles == {n: [str(n)] * 50 for n in range(8)}


@pytest.mark.parametrize(
    "body",
    [b"<" * 500_000, b"<!---->" * 50_000, b"<a " + b"x=1 " * 100_000 + b">", b"&#" * 300_000],
)
def test_hostile_markup_ends_soon(body: bytes) -> None:
    started = time.thread_time()
    page_parser({}).parse(page_of(body))
    assert time.thread_time() - started < SLOW_MACHINE_SECONDS


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.sampled_from(
                b"<a href=|'/x'|>|<|</a>|<base href=//[|<!--|-->|\0|<script>|</script>|<title>"
                b"|<svg>|<noscript>|<meta charset=utf-16>|\xff\xfe|&#0;|&amp"
                b"|<meta http-equiv=refresh content=".split(b"|")
            ),
            max_size=30,
        ).map(b"".join),
    ),
    st.sampled_from(["text/html", "", "text/html; charset=utf-16", "application/xhtml+xml"]),
)
def test_nothing_raises(body: bytes, content_type: str) -> None:
    page_parser({}).parse(page_of(body, content_type))
