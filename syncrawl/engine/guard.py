"""Looks after what should not happen: workers that hang, a crawl that stands still.

`look` is called twice a second by the thread that runs the crawl, which does nothing else and
so can tell even where the commit thread is what hangs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.crew import Crew
from syncrawl.engine.lease import Fetched, Lease, Parsed
from syncrawl.engine.rooms import Rooms
from syncrawl.engine.watch import Stuck, WorkWatch
from syncrawl.errors import EXIT_CONDITION, EXIT_INTERNAL, FetchError, SyncrawlError
from syncrawl.log import Log, redact


class Guard:
    """No lease outlives its bound unsettled, no worker ends unseen, no standstill stays unnamed.

    `end_with` is told the exit code and the reason where no worker could go on.
    """

    def __init__(
        self,
        config: Config,
        rooms: Rooms,
        crew: Crew,
        *,
        end_with: Callable[[int, str], None],
        clock: Clock,
        log: Log,
    ) -> None:
        self._end_with = end_with
        self._client = config.fetch.client
        self._rooms = rooms
        self._watch: WorkWatch = rooms.watch
        self._crew = crew
        self._clock = clock
        self._log = log
        self._patience = config.crawl.stall_after
        self._seen: tuple[int, ...] = ()
        self._moved_at = clock.monotonic()
        # What the crawl stands still for, "" while it does not.
        self.stalled = ""

    def look(self) -> None:
        """Replace workers that hang; end what cannot go on; name a standstill."""
        now = self._clock.monotonic()
        self.look_for_failures()
        self._crew.refill()
        for stuck in self._watch.overdue(now):
            self._give_up(stuck)
        self._look_for_stall(now)

    def _give_up(self, stuck: Stuck) -> None:
        self._settle(stuck)
        replaced = self._crew.replace(stuck.stage)
        self._log.error(
            "a worker hangs; its result is given up",
            thread=stuck.thread,
            url=stuck.lease.url,
            **({"parser": stuck.at} if stuck.at else {}),
            seconds=round(stuck.seconds, 1),
            replaced=replaced,
            stack=self._watch.stack_of(stuck.ident),
        )
        if self._crew.left(stuck.stage) == 0:
            what = f"parser {stuck.at}" if stuck.at else f"fetch.client {self._client}"
            where = f"the last one in {what} at {stuck.lease.url}"
            self._end_with(EXIT_CONDITION, redact(f"every {stuck.stage} worker hangs, {where}"))

    def _settle(self, stuck: Stuck) -> None:
        if stuck.stage == "fetch" and not self._take_slot_back(stuck.lease):
            return
        self._rooms.committer.give_in(Parsed(_given_up(stuck)))
        self._rooms.inbox.wake()

    def _take_slot_back(self, lease: Lease) -> bool:
        """Settle what the fetch worker would have; True where a page's fate is left to COMMIT."""
        scheduler = self._rooms.scheduler
        if lease.lookup:
            scheduler.address_known(lease, FetchError("the look-up hangs", outcome="timeout"))
        else:
            scheduler.release(lease, "lost")
        scheduler.give_credit()
        if lease.entry is not None:
            return True
        scheduler.settle(lease, page=False)
        if lease.job is not None:
            scheduler.robots_failed(lease.job, "lost")
        return False

    def look_for_failures(self) -> None:
        """End the crawl where a worker has ended by an exception: a step lets none out."""
        while (failed := self._crew.failed()) is not None:
            stage, error = failed
            if isinstance(error, SyncrawlError):
                code, reason = error.exit_code, str(error)
                self._log.error("a worker cannot go on", stage=stage, why=reason)
            else:
                code = EXIT_INTERNAL
                reason = f"internal error: a {stage} worker ended: {type(error).__name__}: {error}"
                self._log.error("a worker ended", stage=stage, exc_info=error)
            self._end_with(code, reason)

    def _look_for_stall(self, now: float) -> None:
        rooms = self._rooms
        counts = rooms.frontier.counts()
        seen = (rooms.scheduler.requests, rooms.committer.items, counts.seen, counts.unfinished)
        due = rooms.scheduler.waits_until()
        waits = due is not None and due > now
        wall = rooms.committer.due_at
        waits = waits or (wall is not None and wall > self._clock.wall())
        if seen != self._seen or (waits and not rooms.scheduler.unsettled):
            self._seen = seen
            self._moved_at = now
            self.stalled = ""
        elif not self.stalled and now - self._moved_at >= self._patience:
            self.stalled = f"no progress for {self._patience:g} s: {self._waits_for()}"
            self._log.error("stalled", why=self.stalled, stacks=self._watch.stacks())

    def _waits_for(self) -> str:
        """What is under way, in words."""
        scheduler = self._rooms.scheduler
        if not self._rooms.seeds.ended:
            return "the seeds have not been read to their end"
        if scheduler.unsettled:
            return f"{scheduler.unsettled} leases are not committed"
        return "URLs are pending and nothing is leased"

    def __repr__(self) -> str:
        return f"Guard({self.stalled or 'all is well'})"


def _given_up(stuck: Stuck) -> Fetched:
    """The page as its worker had left it: hops that were made, and claimed, are not forgotten."""
    fetched, entry = stuck.fetched, stuck.lease.entry
    if fetched is None:
        assert entry is not None
        fetched = Fetched(stuck.lease, "lost", target=entry.target, hops=entry.hops)
    who = f"parser {stuck.at}" if stuck.at else stuck.thread
    return dataclasses.replace(
        fetched,
        outcome="parse_timeout" if stuck.stage == "parse" else "lost",
        detail=f"{who} was at it for {stuck.seconds:.0f} s",
        response=None,
    )
