"""The reference frontier: plain dictionaries, obviously right, forgets at exit.

Commit thread only. Tests and throw-away crawls use it; the durable frontier is held to
the same conformance suite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from syncrawl.clock import Clock
from syncrawl.frontier.model import Batch, Counts, Entry, Finish, QueueOf, host_of
from syncrawl.frontier.revive import as_found
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
        self._shelf: list[Entry] = []
        self._failed: list[Finish] = []
        # The order in which queues came to the priority that their best entry has.
        self._ranks: dict[str, tuple[int, int]] = {}
        self._rank = 0
        self._counts = Counts()
        self._notes: dict[str, bytes] = {}
        self._next_bundle = 1
        self._opened = False

    def open(self) -> bool:
        existed, self._opened = self._opened, True
        entries = sorted(self._all(), key=lambda entry: entry.bundle)
        self._cold, self._waiting, self._taken, self._shelf = {}, [], {}, []
        self._ranks = {}
        for entry in entries:
            self._file(entry, self._clock.wall())
        return existed

    def commit(self, batch: Batch) -> set[str]:
        self._take_back([end.entry for end in batch.finished] + [old for old, _ in batch.moved])
        counts = self._counts.copy()
        for end in batch.finished:
            counts.finish(end.state, end.reason)
            if end.state == "failed":
                self._failed.append(end)
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
        for entry in batch.shed:
            if entry.fp not in self.seen:
                self.seen.add([entry.fp])
                counts.shed(1)
        for key, value in batch.notes.items():
            if value:
                self._notes[key] = value
            else:
                self._notes.pop(key, None)
        self._counts = counts
        return {queue for queue in touched if queue is not None}

    def take(self, queue: str, limit: int, above: int | None = None) -> list[Entry]:
        cold = sorted(self._cold.get(queue, []), key=_best_first)
        if above is not None:
            cold = [entry for entry in cold if entry.priority > above]
        return self._hand_out(cold[:limit])

    def take_all(self, queue: str) -> list[Entry]:
        mine = [entry for entry in self._all() if self._queue(entry) == queue]
        return self._hand_out([entry for entry in mine if entry.bundle not in self._taken])

    def has_more(self, queue: str) -> bool:
        return queue in self._cold

    def best_priority(self, queue: str) -> int | None:
        return max((entry.priority for entry in self._cold.get(queue, [])), default=None)

    def shelve(self, below: int, keep: int) -> int:
        chosen = self._worst(below, keep)
        self._shelf.extend(chosen)
        self._remove_cold(chosen)
        return len(chosen)

    def unshelve(self, room: int) -> set[str]:
        self._shelf.sort(key=_best_first)
        back, self._shelf = self._shelf[: max(0, room)], self._shelf[max(0, room) :]
        return {queue for entry in back if (queue := self._file(entry, self._clock.wall()))}

    def unshelve_starved(self, most: int) -> set[str]:
        unfinished = self.unfinished_by_queue()
        starved = [name for name, n in unfinished.items() if n == self.shelved_queue(name)]
        back = set(starved[: max(0, most)])
        for name in back:
            best = min((one for one in self._shelf if self._queue(one) == name), key=_best_first)
            self._shelf.remove(best)
            self._file(best, self._clock.wall())
        return back

    def surplus(self, below: int, keep: int) -> list[Entry]:
        return self._hand_out(self._worst(below, keep))

    def shelved(self) -> int:
        return len(self._shelf)

    def shelved_queue(self, queue: str) -> int:
        return sum(self._queue(entry) == queue for entry in self._shelf)

    def revive(self, classes: Collection[str]) -> Iterator[int]:
        again = [end for end in self._failed if not classes or end.reason in classes]
        self._failed = [end for end in self._failed if end not in again]
        if again:
            counts = self._counts.copy()
            counts.revive(len(again))
            self._counts = counts
            for end in again:
                self._accept(as_found(end.entry), self._clock.wall())
            yield len(again)

    def ripen(self, wall: float) -> set[str]:
        ripe = [entry for entry in self._waiting if entry.due <= wall]
        self._waiting = [entry for entry in self._waiting if entry.due > wall]
        ripe.sort(key=lambda entry: (entry.due, entry.bundle))
        return {queue for entry in ripe if (queue := self._file(entry, wall))}

    def next_due(self) -> float | None:
        return min((entry.due for entry in self._waiting), default=None)

    def backlog(self) -> Iterator[tuple[str, int]]:
        for level, _, queue in sorted(
            (-level, rank, q) for q, (level, rank) in self._ranks.items()
        ):
            yield queue, -level

    def unfinished(self, queue: str) -> int:
        return self.unfinished_by_queue().get(queue, 0)

    def unfinished_by_queue(self) -> Mapping[str, int]:
        totals: dict[str, int] = {}
        for entry in self._all():
            queue = self._queue(entry)
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
        queue = self._queue(entry)
        self._cold.setdefault(queue, []).append(entry)
        self._rank_again(queue)
        return queue

    def _queue(self, entry: Entry) -> str:
        return self._queue_of(host_of(entry.request_url))

    def _rank_again(self, queue: str) -> None:
        best = self.best_priority(queue)
        if best is None:
            self._ranks.pop(queue, None)
        elif queue not in self._ranks or self._ranks[queue][0] != best:
            self._rank += 1
            self._ranks[queue] = (best, self._rank)

    def _worst(self, below: int, keep: int) -> list[Entry]:
        """The entries to do without, until no more than `keep` are left."""
        excess = self._counts.unfinished - len(self._shelf) - keep
        cold = [entry for entries in self._cold.values() for entry in entries]
        low = sorted((entry for entry in cold if entry.priority < below), key=_best_first)
        return low[::-1][: max(0, excess)]

    def _hand_out(self, entries: list[Entry]) -> list[Entry]:
        numbers = {entry.bundle for entry in entries}
        self._remove_cold(entries)
        self._waiting = [entry for entry in self._waiting if entry.bundle not in numbers]
        self._shelf = [entry for entry in self._shelf if entry.bundle not in numbers]
        self._taken.update((entry.bundle, entry) for entry in entries)
        return entries

    def _remove_cold(self, entries: list[Entry]) -> None:
        numbers = {entry.bundle for entry in entries}
        for queue in {self._queue(entry) for entry in entries}:
            rest = [e for e in self._cold.get(queue, []) if e.bundle not in numbers]
            if rest:
                self._cold[queue] = rest
            else:
                self._cold.pop(queue, None)
            self._rank_again(queue)

    def _lower_depth(self, found: Entry) -> None:
        if self._track_depth:
            for entry in self._all():
                if entry.fp == found.fp:
                    entry.depth = min(entry.depth, found.depth)

    def _all(self) -> Iterator[Entry]:
        yield from self._taken.values()
        yield from self._waiting
        yield from self._shelf
        for entries in self._cold.values():
            yield from entries

    def __repr__(self) -> str:
        return f"MemoryFrontier({self._counts}, {len(self._taken)} taken)"


def _best_first(entry: Entry) -> tuple[int, int]:
    return -entry.priority, entry.bundle
