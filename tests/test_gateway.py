"""A scraping API in between: whose answer it is, and a crawl through one on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from msgspec.structs import replace

from syncrawl.api import FetchError, Headers, Response
from syncrawl.config.model import GatewayConfig
from syncrawl.fetch import secrets
from syncrawl.fetch.gateway import Gateway, GatewayError
from syncrawl.limits.signals import RULES, outcome_of_error
from syncrawl.log import make_logger
from tests.crawling import adds_up, crawl, records, settings
from tests.servers import SILENT, ScriptServer, ok

KEY = "s3cret-key"
TARGET = "http://site.test/a?b=c&d=%20#e"


def gateway(**config: Any) -> Gateway:
    return Gateway(GatewayConfig(url=f"https://gw.test/?key={KEY}&url={{url}}", **config))


def answer(status: int, **headers: str) -> Response:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    wrapped = gateway().wrap(TARGET)
    return Response(wrapped, status, Headers(pairs), b"", 0.1, 0.2, wire_bytes=5, latency=0.1)


def own(status: int, config: dict[str, Any], **headers: str) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        gateway(**config).unwrap(TARGET, answer(status, **headers))
    return caught.value


HEADER = {"target_status_header": "X-Target-Status"}


@pytest.mark.parametrize("url", [TARGET, "http://é.test/ü", "http://a/?u={url}", "http://a/%2F+/"])
def test_the_target_goes_in_whole(url: str) -> None:
    wrapped = gateway().wrap(url)
    assert wrapped.startswith(f"https://gw.test/?key={KEY}&url=http%3A%2F%2F")
    query = wrapped.partition("&url=")[2]
    assert unquote(query) == url
    assert set(query).isdisjoint("/?&=#+ {}:")
    assert query.isascii()


@pytest.mark.parametrize("config", [{}, HEADER])
@pytest.mark.parametrize(
    ("status", "outcome"), [(429, "gateway_throttled"), (509, "gateway_exhausted")]
)
def test_the_plans_statuses_are_its_own(config: Any, status: int, outcome: str) -> None:
    error = own(status, config, retry_after="30")
    assert (error.outcome, error.retry_after, error.wire_bytes) == (outcome, "30", 5)
    assert (error.url, error.retryable) == (TARGET, True)


def test_which_statuses_those_are_is_the_plans_business() -> None:
    config = {"throttled_status": (420,), "exhausted_status": (402, 403)}
    assert own(420, config).outcome == "gateway_throttled"
    assert own(403, config).outcome == "gateway_exhausted"
    assert gateway(**config).unwrap(TARGET, answer(429)).status == 429


@pytest.mark.parametrize("status", [200, 301, 403, 404, 407, 500, 503])
def test_without_a_header_any_other_status_is_the_targets(status: int) -> None:
    found = gateway().unwrap(TARGET, answer(status))
    assert (found.status, found.url, found.latency) == (status, TARGET, None)


@pytest.mark.parametrize("status", [200, 429, 500, 509])
@pytest.mark.parametrize("inside", ["200", "404", "429", " 503 "])
def test_the_header_says_what_the_target_answered(status: int, inside: str) -> None:
    found = gateway(**HEADER).unwrap(TARGET, answer(status, x_target_status=inside))
    assert found.status == int(inside)


@pytest.mark.parametrize(
    "inside", ["", "ok", "2000", "99", "600", "20", "-200", "2e2", "٢٠٠", "200, 404"]
)
def test_a_header_that_is_no_status_is_the_gateways_failure(inside: str) -> None:
    assert own(200, HEADER, x_target_status=inside).outcome == "gateway_failed"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, "gateway_refused") for status in (401, 403, 407)),
        *((status, "gateway_failed") for status in (200, 302, 400, 404, 500, 503)),
    ],
)
def test_an_answer_without_the_header_is_the_gateways(status: int, outcome: str) -> None:
    error = own(status, HEADER)
    assert (error.outcome, error.ours) == (outcome, True)
    assert str(status) in error.message


def test_the_table_keeps_every_outcome_and_blames_no_host() -> None:
    errors = [own(429, HEADER), own(509, HEADER), own(401, HEADER), own(500, HEADER)]
    errors.append(Gateway.blame(TARGET, FetchError("t", outcome="connect")))  # type: ignore[arg-type]
    for error in errors:
        assert outcome_of_error(error) == error.outcome
        assert RULES[error.outcome].signal.value in ("route", "nothing")
    late = Gateway.blame(TARGET, FetchError("t", outcome="timeout", phase="headers"))
    assert outcome_of_error(late) == late.outcome == "gateway_timeout"
    assert RULES[late.outcome].signal.value == "failure", "no gate slows down, the host's hour runs"


@pytest.mark.parametrize(
    ("outcome", "phase", "message", "tells", "becomes"),
    [
        ("timeout", "headers", "headers: silent for 10 s", True, "gateway_timeout"),
        ("timeout", "body", "body: the total time is used up", True, "gateway_timeout"),
        ("timeout", None, "a plugin's timeout", True, "gateway_timeout"),
        ("timeout", "connect", "connect: no answer in 5 s", True, "gateway_unreached"),
        ("timeout", "tls", "tls: silent for 10 s", True, "gateway_unreached"),
        ("connect", "connect", "connect: Connection refused", True, "gateway_unreached"),
        ("dns", "dns", "dns: no such name", True, "gateway_unreached"),
        ("connection", "headers", "headers: closed", True, "gateway_unreached"),
        ("incomplete", "body", "body: the body ended early", True, "gateway_failed"),
        # What a library has to say may hold the whole URL.
        ("protocol", "start", f"https://gw.test/?key={KEY}", False, "gateway_unreached"),
        ("url", "start", f"is no URL: https://gw.test/?key={KEY}", False, "gateway_unreached"),
    ],
)
def test_an_exchange_that_failed_is_the_gateways(
    outcome: str, phase: str | None, message: str, tells: bool, becomes: str
) -> None:
    wrapped = gateway().wrap(TARGET)
    error = FetchError(
        message, outcome=outcome, phase=phase, url=wrapped, host="gw.test", wire_bytes=3
    )
    found = Gateway.blame(TARGET, error)
    assert (found.outcome, found.wire_bytes, found.url) == (becomes, 3, TARGET)
    assert (message in found.message) is tells
    assert KEY not in f"{found} {found.url} {found.host}"


@pytest.mark.parametrize(
    ("outcome", "ours", "retryable"),
    [
        ("too_large", False, False),
        ("decode", False, False),
        ("proxy", False, False),
        ("pressure", True, True),
        ("stale", True, True),
    ],
)
def test_what_is_not_its_failure_stays_what_it_is(
    outcome: str, ours: bool, retryable: bool
) -> None:
    wrapped = gateway().wrap(TARGET)
    error = FetchError("why", outcome=outcome, ours=ours, retryable=retryable, url=wrapped)
    found = Gateway.blame(TARGET, error)
    assert (found.outcome, found.ours, found.retryable) == (outcome, ours, retryable)
    assert found.url == TARGET


def test_a_proxy_that_forbids_the_gateway_forbids_everything() -> None:
    denied = FetchError("the proxy answered 403", outcome="proxy_denied", retryable=False)
    found = Gateway.blame(TARGET, denied)
    assert (found.outcome, found.retryable, found.url) == ("proxy", False, TARGET)


@pytest.mark.parametrize("config", [{}, HEADER])
@pytest.mark.parametrize(
    "where",
    [
        f"https://gw.test/?key={KEY}&url=x",
        "http://GW.test/login",
        "//gw.test/",
        "https://user@gw.test:443/",
        f"/v2?key={KEY}",
        f"https://elsewhere.test/?k={KEY.replace('-', '%2D')}",
    ],
)
def test_a_redirect_to_itself_is_the_gateways_answer(where: str, config: dict[str, Any]) -> None:
    error = own(302, config, location=where, **({"x_target_status": "302"} if config else {}))
    assert error.outcome == "gateway_failed"
    assert KEY not in str(error)


@pytest.mark.parametrize(
    "where", ["/next", "https://gw.test.evil/", "https://gw.test:8443/", "https://x:0/", ""]
)
def test_a_redirect_elsewhere_is_the_targets(where: str) -> None:
    found = gateway().unwrap(TARGET, answer(302, location=where))
    assert (found.status, found.headers["location"]) == (302, where)


def test_an_answer_that_repeats_the_key_is_passed_on_without() -> None:
    response = answer(200, x_asked=f"/?key={KEY}", content_type="text/html")
    response.body = f'<a href="https://gw.test/?key={KEY}&amp;url=y">bad key {KEY}</a>'.encode()
    found = gateway().unwrap(TARGET, response)
    assert found.body == b'<a href="https://gw.test/?key=***&amp;url=y">bad key ***</a>'
    assert found.headers.pairs() == (("x-asked", "***"), ("content-type", "text/html"))


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("https://gw/?key=SECRET&url={url}", {"SECRET"}),
        ("https://gw/?api_key=a%2Fb%2Bcd&url={url}", {"a/b+cd", "a%2Fb%2Bcd"}),
        ("https://gw/v1/0123456789abcdef/get?u={url}", {"0123456789abcdef"}),
        ("https://gw/?id=0123456789abcdef&url={url}", {"0123456789abcdef"}),
        ("https://gw/?country=us&proxy_type=residential&render=true&url={url}", set()),
        ("https://gw/{url}", set()),
    ],
)
def test_what_of_a_template_is_a_key(template: str, found: set[str]) -> None:
    assert set(secrets.of(template)) == found


def test_a_gateway_shows_no_key() -> None:
    assert KEY not in repr(gateway())


# -- a crawl ----------------------------------------------------------------------------------


class ScrapingApi:
    """Answers for http://site.test from a table, as a paid API does; `own` comes before it."""

    def __init__(self, pages: dict[str, tuple[int, str]], own: dict[str, list[bytes]]) -> None:
        self._pages = pages
        self._own = own
        self.asked: list[str] = []

    def __call__(self, _server: ScriptServer, target: str) -> list[bytes]:
        query = parse_qs(urlsplit(target).query)
        assert query["key"] == [KEY]
        url = query["url"][0]
        self.asked.append(url)
        if self._own.get(url):
            return [self._own[url].pop(0)]
        status, text = self._pages.get(url, (404, ""))
        fields = ["Content-Type: text/html", f"X-Target-Status: {status}"]
        if 300 <= status < 400:
            fields.append(f"Location: {text}")
        return [ok(text.encode(), *fields)]


