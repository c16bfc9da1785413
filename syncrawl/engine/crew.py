"""The workers of the fetch and parse stages: started, replaced where one hangs, ended.

Used by the thread that runs the crawl. The threads themselves only run steps.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from syncrawl.engine.rooms import Rooms

# Workers of one stage that may be replaced in a run: each one that hangs stays behind as a thread.
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
        self._replaced = dict.fromkeys(self._sizes, 0)
        self._workers: list[Future[None]] = []

    def start(self) -> None:
        """Let every worker begin."""
        for step in self._rooms.parse:
            self._work("parse", step.step, step.open, step.close)
        for _ in range(self._sizes["fetch"]):
            self._work("fetch", self._rooms.fetch.step)

    def replace(self, stage: str) -> bool:
        """Start a worker in place of one that hangs; False where too many do already."""
        if self._replaced[stage] >= MOST_REPLACED:
            return False
        self._replaced[stage] += 1
        if stage == "parse":
            step = self._rooms.new_parse_step()
            self._work("parse", step.step, step.open, step.close)
        else:
            self._work("fetch", self._rooms.fetch.step)
        return True

    def end(self, seconds: float) -> list[str]:
        """Wait so long for all workers to come back; the names of the threads that do not."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        for _ in range(self._sizes["parse"]):
            # Never blocks: the queue's bound leaves room for the end marks.
            self._rooms.fetched.put(None)
        _, busy = concurrent.futures.wait(self._workers, timeout=seconds)
        if not busy:
            return []
        # A worker that ends by itself takes its thread with it.
        return [
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith(tuple(f"{stage}_" for stage in self._pools))
        ]

    def _work(
        self,
        stage: str,
        step: Callable[[], bool],
        opening: Callable[[], None] | None = None,
        closing: Callable[[], None] | None = None,
    ) -> None:
        self._workers.append(self._pools[stage].submit(_live, step, opening, closing))

    def __repr__(self) -> str:
        return f"Crew({self._sizes}, replaced {self._replaced})"


def _live(
    step: Callable[[], bool],
    opening: Callable[[], None] | None,
    closing: Callable[[], None] | None,
) -> None:
    """A worker's life: step until told that there is no more."""
    if opening:
        opening()
    try:
        while step():
            pass
    finally:
        if closing:
            closing()
