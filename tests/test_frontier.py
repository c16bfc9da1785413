"""Both frontiers are held to the contract, and the durable one to the reference."""

from __future__ import annotations

import sqlite3
import tempfile
from bisect import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from syncrawl.errors import DiskFull
from syncrawl.frontier import bundles, disk, load, seen
from syncrawl.frontier.disk import DiskFrontier
from syncrawl.frontier.inspect import inspect
from syncrawl.frontier.memory import MemoryFrontier
from syncrawl.frontier.model import SHED, Batch, Entry, Finish
from syncrawl.testing.clock import FakeClock
from syncrawl.testing.frontiers import (
    DurableFrontierContract,
    FrontierContract,
    by_host,
    done,
    drain,
    entries,
    entry,
    successor,
)

RULES = "rules-1"


class TestMemoryFrontier(FrontierContract):
    surplus = 0

    def make(self, tmp_path: Path, clock: FakeClock, **options: Any) -> MemoryFrontier:
        return MemoryFrontier(clock=clock, **options)


def lose(frontier: DiskFrontier) -> None:
    """What the kernel does for a killed process: its descriptors are closed, nothing else."""
    if frontier._cache is not None:
        frontier._cache._con.close()
        frontier._cache = None


class TestDiskFrontier(DurableFrontierContract):
    def lose(self, frontier: Any) -> None:
        lose(frontier)

    def make(self, tmp_path: Path, clock: FakeClock, **options: Any) -> DiskFrontier:
        return DiskFrontier(tmp_path / "state", clock=clock, fingerprint_rules=RULES, **options)

    def rows(self, frontier: DiskFrontier) -> set[str]:
        """The kinds of rows that there are."""
        return {row.partition(":")[0] for row in frontier._cache}

    def test_done_marks_go_with_the_bundles_they_speak_of(self, frontier: DiskFrontier) -> None:
        frontier.commit(Batch(found=entries(2) + entries(2, "b.test")))
        a0, a1, b0, b1 = drain(frontier)
        frontier.commit(done([a0, b0]))
        frontier.commit(done([a1]))
        assert self.rows(frontier) == {"meta", "counts", "s", "p", "d"}
        frontier.commit(done([b1]))
        assert self.rows(frontier) == {"meta", "counts", "s"}

    def test_what_was_found_just_now_is_not_read_back(
        self, frontier: DiskFrontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disk, "_KEEP_FRESH", 10)
        monkeypatch.setattr(frontier._cache, "get", None)
        for number in range(5):
            frontier.commit(Batch(found=[entry(f"{number}-{n}") for n in range(9)]))
            assert len(drain(frontier)) == 9

    def test_memory_keeps_few_entries_however_many_wait(
        self, frontier: DiskFrontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disk, "_KEEP_FRESH", 10)
        for number in range(5):
            frontier.commit(Batch(found=[entry(f"{number}-{n}") for n in range(9)]))
        assert sum(len(bundle.entries or ()) for bundle in frontier._marks.bundles.values()) == 9
        assert len(drain(frontier)) == 45

    def test_what_left_its_queue_is_let_go(self, frontier: DiskFrontier) -> None:
        """However often rows come and go beneath one that stays at the head of each heap."""
        frontier.commit(Batch(found=[entry("head", priority=9), entry("foot", priority=-1)]))
        for number in range(500):
            frontier.commit(Batch(found=[entry(number, priority=number % 3)]))
            frontier.shelve(1, 1)
            frontier.unshelve(1)
            ends = [Finish(one, "dropped", SHED) for one in frontier.surplus(9, 2)]
            frontier.commit(Batch(finished=ends))
        index = frontier._index
        assert frontier.counts().unfinished == 2
        assert len(index._queues["a.test"].cold) <= bundles._LONG
        assert index._worst is not None
        assert len(index._worst) <= bundles._LONG
        assert index._lying == index._queues["a.test"].lying == 2
        ends = [Finish(one, "dropped", SHED) for one in frontier.take_all("a.test")]
        assert index._lying == index._queues["a.test"].lying == 0
        frontier.commit(Batch(finished=ends))
        assert not index._queues

    def test_what_comes_and_goes_is_there_once(self, frontier: DiskFrontier) -> None:
        for number in range(3):
            frontier.commit(Batch(found=[entry(number)]))
        for _ in range(500):
            assert frontier.shelve(1, 1) == 2
            assert frontier.unshelve(2) == {"a.test"}
        index = frontier._index
        assert index._worst is not None
        assert len(index._worst) <= bundles._LONG
        assert len(index._queues["a.test"].cold) <= bundles._LONG
        assert len(drain(frontier)) == 3


