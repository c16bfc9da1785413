"""Outlinks, their base, and what a page asks of robots."""

from __future__ import annotations

import pytest

from syncrawl.api import Link
from syncrawl.parse.directives import Directives, agent_token, from_headers, from_meta
from syncrawl.parse.html import base_of, page_parser
from syncrawl.urls import Canonicalizer
from tests.test_parse_page import links_of, page_of


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<a href=/a><area href=/b><iframe src=/c></iframe>", ["/a", "/b", "/c"]),
        ("<frameset><frame src=/a><frame src=/b></frameset>", ["/a", "/b"]),
        ("<a href=/a>1</a><a href='/a'>2</a><a href='/a#x'>3</a>", ["/a"]),
        ("<a href=' /a\n'><a href='\x0b/b\x01'>", ["/a", "/b"]),
        ("<a href=''><a href='#top'><a href=' '><a name=x><a>", []),
        ("<a href='?q'><a href='a:b/c'><a href='x/y:z'>", ["?q", "a:b/c", "x/y:z"]),
        ("<a href='JavaScript:x()'><a href=mailto:a@b><a href=tel:1><a href=data:,x>", []),
        ("<a href=ftp://h/f><a href='foo:bar'>", ["ftp://h/f", "foo:bar"]),
        ("<a href='/a?x=1&amp;y=&eacute;'>", ["/a?x=1&y=é"]),
        ("<A HREF=/a><a\nhref\n=\n/b>", ["/a", "/b"]),
        ("<!-- <a href=/no> --><script>'<a href=/no>'</script><a href=/a>", ["/a"]),
        ("<noscript><a href=/plain></noscript>", ["/plain"]),
        ("<img src=/i.png><script src=/s.js></script><form action=/f><embed src=/e>", []),
        ("<img src='data:image/png;base64,AAAA'><source SRCSET='a.jpg 1x, b.jpg 2x'>", []),
        ("<a href=x>1<a href=y>2", ["x", "y"]),
        ("<svg><title>t</title></svg><a href=/a href=/b>", ["/a"]),
    ],
)
def test_targets_in_document_order(body: str, expected: list[str]) -> None:
    assert links_of(body.encode()) == expected


@pytest.mark.parametrize(
    "target", ["http://[IP-Adresse", "http://www.site.test]", "http://[http//w.on24.test/r.htm?e=1"]
)
def test_a_link_that_is_none_costs_no_other(target: str) -> None:
    resolver = Canonicalizer([]).resolver("http://h/p/page")
    found = links_of(f"<a href=/1><a href='{target}'><a href=/2>".encode())
    usable = [url.spelling for link in found if (url := resolver.resolve(link)) is not None]
    assert usable == ["http://h/1", "http://h/2"]


def test_a_long_link_is_taken_whole() -> None:
    target = "/" + "x" * 60_000
    assert links_of(f"<a href='{target}'>".encode()) == [target]


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ("rel=next", True),
        ("rel=canonical", True),
        ("rel='alternate nofollow'", True),
        ("rel=ALTERNATE hreflang=de", True),
        ("rel='alternate stylesheet'", False),
        ("rel=stylesheet", False),
        ("rel='shortcut icon'", False),
        ("rel=preload", False),
        ("rel=dns-prefetch", False),
        ("rel=nextpage", False),
        ("", False),
    ],
)
def test_link_elements_that_lead_to_pages(attributes: str, found: bool) -> None:
    assert links_of(f"<link {attributes} href=/x>".encode()) == (["/x"] if found else [])


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("5; url=/x", "/x"),
        ("0;URL='/x'", "/x"),
        ('0;url="/x" trailing', "/x"),
        (" 3 , Url = /x ", "/x"),
        ("0 /x", "/x"),
        ("0;/x", "/x"),
        ("1.5;url=/x", "/x"),
        (".5;url=/x", "/x"),
        ("0;\n url=\n/x", "/x"),
        ("5", None),
        ("5;", None),
        ("", None),
        ("url=/x", None),
        ("x;url=/x", None),
        ("\u0665;url=/x", None),
        ("0;url=javascript:x()", None),
        ("0;url=", None),
    ],
)
def test_meta_refresh(content: str, target: str | None) -> None:
    body = f"<meta http-equiv=Refresh content='{content}'>".replace(
        "='0;URL='/x''", "=\"0;URL='/x'\""
    )
    assert links_of(body.encode()) == ([] if target is None else [target])


def test_a_refresh_for_browsers_without_scripts_is_no_link() -> None:
    assert links_of(b"<noscript><meta http-equiv=refresh content='0;url=/x'></noscript>") == []


