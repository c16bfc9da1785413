"""Public facts about URLs against syncrawl.urls; deliberate differences in differences_urls.py."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from syncrawl.config.model import ScopeConfig
from syncrawl.urls import Canonicalizer, Url
from tests.corpora import differences_urls as differences
from tests.support import cases_file

CANON = Canonicalizer(ScopeConfig().tracking_parameters)
PLAIN = Canonicalizer(())

# Facts about what is requested, not about a key: the spelling may be the right answer.
ABOUT_SPELLINGS = ("safe_url_string", "supplemental_whatwg")


def load(name: str) -> Any:
    return json.loads(cases_file(name).read_text(encoding="utf-8"))


def listed(name: str) -> list[dict[str, Any]]:
    """A WPT file's cases; the strings among them are comments."""
    return [case for case in load(name) if isinstance(case, dict)]


def without_fragment_and_userinfo(case: dict[str, Any]) -> str:
    return f"{case['protocol']}//{case['host']}{case['pathname']}" + (
        case["search"] or ("?" if case["href"].partition("#")[0].endswith("?") else "")
    )


def test_wpt_urltestdata() -> None:
    missed, checked = [], 0
    for case in listed("wpt_urltestdata.json"):
        failure = case.get("failure", False)
        http = not failure and case["protocol"] in ("http:", "https:")
        expected = without_fragment_and_userinfo(case) if http else None
        base = case["base"]
        if base is not None and PLAIN.parse(base) is None:
            # Not a page we could have fetched: only links that need no base have an answer.
            absolute = PLAIN.parse(case["input"])
            if absolute is None or not http:
                continue
        resolve = PLAIN.parse if base is None else PLAIN.resolver(base).resolve
        found = resolve(case["input"])
        checked += 1
        if (found and found.spelling) != expected:
            missed.append((case["input"], base, expected, found))
    assert not missed
    assert checked > 500


def test_wpt_percent_encoding() -> None:
    missed, differing = [], set()
    for case in listed("wpt_percent_encoding.json"):
        for encoding, expected in case["output"].items():
            found = PLAIN.resolver("http://h/", encoding).resolve("?" + case["input"])
            if found is not None and found.spelling == f"http://h/?{expected}":
                continue
            if (encoding, case["input"]) in differences.WPT_ENCODINGS:
                differing.add((encoding, case["input"]))
            else:
                missed.append((encoding, case, found))
    assert not missed
    assert differing == set(differences.WPT_ENCODINGS)


def hosts_missed(name: str) -> list[tuple[str, str | None, str | None]]:
    """As the files ask: the input as the host of a URL."""
    missed = []
    for case in listed(name):
        if not case["input"]:
            continue  # `https:///x` has no place for a host: WHATWG reads `x` as one.
        found = PLAIN.parse(f"https://{case['input']}/x")
        spelled = None if found is None else found.spelling
        expected = None if case["output"] is None else f"https://{case['output']}/x"
        if spelled != expected:
            missed.append((case["input"], expected, spelled))
        elif found is not None:
            host = case["output"]
            one_dot = host.endswith(".") and not host.endswith("..") and host != "."
            assert found.host == (host[:-1] if one_dot else host)
    return missed


def test_wpt_toascii() -> None:
    assert not hosts_missed("wpt_toascii.json")


def test_wpt_idna() -> None:
    assert not hosts_missed("wpt_IdnaTestV2.json")


def test_path_dots() -> None:
    special = load("path_dots.json")["special"]
    missed = []
    for path, expected in special.items():
        # The source resolves dots before it turns backslashes; WHATWG writes those as slashes.
        expected = "http://h" + expected.replace("\\", "/")
        found = PLAIN.parse("http://h" + path)
        if found is None or found.canonical != expected:
            missed.append((path, expected, found))
        # The same path as a link; with two slashes it would name a host.
        linked = PLAIN.resolver("http://h/a/b").resolve(path)
        if linked != found and not path.replace("\\", "/").startswith("//"):
            missed.append((path, expected, found))
    assert not missed
    assert len(special) > 300


