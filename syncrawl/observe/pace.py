"""How fast a crawl goes, from the snapshots that a view has seen.

The view's thread; pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from syncrawl.observe.report import slowest_hosts

Snapshot = Mapping[str, Any]


class Pace:
    """Rates over the last `seconds` of snapshots, and how long the rest will take at least."""

    def __init__(self, seconds: float = 10.0, max_pages: int = 0) -> None:
        self._seconds = seconds
        self._max_pages = max_pages
        self._points: deque[tuple[float, Snapshot]] = deque()

    def add(self, now: float, snapshot: Snapshot) -> None:
        """Take the snapshot of instant `now`."""
        self._points.append((now, snapshot))
        while len(self._points) > 2 and self._points[1][0] <= now - self._seconds:
            self._points.popleft()

    def pages(self) -> float:
        """Pages a second."""
        return self._rate(lambda snapshot: snapshot["run"]["pages"])

    def bytes(self) -> float:
        """Decoded bytes a second."""
        return self._rate(lambda snapshot: snapshot["run"]["bytes"])

    def host(self, key: str) -> float:
        """Requests a second to one host; its own account where the window does not go so far."""
        if not self._points:
            return 0.0
        if key not in self._points[0][1]["hosts"]:
            rate: float = self._points[-1][1]["hosts"].get(key, {}).get("rate", 0.0)
            return rate
        return self._rate(lambda snapshot: snapshot["hosts"].get(key, {}).get("requests", 0))

    def eta(self) -> float | None:
        """Seconds until the known URLs are fetched; more will be found, so this is a lower bound.

        The slowest host bounds it: however fast the rest goes, its own pending URLs
        take as long as its own rate says. None while nothing moves.
        """
        if not self._points:
            return None
        now = self._points[-1][1]
        pending = now["urls"]["pending"] + now["urls"]["leased"]
        bound = 0.0
        for key, host in slowest_hosts(now["hosts"]):
            rate = self.host(key)
            if host["pending"] and rate:
                bound = max(bound, host["pending"] / rate)
        if self._max_pages:
            # The limit may be reached on the other hosts alone.
            bound = 0.0
            pending = min(pending, max(0, self._max_pages - now["pages"]))
        pages = self.pages()
        rest: float = pending / pages if pages else 0.0
        return max(bound, rest) or None

    def _rate(self, value: Callable[[Snapshot], float]) -> float:
        if len(self._points) < 2:
            return 0.0
        (start, old), (end, new) = self._points[0], self._points[-1]
        return max(0.0, (value(new) - value(old)) / (end - start)) if end > start else 0.0
