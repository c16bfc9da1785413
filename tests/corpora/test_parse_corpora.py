"""The public link and encoding cases; they are read where they are, never copied."""

from __future__ import annotations

import codecs
import json
import time
from typing import Any

import pytest

from syncrawl.api import Headers, Link, Page
from syncrawl.parse.directives import from_headers
from syncrawl.parse.encoding import codec_for, declared_encoding, decode, find_encoding
from syncrawl.parse.html import base_of, page_parser
from syncrawl.urls import Canonicalizer, Url
from tests.corpora import differences_parse as differences
from tests.support import cases_file
from tests.test_parse_page import page_of

SLOW_MACHINE_SECONDS = 2.0  # "well under 2 s", say the cases that need a bound
EVERYTHING_DECIDED = ("whole decision", "response", "broken byte")


def cases(file: str, part: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cases_file(file).read_text("utf-8"))[part]
    return found


def same_codec(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return codecs.lookup(one).name == codecs.lookup(other).name


def encoding_of(case: dict[str, Any], body: bytes) -> str | None:
    content_type = case.get("content_type") or ""
    if "label" in case:
        return codec_for(case["label"])
    if case["group"].startswith(EVERYTHING_DECIDED):
        return find_encoding(body, content_type)
    found = declared_encoding(body, content_type)
    # The html5lib cases tell what the pre-scan alone leads to.
    return found or "windows-1252" if case["source"] == "html5lib-tests" else found


def encoding_failure(case: dict[str, Any]) -> str | None:
    body = bytes.fromhex(case["body_hex"] or "")
    content_type = case.get("content_type") or ""
    wanted: str | None = case["encoding"]
    got = encoding_of(case, body)
    if (content_type, body) in differences.ENCODINGS:
        wanted, _ = differences.ENCODINGS[content_type, body]
        got = find_encoding(body, content_type)
    if not same_codec(wanted, got):
        return f"{case}: got {got}"
    text = decode(body, got or "utf-8")
    if "text" in case and text != case["text"]:
        return f"{case}: text {text!r}"
    if case.get("must_contain", "") not in text:
        return f"{case}: text {text!r}"
    return None


def test_encoding_cases() -> None:
    read = cases("encoding_cases.json", "cases")
    failures = [failure for case in read if (failure := encoding_failure(case))]
    assert len(read) >= 115
    assert not failures, "\n".join(failures)


def case_page(case: dict[str, Any]) -> Page:
    if case.get("html") is not None:
        body = case["html"].encode()
    elif case.get("html_hex"):
        body = bytes.fromhex(case["html_hex"])
    else:
        body = "".join(text * times for text, times in case["html_gen"]).encode()
    charset = case.get("encoding", "utf-8")
    return page_of(body, f"text/html; charset={charset}", final_url=case["url"])


def resolved(page: Page) -> list[tuple[Url, bool]]:
    """The page's links as the engine sees them: resolved, http(s) only, first spelling kept."""
    resolver = Canonicalizer(()).resolver(base_of(page), page.encoding)
    found: dict[str, tuple[Url, bool]] = {}
    for item in page_parser({}).parse(page):
        if isinstance(item, Link) and (url := resolver.resolve(item.url)):
            found.setdefault(url.key, (url, item.nofollow))
    return list(found.values())


def link_failure(case: dict[str, Any]) -> str | None:
    page = case_page(case)
    links = resolved(page)
    followed = [url.spelling for url, nofollow in links if not nofollow]
    if case["group"] in differences.LINKS:
        wanted = differences.LINKS[case["group"]][0]
    elif "nofollow" in case:
        # Some sources give such links with a mark, others leave them out.
        marked = [url.spelling for url, nofollow in links if nofollow]
        if marked != case["nofollow"]:
            return f"{case}: marked {marked}"
        wanted = [link for link in case["links"] if link not in marked]
    else:
        wanted = case["links"]
    if case["source"].startswith("heritrix3"):
        wanted, followed = sorted(wanted), sorted(followed)  # its sets have no order
    if followed != wanted:
        return f"{case}: got {followed}"
    if base_of(page) != differences.BASES.get(case["group"], base_of(page)):
        return f"{case}: base {base_of(page)}"
    return None


def test_link_cases() -> None:
    read = cases("link_cases.json", "links")
    failures = [failure for case in read if (failure := link_failure(case))]
    assert len(read) >= 25
    assert not failures, "\n".join(failures)


def test_base_cases() -> None:
    for case in cases("link_cases.json", "base_url"):
        started = time.thread_time()
        base = base_of(case_page(case))
        if "base" in case:
            assert base == case["base"], case
        else:
            joined = Canonicalizer(()).resolver(base).resolve(case["ref"])
            assert joined is not None, case
            assert joined.spelling == case["joined"], case
        assert time.thread_time() - started < SLOW_MACHINE_SECONDS


def test_refresh_cases() -> None:
    for case in cases("link_cases.json", "meta_refresh"):
        started = time.thread_time()
        wanted = case["target"]
        if case.get("html") in differences.REFRESHES:
            wanted = differences.REFRESHES[case["html"]][0]
        found = [url.spelling for url, _ in resolved(case_page(case))]
        assert found == ([wanted] if wanted else []), case
        assert time.thread_time() - started < SLOW_MACHINE_SECONDS


# meaning -> (noindex, nofollow) for any agent, for the agent named
MEANINGS = {
    "noindex": ((True, False), (True, False)),
    "both": ((True, True), (True, True)),
    "only for that agent": ((False, False), (False, True)),
    "both rules belong to otherbot": ((False, False), (True, True)),
    "several header lines add up; the value itself holds": ((False, False), (False, False)),
    "all agents": ((True, False), (True, False)),
    "only that agent": ((False, False), (True, False)),
    "name and content are not case sensitive": ((True, False), (True, False)),
    "nofollow: no link of the page is taken": ((False, True), (False, True)),
}


@pytest.mark.parametrize("named", [False, True], ids=["other agent", "agent named"])
def test_robots_cases(named: bool) -> None:
    checked = 0
    for case in cases("link_cases.json", "robots_meta"):
        known = [meaning for meaning in MEANINGS if case["meaning"].startswith(meaning)]
        if case["where"] == "both":
            page = page_of(
                b"<meta name=robots content='index,nofollow'><a href=/x>",
                extra=[("X-Robots-Tag", "noindex, follow")],
            )
            assert page_parser({"obey_noindex": True}).parse(page) == [Link("/x", nofollow=True)]
        else:
            value = case["value"]
            agent = "unnamed"
            if named:
                agent = "otherbot" if "otherbot" in value else "googlebot"
            wanted = MEANINGS[max(known, key=len)][named]
            if case["where"] == "meta":
                page = page_of(value.encode() + b"<a href=/x>")
                items = page_parser({"obey_noindex": True, "agent": agent}).parse(page)
                got = (
                    len(items) == 1,
                    [i.nofollow for i in items if isinstance(i, Link)] == [True],
                )
            else:
                got = from_headers([value] if isinstance(value, str) else value, agent)
            assert got == wanted, case
        checked += 1
    assert checked >= 10


def test_differences_name_cases_that_exist() -> None:
    links = json.loads(cases_file("link_cases.json").read_text("utf-8"))
    groups = {case["group"] for case in links["links"]}
    assert set(differences.LINKS) | set(differences.BASES) <= groups
    assert set(differences.REFRESHES) <= {case.get("html") for case in links["meta_refresh"]}
    bodies = {case["body_hex"] for case in cases("encoding_cases.json", "cases")}
    assert {body.hex() for _, body in differences.ENCODINGS} <= bodies


def test_headers_given_as_one_case_value() -> None:
    # The engine hands each field apart; a client that joined them loses nothing.
    joined = Headers([("X-Robots-Tag", "noarchive"), ("X-Robots-Tag", "nofollow")])
    assert from_headers([joined["x-robots-tag"]], "bot") == from_headers(
        joined.get_all("x-robots-tag"), "bot"
    )
