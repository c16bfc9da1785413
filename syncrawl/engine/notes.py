"""What the scheduler tells others: notes for the commit thread, live figures for the report.

Data only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from syncrawl.engine.hosts import Host
from syncrawl.frontier.model import Entry


@dataclass(slots=True)
class Notes:
    """What happened in memory that the commit thread has to make durable."""

    dropped: list[tuple[Entry, str]] = field(default_factory=list)
    robots: list[tuple[str, bytes]] = field(default_factory=list)
    # Entries of hosts given up, with the verdict.
    failed: list[tuple[Entry, str]] = field(default_factory=list)
    # Hosts that were paused; a pause outlives the process.
    paused: set[str] = field(default_factory=set)
    # Hosts given up, with the verdict.
    verdicts: list[tuple[str, str]] = field(default_factory=list)


class LiveHost(NamedTuple):
    """One host's gate and window; `requests` over the life of the state, `paused_until` wall."""

    requests: int
    in_flight: int
    in_flight_peak: int
    limit: float
    paused_until: float
    leased: int
    window: int
    verdict: str | None
    # Recent typical seconds, where they are known, and whether they have risen: see LatencyWatch.
    latency: float | None = None
    risen: bool = False

    @classmethod
    def of(cls, host: Host, now: float, wall: float) -> LiveHost:
        """A reading of `host` (under the scheduler's lock)."""
        gate = host.gate
        paused = gate.paused_until - now
        return cls(
            host.requests,
            host.in_flight,
            host.in_flight_peak,
            round(gate.limiter.limit, 2),
            wall + paused if paused > 0 else 0.0,
            host.leases,
            host.depth,
            host.verdict,
            host.latency.typical,
            host.latency.risen,
        )
