"""Reads a response's body: counted while it comes, capped, decoded, for both clients.

Runs on fetch threads, under the exchange's deadline. Imports `codings` and `deadline`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from syncrawl.api import Headers, Request
from syncrawl.errors import FetchError
from syncrawl.fetch.codings import CodingError, Codings

if TYPE_CHECKING:
    from syncrawl.fetch.deadline import Exchange

STEP = 64 * 1024
"""Decoded bytes read, and asked leave for, at a time; what the lease has reserved anyway."""


@dataclass(slots=True)
class Body:
    """A body as it came out: `left` are the codings that nothing here can undo.

    `decoded` tells whether some coding was undone. `complete` is False where the coded
    stream was cut short, or the body of a redirect or an error not read to its end.
    """

    data: bytes
    complete: bool
    left: list[str]
    decoded: bool


class _Wire:
    """The body's bytes as they come off the connection, counted."""

    intact = True

    def __init__(self, raw: Any, exchange: Exchange) -> None:
        self._raw = raw
        self._exchange = exchange

    def read(self, amount: int) -> bytes:
        data: bytes = self._raw.read(amount, decode_content=False)
        self._exchange.wire_bytes += len(data)
        return data

    def at_end(self) -> bool:
        """Whether the framing says that nothing is to come; the connection is given back."""
        closed: bool = self._raw.isclosed()
        return closed

    def finish(self) -> None:
        """Take in what is left where it is little, so that the connection can serve again."""
        if not self.at_end():
            # The page is whole already; all that can be lost now is the connection.
            with contextlib.suppress(Exception):
                self.read(STEP)
        if not self.at_end():
            self.close()

    def close(self) -> None:
        """Drop the connection with whatever is still to come on it."""
        self._raw.close()


def read_body(
    raw: Any, headers: Headers, status: int, request: Request, exchange: Exchange, codings: Codings
) -> Body:
    """Read the body of a response whose head has been read; `raw` is urllib3's response.

    At most `request.max_body_bytes` decoded bytes; a 2xx body that is longer raises
    FetchError "too_large", or is cut there where `request.truncate` asks for it. Of
    redirects and errors at most 64 KiB are read, and whatever is wrong with them, the head
    stands. Other FetchErrors: "decode", and what `request.grow` raises. In every case but
    a body read to its end the connection is closed.
    """
    exchange.phase = "body"
    wire = _Wire(raw, exchange)
    try:
        if 200 <= status < 300:
            body = _page(wire, raw, headers, request, codings)
        else:
            body = _aside(wire, headers, min(STEP, request.max_body_bytes), codings)
    except BaseException:
        raw.close()
        raise
    return body


def _page(wire: _Wire, raw: Any, headers: Headers, request: Request, codings: Codings) -> Body:
    cap = request.max_body_bytes
    names = _coding_names(headers)
    length = None if names else getattr(raw, "length_remaining", None)
    if length is not None and length > cap and not request.truncate:
        raise _too_large(cap, f"Content-Length says {length}")
    granted = STEP
    if length is not None and STEP < length <= cap:
        request.grow(length)
        granted = length
    parts: list[bytes] = []
    total = 0
    try:
        reader, left = codings.undo(names, wire)
        while True:
            if total == granted < cap:
                granted = min(granted + STEP, cap)
                request.grow(granted)
            # One byte above the cap tells a body that goes on from one that just fits.
            data = reader.read(cap + 1 - total if granted >= cap else granted - total)
            if not data:
                break
            parts.append(data)
            total += len(data)
            if total > cap and request.truncate:
                wire.close()
                return Body(_joined(parts)[:cap], False, left, left != names)
            if total > cap:
                raise _too_large(cap, "it goes on")
            if reader is wire and wire.at_end():
                break
    except CodingError as error:
        raise FetchError(
            f"Content-Encoding {_told(names)}: {error}", outcome="decode", retryable=False
        ) from None
    wire.finish()
    return Body(_joined(parts), reader.intact, left, left != names)


def _aside(wire: _Wire, headers: Headers, most: int, codings: Codings) -> Body:
    """What can be had of a redirect's or an error's body without caring for its faults."""
    names = _coding_names(headers)
    left = names
    parts: list[bytes] = []
    room = most
    complete = False
    try:
        reader, left = codings.undo(names, wire)
        while room and (data := reader.read(room)):
            parts.append(data)
            room -= len(data)
        complete = reader.intact and (room > 0 or wire.at_end())
    except Exception:  # noqa: BLE001 - status and headers are known, and they are what counts
        complete = False
    if complete:
        wire.finish()
    else:
        wire.close()
    return Body(_joined(parts), complete, left, left != names)


def _joined(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _coding_names(headers: Headers) -> list[str]:
    """The codings in the order they were applied; RFC 9110 section 8.4."""
    stated = headers.get_all("content-encoding")
    transfer = headers.get_all("transfer-encoding")
    if not stated and transfer in ([], ["chunked"]):
        return []
    names = [name.strip().lower() for value in stated for name in value.split(",")]
    # A transfer coding besides chunked was applied last, so it is undone first.
    names += [name.strip().lower() for value in transfer for name in value.split(",")]
    return [name for name in names if name not in ("", "identity", "chunked")]


def _told(names: list[str]) -> str:
    """The codings for an error: a server may name any number of any length."""
    text = ", ".join(names)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _too_large(cap: int, why: str) -> FetchError:
    return FetchError(f"the body exceeds {cap} bytes: {why}", outcome="too_large", retryable=False)
