"""The default record, the page parser's options, and pages made from responses."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pytest

from syncrawl.api import ConfigError, Headers, Link, Page, Parser
from syncrawl.parse.html import make_page, page_parser


def page_of(
    body: bytes,
    content_type: str = "text/html; charset=utf-8",
    *,
    final_url: str = "http://h/final",
    extra: Iterable[tuple[str, str]] = (),
) -> Page:
    """A page as the engine makes it; no Content-Type field where `content_type` is ""."""
    fields = [("Content-Type", content_type)] if content_type else []
    return make_page(
        url="http://h/first",
        final_url=final_url,
        status=200,
        headers=Headers([*fields, *extra]),
        body=body,
        depth=2,
        label="a label",
        canonical_url="http://h/canonical",
        referrer="http://h/referrer",
        fetched_at="2030-01-02T03:04:05Z",
        elapsed=0.25,
    )


def links_of(body: bytes, content_type: str = "text/html; charset=utf-8") -> list[str]:
    """The targets that the page parser yields, in order."""
    items = page_parser({}).parse(page_of(body, content_type))
    return [item.url for item in items if isinstance(item, Link)]


def record_of(page: Page, **options: Any) -> dict[str, Any]:
    (record,) = (i for i in page_parser(options).parse(page) if not isinstance(i, Link))
    return dict(record)


def test_the_default_record() -> None:
    body = (
        "<html><head><title> A\n<b>page </title></head><body><h1>Über</h1>"
        "<a href=/1>one</a>, <a href=/2>two</a><a href=/1>one</a></body></html>"
    ).encode()
    record = record_of(page_of(body))
    assert list(record.items()) == [
        ("url", "http://h/first"),
        ("canonical_url", "http://h/canonical"),
        ("final_url", "http://h/final"),
        ("status", 200),
        ("depth", 2),
        ("referrer", "http://h/referrer"),
        ("fetched_at", "2030-01-02T03:04:05Z"),
        ("elapsed", 0.25),
        ("content_type", "text/html"),
        ("encoding", "utf-8"),
        ("length", len(body)),
        ("sha256", sha256(body).hexdigest()),
        ("title", "A <b>page"),
        ("text_excerpt", "Über one, twoone"),
        ("links", 2),
    ]


def test_the_record_comes_first() -> None:
    items = page_parser({}).parse(page_of(b"<a href=/1><a href=/2>"))
    assert [type(item) for item in items] == [dict, Link, Link]


@pytest.mark.parametrize("content_type", ["image/png", "application/pdf", "application/zip"])
def test_text_fields_are_null_where_it_is_no_text(content_type: str) -> None:
    record = record_of(page_of(b"\x89PNG\0<title>x</title>", content_type))
    assert [record[key] for key in ("encoding", "title", "text_excerpt")] == [None, None, None]
    assert (record["links"], record["length"]) == (0, 21)


def test_a_type_that_was_not_sent_is_null() -> None:
    assert record_of(page_of(b"<title>x</title>", ""))["content_type"] is None
    assert record_of(page_of(b"<title>x</title>", ""))["title"] == "x"
    assert record_of(page_of(b"\0\1\2", ""))["encoding"] is None


def test_plain_text_has_an_excerpt_and_no_title() -> None:
    record = record_of(page_of("héllo  \n wörld".encode("latin-1"), "text/plain; charset=latin1"))
    assert (record["title"], record["text_excerpt"]) == (None, "héllo wörld")
    assert record["encoding"] == "windows-1252"


@pytest.mark.parametrize(
    ("body", "excerpt"),
    [
        ("<p>a</p><p>b</p>", "a b"),
        ("<b>a</b>b <i>c</i>, d", "ab c, d"),
        ("a<br>b<hr>c<div>d</div>e", "a b c d e"),
        ("<p>a<!-- x -->b<?php x ?>c</p>", "abc"),
        ("a<script>x</script>b<style>y</style>c", "abc"),
        ("<p>a</p><noscript><p>x<b>y</b>z</p></noscript><p>b</p>", "a b"),
        ("<template><p>x</p></template>a<svg><title>x</title></svg>", "a"),
        ("<head><title>x</title></head><body>a</body>", "a"),
        ("a<iframe src=x>no</iframe>b", "a b"),
        ("<div><div><p>a <b>b <i>c</i> d</b> e</p></div>f</div>g", "a b c d e f g"),
        ("<ul>\n  <li>a</li>\n\n  <li>b</li>\n</ul>", "a b"),
        ("<td>a<td>b<tr><td>c", "a b c"),
        ("&lt;b&gt;&nbsp;&amp;", "<b> &"),
        ("<frameset><frame src=x></frameset>", ""),
    ],
)
def test_the_excerpt_is_what_a_reader_sees(body: str, excerpt: str) -> None:
    assert record_of(page_of(body.encode()))["text_excerpt"] == excerpt


@pytest.mark.parametrize("limit", [0, 1, 10, 499, 500, 10_000])
def test_the_excerpt_is_cut(limit: int) -> None:
    page = page_of(b"<p>" + b" \n <b>word</b> \n " * 3_000 + b"</p>")
    excerpt = record_of(page, excerpt_chars=limit)["text_excerpt"]
    # Every fifth character is a blank, and a last one is not kept.
    assert limit - 1 <= len(excerpt) <= limit
    assert ("word " * 3_000).startswith(excerpt)


def test_the_excerpt_stops_early() -> None:
    body = b"<p>" + b"x" * 600 + b"</p>" + b"<p>more</p>" * 100
    assert record_of(page_of(body))["text_excerpt"] == "x" * 500
    far = b"<i></i>" * 50_000 + b"<p>far away</p>"
    assert record_of(page_of(far))["text_excerpt"] == ""


def test_titles() -> None:
    assert record_of(page_of(b"<p>none"))["title"] is None
    assert record_of(page_of(b"<title> </title>"))["title"] is None
    assert record_of(page_of(b"<svg><title>x</title></svg><title>y</title>"))["title"] == "y"
    assert len(record_of(page_of(b"<title>" + b"ab " * 9_000))["title"]) <= 1_000


def test_noindex_is_obeyed_only_when_asked() -> None:
    meta = page_of(b"<meta name=robots content=noindex><a href=/x>")
    header = page_of(b"\0", "image/png", extra=[("X-Robots-Tag", "noindex")])
    assert len(page_parser({}).parse(meta)) == 2
    obedient = page_parser({"obey_noindex": True})
    assert obedient.parse(meta) == [Link("/x")]
    assert obedient.parse(header) == []
    assert len(obedient.parse(page_of(b"<p>"))) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"excerpt_char": 1},
            "parse.options.page.excerpt_char: unknown option: did you mean excer",
        ),
        ({"zzz": 1}, "known are excerpt_chars, obey_noindex, agent"),
        ({"excerpt_chars": -1}, "parse.options.page.excerpt_chars = -1: "),
        ({"excerpt_chars": True}, "a whole number"),
        ({"excerpt_chars": "1"}, "a whole number"),
        ({"obey_noindex": 1}, "true or false"),
        ({"agent": 1}, "a string"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        page_parser(options)
    assert says in str(caught.value)


def test_pages_decode_and_parse_themselves() -> None:
    page = page_of(b"\xef\xbb\xbf<p>\xc3\xa9\xff</p>")
    assert page.text() == "<p>é\ufffd</p>"
    assert page.tree() is page.tree()
    assert page_of(b"\0\1", "image/png").text() == ""
    assert page_of(b"\0\1", "image/png").tree() is None


def test_a_page_built_by_hand_is_parsed_too() -> None:
    plain = Page("http://h/", "http://h/", 200, Headers(), b"x")
    assert record_of(plain)["links"] == 0


def test_pages_and_parsers_can_be_pickled() -> None:
    page = pickle.loads(pickle.dumps(page_of(b"<a href=/x>")))
    parser = pickle.loads(pickle.dumps(page_parser({"agent": "bot"})))
    assert isinstance(parser, Parser)
    assert list(parser.parse(page))[1] == Link("/x")
