"""Reads a response's head and framing as servers really send them.

Runs on fetch threads; imports http.client and urllib3's response. The standard library
drops every header after the first odd line, takes 102 and 103 for answers, and reads
numbers as Python literals; each of these loses a page or mixes two of them up.
"""

from __future__ import annotations

import http.client
import re
from typing import IO, TYPE_CHECKING, Any

import urllib3
from urllib3 import HTTPHeaderDict

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection

MAX_LINE = 64 * 1024
MAX_HEADERS = 100
MAX_HEAD = 256 * 1024
MAX_INTERIM = 8
"""Bounds of a response's head: bytes a line, fields, bytes in all, 1xx answers before it."""

_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}[ \t]*\r?\n?\Z")

Pairs = list[tuple[str, str]]


def read_fields(fp: IO[bytes]) -> Pairs:
    """The header fields up to the blank line, every one that can be made out.

    A space in or after a name, a line without a colon, a first line that is indented: none
    of these hides the lines after it (RFC 9112 section 5 lets a client be this lenient).
    A folded line continues the one before. Raises http.client.HTTPException above the bounds.
    """
    pairs: Pairs = []
    size = 0
    indented = False
    while True:
        line = fp.readline(MAX_LINE + 1)
        size += len(line)
        if len(line) > MAX_LINE or size > MAX_HEAD:
            raise http.client.LineTooLong("header")
        if line in (b"\r\n", b"\n", b""):
            return pairs
        text = line.decode("latin-1").rstrip("\r\n")
        if text[:1] in (" ", "\t"):
            if pairs and not indented:
                name, value = pairs[-1]
                pairs[-1] = (name, f"{value} {text.strip()}".strip())
                continue
            # Some servers indent the whole block; then a blank says nothing.
            indented = True
            text = text.strip()
        name, colon, value = text.partition(":")
        name = name.strip()
        if colon and name:
            if len(pairs) >= MAX_HEADERS:
                raise http.client.HTTPException(f"more than {MAX_HEADERS} header fields")
            pairs.append((name, value.strip().replace("\r", " ").replace("\0", "")))


def content_length(pairs: Pairs) -> int | None:
    """The length stated, or None where there is none that can be believed.

    Repeated equal values count once; different ones raise http.client.HTTPException
    (RFC 9112 section 6.3); `350-`, `-10`, `+5` and the like are as good as none.
    """
    stated = {
        part.strip()
        for name, value in pairs
        if name.lower() == "content-length"
        for part in value.split(",")
    }
    if len(stated) > 1:
        raise http.client.HTTPException(f"conflicting Content-Length: {sorted(stated)}")
    for text in stated:
        # isdecimal() alone would admit digits of other scripts.
        if text.isascii() and text.isdecimal() and len(text) < 19:
            return int(text)
    return None


class WireResponse(http.client.HTTPResponse):
    """http.client's response with a tolerant head and strict numbers.

    `pairs` holds the fields as received, latin-1 decoded, which loses no byte.
    """

    pairs: Pairs
    fields: HTTPHeaderDict

    def begin(self) -> None:
        """Read the head, past every interim answer; RFC 9110 section 15.2."""
        for _ in range(MAX_INTERIM + 1):
            version, status, reason = self._read_status()  # type: ignore[attr-defined]
            self.pairs = read_fields(self.fp)
            if status >= 200:
                break
            if status == 101:
                raise http.client.HTTPException("switches protocols, which nobody asked for")
        else:
            raise http.client.HTTPException(f"more than {MAX_INTERIM} interim answers")
        self.code = self.status = status
        self.reason = reason.strip()
        if version in ("HTTP/1.0", "HTTP/0.9"):
            self.version = 10
        elif version.startswith("HTTP/1."):
            self.version = 11
        else:
            raise http.client.UnknownProtocol(version)
        fields = HTTPHeaderDict()
        for name, value in self.pairs:
            fields.add(name, value)
        # Everything http.client and cookie jars ask of a header object, this answers.
        self.headers = self.msg = self.fields = fields  # type: ignore[assignment]
        self._frame(fields)

    def _frame(self, fields: HTTPHeaderDict) -> None:
        """Decide where the body ends; RFC 9112 section 6.3."""
        codings = fields.get("transfer-encoding", "").lower().split(",")
        self.chunked = codings[-1].strip() == "chunked"
        self.chunk_left = None
        self.will_close = self._check_close()  # type: ignore[attr-defined]
        self.length = None
        if self.status in (204, 304) or self._method == "HEAD":  # type: ignore[attr-defined]
            self.length = 0
            self.chunked = False
        elif self.chunked:
            # Both kinds of framing at once: one of them lies, so nobody reads on after it.
            self.will_close = self.will_close or "content-length" in fields
        elif "content-length" in fields:
            self.length = content_length(self.pairs)
        if self.length is None and not self.chunked:
            self.will_close = True

    def read(self, amt: int | None = None) -> bytes:
        """As http.client's, but a body that ends early is an error on every path."""
        data = super().read(amt)
        if not data and amt and self.length:
            raise http.client.IncompleteRead(b"", self.length)
        return data

    def _read_next_chunk_size(self) -> int:
        line = self.fp.readline(MAX_LINE + 1)
        if _HEX.match(line.partition(b";")[0]) is None:
            self._close_conn()  # type: ignore[attr-defined]
            # http.client turns a ValueError here into IncompleteRead.
            raise ValueError(f"bad chunk size {line[:40]!r}")
        return int(line.partition(b";")[0], 16)


class RawBody(urllib3.HTTPResponse):
    """urllib3's response over a WireResponse, which has settled the framing already."""

    def _init_length(self, request_method: str | None) -> int | None:
        length: int | None = self._fp.length  # type: ignore[union-attr]
        return length


def receive(connection: HTTPConnection, options: Any) -> RawBody:
    """Read the head of the answer on `connection`; `options` are urllib3's own for the request."""
    sock = connection.sock
    if sock is None:
        raise ConnectionAbortedError("the connection was closed before the answer")
    head = WireResponse(sock, method=options.request_method)
    try:
        head.begin()
    except BaseException:
        head.close()
        raise
    if head.will_close:
        # The socket itself lives on until the body's file is closed.
        connection.close()
    return RawBody(
        body=head,
        headers=head.fields,
        status=head.status,
        version=head.version,
        reason=head.reason,
        preload_content=options.preload_content,
        decode_content=options.decode_content,
        original_response=head,
        enforce_content_length=False,
        request_method=options.request_method,
        request_url=options.request_url,
    )
