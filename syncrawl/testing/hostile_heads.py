"""Hostile heads, statuses and content codings.

Any thread; data. Imports nothing of the package outside `testing`, and brotli and
zstandard only where they are installed: the bombs made with them are left out elsewhere.
"""

from __future__ import annotations

import zlib
from typing import Any

from syncrawl.testing.hostile_kit import (
    DONE,
    HTML_FIELD,
    OK,
    PAGE,
    Behaviour,
    bomb_blocks,
    coded,
    for_ever,
    gzip_bomb,
    gzipped,
    head,
    raw,
    sized,
)
from syncrawl.testing.site_host import Reply


def heads() -> list[Behaviour]:
    """Status lines and fields that are none, or too many."""
    broken = ("protocol",)
    return [
        Behaviour(
            name="garbage",
            does="answers with rubbish",
            pages={"/": raw(b"\x00\x01\x02 rubbish \xff\r\n\r\n")},
            ends=broken,
        ),
        Behaviour(
            name="no-number",
            does="answers HTTP/1.1 OK",
            pages={"/": raw(sized(PAGE, HTML_FIELD, status="HTTP/1.1 OK"))},
            ends=broken,
        ),
        Behaviour(
            name="status-99",
            does="answers with status 99",
            pages={"/": raw(sized(PAGE, HTML_FIELD, status="HTTP/1.1 99 Low"))},
            ends=broken,
        ),
        Behaviour(
            name="status-1000",
            does="answers with status 1000",
            pages={"/": raw(sized(PAGE, HTML_FIELD, status="HTTP/1.1 1000 High"))},
            ends=broken,
        ),
        Behaviour(
            name="http-0.9",
            does="sends a page without a head",
            pages={"/": raw(PAGE)},
            ends=broken,
        ),
        Behaviour(
            name="endless-head",
            does="sends fields for ever",
            pages={"/": for_ever(f"{OK}\r\n".encode(), b"X-More: y\r\n" * 1000)},
            ends=broken,
        ),
        Behaviour(
            name="endless-line",
            does="sends a status line without an end",
            pages={"/": for_ever(b"HTTP/1.1 200 ", b"O" * 65536)},
            ends=broken,
        ),
        Behaviour(
            name="large-field",
            does="sends a field of a megabyte",
            pages={"/": raw(sized(PAGE, HTML_FIELD, "X-Large: " + "y" * (1 << 20)))},
            ends=broken,
        ),
        Behaviour(
            name="many-fields",
            does="sends 20,000 fields",
            pages={"/": raw(sized(PAGE, *[f"X-{n}: y" for n in range(20_000)], HTML_FIELD))},
            ends=broken,
        ),
        Behaviour(
            name="blank-in-name",
            does="has a field name with a blank in it",
            pages={"/": raw(sized(PAGE, "My Field: none", HTML_FIELD), "keep")},
        ),
        Behaviour(
            name="blank-before-colon",
            does="has a blank before the colon",
            pages={"/": raw(sized(PAGE, "X-A : 1", HTML_FIELD), "keep")},
        ),
        Behaviour(
            name="blank-first",
            does="begins its first field line with a blank",
            pages={"/": raw(sized(PAGE, " X-A: 1", HTML_FIELD), "keep")},
        ),
        Behaviour(
            name="bytes-in-field",
            does="has bytes in a field that are no ASCII",
            pages={"/": raw(sized(PAGE, "Content-Disposition: inline; filename=\xc3\xa9\xff"))},
        ),
        Behaviour(
            name="bare-newlines",
            does="ends its lines with a bare newline",
            pages={"/": raw(sized(PAGE, HTML_FIELD).replace(b"\r\n", b"\n"))},
        ),
        Behaviour(
            name="cookies",
            does="sets a cookie more with each page",
            pages={
                f"/{'abcdefgh'[n] if n else ''}": Reply(
                    f'<a href="/{"abcdefgh"[n + 1]}">next</a>'.encode() if n < 6 else PAGE,
                    headers=tuple(("Set-Cookie", f"c{i}={'v' * 4000}") for i in range(n + 1)),
                )
                for n in range(7)
            },
            others={"/g": (DONE,)},
            requests=9,
        ),
    ]


