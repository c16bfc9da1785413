"""Hosts that turn us away: 403s that become the rule, forced pauses, and the retry budgets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncrawl.config.model import PauseConfig, RetryConfig
from syncrawl.limits.forbidden import ForbiddenWatch
from syncrawl.limits.pause import RefusalPause
from syncrawl.limits.retry import RetryBudget, RetryPolicy

# -- 403, 451 -----------------------------------------------------------------------------


def verdicts(answers: str) -> list[int]:
    """At which answers ("x" = forbidden) the host was to be left alone, counted from 1."""
    watch = ForbiddenWatch()
    return [number for number, kind in enumerate(answers, 1) if watch.note(kind == "x")]


@pytest.mark.parametrize(
    ("answers", "at"),
    [
        ("x" * 9, []),
        ("x" * 10, [10]),
        ("x" * 20, [10, 20]),  # it starts over
        ("x." * 10, [19]),  # half of the last twenty
        ("x.." * 30, []),  # a third
        ("x" * 9 + "." * 11 + "x", []),  # the first has just gone out of sight
        ("x" * 9 + "." * 10 + "x", [20]),
        ("." * 500 + "x" * 10, [510]),
        ("." * 100, []),
    ],
)
def test_half_of_the_last_twenty(answers: str, at: list[int]) -> None:
    assert verdicts(answers) == at


@given(st.lists(st.booleans(), max_size=150))
def test_no_verdict_without_ten_of_the_last_twenty_since_the_last(answers: list[bool]) -> None:
    watch, since = ForbiddenWatch(), 0
    for number, forbidden in enumerate(answers, 1):
        seen = answers[max(since, number - 20) : number]
        assert watch.note(forbidden) == (forbidden and sum(seen) >= 10)
        if forbidden and sum(seen) >= 10:
            since = number


# -- pauses -------------------------------------------------------------------------------


def pauser(**config: float) -> RefusalPause:
    return RefusalPause(PauseConfig(**config), random.Random(5))  # type: ignore[arg-type]


def test_a_forced_pause_needs_no_streak_and_doubles_like_any_other() -> None:
    subject, now = pauser(), 0.0
    for number in range(5):
        seconds = subject.force(now)
        assert 60.0 * 2**number <= seconds <= 75.0 * 2**number
        now += seconds + 1.0
    # One ladder for both kinds.
    assert not subject.on_refusal(now, at_floor=True)
    assert not subject.on_refusal(now + 1.0, at_floor=True)
    assert subject.on_refusal(now + 2.0, at_floor=True) >= 60.0 * 2**5


def test_while_it_pauses_nothing_is_forced() -> None:
    subject = pauser()
    seconds = subject.force(100.0)
    assert subject.force(100.0 + seconds - 0.1) == 0.0
    assert subject.force(100.0 + seconds) >= 120.0


def test_a_forced_pause_is_forgiven_like_any_other() -> None:
    subject = pauser(forgiven_after=100.0)
    first = subject.force(0.0)
    assert subject.force(first + 90.0) >= 120.0
    assert subject.force(first + 90.0 + 150.0 + 101.0) <= 75.0


def test_the_four_constants_come_from_the_configuration() -> None:
    subject = pauser(refusals=2, first=1.0, longest=3.0, forgiven_after=50.0)
    assert subject.on_refusal(0.0, at_floor=True) == 0.0
    lengths, now = [], 1.0
    for _ in range(4):
        lengths.append(subject.on_refusal(now, at_floor=True) or subject.force(now))
        now += lengths[-1] + 1.0
    bounds = [(1.0, 1.25), (2.0, 2.5), (3.0, 3.0), (3.0, 3.0)]
    assert all(low <= one <= high for one, (low, high) in zip(lengths, bounds, strict=True))
    assert subject.force(now + 60.0) <= 1.25


def test_the_refusals_a_url_may_have_come_from_the_configuration() -> None:
    assert RetryPolicy(RetryConfig(), random.Random(1)).max_refusals == 20
    assert RetryPolicy(RetryConfig(max_refusals=3), random.Random(1)).max_refusals == 3


# -- budgets ------------------------------------------------------------------------------


class Budgets:
    """Many hosts' budgets, kept as the ledger keeps them."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.first: dict[str, int] = {}
        self.retries: dict[str, int] = {}

    def attempt(self, host: str, times: int = 1) -> None:
        self.first[host] = self.first.get(host, 0) + times

    def spend(self, host: str) -> bool:
        budget = RetryBudget(
            self.ratio,
            self.first[host],
            self.retries.get(host, 0),
            sum(self.first.values()),
            sum(self.retries.values()),
        )
        if granted := budget.spend():
            self.retries[host] = budget.retries
        return granted


@given(
    ratio=st.sampled_from([0.0, 0.1, 0.25, 1.0]),
    events=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=300),
)
def test_retries_stay_within_both_shares(ratio: float, events: list[tuple[str, bool]]) -> None:
    budgets = Budgets(ratio)
    for host, retry in events:
        if not retry or host not in budgets.first:
            budgets.attempt(host)
            continue
        spent, overall = budgets.retries.get(host, 0), sum(budgets.retries.values())
        granted = budgets.spend(host)
        if spent < 2:
            assert granted
        elif granted:
            assert spent + 1 <= ratio * budgets.first[host]
            assert overall + 1 <= ratio * sum(budgets.first.values())
        assert budgets.retries.get(host, 0) <= max(2, ratio * budgets.first[host])


@pytest.mark.parametrize("others", [0, 5_000])
def test_a_host_where_everything_fails_costs_a_tenth_more_than_its_urls(others: int) -> None:
    """Each URL is tried, and again while budget and attempts last, the budget growing meanwhile."""
    budgets, attempts = Budgets(0.1), 3
    if others:
        budgets.attempt("other", others)
    requests = 0
    waiting = [1] * 200
    while waiting:
        tried = waiting.pop(0)
        requests += 1
        if tried == 1:
            budgets.attempt("bad")
        if tried < attempts and budgets.spend("bad"):
            waiting.insert(0, tried + 1)
    assert budgets.first["bad"] == 200
    assert 200 < requests <= 1.1 * 200 + 2
    assert requests == 220


def test_other_hosts_retries_leave_a_failing_host_its_two() -> None:
    budgets = Budgets(0.1)
    budgets.attempt("spent", 1_000)
    budgets.attempt("bad", 100)
    while budgets.spend("spent"):
        pass
    assert budgets.retries["spent"] == 100
    # 110 for all: "bad" has room for ten of its own, and all hosts together for as many.
    granted = sum(budgets.spend("bad") for _ in range(50))
    assert granted == 10
    budgets.attempt("late", 100)
    budgets.retries["bad"] += 10
    assert sum(budgets.spend("late") for _ in range(50)) == 2
