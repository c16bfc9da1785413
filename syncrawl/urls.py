r"""Canonical URLs: a pure function from what a page says to what is requested and compared.

Any thread; imports only ada_url, a WHATWG URL parser (https://url.spec.whatwg.org/).

The rules. `Url.spelling` is what WHATWG parsing makes of the text, less fragment and
userinfo: blanks stripped, tabs and newlines removed, scheme and host in lower case,
IPv4 and IPv6 addresses in their usual form, IDNA names in punycode (UTS 46
non-transitional; `_`, and hyphens in places 3 and 4, are fine as they are in DNS),
default port dropped, backslashes turned, dot segments resolved, unsafe characters
percent-encoded as UTF-8, unpaired surrogates read as U+FFFD. `Url.canonical` is the
spelling with these rules applied:

1. The trailing dot of the host goes; `www.` and the scheme stay.
2. Escapes of unreserved characters (RFC 3986 section 2.3) are decoded, once; every other escape
   stays, its hex digits in upper case, whether or not it is valid UTF-8. What WHATWG lets stand
   and RFC 3986 does not is escaped: ``[ ] \ ^ ` { | }``, and a `%` that starts no escape.
3. Tracking parameters, as configured, are dropped from the query, and from the path where
   they are written `;name=value` (`/a;jsessionid=1F`). Case does not matter in their names.
4. Query parameters, split at `&`, are sorted by name, equal names in the order they came;
   empty ones (`a&&b`) are dropped. `b` gets no `=`, and `+` and `%20` remain what they are.
5. An empty query goes, its `?` with it.
6. Paths keep their case, their `//` and a trailing slash.

`Url.key` is the canonical form less one slash at the end of its path: `/docs/` and
`/docs` compare equal, and so do `http://host/` and `http://host`. A change to any of
this must raise RULES_VERSION, since fingerprints on disk depend on it.

ada gives up the interpreter lock at each call: a link that goes there costs three times a
plain one, and some 70 us of waiting where another thread is busy. So plain links, by far
the most, are put together here; a test holds the two ways against each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import ada_url

RULES_VERSION: Final = 1

_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_UNESCAPED_BY_WHATWG = "[]\\^`{|}%"

# What WHATWG serialisation leaves as it is, less what rules 2 and 3 touch in a path. `'` is
# missing because a query escapes it and a path does not.
_PLAIN_HREF = re.compile(
    r"(https?://[A-Za-z0-9._:-]++)?+"
    r"([A-Za-z0-9._~!$&()*+,:=@/%-]*+)"
    r"(?:\?([A-Za-z0-9._~!$&()*+,:=@/%?;\[\]|-]*+))?+"
).fullmatch

_RULE_2 = re.compile(r"%[0-9A-Fa-f]{2}|[][\\^`{|}%]")
_MAY_NEED_RULES_2_3 = re.compile(r"[][\\^`{|}%;]").search
# Leaves out the escapes that are canonical already, which is most of those that links have.
_NEEDS_RULE_2 = re.compile(
    r"[][\\^`{|}]|%(?!(?:[0189A-F][0-9A-F]|2[0-9A-CF]|3[A-F]|40|5[B-E]|60|7[BCDF]))"
).search
_SURROGATE = re.compile(r"[\ud800-\udfff]").search
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ESCAPED_DOT = re.compile(r"%2[Ee]").search

# Scheme, then anything a lenient reader takes for slashes, then userinfo up to the last `@`.
_USERINFO = re.compile(
    r"^([^:/?#\\]*:[/\\]{2}[/\\]*|[\x00-\x20]*https?:[/\\]*|[\x00-\x20]*[/\\]{2})[^/?#\\]*@",
    re.IGNORECASE,
)

# Authorities whose parse is remembered, and the longest one worth it: enough for the hosts
# that a crawl's pages link to at one time, and about a megabyte at most.
_MAX_AUTHORITIES = 4096
_MAX_AUTHORITY_CHARS = 255


class Url(NamedTuple):
    """One http(s) URL in the forms the crawl needs; ASCII throughout.

    `spelling` is absolute and is what gets requested; `canonical` is what is reported and
    matched; `key` is what is compared. `host` is "host" or "host:port" and `origin`
    "scheme://host[:port]", both canonical: no default port, no trailing dot.
    """

    spelling: str
    canonical: str
    key: str
    host: str
    origin: str


class _Authority(NamedTuple):
    """What "scheme://authority" comes to: as it is requested, its origin, its host."""

    spelled: str
    origin: str
    host: str


def _rule_2() -> dict[str, str]:
    """What rule 2 makes of all that it looks at: escapes, however written, and bare characters."""
    table = {char: f"%{ord(char):02X}" for char in _UNESCAPED_BY_WHATWG}
    for code in range(256):
        escape = f"%{code:02X}"
        canonical = chr(code) if chr(code) in _UNRESERVED else escape
        high, low = escape[1], escape[2]
        for first in (high, high.lower()):
            table[f"%{first}{low}"] = table[f"%{first}{low.lower()}"] = canonical
    return table


_RULE_2_TABLE = _rule_2()
_QUERY_BYTES = [
    chr(byte) if 0x21 <= byte <= 0x7E and chr(byte) not in "\"#<>'" else f"%{byte:02X}"
    for byte in range(256)
]


def fingerprint(key: str) -> int:
    """The unsigned 64-bit fingerprint that stands for a comparison key on disk.

    BLAKE2b cut to 8 bytes. Among n keys the odds that any two collide are about
    n**2 / 2**65: 3e-8 for a million, 3e-6 for ten million, 3e-4 for a hundred million.
    A collision costs one page, taken for seen.
    """
    return int.from_bytes(blake2b(key.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def rules_id(tracking_parameters: Sequence[str]) -> str:
    """A short id of all that fingerprints depend on; a state directory keeps it.

    Equal for lists that drop the same names: order, case and repeats do not matter.
    """
    names = "\n".join(sorted({name.lower() for name in tracking_parameters}))
    return f"{RULES_VERSION}-{blake2b(names.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def to_ascii(name: str) -> str | None:
    """A host name, or one label of it, as `Url.host` spells it; None where it is not valid."""
    href = _whatwg(f"http://{name}/", None)
    return None if href is None else _without_root_dot(href[len("http://") : href.index("/", 7)])


def redact(url: str) -> str:
    """`url`, parsed or not, fit for a log line: no userinfo, nothing that steers a terminal.

    Characters that do not print (controls, bidirectional marks, lone surrogates) are
    written as Python escapes.
    """
    if "@" in url:
        url = _USERINFO.sub(r"\1", url, count=1)
    if url.isprintable():
        return url
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in url
    )


class Canonicalizer:
    """Applies the rules with one list of tracking parameters; safe to share between threads.

    `tracking_parameters` are names; a trailing `*` matches any ending.
    """

    def __init__(self, tracking_parameters: Sequence[str]) -> None:
        names = [name.lower() for name in tracking_parameters]
        self.rules_id = rules_id(tracking_parameters)
        self._dropped_names = frozenset(name for name in names if not name.endswith("*"))
        self._dropped_prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
        # Text as found -> its parse, or None where it is no valid http(s) authority. Threads
        # may compute an entry twice; they compute the same.
        self._authorities: dict[str, _Authority | None] = {}
        self._absolute = Resolver(self, None, None)

    def parse(self, url: str) -> Url | None:
        """The forms of an absolute URL; None where it is not http(s) or not valid. Never raises."""
        return self._absolute.resolve(url)

    def resolver(self, base: str, encoding: str | None = None) -> Resolver:
        """What resolves the links of one page, whose URL or `<base href>` is `base`.

        Where `base` is no http(s) URL, only absolute links resolve. `encoding` is the page's
        Python codec: as in a browser, text in a link's query is escaped as bytes of it. None,
        any UTF and an unknown name mean UTF-8.
        """
        return Resolver(self, self.parse(base), encoding)

    def _authority(self, text: str) -> _Authority | None:
        """The parse of "scheme://authority" as it stands in a URL before `/` or `?`."""
        try:
            return self._authorities[text]
        except KeyError:
            pass
        href = _whatwg(text + "/", None)
        found = None
        if href is not None and href.startswith(("http://", "https://")):
            scheme, _, rest = href.partition("://")
            spelled = rest[: rest.index("/")].rpartition("@")[2]
            host = _without_root_dot(spelled)
            found = _Authority(f"{scheme}://{spelled}", f"{scheme}://{host}", host)
        if len(text) <= _MAX_AUTHORITY_CHARS:
            if len(self._authorities) >= _MAX_AUTHORITIES:
                self._authorities = {}
            self._authorities[text] = found
        return found

    def _url(self, authority: _Authority, path: str, query: str | None) -> Url:
        """All forms, from parts already in WHATWG's serialisation; `path` starts with a slash."""
        spelled, origin, host = authority
        spelling = spelled + path
        if _MAY_NEED_RULES_2_3(path):
            path = self._canonical_path(path)
        canonical = origin + path
        key = canonical[:-1] if canonical[-1] == "/" else canonical
        if query is not None:
            spelling = f"{spelling}?{query}"
            if query := self._canonical_query(query):
                canonical = f"{canonical}?{query}"
                key = f"{key}?{query}"
        return Url(spelling, canonical, key, host, origin)

    def _canonical_path(self, path: str) -> str:
        path = _canonical_escapes(path)
        if ";" in path:
            path = "/".join(map(self._without_session, path.split("/")))
        return path

    def _without_session(self, segment: str) -> str:
        """A path segment less its tracking parameters, unless dots alone would be left."""
        name, *parameters = segment.split(";")
        kept = [text for text in parameters if "=" not in text or not self._is_tracking(text)]
        shorter = ";".join([name, *kept])
        # `/..;sid=1/` names a segment, `/../` the parent: a canonical form must not climb.
        return segment if shorter in (".", "..") else shorter

    def _canonical_query(self, query: str) -> str:
        query = _canonical_escapes(query)
        if "&" not in query:
            return "" if self._is_tracking(query) else query
        kept = [text for text in query.split("&") if text and not self._is_tracking(text)]
        kept.sort(key=_parameter_name)
        return "&".join(kept)

    def _is_tracking(self, parameter: str) -> bool:
        name = parameter.partition("=")[0].lower()
        return name in self._dropped_names or name.startswith(self._dropped_prefixes)


