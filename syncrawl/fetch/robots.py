"""robots.txt as pure logic: what a file says to us, what a status means, how it is cached.

Runs on any thread and makes no exchange; the engine fetches. May import api, msgspec and
Protego (the last only when its engine is built).

Protego keeps the rules and matches them; where it reads a file otherwise than RFC 9309 and
Google's parser do, the file is put right before Protego sees it. It is handed ONE group,
ours, in a spelling that leaves it nothing to interpret: an octet is "-" and two hex digits,
`*` is "***", the end of a URL is "-zz". An octet or `*` is then three characters wherever it
stands, and Protego's longest pattern is the RFC's "most octets" (left to itself it counts
`?` as three, and takes every octet that is not UTF-8 for the same one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from syncrawl.api import ConfigError, RobotsEngine, RobotsRules
from syncrawl.fetch.robots_text import RULE_FIELDS, Field, Line, cap_body, our_group

__all__ = [
    "ALLOW_ALL",
    "DISALLOW_ALL",
    "FixedRules",
    "RobotsEntry",
    "protego_engine",
    "robots_url",
    "rules_for_status",
    "sitemap_urls",
]

# Every wildcard rule is tried on every URL. Where their number times the path's octets is above
# this (about 15 ms; real files and URLs stay under 10,000) the answer is no, at once: a hostile
# file shall cost its host pages, and not the others CPU.
MAX_WORK: Final = 1_000_000

# ------------------------------------------------------------------ Protego's spelling

_END = "-zz"
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|[\x80-\xff]")
_AUTHORITY = re.compile(r"(?:[^/?;#]*?://|//)?[^/?;#]*")
_DELAY_VALUE = re.compile(rb"\d+(?:\.\d*)?|\.\d+")
_RATE_VALUE = re.compile(rb"\d{1,9}/\d{1,9}[smhd]?(?:\s.*)?", re.IGNORECASE | re.DOTALL)


def _path_of(url: str) -> bytes:
    """The octets of `url` that rules are about, canonical: path and query, at least "/"."""
    path = _AUTHORITY.sub("", url, count=1).partition("#")[0]
    if path[:1] != "/":
        path = "/" + path
    return _canonical(path.encode("utf-8", "surrogatepass"))


def _canonical(octets: bytes) -> bytes:
    """`octets` as they are compared: ASCII only, equal where RFC 9309 section 2.2.2 says so."""
    if b"%" in octets or not octets.isascii():
        return _ESCAPE.sub(lambda match: _canonical_octet(match[0]), octets)
    return octets


@cache
def _canonical_octet(spelt: bytes) -> bytes:
    """One escape or raw octet: ASCII is decoded but for "/" and "%", the rest upper case."""
    octet = int(spelt[1:], 16) if len(spelt) == 3 else spelt[0]
    if octet >= 0x80 or octet in b"/%":
        return b"%%%02X" % octet
    return bytes((octet,))


def _coded(octets: bytes) -> str:
    return "-" + octets.hex("-") if octets else ""


class _Rule(NamedTuple):
    """One Allow or Disallow line: its canonical literals, between which a `*` stood."""

    allow: bool
    literals: tuple[bytes, ...]
    anchored: bool

    def line(self) -> str:
        """The rule as Protego is to read it."""
        pattern = "***".join(map(_coded, self.literals)) + _END * self.anchored
        return f"{'Allow' if self.allow else 'Disallow'}: /{pattern}"


def _rules(directives: Iterable[Line]) -> list[_Rule]:
    """The rules among `directives`, without repeats; those with no path say nothing."""
    return list(
        dict.fromkeys(
            _Rule(
                field is Field.ALLOW,
                tuple(map(_canonical, pattern.removesuffix(b"$").split(b"*"))),
                pattern.endswith(b"$"),
            )
            for field, value in directives
            if field in RULE_FIELDS and value
            for pattern in _patterns(field, value)
        )
    )


def _patterns(field: Field, value: bytes) -> Iterator[bytes]:
    """`value`, and what else the same line may mean: `$` itself, or the folder of an index.html.

    The second is Google's reading of Allow. A whole URL is a path that holds that URL.
    """
    if value.startswith((b"http://", b"https://")):
        value = b"/" + value
    yield value
    if value.endswith(b"$"):
        yield value[:-1] + b"%24"
    if field is Field.ALLOW and value.endswith(b"/index.html"):
        yield value.removesuffix(b"index.html") + b"$"


def _paces(directives: Iterable[Line]) -> Iterator[str]:
    """The lines about pace as Protego is to read them: plain numbers, none beyond a float."""
    for field, value in directives:
        if field is Field.DELAY and _DELAY_VALUE.fullmatch(value):
            yield f"Crawl-delay: {value.decode()}"
        elif field is Field.RATE and _RATE_VALUE.fullmatch(value):
            yield f"Request-rate: {value.decode('ascii', 'replace')}"


# ------------------------------------------------------------------ the rules


def _is_robots_txt(path: bytes) -> bool:
    return path.startswith(b"/robots.txt") and path[11:12] in (b"", b"?")


class FixedRules:
    """Rules with one answer for every URL; /robots.txt itself is always allowed."""

    __slots__ = ("_allow", "crawl_delay", "sitemaps")

    def __init__(
        self, allow: bool, crawl_delay: float | None = None, sitemaps: tuple[str, ...] = ()
    ) -> None:
        self._allow = allow
        self.crawl_delay = crawl_delay
        self.sitemaps = sitemaps

    def allowed(self, url: str) -> bool:
        return self._allow or _is_robots_txt(_path_of(url))

    def __repr__(self) -> str:
        return f"FixedRules({'allow' if self._allow else 'disallow'} all, {_extras(self)})"


ALLOW_ALL: Final = FixedRules(allow=True)
DISALLOW_ALL: Final = FixedRules(allow=False)


class ProtegoRules:
    """Rules that Protego decides; immutable, any thread.

    Most URLs are touched by no Disallow rule: one literal of each, and a look for it,
    tells that in a quarter of the time, and Protego is asked about the others.
    """

    __slots__ = ("_can_fetch", "_heads", "_inners", "_rules", "_wild", "crawl_delay", "sitemaps")

    def __init__(
        self,
        can_fetch: Callable[[str, str], bool],
        rules: Sequence[_Rule],
        crawl_delay: float | None,
        sitemaps: tuple[str, ...],
    ) -> None:
        self._can_fetch = can_fetch
        self._rules = len(rules)
        self._wild = sum(len(rule.literals) > 1 for rule in rules)
        self._heads, self._inners = _telling(rules)
        self.crawl_delay = crawl_delay
        self.sitemaps = sitemaps
        # Protego builds its index on the first question; no thread shall see it half-built.
        can_fetch("/", "*")

    def allowed(self, url: str) -> bool:
        path = _path_of(url)
        if len(path) * self._wild > MAX_WORK:
            return _is_robots_txt(path)
        if not path.startswith(self._heads):
            for inner in self._inners:
                if inner in path:
                    break
            else:
                return True
        if _is_robots_txt(path):
            return True
        return self._can_fetch("/" + _coded(path) + _END, "*")

    def __repr__(self) -> str:
        return f"ProtegoRules({self._rules} rules, {_extras(self)})"


def _telling(rules: Iterable[_Rule]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Literals of Disallow rules: a path that starts with none and holds none is allowed."""
    heads: dict[bytes, None] = {}
    inners: dict[bytes, None] = {}
    for allow, (head, *rest), _ in rules:
        if allow:
            continue
        if len(head) > 1:
            heads[head] = None
        else:  # "/" or nothing leads every path; where nothing follows, "" is in every path
            inners[max(rest, key=len, default=b"")] = None
    return tuple(heads), tuple(inners)


