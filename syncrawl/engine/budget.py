"""One bound on all body bytes alive in the process, from lease to commit.

Any thread. A lease reserves 64 KiB; a reader that must hold more asks for it and may have
to wait for commits to free some. Imports nothing above the config.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from syncrawl.clock import Clock
from syncrawl.errors import FetchError

RESERVATION = 64 * 1024


class Ticket:
    """What one lease holds of the budget."""

    __slots__ = ("deadline", "held")

    def __init__(self) -> None:
        self.held = 0
        # Clock seconds after which a wait for more is given up.
        self.deadline = float("inf")

    def __repr__(self) -> str:
        return f"Ticket(held={self.held})"


class ByteBudget:
    """Held bytes stay under `max_bytes` plus one body.

    The oldest holder never waits: otherwise readers that each hold a part could wait for
    one another for ever. It alone can exceed the bound, by at most its own body; once it is
    read, it needs nobody else to reach its commit, so the others can wait for that.
    """

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        # Guards held, peak, waited_seconds, _holders and every Ticket's fields.
        self._changed = threading.Condition()
        # Oldest first.
        self._holders: dict[Ticket, None] = {}
        self.held = 0
        self.peak = 0
        self.waited_seconds = 0.0

    def reserve(self) -> Ticket | None:
        """A ticket for one more body, or None while there is no room (never waits)."""
        with self._changed:
            if self._holders and self.held + RESERVATION > self.max_bytes:
                return None
            ticket = Ticket()
            self._holders[ticket] = None
            self._hold(ticket, RESERVATION)
            return ticket

    def grow(self, ticket: Ticket, total: int) -> None:
        """Let `ticket` hold `total` bytes, waiting for room unless it is the oldest holder.

        Raises FetchError (outcome "pressure", ours) where the wait outlasts its deadline.
        """
        with self._changed:
            started = None
            while total > ticket.held:
                more = total - ticket.held
                if self.held + more <= self.max_bytes or next(iter(self._holders)) is ticket:
                    self._hold(ticket, more)
                    break
                now = self._clock.monotonic()
                started = now if started is None else started
                if now >= ticket.deadline:
                    self.waited_seconds += now - started
                    raise FetchError(
                        "no room for a body within the exchange's time",
                        outcome="pressure",
                        ours=True,
                    )
                left = ticket.deadline - now
                # A ticket whose exchange has not begun has no deadline; waits know no infinity.
                self._clock.wait(self._changed, left if left < float("inf") else None)
            if started is not None:
                self.waited_seconds += self._clock.monotonic() - started

    def finish_reading(self, ticket: Ticket, size: int) -> None:
        """The body is read: `size` bytes stay held until `release`."""
        with self._changed:
            self._hold(ticket, size - ticket.held)
            self._changed.notify_all()

    def release(self, tickets: Iterable[Ticket]) -> None:
        """These bodies are gone (committed, or thrown away)."""
        with self._changed:
            for ticket in tickets:
                self._holders.pop(ticket, None)
                self._hold(ticket, -ticket.held)
            self._changed.notify_all()

    def _hold(self, ticket: Ticket, more: int) -> None:
        ticket.held += more
        self.held += more
        if self.held > self.peak:
            self.peak = self.held

    def __repr__(self) -> str:
        return f"ByteBudget({self.held} of {self.max_bytes}, {len(self._holders)} holders)"