# -- the durable frontier against the reference ---------------------------------------

HOSTS = ("a.test", "b.test:8080", "[::1]:1")
PATHS = st.integers(0, 11)
FOUND = st.lists(
    st.builds(
        lambda path, host, priority, depth: entry(path, host, priority=priority, depth=depth),
        PATHS,
        st.sampled_from(HOSTS),
        st.integers(0, 1),
        st.integers(0, 4),
    ),
    max_size=12,
)
NOTES = st.dictionaries(st.sampled_from(["a/1", "a/2", "b"]), st.sampled_from([b"", b"x", b"yy"]))


def plain(one: Entry) -> tuple[object, ...]:
    """An entry but for the place it lies in."""
    return tuple(getattr(one, name) for name in one.__struct_fields__[:-2])


def copy(one: Entry) -> Entry:
    return Entry(*plain(one))  # type: ignore[arg-type]


@contextmanager
def failing(frontier: DiskFrontier, after: int) -> Iterator[None]:
    """The disk is full from the write after `after` writes on."""
    cache = frontier._cache
    left = iter(range(after))

    def put(*args: Any) -> Any:
        if next(left, None) is None:
            full = sqlite3.OperationalError("database or disk is full (on purpose)")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        return type(cache).set(cache, *args)

    with mock.patch.object(cache, "set", put):
        yield


