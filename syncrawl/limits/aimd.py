"""How many requests a host takes at once: additive increase, multiplicative decrease.

Called under the scheduler's lock; pure arithmetic.
"""

from __future__ import annotations

# How long the limit rests just below a level that was refused before it is tried again, in
# seconds and in round trips; the longer of the two counts. Each try costs a refusal and the
# climb from half the level, so it must be rare; but a host that has recovered is found out
# only by trying.
_REST_SECONDS = 1.5
_REST_ROUND_TRIPS = 8.0
# The share of the newest sample in the running mean of round trips.
_NEWEST = 0.1
# A gentle cut keeps this share of the limit, and holds it for so many round trips: one in ten
# of them against one more request each would otherwise be no cut at all.
_GENTLE = 0.9
_HELD_ROUND_TRIPS = 10.0


class AimdLimiter:
    """`floor <= limit <= ceiling` always; it rises by one a round trip and halves on a refusal.

    Additive increase, multiplicative decrease as in TCP's congestion avoidance (RFC 5681):
    each success that was admitted with the limit nearly used adds 1/limit, so that a
    whole window of successes adds one. A refusal halves, at most once for one burst:
    requests admitted before the last cut tell nothing new. The level that was refused last is
    remembered and approached as CUBIC approaches its window maximum (RFC 9438 section 4.4):
    half of the way in a round trip, so ever slower; just below it the limit rests, then tries
    it; only a whole window of successes forgets it. A host that takes more than it did has
    recovered: from there on each round trip adds one more than the last, until the next cut.
    """

    __slots__ = (
        "_held_until",
        "_last_cut",
        "_recovered",
        "_resting_since",
        "_round_trip",
        "_stride",
        "_tried",
        "_tried_at",
        "ceiling",
        "cuts",
        "floor",
        "limit",
        "refused",
    )

    def __init__(self, start: int, floor: int, ceiling: int) -> None:
        self.floor = floor
        self.ceiling = ceiling
        self.limit = float(min(max(start, floor), ceiling))
        self.cuts = 0
        # Requests at once, of which the last was refused; None where none was, or it is forgotten.
        self.refused: int | None = None
        self._last_cut = float("-inf")
        # A gentle cut stands until then.
        self._held_until = float("-inf")
        self._resting_since: float | None = None
        # When the refused level was tried again, and how many successes it has brought.
        self._tried_at: float | None = None
        self._tried = 0
        self._round_trip = 0.0
        # What a round trip adds while no level is remembered, and whether that grows.
        self._stride = 1.0
        self._recovered = False

    def on_success(self, now: float, admitted_at: float, *, tested: bool) -> None:
        """A useful answer came to a request that, if `tested`, used the limit up at admission."""
        seconds = now - admitted_at
        self._round_trip += (seconds - self._round_trip) * (_NEWEST if self._round_trip else 1.0)
        # An idle host would otherwise drift up on traffic that never tested the limit; and what
        # was admitted before a cut was admitted under a limit that was too high.
        if not tested or admitted_at <= self._last_cut or now < self._held_until:
            return
        if self.refused is None:
            if self._recovered:
                self._stride += 1.0 / self.limit
            self._rise(self.ceiling, self._stride)
        elif self.limit < (known := self.refused - 1):
            self._rise(known, max(1.0, (known - self.limit) / 2.0))
        elif self._tried_at is None:
            self._rest(now)
        elif admitted_at >= self._tried_at:
            self._tried += 1
            if self._tried >= self.refused:
                self.refused = self._tried_at = None
                self._recovered = True

    def on_refusal(self, now: float, admitted_at: float, level: int) -> bool:
        """The host said it is too much; True where the limit was cut for it.

        `level` is how many requests were in flight at admission, this one included.
        """
        if admitted_at <= self._last_cut:
            return False
        # Requests overtake each other on the way: the last but one may be what went beyond.
        if level == int(self.limit) - 1:
            level += 1
        self.refused = max(level, self.floor + 1)
        self._cut(now, self.limit / 2.0)
        return True

    def on_latency(self, now: float) -> bool:
        """The host grows slower under what it has: a gentle cut; True where there was room for one.

        No level was refused, so none is remembered, nor forgotten; but one that is being tried
        is not tried any more.
        """
        self._held_until = now + _HELD_ROUND_TRIPS * self._round_trip
        if self.limit <= self.floor:
            return False
        self._cut(now, self.limit * _GENTLE)
        return True

    def cut_to_floor(self, now: float) -> None:
        """The host wants none of us: as little as may be."""
        self._cut(now, float(self.floor))

    def _cut(self, now: float, limit: float) -> None:
        self._last_cut = now
        self.limit = max(float(self.floor), limit)
        self.cuts += 1
        self._resting_since = self._tried_at = None
        self._stride, self._recovered = 1.0, False

    @property
    def at_floor(self) -> bool:
        return int(self.limit) <= self.floor

    def _rise(self, most: int, steps: float) -> None:
        """Go up by one success of a window's, which as a whole adds `steps`."""
        self.limit = min(float(most), float(self.ceiling), self.limit + steps / self.limit)

    def _rest(self, now: float) -> None:
        """Just below the level that was refused: wait, then try it."""
        assert self.refused is not None
        if self.refused > self.ceiling:
            return
        if self._resting_since is None:
            self._resting_since = now
        elif now - self._resting_since >= max(_REST_SECONDS, _REST_ROUND_TRIPS * self._round_trip):
            self._resting_since = None
            self._tried_at, self._tried = now, 0
            self.limit = float(min(self.refused, self.ceiling))

    def __repr__(self) -> str:
        refused = "" if self.refused is None else f", refused at {self.refused}"
        return f"AimdLimiter({self.limit:.2f} in {self.floor}..{self.ceiling}{refused})"
