"""The queue before COMMIT: one condition for parsed items, wishes and time.

Filled by parse threads, emptied by the commit thread, which alone waits in `gather`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from syncrawl.clock import Clock
from syncrawl.engine.lease import Parsed
from syncrawl.observe.metrics import MeteredQueue

# Links and records that may wait to be committed: pages differ in them by a factor of a thousand,
# and a link takes more memory than the bytes it was written in.
MOST_LINKS = 20_000


class CommitInbox(MeteredQueue[Parsed]):
    """Bounded like its base; `wake` sets a flag, never blocks and is never lost.

    `gather` lingers for a fuller batch on a condition of its own, so that each item of the
    batch does not cost a thread switch.
    """

    def __init__(
        self, maxsize: int, clock: Clock, weigh: Callable[[Parsed], int] | None = None
    ) -> None:
        super().__init__(maxsize, clock, weigh=weigh or weight_of, max_weight=MOST_LINKS)
        # Shares the mutex: notified by `wake`, and by a put that fills half the queue.
        self._urgent = threading.Condition(self.mutex)
        # Guarded by the mutex.
        self._flag = False

    def wake(self) -> None:
        """Make `gather` return soon: a refill is wanted, there are notes, or the run stops."""
        with self.mutex:
            self._flag = True
            self.not_empty.notify()
            self._urgent.notify()

    def poke(self) -> None:
        """`wake` for a signal handler: does nothing where the mutex is taken, so never blocks.

        The handler may have interrupted the very thread that holds the mutex; the commit
        loop's heartbeat then sees what the handler has set.
        """
        if self.mutex.acquire(blocking=False):
            try:
                self._flag = True
                self.not_empty.notify()
                self._urgent.notify()
            finally:
                self.mutex.release()

    def put(self, item: Parsed, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        if self._half_full():
            with self.mutex:
                self._urgent.notify()

    def set_bound(self, items: int) -> None:
        """Hold no more than so many from now on; what is more stays until it is taken."""
        with self.mutex:
            if items > self.maxsize:
                self.not_full.notify_all()
            self.maxsize = items

    def abandon(self) -> None:
        """Nobody will gather any more: let every put through, so that no thread hangs on it.

        What comes after the last commit is leased, hence pending at the next start.
        """
        with self.mutex:
            self.maxsize = 0
            self.not_full.notify_all()

    def gather(self, timeout: float, linger: float) -> list[Parsed]:
        """All items, waiting up to `timeout` for a first one and `linger` from then for more."""
        clock = self._clock
        with self.mutex:
            end = clock.monotonic() + timeout
            self.meter.starved.enter(clock.monotonic())
            while not self.queue and not self._flag:
                left = end - clock.monotonic()
                if left <= 0:
                    break
                clock.wait(self.not_empty, left)
            self.meter.starved.leave(clock.monotonic())
            if self.queue:
                end = self._arrivals[0] + linger
                while not (self._flag or self._half_full()):
                    left = end - clock.monotonic()
                    if left <= 0:
                        break
                    clock.wait(self._urgent, left)
            self._flag = False
            items = list(self.queue)
            self.queue.clear()
            self.weight = 0
            self._arrivals.clear()
            self.not_full.notify_all()
            return items

    def _half_full(self) -> bool:
        return 2 * len(self.queue) >= self.maxsize or 2 * self.weight >= MOST_LINKS


def weight_of(item: Parsed) -> int:
    """Links and records of a parsed page."""
    return len(item.links) + len(item.records)
