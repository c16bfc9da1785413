"""The durable frontier: rows in a diskcache directory, an index over them in memory.

Confined to the commit thread: diskcache connections are per thread, and a second one
would meet "database is locked". This is the only module that imports diskcache.

The rows (keys are text, values bytes, nothing is ever unpickled):

    meta            format number and fingerprint rules
    counts          Counts as JSON
    p:ID:...        a bundle: msgpack array of entries (see bundles.Bundle.row)
    d:COMMIT        done marks: msgpack array of (bundle, index); a bundle that is finished
                    as a whole is deleted instead
    s:COMMIT        fingerprints accepted by a commit, 8 bytes each
    f:COMMIT        entries that failed or were dropped: msgpack array of (entry, state, reason)
    z:COMMIT        smaller depths met for waiting entries: msgpack array of (fingerprint, depth)
    n:KEY           the caller's notes

One commit writes a handful of rows whatever the number of URLs in it: a row per URL
would cost more than the fetch (25 us each, against 6.5 us in bare SQLite).
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diskcache
import msgspec

from syncrawl.clock import Clock
from syncrawl.errors import DiskFull, StateDamaged, StateMismatch, SyncrawlError
from syncrawl.frontier.bundles import Bundle, QueueIndex
from syncrawl.frontier.model import Batch, Counts, Entry, QueueOf, host_of
from syncrawl.frontier.seen import SeenSet

FORMAT = 1

# A row is read and written as a whole; this keeps one near 64 KiB.
_BUNDLE_SIZE = 256
# Entries of fresh bundles kept in memory (about 0.5 KiB each) to save reading them back.
_KEEP_FRESH = 20_000
# Above this many rows of fingerprints, opening merges them.
_SEEN_ROWS = 256

_encode = msgspec.msgpack.Encoder().encode
_decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode
_decode_marks = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


class BytesDisk(diskcache.Disk):  # type: ignore[misc] # diskcache publishes no types
    """Stores bytes under text keys and refuses all else, so nothing is ever unpickled.

    diskcache would unpickle whatever a row says is a pickle (CVE-2025-69872).
    """

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"a frontier key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise StateDamaged("a row's key is not text")
        return key

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        if type(value) is not bytes or read:
            raise TypeError(f"a frontier value is bytes, not {type(value).__name__}")
        return super().store(value, read, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        if mode != diskcache.core.MODE_RAW or filename is not None:
            raise StateDamaged("a row's value is not plain bytes")
        return bytes(value)


@contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Foreign exceptions of the database become ours, here and nowhere else."""
    try:
        yield
    except SyncrawlError:
        raise
    except sqlite3.OperationalError as exc:
        text = str(exc)
        if "full" in text or "disk I/O" in text:
            raise DiskFull(f"the state cannot be written: {text}", value=str(directory)) from exc
        raise StateDamaged(f"the state database answers: {text}", value=str(directory)) from exc
    except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError) as exc:
        raise StateDamaged(f"the state cannot be read back: {exc}", value=str(directory)) from exc
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the state cannot be written: {exc}", value=str(directory)) from exc
        raise StateDamaged(f"the state cannot be opened: {exc}", value=str(directory)) from exc


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
        # Commit number -> how many live bundles its done-mark row still speaks of.
        self._mark_rows: dict[int, int] = {}
        self._counts = Counts()
        self._fresh = 0
        self._next_bundle = 1
        self._next_commit = 1
        # Only with track_depth: the smallest depth known for each unfinished URL.
        self._depths: dict[int, int] = {}
        self._taken: dict[int, Entry] = {}

    # -- open and close ---------------------------------------------------------------

    def open(self) -> bool:
        with translated(self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._cache = diskcache.Cache(
                str(self._directory),
                disk=BytesDisk,
                disk_min_file_size=1 << 30,
                eviction_policy="none",
                size_limit=1 << 62,
                cull_limit=0,
                statistics=0,
                tag_index=0,
                sqlite_journal_mode="wal",
                sqlite_synchronous=1,
            )
            existed = self._check_meta()
            if existed:
                self._load()
            return existed

    def close(self) -> None:
        if self._cache is not None:
            with translated(self._directory):
                self._cache.close()
            self._cache = None

    def _check_meta(self) -> bool:
        raw = self._cache.get("meta")
        if raw is None:
            if len(self._cache):
                raise StateMismatch(
                    "this directory holds another program's cache",
                    value=str(self._directory),
                    remedy="choose another crawl.state_dir",
                )
            meta = {"format": FORMAT, "fingerprints": self._rules}
            self._cache.set("meta", msgspec.json.encode(meta))
            return False
        meta = msgspec.json.decode(raw)
        if meta.get("format") != FORMAT:
            raise StateMismatch(
                f"the state has format {meta.get('format')}, this version reads {FORMAT}",
                value=str(self._directory),
                remedy="finish it with the version that wrote it, or start over with --fresh",
            )
        if meta.get("fingerprints") != self._rules:
            raise StateMismatch(
                "the state was made with other rules for comparing URLs "
                f"({meta.get('fingerprints')}, now {self._rules})",
                key="scope.tracking_parameters",
                remedy="restore the setting, or start over with --fresh",
            )
        return True

    def _load(self) -> None:
        marks: list[tuple[int, list[tuple[int, int]]]] = []
        depths: list[tuple[int, int]] = []
        seen_rows: list[str] = []
        for row in self._cache.iterkeys():
            kind, _, rest = row.partition(":")
            if kind == "p":
                self._load_bundle(row)
            elif kind == "d":
                marks.append((int(rest), _decode_marks(self._cache[row])))
            elif kind == "s":
                seen_rows.append(row)
                self.seen.load(self._cache[row])
            elif kind == "z":
                depths.extend(msgspec.msgpack.decode(self._cache[row], type=list[tuple[int, int]]))
            if kind in ("d", "s", "f", "z"):
                self._next_commit = max(self._next_commit, int(rest) + 1)
        raw = self._cache.get("counts")
        if raw is not None:
            self._counts = msgspec.json.decode(raw, type=Counts)
        self._apply_marks(marks)
        wall = self._clock.wall()
        for bundle in self._bundles.values():
            self._index.add(bundle, wall=wall)
        found = sum(bundle.open for bundle in self._bundles.values())
        if found != self._counts.unfinished:
            raise StateDamaged(
                f"{self._counts.unfinished} URLs should be unfinished, {found} are stored",
                value=str(self._directory),
            )
        if self._track_depth:
            self._load_depths(depths)
        if len(seen_rows) > _SEEN_ROWS:
            self._merge_seen(seen_rows)

    def _load_bundle(self, row: str) -> None:
        id, priority, due, count, host = Bundle.parse_row(row)
        self._bundles[id] = Bundle(id, self._queue_of(host), host, priority, due, count)
        self._next_bundle = max(self._next_bundle, id + 1)

    def _apply_marks(self, rows: list[tuple[int, list[tuple[int, int]]]]) -> None:
        stale = []
        for commit, marks in rows:
            live = set()
            for id, index in marks:
                bundle = self._bundles.get(id)
                if bundle is None:
                    continue
                bundle.marks.add(index)
                live.add(id)
            if not live:
                stale.append(commit)
                continue
            self._mark_rows[commit] = len(live)
            for id in live:
                self._bundles[id].mark_rows.append(commit)
        for bundle in self._bundles.values():
            bundle.open = bundle.count - len(bundle.marks)
        if stale:
            with self._cache.transact():
                for commit in stale:
                    self._cache.delete(f"d:{commit}")

    def _load_depths(self, lowered: list[tuple[int, int]]) -> None:
        for bundle in self._bundles.values():
            for entry in self._read(bundle):
                self._depths[entry.fp] = entry.depth
        for fp, depth in lowered:
            if fp in self._depths:
                self._depths[fp] = min(depth, self._depths[fp])

    def _merge_seen(self, rows: list[str]) -> None:
        packed = b"".join(self._cache[row] for row in rows)
        with self._cache.transact():
            for row in rows:
                self._cache.delete(row)
            self._cache.set(rows[-1], packed)

    # -- the transaction --------------------------------------------------------------

    def commit(self, batch: Batch) -> set[str]:
        fresh = self._unknown(batch.found)
        lowered = self._lower_depths(batch.found, fresh) if self._track_depth else []
        entries = [new for _, new in batch.moved]
        entries.extend(fresh)
        bundles = self._pack(entries)
        gone = [entry for entry, _, _ in batch.finished]
        gone.extend(old for old, _ in batch.moved)
        complete, marks, stale = self._settle(gone)
        counts = self._copy_counts()
        counts.seen += len(fresh)
        counts.unfinished += len(fresh)
        for _, state, reason in batch.finished:
            counts.finish(state, reason)
        fps = [entry.fp for entry in fresh]
        fps.extend(batch.aliases)
        ends = [end for end in batch.finished if end.state != "done"]
        number = self._next_commit
        with translated(self._directory), self._cache.transact():
            put = self._cache.set
            for bundle in bundles:
                put(bundle.row, _encode(bundle.entries))
            for bundle in complete:
                self._cache.delete(bundle.row)
            for commit in stale:
                self._cache.delete(f"d:{commit}")
            if marks:
                put(f"d:{number}", _encode(marks))
            if fps:
                put(f"s:{number}", SeenSet.pack(fps))
            if ends:
                put(f"f:{number}", _encode(ends))
            if lowered:
                put(f"z:{number}", _encode(lowered))
            for key, value in batch.notes.items():
                if value:
                    put(f"n:{key}", value)
                else:
                    self._cache.delete(f"n:{key}")
            put("counts", msgspec.json.encode(counts))
        self._next_commit += 1
        self._counts = counts
        self.seen.add(fps)
        self._forget(gone, complete, marks, stale, number)
        for entry, _, _ in batch.finished:
            self._depths.pop(entry.fp, None)
        return self._file(bundles)

    def _unknown(self, found: list[Entry]) -> list[Entry]:
        """The entries of `found` that were never accepted, each fingerprint once."""
        fresh: dict[int, Entry] = {}
        for entry in found:
            if entry.fp in self.seen:
                continue
            known = fresh.setdefault(entry.fp, entry)
            if known is not entry:
                known.depth = min(known.depth, entry.depth)
        return list(fresh.values())

    def _lower_depths(self, found: list[Entry], fresh: list[Entry]) -> list[tuple[int, int]]:
        lowered: dict[int, int] = {}
        for entry in found:
            known = self._depths.get(entry.fp)
            if known is not None and entry.depth < known:
                lowered[entry.fp] = self._depths[entry.fp] = entry.depth
                taken = self._taken.get(entry.fp)
                if taken is not None:
                    taken.depth = entry.depth
        self._depths.update((entry.fp, entry.depth) for entry in fresh)
        return list(lowered.items())

    def _pack(self, entries: list[Entry]) -> list[Bundle]:
        """Group entries into bundles of one host, priority and due time."""
        groups: dict[tuple[str, int, float], list[Entry]] = {}
        for entry in entries:
            key = (host_of(entry.request_url), entry.priority, entry.due)
            groups.setdefault(key, []).append(entry)
        bundles = []
        for (host, priority, due), group in groups.items():
            for start in range(0, len(group), _BUNDLE_SIZE):
                part = group[start : start + _BUNDLE_SIZE]
                id = self._next_bundle
                self._next_bundle += 1
                for index, entry in enumerate(part):
                    entry.bundle, entry.index = id, index
                bundle = Bundle(id, self._queue_of(host), host, priority, due, len(part))
                bundle.entries = part
                bundles.append(bundle)
        return bundles

    def _settle(self, gone: list[Entry]) -> tuple[list[Bundle], list[tuple[int, int]], list[int]]:
        """What finishing `gone` means on disk: whole bundles, single marks, mark rows to drop."""
        touched: dict[int, int] = {}
        for entry in gone:
            touched[entry.bundle] = touched.get(entry.bundle, 0) + 1
        complete = [self._bundles[id] for id, n in touched.items() if n == self._bundles[id].open]
        whole = {bundle.id for bundle in complete}
        marks = [(entry.bundle, entry.index) for entry in gone if entry.bundle not in whole]
        drops: dict[int, int] = {}
        for bundle in complete:
            for commit in bundle.mark_rows:
                drops[commit] = drops.get(commit, 0) + 1
        stale = [commit for commit, n in drops.items() if n == self._mark_rows[commit]]
        return complete, marks, stale

    def _forget(
        self,
        gone: list[Entry],
        complete: list[Bundle],
        marks: list[tuple[int, int]],
        stale: list[int],
        number: int,
    ) -> None:
        """Bring the memory index to where the transaction brought the rows."""
        for entry in gone:
            self._index.finish_one(self._bundles[entry.bundle])
            if self._track_depth:
                self._taken.pop(entry.fp, None)
        for bundle in complete:
            for commit in bundle.mark_rows:
                self._mark_rows[commit] -= 1
            del self._bundles[bundle.id]
        for commit in stale:
            del self._mark_rows[commit]
        marked = {id for id, _ in marks}
        if marked:
            self._mark_rows[number] = len(marked)
            for id, index in marks:
                self._bundles[id].marks.add(index)
            for id in marked:
                self._bundles[id].mark_rows.append(number)

    def _file(self, bundles: list[Bundle]) -> set[str]:
        wall = self._clock.wall()
        touched = set()
        for bundle in bundles:
            self._bundles[bundle.id] = bundle
            self._index.add(bundle, wall=wall)
            touched.add(bundle.queue)
            if self._fresh + bundle.count > _KEEP_FRESH:
                bundle.entries = None
            else:
                self._fresh += bundle.count
        return touched

    def _copy_counts(self) -> Counts:
        now = self._counts
        return Counts(now.seen, now.unfinished, now.done, now.failed, dict(now.dropped))

    # -- taking -----------------------------------------------------------------------

    def take(self, queue: str, limit: int) -> list[Entry]:
        taken: list[Entry] = []
        while len(taken) < limit:
            bundle = self._index.pop(queue)
            if bundle is None:
                break
            if bundle.entries is not None:
                entries, bundle.entries = bundle.entries, None
                self._fresh -= bundle.count
            else:
                with translated(self._directory):
                    entries = self._read(bundle)
            taken.extend(entries)
        if self._track_depth:
            for entry in taken:
                entry.depth = min(entry.depth, self._depths.get(entry.fp, entry.depth))
                self._taken[entry.fp] = entry
        return taken

    def _read(self, bundle: Bundle) -> list[Entry]:
        try:
            entries = _decode_entries(self._cache[bundle.row])
        except KeyError:
            raise StateDamaged(f"row {bundle.row} is gone", value=str(self._directory)) from None
        if len(entries) != bundle.count:
            raise StateDamaged(f"row {bundle.row} is short", value=str(self._directory))
        return [entry for entry in entries if entry.index not in bundle.marks]

    def has_more(self, queue: str) -> bool:
        return self._index.has_cold(queue)

    def ripen(self, wall: float) -> set[str]:
        return self._index.ripen(wall)

    def next_due(self) -> float | None:
        return self._index.next_due()

    def backlog(self) -> Iterator[str]:
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
            wanted = f"n:{prefix}"
            return [
                (row[2:], self._cache[row])
                for row in self._cache.iterkeys()
                if row.startswith(wanted)
            ]

    def __repr__(self) -> str:
        return f"DiskFrontier({self._directory}, {self._counts}, {len(self._bundles)} bundles)"
