"""Rising latency: what counts as a rise, whose it is, and what the gentle cuts come to."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable

import pytest

from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.latency import Climate, LatencyWatch
from tests.limiting import Server, Simulation

# What a note and a judgement may cost together, in seconds: ten times what they do, since
# this tells a search among all hosts from none and not a fast machine from a slow one.
COST = 30e-6


class Hosts:
    """Some hosts that answer in turn, and how often each would have been cut."""

    def __init__(self, count: int) -> None:
        self.climate = Climate()
        self.watches = [LatencyWatch() for _ in range(count)]
        self.cuts = [0] * count
        self.now = 1_000.0

    def answer(self, seconds: list[float], rounds: int, *, tested: bool = True) -> None:
        """`rounds` answers of each host, 50 ms apart; None as seconds is silence."""
        for _ in range(rounds):
            self.now += 0.05
            for number, (watch, one) in enumerate(zip(self.watches, seconds, strict=True)):
                if not math.isnan(one):
                    watch.note(one, self.now)
                    self.cuts[number] += self.climate.judge(watch, self.now, tested=tested)


SILENT = math.nan


def watched(*runs: tuple[float, int], gap: float = 0.05) -> LatencyWatch:
    """A host's watch after runs of (seconds, how many times)."""
    watch, now = LatencyWatch(), 1_000.0
    for seconds, times in runs:
        for _ in range(times):
            now += gap
            watch.note(seconds, now)
    return watch


# -- one host -----------------------------------------------------------------------------


def test_fewer_than_twenty_samples_say_nothing() -> None:
    watch = watched((0.1, 19))
    assert watch.typical is None
    assert (watch.rise, watch.risen) == (1.0, False)
    assert watched((0.1, 20)).typical == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [
        (0.1, 0.3, True),
        (0.1, 0.18, False),  # not twice as much
        (0.001, 0.041, False),  # forty times as much, and no 50 ms
        (0.001, 0.060, True),
        (0.03, 0.07, False),
        (5.0, 5.0, False),  # slow, and as ever
        (0.0, 0.0, False),
        (0.3, 0.1, False),
    ],
)
def test_a_rise_is_a_factor_and_a_time(before: float, after: float, risen: bool) -> None:
    assert watched((before, 100), (after, 300)).risen is risen


def test_a_rise_is_told_as_a_factor() -> None:
    watch = watched((0.1, 100), (0.4, 500))
    assert watch.rise == pytest.approx(4.0, rel=0.01)
    assert watch.least == pytest.approx(0.1)
    assert "rise=4.00" in repr(watch)
    assert "unknown" in repr(LatencyWatch())


def test_a_single_slow_answer_is_no_rise() -> None:
    assert not watched((0.05, 100), (15.0, 1), (0.05, 4)).risen


def test_after_an_idle_hour_a_slow_answer_is_no_rise() -> None:
    watch = watched((0.05, 200))
    now = watch.noted_at + 3_600.0
    for _ in range(19):
        now += 1.0
        watch.note(4.0, now)
        assert not watch.risen
        assert watch.typical is None


def test_samples_that_come_slowly_are_never_recent_enough() -> None:
    # A Crawl-delay of 5 s: twenty samples take 95 s.
    watch = watched((0.1, 100), (3.0, 100), gap=5.0)
    assert watch.typical is None
    assert not watch.risen
    assert watched((0.1, 100), (3.0, 100), gap=2.0).risen


def test_a_host_that_slows_down_to_a_trickle_is_not_judged_by_its_past() -> None:
    watch = watched((0.1, 100), (1.0, 200))
    assert watch.risen
    now = watch.noted_at
    for _ in range(25):
        now += 30.0
        watch.note(1.0, now)
    assert not watch.risen


def test_the_least_is_forgotten_after_five_minutes() -> None:
    watch = watched((0.1, 200), (0.4, 2_000), gap=0.1)
    assert watch.risen, "220 s later"
    now = watch.noted_at
    for _ in range(1_500):
        now += 0.1
        watch.note(0.4, now)
    assert watch.least == pytest.approx(0.4, rel=0.01)
    assert not watch.risen
    assert len(watch._least) <= 10


# -- all hosts ----------------------------------------------------------------------------


def test_the_host_that_rises_alone_is_cut_alone() -> None:
    hosts = Hosts(5)
    hosts.answer([0.1] * 5, 200)
    hosts.answer([0.1, 0.1, 0.5, 0.1, 0.1], 200)
    assert hosts.cuts[2] >= 1
    assert hosts.cuts[:2] + hosts.cuts[3:] == [0, 0, 0, 0]


def test_where_all_rise_alike_nobody_is_cut() -> None:
    hosts = Hosts(5)
    hosts.answer([0.1] * 5, 200)
    hosts.answer([0.5] * 5, 600)
    assert all(watch.risen for watch in hosts.watches)
    assert hosts.cuts == [0] * 5


def test_two_others_are_too_few_to_compare_with() -> None:
    hosts = Hosts(3)
    hosts.answer([0.1] * 3, 200)
    hosts.answer([0.5] * 3, 200)
    assert min(hosts.cuts) >= 1


