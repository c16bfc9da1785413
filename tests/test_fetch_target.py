"""URLs taken apart without a change of spelling, and where redirects point."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncrawl.api import FetchError, Headers, Response
from syncrawl.fetch.target import location, split
from tests.support import cases_file


def redirect(value: str | bytes | None, status: int = 302) -> Response:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    fields = [] if text is None else [("Location", text)]
    return Response("", status, Headers(fields), b"", 0.0, 0.0)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h/", ("http", "h", 80, "h", "/")),
        ("HTTPS://Ex.test:443/A%2f", ("https", "ex.test", 443, "ex.test", "/A%2f")),
        ("http://h:8080", ("http", "h", 8080, "h:8080", "/")),
        ("http://[::1]:80/x", ("http", "::1", 80, "[::1]", "/x")),
        ("https://[::1]:80/x", ("https", "::1", 80, "[::1]:80", "/x")),
        ("http://user:secret@h/x", ("http", "h", 80, "h", "/x")),
        ("http://h/a\tb", ("http", "h", 80, "h", "/ab")),
        ("http:\\\\h\\x", ("http", "h", 80, "h", "/x")),
        ("http://h/#a b", ("http", "h", 80, "h", "/")),
    ],
)
def test_split(url: str, expected: tuple[Any, ...]) -> None:
    target = split(url)
    assert tuple(target) == expected


def test_the_absolute_form() -> None:
    assert split("http://h:81/a?b#c").absolute == "http://h:81/a?b"


@pytest.mark.parametrize(
    "url",
    ["", "h/x", "ftp://h/", "http:///", "http://h:65536/", "http://[x]/", "\ud800", "http://h\0/"],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(FetchError) as caught:
        split(url)
    assert caught.value.outcome == "url"


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("/b", "http://h/b"),
        ("c?d", "http://h/p/c?d"),
        ("//other.test/x", "http://other.test/x"),
        ("///other.test/x", "http://other.test/x"),
        ("https:///other.test/x\t\t", "https://other.test/x"),
        (b"/jos\xe9", "http://h/jos%E9"),
        ("/a\u00e7".encode(), "http://h/a%C3%A7"),
        ("b\u00fccher.test".join(("http://", "/")).encode(), "http://xn--bcher-kva.test/"),
        (b"http://\xa0http://h/", None),
        ("http://[IP-Adresse", None),
        ("file:///etc/passwd", None),
        ("ftp://h/", None),
        ("data:text/html,x", None),
        ("javascript:alert(1)", None),
        ("", None),
        ("   ", None),
        (None, None),
    ],
)
def test_location(value: str | bytes | None, target: str | None) -> None:
    assert location(redirect(value), "http://h/p/q") == target


@pytest.mark.parametrize("status", [200, 201, 300, 304, 404])
def test_other_statuses_point_nowhere(status: int) -> None:
    assert location(redirect("/b", status), "http://h/") is None


def test_fragments_live_on() -> None:
    assert location(redirect("/b"), "http://h/#f") == "http://h/b#f"
    assert location(redirect("/b#g"), "http://h/#f") == "http://h/b#g"


def test_the_public_redirect_cases() -> None:
    cases = json.loads(cases_file("http_cases.json").read_text())["redirects"]
    wrong = []
    for case in cases:
        value = bytes.fromhex(case["location_hex"]) if "location_hex" in case else case["location"]
        found = location(redirect(value, case["status"]), case["url"])
        if found != case["target"]:
            wrong.append((case, found))
    assert wrong == []
