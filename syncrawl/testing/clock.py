"""A clock that moves only when told, for tests of everything that waits.

Runs on any thread. Imports nothing from the package; `FakeClock` fulfils
`syncrawl.clock.Clock`. Lock order: a caller of `wait` holds its condition and then
takes the clock's lock; `advance` therefore lets go of the clock's lock before it
touches a condition.
"""

from __future__ import annotations

import threading
import time

PATIENCE_SECONDS = 10.0
"""Real seconds a test waits for a thread to reach its wait before it counts as hung."""


class FakeClock:
    """Time stands still until `advance`; a wait ends by a notify or by time passing it.

    `monotonic()` and `wall()` are in seconds and move together. A thread computes its
    timeout before it waits, so a test that must not lose a tick calls
    `wait_for_waiters` before it calls `advance`.
    """

    def __init__(self, start: float = 1_000.0, wall: float = 1_750_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall - start
        # Guards _now, _wall_offset and _waiting; notified when _waiting grows.
        self._changed = threading.Condition()
        # One entry a wait, so that a thread strikes out itself and no other on its condition.
        self._waiting: dict[object, threading.Condition] = {}

    def monotonic(self) -> float:
        """Seconds; the origin is `start`."""
        return self._now

    def wall(self) -> float:
        """Seconds since the epoch, as far along as the monotonic side."""
        with self._changed:
            return self._now + self._wall_offset

    def shift_wall(self, seconds: float) -> None:
        """Set the wall clock ahead, or back, while the monotonic one stands."""
        with self._changed:
            self._wall_offset += seconds

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Wait on `condition`, which the caller holds, until a notify or an `advance`.

        A timeout that is not positive returns at once. May return early, as `Clock` allows.
        """
        if timeout is not None and timeout <= 0:
            return
        entry = object()
        with self._changed:
            self._waiting[entry] = condition
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                # Absent where `advance` woke us: it strikes out whom it wakes, so that a
                # test never counts a thread that has been woken but has not run yet.
                self._waiting.pop(entry, None)

    def advance(self, seconds: float) -> None:
        """Move both clocks by `seconds` and wake every waiting thread to look again."""
        if seconds < 0:
            raise ValueError("time does not go back; shift_wall() moves the wall clock")
        with self._changed:
            self._now += seconds
            woken, self._waiting = self._waiting, {}
        for condition in dict.fromkeys(woken.values()):
            with condition:
                condition.notify_all()

    def waiters(self) -> int:
        """How many threads are in `wait` now."""
        with self._changed:
            return len(self._waiting)

    def wait_for_waiters(self, count: int = 1, timeout: float = PATIENCE_SECONDS) -> None:
        """Block until `count` threads are in `wait`; TimeoutError after `timeout` REAL seconds."""
        limit = time.monotonic() + timeout
        with self._changed:
            while len(self._waiting) < count:
                left = limit - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"{len(self._waiting)} of {count} threads wait after {timeout} s"
                    )
                self._changed.wait(left)

    def __repr__(self) -> str:
        return f"FakeClock(monotonic={self._now!r}, waiters={len(self._waiting)})"
