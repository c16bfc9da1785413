"""The in-memory index over the frontier's rows: which bundle of a queue comes next.

Commit thread only; no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from syncrawl.frontier.model import Entry


class Bundle:
    """One row on disk: the URLs that one commit added to one queue at one priority.

    `open` counts the entries not finished yet; `marks` are the indexes that are.
    `entries` keeps a freshly written row in memory until it is taken, so that a link
    found now and fetched soon is never read back.
    """

    __slots__ = (
        "count",
        "due",
        "entries",
        "host",
        "id",
        "mark_rows",
        "marks",
        "open",
        "priority",
        "queue",
    )

    def __init__(
        self, id: int, queue: str, host: str, priority: int, due: float, count: int
    ) -> None:
        self.id = id
        self.queue = queue
        self.host = host
        self.priority = priority
        self.due = due
        self.count = count
        self.open = count
        self.marks: set[int] = set()
        # Commits whose done-mark rows name this bundle; see DiskFrontier._mark_rows.
        self.mark_rows: list[int] = []
        self.entries: list[Entry] | None = None

    @property
    def row(self) -> str:
        """The row's key; it carries all that the index needs, so opening reads no values."""
        return f"p:{self.id}:{self.priority}:{self.due!r}:{self.count}:{self.host}"

    @staticmethod
    def parse_row(row: str) -> tuple[int, int, float, int, str]:
        """(id, priority, due, count, host) of a row key. Raises ValueError where it is none."""
        _, id, priority, due, count, host = row.split(":", 5)
        return int(id), int(priority), float(due), int(count), host

    def __repr__(self) -> str:
        return f"Bundle({self.row}, open={self.open})"


class _Queue:
    __slots__ = ("cold", "unfinished")

    def __init__(self) -> None:
        # Bundles not taken yet: best priority, then oldest, first.
        self.cold: list[tuple[int, int, Bundle]] = []
        self.unfinished = 0


class QueueIndex:
    """Every bundle on disk is in exactly one place: cold, waiting for its time, or taken."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._waiting: list[tuple[float, int, Bundle]] = []
        # Queues with a cold bundle, in the order in which they got one.
        self._backlog: dict[str, None] = {}

    def add(self, bundle: Bundle, *, wall: float) -> None:
        """File a bundle by when it is due."""
        queue = self._queues.setdefault(bundle.queue, _Queue())
        queue.unfinished += bundle.open
        if bundle.due > wall:
            heapq.heappush(self._waiting, (bundle.due, bundle.id, bundle))
        else:
            self._chill(bundle)

    def pop(self, name: str) -> Bundle | None:
        """The queue's best bundle, which is taken from now on."""
        queue = self._queues.get(name)
        if queue is None or not queue.cold:
            return None
        bundle = heapq.heappop(queue.cold)[2]
        if not queue.cold:
            self._backlog.pop(name, None)
        return bundle

    def finish_one(self, bundle: Bundle) -> None:
        """An entry of `bundle` is finished."""
        bundle.open -= 1
        queue = self._queues[bundle.queue]
        queue.unfinished -= 1
        if not queue.unfinished and not queue.cold:
            del self._queues[bundle.queue]

    def ripen(self, wall: float) -> set[str]:
        """Move what is due by `wall` to its queue; the queues concerned."""
        ripened: set[str] = set()
        while self._waiting and self._waiting[0][0] <= wall:
            bundle = heapq.heappop(self._waiting)[2]
            self._chill(bundle)
            ripened.add(bundle.queue)
        return ripened

    def next_due(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def has_cold(self, name: str) -> bool:
        queue = self._queues.get(name)
        return queue is not None and bool(queue.cold)

    def backlog(self) -> Iterator[str]:
        return iter(self._backlog)

    def unfinished(self, name: str) -> int:
        queue = self._queues.get(name)
        return queue.unfinished if queue else 0

    def unfinished_by_queue(self) -> dict[str, int]:
        return {name: queue.unfinished for name, queue in self._queues.items()}

    def _chill(self, bundle: Bundle) -> None:
        queue = self._queues[bundle.queue]
        heapq.heappush(queue.cold, (-bundle.priority, bundle.id, bundle))
        self._backlog.setdefault(bundle.queue)
