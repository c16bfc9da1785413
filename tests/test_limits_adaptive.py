"""The adaptive limit: what it remembers of refusals, and what comes of it at simulated servers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncrawl.limits.aimd import AimdLimiter
from tests.limiting import Server, Simulation

SEEDS = [1, 2, 3]


def succeed(limiter: AimdLimiter, now: float, windows: int = 1, seconds: float = 0.1) -> float:
    """`windows` windows of successes, each a round trip after the last; the time after them."""
    for _ in range(windows):
        for _ in range(int(limiter.limit)):
            limiter.on_success(now + seconds, now, tested=True)
        now += seconds + 1e-6
    return now


def refused_at(level: int, now: float = 10.0) -> AimdLimiter:
    """A limiter that was refused at its limit of `level`, and that has a round trip of 0.1 s."""
    limiter = AimdLimiter(level, 1, 32)
    limiter.on_success(now - 1.0, now - 1.1, tested=False)
    assert limiter.on_refusal(now, now - 0.1, level)
    return limiter


# -- memory -------------------------------------------------------------------------------


def test_a_refused_level_is_not_reached_again_before_a_rest() -> None:
    limiter = refused_at(13)
    assert (limiter.limit, limiter.refused) == (6.5, 13)
    now = succeed(limiter, 10.1, windows=8)
    assert limiter.limit == 12.0
    # Counted from when it got there, which is what the first windows above took.
    succeed(limiter, now, windows=6)
    assert limiter.limit == 12.0


def test_the_way_back_takes_ever_smaller_steps() -> None:
    limiter, now = refused_at(25), 10.1
    steps = []
    while (before := limiter.limit) < 24.0:
        now = succeed(limiter, now)
        steps.append(limiter.limit - before)
        left = 24.0 - before
        # Half of what is left, a little less since each success counts from the limit it met.
        assert min(left, 0.9, 0.35 * left) <= steps[-1] <= max(1.0, 0.5 * left)
    assert steps == sorted(steps, reverse=True)
    assert len(steps) <= 7, "one a round trip would have taken twelve"


def test_after_the_rest_the_level_is_tried_and_a_whole_window_forgets_it() -> None:
    limiter = refused_at(5)
    now = succeed(limiter, 10.1, windows=5)
    now = succeed(limiter, now + 1.6)
    assert (limiter.limit, limiter.refused) == (5.0, 5)
    # What was under way before it was tried says nothing of it.
    for _ in range(20):
        limiter.on_success(now + 0.01, now - 1.0, tested=True)
    assert limiter.refused == 5
    for _ in range(4):
        limiter.on_success(now + 0.1, now, tested=True)
    assert (limiter.limit, limiter.refused) == (5.0, 5)
    limiter.on_success(now + 0.1, now, tested=True)
    assert limiter.refused is None
    succeed(limiter, now + 0.2, windows=3)
    assert limiter.limit > 8.0


def test_a_refused_try_halves_and_is_remembered() -> None:
    limiter = refused_at(5)
    now = succeed(limiter, 10.1, windows=5)
    now = succeed(limiter, now + 1.6)
    limiter.on_success(now + 0.1, now, tested=True)
    assert limiter.on_refusal(now + 0.1, now, 5)
    assert (limiter.limit, limiter.refused) == (2.5, 5)
    # Not forgotten by successes of the try before.
    for _ in range(10):
        limiter.on_success(now + 0.1, now, tested=True)
    assert (limiter.limit, limiter.refused) == (2.5, 5)


def test_a_slow_host_rests_for_round_trips() -> None:
    limiter = refused_at(5)
    now = succeed(limiter, 10.1, windows=40, seconds=1.0)
    assert limiter.refused is None, "eight seconds have passed several times"
    limiter = refused_at(5)
    for _ in range(60):
        limiter.on_success(10.1, 0.0, tested=False)
    now = succeed(limiter, 11.0, windows=5, seconds=1.0)
    assert limiter.limit == 4.0
    now = succeed(limiter, now, windows=4, seconds=1.0)
    assert limiter.limit == 4.0, "1.5 s are long over, eight round trips are not"


def test_a_refusal_of_one_overtaken_is_put_down_to_the_one_beyond() -> None:
    limiter = AimdLimiter(13, 1, 32)
    limiter.on_refusal(1.0, 0.9, 12)
    assert limiter.refused == 13
    # Far below the limit it is no overtaking: fewer than allowed were under way.
    limiter = AimdLimiter(13, 1, 32)
    limiter.on_refusal(1.0, 0.9, 6)
    assert limiter.refused == 6


def test_a_host_that_has_recovered_is_found_out_ever_faster() -> None:
    limiter = refused_at(5)
    now = succeed(limiter, 10.1, windows=5)
    now = succeed(limiter, now + 1.6, windows=2)
    assert limiter.refused is None
    steps = []
    for _ in range(4):
        before = limiter.limit
        now = succeed(limiter, now)
        steps.append(limiter.limit - before)
    assert steps == sorted(steps)
    assert steps[-1] > 2.0
    limiter.on_refusal(now + 0.1, now, int(limiter.limit))
    assert limiter._stride == 1.0


def test_a_floor_that_is_refused_is_no_level_to_avoid() -> None:
    limiter = AimdLimiter(3, 3, 6)
    limiter.on_refusal(1.0, 0.9, 3)
    assert (limiter.limit, limiter.refused) == (3.0, 4)
    assert "refused at 4" in repr(limiter)


# -- gentle cuts --------------------------------------------------------------------------


def test_a_gentle_cut_takes_a_tenth_and_holds_for_ten_round_trips() -> None:
    limiter = AimdLimiter(20, 1, 32)
    now = succeed(limiter, 10.0)
    before = limiter.limit
    assert limiter.on_latency(now)
    assert limiter.limit == pytest.approx(before * 0.9)
    assert limiter.refused is None
    now = succeed(limiter, now + 0.01, windows=9)
    assert limiter.limit == pytest.approx(before * 0.9)
    succeed(limiter, now, windows=3)
    assert limiter.limit > before * 0.9 + 0.9


def test_a_gentle_cut_stops_at_the_floor() -> None:
    limiter = AimdLimiter(4, 3, 32)
    cuts = [limiter.on_latency(float(now)) for now in range(10)]
    assert limiter.limit == 3.0
    assert limiter.cuts == sum(cuts) < 10
    assert not cuts[-1]


def test_a_gentle_cut_keeps_the_refused_level_and_ends_its_try() -> None:
    limiter = refused_at(13)
    now = succeed(limiter, 10.1, windows=8)
    now = succeed(limiter, now + 1.6)
    assert limiter.limit == 13.0, "it is being tried"
    limiter.on_latency(now)
    assert limiter.limit == pytest.approx(11.7)
    assert limiter.refused == 13
    # Two windows below the level must not pass for one at the level.
    succeed(limiter, now + 1.1, windows=2)
    assert (limiter.limit, limiter.refused) == (12.0, 13)


def test_cut_to_the_floor() -> None:
    limiter = AimdLimiter(20, 2, 32)
    limiter.cut_to_floor(5.0)
    assert limiter.limit == 2.0
    assert limiter.at_floor
    limiter.on_success(5.1, 4.9, tested=True)
    assert limiter.limit == 2.0, "it was admitted before the cut"


@given(
    floor=st.integers(1, 5),
    extra=st.integers(0, 6),
    start=st.integers(1, 12),
    events=st.lists(st.tuples(st.sampled_from("srlf"), st.floats(0.0, 2.0)), max_size=200),
)
def test_the_limit_never_leaves_its_bounds(
    floor: int, extra: int, start: int, events: list[tuple[str, float]]
) -> None:
    limiter, now = AimdLimiter(start, floor, floor + extra), 10.0
    for kind, seconds in events:
        before, level = limiter.limit, max(1, int(limiter.limit))
        if kind == "s":
            limiter.on_success(now + seconds, now, tested=True)
            assert before <= limiter.limit < before + 8.0
        elif kind == "r":
            limiter.on_refusal(now + seconds, now, level)
        elif kind == "l":
            limiter.on_latency(now)
        else:
            limiter.cut_to_floor(now)
        assert floor <= limiter.limit <= floor + extra
        now += seconds


# -- at simulated servers -----------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_refuses_beyond_twelve_is_used_to_the_full(seed: int) -> None:
    host = Simulation(Server(capacity=12), seed=seed)
    host.run(60.0)
    assert host.mean(5.0, 60.0) >= 0.9 * 12
    assert host.refused(5.0, 60.0) <= 0.006
    assert host.peak <= 14


@pytest.mark.parametrize(
    ("service", "until", "share"), [(0.01, 15.0, 0.9), (1.0, 120.0, 0.85), (3.0, 300.0, 0.82)]
)
def test_fast_and_slow_servers_too(service: float, until: float, share: float) -> None:
    host = Simulation(Server(capacity=12, service=service))
    host.run(until)
    settled = until / 4.0
    assert host.mean(settled, until) >= share * 12
    assert host.refused(settled, until) <= 0.01


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lasts", [10.0, 30.0, 31.3])
def test_a_capacity_that_falls_and_returns_is_followed_within_three_seconds(
    seed: int, lasts: float
) -> None:
    server = Server(capacity=12)
    host = Simulation(server, seed=seed)
    host.run(20.0)
    server.capacity = 4
    back = 20.0 + lasts
    host.run(back)
    assert 3.0 <= host.mean(23.0, back) <= 4.0
    assert host.refused(23.0, back) <= 0.02
    server.capacity = 12
    host.run(back + 5.0)
    reached = next(moment for moment, active in host.active if moment > back and active >= 10)
    assert reached <= back + 3.0
    assert host.mean(back + 3.0, back + 5.0) >= 9.0


def test_the_ceiling_holds_whatever_the_server_could_take() -> None:
    host = Simulation(Server())
    host.run(20.0)
    assert host.peak == 32
    assert host.mean(5.0, 20.0) > 31.0


def test_few_workers_do_not_let_the_limit_drift_up() -> None:
    host = Simulation(Server(), workers=3)
    host.run(20.0)
    assert host.limiter.limit == 4.0


def test_a_server_that_refuses_everything_brings_the_limit_to_the_floor_and_back() -> None:
    server = Server(capacity=0)
    host = Simulation(server, AimdLimiter(16, 2, 32))
    host.run(1.0)
    assert host.limiter.at_floor
    server.capacity = 10
    host.run(15.0)
    assert host.mean(8.0, 15.0) >= 0.85 * 10


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 20, 31])
def test_any_capacity_is_found(capacity: int) -> None:
    host = Simulation(Server(capacity=capacity), seed=random.Random(capacity).randrange(1_000))
    host.run(40.0)
    assert host.mean(10.0, 40.0) >= 0.8 * capacity
    assert host.refused(10.0, 40.0) <= 0.06
