"""Finds out which machine a host is, before the first request to it is admitted.

Runs on fetch threads, for `host.key = "address"` alone: a look-up holds a worker, no slot.
"""

from __future__ import annotations

from syncrawl.clock import Clock
from syncrawl.config.model import FetchConfig
from syncrawl.engine.budget import ByteBudget
from syncrawl.engine.lease import Lease
from syncrawl.engine.scheduler import Scheduler
from syncrawl.engine.watch import GRACE, WorkWatch
from syncrawl.errors import FetchError
from syncrawl.fetch.deadline import Exchange
from syncrawl.fetch.resolve import Resolver
from syncrawl.log import Log
from syncrawl.scope import host_name


class AddressStep:
    """Turns a look-up lease into a gate for its host."""

    def __init__(
        self,
        config: FetchConfig,
        *,
        scheduler: Scheduler,
        budget: ByteBudget,
        watch: WorkWatch,
        clock: Clock,
        log: Log,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._budget = budget
        self._watch = watch
        self._clock = clock
        self._log = log
        self._resolver = Resolver(
            clock=clock,
            static=config.resolve,
            ttl=config.dns_ttl,
            negative_ttl=config.dns_negative_ttl,
        )

    def run(self, lease: Lease) -> bool:
        """Look the lease's host up and settle it; False where the watch has done so."""
        self._watch.extend(self._config.total_timeout + GRACE)
        name = host_name(lease.host.key)
        found: str | FetchError
        try:
            found = self._look_up(name)
        except (FetchError, TimeoutError) as exc:
            found = exc if isinstance(exc, FetchError) else FetchError(str(exc), outcome="timeout")
            self._log.info("address unknown", host=lease.host.key, why=str(exc))
        except Exception as exc:  # noqa: BLE001 - one bad item never ends a worker
            found = FetchError(repr(exc), outcome="dns")
            self._log.error("look-up failed", host=lease.host.key, error=repr(exc))
        if not self._watch.end():
            self._budget.release([lease.ticket])
            return False
        self._scheduler.address_known(lease, found)
        self._scheduler.settle(lease, page=False)
        self._scheduler.give_credit()
        return True

    def _look_up(self, name: str) -> str:
        config = self._config
        exchange = Exchange(
            clock=self._clock,
            deadline=self._clock.monotonic() + config.total_timeout,
            connect_timeout=config.connect_timeout,
            read_timeout=config.read_timeout,
            allow_private=True,
        )
        # A machine may have several addresses, in an order that changes: the least names it.
        return min(found.text for found in self._resolver.resolve(name, exchange))
