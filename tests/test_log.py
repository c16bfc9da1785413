"""The log: what a line says, what it must not say, and that it never costs a worker its item."""

from __future__ import annotations

import gc
import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncrawl.config.model import LogConfig
from syncrawl.errors import ConfigError
from syncrawl.log import Log, NullLog, make_logger, redact, show

NOON = 1_700_000_000.25  # 2023-11-14T22:13:20.250Z
# Seconds: a child's whole life, what must happen soon, and what must not happen meanwhile.
CHILD_TIMEOUT, WAIT, UNWANTED = 60.0, 10.0, 0.1


def line(event: str = "fetched", /, *, json_format: bool = False, **values: Any) -> str:
    stream = io.StringIO()
    config = LogConfig(format="json" if json_format else "console")
    make_logger(config, stream=stream, wall=lambda: NOON).info(event, **values)
    return stream.getvalue()


# --- what a line says ---


def test_a_console_line() -> None:
    assert line(host="a.example", status=200, title="two words", empty="", none=None) == (
        "2023-11-14T22:13:20.250Z info    [MainThread] fetched "
        "host=a.example status=200 title='two words' empty='' none=None\n"
    )


def test_a_json_line() -> None:
    text = line(json_format=True, status=200, tags=("a", "b"))
    assert text.count("\n") == 1
    assert list(json.loads(text).items()) == [
        ("timestamp", "2023-11-14T22:13:20.250Z"),
        ("level", "info"),
        ("thread", "MainThread"),
        ("event", "fetched"),
        ("status", 200),
        ("tags", ["a", "b"]),
    ]


def test_bound_values_and_the_thread_are_in_each_line() -> None:
    stream = io.StringIO()
    log = make_logger(LogConfig(format="json"), stream=stream).bind(stage="fetch")
    worker = threading.Thread(target=log.warning, args=("slow",), name="fetch-3")
    worker.start()
    worker.join()
    said = json.loads(stream.getvalue())
    assert (said["stage"], said["thread"], said["level"]) == ("fetch", "fetch-3", "warning")


def test_times_before_the_epoch_and_at_its_edge() -> None:
    for seconds, text in ((0.0, "1970-01-01T00:00:00.000Z"), (-0.25, "1969-12-31T23:59:59.750Z")):
        stream = io.StringIO()
        make_logger(LogConfig(), stream=stream, wall=repeat(seconds).__next__).info("x")
        assert stream.getvalue().startswith(text)


def test_levels_filter() -> None:
    said = {}
    for level in ("debug", "info", "warning", "error"):
        stream = io.StringIO()
        log = make_logger(LogConfig(level=level), stream=stream)
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)(name)
        said[level] = len(stream.getvalue().splitlines())
    assert said == {"debug": 4, "info": 3, "warning": 2, "error": 1}


def test_a_call_below_the_level_is_nearly_free() -> None:
    log = make_logger(LogConfig(level="info"), stream=io.StringIO()).bind(a=1)
    best = float("inf")
    for _ in range(20):
        start = time.thread_time()
        for _ in range(2_000):
            log.debug("seen", url="https://a.example/", depth=3)
        best = min(best, time.thread_time() - start)
    assert best / 2_000 < 1e-6


def test_a_traceback_stands_below_its_event() -> None:
    stream, structured = io.StringIO(), io.StringIO()
    for fmt, out in (("console", stream), ("json", structured)):
        log = make_logger(LogConfig(format=fmt), stream=out)  # type: ignore[arg-type]
        try:
            raise ValueError("http://me:sesame@a.example/ \x1b[2J")
        except ValueError as error:
            log.error("parser raised", exc_info=True, error=error)
    first, *rest = stream.getvalue().splitlines()
    assert "parser raised" in first
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-1] == "    ValueError: http://***@a.example/ \\x1b[2J"
    said = json.loads(structured.getvalue())
    assert said["exception"].endswith("ValueError: http://***@a.example/ \x1b[2J")
    assert "sesame" not in stream.getvalue() + structured.getvalue()


def test_an_exception_may_be_handed_over() -> None:
    text = line(exc_info=KeyError("gone"))
    assert text.splitlines()[-1] == "    KeyError: 'gone'"


@pytest.mark.parametrize("name", ["stack", "stacks"])
def test_stacks_keep_their_lines(name: str) -> None:
    assert line(**{name: "a\nb\x07"}).splitlines()[1:] == ["    a", "    b\\x07"]


@pytest.mark.parametrize("json_format", [False, True])
def test_the_stacks_of_many_threads_are_not_cut_as_a_value_is(json_format: bool) -> None:
    stacks = "\n".join(f"thread {number}, in a_function_of_some_length" for number in range(1_000))
    told = line(json_format=json_format, stacks=stacks)
    assert len(stacks) > 40_000
    assert "thread 999," in told


