"""What ends or holds a crawl whose requests go through somebody else: a proxy, a gateway.

Any thread. The limit on all requests together is the scheduler's; here is what no limit helps
against: a refusal of who we are, a plan that is used up, a gateway that is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from syncrawl.errors import EXIT_CONDITION
from syncrawl.fetch import gateway, proxy
from syncrawl.limits.signals import Signal, rule_of
from syncrawl.log import Log

# Exchanges in a row, pages and robots.txt alike, after which the way through counts as closed: the
# gateway was not reached; it answered with nothing of a target's; the proxy did so, or its policy
# was against the target. Targets may be the cause of the latter, so it takes more of them; fewer
# than a URL's 20 refusals where those count, so that the crawl ends before a host is given up.
_PATIENCE = {gateway.UNREACHED: 10, gateway.FAILED: 20, "proxy": 15, proxy.DENIED: 20}
# What ends no crawl that has got through: a proxy answers so for targets that are dead or denied.
_BY_TARGET = frozenset({"proxy", proxy.DENIED})


class RouteWatch:
    """Ends the crawl, resumable, where what stands between us and all targets refuses us."""

    def __init__(
        self,
        *,
        resume_after: float,
        hold: Callable[[float], None],
        end_with: Callable[[int, str], None],
        log: Log,
    ) -> None:
        self._resume_after = resume_after
        self._hold = hold
        self._end_with = end_with
        self._log = log
        # Guards _row, _passed and _denied.
        self._lock = threading.Lock()
        # Outcome -> how often it came with no answer of a target between.
        self._row: dict[str, int] = {}
        # Whether any target's answer came through in this run.
        self._passed = False
        # What the proxy's policy last said against a target.
        self._denied = ""

    def note(
        self, outcome: str, why: str, *, final: bool, retry_after: float | None = None
    ) -> None:
        """Take notice of how an exchange ended; `final` where trying again is vain.

        `retry_after` is seconds that were asked for, by whoever answered.
        """
        if outcome == "proxy" and final:
            self._end_with(EXIT_CONDITION, f"the proxy refused: {why}")
        elif outcome in _PATIENCE:
            self._failed(outcome, why)
        elif outcome == gateway.EXHAUSTED:
            self._exhausted(why)
        elif outcome == gateway.REFUSED:
            self._end_with(EXIT_CONDITION, why)
        elif outcome in (gateway.THROTTLED, gateway.TIMEOUT):
            self._reached()
            if outcome == gateway.THROTTLED and retry_after:
                self._hold(retry_after)
        elif rule_of(outcome).signal is not Signal.NOTHING and (self._row or not self._passed):
            with self._lock:
                self._row.clear()
                self._passed = True

    @property
    def closed(self) -> str:
        """Why nothing has come through in this run, where the proxy's policy was against it."""
        with self._lock:
            return "" if self._passed else self._denied

    def _failed(self, outcome: str, why: str) -> None:
        if outcome == gateway.FAILED:
            self._reached()
        with self._lock:
            times = self._row[outcome] = self._row.get(outcome, 0) + 1
            if outcome == proxy.DENIED:
                self._denied = why
            closed = times >= _PATIENCE[outcome]
            closed = closed and not (self._passed and outcome in _BY_TARGET)
        if closed:
            failed = outcome == gateway.FAILED
            more = "; retry-failed takes back what failed by it" if failed else ""
            self._end_with(EXIT_CONDITION, f"{times} times in a row, {why}{more}")

    def _reached(self) -> None:
        """The gateway is there, whatever it made of the request."""
        with self._lock:
            self._row.pop(gateway.UNREACHED, None)

    def _exhausted(self, why: str) -> None:
        if not self._resume_after:
            self._end_with(EXIT_CONDITION, why)
            return
        self._log.warning("waiting for the gateway's quota", seconds=self._resume_after)
        self._hold(self._resume_after)

    def __repr__(self) -> str:
        with self._lock:
            return f"RouteWatch({max(self._row.values(), default=0)} failures in a row)"
