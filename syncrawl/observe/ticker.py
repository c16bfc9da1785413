"""A period that can be cut short: what the observer's and the progress thread's loops wait on.

`tick` is called by the one thread that loops, `stop` by any. Imports the clock only.
"""

from __future__ import annotations

import threading

from syncrawl.clock import Clock

# A step may take one part in this many of its thread's time; with 100,000 hosts a snapshot
# costs half a second, which once a second the crawl would feel.
SPARING = 20
# But the next step comes no later than this for it.
LONGEST = 10.0


class Ticker:
    """`while ticker.tick(): step()` runs a step each `interval` seconds until `stop`.

    A step that takes long is run less often: after a pause of 20 times its length, up to 10 s.
    """

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._interval = interval
        # When `tick` last let a step go; the looping thread's own.
        self._let_go: float | None = None
        # Guards _stopping.
        self._wake = threading.Condition()
        self._stopping = False

    def tick(self) -> bool:
        """Wait out one interval; False at once when stopped."""
        now = self._clock.monotonic()
        busy = 0.0 if self._let_go is None else now - self._let_go
        due = now + max(self._interval, min(SPARING * busy, LONGEST))
        with self._wake:
            while not self._stopping:
                remaining = due - self._clock.monotonic()
                if remaining <= 0:
                    self._let_go = self._clock.monotonic()
                    return True
                self._clock.wait(self._wake, remaining)
        return False

    def stop(self) -> None:
        """End the loop before its next step."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
