"""The progress view: a live table on a terminal, a line every few seconds elsewhere.

Runs on a thread of its own and only reads snapshots; a terminal that hangs stops this
thread and nothing else. Everything goes to stderr, because a store may own stdout.
live.py, and with it rich, is imported when a live view starts, never before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, TextIO

from syncrawl.clock import Clock, SystemClock
from syncrawl.observe.pace import Pace, Snapshot
from syncrawl.observe.report import bottleneck_line, slowest_hosts
from syncrawl.observe.text import human_seconds, printable
from syncrawl.observe.ticker import Ticker

Mode = Literal["live", "plain", "off"]

LIVE_INTERVAL = 0.5
PLAIN_INTERVAL = 5.0
# Hosts that a view has to look at in order to find the few slowest.
MOST_HOSTS = 200
# Log lines that wait for the live view; beyond it the oldest are dropped and counted, since a
# worker that logs must never wait for a terminal.
LOG_LINES = 1000


def choose_mode(stream: TextIO | None, *, quiet: bool = False, progress: bool = True) -> Mode:
    """Which view suits `stream`: live on a terminal that can move its cursor, else plain."""
    if stream is None or quiet or not progress:
        return "off"
    import os

    return "live" if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" else "plain"


class View(Protocol):
    """Something that shows a snapshot. Used by the progress thread alone."""

    def show(self, snapshot: Snapshot, pace: Pace) -> None: ...

    def log(self, line: str) -> None: ...

    def close(self) -> None: ...


class PlainView:
    """One line a snapshot."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, snapshot: Snapshot, pace: Pace) -> None:
        self._stream.write(one_line(snapshot, pace) + "\n")
        self._stream.flush()

    def log(self, line: str) -> None:
        self._stream.write(line)

    def close(self) -> None:
        self._stream.flush()


def one_line(snapshot: Snapshot, pace: Pace) -> str:
    """A snapshot in one line of text."""
    urls = snapshot["urls"]
    parts = [
        f"{human_seconds(snapshot['run']['seconds'])}",
        f"{snapshot['pages']:,} pages ({pace.pages():.1f}/s)",
        f"{urls['pending']:,} pending",
        f"{urls['leased']:,} in flight",
    ]
    if urls["failed"]:
        parts.append(f"{urls['failed']:,} failed")
    slowest = [(key, host) for key, host in slowest_hosts(snapshot["hosts"], 1) if host["pending"]]
    if slowest:
        key, _ = slowest[0]
        parts.append(f"slowest {printable(key, 40)} {pace.host(key):.1f}/s")
    if (eta := pace.eta()) is not None:
        parts.append(f"about {human_seconds(eta)} to go")
    parts.append(bottleneck_line(snapshot))
    return ", ".join(parts)


class LogLines:
    """The logger's stream where a live view may own the terminal: lines are printed above it.

    Between `capture` and `release` a `write` only appends to a bounded queue and never
    blocks; the progress thread empties it. Before and after, it goes to the stream.
    """

    def __init__(self, stream: TextIO, limit: int = LOG_LINES) -> None:
        self._stream = stream
        # Guards _lines, _dropped and _captured.
        self._lock = threading.Lock()
        # Filled by any thread, emptied by the progress thread; bound: see LOG_LINES.
        self._lines: deque[str] = deque(maxlen=limit)
        self._dropped = 0
        self._captured = False

    def write(self, text: str) -> int:
        with self._lock:
            captured = self._captured
            if captured:
                self._dropped += len(self._lines) == self._lines.maxlen
                self._lines.append(text)
        return len(text) if captured else self._stream.write(text)

    def flush(self) -> None:
        if not self._captured:
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def capture(self) -> None:
        """Keep lines from now on."""
        with self._lock:
            self._captured = True

    def take(self) -> list[str]:
        """The lines that came in since the last call."""
        with self._lock:
            lines, dropped = list(self._lines), self._dropped
            self._lines.clear()
            self._dropped = 0
        if dropped:
            lines.insert(0, f"({dropped} log lines were dropped: the terminal was too slow)\n")
        return lines

    def release(self) -> None:
        """Write what is left and every later line to the stream itself."""
        with self._lock:
            self._captured = False
        for text in self.take():
            self._stream.write(text)
        self._stream.flush()


class Progress:
    """Shows what `snapshot` returns until `stop`; a context manager.

    `view` is made on the progress thread by `make_view`, so that importing rich delays
    nobody. A snapshot or a terminal that fails ends the view, not the crawl.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        make_view: Callable[[], View],
        *,
        interval: float,
        clock: Clock | None = None,
        max_pages: int = 0,
        lines: LogLines | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._make_view = make_view
        self._clock = clock or SystemClock()
        self._lines = lines
        self._pace = Pace(max_pages=max_pages)
        self._ticker = Ticker(self._clock, interval)
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, timeout: float = 2.0) -> bool:
        """Take the view away; False where the terminal does not take the last of it."""
        self._ticker.stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def step(self, view: View) -> None:
        """One frame: the waiting log lines, then the snapshot."""
        for text in self._lines.take() if self._lines else ():
            view.log(text)
        snapshot = self._snapshot()
        self._pace.add(self._clock.monotonic(), snapshot)
        view.show(snapshot, self._pace)

    def _loop(self) -> None:
        view: View | None = None
        try:
            view = self._make_view()
            if self._lines:
                self._lines.capture()
            self._pace.add(self._clock.monotonic(), self._snapshot())
            while self._ticker.tick():
                self.step(view)
        except Exception:  # noqa: BLE001, S110 - a view that breaks must not disturb the crawl
            pass
        finally:
            self._close(view)

    def _close(self, view: View | None) -> None:
        try:
            if view is not None:
                view.close()
            if self._lines:
                self._lines.release()
        except Exception:  # noqa: BLE001, S110 - the terminal is gone; there is nobody to tell
            pass


def start_progress(
    snapshot: Callable[[], Snapshot],
    *,
    mode: Mode,
    stream: TextIO,
    clock: Clock | None = None,
    max_pages: int = 0,
    max_items: int = 256,
    lines: LogLines | None = None,
) -> Progress | None:
    """The view for `mode`, started; None for "off". A live view prints `lines` above itself."""
    if mode == "off":
        return None
    if mode == "plain":
        lines = None  # nothing is redrawn that a log line could tear
    clock = clock or SystemClock()

    def make_view() -> View:
        if mode == "live":
            from syncrawl.observe.live import LiveView

            return LiveView(stream, wall=clock.wall, max_items=max_items)
        return PlainView(stream)

    interval = LIVE_INTERVAL if mode == "live" else PLAIN_INTERVAL
    progress = Progress(
        snapshot,
        make_view,
        interval=interval,
        clock=clock,
        max_pages=max_pages,
        lines=lines if mode == "live" else None,
    )
    try:
        return progress.__enter__()
    except RuntimeError:
        return None  # the system has no thread for it: the crawl can do without
