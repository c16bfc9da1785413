"""A parse thread's own child process: started, fed, cut off at the deadline, started again.

Runs on parse threads, each instance on one. Imports the clock, the log, the errors, msgspec
and the parse stage's own modules.

A child is started as a program of its own: a fork of a process with threads can deadlock, and
a pool cannot end one of its processes without losing the others.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from syncrawl.clock import Clock
from syncrawl.errors import ConfigError, SyncrawlError
from syncrawl.log import Log
from syncrawl.parse import frames
from syncrawl.parse.process import LEAVE_SECONDS, Child, Gone, Late, Nonsense
from syncrawl.parse.work import ParserUnusable, Parts, Work

# Seconds that a child may take to load its parsers, and attempts to have one for a page.
START_SECONDS = 30.0
ATTEMPTS = 3
# How a child ends that is cut off: killed, by the question too where a parser took its handler
# away, or not to be killed at once.
_BY_US = (-signal.SIGKILL, -signal.SIGUSR1, None)
# How often in a run what a child writes to standard error is logged.
_MOST_TOLD = 20


class ChildLost(SyncrawlError):
    """A page cost its child; `stack` is the last that was heard of it, where it stood for one."""

    def __init__(self, message: str, *, url: str | None = None, stack: str = "") -> None:
        super().__init__(message, url=url)
        self.stack = stack


class ParseTimeout(ChildLost):
    """A page's parsers outlasted parse.deadline and were killed."""


class ChildFailed(ChildLost):
    """A child died in a page, could not be started, or said what no child says."""


class ParserRaised(SyncrawlError):
    """A parser raised in the child; the message is what `work.told` made of that."""


class _NoChild(Exception):
    """There is no child for the page, and why; the page is not to blame.

    `parser` is set where the child has said that one cannot be made or opened: which, or "".
    """

    def __init__(self, why: str, parser: str | None = None) -> None:
        super().__init__(why)
        self.parser = parser