# --- what it must not say ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:sesame@a.example/x", "https://***@a.example/x"),
        ("https://sesame@a.example/x", "https://***@a.example/x"),
        ("GET http://me:se@same@a.example:80 failed", "GET http://***@a.example:80 failed"),
        ("//me:sesame@a.example/", "//***@a.example/"),
        ("http:/me:sesame@a.example/", "http:/***@a.example/"),
        ("http:\\\\me:sesame@a.example/", "http:\\\\***@a.example/"),
        ("HTTPS:me:sesame@a.example/", "HTTPS:***@a.example/"),
        ("http://me:ses\name@a.example/", "http://***@a.example/"),
        ("socks5://me:sesame@p.example:1", "socks5://***@p.example:1"),
        ("http://a:sesame@b/ and http://c:sesame@d/", "http://***@b/ and http://***@d/"),
        ("https://a.example/?token=sesame&x=1", "https://a.example/?token=***&x=1"),
        ("https://a.example/?x=1&API_KEY=sesame#f", "https://a.example/?x=1&API_KEY=***#f"),
        ("https://a.example/@user/x", "https://a.example/@user/x"),
        ("https://a.example/?mail=b@c.example", "https://a.example/?mail=b@c.example"),
        ("mail b@c.example about //x", "mail b@c.example about //x"),
        ("", ""),
    ],
)
def test_credentials_in_urls(text: str, shown: str) -> None:
    assert redact(text) == shown
    for json_format in (False, True):
        assert "sesame" not in line(text, json_format=json_format, url=text, many=[{"deep": text}])


@pytest.mark.parametrize(
    "name", ["authorization", "Cookie", "Set-Cookie", "proxy_authorization", "password", "token"]
)
@pytest.mark.parametrize("json_format", [False, True])
def test_values_under_secret_names(name: str, json_format: bool) -> None:
    values: dict[str, Any] = {
        name: "sesame",
        "headers": {name: "sesame", "Accept": "open"},
        "pairs": [(name, "sesame"), ("Accept", "open")],
    }
    text = line(json_format=json_format, **values)
    assert "sesame" not in text
    assert text.count("open") == 2


def test_secrets_in_what_only_has_a_repr() -> None:
    class Session:
        def __repr__(self) -> str:
            return "<Session http://me:sesame@a.example>"

    text = line(session=Session(), raw=b"http://me:sesame@a.example")
    assert "sesame" not in text
    assert "<Session http://***@a.example>" in text


def test_a_secret_is_not_cut_in_two() -> None:
    long = "x" * 4000 + " http://me:" + "sesame" * 100 + "@a.example/"
    assert "sesame" not in line(url=long)


@given(st.text(), st.text())
def test_nothing_a_terminal_acts_on_gets_through(event: str, value: str) -> None:
    for json_format in (False, True):
        text = line(event, json_format=json_format, title=value, deep=[value], **{"key\x1b": 1})
        assert text.endswith("\n")
        assert text[:-1].isprintable()


def test_control_characters_are_shown_not_obeyed() -> None:
    assert "title='\\x1b[2Jtitle\\r\\n'" in line(title="\x1b[2Jtitle\r\n")
    assert show("a\x9bb\u202ec\ud800\u2028 d") == "a\\x9bb\\u202ec\\ud800\\u2028 d"
    assert show("Grüße, 日本語") == "Grüße, 日本語"


# --- it never raises ---


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class HostileMapping(dict[str, int]):
    def __iter__(self) -> Any:
        raise RuntimeError("no")


def test_values_that_no_format_holds() -> None:
    loop: list[Any] = []
    loop.append(loop)
    values: dict[str, Any] = {
        "hostile": Hostile(),
        "error": ValueError(Hostile()),
        "kind": object,
        "nan": float("nan"),
        "huge": 10**6000,
        "loop": loop,
        "odd": {1: 2, None: 3},
        "lone": "\ud800",
        "many": list(range(10_000)),
        "long": "x" * 1_000_000,
    }
    said = json.loads(line(json_format=True, **values))
    assert said["kind"] == "<class 'object'>"
    assert said["nan"] == "nan"
    assert said["odd"] == {"1": 2, "None": 3}
    assert "Hostile" in said["hostile"]
    assert len(said["many"]) == 50
    assert len(said["long"]) < 5_000
    assert line(**values).count("\n") == 1


def test_an_event_that_cannot_be_shown_is_still_an_event() -> None:
    assert "event that cannot be shown (RuntimeError)" in line(mapping=HostileMapping(a=1))


def test_names_of_our_own_fields_are_ours() -> None:
    said = json.loads(line(json_format=True, level="x", timestamp="y", thread="z"))
    assert (said["level"], said["thread"]) == ("info", "MainThread")


class Broken:
    def write(self, text: str) -> None:
        raise BrokenPipeError

    def flush(self) -> None:
        raise AssertionError("not reached")


def test_broken_and_closed_streams_cost_the_line_only() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (Broken(), closed):
        make_logger(LogConfig(), stream=stream).error("lost")


def test_no_standard_error_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    make_logger(LogConfig()).error("lost")


def test_standard_streams(capfd: pytest.CaptureFixture[str]) -> None:
    make_logger(LogConfig()).info("to stderr")
    make_logger(LogConfig(file="-")).info("to stdout")
    out, err = capfd.readouterr()
    assert "to stdout" in out
    assert "to stderr" in err


