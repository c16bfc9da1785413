"""Encodings: what is declared, in which order it counts, and what is guessed."""

from __future__ import annotations

import codecs
import subprocess
import sys
import time

import pytest

from syncrawl.parse.detect import detect, is_utf8
from syncrawl.parse.encoding import codec_for, declared_encoding, decode, find_encoding
from syncrawl.parse.media import essence, is_markup, is_text

SLOW_MACHINE_SECONDS = 5.0

META = b'<meta charset="iso-8859-2">'


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"\xef\xbb\xbf" + META, "text/html; charset=koi8-r", "utf-8"),
        (b"\xff\xfeh\0", "text/html; charset=koi8-r", "utf-16le"),
        (b"\xff\xfe\0\0h\0\0\0", "", "utf-32le"),
        (META, "text/html; charset=koi8-r", "koi8-r"),
        (META, "text/html", "iso-8859-2"),
        (META, "", "iso-8859-2"),
        (META, "text/html; charset=nonsense", "iso-8859-2"),
        (META, "text/html; charset=utf-8,gbk", "iso-8859-2"),
        (META, "text/plain", None),
        (META, "application/json", None),
        (b"<p>nothing</p>", "text/html", None),
        (b"<?xml version='1.0' encoding='koi8-r'?><a/>", "application/xml", "koi8-r"),
        (b"<!--" + b"x" * 9000 + b"-->" + META, "text/html", "iso-8859-2"),
        (b"<!--" + b"x" * 20000 + b"-->" + META, "text/html", None),
        ("<p>".encode("utf-16le"), "text/html", "utf-16le"),
        ("<p>".encode("utf-16be"), "text/html", "utf-16be"),
        ("hi".encode("utf-16be"), "text/html; charset=utf-16", "utf-16be"),
        ("hi".encode("utf-16le"), "text/html; charset=utf-16", "utf-16le"),
        (b'<script charset="koi8-r"></script>', "text/html", None),
        (b'<meta name="charset" content="koi8-r"><p charset=koi8-r>', "text/html", None),
        (b"<!-->" + META, "text/html", "iso-8859-2"),
        (b"<!--->" + META + b"-->", "text/html", "iso-8859-2"),
        (b"<meta charset=iso-8859-2 charset=koi8-r>", "text/html", "iso-8859-2"),
        (b"<meta charset=bogus><meta charset=x-user-defined>", "text/html", "windows-1252"),
    ],
)
def test_the_strongest_declaration_counts(
    body: bytes, content_type: str, expected: str | None
) -> None:
    assert declared_encoding(body, content_type) == expected


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("latin1", "windows-1252"),
        ("Latin-1", "windows-1252"),
        (" UTF8 ", "utf-8"),
        ("gb2312", "gb18030"),
        ("shift_jis", "cp932"),
        ("euc-kr", "cp949"),
        ("big5", "big5hkscs"),
        ("iso-8859-8-i", "iso8859-8"),
        ("x-mac-cyrillic", "mac-cyrillic"),
        ("x-user-defined", "windows-1252"),
        ("utf-7", None),
        ("idna", None),
        ("rot13", None),
        ("hex", None),
        ("iso-2022-kr", None),
        ('utf-8"', None),
        ("", None),
        ("utf\0-8", None),
        ("å", None),
    ],
)
def test_labels(label: str, codec: str | None) -> None:
    assert codec_for(label) == codec
    if codec is not None:
        codecs.lookup(codec)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("windows-1252", "L'été dernier, nous avons dîné près du château, c'était très bon."),
        ("windows-1252", "Über die Straße gehen mit größter Mühe, schöne Grüße aus München."),
        ("windows-1250", "Příliš žluťoučký kůň úpěl ďábelské ódy, dnes je krásné počasí."),
        ("windows-1251", "Привет, как дела? Сегодня хорошая погода, мы идём гулять в парк."),
        ("koi8-r", "Привет, как дела? Сегодня хорошая погода, мы идём гулять в парк."),
        ("windows-1253", "Καλημέρα κόσμε, σήμερα είναι μια ωραία μέρα για περίπατο."),
        ("windows-1256", "مرحبا بالعالم، اليوم الطقس جميل ونحن ذاهبون للمشي في الحديقة."),
        ("cp932", "こんにちは世界。今日はいい天気ですね。散歩に行きましょう。"),
        ("gb18030", "你好，世界。今天天气很好，我们去公园散步吧。中文网页编码检测"),
        ("big5hkscs", "你好，世界。今天天氣很好，我們去公園散步吧。中文網頁編碼檢測"),
        ("cp949", "안녕하세요 세계. 오늘은 날씨가 좋습니다. 산책하러 갑시다."),
        ("utf-8", "Zażółć gęślą jaźń"),
    ],
)
def test_undeclared_text_is_guessed(encoding: str, text: str) -> None:
    body = b"<html><body><p class='x'>" + (text * 3).encode(encoding) + b"</p></body></html>"
    assert find_encoding(body, "text/html") == encoding


