"""A parse child: a process of its own that parses what a parse thread hands it.

Started by `keeper.ChildKeeper` as `python -m syncrawl.parse.child FD`, FD being shared memory
of one byte. One thread. Imports the registry beside the parse stage's own modules: it is a
program, and puts its parts together itself.

It ends when its standard input does, so it outlives no crawl; in a page that never ends, an
alarm of the kernel's ends it, should nobody be left to do so.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from syncrawl import registry
from syncrawl.parse import frames
from syncrawl.parse.work import Bench, NamedParser, told

# Seconds beyond the deadline that a child waits to be killed by its crawl.
_ORPHANED = 5.0
_READ_AHEAD = 1 << 16


def main(arguments: list[str]) -> int:
    """Parse until standard input ends; 1 where the parsers cannot be had."""
    _keep_apart()
    requests, answer = _take_pipes()
    board = mmap.mmap(int(arguments[0]), 1)
    os.close(int(arguments[0]))

    def on_parser(index: int) -> None:
        board[0] = min(index + 1, frames.BEGUN - 1)

    head, _ = next(requests, (b"", b""))
    if not head:
        return 0
    setup = frames.decode_setup(head)
    try:
        bench = _bench(setup, on_parser)
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        answer(frames.encode_reply(frames.failed(error)))
        return 1
    answer(frames.encode_reply(frames.Ready()))
    for head, body in requests:
        board[0] = frames.BEGUN
        signal.setitimer(signal.ITIMER_REAL, setup.deadline + _ORPHANED)
        answer(_parse(bench, head, body))
        signal.setitimer(signal.ITIMER_REAL, 0)
    bench.close(_on_failed_close)
    return 0


def _bench(setup: frames.Setup, on_parser: Callable[[int], None]) -> Bench:
    parsers = [
        NamedParser(name, registry.construct("parsers", name, options))
        for name, options in setup.parsers
    ]
    bench = Bench(parsers, setup.max_items, on_parser)
    bench.open()
    return bench


def _parse(bench: Bench, head: bytes, body: bytes) -> bytes:
    """The frame that answers a request."""
    try:
        return frames.encode_reply(frames.done_of(bench.parse(frames.decode_parts(head), body)))
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        return frames.encode_reply(frames.failed(error, bench.at))


def _on_failed_close(name: str, error: BaseException) -> None:
    sys.stderr.write(f"parser {name} failed to close: {told(error)}\n")


def _keep_apart() -> None:
    """Undo what was inherited from the crawl and is not meant for its children."""
    # Where a whole group of processes is told to stop, the crawl is still to be served until it
    # has stopped; SIGALRM keeps its default, which ends even a process that runs C code.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Tells where it stands, on standard error, when it crashes and when it is asked.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    if hasattr(os, "sched_setaffinity"):
        # The crawl may keep itself on one CPU. The kernel leaves out what we may not use.
        try:
            os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
        except OSError:
            pass  # a sandbox forbids it; then it runs where the crawl runs


def _take_pipes() -> tuple[Iterator[tuple[bytes, bytes]], Callable[[bytes], None]]:
    """The pipes under new numbers, so that no print() of a plugin's gets into them."""
    requests = os.fdopen(os.dup(0), "rb", _READ_AHEAD)
    replies = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    def answer(frame: bytes) -> None:
        left = memoryview(frame)
        while left:
            try:
                left = left[os.write(replies, left) :]
            except BrokenPipeError:
                sys.exit(0)  # the crawl is gone

    return _read(requests), answer


def _read(requests: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Heads and bodies, until the crawl has no more or is gone in the middle of one."""
    while len(sizes := requests.read(frames.REQUEST.size)) == frames.REQUEST.size:
        head_size, body_size = frames.REQUEST.unpack(sizes)
        head, body = requests.read(head_size), requests.read(body_size)
        if len(head) < head_size or len(body) < body_size:
            return
        yield head, body


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
