"""Keeps the hosts' windows fed with entries from the frontier's disk.

Commit thread only. What turns out not to be fetched on the way (a given-up host, a tighter
scope, a page cap) ends here, and is written down with the next commit.
"""

from __future__ import annotations

from syncrawl.clock import Clock
from syncrawl.engine.hosts import Wants
from syncrawl.engine.ledger import Ledger
from syncrawl.engine.robots import RobotsStep
from syncrawl.engine.windows import Windows
from syncrawl.frontier.model import SHED, Entry, Finish, Frontier, origin_of
from syncrawl.log import Log
from syncrawl.scope import Scope
from syncrawl.urls import Canonicalizer

# The frontier's notes that hold an origin's robots.txt.
ROBOTS = "robots/"

# Above the number of any bundle.
_NEVER_NEW = 1 << 62


class Feeder:
    """Every entry it takes is offered to a window or ended, none is lost."""

    def __init__(
        self,
        *,
        frontier: Frontier,
        windows: Windows,
        robots: RobotsStep,
        ledger: Ledger,
        scope: Scope,
        canonicalizer: Canonicalizer,
        clock: Clock,
        log: Log,
        cap: int,
        first_bundle: int,
    ) -> None:
        self._frontier = frontier
        self._windows = windows
        self._robots = robots
        self._ledger = ledger
        self._scope = scope
        self._canonicalizer = canonicalizer
        self._clock = clock
        self._log = log
        self._cap = cap  # scope.max_pages_per_host, 0 = none
        # Entries in bundles before this one are an earlier run's: scope may have tightened.
        self._first_bundle = first_bundle
        # Hosts whose page cap is reached: what they have pending counts as deferred.
        self.retired: set[str] = set()
        # Ends decided here, for the next commit to write down.
        self.ends: list[Finish] = []
        self._looked_up: set[str] = set()

    @property
    def set_apart(self) -> int:
        """Unfinished URLs of hosts that have all the pages they may have, but for shelved ones."""
        return self.out_of_reach - sum(map(self._frontier.shelved_queue, self.retired))

    @property
    def out_of_reach(self) -> int:
        """All unfinished URLs of hosts that have all the pages they may have."""
        return sum(map(self._frontier.unfinished, self.retired))

    @property
    def deferred(self) -> int:
        """URLs kept on disk that this configuration does not get to, now or at all."""
        return self._frontier.shelved() + self.set_apart

    def take_ends(self) -> list[Finish]:
        """What is to be written down, once."""
        ends, self.ends = self.ends, []
        return ends

    def refill(self, touched: set[str]) -> None:
        """Feed hosts that asked, those in `touched` that got URLs, and new hosts in free places."""
        for key, wants in self._windows.take_wanted():
            self._feed(key, wants)
        touched |= self._frontier.ripen(self._clock.wall())
        for key in touched:
            best = self._frontier.best_priority(key)
            if best is not None and (wants := self._windows.wants(key, best)).room:
                self._feed(key, wants)
        for key in self._newcomers():
            self._feed(key, Wants(1))

    def _newcomers(self) -> list[str]:
        """Hosts to work on from now on: best priority first, as far as there are places."""
        chosen: list[str] = []
        level: int | None = None
        places = 0
        for key, priority in self._frontier.backlog():
            if priority != level:
                # Hosts of lower priority than this one's do not count.
                level = priority
                places = self._windows.free_places(priority) - len(chosen)
            if places <= 0:
                break
            if key not in self.retired and not self._windows.is_loaded(key):
                chosen.append(key)
                places -= 1
        return chosen

    def fail_host(self, key: str, verdict: str) -> None:
        """Everything that waits for a given-up host fails now."""
        self.fail(self._windows.unload(key) + self._frontier.take_all(key), verdict)

    def shed(self, entries: list[Entry]) -> None:
        """End entries that there is no room for."""
        self.ends.extend(Finish(entry, "dropped", SHED) for entry in entries)

    def deny(self) -> None:
        """scope.deny_hosts has changed: what waits for a host that it names now is dropped."""
        # From now on whatever is fed is looked at: what shares a queue with hosts that are not
        # denied, and links that passed the old scope and are on their way to a commit.
        self._first_bundle = _NEVER_NEW
        for key in list(self._frontier.unfinished_by_queue()):
            entries = self._windows.unload(key, jobs=self._scope.denied_host(key))
            if self._scope.denied_host(key):
                entries += self._frontier.take_all(key)
            entries = [entry for entry in entries if self._in_scope(entry)]
            if entries:
                self._robots.sort_out(entries, more=self._frontier.has_more(key))

    def fail(self, entries: list[Entry], reason: str) -> None:
        """End entries as failed."""
        self.ends.extend(Finish(entry, "failed", reason) for entry in entries)

    def rules_are_known(self, origin: str) -> None:
        """This run has asked for the origin's robots.txt; the one on disk is older."""
        self._looked_up.add(origin)

    def retire_if_capped(self, key: str) -> None:
        """Take a host out of the run once all the pages it may have are committed."""
        if self._cap and key not in self.retired and self._windows.exhausted(key):
            self.retired.add(key)
            self._windows.unload(key)
            self._log.info("host has all its pages", host=key, max_pages_per_host=self._cap)

    def _feed(self, key: str, wants: Wants) -> None:
        """Move entries of one host from the frontier to its window."""
        if self._cap and self._ledger.host(key).pages >= self._cap:
            self.retired.add(key)
            return
        entries = self._frontier.take(key, wants.room, wants.above)
        verdict = self._windows.verdict(key)
        if verdict is not None:
            self.fail(entries, verdict)
            return
        entries = [entry for entry in entries if self._in_scope(entry)]
        for origin in {origin_of(entry.request_url) for entry in entries}:
            self._look_up_robots(origin)
        best = self._frontier.best_priority(key)
        if entries:
            self._robots.sort_out(entries, more=best is not None, best_cold=best)
        else:
            self._windows.offer(key, [], [], more=best is not None, best_cold=best)

    def _in_scope(self, entry: Entry) -> bool:
        """False where a resumed run's tighter scope refuses an entry; it is then dropped."""
        if entry.bundle >= self._first_bundle:
            return True
        url = self._canonicalizer.parse(entry.request_url)
        if url is None:
            reason: str | None = "invalid"
        elif entry.seed:
            reason = self._scope.refuse_seed(url)
        else:
            reason = self._scope.refuse(url, entry.depth)
        if reason is None:
            return True
        self.ends.append(Finish(entry, "dropped", reason))
        return False

    def _look_up_robots(self, origin: str) -> None:
        """Put an earlier run's robots.txt in force, the first time an origin is met."""
        if origin in self._looked_up:
            return
        self._looked_up.add(origin)
        packed = self._frontier.note(ROBOTS + origin)
        if packed is not None:
            self._robots.load(packed)

    def __repr__(self) -> str:
        return f"Feeder({len(self.retired)} retired, {len(self.ends)} ends to write)"
