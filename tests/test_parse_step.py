"""The parse stage's step: what it hands on, what a parser can do to it, and who parses."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from syncrawl import registry
from syncrawl.api import Headers, Link, Page, Record, Response
from syncrawl.clock import SystemClock
from syncrawl.config.model import Config, ParseConfig, ScopeConfig
from syncrawl.engine.budget import Ticket
from syncrawl.engine.lease import Fetched, Lease, Parsed
from syncrawl.engine.parsing import LinkMemo, NamedParser, ParseStep
from syncrawl.engine.watch import WorkWatch
from syncrawl.frontier.model import Entry
from syncrawl.frontier.seen import SeenSet
from syncrawl.limits.signals import RULES
from syncrawl.log import NullLog
from syncrawl.parse.keeper import ChildFailed, ChildKeeper, ParserRaised, ParseTimeout
from syncrawl.parse.work import Parts, Work
from syncrawl.scope import Scope
from syncrawl.testing.clock import FakeClock
from syncrawl.urls import Canonicalizer, fingerprint

CANON = Canonicalizer(())
# Real seconds after which a thread counts as hung.
PATIENCE = 20.0

Yielding = Callable[[Page], Iterable[Record | Link]]


class Notes(NullLog):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, /, **values: Any) -> None:
        self.events.append((event, values))


class StubParser:
    """Yields what a function yields; counts what else is called."""

    def __init__(self, yielding: Yielding) -> None:
        self.parse = yielding
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")
        raise RuntimeError("no close")


class StubChild:
    """A keeper that answers from a list."""

    longest = 99.0

    def __init__(self, *answers: Work | Exception) -> None:
        self.at = "page"
        self.asked: list[tuple[Parts, bytes]] = []
        self.calls: list[str] = []
        self._answers = deque(answers)

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def parse(self, parts: Parts, body: bytes) -> Work:
        self.asked.append((parts, body))
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bed:
    """A step between a queue of pages and a list of results."""

    def __init__(
        self,
        *parsers: NamedParser,
        child: Any = None,
        scope: ScopeConfig | None = None,
        clock: Any = None,
        deadline: float = 30.0,
    ) -> None:
        self.clock = clock or FakeClock()
        self.watch = WorkWatch(self.clock)
        self.pages: deque[Fetched] = deque()
        self.results: list[Parsed] = []
        self.credits = 0
        self.seen = SeenSet()
        self.log = Notes()
        scope = scope or ScopeConfig(follow="any")
        seed = CANON.parse("http://h/")
        assert seed is not None
        self.step = ParseStep(
            Config(scope=scope, parse=ParseConfig(deadline=deadline)),
            parsers=parsers,
            canonicalizer=CANON,
            memo=LinkMemo(),
            scope=Scope(scope, [seed]),
            seen=self.seen,
            source=self,
            sink=self,
            give_credit=self._credit,
            watch=self.watch,
            clock=self.clock,
            log=self.log,
            child=child,
        )

    def get(self) -> Fetched | None:
        return self.pages.popleft() if self.pages else None

    def put(self, item: Parsed) -> None:
        self.results.append(item)

    def _credit(self) -> None:
        self.credits += 1

    def add(self, body: bytes = b"", url: str = "http://h/a/", *, outcome: str = "2xx") -> Fetched:
        host: Any = None
        entry = Entry(url, fingerprint(url), depth=1, referrer="http://h/")
        response = Response(url, 200, Headers({"Content-Type": "text/html"}), body, 0.1, 0.2)
        fetched = Fetched(
            Lease(1, host, 0.0, Ticket(), entry=entry),
            outcome,
            response=response if outcome == "2xx" else None,
            final_url=url,
            fetched_at=1_700_000_000.25,
            elapsed=0.2,
        )
        self.pages.append(fetched)
        return fetched

    def parsed(self, *arguments: Any, **more: Any) -> Parsed:
        self.add(*arguments, **more)
        assert self.step.step()
        result = self.results.pop()
        assert not self.results
        # Whatever became of the page, its body is let go of.
        assert result.fetched.response is None
        return result


def parser(yielding: Yielding, name: str = "stub") -> NamedParser:
    return NamedParser(name, StubParser(yielding))


def page_parser() -> NamedParser:
    return NamedParser("page", registry.construct("parsers", "page", {}))


def found(parsed: Parsed) -> list[str]:
    return [entry.url for entry in parsed.links]


def work(links: Iterable[Link] = (), **changes: Any) -> Work:
    return Work([{"a": 1}], list(links), 5, 6, "utf-8", "http://h/base/")._replace(**changes)


def test_a_page_becomes_records_and_entries() -> None:
    bed = Bed(page_parser())
    parsed = bed.parsed(b"<base href=/b/><title>T</title><a href=x>1</a><a href='/y#z'>2</a>")
    (record,) = parsed.records
    assert (record["title"], record["depth"], record["fetched_at"]) == (
        "T",
        1,
        "2023-11-14T22:13:20.250Z",
    )
    assert found(parsed) == ["http://h/b/x", "http://h/y"]
    assert {(one.depth, one.priority, one.referrer) for one in parsed.links} == {
        (2, 0, "http://h/a/")
    }
    assert parsed.length == 66
    assert parsed.body_hash == int(record["sha256"][:16], 16)
    assert (bed.credits, bed.step.items) == (1, 1)


def test_what_is_no_page_passes() -> None:
    bed = Bed(parser(lambda page: [{"never": True}]))
    parsed = bed.parsed(outcome="timeout")
    assert (parsed.records, parsed.fetched.outcome) == ([], "timeout")
    assert not bed.step.step()


def test_links_out_of_scope_and_known_are_left_out() -> None:
    links = [
        Link("/new"),
        Link("/new#again"),
        Link("/seen"),
        Link("/denied"),
        Link("http://["),
        Link("/not", nofollow=True),
    ]
    bed = Bed(parser(lambda page: links), scope=ScopeConfig(deny=("denied",)))
    bed.seen.add([fingerprint("http://h/seen")])
    parsed = bed.parsed()
    assert found(parsed) == ["http://h/new"]
    assert parsed.refused == {"deny": 1, "invalid": 1, "nofollow": 1}


def test_the_priority_is_the_links_or_the_scopes() -> None:
    scope = ScopeConfig(priorities={"/news/": 5, "[.]pdf$": -5, "pdf": 9})
    hrefs = ["/news/a.pdf", "/a.pdf", "/pdf/", "/x"]
    links = [*map(Link, hrefs), Link("/news/own", 0), Link("/own", 77)]
    parsed = Bed(parser(lambda page: links), scope=scope).parsed()
    assert [one.priority for one in parsed.links] == [5, -5, 9, 0, 0, 77]


@pytest.mark.parametrize(
    ("error", "detail"), [(ValueError("no"), "ValueError: no"), (SystemExit(3), "SystemExit: 3")]
)
def test_a_parser_that_raises_costs_that_page(error: BaseException, detail: str) -> None:
    failing = [True]

    def fails(page: Page) -> Iterable[Record | Link]:
        yield Link("/x")
        if failing[0]:
            raise error

    bed = Bed(page_parser(), parser(fails, "second"))
    parsed = bed.parsed(b"<a href=1>")
    assert (parsed.fetched.outcome, parsed.fetched.detail) == ("parse_error", detail)
    assert (parsed.records, parsed.links) == ([], [])
    ((event, told),) = bed.log.events
    assert (event, told["parser"], told["url"]) == ("parse failed", "second", "http://h/a/")
    failing[0] = False
    assert bed.parsed(b"<a href=1>").fetched.outcome == "2xx"


def test_parsers_are_opened_and_closed() -> None:
    one, other = parser(lambda page: []), parser(lambda page: [], "other")
    bed = Bed(one, other)
    bed.step.open()
    bed.step.close()
    assert one.parser.calls == other.parser.calls == ["open", "close"]  # type: ignore[attr-defined]
    assert [told["parser"] for _, told in bed.log.events] == ["stub", "other"]


# -- pages given up -------------------------------------------------------------------------


def test_a_page_that_was_given_up_is_thrown_away_and_ends_the_worker() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hangs(page: Page) -> Iterable[Record | Link]:
        begun.set()
        assert go_on.wait(PATIENCE)
        return [{"late": True}]

    bed = Bed(parser(hangs), deadline=30.0)
    fetched = bed.add()
    bed.add()
    went_on: list[bool] = []
    worker = threading.Thread(target=lambda: went_on.append(bed.step.step()), name="parse_3")
    worker.start()
    assert begun.wait(PATIENCE)
    bed.clock.advance(30.0)
    assert bed.watch.overdue(bed.clock.monotonic()) == []
    bed.clock.advance(0.5)
    (stuck,) = bed.watch.overdue(bed.clock.monotonic())
    assert (stuck.thread, stuck.stage, stuck.lease) == ("parse_3", "parse", fetched.lease)
    go_on.set()
    worker.join(PATIENCE)
    assert went_on == [False]
    assert bed.results == []
    # What comes next is left to the worker that took this one's place.
    assert len(bed.pages) == 1


def test_the_watch_is_told_of_the_end_whatever_happens() -> None:
    def fails(page: Page) -> Iterable[Record | Link]:
        bed.clock.advance(2.0)
        raise ValueError

    bed = Bed(parser(fails))
    bed.parsed()
    bed.parsed(outcome="timeout")
    bed.clock.advance(1000.0)
    assert bed.watch.overdue(bed.clock.monotonic()) == []
    assert (bed.step.busy_seconds, bed.step.items) == (2.0, 2)


# -- with a child ---------------------------------------------------------------------------


def test_a_child_parses_and_the_step_does_the_rest() -> None:
    child = StubChild(work([Link("x"), Link("/y", 3, "label")]))
    bed = Bed(parser(lambda page: [{"never": True}]), child=child)
    bed.step.open()
    parsed = bed.parsed(b"body", "http://h/%7Ea/")
    bed.step.close()
    assert child.calls == ["open", "close"]
    ((parts, body),) = child.asked
    assert body == b"body"
    assert parts == Parts(
        "http://h/%7Ea/",
        "http://h/%7Ea/",
        200,
        (("Content-Type", "text/html"),),
        1,
        None,
        "http://h/~a/",
        "http://h/",
        "2023-11-14T22:13:20.250Z",
        0.2,
    )
    assert (parsed.records, parsed.body_hash, parsed.length) == ([{"a": 1}], 5, 6)
    assert [(one.url, one.priority, one.label) for one in parsed.links] == [
        ("http://h/base/x", 0, None),
        ("http://h/y", 3, "label"),
    ]


@pytest.mark.parametrize(
    ("error", "outcome", "stack"),
    [
        (ParseTimeout("parser page was ...", stack="in regex"), "parse_timeout", "in regex"),
        (ChildFailed("parser process died (signal 11)"), "parse_error", None),
        (ParserRaised("ValueError: no"), "parse_error", None),
    ],
)
def test_what_a_child_fails_with(error: Exception, outcome: str, stack: str | None) -> None:
    bed = Bed(child=StubChild(error, work()))
    parsed = bed.parsed()
    assert (parsed.fetched.outcome, parsed.fetched.detail) == (outcome, str(error))
    assert outcome in RULES
    ((_, told),) = bed.log.events
    assert (told["parser"], told["error"], told.get("stack")) == ("page", str(error), stack)
    assert bed.parsed().records == [{"a": 1}]


def test_a_child_gets_the_time_it_may_need_before_its_thread_counts_as_hung() -> None:
    class Slow(StubChild):
        def parse(self, parts: Parts, body: bytes) -> Work:
            for seconds in (98.0, 2.0):
                bed.clock.advance(seconds)
                overdue.append(len(bed.watch.overdue(bed.clock.monotonic())))
            return work()

    overdue: list[int] = []
    bed = Bed(child=Slow())
    bed.add()
    assert not bed.step.step()
    assert overdue == [0, 1]


def test_a_real_child_behind_the_step() -> None:
    clock = SystemClock()
    keeper = ChildKeeper(["page"], {}, max_items=9, deadline=30.0, clock=clock, log=NullLog())
    bed, plain = Bed(child=keeper, clock=clock), Bed(page_parser())
    assert 30.0 < keeper.longest < 200.0
    body = "<base href=/b/><meta charset=koi8-r><a href='?q=Ж'>1</a><a href=//o/>2</a>".encode(
        "koi8-r"
    )
    bed.step.open()
    try:
        there, here = bed.parsed(body), plain.parsed(body)
    finally:
        bed.step.close()
    assert (there.records, there.links) == (here.records, here.links)
    assert found(there) == ["http://h/b/?q=%F6", "http://o/"]
    assert (there.body_hash, there.length) == (here.body_hash, here.length)
