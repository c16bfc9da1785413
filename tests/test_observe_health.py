"""A host's health: slow is one thing, turning against us another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncrawl.engine.ledger import HostTotals
from syncrawl.limits.health import condition, letter_of, moved, remembered
from syncrawl.limits.signals import RULES
from syncrawl.observe.report import standing


def after(*outcomes: str, start: HostTotals | None = None) -> HostTotals:
    host = start or HostTotals()
    for outcome in outcomes:
        host.note(outcome)
    return host


def test_slow_answers_lower_it_mildly_and_for_good_not_below_half() -> None:
    host = after(*["timeout"] * 200)
    assert 0.5 <= host.health < 0.6
    assert condition(host.recent) == "slow"


@pytest.mark.parametrize("outcome", ["throttled", "403", "451", "challenge"])
def test_refusals_lower_it_sharply(outcome: str) -> None:
    host = after(*["2xx"] * 50, *[outcome] * 6)
    assert host.health < 0.3
    assert after(*[outcome] * 14, start=host).health < 0.05


def test_a_host_that_fails_lies_between() -> None:
    failing, slow, against = (after(*[o] * 20).health for o in ("5xx", "timeout", "throttled"))
    assert against < failing < slow


def test_twenty_good_answers_forgive() -> None:
    host = after(*["throttled"] * 50)
    assert host.health < 0.01
    assert after(*["2xx"] * 5, start=host).health < 0.5
    assert after(*["2xx"] * 15, start=host).health > 0.9
    assert condition(host.recent) == "ok"


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("2xx", "ok"),
        ("4xx", "ok"),
        ("304", "ok"),
        ("timeout", "slow"),
        ("throttled", "throttled"),
        ("403", "blocking"),
        ("451", "blocking"),
        ("challenge", "blocking"),
        ("5xx", "failing"),
        ("incomplete", "failing"),
        ("connect", "unreachable"),
        ("dns", "unreachable"),
    ],
)
def test_condition_in_a_word(outcome: str, word: str) -> None:
    assert condition(after(*[outcome] * 20).recent) == word
    # A quarter of the last twenty is enough, less is not.
    assert condition(after(*["2xx"] * 15, *[outcome] * 5).recent) == word
    assert condition(after(*["2xx"] * 16, *[outcome] * 4).recent) == "ok"


@pytest.mark.parametrize("letter", "btufs")
def test_one_or_two_say_nothing_of_a_host_however_few_it_gave(letter: str) -> None:
    assert condition(letter + "ggg") == "ok"
    assert condition(letter * 2) == "ok"
    # Three do, while they are a quarter of what is known.
    assert condition(letter * 3) != "ok"
    assert condition(letter * 3 + "g" * 9) != "ok"
    assert condition(letter * 3 + "g" * 10) == "ok"


def test_slow_answers_never_read_as_turning_against_us() -> None:
    for bad in range(21):
        word = condition("s" * bad + "g" * (20 - bad), risen=True)
        assert standing({"condition": word, "paused_until": None}, 0.0) == "slow"
    assert condition("bb" + "s" * 18) == "slow"


def test_of_several_the_gravest_counts() -> None:
    assert condition("g" * 10 + "s" * 5 + "b" * 5) == "blocking"
    assert condition("f" * 15 + "t" * 5) == "throttled"


def test_a_latency_that_rose_is_slow_and_nothing_graver() -> None:
    assert condition("", risen=False) == "ok"
    assert condition("g" * 20, risen=True) == "slow"
    assert condition("t" * 20, risen=True) == "throttled"


@pytest.mark.parametrize(
    "outcome",
    [
        "pressure",
        "stale",
        "lost",
        "proxy",
        "address",
        "url",
        "internal",
        "gateway_throttled",
        "gateway_failed",
        "gateway_unreached",
        "gateway_exhausted",
        "made-up-by-a-plugin",
    ],
)
def test_what_is_not_the_hosts_doing_says_nothing_of_it(outcome: str) -> None:
    assert letter_of(outcome) is None
    host = after(outcome)
    assert (host.health, host.recent, host.outcomes) == (1.0, "", {outcome: 1})


@given(st.lists(st.sampled_from(sorted(RULES)), max_size=60))
def test_it_stays_a_share_and_a_memory_of_twenty(outcomes: list[str]) -> None:
    host = after(*outcomes)
    assert 0.0 <= host.health <= 1.0
    said = [letter for outcome in outcomes if (letter := letter_of(outcome))]
    assert host.recent == "".join(said[-20:])


def test_one_outcome_moves_it_towards_its_worth_only() -> None:
    assert moved(1.0, "g") == 1.0
    assert moved(0.2, "s") > 0.2
    assert moved(0.9, "s") < 0.9
    assert remembered("g" * 20, "t") == "g" * 19 + "t"
