"""What an outcome does to its host: the gate is told, and a host may be given up.

Called under the scheduler's lock; decides, and leaves the consequences to the scheduler.
"""

from __future__ import annotations

import random

from syncrawl.config.model import Config
from syncrawl.engine.hosts import Host, Origin
from syncrawl.engine.lease import Lease
from syncrawl.limits.latency import Climate
from syncrawl.limits.retry import RetryPolicy
from syncrawl.limits.signals import RULES, UNREACHABLE, Fate, Signal, rule_of

# Why a host's URLs fail without being asked for.
UNREACHABLE_HOST = "unreachable"
REFUSING_HOST = "refusing"

# What no later try can change: the address policy, or our proxy's, refuses the host, or its name
# is no name.
_HOPELESS = frozenset({"address", "url", "proxy_denied"})
# What held up a try for robots.txt on our side of the host, and costs a page nothing either.
_OURS = frozenset(
    outcome
    for outcome, rule in RULES.items()
    if rule.signal in (Signal.NOTHING, Signal.ROUTE) and rule.fate is Fate.AGAIN
)
# Failures of our proxy or gateway: robots.txt is granted as many as a page.
_OF_THE_ROUTE = frozenset(
    outcome
    for outcome, rule in RULES.items()
    if rule.signal is Signal.ROUTE and rule.fate is not Fate.AGAIN
)
# Tries that a host has before it is given up: a Retry-After that leaves it fewer is excused.
_TRIES = 4
# Connect failures in a row, with no answer ever, after which a host is given up at once.
_DEAD_AFTER = 10
# Seconds that outdated rules stand after a vain try to renew them.
_STALE_RULES = 3600.0
# The longest wait between two tries for a robots.txt that is not known yet, in seconds: where it
# does not answer, and where we were held up ourselves.
_ROBOTS_BACKOFF = 300.0
_HELD_BACKOFF = 60.0


class Judge:
    """A verdict is final for the run: `unreachable`, `refusing`, or the outcome to blame."""

    def __init__(self, config: Config, rng: random.Random) -> None:
        self._give_up_after = config.crawl.give_up_after
        self._robots_attempts = config.retry.max_attempts
        self._retry = RetryPolicy(config.retry, rng)
        self._rng = rng
        self._climate = Climate()

    def heed(
        self,
        lease: Lease,
        outcome: str,
        now: float,
        *,
        retry_after: float | None,
        latency: float | None,
    ) -> tuple[float, str | None]:
        """Tell the gate what an outcome means, by the table in limits/signals.py.

        `retry_after` and `latency` are seconds, None where the answer brought none. Returns the
        seconds to pause the host for (0 = not at all), and a verdict or None.
        """
        host = lease.host
        signal = rule_of(outcome).signal
        if signal in (Signal.SUCCESS, Signal.ANSWER):
            self._answered(lease, signal, now, latency)
            return 0.0, None
        if signal in (Signal.NOTHING, Signal.ROUTE):
            return 0.0, None
        pause = 0.0
        limiter = host.gate.limiter
        if signal is Signal.REFUSAL:
            limiter.on_refusal(now, lease.admitted_at, lease.level)
            pause = retry_after or host.pause.on_refusal(now, at_floor=limiter.at_floor)
        elif signal is Signal.FORBIDDEN:
            host.connect_failures = 0
            host.answers += 1
            if host.forbidden.note(True):
                limiter.cut_to_floor(now)
                pause = host.pause.force(now)
        elif outcome in UNREACHABLE:
            host.connect_failures += 1
            if outcome == "timeout":
                # It may be drowning: fewer at once, as after a refusal, but no pause.
                limiter.on_refusal(now, lease.admitted_at, lease.level)
        if host.failing_since is None:
            host.failing_since = lease.admitted_at
        verdict = self._failing(host, outcome, now - host.failing_since)
        if signal is Signal.REFUSAL and (retry_after or 0.0) * _TRIES > self._give_up_after:
            # The host named a time to come back: until then it is not failing, unless it is so
            # short that it has its tries all the same. The answers of a burst name the same
            # seconds, which count once.
            assert retry_after is not None
            until = now + retry_after
            host.failing_since += max(0.0, until - max(now, host.excused_until))
            host.excused_until = max(until, host.excused_until)
        return pause, verdict

    def _answered(self, lease: Lease, signal: Signal, now: float, latency: float | None) -> None:
        host = lease.host
        limiter = host.gate.limiter
        host.connect_failures = 0
        host.failing_since = None
        host.excused_until = float("-inf")
        host.pause.on_success()
        host.forbidden.note(False)
        host.answers += 1
        if signal is Signal.SUCCESS:
            limiter.on_success(now, lease.admitted_at, tested=lease.tested)
        if latency is not None:
            host.latency.note(latency, now)
            if self._climate.judge(host.latency, now, tested=lease.tested):
                limiter.on_latency(now)

    def robots(
        self, host: Host, origin: Origin, outcome: str, now: float
    ) -> tuple[float | None, str | None]:
        """What a vain try for `origin`'s robots.txt means.

        Returns the seconds until the next try (None = none is due), and a verdict or None.
        """
        if outcome in _OURS:
            # Neither the host's doing nor a sign that it will not answer.
            origin.held_up += 1
            return self._jittered(min(_HELD_BACKOFF, 2.0 ** min(origin.held_up - 1, 12))), None
        origin.held_up = 0
        origin.failures += 1
        if origin.failing_since is None:
            origin.failing_since = now
        if origin.rules is not None:
            # The rules we have stay in force meanwhile (RFC 9309 section 2.3.1.4).
            origin.expires_at = now + _STALE_RULES
            origin.asking = False
            return None, None
        if outcome in _HOPELESS:
            return None, outcome
        given_up = now - origin.failing_since >= self._give_up_after
        if outcome in _OF_THE_ROUTE:
            if given_up or (origin.failures >= self._granted(outcome) and not host.proven):
                return None, outcome
            return self._retry.delay(origin.failures), None
        if given_up:
            return None, UNREACHABLE_HOST if outcome in UNREACHABLE else REFUSING_HOST
        tried = origin.failures >= self._robots_attempts
        if tried and outcome in UNREACHABLE and not host.proven:
            return None, UNREACHABLE_HOST
        return self._jittered(min(_ROBOTS_BACKOFF, 2.0 ** min(origin.failures, 12))), None

    def _granted(self, outcome: str) -> int:
        """How often a page is tried with an outcome that is the route's."""
        costs_an_attempt = rule_of(outcome).fate is Fate.RETRY
        return self._robots_attempts if costs_an_attempt else self._retry.max_refusals

    def _jittered(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.5, 1.0)

    def _failing(self, host: Host, outcome: str, seconds: float) -> str | None:
        unreachable = outcome in UNREACHABLE
        if seconds >= self._give_up_after:
            return UNREACHABLE_HOST if unreachable else REFUSING_HOST
        if unreachable and not host.proven and host.connect_failures >= _DEAD_AFTER:
            return UNREACHABLE_HOST
        return None
