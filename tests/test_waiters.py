"""What idle fetch workers wait for, told while they wait."""

from __future__ import annotations

import threading

from syncrawl.engine.waiters import Waiters
from tests.test_scheduler import Bench, config

STUCK_SECONDS = 10.0


class Clock:
    """Time moved by hand, which wakes nobody: these waiters wait for news, not for an instant."""

    now = 100.0

    def __init__(self) -> None:
        self.asleep = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.now

    wall = monotonic

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        self.asleep.release()
        condition.wait(STUCK_SECONDS)


def test_waits_under_way_count_for_what_was_found_lacking_last() -> None:
    clock, lock = Clock(), threading.Lock()
    waiters = Waiters(lock, clock)
    threads: list[threading.Thread] = []

    def sleep(reason: str) -> None:
        def body() -> None:
            with lock:
                waiters.sleep(clock.monotonic(), reason, None)

        threads.append(threading.Thread(target=body, daemon=True))
        threads[-1].start()
        assert clock.asleep.acquire(timeout=STUCK_SECONDS)

    def waited() -> dict[str, float]:
        with lock:
            told = waiters.waited(clock.monotonic())
        return {reason: seconds for reason, seconds in told.items() if seconds}

    sleep("politeness")
    clock.now += 30.0
    assert waited() == {"politeness": 30.0}
    # The queues fill: the first, were it to look, would find the same.
    sleep("credit")
    clock.now += 10.0
    assert waited() == {"politeness": 30.0, "credit": 20.0}
    with lock:
        waiters.release_all()
    for thread in threads:
        thread.join(STUCK_SECONDS)
    clock.now += 50.0
    assert waited() == {"politeness": 30.0, "credit": 20.0}


def test_a_host_that_is_full_is_waited_for_and_a_result_on_its_way_is_not_the_hosts_doing() -> None:
    bench = Bench(config(start=1, ceiling=1))
    bench.offer("a", 2)
    lease = bench.take()
    assert bench.lease() is None
    bench.clock.advance(3.0)
    assert bench.scheduler.waited()["politeness"] == 3.0
    bench.finish(lease)
    last = bench.take()
    bench.scheduler.release(last, "2xx")
    # Its page may bring links, and is with parse and commit.
    before = bench.scheduler.waited()
    assert bench.lease() is None
    bench.clock.advance(1.0)
    after = bench.scheduler.waited()
    assert after["politeness"] == before["politeness"]
    assert after["links"] > 0
