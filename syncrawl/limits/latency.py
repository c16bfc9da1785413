"""Whether a host answers slower because of what we ask of it.

Called under the scheduler's lock; pure arithmetic. A latency is the host's share of the
time to first byte: page size, our own queueing, DNS and connecting are not in it.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque

_SAMPLES = 20
# The median is taken again once in so many samples.
_EVERY = 5
# Seconds after which a sample is no longer recent: an idle host's cold start is not its pace.
_RECENT = 60.0
# The least median is kept for five minutes, in buckets.
_BUCKET = 30.0
_BUCKETS = 10
# What counts as risen: times the least, and seconds above it.
_TIMES = 2.0
_ABOVE = 0.05
# The least that a latency is taken for, in seconds: a clock's step is no pace.
_INSTANT = 1e-4
# Round trips between two cuts.
_APART = 10.0
# Other hosts that a comparison takes, at least and at most.
_FEW = 3
_MANY = 50


class LatencyWatch:
    """One host's recent median latency against the least it was in the last five minutes.

    Against the least median, not the least sample: the fastest of thousands of pages (a cached
    one, a picture) is far below half of what a page takes, on a host that is at its ease.
    """

    __slots__ = (
        "_least",
        "_recent",
        "_since",
        "_times",
        "least",
        "median",
        "noted_at",
        "quiet_until",
        "rise",
        "risen",
    )

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_SAMPLES)
        # When each of them came.
        self._times: deque[float] = deque(maxlen=_SAMPLES)
        # (bucket number, least median in it), oldest first; never more than _BUCKETS.
        self._least: deque[tuple[int, float]] = deque()
        self._since = 0
        # Seconds; None where there are too few recent samples.
        self.median: float | None = None
        # The least median of the last five minutes, in seconds; 0 before there was one.
        self.least = 0.0
        # The recent median as a multiple of the least; 1 where too little is known.
        self.rise = 1.0
        # Whether it is slower by a factor that matters and by a time that matters.
        self.risen = False
        self.noted_at = float("-inf")
        # No cut before this.
        self.quiet_until = float("-inf")

    def note(self, seconds: float, now: float) -> None:
        """Take one latency."""
        if now - self.noted_at > _RECENT:
            self._forget()
        self.noted_at = now
        self._recent.append(seconds)
        self._times.append(now)
        self._since += 1
        if self._since >= _EVERY and len(self._recent) == _SAMPLES:
            self._since = 0
            self._compare(now)

    def _forget(self) -> None:
        """What is remembered of the host's pace now is too old to speak of it."""
        self._recent.clear()
        self._times.clear()
        self._unknown()

    def _unknown(self) -> None:
        self.median, self.rise, self.risen = None, 1.0, False

    def _compare(self, now: float) -> None:
        if now - self._times[0] > _RECENT:
            self._unknown()
            return
        median = statistics.median(self._recent)
        least, bucket = self._least, int(now / _BUCKET)
        while least and least[0][0] <= bucket - _BUCKETS:
            least.popleft()
        if not least or least[-1][0] != bucket:
            least.append((bucket, median))
        elif median < least[-1][1]:
            least[-1] = (bucket, median)
        self.median = median
        self.least = min(lowest for _, lowest in least)
        self.rise = median / max(self.least, _INSTANT)
        self.risen = median > _TIMES * self.least and median > self.least + _ABOVE

    def __repr__(self) -> str:
        return f"LatencyWatch(median={self.median}, least={self.least:.4f})"


class Climate:
    """What the latencies of all hosts do: where the median host rises alike, the cause is ours.

    Or the network's; in neither case would asking one of them less help.
    """

    def __init__(self) -> None:
        # Watches by when they last had a sample, the latest last; at most _MANY.
        self._watches: OrderedDict[LatencyWatch, None] = OrderedDict()

    def judge(self, watch: LatencyWatch, now: float, *, tested: bool) -> bool:
        """After a sample: True where the host's limit is to be cut gently.

        `tested` tells that the request used the limit up: else the limit is not the cause.
        """
        if watch.median is None:
            return False
        watches = self._watches
        watches[watch] = None
        watches.move_to_end(watch)
        if len(watches) > _MANY:
            watches.popitem(last=False)
        if not watch.risen or not tested or now < watch.quiet_until:
            return False
        alike = self._rises_alike(watch, now)
        # A comparison that clears the host need not be made again for each of its answers.
        watch.quiet_until = now + watch.median * (1.0 if alike else _APART)
        return not alike

    def _rises_alike(self, watch: LatencyWatch, now: float) -> bool:
        others = [
            other.rise
            for other in self._watches
            if other is not watch and other.median is not None and now - other.noted_at <= _RECENT
        ]
        if len(others) < _FEW:
            return False
        return statistics.median(others) * _TIMES > watch.rise

    def __repr__(self) -> str:
        return f"Climate({len(self._watches)} hosts)"
