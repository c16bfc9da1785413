"""A scraping API in between: what is asked of it, and whose answer it is that comes back.

Any thread; pure. Its own refusals are told from the target's, since they slow different
things down: its own move the one limit on all requests, the target's that host's.
"""

from __future__ import annotations

from urllib.parse import quote

from syncrawl.api import Response
from syncrawl.config.model import GatewayConfig
from syncrawl.errors import FetchError

THROTTLED = "gateway_throttled"
EXHAUSTED = "gateway_exhausted"
REFUSED = "gateway_refused"
FAILED = "gateway_failed"
UNREACHABLE = "gateway_unreachable"

# Statuses by which a server refuses the one who asks: a key that is wrong or missing.
_AUTH = frozenset({401, 403, 407})
# Failures of a target that the gateway has tried again itself.
_TRIED = frozenset({408, 425, 500, 502, 504})


class Gateway:
    """Wraps targets into requests to the gateway, and unwraps what it answers."""

    def __init__(self, config: GatewayConfig) -> None:
        self._before, _, self._after = config.url.partition("{url}")
        self._throttled = frozenset(config.throttled_status)
        self._exhausted = frozenset(config.exhausted_status)
        self._header = config.target_status_header

    def wrap(self, url: str) -> str:
        """What to ask the gateway for; RFC 3986 section 2.1: nothing in `url` is left as it is."""
        return self._before + quote(url, safe="") + self._after

    def unwrap(self, url: str, response: Response) -> Response:
        """The target's answer to a request for `url`.

        Raises FetchError where it is the gateway's own: "gateway_throttled", "gateway_exhausted",
        "gateway_refused" (our key or plan) or "gateway_failed".
        """
        status: int | None = response.status
        if self._header and self._header in response.headers:
            status = _status(response.headers[self._header])
        elif response.status in self._throttled:
            raise _own("asks for fewer requests at once", THROTTLED)
        elif response.status in self._exhausted:
            raise _own(f"says that the quota is used up ({response.status})", EXHAUSTED)
        elif self._header and response.status in _AUTH:
            raise _own(f"refused the request ({response.status})", REFUSED)
        elif self._header:
            status = None
        if status is None:
            raise _own(f"answered {response.status} without the target's status", FAILED)
        response.url = url
        response.status = status
        response.latency = None  # says nothing of the target
        return response

    @staticmethod
    def blame(error: FetchError) -> FetchError:
        """A failed exchange with the gateway, which is no failure of the target's."""
        if error.ours:
            return error
        failure = _own(f"could not be asked: {error.outcome}", FAILED)
        failure.wire_bytes = error.wire_bytes
        return failure

    @staticmethod
    def has_tried(status: int) -> bool:
        """True for a target's failure that the gateway has tried again already."""
        return status in _TRIED or status >= 505

    def __repr__(self) -> str:
        return "<Gateway>"  # its URL holds a key


def _status(text: str) -> int | None:
    text = text.strip()
    if len(text) == 3 and text.isascii() and text.isdecimal() and "100" <= text <= "599":
        return int(text)
    return None


def _own(message: str, outcome: str) -> FetchError:
    return FetchError(f"the gateway {message}", outcome=outcome, ours=True)
