"""Where the parse stage answers otherwise than a public case expects, and why.

Each entry names the case and what we give instead, so that a change of ours shows up too.
"""

from __future__ import annotations

# Header and body of an encoding case -> what `find_encoding` gives, and the reason.
ENCODINGS: dict[tuple[str, bytes], tuple[str, str]] = {
    ("", b'<meta http-equiv="Fake-Content-Type-Header" content="text/html; charset=utf-8">'): (
        "utf-8",
        "WHATWG wants http-equiv to be content-type, and the html5lib cases hold that; nothing "
        "is declared, then, and detection comes to the same.",
    ),
    (
        "",
        b'blah blah < meta   http-equiv="Content-Type"\n            '
        b'content="text/html; charset=iso-8859-1"> other stuff',
    ): (
        "utf-8",
        "`< meta` with a blank is text to every HTML parser (WHATWG tag open state).",
    ),
}

# Group of a link case -> the links we give, and the reason.
LINKS: dict[str, tuple[list[str], str]] = {
    "all links of a sample page": (
        [
            "http://example.com/sample1.html",
            "http://example.com/sample2.html",
            "http://example.com/sample3.html",
            "http://www.google.com/something",
            "http://example.com/innertag.html",
            "http://example.com/page%204.html",
        ],
        "A fragment is no other resource: it is dropped before repeats are, as in the case "
        "'same, canonicalised'.",
    ),
    "ftp link": ([], "Only http and https are crawled; the scope refuses it and counts it."),
    "ignored extension": (
        ["http://example.org/page.html", "http://example.org/photo.jpg"],
        "What a URL ends in does not tell its type; [scope] deny is there for that.",
    ),
    "first base wins": ([], "Images are not followed; the base itself is checked apart."),
    "relative base": ([], "Images are not followed; the base itself is checked apart."),
    "srcset, odd": ([], "Images are not followed."),
}

# The base of those cases whose only link is an image.
BASES: dict[str, str] = {
    "first base wins": "https://www.schmid-gartenpflanzen.de/first/",
    "relative base": "https://www.schmid-gartenpflanzen.de/forum/",
}

# Markup of a meta refresh case -> the target we give, and the reason.
REFRESHES: dict[str, tuple[str | None, str]] = {
    '<meta http-equiv="refresh" content="5;url=newpage"': (
        None,
        "A tag that the document ends in is dropped (WHATWG eof-in-tag): of a body cut "
        "short, half a URL would be taken for a whole one.",
    ),
}

# The `srcset` cases of the same file are not run: images are not followed.
