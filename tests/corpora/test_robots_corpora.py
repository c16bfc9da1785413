"""The public robots.txt facts, each either held or listed in differences_robots.py."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from syncrawl.fetch.robots import protego_engine, robots_url, rules_for_status, sitemap_urls
from tests.corpora.differences_robots import DIFFERENCES
from tests.support import cases_file

ENGINE = protego_engine({})
MAX_BYTES = 512_000
# A file of 600 KB takes some 10 ms; the bound is for a machine that is busy otherwise.
PARSE_SECONDS = 1.0
CHECK_SECONDS = 0.1

Case = Mapping[str, Any]


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    loaded: dict[str, list[Case]] = json.loads(cases_file("robots_cases.json").read_text("utf-8"))
    return loaded


def spelt(parts: list[tuple[str, int]]) -> str:
    return "".join(text * times for text, times in parts)


def body_of(case: Case) -> bytes:
    if case.get("robots_hex"):
        return bytes.fromhex(case["robots_hex"])
    text: str = spelt(case["robots_gen"]) if case.get("robots_gen") else case["robots"]
    return text.encode()


def expected_differences(section: str) -> set[str]:
    in_section = {key for key in DIFFERENCES if key.startswith("other_fields")}
    return in_section if section == "other_fields" else set(DIFFERENCES) - in_section


def test_what_may_be_fetched(cases: dict[str, list[Case]]) -> None:
    wrong = set()
    for case in cases["allow_cases"]:
        url = spelt(case["url_gen"]) if case.get("url_gen") else case["url"]
        if ENGINE.parse(body_of(case), case["user_agent"]).allowed(url) != case["allowed"]:
            wrong.add(case["id"])
    assert wrong == expected_differences("allow_cases")
    assert len(cases["allow_cases"]) > 700


def test_delays_and_sitemaps(cases: dict[str, list[Case]]) -> None:
    wrong = set()
    for index, case in enumerate(cases["other_fields"]):
        rules = ENGINE.parse(body_of(case), case.get("user_agent", "*"))
        got: object = rules.crawl_delay
        if case["field"] == "sitemaps":
            got = list(sitemap_urls(rules, case.get("robots_url", "http://a.example/robots.txt")))
        if got != case["expected"]:
            wrong.add(f"other_fields {index}")
    assert wrong == expected_differences("other_fields")


def test_bytes_before_and_between_the_lines(cases: dict[str, list[Case]]) -> None:
    # A closing Disallow binds whoever is in the file's last group, so that each counted line
    # shows: the group's own, and its Allow.
    closing = b"\nDisallow: /\n"
    marks = [case for case in cases["byte_level"] if "unknown_directives" in case]
    assert marks
    for case in marks:
        rules = ENGINE.parse(body_of(case) + closing, "foo")
        first_counts = not rules.allowed("http://h.example/else")
        allow_counts = rules.allowed("http://h.example/AnyValue")
        seen = {
            "broken BOM: the first line is unknown, the rest counts": (False, True),
            "BOM bytes mid-file make that line unknown": (True, False),
        }.get(case["note"], (True, True))
        assert (first_counts, allow_counts) == seen, case["note"]


def test_line_ends(cases: dict[str, list[Case]]) -> None:
    files = [case for case in cases["byte_level"] if "last_line" in case]
    assert len(files) == 5
    for case in files:
        assert ENGINE.parse(body_of(case), "foo").allowed("http://h.example/else"), case["note"]
        assert not ENGINE.parse(body_of(case), "bar").allowed("http://h.example/"), case["note"]


def test_what_of_a_url_is_matched(cases: dict[str, list[Case]]) -> None:
    for case in cases["google_path_params_query"]:
        rules = ENGINE.parse(f"User-agent: *\nDisallow: {case['path']}$".encode(), "foo")
        assert not rules.allowed(case["url"]), case
        assert rules.allowed(f"http://h.example{case['path']}x"), case


def test_how_a_pattern_is_compared(cases: dict[str, list[Case]]) -> None:
    for case in cases["google_escape_pattern"]:
        rules = ENGINE.parse(f"User-agent: *\nDisallow: /{case['pattern']}".encode(), "foo")
        assert not rules.allowed(f"http://h.example/{case['escaped']}"), case


def test_request_rate_is_a_delay(cases: dict[str, list[Case]]) -> None:
    for case in cases["request_rate"]:
        rules = ENGINE.parse(f"User-agent: *\nRequest-rate: {case['value']}".encode(), "foo")
        assert rules.crawl_delay == case["seconds"] / case["requests"], case


def test_where_the_file_is(cases: dict[str, list[Case]]) -> None:
    for case in cases["robots_url"]:
        if case["robots_url"] is None:
            with pytest.raises(ValueError, match=r"host|Port"):
                robots_url(case["url"])
        else:
            assert robots_url(case["url"]) == case["robots_url"]


def test_every_status_rule_is_known(cases: dict[str, list[Case]]) -> None:
    # The rules are prose; this holds what of them is decided here, and that none was added.
    assert len(cases["status_semantics"]) == 11
    body = b"User-agent: *\nDisallow: /"

    def answer(status: int) -> bool | None:
        rules = rules_for_status(status, body, ENGINE, "foo", MAX_BYTES)
        return rules.allowed("http://h.example/x") if rules else None

    assert answer(200) is False
    assert answer(301) is True
    assert [answer(status) for status in range(400, 420)] == [True] * 20
    assert [answer(status) for status in (500, 503, 599)] == [None] * 3


def test_real_files_end_in_bounded_time() -> None:
    index = json.loads(cases_file("robots_real/index.json").read_text("utf-8"))
    assert index["files"]
    for entry in index["files"]:
        body = cases_file(f"robots_real/{entry['file']}").read_bytes()
        started = time.process_time()
        rules = rules_for_status(200, body, ENGINE, "ABot/1.0 (+https://a.example)", MAX_BYTES)
        parsed = time.process_time()
        assert rules is not None
        assert isinstance(rules.allowed("https://h.example/a/b/c.html?d=e&f=/g/h/"), bool)
        checked = time.process_time()
        assert parsed - started < PARSE_SECONDS, entry
        assert checked - parsed < CHECK_SECONDS, entry
