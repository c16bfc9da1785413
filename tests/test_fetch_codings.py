"""Content codings: undone in any order and number, bounded, and tolerant where browsers are."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from syncrawl.api import Response
from syncrawl.fetch.codings import CodingError, Codings
from tests.fetching import both_clients, failure, fetch, fetching, request
from tests.servers import CLOSE, SILENT, ScriptServer, head, ok
from tests.support import absent, cases_file

PAGE = b"<!DOCTYPE html>" + b"".join(b"<p>%d</p>" % (number**3) for number in range(3000))
BOMB_SIZE = 16 << 20

Client = Any


def raw_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


def brotli(data: bytes) -> bytes:
    try:
        import brotli as package
    except ImportError:
        absent("brotli")
    return bytes(package.compress(data))


def zstd(data: bytes, **options: Any) -> bytes:
    try:
        import zstandard
    except ImportError:
        absent("zstandard")
    return zstandard.ZstdCompressor(**options).compress(data)


def zstd_stream(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        absent("zstandard")
    squeeze = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return squeeze.compress(data) + squeeze.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli,
    "zstd": zstd,
}


class Pieces:
    """A source that hands out its data at most `size` bytes at a time."""

    intact = True

    def __init__(self, data: bytes, size: int = 1 << 16) -> None:
        self.data = data
        self.size = size

    def read(self, amount: int) -> bytes:
        count = min(amount, self.size)
        piece, self.data = self.data[:count], self.data[count:]
        return piece


def undo(data: bytes, *names: str, size: int = 1 << 16, amount: int = 1000) -> tuple[bytes, bool]:
    reader, left = Codings().undo(list(names), Pieces(data, size))
    assert left == []
    out = b""
    while piece := reader.read(amount):
        assert len(piece) <= amount
        out += piece
    assert reader.read(amount) == b""
    return out, reader.intact


def served(client: Client, body: bytes, *fields: str, **changes: Any) -> Response:
    with ScriptServer({"/": [ok(body, *fields)]}) as server:
        return fetch(client, server.url(), **changes)


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize("name", ENCODERS)
def test_every_coding_at_every_step(name: str, size: int) -> None:
    data = ENCODERS[name](PAGE)
    assert undo(data, name, size=size) == (PAGE, True)
    assert undo(data, name, size=size, amount=1 << 20) == (PAGE, True)
    assert undo(ENCODERS[name](b""), name, size=size) == (b"", True)
    assert undo(b"", name) == (b"", True)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_stream_cut_short_keeps_its_beginning(name: str) -> None:
    data = ENCODERS[name](PAGE)
    for cut in (len(data) // 2, len(data) - 20):
        out, intact = undo(data[:cut], name)
        assert PAGE.startswith(out)
        assert not intact


@pytest.mark.parametrize("name", ENCODERS)
def test_every_cut_ends(name: str) -> None:
    data = ENCODERS[name](b"some text " * 20)
    for cut in range(len(data)):
        out, _ = undo(data[:cut], name)
        assert (b"some text " * 20).startswith(out)


@pytest.mark.parametrize("name", ENCODERS)
def test_rubbish_is_an_error_or_little(name: str) -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = bytearray(ENCODERS[name](PAGE[:2000]))
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            out, _ = undo(bytes(data), name)
        except CodingError:
            continue
        assert len(out) < 1 << 20


@pytest.mark.parametrize("name", ["gzip", "br", "zstd"])
def test_plain_text_under_a_codings_name_is_an_error(name: str) -> None:
    with pytest.raises(CodingError):
        undo(b"<html>not coded at all</html>" * 9, name)


def test_gzip_as_it_is_found() -> None:
    data = gzip.compress(PAGE)
    assert undo(data + b"tail", "gzip") == (PAGE, True)
    assert undo(data + b"\0" * 512, "gzip") == (PAGE, True)
    assert undo(data + gzip.compress(b"more"), "gzip") == (PAGE + b"more", True)
    assert undo(data[:-8], "gzip") == (PAGE, True), "only the check sum is missing"
    assert undo(data[:-3] + b"abc", "gzip") == (PAGE, True), "browsers do not verify it"
    fields = b"\x1f\x8b\x08\x1f" + b"\0" * 6 + b"\x03\0abc" + b"name\0" + b"comment\0" + b"cc"
    assert undo(fields + raw_deflate(b"hi") + b"\0" * 8, "gzip", size=1) == (b"hi", True)
    with pytest.raises(CodingError):
        undo(b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"x" * 200_000, "gzip")
    with pytest.raises(CodingError):
        undo(b"\x1f\x8b\x07" + b"\0" * 20, "gzip")


def test_deflate_in_both_meanings() -> None:
    assert undo(zlib.compress(PAGE), "deflate") == (PAGE, True)
    assert undo(raw_deflate(PAGE), "deflate") == (PAGE, True)
    many = b"a" * 100_000
    assert undo(zlib.compress(many) + b"garbage", "deflate") == (many, True)
    assert undo(zlib.compress(many) + zlib.compress(b"b"), "deflate") == (many, True)


def test_zstd_frames() -> None:
    streamed = zstd_stream(PAGE * 9)
    assert undo(streamed, "zstd") == (PAGE * 9, True)
    assert undo(zstd(b"a") + zstd(b"b"), "zstd") == (b"ab", True)
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0xyz"
    assert undo(skippable + zstd(b"a"), "zstd") == (b"a", True)
    assert undo(streamed[:-4], "zstd")[1] is False, "the checksum is part of the frame"
    assert undo(zstd(b"x" * 500_000), "zstd", size=3) == (b"x" * 500_000, True)


def test_codings_are_undone_from_the_last() -> None:
    data = gzip.compress(zlib.compress(gzip.compress(PAGE)))
    assert undo(data, "gzip", "deflate", "gzip") == (PAGE, True)
    with pytest.raises(CodingError):
        undo(PAGE, *["gzip"] * 6)


def test_what_is_unknown_is_left() -> None:
    reader, left = Codings().undo(["uuencode", "gzip"], Pieces(gzip.compress(b"x")))
    assert (reader.read(9), left) == (b"x", ["uuencode"])
    reader, left = Codings().undo(["gzip", "foo", "deflate"], Pieces(zlib.compress(b"x")))
    assert (reader.read(9), left) == (b"x", ["gzip", "foo"])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_bomb_costs_what_is_read_of_it(name: str, times: int) -> None:
    data = ENCODERS[name](b"\0" * BOMB_SIZE)
    if times == 2:
        data = ENCODERS[name](data)
    reader, _ = Codings().undo([name] * times, Pieces(data))
    tracemalloc.start()
    try:
        for _ in range(10):
            assert len(reader.read(65_536)) > 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


# Over the wire


@both_clients
@pytest.mark.parametrize("name", ENCODERS)
def test_a_coded_page(client: Client, name: str) -> None:
    data = ENCODERS[name](PAGE)
    response = served(client, data, f"Content-Encoding: {name.upper()}", "X: y")
    assert (response.body, response.complete) == (PAGE, True)
    assert response.wire_bytes == len(data)
    assert "content-encoding" not in response.headers
    assert response.headers["x"] == "y"


@both_clients
def test_a_coded_page_leaves_the_connection_usable(client: Client) -> None:
    data = gzip.compress(PAGE)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    answers = {
        "/c": [head("Transfer-Encoding: chunked", "Content-Encoding: gzip") + chunks],
        "/l": [ok(data + b"tail", "Content-Encoding: gzip")],
    }
    with ScriptServer(answers) as server, fetching(client) as fetcher:  # type: ignore[arg-type]
        for path in ("/c", "/l", "/c"):
            assert fetcher.fetch(request(server.url(path))).body == PAGE
        assert server.connections == 1


@both_clients
def test_a_transfer_coding_is_undone_too(client: Client) -> None:
    data = gzip.compress(b"hi")
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    with ScriptServer({"/": [head("Transfer-Encoding: gzip, chunked") + chunks]}) as server:
        assert fetch(client, server.url()).body == b"hi"


@both_clients
def test_several_fields_and_unknown_names(client: Client) -> None:
    fields = ("Content-Encoding: uuencode", "Content-Encoding: identity, gzip")
    response = served(client, gzip.compress(b"hi"), *fields)
    assert (response.body, response.headers["content-encoding"]) == (b"hi", "uuencode")


@both_clients
def test_a_cut_stream_is_kept_and_flagged(client: Client) -> None:
    data = gzip.compress(PAGE)
    response = served(client, data[: len(data) // 2], "Content-Encoding: gzip")
    assert response.body.startswith(b"<!DOCTYPE")
    assert not response.complete


@both_clients
@pytest.mark.parametrize("body", [b"<html>", gzip.compress(PAGE)[:50] + b"\xff" * 500])
def test_a_body_that_is_not_what_it_says(client: Client, body: bytes) -> None:
    with ScriptServer({"/": [ok(body, "Content-Encoding: gzip")]}) as server:
        error = failure(client, server.url())
    assert (error.outcome, error.retryable) == ("decode", False)


@both_clients
def test_framing_cut_short_counts_before_the_coding(client: Client) -> None:
    data = gzip.compress(PAGE)
    answer = head(f"Content-Length: {len(data)}", "Content-Encoding: gzip") + data[:500]
    with ScriptServer({"/": [answer, CLOSE]}) as server:
        assert failure(client, server.url()).outcome == "incomplete"


@both_clients
def test_the_cap_is_about_decoded_bytes(client: Client) -> None:
    data = gzip.compress(b"\0" * (11 << 20))
    answers = {
        "/": [head("Content-Encoding: gzip") + data * 9, SILENT],
        "/r": [
            head("Content-Encoding: gzip", "Location: /", status="302 Found") + data * 9,
            SILENT,
        ],
    }
    with ScriptServer(answers) as server:
        tracemalloc.start()
        try:
            error = failure(client, server.url(), max_body_bytes=500_000)
            redirect = fetch(client, server.url("/r"))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert error.outcome == "too_large"
    assert (redirect.status, len(redirect.body), redirect.complete) == (302, 65_536, False)
    assert peak < 6 << 20


@both_clients
def test_growth_of_a_coded_body_is_asked_for_in_steps(client: Client) -> None:
    asked: list[int] = []
    served(client, gzip.compress(b"\0" * 150_000), "Content-Encoding: gzip", grow=asked.append)
    assert asked == [131_072, 196_608]


# The public cases


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("html-gzip.bin", ["gzip"]),
        ("html-gzip.bin", ["x-gzip"]),
        ("html-rawdeflate.bin", ["deflate"]),
        ("html-zlibdeflate.bin", ["deflate"]),
        ("html-gzip-deflate.bin", ["gzip", "deflate"]),
        ("html-gzip-deflate-gzip.bin", ["gzip", "deflate", "gzip"]),
        ("html-br.bin", ["br"]),
        ("html-zstd-static-content-size.bin", ["zstd"]),
        ("html-zstd-static-no-content-size.bin", ["zstd"]),
        ("html-zstd-streaming-no-content-size.bin", ["zstd"]),
    ],
)
def test_public_pages(file: str, names: list[str]) -> None:
    folder = cases_file("compressed")
    out, intact = undo((folder / file).read_bytes(), *names)
    assert out.startswith(b"<!DOCTYPE")
    assert intact
    assert out.rstrip().lower().endswith(b"</html>")


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
@both_clients
def test_public_bombs(client: Client, name: str) -> None:
    data = (cases_file("compressed") / f"bomb-{name}.bin").read_bytes()
    with ScriptServer({"/": [ok(data, f"Content-Encoding: {name}")]}) as server:
        tracemalloc.start()
        try:
            error = failure(client, server.url(), max_body_bytes=1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert error.outcome == "too_large"
        assert peak < 5 << 20
        assert len(fetch(client, server.url(), max_body_bytes=16 << 20).body) > 11_000_000


def test_public_cut_streams() -> None:
    folder: Path = cases_file("compressed")
    out, intact = undo((folder / "unexpected-eof.gz").read_bytes(), "gzip")
    # The expected text was kept in UTF-8.
    assert out.decode("cp1252").encode() == (folder / "unexpected-eof-output.txt").read_bytes()
    assert intact, "nothing but the check sum is missing"
    out, _ = undo((folder / "truncated-crc-error.gz").read_bytes(), "gzip")
    assert out.rstrip().endswith(b"</html")
    out, _ = undo((folder / "truncated-crc-error-short.gz").read_bytes(), "gzip")
    assert out.rstrip().endswith(b"</html>")
