"""When the next request to a gate may START: rate, burst and Crawl-delay.

Called under the scheduler's lock; pure arithmetic on the clock values handed in.
"""

from __future__ import annotations

# A server measures arrivals, we measure admissions: between the two lie a thread
# switch and a send. This share of the gap (at most the seconds below) is added so
# that our own jitter never brings two requests closer than the delay asks.
_JITTER_SHARE = 0.05
_JITTER_CEILING = 0.005


class TokenBucket:
    """Starts never exceed `rate` a second beyond a burst of `burst`, nor come closer than `delay`.

    The rate is kept as a theoretical arrival time (the generic cell rate algorithm of
    ITU-T I.371, which equals a token bucket without a refill timer). `rate` 0 is off.
    The slower of the two rules wins; with a Crawl-delay the burst is therefore 1.
    """

    __slots__ = ("_arrival", "_burst", "_gap", "_interval", "_last_start", "delay")

    def __init__(self, rate: float = 0.0, burst: int = 1, delay: float = 0.0) -> None:
        self._interval = 1.0 / rate if rate > 0 else 0.0
        self._burst = max(1, burst)
        self._arrival = float("-inf")
        self._last_start = float("-inf")
        self.delay = 0.0
        self._gap = 0.0
        self.set_delay(delay)

    def set_delay(self, seconds: float) -> None:
        """Seconds between two starts from now on (Crawl-delay); 0 = off."""
        self.delay = seconds
        self._gap = seconds + min(_JITTER_CEILING, seconds * _JITTER_SHARE)

    def ready_at(self) -> float:
        """The earliest moment the next start is allowed; may lie in the past."""
        by_rate = self._arrival - (self._burst - 1) * self._interval
        return max(by_rate, self._last_start + self._gap)

    def take(self, now: float) -> None:
        """Record a start at `now`; the caller has checked `ready_at`."""
        self._last_start = now
        if self._interval:
            self._arrival = max(now, self._arrival) + self._interval

    @property
    def idle(self) -> bool:
        """True where this bucket holds nothing back and never will."""
        return not self._interval and not self._gap

    def __repr__(self) -> str:
        rate = 1.0 / self._interval if self._interval else 0.0
        return f"TokenBucket(rate={rate:g}, burst={self._burst}, delay={self.delay:g})"
