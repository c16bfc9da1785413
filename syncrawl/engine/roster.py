"""All hosts of a run, each made when it is first met.

Guarded by the scheduler's lock; no method waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from syncrawl.engine.hosts import Host
from syncrawl.frontier.model import QueueOf, host_of


class Roster:
    """Hosts by the key of their queue. `entered` is called for each one made."""

    def __init__(
        self, new_host: Callable[[str], Host], queue_of: QueueOf, *, entered: Callable[[], None]
    ) -> None:
        self._new_host = new_host
        self._queue_of = queue_of
        self._entered = entered
        self._hosts: dict[str, Host] = {}

    def key_of(self, url: str) -> str:
        """The key of the host that `url` is requested of."""
        return self._queue_of(host_of(url))

    def get(self, key: str) -> Host | None:
        """The host, where it was met."""
        return self._hosts.get(key)

    def host(self, key: str) -> Host:
        """The host, made where need be."""
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = self._new_host(key)
            self._entered()
        return host

    def of(self, url: str) -> Host:
        """The host, made where need be, that `url` is requested of."""
        return self.host(self.key_of(url))

    def chosen(self, keys: Iterable[str] | None) -> list[Host]:
        """Those of `keys` that were met, or all."""
        if keys is None:
            return list(self._hosts.values())
        return [host for key in keys if (host := self._hosts.get(key)) is not None]

    def __repr__(self) -> str:
        return f"Roster({len(self._hosts)} hosts)"
