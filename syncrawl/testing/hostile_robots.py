"""Hosts whose robots.txt is bad in one way each (RFC 9309 sections 2.3 and 2.5).

Any thread; data. Imports nothing of the package outside `testing`.
"""

from __future__ import annotations

import math

from syncrawl.testing.hostile_kit import (
    DONE,
    PAGE,
    Behaviour,
    coded,
    for_ever,
    gzip_bomb,
    head,
    raw,
)
from syncrawl.testing.site_host import HTML, PLAIN, Answer, Reply

_CLOSED = "User-agent: *\nDisallow: /\n"
_GIVEN_UP = ("unreachable", "refusing")


def robots() -> list[Behaviour]:
    """Every bad kind of robots.txt that we know of."""

    def host(name: str, does: str, answer: Answer, *ends: str) -> Behaviour:
        return Behaviour(
            name=f"robots-{name}",
            does=f"has a robots.txt that {does}",
            pages={"/": PAGE},
            robots=answer,
            ends=ends or (DONE,),
            requests=40,
        )

    def plain(data: bytes) -> Reply:
        return Reply(data, content_type=PLAIN)

    plain_field = ("Content-Type: text/plain",)
    return [
        host("500", "is a server error", 500, *_GIVEN_UP),
        host("503", "is a refusal", 503, *_GIVEN_UP),
        host("silent", "never answers", Reply(delay=math.inf), *_GIVEN_UP, "timeout"),
        host("reset", "is a reset", raw(b"", "reset"), *_GIVEN_UP, "connection"),
        host("garbage", "is no HTTP", raw(b"\x00\xff rubbish\r\n\r\n"), *_GIVEN_UP, "protocol"),
        host("endless", "never ends", for_ever(head(*plain_field), b"# more\n" * 9000)),
        host(
            "large",
            "has a megabyte before its rules",
            plain(b"# x\n" * (1 << 18) + _CLOSED.encode()),
        ),
        host("loop", "redirects to itself", Reply.redirect("/robots.txt")),
        host("elsewhere", "is another host's", None, "robots"),
        host("file", "redirects to a file", Reply.redirect("file:///etc/hosts")),
        host("html", "is a page", Reply(PAGE, content_type=HTML)),
        host("401", "wants a password", 401),
        host("403", "is forbidden", 403),
        host("404", "is not there", 404),
        host(
            "bom",
            "begins with a byte order mark",
            plain(b"\xef\xbb\xbf" + _CLOSED.encode()),
            "robots",
        ),
        host("utf-16", "is UTF-16", plain(_CLOSED.encode("utf-16")), "robots"),
        host(
            "bytes", "has bytes that are no UTF-8", plain(b"# \xdf\n" + _CLOSED.encode()), "robots"
        ),
        host("nul", "is full of NULs", plain(b"\0" * 1000 + b"\n" + _CLOSED.encode()), "robots"),
        host("binary", "is no text", plain(bytes(range(256)) * 400)),
        host("bomb", "is a bomb", coded(gzip_bomb(), "gzip", fields=plain_field)),
        host(
            "short",
            "ends before its length",
            raw(head(*plain_field, "Content-Length: 900") + _CLOSED.encode()),
            *_GIVEN_UP,
            "robots",
            "incomplete",
        ),
        host(
            "wildcards", "has 5,000 wildcards", plain(b"User-agent: *\nDisallow: /" + b"*a" * 5000)
        ),
        host("delay", "asks for a year between requests", "User-agent: *\nCrawl-delay: 31536000\n"),
        host("no-agent", "has rules for nobody", "Disallow: /\n"),
    ]
