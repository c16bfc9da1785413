"""What the conformance suite of frontiers is built from: entries, and a frontier to test.

Tests only. `frontiers` is the way in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from syncrawl.frontier.model import Batch, Entry, Finish, Frontier
from syncrawl.testing.clock import FakeClock


def by_host(host: str) -> str:
    """Each host is its own queue."""
    return host


def fp_of(url: str) -> int:
    """A stand-in for a comparison key's fingerprint: 64 bits, the same in every process."""
    return int.from_bytes(hashlib.sha256(url.encode()).digest()[:8], "little")


def entry(path: object, host: str = "a.test", **fields: Any) -> Entry:
    """An entry as a parser's link or a seed would become one."""
    url = f"http://{host}/{path}"
    return Entry(url, fp_of(url), **fields)


def entries(count: int, host: str = "a.test", **fields: Any) -> list[Entry]:
    """`count` different entries of one host."""
    return [entry(number, host, **fields) for number in range(count)]


def successor(old: Entry, **fields: Any) -> Entry:
    """The entry that stands for the same URL from now on, as the committer makes it."""
    kept = ("url", "fp", "depth", "priority", "referrer", "label", "seed", "attempts", "refusals")
    return Entry(**{**{name: getattr(old, name) for name in kept}, **fields})


def done(taken: Iterable[Entry], reason: str = "2xx") -> Batch:
    """The batch in which all of `taken` are done."""
    return Batch(finished=[Finish(one, "done", reason) for one in taken])


def urls(some: Iterable[Entry]) -> list[str]:
    """Their URLs, in order."""
    return [one.url for one in some]


def drain(frontier: Frontier) -> list[Entry]:
    """Everything that can be taken now."""
    return [one for queue, _ in list(frontier.backlog()) for one in frontier.take(queue, 1_000_000)]


class FrontierCase:
    """Gives each test a frontier of the kind that `make` makes."""

    surplus: ClassVar[int] = 256
    """How many entries more than its limit one `take` may give."""

    def make(self, tmp_path: Path, clock: FakeClock, **options: Any) -> Frontier:
        """A new, unopened frontier on a place under `tmp_path`."""
        raise NotImplementedError

    def lose(self, frontier: Frontier) -> None:
        """Leave an open frontier behind as a killed process would; by default drop it."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def opened(self, tmp_path: Path, clock: FakeClock) -> Iterator[Any]:
        """Opens frontiers, one at a time; `opened()` again is a restart."""
        current: list[Frontier] = []

        def open_one(*, crash: bool = False, **options: Any) -> Frontier:
            if current:
                last = current.pop()
                self.lose(last) if crash else last.close()
                del last
            frontier = self.make(
                tmp_path, clock, **{"queue_of": by_host, "track_depth": False, **options}
            )
            current.append(frontier)
            frontier.open()
            return frontier

        yield open_one
        for frontier in current:
            frontier.close()

    @pytest.fixture
    def frontier(self, opened: Any) -> Frontier:
        one: Frontier = opened()
        return one
