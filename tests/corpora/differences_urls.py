"""Where public facts about URLs and our rules part on purpose: one reason a kind, not a URL.

A fact is `expected` for an input, and `found`, what we make of it. Three lists, tried in
this order: READINGS turn a source's answer into ours where it merely keeps something that
our rules drop; OTHER_RULES explain what is left, and check the explanation against both
sides; NOT_OURS are facts about another function altogether. The corpus test fails for a
fact that nothing explains, and for a kind that explains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from syncrawl.urls import Url

Case = dict[str, Any]


class Reading(NamedTuple):
    """`to_ours` applies the rule, in other words than the product's, to the source's answer."""

    kind: str
    reason: str
    to_ours: Callable[[str], str]


class OtherRule(NamedTuple):
    """`explains` tells whether exactly this rule separates the two answers."""

    kind: str
    reason: str
    explains: Callable[[Case, str | None, Url | None], bool]


class NotOurs(NamedTuple):
    kind: str
    reason: str
    about: Callable[[Case], bool]


READINGS = [
    Reading(
        "fragment kept",
        "A fragment is never sent to a server: two URLs that differ in it are one page.",
        lambda url: url.partition("#")[0],
    ),
    Reading(
        "userinfo kept",
        "Credentials in links are not followed, nor written to logs and outputs.",
        lambda url: re.sub(r"^(https?://)[^/?#]*@", r"\1", url),
    ),
    Reading(
        "default port kept",
        "RFC 3986 section 6.2.3 and WHATWG drop it.",
        lambda url: (
            re.sub(r"^(http://[^/?#]*):(?:80)?(?=[/?]|$)", r"\1", url)
            if url.startswith("http:")
            else re.sub(r"^(https://[^/?#]*):(?:443)?(?=[/?]|$)", r"\1", url)
        ),
    ),
    Reading(
        "empty path kept",
        "RFC 3986 section 6.2.3 and WHATWG write it as a slash.",
        lambda url: re.sub(r"^(https?://[^/?#]+)(?=\?|$)", r"\1/", url),
    ),
    Reading(
        "empty query kept",
        "Servers make no difference; RFC 3986 section 6.2.3 warns that one could.",
        lambda url: url.rstrip("?&") if url.endswith(("?", "&")) and "?" in url else url,
    ),
    Reading(
        "host case kept",
        "The source's step leaves the host to another step; host names have no case.",
        lambda url: re.sub(r"^https?://[^/?#]+", lambda match: match[0].lower(), url),
    ),
]


def _unquoted(url: str) -> bytes:
    """All escapes undone for as long as there are any."""
    data, again = url.encode(), unquote_to_bytes(url)
    while data != again:
        data, again = again, unquote_to_bytes(again)
    return data


def _collapsed(url: str) -> str:
    head, mark, query = url.partition("?")
    return re.sub(r"(?<!:)/{2,}", "/", head) + mark + query


def _pieces(url: str) -> tuple[str, list[str]]:
    head, _, query = url.partition("?")
    return head, sorted(re.split("[&;]", query))


def _folded(url: str) -> tuple[str, list[str]]:
    """As a web archive looks a capture up: no scheme, `www.`, case, end slash, order or repeats."""
    head, pieces = _pieces(re.sub(r"^https?://(www\d*\.)?", "", url.lower()).replace("%21", "!"))
    return head.rstrip("/"), pieces


def _both(compare: Callable[[str, str], bool]) -> Callable[[Case, str | None, Url | None], bool]:
    def explains(case: Case, expected: str | None, found: Url | None) -> bool:
        return expected is not None and found is not None and compare(expected, found.canonical)

    return explains


def _is_other_scheme(case: Case, expected: str | None, found: Url | None) -> bool:
    scheme = re.match(r"\s*([A-Za-z][A-Za-z0-9+.-]*):(?!\d+(/|$))", case["in"])
    return found is None and scheme is not None and scheme[1].lower() not in ("http", "https")


def _has_no_scheme(case: Case, expected: str | None, found: Url | None) -> bool:
    return found is None and not re.match(r"\s*https?:", case["in"])


def _host_is_invalid(case: Case, expected: str | None, found: Url | None) -> bool:
    host = re.match(r"https?:/*([^/]*)", case["in"])
    return (
        found is None
        and host is not None
        and re.search(r"[\x00-\x20]|%(?![0-9A-F]{2})|%20|%04|^09$|^xn--.*[^\x00-\x7f]|^$", host[1])
        is not None
    )


def _has_fewer_parameters(case: Case, expected: str | None, found: Url | None) -> bool:
    if expected is None or found is None:
        return False
    (our_head, ours), (head, theirs) = _pieces(found.canonical), _pieces(expected)
    settled = {_unquoted(piece) for piece in theirs if piece}
    return our_head == head and settled < {_unquoted(piece) for piece in ours}


OTHER_RULES = [
    OtherRule(
        "scheme is not http(s)",
        "The crawler requests http and https only; everything else is refused as `scheme`.",
        _is_other_scheme,
    ),
    OtherRule(
        "scheme is guessed",
        "A seed must say http or https: a guess would decide which server is asked.",
        _has_no_scheme,
    ),
    OtherRule(
        "host that WHATWG refuses",
        "The source repairs or keeps a host no resolver knows; no host at all is one of them.",
        _host_is_invalid,
    ),
    OtherRule(
        "host of dots",
        "WHATWG keeps a host that is nothing but dots; the source takes it for 0.0.0.0.",
        _both(lambda theirs, ours: bool(re.sub(r"//\.+/", "//0.0.0.0/", ours) == theirs)),
    ),
    OtherRule(
        "several dots after the host",
        "One dot is the DNS root; more make empty labels, and name no host.",
        _both(lambda theirs, ours: bool(re.sub(r"\.{2,}/", "/", ours, count=1) == theirs)),
    ),
    OtherRule(
        "address notation",
        "WHATWG writes an IPv4 address inside an IPv6 one in hex.",
        _both(lambda theirs, ours: ours.replace("7f00:1]", "127.0.0.1]") == theirs),
    ),
    OtherRule(
        "slashes collapsed",
        "`//` in a path is kept: WHATWG, and servers do tell the two apart.",
        _both(lambda theirs, ours: _collapsed(ours) == theirs),
    ),
    OtherRule(
        "order of the query",
        "Sorted by name only, equal names as they came: the order of values can matter.",
        _both(lambda theirs, ours: _pieces(theirs) == _pieces(ours)),
    ),
    OtherRule(
        "more or less unescaped",
        "Only unreserved characters are decoded, once: `%2525` is not `%25`, nor `%3A` a colon.",
        _both(lambda theirs, ours: _unquoted(theirs) == _unquoted(ours)),
    ),
    OtherRule(
        "space as plus",
        "`+` and `%20` are left as written: only forms read the first as a space.",
        _both(lambda theirs, ours: theirs == ours.replace("%20", "+")),
    ),
    OtherRule(
        "name without =",
        "`b`, `b=` are left as written: programs can tell them apart, and do.",
        _both(lambda theirs, ours: re.sub("=(?=&|$)", "", theirs) == re.sub("=(?=&|$)", "", ours)),
    ),
    OtherRule(
        "value without a name",
        "Not one of the rules: `?=1` and `?=2` may be two pages.",
        _both(lambda theirs, ours: theirs == re.sub(r"(?<=[?&])=[^&]*&?", "", ours)),
    ),
    OtherRule(
        "Unicode composed or replaced",
        "Escapes stay byte for byte; composing them, or U+FFFD for bad ones, merges URLs.",
        _both(lambda theirs, ours: re.search("%C7|%CC%A7", ours) is not None),
    ),
    OtherRule(
        "IDN as Unicode, or not at all",
        "Punycode is what DNS, TLS and the Host field carry.",
        _both(lambda theirs, ours: not (urlsplit(theirs).hostname or "").isascii()),
    ),
    OtherRule(
        "archive look-up key",
        "Web archives fold scheme, `www.`, case and session ids; a crawler would miss pages.",
        _both(lambda theirs, ours: _folded(theirs) == _folded(ours)),
    ),
    OtherRule(
        "session id told by its shape",
        "ASP.NET's `/(S(...))/` is in no list of names; dropping it is not one of the rules.",
        _both(
            lambda theirs, ours: (
                _folded(theirs)
                == _folded(
                    re.sub(r"/(\(([A-Za-z]\()?\w{24}\)?)+\)?(\w\(\w{24}\))*\)?(?=/)", "", ours)
                )
            )
        ),
    ),
    OtherRule(
        "other names dropped",
        "Which parameters only track is configured (scope.tracking_parameters), not built in.",
        _has_fewer_parameters,
    ),
    OtherRule(
        "raw bytes, written as Latin-1",
        "The source's input is bytes that are no UTF-8; ours is text, decoded before.",
        _both(lambda theirs, ours: ours.replace("%C2%91", "%91") == theirs),
    ),
]

NOT_OURS = [
    NotOurs(
        "SURT",
        "Sort-friendly look-up keys of web archives, another format.",
        lambda case: (
            re.search("surt|reverseHost", case["rule"], re.IGNORECASE) is not None
            and re.search("surt.json:(google|Canon|alpha|massage|strip)", case["rule"]) is None
        ),
    ),
    NotOurs(
        "lossless parsing",
        "Facts about a parser that can give its input back.",
        lambda case: case.get("component") == "roundtrip",
    ),
    NotOurs(
        "part that is dropped",
        "Fragments and userinfo are not canonicalised but dropped.",
        lambda case: case.get("component") in ("fragment", "userinfo"),
    ),
    NotOurs(
        "part that is no URL",
        "Facts about one step's private input, from which no URL can be made.",
        lambda case: "unescapeRepeatedly" in case["rule"] or case["in"] in ("-", "a#frag"),
    ),
    NotOurs(
        "query cleaner",
        "Keeps or drops parameters that its caller names; not a canonical form.",
        lambda case: "url_query_cleaner" in case["rule"],
    ),
    NotOurs(
        "bytes as input",
        "A URL is text here; whoever has bytes decodes them (`Location` in the fetch stage).",
        lambda case: "in_hex" in case,
    ),
    NotOurs(
        "scrubbed text",
        "Finds a URL in markup or in a share link; parsing markup is the parse stage's.",
        lambda case: (
            case["source"] == "courlan"
            and re.search("[<\"']|&amp;|&#0|garbled|g__|share|/&$|^\xf8", case["in"]) is not None
        ),
    ),
]

WPT_ENCODINGS = {
    ("iso-2022-jp", "\x0eA"): "Python's codec lets shift controls through, WHATWG's does not.",
    ("gb18030", "\ue5e5"): "WHATWG leaves one private-use code point out; Python's codec has it.",
}
"""Query escapes that differ, since Python's codecs are not WHATWG's in every corner."""

RESOLVING = {
    "{privacy}": "A template's placeholder is a path like any other to a browser.",
}
"""Links that the source does not resolve."""
