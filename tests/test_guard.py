"""Workers that hang are replaced, what they held is settled, and a standstill is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl import registry
from syncrawl.api import Headers, Page, Record, Request, Response
from syncrawl.clock import SystemClock
from syncrawl.config.model import Config, CrawlConfig
from syncrawl.engine.crawl import Crawl
from syncrawl.engine.guard import Guard
from syncrawl.engine.watch import WorkWatch
from syncrawl.errors import FetchError, PluginError, StopCondition
from syncrawl.testing.clock import FakeClock
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host, Reply
from tests.crawling import adds_up, crawl, links, records, settings

# Real seconds in which a worker that hangs must have been noticed.
NOTICED = 20.0


class Told:
    """A log that remembers events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.events.append((event, fields))

    def find(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


@pytest.fixture(autouse=True)
def short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hangs is not waited for at the end."""
    monkeypatch.setattr("syncrawl.engine.crawl._JOIN", 0.2)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Any], None]:
    """Have the registry make something of ours under a name of our choice."""
    ours: dict[tuple[str, str], Any] = {}
    construct = registry.construct

    def look(group: str, name: str, options: Mapping[str, Any]) -> Any:
        made = ours.get((group, name))
        return made() if made else construct(group, name, options)

    monkeypatch.setattr(registry, "construct", look)

    def add(group: str, name: str, factory: Any) -> None:
        ours[group, name] = factory

    return add


def test_a_parser_that_hangs_costs_its_page_and_nothing_else(tmp_path: Path, plugin: Any) -> None:
    free = threading.Event()

    class Hangs:
        def parse(self, page: Page) -> Iterable[Record]:
            if page.url.endswith("/bad"):
                free.wait(NOTICED)
            yield {"url": page.url}

    plugin("parsers", "hangs", Hangs)
    pages = {"/": links("/bad", "/1", "/2", "/3"), "/bad": "x", "/1": "1", "/2": "2", "/3": "3"}
    log = Told()
    with Site(Host(pages=pages)) as site:
        parse = {"workers": 1, "deadline": 0.3, "parsers": ["page", "hangs"]}
        running = Crawl(settings(tmp_path, [site.hosts[0].url()], parse=parse), log=log)
        report = running.run()
        hung = running.hung()
        free.set()
    assert report.exit_code == 0
    assert report.data["outcomes"] == {"2xx": 4, "parse_timeout": 1}
    assert report.data["stages"]["parse"]["rejected"] == 1
    assert adds_up(report)
    told = log.find("a worker hangs; its result is given up")
    assert len(told) == 1
    assert told[0]["url"].endswith("/bad")
    assert told[0]["thread"] in hung, "who would hold up the exit is named"
    assert "free.wait" in told[0]["stack"]
    urls = {record["url"] for record in records(tmp_path)}
    assert not any(url.endswith("/bad") for url in urls)


def test_a_fetcher_that_hangs_loses_an_attempt_and_its_slot_comes_back(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncrawl.engine.fetching.GRACE", 0.2)
    free = threading.Event()
    asked: list[str] = []

    class Fetcher:
        def fetch(self, request: Request, on_stale: Any = None) -> Response:
            asked.append(request.url)
            if request.url.endswith("/bad") and asked.count(request.url) == 1:
                free.wait(NOTICED)
            status = 404 if request.url.endswith("robots.txt") else 200
            body = links("/bad", "/1").encode() if request.url.endswith("/") else b"x"
            headers = Headers([("Content-Type", "text/html")])
            return Response(request.url, status, headers, body, 0.0, 0.0)

        def close(self) -> None: ...

    plugin("fetchers", "ours", Fetcher)
    config = settings(
        tmp_path,
        ["http://a.example/"],
        fetch={"client": "ours", "workers": 8, "total_timeout": 0.3, "read_timeout": 0.3},
        host={"start": 1, "ceiling": 1},
    )
    running = Crawl(config)
    report = running.run()
    hung = running.hung()
    free.set()
    assert report.data["outcomes"] == {"2xx": 3, "lost": 1}
    assert asked.count("http://a.example/bad") == 2
    assert report.data["urls"]["done"] == 3
    assert adds_up(report)
    assert len([name for name in hung if name.startswith("fetch")]) >= 1


class Later(SystemClock):
    """The machine's clock, some minutes ahead."""

    wall = staticmethod(lambda: time.time() + 600.0)


@pytest.mark.parametrize("target", ["http://a.example/b", "http://b.example/b"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_page_whose_fetcher_hung_behind_a_redirect_is_fetched_and_recorded_once(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch, target: str, restart: bool
) -> None:
    """On the same host it is followed on the slot, on another it is leased by itself."""
    monkeypatch.setattr("syncrawl.engine.fetching.GRACE", 0.2)
    free = threading.Event()
    asked: list[str] = []

    class Fetcher:
        def fetch(self, request: Request, on_stale: Any = None) -> Response:
            url = request.url
            asked.append(url)
            if url == target and asked.count(url) == 1:
                free.wait(NOTICED)
            html, status, body = ("Content-Type", "text/html"), 200, b"<title>x</title>"
            if url.endswith("robots.txt"):
                status = 404
            elif url.endswith("/a"):
                return Response(url, 302, Headers([("Location", target)]), b"", 0.0, 0.0)
            elif url.endswith("/"):
                body = links("/a").encode()
            return Response(url, status, Headers([html]), body, 0.0, 0.0)

        def close(self) -> None: ...

    plugin("fetchers", "ours", Fetcher)
    config = settings(
        tmp_path,
        ["http://a.example/"],
        crawl={"max_wait": 1.0} if restart else {},
        scope={"follow": "any"},
        fetch={"client": "ours", "workers": 8, "total_timeout": 0.3, "read_timeout": 0.3},
        retry={"backoff_base": 60.0, "backoff_max": 60.0} if restart else {},
    )
    report = Crawl(config).run()
    if restart:
        assert report.exit_code == 4
        assert report.data["urls"]["pending"] == 1
        report = Crawl(config, clock=Later()).run()
    free.set()
    assert report.exit_code == 0
    assert report.data["outcomes"]["lost"] == 1
    assert "duplicate" not in report.data["outcomes"]
    assert report.data["pages"] == 2
    assert adds_up(report)
    assert asked.count(target) == 2
    ends = [record["final_url"] for record in records(tmp_path)]
    assert sorted(ends) == sorted(["http://a.example/", target])


def test_a_page_whose_parser_hung_behind_a_redirect_keeps_what_it_claimed(
    tmp_path: Path, plugin: Any
) -> None:
    """As where its parser raises: the target is known for good, and its bytes are counted."""
    free = threading.Event()

    class Hangs:
        def parse(self, page: Page) -> Iterable[Record]:
            if page.final_url.endswith("/b"):
                free.wait(NOTICED)
            return []

    plugin("parsers", "hangs", Hangs)
    pages = {
        "/": links("/a", "/c"),
        "/a": Reply(status=302, headers=(("Location", "/b"),)),
        "/b": "b",
        "/c": links("/b"),
    }
    with Site(Host(pages=pages)) as site:
        parse = {"workers": 1, "deadline": 0.3, "parsers": ["page", "hangs"]}
        config = settings(tmp_path, [site.hosts[0].url("/a")], parse=parse)
        first = Crawl(config).run()
        assert first.data["outcomes"] == {"parse_timeout": 1}
        config = settings(tmp_path, [site.hosts[0].url("/a"), site.hosts[0].url()], parse=parse)
        second = Crawl(config).run()
        free.set()
        asked = [one.target for one in site.hosts[0].log.exchanges]
    assert asked.count("/b") == 1
    assert second.data["outcomes"] == {"2xx": 2, "parse_timeout": 1}
    assert second.data["wire_bytes"] > first.data["wire_bytes"] > 0


class Unusable:
    """A parser that hangs on its first page, or fails before it gets one, as told."""

    made = 0

    def __init__(self, free: threading.Event, *, opens: bool = True, most: int = 99) -> None:
        type(self).made += 1
        if type(self).made > most:
            raise PluginError("its factory raised KeyError: 'mine'", key="parse.parsers")
        self._free = free
        self._opens = opens

    def open(self) -> None:
        if not self._opens:
            raise RuntimeError("no model\nto load")

    def parse(self, page: Page) -> Iterable[Record]:
        self._free.wait(NOTICED)
        return []


@pytest.mark.parametrize("what", ["open", "replacement"])
def test_a_parser_that_cannot_be_used_ends_the_crawl_at_once(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    free = threading.Event()
    monkeypatch.setattr(Unusable, "made", 0)
    plugin("parsers", "unusable", lambda: Unusable(free, opens=what != "open", most=1))
    log = Told()
    with Site(Host(pages={"/": "x", "/1": "y", "/2": "z"})) as site:
        seeds = [site.hosts[0].url("/1"), site.hosts[0].url("/2"), site.hosts[0].url("/")]
        parse = {"workers": 1, "deadline": 0.3, "parsers": ["page", "unusable"]}
        running = Crawl(settings(tmp_path, seeds, parse=parse, crawl={"stop_grace": 50.0}), log=log)
        began = time.monotonic()
        report = running.run()
        took = time.monotonic() - began
        free.set()
    assert (report.exit_code, report.status) == (2, "failed")
    says = "its open() raised RuntimeError: no model to load" if what == "open" else "its factory"
    assert says in report.data["reason"]
    assert "parse.parsers" in report.data["reason"]
    assert "\n" not in report.data["reason"]
    assert took < 10.0, "there is nothing to wait for"
    assert log.find("a worker cannot go on")
    assert report.data["urls"]["failed"] == (what != "open"), "the rest is still to be crawled"
    assert report.data["urls"]["pending"] > 0
    assert adds_up(report)


def test_a_worker_that_ends_by_a_bug_ends_the_crawl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: Any) -> bool:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("syncrawl.engine.fetching.FetchStep.step", step)
    log = Told()
    report = Crawl(settings(tmp_path, ["http://a.example/"]), log=log).run()
    assert report.exit_code == 1
    assert report.data["reason"] == (
        "internal error: a fetch worker ended: ZeroDivisionError: by zero"
    )
    assert log.find("a worker ended")


def test_a_stage_of_which_every_worker_hangs_ends_the_crawl_and_is_named(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncrawl.engine.crew.MOST_REPLACED", 2)
    free = threading.Event()
    monkeypatch.setattr(Unusable, "made", 0)
    plugin("parsers", "hangs", lambda: Unusable(free))
    with Site(Host(pages={f"/{n}": "x" for n in range(9)})) as site:
        seeds = [site.hosts[0].url(f"/{n}") for n in range(9)]
        parse = {"workers": 2, "deadline": 0.2, "parsers": ["hangs"]}
        running = Crawl(settings(tmp_path, seeds, parse=parse, crawl={"stop_grace": 50.0}))
        began = time.monotonic()
        report = running.run()
        took = time.monotonic() - began
        hung = running.hung()
        free.set()
    assert (report.exit_code, report.status) == (4, "condition")
    assert "every parse worker hangs, the last one in parser hangs at http" in report.data["reason"]
    assert report.data["outcomes"] == {"parse_timeout": 4}
    assert len(hung) == 4
    assert took < 15.0
    assert adds_up(report)


def test_fetch_workers_that_all_hang_end_the_crawl_and_name_the_client(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncrawl.engine.crew.MOST_REPLACED", 3)
    monkeypatch.setattr("syncrawl.engine.fetching.GRACE", 0.1)
    free = threading.Event()

    class Fetcher:
        def fetch(self, request: Request, on_stale: Any = None) -> Response:
            free.wait(NOTICED)
            raise FetchError("late", outcome="timeout")

        def close(self) -> None: ...

    plugin("fetchers", "ours", Fetcher)
    quick = {"total_timeout": 0.2, "read_timeout": 0.2, "connect_timeout": 0.2}
    config = settings(
        tmp_path,
        [f"http://h{n}/" for n in range(40)],
        fetch={"workers": 2, "client": "ours", **quick},
        robots={"obey": False},
    )
    running = Crawl(config)
    report = running.run()
    hung = running.hung()
    free.set()
    assert report.exit_code == 4
    reason = report.data["reason"]
    assert "every fetch worker hangs, the last one in fetch.client ours at http://h" in reason
    assert sum(name.startswith("fetch") for name in hung) == 5
    assert adds_up(report)


def test_a_parser_that_a_child_cannot_open_ends_the_crawl_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "plugins"
    info = module / "licensed-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: licensed\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[syncrawl.parsers]\nlicensed = licensed:P\n")
    (module / "licensed.py").write_text(
        "class P:\n"
        "    def __init__(self, options): ...\n"
        "    def open(self): raise OSError('no licence')\n"
        "    def parse(self, page): return []\n"
    )
    monkeypatch.syspath_prepend(str(module))
    with Site(Host(pages={"/": links("/1"), "/1": "x"})) as site:
        parse = {"processes": 1, "parsers": ["page", "licensed"]}
        running = Crawl(settings(tmp_path, [site.hosts[0].url()], parse=parse))
        report = running.run()
    assert report.exit_code == 2
    reason = report.data["reason"]
    assert "its open() raised OSError: no licence" in reason
    assert "licensed 2.0" in reason
    assert running.hung() == []
    assert adds_up(report)
    assert report.data["urls"]["done"] == 0, "nothing is lost by it"


class HangingStore:
    """A store of which one method hangs: what `hang` does."""

    def __init__(self, where: str, hang: Callable[[], object]) -> None:
        self._where = where
        self._hang = hang

    def _called(self, name: str) -> None:
        if name == self._where:
            self._hang()

    def open(self) -> None:
        self._called("open")

    def write(self, records: Iterable[Record]) -> None:
        self._called("write")

    def checkpoint(self) -> bytes:
        return b"x"

    def recover(self, token: bytes) -> None: ...

    def close(self) -> None:
        self._called("close")


@pytest.mark.parametrize("where", ["open", "close"])
def test_a_store_that_hangs_at_the_start_or_the_end_is_left_behind(
    tmp_path: Path, plugin: Any, where: str
) -> None:
    free = threading.Event()
    called = threading.Event()

    def hang() -> None:
        called.set()
        free.wait(NOTICED)

    plugin("stores", "hangs", lambda: HangingStore(where, hang))
    log = Told()
    with Site(Host(pages={"/": "x"})) as site:
        config = settings(
            tmp_path,
            [site.hosts[0].url()],
            crawl={"stop_grace": 0.1},
            stores=[{"type": "hangs", "path": "x"}],
        )
        running = Crawl(config, log=log)

        def stop() -> None:
            called.wait(NOTICED)
            running.stop("SIGTERM")

        stopper = threading.Thread(target=stop)
        stopper.start()
        if where == "open":
            with pytest.raises(StopCondition, match="a store hangs in opening"):
                running.run()
        else:
            assert running.run().data["pages"] == 1
        stopper.join()
        hung = running.hung()
        free.set()
    assert hung == ["commit_0"]
    (told,) = log.find("a store hangs; left behind")
    assert told["what"] == {"open": "opening", "close": "closing"}[where]


class StandStill:
    """As much of `Rooms` as a Guard looks at."""

    def __init__(self, clock: FakeClock) -> None:
        self.watch = WorkWatch(clock)
        self.scheduler = SimpleNamespace(requests=5, unsettled=1, waits_until=lambda: None)
        counts = SimpleNamespace(seen=9, unfinished=3)
        self.frontier = SimpleNamespace(counts=lambda: counts)
        self.committer = SimpleNamespace(items=4, due_at=None)
        self.seeds = SimpleNamespace(ended=True)
        self.counts = counts


def guard() -> tuple[Guard, Any, FakeClock, Told]:
    clock, log = FakeClock(), Told()
    rooms: Any = StandStill(clock)
    config = Config(crawl=CrawlConfig(stall_after=60.0))
    crew: Any = SimpleNamespace(failed=lambda: None, refill=lambda: None)
    subject = Guard(config, rooms, crew, end_with=_never, clock=clock, log=log)  # type: ignore[arg-type]
    return subject, rooms, clock, log


def _never(code: int, reason: str) -> None:
    raise AssertionError(reason)


def test_a_standstill_is_named_once_with_every_threads_stack() -> None:
    subject, rooms, clock, log = guard()
    subject.look()
    clock.advance(59.0)
    subject.look()
    assert not subject.stalled
    clock.advance(1.5)
    subject.look()
    subject.look()
    (told,) = log.find("stalled")
    assert "no progress for 60 s: 1 leases are not committed" in subject.stalled
    assert "test_a_standstill_is_named_once" in told["stacks"]
    rooms.committer.items += 1
    subject.look()
    assert not subject.stalled, "it goes on"
    clock.advance(61.0)
    subject.look()
    assert len(log.find("stalled")) == 2


@pytest.mark.parametrize("what", ["host", "url"])
def test_waiting_for_a_time_is_no_standstill(what: str) -> None:
    subject, rooms, clock, log = guard()
    rooms.scheduler.unsettled = 0
    if what == "host":
        rooms.scheduler.waits_until = lambda: clock.monotonic() + 100.0
    else:
        rooms.committer.due_at = clock.wall() + 10_000.0
    for _ in range(10):
        clock.advance(30.0)
        subject.look()
    assert not log.events
    # A lease that hangs is none the less one, whatever else is due some time.
    rooms.scheduler.unsettled = 1
    for _ in range(4):
        clock.advance(30.0)
        subject.look()
    assert log.find("stalled")


def test_the_crawl_says_what_it_stands_still_for(tmp_path: Path, plugin: Any) -> None:
    free = threading.Event()
    seen: list[str] = []

    plugin("stores", "hangs", lambda: HangingStore("write", lambda: free.wait(NOTICED)))
    log = Told()
    with Site(Host(pages={"/": "x"})) as site:
        config = settings(
            tmp_path,
            [site.hosts[0].url()],
            crawl={"stall_after": 0.6},
            stores=[{"type": "hangs", "path": "x"}],
        )
        running = Crawl(config, log=log)

        def look() -> None:
            until = time.monotonic() + NOTICED
            while time.monotonic() < until and not log.find("stalled"):
                free.wait(0.05)
            seen.append(running.snapshot()["reason"])
            free.set()

        watcher = threading.Thread(target=look)
        watcher.start()
        report = running.run()
        watcher.join()
    assert report.exit_code == 0
    assert "no progress for 0.6 s" in seen[0]
    assert "commit_0" in log.find("stalled")[0]["stacks"]


def test_a_robots_txt_that_is_refused_is_told_in_the_log(tmp_path: Path) -> None:
    log = Told()
    with Site(Host(pages={"/": "x", "/robots.txt": 503})) as site:
        config = settings(tmp_path, [site.hosts[0].url()], crawl={"give_up_after": 0.5})
        report = crawl(config, log=log)
        name = site.hosts[0].url().rstrip("/")
    assert report.data["outcomes"] == {"refusing": 1}
    told = log.find("robots.txt unavailable")
    assert told
    assert told[0] == {"origin": name, "outcome": "throttled"}


def test_without_trouble_nobody_is_replaced(tmp_path: Path) -> None:
    log = Told()
    with Site(Host(pages={"/": links("/1"), "/1": "x"})) as site:
        crawl(settings(tmp_path, [site.hosts[0].url()]), log=log)
    assert not log.find("a worker hangs; its result is given up")
    assert not log.find("stalled")
