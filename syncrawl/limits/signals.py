"""What an outcome means and where it goes: the one table.

Any thread; data and pure functions. DESIGN's rule is that a slow-down reaches only what
it describes: a target's refusal its own gate, our own pressure nobody's gate.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from syncrawl.errors import FetchError


class Signal(enum.Enum):
    """What a host's gate is told when an exchange ends."""

    SUCCESS = "success"  # raises the limit, forgives refusals
    ANSWER = "answer"  # the host is alive; the limit stays (robots, 304, 4xx)
    REFUSAL = "refusal"  # too much: the limit is cut, the host perhaps paused
    FORBIDDEN = "forbidden"  # not you: where it becomes the rule, the host is left alone
    FAILURE = "failure"  # no usable answer: counted against the host's health
    NOTHING = "nothing"  # says nothing about the host (our pressure, a bug of ours)
    ROUTE = "route"  # our proxy or gateway has enough: the one limit on all that go through it


class Fate(enum.Enum):
    """What becomes of the URL."""

    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"
    RETRY = "retry"  # costs an attempt and a share of the budget
    REFUSED = "refused"  # back to the frontier at no cost, capped
    AGAIN = "again"  # back to the frontier at no cost: we were the cause


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    signal: Signal
    fate: Fate


# outcome class -> what the host's gate is told, what becomes of the URL
RULES: dict[str, Rule] = {
    "2xx": Rule(Signal.SUCCESS, Fate.DONE),
    "304": Rule(Signal.ANSWER, Fate.DONE),
    "duplicate": Rule(Signal.ANSWER, Fate.DONE),  # a redirect to a URL already seen
    "redirect": Rule(Signal.ANSWER, Fate.AGAIN),  # goes on at another gate, or later
    "redirect_limit": Rule(Signal.ANSWER, Fate.FAILED),
    "redirect_loop": Rule(Signal.ANSWER, Fate.FAILED),
    "redirect_bad": Rule(Signal.ANSWER, Fate.FAILED),
    "redirect_scope": Rule(Signal.ANSWER, Fate.DROPPED),
    "robots": Rule(Signal.ANSWER, Fate.DROPPED),
    "3xx": Rule(Signal.ANSWER, Fate.FAILED),
    "4xx": Rule(Signal.ANSWER, Fate.FAILED),
    "403": Rule(Signal.FORBIDDEN, Fate.FAILED),
    "451": Rule(Signal.FORBIDDEN, Fate.FAILED),  # legal reasons (RFC 7725): an opt-out
    "408": Rule(Signal.FAILURE, Fate.RETRY),
    "425": Rule(Signal.FAILURE, Fate.RETRY),
    "throttled": Rule(Signal.REFUSAL, Fate.REFUSED),  # 429, 503
    "challenge": Rule(Signal.REFUSAL, Fate.REFUSED),  # asks for a human
    "5xx": Rule(Signal.FAILURE, Fate.RETRY),
    "timeout": Rule(Signal.FAILURE, Fate.RETRY),
    "dns": Rule(Signal.FAILURE, Fate.RETRY),
    "connect": Rule(Signal.FAILURE, Fate.RETRY),
    "connection": Rule(Signal.FAILURE, Fate.RETRY),
    "incomplete": Rule(Signal.FAILURE, Fate.RETRY),
    "tls": Rule(Signal.FAILURE, Fate.FAILED),
    "protocol": Rule(Signal.FAILURE, Fate.RETRY),
    "decode": Rule(Signal.ANSWER, Fate.FAILED),
    "parse_error": Rule(Signal.ANSWER, Fate.FAILED),
    "parse_timeout": Rule(Signal.ANSWER, Fate.FAILED),  # the parser outlasted parse.deadline
    "lost": Rule(Signal.NOTHING, Fate.RETRY),  # a fetch worker hung and was replaced
    "too_large": Rule(Signal.ANSWER, Fate.FAILED),
    "address": Rule(Signal.NOTHING, Fate.FAILED),
    "url": Rule(Signal.NOTHING, Fate.FAILED),
    "pressure": Rule(Signal.NOTHING, Fate.AGAIN),  # our own memory bound
    "stale": Rule(Signal.NOTHING, Fate.AGAIN),  # a dead kept-alive connection, no token for another
    "proxy": Rule(Signal.ROUTE, Fate.REFUSED),  # our proxy's own answer, whoever was asked for
    "proxy_denied": Rule(Signal.ROUTE, Fate.FAILED),  # its policy for this target (403)
    # A scraping API's own answers: too many at once, none of use, none at all, plan used up, key
    # refused. What it answered or was busy with may be on the bill, so it costs an attempt.
    "gateway_throttled": Rule(Signal.ROUTE, Fate.AGAIN),
    "gateway_failed": Rule(Signal.ROUTE, Fate.RETRY),
    "gateway_timeout": Rule(Signal.FAILURE, Fate.RETRY),  # it is there; the target is slow
    "gateway_unreached": Rule(Signal.ROUTE, Fate.REFUSED),
    "gateway_exhausted": Rule(Signal.NOTHING, Fate.AGAIN),
    "gateway_refused": Rule(Signal.NOTHING, Fate.AGAIN),
    "internal": Rule(Signal.NOTHING, Fate.FAILED),  # a bug of ours or of a fetch plugin
}

# Failures that say the host cannot be reached at all.
UNREACHABLE = frozenset({"dns", "connect", "tls", "timeout", "connection"})


def outcome_of_status(status: int) -> str:
    """The outcome class of a final (not followed) HTTP status (RFC 9110 section 15)."""
    if 200 <= status <= 299:
        return "2xx"
    if status in (429, 503):
        return "throttled"
    if status in (304, 403, 408, 425, 451):
        return str(status)
    if 300 <= status <= 399:
        return "3xx"
    if 400 <= status <= 499:
        return "4xx"
    if 500 <= status <= 599:
        return "5xx"
    return "protocol"


def outcome_of_error(error: FetchError) -> str:
    """The outcome class of a failed exchange; what was our own doing never blames the host."""
    if error.ours and rule_of(error.outcome).signal not in (Signal.NOTHING, Signal.ROUTE):
        return "pressure"
    return error.outcome


def rule_of(outcome: str) -> Rule:
    """The rule of an outcome class; a class a fetch plugin made up counts as a failure."""
    return RULES.get(outcome, RULES["internal"])
