"""Which hosts share a gate, and what each gate's limits are.

`queue_of` runs on any thread; `new_host` is called by the scheduler under its lock.
"""

from __future__ import annotations

import fnmatch
import functools
import random
import urllib.request
from collections.abc import Callable, Mapping

from syncrawl.clock import Clock
from syncrawl.config.model import Config, HostConfig, HostRule
from syncrawl.engine.hosts import Host, Lookup
from syncrawl.engine.ledger import HostTotals
from syncrawl.engine.machines import MachineGate
from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket
from syncrawl.limits.gate import HostGate
from syncrawl.limits.pause import RefusalPause
from syncrawl.scope import host_name, host_name_glob, registrable_domain


class GateKeys:
    """Maps host[:port] to the key of the queue that its URLs wait in.

    A queue has a gate of its own, or shares that of its machine; see machines.py.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        # One look-up a link: worth remembering.
        self.queue_of: Callable[[str], str] = functools.lru_cache(maxsize=65_536)(self._make)

    def _make(self, host: str) -> str:
        key = _by_host(host)
        rule = _rule_for(self._config, key)
        by = rule.key if rule and rule.key else self._config.host.key
        return registrable_domain(key) if by == "domain" else key


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
        gate = HostGate(*_parts(limits))
        pause = RefusalPause(self._config.pause, self._rng)
        host = Host(key, gate, pause, self._config.scope.max_pages_per_host)
        if limits.key == "address":
            host.lookup = Lookup.DUE
        saved = self._saved.get(key)
        if saved is not None:
            host.requests = saved.requests
            host.pages = saved.pages
            remaining = saved.paused_until - self._clock.wall()
            if remaining > 0:
                gate.pause(self._clock.monotonic() + remaining)
        return host

    def new_gate(self, key: str) -> MachineGate:
        """The gate of a machine that is known by the name in `key`."""
        return MachineGate(*_parts(limits_for(self._config, key)))


def route_limit(config: Config) -> AimdLimiter | None:
    """The limit on all requests together, where they go through a gateway or a proxy."""
    workers = config.fetch.workers
    if config.gateway.url:
        most = min(workers, config.gateway.max_in_flight)
    elif config.fetch.proxy or urllib.request.getproxies():
        most = workers
    else:
        return None
    return AimdLimiter(most, 1, most)


def _parts(limits: HostConfig) -> tuple[TokenBucket, AimdLimiter]:
    return (
        TokenBucket(limits.rate, limits.burst),
        AimdLimiter(limits.start, limits.floor, limits.ceiling),
    )


def limits_for(config: Config, key: str) -> HostConfig:
    """The limits of gate `key`: [host], overridden by the first [[host.rules]] that matches."""
    limits = config.host
    rule = _rule_for(config, key)
    if rule is None:
        return limits
    names = ("start", "floor", "ceiling", "rate", "burst")
    given = {name: getattr(rule, name) for name in names}
    merged = {name: getattr(limits, name) if own is None else own for name, own in given.items()}
    return HostConfig(key=rule.key or limits.key, active=limits.active, **merged)


def _rule_for(config: Config, key: str) -> HostRule | None:
    """The first rule whose glob matches the name in `key`, or `key` as a whole."""
    name = host_name(key)
    for rule in config.host_rules:
        glob = host_name_glob(rule.match)
        names = [name, key]
        if (rule.key or config.host.key) == "domain":
            # The gate of a domain is its subdomains' too: "*.example.com" means it.
            names.append("." + name)
        if any(fnmatch.fnmatchcase(each, glob) for each in names):
            return rule
    return None


def _by_host(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        return host.rstrip(".")
    return f"{name.rstrip('.')}:{port}"
