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
from typing import Any, NamedTuple

import msgspec

from syncrawl.clock import Clock
from syncrawl.frontier import reader
from syncrawl.frontier.bundles import Bundle, QueueIndex
from syncrawl.frontier.bytesdisk import open_cache
from syncrawl.frontier.faults import damaged, translated
from syncrawl.frontier.load import Loaded, load
from syncrawl.frontier.model import Batch, Counts, Entry, QueueOf, host_of
from syncrawl.frontier.revive import Again, rows_of, split_ends
from syncrawl.frontier.rows import (
    FORMAT,
    MARKER,
    Meta,
    encode,
    encode_json,
)
from syncrawl.frontier.seen import SeenSet

# A row is read and written as a whole; this keeps one near 64 KiB.
_BUNDLE_SIZE = 256
# Entries of fresh bundles kept in memory (about 0.5 KiB each) to save reading them back.
_KEEP_FRESH = 20_000
# Entries that one call hands out to be dropped.
_MOST_SURPLUS = 10_000


class _Settled(NamedTuple):
    """What the ends of entries mean on disk.

    `complete` bundles lose their row; `marks` has the indexes finished in each other one;
    `stale` are the commits whose done-mark rows speak of complete bundles alone.
    """

    complete: list[Bundle]
    marks: dict[int, set[int]]
    stale: list[int]


