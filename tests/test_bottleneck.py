"""Whole crawls with one slow part each: the one line names it, while they run and at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from syncrawl.config.model import Config
from syncrawl.engine.crawl import Crawl
from syncrawl.observe.report import Report, bottleneck_line
from syncrawl.parse.html import PageParser
from syncrawl.store.jsonl import JsonlStore
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host
from syncrawl.testing.site_pages import PageTree
from tests.crawling import settings

# How long each crawl is watched, and what its slow part takes for each piece of work, in seconds.
WATCHED = 3.0
SLOW = 1.0


def lines(config: Config) -> tuple[str, Report]:
    """The last line told while it ran, and the report of the end."""
    crawl = Crawl(config)
    told: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            told.append(bottleneck_line(crawl.snapshot()))

    with ThreadPoolExecutor(1) as watcher:
        watching = watcher.submit(watch)
        late = threading.Timer(WATCHED, crawl.stop)
        late.start()
        try:
            report = crawl.run()
        finally:
            late.cancel()
            over.set()
        watching.result()
    return told[-1], report


def some_settings(folder: Path, site: Site, **tables: Any) -> Config:
    tables = {"fetch": {"workers": 8}, "queues": {"max_items": 16}, **tables}
    tables["crawl"] = {"stop_grace": 0.1}
    tables["host"] = {"start": 8, **tables.get("host", {})}
    return settings(folder, [host.url() for host in site.hosts], **tables)


def slowed(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
    work = getattr(kind, method)

    def slow(*arguments: Any) -> Any:
        time.sleep(SLOW)
        return work(*arguments)

    monkeypatch.setattr(kind, method, slow)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(Host(pages=PageTree(100_000)), Host(pages=PageTree(100_000))) as site:
        yield site


def test_a_slow_store(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(monkeypatch, JsonlStore, "write")
    line, report = lines(some_settings(tmp_path, site))
    assert line.startswith("bottleneck: store, ")
    assert report.data["bottleneck"]["stage"] == "commit"


def test_a_slow_parser(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(monkeypatch, PageParser, "parse")
    line, report = lines(some_settings(tmp_path, site, parse={"workers": 1}))
    assert line.startswith("bottleneck: parse, ")
    assert report.data["bottleneck"]["stage"] == "parse"


@pytest.mark.parametrize("limit", [{"rate": 2.0}, {"rate": 0.01}], ids=["often", "once"])
def test_hosts_limits(tmp_path: Path, site: Site, limit: dict[str, float]) -> None:
    """Where nobody wakes between two readings, a wait counts while it lasts all the same."""
    line, report = lines(some_settings(tmp_path, site, host=limit))
    assert line.startswith("bottleneck: politeness, ")
    assert report.data["bottleneck"]["stage"] == "politeness"
    assert report.data["stages"]["fetch"]["starved_get_seconds"] > WATCHED
