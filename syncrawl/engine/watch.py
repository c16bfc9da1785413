"""What every worker is doing, since when, and until when it may: to be looked at from outside.

`begin` and `end` run on the workers, `overdue` on the thread that watches them. A worker that
hangs in Python code, in a socket or in a sleep can be told from outside; one inside C code that
holds the interpreter lock (a regular expression that backtracks for ever) stops this process as
a whole, watcher included. Against that only `parse.processes` helps.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

from syncrawl.clock import Clock
from syncrawl.engine.lease import Fetched, Lease

# What an exchange may take beyond its own deadline before its worker counts as hung, in seconds.
GRACE = 5.0
# What a stack or all of them may take in the log, in characters.
_MOST_STACK = 4_000
_MOST_STACKS = 60_000


class Stuck(NamedTuple):
    """A worker that outlasted its time: `ident` of its thread, `seconds` at work on `lease`.

    `fetched` is what it had come to, where it has told; `at` names what it is in, or is "".
    """

    thread: str
    ident: int
    stage: str
    lease: Lease
    seconds: float
    fetched: Fetched | None = None
    at: str = ""


class _Work:
    """One piece of work. Whoever takes the token, worker or watcher, has ended it."""

    __slots__ = ("at", "fetched", "lease", "since", "stage", "token", "until")

    def __init__(
        self,
        stage: str,
        lease: Lease,
        since: float,
        until: float,
        fetched: Fetched | None,
        at: Callable[[], str] | None,
    ) -> None:
        self.stage = stage
        self.lease = lease
        self.since = since
        self.until = until
        # Read and written by who has the token, and after the end by who took it.
        self.fetched = fetched
        self.at = at
        # Popping from a list is atomic: the second to try finds it empty.
        self.token = [True]

    def take(self) -> bool:
        try:
            return self.token.pop()
        except IndexError:
            return False


class WorkWatch:
    """A piece of work is ended by its worker or given up by the watcher, never by both."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By thread ident, each written by its own thread alone; no lock.
        self._work: dict[int, _Work] = {}

    def begin(
        self,
        stage: str,
        lease: Lease,
        limit: float,
        fetched: Fetched | None = None,
        at: Callable[[], str] | None = None,
    ) -> None:
        """This thread works on `lease` from now on, for `limit` seconds at most.

        `fetched` is as in `note`; `at`, called on the watcher's thread, names what it is in.
        """
        now = self._clock.monotonic()
        self._work[threading.get_ident()] = _Work(stage, lease, now, now + limit, fetched, at)

    def extend(self, limit: float) -> None:
        """This thread has come to a new part of its work, which has `limit` seconds again."""
        work = self._work.get(threading.get_ident())
        if work is not None:
            work.until = self._clock.monotonic() + limit

    def note(self, fetched: Fetched) -> bool:
        """What this thread has come to, to be gone on with should it be given up from now on.

        False where it has been given up, and what it told before is being gone on with.
        """
        work = self._work.get(threading.get_ident())
        if work is None or not work.take():
            return False
        work.fetched = fetched
        work.token.append(True)
        return True

    def end(self) -> bool:
        """The work is done; False where it was given up and nobody wants the result."""
        work = self._work.pop(threading.get_ident(), None)
        return work is not None and work.take()

    def overdue(self, now: float) -> list[Stuck]:
        """Give up what has outlasted its time; each is told of once."""
        names = None
        stuck = []
        for ident, work in tuple(self._work.items()):
            if now > work.until and work.take():
                names = names or _names()
                name = names.get(ident, str(ident))
                at = work.at() if work.at else ""
                stuck.append(
                    Stuck(name, ident, work.stage, work.lease, now - work.since, work.fetched, at)
                )
        return stuck

    def stack_of(self, ident: int) -> str:
        """Where a thread stands, innermost call last; "" where it has ended."""
        frame = sys._current_frames().get(ident)
        if frame is None:
            return ""
        return "".join(traceback.format_stack(frame))[-_MOST_STACK:]

    def stacks(self) -> str:
        """The same of every thread, by name; bounded, and so the most telling ones first.

        That is the commit thread, which all others wait for; then who is at work, the longest
        first; who asks comes last.
        """
        names = _names()
        since = {ident: work.since for ident, work in tuple(self._work.items())}
        asking = threading.get_ident()

        def rank(ident: int) -> tuple[int, float]:
            if names[ident].startswith("commit"):
                return 0, 0.0
            if ident == asking:
                return 3, 0.0
            return (1, since[ident]) if ident in since else (2, 0.0)

        parts = [f"{names[ident]}:\n{self.stack_of(ident)}" for ident in sorted(names, key=rank)]
        return "\n".join(parts)[:_MOST_STACKS]

    def __repr__(self) -> str:
        return f"WorkWatch({len(self._work)} at work)"


def _names() -> dict[int, str]:
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident}
