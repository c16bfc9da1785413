"""What the ends of entries mean on disk: rows that go, and done marks that others get.

Commit thread only; no I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from syncrawl.frontier.bundles import Bundle, QueueIndex
from syncrawl.frontier.model import Entry


class Settled(NamedTuple):
    """`complete` bundles lose their row; `marks` has the indexes finished in each other one.

    `stale` are the commits whose done-mark rows speak of complete bundles alone.
    """

    complete: list[Bundle]
    marks: dict[int, set[int]]
    stale: list[int]


class Marks:
    """Which bundles are live, and which commits' done-mark rows speak of them.

    `settle` decides before a transaction and `forget` follows once it is durable.
    """

    def __init__(self, bundles: dict[int, Bundle], rows: dict[int, int]) -> None:
        """`rows` is by commit: how many live bundles its done-mark row still speaks of."""
        self.bundles = bundles
        self._rows = rows

    def settle(self, gone: list[Entry]) -> Settled:
        """Decide what the ends of `gone` mean. Raises KeyError where one is not taken."""
        marks: dict[int, set[int]] = {}
        for entry in gone:
            bundle, index = self.bundles.get(entry.bundle), entry.index
            indexes = marks.setdefault(entry.bundle, set())
            if bundle is None or not bundle.taken or index in bundle.marks or index in indexes:
                raise KeyError(f"{entry.url} is not taken")
            indexes.add(index)
        complete = [
            bundle for id, ii in marks.items() if len(ii) == (bundle := self.bundles[id]).open
        ]
        drops: dict[int, int] = {}
        for bundle in complete:
            del marks[bundle.id]
            for commit in bundle.mark_rows:
                drops[commit] = drops.get(commit, 0) + 1
        stale = [commit for commit, n in drops.items() if n == self._rows[commit]]
        return Settled(complete, marks, stale)

    def forget(self, gone: list[Entry], settled: Settled, commit: int, index: QueueIndex) -> None:
        """Bring what is in memory to where the transaction of number `commit` brought the rows."""
        for entry in gone:
            index.finish_one(self.bundles[entry.bundle])
        for bundle in settled.complete:
            for number in bundle.mark_rows:
                self._rows[number] -= 1
            del self.bundles[bundle.id]
        for number in settled.stale:
            del self._rows[number]
        if settled.marks:
            self._rows[commit] = len(settled.marks)
            for id, indexes in settled.marks.items():
                self.bundles[id].mark(indexes, commit)
