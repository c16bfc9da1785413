"""The smallest depth at which each unfinished URL was met, for scopes that have a max_depth.

Commit thread only; no I/O. A URL may be found again by a shorter way, while it lies on disk or
while it is taken; a row is not written anew for that, a row of smaller depths is added.
"""

from __future__ import annotations

from syncrawl.frontier.model import Batch, Entry


class Depths:
    """By fingerprint, with the taken entries that a smaller depth has to reach where they are."""

    def __init__(self, known: dict[int, int]) -> None:
        self._known = known
        self._taken: dict[int, Entry] = {}

    def lowered(self, found: list[Entry]) -> dict[int, int]:
        """The smaller depths that `found` brings for unfinished URLs."""
        lowered: dict[int, int] = {}
        for entry in found:
            known = self._known.get(entry.fp)
            if known is not None and entry.depth < lowered.get(entry.fp, known):
                lowered[entry.fp] = entry.depth
        return lowered

    def follow(self, batch: Batch, fresh: list[Entry], lowered: dict[int, int]) -> None:
        """The transaction of `batch` is durable: `fresh` is what of it was new."""
        for fp, depth in lowered.items():
            taken = self._taken.get(fp)
            if taken is not None:
                taken.depth = depth
        self._known.update(lowered)
        self.add(fresh)
        for old, _ in batch.moved:
            del self._taken[old.fp]
        for end in batch.finished:
            del self._taken[end.entry.fp], self._known[end.entry.fp]

    def add(self, entries: list[Entry]) -> None:
        """These are unfinished from now on."""
        self._known.update((entry.fp, entry.depth) for entry in entries)

    def take(self, entries: list[Entry]) -> None:
        """These are handed out: at the smallest depth known, now and from now on."""
        for entry in entries:
            entry.depth = min(entry.depth, self._known[entry.fp])
            self._taken[entry.fp] = entry
