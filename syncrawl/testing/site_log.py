"""What a loopback site saw: one `Exchange` a request, and the figures drawn from them.

Exchanges are written by the site's loop thread and read by any; a `HostLog` is a copy
that no longer changes. Imports nothing from the package.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Exchange:
    """One request as the server saw it; times are `time.monotonic` seconds.

    `in_flight` is how many requests the host held when this one came, itself included.
    `ended` is None while unanswered, else when the last byte went to the kernel or the
    client went away (`aborted`). `resource` names the thing behind the URL where several
    spellings lead to it, else it is the target. `head` is the raw request head.
    """

    started: float
    target: str
    in_flight: int
    head: bytes = b""
    ended: float | None = None
    status: int = 0
    resource: str = ""
    content_type: str = ""
    aborted: bool = False

    def as_row(self) -> list[Any]:
        """A JSON-able form, without the request head."""
        return [
            self.started,
            self.target,
            self.in_flight,
            self.ended,
            self.status,
            self.resource,
            self.content_type,
            self.aborted,
        ]

    @classmethod
    def from_row(cls, row: list[Any]) -> Exchange:
        started, target, in_flight, ended, status, resource, content_type, aborted = row
        return cls(started, target, in_flight, b"", ended, status, resource, content_type, aborted)

    def header(self, name: str) -> str | None:
        """The first request header field `name`; None where absent or not kept."""
        wanted = name.lower().encode("latin-1")
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == wanted:
                return value.strip().decode("latin-1")
        return None


class HostLog:
    """A host's exchanges in order of arrival, with the figures tests and benchmarks ask for."""

    def __init__(self, name: str, exchanges: Iterable[Exchange]) -> None:
        self.name = name
        self.exchanges = list(exchanges)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> HostLog:
        return cls(data["name"], map(Exchange.from_row, data["exchanges"]))

    def as_mapping(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {"name": self.name, "exchanges": [one.as_row() for one in self.exchanges]}

    @property
    def robots(self) -> int:
        """Requests for /robots.txt."""
        return sum(one.target == "/robots.txt" for one in self.exchanges)

    @property
    def pages(self) -> list[Exchange]:
        """Everything but robots.txt."""
        return [one for one in self.exchanges if one.target != "/robots.txt"]

    @property
    def peak(self) -> int:
        """The most requests in flight at one time."""
        return max((one.in_flight for one in self.exchanges), default=0)

    @property
    def first(self) -> float | None:
        """When the first request came."""
        return self.exchanges[0].started if self.exchanges else None

    @property
    def last(self) -> float | None:
        """When the last answer was out."""
        return max((one.ended for one in self.exchanges if one.ended is not None), default=None)

    def targets(self) -> Counter[str]:
        """Requests by target, as spelled on the request line."""
        return Counter(one.target for one in self.exchanges)

    def resources(self) -> Counter[str]:
        """Answered requests, robots.txt left out, by the resource that answered."""
        return Counter(one.resource for one in self.pages if one.status)

    def statuses(self) -> Counter[int]:
        return Counter(one.status for one in self.exchanges)

    def busiest(self, seconds: float) -> int:
        """The most requests that came within any half-open window of `seconds`."""
        starts = [one.started for one in self.exchanges]
        ends = (bisect_left(starts, start + seconds) for start in starts)
        return max((end - index for index, end in enumerate(ends)), default=0)

    def __len__(self) -> int:
        return len(self.exchanges)

    def __repr__(self) -> str:
        return f"HostLog({self.name!r}, requests={len(self)}, peak={self.peak})"
