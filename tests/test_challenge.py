"""Challenge pages: each sign fires where its service uses it, none on what merely looks like it."""

from __future__ import annotations

import random
import timeit
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl.api import Headers, Response
from syncrawl.config.model import Config, CrawlConfig
from syncrawl.engine.hosts import RobotsJob
from syncrawl.engine.robots import RobotsStep
from syncrawl.fetch.challenge import known_challenges
from syncrawl.fetch.robots import protego_engine
from syncrawl.limits.retry import RetryPolicy
from syncrawl.log import NullLog
from syncrawl.testing.clock import FakeClock
from syncrawl.urls import Canonicalizer

KNOWN = known_challenges({})


def recognised(status: int, body: str = "", **headers: str) -> str | None:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return KNOWN.recognise(status, Headers(pairs), body.encode())


def page(inside: str, *, title: str = "A page", links: int = 0) -> str:
    anchors = "".join(f'<a href="/{n}">page {n}</a>' for n in range(links))
    return f"<!doctype html><html><head><title>{title}</title></head><body>{inside}{anchors}</body>"


def script(src: str) -> str:
    return f'<script src="{src}"></script>'


@pytest.mark.parametrize(
    ("status", "field", "value", "name"),
    [
        (403, "CF-Mitigated", "challenge", "cloudflare"),
        (429, "cf-mitigated", "challenge", "cloudflare"),
        (200, "cf-mitigated", "challenge", "cloudflare"),
        (202, "x-amzn-waf-action", "challenge", "aws-waf"),
        (405, "x-amzn-waf-action", "captcha", "aws-waf"),
        (429, "x-vercel-mitigated", "challenge", "vercel"),
        (403, "X-Vercel-Mitigated", "Challenge", "vercel"),
        (429, "x-kpsdk-ct", "0a1b2c", "kasada"),
        # What says no, asks nothing.
        (403, "x-vercel-mitigated", "deny", None),
        (403, "x-amzn-waf-action", "count", None),
        (403, "cf-ray", "8c2f-AMS", None),
        # Whoever has passed carries the token on pages too.
        (200, "x-kpsdk-ct", "0a1b2c", None),
        (404, "cf-mitigated", "challenge", None),
    ],
)
def test_headers(status: int, field: str, value: str, name: str | None) -> None:
    assert recognised(status, page("x" * 50_000, links=9), **{field: value}) == name


INTERSTITIALS = [
    (403, "<script>window._cf_chl_opt = {cvId: '3'};</script>", "cloudflare"),
    (503, script("/cdn-cgi/challenge-platform/h/b/orchestrate/chl_page/v1?ray=1"), "cloudflare"),
    (405, "<script>window.gokuProps = {};</script>", "aws-waf"),
    (403, script("https://ct.captcha-delivery.com/c.js"), "datadome"),
    (403, '<div id="px-captcha"></div>', "human"),
    (403, "Request unsuccessful. Incapsula incident ID: 1-2", "imperva"),
    (403, script("/_Incapsula_Resource?SWJIYLWA=1"), "imperva"),
    (429, '<div id="sec-if-cpt-container"></div>', "akamai"),
    (428, '{"sec-cp-challenge": "true", "provider": "crypto"}', "akamai"),
    (503, "<script>sucuri_cloudproxy_js=''</script>", "sucuri"),
    (403, script("/.well-known/ddos-guard/js-challenge/index.js"), "ddos-guard"),
    (429, script("/149e9513-01fa-4fb0-aad4-566afd725d1b/1/p.js"), "kasada"),
    (429, script("/.well-known/vercel/security/static/challenge.v2.min.js"), "vercel"),
    (401, script("/__qrator/qauth_utm_v2.js"), "qrator"),
    (403, "Our systems have detected unusual traffic from your computer network.", "google"),
    (403, script("https://challenges.cloudflare.com/turnstile/v0/api.js"), "captcha"),
    (429, script("https://js.hcaptcha.com/1/api.js"), "captcha"),
    (503, script("https://www.google.com/recaptcha/api.js"), "captcha"),
    (200, "<script>window._cf_chl_opt = {};</script>", "cloudflare"),
    (202, "<script>window.gokuProps = {};</script>", "aws-waf"),
    (200, script("https://ct.captcha-delivery.com/c.js"), "datadome"),
    (200, '<meta name="description" content="px-captcha">', "human"),
    (200, "<iframe>Request unsuccessful. Incapsula incident ID: 1-2</iframe>", "imperva"),
    (200, '<div id="sec-if-cpt-container"></div>', "akamai"),
    (200, "<script>sucuri_cloudproxy_js=''</script>", "sucuri"),
    (200, '<script>window["bobcmn"] = "11";</script>', "f5"),
    (200, script("/.within.website/x/cmd/anubis/static/js/main.mjs"), "anubis"),
    (
        200,
        '<link href="/.well-known/.git.gammaspectra.live/git/go-away/cmd/go-away/assets/x.css">',
        "go-away",
    ),
]


@pytest.mark.parametrize(("status", "inside", "name"), INTERSTITIALS)
def test_interstitials(status: int, inside: str, name: str) -> None:
    assert recognised(status, page(inside, links=2)) == name


@pytest.mark.parametrize(("status", "inside", "_name"), INTERSTITIALS)
def test_the_same_text_on_a_page_that_leads_on_is_no_challenge(
    status: int, inside: str, _name: str
) -> None:
    """A page of the site, whatever it talks about or loads."""
    assert recognised(200, page(inside, links=9)) is None
    assert recognised(200, page(inside + "x" * 20_000)) is None
    assert recognised(200, page(inside + '<input type="password">')) is None
    assert recognised(404, page(inside)) is None


