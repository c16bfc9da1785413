"""A parse thread's own child process: started, fed, cut off at the deadline, started again.

Runs on parse threads, each instance on one. Imports the clock, the log, the errors, msgspec
and the parse stage's own modules.

A child is started as a program of its own: a fork of a process with threads can deadlock, and
a pool cannot end one of its processes without losing the others.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

import msgspec

from syncrawl.clock import Clock
from syncrawl.errors import ConfigError, SyncrawlError
from syncrawl.log import Log
from syncrawl.parse import frames
from syncrawl.parse.work import Parts, Work

# Seconds that a child may take to load its parsers, and attempts to start one for one page.
START_SECONDS = 30.0
ATTEMPTS = 3
# Seconds that a child may take to end by itself, and a killed one to be gone.
_LEAVE = 1.0
# Seconds that a hung child may take to say where it hangs, and of silence after that.
_CONFESS = 0.3
_SILENCE = 0.05
# Bytes kept of what a child writes to standard error, and how often that is logged.
_MOST_HEARD = 8_192
_MOST_TOLD = 20
_CHUNK = 1 << 16


class ParseTimeout(SyncrawlError):
    """A page's parsers outlasted parse.deadline and were killed."""


class ChildFailed(SyncrawlError):
    """A child died in a page, could not be started, or said what no child says."""


class ParserRaised(SyncrawlError):
    """A parser raised in the child; the message is what `work.told` made of that."""


class _Late(Exception):
    """The time is over."""


class _Gone(Exception):
    """The other end of a pipe is closed."""


class ChildKeeper:
    """At any time at most one child, which has at most one page.

    `parsers` are names and the options for each. Raises ConfigError for options that cannot be
    handed on. What a parser prints goes to the log.
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
        self._command = command or (sys.executable, "-P", "-m", "syncrawl.parse.child")
        self._child: _Child | None = None
        self._told = 0
        # The parser that failed in, or last had, a page; "" for none.
        self.at = ""

    @property
    def longest(self) -> float:
        """Seconds that `parse` can take at most, starting children included."""
        return ATTEMPTS * (START_SECONDS + _LEAVE) + self._deadline + 2 * _LEAVE

    @property
    def pid(self) -> int | None:
        """The child's, where there is one."""
        return self._child.process.pid if self._child else None

    def open(self) -> None:
        """Start a child, without waiting for it."""
        try:
            self._child = self._spawn()
        except OSError as exc:
            # The first page tries again, and fails where that fails.
            self._log.warning("cannot start a parser process", error=str(exc))

    def close(self) -> None:
        """Let the child end, or end it."""
        child, self._child = self._child, None
        if child is not None:
            child.leave()
            self._tell(child)

    def parse(self, parts: Parts, body: bytes) -> Work:
        """What the child's parsers make of a page, within the deadline.

        Raises ParseTimeout, ChildFailed, or ParserRaised; the next page is then parsed all the same.
        """
        self.at = ""
        request = frames.encode_request(parts, body)
        why = ""
        for _ in range(ATTEMPTS):
            child = None
            try:
                child = self._ready()
                return self._work(child, request, body, parts.url)
            except _Gone:
                # It died before it had this page, which is not to blame.
                why = self._lose(child) or why
            except (OSError, _NotReady) as exc:
                why = str(exc)
        self._log.error("a parser process cannot be started", why=why, attempts=ATTEMPTS)
        raise ChildFailed(f"parser process cannot be started: {why}", url=parts.url)
