"""The permission to make one exchange, and what came of it.

Data only. A lease is made by the scheduler, worked off by one fetch thread, and settled
by the commit thread; no two of them hold it at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from syncrawl.api import Record, Response
from syncrawl.engine.budget import Ticket
from syncrawl.engine.hosts import Host, RobotsJob
from syncrawl.errors import FetchError
from syncrawl.frontier.model import Entry


@dataclass(slots=True, eq=False)
class Lease:
    """One admitted exchange on `host`: a page (`entry`), rules (`job`), or a DNS `lookup`.

    `level` is how many requests the host's gate had in flight at admission, this one
    included, and `tested` whether they used its limit up; `route_level` and `route_tested` say
    the same of all requests together. `admitted_at` is clock seconds. `released` tells that the
    slot is given back. A look-up makes no request: it holds a worker, and no slot. `unresolved` is
    what an exchange ends with at once whose machine could not be told.
    """

    id: int
    host: Host
    admitted_at: float
    ticket: Ticket
    level: int = 0
    tested: bool = False
    route_level: int = 0
    route_tested: bool = False
    entry: Entry | None = None
    job: RobotsJob | None = None
    lookup: bool = False
    unresolved: FetchError | None = None
    released: bool = False
    # One of those that share at most half of the workers; see Standings.trusts.
    doubted: bool = False
    # Trusted, and not proven.
    young: bool = False

    @property
    def url(self) -> str:
        if self.entry is not None:
            return self.entry.request_url
        return self.job.url if self.job is not None else f"//{self.host.key}/"


@dataclass(slots=True)
class Fetched:
    """What the fetch stage hands on for a page lease.

    `outcome` is a class of `limits.signals.RULES`. `response` is kept where it is to be
    parsed (2xx). `target` is where a redirect goes on (outcome "redirect"); `aliases` are
    fingerprints claimed on the way, `followed` names that scope follows from now on because a
    seed was redirected there; `dropped` is the reason of a drop.
    """

    lease: Lease
    outcome: str
    detail: str = ""
    response: Response | None = None
    final_url: str = ""
    fetched_at: float = 0.0
    elapsed: float = 0.0
    wire_bytes: int = 0
    retry_after: float | None = None
    # Seconds that the host took to answer; see api.Response.
    latency: float | None = None
    target: str | None = None
    hops: int = 0
    aliases: list[int] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    dropped: str = ""
    # The fetcher says that no later attempt can succeed.
    final: bool = False

    @property
    def is_page(self) -> bool:
        """True for a result that counts against max_pages."""
        return self.outcome == "2xx"


@dataclass(slots=True)
class Parsed:
    """What the parse stage hands on: records and links, or the fetch outcome as it was.

    `links` passed scope; `refused` counts those that did not, by reason. `error` names a
    parser that failed; the page's result is then lost and `fetched.outcome` says so.
    """

    fetched: Fetched
    records: list[Record] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    body_hash: int | None = None
    length: int = 0