@pytest.mark.parametrize(
    "lone", [b"\xa9 <" * 50, b"\xa9 2020 \xa9 2021 \xa9 2022 \xa9 2023 \xa9 \xa9"]
)
def test_a_few_odd_bytes_do_not_make_a_page_japanese(lone: bytes) -> None:
    assert detect(b"<p>All rights reserved " + lone + b"</p>") == "windows-1252"


def test_detection_looks_at_a_bounded_part() -> None:
    started = time.thread_time()
    assert detect(b"a" * (8 << 20) + b"\xa9") == "windows-1252"
    assert detect(b"\xa9\xe9 <" * (2 << 20)) is not None
    assert time.thread_time() - started < SLOW_MACHINE_SECONDS


def test_declared_pages_never_load_the_detector() -> None:
    code = (
        "import sys; from syncrawl.parse.encoding import find_encoding as f;"
        "f(b'<p>\\xe9</p>', 'text/html; charset=latin1'); f('é'.encode(), 'text/html');"
        "assert 'charset_normalizer' not in sys.modules;"
        "f('Привет, как дела?'.encode('koi8-r'), 'text/html');"
        "assert 'charset_normalizer' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_utf8_is_checked_across_pieces() -> None:
    odd = b"a" + "é".encode() * 100_000
    assert is_utf8(odd)
    assert not is_utf8(odd[:-1])
    assert not is_utf8(odd + b"\xff")


@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [
        (b"\xef\xbb\xbfhi", "utf-8", "hi"),
        (b"\xff\xfeh\0i\0", "utf-16le", "hi"),
        (b"\xf0<b>x</b>", "utf-8", "\ufffd<b>x</b>"),
        (b"a\x80b\xff\x80", "gb18030", "a€b\ufffd€"),
        (b"\x81", "windows-1252", "\ufffd"),
        (b"caf\xc3\xa9", "no-such-codec", "café"),
    ],
)
def test_decoding_never_fails(body: bytes, encoding: str, text: str) -> None:
    assert decode(body, encoding) == text


@pytest.mark.parametrize("codec", ["cp932", "euc-jp", "gb18030", "big5hkscs", "cp949", "utf-8"])
def test_a_broken_character_eats_no_markup(codec: str) -> None:
    assert decode(b"\xe9<b>x</b>", codec).endswith("<b>x</b>")


@pytest.mark.parametrize(
    "head",
    [
        b"<meta " * 5000,
        b"<base " * 5000,
        b"<!--" * 8000,
        b"<a '" * 8000,
        b"<meta a=" * 5000,
        b"</" * 9000,
    ],
)
def test_the_prescan_is_linear(head: bytes) -> None:
    started = time.thread_time()
    for _ in range(20):
        declared_encoding(head + b"charset", "text/html")
    assert time.thread_time() - started < SLOW_MACHINE_SECONDS


@pytest.mark.parametrize(
    ("content_type", "body", "markup", "text"),
    [
        ("text/html; charset=x", b"\0\1", True, True),
        ("TEXT/HTML", b"", True, True),
        ("application/xhtml+xml", b"", True, True),
        ("application/rss+xml", b"", True, True),
        ("text/plain", b"<html>", False, True),
        ("application/json", b"{}", False, True),
        ("application/pdf", b"<html>", False, False),
        ("image/png", b"\x89PNG", False, False),
        ("", b"  <!DOCTYPE html><p>", True, True),
        ("", b"<a href=x>", True, True),
        ("", b"<abc>", False, True),
        ("", b"\xff\xfe" + "<html>".encode("utf-16le"), True, True),
        ("", b"just words", False, True),
        ("", b"GIF89a\0\1\2", False, False),
        ("nonsense", b"<html>", True, True),
        ("text/plain, text/html", b"", True, True),
    ],
)
def test_kinds_of_bodies(content_type: str, body: bytes, markup: bool, text: bool) -> None:
    assert is_markup(content_type, body) is markup
    assert is_text(content_type, body) is text


def test_essence_of_a_doubled_field() -> None:
    assert essence("text/html; charset=x") == "text/html"
    assert essence("text/plain, Text/HTML; q=1") == "text/html"
