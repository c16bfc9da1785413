"""One CPU for all threads of the process, chosen again as the machine's load moves.

The interpreter runs one thread at a time. Handing the interpreter lock to a thread that
waits on another CPU costs a wake-up there and cold caches; with a thread switch every few
hundred microseconds that is a quarter of a crawl's CPU time (benchmarks/README.md). Kept
on one CPU, the threads hand over for almost nothing.

A process-wide setting, so only the command line makes it, and `Crawl` never does. Linux
only; elsewhere, and where one CPU is allowed anyway, nothing happens. A child process that
is to run beside the crawler must set its own affinity back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from syncrawl.clock import SystemClock
from syncrawl.observe.ticker import Ticker

# Seconds between two looks at the load.
_REVIEW = 2.0
# Others take this share of our CPU, and another CPU is freer by the margin: move.
_CROWDED = 0.25
_MARGIN = 0.15

Ticks = dict[int, tuple[int, int]]
"""CPU -> (busy, all) clock ticks since boot."""


class Seat:
    """Keeps every thread of this process on one of the CPUs it was allowed."""

    def __init__(self, allowed: frozenset[int], proc: Path = Path("/proc")) -> None:
        self._allowed = allowed
        self._proc = proc
        self._before = self._ticks()
        self._spent = time.process_time()
        self._since = time.monotonic()
        self.cpu: int | None = None

    def take(self) -> None:
        """Sit down on the CPU that was the least busy since the seat was made."""
        shares, _ = self._shares()
        if len(shares) > 1:
            # Among equals by pid, so that crawls started together do not sit together.
            turn = os.getpid()
            self._sit(min(shares, key=lambda cpu: (round(shares[cpu], 1), (cpu + turn) % 64)))

    def review(self) -> None:
        """Move where others crowd our CPU and another one is clearly freer."""
        shares, own = self._shares()
        if self.cpu is None or self.cpu not in shares:
            return
        foreign = max(0.0, shares[self.cpu] - own)
        free = min(shares, key=lambda cpu: (shares[cpu], cpu))
        if free != self.cpu and foreign > _CROWDED and shares[free] < foreign - _MARGIN:
            self._sit(free)

    def leave(self) -> None:
        """Allow every thread all CPUs again."""
        if self.cpu is not None:
            self.cpu = None
            self._apply(self._allowed)

    def _sit(self, cpu: int) -> None:
        self.cpu = cpu
        self._apply({cpu})

    def _apply(self, cpus: set[int] | frozenset[int]) -> None:
        for task in (self._proc / "self/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), cpus)
            except (ProcessLookupError, PermissionError):
                continue  # the thread has ended; or a sandbox forbids it, then all stays as it was

    def _shares(self) -> tuple[dict[int, float], float]:
        """Busy share of each allowed CPU since the last call, and our own share of one."""
        after, spent, now = self._ticks(), time.process_time(), time.monotonic()
        shares = {}
        for cpu, (busy, total) in after.items():
            busy_before, total_before = self._before.get(cpu, (0, 0))
            shares[cpu] = (busy - busy_before) / max(1, total - total_before)
        own = (spent - self._spent) / max(1e-3, now - self._since)
        self._before, self._spent, self._since = after, spent, now
        return shares, own

    def _ticks(self) -> Ticks:
        ticks: Ticks = {}
        try:
            lines = (self._proc / "stat").read_text().splitlines()
        except OSError:
            return ticks
        for line in lines:
            name, *numbers = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in self._allowed:
                # user nice system idle iowait irq softirq steal (proc(5))
                values = [int(number) for number in numbers[:8]]
                idle = values[3] + values[4]
                ticks[int(name[3:])] = (sum(values) - idle, sum(values))
        return ticks

    def __repr__(self) -> str:
        return f"<Seat on CPU {self.cpu} of {sorted(self._allowed)}>"


@contextmanager
def one_cpu(seat: Seat | None) -> Iterator[None]:
    """Keep the process on one CPU in the body; None does nothing."""
    if seat is None:
        yield
        return
    ticker = Ticker(SystemClock(), _REVIEW)

    def review() -> None:
        while ticker.tick():
            seat.review()

    seat.take()
    try:
        threading.Thread(target=review, name="cpu-seat", daemon=True).start()
    except RuntimeError:
        # No thread to look after the seat: rather none than one that is never left.
        seat.leave()
    try:
        yield
    finally:
        ticker.stop()
        seat.leave()


def find_seat() -> Seat | None:
    """A seat for this process; None where the system has no such thing or one CPU is allowed."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = frozenset(os.sched_getaffinity(0))
    return Seat(allowed) if len(allowed) > 1 else None
