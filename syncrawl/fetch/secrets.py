"""Which parts of a gateway's URL are keys, and how they are kept out of what is passed on.

Any thread; pure. A gateway's error page or redirect may repeat the key it was asked with, and
pages are stored and their links followed.
"""

from __future__ import annotations

import re
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

_MASK = b"***"
# What values that must not be shown are called.
_NAMES = re.compile(r"(?i)key|token|auth|secret|pass|pwd|cred|sig")
# Shorter ones occur by chance: in URLs, and sooner in pages.
_SHORTEST = 6
_SHORTEST_IN_PAGES = 8
# A value of any name, or a path's segment, of such a length and kind is no option's word.
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9._~-]{16,}")


def of(template: str) -> tuple[str, ...]:
    """What in `template`, a URL with {url} in it, is a key as far as its form tells; longest first.

    Each in the spellings in which an answer may repeat it.
    """
    parts = urlsplit(template.replace("{url}", ""))
    found = {segment for segment in parts.path.split("/") if _RANDOM.fullmatch(segment)}
    for pair in re.split("[&;]", parts.query):
        name, _, value = pair.partition("=")
        named = len(value) >= _SHORTEST and _NAMES.search(name)
        if named or _RANDOM.fullmatch(value):
            found.add(value)
    spellings = set(found)
    for value in found:
        plain = unquote_plus(value)
        spellings |= {plain, quote(plain, safe=""), quote_plus(plain)}
    return tuple(sorted(spellings, key=lambda text: (-len(text), text)))


def shows(text: str, secrets: tuple[str, ...]) -> bool:
    """Whether `text`, as it is or percent-decoded, holds one of `secrets`."""
    plain = unquote_plus(text)
    return any(secret in text or secret in plain for secret in secrets)


def masked(body: bytes, secrets: tuple[str, ...]) -> bytes:
    """`body` with stars in place of each of `secrets`."""
    for secret in secrets:
        data = secret.encode()
        if len(data) >= _SHORTEST_IN_PAGES and data in body:
            body = body.replace(data, _MASK)
    return body
