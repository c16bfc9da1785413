"""Run or resume the crawl of a configuration.

Runs on the main thread, the only one that gets signals; the engine installs no handlers.
The first SIGINT or SIGTERM asks the crawl to stop, the second leaves the process at
once, which the state survives by construction.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from syncrawl.cli.affinity import find_seat, one_cpu
from syncrawl.cli.common import (
    add_config,
    add_view,
    complain,
    leave_at_once,
    load,
    one_line,
    say,
    say_left,
)
from syncrawl.errors import EXIT_CONDITION, EXIT_INTERNAL, EXIT_SIGNAL, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from syncrawl.config.model import Config
    from syncrawl.log import Log
    from syncrawl.observe.progress import LogLines
    from syncrawl.observe.report import Report

# timeout(1) and terminals signal a process and its group: two arrivals, one wish.
SAME_SIGNAL_SECONDS = 0.1


class RunningCrawl(Protocol):
    """What a run needs of `syncrawl.Crawl`."""

    def run(self) -> Report: ...

    def stop(self, reason: str) -> None: ...

    def reload(self) -> None: ...

    def snapshot(self, *, most_hosts: int) -> Mapping[str, Any]: ...

    def hung(self) -> list[str]: ...


CrawlFactory = Callable[..., RunningCrawl]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `run`."""
    add_config(parser)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start over: old state and outputs are renamed aside, never merged or deleted",
    )
    parser.add_argument("--max-pages", type=int, metavar="N", help="sets crawl.max_pages")
    add_view(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the crawl; returns its exit code."""
    return run_command(args)


def run_command(args: argparse.Namespace, crawl_factory: CrawlFactory | None = None) -> int:
    """`execute` with the crawl's class open to be replaced."""
    stopper = Stopper()
    with stopper.installed():
        config = leveled(load(args), verbose=args.verbose, quiet=args.quiet)
        return crawl_through(
            config,
            stopper,
            fresh=args.fresh,
            quiet=args.quiet,
            progress=not args.no_progress,
            crawl_factory=crawl_factory,
            reread=lambda: load(args),
        )


def crawl_through(
    config: Config,
    stopper: Stopper,
    *,
    fresh: bool = False,
    quiet: bool = False,
    progress: bool = True,
    crawl_factory: CrawlFactory | None = None,
    reread: Callable[[], Config] | None = None,
) -> int:
    """Build the crawl, show it while it runs, sum it up; returns the exit code."""
    from syncrawl.observe.progress import MOST_HOSTS, choose_mode, start_progress
    from syncrawl.observe.report import summary

    # Made here, so that it has seen some of the machine's load when the crawl starts.
    seat = find_seat() if config.crawl.one_cpu else None
    mode = choose_mode(sys.stderr, quiet=quiet, progress=progress)
    log, lines = _logger(config, live=mode == "live")
    if crawl_factory is None:
        from syncrawl.engine.crawl import Crawl

        crawl_factory = Crawl
    crawl = crawl_factory(config, log=log, fresh=fresh, reread=reread)
    if stopper.attach(crawl):
        say("stopped before the start")
        return EXIT_SIGNAL
    view = start_progress(
        lambda: crawl.snapshot(most_hosts=MOST_HOSTS),
        mode=mode,
        stream=sys.stderr,
        max_pages=config.crawl.max_pages,
        max_items=config.queues.bound(config.fetch.workers),
        lines=lines,
    )
    try:
        with one_cpu(seat):
            report = crawl.run()
    finally:
        view_ended = view.stop() if view else True
    if not quiet:
        say(summary(report.data))
    if report.exit_code == EXIT_CONDITION:
        say(f"syncrawl: stopped: {one_line(str(report.data.get('reason', '')))}")
    elif report.exit_code in (EXIT_INTERNAL, EXIT_USAGE):
        complain(str(report.data.get("reason", "")))
    hung = crawl.hung()
    if hung:
        say_left(hung)
    if hung or not view_ended:
        leave_at_once(report.exit_code)
    return report.exit_code


def leveled(config: Config, *, verbose: bool, quiet: bool) -> Config:
    """`config` with the log level that -v or -q asks for."""
    if not (verbose or quiet):
        return config
    import msgspec

    log = msgspec.structs.replace(config.log, level="debug" if verbose else "warning")
    return msgspec.structs.replace(config, log=log)


def _logger(config: Config, *, live: bool) -> tuple[Log, LogLines | None]:
    """The crawl's logger; while a live view owns the terminal its lines go through the view."""
    from syncrawl.log import make_logger
    from syncrawl.observe.progress import LogLines

    lines = LogLines(sys.stderr) if live and not config.log.file else None
    return make_logger(config.log, stream=lines), lines


class Stopper:
    """Turns signals into a stop of the crawl, at any time from before it exists to after its end.

    The handler runs on the main thread between two bytecodes of whatever stands there, so
    it takes no lock and writes nothing: it sets fields and calls `crawl.stop`, which
    promises as much.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._crawl: RunningCrawl | None = None
        self._first: float | None = None
        self.reason = ""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM in the body, and SIGHUP, which asks for a reload."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle) for number in numbers}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self.reload)
        try:
            yield
        finally:
            for number, handler in before.items():
                # Once stopping, a late signal must not turn exit code 3 into a death by signal.
                signal.signal(number, handler if self._first is None else signal.SIG_IGN)

    def attach(self, crawl: RunningCrawl) -> bool:
        """Name the crawl to stop; True where a signal has come already."""
        self._crawl = crawl
        return self._first is not None

    def reload(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of SIGHUP."""
        if self._crawl is not None:
            self._crawl.reload()

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        now = self._monotonic()
        if self._first is None:
            self._first = now
            self.reason = signal.Signals(number).name
            if self._crawl is not None:
                self._crawl.stop(self.reason)
        elif now - self._first > SAME_SIGNAL_SECONDS:
            os._exit(EXIT_SIGNAL)