def test_others_that_fell_silent_do_not_excuse_a_host_for_ever() -> None:
    hosts = Hosts(5)
    hosts.answer([0.1] * 5, 200)
    hosts.answer([0.5] * 5, 200)
    hosts.answer([0.5, SILENT, SILENT, SILENT, 0.5], 1_190)
    assert hosts.cuts == [0] * 5, "their last answer is not a minute old"
    hosts.answer([0.5, SILENT, SILENT, SILENT, 0.5], 30)
    assert hosts.cuts == [1, 0, 0, 0, 1]


def test_one_that_has_just_come_back_does_not_count_as_calm() -> None:
    hosts = Hosts(8)
    calm, gone = [0.1] * 4, [SILENT] * 4
    hosts.answer(calm + calm, 200)
    hosts.answer(calm + gone, 1_300)
    hosts.answer([0.5] * 4 + gone, 300)
    # The four who say little as yet must not outvote the three others who rose.
    hosts.answer([0.5] * 4 + calm, 19)
    assert hosts.cuts == [0] * 8


def test_a_host_that_rises_with_the_others_is_looked_at_again_in_a_round_trip() -> None:
    class Counting(Climate):
        compared = 0

        def _rises_alike(self, watch: LatencyWatch, now: float) -> bool:
            self.compared += 1
            return super()._rises_alike(watch, now)

    hosts = Hosts(5)
    hosts.climate = counting = Counting()
    hosts.answer([0.1] * 5, 200)
    hosts.answer([0.5] * 5, 400)
    before = counting.compared
    hosts.answer([0.5] * 5, 200)
    # 10 s at a round trip of half a second: twenty times each, out of two hundred answers.
    assert 80 <= counting.compared - before <= 110


def test_two_cuts_are_ten_round_trips_apart() -> None:
    watch, climate, now = watched((0.1, 200)), Climate(), 1_100.0
    cuts: list[tuple[float, float]] = []
    for _ in range(600):
        now += 0.05
        watch.note(0.5, now)
        if climate.judge(watch, now, tested=True):
            assert watch.typical is not None
            cuts.append((now, watch.typical))
    assert len(cuts) >= 5
    for (earlier, typical), (later, _) in itertools.pairwise(cuts):
        assert later - earlier >= 10.0 * typical


def test_only_requests_that_used_the_limit_up_may_cut() -> None:
    hosts = Hosts(1)
    hosts.answer([0.1], 200)
    hosts.answer([0.5], 200, tested=False)
    assert hosts.watches[0].risen
    assert hosts.cuts == [0]
    hosts.answer([0.5], 1)
    assert hosts.cuts == [1]


def test_what_is_remembered_of_hosts_is_bounded() -> None:
    hosts = Hosts(200)
    hosts.answer([0.1] * 200, 100)
    hosts.answer([0.5] * 200, 100)
    assert repr(hosts.climate) == "Climate(50 hosts)"


def test_cost() -> None:
    """A sample costs no search among the hosts, not even while all of them have risen."""
    hosts = Hosts(50)
    best = math.inf
    for seconds in (0.1, 0.5, 0.5):
        began = time.perf_counter()
        hosts.answer([seconds] * 50, 100)
        best = time.perf_counter() - began if seconds == 0.5 else best
    assert best / 5_000 < COST


# -- at simulated servers -----------------------------------------------------------------


def limited(server: Server, seconds: float = 60.0, seed: int = 1) -> Simulation:
    host = Simulation(server, AimdLimiter(4, 1, 32), Climate(), seed)
    host.run(seconds)
    return host


@pytest.mark.parametrize("knee", [4, 8])
def test_a_server_that_slows_under_load_is_held_near_twice_its_pace(knee: int) -> None:
    host = limited(Server(knee=knee), 90.0)
    assert 1.5 * knee <= host.mean(20.0, 90.0) <= 2.6 * knee
    # Gentle: no sample in the whole time halves it.
    assert min(active for moment, active in host.active if moment > 20.0) >= knee


def test_gentle_cuts_that_help_nothing_give_way_after_five_minutes() -> None:
    """A page that is slower for reasons of its own is the host's pace from then on."""
    server = Server()
    host = limited(server, 30.0)
    server.service = 0.4
    host.run(200.0)
    assert host.mean(190.0, 200.0) < 16.0
    host.run(700.0)
    assert host.mean(660.0, 700.0) > 30.0


def two_kinds(share: float) -> Callable[[random.Random], float]:
    """Pages of which `share` take twenty times as long as the others."""
    return lambda rng: 2.0 if rng.random() < share else 0.1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_site_of_fast_and_slow_pages_is_not_held_back(share: float, seed: int) -> None:
    host = limited(Server(spread=two_kinds(share)), seed=seed)
    assert host.mean(15.0, 60.0) > 29.0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_site_whose_pages_vary_widely_is_not_held_back(seed: int) -> None:
    host = limited(Server(spread=lambda rng: math.exp(rng.gauss(0.0, 0.8))), seed=seed)
    assert host.mean(15.0, 60.0) > 29.0
