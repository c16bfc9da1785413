"""The seen set, small enough to be a set and too large for one."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from syncrawl.frontier import seen
from syncrawl.frontier.seen import SeenSet

# A reader that has not ended after this long hangs.
READER_SECONDS = 30.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a few thousand fingerprints go far beyond."""
    monkeypatch.setattr(seen, "_MOST_RECENT", 50)
    monkeypatch.setattr(seen, "_MOST_AT_HAND", 20)
    monkeypatch.setattr(seen, "_FULL", 8)


def digests(count: int, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [chance.getrandbits(64) for _ in range(count)]


def alike(count: int, seed: int = 1) -> list[int]:
    """Fingerprints that somebody chose: the same first bits, then all others."""
    chance = random.Random(seed)
    return [chance.getrandbits(12) for _ in range(count)] + [2**64 - 1, 2**63, 0]


KINDS = pytest.mark.parametrize("make", [digests, alike])


def assert_holds(known: SeenSet, expected: set[int]) -> None:
    others = [fp for fp in digests(500, seed=9) if fp not in expected]
    assert len(known) == len(expected)
    for _ in range(2):
        assert all(fp in known for fp in expected)
        assert not any(fp in known for fp in others)
    assert known.unknown([*expected, *others, *others]) == set(others)


@KINDS
def test_what_was_added_is_known_and_nothing_else(make: Callable[[int], list[int]]) -> None:
    known = SeenSet()
    expected: set[int] = set()
    fps = make(3000)
    for start in range(0, len(fps), 70):
        # Some were added before, to the table or just now.
        part = fps[max(0, start - 30) : start + 70] + fps[:3]
        known.add(part)
        expected.update(part)
        assert len(known) == len(expected)
    assert_holds(known, expected)


@KINDS
@pytest.mark.parametrize("count", [0, 40, 51, 3000])
def test_what_was_packed_is_loaded(make: Callable[[int], list[int]], count: int) -> None:
    fps = make(count) if count else []
    known = SeenSet()
    known.load([SeenSet.pack(fps[:10]), SeenSet.pack(fps[5:]), b""])
    assert_holds(known, set(fps))
    more = make(3000)
    known.add(more)
    assert_holds(known, {*fps, *more})


def test_chosen_fingerprints_cost_no_memory() -> None:
    """A directory that told them apart would have 2**52 places."""
    known = SeenSet()
    known.add(alike(3000))
    known.add([1])
    assert len(known._table.parts[1]) <= 8 * len(known)


def test_buckets_split_where_they_are_full() -> None:
    known = SeenSet()
    fps = digests(3000)
    for start in range(0, len(fps), 70):
        known.add(fps[start : start + 70])
    buckets = known._table.parts[1]
    assert max(len(bucket) for bucket in buckets) <= 8
    loaded = SeenSet()
    loaded.load([SeenSet.pack(fps)])
    assert max(len(bucket) for bucket in loaded._table.parts[1]) < 24


def test_what_is_kept_at_hand_is_bounded() -> None:
    known = SeenSet()
    fps = digests(500)
    known.add(fps)
    for fp in fps:
        assert fp in known
        assert len(known._at_hand) <= 20


def test_half_a_fingerprint_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        SeenSet().load([b"12345"])


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_readers_without_the_lock_see_what_was_there_before() -> None:
    """Old ones may be missed for an instant, not for good; new ones are never made up."""
    known = SeenSet()
    old, new, never = digests(200, 1), digests(6000, 2), digests(200, 3)
    known.add(old)
    ended = threading.Event()
    made_up: list[int] = []
    missed: list[int] = []

    def read() -> None:
        while not ended.is_set():
            made_up.extend(fp for fp in never if fp in known)
            missed.extend(fp for fp in old if fp not in known and fp not in known)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for start in range(0, len(new), 20):
        known.add(new[start : start + 20])
    ended.set()
    for reader in readers:
        reader.join(READER_SECONDS)
        assert not reader.is_alive()
    assert not made_up
    # Twice in a row for the same one is chance upon chance.
    assert len(missed) < 3
    assert_holds(known, {*old, *new})


@pytest.mark.usefixtures("hasty")
def test_a_claim_is_won_once_while_others_add() -> None:
    known = SeenSet()
    wanted, new = digests(2000, 1), digests(2000, 2)
    known.add(wanted[:1000])
    won: list[list[int]] = [[] for _ in range(4)]
    start = threading.Barrier(len(won) + 1)

    def race(mine: list[int]) -> None:
        start.wait(READER_SECONDS)
        mine.extend(fp for fp in wanted if known.claim(fp))

    threads = [threading.Thread(target=race, args=(mine,), daemon=True) for mine in won]
    for thread in threads:
        thread.start()
    start.wait(READER_SECONDS)
    for at in range(0, len(new), 20):
        known.add(new[at : at + 20])
    for thread in threads:
        thread.join(READER_SECONDS)
        assert not thread.is_alive()
    assert sorted(fp for mine in won for fp in mine) == sorted(wanted[1000:])
    known.add(wanted[1000:1500])
    known.release(wanted[1500:])
    assert repr(known) == "SeenSet(3500 known, 0 claimed)"
