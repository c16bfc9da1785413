"""The durable frontier: rows in a diskcache directory, an index over them in memory.

Commit thread only, but for `seen` and `counts()`. May import the rest of frontier/, the
clock and the errors. rows.py says what the rows are.

One commit writes a handful of rows whatever the number of URLs in it: a row per URL
would cost more than the fetch (25 us each, against 6.5 us in bare SQLite).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from syncrawl.clock import Clock
from syncrawl.frontier import reader
from syncrawl.frontier.bundles import Bundle, QueueIndex, pack
from syncrawl.frontier.bytesdisk import open_cache
from syncrawl.frontier.depths import Depths
from syncrawl.frontier.faults import damaged, translated
from syncrawl.frontier.load import Loaded, load
from syncrawl.frontier.marks import Marks, Settled
from syncrawl.frontier.model import Batch, Counts, Entry, QueueOf
from syncrawl.frontier.revive import Again, rows_of, split_ends
from syncrawl.frontier.rows import (
    FORMAT,
    MARKER,
    Meta,
    encode,
    encode_json,
)
from syncrawl.frontier.seen import SeenSet

# Entries of fresh bundles kept in memory (about 0.5 KiB each) to save reading them back.
_KEEP_FRESH = 20_000
# Entries that one call hands out to be dropped.
_MOST_SURPLUS = 10_000


class DiskFrontier:
    """Every unfinished entry is in exactly one bundle row, not marked done.

    The memory index changes only after the transaction that justifies it, so a failed
    commit leaves both sides as they were. A commit survives the end of the process, with
    `power` that of the machine too.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        queue_of: QueueOf,
        fingerprint_rules: str,
        track_depth: bool = False,
        power: bool = False,
    ) -> None:
        self.seen = SeenSet()
        self._directory = directory
        self._clock = clock
        self._queue_of = queue_of
        self._rules = fingerprint_rules
        self._track_depth = track_depth
        self._power = power
        self._cache: Any = None
        self._index = QueueIndex()
        self._marks = Marks({}, {})
        self._counts = Counts()
        self._note_keys: set[str] = set()
        # How many entries all bundles together keep in memory.
        self._fresh = 0
        self._next_bundle = 1
        self._next_commit = 1
        self._depths = Depths({}) if track_depth else None

    # -- open and close ---------------------------------------------------------------

    def open(self) -> bool:
        existed = reader.check(self._directory, self._rules)
        with translated(self._directory):
            loaded = self._load() if existed else Loaded()
            # Only now, when all is found sound, is anything written.
            self._cache = open_cache(self._directory, power=self._power)
            if not existed:
                self._cache.set("meta", self._meta)
            if loaded.outdated:
                self._tidy(loaded)
            self._mark_as_ours()
        return existed

    def close(self) -> None:
        if self._cache is not None:
            with translated(self._directory):
                self._cache.close()
            self._cache = None

    @property
    def _meta(self) -> bytes:
        return encode_json(Meta(FORMAT, self._rules))

    def _mark_as_ours(self) -> None:
        """Leave the marker; only once the meta row is durable, as it says that there is one."""
        path = self._directory / MARKER
        if not path.exists():
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                file.write(self._meta)

    def _load(self) -> Loaded:
        with reader.StateReader(self._directory) as rows:
            loaded = load(rows, self._queue_of, track_depth=self._track_depth)
        self._counts = loaded.counts
        self._marks = Marks(loaded.bundles, loaded.mark_rows)
        if self._depths is not None:
            self._depths = Depths(loaded.depths)
        self._note_keys = loaded.note_keys
        self._next_bundle = loaded.next_bundle
        self._next_commit = loaded.next_commit
        self.seen.load(loaded.seen)
        self._check_sums()
        wall = self._clock.wall()
        for id in sorted(self._marks.bundles):
            self._index.add(self._marks.bundles[id], wall=wall)
        return loaded

    def _tidy(self, loaded: Loaded) -> None:
        with self._cache.transact():
            for row in loaded.outdated:
                self._cache.delete(row)
            for row, value in loaded.merged.items():
                self._cache.set(row, value)

    def _check_sums(self) -> None:
        """Rows that vanished show in the sums, which a commit writes together with them."""
        counts = self._counts
        stored = sum(bundle.open for bundle in self._marks.bundles.values())
        if stored != counts.unfinished:
            raise damaged(
                self._directory,
                f"{counts.unfinished} URLs should be unfinished, {stored} are there",
            )
        if len(self.seen) < counts.seen:
            raise damaged(
                self._directory, f"{counts.seen} URLs should be known, {len(self.seen)} are there"
            )
        if not counts.balanced():
            raise damaged(self._directory, f"the counts contradict each other: {counts}")

    # -- the transaction --------------------------------------------------------------

    def commit(self, batch: Batch) -> set[str]:
        gone = [end.entry for end in batch.finished]
        gone.extend(old for old, _ in batch.moved)
        settled = self._marks.settle(gone)
        fresh = self._unknown(batch)
        entries = [new for _, new in batch.moved]
        entries.extend(fresh)
        bundles = self._pack(entries)
        lowered = self._depths.lowered(batch.found) if self._depths is not None else {}
        fps = [entry.fp for entry in fresh]
        fps.extend(batch.aliases)
        shed = self._shed(batch, fps)
        fps.extend(shed)
        counts = self._counts.copy()
        counts.seen += len(fresh)
        counts.unfinished += len(fresh)
        counts.shed(len(shed))
        for _, state, reason in batch.finished:
            counts.finish(state, reason)
        with translated(self._directory), self._cache.transact():
            self._write(batch, bundles, settled, fps, shed, lowered, counts)
        self._counts = counts
        self.seen.add(fps)
        self._note_keys.update(batch.notes)
        self._note_keys.difference_update(key for key, value in batch.notes.items() if not value)
        self._marks.forget(gone, settled, self._next_commit, self._index)
        if self._depths is not None:
            self._depths.follow(batch, fresh, lowered)
        self._next_commit += 1
        return self._file(bundles)

    def _write(
        self,
        batch: Batch,
        bundles: list[Bundle],
        settled: Settled,
        fps: list[int],
        shed: set[int],
        lowered: dict[int, int],
        counts: Counts,
    ) -> None:
        put, delete, number = self._cache.set, self._cache.delete, self._next_commit
        for bundle in bundles:
            put(bundle.row, encode(bundle.entries))
        for bundle in settled.complete:
            delete(bundle.row)
        for commit in settled.stale:
            delete(f"d:{commit}")
        if settled.marks:
            put(f"d:{number}", encode([(id, i) for id, ii in settled.marks.items() for i in ii]))
        if fps:
            put(f"s:{number}", SeenSet.pack(fps))
        if shed:
            put(f"x:{number}", SeenSet.pack(shed))
        ends = [end for end in batch.finished if end.state != "done"]
        if ends:
            put(f"f:{number}", encode(ends))
        if lowered:
            put(f"z:{number}", encode(list(lowered.items())))
        for key, value in batch.notes.items():
            if value:
                put(f"n:{key}", value)
            else:
                delete(f"n:{key}")
        put("counts", encode_json(counts))

    def _unknown(self, batch: Batch) -> list[Entry]:
        """The entries of `found` that were never accepted, each fingerprint once."""
        unknown = self.seen.unknown(entry.fp for entry in batch.found)
        unknown.difference_update(batch.aliases)
        fresh: dict[int, Entry] = {}
        for entry in batch.found:
            fp = entry.fp
            if fp not in unknown:
                continue
            known = fresh.get(fp)
            if known is None:
                fresh[fp] = entry
            elif self._track_depth and entry.depth < known.depth:
                known.depth = entry.depth
        return list(fresh.values())

    def _shed(self, batch: Batch, accepted: list[int]) -> set[int]:
        """The fingerprints of `batch.shed` that were never accepted."""
        if not batch.shed:
            return set()
        unknown = self.seen.unknown(entry.fp for entry in batch.shed)
        unknown.difference_update(accepted)
        return unknown

    def _pack(self, entries: list[Entry]) -> list[Bundle]:
        bundles = pack(entries, self._next_bundle, self._queue_of)
        self._next_bundle += len(bundles)
        return bundles

    def _file(self, bundles: list[Bundle]) -> set[str]:
        wall = self._clock.wall()
        touched = set()
        for bundle in bundles:
            self._marks.bundles[bundle.id] = bundle
            if self._index.add(bundle, wall=wall):
                touched.add(bundle.queue)
            if self._fresh + bundle.count > _KEEP_FRESH:
                bundle.entries = None
            else:
                self._fresh += bundle.count
        return touched

    def revive(self, classes: Collection[str]) -> Iterator[int]:
        for row in rows_of(self._cache):
            with translated(self._directory):
                again = split_ends(self._cache[row], classes)
            if again.entries:
                self._take_back(row, again)
                yield len(again.entries)

    def _take_back(self, row: str, again: Again) -> None:
        bundles = self._pack(again.entries)
        counts = self._counts.copy()
        counts.revive(len(again.entries))
        with translated(self._directory), self._cache.transact():
            for bundle in bundles:
                self._cache.set(bundle.row, encode(bundle.entries))
            if again.ends:
                self._cache.set(row, encode(again.ends))
            else:
                self._cache.delete(row)
            self._cache.set("counts", encode_json(counts))
        self._counts = counts
        if self._depths is not None:
            self._depths.add(again.entries)
        self._file(bundles)

    # -- taking -----------------------------------------------------------------------

    def take(self, queue: str, limit: int, above: int | None = None) -> list[Entry]:
        taken: list[Entry] = []
        while len(taken) < limit:
            bundle = self._index.pop(queue, above)
            if bundle is None:
                break
            taken.extend(self._unpack(bundle))
        return self._now_taken(taken)

    def take_all(self, queue: str) -> list[Entry]:
        taken: list[Entry] = []
        for bundle in self._index.take_all(queue):
            taken.extend(self._unpack(bundle))
        return self._now_taken(taken)

    def _unpack(self, bundle: Bundle) -> list[Entry]:
        """The entries of a bundle that is taken, from memory where they still are."""
        entries = bundle.entries
        if entries is not None:
            self._let_go(bundle)
            return entries
        with translated(self._directory):
            return bundle.unpack(self._cache[bundle.row])

    def _let_go(self, bundle: Bundle) -> None:
        if bundle.entries is not None:
            bundle.entries = None
            self._fresh -= bundle.count

    def _now_taken(self, taken: list[Entry]) -> list[Entry]:
        if self._depths is not None:
            self._depths.take(taken)
        return taken

    def has_more(self, queue: str) -> bool:
        return self._index.best_priority(queue) is not None

    def best_priority(self, queue: str) -> int | None:
        return self._index.best_priority(queue)

    # -- shedding ---------------------------------------------------------------------

    def shelve(self, below: int, keep: int) -> int:
        before = self._index.shelved
        while self._counts.unfinished - self._index.shelved > keep:
            bundle = self._index.worst(below)
            if bundle is None:
                break
            # What is put off is what memory should not be spent on.
            self._let_go(bundle)
            self._index.shelve(bundle)
        return self._index.shelved - before

    def unshelve(self, room: int) -> set[str]:
        touched: set[str] = set()
        while room > 0:
            bundle = self._index.unshelve()
            if bundle is None:
                break
            room -= bundle.open
            touched.add(bundle.queue)
        return touched

    def unshelve_starved(self, most: int) -> set[str]:
        return self._index.unshelve_starved(most)

    def surplus(self, below: int, keep: int) -> list[Entry]:
        taken: list[Entry] = []
        excess = self._counts.unfinished - self._index.shelved - keep
        while len(taken) < min(excess, _MOST_SURPLUS):
            bundle = self._index.worst(below)
            if bundle is None:
                break
            self._index.take(bundle)
            left = excess - len(taken)
            taken.extend(self._unpack(bundle) if bundle.open <= left else self._split(bundle, left))
        return self._now_taken(taken)

    def _split(self, bundle: Bundle, count: int) -> list[Entry]:
        """The youngest entries of a taken bundle, in a taken one of their own; it lies again."""
        first = self._next_bundle
        youngest = self._now_taken(self._unpack(bundle)[-count:])
        self.commit(Batch(moved=[(entry, msgspec.structs.replace(entry)) for entry in youngest]))
        parts = [self._marks.bundles[id] for id in range(first, self._next_bundle)]
        for part in parts:
            self._index.take(part)
        self._index.put_back(bundle)
        return [entry for part in parts for entry in self._unpack(part)]

    def shelved(self) -> int:
        return self._index.shelved

    def shelved_queue(self, queue: str) -> int:
        return self._index.shelved_of(queue)

    # -- looking ----------------------------------------------------------------------

    def ripen(self, wall: float) -> set[str]:
        return self._index.ripen(wall)

    def next_due(self) -> float | None:
        return self._index.next_due()

    def backlog(self) -> Iterator[tuple[str, int]]:
        return self._index.backlog()

    def unfinished(self, queue: str) -> int:
        return self._index.unfinished(queue)

    def unfinished_by_queue(self) -> Mapping[str, int]:
        return self._index.unfinished_by_queue()

    def counts(self) -> Counts:
        return self._counts

    @property
    def next_bundle(self) -> int:
        return self._next_bundle

    # -- notes ------------------------------------------------------------------------

    def note(self, key: str) -> bytes | None:
        with translated(self._directory):
            value: bytes | None = self._cache.get(f"n:{key}")
            return value

    def notes(self, prefix: str) -> Iterable[tuple[str, bytes]]:
        with translated(self._directory):
            keys = [key for key in self._note_keys if key.startswith(prefix)]
            return [(key, self._cache[f"n:{key}"]) for key in keys]

    def __repr__(self) -> str:
        return (
            f"DiskFrontier({self._directory}, {self._counts}, {len(self._marks.bundles)} bundles)"
        )
