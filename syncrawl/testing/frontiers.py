"""The conformance suite of a frontier: every promise of `frontier.model.Frontier`, as tests.

Used by pytest in a frontier's own test module. Its author writes three lines:

    class TestMyFrontier(DurableFrontierContract):
        def make(self, tmp_path, clock, **options):
            return MyFrontier(tmp_path / "state", clock=clock, **options)

`make` gives a new, unopened frontier on the same place each time. The options are
`queue_of` and `track_depth`. One that forgets at exit is a `FrontierContract`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from syncrawl.frontier.model import SHED, Batch, Counts, Finish
from syncrawl.testing.clock import FakeClock
from syncrawl.testing.frontier_basics import BasicContract
from syncrawl.testing.frontier_kit import (
    by_host,
    done,
    drain,
    entries,
    entry,
    fp_of,
    successor,
    urls,
)
from syncrawl.testing.frontier_pressure import PressureContract

__all__ = [
    "DurableFrontierContract",
    "FrontierContract",
    "by_host",
    "done",
    "drain",
    "entries",
    "entry",
    "fp_of",
    "successor",
    "urls",
]


class FrontierContract(BasicContract, PressureContract):
    """Subclass it as `TestSomething`; pytest collects the tests with it."""


class DurableFrontierContract(FrontierContract):
    """What a frontier that outlives its process promises on top."""

    @pytest.mark.parametrize("crash", [False, True])
    def test_what_was_taken_is_pending_again(self, opened: Any, crash: bool) -> None:
        frontier = opened()
        frontier.commit(Batch(found=entries(9) + entries(3, "b.test"), aliases=[7]))
        taken = drain(frontier)
        ends = [Finish(taken[0], "done", "2xx"), Finish(taken[1], "failed", "timeout")]
        ends.append(Finish(taken[2], "dropped", "robots"))
        frontier.commit(Batch(finished=ends))
        counts, bundle = frontier.counts(), frontier.next_bundle
        del frontier
        frontier = opened(crash=crash)
        assert frontier.counts() == counts == Counts(12, 9, 1, 1, {"robots": 1})
        assert frontier.next_bundle >= bundle
        assert 7 in frontier.seen
        assert dict(frontier.unfinished_by_queue()) == {"a.test": 6, "b.test": 3}
        frontier.commit(Batch(found=entries(9) + entries(3, "b.test")))
        assert urls(drain(frontier)) == urls(taken[3:])

    def test_opening_says_that_it_existed(self, opened: Any, tmp_path: Path) -> None:
        opened().close()
        again = self.make(tmp_path, FakeClock(), queue_of=by_host, track_depth=False)
        assert again.open() is True
        again.close()

    def test_retries_keep_due_times_attempts_and_targets(
        self, opened: Any, clock: FakeClock
    ) -> None:
        frontier = opened()
        frontier.commit(Batch(found=entries(2)))
        now = clock.wall()
        one, two = drain(frontier)
        retry = successor(one, attempts=2, refusals=1, due=now + 60.5)
        hop = successor(two, target="http://b.test/z", hops=3)
        frontier.commit(Batch(moved=[(one, retry), (two, hop)]))
        frontier = opened()
        assert frontier.next_due() == now + 60.5
        assert [queue for queue, _ in frontier.backlog()] == ["b.test"]
        [taken] = drain(frontier)
        assert (taken.url, taken.request_url, taken.hops) == (two.url, "http://b.test/z", 3)
        clock.advance(61)
        assert frontier.ripen(clock.wall()) == {"a.test"}
        [taken] = drain(frontier)
        assert (taken.url, taken.attempts, taken.refusals, taken.due) == (one.url, 2, 1, now + 60.5)

    def test_what_became_due_meanwhile_is_takeable(self, opened: Any, clock: FakeClock) -> None:
        frontier = opened()
        frontier.commit(Batch(found=[entry(0, due=clock.wall() + 60)]))
        clock.advance(61)
        frontier = opened()
        assert urls(drain(frontier)) == ["http://a.test/0"]

    def test_order_survives(self, opened: Any) -> None:
        frontier = opened()
        for step in range(12):
            frontier.commit(Batch(found=[entry(step), entry(step, f"{12 - step}.test")]))
        backlog = list(frontier.backlog())
        frontier = opened()
        assert list(frontier.backlog()) == backlog
        order = [one for _ in range(12) for one in frontier.take("a.test", 1)]
        assert urls(order) == urls(entries(12))

    def test_notes_survive(self, opened: Any) -> None:
        frontier = opened()
        frontier.commit(Batch(notes={"tokens": b"1", "host/a": b"a", "gone": b"g"}))
        frontier.commit(Batch(notes={"tokens": b"2", "gone": b""}))
        frontier = opened()
        assert dict(frontier.notes("")) == {"tokens": b"2", "host/a": b"a"}
        assert frontier.note("tokens") == b"2"

    def test_smaller_depths_survive(self, opened: Any) -> None:
        frontier = opened(track_depth=True)
        frontier.commit(Batch(found=entries(3, depth=5)))
        taken = drain(frontier)
        frontier.commit(Batch(found=[entry(0, depth=2), entry(1, depth=4)]))
        frontier.commit(done([taken[0]]))
        for _ in range(2):
            frontier = opened(track_depth=True)
        frontier.commit(Batch(found=[entry(0, depth=1), entry(2, depth=3)]))
        assert {one.url[-1]: one.depth for one in drain(frontier)} == {"1": 4, "2": 3}
        frontier = opened(track_depth=True)
        assert {one.url[-1]: one.depth for one in drain(frontier)} == {"1": 4, "2": 3}

    def test_depths_are_known_to_a_run_that_begins_to_track_them(self, opened: Any) -> None:
        frontier = opened()
        frontier.commit(Batch(found=entries(2, depth=5)))
        frontier = opened(track_depth=True)
        frontier.commit(Batch(found=[entry(0, depth=2)]))
        assert [one.depth for one in drain(frontier)] == [2, 5]

    def test_queues_may_be_others_at_the_next_start(self, opened: Any) -> None:
        frontier = opened()
        frontier.commit(Batch(found=entries(2, "www.x.test") + entries(1, "y.x.test")))
        frontier = opened(queue_of=lambda host: host.split(".", 1)[1])
        assert dict(frontier.unfinished_by_queue()) == {"x.test": 3}
        frontier.commit(done(drain(frontier)))
        assert frontier.counts() == Counts(3, 0, done=3)

    def test_any_number_of_restarts_loses_nothing(self, opened: Any) -> None:
        """Each round leaves some of an old commit, and ends the newest one in two steps."""
        frontier = opened()
        finished: set[str] = set()
        for number in range(8):
            frontier.commit(Batch(found=[entry(f"{number}-{name}") for name in "abcd"]))
            frontier.commit(Batch(found=[entry(f"{number}-{name}") for name in "xy"]))
            taken = drain(frontier)
            for names in ("abcd"[number % 4] + "x", "y"):
                ended = [one for one in taken if one.url[-1] in names]
                frontier.commit(done(ended))
                finished.update(urls(ended))
            for crash in (True, False):
                frontier = opened(crash=crash)
                left = urls(drain(frontier))
                assert len(left) == len(set(left)) == frontier.counts().unfinished
                assert not finished.intersection(left)
                assert frontier.counts().done == len(finished)

    # -- under pressure ---------------------------------------------------------------

    @pytest.mark.parametrize("crash", [False, True])
    def test_what_was_shelved_is_takeable_again(self, opened: Any, crash: bool) -> None:
        frontier = opened()
        for number in range(4):
            frontier.commit(Batch(found=[entry(f"{number}-{n}") for n in range(3)]))
        assert frontier.shelve(1, 3) == 9
        counts = frontier.counts()
        frontier = opened(crash=crash)
        assert (frontier.shelved(), frontier.counts()) == (0, counts)
        assert len(drain(frontier)) == 12
        assert counts == Counts(12, 12)

    @pytest.mark.parametrize("crash", [False, True])
    def test_what_was_shed_stays_known(self, opened: Any, crash: bool) -> None:
        frontier = opened()
        frontier.commit(Batch(found=entries(2), shed=entries(5)))
        frontier = opened(crash=crash)
        assert frontier.counts() == Counts(5, 2, dropped={SHED: 3})
        assert all(one.fp in frontier.seen for one in entries(5))
        frontier.commit(Batch(found=entries(5)))
        assert urls(drain(frontier)) == urls(entries(2))

    @pytest.mark.parametrize("crash", [False, True])
    @pytest.mark.parametrize("track_depth", [False, True])
    def test_what_was_revived_ends_anew(self, opened: Any, crash: bool, track_depth: bool) -> None:
        frontier = opened(track_depth=track_depth)
        frontier.commit(Batch(found=entries(4, depth=3)))
        ends = [Finish(one, "failed", "5xx") for one in drain(frontier)]
        frontier.commit(Batch(finished=ends))
        frontier = opened(track_depth=track_depth)
        assert list(frontier.revive([])) == [4]
        frontier = opened(crash=crash, track_depth=track_depth)
        assert frontier.counts() == Counts(4, 4)
        frontier.commit(Batch(found=entries(4, depth=2)))
        taken = drain(frontier)
        assert {one.depth for one in taken} == {2 if track_depth else 3}
        frontier.commit(done(taken[:1]))
        frontier.commit(Batch(finished=[Finish(one, "failed", "timeout") for one in taken[1:]]))
        frontier = opened(crash=crash, track_depth=track_depth)
        assert frontier.counts() == Counts(4, 0, done=1, failed=3)
        assert sum(frontier.revive(["5xx"])) == 0
        assert sum(frontier.revive(["timeout"])) == 3
        assert urls(drain(frontier)) == urls(taken[1:])
