"""What has been counted: over the life of the state, for this run, and per host.

Written by the commit thread, read by any. The life counters travel in the frontier's
transactions, so they are exactly as old as the URLs' states.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from syncrawl.limits.health import letter_of, moved, remembered
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
    # URLs tried for the first time, retries that cost the budget, and retries that it had no room
    # for; see RetryBudget.
    first_attempts: int = 0
    spent: int = 0
    unaffordable: int = 0
    outcomes: dict[str, int] = {}
    refused: dict[str, int] = {}
    dropped: dict[str, int] = {}

    def copy(self) -> Totals:
        groups = {name: dict(group) for name, group in self.groups().items()}
        return msgspec.structs.replace(self, **groups)

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
            "unaffordable": self.unaffordable,
        }

    def groups(self) -> dict[str, dict[str, int]]:
        """The sums by class or reason."""
        return {
            "outcomes": dict(self.outcomes),
            "refused": dict(self.refused),
            "dropped": dict(self.dropped),
        }


class HostTotals(msgspec.Struct):
    """One host's sums. `retries` are all requests that repeated an earlier one, `spent` those
    that cost its retry budget; `paused_until` is wall-clock seconds.
    """

    pages: int = 0
    requests: int = 0
    first_attempts: int = 0
    retries: int = 0
    spent: int = 0
    outcomes: dict[str, int] = {}
    paused_until: float = 0.0
    health: float = 1.0
    # The last outcomes, a letter each; see limits/health.py.
    recent: str = ""

    def note(self, outcome: str) -> None:
        """Count one outcome, and what it says of the host."""
        bump(self.outcomes, outcome)
        letter = letter_of(outcome)
        if letter is not None:
            self.health = moved(self.health, letter)
            self.recent = remembered(self.recent, letter)

    def copy(self) -> HostTotals:
        return msgspec.structs.replace(self, outcomes=dict(self.outcomes))

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
        # Inside `transaction`: hosts as they were before it, and bodies met in it.
        self._saved_hosts: dict[str, HostTotals] | None = None
        self._new_bodies: list[int] = []
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
        if self._saved_hosts is not None and key not in self._saved_hosts:
            self._saved_hosts[key] = found.copy()
        return found

    def note_first(self, key: str) -> None:
        """Count a URL's first attempt (with the lock held)."""
        self.host(key).first_attempts += 1
        for totals in self.each():
            totals.first_attempts += 1

    def spend_retry(self, key: str) -> bool:
        """Take one retry out of host `key`'s budget, over the life of the state.

        False, and counted, where there is no room for it.
        """
        host, life = self.host(key), self.life
        budget = RetryBudget(
            self._ratio, host.first_attempts, host.spent, life.first_attempts, life.spent
        )
        if not budget.spend():
            for totals in self.each():
                totals.unaffordable += 1
            return False
        host.spent += 1
        for totals in self.each():
            totals.spent += 1
        return True

    def add_bodies(self, hashes: Iterable[int]) -> None:
        """Take up known body hashes (commit thread)."""
        self._bodies.update(hashes)

    def is_duplicate(self, body_hash: int) -> bool:
        """Remember a body; True where it was there before (commit thread)."""
        if body_hash in self._bodies:
            return True
        self._bodies.add(body_hash)
        self._new_bodies.append(body_hash)
        return False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Counting in the body stands only if the body ends well: what is not committed is
        not counted (commit thread; the body takes the lock where it counts).
        """
        self._saved_hosts = {}
        self._new_bodies = []
        life, run = self.life.copy(), self.run.copy()
        try:
            yield
        except BaseException:
            with self.lock:
                self.life, self.run = life, run
                self.hosts.update(self._saved_hosts)
            self._bodies.difference_update(self._new_bodies)
            raise
        finally:
            self._saved_hosts = None

    def each(self) -> tuple[Totals, Totals]:
        """Life and run, for an update made to both (call with the lock held)."""
        return self.life, self.run

    def requests_by_host(self) -> dict[str, int]:
        """Requests to each host, as of about now: for choosing whom a snapshot tells of."""
        with self.lock:
            hosts = tuple(self.hosts.items())
        return {key: host.requests for key, host in hosts}

    def snapshot(self, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """A consistent copy for the report: with the hosts `keys`, or all; unknown ones are left
        out.
        """
        with self.lock:
            chosen = self.hosts if keys is None else [key for key in keys if key in self.hosts]
            return {
                "life": (self.life.numbers(), self.life.groups()),
                "run": (self.run.numbers(), self.run.groups()),
                "hosts": {key: self.hosts[key].copied() for key in tuple(chosen)},
            }

    def __repr__(self) -> str:
        return f"Ledger({self.life.pages} pages, {len(self.hosts)} hosts)"


def bump(counts: dict[str, int], name: str, by: int = 1) -> None:
    """Add to one sum of a group."""
    counts[name] = counts.get(name, 0) + by
