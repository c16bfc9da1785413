"""What the process around a crawl, and the plugins in it, may do: it goes on, or says why not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from syncrawl import registry
from syncrawl.api import Link, Page, Record, Request, Response
from syncrawl.engine.crawl import Crawl
from syncrawl.errors import StopCondition
from syncrawl.fetch.robots import ALLOW_ALL
from syncrawl.fetch.transport import Urllib3Fetcher
from syncrawl.observe.report import Report
from syncrawl.store.jsonl import jsonl_store
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host
from tests.crawling import adds_up, crawl, links, records, settings

PAGES = {"/": links("/1", "/2", "/3"), "/1": "one", "/2": "two", "/3": "three"}

Refuse = Callable[[Callable[[threading.Thread], bool]], None]


class Told:
    """A log that remembers events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.events.append((event, fields))

    def find(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Have the system refuse those threads of a crawl for which a test says so."""
    start = threading.Thread.start

    def refuse(is_refused: Callable[[threading.Thread], bool]) -> None:
        def start_or_not(self: threading.Thread) -> None:
            ours = self.name.partition("_")[0] in NAMES
            if ours and is_refused(self):
                raise RuntimeError("can't start new thread")
            start(self)

        monkeypatch.setattr(threading.Thread, "start", start_or_not)

    return refuse


NAMES = {"commit", "fetch", "parse", "seeds", "observer", "metrics", "syncrawl-dns"}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(Host(pages=PAGES)) as site:
        yield site


def seeds(site: Site) -> list[str]:
    # By name: a look-up takes a thread.
    return [f"http://localhost:{site.hosts[0].port}/"]


@pytest.mark.parametrize("name", ["commit", "fetch", "parse", "seeds"])
def test_without_a_thread_that_is_needed_a_crawl_says_so(
    tmp_path: Path, site: Site, refuse: Refuse, name: str
) -> None:
    config = settings(tmp_path, seeds(site), fetch={"workers": 2})
    with pytest.MonkeyPatch.context():
        refuse(lambda thread: thread.name.startswith(name))
        with pytest.raises(StopCondition, match="no thread can be had") as caught:
            Crawl(config).run()
    assert caught.value.exit_code == 4
    refuse(lambda _: False)
    assert crawl(config).data["urls"]["done"] == 4, "nothing was lost, and nothing is locked"


@pytest.mark.parametrize("name", ["observer", "metrics", "fetch_1", "parse_1"])
def test_without_a_thread_that_only_helps_it_goes_on(
    tmp_path: Path, site: Site, refuse: Refuse, name: str
) -> None:
    log = Told()
    config = settings(
        tmp_path,
        seeds(site),
        fetch={"workers": 2},
        parse={"workers": 2},
        metrics={"listen": "127.0.0.1:0"},
    )
    refuse(lambda thread: thread.name.startswith(name))
    report = crawl(config, log=log)
    assert (report.exit_code, report.data["urls"]["done"]) == (0, 4)
    if name == "observer":
        assert log.find("status_not_written")
    if name == "metrics":
        assert log.find("metrics not served")


@pytest.mark.parametrize("times", [1, 3])
def test_a_look_up_without_a_thread_blames_no_host_and_is_made_later(
    tmp_path: Path, site: Site, refuse: Refuse, times: int
) -> None:
    refused: list[str] = []

    def look_up(thread: threading.Thread) -> bool:
        if thread.name != "syncrawl-dns" or len(refused) >= times:
            return False
        refused.append(thread.name)
        return True

    refuse(look_up)
    report = crawl(settings(tmp_path, seeds(site), robots={"obey": False}))
    assert len(refused) == times
    assert report.data["outcomes"].get("dns", 0) == 0
    assert report.data["urls"]["done"] == 4
    assert adds_up(report)


@pytest.mark.parametrize("first", range(10))
def test_wherever_threads_run_out_it_ends_by_itself(
    tmp_path: Path, site: Site, refuse: Refuse, first: int
) -> None:
    """From the `first` thread on none can be had."""
    lock, started = threading.Lock(), [0]

    def later(_: threading.Thread) -> bool:
        with lock:
            started[0] += 1
            return started[0] > first

    refuse(later)
    url = site.hosts[0].url("/")
    config = settings(tmp_path, [url], fetch={"workers": 4}, metrics={"listen": "127.0.0.1:0"})
    try:
        code = crawl(config).exit_code
    except StopCondition as exc:
        code = exc.exit_code
    assert code in (0, 4)


# ------------------------------------------------------------------ plugins

RAISED = [
    SystemExit(7),
    KeyboardInterrupt(),
    MemoryError(),
    RecursionError("deep"),
    BaseException(),
]
whatever = pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Any], None]:
    """Have the registry make something of ours under a name of our choice."""
    ours: dict[tuple[str, str], Any] = {}
    construct = registry.construct

    def look(group: str, name: str, options: Mapping[str, Any]) -> Any:
        made = ours.get((group, name))
        return made(options) if made else construct(group, name, options)

    monkeypatch.setattr(registry, "construct", look)

    def add(group: str, name: str, factory: Any) -> None:
        ours[group, name] = factory

    return add


def run(folder: Path, site: Site, log: Any = None, **tables: Any) -> Report:
    return crawl(settings(folder, [site.hosts[0].url("/")], **tables), log=log or Told())


@whatever
def test_a_fetcher_that_raises_costs_its_page(
    tmp_path: Path, site: Site, plugin: Any, raised: BaseException
) -> None:
    class Broken(Urllib3Fetcher):
        def fetch(self, request: Request, on_stale: Callable[[], bool] | None = None) -> Response:
            if request.url.endswith("/2"):
                raise raised
            return super().fetch(request, on_stale)

        def close(self) -> None:
            super().close()
            if not isinstance(raised, KeyboardInterrupt):
                # On the thread of whoever runs the crawl, where that is Ctrl-C.
                raise SystemExit(3)

    log = Told()
    plugin("fetchers", "urllib3", Broken)
    report = run(tmp_path, site, log)
    assert report.exit_code == 0
    assert report.data["outcomes"] == {"2xx": 3, "internal": 1}
    assert type(raised).__name__ in log.find("fetch step failed")[0]["error"]
    assert adds_up(report)


@pytest.mark.parametrize("answer", [None, "page", 7, b"", object()], ids=repr)
def test_a_fetcher_that_answers_nonsense_costs_its_page(
    tmp_path: Path, site: Site, plugin: Any, answer: Any
) -> None:
    class Broken(Urllib3Fetcher):
        def fetch(self, request: Request, on_stale: Callable[[], bool] | None = None) -> Any:
            return answer if request.url.endswith("/2") else super().fetch(request, on_stale)

    plugin("fetchers", "urllib3", Broken)
    report = run(tmp_path, site)
    assert report.data["outcomes"] == {"2xx": 3, "internal": 1}


class Nonsense:
    """A challenge's name that is no name."""

    def __str__(self) -> str:
        raise ValueError("not to be shown")


@whatever
@pytest.mark.parametrize("how", ["raises", "nonsense"])
def test_a_recogniser_that_raises_recognises_nothing(
    tmp_path: Path, site: Site, plugin: Any, raised: BaseException, how: str
) -> None:
    class Broken:
        def recognise(self, *_: Any) -> Any:
            if how == "raises":
                raise raised
            return Nonsense()

    log = Told()
    plugin("challenges", "broken", lambda _: Broken())
    report = run(tmp_path, site, log, fetch={"challenges": ["broken"]})
    assert report.data["outcomes"] == {"2xx": 4}
    # Once of pages and once of robots.txt, but for two threads that meet it at the same time.
    assert 1 <= len(log.find("challenge recogniser failed")) < 5


@whatever
def test_robots_rules_that_raise_leave_the_url_out(
    tmp_path: Path, site: Site, plugin: Any, raised: BaseException
) -> None:
    class Rules:
        crawl_delay = None
        sitemaps = ()

        def allowed(self, url: str) -> bool:
            if url.endswith("/2"):
                raise raised
            return True

    class Engine:
        def parse(self, body: bytes, user_agent: str) -> Any:
            return Rules()

    log = Told()
    plugin("robots", "broken", lambda _: Engine())
    with Site(Host(pages=PAGES, robots="User-agent: *\nDisallow: /x\n")) as robotic:
        report = run(tmp_path, robotic, log, robots={"engine": "broken"})
    assert report.exit_code == 0
    assert report.data["urls"]["done"] == 3
    assert report.data["dropped"] == {"robots": 1}
    assert log.find("robots rules failed; the URL is left out")


@whatever
def test_a_robots_engine_that_raises_closes_its_origin_alone(
    tmp_path: Path, site: Site, plugin: Any, raised: BaseException
) -> None:
    class Engine:
        def parse(self, body: bytes, user_agent: str) -> Any:
            if body:
                raise raised
            return ALLOW_ALL

    log = Told()
    plugin("robots", "broken", lambda _: Engine())
    with Site(Host(pages=PAGES, robots="User-agent: *\nDisallow: /x\n"), Host(pages=PAGES)) as two:
        report = crawl(
            settings(
                tmp_path,
                [host.url("/") for host in two.hosts],
                robots={"engine": "broken"},
                crawl={"give_up_after": 0.2},
            ),
            log=log,
        )
    assert report.exit_code == 0
    assert report.data["urls"]["done"] == 4
    assert log.find("robots rules failed")


@whatever
def test_a_parser_that_raises_costs_its_page_whatever_it_had_yielded(
    tmp_path: Path, site: Site, plugin: Any, raised: BaseException
) -> None:
    class Broken:
        def parse(self, page: Page) -> Iterator[Record | Link]:
            yield {"url": page.url}
            if page.url.endswith("/2"):
                raise raised
            for name in ("1", "2", "3"):
                yield Link(f"/{name}")

        def close(self) -> None:
            raise raised

    log = Told()
    plugin("parsers", "broken", lambda _: Broken())
    report = run(tmp_path, site, log, parse={"parsers": ["broken"]})
    assert report.exit_code == 0
    assert report.data["outcomes"] == {"2xx": 3, "parse_error": 1}
    assert sorted(one["url"][-1] for one in records(tmp_path)) == ["/", "1", "3"]
    assert type(raised).__name__ in log.find("parse failed")[0]["error"]
    assert log.find("parser failed to close")


@whatever
@pytest.mark.parametrize("where", ["write", "checkpoint", "recover", "close"])
def test_a_store_that_raises_is_tried_again_or_ends_the_crawl_with_nothing_lost(
    tmp_path: Path, site: Site, plugin: Any, raised: BaseException, where: str
) -> None:
    left = [1]

    def failing(options: Mapping[str, Any]) -> Any:
        store = jsonl_store(options)
        before = getattr(store, where)

        def once(*given: Any) -> Any:
            if left[0] and (where != "checkpoint" or recorded):
                left[0] -= 1
                raise raised
            return before(*given)

        recorded: list[int] = []
        write = store.write

        def noted(batch: Any) -> None:
            recorded.append(1)
            if where == "recover" and len(recorded) == 1:
                raise ValueError("so that there is something to recover")
            write(batch)

        store.write = noted
        if where == "write":
            before = noted
        setattr(store, where, once)
        return store

    plugin("stores", "jsonl", failing)
    report = run(tmp_path, site)
    assert left == [0]
    if where == "recover":
        assert report.exit_code == 4
        report = run(tmp_path, site)
    assert report.exit_code == 0
    assert len(records(tmp_path)) == 4
    assert adds_up(report)
