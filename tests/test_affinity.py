"""The one CPU that the command line keeps its threads on: chosen by load, moved, given back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from syncrawl.cli.affinity import Seat, find_seat, one_cpu
from tests.support import absent

ALLOWED = frozenset({0, 1})


class Machine:
    """A /proc that says what a test wants it to, for this process's real threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.busy = {0: 0, 1: 0, 2: 0}
        self.total = 0
        (folder / "self" / "task").mkdir(parents=True)
        self.pass_time(0, 0)

    def pass_time(self, *busy: int) -> None:
        """A hundred ticks, of which each CPU was busy for so many."""
        self.total += 100
        for cpu, ticks in enumerate(busy):
            self.busy[cpu] += ticks
        lines = ["cpu  1 2 3 4"]
        lines += [f"cpu{n} {b} 0 0 {self.total - b} 0 0 0 0" for n, b in self.busy.items()]
        (self.folder / "stat").write_text("\n".join([*lines, "intr 5"]))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_least_busy_of_the_allowed_cpus_is_taken(machine: Machine) -> None:
    seat = Seat(ALLOWED, machine.folder)
    machine.pass_time(90, 10)
    seat.take()
    assert seat.cpu == 1


def test_it_moves_where_others_crowd_it_and_only_then(machine: Machine) -> None:
    seat = Seat(ALLOWED, machine.folder)
    machine.pass_time(90, 10)
    seat.take()
    machine.pass_time(60, 70)
    seat.review()
    assert seat.cpu == 1, "the other one is no freer by the margin"
    machine.pass_time(5, 95)
    seat.review()
    assert seat.cpu == 0
    seat.leave()
    assert seat.cpu is None


def test_our_own_work_is_no_crowd(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Seat(ALLOWED, machine.folder)
    machine.pass_time(90, 10)
    seat.take()
    monkeypatch.setattr("time.process_time", lambda: seat._spent + 1e9)
    machine.pass_time(0, 100)
    seat.review()
    assert seat.cpu == 1


def test_nothing_happens_without_figures(tmp_path: Path) -> None:
    (tmp_path / "self" / "task").mkdir(parents=True)
    seat = Seat(ALLOWED, tmp_path)
    seat.take()
    seat.review()
    assert seat.cpu is None


def test_every_thread_sits_there_and_is_let_go() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        absent("a second CPU")
    going, done = threading.Event(), threading.Event()

    def other() -> None:
        going.set()
        done.wait(10.0)

    thread = threading.Thread(target=other)
    thread.start()
    going.wait(10.0)
    seat = find_seat()
    assert seat is not None
    try:
        with one_cpu(seat):
            assert thread.native_id is not None
            assert os.sched_getaffinity(thread.native_id) == {seat.cpu}
            assert os.sched_getaffinity(0) == {seat.cpu}
        assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(thread.native_id) == before
    finally:
        done.set()
        thread.join()
