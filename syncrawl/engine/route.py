"""What ends or holds a crawl whose requests go through somebody else: a proxy, a gateway.

Any thread. The limit on all requests together is the scheduler's; here is what no limit helps
against: a refusal of who we are, a plan that is used up, a gateway that is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from syncrawl.errors import EXIT_CONDITION
from syncrawl.fetch import gateway
from syncrawl.limits.signals import Signal, rule_of
from syncrawl.log import Log

# Exchanges in a row that did not reach the gateway, after which it counts as gone.
_GONE_AFTER = 10


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
        # Guards _failures.
        self._lock = threading.Lock()
        self._failures = 0

    def note(
        self, outcome: str, why: str, *, final: bool, retry_after: float | None = None
    ) -> None:
        """Take notice of how an exchange ended; `final` where trying again is vain.

        `retry_after` is seconds that were asked for, by whoever answered.
        """
        if outcome == "proxy":
            if final:
                self._end_with(EXIT_CONDITION, f"the proxy refused: {why}")
        elif outcome == gateway.UNREACHED:
            self._failed(why)
        elif outcome == gateway.THROTTLED and retry_after:
            self._hold(retry_after)
        elif outcome == gateway.EXHAUSTED:
            self._exhausted(why)
        elif outcome == gateway.REFUSED:
            self._end_with(EXIT_CONDITION, why)
        elif self._failures and rule_of(outcome).signal is not Signal.NOTHING:
            with self._lock:
                self._failures = 0

    def _failed(self, why: str) -> None:
        with self._lock:
            self._failures += 1
            gone = self._failures >= _GONE_AFTER
        if gone:
            self._end_with(EXIT_CONDITION, f"{_GONE_AFTER} times in a row, {why}")

    def _exhausted(self, why: str) -> None:
        if not self._resume_after:
            self._end_with(EXIT_CONDITION, why)
            return
        self._log.warning("waiting for the gateway's quota", seconds=self._resume_after)
        self._hold(self._resume_after)

    def __repr__(self) -> str:
        return f"RouteWatch({self._failures} failures in a row)"
