"""Workers that wait for a lease: who is woken for what.

Every method is called with the scheduler's lock held, which both conditions share.
"""

from __future__ import annotations

import threading

from syncrawl.clock import Clock

# What a worker may wait for: a ready host, a host that holds no thread yet (the last workers are
# kept for those), URLs that results on their way through parse and commit may bring, a page that
# max_pages still grants, room in the `fetched` queue, room for a body, room at the proxy or
# gateway, the end of a gateway's exhausted quota.
REASONS = ("politeness", "kept", "links", "pages", "credit", "bytes", "route", "held")


class Waiters:
    """One waiter at a time watches the clock, all others only wait to be called.

    Were each to watch, all of them would wake for every host that becomes due. The watcher
    is called only where nobody else can be, or where time has to be looked at again.
    """

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._clock = clock
        self._follow = threading.Condition(lock)
        self._watch = threading.Condition(lock)
        self._followers = 0
        self._watcher_due: float | None = None
        # How many wait now, by what for.
        self.waiting = dict.fromkeys(REASONS, 0)
        # Seconds that workers have waited until _counted_at, by what for; how many wait, and what
        # the last that looked found lacking: the others, were they to look, would find the same.
        self._sums = dict.fromkeys(REASONS, 0.0)
        self._asleep = 0
        self._lacking = REASONS[0]
        self._counted_at = 0.0

    def sleep(self, now: float, reason: str, due: float | None) -> None:
        """Wait for a change, or until `due` where nobody watches the clock yet."""
        self._hurry(due)
        self.waiting[reason] += 1
        self._count(now)
        self._asleep += 1
        self._lacking = reason
        if due is not None and self._watcher_due is None:
            self._watcher_due = due
            self._clock.wait(self._watch, max(0.0, due - now))
            self._watcher_due = None
        else:
            self._followers += 1
            self._clock.wait(self._follow, None)
            self._followers -= 1
        self.waiting[reason] -= 1
        self._count(self._clock.monotonic())
        self._asleep -= 1

    def waited(self, now: float) -> dict[str, float]:
        """Seconds that workers have waited until `now`, by what for, waits under way included."""
        self._count(now)
        return dict(self._sums)

    def wake(self, *, ready: bool, due: float | None) -> None:
        """Call one waiter where something is ready, and have `due` watched."""
        if ready:
            if self._followers:
                self._follow.notify()
            elif self._watcher_due is not None:
                self._watch.notify()
        if due is not None and self._watcher_due is None:
            self._follow.notify()
        self._hurry(due)

    def release_all(self) -> None:
        """Everybody comes back; there is nothing to wait for any more."""
        self._follow.notify_all()
        self._watch.notify_all()

    def _count(self, now: float) -> None:
        self._sums[self._lacking] += self._asleep * (now - self._counted_at)
        self._counted_at = now

    def _hurry(self, due: float | None) -> None:
        """Have the watcher look again where the next event is nearer than it knows."""
        if due is not None and self._watcher_due is not None and due < self._watcher_due:
            self._watch.notify()

    def __repr__(self) -> str:
        return f"Waiters({self._followers} followers, watcher due {self._watcher_due})"
