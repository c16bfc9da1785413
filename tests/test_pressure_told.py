"""Whatever makes pressure visible is told in all four places; one crawl tells all of it.

`ITEMS` is the one list: what is told, and where it is found in report.json, in the log, in what
`status` prints and in /metrics.
"""

from __future__ import annotations

import io
import json
import math
import re
import socket
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from syncrawl.config.model import LogConfig
from syncrawl.engine.crawl import Crawl
from syncrawl.log import make_logger
from syncrawl.observe.report import STAGES, read_status, summary
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Answer, Host, Reply
from tests.crawling import CRAWL_SECONDS, links, settings


class Item(NamedTuple):
    """Where one figure is: a path in the report, an event's field, words of `status`, a metric.

    HOST stands for the host's name, STAGE for each stage's.
    """

    name: str
    report: str
    log: str
    status: str
    metric: str


def of_stage(name: str, field: str, title: str, metric: str) -> Item:
    status = rf"^stage .*\b{title}\b.*\n(?:.*\n)*?STAGE .*\d"
    metric = rf'stage_{metric}\{{stage="STAGE"\}}'
    return Item(
        f"stage: {name}", f"stages.STAGE.{field}", f"pressure_stage.{field}", status, metric
    )


def of_host(name: str, field: str, words: str, metric: str) -> Item:
    metric = rf'host_{metric}\{{[^}}]*host="HOST"\}}'
    return Item(f"host: {name}", f"hosts.HOST.{field}", f"pressure_host.{field}", words, metric)


def column(title: str, cell: str = "") -> str:
    return rf"slowest hosts .*\b{title}\b.*\n(?:.*\n)*?HOST .*{cell}"


ITEMS = [
    of_stage("depth", "depth", "waiting", "depth"),
    of_stage("age of the oldest item", "oldest_age", "oldest", "oldest_age_seconds"),
    of_stage("blocked puts", "blocked_put_seconds", "blocked", "blocked_put_seconds_total"),
    of_stage("starved gets", "starved_get_seconds", "starved", "starved_get_seconds_total"),
    of_stage("rejections", "rejected", "rejected", "rejected_total"),
    of_host("in flight", "in_flight", column("in flight"), "in_flight"),
    of_host("limit", "limit", column("limit"), "limit"),
    of_host("paused until", "paused_until", column("condition", "paused for"), "paused_until_.*"),
    of_host("retry share", "retry_share", column("retries", r"\d%"), "retry_share"),
    of_host("outcomes", "outcomes", column("outcomes", r"5xx 3\b"), "outcomes_total"),
    of_host("health", "health", column("health", r"\d%"), "health"),
    of_host("slow or against us", "condition", column("condition", "failing"), "condition"),
    Item("retry share", "retry_share", "pressure.retry_share", r"retries \(\d", "retry_share"),
    Item(
        "duplicate rate",
        "duplicate_share",
        "pressure.duplicate_share",
        r"duplicates .*%",
        "duplicate_share",
    ),
    Item(
        "frontier growth",
        "frontier.found",
        "pressure.found_per_second",
        r"frontier .*URLs/s found",
        r'frontier_urls_per_second\{kind="found"\}',
    ),
    Item(
        "what of it is worked off",
        "frontier.finished",
        "pressure.finished_per_second",
        r"frontier .*ended",
        r'frontier_urls_per_second\{kind="finished"\}',
    ),
    Item("fetch rate", "run.pages", "pressure.pages_per_second", r"pages .*/s", "pages_total"),
    Item(
        "the bottleneck",
        "bottleneck.share",
        "pressure.bottleneck",
        r"bottleneck  +\w+, \d+%",
        r'bottleneck_share\{stage="\w+"\}',
    ),
]


class Told(NamedTuple):
    """What one crawl told, and the host it told of."""

    host: str
    report: dict[str, Any]
    log: list[dict[str, Any]]
    status: str
    metrics: str


def pages() -> dict[str, Answer]:
    """Two pages alike, one that fails, and one that is answered late and leads to a refusal."""
    asked_to_wait = (("Retry-After", "600"),)
    return {
        "/": links("/a", "/b", "/bad", "/late"),
        "/a": "<p>alike",
        "/b": "<p>alike",
        "/bad": 500,
        "/late": Reply(links("/no").encode(), delay=math.inf),
        "/no": Reply(b"", 429, headers=asked_to_wait),
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def run_and_ask(folder: Path, site: Site) -> Told:
    served = site.hosts[0]
    port = free_port()
    metrics = {"listen": f"127.0.0.1:{port}"}
    lines = io.StringIO()
    log = make_logger(LogConfig(format="json"), stream=lines)
    crawl = Crawl(settings(folder, [served.url()], metrics=metrics), log=log)

    def settled(outcome: str, count: int) -> Callable[[], bool]:
        return lambda: crawl.snapshot()["outcomes"].get(outcome, 0) >= count

    with ThreadPoolExecutor(1) as runner:
        run = runner.submit(crawl.run)
        try:
            wait_until(settled("5xx", 3))
            wait_until(settled("2xx", 3))
            served.release()
            wait_until(settled("throttled", 1))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                told = answer.read().decode()
        finally:
            crawl.stop("told")
        report = dict(run.result(CRAWL_SECONDS).data)
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    status = read_status(folder / "state")
    assert status is not None
    return Told(served.netloc, report, events, summary(status), told)


def wait_until(reached: Callable[[], bool]) -> None:
    late = time.monotonic() + CRAWL_SECONDS
    while not reached():
        assert time.monotonic() < late, "the crawl does not come to it"
        time.sleep(0.02)  # between two looks at a crawl that runs beside


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    with Site(Host(pages=pages())) as site:
        return run_and_ask(tmp_path_factory.mktemp("told"), site)


def each(template: str, host: str) -> list[str]:
    """`template` for each stage where it speaks of stages."""
    template = template.replace("HOST", re.escape(host))
    stages = STAGES if "STAGE" in template else ("",)
    return [template.replace("STAGE", stage) for stage in stages]


@pytest.mark.parametrize("item", ITEMS, ids=[item.name for item in ITEMS])
class TestEachItem:
    def test_in_the_report(self, told: Told, item: Item) -> None:
        for stage in STAGES if "STAGE" in item.report else ("",):
            value: Any = told.report
            for part in item.report.split("."):
                value = value[{"HOST": told.host, "STAGE": stage}.get(part, part)]
            assert value is not None

    def test_in_the_log(self, told: Told, item: Item) -> None:
        event, _, field = item.log.partition(".")
        found = [line for line in told.log if line["event"] == event]
        subjects = {
            "pressure": {None},
            "pressure_stage": set(STAGES),
            "pressure_host": {told.host},
        }
        assert {line.get("stage") or line.get("host") for line in found} == subjects[event]
        assert all(line[field] is not None for line in found)

    def test_in_status(self, told: Told, item: Item) -> None:
        for words in each(item.status, told.host):
            assert re.search(words, told.status, re.MULTILINE), told.status

    def test_in_the_metrics(self, told: Told, item: Item) -> None:
        for name in each(item.metric, told.host):
            assert re.search(rf"^syncrawl_{name} [\d.]", told.metrics, re.MULTILINE), told.metrics
