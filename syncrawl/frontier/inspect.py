"""What a state knows of one URL, for `explain`; works while a crawl runs and after it.

Any thread, any process; reads, never writes. Imports no diskcache and decodes nothing
but bytes. What is leased lives in the running crawl's memory alone: it reads "pending" here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from syncrawl.errors import StateDamaged
from syncrawl.frontier.faults import translated
from syncrawl.frontier.model import SHED, Entry
from syncrawl.frontier.reader import StateReader, is_there
from syncrawl.frontier.rows import decode_ends, decode_entries, decode_pairs, encode
from syncrawl.frontier.seen import SeenSet

T = TypeVar("T")


class Found(NamedTuple):
    """One URL in the state; `state` is None for one that was never accepted.

    "done" includes redirect targets that were fetched on behalf of another URL. `reason` is
    the outcome of a failed or dropped URL. `entry` is there unless the URL is done, unknown
    or was dropped as it was found for want of room ("shed"), with the smallest depth known.
    `due` is wall-clock seconds (0 = at once).
    """

    state: Literal["pending", "done", "failed", "dropped"] | None
    reason: str | None = None
    entry: Entry | None = None
    due: float = 0.0


def inspect(directory: Path, fp: int) -> Found | None:
    """What the state in `directory` knows of fingerprint `fp`; None where there is no state.

    Costs a pass over the rows (0.3 s at a million URLs). Raises StateDamaged where
    they cannot be read.
    """
    return _look(directory, lambda reader: _find(reader, fp))


def kept_note(directory: Path, key: str) -> bytes | None:
    """The note that the engine keeps in the state under `key`; None where there is none."""
    return _look(directory, lambda reader: reader.get(f"n:{key}"))


def robots_note(directory: Path, origin: str) -> bytes | None:
    """The packed robots.txt that the state keeps for `origin`; None where it keeps none."""
    return kept_note(directory, f"robots/{origin}")


def _look(directory: Path, look: Callable[[StateReader], T]) -> T | None:
    with translated(directory):
        if not is_there(directory):
            return None
        try:
            return _look_once(directory, look)
        except StateDamaged:
            # A crawl that starts or ends just now takes the log from under a reader.
            return _look_once(directory, look)


def _look_once(directory: Path, look: Callable[[StateReader], T]) -> T | None:
    with translated(directory), StateReader(directory) as reader:
        return look(reader) if "Cache" in reader.tables() else None


def _find(reader: StateReader, fp: int) -> Found:
    if not _is_among(reader, "s:", fp):
        return Found(None)
    entry = _unfinished(reader, fp)
    if entry is not None:
        entry.depth = min(entry.depth, _smallest_depth(reader, fp, entry.depth))
        return Found("pending", None, entry, entry.due)
    end = _end(reader, fp)
    if end is not None:
        return end
    return Found("dropped", SHED) if _is_among(reader, "x:", fp) else Found("done")


def _is_among(reader: StateReader, kind: str, fp: int) -> bool:
    packed = SeenSet.pack([fp])
    for _, row in reader.items(kind):
        # A find is far quicker than a set; a hit across two fingerprints is none.
        at = row.find(packed)
        while at >= 0:
            if at % len(packed) == 0:
                return True
            at = row.find(packed, at + 1)
    return False


def _unfinished(reader: StateReader, fp: int) -> Entry | None:
    """The entry of `fp` that no done mark strikes out. A URL may have been moved many times."""
    needle = encode(fp)
    candidates: dict[tuple[int, int], Entry] = {}
    for _, row in reader.items("p:"):
        if needle in row:
            for entry in decode_entries(row):
                if entry.fp == fp:
                    candidates[entry.bundle, entry.index] = entry
    if candidates:
        for _, row in reader.items("d:"):
            for place in decode_pairs(row):
                candidates.pop(place, None)
    return next(iter(candidates.values()), None)


def _smallest_depth(reader: StateReader, fp: int, depth: int) -> int:
    for _, row in reader.items("z:"):
        depth = min([depth, *(met for known, met in decode_pairs(row) if known == fp)])
    return depth


def _end(reader: StateReader, fp: int) -> Found | None:
    """How `fp` failed or was dropped; a URL ends once."""
    needle = encode(fp)
    for _, row in reader.items("f:"):
        if needle in row:
            for entry, state, reason in decode_ends(row):
                if entry.fp == fp:
                    return Found(state, reason, entry)
    return None
