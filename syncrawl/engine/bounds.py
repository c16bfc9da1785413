"""How much may wait before a stage: what it works off in a time one accepts, by its own pace.

Commit thread only; arithmetic. A bound in items says nothing by itself: sixty pages are
a blink for one parser and half a minute for another.
"""

from __future__ import annotations

import math

from syncrawl.config.model import Config

# Seconds between two adjustments, and the least that the inbox may hold.
_EVERY = 0.5
_BATCH = 16
# The share that the newest reading has in a stage's pace.
_NEWEST = 0.5


class StagePace:
    """Items a worker of one stage does in a BUSY second.

    Waiting is left out, so that a stage which is starved, or held up by the next one, keeps
    the pace it had and cannot talk its own bound down.
    """

    def __init__(self) -> None:
        self._items = 0
        self._busy = 0.0
        self.pace: float | None = None

    def note(self, items: int, busy: float) -> None:
        """Totals so far: items done and seconds that workers were busy with them."""
        more, seconds = items - self._items, busy - self._busy
        if more <= 0 or seconds <= 0:
            return
        self._items, self._busy = items, busy
        pace = more / seconds
        self.pace = pace if self.pace is None else self.pace + (pace - self.pace) * _NEWEST

    def __repr__(self) -> str:
        return f"StagePace({self.pace})"


class LatencyBound:
    """Never below `least` nor above `most` items; at `most` until a pace has been measured."""

    def __init__(self, seconds: float, *, workers: int, least: int, most: int) -> None:
        self._seconds = seconds
        self._workers = workers
        self._least = min(least, most)
        self._most = most
        self.pace = StagePace()

    def items(self, lead: float = 0.0) -> int:
        """The bound now; `lead` is seconds that an item holds its place before it arrives."""
        pace = self.pace.pace
        if pace is None or not self._seconds:
            return self._most
        wanted = math.ceil(pace * self._workers * (self._seconds + lead))
        return max(self._least, min(self._most, wanted))

    def __repr__(self) -> str:
        return f"LatencyBound({self.items()} of {self._least}..{self._most}, {self.pace!r})"


class Bounds:
    """The bounds of the two queues, looked at every half second."""

    def __init__(self, config: Config) -> None:
        most = config.queues.bound(config.fetch.workers)
        seconds = config.queues.latency_seconds
        workers = config.parse.threads
        self._fetched = LatencyBound(seconds, workers=workers, least=workers, most=most)
        # One worker; but batches of a few items are what its commits are cheap by.
        self._inbox = LatencyBound(seconds, workers=1, least=max(workers, _BATCH), most=most)
        self._looked_at = float("-inf")

    def due(self, now: float) -> bool:
        """True once in a while."""
        if now - self._looked_at < _EVERY:
            return False
        self._looked_at = now
        return True

    def note_parse(self, items: int, busy: float) -> None:
        """What the parse workers have done so far; see `StagePace.note`."""
        self._fetched.pace.note(items, busy)

    def note_commit(self, items: int, busy: float) -> None:
        """What the commit thread has done so far."""
        self._inbox.pace.note(items, busy)

    def fetched(self, exchange: float) -> int:
        """Items before the parse stage, those included that are fetched for `exchange` seconds."""
        return self._fetched.items(exchange)

    def inbox(self) -> int:
        """Items before the commit stage."""
        return self._inbox.items()

    def __repr__(self) -> str:
        return f"Bounds(fetched={self._fetched!r}, inbox={self._inbox!r})"
