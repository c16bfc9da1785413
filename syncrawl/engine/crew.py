"""The workers of the fetch and parse stages: started, replaced where one hangs, ended.

Used by the thread that runs the crawl. The threads themselves only run steps.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from syncrawl.engine.parsing import ParseStep
from syncrawl.engine.rooms import Rooms
from syncrawl.errors import StopCondition

# Workers of one stage that may hang at once: each of them stays behind as a thread.
MOST_REPLACED = 64


class Crew:
    """As many workers a stage as configured, as long as no more than `MOST_REPLACED` of it hang."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._sizes = {"fetch": rooms.config.fetch.workers, "parse": len(rooms.parse)}
        self._pools = {
            stage: ThreadPoolExecutor(size + MOST_REPLACED, thread_name_prefix=stage)
            for stage, size in self._sizes.items()
        }
        # By stage: those that have not ended, as far as was looked, and how many do not hang.
        self._workers: dict[str, list[Future[None]]] = {stage: [] for stage in self._sizes}
        self._useful = dict.fromkeys(self._sizes, 0)

    def start(self) -> None:
        """Let every worker begin. Raises StopCondition where a stage would have none."""
        for step in self._rooms.parse:
            self._start("parse", step)
        for _ in range(self._sizes["fetch"]):
            self._start("fetch")

    def replace(self, stage: str) -> bool:
        """Start a worker in place of one that hangs; False where that cannot be done now."""
        self._useful[stage] -= 1
        return self._fill(stage)

    def refill(self) -> None:
        """Start what could not be started before: one that hung has come back meanwhile."""
        for stage in self._sizes:
            if 0 < self._useful[stage] < self._sizes[stage]:
                self._fill(stage)

    def left(self, stage: str) -> int:
        """Workers of a stage that do not hang."""
        return self._useful[stage]

    def failed(self) -> tuple[str, BaseException] | None:
        """The stage of a worker that has ended by an exception, and that; each is told once."""
        for stage, workers in self._workers.items():
            for worker in [one for one in workers if one.done()]:
                workers.remove(worker)
                error = worker.exception()
                if error is not None:
                    return stage, error
        return None

    def end(self, seconds: float) -> list[str]:
        """Wait so long for all workers to come back; the names of the threads that do not."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        for _ in range(self._sizes["parse"]):
            # Never blocks: the queue's bound leaves room for the end marks.
            self._rooms.fetched.put(None)
        workers = [worker for some in self._workers.values() for worker in some]
        _, busy = concurrent.futures.wait(workers, timeout=seconds)
        if not busy:
            return []
        # A worker that ends by itself takes its thread with it.
        return [
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith(tuple(f"{stage}_" for stage in self._pools))
        ]

    def _fill(self, stage: str) -> bool:
        """Have as many as configured, or as threads can be had for; whether that could be done."""
        while self._useful[stage] < self._sizes[stage]:
            alive = sum(not worker.done() for worker in self._workers[stage])
            if alive >= self._sizes[stage] + MOST_REPLACED or not self._start(stage):
                return False
        return True

    def _start(self, stage: str, step: ParseStep | None = None) -> bool:
        """Start a worker; False where the system has no thread for it."""
        start = _Start(self._fetch if stage == "fetch" else lambda: self._parse(step))
        try:
            worker = self._pools[stage].submit(start)
        except RuntimeError as exc:
            # The pool keeps what it was given, and would run it in a thread that comes free.
            start.called_off = True
            if not self._workers[stage]:
                raise StopCondition(f"no thread can be had for a {stage} worker: {exc}") from exc
            return False
        self._workers[stage].append(worker)
        self._useful[stage] += 1
        return True

    # -- the workers' threads -----------------------------------------------------------

    def _fetch(self) -> None:
        """A fetch worker's life: step until told that there is no more."""
        while self._rooms.fetch.step():
            pass

    def _parse(self, step: ParseStep | None) -> None:
        """A parse worker's life; what makes its parsers may hang or raise as they may."""
        step = step or self._rooms.new_parse_step()
        step.open()
        try:
            while step.step():
                pass
        finally:
            step.close()

    def __repr__(self) -> str:
        return f"Crew({self._sizes}, of these {self._useful} at work)"


class _Start:
    """A worker's life to be begun, unless it is called off."""

    def __init__(self, life: Callable[[], None]) -> None:
        self._life = life
        self.called_off = False

    def __call__(self) -> None:
        if not self.called_off:
            self._life()
