"""The rules of syncrawl.urls on small tables, and properties that hold for any text."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncrawl import urls
from syncrawl.urls import Canonicalizer, Resolver, Url, fingerprint, redact, rules_id, to_ascii

TRACKING = ("utm_*", "gclid", "jsessionid", "sid")
CANON = Canonicalizer(TRACKING)
BASE = "http://example.com/docs/section/page.html?x=1"


def canonical(url: str) -> str | None:
    found = CANON.parse(url)
    return None if found is None else found.canonical


def test_url_has_every_form() -> None:
    assert CANON.parse("HTTP://me:pw@Example.COM.:8080/Docs/?b=2&a=%7e&utm_x=1#top") == Url(
        spelling="http://example.com.:8080/Docs/?b=2&a=%7e&utm_x=1",
        canonical="http://example.com:8080/Docs/?a=~&b=2",
        key="http://example.com:8080/Docs?a=~&b=2",
        host="example.com:8080",
        origin="http://example.com:8080",
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com", "http://example.com/"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("https://example.com:80/a", "https://example.com:80/a"),
        ("http://example.com:/a", "http://example.com/a"),
        ("http://www.example.com./a", "http://www.example.com/a"),
        ("http://example.com..:81/a", "http://example.com..:81/a"),
        ("http://./", "http://./"),
        ("http://[2001:DB8:0::1]:80/", "http://[2001:db8::1]/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://Bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://a_b.ab--c.example/", "http://a_b.ab--c.example/"),
        (" \thttp:\\\\exa\nmple.com\\a\\..\\b ", "http://example.com/b"),
        ("http://h/a/./b/%2E%2e/c/..", "http://h/a/"),
        ("http://h//a//b//", "http://h//a//b//"),
        ("http://h/CaSe", "http://h/CaSe"),
        ("http://h/%7euser/%41%2d%5f%2f%3f", "http://h/~user/A-_%2F%3F"),
        ("http://h/%c3%a9%E9é", "http://h/%C3%A9%E9%C3%A9"),
        ("http://h/%2541", "http://h/%2541"),
        ("http://h/100%", "http://h/100%25"),
        ("http://h/%%34%31", "http://h/%2541"),
        ("http://h/[a]|{b}^", "http://h/%5Ba%5D%7C%7Bb%7D%5E"),
        ("http://h/?a[]=1&b=|", "http://h/?a%5B%5D=1&b=%7C"),
        ("http://h/?", "http://h/"),
        ("http://h/?&&", "http://h/"),
        ("http://h/?b=2&a=1&b=1&&B=0", "http://h/?B=0&a=1&b=2&b=1"),
        ("http://h/?b&a", "http://h/?a&b"),
        ("http://h/?b=&a", "http://h/?a&b="),
        ("http://h/?q=a+b%20c", "http://h/?q=a+b%20c"),
        ("http://h/?q=a;b&p=1", "http://h/?p=1&q=a;b"),
        ("http://h/?%75tm_source=x&UTM_Medium=y&Gclid&a=1", "http://h/?a=1"),
        ("http://h/?utm=1", "http://h/?utm=1"),
        ("http://h/?gclid=1", "http://h/"),
        ("http://h/a;jsessionid=1F/b;v=1;SID=2", "http://h/a/b;v=1"),
        ("http://h/a;sid/b", "http://h/a;sid/b"),
        ("http://h/..;sid=1/b", "http://h/..;sid=1/b"),
        ("http://h/x/%2e%2e;sid=1/b", "http://h/x/..;sid=1/b"),
    ],
)
def test_canonical(url: str, expected: str) -> None:
    assert canonical(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/a",
        "//example.com/",
        "example.com/a",
        "mailto:me@example.com",
        "javascript:void(0)",
        "data:text/html,x",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://[IP-Adresse",
        "http://exa mple.com/",
        "http://example.com:99999/",
        "http://example.com:port/",
        "http://a\0b/",
        "http://256.1.1.1/",
    ],
)
def test_refused(url: str) -> None:
    assert CANON.parse(url) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://h/docs", "http://h/docs/"),
        ("http://h", "http://h/"),
        ("http://h/docs?a=1", "http://h/docs/?a=1"),
        ("http://h?a", "http://h/?a"),
    ],
)
def test_key_ignores_one_slash(one: str, other: str) -> None:
    first, second = CANON.parse(one), CANON.parse(other)
    assert first is not None
    assert second is not None
    assert first.key == second.key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://h/docs//", "http://h/docs"),
        ("http://h//", "http://h/"),
        ("http://h/docs", "http://h/Docs"),
        ("http://h/", "https://h/"),
        ("http://h/", "http://www.h/"),
        ("http://h/?a=1/", "http://h/?a=1"),
        ("http://h/?b", "http://h/?b="),
        ("http://h/?a+b", "http://h/?a%20b"),
    ],
)
def test_keys_that_differ(one: str, other: str) -> None:
    first, second = CANON.parse(one), CANON.parse(other)
    assert first is not None
    assert second is not None
    assert first.key != second.key


@pytest.mark.parametrize(
    ("href", "spelling"),
    [
        ("", BASE),
        ("/a ?b #c ", "http://example.com/a%20?b%20"),
        ("#top", BASE),
        ("?", "http://example.com/docs/section/page.html?"),
        ("?y=2#z", "http://example.com/docs/section/page.html?y=2"),
        ("other.html", "http://example.com/docs/section/other.html"),
        ("sub/./x", "http://example.com/docs/section/sub/x"),
        ("./other.html", "http://example.com/docs/section/other.html"),
        ("../up.html", "http://example.com/docs/up.html"),
        ("../../../../up.html", "http://example.com/up.html"),
        ("..", "http://example.com/docs/"),
        ("./", "http://example.com/docs/section/"),
        ("../.hidden", "http://example.com/docs/.hidden"),
        ("..a/b", "http://example.com/docs/section/..a/b"),
        ("./a:b", "http://example.com/docs/section/a:b"),
        ("/wiki/Talk:Main", "http://example.com/wiki/Talk:Main"),
        ("//other.example:81", "http://other.example:81/"),
        ("///other.example/x", "http://other.example/x"),
        ("https:/abs", "https://abs/"),
        ("http:rel", "http://example.com/docs/section/rel"),
        ("https://u:p@other.example", "https://other.example/"),
        ("https://other.example?q", "https://other.example/?q"),
        ("http://other.example~x/", "http://other.example~x/"),
        ("a;sid=1", "http://example.com/docs/section/a;sid=1"),
        ("é?é", "http://example.com/docs/section/%C3%A9?%C3%A9"),
        ("\ud800", "http://example.com/docs/section/%EF%BF%BD"),
        ("\ud83d\ude00", "http://example.com/docs/section/%F0%9F%98%80"),
        ("mailto:me@example.com", None),
        ("tel:1", None),
        ("http://[bad", None),
    ],
)
def test_resolve(href: str, spelling: str | None) -> None:
    found = CANON.resolver(BASE).resolve(href)
    assert (found and found.spelling) == spelling


def test_climbing_past_an_empty_segment() -> None:
    found = CANON.resolver("http://h/a//b").resolve("../c")
    assert found is not None
    assert found.spelling == "http://h/a/c"


def test_resolver_without_usable_base_takes_absolute_links_only() -> None:
    resolver = CANON.resolver("data:text/html,x")
    found = resolver.resolve("http://h/a")
    assert found is not None
    assert found.spelling == "http://h/a"
    assert resolver.resolve("/a") is None
    assert resolver.resolve("") is None


@pytest.mark.parametrize(
    ("encoding", "spelling"),
    [
        (None, "http://h/%C3%A9?q=%C3%A9&%E2%82%AC"),
        ("utf-8", "http://h/%C3%A9?q=%C3%A9&%E2%82%AC"),
        ("utf-16", "http://h/%C3%A9?q=%C3%A9&%E2%82%AC"),
        ("no-such-codec", "http://h/%C3%A9?q=%C3%A9&%E2%82%AC"),
        ("iso-8859-1", "http://h/%C3%A9?q=%E9&%26%238364%3B"),
        ("cp1252", "http://h/%C3%A9?q=%E9&%80"),
        ("iso2022_jp", "http://h/%C3%A9?q=%26%23233%3B&%26%238364%3B"),
        ("euc_kr", "http://h/%C3%A9?q=%26%23233%3B&%A2%E6"),
    ],
)
def test_query_text_is_bytes_of_the_pages_encoding(encoding: str | None, spelling: str) -> None:
    found = CANON.resolver("http://h/", encoding).resolve("é?q=é&€#é")
    assert found is not None
    assert found.spelling == spelling


def test_no_tracking_parameters() -> None:
    found = Canonicalizer(()).parse("http://h/a;sid=1?utm_source=2")
    assert found is not None
    assert found.canonical == "http://h/a;sid=1?utm_source=2"


def test_fingerprint_is_unsigned_64_bit_and_stays_what_it_is() -> None:
    # A state directory holds these: another value here needs another RULES_VERSION.
    assert fingerprint("http://example.com") == 7573475120860118072
    assert all(0 <= fingerprint(str(n)) < 2**64 for n in range(100))
    assert len({fingerprint(str(n)) for n in range(10_000)}) == 10_000


def test_rules_id_depends_on_names_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    one = rules_id(["sid", "utm_*"])
    assert one == rules_id(["UTM_*", "sid", "sid"]) == Canonicalizer(["sid", "utm_*"]).rules_id
    assert one != rules_id(["sid"])
    assert re.fullmatch(r"[0-9]+-[0-9a-f]{12}", one)
    monkeypatch.setattr(urls, "RULES_VERSION", urls.RULES_VERSION + 1)
    assert rules_id(["sid", "utm_*"]) != one


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h/a@b", "http://h/a@b"),
        ("http://me:secret@h/a@b?c@d", "http://h/a@b?c@d"),
        ("HTTP://me:se@cret@h/", "HTTP://h/"),
        ("https:me:secret@h/", "https:h/"),
        ("http:\\\\me:secret@h/", "http:\\\\h/"),
        (" http://me:secret@h/", " http://h/"),
        ("//me:secret@h/", "//h/"),
        ("ftp://me:secret@h/", "ftp://h/"),
        ("mailto:me@example.com", "mailto:me@example.com"),
        ("http://h/\x1b[31m\r\n\u202e\ud800", "http://h/\\x1b[31m\\r\\n\\u202e\\ud800"),
        ("http://h/é", "http://h/é"),
    ],
)
def test_redact(url: str, expected: str) -> None:
    assert redact(url) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Bücher.example", "xn--bcher-kva.example"), ("EXAMPLE.com.", "example.com"), ("a b", None)],
)
def test_to_ascii(name: str, expected: str | None) -> None:
    assert to_ascii(name) == expected


def test_remembered_authorities_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_MAX_AUTHORITIES", 8)
    canon = Canonicalizer(())
    for number in range(100):
        found = canon.parse(f"http://h{number}/")
        assert found is not None
        assert found.host == f"h{number}"
        assert len(canon._authorities) <= 8
    long = canon.parse("http://" + "a" * 300 + "/")
    assert long is not None
    assert all(len(text) < 300 for text in canon._authorities)


def test_plain_links_do_not_reach_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each call into it gives up the interpreter lock, and costs several times a plain link.
    resolver = CANON.resolver(BASE)
    resolver.resolve("http://other.example/")

    def reached(url: str, base: str | None) -> str | None:
        raise AssertionError(f"{url} took the slow way")

    monkeypatch.setattr(urls, "_whatwg", reached)
    for href in [
        "/a/b.html",
        "c.html",
        "../d/",
        "./e",
        "",
        "#f",
        "?page=2&sort=up",
        "/g?h[]=1#i",
        "/%D0%A1",
        "http://example.com/j",
        "http://other.example/k",
        "//other.example/l",
    ]:
        assert resolver.resolve(href) is not None


def test_one_canonicalizer_serves_many_threads() -> None:
    canon = Canonicalizer(TRACKING)
    resolver = canon.resolver(BASE)
    wrong: list[int] = []

    def work() -> None:
        for number in range(300):
            found = resolver.resolve(f"http://h{number % 50}./a?b=1&a={number}")
            if found is None or found.canonical != f"http://h{number % 50}/a?a={number}&b=1":
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not wrong


# Properties. Text is drawn from what makes URLs interesting, so that most examples bite.

# fmt: off
PIECES = st.sampled_from([
    "http:", "https:", "mailto:", "//", "/", "\\", "?", "#", "&", "=", ";", ":", "@", ".", "..",
    "./", "../", "%2e", "%2E", "%41", "%7e", "%c3", "%C3%A9", "%", "%4", "%zz", "a", "B", "+",
    "example.com", "example.com.", "h..", "[::1]", "127.1", "0x7f", "xn--", "é", "ß", "ﬀ", "%20",
    "[", "]", "|", "^", "`", "{", "}", "'", '"', "<", ">", "!", "~", "utm_source", "sid=1",
    ";sid=1", "jsessionid", ":80", ":443", ":8080", ",", "$", "(", ")", "*", "-", "_",
    " ", "\t", "\n", "\0", "\x7f", "\ud800", "\ude00", "\u202e", "\ufeff",
])
# fmt: on
TEXT = st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join)
HREFS = TEXT | TEXT.map("http://example.com/".__add__) | TEXT.map("https://".__add__)
BASES = st.sampled_from(
    [
        BASE,
        "http://h",
        "https://u:p@h.:8443/a//b/../c;sid=1/d%2ee/?q#f",
        "http://h/.a/b[1]/'x/%zz/",
        "http://[::1]/a/",
        "mailto:x",
    ]
) | TEXT.map("http://h/".__add__)
CHECKED = settings(max_examples=200, deadline=None)


@CHECKED
@given(HREFS)
def test_canonical_is_a_fixed_point(url: str) -> None:
    found = CANON.parse(url)
    if found is None:
        return
    again = CANON.parse(found.canonical)
    assert again is not None
    assert again.canonical == again.spelling == found.canonical
    assert (again.key, again.host, again.origin) == (found.key, found.host, found.origin)


@CHECKED
@given(HREFS)
def test_spelling_means_the_same(url: str) -> None:
    found = CANON.parse(url)
    if found is None:
        return
    assert CANON.parse(found.spelling) == found
    assert found.spelling.isascii()
    assert "#" not in found.spelling
    assert "@" not in found.origin


@CHECKED
@given(BASES, HREFS)
@example("http://h/a", "http://example.com~b/")
@example("http://h/a", "?")
def test_fast_way_equals_slow_way(base: str, href: str) -> None:
    resolver = CANON.resolver(base)
    assert resolver.resolve(href) == resolver._resolve_any(href)


PLAIN = st.text("abAB019._~-!$&()*+,:=@/%?;#[]|", max_size=16)


@CHECKED
@given(BASES, PLAIN, st.sampled_from(["", "/", "../", "./", "//", "http://h", "?"]))
def test_fast_way_equals_slow_way_on_plain_links(base: str, href: str, head: str) -> None:
    resolver = CANON.resolver(base)
    assert resolver.resolve(head + href) == resolver._resolve_any(head + href)


@CHECKED
@given(st.text(), st.text(), st.sampled_from([None, "gbk", "iso2022_jp", "hz", "idna", "x\0"]))
@example("http://" + "a" * 65536, "b" * 65536, None)
@example("http://h/" + "../" * 20000, "%" * 65536, None)
@example("http://h/" + "[" * 65536, "?" + "&" * 65536, "gbk")
@example("http://h/", "../" * 20000, None)
@example("http://h/", "/" * 65536, None)
def test_never_raises(base: str, href: str, encoding: str | None) -> None:
    CANON.parse(base)
    CANON.parse(href)
    found = CANON.resolver(base, encoding).resolve(href)
    if found is not None:
        fingerprint(found.key)
    redact(href)
    fingerprint(href)
    to_ascii(href)


def test_resolver_is_only_what_its_parts_say() -> None:
    base = CANON.parse(BASE)
    assert Resolver(CANON, base, None).resolve("x") == CANON.resolver(BASE).resolve("x")
