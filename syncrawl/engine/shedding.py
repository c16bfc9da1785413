"""What is put off or given up when more is found than can be crawled.

Commit thread only. Decides; the frontier and the commit carry it out.
"""

from __future__ import annotations

from collections.abc import Callable

from syncrawl.config.model import ShedConfig
from syncrawl.frontier.model import Batch, Entry, Frontier

# Only when this share of the room is free again does what was put off come back (not a bundle at a
# time, each with its own walk from shelf to window), and is what was dropped welcome again.
_SLACK = 0.1
# Seconds that workers are idle for want of a ready host before hosts of which everything was put
# off get some of it back.
_IDLE = 1.0


class Shedder:
    """No more than `shed.max_pending` URLs below `shed.below_priority` stay pending after a commit.

    Lowest priority goes first, then what was found last. URLs of `below_priority` or more are
    never shed. While a queue has been full for `shed.full_after`, what is found anew is shed
    too. A URL is shed before it costs a fetch: nothing that is leased, or in a window, is.
    """

    def __init__(
        self, config: ShedConfig, frontier: Frontier, set_apart: Callable[[], int]
    ) -> None:
        self._config = config
        self._frontier = frontier
        # Unfinished URLs that wait for nothing this run could do; see Feeder.retired.
        self._set_apart = set_apart
        self._drops = config.action == "drop"
        self._full_since: float | None = None
        self._full = False
        # Since when workers have been idle, and how many are, where it is long enough.
        self._idle_since: float | None = None
        self._idle = 0
        # The lowest priority that was dropped last: what is found and goes no higher need not
        # be written down first.
        self._level: int | None = None

    @property
    def active(self) -> bool:
        """True where anything can be shed at all."""
        return bool(self._config.max_pending or self._config.full_after)

    @property
    def pending(self) -> int:
        """Unfinished URLs that count against max_pending."""
        frontier = self._frontier
        return frontier.counts().unfinished - frontier.shelved() - self._set_apart()

    def note(self, now: float, *, full: bool, idle: int) -> None:
        """Take notice of how things are at `now` (clock seconds).

        Whether a stage's queue is full, and how many workers find no host ready.
        """
        if not full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        after = self._config.full_after
        since = self._full_since
        self._full = bool(after) and since is not None and now - since >= after
        self._idle = 0
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= _IDLE:
            self._idle, self._idle_since = idle, now

    def sift(self, links: list[Entry], batch: Batch) -> list[Entry]:
        """Move links that would be dropped again at once into `batch.shed`; the others."""
        if not self._drops or not self.active:
            return links
        room = self._room(self.pending + len(batch.found))
        if room is None or room >= len(links):
            return links
        level = self._config.below_priority - 1 if self._full else self._level
        if level is None:
            return links
        batch.shed.extend(entry for entry in links if entry.priority <= level)
        return [entry for entry in links if entry.priority > level]

    def settle(self, before: int) -> tuple[list[Entry], set[str]]:
        """After a commit that found `before` pending: entries to drop, queues with more to take."""
        if not self.active:
            return [], set()
        pending = self.pending
        keep = self._keep(before)
        below = self._config.below_priority
        if pending > keep:
            if not self._drops:
                self._frontier.shelve(below, keep)
                # A bundle of more than may stay went as a whole: a part of it is none.
                return [], self._for_idle() if self.pending else self._take_back(0)
            surplus = self._frontier.surplus(below, keep)
            if surplus:
                self._level = max(entry.priority for entry in surplus)
            return surplus, set()
        if pending < keep * (1 - _SLACK):
            self._level = None
        return [], self._take_back(pending)

    def _take_back(self, pending: int) -> set[str]:
        most = self._config.max_pending
        room = most - pending if most else self._frontier.shelved()
        if pending and (self._full or room < most * _SLACK):
            return self._for_idle()
        back = self._frontier.unshelve(max(1, room))
        # With nothing else to do, whatever a full queue says: an idle crawl would end. What
        # came back may be of a host that has all its pages.
        while self._frontier.shelved() and not self.pending:
            back |= self._frontier.unshelve(1)
        return back

    def _for_idle(self) -> set[str]:
        """Without room: what is pending may all wait for hosts that are slow or paused."""
        return self._frontier.unshelve_starved(self._idle)

    def _keep(self, before: int) -> int:
        """How many may stay pending."""
        most = self._config.max_pending or 2**62
        return min(most, before) if self._full else most

    def _room(self, pending: int) -> int | None:
        """How many more may become pending; None where there is no limit now."""
        if self._full:
            return 0
        return self._config.max_pending - pending if self._config.max_pending else None

    def __repr__(self) -> str:
        return f"Shedder({self.pending} pending, full={self._full})"
