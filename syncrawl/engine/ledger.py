"""What has been counted: over the life of the state, for this run, and per host.

Written by the commit thread, read by any. The life counters travel in the frontier's
transactions, so they are exactly as old as the URLs' states.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from syncrawl.limits.retry import RetryBudget


class Totals(msgspec.Struct):
    """Sums of one scope of counting. `bytes` is decoded, `wire_bytes` as received."""

    seconds: float = 0.0
    requests: int = 0
    pages: int = 0
    bytes: int = 0
    wire_bytes: int = 0
    retries: int = 0
    duplicates: int = 0
    outcomes: dict[str, int] = {}
    refused: dict[str, int] = {}
    dropped: dict[str, int] = {}

    def numbers(self) -> dict[str, float]:
        """The plain sums by name."""
        return {
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            "pages": self.pages,
            "bytes": self.bytes,
            "wire_bytes": self.wire_bytes,
            "retries": self.retries,
            "duplicates": self.duplicates,
        }

    def groups(self) -> dict[str, dict[str, int]]:
        """The sums by class or reason."""
        return {
            "outcomes": dict(self.outcomes),
            "refused": dict(self.refused),
            "dropped": dict(self.dropped),
        }


class HostTotals(msgspec.Struct):
    """One host's sums. `paused_until` is wall-clock seconds; `answered` once it ever did."""

    pages: int = 0
    requests: int = 0
    first_attempts: int = 0
    retries: int = 0
    outcomes: dict[str, int] = {}
    paused_until: float = 0.0
    health: float = 1.0

    def note(self, outcome: str, *, good: bool) -> None:
        """Count one outcome; health is its moving average over about 20 of them."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.health += ((1.0 if good else 0.0) - self.health) / 20.0

    def copied(self) -> dict[str, Any]:
        """The sums by name, sharing nothing that changes."""
        return {**msgspec.structs.asdict(self), "outcomes": dict(self.outcomes)}


class Ledger:
    """All counters of a crawl; a reader sees a commit as a whole or not at all."""

    def __init__(self, retry_ratio: float) -> None:
        # Guards every field below.
        self.lock = threading.Lock()
        self.life = Totals()
        self.run = Totals()
        self.hosts: dict[str, HostTotals] = {}
        self._ratio = retry_ratio
        self._budgets: dict[str, RetryBudget] = {}
        # Body hashes, for counting duplicates.
        self._bodies: set[int] = set()

    def load(self, life: bytes | None, hosts: Iterable[tuple[str, bytes]]) -> None:
        """Take up what an earlier run wrote down."""
        if life is not None:
            self.life = msgspec.msgpack.decode(life, type=Totals)
        for key, packed in hosts:
            self.hosts[key] = msgspec.msgpack.decode(packed, type=HostTotals)

    def host(self, key: str) -> HostTotals:
        """The sums of host `key` (call with the lock held, or from the commit thread to read)."""
        found = self.hosts.get(key)
        if found is None:
            found = self.hosts[key] = HostTotals()
        return found

    def budget(self, key: str) -> RetryBudget:
        """The retry budget of host `key`, over the life of the state (commit thread)."""
        budget = self._budgets.get(key)
        if budget is None:
            host = self.host(key)
            budget = RetryBudget(self._ratio, host.first_attempts, host.retries)
            self._budgets[key] = budget
        return budget

    def add_bodies(self, hashes: Iterable[int]) -> None:
        """Take up known body hashes (commit thread)."""
        self._bodies.update(hashes)

    def is_duplicate(self, body_hash: int) -> bool:
        """Remember a body; True where it was there before (commit thread)."""
        if body_hash in self._bodies:
            return True
        self._bodies.add(body_hash)
        return False

    def each(self) -> tuple[Totals, Totals]:
        """Life and run, for an update made to both (call with the lock held)."""
        return self.life, self.run

    def snapshot(self) -> dict[str, Any]:
        """A consistent copy for the report."""
        with self.lock:
            return {
                "life": (self.life.numbers(), self.life.groups()),
                "run": (self.run.numbers(), self.run.groups()),
                "hosts": {key: host.copied() for key, host in tuple(self.hosts.items())},
            }

    def __repr__(self) -> str:
        return f"Ledger({self.life.pages} pages, {len(self.hosts)} hosts)"


def bump(counts: dict[str, int], name: str, by: int = 1) -> None:
    """Add to one sum of a group."""
    counts[name] = counts.get(name, 0) + by
