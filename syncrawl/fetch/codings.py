"""Undoes content codings a bounded piece at a time.

Runs on fetch threads; imports zlib, and brotli and zstandard where they are installed.
Each decoder is a reader over the one before it: `read(n)` yields at most n bytes, pulling
no more input than that takes, so a few bytes that expand to gigabytes cost what is read of
them and no more. As browsers do, checksums after the data are not verified, what follows
the data is ignored, and a stream cut short keeps what could be decoded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

PIECE = 16 * 1024
"""Bytes of coded input taken at a time."""

MAX_CHAIN = 5
"""Codings one body may have had applied; urllib3 draws the same line."""


class CodingError(Exception):
    """The bytes are not what the coding's name says."""


class Reader(Protocol):
    """Bytes on demand; b"" at the end. `intact` turns False where a stream ended early."""

    intact: bool

    def read(self, amount: int) -> bytes: ...


class _Input:
    """Buffered input of a decoder that must look at headers byte by byte."""

    def __init__(self, source: Reader) -> None:
        self._source = source
        self.data = b""

    def need(self, count: int) -> bool:
        """Have at least `count` bytes in `data`; False where the source ends before."""
        while len(self.data) < count:
            more = self._source.read(PIECE)
            if not more:
                return False
            self.data += more
        return True

    def skip(self, count: int) -> bool:
        """Drop `count` bytes; False where there are not so many."""
        if not self.need(count):
            self.data = b""
            return False
        self.data = self.data[count:]
        return True

    def piece(self) -> bytes:
        """Everything at hand, or the next piece; b"" at the end."""
        data, self.data = self.data, b""
        return data or self._source.read(PIECE)


class _Inflating:
    """What gzip and deflate share: raw DEFLATE data (RFC 1951) behind some header."""

    def __init__(self, source: Reader) -> None:
        self.intact = True
        self._input = _Input(source)
        self._inflate: Any = None
        self._ended = False

    def _enter(self) -> bool:
        """Read the header before the data; False where there is no data."""
        raise NotImplementedError

    def _leave(self) -> bool:
        """After the data: whether another stream follows that counts."""
        return False

    def read(self, amount: int) -> bytes:
        while not self._ended:
            if self._inflate is None:
                if not self._enter():
                    self._ended = True
                    break
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            data = self._input.piece()
            try:
                out: bytes = self._inflate.decompress(data, amount)
            except zlib.error as error:
                self._ended = True
                raise CodingError(str(error)) from None
            self._input.data = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._input.data = self._inflate.unused_data
                self._inflate = None
                self._ended = not self._leave()
            elif not data and not out:
                self.intact = False
                self._ended = True
            if out:
                return out
        return b""


class _Gzip(_Inflating):
    """RFC 1952: one member or several; padding and anything else after them is ignored."""

    _members = 0

    def _enter(self) -> bool:
        source = self._input
        if not source.need(1) and not self._members:
            return False
        whole = source.need(10)
        head = source.data[:10]
        if head[:2] != b"\x1f\x8b"[: len(head)]:
            raise CodingError("no gzip data")
        if whole and head[2] != 8:
            raise CodingError("an unknown gzip method")
        self._members += 1
        if not (whole and source.skip(10) and self._skip_fields(head[3])):
            self.intact = False
            return False
        return True

    def _skip_fields(self, flags: int) -> bool:
        source = self._input
        if flags & 4:
            if not source.need(2):
                return False
            if not source.skip(2 + int.from_bytes(source.data[:2], "little")):
                return False
        for flag in (8, 16):  # a name, a comment: each ends at a zero byte
            if flags & flag and not self._skip_text():
                return False
        return source.skip(2) if flags & 2 else True

    def _skip_text(self) -> bool:
        source = self._input
        while (end := source.data.find(b"\0")) < 0:
            if len(source.data) > 4 * PIECE:
                raise CodingError("an endless gzip header")
            if not source.need(len(source.data) + 1):
                return False
        return source.skip(end + 1)

    def _leave(self) -> bool:
        # The check sum and size, which nobody verifies, and then perhaps another member.
        return (
            self._input.skip(8) and self._input.need(3) and self._input.data[:3] == b"\x1f\x8b\x08"
        )


class _Deflate(_Inflating):
    """RFC 9110 section 8.4.1.2 means zlib's format; raw DEFLATE is what some servers send."""

    def _enter(self) -> bool:
        source = self._input
        if not source.need(2):
            return source.need(1)
        first, second = source.data[0], source.data[1]
        if first & 15 == 8 and first >> 4 <= 7 and (first * 256 + second) % 31 == 0:
            if second & 32:
                raise CodingError("a zlib stream with a preset dictionary")
            source.skip(2)
        return True


