"""The reference frontier: plain dictionaries, obviously right, forgets at exit.

Commit thread only. Tests and throw-away crawls use it; the durable frontier is held to
the same conformance suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from syncrawl.clock import Clock
from syncrawl.frontier.model import Batch, Counts, Entry, QueueOf, host_of
from syncrawl.frontier.seen import SeenSet


class MemoryFrontier:
    """Every unfinished entry is in exactly one of: cold, waiting, taken.

    An entry's `bundle` is its number in the order of acceptance. Opening it again does to
    entries what a restart does: whatever was taken is takeable again.
    """

    def __init__(self, *, clock: Clock, queue_of: QueueOf, track_depth: bool = False) -> None:
        self.seen = SeenSet()
        self._clock = clock
        self._queue_of = queue_of
        self._track_depth = track_depth
        self._cold: dict[str, list[Entry]] = {}
        self._waiting: list[Entry] = []
        self._taken: dict[int, Entry] = {}
        self._counts = Counts()
        self._notes: dict[str, bytes] = {}
        self._next_bundle = 1
        self._opened = False

    def open(self) -> bool:
        existed, self._opened = self._opened, True
        entries = sorted(self._all(), key=lambda entry: entry.bundle)
        self._cold, self._waiting, self._taken = {}, [], {}
        for entry in entries:
            self._file(entry, self._clock.wall())
        return existed

    def commit(self, batch: Batch) -> set[str]:
        self._take_back([end.entry for end in batch.finished] + [old for old, _ in batch.moved])
        counts = self._counts.copy()
        for _, state, reason in batch.finished:
            counts.finish(state, reason)
        wall = self._clock.wall()
        touched = {self._accept(new, wall) for _, new in batch.moved}
        self.seen.add(batch.aliases)
        for entry in batch.found:
            if entry.fp in self.seen:
                self._lower_depth(entry)
                continue
            self.seen.add([entry.fp])
            counts.seen += 1
            counts.unfinished += 1
            touched.add(self._accept(entry, wall))
        for key, value in batch.notes.items():
            if value:
                self._notes[key] = value
            else:
                self._notes.pop(key, None)
        self._counts = counts
        return {queue for queue in touched if queue is not None}

    def take(self, queue: str, limit: int) -> list[Entry]:
        cold = self._cold.get(queue, [])
        cold.sort(key=lambda entry: (-entry.priority, entry.bundle))
        taken, rest = cold[:limit], cold[limit:]
        if rest:
            self._cold[queue] = rest
        else:
            self._cold.pop(queue, None)
        self._taken.update((entry.bundle, entry) for entry in taken)
        return taken

    def has_more(self, queue: str) -> bool:
        return queue in self._cold

    def ripen(self, wall: float) -> set[str]:
        ripe = [entry for entry in self._waiting if entry.due <= wall]
        self._waiting = [entry for entry in self._waiting if entry.due > wall]
        ripe.sort(key=lambda entry: (entry.due, entry.bundle))
        return {queue for entry in ripe if (queue := self._file(entry, wall))}

    def next_due(self) -> float | None:
        return min((entry.due for entry in self._waiting), default=None)

    def backlog(self) -> Iterator[str]:
        return iter(self._cold)

    def unfinished(self, queue: str) -> int:
        return self.unfinished_by_queue().get(queue, 0)

    def unfinished_by_queue(self) -> Mapping[str, int]:
        totals: dict[str, int] = {}
        for entry in self._all():
            queue = self._queue_of(host_of(entry.request_url))
            totals[queue] = totals.get(queue, 0) + 1
        return totals

    def counts(self) -> Counts:
        return self._counts

    @property
    def next_bundle(self) -> int:
        return self._next_bundle

    def note(self, key: str) -> bytes | None:
        return self._notes.get(key)

    def notes(self, prefix: str) -> Iterable[tuple[str, bytes]]:
        return [item for item in self._notes.items() if item[0].startswith(prefix)]

    def close(self) -> None:
        pass

    def _take_back(self, gone: list[Entry]) -> None:
        """Let go of taken entries: all of them, or none where one is not taken."""
        numbers = {entry.bundle for entry in gone}
        if len(numbers) < len(gone) or not numbers <= self._taken.keys():
            raise KeyError("an entry of the batch is not taken")
        for number in numbers:
            del self._taken[number]

    def _accept(self, entry: Entry, wall: float) -> str | None:
        entry.bundle = self._next_bundle
        self._next_bundle += 1
        return self._file(entry, wall)

    def _file(self, entry: Entry, wall: float) -> str | None:
        """Put an entry where it belongs; its queue if it can be taken now."""
        if entry.due > wall:
            self._waiting.append(entry)
            return None
        queue = self._queue_of(host_of(entry.request_url))
        self._cold.setdefault(queue, []).append(entry)
        return queue

    def _lower_depth(self, found: Entry) -> None:
        if self._track_depth:
            for entry in self._all():
                if entry.fp == found.fp:
                    entry.depth = min(entry.depth, found.depth)

    def _all(self) -> Iterator[Entry]:
        yield from self._taken.values()
        yield from self._waiting
        for entries in self._cold.values():
            yield from entries

    def __repr__(self) -> str:
        return f"MemoryFrontier({self._counts}, {len(self._taken)} taken)"
