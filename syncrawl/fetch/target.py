"""A URL as a connection sees it, and where a redirect points.

Pure functions, any thread. Imports the API types and ada-url (the WHATWG parser).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import ada_url

from syncrawl.api import Response
from syncrawl.errors import FetchError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""The statuses whose Location is followed; RFC 9110 section 15.4."""

_PORTS = {"http": 80, "https": 443}
# What may stand in a request line as it is. Everything else goes through the WHATWG parser first.
_PLAIN = re.compile(
    r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
    r"([/?][!$-;=?-\[\]-~]*)?(?:#.*)?\Z",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)


class Target(NamedTuple):
    """`path` is the request target: path and query, spelled as in the URL.

    `host` has no brackets, `authority` is the Host header's value.
    """

    scheme: str
    host: str
    port: int
    authority: str
    path: str

    @property
    def absolute(self) -> str:
        """The absolute form that a forwarding proxy wants; RFC 9112 section 3.2.2."""
        return f"{self.scheme}://{self.authority}{self.path}"


def split(url: str) -> Target:
    """Take `url` apart without changing how its path and query are spelled.

    Only a URL that no request line could carry (spaces, non-ASCII text) is serialised
    anew, as a browser does. Raises FetchError "url" for what is no http(s) URL.
    """
    match = _PLAIN.match(url)
    if match is None:
        match = _PLAIN.match(_serialised(url))
        if match is None:
            raise _bad(url)
    scheme, host, port_text, path = match.groups()
    scheme = scheme.lower()
    host = host.lower()
    port = int(port_text) if port_text else _PORTS[scheme]
    if not 0 < port < 65536:
        raise _bad(url)
    authority = host if port == _PORTS[scheme] else f"{host}:{port}"
    if not path:
        path = "/"
    elif path[0] == "?":
        path = "/" + path
    return Target(scheme, host.strip("[]"), port, authority, path)


def _serialised(url: str) -> str:
    try:
        parsed = ada_url.URL(url)
        parsed.username = parsed.password = ""
        return str(parsed.href)
    except ValueError:
        raise _bad(url) from None


def _bad(url: str) -> FetchError:
    return FetchError("is no http(s) URL", outcome="url", retryable=False, url=url[:200])


def location(response: Response, base: str) -> str | None:
    """The absolute URL that a redirect points to; None where there is none to follow.

    None also for a scheme other than http(s) and for what no URL can be made of. Bytes
    above ASCII are percent-encoded as they came, valid UTF-8 or not. The fragment of
    `base` lives on where the target has none (RFC 9110 section 10.2.2).
    """
    if response.status not in REDIRECTS:
        return None
    stated = response.headers.get_all("location")
    if not stated or not stated[0].strip():
        return None
    raw = stated[0].encode("latin-1", "replace")
    text = "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in raw)
    try:
        found = str(ada_url.join_url(base, text))
    except ValueError:
        return None
    if not found.startswith(("http://", "https://")):
        return None
    _, mark, fragment = base.partition("#")
    return f"{found}#{fragment}" if mark and "#" not in found else found