@pytest.mark.parametrize(
    ("body", "base"),
    [
        ("<base href=/d/>", "http://h/d/"),
        ("<base target=x><base href='http://o/b'><base href=/c>", "http://o/b"),
        ("<base href=' sub/ '>", "http://h/p/sub/"),
        ("<base href=//other/>", "http://other/"),
        ("<base href=''>", "http://h/p/page?q"),
        ("<base href='http://h/\u2368#f'>", "http://h/%E2%8D%A8"),
        ("<base href=javascript:x()>", "http://h/p/page?q"),
        ("<base href='data:,x'><base href=/c>", "http://h/p/page?q"),
        ("<base href='http://[bad'>", "http://h/p/page?q"),
        ("<noscript><base href=/n></noscript>", "http://h/p/page?q"),
        ("<script>'<base href=/n>'</script><!-- <base href=/n> -->", "http://h/p/page?q"),
        ("", "http://h/p/page?q"),
    ],
)
def test_base(body: str, base: str) -> None:
    page = page_of(body.encode(), final_url="http://h/p/page?q")
    assert base_of(page) == base
    assert base_of(page) == base


def test_a_page_that_is_no_markup_is_its_own_base() -> None:
    assert base_of(page_of(b"<base href=/x>", "text/plain", final_url="http://h/t")) == "http://h/t"


@pytest.mark.parametrize(
    ("body", "headers", "marked"),
    [
        ("<a href=/a rel=nofollow><a href=/b>", [], {"/a": True, "/b": False}),
        ("<a href=/a rel='UGC NoFollow x'>", [], {"/a": True}),
        ("<a href=/a rel='nofollowed no-follow'>", [], {"/a": False}),
        ("<a href=/nofollow title=nofollow>", [], {"/nofollow": False}),
        ("<a href=/a rel=nofollow><a href=/a>", [], {"/a": False}),
        ("<a href=/a><a href=/a rel=nofollow>", [], {"/a": False}),
        ("<link rel='next nofollow' href=/a>", [], {"/a": True}),
        ("<meta name=ROBOTS content='INDEX, NOFOLLOW'><a href=/a>", [], {"/a": True}),
        ("<a href=/a><meta name=robots content=none>", [], {"/a": True}),
        ("<meta name=robots content=noindex><a href=/a>", [], {"/a": False}),
        ("<meta name=otherbot content=nofollow><a href=/a>", [], {"/a": False}),
        ("<meta name=mybot content=nofollow><a href=/a>", [], {"/a": True}),
        ("<a href=/a>", ["noarchive", "nofollow"], {"/a": True}),
        ("<a href=/a>", ["MyBot: none"], {"/a": True}),
        ("<a href=/a>", ["otherbot: noindex, nofollow"], {"/a": False}),
    ],
)
def test_nofollow(body: str, headers: list[str], marked: dict[str, bool]) -> None:
    page = page_of(body.encode(), extra=[("X-Robots-Tag", value) for value in headers])
    items = page_parser({"agent": "MyBot/1.0 (+http://h/bot)"}).parse(page)
    assert {item.url: item.nofollow for item in items if isinstance(item, Link)} == marked


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["noindex"], (True, False)),
        (["noindex, nofollow"], (True, True)),
        (["NONE"], (True, True)),
        (["index, follow", "noindex"], (True, False)),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST", "nofollow"], (False, True)),
        (["unavailable_after: Fri, 25 Jun 2010 15:00:00 PST, nofollow"], (False, True)),
        (["max-snippet: 20, nofollow"], (False, True)),
        (["otherbot: noindex, nofollow"], (False, False)),
        (["otherbot: noindex, mybot: nofollow"], (False, True)),
        (["mybot:noindex", "otherbot:nofollow"], (True, False)),
        (["mybotter: noindex"], (False, False)),
        ([""], (False, False)),
        ([], (False, False)),
    ],
)
def test_x_robots_tag(fields: list[str], expected: tuple[bool, bool]) -> None:
    assert from_headers(fields, "mybot") == expected


def test_meta_robots_names() -> None:
    assert from_meta(" Robots ", "noindex nofollow", "") == (True, True)
    assert from_meta("", "none", "") == (False, False)
    assert Directives(True, False) | Directives(False, True) == (True, True)


@pytest.mark.parametrize(
    ("user_agent", "token"),
    [("MyBot/1.0 (+http://x)", "mybot"), ("My-Bot", "my-bot"), ("Bot (x/y)", "bot"), ("", "")],
)
def test_product_token(user_agent: str, token: str) -> None:
    assert agent_token(user_agent) == token