class _Brotli:
    """RFC 7932, by the brotli package from 1.2 on, which can bound what a call yields.

    Its bound is a number of blocks, the smallest of 32 KiB. Bytes after the stream are an
    error here: the package then keeps the output to itself.
    """

    def __init__(self, source: Reader) -> None:
        import brotli  # type: ignore[import-untyped,unused-ignore]

        self.intact = True
        self._source = source
        self._error = brotli.error
        self._decoder = brotli.Decompressor()
        self._pending = b""
        self._started = False
        self._ended = False

    def read(self, amount: int) -> bytes:
        while not self._pending and not self._ended:
            data = b""
            # Without input first: what the last piece still yields must not wait for more.
            out: bytes = self._process(data) if self._started else b""
            if not out and not self._ended:
                data = self._source.read(PIECE)
                self._started = self._started or bool(data)
                out = self._process(data)
                if not data and not out:
                    self.intact = not self._started
                    self._ended = True
            self._pending = out
        out, self._pending = self._pending[:amount], self._pending[amount:]
        return out

    def _process(self, data: bytes) -> bytes:
        try:
            out: bytes = self._decoder.process(data, output_buffer_limit=1)
        except self._error as error:
            self._ended = True
            raise CodingError(str(error)) from None
        self._ended = self._decoder.is_finished()
        return out


class _Zstd:
    """RFC 8878, block by block: one block holds at most 128 KiB, so no step yields more.

    The zstandard package has no call that bounds its output and also tells a cut stream
    from a whole one; walking the blocks' three-byte headers gives both.
    """

    def __init__(self, source: Reader) -> None:
        import zstandard

        self.intact = True
        self._input = _Input(source)
        self._error = zstandard.ZstdError
        # RFC 9659: eight megabytes of window are what a client on the web must offer.
        self._make = zstandard.ZstdDecompressor(max_window_size=8 << 20).decompressobj
        self._frame: Any = None
        self._checksum = False
        self._pending = b""
        self._ended = False

    def read(self, amount: int) -> bytes:
        while not self._pending and not self._ended:
            try:
                self._pending = self._block() if self._frame else self._header()
            except self._error as error:
                self._ended = True
                raise CodingError(str(error)) from None
        out, self._pending = self._pending[:amount], self._pending[amount:]
        return out

    def _take(self, count: int) -> bytes:
        source = self._input
        if not source.need(count):
            self.intact = False
            self._ended = True
            return b""
        data, source.data = source.data[:count], source.data[count:]
        return data

    def _header(self) -> bytes:
        source = self._input
        if not source.need(1):
            self._ended = True
            return b""
        magic = self._take(4)
        if len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:
            size = self._take(4)  # a frame to be skipped
            self._ended = self._ended or not source.skip(int.from_bytes(size, "little"))
            return b""
        if self._ended:
            return b""
        if magic != b"\x28\xb5\x2f\xfd":
            raise CodingError("no zstd data")
        descriptor = self._take(1)
        if not descriptor:
            return b""
        flags = descriptor[0]
        single = flags >> 5 & 1
        size_field = (single, 2, 4, 8)[flags >> 6]
        rest = self._take((1 - single) + (0, 1, 2, 4)[flags & 3] + size_field)
        self._checksum = bool(flags & 4)
        self._frame = self._make()
        return bytes(self._frame.decompress(magic + descriptor + rest))

    def _block(self) -> bytes:
        head = self._take(3)
        if not head:
            return b""
        fields = int.from_bytes(head, "little")
        last, kind, size = fields & 1, fields >> 1 & 3, fields >> 3
        if size > 128 * 1024:
            raise CodingError("a zstd block above the format's bound")
        data = self._take(1 if kind == 1 else size)
        out = bytes(self._frame.decompress(head + data)) if data or not size else b""
        if last and not self._ended:
            if self._checksum:
                out += bytes(self._frame.decompress(self._take(4)))
            self._frame = None
        return out


_DECODERS: dict[str, Callable[[Reader], Reader]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "x-deflate": _Deflate,
}


def _optional() -> dict[str, Callable[[Reader], Reader]]:
    found: dict[str, Callable[[Reader], Reader]] = {}
    try:
        import brotli

        # Before 1.2 a call could not be bounded.
        if hasattr(brotli.Decompressor, "can_accept_more_data"):
            found["br"] = _Brotli
    except ImportError:
        pass
    try:
        import zstandard  # noqa: F401

        found["zstd"] = _Zstd
    except ImportError:
        pass
    return found


class Codings:
    """The codings that can be undone here; found once, when a fetcher is made."""

    def __init__(self) -> None:
        self._decoders = {**_DECODERS, **_optional()}
        offered = [name for name in self._decoders if not name.startswith("x-")]
        self.accept_encoding = ", ".join(offered)

    def undo(self, names: list[str], source: Reader) -> tuple[Reader, list[str]]:
        """A reader of `source` with the last of `names` undone, as far as they are known.

        Also gives the names that are left. Raises CodingError above `MAX_CHAIN`.
        """
        if len(names) > MAX_CHAIN:
            raise CodingError(f"more than {MAX_CHAIN} codings")
        left = list(names)
        reader = source
        while left and (decoder := self._decoders.get(left[-1])) is not None:
            left.pop()
            reader = decoder(reader)
        return reader, left
