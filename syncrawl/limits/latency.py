"""Whether a host answers slower because of what we ask of it.

Called under the scheduler's lock; pure arithmetic. A latency is the host's share of the
time to first byte: page size, our own queueing, DNS and connecting are not in it.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque

# Fewer samples in the time that counts as recent say nothing. (An idle host's cold start is not
# its pace, nor is what it did a minute ago.)
_SAMPLES = 20
_RECENT = 60.0
# A sample's share of the running mean is one in so many; the mean is looked at once in a few.
_MEMORY = 64
_EVERY = 5
# The least is kept for five minutes, in buckets of so many seconds.
_BUCKET = 30.0
_BUCKETS = 10
# What counts as risen: times the least, and seconds above it.
_TIMES = 2.0
_ABOVE = 0.05
# What a latency counts as at least, in seconds: a clock's step is no pace.
_INSTANT = 1e-4
# Round trips between two cuts.
_APART = 10.0
# Other hosts that a comparison takes, at least and at most.
_FEW = 3
_MANY = 50


class LatencyWatch:
    """One host's typical latency against the least that this was in the last five minutes.

    Typical is the geometric mean of the last samples. It keeps still where pages differ by
    factors, as a site's do, while a median of so few jumps from the fast kind to the slow; and one
    answer of ten seconds moves it by little. The least is the least typical one: the fastest single
    page of thousands lies far below half of what a page takes on a host that is at its ease.
    """

    __slots__ = (
        "_least",
        "_mean",
        "_seen",
        "_times",
        "least",
        "noted_at",
        "quiet_until",
        "rise",
        "risen",
        "typical",
    )

    def __init__(self) -> None:
        # When the last samples came; how many since the last idle time; the mean of their logs.
        self._times: deque[float] = deque(maxlen=_SAMPLES)
        self._seen = 0
        self._mean = 0.0
        # (bucket number, least typical latency in it), oldest first; never more than _BUCKETS.
        self._least: deque[tuple[int, float]] = deque()
        # Seconds; None where there are too few recent samples.
        self.typical: float | None = None
        # The least of the last five minutes, in seconds; 0 before there was one.
        self.least = 0.0
        # The typical latency as a multiple of the least; 1 where too little is known.
        self.rise = 1.0
        # Whether it is slower by a factor that matters and by a time that matters.
        self.risen = False
        self.noted_at = float("-inf")
        # No cut before this.
        self.quiet_until = float("-inf")

    def note(self, seconds: float, now: float) -> None:
        """Take one latency."""
        if now - self.noted_at > _RECENT:
            self._seen = 0
            self._times.clear()
            self._unknown()
        self.noted_at = now
        self._times.append(now)
        self._seen = seen = self._seen + 1
        log = math.log(seconds if seconds > _INSTANT else _INSTANT)
        self._mean += (log - self._mean) / (seen if seen < _MEMORY else _MEMORY)
        if seen >= _SAMPLES and seen % _EVERY == 0:
            self._compare(now)

    def _unknown(self) -> None:
        self.typical, self.rise, self.risen = None, 1.0, False

    def _compare(self, now: float) -> None:
        if now - self._times[0] > _RECENT:
            self._unknown()
            return
        typical = math.exp(self._mean)
        least, bucket = self._least, int(now / _BUCKET)
        while least and least[0][0] <= bucket - _BUCKETS:
            least.popleft()
        if not least or least[-1][0] != bucket:
            least.append((bucket, typical))
        elif typical < least[-1][1]:
            least[-1] = (bucket, typical)
        self.typical = typical
        self.least = min(lowest for _, lowest in least)
        self.rise = typical / self.least
        self.risen = self.rise > _TIMES and typical > self.least + _ABOVE

    def __repr__(self) -> str:
        typical = "unknown" if self.typical is None else f"{self.typical:.4f}"
        return f"LatencyWatch(typical={typical}, least={self.least:.4f}, rise={self.rise:.2f})"


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
        if watch.typical is None:
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
        watch.quiet_until = now + watch.typical * (1.0 if alike else _APART)
        return not alike

    def _rises_alike(self, watch: LatencyWatch, now: float) -> bool:
        others = [
            other.rise
            for other in self._watches
            if other is not watch and other.typical is not None and now - other.noted_at <= _RECENT
        ]
        if len(others) < _FEW:
            return False
        return statistics.median(others) * _TIMES > watch.rise

    def __repr__(self) -> str:
        return f"Climate({len(self._watches)} hosts)"
