"""What the stages measure about themselves: queues, waits, and who limits the crawl.

Any thread. Imports the clock and the standard library only. Nothing here waits for
anything but the queue it belongs to, and a reading never stops a writer for longer
than it takes to copy a few numbers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from syncrawl.clock import Clock

T = TypeVar("T")

# Above this share of one core the interpreter itself is what everything waits for.
CPU_BOUND = 0.8
# More idle than this, with URLs pending, and another worker would be idle too.
IDLE_ENOUGH = 0.1


class StageSnapshot(TypedDict):
    """One stage of the report's `stages`; ages and waits in seconds."""

    depth: int
    oldest_age: float
    blocked_put_seconds: float
    starved_get_seconds: float
    rejected: int


class Verdict(TypedDict):
    """The report's `bottleneck`."""

    stage: str
    share: float


class Growth(TypedDict):
    """The report's `frontier`: URLs a second."""

    found: float
    finished: float


class WaitMeter:
    """Seconds that threads have spent waiting, summed over threads, waits under way included.

    Not synchronised: the owner's lock guards it. A wait is entered with -now and
    left with +now, so a reading needs no list of who is waiting.
    """

    __slots__ = ("_sum", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._sum = 0.0

    def enter(self, now: float) -> None:
        self.waiting += 1
        self._sum -= now

    def leave(self, now: float) -> None:
        self.waiting -= 1
        self._sum += now

    def seconds(self, now: float) -> float:
        """The total up to `now`."""
        return max(0.0, self._sum + self.waiting * now)


class StageMeter:
    """A stage's pressure: how much waits before it, and how long threads waited around it.

    `blocked` are producers that found no room, `starved` the stage's own workers that
    found nothing to do. A stage fed by a `MeteredQueue` finds its meter there; the
    fetch stage, fed by the scheduler, makes its own and passes the scheduler's lock.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        lock: threading.Lock | threading.RLock | None = None,
        depth: Callable[[], int] = int,
        oldest: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._clock = clock
        # Guards blocked, starved and rejected; held while depth() and oldest() are read.
        self._lock = lock if lock is not None else threading.Lock()
        self._depth = depth
        self._oldest = oldest
        self.blocked = WaitMeter()
        self.starved = WaitMeter()
        self.rejected = 0

    @contextmanager
    def waiting(self, meter: WaitMeter) -> Iterator[None]:
        """Count the body as a wait on `meter`; for callers that do not hold the lock."""
        with self._lock:
            meter.enter(self._clock.monotonic())
        try:
            yield
        finally:
            with self._lock:
                meter.leave(self._clock.monotonic())

    def reject(self, count: int = 1) -> None:
        """Count items turned away; for callers that do not hold the lock."""
        with self._lock:
            self.rejected += count

    def snapshot(self) -> StageSnapshot:
        """A consistent reading; takes the lock."""
        with self._lock:
            now = self._clock.monotonic()
            oldest = self._oldest()
            return {
                "depth": self._depth(),
                "oldest_age": 0.0 if oldest is None else round(max(0.0, now - oldest), 6),
                "blocked_put_seconds": round(self.blocked.seconds(now), 6),
                "starved_get_seconds": round(self.starved.seconds(now), 6),
                "rejected": self.rejected,
            }


class MeteredQueue(queue.Queue[T]):
    """A bounded `queue.Queue` between two stages that knows its age and who waited for it.

    Never holds more than `maxsize` items. `put` and `get` wait on the injected clock, so a
    test moves time; the queue's own mutex guards the meter too, which is why measuring
    costs no second lock. Instants of arrival are kept beside the items, in step. Ends by a
    sentinel item: `Queue.shutdown`, which only Python 3.13 has, wakes nobody here.
    """

    def __init__(
        self,
        maxsize: int,
        clock: Clock,
        *,
        weigh: Callable[[T], int] | None = None,
        max_weight: int = 0,
    ) -> None:
        """With `weigh`, a put also waits while items of `max_weight` or more are in the queue."""
        super().__init__(maxsize)
        self._weigh = weigh
        self._max_weight = max_weight
        self.weight = 0  # guarded by the mutex
        self._clock = clock
        self._now = clock.monotonic
        # When each item of `self.queue` came in; guarded by `self.mutex` as the items are.
        self._arrivals: deque[float] = deque()
        self.meter = StageMeter(
            clock,
            lock=self.mutex,
            depth=self._qsize,
            oldest=lambda: self._arrivals[0] if self._arrivals else None,
        )

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; waits for room up to `timeout` seconds, then raises `queue.Full`."""
        with self.mutex:
            if not self._has_room() and not self._wait(
                self.not_full, self.meter.blocked, self._has_room, block, timeout
            ):
                self.meter.rejected += 1
                raise queue.Full
            if self._weigh is not None:
                self.weight += self._weigh(item)
            self.queue.append(item)
            self._arrivals.append(self._now())
            self.unfinished_tasks += 1
            self.not_empty.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the oldest item; waits for one up to `timeout` seconds, then raises `Empty`."""
        with self.mutex:
            if not self.queue and not self._wait(
                self.not_empty, self.meter.starved, self._qsize, block, timeout
            ):
                raise queue.Empty
            self._arrivals.popleft()
            item: T = self.queue.popleft()
            if self._weigh is not None:
                self.weight -= self._weigh(item)
            self.not_full.notify()
            return item

    def snapshot(self) -> StageSnapshot:
        """This queue's numbers, as its stage's entry of the report."""
        return self.meter.snapshot()

    def __repr__(self) -> str:
        return f"<MeteredQueue {len(self.queue)}/{self.maxsize} {self.meter.snapshot()}>"

    def _has_room(self) -> bool:
        # As in queue.Queue, a bound of 0 is none; an owner may lift it while producers wait.
        if self.maxsize <= 0:
            return True
        light = self._weigh is None or self.weight < self._max_weight
        return light and len(self.queue) < self.maxsize

    def _wait(
        self,
        condition: threading.Condition,
        meter: WaitMeter,
        ready: Callable[[], int | bool],
        block: bool,
        timeout: float | None,
    ) -> bool:
        """Wait until `ready()`, under the mutex; False where time ran out first."""
        if not block:
            return False
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        start = self._now()
        meter.enter(start)
        try:
            while not ready():
                remaining = None if timeout is None else start + timeout - self._now()
                if remaining is not None and remaining <= 0:
                    return False
                self._clock.wait(condition, remaining)
        finally:
            meter.leave(self._now())
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Running totals at one instant, in seconds; the difference of two is a window.

    `at` is the clock's, `cpu` the process's CPU time. The rest are sums over threads:
    `polite`, fetch workers idle because no host was ready and none was about to get URLs;
    `starved`, fetch workers idle for any cause (`polite` included); `parse_blocked`, fetch
    workers held up by the parse stage; `parse_busy`, parse workers at work; `commit_blocked`,
    parse workers held up by commit; `commit_busy`, the commit thread at work. `found` and
    `finished` count URLs: accepted by the frontier, and at their end.
    """

    at: float
    cpu: float = 0.0
    polite: float = 0.0
    starved: float = 0.0
    parse_blocked: float = 0.0
    parse_busy: float = 0.0
    commit_blocked: float = 0.0
    commit_busy: float = 0.0
    found: int = 0
    finished: int = 0


def bottleneck(
    before: Reading, after: Reading, *, fetch_workers: int, parse_workers: int
) -> Verdict:
    """Which stage, "politeness" or "cpu" held the crawl back between two readings.

    The shares, each 0..1 of what was there to be used in the window:
    - cpu: CPU seconds a second of wall time, against one core, which is all that one
      interpreter can spend on Python code. From 0.8 on it is the answer, since every
      other wait is then a wait for the interpreter.
    - commit: the parse workers' time spent on a full queue before commit; or the commit thread's
      own time, where it was hardly ever idle: a store that hangs takes all of it at once.
    - parse: the fetch workers' time spent on a full queue before parse, less commit's
      share, because a stuck commit holds up parse and through it fetch; or the parse workers'
      own time, where they were hardly ever idle: what they take long for may be the only URLs.
    - politeness: the fetch workers' time without a ready host, but for what they wait for links
      that are being parsed or committed.
    - fetch: the fetch workers' time in exchanges; it counts only where hardly any of it (a
      tenth) was idle, since idle workers prove that more workers would not help.
    The largest share is the answer; of equal ones, that of the stage nearer to the end, which
    holds up those before it. Where nothing holds it back, or with no time between the readings:
    fetch, 0.
    """
    wall = after.at - before.at
    if wall <= 0:
        return {"stage": "fetch", "share": 0.0}
    fetch_time = wall * max(1, fetch_workers)
    parse_time = wall * max(1, parse_workers)
    commit = (after.commit_blocked - before.commit_blocked) / parse_time
    at_work = (after.commit_busy - before.commit_busy) / wall
    if at_work > 1.0 - IDLE_ENOUGH:
        commit = max(commit, at_work)
    parsing = (after.parse_busy - before.parse_busy) / parse_time
    blocked = (after.parse_blocked - before.parse_blocked) / fetch_time
    idle = (after.starved - before.starved) / fetch_time
    polite = (after.polite - before.polite) / fetch_time
    cpu = (after.cpu - before.cpu) / wall
    if cpu >= CPU_BOUND:
        return {"stage": "cpu", "share": _share(cpu)}
    busy = 1.0 - max(idle, polite) - blocked
    shares = {
        "commit": commit,
        "parse": max(blocked - commit, parsing if parsing > 1.0 - IDLE_ENOUGH else 0.0),
        "fetch": busy if max(idle, polite) < IDLE_ENOUGH else 0.0,
        "politeness": polite,
        "cpu": cpu,
    }
    stage = max(shares, key=lambda name: shares[name])
    if shares[stage] <= 0:
        stage = "fetch"
    return {"stage": stage, "share": _share(shares[stage])}


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 3)


