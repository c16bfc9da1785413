"""Time as a dependency: what the scheduler, limits and deadlines read and wait on.

Runs on any thread. Tests pass `syncrawl.testing.FakeClock`, which moves only when
told; nothing else in the package calls `time.sleep` or `time.monotonic`.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time and the only way to wait for it."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; the origin is arbitrary."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump. Used only for what outlives the process."""
        ...

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Wait on `condition`, which the caller holds, for at most `timeout` seconds.

        May return early; the caller re-checks its predicate, as with any condition.
        """
        ...


class SystemClock:
    """The machine's clock."""

    # Bound once: an attribute look-up less on a path taken several times a page.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        condition.wait(timeout)
