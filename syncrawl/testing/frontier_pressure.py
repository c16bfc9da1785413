"""What every frontier promises where more is found than can be fetched, and where it failed.

Tests only. `frontiers` is the way in.
"""

from __future__ import annotations

from typing import Any

import pytest

from syncrawl.frontier.model import SHED, Batch, Counts, Entry, Finish, Frontier
from syncrawl.testing.clock import FakeClock
from syncrawl.testing.frontier_kit import FrontierCase, done, drain, entries, entry, successor, urls


def commits(frontier: Frontier, *hosts_and_priorities: tuple[str, int], count: int = 2) -> None:
    """A commit for each: `count` entries of that host and priority."""
    for host, priority in hosts_and_priorities:
        number = frontier.next_bundle
        found = [entry(f"{number}-{n}", host, priority=priority) for n in range(count)]
        frontier.commit(Batch(found=found))


def of(some: list[Entry]) -> list[tuple[str, int]]:
    """The host and priority of each commit that entries are from, in order."""
    return list(dict.fromkeys((one.url.split("/")[2], one.priority) for one in some))


def balanced(frontier: Frontier) -> bool:
    """Whether the counts add up and the queues hold what is unfinished."""
    counts = frontier.counts()
    queues = frontier.unfinished_by_queue()
    shelved = sum(frontier.shelved_queue(queue) for queue in queues)
    return (
        counts.balanced()
        and sum(queues.values()) == counts.unfinished
        and shelved == frontier.shelved()
    )