class Comparison(RuleBasedStateMachine):
    """Random commits, takes, times and restarts: both frontiers show the same.

    Small rows, so that commits span several; one `due` a batch, as the order within a
    commit is only promised up to its rows.
    """

    track_depth = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.memory = MemoryFrontier(
            clock=self.clock, queue_of=by_host, track_depth=self.track_depth
        )
        self.memory.open()
        self.patches = [
            mock.patch.object(bundles, "_BUNDLE_SIZE", 3),
            mock.patch.object(disk, "_KEEP_FRESH", 5),
            mock.patch.object(load, "_MANY_ROWS", 2),
            mock.patch.object(load, "_LONG", 64),
            mock.patch.object(bundles, "_LONG", 2),
            mock.patch.object(seen, "_MOST_RECENT", 8),
            mock.patch.object(seen, "_MOST_AT_HAND", 3),
            mock.patch.object(seen, "_FULL", 4),
        ]
        for patch in self.patches:
            patch.start()
        self.held: list[tuple[Entry, Entry]] = []
        self.met: set[int] = set()
        self.shed: set[int] = set()
        # What the reference numbers below one of these is older than what it numbers from there on.
        self.ages = [1]
        self.disk = self._open()

    def teardown(self) -> None:
        self.disk.close()
        for patch in self.patches:
            patch.stop()
        self.directory.cleanup()

    def _open(self) -> DiskFrontier:
        frontier = DiskFrontier(
            Path(self.directory.name, "state"),
            clock=self.clock,
            queue_of=by_host,
            fingerprint_rules=RULES,
            track_depth=self.track_depth,
        )
        frontier.open()
        return frontier

    def disk_entries(self) -> list[Entry]:
        """All that is unfinished on disk."""
        frontier = self.disk
        rows = [
            (bundle, frontier._cache[bundle.row]) for bundle in frontier._marks.bundles.values()
        ]
        return [one for bundle, row in rows for one in bundle.unpack(row)]

    def _batches(self, found: list[Entry], ends: list[str], delay: int) -> tuple[Batch, Batch]:
        """The same batch for both; what is held ends as `ends` says, "hold" keeps it."""
        ours, theirs = Batch(), Batch()
        ours.found = [copy(one) for one in found]
        theirs.found = [copy(one) for one in found]
        due = self.clock.wall() + delay if delay else 0.0
        for pair, end in zip(self.held, ends, strict=False):
            for batch, one in zip((ours, theirs), pair, strict=True):
                if end in ("done", "failed", "dropped"):
                    batch.finished.append(Finish(one, end, f"{end}-reason"))  # type: ignore[arg-type]
                elif end == "retry":
                    batch.moved.append((one, successor(one, attempts=one.attempts + 1, due=due)))
                elif end == "hop":
                    target = f"http://{HOSTS[one.fp % 3]}/hop"
                    batch.moved.append((one, successor(one, target=target, hops=1, due=due)))
        return ours, theirs

    @rule(
        found=FOUND,
        ends=st.lists(
            st.sampled_from(["done", "done", "failed", "dropped", "retry", "hop", "hold"])
        ),
        delay=st.sampled_from([0, 5]),
        aliases=st.lists(PATHS, max_size=2),
        shed=st.lists(PATHS, max_size=3),
        notes=NOTES,
    )
    def commit(
        self,
        found: list[Entry],
        ends: list[str],
        delay: int,
        aliases: list[int],
        shed: list[int],
        notes: dict[str, bytes],
    ) -> None:
        ours, theirs = self._batches(found, ends, delay)
        ours.aliases = theirs.aliases = [entry(path, "a.test").fp for path in aliases]
        ours.shed = theirs.shed = [entry(path, "b.test:8080") for path in shed]
        ours.notes = theirs.notes = notes
        known = self.met.union(ours.aliases, (one.fp for one in found))
        self.shed.update(one.fp for one in ours.shed if one.fp not in known)
        assert self.disk.commit(ours) == self.memory.commit(theirs)
        self.ages.append(self.memory.next_bundle)
        self.held = [
            pair for pair, end in zip(self.held, ends, strict=False) if end == "hold"
        ] + self.held[len(ends) :]
        self.met.update(one.fp for one in found)
        self.met.update(ours.aliases)
        self.met.update(one.fp for one in ours.shed)

    @rule(found=FOUND, ends=st.lists(st.sampled_from(["done", "retry"])), after=st.integers(0, 6))
    def fail_to_commit(self, found: list[Entry], ends: list[str], after: int) -> None:
        batch, _ = self._batches(found, ends, 0)
        batch.notes = {"a/1": b"torn", "b": b"torn", "c": b"torn"}
        with failing(self.disk, min(after, 3)), pytest.raises(DiskFull):
            self.disk.commit(batch)

    @rule(queue=st.sampled_from(HOSTS), limit=st.integers(0, 9))
    def take(self, queue: str, limit: int) -> None:
        ours = self.disk.take(queue, limit)
        theirs = self.memory.take(queue, max(limit, len(ours)))
        assert len(ours) < limit + 3
        self._hold(ours, theirs)

    def _worth(self, one: Entry) -> tuple[int, int]:
        """Greater for what is to be kept: by priority, then by age; one commit is one age."""
        return one.priority, -bisect(self.ages, one.bundle)

    def _cold(self, below: int) -> dict[int, Entry]:
        """What the reference could shelve."""
        lists = self.memory._cold.values()
        return {one.fp: one for some in lists for one in some if one.priority < below}

    def _assert_first(self, chosen: Iterable[Entry], left: Iterable[Entry], sign: int) -> None:
        """What was chosen goes before what was left: the least worth first where `sign` is 1."""
        first = [[sign * worth for worth in self._worth(one)] for one in chosen]
        then = [[sign * worth for worth in self._worth(one)] for one in left]
        assert not first or not then or max(first) <= min(then)

    def _shelved(self) -> set[int]:
        """What the durable one has put off; it knows rows where the reference knows entries."""
        frontier = self.disk
        bundles = [one for one in frontier._marks.bundles.values() if one.shelved]
        return {one.fp for b in bundles for one in b.unpack(frontier._cache[b.row])}

    @rule(below=st.integers(-1, 2), keep=st.integers(0, 12))
    def shelve(self, below: int, keep: int) -> None:
        cold, before = self._cold(below), self._shelved()
        count = self.disk.shelve(below, keep)
        chosen = [cold.pop(fp) for fp in self._shelved() - before]
        assert len(chosen) == count
        self._assert_first(chosen, cold.values(), 1)
        left = self.disk.counts().unfinished - self.disk.shelved()
        assert not cold or left <= keep
        assert not count or left > keep - 3
        self.memory._remove_cold(chosen)
        self.memory._shelf.extend(chosen)

    @rule(room=st.integers(0, 6))
    def unshelve(self, room: int) -> None:
        before = self._shelved()
        touched = self.disk.unshelve(room)
        back = before - self._shelved()
        assert min(room, len(before)) <= len(back) < room + 3
        chosen = [one for one in self.memory._shelf if one.fp in back]
        self.memory._shelf = [one for one in self.memory._shelf if one.fp not in back]
        self._assert_first(chosen, self.memory._shelf, -1)
        assert {self.memory._file(one, self.clock.wall()) for one in chosen} == touched

    @rule(most=st.integers(0, 3))
    def unshelve_starved(self, most: int) -> None:
        before, shelf = self._shelved(), list(self.memory._shelf)
        unfinished = self.memory.unfinished_by_queue()
        starved = {
            name for name, n in unfinished.items() if n == self.memory.shelved_queue(name) > 0
        }
        touched = self.disk.unshelve_starved(most)
        assert touched <= starved
        assert len(touched) == min(most, len(starved))
        back = before - self._shelved()
        self.memory._shelf = [one for one in shelf if one.fp not in back]
        for name in touched:
            mine = [one for one in shelf if self.memory._queue(one) == name]
            chosen = [one for one in mine if one.fp in back]
            assert 1 <= len(chosen) <= 3
            self._assert_first(chosen, [one for one in mine if one.fp not in back], -1)
            assert {self.memory._file(one, self.clock.wall()) for one in chosen} == {name}
        assert len(back) <= 3 * len(touched)

    @rule(below=st.integers(-1, 2), keep=st.integers(0, 12))
    def surplus(self, below: int, keep: int) -> None:
        cold = self._cold(below)
        ours = self.disk.surplus(below, keep)
        theirs = self.memory._hand_out([cold.pop(one.fp) for one in ours])
        self._assert_first(theirs, cold.values(), 1)
        self._hold(ours, theirs)

    @rule(queue=st.sampled_from(HOSTS))
    def take_all(self, queue: str) -> None:
        theirs = {one.fp: one for one in self.memory.take_all(queue)}
        ours = self.disk.take_all(queue)
        assert len(ours) == len(theirs)
        self._hold(ours, [theirs[one.fp] for one in ours])

    def _hold(self, ours: list[Entry], theirs: list[Entry]) -> None:
        assert [plain(one) for one in ours] == [plain(one) for one in theirs]
        self.held.extend(zip(ours, theirs, strict=True))

    @rule(classes=st.sampled_from([(), ("failed-reason",), ("other",)]), crash=st.booleans())
    def revive(self, classes: tuple[str, ...], crash: bool) -> None:
        """As the command does it: on a state that was just opened."""
        self.restart(crash)
        total = sum(self.disk.revive(classes))
        # The durable one goes by row, so its order of equals is another.
        order = {one.fp: one.bundle for one in self.disk_entries()}
        self.memory._failed.sort(key=lambda end: order.get(end.entry.fp, 0))
        assert sum(self.memory.revive(classes)) == total
        self.ages.append(self.memory.next_bundle)

    @rule(seconds=st.integers(0, 7))
    def ripen(self, seconds: int) -> None:
        self.clock.advance(seconds)
        wall = self.clock.wall()
        assert self.disk.ripen(wall) == self.memory.ripen(wall)

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        if crash:
            lose(self.disk)
        else:
            self.disk.close()
        self.disk = self._open()
        self.memory.open()
        self.held = []

    @precondition(lambda self: self.met)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        fp = data.draw(st.sampled_from(sorted(self.met)))
        found = inspect(Path(self.directory.name, "state"), fp)
        assert found is not None
        unfinished = {one.fp: one for one in self.memory._all()}
        assert (found.state == "pending") == (fp in unfinished)
        if found.entry is not None and fp in unfinished:
            assert plain(found.entry) == plain(unfinished[fp])
        if found.state in ("failed", "dropped"):
            shed = fp in self.shed
            assert found.reason == (SHED if shed else f"{found.state}-reason")

    @invariant()
    def both_show_the_same(self) -> None:
        ours, theirs = self.disk, self.memory
        assert ours.counts() == theirs.counts()
        assert ours.counts().balanced()
        assert dict(ours.unfinished_by_queue()) == dict(theirs.unfinished_by_queue())
        # As sets: within a commit, a bundle is as old as its first entry, finished or not.
        assert set(ours.backlog()) == set(theirs.backlog())
        levels = [level for _, level in ours.backlog()]
        assert levels == sorted(levels, reverse=True)
        assert ours.shelved() == theirs.shelved()
        for queue in HOSTS:
            assert ours.best_priority(queue) == theirs.best_priority(queue)
            assert ours.shelved_queue(queue) == theirs.shelved_queue(queue)
        assert ours.next_due() == theirs.next_due()
        assert dict(ours.notes("a/")) == dict(theirs.notes("a/"))
        assert ours.note("b") == theirs.note("b")
        assert {fp in ours.seen for fp in self.met} <= {True}
        assert ours.seen.unknown({*self.met, 1, 2}) == {1, 2}
        assert len(ours.seen) == len(theirs.seen)
        for one, other in self.held:
            assert plain(one) == plain(other)


class ComparisonOfDepths(Comparison):
    """The same with depths tracked."""

    track_depth = True


BOUNDED = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    database=None,
    # Shrinking a run of this length takes minutes; the report shows it as it was.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestComparison = Comparison.TestCase
TestComparison.settings = BOUNDED
TestComparisonOfDepths = ComparisonOfDepths.TestCase
TestComparisonOfDepths.settings = BOUNDED