def test_url_resolve() -> None:
    missed = []
    for case in load("url_resolve.json")["cases"]:
        if case["ref"] in differences.RESOLVING:
            continue
        expected = case.get("alt", case["expected"])
        for reading in differences.READINGS:
            expected = reading.to_ours(expected)
        resolve = PLAIN.parse if case["base"] is None else PLAIN.resolver(case["base"]).resolve
        found = resolve(case["ref"])
        spelled = None if found is None else found.spelling
        if spelled != (expected if expected.startswith(("http:", "https:")) else None):
            missed.append((case, spelled))
    assert not missed


def asked(case: dict[str, Any]) -> tuple[Url | None, str | None]:
    """What we make of a case's input, and the source's answer, as whole URLs."""
    options = case.get("options", {})
    text, expected = case["in"], case["expected"]
    canon = CANON
    if "queryParamsToRemove" in options:
        canon = Canonicalizer(options["queryParamsToRemove"])
    component = case.get("component")
    if "alphaRorderQuery" in case["rule"]:
        component = "query"
    if "massageHost" in case["rule"]:
        component = "host"
    if component == "ipv4":
        found = canon.parse(f"http://{text}/")
        return (None if expected is None else found), expected and f"http://{expected}/"
    if component == "host":
        return canon.parse(f"http://{text}/"), f"http://{expected}/"
    if component == "query":
        return canon.parse(f"http://h/?{text}"), f"http://h/?{expected}".rstrip("?")
    if component == "path" or "stripPathSessionId" in case["rule"]:
        return canon.parse(f"http://h{text}"), f"http://h{expected}"
    base = f"https://{options.get('default_domain', 'h')}/"
    if text[:1] == "/" and case["source"] == "url-normalize":
        whole = expected if expected.startswith("https:") else "https://h" + expected
        return canon.resolver(base).resolve(text), whole
    if "encoding" in options and case["rule"].startswith("safe_url_string"):
        return canon.resolver(base, options["encoding"]).resolve(text), expected
    if "urlcanon" in case["source"] and not text.isascii():
        # Its files hold bytes; the case file writes them as Latin-1.
        try:
            text = text.encode("latin-1").decode("utf-8")
        except UnicodeError:
            pass
    return canon.parse(text), expected


def verdict(case: dict[str, Any]) -> str | None:
    """ "" where a fact holds, the kind where a difference explains it, None where nothing does."""
    for other in differences.NOT_OURS:
        if other.about(case):
            return other.kind
    found, expected = asked(case)
    if case.get("error") or expected is None:
        return "" if found is None else None
    answers = [] if found is None else [found.canonical]
    if found is not None and case["rule"].startswith(ABOUT_SPELLINGS):
        answers.append(found.spelling)
    if expected in answers:
        return ""
    kept = None
    for reading in differences.READINGS:
        ours = reading.to_ours(expected)
        if ours != expected:
            expected, kept = ours, reading.kind
            if expected in answers:
                return kept
    for rule in differences.OTHER_RULES:
        if rule.explains(case, expected, found):
            return rule.kind
    return None


def test_url_canon() -> None:
    cases = load("url_canon.json")["cases"]
    verdicts = [(case, verdict(case)) for case in cases]
    missed = [(case, asked(case)) for case, kind in verdicts if kind is None]
    assert not missed
    kinds = Counter(kind for _, kind in verdicts)
    print(f"{kinds.pop('')} of {len(cases)} facts hold as they stand; by difference: {kinds}")
    reasons = [*differences.READINGS, *differences.OTHER_RULES, *differences.NOT_OURS]
    assert {reason.kind for reason in reasons} <= set(kinds), "a difference that explains nothing"


def test_where_the_sources_disagree() -> None:
    # The README of the cases names the side taken; these are its rules, on its own examples.
    expected = {
        "http://example.com/?": "http://example.com/",
        "http://example.com/?b&a": "http://example.com/?a&b",
        "http://example.com/a+b%20c?a+b%20c": "http://example.com/a+b%20c?a+b%20c",
        "http://u:p@www.example.com.:80//A//%C7%23%41#f": "http://www.example.com//A//%C7%23A",
    }
    for url, canonical in expected.items():
        found = CANON.parse(url)
        assert found is not None
        assert found.canonical == canonical
