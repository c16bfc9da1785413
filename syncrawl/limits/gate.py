"""The one door to a host: every request, of whatever kind, is admitted here.

Owned by the scheduler and guarded by its condition; no method waits.
"""

from __future__ import annotations

from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket

NEVER = float("inf")


class HostGate:
    """No request is admitted unless `in_flight < int(limit)` at that moment, over every path.

    Combines the token bucket (when may the next one start), the adaptive limit (how many
    at once) and a pause (Retry-After, back-off); the slowest wins.
    """

    __slots__ = ("bucket", "in_flight", "limiter", "paused_until")

    def __init__(self, bucket: TokenBucket, limiter: AimdLimiter) -> None:
        self.bucket = bucket
        self.limiter = limiter
        self.in_flight = 0
        self.paused_until = float("-inf")

    def ready_at(self) -> float:
        """When a request could be admitted (clock seconds); NEVER while the host is full."""
        if self.in_flight >= int(self.limiter.limit):
            return NEVER
        return max(self.paused_until, self.bucket.ready_at())

    def try_admit(self, now: float) -> bool:
        """Admit one request now, or say no; a True must be matched by `release`."""
        if self.ready_at() > now:
            return False
        self.in_flight += 1
        self.bucket.take(now)
        return True

    def try_readmit(self, now: float) -> bool:
        """Admit a further request on a slot that is already held (a redirect hop)."""
        if self.in_flight > int(self.limiter.limit):
            return False
        if max(self.paused_until, self.bucket.ready_at()) > now:
            return False
        self.bucket.take(now)
        return True

    def release(self) -> None:
        """Give the slot back; the exchange is over."""
        assert self.in_flight > 0, "a slot was given back twice"
        self.in_flight -= 1

    def pause(self, until: float) -> None:
        """Admit nothing before `until`; never shortens a pause."""
        self.paused_until = max(self.paused_until, until)

    @property
    def tested(self) -> bool:
        """Whether one more request would use the limit up: its answer says something of it."""
        return self.in_flight + 1 >= int(self.limiter.limit)

    def __repr__(self) -> str:
        return (
            f"HostGate(in_flight={self.in_flight}, {self.limiter!r}, {self.bucket!r}, "
            f"paused_until={self.paused_until:.3f})"
        )
