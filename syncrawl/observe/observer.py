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
from syncrawl.observe.report import write_json
from syncrawl.observe.ticker import Ticker


class Observer:
    """Writes what `snapshot` returns to `path`, every `interval` seconds and once at `stop`.

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
        self._ticker = Ticker(clock, interval)
        self._thread = threading.Thread(target=self._loop, name="observer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

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

    def step(self) -> bool:
        """Write one snapshot; False where that failed."""
        try:
            write_json(self._path, self._snapshot())
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl goes on
            if not self._failing:
                self._failing = True
                self._log.warning("status_not_written", path=str(self._path), error=str(error))
            return False
        self._failing = False
        return True

    def _loop(self) -> None:
        while self._ticker.tick():
            self.step()
        self.step()
