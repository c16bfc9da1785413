"""Who gets the last pages of a page limit.

Guarded by the scheduler's lock; pure arithmetic.
"""

from __future__ import annotations

import math

from syncrawl.engine.hosts import Host

# The pace is an average over about this many seconds.
_MEMORY = 0.5
# The share of a new sample in a host's running mean of exchange times, and the step by which
# the median over all hosts follows.
_HOST_SHARE = 0.2
_STEP = 1.02
# A host is slow where its exchanges take this many times the usual.
_SLOW = 4.0


class Endgame:
    """No page of a limit's last ones is leased to a host that others would be done before.

    A page is reserved when it is leased, so near the end a slow host's reservations are all
    that a crawl waits for, while fast hosts could have delivered those pages. A slow host
    is held back where the rest of the limit will be used up, at the present pace, before its
    answer could come; if the others run dry meanwhile, the pace falls and it is let in.
    """

    def __init__(self) -> None:
        self._pace = 0.0  # pages a second
        self._paced_at = 0.0
        # Seconds an exchange takes, over all hosts: a running median, which a few slow
        # ones do not move.
        self.usual = 0.0

    def note(self, host: Host, seconds: float, now: float) -> None:
        """An exchange on `host` took so long."""
        host.exchange_seconds += (seconds - host.exchange_seconds) * (
            _HOST_SHARE if host.exchange_seconds else 1.0
        )
        if not self.usual:
            self.usual = max(seconds, 1e-4)
        else:
            self.usual *= _STEP if seconds > self.usual else 1.0 / _STEP
        self._pace = self._decayed(now) + 1.0 / _MEMORY
        self._paced_at = now

    def outlasts(self, host: Host, left: int, now: float) -> bool:
        """True where `left` pages will be gone before an exchange on `host` could end."""
        seconds = host.exchange_seconds
        if seconds < _SLOW * self.usual:
            return False
        return left < self._decayed(now) * seconds

    def _decayed(self, now: float) -> float:
        return self._pace * math.exp((self._paced_at - now) / _MEMORY)

    def __repr__(self) -> str:
        return f"Endgame({self._pace:.1f} pages/s, {self.usual * 1000:.0f} ms usually)"