def through(server: ScriptServer, folder: Path, **tables: Any) -> Any:
    url = server.url(f"/v1?key={KEY}&url={{url}}")
    table = {"url": url, "target_status_header": "X-Target-Status", **tables}
    return settings(
        folder, ["http://site.test/"], gateway=table, log={"level": "debug", "file": "log"}
    )


LINKS = '<a href="/moved">m</a><a href="/gone">g</a><a href="/broken">b</a><a href="/slow">s</a>'
PAGES = {
    "http://site.test/robots.txt": (200, "User-agent: *\nDisallow: /private\n"),
    "http://site.test/": (200, LINKS + '<a href="/private">p</a>'),
    "http://site.test/moved": (302, "here?x=1"),
    "http://site.test/here?x=1": (200, "<title>here</title>"),
    "http://site.test/broken": (502, ""),
    "http://site.test/slow": (200, "<title>slow</title>"),
}


def test_a_crawl_through_a_gateway(tmp_path: Path) -> None:
    own = {"http://site.test/slow": [ok(b"", status="429 Slow Down")]}
    api = ScrapingApi(PAGES, own)
    with ScriptServer(handler=api) as server:
        report = crawl(through(server, tmp_path))
    assert report.data["exit_code"] == 0
    assert adds_up(report)
    assert api.asked[0] == "http://site.test/robots.txt"
    assert "http://site.test/private" not in api.asked
    assert api.asked.count("http://site.test/broken") == 1, "the gateway has tried it already"
    assert api.asked.count("http://site.test/slow") == 2
    found = {record["final_url"]: record for record in records(tmp_path)}
    assert set(found) == {
        *("http://site.test/", "http://site.test/here?x=1", "http://site.test/slow"),
    }
    assert found["http://site.test/here?x=1"]["url"] == "http://site.test/moved"
    host = report.data["hosts"]["site.test"]
    assert host["paused_until"] in (None, 0)
    assert report.data["outcomes"]["gateway_throttled"] == 1


