"""A period that can be cut short: what the observer's and the progress thread's loops wait on.

`tick` is called by the one thread that loops, `stop` by any. Imports the clock only.
"""

from __future__ import annotations

import threading

from syncrawl.clock import Clock


class Ticker:
    """`while ticker.tick(): step()` runs a step each `interval` seconds until `stop`."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._interval = interval
        # Guards _stopping.
        self._wake = threading.Condition()
        self._stopping = False

    def tick(self) -> bool:
        """Wait out one interval; False at once when stopped."""
        due = self._clock.monotonic() + self._interval
        with self._wake:
            while not self._stopping:
                remaining = due - self._clock.monotonic()
                if remaining <= 0:
                    return True
                self._clock.wait(self._wake, remaining)
        return False

    def stop(self) -> None:
        """End the loop before its next step."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
