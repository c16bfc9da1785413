"""Gates that hosts share because they are names of one machine (`host.key = "address"`).

Guarded by the scheduler's lock; no method waits.
"""

from __future__ import annotations

from collections.abc import Callable

from syncrawl.engine.hosts import Host, Lookup
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

    def settle(self, host: Host, address: str | None) -> None:
        """The look-up of `host` has ended: with its address, or with None."""
        if address is None:
            # The exchange to come will fail in the same way, and by its own rules.
            host.lookup = Lookup.FAILED
            return
        gate = self._gates.get(address)
        if gate is None:
            gate = self._gates[address] = self._new_gate(host.key)
        host.lookup = Lookup.NONE
        gate.join(host)

    def __repr__(self) -> str:
        return f"Machines({len(self._gates)})"
