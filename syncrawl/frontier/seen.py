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
# beyond this moves into the table, which takes 10 and answers in a whole one.
_MOST_RECENT = 100_000
# Fingerprints of the table that are also kept at hand, as the same links are on every page of a
# site.
_MOST_AT_HAND = 50_000
# Fingerprints that a bucket of the table holds at most.
_FULL = 256
_BITS = 64
# How many times the slots that its size calls for the table may have.
_SPARSE = 8
# What is loaded is sorted in so many (as a power of two) piles, one after the other.
_PILE_BITS = 8


class _Table:
    """Sorted arrays, each with the fingerprints of one range of the first bits.

    Fingerprints are digests, so the ranges fill evenly unless somebody works at it. Written
    under the owner's lock. A reader without it sees every fingerprint, except that for an
    instant one may be missed that was added just now, or whose bucket is given a smaller one.
    """

    def __init__(self) -> None:
        self.size = 0
        # The shift that gives a fingerprint's slot, and the slots; replaced together. Slots side
        # by side share a bucket until it is full: each splits by itself, so that growing
        # neither takes twice the memory nor a pause.
        self.parts = (_BITS, [array("Q")])

    def missing(self, fps: Iterable[int]) -> set[int]:
        """Those of `fps` that are not in the table."""
        shift, slots = self.parts
        missing = set()
        for fp in fps:
            bucket = slots[fp >> shift]
            at = bisect_left(bucket, fp)
            if at == len(bucket) or bucket[at] != fp:
                missing.add(fp)
        return missing

    def add(self, fps: Iterable[int]) -> None:
        """Insert fingerprints; those that are there already are left out."""
        shift, slots = self.parts
        for fp in fps:
            bucket = slots[fp >> shift]
            at = bisect_left(bucket, fp)
            if at == len(bucket) or bucket[at] != fp:
                bucket.insert(at, fp)
                self.size += 1
                if len(bucket) > _FULL:
                    self._split(fp, bucket)
                    shift, slots = self.parts

    def _split(self, fp: int, bucket: array[int]) -> None:
        """Replace the full bucket of `fp` by two; those who read it now may finish."""
        shift, slots = self.parts
        place = fp >> shift
        first = last = place
        while first and slots[first - 1] is bucket:
            first -= 1
        while last + 1 < len(slots) and slots[last + 1] is bucket:
            last += 1
        if first == last:
            if len(slots) * _FULL > _SPARSE * self.size:
                # Somebody made up URLs whose fingerprints begin alike: a long bucket costs less.
                return
            slots = [slot for slot in slots for _ in range(2)]
            shift -= 1
            first, last = 2 * place, 2 * place + 1
        middle = (first + last + 1) // 2
        at = bisect_left(bucket, middle << shift)
        slots[first:middle] = [bucket[:at]] * (middle - first)
        slots[middle : last + 1] = [bucket[at:]] * (last + 1 - middle)
        self.parts = (shift, slots)

    def fill(self, fps: array[int]) -> None:
        """Take over the first fingerprints of an empty table, repeats among them: sort once."""
        bits = max(_PILE_BITS, (len(fps) * 2 // _FULL).bit_length())
        shift = _BITS - bits
        piles = [array("Q") for _ in range(1 << _PILE_BITS)]
        for fp in fps:
            piles[fp >> _BITS - _PILE_BITS].append(fp)
        slots: list[array[int]] = []
        for number in range(len(piles)):
            # One pile at a time becomes objects, and then makes room.
            ordered = sorted(set(piles[number]))
            piles[number] = array("Q")
            self.size += len(ordered)
            start = 0
            for place in range(len(slots) + 1, len(slots) + (1 << bits - _PILE_BITS) + 1):
                end = bisect_left(ordered, place << shift, start)
                slots.append(array("Q", ordered[start:end]))
                start = end
        self.parts = (shift, slots)


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
        # Readers' own, without the lock: a fingerprint more or less costs time alone.
        self._at_hand: set[int] = set()
        self._table = _Table()
        self._claims: set[int] = set()

    def __contains__(self, fp: int) -> bool:
        if fp in self._recent or fp in self._at_hand or fp in self._claims:
            return True
        # As `_Table.missing` does: this is asked for every link, and a call costs a third of it.
        shift, slots = self._table.parts
        bucket = slots[fp >> shift]
        at = bisect_left(bucket, fp)
        if at == len(bucket) or bucket[at] != fp:
            return False
        if len(self._at_hand) >= _MOST_AT_HAND:
            self._at_hand = set()
        self._at_hand.add(fp)
        return True

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
            new = set(fps)
            self._recent |= self._not_in_table(new)
            self._claims -= new
            if len(self._recent) > _MOST_RECENT:
                # Into the one before out of the other: a reader looks into both.
                self._table.add(self._recent)
                self._recent = set()

    def load(self, rows: Iterable[bytes]) -> None:
        """Add to an empty set what `pack` packed; nobody asks it yet."""
        fps = array("Q")
        for packed in rows:
            fps.frombytes(packed)
        with self._lock:
            if len(fps) <= _MOST_RECENT:
                self._recent.update(fps)
            else:
                self._table.fill(fps)

    @staticmethod
    def pack(fps: Iterable[int]) -> bytes:
        """The form that `load` reads: 8 bytes each, native order."""
        return array("Q", fps).tobytes()

    @staticmethod
    def unpack(packed: bytes) -> array[int]:
        """The fingerprints that `pack` packed."""
        fps = array("Q")
        fps.frombytes(packed)
        return fps

    def _not_in_table(self, fps: set[int]) -> set[int]:
        return self._table.missing(fps) if self._table.size else fps

    def __repr__(self) -> str:
        return f"SeenSet({len(self)} known, {len(self._claims)} claimed)"
