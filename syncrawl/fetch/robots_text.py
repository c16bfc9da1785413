"""A robots.txt as text: which lines it has, which group of them speaks to us.

Runs on any thread; pure, the standard library only. `robots` makes rules of what is read
here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

# Google's parser cuts a line here; the RFC names no limit.
MAX_LINE_BYTES: Final = 16_663

# ------------------------------------------------------------------ who we are

_NAME = re.compile(r"[\w-]+")
_COMPATIBLE = re.compile(r"\bcompatible;\s*([^\W\d][\w-]*)")
_COMMENT = re.compile(r"\([^()]*\)?")
_PRODUCT = re.compile(r"(?:^|\s)([^\W\d][\w-]*)")


def product_token(user_agent: str) -> str:
    """The name under which `user_agent`, a full header value, looks for its group.

    Lower case; "" where there is none. The first product's name (RFC 9309 section 2.2.1);
    behind a browser's mask, `Mozilla/5.0 (compatible; Name/1.0)`, the name after
    "compatible", else the last product. Digits and non-ASCII letters, which the RFC leaves
    out, belong to a name, so that `bot1` and `bot2` differ.
    """
    header = user_agent.strip().lower()
    token = _leading_name(header)
    if token != "mozilla":
        return token
    if masked := _COMPATIBLE.search(header):
        return masked[1]
    products: list[str] = _PRODUCT.findall(_COMMENT.sub(" ", header))
    return products[-1]


def _leading_name(text: str) -> str:
    name = _NAME.match(text)
    return name[0] if name else ""


def group_names(user_agent: str) -> tuple[str, ...]:
    """Groups that would be ours, best first: our name, its RFC spelling, everybody's."""
    token = product_token(user_agent)
    strict = re.match(r"[a-z_-]*", token)
    return tuple(name for name in (token, strict[0] if strict else "", "*") if name)


# ------------------------------------------------------------------ reading a file


class Field(Enum):
    """What a line can say, with the spellings met in real files that can mean nothing else."""

    AGENT = (b"user-agent", b"useragent", b"user agent", b"useg-agent")
    ALLOW = (b"allow",)
    DISALLOW = (
        *(b"disallow", b"desallow", b"dissallow", b"dissalow"),
        *(b"disalow", b"diasllow", b"disallaw"),
    )
    DELAY = (b"crawl-delay", b"crawl delay")
    RATE = (b"request-rate", b"request rate")
    SITEMAP = (b"sitemap", b"sitemaps", b"site-map")


Line = tuple[Field, bytes]
RULE_FIELDS = (Field.ALLOW, Field.DISALLOW)
_FIELDS: Final = {spelling: field for field in Field for spelling in field.value}
# The colon may be missing.
_LINE = re.compile(
    rb"(%b)(?:[ \t]*:|[ \t])(.*)" % b"|".join(sorted(_FIELDS, reverse=True)),
    re.IGNORECASE | re.DOTALL,
)
_LINE_END = re.compile(rb"\r\n?|\n")


def _utf8(body: bytes) -> bytes:
    """`body` without its byte order mark, cut short or not; UTF-16 is recoded."""
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        # Rules are ASCII, half of which is NUL in UTF-16; without any, only the mark is wrong.
        if b"\0" not in body:
            return body[2:]
        return body.decode("utf-16", "replace").encode("utf-8", "replace")
    for mark in (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef"):
        if body.startswith(mark):
            return body[len(mark) :]
    return body


def cap_body(body: bytes, max_bytes: int) -> bytes:
    """At most `max_bytes` of a robots.txt, cut at the end of a line (RFC 9309 section 2.5).

    A body of `max_bytes` or more counts as cut, and half a line is no rule. What was cut
    is returned as UTF-8 without a byte order mark.
    """
    if len(body) < max_bytes:
        return body
    text = _utf8(body[:max_bytes])
    return text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]


def _directives(body: bytes) -> Iterator[Line]:
    """The lines that mean something, as (field, value)."""
    for line in _LINE_END.split(_utf8(body)):
        match = _LINE.match(line[:MAX_LINE_BYTES].partition(b"#")[0].strip())
        if match:
            yield _FIELDS[match[1].lower()], match[2].strip()


def our_group(body: bytes, user_agent: str) -> tuple[list[Line], tuple[str, ...]]:
    """The directives of the group that binds `user_agent`, and the file's sitemaps as written.

    Groups of one name are merged, rules before any User-agent line bind nobody, and only
    Allow and Disallow end a run of User-agent lines (RFC 9309 sections 2.2.1 and 2.2.4).
    """
    names = group_names(user_agent)
    groups: dict[str, list[Line]] = {}
    current: set[str] = set()
    naming = False
    sitemaps: dict[str, None] = {}
    for field, value in _directives(body):
        if field is Field.SITEMAP:
            sitemaps[value.decode("utf-8", "replace")] = None
        elif field is Field.AGENT:
            if not naming:
                current, naming = set(), True
            name = _agent_named(value)
            if name in names:
                current.add(name)
                groups.setdefault(name, [])
        else:
            naming = naming and field not in RULE_FIELDS
            for name in current:
                groups[name].append((field, value))
    sitemaps.pop("", None)
    ours = next((groups[name] for name in names if name in groups), [])
    return ours, tuple(sitemaps)


def _agent_named(value: bytes) -> str:
    if value[:1] == b"*" and not value[1:2].strip():
        return "*"
    return _leading_name(value.decode("utf-8", "replace").lstrip("*").lower())