def test_a_replaced_standard_error_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    make_logger(LogConfig()).info("here")
    assert "here" in stream.getvalue()


def test_a_broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        log = make_logger(LogConfig())
        os.close(read_end)
        log.error("lost")
        monkeypatch.undo()


# --- files ---


def test_a_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "crawl.log"
    before = os.umask(0)
    try:
        make_logger(LogConfig(file=str(path))).info("first")
    finally:
        os.umask(before)
    make_logger(LogConfig(file=str(path))).info("second")
    assert [text.split()[3] for text in path.read_text().splitlines()] == ["first", "second"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_file_is_closed_with_the_last_logger(tmp_path: Path) -> None:
    path = tmp_path / "x.log"

    def open_files() -> int:
        return sum(one.resolve() == path for one in Path("/proc/self/fd").iterdir())

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("there is no /proc to count descriptors in")
    bound = make_logger(LogConfig(file=str(path))).bind(a=1)
    gc.collect()
    assert open_files() == 1, "a bound logger keeps the file open"
    bound.info("still")
    del bound
    gc.collect()
    assert open_files() == 0
    assert "still" in path.read_text()


@pytest.mark.parametrize("name", ["", "file/x.log", "a\0b"])
def test_a_file_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        make_logger(LogConfig(file=f"{tmp_path}/{name}"))
    assert caught.value.key == "log.file"
    assert caught.value.remedy


def _shout(log: Log, count: int) -> None:
    for number in range(count):
        log.info("event", number=number, padding="x" * 200)


@pytest.mark.parametrize("to_file", [True, False])
def test_threads_do_not_tear_lines(tmp_path: Path, to_file: bool) -> None:
    path, stream = tmp_path / "x.log", io.StringIO()
    config = LogConfig(format="json", file=str(path) if to_file else "")
    log = make_logger(config, stream=None if to_file else stream)
    threads = [threading.Thread(target=_shout, args=(log, 200)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = path.read_text() if to_file else stream.getvalue()
    said = [json.loads(each) for each in text.splitlines()]
    assert len(said) == 1600
    assert {each["event"] for each in said} == {"event"}


class OneAtATime:
    """A stream that stays inside its first write until it is let go."""

    def __init__(self) -> None:
        self.entered = [threading.Event(), threading.Event()]
        self.let_go = threading.Event()
        self.writes = 0

    def write(self, text: str) -> None:
        self.entered[self.writes].set()
        self.writes += 1
        self.let_go.wait(WAIT)

    def flush(self) -> None:
        pass


def test_a_stream_is_written_by_one_thread_at_a_time() -> None:
    stream = OneAtATime()
    log = make_logger(LogConfig(), stream=stream)
    threads = [threading.Thread(target=log.info, args=("x",)) for _ in range(2)]
    threads[0].start()
    assert stream.entered[0].wait(WAIT)
    threads[1].start()
    entered_too = stream.entered[1].wait(UNWANTED)
    stream.let_go.set()
    for thread in threads:
        thread.join(WAIT)
    assert not entered_too
    assert stream.writes == 2


# --- beside others ---


def test_loggers_share_nothing_and_structlog_stays_the_programs() -> None:
    import structlog

    before = structlog.get_config()
    one, two = io.StringIO(), io.StringIO()
    first = make_logger(LogConfig(level="debug"), stream=one)
    second = make_logger(LogConfig(format="json", level="error"), stream=two)
    first.debug("mine")
    second.debug("filtered")
    assert "mine" in one.getvalue()
    assert two.getvalue() == ""
    assert structlog.get_config() == before
    assert not structlog.is_configured()


def test_the_null_log_is_a_log() -> None:
    log: Log = NullLog()
    log.bind(a=1).bind(b=2).error("nothing", exc_info=True)
    log.debug("x")
    log.info("x")
    log.warning("x")


_NO_ASYNCIO = """
import io, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "asyncio":
            raise {error}("asyncio is not available here")

{block}

from syncrawl.config.model import LogConfig
from syncrawl.log import make_logger

for format in ("console", "json"):
    out = io.StringIO()
    make_logger(LogConfig(format=format), stream=out).bind(a=1).info("works")
    assert "works" in out.getvalue()
assert sys.modules.get("asyncio") is None, sys.modules["asyncio"]
assert not [name for name in sys.modules if name.startswith("asyncio.")]
try:
    import asyncio
except {error}:
    print("still blocked")
"""


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("sys.meta_path.insert(0, Blocked())", "ImportError"),
        ("sys.meta_path.insert(0, Blocked())", "OSError"),
        ('sys.modules["asyncio"] = None', "ImportError"),
    ],
)
def test_it_works_where_asyncio_cannot_be_imported(block: str, error: str) -> None:
    script = _NO_ASYNCIO.format(block=block, error=error)
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CHILD_TIMEOUT, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "still blocked\n"


def test_structlog_is_not_imported_before_it_is_needed() -> None:
    script = (
        "import sys; import syncrawl.log, syncrawl.config.load; "
        "print([m for m in ('structlog', 'rich', 'asyncio', 'logging') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT,
        check=True,
    )
    assert done.stdout == "[]\n"
