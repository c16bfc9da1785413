"""Where the sitemap parser answers otherwise than a public case expects, and why.

Keyed by the case's group; the value is what we give instead: kind and locations.
"""

from __future__ import annotations

# The README of the cases: of a broken sitemap what was read is kept, and it is reported.
DIFFERENCES: dict[str, tuple[str, list[str], str]] = {
    "not well-formed": (
        "urlset",
        ["http://cs.harding.edu/fmccown/sitemaps/something.html"],
        "Kept and reported, as the README of the cases says; the source refuses the file.",
    ),
    "truncated in </loc> (partial allowed)": (
        "urlset",
        [],
        "Half a last <loc> is dropped: nothing tells it from a whole one.",
    ),
    "entity bomb: any DOCTYPE refused": (
        "urlset",
        ["http://h/page.html"],
        "No entity is expanded, so the declarations do no harm; as Scrapy we go on.",
    ),
}

# What the source has a rule for, and we have not.
NO_RULE = {
    "location rule": (
        "A sitemap may list any URL, as for Scrapy and usp: [scope] decides what is crawled."
    ),
}

# Held by another test, since the case is prose.
ELSEWHERE = {"gzip larger than the cap": "test_a_bomb_is_cut_at_the_cap"}
