"""Sitemaps and feeds: what is read of whole, hostile and broken ones, in pieces of any size."""

from __future__ import annotations

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncrawl.parse.gunzip import Gunzip
from syncrawl.parse.lastmod import instant
from syncrawl.parse.sitemap import Alternate, Entry, SitemapReader

# Each takes milliseconds; the bound is for a machine that is busy otherwise.
HOSTILE_SECONDS = 2.0
FLAT_BYTES = 6 << 20

URLSET = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'


def urlset(*locs: str) -> bytes:
    return (URLSET + "".join(f"<url><loc>{loc}</loc></url>" for loc in locs) + "</urlset>").encode()


def read(
    data: bytes, step: int = 1 << 16, *, complete: bool = True, content_type: str = ""
) -> tuple[SitemapReader, list[Entry]]:
    reader = SitemapReader(content_type=content_type)
    pieces = (data[at : at + step] for at in range(0, len(data), step))
    return reader, list(reader.read(pieces, complete=complete))


def locs(data: bytes) -> list[str]:
    return [entry.loc for entry in read(data)[1]]


FULL = f"""<?xml version="1.0" encoding="UTF-8"?>
{URLSET}
<url><loc>
  http://h/a?b=1&amp;c=2 </loc><lastmod>2024-02-29T12:00:00+02:00</lastmod>
 <changefreq> Daily</changefreq><priority>0.8</priority>
 <xhtml:link xmlns:xhtml="http://www.w3.org/1999/xhtml" rel="alternate" hreflang="de" href="/de"/>
</url>
<url><loc>http://h/b</loc><priority>7</priority><changefreq>often</changefreq><lastmod>x</lastmod>
 <image:image xmlns:image="i"><image:loc>http://h/i.png</image:loc></image:image></url>
</urlset>""".encode()
FULL_ENTRIES = [
    Entry(
        "http://h/a?b=1&c=2",
        datetime(2024, 2, 29, 10, tzinfo=UTC),
        0.8,
        "daily",
        (Alternate("de", "/de"),),
    ),
    Entry("http://h/b"),
]


def test_all_of_an_entry() -> None:
    reader, entries = read(FULL)
    assert entries == FULL_ENTRIES
    assert (reader.kind, reader.problem, reader.entries) == ("urlset", "", 2)
    assert reader.decoded_bytes == len(FULL)


@pytest.mark.parametrize(
    ("document", "kind", "expected"),
    [
        ("<urlset xmlns:q='n'><q:url><q:loc>u</q:loc></q:url></urlset>", "urlset", ["u"]),
        ("<q:urlset><q:url><q:loc>u</q:loc></q:url></q:urlset>", "urlset", ["u"]),
        ("<URLSET><Url><LOC>u</LOC></Url></URLSET>", "urlset", ["u"]),
        ("<sitemapindex><sitemap><loc>u</loc></sitemap></sitemapindex>", "sitemapindex", ["u"]),
        ("<urlset><url><loc>a<b>b</b>c</loc></url></urlset>", "urlset", ["abc"]),
        ("<urlset><url><loc/></url><url/><url><loc> </loc></url></urlset>", "urlset", []),
        ("<urlset><loc>outside</loc></urlset>", "urlset", []),
        ("<urlset></urlset>", "urlset", []),
        ("<feed><entry><link rel='self' href='s'/><link href='a'/></entry></feed>", "atom", ["a"]),
        ("<feed><entry><link rel='self' href='s'/></entry></feed>", "atom", []),
        ("<rss><channel><item><guid>5</guid></item></channel></rss>", "rss", []),
        (
            "<rss xmlns:a='n'><channel><item><a:link rel='alternate' href='u'/></item>"
            "</channel></rss>",
            "rss",
            ["u"],
        ),
        ("<html><body><a href='u'>u</a></body></html>", None, []),
        ("", None, []),
        (" \n ", None, []),
        ("<", None, []),
        ("<!-- only -->", None, []),
        ("http://h/a\r\nhttp://h/b\rHTTPS://h/c d\nhttps://h/d", "text", "a b d"),
    ],
)
def test_kinds_and_names(document: str, kind: str | None, expected: list[str] | str) -> None:
    reader, entries = read(document.encode())
    if isinstance(expected, str):
        expected = [f"{'https' if name == 'd' else 'http'}://h/{name}" for name in expected.split()]
    assert (reader.kind, [entry.loc for entry in entries]) == (kind, expected)
    assert bool(reader.problem) == (kind is None)


