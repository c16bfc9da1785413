"""Which URLs were ever accepted, as 64-bit fingerprints in memory.

The one part of the frontier that every thread may ask: look-ups come from parse threads,
claims from fetch threads, additions from the commit thread. It holds no file; the
frontier makes it durable.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable


class SeenSet:
    """A fingerprint is known once its URL was committed, or claimed by a redirect in flight.

    A fingerprint is the 64-bit digest of a comparison key; `syncrawl.urls.fingerprint`
    states the odds of a collision.
    """

    def __init__(self) -> None:
        # Guards _claims and the step from look-up to claim. _known is only added to, by
        # the commit thread, and a set look-up is atomic, so readers need no lock.
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._claims: set[int] = set()

    def __contains__(self, fp: int) -> bool:
        return fp in self._known or fp in self._claims

    def __len__(self) -> int:
        return len(self._known)

    def unknown(self, fps: Iterable[int]) -> set[int]:
        """Those of `fps` that are not known."""
        # Set by set: each step walks what is left of `fps`, never the millions known.
        return set(fps) - self._known - self._claims

    def claim(self, fp: int) -> bool:
        """Reserve `fp` for a redirect about to be followed; False where it is known already."""
        with self._lock:
            if fp in self._known or fp in self._claims:
                return False
            self._claims.add(fp)
            return True

    def release(self, fps: Iterable[int]) -> None:
        """Take back claims that came to nothing."""
        with self._lock:
            self._claims.difference_update(fps)

    def add(self, fps: Iterable[int]) -> None:
        """Mark as known for good (commit thread, after its transaction)."""
        with self._lock:
            self._known.update(fps)
            self._claims.difference_update(fps)

    def load(self, packed: bytes) -> None:
        """Add fingerprints from their packed form, 8 bytes each, native order."""
        self._known.update(self.unpack(packed))

    @staticmethod
    def pack(fps: Iterable[int]) -> bytes:
        """The form that `load` reads."""
        return array("Q", fps).tobytes()

    @staticmethod
    def unpack(packed: bytes) -> array[int]:
        """The fingerprints that `pack` packed."""
        fps = array("Q")
        fps.frombytes(packed)
        return fps

    def __repr__(self) -> str:
        return f"SeenSet({len(self._known)} known, {len(self._claims)} claimed)"
