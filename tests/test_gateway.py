"""A scraping API in between: whose answer it is, and a crawl through one on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from syncrawl.api import FetchError, Headers, Response
from syncrawl.config.model import GatewayConfig
from syncrawl.fetch.gateway import Gateway, GatewayError
from syncrawl.limits.signals import RULES, outcome_of_error
from syncrawl.log import make_logger
from tests.crawling import adds_up, crawl, records, settings
from tests.servers import ScriptServer, ok

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
    errors.append(Gateway.blame(TARGET, FetchError("t", outcome="timeout")))  # type: ignore[arg-type]
    for error in errors:
        assert outcome_of_error(error) == error.outcome
        assert RULES[error.outcome].signal.value in ("route", "nothing")


@pytest.mark.parametrize(
    ("outcome", "message", "tells"),
    [
        ("timeout", "headers: silent for 10 s", True),
        ("connect", "connect: [Errno 111] Connection refused", True),
        # What a library has to say may hold the whole URL.
        ("protocol", f"start: InvalidURL: https://gw.test/?key={KEY}", False),
        ("url", f"is no URL: https://gw.test/?key={KEY}", False),
    ],
)
def test_an_exchange_that_failed_is_the_gateways(outcome: str, message: str, tells: bool) -> None:
    wrapped = gateway().wrap(TARGET)
    error = FetchError(message, outcome=outcome, url=wrapped, host="gw.test", wire_bytes=3)
    found = Gateway.blame(TARGET, error)
    assert (found.outcome, found.wire_bytes, found.url) == ("gateway_unreached", 3, TARGET)
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
    own = {"http://site.test/slow": [ok(b"", status="500 Oops"), b"no answer\r\n\r\n"]}
    with ScriptServer(handler=ScrapingApi(PAGES, own)) as server:
        config = through(server, tmp_path)
        report = crawl(config, log=make_logger(config.log))
    outcomes = report.data["outcomes"]
    assert (outcomes["gateway_failed"], outcomes["gateway_unreached"]) == (1, 1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} > {"pages.jsonl", "report.json", "log"}
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path.name
    assert KEY not in json.dumps(report.data)


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
