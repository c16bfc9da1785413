"""Parse children: what the parsers give, and that no parser can hold up or break a crawl."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncrawl import registry
from syncrawl.clock import SystemClock
from syncrawl.errors import ConfigError
from syncrawl.log import NullLog
from syncrawl.parse import keeper as keeper_module
from syncrawl.parse.keeper import ATTEMPTS, ChildFailed, ChildKeeper, ParserRaised, ParseTimeout
from syncrawl.parse.work import Bench, NamedParser, ParserUnusable, Parts

# What a page may take in tests that let it run over; loading the parsers is not part of it.
SHORT = 0.5
# The same where the deadline must not be what ends a page, however busy the machine is.
LONG = 30.0
# Real seconds after which a process that was to end counts as one that does not.
PATIENCE = 20.0

PARSERS = '''
"""Parsers that do to their process what a page's path says."""
import ctypes, os, re, signal, subprocess, sys, time
from pathlib import Path
from syncrawl.api import Link

class Harmless:
    def __init__(self, options): ...
    def parse(self, page):
        return []

class Hostile:
    def __init__(self, options):
        self.options = options
    def open(self):
        if self.options.get("open") == "exit":
            os._exit(9)
        if self.options.get("open") == "raise":
            raise KeyError("mine")
    def close(self):
        if "at_close" in self.options:
            Path(self.options["at_close"]).write_text("closed")
        if self.options.get("close") == "hang":
            time.sleep(600)
        if self.options.get("close") == "raise":
            raise ValueError("no close")
    def parse(self, page):
        name, _, argument = page.url.removeprefix("http://h/").partition("/")
        yield {"url": page.url, "pid": os.getpid()}
        yield from getattr(self, name)(argument) or ()
    def fine(self, argument): ...
    def regex(self, argument): re.match(r"(a+)+$", "a" * 64 + "b")
    def exit(self, argument): os._exit(int(argument))
    def segfault(self, argument): ctypes.string_at(0)
    def leave(self, argument): sys.exit(argument)
    def fail(self, argument): raise LookupError(argument)
    def unprintable(self, argument):
        class Odd(Exception):
            def __str__(self): raise RuntimeError
        raise Odd
    def surrogate(self, argument): raise ValueError("\\ud800")
    def record(self, argument): yield {"x": object()}
    def big(self, argument): yield {"x": "x" * int(argument)}
    def types(self, argument): yield {"big": 2 ** 70, "set": {1}, 3: None}
    def links(self, argument):
        yield Link("a?b#c", 7, "label", True)
        yield Link("/lone\\ud800")
    def odd(self, argument):
        class Text(str): ...
        class Number(int): ...
        class Share(float): ...
        yield {Text("key"): Text("value"), "n": [Number(3)], "f": Share(0.5), "b": True}
        yield Link(Text("/a"), Number(4), Text("label"), 1)
    def say(self, argument): print("x" * int(argument), "said", flush=True)
    def tell(self, argument):
        yield {
            "path": sys.path, "modules": list(sys.modules), "stdin": sys.stdin.read(),
            "cpus": sorted(os.sched_getaffinity(0)),
        }
    def family(self, argument):
        sleeper = subprocess.Popen(["sleep", "600"])
        Path(argument).write_text(str(sleeper.pid))
        time.sleep(600)
    def orphan(self, argument):
        if pid := os.fork():
            Path(argument).write_text(str(pid))
            os._exit(4)
        time.sleep(600)
    def helper(self, argument):
        Path(argument).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