def test_no_output_of_a_crawl_holds_the_key(tmp_path: Path) -> None:
    """Not the state either: whoever is handed one is not handed the plan."""
    own = {
        "http://site.test/slow": [b"no answer\r\n\r\n"],
        # Its own answers may repeat the key: as a redirect, in a page and its links.
        "http://site.test/gone": [ok(b"", f"Location: /login?key={KEY}", status="302 Found")],
        "http://site.test/broken": [
            ok(
                f'<title>{KEY}</title><a href="/v1?key={KEY}">again</a>'.encode(),
                *("Content-Type: text/html", "X-Target-Status: 200", f"X-Asked: {KEY}"),
            )
        ],
    }
    with ScriptServer(handler=ScrapingApi(PAGES, own)) as server:
        again = server.url(f"/v1?key={KEY}")
        own["http://site.test/moved"] = [
            ok(b"", f"Location: {again}", "X-Target-Status: 302", status="302 Found")
        ]
        config = through(server, tmp_path)
        report = crawl(config, log=make_logger(config.log))
    outcomes = report.data["outcomes"]
    assert (outcomes["gateway_failed"], outcomes["gateway_unreached"]) == (2, 1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} > {"pages.jsonl", "report.json", "log"}
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path.name
    assert KEY not in json.dumps(report.data)
    assert "***" in {record["title"] for record in records(tmp_path)}


