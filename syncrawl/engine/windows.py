"""Where URLs wait in memory for their turn: laid down by the commit thread, leased by others.

Commit thread, but for `want`, which is called under the scheduler's lock. That lock guards all
of it: a window is one side of a decision that leasing is the other of. Nothing is admitted here.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from syncrawl.clock import Clock
from syncrawl.engine.hosts import LOWEST, Host, Wants
from syncrawl.engine.origins import Origins
from syncrawl.engine.roster import Roster
from syncrawl.engine.standings import Standings
from syncrawl.frontier.model import Entry


class Windows:
    """Each host has a window of URLs; it asks for more before it runs dry."""

    def __init__(
        self,
        lock: threading.Lock,
        *,
        roster: Roster,
        origins: Origins,
        standings: Standings,
        clock: Clock,
        active: int,
        changed: Callable[[], None],
        failed: Callable[[list[Entry], str], None],
        on_wanted: Callable[[], None],
    ) -> None:
        """`active` hosts at most are worked on at once.

        Under the lock `changed` is called where there may be something to lease, and `failed`
        with entries of a host that was given up, and the verdict.
        """
        # The scheduler's: guards every field below, and the hosts.
        self._lock = lock
        self._roster = roster
        self._origins = origins
        self._standings = standings
        self._clock = clock
        self._active = active
        self._changed = changed
        self._failed = failed
        # Called without the lock where the commit thread has something to do here.
        self.on_wanted = on_wanted
        self._sequence = itertools.count()
        self._wanted: set[str] = set()

    def offer(
        self,
        key: str,
        ready: list[Entry],
        unknown: list[Entry],
        *,
        more: bool | None,
        best_cold: int | None = None,
    ) -> list[Entry]:
        """Give a host URLs: `ready` passed its rules, for `unknown` the rules were not known.

        `more` is whether the frontier has further ones, None where the caller cannot know, and
        `best_cold` the best priority among them. Returns those of `unknown` whose rules have
        arrived meanwhile: check and offer again. Callable by any thread.
        """
        with self._lock:
            host = self._roster.host(key)
            given_up = [*ready, *unknown] if host.verdict is not None else []
            if host.verdict is not None:
                self._failed(given_up, host.verdict)
                ready, unknown = [], []
            if not host.loaded:
                host.loaded = True
                host.refilled_at = self._clock.monotonic()
            if more is not None:
                host.more = more
                host.best_cold = LOWEST if best_cold is None else best_cold
                host.wanted = False
            for entry in ready:
                host.push(entry, next(self._sequence))
            again = [entry for entry in unknown if not self._origins.park(host, entry)]
            self.want(host)
            self._standings.place(host, self._clock.monotonic())
            self._changed()
            wanted = bool(self._wanted or given_up)
        if wanted:
            self.on_wanted()
        return again

    def want(self, host: Host) -> None:
        """Ask for a refill where the window runs low, or of what would go before it."""
        if not host.more or host.wanted:
            return
        if host.depth <= host.target // 2 or host.outranked:
            host.wanted = True
            self._wanted.add(host.key)

    @property
    def anything_wanted(self) -> bool:
        """True where `take_wanted` would give something; under the lock, as `want`."""
        return bool(self._wanted)

    def take_wanted(self) -> list[tuple[str, Wants]]:
        """Hosts whose window runs low, or lacks what should go first, and what each would take."""
        with self._lock:
            now = self._clock.monotonic()
            wanted = []
            for host in self._roster.chosen(self._wanted):
                host.resize(now)
                wanted.append((host.key, host.wants))
            self._wanted.clear()
            return wanted

    def wants(self, key: str, best_cold: int) -> Wants:
        """What the loaded host `key` would take now; nothing where it is not loaded.

        The frontier has some of priority `best_cold` at best.
        """
        with self._lock:
            host = self._roster.get(key)
            if host is None or not host.loaded:
                return Wants(0)
            host.more = True
            host.best_cold = best_cold
            return host.wants

    def is_loaded(self, key: str) -> bool:
        """True where host `key` has been given URLs and has not run dry."""
        with self._lock:
            host = self._roster.get(key)
            return host is not None and host.loaded

    def free_places(self, priority: int = LOWEST) -> int:
        """How many more hosts of `priority` may be worked on.

        Hosts of lower priority do not count: they wait, and their windows with them.
        """
        with self._lock:
            return self._active - self._standings.active(priority)

    def verdict(self, key: str) -> str | None:
        """Why host `key` was given up, if it was."""
        with self._lock:
            host = self._roster.get(key)
            return host.verdict if host else None

    def exhausted(self, key: str) -> bool:
        """True where max_pages_per_host pages of `key` are committed."""
        with self._lock:
            host = self._roster.get(key)
            return host is not None and host.exhausted

    def unload(self, key: str, *, jobs: bool = False) -> list[Entry]:
        """Take all that waits in memory for `key` away from it, with `jobs` its robots.txt too."""
        with self._lock:
            host = self._roster.get(key)
            if host is None:
                return []
            if jobs:
                self._origins.forget(host)
            entries = [entry for _, _, entry in host.window]
            host.window.clear()
            for origin in host.origins.values():
                entries.extend(origin.parked)
                origin.parked = []
            host.more = False
            self._standings.place(host, self._clock.monotonic())
            return entries

    def __repr__(self) -> str:
        return f"Windows({len(self._wanted)} hosts want more)"
