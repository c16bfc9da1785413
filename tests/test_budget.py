"""The byte bound: never passed by more than one body, the oldest never waits, nobody for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncrawl.clock import SystemClock
from syncrawl.engine.budget import RESERVATION, ByteBudget, Ticket
from syncrawl.errors import FetchError
from syncrawl.testing.clock import FakeClock

KIB = 1024
# Real seconds after which a threaded test counts as hung.
HANG_TIMEOUT = 20.0


class WouldBlock(Exception):
    """A `grow` would wait now."""


class StandingClock(FakeClock):
    """For one thread: a wait, which nobody could end, raises instead."""

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        raise WouldBlock


def reserve(budget: ByteBudget) -> Ticket:
    ticket = budget.reserve()
    assert ticket is not None
    return ticket


def on_thread(body: Callable[[], None]) -> Callable[[], list[BaseException]]:
    """Start `body`; what is returned joins it and gives what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as exc:  # noqa: BLE001 - handed to the test's thread
            raised.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> list[BaseException]:
        thread.join(HANG_TIMEOUT)
        assert not thread.is_alive(), "hung"
        return raised

    return join


def test_each_ticket_reserves_and_the_bound_holds() -> None:
    budget = ByteBudget(3 * RESERVATION, FakeClock())
    tickets = [reserve(budget) for _ in range(3)]
    assert budget.reserve() is None
    assert budget.held == 3 * RESERVATION
    budget.release(tickets[:1])
    assert reserve(budget).held == RESERVATION


def test_one_body_always_has_room() -> None:
    budget = ByteBudget(1, FakeClock())
    ticket = reserve(budget)
    assert budget.reserve() is None
    budget.grow(ticket, 10 * RESERVATION)
    assert budget.held == 10 * RESERVATION


def test_a_short_body_gives_back_what_it_did_not_need() -> None:
    budget = ByteBudget(2 * RESERVATION, FakeClock())
    first, _ = reserve(budget), reserve(budget)
    budget.finish_reading(first, 100)
    assert budget.held == RESERVATION + 100
    assert budget.reserve() is None, "a reservation is 64 KiB, and that is not free"
    budget.finish_reading(first, 0)
    assert budget.reserve() is not None


def test_growth_within_the_reservation_takes_nothing() -> None:
    budget = ByteBudget(RESERVATION, FakeClock())
    ticket = reserve(budget)
    budget.grow(ticket, RESERVATION)
    assert budget.held == RESERVATION


def test_releasing_twice_takes_away_once() -> None:
    budget = ByteBudget(4 * RESERVATION, FakeClock())
    first, second = reserve(budget), reserve(budget)
    budget.release([first, first])
    budget.release([first])
    assert budget.held == second.held == RESERVATION


def test_the_oldest_never_waits_and_alone_passes_the_bound() -> None:
    budget = ByteBudget(3 * RESERVATION, StandingClock())
    oldest, younger = reserve(budget), reserve(budget)
    budget.grow(younger, 2 * RESERVATION)
    with pytest.raises(WouldBlock):
        budget.grow(younger, 2 * RESERVATION + 1)
    budget.grow(oldest, 50 * RESERVATION)
    assert budget.held == 52 * RESERVATION
    budget.finish_reading(oldest, 50 * RESERVATION)
    with pytest.raises(WouldBlock):
        budget.grow(younger, 2 * RESERVATION + 1)
    budget.release([oldest])
    budget.grow(younger, 9 * RESERVATION)
    assert budget.peak == 52 * RESERVATION


def test_a_wait_ends_when_a_commit_frees_room() -> None:
    clock = FakeClock()
    budget = ByteBudget(3 * RESERVATION, clock)
    reserve(budget)
    done, waits = reserve(budget), reserve(budget)
    join = on_thread(lambda: budget.grow(waits, 2 * RESERVATION))
    clock.wait_for_waiters(1)
    clock.advance(2.5)
    clock.wait_for_waiters(1)
    budget.release([done])
    assert join() == []
    assert waits.held == 2 * RESERVATION
    assert budget.waited_seconds == pytest.approx(2.5)


def test_a_wait_ends_when_a_shorter_body_gives_back() -> None:
    clock = FakeClock()
    budget = ByteBudget(3 * RESERVATION, clock)
    reserve(budget)
    short, waits = reserve(budget), reserve(budget)
    join = on_thread(lambda: budget.grow(waits, 2 * RESERVATION - 10))
    clock.wait_for_waiters(1)
    budget.finish_reading(short, 10)
    assert join() == []


