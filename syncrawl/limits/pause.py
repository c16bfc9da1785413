"""How long a host that keeps refusing is left alone.

Called under the scheduler's lock; pure arithmetic.
"""

from __future__ import annotations

import random

_STREAK = 3  # refusals in a row at the floor, no success between, before the first pause
_FIRST = 60.0  # seconds
_LONGEST = 86400.0
_FORGIVEN_AFTER = 1800.0  # quiet seconds after which the next pause starts small again


class RefusalPause:
    """A host is paused only when it refuses at its floor, several times in a row.

    The first pause lasts a minute and each further one twice as long, to at most a day,
    with jitter (a factor between 1 and 1.25, never shorter than asked); half an hour
    without a refusal forgets the past.
    """

    __slots__ = ("_last", "_pauses", "_rng", "_streak")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._streak = 0
        self._pauses = 0
        self._last = float("-inf")

    def on_success(self) -> None:
        """A useful answer came: the streak is over."""
        self._streak = 0

    def on_refusal(self, now: float, *, at_floor: bool) -> float:
        """Seconds to pause the host for, 0 where it need not be."""
        if now - self._last > _FORGIVEN_AFTER:
            self._pauses = 0
        self._last = now
        if not at_floor:
            return 0.0
        self._streak += 1
        if self._streak < _STREAK:
            return 0.0
        self._streak = 0
        seconds = min(_LONGEST, _FIRST * 2.0**self._pauses) * self._rng.uniform(1.0, 1.25)
        self._pauses += 1
        return seconds

    def __repr__(self) -> str:
        return f"RefusalPause(streak={self._streak}, pauses={self._pauses})"
