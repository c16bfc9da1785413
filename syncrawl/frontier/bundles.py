"""The in-memory index over the frontier's rows: which bundle of a queue comes next.

Commit thread only; no I/O.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator

from syncrawl.frontier.model import Entry, QueueOf, host_of
from syncrawl.frontier.rows import decode_entries

# A row is read and written as a whole; this keeps one near 64 KiB.
_BUNDLE_SIZE = 256
_NO_MARKS: frozenset[int] = frozenset()
# A heap this long is cleared of bundles that have left it once they are more than the others.
_LONG = 64

_Heap = list[tuple[int, int, "Bundle"]]


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
        "shelved",
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
        self.shelved = False

    @property
    def cold(self) -> bool:
        """True for one that lies in its queue (or will once it is due)."""
        return not (self.taken or self.shelved)

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
    __slots__ = ("cold", "level", "lying", "name", "shelved", "unfinished")

    def __init__(self, name: str) -> None:
        self.name = name
        # Bundles to take: best priority, then oldest, first. Those that are taken or shelved
        # by now are left out as they come up.
        self.cold: _Heap = []
        # How many of them are in fact there.
        self.lying = 0
        # The priority of the best one, None where there is none.
        self.level: int | None = None
        self.unfinished = 0
        self.shelved = 0

    def best(self) -> Bundle | None:
        while self.cold and not self.cold[0][2].cold:
            heapq.heappop(self.cold)
        return self.cold[0][2] if self.cold else None


class QueueIndex:
    """Every bundle on disk is in one place: cold, shelved, waiting for its time, or taken."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._waiting: list[tuple[float, int, Bundle]] = []
        # Queues with a cold bundle by their best one's priority, in the order in which they
        # came to it.
        self._backlog: dict[int, dict[str, None]] = {}
        # Cold bundles, lowest priority and youngest first; None until anything is shelved,
        # so that a crawl which sheds nothing pays nothing. Entries are left behind like those
        # of `_Queue.cold`.
        self._worst: _Heap | None = None
        # How many bundles are cold, over all queues.
        self._lying = 0
        # Shelved bundles, best priority and oldest first, and how many URLs they hold.
        self._shelf: _Heap = []
        self.shelved = 0
        # Queues that have nothing else, in the order in which they came to it.
        self._starved: dict[str, None] = {}

    def add(self, bundle: Bundle, *, wall: float) -> bool:
        """File a bundle by when it is due; True where it can be taken now."""
        queue = self._queues.get(bundle.queue)
        if queue is None:
            queue = self._queues[bundle.queue] = _Queue(bundle.queue)
        queue.unfinished += bundle.open
        self._look_at(queue)
        if bundle.due > wall:
            heapq.heappush(self._waiting, (bundle.due, bundle.id, bundle))
            return False
        self._chill(bundle)
        return True

    def pop(self, name: str, above: int | None = None) -> Bundle | None:
        """The queue's best bundle, taken from now on; None where its priority is not `above`."""
        queue = self._queues.get(name)
        bundle = queue.best() if queue else None
        if queue is None or bundle is None:
            return None
        if above is not None and bundle.priority <= above:
            return None
        heapq.heappop(queue.cold)
        bundle.taken = True
        self._left(queue)
        return bundle

    def finish_one(self, bundle: Bundle) -> None:
        """An entry of `bundle` is finished."""
        bundle.open -= 1
        queue = self._queues[bundle.queue]
        queue.unfinished -= 1
        self._look_at(queue)
        if not queue.unfinished and queue.best() is None:
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

    def best_priority(self, name: str) -> int | None:
        """The priority of what `pop` would give, None where it would give nothing."""
        queue = self._queues.get(name)
        return queue.level if queue else None

    def backlog(self) -> Iterator[tuple[str, int]]:
        """Queues with a cold bundle and its priority: the best first, then the oldest."""
        for level in sorted(self._backlog, reverse=True):
            for name in self._backlog[level]:
                yield name, level

    # -- shedding ---------------------------------------------------------------------

    def worst(self, below: int) -> Bundle | None:
        """The cold bundle to do without first, where one has a priority under `below`."""
        if self._worst is None:
            self._worst = [
                (bundle.priority, -bundle.id, bundle)
                for queue in self._queues.values()
                for _, _, bundle in queue.cold
            ]
            heapq.heapify(self._worst)
        worst = self._worst
        while worst and not worst[0][2].cold:
            heapq.heappop(worst)
        return worst[0][2] if worst and worst[0][0] < below else None

    def shelve(self, bundle: Bundle) -> None:
        """Put a cold bundle where `pop` does not find it."""
        bundle.shelved = True
        self.shelved += bundle.open
        queue = self._queues[bundle.queue]
        queue.shelved += bundle.open
        heapq.heappush(self._shelf, (-bundle.priority, bundle.id, bundle))
        self._look_at(queue)
        self._left(queue)

    def unshelve(self) -> Bundle | None:
        """Put the best shelved bundle back to its queue."""
        if not self._shelf:
            return None
        bundle = heapq.heappop(self._shelf)[2]
        self._off_the_shelf(bundle)
        self._chill(bundle)
        return bundle

    def unshelve_starved(self, most: int) -> set[str]:
        """Put the best bundle of up to `most` queues back that have nothing but shelved ones.

        Walks all that are shelved. The queues concerned.
        """
        names = set(itertools.islice(self._starved, max(0, most)))
        if not names:
            return names
        best: dict[str, tuple[int, int, Bundle]] = {}
        for item in self._shelf:
            name = item[2].queue
            if name in names and (name not in best or item < best[name]):
                best[name] = item
        back = {item[1] for item in best.values()}
        self._shelf = [item for item in self._shelf if item[1] not in back]
        heapq.heapify(self._shelf)
        for _, _, bundle in best.values():
            self._off_the_shelf(bundle)
            self._chill(bundle)
        return names

    def take(self, bundle: Bundle) -> None:
        """Take one cold bundle, wherever it lies."""
        bundle.taken = True
        self._left(self._queues[bundle.queue])

    def put_back(self, bundle: Bundle) -> None:
        """Have a taken bundle lie in its queue again."""
        bundle.taken = False
        self._chill(bundle)

    def take_all(self, name: str) -> list[Bundle]:
        """Take a queue's bundles, also those that are shelved or wait for their time.

        Walks all that wait or are shelved.
        """
        queue = self._queues.get(name)
        if queue is None:
            return []
        taken = {bundle.id: bundle for _, _, bundle in queue.cold if bundle.cold}
        if queue.shelved:
            shelved = [item[2] for item in self._shelf if item[2].queue == name]
            self._shelf = [item for item in self._shelf if item[2].queue != name]
            heapq.heapify(self._shelf)
            for bundle in shelved:
                self._off_the_shelf(bundle)
                taken[bundle.id] = bundle
        waiting = [item for item in self._waiting if item[2].queue == name]
        if waiting:
            self._waiting = [item for item in self._waiting if item[2].queue != name]
            heapq.heapify(self._waiting)
            taken |= {bundle.id: bundle for _, _, bundle in waiting}
        for bundle in taken.values():
            bundle.taken = True
        queue.cold = []
        self._left(queue, queue.lying)
        return list(taken.values())

    def shelved_of(self, name: str) -> int:
        """How many entries of a queue are shelved."""
        queue = self._queues.get(name)
        return queue.shelved if queue else 0

    def unfinished(self, name: str) -> int:
        """How many entries of a queue are not finished: cold, shelved, waiting or taken."""
        queue = self._queues.get(name)
        return queue.unfinished if queue else 0

    def unfinished_by_queue(self) -> dict[str, int]:
        """The same for every queue that has any."""
        return {name: queue.unfinished for name, queue in self._queues.items()}

    def _off_the_shelf(self, bundle: Bundle) -> None:
        bundle.shelved = False
        self.shelved -= bundle.open
        queue = self._queues[bundle.queue]
        queue.shelved -= bundle.open
        self._look_at(queue)

    def _look_at(self, queue: _Queue) -> None:
        """Keep account of whether the queue has nothing but shelved bundles."""
        if queue.shelved and queue.shelved == queue.unfinished:
            self._starved[queue.name] = None
        elif self._starved:
            self._starved.pop(queue.name, None)

    def _chill(self, bundle: Bundle) -> None:
        queue = self._queues[bundle.queue]
        heapq.heappush(queue.cold, (-bundle.priority, bundle.id, bundle))
        queue.lying += 1
        self._lying += 1
        if len(queue.cold) > max(_LONG, 2 * queue.lying):
            queue.cold = _cleared(queue.cold)
        if self._worst is not None:
            heapq.heappush(self._worst, (bundle.priority, -bundle.id, bundle))
            if len(self._worst) > max(_LONG, 2 * self._lying):
                self._worst = _cleared(self._worst)
        if queue.level is None or bundle.priority > queue.level:
            self._level(queue)

    def _left(self, queue: _Queue, count: int = 1) -> None:
        """Cold bundles of the queue are taken or shelved."""
        queue.lying -= count
        self._lying -= count
        self._level(queue)

    def _level(self, queue: _Queue) -> None:
        """Have the backlog say what the queue's best bundle is now."""
        best = queue.best()
        level = None if best is None else best.priority
        if level == queue.level:
            return
        if queue.level is not None:
            names = self._backlog[queue.level]
            del names[queue.name]
            if not names:
                del self._backlog[queue.level]
        if level is not None:
            self._backlog.setdefault(level, {})[queue.name] = None
        queue.level = level


