"""Tells challenge pages ("prove that you are human") from the pages that were asked for.

Any thread; imports the API types and the log. A table of facts: what the common bot managers
send in place of a page. Pages that merely use such a service, or hold a captcha in a form, must
not be taken for one. Plain denials are not in it: no later try helps against them, and the status
says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from syncrawl.api import ChallengeRecogniser, Headers, Response
from syncrawl.log import Log

# What challenges come with, beside 2xx; an answer of any other status is not looked at.
_REFUSING = frozenset({401, 403, 405, 428, 429, 503})
_PLAIN = frozenset({403, 429, 503})
# Bytes of a body that are searched, and the longest page that can be a challenge and nothing else.
_SEARCHED = 16_384
# Links on a page that is nothing else: to the bot manager, to its help.
_FEW_LINKS = 4


class _Header(NamedTuple):
    """A header whose value holds `value`, lower case; `statuses` None = 2xx as well."""

    header: str
    value: str
    name: str
    statuses: frozenset[int] | None = None


class _Text(NamedTuple):
    """A literal in the body of an answer of one of `statuses`.

    `pages`: on bare 2xx pages too, since no page but a challenge holds it. `bare`: only on bare
    pages, since others hold it for a form of their own.
    """

    text: bytes
    name: str
    statuses: frozenset[int] = _REFUSING
    pages: bool = False
    bare: bool = False


# Cloudflare, AWS and Vercel document theirs as the way to tell a challenge.
_HEADERS = (
    _Header("cf-mitigated", "challenge", "cloudflare"),
    _Header("x-amzn-waf-action", "challenge", "aws-waf"),
    _Header("x-amzn-waf-action", "captcha", "aws-waf"),
    _Header("x-vercel-mitigated", "challenge", "vercel"),
    # Those who passed have it on their pages too.
    _Header("x-kpsdk-ct", "", "kasada", frozenset({403, 429})),
)
_TEXTS = (
    # Not /cdn-cgi/challenge-platform/ alone: Cloudflare puts a script from there into any page.
    _Text(b"window._cf_chl_opt", "cloudflare", pages=True),
    _Text(b"/orchestrate/chl_page/", "cloudflare"),
    _Text(b"window.gokuProps", "aws-waf", pages=True),
    _Text(b".captcha-delivery.com/", "datadome", pages=True),
    _Text(b'content="px-captcha"', "human", pages=True),
    _Text(b"px-captcha", "human"),
    # Not _Incapsula_Resource alone: every page behind Imperva may load a script from there.
    _Text(b"Incapsula incident ID", "imperva", pages=True),
    _Text(b"/_Incapsula_Resource", "imperva", bare=True),
    _Text(b"sec-if-cpt-container", "akamai", pages=True),
    _Text(b'"sec-cp-challenge"', "akamai", frozenset({428, 429})),
    _Text(b"sucuri_cloudproxy_js", "sucuri", pages=True),
    _Text(b"/.well-known/ddos-guard/", "ddos-guard", pages=True),
    _Text(b"/149e9513-01fa-4fb0-aad4-566afd725d1b/", "kasada"),
    _Text(b"/vercel/security/", "vercel"),
    _Text(b"/__qrator/qauth", "qrator", pages=True),
    _Text(b'window["bobcmn"]', "f5", pages=True),
    _Text(b"/.within.website/x/cmd/anubis/", "anubis", pages=True),
    _Text(b"/git/go-away/cmd/go-away/", "go-away", pages=True),
    _Text(b"unusual traffic from your computer network", "google", _PLAIN),
    _Text(b"challenges.cloudflare.com/turnstile", "captcha", _PLAIN, bare=True),
    _Text(b"hcaptcha.com/1/api.js", "captcha", _PLAIN, bare=True),
    _Text(b"google.com/recaptcha/", "captcha", _PLAIN, bare=True),
    _Text(b"recaptcha.net/recaptcha/", "captcha", _PLAIN, bare=True),
)
_ON_PAGES = tuple(sign for sign in _TEXTS if sign.pages)
_MARKED = frozenset(sign.header for sign in _HEADERS)


class KnownChallenges:
    """The challenges of the table above."""

    def recognise(self, status: int, headers: Headers, body: bytes) -> str | None:
        """The bot manager whose challenge an answer is, or None."""
        refusing = status in _REFUSING
        if not refusing and not 200 <= status < 300:
            return None
        for name, value in headers.pairs():
            if name.lower() in _MARKED:
                found = _by_header(status, name.lower(), value.lower())
                if found is not None:
                    return found
        return _refusal(status, body) if refusing else _page(body)

    def __repr__(self) -> str:
        return f"<KnownChallenges {len(_HEADERS) + len(_TEXTS)} signs>"


def _by_header(status: int, name: str, value: str) -> str | None:
    for sign in _HEADERS:
        if sign.header == name and sign.value in value:
            return sign.name if sign.statuses is None or status in sign.statuses else None
    return None


def _refusal(status: int, body: bytes) -> str | None:
    for sign in _TEXTS:
        if status not in sign.statuses or body.find(sign.text, 0, _SEARCHED) < 0:
            continue
        if not sign.bare or _is_bare(body):
            return sign.name
    return None


def _page(body: bytes) -> str | None:
    if not _is_bare(body):
        return None
    for sign in _ON_PAGES:
        if sign.text in body:
            return sign.name
    return None


def _is_bare(body: bytes) -> bool:
    """Whether a page is short, leads nowhere and asks for no login: most are not, soon seen."""
    return (
        len(body) <= _SEARCHED
        and body[:64].lstrip()[:1] == b"<"
        and not _leads_on(body)
        and b'type="password"' not in body
    )


def _leads_on(body: bytes) -> bool:
    # Not count(): most pages show their fifth link long before their end.
    place = -1
    for _ in range(_FEW_LINKS + 1):
        place = body.find(b"<a ", place + 1)
        if place < 0:
            return False
    return True


class Challenges:
    """Asks the recognisers in order; one that raises is logged once and counts as no hit."""

    def __init__(self, recognisers: Sequence[tuple[str, ChallengeRecogniser]], log: Log) -> None:
        self._recognisers = tuple(recognisers)
        self._log = log
        # Written without a lock: at worst two threads log the same name.
        self._broken: set[str] = set()

    def name_of(self, response: Response) -> str | None:
        """The challenge that a final answer is, or None."""
        for name, recogniser in self._recognisers:
            try:
                found = recogniser.recognise(response.status, response.headers, response.body)
                if found is not None:
                    return str(found)
            except BaseException as exc:  # noqa: BLE001 - a plugin may raise anything, SystemExit too
                if name not in self._broken:
                    self._broken.add(name)
                    self._log.error("challenge recogniser failed", name=name, error=repr(exc))
        return None

    def __repr__(self) -> str:
        return f"<Challenges {', '.join(name for name, _ in self._recognisers) or 'none'}>"


def known_challenges(_options: Mapping[str, Any]) -> ChallengeRecogniser:
    """The `known` entry of syncrawl.challenges; it has no options."""
    return KnownChallenges()
