"""What a frontier holds and promises: entries, batches, and the protocol.

Data only; confined to the commit thread once inside a frontier. An entry travels with
its lease to other threads, which read it and never write to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import msgspec

from syncrawl.frontier.seen import SeenSet

FinalState = Literal["done", "failed", "dropped"]

SEED_PRIORITY = 100
LINK_PRIORITY = 0

# Why a URL was dropped that there was no room for.
SHED = "shed"


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One accepted URL that is not finished yet. Stored as a msgpack array in this field order.

    `url` is the spelling first seen, `fp` the fingerprint of its comparison key. `due` is
    wall-clock seconds before which it is not tried (0 = at once). `target` is set on a
    continuation: the redirect target to request next, `hops` redirects away from `url`.
    `bundle` and `index` say where the entry lies on disk.
    """

    url: str
    fp: int
    depth: int = 0
    priority: int = LINK_PRIORITY
    referrer: str | None = None
    label: str | None = None
    seed: bool = False
    attempts: int = 0
    refusals: int = 0
    due: float = 0.0
    target: str | None = None
    hops: int = 0
    bundle: int = 0
    index: int = 0

    @property
    def request_url(self) -> str:
        """What is to be fetched next for this entry."""
        return self.target or self.url


def origin_of(url: str) -> str:
    """scheme://host[:port] of a serialised http(s) URL (WHATWG: a slash always follows)."""
    return url[: url.index("/", 8)]


def host_of(url: str) -> str:
    """host[:port] of a serialised http(s) URL, default port already dropped."""
    return url[url.index("//") + 2 : url.index("/", 8)]


class Finish(NamedTuple):
    """An entry's end: its state and the reason or outcome class to remember."""

    entry: Entry
    state: FinalState
    reason: str