class Resolver:
    """Resolves links against one base; made once a page, so that work on the base is shared.

    Holds the base's parts only, and may be used from several threads.
    """

    def __init__(
        self, canonicalizer: Canonicalizer, base: Url | None, encoding: str | None
    ) -> None:
        self._canonicalizer = canonicalizer
        self._encoding = encoding
        self._base = base
        if base is None:
            return
        head, _, _ = base.spelling.partition("?")
        start = head.index("/", len("https://"))
        self._authority = canonicalizer._authority(head[:start])
        self._scheme = base.spelling.partition("//")[0]
        self._path = head[start:]
        self._folder = self._path[: self._path.rindex("/") + 1]

    def resolve(self, href: str) -> Url | None:
        """The forms of a link; None where it is not http(s) or not valid. Never raises."""
        cut = href.find("#")
        match = _PLAIN_HREF(href if cut < 0 else href[:cut])
        if match is None:
            return self._resolve_any(href)
        origin, path, query = match.groups()
        if origin is not None:
            authority = self._canonicalizer._authority(origin)
            path = path or "/"
        elif self._base is None:
            return self._resolve_any(href)
        else:
            authority = self._authority
            if not path:
                if query is None:
                    return self._base
                path = self._path
            elif path[0] != "/":
                # A colon may end a scheme: `mailto:me`.
                path = self._beside_base(path) if ":" not in path else ""
            elif path[1:2] == "/":
                return self.resolve(self._scheme + href)
        if path[:1] != "/" or "/." in path or ("%" in path and _ESCAPED_DOT(path)):
            return self._resolve_any(href)
        return None if authority is None else self._canonicalizer._url(authority, path, query)

    def _beside_base(self, path: str) -> str:
        """The absolute path that a relative one means; dots after its head are left in."""
        folder = self._folder
        while path[0] == ".":
            if path.startswith("../"):
                folder = folder[: folder.rfind("/", 0, -1) + 1] or "/"
                path = path[3:]
            elif path.startswith("./"):
                path = path[2:]
            else:
                break
            if not path:
                break
        return folder + path

    def _resolve_any(self, href: str) -> Url | None:
        """As `resolve`, for every link that is not plain."""
        if self._encoding is not None and not href.isascii():
            href = _with_query_in(href, self._encoding)
        text = _whatwg(href, None if self._base is None else self._base.spelling)
        if text is None or not text.startswith(("http://", "https://")):
            return None
        # Only here: cut from the link, it would bare blanks to be stripped (`/a?b #c`).
        head, mark, query = text.partition("#")[0].partition("?")
        start = head.index("/", len("https://"))
        authority = self._canonicalizer._authority(head[:start])
        if authority is None:
            return None
        return self._canonicalizer._url(authority, head[start:], query if mark else None)


