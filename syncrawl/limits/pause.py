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
    in which the host was asked and did not refuse forgets the past.
    """

    __slots__ = ("_pauses", "_quiet_since", "_rng", "_streak")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._streak = 0
        self._pauses = 0
        # When the last refusal came or the last pause ended: the later of the two.
        self._quiet_since = float("-inf")

    def on_success(self) -> None:
        """A useful answer came: the streak is over."""
        self._streak = 0

    def on_refusal(self, now: float, *, at_floor: bool) -> float:
        """Seconds to pause the host for, 0 where it need not be."""
        if now < self._quiet_since:
            # Admitted before the pause that stands: the rest of a burst tells nothing new.
            return 0.0
        if now - self._quiet_since > _FORGIVEN_AFTER:
            self._pauses = 0
        self._quiet_since = now
        if not at_floor:
            return 0.0
        self._streak += 1
        if self._streak < _STREAK:
            return 0.0
        self._streak = 0
        seconds = min(_LONGEST, _FIRST * 2.0**self._pauses) * self._rng.uniform(1.0, 1.25)
        self._pauses += 1
        self._quiet_since = now + seconds
        return seconds

    def __repr__(self) -> str:
        return f"RefusalPause(streak={self._streak}, pauses={self._pauses})"
