"""How many requests a host takes at once: additive increase, multiplicative decrease.

Called under the scheduler's lock; pure arithmetic.
"""

from __future__ import annotations


class AimdLimiter:
    """`floor <= limit <= ceiling` always; it rises by one a round trip and halves on a refusal.

    Additive increase, multiplicative decrease as in TCP's congestion avoidance (RFC 5681):
    each success that was admitted with the limit nearly used adds 1/limit, so that a
    whole window of successes adds one. A refusal halves, at most once for one burst:
    requests admitted before the last cut tell nothing new.
    """

    __slots__ = ("_last_cut", "ceiling", "cuts", "floor", "limit")

    def __init__(self, start: int, floor: int, ceiling: int) -> None:
        self.floor = floor
        self.ceiling = ceiling
        self.limit = float(min(max(start, floor), ceiling))
        self.cuts = 0
        self._last_cut = float("-inf")

    def on_success(self, in_flight_at_admission: int) -> None:
        """A useful answer came; `in_flight_at_admission` excludes the request itself."""
        # An idle host would otherwise drift up on traffic that never tested the limit.
        if in_flight_at_admission + 1 >= int(self.limit):
            self.limit = min(float(self.ceiling), self.limit + 1.0 / self.limit)

    def on_refusal(self, now: float, admitted_at: float) -> bool:
        """The host said it is too much; True where the limit was cut for it."""
        if admitted_at <= self._last_cut:
            return False
        self._last_cut = now
        self.limit = max(float(self.floor), self.limit / 2.0)
        self.cuts += 1
        return True

    @property
    def at_floor(self) -> bool:
        return int(self.limit) <= self.floor

    def __repr__(self) -> str:
        return f"AimdLimiter({self.limit:.2f} in {self.floor}..{self.ceiling}, cuts={self.cuts})"
