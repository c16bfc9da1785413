"""The public cases about content codings; those about redirects are in test_fetch_target.py."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from syncrawl.api import Response
from syncrawl.fetch.transport import Urllib3Fetcher
from tests.fetching import fetch
from tests.servers import ScriptServer, ok
from tests.support import cases_file

# Every file of compressed/, each read by a test of test_fetch_codings.py.
FILES = {
    *("html-gzip.bin", "html-rawdeflate.bin", "html-zlibdeflate.bin", "html-br.bin"),
    *("html-gzip-deflate.bin", "html-gzip-deflate-gzip.bin"),
    *("html-zstd-static-content-size.bin", "html-zstd-static-no-content-size.bin"),
    "html-zstd-streaming-no-content-size.bin",
    *("bomb-gzip.bin", "bomb-deflate.bin", "bomb-br.bin", "bomb-zstd.bin"),
    *("truncated-crc-error.gz", "truncated-crc-error-short.gz"),
    *("unexpected-eof.gz", "unexpected-eof-output.txt"),
}


def file(name: str) -> bytes:
    return (cases_file("compressed") / name).read_bytes()


def served(body: bytes, *names: str) -> Response:
    fields = [f"Content-Encoding: {name}" for name in names]
    with ScriptServer({"/": [ok(body, *fields)]}) as server:
        return fetch(Urllib3Fetcher, server.url())


def is_page(response: Response) -> bool:
    return (
        response.complete
        and response.body.startswith(b"<!DOCTYPE")
        and response.body.rstrip().lower().endswith(b"</html>")
        and "content-encoding" not in response.headers
    )


def raw_deflate() -> bool:
    return is_page(served(file("html-rawdeflate.bin"), "deflate"))


def zstd() -> bool:
    kinds = ("static-content-size", "static-no-content-size", "streaming-no-content-size")
    return all(is_page(served(file(f"html-zstd-{kind}.bin"), "zstd")) for kind in kinds)


def unknown_before_gzip() -> bool:
    response = served(gzip.compress(b"coded"), "uuencode", "gzip")
    return (response.body, response.headers["content-encoding"]) == (b"coded", "uuencode")


def unknown_in_the_middle() -> bool:
    response = served(zlib.compress(b"coded"), "gzip, foo, deflate")
    return (response.body, response.headers["content-encoding"]) == (b"coded", "gzip, foo")


def rubbish_after() -> bool:
    data = zlib.compress(b"a" * 100_000) + b"garbage"
    return served(data, "deflate").body == b"a" * 100_000


def a_second_stream() -> bool:
    data = zlib.compress(b"first") + zlib.compress(b"second")
    return served(data, "deflate").body == b"first"


def cut_in_half() -> bool:
    answers = []
    for name in ("gzip", "br", "zlibdeflate"):
        data = file(f"html-{name}.bin")
        coding = "deflate" if name == "zlibdeflate" else name
        answers.append(served(data[: len(data) // 2], coding))
    return all(answer.body.startswith(b"<!DOCTYPE") and not answer.complete for answer in answers)


def nothing_to_decode() -> bool:
    # No HEAD is ever sent; what is empty is not decoded either way.
    response = served(b"", "gzip")
    return response.body == b"" and response.complete


# The cases are prose: each is told by its header and body, and held by one of the above.
HOLD: dict[tuple[str, str], Callable[[], bool]] = {
    ("deflate", "raw deflate"): raw_deflate,
    ("zstd", "zstd with and without content size, streaming"): zstd,
    ("uuencode|gzip", "gzip"): unknown_before_gzip,
    ("gzip, foo, deflate", "deflate(...)"): unknown_in_the_middle,
    ("deflate", 'zlib stream of 100000 x a + b"garbage"'): rubbish_after,
    ("deflate", "zlib stream + a second zlib stream"): a_second_stream,
    ("gzip|br or zlib-deflate", "first half of the bytes only"): cut_in_half,
    ("gzip", ""): nothing_to_decode,
}


def test_content_codings() -> None:
    cases: list[dict[str, Any]] = json.loads(cases_file("http_cases.json").read_text("utf-8"))[
        "content_encoding"
    ]
    told = [("|".join(case["header"]), case["body"]) for case in cases]
    assert sorted(told) == sorted(HOLD)
    assert [case for case in told if not HOLD[case]()] == []


def test_every_coded_file_is_used() -> None:
    assert {path.name for path in cases_file("compressed").iterdir()} == FILES