@pytest.mark.parametrize(
    ("answer", "word"), [(ok(b"", status="509 Spent"), "quota"), (ok(b"", status="401 Who"), "401")]
)
def test_a_plan_that_is_used_up_stops_the_crawl_and_a_later_run_ends_it(
    tmp_path: Path, answer: bytes, word: str
) -> None:
    own = {"http://site.test/here?x=1": [answer]}
    api = ScrapingApi(PAGES, own)
    with ScriptServer(handler=api) as server:
        report = crawl(through(server, tmp_path))
        assert report.data["exit_code"] == 4
        assert word in report.data["reason"]
        assert KEY not in report.data["reason"]
        report = crawl(through(server, tmp_path))
    assert report.data["exit_code"] == 0
    assert adds_up(report)
    assert len(records(tmp_path)) == 3
    assert report.data["urls"]["failed"] == 2, "/gone and /broken"


def asked_in_vain(api: ScrapingApi, *urls: str) -> list[int]:
    return [api.asked.count(f"http://site.test{url}") for url in urls]


def test_what_the_gateway_fails_at_is_tried_once_more(tmp_path: Path) -> None:
    oops = ok(b"", status="500 Oops")
    own = {"http://site.test/slow": [oops] * 30, "http://site.test/gone": [oops]}
    api = ScrapingApi(PAGES, own)
    with ScriptServer(handler=api) as server:
        report = crawl(through(server, tmp_path))
    assert report.data["exit_code"] == 0
    assert asked_in_vain(api, "/slow", "/gone") == [2, 2]
    assert report.data["outcomes"]["gateway_failed"] == 3
    assert report.data["hosts"]["site.test"]["limit"] >= 4


def test_a_robots_txt_that_the_gateway_fails_at_ends_its_host(tmp_path: Path) -> None:
    own = {"http://site.test/robots.txt": [ok(b"", status="500 Oops")] * 1_000}
    api = ScrapingApi(PAGES, own)
    with ScriptServer(handler=api) as server:
        report = crawl(through(server, tmp_path))
    assert report.data["exit_code"] == 0
    assert asked_in_vain(api, "/robots.txt", "/") == [3, 0]
    assert report.data["urls"]["failed"] == 1
    assert report.data["outcomes"] == {"gateway_failed": 1}
    assert adds_up(report)


