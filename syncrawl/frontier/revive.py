"""Takes failed URLs back: what a later run is to try again, as if it had never been tried.

Works on a state that nobody else has open. Each row is one transaction, so that a kill leaves
every URL either failed or pending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from syncrawl.frontier.model import Entry, Finish
from syncrawl.frontier.rows import decode_ends


class Again(NamedTuple):
    """One row of ends split: the entries to try again, and the ends that stay."""

    entries: list[Entry]
    ends: list[Finish]


def split_ends(packed: bytes, classes: Collection[str]) -> Again:
    """Failed entries whose outcome is among `classes` (any, where that is empty), made new."""
    again = Again([], [])
    for end in decode_ends(packed):
        if end.state == "failed" and (not classes or end.reason in classes):
            again.entries.append(as_found(end.entry))
        else:
            again.ends.append(end)
    return again


def rows_of(cache: Any) -> Iterator[str]:
    """The keys of the rows of ends, as they were when asked for."""
    return iter([key for key in cache if isinstance(key, str) and key.startswith("f:")])


def as_found(entry: Entry) -> Entry:
    """The URL as it was found: no attempts, due at once.

    It goes on at the redirect target that failed. That one is seen since the first attempt,
    so that a redirect to it would be taken for one to another URL's page.
    """
    return Entry(
        url=entry.url,
        fp=entry.fp,
        depth=entry.depth,
        priority=entry.priority,
        referrer=entry.referrer,
        label=entry.label,
        seed=entry.seed,
        target=entry.target,
    )