class RecentReadings:
    """The last `seconds` of readings, for a verdict about now instead of about the whole run.

    Not synchronised: filled and asked by whoever takes a snapshot, under that owner's lock.
    """

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Take a reading and forget those that left the window (one is kept at its edge).

        A reading older than the last, taken by a thread that was overtaken, is passed over.
        """
        if self._readings and reading.at < self._readings[-1].at:
            return
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].at <= reading.at - self._seconds:
            self._readings.popleft()

    def verdict(self, *, fetch_workers: int, parse_workers: int) -> Verdict:
        """`bottleneck` over the window."""
        if not self._readings:
            return {"stage": "fetch", "share": 0.0}
        return bottleneck(
            self._readings[0],
            self._readings[-1],
            fetch_workers=fetch_workers,
            parse_workers=parse_workers,
        )

    def growth(self) -> Growth:
        """How fast the frontier grew and was worked off over the window."""
        if len(self._readings) < 2:
            return {"found": 0.0, "finished": 0.0}
        return growth(self._readings[0], self._readings[-1])


def growth(before: Reading, after: Reading) -> Growth:
    """URLs a second that were accepted, and that came to their end, between two readings."""
    wall = after.at - before.at
    if wall <= 0:
        return {"found": 0.0, "finished": 0.0}
    return {
        "found": round((after.found - before.found) / wall, 3),
        "finished": round((after.finished - before.finished) / wall, 3),
    }
