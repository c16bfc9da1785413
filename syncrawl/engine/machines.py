"""Gates that hosts share because they are names of one machine (`host.key = "address"`).

Guarded by the scheduler's lock; no method waits.
"""

from __future__ import annotations

from collections.abc import Callable

from syncrawl.engine.hosts import Host, Lookup
from syncrawl.errors import FetchError
from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket
from syncrawl.limits.gate import HostGate


class MachineGate(HostGate):
    """One door for all names of a machine; who finds it full is let in by order of coming."""

    __slots__ = ("members", "queue")

    def __init__(self, bucket: TokenBucket, limiter: AimdLimiter) -> None:
        super().__init__(bucket, limiter)
        self.members: list[Host] = []
        # Hosts that had something to lease while the gate was full; see Standings.
        self.queue: dict[Host, None] = {}

    def join(self, host: Host) -> None:
        """Let `host`, which has nothing in flight, go through this gate from now on."""
        assert not host.in_flight, f"{host!r} holds a slot of another gate"
        self.pause(host.gate.paused_until)
        self.bucket.set_delay(max(self.bucket.delay, host.gate.bucket.delay))
        host.gate = self
        self.members.append(host)


class Machines:
    """Every address has one gate. A host whose address is not known yet looks it up first."""

    def __init__(self, new_gate: Callable[[str], MachineGate]) -> None:
        self._new_gate = new_gate
        self._gates: dict[str, MachineGate] = {}

    def settle(self, host: Host, found: str | FetchError) -> None:
        """The look-up of `host` has ended: with its address, or with why there is none."""
        if isinstance(found, FetchError):
            host.lookup, host.unresolved = Lookup.FAILED, found
            return
        gate = self._gates.get(found)
        if gate is None:
            gate = self._gates[found] = self._new_gate(host.key)
        host.lookup, host.unresolved = Lookup.NONE, None
        gate.join(host)

    def __repr__(self) -> str:
        return f"Machines({len(self._gates)})"