def _cleared(heap: _Heap) -> _Heap:
    """The heap of those that are there, each once: what left it and came back is in it twice."""
    there = list({item[2].id: item for item in heap if item[2].cold}.values())
    heapq.heapify(there)
    return there


def pack(entries: Iterable[Entry], first: int, queue_of: QueueOf) -> list[Bundle]:
    """Bundles, numbered from `first`, of entries of one origin, priority and due time each."""
    groups: dict[tuple[str, int, float], list[Entry]] = {}
    for entry in entries:
        # origin_of(entry.request_url), without the calls: this runs for every link.
        url = entry.target or entry.url
        key = (url[: url.index("/", 8)], entry.priority, entry.due)
        group = groups.get(key)
        if group is None:
            groups[key] = [entry]
        else:
            group.append(entry)
    bundles: list[Bundle] = []
    for (_, priority, due), group in groups.items():
        host = host_of(group[0].request_url)
        queue = queue_of(host)
        for start in range(0, len(group), _BUNDLE_SIZE):
            part = group[start : start + _BUNDLE_SIZE]
            id = first + len(bundles)
            for index, entry in enumerate(part):
                entry.bundle, entry.index = id, index
            bundle = Bundle(id, queue, host, priority, due, len(part))
            bundle.entries = part
            bundles.append(bundle)
    return bundles
