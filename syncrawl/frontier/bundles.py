"""The in-memory index over the frontier's rows: which bundle of a queue comes next.

Commit thread only; no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from syncrawl.frontier.model import Entry
from syncrawl.frontier.rows import decode_entries

_NO_MARKS: frozenset[int] = frozenset()


class Bundle:
    """One row on disk: the URLs that one commit added to one queue at one priority.

    `open` counts the entries not finished yet; `marks` are the indexes that are. `mark_rows`
    are the commits whose done-mark rows name this bundle. `entries` keeps a freshly
    written row in memory until it is taken, so that a link found now and fetched soon is
    never read back.
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
        "taken",
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
        # Replaced, not added to: most bundles never have any, and there may be a million.
        self.marks: frozenset[int] = _NO_MARKS
        self.mark_rows: tuple[int, ...] = ()
        self.entries: list[Entry] | None = None
        self.taken = False

    def unpack(self, packed: bytes) -> list[Entry]:
        """The unfinished entries of the row. Raises ValueError where it holds others."""
        entries = decode_entries(packed)
        places = [(self.id, index) for index in range(self.count)]
        if [(entry.bundle, entry.index) for entry in entries] != places:
            raise ValueError(f"row {self.row} holds other entries")
        return [entry for entry in entries if entry.index not in self.marks]

    def mark(self, indexes: Iterable[int], commit: int) -> None:
        """Note that `commit` wrote done marks for `indexes`."""
        self.marks = self.marks.union(indexes)
        self.mark_rows = (*self.mark_rows, commit)

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

    def add(self, bundle: Bundle, *, wall: float) -> bool:
        """File a bundle by when it is due; True where it can be taken now."""
        queue = self._queues.get(bundle.queue)
        if queue is None:
            queue = self._queues[bundle.queue] = _Queue()
        queue.unfinished += bundle.open
        if bundle.due > wall:
            heapq.heappush(self._waiting, (bundle.due, bundle.id, bundle))
            return False
        self._chill(bundle)
        return True

    def pop(self, name: str) -> Bundle | None:
        """The queue's best bundle, which is taken from now on."""
        queue = self._queues.get(name)
        if queue is None or not queue.cold:
            return None
        bundle = heapq.heappop(queue.cold)[2]
        bundle.taken = True
        if not queue.cold:
            del self._backlog[name]
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
        """When the next waiting bundle becomes due."""
        return self._waiting[0][0] if self._waiting else None

    def has_cold(self, name: str) -> bool:
        """True where `pop` would give a bundle."""
        queue = self._queues.get(name)
        return queue is not None and bool(queue.cold)

    def backlog(self) -> Iterator[str]:
        """Queues with a cold bundle, in the order in which they got one."""
        return iter(self._backlog)

    def unfinished(self, name: str) -> int:
        """How many entries of a queue are not finished: cold, waiting or taken."""
        queue = self._queues.get(name)
        return queue.unfinished if queue else 0

    def unfinished_by_queue(self) -> dict[str, int]:
        """The same for every queue that has any."""
        return {name: queue.unfinished for name, queue in self._queues.items()}

    def _chill(self, bundle: Bundle) -> None:
        queue = self._queues[bundle.queue]
        heapq.heappush(queue.cold, (-bundle.priority, bundle.id, bundle))
        self._backlog.setdefault(bundle.queue)
