"""Undoes gzip of a stream that is pushed in pieces, known by its first bytes alone.

Any thread; the standard library only. The name and the media type of a sitemap say nothing
dependable: `.xml.gz` comes plain, `.xml` zipped, and some come zipped twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

PIECE = 64 * 1024
"""Bytes that come out of one step at most."""

_MAGIC = b"\x1f\x8b"


class Gunzip:
    """Passes bytes through, undoing gzip (RFC 1952) where they begin as gzip does.

    One member or several; what follows them and is none is ignored. `intact` turns False
    where the data are damaged, cut short, or more than `max_bytes` come out: what came
    before stands.
    """

    def __init__(self, max_bytes: int) -> None:
        self.intact = True
        self.over = False
        self._left = max_bytes
        self._head = b""
        self._zipped: bool | None = None
        self._inflate = zlib.decompressobj(wbits=31)
        self._ended = False

    @property
    def zipped(self) -> bool:
        return bool(self._zipped)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What comes out for `data`, in pieces; to be read to its end before the next call."""
        if self._zipped is None:
            data = self._head + data
            if len(data) < len(_MAGIC) and _MAGIC.startswith(data):
                self._head = data
                return
            self._zipped, self._head = data.startswith(_MAGIC), b""
        step = self._members if self._zipped else self._plain
        # Little at a time: what is not inflated yet is copied at each step.
        for at in range(0, len(data), PIECE):
            yield from step(data[at : at + PIECE])

    def close(self) -> Iterator[bytes]:
        """The end of the data: what was held back."""
        if self._zipped is None:
            yield from self._plain(self._head)
        elif self._zipped and not self._ended:
            self.intact = False

    def _plain(self, data: bytes) -> Iterator[bytes]:
        # Not copied: a piece that is not inflated is no larger than what came in.
        if len(data) > self._left:
            self.over = True
            data = data[: self._left]
        self._left -= len(data)
        if data:
            yield data

    def _members(self, data: bytes) -> Iterator[bytes]:
        full = False  # there may be more to come of what was taken in
        while (data or full) and self.intact and not self.over:
            if self._ended:
                # Another member, or padding and rubbish, which nobody means.
                data = self._head + data
                if not data.startswith(_MAGIC):
                    self._head = data if len(data) < len(_MAGIC) else b"\0\0"
                    return
                self._inflate, self._head, self._ended = zlib.decompressobj(wbits=31), b"", False
            room = min(PIECE, self._left + 1)
            before = self._inflate.copy()
            try:
                out = self._inflate.decompress(data, room)
            except zlib.error:
                self.intact = False
                yield from self._plain(_up_to_the_damage(before, data, room))
                return
            data = self._inflate.unconsumed_tail
            full = len(out) == room
            if self._inflate.eof:
                data, self._ended, full = self._inflate.unused_data, True, False
            yield from self._plain(out)


def _up_to_the_damage(inflate: Any, data: bytes, room: int) -> bytes:
    """What `data` yields before it fails, of which zlib's error tells nothing."""
    out = b""
    for at in range(len(data)):
        try:
            out += inflate.decompress(data[at : at + 1], room)
        except zlib.error:
            break
    return out[:room]
