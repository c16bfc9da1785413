"""Which failures are tried again, when, and how much of that a host has to bear.

`RetryPolicy` is an immutable value, any thread; `RetryBudget` is counted on the
commit thread, which owns the decision.
"""

from __future__ import annotations

import email.utils
import math
import random
import re
from datetime import UTC

from syncrawl.config.model import RetryConfig

_SECONDS = re.compile(r"[0-9]+\Z")

# However small the ratio, a host is granted this many retries.
_MIN_RETRIES = 2


class RetryPolicy:
    """Attempts and delays; exponential back-off with full jitter.

    Full jitter (uniform between 0 and the exponential bound) as analysed in "Exponential
    Backoff And Jitter" (M. Brooker, 2015): retries of many URLs must not come in step.
    """

    def __init__(self, config: RetryConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        # A refused request (429, 503) costs no attempt; so many end the URL all the same.
        self.max_refusals = config.max_refusals

    def may_retry(self, attempts: int) -> bool:
        """True where a URL that has been tried `attempts` times has one left."""
        return attempts < self._config.max_attempts

    def delay(self, attempt: int) -> float:
        """Seconds to wait before try number `attempt` + 1."""
        bound = self._config.backoff_base * 2.0 ** min(attempt, 30)
        return self._rng.uniform(0.0, min(self._config.backoff_max, bound))

    def retry_after(self, value: str | None, wall: float) -> float | None:
        """Seconds that a Retry-After field asks for, or None where it says nothing usable.

        RFC 9110 section 10.2.3: delay seconds or an HTTP date. Negative, fractional,
        suffixed or past values are not usable: our own back-off applies then. What is longer
        than `max_retry_after`, however many digits it has, counts as that.
        """
        if value is None:
            return None
        text = value.strip()
        if _SECONDS.match(text):
            seconds = float(text)
        else:
            try:
                moment = email.utils.parsedate_to_datetime(text)
            except (ValueError, OverflowError):
                # A stranger's numbers: years and offsets that no date can hold raise the latter.
                return None
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = moment.timestamp() - wall
        if seconds <= 0:
            return None
        return min(seconds, self._config.max_retry_after)


class RetryBudget:
    """Retries never exceed max(2, ratio x first attempts) on one host.

    Beyond each host's two, those of all hosts together stay within ratio x all first attempts.
    """

    __slots__ = ("_overall_first", "_overall_retries", "_ratio", "first_attempts", "retries")

    def __init__(
        self,
        ratio: float,
        first_attempts: int = 0,
        retries: int = 0,
        overall_first: float = math.inf,
        overall_retries: int = 0,
    ) -> None:
        self._ratio = ratio
        self.first_attempts = first_attempts
        self.retries = retries
        self._overall_first = overall_first
        self._overall_retries = overall_retries

    def spend(self) -> bool:
        """Take one retry out of the budget; False where it is spent: the failure is final."""
        if self.retries >= _MIN_RETRIES and not (
            self.retries + 1 <= self._ratio * self.first_attempts
            and self._overall_retries + 1 <= self._ratio * self._overall_first
        ):
            return False
        self.retries += 1
        self._overall_retries += 1
        return True

    def __repr__(self) -> str:
        return f"RetryBudget({self.retries} of {self._ratio:g} x {self.first_attempts})"