@dataclass(slots=True)
class Batch:
    """One transaction: all of it is durable together, or none.

    `found` holds URLs that scope accepted and that may or may not be known; `moved` pairs
    an entry with its successor (a retry, a redirect's continuation), which is the same URL.
    `aliases` are fingerprints of redirect targets fetched on behalf of another URL: known
    from now on, also to `found` of the same batch, but no URLs of their own. `shed` are found
    URLs that there is no room for: each that is not known, in `found` or an alias is accepted
    and dropped at once, and only its fingerprint is kept.
    `notes` are the caller's own rows; an empty value deletes one.
    The entries of `moved` and `found` belong to the frontier from then on.
    """

    finished: list[Finish] = field(default_factory=list)
    moved: list[tuple[Entry, Entry]] = field(default_factory=list)
    found: list[Entry] = field(default_factory=list)
    aliases: list[int] = field(default_factory=list)
    shed: list[Entry] = field(default_factory=list)
    notes: dict[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        work = self.finished or self.moved or self.found or self.aliases or self.shed
        return bool(work or self.notes)


@dataclass(slots=True)
class Counts:
    """How many URLs are in each state, over the life of the frontier.

    `seen == unfinished + done + failed + sum(dropped.values())`, always; `unfinished` is what
    the report splits into pending, deferred and leased.
    """

    seen: int = 0
    unfinished: int = 0
    done: int = 0
    failed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Counts:
        """Counts to go on with while readers hold these."""
        return Counts(self.seen, self.unfinished, self.done, self.failed, dict(self.dropped))

    def balanced(self) -> bool:
        """Whether every URL is in exactly one state."""
        ends = self.done + self.failed + sum(self.dropped.values())
        return self.seen == self.unfinished + ends

    def shed(self, count: int) -> None:
        """Count URLs that were accepted and dropped at once."""
        if count:
            self.seen += count
            self.dropped[SHED] = self.dropped.get(SHED, 0) + count

    def revive(self, count: int) -> None:
        """Count failed URLs back into `unfinished`."""
        self.failed -= count
        self.unfinished += count

    def finish(self, state: FinalState, reason: str) -> None:
        """Count one entry out of `unfinished`."""
        self.unfinished -= 1
        if state == "done":
            self.done += 1
        elif state == "failed":
            self.failed += 1
        else:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1


class Frontier(Protocol):
    """Durable queues of URLs, one per host gate. Every method is the commit thread's.

    `queue_of(host)` maps an entry's host[:port] to the queue (the gate's key) it waits in.
    An entry is takeable, waits for its `due`, is taken, or is finished; the first three
    are unfinished. `syncrawl.testing.frontiers` holds an implementation to all of this.
    """

    seen: SeenSet

    def open(self) -> bool:
        """Load; True where the frontier existed before.

        What was taken by an earlier process is takeable again. Raises StateMismatch or
        StateDamaged, having changed nothing, for what it cannot go on with.
        """
        ...

    def commit(self, batch: Batch) -> set[str]:
        """Apply `batch` atomically and durably (against SIGKILL); the queues with more to take.

        Each URL of `found` is accepted once in the life of the frontier. With depth tracking, an
        unfinished URL found at a smaller depth takes that depth, wherever it is by now.
        Raises KeyError for a finished or moved entry that is not taken, DiskFull where there
        is no room; the frontier is then as it was.
        """
        ...

    def take(self, queue: str, limit: int, above: int | None = None) -> list[Entry]:
        """About `limit` entries to work on, and no fewer where there are as many.

        Best priority first, then in the order of their commits; with `above`, only those of
        a higher priority than that. They stay unfinished.
        """
        ...

    def take_all(self, queue: str) -> list[Entry]:
        """Everything of `queue` that is not taken, also what waits for its time or is shelved."""
        ...

    def has_more(self, queue: str) -> bool:
        """True where `take` would give something now."""
        ...

    def best_priority(self, queue: str) -> int | None:
        """The priority of the first entry that `take` would give, None where of none."""
        ...

    def shelve(self, below: int, keep: int) -> int:
        """Make entries of a priority under `below` untakeable until no more than `keep` are left.

        That is of the unfinished that are not shelved. Lowest priority first, then the
        youngest, about a row at a time; what is taken or waits stays. Shelved entries are
        unfinished, and takeable again after `unshelve` or the next `open`. How many were shelved.
        """
        ...

    def unshelve(self, room: int) -> set[str]:
        """Make about `room` shelved entries takeable, best priority first, then the oldest.

        No fewer where there are as many. Returns the queues concerned.
        """
        ...

    def unshelve_starved(self, most: int) -> set[str]:
        """The same for the best few of each of `most` queues that have nothing but shelved ones."""
        ...

    def surplus(self, below: int, keep: int) -> list[Entry]:
        """The entries to do without, worst and youngest first, taken: to be finished as dropped.

        No more than are too many, and no more than about 10,000 a call.
        """
        ...

    def shelved(self) -> int:
        """How many entries are shelved."""
        ...

    def shelved_queue(self, queue: str) -> int:
        """The same of one queue."""
        ...

    def revive(self, classes: Collection[str]) -> Iterator[int]:
        """Make URLs that failed with one of `classes` (any, where that is empty) pending again.

        As they were found, with no attempts and due at once, but at the redirect target that
        failed. For a frontier of which nothing is taken. Yields how many after each transaction.
        """
        ...

    def ripen(self, wall: float) -> set[str]:
        """Make entries due by `wall` takeable; the queues concerned."""
        ...

    def next_due(self) -> float | None:
        """Wall-clock seconds at which the next waiting entry becomes due."""
        ...

    def backlog(self) -> Iterator[tuple[str, int]]:
        """Queues for which `take` would give something now, with the priority of its first.

        The best first, then those that have been at it longest.
        """
        ...

    def unfinished(self, queue: str) -> int:
        """How many entries of `queue` are unfinished."""
        ...

    def unfinished_by_queue(self) -> Mapping[str, int]:
        """The same for every queue that has any."""
        ...

    def counts(self) -> Counts:
        """The counts as of the last commit; the object is replaced, never changed."""
        ...

    @property
    def next_bundle(self) -> int:
        """Entries with a smaller `bundle` were accepted before now."""
        ...

    def note(self, key: str) -> bytes | None:
        """A row the caller stored."""
        ...

    def notes(self, prefix: str) -> Iterable[tuple[str, bytes]]:
        """Every row whose key begins with `prefix`: (key, value)."""
        ...

    def close(self) -> None:
        """Let go of files; what was committed is already sound."""
        ...


QueueOf = Callable[[str], str]
