"""Everything a durable frontier needs in memory, read from its rows when it is opened.

Commit thread only. It also tidies: done marks that mark nothing any more go, and many
small rows become one. May import the rest of frontier/ but disk.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from syncrawl.frontier.bundles import Bundle
from syncrawl.frontier.model import Counts, QueueOf
from syncrawl.frontier.rows import decode_counts, decode_entries, decode_pairs, encode

# Above this many small rows of fingerprints, opening merges them.
_MANY_ROWS = 256
# A row of fingerprints that is this long already is left alone.
_LONG = 1 << 20


@dataclass(slots=True)
class Loaded:
    """What was read; the fields are those of DiskFrontier, `seen` in packed form."""

    counts: Counts = field(default_factory=Counts)
    bundles: dict[int, Bundle] = field(default_factory=dict)
    mark_rows: dict[int, int] = field(default_factory=dict)
    seen: list[bytes] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    note_keys: set[str] = field(default_factory=set)
    next_bundle: int = 1
    next_commit: int = 1


def load(cache: Any, queue_of: QueueOf, *, track_depth: bool) -> Loaded:
    """Read all rows but failures and notes. Raises what a `translated` block understands."""
    loaded = Loaded()
    numbered: dict[str, list[int]] = {"d": [], "s": [], "f": [], "z": []}
    # By rowid: iterkeys() reads the table anew for every hundred keys.
    for row in cache:
        kind, _, rest = row.partition(":")
        if kind == "p":
            id, priority, due, count, host = Bundle.parse_row(row)
            loaded.bundles[id] = Bundle(id, queue_of(host), host, priority, due, count)
        elif kind == "n":
            loaded.note_keys.add(rest)
        elif kind in numbered:
            numbered[kind].append(int(rest))
    raw = cache.get("counts")
    if raw is not None:
        loaded.counts = decode_counts(raw)
    numbers = [number for rows in numbered.values() for number in rows]
    loaded.next_commit = max(numbers, default=0) + 1
    marked = _apply_marks(cache, loaded, sorted(numbered["d"]))
    # A mark may outlive its bundle; that number must not come again while it is there.
    loaded.next_bundle = max(max(loaded.bundles, default=0), marked) + 1
    _load_seen(cache, loaded, sorted(numbered["s"]))
    if track_depth:
        _load_depths(cache, loaded, sorted(numbered["z"]))
    return loaded


def _apply_marks(cache: Any, loaded: Loaded, commits: Iterable[int]) -> int:
    """Strike out what is done; the highest bundle number that any mark names."""
    highest = 0
    stale = []
    for commit in commits:
        marks: dict[int, set[int]] = {}
        for id, index in decode_pairs(cache[f"d:{commit}"]):
            highest = max(highest, id)
            if id in loaded.bundles:
                marks.setdefault(id, set()).add(index)
        if marks:
            loaded.mark_rows[commit] = len(marks)
        else:
            stale.append(commit)
        for id, indexes in marks.items():
            loaded.bundles[id].mark(indexes, commit)
    for bundle in loaded.bundles.values():
        bundle.open = bundle.count - len(bundle.marks)
    with cache.transact():
        for commit in stale:
            cache.delete(f"d:{commit}")
    return highest


def _load_seen(cache: Any, loaded: Loaded, commits: list[int]) -> None:
    short = []
    for commit in commits:
        packed = cache[f"s:{commit}"]
        loaded.seen.append(packed)
        if len(packed) < _LONG:
            short.append((commit, packed))
    if len(short) > _MANY_ROWS:
        with cache.transact():
            for commit, _ in short:
                cache.delete(f"s:{commit}")
            cache.set(f"s:{short[-1][0]}", b"".join(packed for _, packed in short))


def _load_depths(cache: Any, loaded: Loaded, commits: list[int]) -> None:
    """The depth of every unfinished URL: its row's, or the smallest that was met since."""
    depths = loaded.depths
    for bundle in loaded.bundles.values():
        for entry in decode_entries(cache[bundle.row]):
            if entry.index not in bundle.marks:
                depths[entry.fp] = entry.depth
    lowered: dict[int, int] = {}
    for commit in commits:
        for fp, depth in decode_pairs(cache[f"z:{commit}"]):
            if depth < depths.get(fp, 0):
                depths[fp] = lowered[fp] = depth
    if len(commits) > _MANY_ROWS:
        with cache.transact():
            for commit in commits:
                cache.delete(f"z:{commit}")
            cache.set(f"z:{commits[-1]}", encode(list(lowered.items())))