'''


class Notes(NullLog):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, /, **values: Any) -> None:
        self.events.append((event, values))

    error = warning

    def of(self, word: str) -> list[dict[str, Any]]:
        return [values for event, values in self.events if word in event]


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hostile parsers, installed as a distribution would be."""
    folder = tmp_path / "plugins"
    info = folder / "hostile_parsers-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-parsers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[syncrawl.parsers]\n"
        "hostile = hostile_parsers:Hostile\n"
        "harmless = hostile_parsers:Harmless\n"
    )
    (folder / "hostile_parsers.py").write_text(PARSERS)
    monkeypatch.syspath_prepend(str(folder))
    return folder


Make = Callable[..., ChildKeeper]


@pytest.fixture
def make() -> Iterator[Make]:
    """Keepers, closed at the end; what the processes leave behind is a failure."""
    made: list[ChildKeeper] = []
    before = set(os.listdir("/proc/self/fd"))

    def new(
        parsers: tuple[str, ...] = ("hostile",),
        *,
        deadline: float = LONG,
        options: dict[str, dict[str, Any]] | None = None,
        log: Any = None,
        program: str | None = None,
    ) -> ChildKeeper:
        keeper = ChildKeeper(
            parsers,
            options or {},
            max_items=1000,
            deadline=deadline,
            clock=SystemClock(),
            log=log or NullLog(),
            command=(sys.executable, "-c", program) if program else None,
        )
        made.append(keeper)
        keeper.open()
        return keeper

    yield new
    for one in made:
        one.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def parts(path: str, **changes: Any) -> Parts:
    values: dict[str, Any] = {
        "url": f"http://h/{path}",
        "final_url": f"http://h/{path}",
        "status": 200,
        "headers": (("Content-Type", "text/html"), ("X-Robots-Tag", "all")),
        "depth": 2,
        "label": None,
        "canonical_url": f"http://h/{path}",
        "referrer": "http://h/",
        "fetched_at": "2024-01-01T00:00:00.000Z",
        "elapsed": 0.25,
    }
    return Parts(**{**values, **changes})


def gone(pid: int, seconds: float = PATIENCE) -> bool:
    """Whether the process ends in time; a zombie counts."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(fd)


def is_well(keeper: ChildKeeper) -> bool:
    """The next page is parsed, and in a process that lives."""
    (record,) = keeper.parse(parts("fine"), b"").records
    return bool(record["pid"] == keeper.pid)


# -- the same as in a thread ----------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<title>A &amp; B</title><base href=/x/><a href=1>one</a><a rel=nofollow href='2?3#4'>",
        "<meta charset=windows-1251><a href='/п'>Привет</a>".encode("cp1251"),
        b"\x89PNG\r\n\x1a\n\0\0",
        b"<p>" + b"word " * 400_000 + b"<a href=end>",
    ],
)
def test_a_child_gives_what_a_thread_gives(make: Make, body: bytes) -> None:
    options = {"excerpt_chars": 30, "agent": "bot/1.0"}
    keeper = make(("page", "harmless"), options={"page": options})
    bench = Bench([NamedParser("page", registry.construct("parsers", "page", options))], 1000)
    there, here = keeper.parse(parts("p"), body), bench.parse(parts("p"), body)
    assert there._replace(links=()) == here._replace(links=())
    assert [(one.url, one.priority, one.label, one.nofollow) for one in there.links] == [
        (one.url, one.priority, one.label, one.nofollow) for one in here.links
    ]


def test_every_part_of_a_link_comes_back(make: Make) -> None:
    plain, odd = make().parse(parts("links"), b"").links
    assert (plain.url, plain.priority, plain.label, plain.nofollow) == ("a?b#c", 7, "label", True)
    assert (odd.url, odd.priority, odd.label, odd.nofollow) == ("/lone\ufffd", None, None, False)


def test_a_record_arrives_as_json_has_it(make: Make) -> None:
    assert make().parse(parts("types"), b"").records[1] == {"big": 2**70, "set": [1], "3": None}


def test_subclasses_of_plain_types_are_the_same_from_both(make: Make) -> None:
    bench = Bench([NamedParser("hostile", registry.construct("parsers", "hostile", {}))], 1000)
    there, here = make().parse(parts("odd"), b""), bench.parse(parts("odd"), b"")
    assert there.records[1] == here.records[1] == {"key": "value", "n": [3], "f": 0.5, "b": True}
    for work in (there, here):
        (link,) = work.links
        found = (link.url, link.priority, link.label, link.nofollow)
        assert found == ("/a", 4, "label", True)
        assert [type(part) for part in found] == [str, int, str, bool]
        assert type(work.records[1]["n"][0]) is int


def test_results_larger_than_any_pipe(make: Make) -> None:
    keeper = make()
    body = bytes(10 * 2**20)
    work = keeper.parse(parts("big/3000000"), body)
    assert (work.length, len(work.records[1]["x"])) == (len(body), 3_000_000)
    assert is_well(keeper)


# -- what a parser raises -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("fail/why", "LookupError: why"),
        ("leave/why", "SystemExit: why"),
        ("unprintable", "Odd"),
        ("surrogate", "ValueError: \ufffd"),
        ("record", "ParseError: the parser yielded a record that is not JSON-able: Encoding"),
    ],
)
def test_what_a_parser_raises_costs_that_page(make: Make, path: str, error: str) -> None:
    keeper = make(("harmless", "hostile"))
    assert is_well(keeper)
    pid = keeper.pid
    with pytest.raises(ParserRaised) as caught:
        keeper.parse(parts(path), b"")
    assert str(caught.value).startswith(error)
    assert keeper.at == "hostile"
    assert is_well(keeper)
    assert (keeper.at, keeper.pid) == ("", pid)


# -- deadlines and deaths -------------------------------------------------------------------


def test_a_page_that_never_ends_is_cut_off_and_named(make: Make) -> None:
    keeper = make(("page", "hostile", "harmless"), deadline=SHORT)
    keeper.parse(parts("fine"), b"")
    pid = keeper.pid
    assert pid is not None
    began = SystemClock.monotonic()
    with pytest.raises(
        ParseTimeout, match=r"parser hostile was still at it after 0\.5 s"
    ) as caught:
        keeper.parse(parts("regex"), b"")
    # Not before the deadline, and not much later: the rest is for what it can say and for its end.
    assert SHORT <= SystemClock.monotonic() - began < SHORT + 5
    assert (keeper.at, caught.value.url) == ("hostile", "http://h/regex")
    # The C code of the regular expression holds the child's interpreter lock all the while.
    assert " in regex" in caught.value.stack
    assert gone(pid)
    (_, record) = keeper.parse(parts("fine"), b"").records
    assert record["pid"] == keeper.pid != pid


@pytest.mark.parametrize(
    ("path", "how"),
    [("exit/3", "exit code 3"), ("exit/0", "exit code 0"), ("segfault", "signal 11")],
)
def test_a_process_that_dies_costs_that_page(make: Make, path: str, how: str) -> None:
    keeper = make()
    with pytest.raises(ChildFailed) as caught:
        keeper.parse(parts(path), b"")
    assert str(caught.value) == f"parser process died ({how})"
    assert keeper.at == "hostile"
    assert (" in segfault" in caught.value.stack) == (path == "segfault")
    assert is_well(keeper)


def test_a_process_that_died_between_pages_costs_none(make: Make) -> None:
    keeper = make()
    for _ in range(2):
        assert is_well(keeper)
        assert keeper.pid is not None
        os.kill(keeper.pid, signal.SIGKILL)
        assert gone(keeper.pid)
    assert is_well(keeper)


def test_what_a_parser_started_ends_with_it(make: Make, tmp_path: Path) -> None:
    keeper = make(deadline=SHORT)
    file = tmp_path / "pid"
    with pytest.raises(ParseTimeout):
        keeper.parse(parts(f"family/{file}"), b"")
    assert gone(int(file.read_text()))


def test_a_fork_that_keeps_the_pipes_does_not_hide_a_death(make: Make, tmp_path: Path) -> None:
    keeper = make(deadline=SHORT)
    file = tmp_path / "pid"
    with pytest.raises(ChildFailed, match="exit code 4"):
        keeper.parse(parts(f"orphan/{file}"), b"")
    assert gone(int(file.read_text()))
    assert is_well(keeper)


# -- children that do not work at all -------------------------------------------------------


@pytest.mark.parametrize(
    ("parser", "options", "error", "why"),
    [
        ("absent", {}, ParserUnusable, "no such plugin"),
        ("page", {"no_such": 1}, ParserUnusable, "unknown option"),
        ("hostile", {"open": "raise"}, ParserUnusable, r"its open\(\) raised KeyError: 'mine'"),
        ("hostile", {"open": "exit"}, ChildFailed, "no parser process: .*exit code 9"),
    ],
)
def test_a_child_that_cannot_start_is_told_and_a_parser_that_cannot_is_no_pages_fault(
    make: Make, parser: str, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    log = Notes()
    keeper = make((parser,), options={parser: options}, log=log)
    for _ in range(2):
        with pytest.raises(error, match=why):
            keeper.parse(parts("fine"), b"")
        assert keeper.pid is None
    assert [told["attempts"] for told in log.of("cannot be had")] == [ATTEMPTS] * 2


def test_a_program_that_is_not_there(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(ChildFailed, match="No such file"):
        make().parse(parts("fine"), b"")


def test_a_child_that_is_never_ready(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "START_SECONDS", 0.1)
    with pytest.raises(ChildFailed, match=r"not ready after 0\.1 s"):
        make(program="import time; time.sleep(600)").parse(parts("fine"), b"")


# Reads the set-up and then a page from its standard input, and marks the page as begun.
BEGIN = """
import mmap, os, sys, time, msgspec
from syncrawl.parse import frames
def read():
    head, body = frames.REQUEST.unpack(sys.stdin.buffer.read(8))
    return sys.stdin.buffer.read(head), sys.stdin.buffer.read(body)
def begin():
    read()
    board[0] = frames.BEGUN
def say(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
def frame(value):
    data = msgspec.msgpack.encode(value)
    return frames.REPLY.pack(len(data)) + data
board = mmap.mmap(int(sys.argv[1]), 1)
done = frame(frames.Done(b'[{"a": 1}]', [], 5, 6, None, "http://h/"))
read()
"""


@pytest.mark.parametrize(
    "answer",
    [
        "frames.REPLY.pack(0)",
        "frames.REPLY.pack(3) + b'abc'",
        "frames.REPLY.pack(frames.MOST_REPLY + 1)",
        "b'hello, world' * 1000",
        "frame(['done', 1])",
        "frame(['unheard of'])",
        "frame(frames.Ready())",
        "frame(frames.Done(b'no json', [], 5, 6, None, ''))",
        "frame(frames.Done(b'[1]', [], 5, 6, None, ''))",
        "done + b'x'",
    ],
)
def test_nonsense_costs_the_page_and_the_child(make: Make, answer: str) -> None:
    log = Notes()
    program = f"{BEGIN}\nsay(frame(frames.Ready()))\nbegin()\nsay({answer})\ntime.sleep(600)"
    keeper = make(program=program, log=log)
    pid = keeper.pid
    assert pid is not None
    with pytest.raises(ChildFailed, match="nonsense"):
        keeper.parse(parts("fine"), b"")
    assert gone(pid)
    assert keeper.pid != pid
    assert not log.events


def test_a_frame_in_pieces(make: Make) -> None:
    program = f"{BEGIN}\nfor b in frame(frames.Ready()): say(bytes([b]))\nbegin()"
    work = make(program=f"{program}\nfor b in done: say(bytes([b]))").parse(parts("fine"), b"")
    assert (work.records, work.body_hash, work.length) == ([{"a": 1}], 5, 6)


def test_half_a_frame_is_no_answer(make: Make) -> None:
    program = f"{BEGIN}\nsay(frame(frames.Ready()))\nbegin()\nsay(done[:-1])"
    with pytest.raises(ChildFailed, match=r"died \(exit code 0\)"):
        make(program=program).parse(parts("fine"), b"")
    with pytest.raises(ParseTimeout, match="the parser process was still at it"):
        make(program=f"{program}\ntime.sleep(600)", deadline=SHORT).parse(parts("fine"), b"")


def test_a_child_that_does_not_read_is_cut_off_too(make: Make) -> None:
    keeper = make(program=f"{BEGIN}\nsay(frame(frames.Ready()))\ntime.sleep(600)", deadline=SHORT)
    with pytest.raises(ParseTimeout):
        keeper.parse(parts("fine"), bytes(10 * 2**20))


# -- apart from the crawl -------------------------------------------------------------------


def test_what_parsers_print_goes_to_the_log_within_bounds(make: Make) -> None:
    log = Notes()
    keeper = make(log=log)
    keeper.parse(parts("say/10"), b"")
    ((event, values),) = log.events
    assert (event, values["url"]) == ("a parser process wrote", "http://h/say/10")
    assert values["text"] == "xxxxxxxxxx said"
    # More than a pipe holds: somebody has to read it meanwhile.
    keeper.parse(parts("say/1000000"), b"")
    assert len(log.events[1][1]["text"]) <= 8_192
    for _ in range(30):
        keeper.parse(parts("say/1"), b"")
    assert len(log.events) == 20
    assert "nothing more of this is logged" in log.events[-1][0]


def test_a_child_has_our_modules_all_cpus_and_no_input(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What lies in the current directory is no part of a program that did not look there before.
    (tmp_path / "msgspec.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        keeper = make()
    finally:
        os.sched_setaffinity(0, cpus)
    told = keeper.parse(parts("tell"), b"").records[1]
    assert [place for place in told["path"] if place in sys.path] == list(dict.fromkeys(sys.path))
    assert "asyncio" not in told["modules"]
    assert told["stdin"] == ""
    assert set(told["cpus"]) >= cpus


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_the_whole_crawl_does_not_end_a_child(make: Make, number: int) -> None:
    keeper = make()
    assert is_well(keeper)
    pid = keeper.pid
    assert pid is not None
    assert os.getsid(pid) == pid
    os.kill(pid, number)
    assert is_well(keeper)
    assert keeper.pid == pid


def test_close_lets_the_parsers_close(make: Make, tmp_path: Path) -> None:
    log = Notes()
    file = tmp_path / "closed"
    keeper = make(options={"hostile": {"at_close": str(file), "close": "raise"}}, log=log)
    assert is_well(keeper)
    pid = keeper.pid
    assert pid is not None
    keeper.close()
    assert file.read_text() == "closed"
    assert keeper.pid is None
    assert gone(pid)
    (told,) = log.of("wrote")
    assert told["text"] == "parser hostile failed to close: ValueError: no close"
    keeper.close()


def test_close_ends_what_a_parser_started(make: Make, tmp_path: Path) -> None:
    keeper = make()
    file = tmp_path / "pid"
    keeper.parse(parts(f"helper/{file}"), b"")
    keeper.close()
    assert gone(int(file.read_text()))


def test_close_does_not_wait_for_a_parser_that_hangs_in_it(make: Make) -> None:
    keeper = make(options={"hostile": {"close": "hang"}})
    assert is_well(keeper)
    pid = keeper.pid
    assert pid is not None
    began = SystemClock.monotonic()
    keeper.close()
    assert gone(pid)
    assert SystemClock.monotonic() - began < 10


CRAWL = """
import sys
from syncrawl.clock import SystemClock
from syncrawl.log import NullLog
from syncrawl.parse.keeper import ChildKeeper
from syncrawl.parse.work import Parts
program = (
    "import sys; from syncrawl.parse import child; child._ORPHANED = 0.5;"
    "sys.exit(child.main(sys.argv[1:]))"
)
keeper = ChildKeeper(
    ["hostile"], {{}}, max_items=9, deadline={deadline}, clock=SystemClock(), log=NullLog(),
    command=(sys.executable, "-P", "-c", program),
)
def parse(path):
    url = "http://h/" + path
    keeper.parse(Parts(url, url, 200, (), 0, None, url, None, "", 0.0), b"")
parse("fine")
print(keeper.pid, flush=True)
parse("regex") if {hangs} else sys.stdin.read()
"""


def killed_crawl(plugins: Path, *, hangs: bool) -> int:
    """The child's pid, of a process that was killed as nothing can be caught."""
    crawl = subprocess.Popen(
        [sys.executable, "-c", CRAWL.format(deadline=30.0 if not hangs else 1.0, hangs=hangs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(plugins)},
    )
    with crawl:
        assert crawl.stdout is not None
        pid = int(crawl.stdout.readline())
        crawl.kill()
    return pid


def test_a_child_ends_when_its_crawl_is_killed(plugins: Path) -> None:
    assert gone(killed_crawl(plugins, hangs=False))


def test_even_a_child_that_hangs_outlives_its_crawl_by_seconds_only(plugins: Path) -> None:
    assert gone(killed_crawl(plugins, hangs=True))


def test_children_of_many_threads_do_not_hold_each_others_pipes(make: Make) -> None:
    """Started at the same moment, each still ends with its own input."""
    keepers: list[ChildKeeper] = []
    together = threading.Barrier(6)

    def run() -> None:
        together.wait(PATIENCE)
        keepers.append(make())

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert all(is_well(keeper) for keeper in keepers)
    for keeper in keepers:
        child = keeper._child
        assert child is not None
        keeper.close()
        # Not killed: the end of its input was enough.
        assert child.process.returncode == 0


def test_options_that_cannot_be_handed_on() -> None:
    with pytest.raises(ConfigError, match=r"parse\.options: cannot be handed to a process"):
        ChildKeeper(
            ["page"],
            {"page": {"x": object()}},
            max_items=1,
            deadline=1,
            clock=SystemClock(),
            log=NullLog(),
        )
