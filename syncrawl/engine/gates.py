"""Which hosts share a gate, and what each gate's limits are.

`queue_of` runs on any thread; `new_host` is called by the scheduler under its lock.
"""

from __future__ import annotations

import fnmatch
import functools
import random
from collections.abc import Callable, Mapping

from syncrawl.clock import Clock
from syncrawl.config.model import Config, HostConfig
from syncrawl.engine.hosts import Host
from syncrawl.engine.ledger import HostTotals
from syncrawl.errors import ConfigError
from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket
from syncrawl.limits.gate import HostGate
from syncrawl.limits.pause import RefusalPause
from syncrawl.scope import host_name, host_name_glob, registrable_domain


class GateKeys:
    """Maps host[:port] to the key of the gate that its requests go through."""

    def __init__(self, config: Config) -> None:
        by = config.host.key
        if by == "address":
            raise ConfigError(
                "gates by address are not available yet",
                key="host.key",
                value=by,
                remedy='use "host" or "domain"',
            )
        make = _by_host if by == "host" else _by_domain
        # One look-up a link: worth remembering.
        self.queue_of: Callable[[str], str] = functools.lru_cache(maxsize=65_536)(make)


class HostMaker:
    """Builds a host's state from the rules and from what an earlier run left."""

    def __init__(
        self,
        config: Config,
        saved: Mapping[str, HostTotals],
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._saved = saved
        self._clock = clock
        self._rng = rng

    def new_host(self, key: str) -> Host:
        """A host with its gate; a pause that still stands is taken up (Retry-After is durable)."""
        limits = limits_for(self._config, key)
        gate = HostGate(
            TokenBucket(limits.rate, limits.burst),
            AimdLimiter(limits.start, limits.floor, limits.ceiling),
        )
        host = Host(key, gate, RefusalPause(self._rng), self._config.scope.max_pages_per_host)
        saved = self._saved.get(key)
        if saved is not None:
            gate.requests = saved.requests
            host.pages = saved.pages
            remaining = saved.paused_until - self._clock.wall()
            if remaining > 0:
                gate.pause(self._clock.monotonic() + remaining)
        return host


def limits_for(config: Config, key: str) -> HostConfig:
    """The limits of gate `key`: [host], overridden by the first [[host.rules]] that matches."""
    limits = config.host
    for rule in config.host_rules:
        glob = host_name_glob(rule.match)
        if fnmatch.fnmatchcase(host_name(key), glob) or fnmatch.fnmatchcase(key, glob):
            names = ("start", "floor", "ceiling", "rate", "burst")
            given = {name: getattr(rule, name) for name in names}
            fields = {name: value for name, value in given.items() if value is not None}
            merged = {name: fields.get(name, getattr(limits, name)) for name in names}
            return HostConfig(key=limits.key, active=limits.active, **merged)
    return limits


def _by_host(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        return host.rstrip(".")
    return f"{name.rstrip('.')}:{port}"


def _by_domain(host: str) -> str:
    return registrable_domain(host)
