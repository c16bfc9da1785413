"""Scope: which URLs a crawl accepts, decided when they are added and again when leased.

Any thread; imports urls and errors, and publicsuffixlist only where follow = "domain"
asks for it. Pure: no I/O, no counting. Depends on the configuration's shape alone,
not on its module, since config lies above.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from syncrawl.errors import ConfigError
from syncrawl.urls import Url, to_ascii

if TYPE_CHECKING:
    from syncrawl.config.model import ScopeConfig

SCHEME: Final = "scheme"
HOST: Final = "host"
ALLOW: Final = "allow"
DENY: Final = "deny"
DENY_HOSTS: Final = "deny_hosts"
DEPTH: Final = "depth"
TOO_LONG: Final = "too_long"

REASONS: Final = (SCHEME, HOST, ALLOW, DENY, DENY_HOSTS, DEPTH, TOO_LONG)
"""Every reason `Scope.refuse` gives; counted as `refused {reason: n}`."""

# Origins whose decision is remembered: those that the pages at hand link to, not the web's.
_MAX_DECISIONS = 4096
_MAX_ORIGIN_CHARS = 300

_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+").fullmatch


class _Followed(NamedTuple):
    """The names that are followed, and origin -> reason or None decided under just these.

    One object, so that a decision made under old names cannot land among the new.
    """

    names: set[str]
    decisions: dict[str, str | None]


class Scope:
    """The scope rules of one crawl. Every method may be called from any thread.

    `seeds` say what "host" and "domain" follow. Raises ConfigError for a pattern in
    `allow` or `deny` that is no regular expression.
    """

    def __init__(self, config: ScopeConfig, seeds: Iterable[Url]) -> None:
        self._max_depth = config.max_depth
        self._max_url_bytes = config.max_url_bytes
        self._allow = _searches("scope.allow", config.allow)
        self._deny = _searches("scope.deny", config.deny)
        self._denies_host = _globs(config.deny_hosts)
        self._priorities = tuple(
            zip(
                _searches("scope.priorities", config.priorities),
                config.priorities.values(),
                strict=True,
            )
        )
        self._name_of = _FOLLOW[config.follow]
        # Guards the replacement of _followed and _denies_host; readers take the references
        # without it.
        self._lock = threading.Lock()
        self._followed = _Followed(set(self._names(seeds)), {})

    def refuse(self, url: Url, depth: int) -> str | None:
        """Why `url`, met `depth` links from a seed, stays out; None where it is accepted.

        The cheapest test first, so a URL refused on several grounds has the cheapest reason.
        """
        if self._max_depth is not None and depth > self._max_depth:
            return DEPTH
        if len(url.spelling) > self._max_url_bytes:
            return TOO_LONG
        followed = self._followed
        try:
            reason = followed.decisions[url.origin]
        except KeyError:
            reason = self._decide(url, followed)
        if reason is not None:
            return reason
        for search in self._deny:
            if search(url.canonical):
                return DENY
        if self._allow and not any(search(url.canonical) for search in self._allow):
            return ALLOW
        return None

    def refuse_seed(self, url: Url) -> str | None:
        """`refuse` for a seed: it need not match `allow`, which is about what it links to."""
        reason = self.refuse(url, 0)
        return None if reason == ALLOW else reason

    def priority_of(self, url: Url) -> int:
        """The priority of a link: that of the first of `priorities` that is found in it, or 0."""
        for search, priority in self._priorities:
            if search(url.canonical):
                return priority
        return 0

    def extend(self, urls: Iterable[Url]) -> list[str]:
        """Follow the hosts (or domains) of `urls` too; the names that are new.

        For seeds read later on, and for where a seed was redirected to.
        """
        return self._follow(self._names(urls))

    def restore(self, names: Iterable[str]) -> None:
        """Follow `names` too: what seeds' redirects had added in an earlier run."""
        self._follow(frozenset(names))

    def _follow(self, names: frozenset[str]) -> list[str]:
        with self._lock:
            new = [name for name in names if name not in self._followed.names]
            if new:
                # The set only grows, so it may be shared; decisions made without the new
                # names end with the old object.
                self._followed.names.update(new)
                self._followed = _Followed(self._followed.names, {})
            return new

    def deny_hosts_changed(self, globs: Iterable[str]) -> None:
        """Go by these globs instead of `deny_hosts` from now on, on every thread."""
        with self._lock:
            self._denies_host = _globs(globs)
            # The old one holds decisions by the old globs.
            self._followed = _Followed(self._followed.names, {})

    def denied_host(self, host: str) -> bool:
        """Whether a glob of `deny_hosts` matches; `host` may carry a port, which is ignored."""
        return self._denies_host(host_name(host)) is not None

    def _names(self, urls: Iterable[Url]) -> frozenset[str]:
        if self._name_of is None:
            return frozenset()
        return frozenset(self._name_of(url.host) for url in urls)

    def _decide(self, url: Url, followed: _Followed) -> str | None:
        reason = None
        if not url.origin.startswith(("http://", "https://")):
            reason = SCHEME
        elif self._name_of is not None and self._name_of(url.host) not in followed.names:
            reason = HOST
        elif self.denied_host(url.host):
            reason = DENY_HOSTS
        if len(url.origin) <= _MAX_ORIGIN_CHARS:
            if len(followed.decisions) >= _MAX_DECISIONS:
                followed.decisions.clear()
            followed.decisions[url.origin] = reason
        return reason

    def __repr__(self) -> str:
        names = sorted(self._followed.names.copy())
        return f"<Scope following {'any host' if self._name_of is None else ', '.join(names)}>"


def host_name(host: str) -> str:
    """The name in "name" or "name:port", lower case; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def registrable_domain(host: str) -> str:
    """The domain that one owner registered, by the bundled public suffix list.

    `host` may carry a port, which is ignored. An address stands for itself, and so does a
    name that is a public suffix or a single label. https://publicsuffix.org/list/
    """
    name = host_name(host)
    if ":" in name or _IPV4(name):
        return name
    domain = _private_suffix()(name)
    return name if domain is None else domain


@cache
def _private_suffix() -> Callable[[str], str | None]:
    # Reading the list takes a while and some megabytes: not for those who never ask.
    from publicsuffixlist import PublicSuffixList

    found: Callable[[str], str | None] = PublicSuffixList().privatesuffix
    return found


def _searches(key: str, patterns: Iterable[str]) -> tuple[Callable[[str], object], ...]:
    """The patterns' `search` methods, in order."""
    searches = []
    for pattern in patterns:
        try:
            searches.append(re.compile(pattern).search)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"is not a regular expression ({error})",
                key=key,
                value=pattern,
                remedy=r"use Python's syntax, and \ before a character meant literally",
            ) from error
    return tuple(searches)


def _globs(patterns: Iterable[str]) -> Callable[[str], object]:
    """What tells whether a lower-case name without port matches any of the globs."""
    regexes = [translate(host_name_glob(pattern)) for pattern in patterns]
    # No pattern, no match: an empty alternation would match everything.
    return re.compile("|".join(regexes) or r"(?!)").match


def host_name_glob(pattern: str) -> str:
    """A glob as host names are compared: lower case, labels of other scripts in punycode."""
    return ".".join(
        label if label.isascii() else to_ascii(label) or label
        for label in pattern.lower().split(".")
    )


_FOLLOW: Final[dict[str, Callable[[str], str] | None]] = {
    "host": str,
    "domain": registrable_domain,
    "any": None,
}