class ChildKeeper:
    """At any time at most one child, which has at most one page.

    `parsers` are names, `options` the table for each. What a parser prints goes to the log.
    Raises ConfigError for options that cannot be handed on.
    """

    def __init__(
        self,
        parsers: Sequence[str],
        options: Mapping[str, Mapping[str, Any]],
        *,
        max_items: int,
        deadline: float,
        clock: Clock,
        log: Log,
        command: Sequence[str] | None = None,
    ) -> None:
        """`command` takes the place of the child's program, for tests."""
        named = [(name, dict(options.get(name, {}))) for name in parsers]
        try:
            self._setup = frames.encode_request(frames.Setup(named, max_items, deadline))
        except (TypeError, ValueError, OverflowError) as exc:
            raise ConfigError(f"cannot be handed to a process: {exc}", key="parse.options") from exc
        self._names = tuple(parsers)
        self._deadline = deadline
        self._clock = clock
        self._log = log
        # -P: the current directory is no place for programs; sys.path is handed on as it is.
        self._command = command or (sys.executable, "-P", "-m", "syncrawl.parse.child")
        self._child: Child | None = None
        self._times_told = 0
        # The parser that failed on the last page; "" for none.
        self.at = ""

    @property
    def longest(self) -> float:
        """Seconds that `parse` takes at most, with all that can go wrong."""
        return ATTEMPTS * (START_SECONDS + 2 * LEAVE_SECONDS) + self._deadline + 2 * LEAVE_SECONDS

    @property
    def pid(self) -> int | None:
        """The child's, where there is one."""
        return self._child.process.pid if self._child else None

    def open(self) -> None:
        """Start a child, without waiting until it can be used."""
        try:
            self._start()
        except _NoChild as exc:
            # The first page tries again, and fails where that fails.
            self._log.warning("no parser process", why=str(exc))

    def close(self) -> None:
        """Let the child end, or end it."""
        child, self._child = self._child, None
        if child is not None:
            child.leave()
            self._tell(child, None)

    def parse(self, parts: Parts, body: bytes) -> Work:
        """What the child's parsers make of a page, within the deadline.

        Raises ParseTimeout, ChildFailed or ParserRaised; the next page is parsed all the same.
        Raises ParserUnusable where a parser cannot be made or opened, however often that is tried.
        """
        self.at = ""
        request = frames.encode_request(parts, body)
        # Not the exception itself, which would hold this frame, and it the child's descriptors.
        why, parser = "", None
        for _ in range(ATTEMPTS):
            try:
                child = self._ready()
                reply = self._ask(child, request, body, parts.url)
            except _NoChild as exc:
                why, parser = str(exc), exc.parser
                continue
            if child.heard:
                self._tell(child, parts.url)
            return self._work_of(child, reply, parts.url)
        self._log.error("a parser process cannot be had", why=why, attempts=ATTEMPTS, url=parts.url)
        if parser is not None:
            raise ParserUnusable(why, parser=parser)
        raise ChildFailed(f"no parser process: {why}", url=parts.url)

    def _start(self) -> Child:
        try:
            self._child = child = Child(self._command, self._clock)
        except (OSError, ValueError) as exc:
            raise _NoChild(str(exc)) from exc
        try:
            child.send(self._setup, b"", self._clock.monotonic() + START_SECONDS)
        except (Gone, Late) as exc:
            raise _NoChild(self._end(child)) from exc
        return child

    def _ready(self) -> Child:
        """The child, able to parse."""
        child = self._child or self._start()
        if child.ready:
            return child
        try:
            reply = child.receive(self._clock.monotonic() + START_SECONDS)
        except Late:
            self._end(child)
            raise _NoChild(f"it was not ready after {START_SECONDS:g} s") from None
        except Gone:
            how, said = self._end(child), child.last_words()
            raise _NoChild(f"{how}: {said}" if said else how) from None
        except Nonsense as exc:
            self._end(child)
            raise _NoChild(f"it said nonsense: {exc}") from None
        if not isinstance(reply, frames.Ready):
            self._end(child)
            if isinstance(reply, frames.Failed):
                raise _NoChild(reply.error, reply.parser)
            raise _NoChild("it said nonsense")
        child.ready = True
        return child

    def _ask(self, child: Child, request: bytes, body: bytes, url: str) -> frames.Reply:
        child.stage = frames.IDLE
        until = self._clock.monotonic() + self._deadline
        try:
            child.send(request, body, until)
            return child.receive(until)
        except Late:
            raise self._cut_off(child, url) from None
        except Gone:
            if child.stage == frames.IDLE:
                raise _NoChild(self._end(child)) from None
            raise self._lost(child, url) from None
        except Nonsense as exc:
            raise self._lost(child, url, f"parser process said nonsense ({exc})") from None
        except BaseException:
            # Whatever it was, the child is no longer where the next page could begin.
            self._end(child)
            raise

    def _cut_off(self, child: Child, url: str) -> ChildLost:
        """The deadline is over."""
        child.confess()
        lost = self._lost(child, url)
        if child.process.returncode not in _BY_US:
            # It was dead already, and a process that it left behind has kept the pipe open.
            return lost
        where = f"parser {self.at}" if self.at else "the parser process"
        return ParseTimeout(
            f"{where} was still at it after {self._deadline:g} s", url=url, stack=lost.stack
        )

    def _lost(self, child: Child, url: str, why: str = "") -> ChildFailed:
        """The child is dead, or has to be; the next one is started at once."""
        self.at = self._name_at(child)
        how = self._end(child)
        self.open()
        why = why or f"parser process died ({how})"
        return ChildFailed(why, url=url, stack=child.last_words())

    def _work_of(self, child: Child, reply: frames.Reply, url: str) -> Work:
        if isinstance(reply, frames.Failed):
            self.at = reply.parser
            raise ParserRaised(reply.error, url=url)
        try:
            if isinstance(reply, frames.Done):
                return frames.work_of(reply)
        except msgspec.DecodeError:
            pass
        raise self._lost(child, url, "parser process said nonsense")

    def _name_at(self, child: Child) -> str:
        index = child.stage - 1
        return self._names[index] if 0 <= index < len(self._names) else ""

    def _end(self, child: Child) -> str:
        """Have no child; how it ended."""
        self._child = None
        child.kill()
        return child.how()

    def _tell(self, child: Child, url: str | None) -> None:
        said = child.last_words()
        if said and self._times_told < _MOST_TOLD:
            self._times_told += 1
            more = "" if self._times_told < _MOST_TOLD else "; nothing more of this is logged"
            self._log.warning(f"a parser process wrote{more}", url=url, text=said)

    def __repr__(self) -> str:
        return f"ChildKeeper({', '.join(self._names)}; {self._child!r})"
