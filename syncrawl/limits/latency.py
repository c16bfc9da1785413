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
# The least latency is kept for five minutes, in buckets.
_BUCKET = 30.0
_BUCKETS = 10
# What counts as risen: times the least, and seconds above it.
_TIMES = 2.0
_ABOVE = 0.05
# Round trips between two cuts.
_APART = 10.0
# Other hosts that a comparison takes, at least and at most.
_FEW = 3
_MANY = 50


class LatencyWatch:
    """One host's recent latencies against the least of the last five minutes."""

    __slots__ = ("_least", "_recent", "_since", "median", "noted_at", "quiet_until")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_SAMPLES)
        # (bucket number, least latency in it), oldest first.
        self._least: deque[tuple[int, float]] = deque(maxlen=_BUCKETS + 1)
        self._since = 0
        # Seconds; None before there are enough samples.
        self.median: float | None = None
        self.noted_at = float("-inf")
        # No cut before this.
        self.quiet_until = float("-inf")

    def note(self, seconds: float, now: float) -> None:
        """Take one latency."""
        if now - self.noted_at > _RECENT:
            self._recent.clear()
            self.median = None
        self.noted_at = now
        recent = self._recent
        recent.append(seconds)
        self._since += 1
        if len(recent) == _SAMPLES and (self.median is None or self._since >= _EVERY):
            self._since = 0
            self.median = statistics.median(recent)
        bucket = int(now / _BUCKET)
        least = self._least
        if not least or least[-1][0] != bucket:
            least.append((bucket, seconds))
            while least[0][0] <= bucket - _BUCKETS:
                least.popleft()
        elif seconds < least[-1][1]:
            least[-1] = (bucket, seconds)

    @property
    def least(self) -> float:
        """The least latency of the last five minutes, in seconds."""
        return min((seconds for _, seconds in self._least), default=0.0)

    @property
    def rise(self) -> float:
        """The recent median as a multiple of the least; 1 where too little is known."""
        if self.median is None:
            return 1.0
        return self.median / max(self.least, 1e-4)

    @property
    def risen(self) -> bool:
        """Whether it is slower by a factor that matters and by a time that matters."""
        return (
            self.median is not None
            and self.median > _TIMES * self.least
            and self.median > self.least + _ABOVE
        )

    def __repr__(self) -> str:
        return f"LatencyWatch(median={self.median}, least={self.least:.4f})"


class Climate:
    """What the latencies of all hosts do: where the median host rises alike, the cause is ours.

    Or the network's; in neither case would asking one of them less help.
    """

    def __init__(self) -> None:
        # Watches by when they last had a sample, the latest last.
        self._watches: OrderedDict[LatencyWatch, None] = OrderedDict()

    def judge(self, watch: LatencyWatch, now: float, *, tested: bool) -> bool:
        """After a sample: True where the host's limit is to be cut gently.

        `tested` tells that the request used the limit up: else the limit is not the cause.
        """
        if not watch.risen:
            if watch.median is not None:
                self._watches[watch] = None
                self._watches.move_to_end(watch)
                if len(self._watches) > _MANY:
                    self._watches.popitem(last=False)
            return False
        self._watches[watch] = None
        self._watches.move_to_end(watch)
        if not tested or now < watch.quiet_until or self._rises_alike(watch, now):
            return False
        assert watch.median is not None
        watch.quiet_until = now + _APART * watch.median
        return True

    def _rises_alike(self, watch: LatencyWatch, now: float) -> bool:
        others = [
            other.rise
            for other in self._watches
            if other is not watch and now - other.noted_at <= _RECENT
        ]
        if len(others) < _FEW:
            return False
        return statistics.median(others) * _TIMES > watch.rise

    def __repr__(self) -> str:
        return f"Climate({len(self._watches)} hosts)"
