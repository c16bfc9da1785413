"""What a page asks of robots: `<meta name="robots">` and X-Robots-Tag.

Any thread; pure functions; imports nothing from the package. There is no standard beyond
the robots meta tag of HTML 4 (appendix B.4.1) and the search engines' own manuals, which
agree on this: rules add up, and the most restrictive one holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_SEPARATOR = re.compile(r"[,\s]+")
_AGENT_PREFIX = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*:(.*)", re.DOTALL)
# Rules that take a value: what stands before their colon is no user agent.
_VALUED_RULES = frozenset(
    {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
)


class Directives(NamedTuple):
    """Whether a page asks not to be indexed, and its links not to be followed."""

    noindex: bool = False
    nofollow: bool = False

    def __or__(self, other: Directives) -> Directives:
        return Directives(self.noindex or other.noindex, self.nofollow or other.nofollow)


NONE = Directives()


def agent_token(user_agent: str) -> str:
    """The product token of a User-Agent value, lower case: "MyBot/1.0 (...)" -> "mybot"."""
    words = user_agent.split("/", 1)[0].split()
    return words[0].lower() if words else ""


def from_meta(name: str, content: str, agent: str) -> Directives:
    """The rules of one `<meta>`; `agent` is our product token, lower case, "" for none."""
    named = name.strip().lower()
    if named != "robots" and (not agent or named != agent):
        return NONE
    return _from_words(_SEPARATOR.split(content.lower()))


def from_headers(fields: Iterable[str], agent: str) -> Directives:
    """The rules of all X-Robots-Tag fields, each given apart.

    `otherbot: noindex, nofollow` holds for otherbot alone, to the end of its field or to
    the next agent's name.
    """
    found = NONE
    for field in fields:
        for_us = True
        for part in field.split(","):
            rule = part
            prefix = _AGENT_PREFIX.match(part)
            if prefix and prefix[1].lower() not in _VALUED_RULES:
                for_us = prefix[1].lower() in ("robots", "*") or prefix[1].lower() == agent
                rule = prefix[2]
            if for_us:
                found |= _from_words((rule.strip().lower(),))
    return found


def _from_words(words: Iterable[str]) -> Directives:
    rules = frozenset(words)
    everything = "none" in rules
    return Directives(everything or "noindex" in rules, everything or "nofollow" in rules)
