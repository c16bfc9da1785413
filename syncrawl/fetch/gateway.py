"""A scraping API in between: what is asked of it, and whose answer it is that comes back.

Any thread; pure. Its own refusals are told from the target's, since they slow different
things down: its own move the one limit on all requests, the target's that host's. Its URL
holds a key as a rule, so nothing that leaves here names it: see `secrets`.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from syncrawl.api import Headers, Response
from syncrawl.config.model import GatewayConfig
from syncrawl.errors import FetchError
from syncrawl.fetch import proxy, secrets
from syncrawl.fetch.target import location, split

THROTTLED = "gateway_throttled"
EXHAUSTED = "gateway_exhausted"
REFUSED = "gateway_refused"
FAILED = "gateway_failed"
TIMEOUT = "gateway_timeout"
UNREACHED = "gateway_unreached"

# Statuses by which a server refuses the one who asks: a key that is wrong or missing.
_AUTH = frozenset({401, 403, 407})
# Failures that are no failure to reach the gateway: the target's body, and our proxy before it.
_NOT_ITS_OWN = frozenset({"too_large", "decode", "proxy"})
# Failures whose message comes from the system and tells the operator why.
_TELLING = frozenset({"connect", "connection", "dns", "incomplete", "timeout", "tls"})
# How far an exchange comes that never had a connection to the gateway.
_BEFORE = frozenset({"start", "dns", "connect", "tls"})


class GatewayError(FetchError):
    """The gateway's own word, or none from it; `retry_after` is its field as it came."""

    def __init__(
        self,
        message: str,
        *,
        outcome: str,
        url: str,
        retry_after: str | None = None,
        wire_bytes: int = 0,
    ) -> None:
        super().__init__(
            f"the gateway {message}",
            outcome=outcome,
            # A target that keeps the gateway waiting is not our doing.
            ours=outcome != TIMEOUT,
            url=url,
            wire_bytes=wire_bytes,
        )
        self.retry_after = retry_after


class Gateway:
    """Wraps targets into requests to the gateway, and unwraps what it answers."""

    def __init__(self, config: GatewayConfig) -> None:
        self._template = config.url
        self._throttled = frozenset(config.throttled_status)
        self._exhausted = frozenset(config.exhausted_status)
        self._header = config.target_status_header
        self._authority = split(self.wrap("x")).authority if config.url else ""
        self._secrets = secrets.of(config.url)

    def wrap(self, url: str) -> str:
        """What to ask the gateway for; RFC 3986 section 2.1: nothing in `url` is left as it is."""
        return self._template.replace("{url}", quote(url, safe=""))

    def unwrap(self, url: str, response: Response) -> Response:
        """The target's answer to a request for `url`.

        Raises GatewayError where it is the gateway's own: "gateway_throttled",
        "gateway_exhausted", "gateway_refused" (our key or plan) or "gateway_failed". The key is
        masked where the answer repeats it.
        """
        if self._header and self._header in response.headers:
            status = _status(response.headers[self._header])
            if status is None:
                raise _own(url, response, FAILED, "answered with an unreadable target status")
            response.status = status
        elif response.status in self._throttled:
            raise _own(url, response, THROTTLED, "asks for fewer requests at once")
        elif response.status in self._exhausted:
            raise _own(url, response, EXHAUSTED, "says that the quota is used up")
        elif self._header and response.status in _AUTH:
            raise _own(url, response, REFUSED, "refused the request")
        elif self._header:
            raise _own(url, response, FAILED, "answered without the target's status")
        if 300 <= response.status < 400 and self._is_own_redirect(url, response):
            raise _own(url, response, FAILED, "redirected to itself")
        self._mask(response)
        response.url = url
        response.latency = None  # says nothing of the target
        return response

    def _is_own_redirect(self, url: str, response: Response) -> bool:
        """Whether a Location leads to the gateway, or repeats its key: no target's would."""
        stated = response.headers.get_all("location")
        if any(secrets.shows(text, self._secrets) for text in stated):
            return True
        where = location(response, url) or ""
        # Either scheme: a gateway that was asked by http may send us to https.
        return urlsplit(where).netloc.rpartition("@")[2] == self._authority

    def _mask(self, response: Response) -> None:
        if not self._secrets:
            return
        response.body = secrets.masked(response.body, self._secrets)
        pairs = response.headers.pairs()
        if any(secrets.shows(value, self._secrets) for _, value in pairs):
            response.headers = Headers(
                (name, "***" if secrets.shows(value, self._secrets) else value)
                for name, value in pairs
            )

    @staticmethod
    def blame(url: str, error: FetchError) -> FetchError:
        """The failure to fetch `url`, where the exchange with the gateway brought no answer.

        "gateway_unreached" where no connection came about or it was closed unanswered,
        "gateway_timeout" where the answer was waited for in vain: that is the target's pace as
        a rule; "gateway_failed" where the answer broke off.
        """
        if error.outcome == proxy.DENIED:
            # Policy or not: with the gateway out of bounds nothing can be fetched at all.
            return FetchError(error.message, outcome="proxy", retryable=False, url=url)
        if error.ours or error.outcome in _NOT_ITS_OWN:
            error.url, error.host = url, None
            return error
        why = error.message if error.outcome in _TELLING else error.outcome
        outcome, what = UNREACHED, "could not be asked"
        if error.outcome == "timeout" and error.phase not in _BEFORE:
            outcome, what = TIMEOUT, "did not answer in time"
        elif error.outcome == "incomplete":
            outcome, what = FAILED, "broke off its answer"
        return GatewayError(f"{what}: {why}", outcome=outcome, url=url, wire_bytes=error.wire_bytes)

    @staticmethod
    def may_be_asked_again(outcome: str, attempts: int) -> bool:
        """False where a URL with that outcome of ours has had its one further try.

        `attempts` counts those before. The gateway tries targets again itself, and bills it.
        """
        return outcome not in (FAILED, TIMEOUT) or attempts == 0

    @staticmethod
    def has_tried(status: int) -> bool:
        """True for a target's failure that the gateway has tried again already."""
        # 503 asks for a slower pace, and the host's gate is told so like for 429.
        return status in (408, 425) or (status >= 500 and status != 503)

    def __repr__(self) -> str:
        return "<Gateway>"


def _status(text: str) -> int | None:
    text = text.strip()
    if len(text) == 3 and text.isascii() and text.isdecimal() and "100" <= text <= "599":
        return int(text)
    return None


def _own(url: str, response: Response, outcome: str, message: str) -> GatewayError:
    return GatewayError(
        f"{message} ({response.status})",
        outcome=outcome,
        url=url,
        retry_after=response.headers.get("retry-after"),
        wire_bytes=response.wire_bytes,
    )
