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
    """Every unfinished entry is in exactly one of: cold, waiting, taken."""

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

    def open(self) -> bool:
        return False

    def commit(self, batch: Batch) -> set[str]:
        for entry, state, reason in batch.finished:
            self._taken.pop(entry.fp)
            self._counts.finish(state, reason)
        touched: set[str] = set()
        for old, new in batch.moved:
            self._taken.pop(old.fp)
            self._file(new, touched)
        for entry in batch.found:
            if entry.fp in self.seen:
                self._lower_depth(entry)
                continue
            self.seen.add([entry.fp])
            self._counts.seen += 1
            self._counts.unfinished += 1
            self._file(entry, touched)
        self.seen.add(batch.aliases)
        for key, value in batch.notes.items():
            if value:
                self._notes[key] = value
            else:
                self._notes.pop(key, None)
        return touched

    def take(self, queue: str, limit: int) -> list[Entry]:
        cold = self._cold.get(queue, [])
        cold.sort(key=lambda entry: -entry.priority)
        taken, rest = cold[:limit], cold[limit:]
        if rest:
            self._cold[queue] = rest
        else:
            self._cold.pop(queue, None)
        self._taken.update((entry.fp, entry) for entry in taken)
        return taken

    def has_more(self, queue: str) -> bool:
        return queue in self._cold

    def ripen(self, wall: float) -> set[str]:
        ripe = [entry for entry in self._waiting if entry.due <= wall]
        self._waiting = [entry for entry in self._waiting if entry.due > wall]
        touched: set[str] = set()
        for entry in ripe:
            self._file(entry, touched)
        return touched

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
        return 0

    def note(self, key: str) -> bytes | None:
        return self._notes.get(key)

    def notes(self, prefix: str) -> Iterable[tuple[str, bytes]]:
        return [item for item in self._notes.items() if item[0].startswith(prefix)]

    def close(self) -> None:
        pass

    def _file(self, entry: Entry, touched: set[str]) -> None:
        if entry.due > self._clock.wall():
            self._waiting.append(entry)
            return
        queue = self._queue_of(host_of(entry.request_url))
        self._cold.setdefault(queue, []).append(entry)
        touched.add(queue)

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
