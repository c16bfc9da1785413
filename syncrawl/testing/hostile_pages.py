"""Hostile answers above the wire: redirects, markup, and sites without an end.

Any thread; data. Imports nothing of the package outside `testing`.
"""

from __future__ import annotations

import re

from syncrawl.testing.hostile_kit import (
    DONE,
    PAGE,
    Behaviour,
    gzip_bomb,
    links,
    raw,
    sized,
)
from syncrawl.testing.site_host import Answer, Reply

_FOUND = "HTTP/1.1 302 Found"
_NOT_FOLLOWED = ("3xx", "redirect_bad")


def _to(location: str | bytes, *fields: str) -> Reply:
    """A redirect whose Location is spelled as it is."""
    value = location.decode("latin-1") if isinstance(location, bytes) else location
    return raw(sized(b"", *fields, f"Location: {value}", status=_FOUND), "keep")


def redirects() -> list[Behaviour]:
    """Redirects that lead round, on and on, nowhere, or where nobody should go."""

    def refused(name: str, location: str | bytes) -> Behaviour:
        return Behaviour(
            name=name,
            does=f"redirects to {location!r}",
            pages={"/": _to(location)},
            ends=_NOT_FOLLOWED,
        )

    def followed(name: str, location: str | bytes, does: str, target: str) -> Behaviour:
        return Behaviour(
            name=name, does=does, pages={"/": _to(location), target: PAGE}, ends=(DONE,)
        )

    def longer(target: str) -> Answer:
        return _to(target.rstrip("/") + "/more/")

    return [
        Behaviour(
            name="loop",
            does="redirects in a circle",
            pages={"/": _to("/b"), "/b": _to("/c"), "/c": _to("/")},
            ends=("redirect_loop",),
        ),
        Behaviour(
            name="to-itself",
            does="redirects to itself",
            pages={"/": _to("/")},
            ends=("redirect_loop",),
        ),
        Behaviour(
            name="chain",
            does="redirects a thousand times",
            pages=lambda target: _to(f"/{int(target[1:] or 0) + 1}"),
            ends=("redirect_limit",),
            requests=10,
        ),
        Behaviour(
            name="ever-longer",
            does="redirects to an ever longer path",
            pages=longer,
            ends=("redirect_limit",),
            requests=10,
        ),
        Behaviour(
            name="to-disallowed",
            does="redirects to what its robots.txt disallows",
            pages={"/": _to("/private/"), "/private/": PAGE},
            robots="User-agent: *\nDisallow: /private/\n",
            ends=("robots",),
        ),
        refused("to-file", "file:///etc/passwd"),
        refused("to-data", "data:text/html,<p>x"),
        refused("to-script", "javascript:alert(1)"),
        refused("to-ftp", "ftp://ftp.invalid/x"),
        refused("to-empty", ""),
        refused("to-bracket", "http://[http//x/"),
        Behaviour(
            name="to-nowhere",
            does="redirects without a Location",
            pages={"/": raw(sized(b"", status=_FOUND), "keep")},
            ends=_NOT_FOLLOWED,
        ),
        Behaviour(
            name="to-nobody",
            does="redirects to a port where nobody listens",
            pages={"/": _to("http://127.0.0.1:1/")},
            ends=("connect", "unreachable"),
        ),
        followed("to-relative", "b?x=1", "redirects to a relative reference", "/b"),
        followed("to-bytes", b"/jos\xe9", "redirects to bytes that are no UTF-8", "/jos%E9"),
        followed("to-utf8", "/jos\u00e9".encode(), "redirects to raw UTF-8", "/jos%C3%A9"),
        followed("to-tabs", "/b\t\t\t", "has tabs after its Location", "/b"),
        followed("to-fragment", "/b#here", "redirects to a fragment", "/b"),
        Behaviour(
            name="bomb-of-302",
            does="sends a bomb with its redirect",
            pages={
                "/": raw(
                    sized(
                        gzip_bomb(),
                        "Content-Encoding: gzip",
                        "Location: /b",
                        status=_FOUND,
                    )
                ),
                "/b": PAGE,
            },
        ),
        Behaviour(
            name="two-locations",
            does="states two Locations",
            pages={"/": _to("/b", "Location: /c"), "/b": PAGE, "/c": PAGE},
        ),
        Behaviour(
            name="refreshes",
            does="is refreshed to itself by its markup",
            pages={"/": b'<meta http-equiv="refresh" content="0;url=/"><title>again</title>'},
        ),
    ]


def across() -> list[Behaviour]:
    """Redirects to other hosts of the site, which `Hostile` fills in once it knows their ports."""
    return [
        Behaviour(name="to-another-host", does="redirects to another host", pages={}),
        Behaviour(
            name="to-closed-host",
            does="redirects to a host that its robots.txt closes",
            pages={},
            ends=("robots",),
        ),
    ]


