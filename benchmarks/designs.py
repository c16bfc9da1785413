"""The designs that syncrawl is held against, each run in a process of its own.

`python benchmarks/designs.py NAME FILE` reads the URLs to fetch from FILE (JSON: a list
of [host, port, path]) and fetches them all:

probe    4 kept connections a host that only read what they are answered: the floor
global   one limit of 20 for everything: a pool of 20 threads over the mixed list
queue    one shared queue, 20 workers, each waiting for one of its host's 4 permits
urllib3  8 threads over one bare HTTPConnectionPool: what a page costs without a crawler
"""

from __future__ import annotations

import json
import queue
import selectors
import socket
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import urllib3

Target: TypeAlias = "tuple[str, int, str]"
Address: TypeAlias = "tuple[str, int]"

PER_HOST = 4
GLOBAL_LIMIT = 20
BARE_THREADS = 8
SILENCE_SECONDS = 30.0
"""A design that hears nothing for so long has hung, and says so."""


class _Reader:
    """One kept connection of the probe."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.sock = socket.create_connection(address, SILENCE_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.missing = -1
        self.head = b""

    def ask(self, path: str) -> None:
        """Send one request."""
        self.missing, self.head = -1, b""
        request = f"GET {path} HTTP/1.1\r\nHost: {self.address[0]}:{self.address[1]}\r\n\r\n"
        self.sock.sendall(request.encode())

    def read(self) -> bool:
        """Take what has come; True when the answer is whole."""
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("the site closed a kept connection")
        if self.missing < 0:
            self.head += data
            head, mark, body = self.head.partition(b"\r\n\r\n")
            if not mark:
                return False
            length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
            self.missing = int(length) - len(body)
        else:
            self.missing -= len(data)
        return self.missing == 0


def probe(targets: list[Target]) -> None:
    """Each host's connections read on until the pages of all hosts together are the budget."""
    paths: dict[Address, deque[str]] = {}
    for host, port, path in targets:
        paths.setdefault((host, port), deque()).append(path)
    budget = len(targets)
    selector = selectors.DefaultSelector()
    for address in paths:
        for _ in range(PER_HOST):
            reader = _Reader(address)
            selector.register(reader.sock, selectors.EVENT_READ, reader)
    for key in list(selector.get_map().values()):
        budget -= _ask_next(key.data, paths)
    waiting = PER_HOST * len(paths)
    while waiting:
        ready = selector.select(SILENCE_SECONDS)
        if not ready:
            raise TimeoutError("the probe hears nothing")
        for key, _ in ready:
            if not key.data.read():
                continue
            if budget > 0:
                budget -= _ask_next(key.data, paths)
            else:
                waiting -= 1
                selector.unregister(key.data.sock)
                key.data.sock.close()
    selector.close()


def _ask_next(reader: _Reader, paths: dict[Address, deque[str]]) -> int:
    mine = paths[reader.address]
    path = mine.popleft()
    mine.append(path)  # a fast host's list goes round: the probe reads more of it than its share
    reader.ask(path)
    return 1


def global_limit(targets: list[Target]) -> None:
    """One FIFO list, 20 at a time, whoever the host is."""
    pools = _pools(targets, GLOBAL_LIMIT)
    with ThreadPoolExecutor(GLOBAL_LIMIT) as workers:
        for done in [workers.submit(_get, pools, target) for target in targets]:
            done.result()


def shared_queue(targets: list[Target]) -> None:
    """20 workers on one FIFO queue; each blocks on its host's semaphore of 4."""
    pools = _pools(targets, PER_HOST)
    permits = {address: threading.Semaphore(PER_HOST) for address in pools}
    waiting: queue.SimpleQueue[Target] = queue.SimpleQueue()
    for target in targets:
        waiting.put(target)

    def work() -> None:
        while True:
            try:
                target = waiting.get_nowait()
            except queue.Empty:
                return
            with permits[target[0], target[1]]:
                _get(pools, target)

    _in_threads(work, GLOBAL_LIMIT)


def bare_urllib3(targets: list[Target]) -> None:
    """8 threads that do nothing but fetch."""
    pools = _pools(targets, BARE_THREADS)
    waiting = iter(targets)
    # Guards waiting.
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                target = next(waiting, None)
            if target is None:
                return
            _get(pools, target)

    _in_threads(work, BARE_THREADS)


def _in_threads(work: object, count: int) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pools(targets: list[Target], size: int) -> dict[Address, urllib3.HTTPConnectionPool]:
    addresses = dict.fromkeys((host, port) for host, port, _ in targets)
    return {
        (host, port): urllib3.HTTPConnectionPool(host, port, maxsize=size, retries=False)
        for host, port in addresses
    }


def _get(pools: dict[Address, urllib3.HTTPConnectionPool], target: Target) -> None:
    host, port, path = target
    response = pools[host, port].urlopen("GET", path, timeout=SILENCE_SECONDS)
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status}")


DESIGNS = {
    "probe": probe,
    "global": global_limit,
    "queue": shared_queue,
    "urllib3": bare_urllib3,
}


def main(arguments: list[str]) -> int:
    """Run one design; anything that goes wrong is a traceback and a non-zero code."""
    name, file = arguments
    targets = [(host, port, path) for host, port, path in json.loads(Path(file).read_text())]
    DESIGNS[name](targets)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
