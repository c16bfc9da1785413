"""What a crawl and a parse child say to each other, as bytes on two pipes.

Pure; used on parse threads and in the child. Imports msgspec and the parse stage's own
modules. To the child: one `Setup`, then pages. From it: `Ready` or `Failed` once, then one
`Done` or `Failed` a page. Nothing is pickled: neither side can make the other run code.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from syncrawl.api import Record
from syncrawl.parse.work import Outlink, ParserUnusable, Parts, Work, told

# To the child: bytes of the head (msgpack) and of the body that follow.
REQUEST: Final = struct.Struct(">II")
# From the child: bytes of the message (msgpack) that follow, and how many it may be.
REPLY: Final = struct.Struct(">I")
MOST_REPLY: Final = 512 * 1024 * 1024

# What the shared byte says: the page is not begun; begun, and in no parser; else 1 + its index.
IDLE: Final = 0
BEGUN: Final = 255


class Setup(msgspec.Struct, array_like=True):
    """The parsers, in order, each with its options, and the bounds of a page.

    Dates and times among the options arrive as text: msgpack has none without a time zone.
    """

    parsers: list[tuple[str, dict[str, Any]]]
    max_items: int
    deadline: float


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """The parsers are loaded and open."""


class Failed(msgspec.Struct, array_like=True, tag="failed"):
    """A parser raised, or could not be loaded: what, in words, and which (or "")."""

    error: str
    parser: str


class Done(msgspec.Struct, array_like=True, tag="done"):
    """`Work`; the records as JSON, which is all that they have to survive."""

    records: bytes
    links: list[Outlink]
    body_hash: int
    length: int
    encoding: str | None
    base: str


Reply = Ready | Failed | Done

_LONGEST_ERROR = 2_000

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_records = msgspec.json.Decoder(list[dict[str, Any]]).decode

decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_parts = msgspec.msgpack.Decoder(Parts).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def encode_request(head: Setup | Parts, body: bytes = b"") -> bytes:
    """What goes before `body` on the pipe."""
    packed = _encode(head)
    return REQUEST.pack(len(packed), len(body)) + packed


def encode_reply(reply: Reply) -> bytes:
    """A whole frame. ValueError where it would be too large for one."""
    packed = _encode(reply)
    if len(packed) > MOST_REPLY:
        raise ValueError(f"the page's records and links take {len(packed)} bytes")
    return REPLY.pack(len(packed)) + packed


def failed(error: BaseException, parser: str = "") -> Failed:
    """What becomes of an exception."""
    if isinstance(error, ParserUnusable):
        return Failed(_writable(error.message[:_LONGEST_ERROR]), error.parser)
    return Failed(_writable(told(error)[:_LONGEST_ERROR]), parser)


def done_of(work: Work) -> Done:
    """`work` as it travels; sound, as `collect` checked it, but for URLs no text encoding has."""
    links = [Outlink(link.url, link.priority, link.label, link.nofollow) for link in work.links]
    base = work.base
    try:
        _encode((base, links))
    except UnicodeEncodeError:
        base = _writable(base)
        for link in links:
            link.url = _writable(link.url)
    return Done(_json(work.records), links, work.body_hash, work.length, work.encoding, base)


def work_of(done: Done) -> Work:
    """The counterpart of `done_of`. Raises msgspec.DecodeError."""
    records: list[Record] = []
    records += _records(done.records)
    return Work(records, done.links, done.body_hash, done.length, done.encoding, done.base)


def _writable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates: what resolving a URL makes of them anyway."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