@pytest.mark.parametrize(
    "inside",
    [
        script("/cdn-cgi/challenge-platform/scripts/jsd/main.js"),
        script("/_Incapsula_Resource?SWJIYLWA=1"),
        script("https://abc.token.awswaf.com/abc/challenge.js"),
        script("https://js.datadome.co/tags.js"),
        "<script>window._pxAppId = 'PX1';</script>",
        script("https://challenges.cloudflare.com/turnstile/v0/api.js") + "<form>...</form>",
        script("https://www.google.com/recaptcha/api.js") + "<form>...</form>",
        script("https://js.hcaptcha.com/1/api.js") + "<form>...</form>",
        "Why do I see a captcha? Verify you are human. Just a moment... Access denied.",
    ],
)
def test_a_short_page_that_only_uses_a_service_is_a_page(inside: str) -> None:
    assert recognised(200, page(inside), server="cloudflare", cf_ray="8c2f") is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, page(script("https://www.google.com/recaptcha/api.js"), links=30)),
        (
            403,
            page(script("https://js.hcaptcha.com/1/api.js") + '<input type="password">'),
        ),
        (401, page(script("https://www.google.com/recaptcha/api.js"))),
        (403, page("Access Denied. Reference #18.1 https://errors.edgesuite.net/18.1")),
        (403, page("Sucuri WebSite Firewall - Access Denied")),
        (403, page(script("/cdn-cgi/challenge-platform/scripts/jsd/main.js"))),
        (429, page("Too many requests")),
        (503, page("We are down for maintenance")),
        (500, page("<script>window._cf_chl_opt={}</script>")),
    ],
)
def test_plain_refusals_keep_their_status(status: int, body: str) -> None:
    assert recognised(status, body) is None


def test_what_is_no_markup_is_not_searched() -> None:
    text = '{"docs": "window._cf_chl_opt and Incapsula incident ID"}'
    assert recognised(200, text) is None
    assert recognised(200, "<p>" + text) == "cloudflare"


def test_nothing_at_all() -> None:
    assert recognised(200) is None
    assert recognised(403) is None
    assert KNOWN.recognise(200, Headers(), b"\xff\xfe<\x00") is None


def test_a_page_that_leads_on_is_soon_let_pass() -> None:
    links = "".join(f'<a href="/{n}">page {n}</a>' for n in range(32))
    words = "<p>Words and more words, one after the other.</p>" * 130
    ordinary, bare = page(links + words).encode(), page(words).encode()

    def seconds(body: bytes) -> float:
        return min(timeit.repeat(lambda: KNOWN.recognise(200, Headers(), body), number=200))

    assert 3 * seconds(ordinary) < seconds(bare), "only a bare page is searched"


# -- robots.txt -------------------------------------------------------------------------------


class RobotsBench:
    """A robots step over one answer; what the scheduler is told."""

    def __init__(self, answer: Response) -> None:
        self.told: list[Any] = []
        self.noted: list[str] = []
        config = Config(crawl=CrawlConfig(user_agent="bot/1.0 (+http://bot.example/)"))
        quiet = SimpleNamespace(end=lambda: True)
        self.step = RobotsStep(
            config,
            denied=lambda host: False,
            engine=protego_engine({}),
            scheduler=self,  # type: ignore[arg-type]
            exchanger=SimpleNamespace(get=lambda *_, **__: answer),
            canonicalizer=Canonicalizer(()),
            budget=quiet,  # type: ignore[arg-type]
            retry=RetryPolicy(config.retry, random.Random(1)),
            clock=FakeClock(),
            log=NullLog(),
            queue_of=str,
            on_notes=lambda: None,
            watch=quiet,  # type: ignore[arg-type]
            route=SimpleNamespace(note=self.note),  # type: ignore[arg-type]
            recognisers=[("known", KNOWN)],
        )
        self.step.run(SimpleNamespace(job=RobotsJob("http://a", "http://a/robots.txt")))  # type: ignore[arg-type]

    def note(self, outcome: str, _why: str, *, final: bool) -> None:
        assert not final
        self.noted.append(outcome)

    def release(self, _lease: Any, outcome: str, *, retry_after: float | None) -> None:
        self.told.append((outcome, retry_after))

    def robots_failed(self, _job: Any, outcome: str) -> None:
        self.told.append(f"no rules: {outcome}")

    def keep_robots(self, *_: Any) -> None:
        self.told.append("rules")

    def rules_known(self, *_: Any) -> list[Any]:
        return []

    def settle(self, *_: Any, **__: Any) -> None:
        pass

    give_credit = settle


@pytest.mark.parametrize("status", [200, 403])
def test_a_challenge_in_place_of_robots_txt_is_no_leave_to_go_on(status: int) -> None:
    """A 403 would mean that there are no rules, and so would a page that has none."""
    challenge = [("cf-mitigated", "challenge"), ("Retry-After", "9")]
    for fields, told in (
        (challenge, [("challenge", 9.0), "no rules: challenge"]),
        ([], [("304" if status == 200 else "403", None), "rules"]),
    ):
        answer = Response("", status, Headers(fields), b"", 0.01, 0.02)
        bench = RobotsBench(answer)
        assert bench.told == told
        assert len(bench.noted) == 1, "an answer came through proxy or gateway"
