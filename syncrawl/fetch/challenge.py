"""Tells challenge pages ("prove that you are human") from the pages that were asked for.

Any thread; pure. A table of facts: what the common bot managers send in place of a page. Pages
that merely use such a service, or hold a captcha in a form, must not be taken for one: on a
2xx answer only a header that says so, or a short page that is nothing else, counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from syncrawl.api import ChallengeRecogniser, Headers

# Statuses that challenges come with beside 200; a page of another one is not looked at.
_REFUSING = frozenset({202, 401, 403, 405, 429, 503})
# How much of a body is searched, and how long a 2xx page may be that is nothing but a challenge.
_SEARCHED = 16_384
_SHORT = 16_384


class _Sign(NamedTuple):
    """One bot manager's mark: a header whose value holds `value`, or `text` in the body.

    `alone`: the text is found only on pages that are challenges, whatever their status.
    """

    name: str
    header: str = ""
    value: str = ""
    text: bytes = b""
    alone: bool = False


_HEADERS = (
    _Sign("cloudflare", header="cf-mitigated", value="challenge"),
    _Sign("aws-waf", header="x-amzn-waf-action", value="challenge"),
    _Sign("aws-waf", header="x-amzn-waf-action", value="captcha"),
    _Sign("vercel", header="x-vercel-mitigated", value="challenge"),
    _Sign("vercel", header="x-vercel-mitigated", value="deny"),
    _Sign("vercel", header="x-vercel-challenge-token"),
    _Sign("kasada", header="x-kpsdk-ct"),
)
# Looked for on refusing answers; with `alone` on short 2xx pages too.
_TEXTS = (
    _Sign("cloudflare", text=b"/cdn-cgi/challenge-platform/"),
    _Sign("cloudflare", text=b"window._cf_chl_opt", alone=True),
    _Sign("datadome", text=b"captcha-delivery.com", alone=True),
    _Sign("human", text=b"px-captcha", alone=True),
    _Sign("imperva", text=b"_Incapsula_Resource", alone=True),
    _Sign("akamai", text=b"errors.edgesuite.net"),
    _Sign("akamai", text=b"sec-if-cpt-container", alone=True),
    _Sign("sucuri", text=b"sucuri_cloudproxy_js", alone=True),
    _Sign("sucuri", text=b"Sucuri WebSite Firewall - Access Denied"),
    _Sign("ddos-guard", text=b"/.well-known/ddos-guard/", alone=True),
    _Sign("aws-waf", text=b"awsWafCookieDomainList", alone=True),
    _Sign("kasada", text=b"/149e9513-01fa-4fb0-aad4-566afd725d1b/", alone=True),
    _Sign("google", text=b"unusual traffic from your computer network"),
    _Sign("captcha", text=b"challenges.cloudflare.com/turnstile"),
    _Sign("captcha", text=b"hcaptcha.com/1/api.js"),
    _Sign("captcha", text=b"google.com/recaptcha/"),
)
_ALONE = tuple(sign for sign in _TEXTS if sign.alone)
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
                found = _by_header(name.lower(), value.lower())
                if found is not None:
                    return found
        if not refusing and len(body) > _SHORT:
            return None
        start = body[:_SEARCHED]
        for sign in _TEXTS if refusing else _ALONE:
            if sign.text in start:
                return sign.name
        return None

    def __repr__(self) -> str:
        return f"<KnownChallenges {len(_HEADERS) + len(_TEXTS)} signs>"


def _by_header(name: str, value: str) -> str | None:
    for sign in _HEADERS:
        if sign.header == name and sign.value in value:
            return sign.name
    return None


def known_challenges(_options: Mapping[str, Any]) -> ChallengeRecogniser:
    """The `known` entry of syncrawl.challenges; it has no options."""
    return KnownChallenges()
