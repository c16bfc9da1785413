"""The crew: a worker in place of each that hangs, as long as threads can be had for it."""

from __future__ import annotations

import concurrent.futures
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from syncrawl.engine import crew as module
from syncrawl.engine.crew import Crew
from syncrawl.errors import StopCondition

# Real seconds after which a thread counts as hung.
PATIENCE = 20.0


class Bed:
    """Fetch workers that stand in their step until they are let go on, one at a time."""

    def __init__(self, size: int = 1) -> None:
        self.begun = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self.ending: BaseException | None = None
        config = SimpleNamespace(fetch=SimpleNamespace(workers=size))
        rooms: Any = SimpleNamespace(config=config, parse=[], fetch=self)
        self.crew = Crew(rooms)

    def step(self) -> bool:
        self.begun.release()
        assert self._go_on.acquire(timeout=PATIENCE)
        if self.ending:
            raise self.ending
        return False

    def has_begun(self) -> bool:
        return self.begun.acquire(timeout=PATIENCE)

    def let_one_end(self) -> None:
        self._go_on.release()

    def end(self, count: int) -> None:
        for _ in range(count):
            self._go_on.release()
        assert self.crew.end(PATIENCE) == []


def test_as_many_are_replaced_as_may_hang_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REPLACED", 2)
    bed = Bed()
    bed.crew.start()
    assert bed.has_begun()
    for _ in range(2):
        assert bed.crew.replace("fetch")
        assert bed.has_begun()
        assert bed.crew.left("fetch") == 1
    assert not bed.crew.replace("fetch")
    assert bed.crew.left("fetch") == 0
    assert "'fetch': 0" in repr(bed.crew)
    bed.end(3)


def test_one_that_has_come_back_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow parser, over a week, hangs more often than may hang at once."""
    monkeypatch.setattr(module, "MOST_REPLACED", 1)
    bed = Bed()
    bed.crew.start()
    assert bed.has_begun()
    for _ in range(5):
        assert bed.crew.replace("fetch")
        assert bed.has_begun()
        bed.let_one_end()
        wait_until_one_ends(bed.crew)
        assert bed.crew.failed() is None
    bed.end(1)


def test_who_could_not_be_replaced_is_when_another_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_REPLACED", 1)
    bed = Bed(2)
    bed.crew.start()
    assert bed.crew.replace("fetch")
    assert not bed.crew.replace("fetch")
    assert bed.crew.left("fetch") == 1
    bed.crew.refill()
    assert bed.crew.left("fetch") == 1
    for _ in range(3):
        assert bed.has_begun()
    bed.let_one_end()
    wait_until_one_ends(bed.crew)
    bed.crew.refill()
    assert bed.crew.left("fetch") == 2
    bed.end(3)


def test_a_worker_that_ends_by_an_exception_is_told_once() -> None:
    bed = Bed()
    bed.ending = ZeroDivisionError()
    bed.crew.start()
    assert bed.crew.failed() is None
    bed.let_one_end()
    wait_until_one_ends(bed.crew)
    assert bed.crew.failed() == ("fetch", bed.ending)
    assert bed.crew.failed() is None
    bed.end(0)


def test_without_a_thread_nobody_is_replaced_nor_later_by_surprise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = Bed(2)
    bed.crew.start()
    for _ in range(2):
        assert bed.has_begun()
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert not bed.crew.replace("fetch")
    monkeypatch.setattr(threading.Thread, "start", start)
    # The thread that comes back does not begin what was called off.
    bed.let_one_end()
    wait_until_one_ends(bed.crew)
    bed.end(1)
    assert not bed.begun.acquire(blocking=False)


def test_a_stage_without_a_single_thread_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(StopCondition, match="no thread can be had for a fetch worker"):
            bed.crew.start()
    bed.end(0)


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def wait_until_one_ends(crew: Crew) -> None:
    workers = crew._workers["fetch"]
    done, _ = concurrent.futures.wait(workers, PATIENCE, concurrent.futures.FIRST_COMPLETED)
    assert done
