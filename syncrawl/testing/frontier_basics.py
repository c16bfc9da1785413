"""What every frontier promises of acceptance, order, time, notes and depths.

Tests only. `frontiers` is the way in.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from syncrawl.frontier.model import Batch, Counts, Entry, Finish, Frontier, host_of
from syncrawl.testing.clock import FakeClock
from syncrawl.testing.frontier_kit import (
    FrontierCase,
    by_host,
    done,
    drain,
    entries,
    entry,
    successor,
    urls,
)

THREAD_SECONDS = 30.0
"""Threads that race for claims and are not done after this hang."""


class BasicContract(FrontierCase):
    """Acceptance, states, taking, waiting, moves, notes, depths, the seen set."""

    # -- acceptance -------------------------------------------------------------------

    def test_a_new_frontier_is_empty(self, tmp_path: Path, clock: FakeClock) -> None:
        frontier = self.make(tmp_path, clock, queue_of=by_host, track_depth=False)
        assert frontier.open() is False
        assert frontier.counts() == Counts()
        assert frontier.next_due() is None
        assert list(frontier.backlog()) == []
        assert dict(frontier.unfinished_by_queue()) == {}
        assert frontier.take("a.test", 10) == []
        assert not frontier.has_more("a.test")
        frontier.close()

    def test_an_entry_comes_out_as_it_went_in(self, frontier: Frontier) -> None:
        link = Entry(
            "https://a.test:8443/x?q=1",
            2**64 - 1,
            depth=3,
            priority=-2,
            referrer="https://a.test:8443/",
            label="müsli",
            seed=True,
            attempts=2,
            refusals=1,
            due=1.5,
            target="https://b.test/y",
            hops=2,
        )
        expected = successor(link, due=1.5, target=link.target, hops=2)
        assert frontier.commit(Batch(found=[link])) == {"b.test"}
        [taken] = frontier.take("b.test", 1)
        assert successor(taken, due=taken.due, target=taken.target, hops=taken.hops) == expected

    def test_a_url_is_accepted_once(self, frontier: Frontier) -> None:
        assert frontier.commit(Batch(found=entries(3))) == {"a.test"}
        assert frontier.commit(Batch(found=entries(3))) == set()
        taken = drain(frontier)
        assert len(taken) == 3
        frontier.commit(Batch(found=entries(3)))
        assert drain(frontier) == []
        ends: list[Any] = ["done", "failed", "dropped"]
        frontier.commit(
            Batch(finished=[Finish(*pair, "why") for pair in zip(taken, ends, strict=True)])
        )
        assert frontier.commit(Batch(found=entries(3))) == set()
        assert drain(frontier) == []
        assert frontier.counts() == Counts(3, 0, done=1, failed=1, dropped={"why": 1})

    def test_a_url_found_twice_in_one_batch_is_accepted_once(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(3) + entries(4)))
        assert urls(drain(frontier)) == urls(entries(4))
        assert frontier.counts() == Counts(4, 4)

    def test_a_url_found_while_it_finishes_is_known(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(1)))
        batch = done(drain(frontier))
        batch.found = entries(1)
        assert frontier.commit(batch) == set()
        assert frontier.counts() == Counts(1, 0, done=1)

    def test_an_alias_is_known_but_no_url_of_its_own(self, frontier: Frontier) -> None:
        [target, other, also] = entries(3)
        frontier.commit(Batch(aliases=[target.fp, other.fp], found=[other]))
        assert target.fp in frontier.seen
        assert frontier.counts() == Counts()
        assert frontier.commit(Batch(found=[target, other, also])) == {"a.test"}
        assert urls(drain(frontier)) == [also.url]
        assert frontier.counts() == Counts(1, 1)

    def test_an_alias_of_a_pending_url_leaves_it_pending(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(1)))
        frontier.commit(Batch(aliases=[entry(0).fp]))
        assert urls(drain(frontier)) == urls(entries(1))

    def test_what_is_claimed_is_not_accepted(self, frontier: Frontier) -> None:
        [target] = entries(1)
        assert frontier.seen.claim(target.fp)
        frontier.commit(Batch(found=entries(1)))
        assert frontier.counts() == Counts()
        frontier.seen.release([target.fp])
        frontier.commit(Batch(found=entries(1)))
        assert frontier.counts() == Counts(1, 1)

    # -- states and counts ------------------------------------------------------------

    def test_every_url_is_in_one_state_at_every_moment(self, frontier: Frontier) -> None:
        held: list[Entry] = []
        ends: list[Any] = ["done", "failed", "dropped", "done"]
        for step in range(40):
            batch = Batch(found=[entry(f"{step}-{n}") for n in range(step % 7)])
            for number, one in enumerate(held):
                if number % 5 == 4:
                    batch.moved.append((one, successor(one, attempts=one.attempts + 1)))
                else:
                    batch.finished.append(Finish(one, ends[number % 4], f"reason-{step % 3}"))
            frontier.commit(batch)
            held = frontier.take("a.test", 5)
            counts = frontier.counts()
            assert counts.balanced(), counts
            assert counts.unfinished == frontier.unfinished("a.test")
        assert frontier.counts().seen == sum(step % 7 for step in range(40))
        assert len(frontier.counts().dropped) == 3

    def test_counts_are_replaced_never_changed(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(2)))
        before = frontier.counts()
        [one, _] = drain(frontier)
        frontier.commit(Batch(finished=[Finish(one, "dropped", "scope")]))
        assert before == Counts(2, 2)
        assert frontier.counts() == Counts(2, 1, dropped={"scope": 1})

    def test_what_is_taken_stays_unfinished(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(2) + entries(1, "b.test")))
        drain(frontier)
        assert dict(frontier.unfinished_by_queue()) == {"a.test": 2, "b.test": 1}
        assert frontier.unfinished("a.test") == 2
        assert frontier.unfinished("nowhere.test") == 0
        assert not frontier.has_more("a.test")
        assert frontier.take("a.test", 10) == []

    def test_a_finished_queue_is_gone(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(2)))
        frontier.commit(done(drain(frontier)))
        assert dict(frontier.unfinished_by_queue()) == {}
        frontier.commit(Batch(found=[entry("new")]))
        assert urls(drain(frontier)) == ["http://a.test/new"]

    @pytest.mark.parametrize("times", [0, 2])
    def test_only_what_is_taken_can_end_and_only_once(self, frontier: Frontier, times: int) -> None:
        frontier.commit(Batch(found=entries(3)))
        if times == 0:
            [one, *_] = entries(1)
            one.bundle, one.index = 1, 0
        else:
            [one, *_] = drain(frontier)
        ends = [Finish(one, "done", "2xx")] * max(times, 1)
        with pytest.raises(KeyError):
            frontier.commit(Batch(finished=ends, found=[entry("new")], notes={"n": b"x"}))
        assert frontier.counts() == Counts(3, 3)
        assert entry("new").fp not in frontier.seen
        assert frontier.note("n") is None

    def test_nobody_ends_twice_over_two_commits(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(3)))
        [one, *_] = drain(frontier)
        frontier.commit(done([one]))
        with pytest.raises(KeyError):
            frontier.commit(done([one]))
        with pytest.raises(KeyError):
            frontier.commit(Batch(moved=[(one, successor(one))]))
        assert frontier.counts() == Counts(3, 2, done=1)

    # -- taking -----------------------------------------------------------------------

    def test_the_best_priority_comes_first_then_the_oldest(self, frontier: Frontier) -> None:
        for step in range(12):
            frontier.commit(
                Batch(found=[entry(f"{step}-{p}", priority=p) for p in (0, 100, -1, 100)])
            )
        order = []
        while frontier.has_more("a.test"):
            order.extend(frontier.take("a.test", 1))
        assert [one.priority for one in order] == [100] * 12 + [0] * 12 + [-1] * 12
        for start in (0, 12, 24):
            steps = [one.url.split("/")[-1].split("-")[0] for one in order[start : start + 12]]
            assert steps == [str(step) for step in range(12)]

    def test_one_commit_keeps_its_order(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(20)))
        assert urls(frontier.take("a.test", 20)) == urls(entries(20))

    @pytest.mark.parametrize("limit", [1, 7, 300, 2000])
    def test_take_gives_about_its_limit(self, frontier: Frontier, limit: int) -> None:
        frontier.commit(Batch(found=entries(1500)))
        first = frontier.take("a.test", limit)
        assert min(limit, 1500) <= len(first) <= limit + self.surplus
        assert frontier.has_more("a.test") == (len(first) < 1500)
        rest = drain(frontier)
        assert urls(first + rest) == urls(entries(1500))

    def test_take_of_nothing_takes_nothing(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(2)))
        assert frontier.take("a.test", 0) == []
        assert len(drain(frontier)) == 2

    def test_the_backlog_names_what_can_be_taken_oldest_first(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=[entry(0, "b.test"), entry(0, "a.test")]))
        frontier.commit(Batch(found=[entry(1, "b.test"), entry(0, "c.test")]))
        assert [queue for queue, _ in frontier.backlog()] == ["b.test", "a.test", "c.test"]
        frontier.take("b.test", 10)
        assert [queue for queue, _ in frontier.backlog()] == ["a.test", "c.test"]
        frontier.commit(Batch(found=[entry(2, "b.test")]))
        assert [queue for queue, _ in frontier.backlog()] == ["a.test", "c.test", "b.test"]

    def test_a_queue_may_have_several_hosts(self, opened: Any) -> None:
        frontier = opened(queue_of=lambda host: host.split(".", 1)[1])
        assert frontier.commit(Batch(found=entries(2, "www.x.test") + entries(2, "y.x.test"))) == {
            "x.test"
        }
        assert dict(frontier.unfinished_by_queue()) == {"x.test": 4}
        taken = frontier.take("x.test", 4)
        assert sorted(host_of(one.url) for one in taken) == ["www.x.test"] * 2 + ["y.x.test"] * 2

    def test_bundles_tell_old_from_new(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(3)))
        first = frontier.next_bundle
        frontier.commit(Batch(found=[entry("new")]))
        for one in drain(frontier):
            assert (one.bundle < first) == (one.url != "http://a.test/new")

    # -- waiting ----------------------------------------------------------------------

    def test_what_is_due_later_waits(self, frontier: Frontier, clock: FakeClock) -> None:
        frontier.commit(Batch(found=entries(1)))
        now = clock.wall()
        [one] = drain(frontier)
        retry = successor(one, attempts=1, due=now + 5)
        assert frontier.commit(Batch(moved=[(one, retry)])) == set()
        assert not frontier.has_more("a.test")
        assert list(frontier.backlog()) == []
        assert frontier.unfinished("a.test") == 1
        assert frontier.next_due() == now + 5
        assert frontier.ripen(now + 4.9) == set()
        assert drain(frontier) == []
        assert frontier.ripen(now + 5) == {"a.test"}
        assert frontier.next_due() is None
        [again] = drain(frontier)
        assert (again.url, again.attempts, again.due) == (one.url, 1, now + 5)
        assert frontier.ripen(now + 6) == set()
        assert frontier.counts() == Counts(1, 1)

    def test_the_next_due_is_the_smallest(self, frontier: Frontier, clock: FakeClock) -> None:
        now = clock.wall()
        found = [entry(n, f"{n}.test", due=now + n) for n in (7, 3, 5)]
        frontier.commit(Batch(found=found))
        assert frontier.next_due() == now + 3
        assert frontier.ripen(now + 5) == {"3.test", "5.test"}
        assert frontier.next_due() == now + 7
        assert [queue for queue, _ in frontier.backlog()] == ["3.test", "5.test"]

    def test_a_due_time_in_the_past_is_now(self, frontier: Frontier, clock: FakeClock) -> None:
        frontier.commit(Batch(found=[entry(0, due=clock.wall())]))
        assert frontier.has_more("a.test")
        assert frontier.next_due() is None

    def test_age_counts_from_the_commit_not_from_the_due_time(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        now = clock.wall()
        frontier.commit(Batch(found=[entry("first", due=now + 9)]))
        frontier.commit(Batch(found=[entry("second", due=now + 1)]))
        frontier.commit(Batch(found=[entry("third")]))
        frontier.ripen(now + 10)
        order = [one for _ in range(3) for one in frontier.take("a.test", 1)]
        assert urls(order) == [f"http://a.test/{name}" for name in ("first", "second", "third")]

    # -- moves ------------------------------------------------------------------------

    def test_a_continuation_waits_for_its_target_s_host(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(2)))
        one, _ = drain(frontier)
        hop = successor(one, target="http://b.test/new", hops=1)
        assert frontier.commit(Batch(moved=[(one, hop)])) == {"b.test"}
        assert dict(frontier.unfinished_by_queue()) == {"a.test": 1, "b.test": 1}
        assert frontier.take("a.test", 9) == []
        [taken] = frontier.take("b.test", 9)
        assert (taken.url, taken.request_url, taken.hops) == (one.url, "http://b.test/new", 1)
        assert frontier.counts() == Counts(2, 2)
        frontier.commit(done([taken]))
        assert frontier.counts() == Counts(2, 1, done=1)

    def test_a_move_may_go_on_for_ever(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(3)))
        one, *others = drain(frontier)
        for attempt in range(1, 50):
            frontier.commit(Batch(moved=[(one, successor(one, attempts=attempt))]))
            [one] = drain(frontier)
            assert one.attempts == attempt
        frontier.commit(done([one, *others]))
        assert frontier.counts() == Counts(3, 0, done=3)

    # -- notes ------------------------------------------------------------------------

    def test_notes_are_kept_replaced_and_deleted(self, frontier: Frontier) -> None:
        assert frontier.note("tokens") is None
        frontier.commit(Batch(notes={"tokens": b"1", "host/a": b"\x00\xff", "host/b": b"b"}))
        assert frontier.note("tokens") == b"1"
        assert dict(frontier.notes("host/")) == {"host/a": b"\x00\xff", "host/b": b"b"}
        assert dict(frontier.notes("nothing/")) == {}
        frontier.commit(Batch(notes={"tokens": b"2", "host/a": b"", "never": b""}))
        assert frontier.note("tokens") == b"2"
        assert frontier.note("host/a") is None
        assert frontier.note("never") is None
        assert dict(frontier.notes("host/")) == {"host/b": b"b"}
        assert len(list(frontier.notes(""))) == 2

    # -- depths -----------------------------------------------------------------------

    def test_a_pending_url_takes_a_smaller_depth(self, opened: Any, clock: FakeClock) -> None:
        frontier = opened(track_depth=True)
        frontier.commit(Batch(found=[entry(0, depth=5), entry(1, depth=5, due=clock.wall() + 9)]))
        frontier.commit(Batch(found=[entry(0, depth=3), entry(1, depth=2)]))
        frontier.commit(Batch(found=[entry(0, depth=4), entry(1, depth=4)]))
        frontier.ripen(clock.wall() + 9)
        assert {one.url[-1]: one.depth for one in drain(frontier)} == {"0": 3, "1": 2}
        assert frontier.counts().seen == 2

    def test_a_taken_url_takes_a_smaller_depth(self, opened: Any) -> None:
        frontier = opened(track_depth=True)
        frontier.commit(Batch(found=[entry(0, depth=5)]))
        [one] = drain(frontier)
        frontier.commit(Batch(found=[entry(0, depth=3)]))
        assert one.depth == 3
        retry = successor(one)
        frontier.commit(Batch(moved=[(one, retry)], found=[entry(0, depth=1)]))
        [again] = drain(frontier)
        assert again.depth == 1

    def test_the_smallest_depth_of_one_batch_counts(self, opened: Any) -> None:
        frontier = opened(track_depth=True)
        frontier.commit(Batch(found=[entry(0, depth=5), entry(0, depth=2), entry(0, depth=4)]))
        [one] = drain(frontier)
        assert one.depth == 2
        frontier.commit(done([one]))
        frontier.commit(Batch(found=[entry(0, depth=1)]))
        assert drain(frontier) == []

    def test_without_tracking_the_first_depth_stays(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=[entry(0, depth=5), entry(0, depth=4)]))
        frontier.commit(Batch(found=[entry(0, depth=3)]))
        assert [one.depth for one in drain(frontier)] == [5]

    # -- the seen set under threads -----------------------------------------------------

    def test_one_thread_of_many_gets_a_claim(self, frontier: Frontier) -> None:
        known = entries(100)
        frontier.commit(Batch(found=known))
        fps = [one.fp for one in known] + [entry(f"new-{n}").fp for n in range(400)]
        won: list[list[int]] = [[] for _ in range(8)]
        start = threading.Barrier(len(won))

        def race(mine: list[int]) -> None:
            start.wait(THREAD_SECONDS)
            mine.extend(fp for fp in fps if frontier.seen.claim(fp))

        threads = [threading.Thread(target=race, args=(mine,), daemon=True) for mine in won]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(THREAD_SECONDS)
            assert not thread.is_alive()
        assert sorted(fp for mine in won for fp in mine) == sorted(fps[100:])
        assert all(fp in frontier.seen for fp in fps)
        assert len(frontier.seen) == 100
        frontier.seen.release(fps[100:300])
        frontier.commit(Batch(aliases=fps[300:]))
        frontier.seen.release(fps[300:])
        assert [fp in frontier.seen for fp in fps] == [True] * 100 + [False] * 200 + [True] * 200
