"""How a host is doing with us: slow is one thing, turning against us another.

Pure functions over what is kept with a host's counters. Called by the commit thread.
"""

from __future__ import annotations

from syncrawl.limits.signals import UNREACHABLE, Signal, rule_of

# One letter an outcome that says something of the host, and what it is worth.
GOOD, SLOW, FAILING, UNREACHED, THROTTLED, BLOCKING = "gsfutb"
_WORTH = {GOOD: 1.0, SLOW: 0.5, FAILING: 0.25, UNREACHED: 0.25, THROTTLED: 0.0, BLOCKING: 0.0}
# How much the newest outcome moves the score: about twenty good ones forgive everything, half as
# many refusals spoil it.
_UP = 0.12
_DOWN = 0.2
# Outcomes that are remembered one by one; the share of them that makes a condition, and how many
# there must be of a kind at least: one 403 among a host's first four answers says nothing of it.
_RECENT = 20
_SHARE = 0.25
_SEVERAL = 3
_CONDITIONS = {
    BLOCKING: "blocking",
    THROTTLED: "throttled",
    UNREACHED: "unreachable",
    FAILING: "failing",
    SLOW: "slow",
}


def letter_of(outcome: str) -> str | None:
    """What an outcome class says of its host; None where it says nothing."""
    signal = rule_of(outcome).signal
    if outcome == "challenge" or signal is Signal.FORBIDDEN:
        return BLOCKING
    if signal is Signal.REFUSAL:
        return THROTTLED
    if signal in (Signal.SUCCESS, Signal.ANSWER):
        return GOOD
    if outcome == "timeout":
        return SLOW
    if signal is Signal.FAILURE:
        return UNREACHED if outcome in UNREACHABLE else FAILING
    return None


def moved(health: float, letter: str) -> float:
    """The score, from 0 to 1, after one more outcome."""
    worth = _WORTH[letter]
    return health + (worth - health) * (_UP if worth > health else _DOWN)


def remembered(recent: str, letter: str) -> str:
    """The last outcomes' letters after one more."""
    return (recent + letter)[-_RECENT:]


def condition(recent: str, *, risen: bool = False) -> str:
    """In a word: "ok", "slow", "throttled", "blocking", "failing" or "unreachable".

    The gravest counts that at least three of the last 20 outcomes speak of, and at least a quarter
    of as many as there are. `risen` tells that the host's latency has (see LatencyWatch), which is
    "slow" and never graver.
    """
    for letter, name in _CONDITIONS.items():
        if recent.count(letter) >= max(_SEVERAL, _SHARE * len(recent)):
            return name
    return "slow" if risen else "ok"
