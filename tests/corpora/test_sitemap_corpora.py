"""The public sitemap and feed cases; deliberate differences in differences_sitemaps.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from syncrawl.parse.lastmod import instant
from syncrawl.parse.sitemap import Entry, SitemapReader
from tests import test_parse_sitemap
from tests.corpora import differences_sitemaps as differences
from tests.support import cases_file

Case = dict[str, Any]
KINDS = {"index": "sitemapindex"}
ANY_KIND = ("gz", "any")


def load(part: str) -> list[Case]:
    found: list[Case] = json.loads(cases_file("sitemap_cases.json").read_text("utf-8"))[part]
    return found


def body_of(case: Case) -> bytes:
    if "body_hex" in case:
        return bytes.fromhex(case["body_hex"])
    if "body_gen" in case:
        (head, _), (line, _), (tail, _) = case["body_gen"]
        return (head + "".join(line % n for n in range(50_000)) + tail).encode()
    body: str = case["body"]
    return body.encode()


def written(moment: datetime | None) -> str | None:
    """As the cases write it: to the millisecond where there are any."""
    if moment is None:
        return None
    part = f".{moment.microsecond // 1000:03d}" if moment.microsecond else ""
    return moment.strftime(f"%Y-%m-%dT%H:%M:%S{part}Z")


def wrong(case: Case, reader: SitemapReader, entries: list[Entry]) -> str:
    """What of a case does not hold; "" for nothing."""
    urls = [entry.loc for entry in entries]
    if case["group"] in differences.DIFFERENCES:
        kind, expected, _ = differences.DIFFERENCES[case["group"]]
        return "" if (reader.kind, urls) == (kind, expected) else f"{reader.kind} {urls}"
    if case["type"] == "refused":
        return "" if reader.kind is None and reader.problem and not urls else f"{urls}"
    if case["type"] not in ANY_KIND and reader.kind != KINDS.get(case["type"], case["type"]):
        return f"kind {reader.kind}"
    expected = case.get("sitemaps", case.get("urls"))
    if expected is not None and urls != expected:
        return f"{urls}"
    if "n_urls" in case and len(urls) != case["n_urls"]:
        return f"{len(urls)} locations"
    alternates = [other.href for entry in entries for other in entry.alternates]
    if alternates != case.get("alternates", []):
        return f"alternates {alternates}"
    moments = [written(entry.lastmod) for entry in entries]
    return f"{moments}" if moments != case.get("lastmod", moments) else ""


def test_sitemap_cases() -> None:
    failures, left_out = [], []
    for case in load("cases"):
        if case["type"] == "rule":
            left_out.append(case["group"])
            continue
        reader = SitemapReader(content_type=case.get("content_type", ""))
        entries = list(reader.read([body_of(case)]))
        if failure := wrong(case, reader, entries):
            failures.append((case["group"], failure))
    assert not failures
    assert set(left_out) == {*differences.NO_RULE, *differences.ELSEWHERE}
    assert all(hasattr(test_parse_sitemap, name) for name in differences.ELSEWHERE.values())
    assert {case["group"] for case in load("cases")} >= set(differences.DIFFERENCES)


def test_lastmod_cases() -> None:
    cases = load("lastmod")
    failures = []
    for case in cases:
        found = instant(case["value"])
        expected = case["utc"]
        if expected is not None and len(expected) == len("2014-06-01"):
            expected += "T00:00:00Z"
        if written(found) != expected or (found is not None and found.tzinfo is not UTC):
            failures.append((case, found))
    assert not failures
    assert len(cases) >= 18
