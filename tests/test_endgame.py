"""The last pages of a limit go to hosts that will deliver them in time."""

from __future__ import annotations

import random

from syncrawl.config.model import PauseConfig
from syncrawl.engine.endgame import Endgame
from syncrawl.engine.hosts import Host
from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket
from syncrawl.limits.gate import HostGate
from syncrawl.limits.pause import RefusalPause


def host(key: str) -> Host:
    gate = HostGate(TokenBucket(), AimdLimiter(4, 1, 32))
    return Host(key, gate, RefusalPause(PauseConfig(), random.Random(1)), 0)


def played(*exchanges: tuple[Host, float], pace: float = 100.0) -> tuple[Endgame, float]:
    """Endgame after three seconds of these exchanges in turn, `pace` of them a second."""
    game, now = Endgame(), 0.0
    for number in range(int(3 * pace)):
        one, seconds = exchanges[number % len(exchanges)]
        now = number / pace
        game.note(one, seconds, now)
    return game, now


def test_a_slow_host_gets_none_of_the_pages_that_others_will_have_delivered() -> None:
    fast, slow = host("fast"), host("slow")
    game, now = played(*[(fast, 0.01)] * 9, (slow, 1.0))
    # At 100 pages a second, 50 pages are gone in half of what one exchange there takes.
    assert game.outlasts(slow, 50, now)
    assert not game.outlasts(slow, 500, now)
    assert not game.outlasts(fast, 50, now)


def test_it_is_let_in_once_the_others_have_run_dry() -> None:
    fast, slow = host("fast"), host("slow")
    game, now = played(*[(fast, 0.01)] * 9, (slow, 1.0))
    assert not game.outlasts(slow, 50, now + 3.0)


def test_among_equally_slow_hosts_nobody_waits() -> None:
    hosts = [host(f"h{n}") for n in range(4)]
    game, now = played(*((one, 1.0) for one in hosts), pace=20.0)
    assert not any(game.outlasts(one, 1, now) for one in hosts)
