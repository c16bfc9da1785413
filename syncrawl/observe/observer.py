"""The observer: a thread that writes state_dir/status.json every second.

It calls one function for a snapshot and touches neither diskcache nor the stores, so it
keeps telling the truth while either is stuck. Imports the log, the clock and report.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from syncrawl.clock import Clock
from syncrawl.log import Log
from syncrawl.observe.report import bottleneck_line, slowest_hosts, write_json
from syncrawl.observe.ticker import Ticker

# Seconds between two lines of the log on how the crawl is doing.
_LOG_EVERY = 30.0
# What the log tells of a host.
_OF_A_HOST = (
    *("pending", "rate", "in_flight", "limit", "paused_until", "retry_share", "outcomes"),
    *("health", "condition"),
)


class Observer:
    """Writes what `snapshot` returns to `path`, every `interval` seconds and once at `stop`.

    Every 30 s, and at `stop`, it says in the log what limits the crawl and how it stands.

    A failure (disk full, directory gone, a snapshot that raises) is logged once until a
    later write succeeds; the crawl never hears of it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        snapshot: Callable[[], Mapping[str, Any]],
        *,
        clock: Clock,
        log: Log,
        interval: float = 1.0,
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._log = log
        self._failing = False
        self._clock = clock
        # When the log was last told, and the pages of this run then; the observer's own.
        self._told_at = clock.monotonic()
        self._told_pages = 0
        self._ticker = Ticker(clock, interval)
        self._thread = threading.Thread(target=self._loop, name="observer", daemon=True)

    def start(self) -> None:
        """Start the thread; where the system has none to give, nothing is written meanwhile."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._log.warning("status_not_written", path=str(self._path), error=str(error))

    def stop(self, timeout: float = 5.0) -> bool:
        """Write once more and end; False where the thread is stuck in a write."""
        self._ticker.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def name(self) -> str:
        """The thread's name, for the list of threads that would block an exit."""
        return self._thread.name

    def step(self, *, last: bool = False) -> bool:
        """Write one snapshot, and log it where that is due or it is the `last`; False where
        the write failed.
        """
        try:
            data = self._snapshot()
            if last or self._clock.monotonic() - self._told_at >= _LOG_EVERY:
                self._tell(data)
            write_json(self._path, data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl goes on
            if not self._failing:
                self._failing = True
                self._log.warning("status_not_written", path=str(self._path), error=str(error))
            return False
        self._failing = False
        return True

    def _tell(self, data: Mapping[str, Any]) -> None:
        """Log what slows the crawl down and how it stands: the whole, stages, slowest hosts."""
        run, growth = data["run"], data["frontier"]
        now, pages = self._clock.monotonic(), run["pages"]
        seconds, fresh = now - self._told_at, pages - self._told_pages
        self._told_at, self._told_pages = now, pages
        self._log.info(
            "pressure",
            bottleneck=bottleneck_line(data).partition(": ")[2],
            pages=pages,
            pages_per_second=round(fresh / seconds, 1) if seconds > 0 else 0.0,
            pending=data["urls"]["pending"],
            found_per_second=growth["found"],
            finished_per_second=growth["finished"],
            retry_share=run["retry_share"],
            duplicate_share=run["duplicate_share"],
            depths={name: stage["depth"] for name, stage in data["stages"].items()},
        )
        for name, stage in data["stages"].items():
            self._log.info("pressure_stage", stage=name, **stage)
        for key, host in slowest_hosts(data["hosts"]):
            told = {field: host[field] for field in _OF_A_HOST}
            self._log.info("pressure_host", host=key, **told)

    def _loop(self) -> None:
        while self._ticker.tick():
            self.step()
        self.step(last=True)