class PressureContract(FrontierCase):
    """Priorities among queues, shelving, shedding, taking everything, reviving."""

    # -- priorities -------------------------------------------------------------------

    def test_the_backlog_is_by_priority_then_by_age(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1))
        expected = [("b", 5), ("d", 5), ("a", 0), ("c", 0), ("e", -1)]
        assert list(frontier.backlog()) == expected
        commits(frontier, ("c", 9), ("a", -3))
        assert list(frontier.backlog()) == [("c", 9), *expected[:3], expected[4]]
        frontier.take("c", 2)
        assert list(frontier.backlog()) == [*expected[:3], ("c", 0), expected[4]]

    def test_the_backlog_can_be_looked_at_in_part(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 0), ("b", 5))
        assert next(frontier.backlog()) == ("b", 5)
        frontier.take("b", 2)
        assert next(frontier.backlog()) == ("a", 0)

    def test_the_best_priority_is_that_of_the_next_taken(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        assert frontier.best_priority("a") is None
        commits(frontier, ("a", 0), ("a", 7), ("a", 3))
        frontier.commit(Batch(found=[entry("later", "a", priority=9, due=clock.wall() + 5)]))
        for expected in (7, 3, 0):
            assert frontier.best_priority("a") == expected
            assert {one.priority for one in frontier.take("a", 2)} == {expected}
        assert frontier.best_priority("a") is None
        frontier.ripen(clock.wall() + 5)
        assert frontier.best_priority("a") == 9

    def test_take_leaves_what_is_not_above(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 0), ("a", 7), ("a", 3))
        assert of(frontier.take("a", 99, above=2)) == [("a", 7), ("a", 3)]
        assert frontier.take("a", 99, above=0) == []
        assert of(frontier.take("a", 99, above=-1)) == [("a", 0)]

    # -- shelving ---------------------------------------------------------------------

    def test_the_lowest_goes_first_then_the_youngest(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 1), ("b", 0), ("c", 1), ("d", 0), ("e", 2))
        left = [("e", 2), ("a", 1), ("c", 1), ("b", 0), ("d", 0)]
        for keep in (8, 6, 4, 2):
            assert frontier.shelve(9, keep) == 2
            left.pop()
            assert list(frontier.backlog()) == left
            assert frontier.shelved() == 10 - keep
            assert balanced(frontier)
        assert frontier.counts() == Counts(10, 10)
        assert of(drain(frontier)) == [("e", 2)]

    def test_what_comes_after_the_first_time_has_its_place(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 1), ("b", 0))
        assert frontier.shelve(9, 2) == 2
        commits(frontier, ("c", 1), ("d", 0), ("e", 1))
        assert frontier.shelve(9, 4) == 4
        assert [queue for queue, _ in frontier.backlog()] == ["a", "c"]

    def test_what_is_worth_enough_or_fits_is_not_shelved(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 1), ("b", 0))
        assert frontier.shelve(9, 4) == 0
        assert frontier.shelve(0, 0) == 0
        assert frontier.shelve(1, 0) == 2
        assert frontier.shelve(1, 0) == 0
        assert of(drain(frontier)) == [("a", 1)]

    def test_what_is_taken_or_waits_is_not_shelved_but_counts(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        commits(frontier, ("a", 0))
        drain(frontier)
        frontier.commit(Batch(found=[entry("later", "a", due=clock.wall() + 5)]))
        commits(frontier, ("b", 0), ("c", 0))
        assert frontier.shelve(1, 5) == 2
        assert frontier.shelve(1, 0) == 2
        assert frontier.counts().unfinished - frontier.shelved() == 3
        assert frontier.ripen(clock.wall() + 5) == {"a"}
        assert frontier.shelve(1, 0) == 1
        assert list(frontier.backlog()) == []

    def test_a_shelved_queue_is_unfinished_and_not_takeable(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 0), ("b", 5))
        frontier.shelve(1, 0)
        assert (frontier.shelved_queue("a"), frontier.shelved_queue("b")) == (2, 0)
        assert (frontier.unfinished("a"), frontier.has_more("a")) == (2, False)
        assert frontier.best_priority("a") is None
        assert frontier.take("a", 9) == []
        commits(frontier, ("a", 3))
        assert of(frontier.take("a", 9)) == [("a", 3)]
        assert frontier.shelved_queue("nowhere") == 0

    def test_the_best_comes_back_first_then_the_oldest(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 1), ("b", 0), ("c", 1), ("d", 2), ("e", 0))
        frontier.shelve(9, 0)
        assert frontier.unshelve(0) == set()
        back = []
        for room in (2, 2, 2, 4):
            touched = frontier.unshelve(room)
            back.append("".join(sorted(touched)))
            assert {queue for queue, _ in frontier.backlog()} >= touched
            assert balanced(frontier)
        assert back == ["d", "a", "c", "be"]
        assert frontier.unshelve(9) == set()
        assert len(drain(frontier)) == 10

    def test_some_room_brings_something_back(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 0), count=5)
        frontier.shelve(1, 0)
        assert frontier.unshelve(1) == {"a"}
        assert frontier.has_more("a")

    def test_to_and_fro_loses_and_repeats_nothing(self, frontier: Frontier) -> None:
        held: list[Entry] = []
        finished = 0
        for step in range(60):
            commits(frontier, ("ab"[step % 2], step % 5), count=3)
            frontier.shelve(4, 20)
            if step % 3 == 0:
                frontier.unshelve(step % 7)
            if step % 2:
                held = frontier.take("ab"[step % 4 // 2], 4)
                finished += len(held)
                frontier.commit(done(held))
            assert balanced(frontier)
        frontier.unshelve(1000)
        rest = drain(frontier)
        assert len({one.fp for one in rest}) == len(rest)
        assert len(rest) + finished == 180
        frontier.commit(done(rest))
        assert frontier.counts() == Counts(180, 0, done=180)
        assert dict(frontier.unfinished_by_queue()) == {}

    def test_a_queue_that_has_nothing_but_shelved_entries_can_be_helped(
        self, frontier: Frontier
    ) -> None:
        commits(frontier, ("a", 2), ("b", 0), ("b", 1), ("c", 0))
        frontier.shelve(2, 2)
        assert frontier.shelved() == 6
        assert frontier.unshelve_starved(0) == set()
        helped = frontier.unshelve_starved(9)
        assert helped == {"b", "c"}
        assert {frontier.best_priority(name) for name in "bc"} == {1, 0}, "the best of each"
        assert frontier.unshelve_starved(9) == set()
        held = [one for name in "bc" for one in frontier.take(name, 9)]
        frontier.commit(done(held))
        assert "b" in frontier.unshelve_starved(9), "it has more"
        frontier.unshelve(100)
        rest = drain(frontier)
        assert len(rest) + len(held) == 8
        frontier.commit(done(rest))
        assert balanced(frontier)

    # -- shedding ---------------------------------------------------------------------

    def test_the_surplus_is_what_would_be_shelved_but_taken(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 1), ("b", 0), ("c", 1), ("d", 0))
        assert of(frontier.surplus(9, 6)) == [("d", 0)]
        more = frontier.surplus(1, 0)
        assert of(more) == [("b", 0)]
        frontier.commit(Batch(finished=[Finish(one, "dropped", SHED) for one in more]))
        assert of(drain(frontier)) == [("a", 1), ("c", 1)]
        assert frontier.counts() == Counts(8, 6, dropped={SHED: 2})
        assert balanced(frontier)

    def test_the_surplus_is_no_more_than_is_too_many(self, frontier: Frontier) -> None:
        frontier.commit(Batch(found=entries(300)))
        more = frontier.surplus(1, 285)
        assert sorted(urls(more)) == sorted(urls(entries(300)[-15:])), "the youngest"
        frontier.commit(Batch(finished=[Finish(one, "dropped", SHED) for one in more]))
        frontier.commit(Batch(found=entries(301)[300:]))
        assert urls(frontier.surplus(1, 285)) == urls(entries(301)[300:]), "still older than that"
        left = drain(frontier)
        assert urls(left) == urls(entries(285))
        frontier.commit(done(left))
        assert frontier.counts() == Counts(301, 1, done=285, dropped={SHED: 15})
        assert balanced(frontier)

    def test_there_is_no_surplus_of_what_is_shelved(self, frontier: Frontier) -> None:
        commits(frontier, ("a", 0), ("b", 0))
        frontier.shelve(1, 2)
        assert frontier.surplus(1, 2) == []
        assert of(frontier.surplus(1, 0)) == [("a", 0)]
        assert frontier.shelved() == 2

    def test_what_is_shed_is_known_dropped_and_nowhere(self, frontier: Frontier) -> None:
        assert frontier.commit(Batch(shed=entries(3))) == set()
        assert frontier.counts() == Counts(3, 0, dropped={SHED: 3})
        assert all(one.fp in frontier.seen for one in entries(3))
        frontier.commit(Batch(found=entries(4)))
        assert urls(drain(frontier)) == urls(entries(4)[3:])
        assert frontier.counts() == Counts(4, 1, dropped={SHED: 3})
        assert Batch(shed=entries(1))

    def test_what_is_known_cannot_be_shed(self, frontier: Frontier) -> None:
        pending, found, alias, claimed, new, again = entries(6)
        again = Entry(new.url, new.fp)
        frontier.commit(Batch(found=[pending]))
        assert frontier.seen.claim(claimed.fp)
        shed = [pending, Entry(found.url, found.fp), alias, claimed, new, again]
        frontier.commit(Batch(found=[found], aliases=[alias.fp], shed=shed))
        assert frontier.counts() == Counts(3, 2, dropped={SHED: 1})
        assert len(drain(frontier)) == 2

    # -- everything of one queue --------------------------------------------------------

    def test_all_of_a_queue_is_what_is_cold_shelved_or_waits(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        commits(frontier, ("a", 9))
        held = drain(frontier)
        commits(frontier, ("a", 5), ("b", 0), ("a", 0))
        frontier.commit(Batch(found=[entry("later", "a", due=clock.wall() + 5)]))
        frontier.commit(Batch(found=[entry("later", "b", due=clock.wall() + 6)]))
        frontier.shelve(1, 5)
        assert (frontier.shelved_queue("a"), frontier.shelved_queue("b")) == (2, 2)
        taken = frontier.take_all("a")
        assert len({one.fp for one in taken}) == len(taken) == 5
        assert sorted({one.priority for one in taken}) == [0, 5]
        assert frontier.take_all("a") == []
        assert frontier.next_due() == clock.wall() + 6
        assert (frontier.shelved(), frontier.shelved_queue("a")) == (2, 0)
        assert list(frontier.backlog()) == []
        ends = [Finish(one, "dropped", "denied") for one in taken[1:]]
        waiting = successor(taken[0], due=clock.wall() + 9)
        frontier.commit(Batch(finished=ends, moved=[(taken[0], waiting)]))
        assert dict(frontier.unfinished_by_queue()) == {"a": 3, "b": 3}
        frontier.commit(done(held))
        assert frontier.unshelve(9) == {"b"}
        assert frontier.ripen(clock.wall() + 9) == {"a", "b"}
        assert len(drain(frontier)) == 4
        assert balanced(frontier)

    def test_all_of_nothing(self, frontier: Frontier) -> None:
        assert frontier.take_all("a") == []

    # -- reviving ---------------------------------------------------------------------

    def test_what_failed_is_pending_again_as_it_was_found(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        one = entry(0, "a", depth=2, priority=5, label="x", referrer="http://r/", seed=True)
        frontier.commit(Batch(found=[one]))
        [taken] = drain(frontier)
        hop = successor(taken, attempts=2, refusals=3, target="http://b/", hops=1)
        frontier.commit(Batch(moved=[(taken, hop)]))
        [taken] = drain(frontier)
        frontier.commit(Batch(finished=[Finish(taken, "failed", "5xx")]))
        assert frontier.counts() == Counts(1, 0, failed=1)
        assert list(frontier.revive([])) == [1]
        assert frontier.counts() == Counts(1, 1)
        assert list(frontier.backlog()) == [("b", 5)], "the target is seen: begin there"
        [again] = drain(frontier)
        assert again.target == "http://b/"
        assert successor(again) == successor(one)
        assert (again.hops, again.due) == (0, 0.0)
        assert (again.attempts, again.refusals) == (0, 0)
        frontier.commit(done([again]))
        assert list(frontier.revive([])) == []
        assert frontier.counts() == Counts(1, 0, done=1)

    @pytest.mark.parametrize(
        ("classes", "revived"),
        [([], "0123"), (["timeout"], "02"), (["5xx", "timeout"], "0123"), (["why"], "")],
    )
    def test_classes_choose_what_is_revived(
        self, frontier: Frontier, classes: list[str], revived: str
    ) -> None:
        frontier.commit(Batch(found=entries(7)))
        ends: list[Any] = [("failed", "timeout"), ("failed", "5xx")] * 2
        ends += [("done", "2xx"), ("dropped", "why"), ("dropped", SHED)]
        taken = drain(frontier)
        finished = [Finish(one, *end) for one, end in zip(taken, ends, strict=True)]
        for part in (finished[:3], finished[3:]):
            frontier.commit(Batch(finished=part))
        assert sum(frontier.revive(classes)) == len(revived)
        counts = frontier.counts()
        failed = 4 - len(revived)
        assert counts == Counts(7, len(revived), 1, failed, {"why": 1, SHED: 1})
        assert sorted(one.url[-1] for one in drain(frontier)) == list(revived)
        assert sum(frontier.revive([])) == failed
        assert frontier.counts() == Counts(7, 4, 1, 0, {"why": 1, SHED: 1})
