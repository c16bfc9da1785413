"""Which URLs were ever accepted, as 64-bit fingerprints in memory.

The one part of the frontier that every thread may ask: look-ups come from parse threads,
claims from fetch threads, additions from the commit thread. It holds no file; the
frontier makes it durable.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable

# A set takes some 70 bytes a fingerprint and answers in a tenth of a microsecond; what it holds
# beyond this moves into the table, which takes 9 and answers in half of one.
_MOST_RECENT = 100_000
# Fingerprints that a bucket holds on average before the table doubles.
_FULL = 128
_BITS = 64
_FIRST_BITS = 8


class _Table:
    """Sorted arrays, each with the fingerprints of one range of the first bits.

    Fingerprints are digests, so the ranges fill evenly. Written under the owner's lock; a
    reader without it sees every fingerprint but, for the length of an insertion, one that
    the same bucket is just being given a smaller one beside.
    """

    def __init__(self) -> None:
        self.size = 0
        # The shift that gives a fingerprint's bucket, and the buckets: replaced together.
        self._parts = (_BITS - _FIRST_BITS, [array("Q") for _ in range(1 << _FIRST_BITS)])

    def __contains__(self, fp: int) -> bool:
        shift, buckets = self._parts
        bucket = buckets[fp >> shift]
        at = bisect_left(bucket, fp)
        return at < len(bucket) and bucket[at] == fp

    def add(self, fps: Iterable[int]) -> None:
        """Insert fingerprints; those that are there already are left out."""
        shift, buckets = self._parts
        for fp in fps:
            bucket = buckets[fp >> shift]
            at = bisect_left(bucket, fp)
            if at == len(bucket) or bucket[at] != fp:
                bucket.insert(at, fp)
                self.size += 1
        self._grow()

    def merge(self, fps: array[int]) -> None:
        """Insert many at once; those that are there already are left out."""
        self.size += len(fps)
        self._grow()
        shift, buckets = self._parts
        ordered = sorted(set(fps))
        start = 0
        self.size -= len(fps)
        while start < len(ordered):
            place = ordered[start] >> shift
            end = bisect_left(ordered, (place + 1) << shift, start)
            here = buckets[place]
            before = len(here)
            new = ordered[start:end]
            buckets[place] = array("Q", sorted({*here, *new}) if here else new)
            self.size += len(buckets[place]) - before
            start = end

    def _grow(self) -> None:
        shift, buckets = self._parts
        while self.size > _FULL * len(buckets) and shift:
            shift -= 1
            halves: list[array[int]] = []
            for place, bucket in enumerate(buckets):
                middle = bisect_left(bucket, (2 * place + 1) << shift)
                halves += (bucket[:middle], bucket[middle:])
            buckets = halves
        self._parts = (shift, buckets)


class SeenSet:
    """A fingerprint is known once its URL was committed, or claimed by a redirect in flight.

    A fingerprint is the 64-bit digest of a comparison key; `syncrawl.urls.fingerprint`
    states the odds of a collision.
    """

    def __init__(self) -> None:
        # Guards _claims, what the table and _recent are given, and the step from look-up to
        # claim. Readers without it may take a known fingerprint for unknown for an instant
        # (see _Table), which costs them a link that COMMIT looks up again.
        self._lock = threading.Lock()
        self._recent: set[int] = set()
        self._table = _Table()
        self._claims: set[int] = set()

    def __contains__(self, fp: int) -> bool:
        if fp in self._recent or fp in self._claims:
            return True
        return self._table.size > 0 and fp in self._table

    def __len__(self) -> int:
        return len(self._recent) + self._table.size

    def unknown(self, fps: Iterable[int]) -> set[int]:
        """Those of `fps` that are not known."""
        # Set by set: each step walks what is left of `fps`, never the millions known.
        return self._not_in_table(set(fps) - self._recent - self._claims)

    def claim(self, fp: int) -> bool:
        """Reserve `fp` for a redirect about to be followed; False where it is known already."""
        with self._lock:
            if fp in self:
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
            self._recent.update(fps)
            self._claims.difference_update(fps)
            if len(self._recent) > _MOST_RECENT:
                # Into the one before out of the other: a reader looks into both.
                self._table.add(self._recent)
                self._recent = set()

    def load(self, packed: bytes) -> None:
        """Add fingerprints from their packed form, 8 bytes each, native order."""
        fps = self.unpack(packed)
        if len(fps) < _MOST_RECENT // 4:
            self.add(fps)
            return
        with self._lock:
            self._table.merge(fps)
            self._recent = self._not_in_table(self._recent)

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

    def _not_in_table(self, fps: set[int]) -> set[int]:
        table = self._table
        return {fp for fp in fps if fp not in table} if table.size else fps

    def __repr__(self) -> str:
        return f"SeenSet({len(self)} known, {len(self._claims)} claimed)"