def _extras(rules: RobotsRules) -> str:
    return f"crawl_delay={rules.crawl_delay}, {len(rules.sitemaps)} sitemaps"


class _ProtegoEngine:
    """api.RobotsEngine over Protego; stateless."""

    def __init__(self) -> None:
        from protego import Protego

        self._parse: Callable[[str], Protego] = Protego.parse

    def parse(self, body: bytes, user_agent: str) -> RobotsRules:
        """The rules of `body` for `user_agent`; never raises, whatever the bytes.

        `sitemaps` are as written, without repeats; see `sitemap_urls`. A Request-rate
        counts as a Crawl-delay of seconds / requests, its hours of the day are not looked
        at, and the slower of the two holds.
        """
        directives, sitemaps = our_group(body, user_agent)
        rules, paces = _rules(directives), list(_paces(directives))
        if not rules and not paces:
            return FixedRules(True, None, sitemaps) if sitemaps else ALLOW_ALL
        lines = ["User-agent: *", *(rule.line() for rule in rules), *paces]
        parsed = self._parse("\n".join(lines))
        rate = parsed.request_rate("*")
        delays = [parsed.crawl_delay("*"), rate.seconds / rate.requests if rate else None]
        delay = max((each for each in delays if each is not None), default=None)
        if all(rule.allow for rule in rules):
            return FixedRules(True, delay, sitemaps)
        if rules == [_Rule(False, (b"/",), False)]:
            return FixedRules(False, delay, sitemaps)
        return ProtegoRules(parsed.can_fetch, rules, delay, sitemaps)