class DiskFrontier:
    """Every unfinished entry is in exactly one bundle row, not marked done.

    The memory index changes only after the transaction that justifies it, so a failed
    commit leaves both sides as they were.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        queue_of: QueueOf,
        fingerprint_rules: str,
        track_depth: bool = False,
    ) -> None:
        self.seen = SeenSet()
        self._directory = directory
        self._clock = clock
        self._queue_of = queue_of
        self._rules = fingerprint_rules
        self._track_depth = track_depth
        self._cache: Any = None
        self._index = QueueIndex()
        self._bundles: dict[int, Bundle] = {}
        # Commit -> how many live bundles its done-mark row still speaks of.
        self._mark_rows: dict[int, int] = {}
        self._counts = Counts()
        self._note_keys: set[str] = set()
        # How many entries all bundles together keep in memory.
        self._fresh = 0
        self._next_bundle = 1
        self._next_commit = 1
        # Only with track_depth: the smallest depth known for each unfinished URL, and the
        # entries that a smaller one has to reach where they are.
        self._depths: dict[int, int] = {}
        self._taken: dict[int, Entry] = {}

    # -- open and close ---------------------------------------------------------------

    def open(self) -> bool:
        existed = reader.check(self._directory, self._rules)
        with translated(self._directory):
            loaded = self._load() if existed else Loaded()
            # Only now, when all is found sound, is anything written.
            self._cache = open_cache(self._directory)
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
        self._bundles = loaded.bundles
        self._mark_rows = loaded.mark_rows
        self._depths = loaded.depths
        self._note_keys = loaded.note_keys
        self._next_bundle = loaded.next_bundle
        self._next_commit = loaded.next_commit
        self.seen.load(loaded.seen)
        self._check_sums()
        wall = self._clock.wall()
        for id in sorted(self._bundles):
            self._index.add(self._bundles[id], wall=wall)
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
        stored = sum(bundle.open for bundle in self._bundles.values())
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
        settled = self._settle(gone)
        fresh = self._unknown(batch)
        entries = [new for _, new in batch.moved]
        entries.extend(fresh)
        bundles = self._pack(entries)
        lowered = self._lowered(batch.found) if self._track_depth else {}
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
        self._forget(gone, settled)
        if self._track_depth:
            self._follow_depths(batch, fresh, lowered)
        self._next_commit += 1
        return self._file(bundles)

    def _write(
        self,
        batch: Batch,
        bundles: list[Bundle],
        settled: _Settled,
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
        """Group entries into bundles of one origin, priority and due time."""
        groups: dict[tuple[str, int, float], list[Entry]] = {}
        for entry in entries:
            # origin_of(entry.request_url), without the calls: this runs for every link.
            url = entry.target or entry.url
            key = (url[: url.index("/", 8)], entry.priority, entry.due)
            group = groups.get(key)
            if group is None:
                groups[key] = [entry]
            else:
                group.append(entry)
        bundles = []
        for (_, priority, due), group in groups.items():
            host = host_of(group[0].request_url)
            queue = self._queue_of(host)
            for start in range(0, len(group), _BUNDLE_SIZE):
                part = group[start : start + _BUNDLE_SIZE]
                id = self._next_bundle
                self._next_bundle += 1
                for index, entry in enumerate(part):
                    entry.bundle, entry.index = id, index
                bundle = Bundle(id, queue, host, priority, due, len(part))
                bundle.entries = part
                bundles.append(bundle)
        return bundles

    def _settle(self, gone: list[Entry]) -> _Settled:
        """Decide what the ends of `gone` mean. Raises KeyError where one is not taken."""
        marks: dict[int, set[int]] = {}
        for entry in gone:
            bundle, index = self._bundles.get(entry.bundle), entry.index
            indexes = marks.setdefault(entry.bundle, set())
            if bundle is None or not bundle.taken or index in bundle.marks or index in indexes:
                raise KeyError(f"{entry.url} is not taken")
            indexes.add(index)
        complete = [
            bundle for id, ii in marks.items() if len(ii) == (bundle := self._bundles[id]).open
        ]
        drops: dict[int, int] = {}
        for bundle in complete:
            del marks[bundle.id]
            for commit in bundle.mark_rows:
                drops[commit] = drops.get(commit, 0) + 1
        stale = [commit for commit, n in drops.items() if n == self._mark_rows[commit]]
        return _Settled(complete, marks, stale)

    def _forget(self, gone: list[Entry], settled: _Settled) -> None:
        """Bring the memory index to where the transaction brought the rows."""
        for entry in gone:
            self._index.finish_one(self._bundles[entry.bundle])
        for bundle in settled.complete:
            for commit in bundle.mark_rows:
                self._mark_rows[commit] -= 1
            del self._bundles[bundle.id]
        for commit in settled.stale:
            del self._mark_rows[commit]
        if settled.marks:
            self._mark_rows[self._next_commit] = len(settled.marks)
            for id, indexes in settled.marks.items():
                self._bundles[id].mark(indexes, self._next_commit)

    def _file(self, bundles: list[Bundle]) -> set[str]:
        wall = self._clock.wall()
        touched = set()
        for bundle in bundles:
            self._bundles[bundle.id] = bundle
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
        if self._track_depth:
            self._depths.update((entry.fp, entry.depth) for entry in again.entries)
        self._file(bundles)

    # -- depths -----------------------------------------------------------------------

    def _lowered(self, found: list[Entry]) -> dict[int, int]:
        """The smaller depths that `found` brings for unfinished URLs."""
        lowered: dict[int, int] = {}
        for entry in found:
            known = self._depths.get(entry.fp)
            if known is not None and entry.depth < lowered.get(entry.fp, known):
                lowered[entry.fp] = entry.depth
        return lowered

    def _follow_depths(self, batch: Batch, fresh: list[Entry], lowered: dict[int, int]) -> None:
        for fp, depth in lowered.items():
            taken = self._taken.get(fp)
            if taken is not None:
                taken.depth = depth
        self._depths.update(lowered)
        self._depths.update((entry.fp, entry.depth) for entry in fresh)
        for old, _ in batch.moved:
            del self._taken[old.fp]
        for end in batch.finished:
            del self._taken[end.entry.fp], self._depths[end.entry.fp]

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
        if self._track_depth:
            for entry in taken:
                entry.depth = min(entry.depth, self._depths[entry.fp])
                self._taken[entry.fp] = entry
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
        parts = [self._bundles[id] for id in range(first, self._next_bundle)]
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
        return f"DiskFrontier({self._directory}, {self._counts}, {len(self._bundles)} bundles)"