def _whatwg(url: str, base: str | None) -> str | None:
    """The serialised result of the WHATWG parser; None where it fails."""
    try:
        return ada_url.normalize_url(url) if base is None else ada_url.join_url(base, url)
    except ValueError:
        if _SURROGATE(url) is None:
            return None
    # As a browser reads a string: pairs are one character, what is unpaired is U+FFFD.
    return _whatwg(url.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), base)


def _with_query_in(href: str, encoding: str) -> str:
    """`href` with what is not ASCII in its query escaped as bytes of a legacy encoding.

    https://url.spec.whatwg.org/#query-state: a character the encoding lacks becomes the
    escaped text of a numeric character reference.
    """

    def escaped(match: re.Match[str]) -> str:
        try:
            data = match[0].encode(encoding)
        except UnicodeEncodeError:
            return "".join(map(one_escaped, match[0]))
        return "".join(_QUERY_BYTES[byte] for byte in data)

    def one_escaped(char: str) -> str:
        try:
            return "".join(_QUERY_BYTES[byte] for byte in char.encode(encoding))
        except UnicodeEncodeError:
            code = 0xFFFD if _SURROGATE(char) else ord(char)
            return f"%26%23{code}%3B"

    before, hash_mark, fragment = href.partition("#")
    head, mark, query = before.partition("?")
    try:
        if "".encode(encoding) or encoding.lower().startswith(("utf", "u8")):
            return href
        return head + mark + _NOT_ASCII.sub(escaped, query) + hash_mark + fragment
    except (LookupError, ValueError):
        # No codec of that name, or one that is not for text.
        return href


def _without_root_dot(host: str) -> str:
    """`host`, or "host:port", less one trailing dot; two dots are an empty label, and stay."""
    name, colon, port = host.partition(":") if host[:1] != "[" else (host, "", "")
    if name.endswith(".") and not name.endswith("..") and len(name) > 1:
        return name[:-1] + colon + port
    return host


def _canonical_escapes(text: str) -> str:
    if not _NEEDS_RULE_2(text):
        return text
    return _RULE_2.sub(lambda match: _RULE_2_TABLE[match[0]], text)


def _parameter_name(parameter: str) -> str:
    return parameter.partition("=")[0]