def statuses() -> list[Behaviour]:
    """Interim answers, and bodies where there can be none."""
    interim = head("Link: </a.css>; rel=preload", status="HTTP/1.1 103 Early Hints")
    return [
        Behaviour(
            name="interim",
            does="sends 103 before its answer, and more pages on the connection",
            pages={
                "/": raw(interim + sized(b'<a href="/b">b</a>', HTML_FIELD), "keep"),
                "/b": raw(interim * 3 + sized(PAGE, HTML_FIELD), "keep"),
            },
            others={"/b": (DONE,)},
        ),
        Behaviour(
            name="interim-flood",
            does="sends 103 for ever, as fast as it can",
            pages={"/": for_ever(b"", interim * 100)},
            ends=("protocol",),
        ),
        Behaviour(
            name="body-of-204",
            does="sends a body with 204",
            pages={"/": raw(sized(PAGE, HTML_FIELD, status="HTTP/1.1 204 No Content"), "keep")},
        ),
        Behaviour(
            name="body-of-304",
            does="sends 304 unasked, with a body",
            pages={"/": raw(sized(PAGE, HTML_FIELD, status="HTTP/1.1 304 Not Modified"), "keep")},
        ),
        Behaviour(
            name="switches",
            does="answers 101 to a plain request",
            pages={"/": raw(head("Upgrade: h2c", status="HTTP/1.1 101 Switching Protocols"))},
            ends=("protocol", "connection"),
        ),
        Behaviour(
            name="bomb-of-404",
            does="sends a bomb with its 404",
            pages={
                "/": raw(
                    sized(gzip_bomb(), "Content-Encoding: gzip", status="HTTP/1.1 404 Not Found")
                )
            },
            ends=("4xx",),
        ),
    ]


def _packed(packer: Any, method: str) -> bytes:
    """A bomb by a packer that takes blocks."""
    pack = getattr(packer, method)
    parts = [pack(block) for block in bomb_blocks()]
    last = packer.finish() if hasattr(packer, "finish") else packer.flush()
    return b"".join([*parts, last])


def codings() -> list[Behaviour]:
    """Bombs, and bodies that are not in the coding they are said to be in."""
    packed = gzipped(PAGE * 20)
    bomb = gzip_bomb()
    found = [
        Behaviour(
            name="gzip-bomb",
            does="sends 200 KB that are 200 MB",
            pages={"/": coded(bomb, "gzip")},
            ends=("too_large",),
        ),
        Behaviour(
            name="gzip-in-gzip-bomb",
            does="sends a bomb packed twice",
            pages={"/": coded(gzipped(bomb), "gzip", "gzip")},
            ends=("too_large",),
        ),
        Behaviour(
            name="many-codings",
            does="says gzip a hundred times",
            pages={"/": coded(packed, *["gzip"] * 100)},
            ends=("decode", DONE),
        ),
        Behaviour(
            name="gzip-cut",
            does="cuts its gzip stream in half",
            pages={"/": coded(packed[: len(packed) // 2], "gzip")},
            ends=(DONE, "decode"),
        ),
        Behaviour(
            name="gzip-twice",
            does="packs twice, and says so",
            pages={"/": coded(gzipped(packed), "gzip", "gzip")},
        ),
        Behaviour(
            name="gzip-tail",
            does="sends rubbish after the end of the gzip stream",
            pages={"/": coded(packed + b"tail", "gzip")},
        ),
        Behaviour(
            name="deflate-tail",
            does="sends rubbish after the end of the deflate stream",
            pages={"/": coded(zlib.compress(PAGE * 20) + b"garbage", "deflate")},
        ),
        Behaviour(
            name="deflate-raw",
            does="sends deflate without its wrapping",
            pages={"/": coded(zlib.compress(PAGE * 20)[2:-4], "deflate")},
        ),
        Behaviour(
            name="gzip-lie",
            does="says gzip and sends text",
            pages={"/": coded(PAGE, "gzip")},
            ends=("decode", DONE),
        ),
        Behaviour(
            name="coding-unknown",
            does="names a coding that there is not",
            pages={"/": coded(PAGE, "rot13")},
            ends=("decode", DONE),
        ),
        Behaviour(
            name="coding-of-nothing",
            does="says gzip and sends no byte",
            pages={"/": coded(b"", "gzip")},
        ),
    ]
    try:
        import brotli

        found.append(
            Behaviour(
                name="br-bomb",
                does="sends some bytes of brotli that are 200 MB",
                pages={"/": coded(_packed(brotli.Compressor(quality=1), "process"), "br")},
                ends=("too_large",),
            )
        )
    except ImportError:
        pass  # nobody who lacks it asks for it
    try:
        import zstandard

        found.append(
            Behaviour(
                name="zstd-bomb",
                does="sends some bytes of zstd that are 200 MB",
                pages={
                    "/": coded(
                        _packed(zstandard.ZstdCompressor().compressobj(), "compress"), "zstd"
                    )
                },
                ends=("too_large",),
            )
        )
    except ImportError:
        pass  # nobody who lacks it asks for it
    return found