def test_a_robots_txt_that_a_gateway_which_is_gone_cannot_bring_ends_the_crawl(
    tmp_path: Path,
) -> None:
    with ScriptServer() as server:
        config = through(server, tmp_path)
    report = crawl(config)
    assert report.data["exit_code"] == 4
    assert "10 times in a row, the gateway could not be asked" in report.data["reason"]
    assert report.data["urls"]["pending"] == 1, "resumable"


def test_a_gateway_that_waits_for_slow_targets_is_there(tmp_path: Path) -> None:
    links = "".join(f'<a href="/{n}">x</a>' for n in range(12))
    pages = {**PAGES, "http://site.test/": (200, links)}
    api = ScrapingApi(pages, {})

    def handler(server: ScriptServer, target: str) -> list[Any]:
        script: list[Any] = list(api(server, target))
        return [SILENT] if api.asked[-1][-1].isdigit() else script

    with ScriptServer(handler=handler) as server:
        config = through(server, tmp_path)
        fetch = replace(config.fetch, read_timeout=0.3)
        report = crawl(replace(config, fetch=fetch))
    assert report.data["exit_code"] == 0
    assert report.data["outcomes"]["gateway_timeout"] >= 12
    assert max(asked_in_vain(api, *(f"/{n}" for n in range(12)))) <= 2
    assert report.data["urls"]["failed"] == 12


def test_what_a_proxys_policy_forbids_is_asked_for_once(tmp_path: Path) -> None:
    """A page, and a robots.txt with all that waits for it; others are not held up."""
    no = [ok(b"", "X-Squid-Error: ERR_ACCESS_DENIED 0", "Via: 1.1 p", status="403 Forbidden")]
    page = ok(b'<a href="/x">x</a><a href="/y">y</a>', "Via: 1.1 p", "Content-Type: text/html")
    scripts = {
        "http://bad.test/robots.txt": no,
        "http://good.test/robots.txt": [ok(b"", "Via: 1.1 p", status="404 None")],
        "http://good.test/": [page],
        "http://good.test/x": no,
        "http://good.test/y": [ok(b"y", "Via: 1.1 p")],
    }
    with ScriptServer(scripts) as server:  # type: ignore[arg-type]
        proxy = f"http://u:{KEY}@127.0.0.1:{server.port}"
        config = settings(
            tmp_path,
            ["http://bad.test/", "http://good.test/"],
            fetch={"proxy": proxy},
            log={"level": "debug", "file": "log"},
        )
        report = crawl(config, log=make_logger(config.log))
    assert report.data["exit_code"] == 0
    assert sorted(server.targets) == sorted(scripts)
    assert report.data["outcomes"]["proxy_denied"] == 2
    assert (report.data["urls"]["done"], report.data["urls"]["failed"]) == (2, 2)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path.name


def test_a_proxy_that_never_lets_anything_through_ends_the_crawl(tmp_path: Path) -> None:
    busy = ok(b"", "X-Squid-Error: ERR_CANNOT_FORWARD 0", status="503 Busy")
    with ScriptServer(handler=lambda *_: [busy]) as server:
        config = settings(
            tmp_path,
            ["http://a.test/"],
            fetch={"proxy": f"http://u:{KEY}@127.0.0.1:{server.port}"},
        )
        report = crawl(config)
        asked = len(server.targets)
    assert report.data["exit_code"] == 4
    assert f"127.0.0.1:{server.port} answered 503" in report.data["reason"]
    assert KEY not in report.data["reason"]
    assert report.data["urls"]["pending"] == 1, "resumable"
    assert asked == 15


def test_a_proxy_whose_policy_is_against_everything_is_no_finished_crawl(tmp_path: Path) -> None:
    no = ok(b"", "X-Squid-Error: ERR_ACCESS_DENIED 0", status="403 Forbidden")
    with ScriptServer(handler=lambda *_: [no]) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        config = settings(tmp_path, ["http://a.test/", "https://b.test/"], fetch={"proxy": proxy})
        report = crawl(config)
    assert report.data["exit_code"] == 4
    assert "nothing came through: " in report.data["reason"]
    assert report.data["urls"]["failed"] == 2