_ENTITIES = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a0 "lol">'
    + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 10))
    + b']><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>&a9;</loc></url></urlset>'
)


def markup() -> list[Behaviour]:
    """Documents that parsers choke on. Each has a last link that must be found, where it can."""
    last = b'<a href="/last">last</a>'

    def page(
        name: str, does: str, body: bytes, kind: str = "text/html", **more: object
    ) -> Behaviour:
        return Behaviour(
            name=name,
            does=does,
            pages={"/": Reply(body, content_type=kind), "/last": PAGE},
            **more,  # type: ignore[arg-type] # fields of Behaviour, checked by its own types
        )

    found = {"/last": (DONE,)}
    megabyte = b"a" * (1 << 20)
    return [
        page("nul", "has NULs in its markup", b"<ht\0ml>\0<body>" + last, others=found),
        page("deep", "nests 100,000 tags", last + b"<div>" * 100_000, others=found),
        page("deep-300", "nests 300 tags", b"<div>" * 300 + last, others=found),
        page(
            "text-9mb",
            "has a script of 9 MB",
            b"<script>" + megabyte * 9 + b"</script>" + last,
            others=found,
        ),
        page("entities-xml", "is XML with an entity bomb", _ENTITIES, "application/xml"),
        page("entities-html", "is the same, said to be HTML", _ENTITIES + last, others=found),
        page(
            "attributes",
            "has a tag with 50,000 attributes",
            b"<p " + b" ".join(b"a%d=1" % n for n in range(50_000)) + b">" + last,
            others=found,
        ),
        page(
            "charset-none", "names a charset that there is not", last, "text/html; charset=utf-8,x"
        ),
        page("charset-codec", "names a codec that is no charset", last, "text/html; charset=idna"),
        page(
            "odd-byte", "has an odd byte after a megabyte", megabyte + b"\xa9" + last, "text/html"
        ),
        page(
            "utf-16-half", "ends within a UTF-16 character", last.decode().encode("utf-16") + b"x"
        ),
        page("no-html", "says HTML and is random", bytes(range(256)) * 4000),
        page("type-garbage", "has a content type that is none", PAGE, ";;/==,,\x7f"),
        page(
            "links-100k",
            "has 100,000 links to elsewhere",
            links(*[f"http://{n}.invalid/" for n in range(100_000)], "/last"),
            others=found,
        ),
        page(
            "link-64k",
            "has links of 64 KB",
            links("/" + "x" * 65_000, "/?" + "y=1&" * 16_000, "/last"),
            others=found,
        ),
        page(
            "link-garbage",
            "has links that are none",
            links(
                *("http://[IP-Adresse", "http://x], http://[http//y", "//", "http://", "\x01\x02"),
                *("javascript:x()", "data:text/html,x", "mailto:a@b", "http://a b/", "http://%zz/"),
                *(
                    "http://1.2.3.4.5.6/",
                    "http://999.1.1.1/",
                    "http://\ud7ff.invalid:99999/",
                    "/last",
                ),
            ),
            others=found,
        ),
        page("bases", "has a base that is no URL", b"<base href='http://['>" + last, others=found),
        page(
            "controls",
            "has escape sequences in its title",
            b"<title>\x1b[2J\x9b31m\xe2\x80\xae</title>",
        ),
    ]


def traps(pages: int) -> list[Behaviour]:
    """Sites that make links for ever; after so many `pages` (0: never) they make no more."""

    def until(number: int, *targets: str) -> bytes:
        return links(*targets) if not pages or number < pages else PAGE

    def calendar(target: str) -> Answer:
        month = int((re.findall(r"\d+$", target) or ["0"])[0])
        return until(month, f"/calendar/{2020 + month // 12}/{month % 12 + 1:02}/?m={month + 1}")

    def session(target: str) -> Answer:
        number = int((re.findall(r"\d+$", target) or ["0"])[0])
        return until(number, f"/shop?sitzung=a{number + 1}", f"/basket?sitzung=b{number + 1}")

    def nested(target: str) -> Answer:
        return until(target.count("/"), "www.site.invalid/x/")

    def growing(target: str) -> Answer:
        mark = "&" if "?" in target else "?"
        return until(target.count("filter"), f"{target}{mark}filter=on")

    requests = pages * 3 + 20 if pages else 10**9
    return [
        Behaviour(
            name="calendar", does="always has a next month", pages=calendar, requests=requests
        ),
        Behaviour(
            name="session", does="gives each link a new session", pages=session, requests=requests
        ),
        Behaviour(
            name="nested",
            does="answers a relative link at any depth",
            pages=nested,
            requests=requests,
        ),
        Behaviour(
            name="growing", does="adds to its query on each page", pages=growing, requests=requests
        ),
    ]
