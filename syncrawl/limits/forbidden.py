"""Whether a host has begun to turn us away as such (403, 451), page after page.

Called under the scheduler's lock; pure arithmetic.
"""

from __future__ import annotations

_WINDOW = 20
_ENOUGH = 10
_MASK = (1 << _WINDOW) - 1


class ForbiddenWatch:
    """Says so once half of the host's last 20 answers were refusals of this kind.

    A page here and there that is not for everybody says nothing of the host.
    """

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        # The last answers, one bit each.
        self._recent = 0

    def note(self, forbidden: bool) -> bool:
        """Count one answer; True where the host is to be left alone, and the count starts anew."""
        self._recent = (self._recent << 1 | forbidden) & _MASK
        if not forbidden or self._recent.bit_count() < _ENOUGH:
            return False
        self._recent = 0
        return True

    def __repr__(self) -> str:
        return f"ForbiddenWatch({self._recent.bit_count()} of the last {_WINDOW})"
