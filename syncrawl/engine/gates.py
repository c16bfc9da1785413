"""Which hosts share a gate, and what each gate's limits are.

`queue_of` runs on any thread; `new_host` is called by the scheduler under its lock.
"""

from __future__ import annotations

import fnmatch
import functools
import random
from collections.abc import Callable, Mapping

from syncrawl.clock import Clock
from syncrawl.config.model import Config, HostConfig, HostRule
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
        self._config = config
        keys: dict[str, str | None] = {"host.key": config.host.key}
        keys |= {f"host.rules[{i}].key": rule.key for i, rule in enumerate(config.host_rules)}
        for name, by in keys.items():
            if by == "address":
                raise ConfigError(
                    "gates by address are not available yet",
                    key=name,
                    value=by,
                    remedy='use "host" or "domain"',
                )
        # One look-up a link: worth remembering.
        self.queue_of: Callable[[str], str] = functools.lru_cache(maxsize=65_536)(self._make)

    def _make(self, host: str) -> str:
        key = _by_host(host)
        rule = _rule_for(self._config, key)
        by = rule.key if rule and rule.key else self._config.host.key
        return key if by == "host" else registrable_domain(key)


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
    rule = _rule_for(config, key)
    if rule is None:
        return limits
    names = ("start", "floor", "ceiling", "rate", "burst")
    given = {name: getattr(rule, name) for name in names}
    merged = {name: getattr(limits, name) if own is None else own for name, own in given.items()}
    return HostConfig(key=limits.key, active=limits.active, **merged)


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