def protego_engine(options: Mapping[str, Any]) -> RobotsEngine:
    """Factory of the "protego" engine, which takes no options."""
    for key in options:
        raise ConfigError("the protego engine has no options", key=f"robots.options.{key}")
    return _ProtegoEngine()


# ------------------------------------------------------------------ around one exchange


def robots_url(origin: str) -> str:
    """Where the rules for `origin`, an origin or any http(s) URL of it, are kept.

    Without userinfo and default port. Raises ValueError for what is no http(s) URL.
    """
    parts = urlsplit(origin)
    port = parts.port
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"no http(s) URL with a host: {origin!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = {"http": 80, "https": 443}[parts.scheme]
    suffix = "" if port in (None, default) else f":{port}"
    return f"{parts.scheme}://{host}{suffix}/robots.txt"


def sitemap_urls(rules: RobotsRules, base: str) -> tuple[str, ...]:
    """The http(s) sitemaps of `rules`, resolved against `base`, the URL of the file."""
    urls: dict[str, None] = {}
    for written in rules.sitemaps:
        try:
            url = urljoin(base, written)
            usable = urlsplit(url).scheme in ("http", "https")
        except ValueError:
            continue
        if usable:
            urls[url] = None
    return tuple(urls)


def rules_for_status(
    status: int, body: bytes, engine: RobotsEngine, user_agent: str, max_bytes: int
) -> RobotsRules | None:
    """What an answer to the robots.txt request means (RFC 9309 section 2.3.1).

    None: nothing may be fetched for now, ask again later (5xx; 429 and 304, which say
    nothing about the file). A 3xx is one that was not followed to its end: "unavailable",
    like 4xx, 401 and 403 among them, and everything is allowed.
    """
    if 200 <= status < 300:
        return engine.parse(cap_body(body, max_bytes), user_agent)
    if 300 <= status < 500 and status not in (304, 429):
        return ALLOW_ALL
    return None


class RobotsEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One origin's answer, kept across runs. `fetched_at` is wall seconds, `body` capped."""

    origin: str
    fetched_at: float
    status: int
    body: bytes = b""

    def encode(self) -> bytes:
        """The entry as MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> RobotsEntry:
        """The entry that `encode` wrote; ValueError for anything else."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"no robots entry: {error}") from error

    def fresh(self, now: float, seconds: float) -> bool:
        """Whether it is less than `seconds` old at wall time `now`, and not from the future."""
        return 0 <= now - self.fetched_at < seconds