def test_a_wait_ends_when_the_waiter_becomes_the_oldest() -> None:
    clock = FakeClock()
    budget = ByteBudget(2 * RESERVATION, clock)
    oldest, waits = reserve(budget), reserve(budget)
    join = on_thread(lambda: budget.grow(waits, 7 * RESERVATION))
    clock.wait_for_waiters(1)
    budget.release([oldest])
    assert join() == []
    assert budget.held == 7 * RESERVATION


def test_a_wait_that_outlasts_its_exchange_is_our_pressure() -> None:
    clock = FakeClock()
    budget = ByteBudget(2 * RESERVATION, clock)
    reserve(budget)
    waits = reserve(budget)
    waits.deadline = clock.monotonic() + 15.0
    join = on_thread(lambda: budget.grow(waits, 2 * RESERVATION))
    clock.wait_for_waiters(1)
    clock.advance(14.9)
    clock.wait_for_waiters(1)
    clock.advance(0.2)
    (error,) = join()
    assert isinstance(error, FetchError)
    assert (error.outcome, error.ours) == ("pressure", True)
    assert waits.held == RESERVATION, "what it asked for in vain is not held"
    assert budget.waited_seconds == pytest.approx(15.1)


def test_a_ticket_without_a_deadline_can_wait_on_the_real_clock() -> None:
    budget = ByteBudget(2 * RESERVATION, SystemClock())
    oldest, waits = reserve(budget), reserve(budget)
    entered = threading.Event()

    def grow() -> None:
        entered.set()
        budget.grow(waits, 2 * RESERVATION)

    join = on_thread(grow)
    assert entered.wait(HANG_TIMEOUT)
    budget.release([oldest])
    assert join() == []


events = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "grow", "finish", "release"]),
        st.integers(0, 20),
        st.integers(1, 300 * KIB),
    ),
    max_size=60,
)


@given(events, st.integers(RESERVATION, 8 * RESERVATION))
@settings(deadline=None)
def test_the_bound_and_one_body_whatever_happens(
    events: list[tuple[str, int, int]], max_bytes: int
) -> None:
    budget = ByteBudget(max_bytes, StandingClock())
    tickets: list[Ticket] = []
    read: set[int] = set()
    for what, which, size in events:
        if what == "reserve":
            room = not tickets or budget.held + RESERVATION <= max_bytes
            ticket = budget.reserve()
            assert (ticket is not None) is room
            if ticket is not None:
                tickets.append(ticket)
            continue
        if not tickets:
            continue
        ticket = tickets[which % len(tickets)]
        if what == "grow" and id(ticket) not in read:
            before = ticket.held
            try:
                budget.grow(ticket, size)
            except WouldBlock:
                assert ticket is not tickets[0], "the oldest never waits"
                assert budget.held + size - before > max_bytes, "there was room"
                assert ticket.held == before
        elif what == "finish" and id(ticket) not in read:
            # A reader holds what it read, never more than it was granted.
            budget.finish_reading(ticket, min(size, ticket.held))
            read.add(id(ticket))
        elif what == "release":
            tickets.remove(ticket)
            budget.release([ticket])
        assert budget.held == sum(each.held for each in tickets)
        others = sum(each.held for each in tickets[1:])
        assert others <= max_bytes
        assert budget.held <= max_bytes or budget.held - tickets[0].held <= max_bytes
    budget.release(tickets)
    assert budget.held == 0


@pytest.mark.parametrize("seed", range(4))
def test_readers_that_all_grow_never_wait_for_one_another(seed: int) -> None:
    """Bodies of up to the whole bound, more readers than fit, commits in any order."""
    most = 6 * RESERVATION
    budget = ByteBudget(most, SystemClock())
    rng = random.Random(seed)
    freed = threading.Condition()
    committed: list[int] = []
    bodies = [[rng.randint(1, most) for _ in range(15)] for _ in range(8)]
    largest = max(size for sizes in bodies for size in sizes)

    def read(sizes: list[int]) -> None:
        for size in sizes:
            while (ticket := budget.reserve()) is None:
                with freed:
                    freed.wait(0.01)
            total = 0
            while total < size:
                total = min(size, total + 50 * KIB)
                budget.grow(ticket, total)
            budget.finish_reading(ticket, size)
            budget.release([ticket])
            committed.append(size)
            with freed:
                freed.notify_all()

    started = time.monotonic()
    joins = [on_thread(lambda sizes=sizes: read(sizes)) for sizes in bodies]  # type: ignore[misc]
    assert [join() for join in joins] == [[]] * 8
    assert len(committed) == 8 * 15
    assert budget.held == 0
    assert budget.peak <= most + largest
    assert time.monotonic() - started < HANG_TIMEOUT
