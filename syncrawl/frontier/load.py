"""Everything a durable frontier needs in memory, read from its rows when it is opened.

Commit thread only. Reads alone: a state that turns out damaged is left as it is. May
import the rest of frontier/ but disk.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from syncrawl.frontier.bundles import Bundle
from syncrawl.frontier.model import Counts, QueueOf
from syncrawl.frontier.reader import StateReader
from syncrawl.frontier.rows import decode_counts, decode_pairs, encode

# Above this many small rows of one kind, opening merges them.
_MANY_ROWS = 256
# A row of fingerprints that is this long already is left alone.
_LONG = 1 << 20


@dataclass(slots=True)
class Loaded:
    """What was read; the fields are those of DiskFrontier, `seen` in packed form.

    `outdated` rows can go and `merged` ones stand for them, in one transaction.
    """

    counts: Counts = field(default_factory=Counts)
    bundles: dict[int, Bundle] = field(default_factory=dict)
    mark_rows: dict[int, int] = field(default_factory=dict)
    seen: list[bytes] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    note_keys: set[str] = field(default_factory=set)
    next_bundle: int = 1
    next_commit: int = 1
    outdated: list[str] = field(default_factory=list)
    merged: dict[str, bytes] = field(default_factory=dict)


def load(reader: StateReader, queue_of: QueueOf, *, track_depth: bool) -> Loaded:
    """Read all that is wanted; raises what a `translated` block understands."""
    reader.check_rows()
    loaded = Loaded()
    for rest in reader.keys("p:"):
        id, priority, due, count, host = Bundle.parse_row(f"p:{rest}")
        loaded.bundles[id] = Bundle(id, queue_of(host), host, priority, due, count)
    raw = reader.get("counts")
    if raw is not None:
        loaded.counts = decode_counts(raw)
    loaded.note_keys.update(reader.keys("n:"))
    # Also those that are not read: a commit must never take the number of another.
    numbers = (int(rest) for kind in "dsxfz" for rest in reader.keys(f"{kind}:"))
    loaded.next_commit = max(numbers, default=0) + 1
    marked = _load_marks(reader, loaded)
    # A mark may outlive its bundle; that number must not come again while it is there.
    loaded.next_bundle = max(max(loaded.bundles, default=0), marked) + 1
    _load_seen(reader, loaded)
    _merge_short(loaded, {f"x:{commit}": packed for commit, packed in _numbered(reader, "x")})
    if track_depth:
        _load_depths(reader, loaded)
    return loaded


def _numbered(reader: StateReader, kind: str) -> Iterator[tuple[int, bytes]]:
    for rest, value in reader.items(f"{kind}:"):
        yield int(rest), value


def _load_marks(reader: StateReader, loaded: Loaded) -> int:
    """Strike out what is done; the highest bundle number that any mark names."""
    highest = 0
    for commit, packed in _numbered(reader, "d"):
        marks: dict[int, set[int]] = {}
        for id, index in decode_pairs(packed):
            highest = max(highest, id)
            if id in loaded.bundles:
                marks.setdefault(id, set()).add(index)
        if marks:
            loaded.mark_rows[commit] = len(marks)
        else:
            loaded.outdated.append(f"d:{commit}")
        for id, indexes in marks.items():
            loaded.bundles[id].mark(indexes, commit)
    for bundle in loaded.bundles.values():
        bundle.open = bundle.count - len(bundle.marks)
    return highest


def _load_seen(reader: StateReader, loaded: Loaded) -> None:
    rows = {f"s:{commit}": packed for commit, packed in _numbered(reader, "s")}
    loaded.seen.extend(rows.values())
    _merge_short(loaded, rows)


def _load_depths(reader: StateReader, loaded: Loaded) -> None:
    """The depth of every unfinished URL: its row's, or the smallest that was met since."""
    depths = loaded.depths
    for rest, packed in reader.items("p:"):
        bundle = loaded.bundles[Bundle.parse_row(f"p:{rest}")[0]]
        depths.update((entry.fp, entry.depth) for entry in bundle.unpack(packed))
    lowered: dict[int, int] = {}
    rows: dict[str, bytes] = {}
    for commit, packed in _numbered(reader, "z"):
        rows[f"z:{commit}"] = packed
        for fp, depth in decode_pairs(packed):
            if depth < depths.get(fp, 0):
                depths[fp] = lowered[fp] = depth
    if len(rows) > _MANY_ROWS:
        _merge(loaded, rows, encode(list(lowered.items())))


def _merge_short(loaded: Loaded, rows: dict[str, bytes]) -> None:
    """Put rows of fingerprints together where there are many."""
    short = {row: packed for row, packed in rows.items() if len(packed) < _LONG}
    if len(short) > _MANY_ROWS:
        _merge(loaded, short, b"".join(short.values()))


def _merge(loaded: Loaded, rows: dict[str, bytes], value: bytes) -> None:
    """Let the last of `rows` stand for all."""
    loaded.outdated.extend(rows)
    loaded.merged[next(reversed(rows))] = value