def test_an_entry_that_is_not_closed_ends_where_the_next_begins() -> None:
    reader, entries = read(b"<urlset><url><loc>a</loc><url><loc>b</loc></url></urlset>")
    assert [entry.loc for entry in entries] == ["a", "b"]
    assert reader.problem == "the XML is broken: ERR_TAG_NAME_MISMATCH in line 1"


def test_an_ampersand_that_is_not_escaped_is_one() -> None:
    reader, entries = read(urlset("http://h/?a=1&b=2&amp;c=&#51;"))
    assert [entry.loc for entry in entries] == ["http://h/?a=1&b=2&c=3"]
    assert reader.problem == "an ampersand is not escaped"
    assert locs(urlset("http://h/<![CDATA[?a&b&amp;c]]>&amp;d")) == ["http://h/?a&b&amp;c&d"]


ENTITY = "<!ENTITY e{0} '" + "&e{1};" * 10 + "'>"
BOMBS = {
    "exponential": "<!ENTITY e0 'lol'>" + "".join(ENTITY.format(n, n - 1) for n in range(1, 10)),
    "quadratic": f"<!ENTITY e9 '{'x' * 100_000}'>",
    "external": "<!ENTITY e9 SYSTEM 'file:///etc/passwd'>",
    "parameter": "<!ENTITY % a 'x'>"
    + "".join(
        f"<!ENTITY % p{n} '{f'%p{n - 1};' * 10 if n else '&#37;a;'}'>%p{n};" for n in range(9)
    )
    + "<!ENTITY e9 '%p8;'>",
    "of itself": "<!ENTITY e9 '&e9;'>",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("where", ["text", "attribute"])
def test_entities_of_the_document_come_to_nothing(name: str, where: str) -> None:
    content = "<loc>http://h/&e9;</loc>" + "<loc>http://h/&e9;</loc>" * 2_000
    if where == "attribute":
        content = '<loc>http://h/</loc><link rel="alternate" hreflang="x" href="http://h/&e9;"/>'
    document = f"<!DOCTYPE urlset [{BOMBS[name]}]>{URLSET}<url>{content}</url></urlset>".encode()
    tracemalloc.start()
    started = time.process_time()
    try:
        _, entries = read(document)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < HOSTILE_SECONDS
    assert peak < FLAT_BYTES
    assert {entry.loc for entry in entries} <= {"http://h/"}
    assert {other.href for entry in entries for other in entry.alternates} <= {"http://h/"}
    if name != "parameter":
        assert entries


def test_gzip_is_known_by_its_bytes_twice_at_most() -> None:
    plain = urlset("http://h/1", "http://h/2")
    once, twice = gzip.compress(plain), gzip.compress(gzip.compress(plain))
    for data in (plain, once, twice, once + b"\0\0\0", once + b"\x1f\x8btail"):
        assert locs(data) == ["http://h/1", "http://h/2"]
    halves = gzip.compress(plain[:40]) + gzip.compress(plain[40:])
    reader, entries = read(halves, 1)
    assert (len(entries), reader.problem) == (2, "")
    reader, entries = read(gzip.compress(twice))
    assert (reader.kind, reader.problem, entries) == (None, "compressed more than twice", [])


def test_gzip_that_is_cut_or_damaged_keeps_what_came_out() -> None:
    many = urlset(*(f"http://h/{zlib.crc32(bytes([n % 256, n // 256]))}" for n in range(5_000)))
    whole = locs(many)
    data = gzip.compress(many)
    damaged = data[: len(data) // 2] + b"\xff" * 64 + data[len(data) // 2 + 64 :]
    for broken in (data[: len(data) // 2], damaged):
        reader, entries = read(broken)
        assert 1_000 < len(entries) < 5_000
        found = [entry.loc for entry in entries]
        assert found[:1_000] == whole[:1_000]
        assert reader.problem == "the gzip data are damaged or cut short"
    reader, entries = read(data[:-8] + b"\0" * 8)  # a wrong check sum
    assert len(entries) == 5_000
    assert reader.problem == "the gzip data are damaged or cut short"


@pytest.mark.parametrize("times", [1, 2])
def test_a_bomb_is_cut_at_the_cap(times: int) -> None:
    data = urlset("http://h/1") + b" " * (60 << 20)
    for _ in range(times):
        data = gzip.compress(data)
    tracemalloc.start()
    try:
        reader, entries = read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [entry.loc for entry in entries] == ["http://h/1"]
    assert reader.problem == "more than 52428800 bytes"
    assert reader.decoded_bytes <= 50 << 20
    assert peak < FLAT_BYTES


def test_members_that_hold_nothing_end_at_the_cap() -> None:
    reader, entries = read(gzip.compress(gzip.compress(b"") * 100_000 + gzip.compress(b"x")))
    assert (reader.kind, entries) == (None, [])
    small = SitemapReader(max_bytes=1_000)
    assert list(small.read([gzip.compress(gzip.compress(b"") * 100_000)])) == []
    assert small.problem == "more than 1000 bytes"


def test_the_cap_on_locations() -> None:
    reader = SitemapReader(max_entries=3)
    taken = []

    def pieces() -> Iterator[bytes]:
        for n in range(1_000):
            taken.append(n)
            yield f"http://h/{n}\n".encode() * 10_000

    assert len(list(reader.read(pieces()))) == 3
    assert (reader.entries, reader.problem) == (3, "more than 3 locations")
    assert len(taken) == 1, "nothing is read that nobody would see"


def test_fifty_thousand_locations_in_flat_memory() -> None:
    def document(count: int) -> Iterator[bytes]:
        yield URLSET.encode()
        for n in range(count):
            yield (
                f"<url><loc>http://h/{n}</loc><lastmod>2024-01-01</lastmod>"
                f"<!-- {'c' * 60} --><x>{'t' * 60}</x></url>\n"
            ).encode()
        yield b"</urlset>"

    peaks = []
    for count in (5_000, 50_000):
        reader = SitemapReader()
        tracemalloc.start()
        try:
            assert sum(1 for _ in reader.read(document(count))) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert reader.problem == ""
    assert peaks[1] < peaks[0] + (1 << 20) < FLAT_BYTES


@pytest.mark.parametrize("document", [FULL, FULL.decode().encode("utf-16")])
def test_cut_at_every_byte_the_entries_are_a_prefix(document: bytes) -> None:
    whole = [entry.loc for entry in FULL_ENTRIES]
    for end in range(len(document)):
        reader, entries = read(document[:end], complete=False)
        found = [entry.loc for entry in entries]
        assert found == whole[: len(found)], end
        assert reader.problem, end


def test_cut_at_every_byte_of_a_text() -> None:
    document = b"http://h/1\nhttp://h/2\n"
    for end in range(len(document)):
        found = [entry.loc for entry in read(document[:end], complete=False)[1]]
        assert found == ["http://h/1", "http://h/2"][: document[:end].count(b"\n")]
    assert locs(b"http://h/1\nhttp://h/2") == ["http://h/1", "http://h/2"]
    stored = zlib.compressobj(0, wbits=31)  # not compressed, so that the cut is where it looks
    data = stored.compress(document) + stored.flush()
    assert [entry.loc for entry in read(data[:-10])[1]] == ["http://h/1"]


PARTS = [
    URLSET,
    "<url>",
    "</url>",
    "<loc>",
    "</loc>",
    "http://h/\u00e4?a=1&b=2",
    "&amp;",
    "&x;",
    "<![CDATA[",
    "]]>",
    "<!-- ",
    " -->",
    "<link rel='alternate' href='u'/>",
    "\0",
    "</urlset>",
    "<",
    ">",
    "\n",
    "http://h/",
]


@settings(deadline=None, max_examples=150)
@given(
    parts=st.lists(st.sampled_from(PARTS), max_size=30),
    whole=st.booleans(),
    zipped=st.integers(0, 2),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_the_size_of_the_pieces_does_not_show(
    parts: list[str], whole: bool, zipped: int, sizes: list[int]
) -> None:
    data = FULL + "".join(parts).encode() if whole else "".join([URLSET, *parts]).encode()
    for _ in range(zipped):
        data = gzip.compress(data)
    at_once, expected = read(data)
    pieces, at = [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    reader = SitemapReader()
    assert list(reader.read(pieces)) == expected
    assert (reader.kind, reader.problem) == (at_once.kind, at_once.problem)


def test_pieces_of_a_document_larger_than_a_block() -> None:
    entry = "<url><loc>http://h/?a&amp;b<![CDATA[&c]]>&d</loc><lastmod>2024</lastmod></url>\n"
    data = (URLSET + entry * 3_000).encode()
    at_once, expected = read(data, len(data))
    assert {found.loc for found in expected} == {"http://h/?a&b&c&d"}
    assert len(expected) == 3_000
    for step in (7, 4_096, 65_537):
        assert read(data, step)[1] == expected
    assert at_once.problem == "an ampersand is not escaped"


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([b"", b"<", b"\x1f\x8b\x08", URLSET.encode()]))
def test_no_bytes_raise(data: bytes, start: bytes) -> None:
    reader, entries = read(start + data, 13)
    assert len(entries) == reader.entries


@pytest.mark.parametrize(
    "document",
    [
        URLSET + "<a>" * 200_000,
        URLSET + "</a>" * 200_000,
        URLSET + "&#0;" * 200_000,
        URLSET + "<url>" * 200_000,
        URLSET + "<url><loc>" + "u" * 11_000_000 + "</loc></url><url><loc>v</loc></url></urlset>",
        URLSET + "<url>" + "<link rel='alternate' href='u'/>" * 100_000 + "</url>",
        URLSET + "<url>" + "<loc>u</loc>" * 100_000 + "</url>",
        URLSET + "".join(f"<n{n}/>" for n in range(100_000)),
        URLSET + "<url " + "".join(f"a{n}='' " for n in range(50_000)) + "/>",
        "<" * 1_000_000,
        "x" * 5_000_000,
        URLSET + "<!--" + "-" * 5_000_000,
    ],
    ids=range(12),
)
def test_hostile_documents_end_in_bounded_time_and_memory(document: str) -> None:
    data = document.encode()
    tracemalloc.start()
    started = time.process_time()
    try:
        reader = SitemapReader()
        pieces = (data[at : at + 65_536] for at in range(0, len(data), 65_536))
        count = sum(1 for _ in reader.read(pieces))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.problem
    assert count <= 50_000
    assert time.process_time() - started < 5 * HOSTILE_SECONDS  # allocations are traced
    assert peak < 16 << 20


def test_a_location_is_whole_or_dropped() -> None:
    long = "http://h/" + "x" * 60_000
    reader, entries = read(urlset(long, long * 2, "http://h/1"))
    assert [entry.loc for entry in entries] == [long, "http://h/1"]
    assert reader.problem == "a location is no text, or too long"
    assert locs(f"{long}\n{long * 2}\nhttp://h/1".encode()) == [long, "http://h/1"]
    for broken in (b"http://h/\0x", b"http://h/\xff"):
        reader, entries = read(urlset("http://h/1").replace(b"http://h/1", broken))
        assert (entries, reader.problem) == ([], "a location is no text, or too long")


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings(codec: str) -> None:
    document = "<?xml version='1.0' encoding='UTF-16'?>" + urlset("http://h/\u00e4").decode()
    assert locs(document.encode(codec)) == ["http://h/\u00e4"]


def test_encodings_that_are_declared() -> None:
    body = urlset("http://h/\u00e4").decode().encode("latin-1")
    declared = b"<?xml version='1.0' encoding='ISO-8859-1'?>" + body
    assert locs(declared) == ["http://h/\u00e4"]
    _, entries = read(body, content_type="text/xml; charset=iso-8859-1")
    assert [entry.loc for entry in entries] == ["http://h/\u00e4"]
    assert locs(b"<?xml version='1.0' encoding='nonsense'?>" + urlset("u")) == ["u"]


def test_problems_do_not_quote_the_document() -> None:
    reader, _ = read(URLSET.encode() + b"<secret\x1b[31m></other></urlset>")
    assert reader.problem
    assert "secret" not in reader.problem
    assert reader.problem.isprintable()


def test_gunzip_passes_short_and_plain_data_through() -> None:
    for data in (b"", b"\x1f", b"ab", b"\x1fab"):
        stage = Gunzip(100)
        out = [piece for n in range(len(data)) for piece in stage.feed(data[n : n + 1])]
        assert b"".join([*out, *stage.close()]) == data
        assert stage.intact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024", "2024-01-01T00:00:00"),
        ("2024-02-30", None),
        ("2024-13", None),
        ("0000-01-01", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("2024-01-01T10:00", "2024-01-01T10:00:00"),
        ("2024-01-01 10:00:00Z", "2024-01-01T10:00:00"),
        ("2024-01-01T10:00:00+0130", "2024-01-01T08:30:00"),
        ("2024-01-01T10:00:00.1234567Z", "2024-01-01T10:00:00.123456"),
        ("2024-01-01T24:00:00Z", None),
        ("2024-01-01T10:00:00+25:00", None),
        ("1 Jan 99 00:00 EST", "1999-01-01T05:00:00"),
        ("Mon, 01 January 2024 00:00:00 GMT", "2024-01-01T00:00:00"),
        ("Mon, 01 Jan 2024 00:00:00 XYZ", None),
        ("Mon, 01 Foo 2024 00:00:00 GMT", None),
        ("\u0662\u0660\u0662\u0664", None),
        ("", None),
        ("2" * 100_000, None),
    ],
)
def test_instants(text: str, expected: str | None) -> None:
    found = instant(text)
    assert (found and found.replace(tzinfo=None).isoformat()) == expected
