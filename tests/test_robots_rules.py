"""robots.txt: our own facts about groups, matching, bytes, statuses, the cache form and cost."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncrawl.api import ConfigError, RobotsRules
from syncrawl.fetch.robots import (
    ALLOW_ALL,
    DISALLOW_ALL,
    RobotsEntry,
    protego_engine,
    robots_url,
    rules_for_status,
    sitemap_urls,
)
from syncrawl.fetch.robots_text import cap_body, product_token

ENGINE = protego_engine({})
AGENT = "MyBot/1.0 (+https://bot.example/about)"
HOST = "https://h.example"
MAX_BYTES = 512_000
# CPU seconds. The worst file takes one on a busy machine; a matcher that backtracks takes years.
BOUND = 10.0


def allowed(robots: str | bytes, path: str, agent: str = AGENT) -> bool:
    body = robots.encode() if isinstance(robots, str) else robots
    return ENGINE.parse(body, agent).allowed(HOST + path)


def everybody(*lines: str) -> str:
    return "\n".join(("User-agent: *", *lines))


# ------------------------------------------------------------------ whose group


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("MyBot/1.0 (+https://bot.example)", "mybot"),
        ("my_bot-x", "my_bot-x"),
        ("  MyBot  ", "mybot"),
        ("bot2/1", "bot2"),
        ("Mozilla/5.0 (compatible; MyBot/1.0; +https://bot.example/)", "mybot"),
        ("Mozilla/5.0 AppleWebKit/5 (KHTML, like Gecko; compatible; MyBot/2) Chrome/1", "mybot"),
        ("Mozilla/5.0 (X11; Linux) Gecko/1 Firefox/9 MyBot/1.0 (+https://bot.example)", "mybot"),
        ("Mozilla/5.0", "mozilla"),
        ("Бот/1.0", "бот"),
        ("", ""),
        ("(none)", ""),
        ("*", ""),
    ],
)
def test_product_token(header: str, token: str) -> None:
    assert product_token(header) == token


@pytest.mark.parametrize(
    ("name", "agent", "ours"),
    [
        ("mybot", "MyBot/1.0", True),
        ("MYBOT/2.0", "MyBot/1.0", True),
        ("MyBot and friends", "MyBot/1.0", True),
        ("*MyBot*", "MyBot/1.0", True),
        ("MyBo", "MyBot/1.0", False),
        ("MyBot-News", "MyBot/1.0", False),
        ("bot", "Mozilla/5.0 (compatible; MyBot/1.0; +http://bot.example)", False),
        ("MyBot", "MyBot2/1.0", True),  # the RFC's token of MyBot2 is MyBot
        ("MyBot3", "MyBot2/1.0", False),
        ("(", "360bot", False),
        ("(", "", False),
    ],
)
def test_a_group_is_ours_by_its_whole_name(name: str, agent: str, ours: bool) -> None:
    robots = f"User-agent: {name}\nDisallow: /\n\nUser-agent: *\nAllow: /"
    assert allowed(robots, "/x", agent) is not ours


def test_our_group_replaces_everybodys_even_when_empty() -> None:
    robots = "User-agent: *\nDisallow: /\nCrawl-delay: 9\n\nUser-agent: mybot\nDisallow:\n"
    assert allowed(robots, "/x")
    assert ENGINE.parse(robots.encode(), AGENT).crawl_delay is None
    assert not allowed(robots, "/x", "other")


def test_our_exact_name_goes_before_its_rfc_spelling() -> None:
    robots = "User-agent: bot\nDisallow: /\n\nUser-agent: bot7\nDisallow: /b"
    assert allowed(robots, "/a", "bot7/1")
    assert not allowed(robots, "/a", "bot8/1")


def test_groups_of_one_name_are_merged() -> None:
    robots = "User-agent: mybot\nDisallow: /a\n\nUser-agent: x\nDisallow: /\n\n" + (
        "User-agent: MyBot\nDisallow: /b"
    )
    assert [allowed(robots, path) for path in ("/a", "/b", "/c")] == [False, False, True]


@pytest.mark.parametrize(
    "between", ["", "Sitemap: https://h.example/s.xml", "Noindex: /", "Crawl-delay: 3", "<p>"]
)
def test_only_rules_end_a_run_of_user_agents(between: str) -> None:
    robots = f"User-agent: mybot\n{between}\nUser-agent: x\nDisallow: /a"
    assert not allowed(robots, "/a")


@pytest.mark.parametrize("rule", ["Disallow:", "Allow: /b", "disallow /b"])
def test_a_rule_ends_a_run_of_user_agents(rule: str) -> None:
    assert allowed(f"User-agent: mybot\n{rule}\nUser-agent: x\nDisallow: /a", "/a")


def test_rules_before_any_user_agent_bind_nobody() -> None:
    assert ENGINE.parse(b"Disallow: /\nCrawl-delay: 4", AGENT) is ALLOW_ALL


# ------------------------------------------------------------------ which rule


@pytest.mark.parametrize(
    ("rules", "path", "verdict"),
    [
        (("Disallow: /a", "Allow: /a/b"), "/a/b/c", True),
        (("Allow: /a/b", "Disallow: /a"), "/a/c", False),
        (("Disallow: /a", "Allow: /a"), "/a", True),
        (("Allow: /", "Disallow: /a"), "/a", False),
        (("Disallow: /*.gif$",), "/x.gif", False),
        (("Disallow: /*.gif$",), "/x.gif?y", True),
        (("Disallow: *.gif",), "/x.gif?y", False),
        (("Disallow: /a*/b**c",), "/a/x/b-c", False),
        (("Disallow: /a*/b",), "/ab", True),
        (("Disallow: /$",), "/", False),
        (("Disallow: /$",), "/a", True),
        (("Disallow: /a$b",), "/a$b", False),
        (("Disallow: /a%2Ab",), "/a*b", False),
        (("Disallow: /a%2Ab",), "/axb", True),
        (("Disallow: /a%24",), "/a$", False),
        (("Disallow: /a%24",), "/a", True),
        (("Disallow: a",), "/a", True),
        (("Disallow: /A",), "/a", True),
        (("Disallow: /a#b",), "/ab", False),
        (("disallow /a",), "/a", False),
        (("DISALLOW\t:\t/a \t",), "/a", False),
        (("Dissalow: /a",), "/a", False),
        (("Disallow: /", "Allow: /d/index.html"), "/d/", True),
        (("Disallow: /", "Allow: /d/index.html"), "/d/e", False),
        (("Disallow: /a b",), "/a%20b", False),
        (("Disallow: /a",), "/b?/a", True),
        (("Disallow: /a?b",), "/a?bc", False),
        (("Disallow: /a?b",), "/a#?b", True),
        # Octets are counted as written: `?` is one of them, not the three of %3F.
        (("Allow: /en/", "Disallow: /*?"), "/en/?q", True),
        (("Allow: /e", "Disallow: /*?"), "/e?q", False),
        (("Allow: /ab", "Disallow: /*b&"), "/ab&", False),
        (("Allow: /abc", "Disallow: /*c:"), "/abc:", True),
        (("Allow: /ab", "Disallow: /**b"), "/ab", False),
        (("Allow: /ab$", "Disallow: /*b*"), "/ab", True),
    ],
)
def test_the_longest_rule_wins(rules: tuple[str, ...], path: str, verdict: bool) -> None:
    assert allowed(everybody(*rules), path) is verdict


@pytest.mark.parametrize(
    ("rule", "path", "same"),
    [
        ("/%62%61%7A", "/baz", True),
        ("/baz", "/%62%61%7a", True),
        ("/ツ", "/%E3%83%84", True),
        ("/%e3%83%84", "/ツ", True),
        ("/%E3", "/ツ", True),
        ("/%E9", "/%e9", True),
        ("/%E9", "/%E8", False),
        ("/a%2Fb", "/a/b", False),
        ("/a%2fb", "/a%2Fb", True),
        ("/100%", "/100%", True),
        ("/100%25", "/100%", False),
        ("/a%3Fb", "/a?b", True),
        ("/a%zz", "/a%zz", True),
        ("/~u", "/%7Eu", True),
    ],
)
def test_percent_escapes_are_compared_by_octet(rule: str, path: str, same: bool) -> None:
    assert allowed(everybody(f"Disallow: {rule}"), path) is not same


def test_bytes_that_are_no_utf8_are_octets_too() -> None:
    robots = b"User-agent: *\nDisallow: /caf\xe9 # d\xdfr\n"
    assert not allowed(robots, "/caf%E9")
    assert allowed(robots, "/caf%E8")


@pytest.mark.parametrize("rules", [DISALLOW_ALL, ENGINE.parse(b"User-agent: *\nDisallow: /", "x")])
def test_robots_txt_itself_is_always_allowed(rules: RobotsRules) -> None:
    assert rules.allowed(f"{HOST}/robots.txt")
    assert not rules.allowed(f"{HOST}/robots.txt.bak")
    assert allowed(everybody("Disallow: /robots", "Disallow: /*t"), "/robots.txt")
    assert not allowed(everybody("Disallow: /robots", "Disallow: /*t"), "/robots.txt1")


_PIECES = st.lists(st.sampled_from(["a", "b", "/", "?", "*", "é", "%C3%A9", "-", "z"]), max_size=6)
_PATTERNS = st.builds(
    lambda lead, pieces, end: lead + "".join(pieces) + end,
    st.sampled_from(["/", "*", ""]),
    _PIECES,
    st.sampled_from(["", "$"]),
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), _PATTERNS), max_size=6),
    _PIECES.map(lambda pieces: "/" + "".join(pieces).replace("*", "c")),
)
def test_a_plain_reading_of_the_rfc_agrees(rules: list[tuple[bool, str]], path: str) -> None:
    robots = everybody(*(f"{'Allow' if allow else 'Disallow'}: {text}" for allow, text in rules))
    path = path.replace("é", "%C3%A9")
    best = (0, True)
    for allow, text in rules:
        pattern = text.replace("é", "%C3%A9")
        body = ".*".join(map(re.escape, pattern.removesuffix("$").split("*")))
        if re.match(body + ("$" if pattern.endswith("$") else ""), path):
            best = max(best, (len(pattern), allow))
    assert allowed(robots, path) is best[1]


# ------------------------------------------------------------------ pace and sitemaps


@pytest.mark.parametrize(
    ("lines", "delay"),
    [
        (["Crawl-delay: 2"], 2.0),
        (["crawl-delay:0.25 # s"], 0.25),
        (["Crawl-delay: .5"], 0.5),
        (["Crawl-delay: 0"], 0.0),
        (["Crawl-delay: 3600"], 3600.0),
        (["Crawl delay 4"], 4.0),
        (["Crawl-delay: -1"], None),
        (["Crawl-delay: nan"], None),
        (["Crawl-delay: inf"], None),
        (["Crawl-delay: 1e300"], None),
        (["Crawl-delay: " + "9" * 400], None),
        (["Crawl-delay: 1_0"], None),
        (["Crawl-delay: 10s"], None),
        (["Crawl-delay:"], None),
        (["Crawl-delay: 5", "Crawl-delay: soon"], 5.0),
        (["Request-rate: 1/10s"], 10.0),
        (["Request-rate: 2/1"], 0.5),
        (["Request-rate: 30/1m 0600-0845"], 2.0),
        (["Request-rate: 0/5"], None),
        (["Request-rate: x"], None),
        (["Request-rate: 1/" + "9" * 400], None),
        (["Crawl-delay: 1", "Request-rate: 1/5"], 5.0),
        (["Crawl-delay: 7", "Request-rate: 1/5"], 7.0),
    ],
)
@pytest.mark.parametrize("rule", ["Disallow: /a", "Disallow: /", "Allow: /", ""])
def test_delay(lines: list[str], delay: float | None, rule: str) -> None:
    assert ENGINE.parse(everybody(*lines, rule).encode(), AGENT).crawl_delay == delay


def test_sitemaps_belong_to_the_file_not_to_a_group() -> None:
    robots = (
        "Sitemap: https://h.example/1.xml\nUser-agent: x\nDisallow: /\n"
        "sitemap https://h.example/2.xml#part\nSite-map:/3.xml\nSitemap: https://h.example/1.xml\n"
        "Sitemap:\nSitemap: ftp://h.example/4.xml\nSitemap: http://[::1/5.xml\n"
    )
    rules = ENGINE.parse(robots.encode(), AGENT)
    assert rules.allowed(f"{HOST}/x")
    assert sitemap_urls(rules, "https://h.example/robots.txt") == (
        "https://h.example/1.xml",
        "https://h.example/2.xml",
        "https://h.example/3.xml",
    )


# ------------------------------------------------------------------ bytes

BLOCKING = "User-agent: *\nDisallow: /é\n"


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + BLOCKING.encode(),
        BLOCKING.encode("utf-16"),
        b"\xfe\xff" + BLOCKING.encode("utf-16-be"),
        b"\xff\xfe" + BLOCKING.encode("utf-16-le") + b"\n",
        BLOCKING.encode("utf-8").replace(b"\n", b"\r"),
        BLOCKING.encode("utf-8").replace(b"\n", b"\r\n"),
        b"\0\x01\x02\n" + BLOCKING.encode(),
    ],
)
def test_encodings_and_line_ends(body: bytes) -> None:
    assert not allowed(body, "/%C3%A9")
    assert allowed(body, "/e")


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_cr_and_lf_end_a_line(odd: str) -> None:
    assert allowed(everybody(f"Disallow: /a{odd}Disallow: /b"), "/b")
    assert not allowed(everybody(f"Disallow: /a{odd}b"), f"/a{odd}bc")


def test_a_line_is_cut_where_google_cuts_it() -> None:
    robots = everybody("Disallow: /x/" + "a" * 20_000)
    assert not allowed(robots, "/x/" + "a" * 17_000)
    assert allowed(robots, "/x/" + "a" * 16_000)


def test_a_long_file_is_cut_at_a_line() -> None:
    body = b"User-agent: *\r\nDisallow: /a\nDisallow: /bcd\n"
    assert cap_body(body, len(body) + 1) == body
    assert cap_body(body, len(body) - 2) == b"User-agent: *\r\nDisallow: /a\n"
    assert cap_body(b"x" * 100, 10) == b""
    wide = b"\xff\xfe" + "User-agent: *\nDisallow: /a".encode("utf-16-le")
    assert cap_body(wide, len(wide) - 3) == b"User-agent: *\n"


@settings(deadline=None)
@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=40))
def test_no_bytes_raise(noise: bytes, agent: str, url: str) -> None:
    for body in (noise, b"\xff\xfe" + noise, b"User-agent: *\nDisallow: " + noise):
        rules = ENGINE.parse(cap_body(body, 200), agent)
        assert isinstance(rules.allowed(url), bool)
        assert isinstance(sitemap_urls(rules, f"{HOST}/robots.txt"), tuple)
        assert repr(rules)


def test_a_lone_surrogate_in_a_url_does_not_raise() -> None:
    assert not allowed(everybody("Disallow: /a"), "/a\ud800")


# ------------------------------------------------------------------ cost


def test_files_without_a_rule_for_us_share_one_object() -> None:
    for body in (b"", b"# nothing", b"User-agent: x\nDisallow: /", b"User-agent: *\nDisallow:"):
        assert ENGINE.parse(body, AGENT) is ALLOW_ALL


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (["Disallow: /" + "*a" * 40 + "*b"], "/b" + "a" * 3_000),
        (["Disallow: /" + "*a" * 8_000 + "*b$"], "/b" + "a" * 8_000),
        (["Disallow: " + "*" * 16_000 + "b"], "/" + "a" * 8_000),
        ([f"Disallow: /*a{n:x}*a*b" for n in range(20_000)], "/a" + "a" * 8_000),
        ([f"Disallow: /*{n % 7}*{n:x}" for n in range(20_000)], "/0123456"),
        ([f"Disallow: /{n:x}" for n in range(30_000)], "/" + "f" * 8_000),
        (["Disallow: /" + "%41" * 5_000], "/" + "%41" * 5_001),
    ],
)
def test_no_file_takes_long(lines: list[str], path: str) -> None:
    started = time.process_time()
    rules = ENGINE.parse(everybody(*lines).encode(), AGENT)
    for _ in range(10):
        rules.allowed(HOST + path)
    assert time.process_time() - started < BOUND


def test_too_much_work_is_refused_but_robots_txt() -> None:
    rules = ENGINE.parse(everybody(*(f"Disallow: /*{n}!" for n in range(500))).encode(), AGENT)
    assert rules.allowed(f"{HOST}/" + "a" * 1_000)
    assert not rules.allowed(f"{HOST}/" + "a" * 3_000)
    assert rules.allowed(f"{HOST}/robots.txt?" + "a" * 3_000)


# ------------------------------------------------------------------ around one exchange


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, False) for status in (200, 203, 206)),
        *((status, True) for status in (301, 302, 308, 400, 401, 403, 404, 410, 451, 499)),
        *((status, None) for status in (0, 101, 304, 429, 500, 502, 503, 504, 599, 600)),
    ],
)
def test_what_a_status_means(status: int, verdict: bool | None) -> None:
    rules = rules_for_status(status, b"User-agent: *\nDisallow: /", ENGINE, AGENT, MAX_BYTES)
    assert (rules and rules.allowed(f"{HOST}/x")) is verdict


def test_a_status_reads_no_more_than_the_cap() -> None:
    body = b"User-agent: *\nDisallow: /a\n" + b"#" * 1000 + b"\nDisallow: /b\n"
    rules = rules_for_status(200, body, ENGINE, AGENT, 500)
    assert rules is not None
    assert not rules.allowed(f"{HOST}/a")
    assert rules.allowed(f"{HOST}/b")


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://h.example", "http://h.example/robots.txt"),
        ("HTTPS://H.example:443/a?b#c", "https://h.example/robots.txt"),
        ("http://h.example:443/", "http://h.example:443/robots.txt"),
        ("http://u:p@h.example:8080", "http://h.example:8080/robots.txt"),
        ("http://[::1]:80/x", "http://[::1]/robots.txt"),
        ("http://[::1]:8000", "http://[::1]:8000/robots.txt"),
    ],
)
def test_robots_url(origin: str, expected: str) -> None:
    assert robots_url(origin) == expected


@pytest.mark.parametrize("bad", ["", "h.example", "ftp://h.example", "http://", "http://h:x/"])
def test_no_robots_url(bad: str) -> None:
    with pytest.raises(ValueError, match=r"host|Port"):
        robots_url(bad)


def test_entry_survives_a_run() -> None:
    entry = RobotsEntry(origin="http://h", fetched_at=12.5, status=200, body=b"\xff\0")
    assert RobotsEntry.decode(entry.encode()) == entry


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_a_damaged_entry_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="robots entry"):
        RobotsEntry.decode(data)


def test_an_entry_gets_stale() -> None:
    entry = RobotsEntry(origin="http://h", fetched_at=1000.0, status=404)
    assert entry.fresh(1000.0, 60)
    assert entry.fresh(1059.0, 60)
    assert not entry.fresh(1060.0, 60)
    assert not entry.fresh(990.0, 60)


def test_the_engine_has_no_options() -> None:
    with pytest.raises(ConfigError, match="strict"):
        protego_engine({"strict": True})
