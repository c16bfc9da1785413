"""Hostile answers on the wire: time, lengths, framing.

Any thread; data. Imports nothing of the package outside `testing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from syncrawl.testing.hostile_kit import (
    DONE,
    HTML_FIELD,
    NEVER_READ,
    PAGE,
    Behaviour,
    for_ever,
    head,
    raw,
    sized,
    streamed,
)
from syncrawl.testing.site_host import Reply

_CHUNKED = head(HTML_FIELD, "Transfer-Encoding: chunked")
_LINE = 100 << 20


def slow(pause: float) -> list[Behaviour]:
    """Servers that take for ever, a byte each `pause` seconds."""

    def drip(data: bytes) -> Iterator[bytes | float]:
        for place in range(len(data)):
            yield data[place : place + 1]
            yield pause

    def after_a_part() -> Iterator[bytes | float]:
        yield head(HTML_FIELD, "Content-Length: 5000") + PAGE

    slow_body = head(HTML_FIELD, f"Content-Length: {1 << 20}")
    return [
        Behaviour(
            name="drip-body",
            does="sends its body a byte at a time",
            pages={"/": streamed(lambda: iter([slow_body, *drip(PAGE * 40)]))},
            ends=("timeout",),
        ),
        Behaviour(
            name="drip-head",
            does="sends its head a byte at a time",
            pages={"/": streamed(lambda: drip(head("X-Slow: " + "y" * 5000)))},
            ends=("timeout",),
        ),
        Behaviour(
            name="drip-chunks",
            does="sends chunks of one byte",
            pages={"/": for_ever(_CHUNKED, b"1\r\nx\r\n", pause)},
            ends=("timeout",),
        ),
        Behaviour(
            name="drip-interim",
            does="sends 103 Early Hints for ever",
            pages={"/": for_ever(b"", head(status="HTTP/1.1 103 Early Hints"), pause)},
            ends=("timeout", "protocol"),
        ),
        Behaviour(
            name="silent",
            does="takes the request and never answers",
            pages={"/": Reply(PAGE, delay=math.inf)},
            ends=("timeout",),
        ),
        Behaviour(
            name="stalls",
            does="sends a part of its body and no more",
            pages={"/": streamed(after_a_part, "hold")},
            ends=("timeout",),
        ),
    ]


def _hundred_megabytes() -> Iterator[bytes | float]:
    yield head(HTML_FIELD) + b"<title>One line</title><p>"
    for _ in range(_LINE >> 16):
        yield b"x" * (1 << 16)


def bodies() -> list[Behaviour]:
    """Bodies of the wrong length, or without an end."""
    too_large = ("too_large",)
    return [
        Behaviour(
            name="endless-chunks",
            does="sends chunks for ever",
            pages={"/": for_ever(_CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n")},
            ends=too_large,
        ),
        Behaviour(
            name="endless-body",
            does="sends for ever, as a radio station does",
            pages={"/": for_ever(head("Content-Type: audio/mpeg"), b"\xff" * 65536)},
            ends=too_large,
        ),
        Behaviour(
            name="one-line",
            does="sends a line of 100 MB",
            pages={"/": streamed(_hundred_megabytes)},
            ends=too_large,
        ),
        Behaviour(
            name="says-huge",
            does="announces a gigabyte",
            pages={"/": raw(head(HTML_FIELD, f"Content-Length: {NEVER_READ}") + PAGE, "hold")},
            ends=too_large,
        ),
        Behaviour(
            name="too-short",
            does="announces more than it sends",
            pages={"/": raw(head(HTML_FIELD, "Content-Length: 5000") + PAGE)},
            ends=("incomplete",),
        ),
        Behaviour(
            name="too-long",
            does="sends more than it announces, and keeps the connection",
            pages={
                "/": raw(sized(b'<title>T</title><a href="/b">b</a>', HTML_FIELD) + PAGE, "keep"),
                "/b": PAGE,
            },
            others={"/b": (DONE,)},
        ),
        Behaviour(
            name="reset-in-body",
            does="resets the connection within its body",
            pages={"/": raw(head(HTML_FIELD, "Content-Length: 5000") + PAGE, "reset")},
            ends=("incomplete", "connection"),
        ),
        Behaviour(
            name="reset-at-once",
            does="resets the connection instead of answering",
            pages={"/": raw(b"", "reset")},
            ends=("connection",),
            requests=10,
        ),
        Behaviour(
            name="closes-at-once",
            does="closes the connection instead of answering",
            pages={"/": raw(b"")},
            ends=("connection",),
            requests=10,
        ),
        Behaviour(
            name="reset-on-reuse",
            does="resets a kept connection when it is used again",
            pages={
                "/": Reply(b'<a href="/b">b</a><a href="/c">c</a>', poisoned=True),
                "/b": Reply(PAGE, poisoned=True),
                "/c": Reply(PAGE, poisoned=True),
            },
            others={"/b": (DONE,), "/c": (DONE,)},
            requests=10,
        ),
        Behaviour(name="empty", does="has no body at all", pages={"/": b""}),
    ]


def framing() -> list[Behaviour]:
    """Chunks and lengths that are none (RFC 9112 sections 6 and 7)."""
    broken = ("protocol", "incomplete")

    def chunked(data: bytes) -> dict[str, Reply]:
        return {"/": raw(_CHUNKED + data)}

    def sized_as(value: str) -> dict[str, Reply]:
        return {"/": raw(head(HTML_FIELD, f"Content-Length: {value}") + PAGE)}

    return [
        Behaviour(
            name="no-chunks",
            does="says chunked and sends none",
            pages=chunked(b"HTTP/1.1 200 OK\r\n" + PAGE),
            ends=broken,
        ),
        Behaviour(
            name="hex-prefix",
            does="writes the size of a chunk as 0x5",
            pages=chunked(b"0x5\r\nhello\r\n0\r\n\r\n"),
            ends=broken,
        ),
        Behaviour(
            name="signed-chunk",
            does="writes the size of a chunk as -5",
            pages=chunked(b"-5\r\nhello\r\n0\r\n\r\n"),
            ends=broken,
        ),
        Behaviour(
            name="huge-chunk",
            does="announces a chunk of 2^64 bytes",
            pages=chunked(b"ffffffffffffffffff\r\nhello"),
            ends=(*broken, "too_large"),
        ),
        Behaviour(
            name="no-last-chunk",
            does="closes before the last chunk",
            pages=chunked(b"5\r\nhello\r\n"),
            ends=broken,
        ),
        Behaviour(
            name="endless-trailer",
            does="sends trailer fields for ever",
            pages={"/": for_ever(_CHUNKED + b"0\r\n", b"X-Trailer: y\r\n" * 1000)},
            ends=("protocol", "too_large", "timeout", DONE),
        ),
        Behaviour(
            name="endless-extension",
            does="sends a chunk extension for ever",
            pages={"/": for_ever(_CHUNKED + b"5;", b"x" * 65536)},
            ends=broken,
        ),
        Behaviour(name="length-suffix", does="says Content-Length: 350-", pages=sized_as("350-")),
        Behaviour(name="length-negative", does="says Content-Length: -10", pages=sized_as("-10")),
        Behaviour(
            name="two-lengths",
            does="states two lengths",
            pages={"/": raw(head("Content-Length: 5", "Content-Length: 53", HTML_FIELD) + PAGE)},
            ends=(DONE, "protocol", "incomplete"),
        ),
        Behaviour(
            name="length-and-chunks",
            does="states a length and sends chunks",
            pages={
                "/": raw(
                    head(HTML_FIELD, "Content-Length: 3", "Transfer-Encoding: chunked")
                    + b"5\r\nhello\r\n0\r\n\r\n"
                )
            },
        ),
    ]
