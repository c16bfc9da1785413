"""How long a host that keeps refusing is left alone.

Called under the scheduler's lock; pure arithmetic.
"""

from __future__ import annotations

import random

from syncrawl.config.model import PauseConfig


class RefusalPause:
    """A host is paused only when it refuses at its floor, several times in a row.

    The first pause lasts `pause.first` and each further one twice as long, to at most
    `pause.longest`, with jitter (a factor between 1 and 1.25, which `longest` bounds as well);
    `pause.forgiven_after` in which the host was asked and did not refuse forgets the past.
    """

    __slots__ = ("_config", "_pauses", "_quiet_since", "_rng", "_streak")

    def __init__(self, config: PauseConfig, rng: random.Random) -> None:
        self._config = config
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
        self._forgive(now)
        self._quiet_since = now
        if not at_floor:
            return 0.0
        self._streak += 1
        if self._streak < self._config.refusals:
            return 0.0
        return self._next(now)

    def force(self, now: float) -> float:
        """Seconds to pause the host for without counting, 0 where it pauses already."""
        if now < self._quiet_since:
            return 0.0
        self._forgive(now)
        return self._next(now)

    def _forgive(self, now: float) -> None:
        if now - self._quiet_since > self._config.forgiven_after:
            self._pauses = 0

    def _next(self, now: float) -> float:
        self._streak = 0
        # The exponent is bounded before it overflows; 2**40 seconds are beyond any `longest`.
        wanted = self._config.first * 2.0 ** min(self._pauses, 40)
        seconds = min(self._config.longest, wanted * self._rng.uniform(1.0, 1.25))
        self._pauses += 1
        self._quiet_since = now + seconds
        return seconds

    def __repr__(self) -> str:
        return f"RefusalPause(streak={self._streak}, pauses={self._pauses})"
