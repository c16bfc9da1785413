"""A cheap HTTP/1.1 site on loopback, for tests, the demo and the benchmarks.

One daemon thread per `Site` runs a selector loop with a heap of timers and owns every
socket; other threads only read its logs and post commands. A request costs some tens of
microseconds; a benchmark still runs the site in a process of its own
(`syncrawl.testing.site_process`), because the GIL would otherwise be shared with what
is measured. Imports nothing of the package outside `testing`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType

from syncrawl.testing.site_host import HTML, PLAIN, Answer, Host, Pages, Reply, ServedHost
from syncrawl.testing.site_log import Exchange, HostLog

__all__ = [
    "HTML",
    "PLAIN",
    "Answer",
    "Exchange",
    "Host",
    "HostLog",
    "Pages",
    "Reply",
    "ServedHost",
    "Site",
]

PATIENCE_SECONDS = 10.0
"""Real seconds that `wait_until` and `close` wait before they call the site hung."""
# Room for a URL of 64 KiB.
MAX_HEAD_BYTES = 1 << 18
_RECEIVE = 1 << 16
# struct linger (socket(7)): a close that sends RST.
_AT_ONCE = struct.pack("ii", 1, 0)


class _Connection:
    """One client connection; at most one exchange at a time (RFC 9112 section 9.3)."""

    __slots__ = ("buffer", "exchange", "host", "last", "out", "poisoned", "sock", "then")

    def __init__(self, sock: socket.socket, host: ServedHost) -> None:
        self.sock = sock
        self.host = host
        self.buffer = b""
        self.exchange: Exchange | None = None
        self.out: memoryview | None = None
        # What goes on once `out` is with the kernel.
        self.then: Callable[[], None] | None = None
        self.last = False
        self.poisoned = False


class Site:
    """Serves hosts from one thread until closed; a context manager.

    `site.hosts[i]` are the `ServedHost`s in the order given. An exception in a `pages`
    callable answers 500 and is raised again by `close()`.
    """

    def __init__(self, *hosts: Host) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._commands: deque[Callable[[], None]] = deque()
        self._connections: set[_Connection] = set()
        self._listeners: list[socket.socket] = []
        self._stopping = False
        self._failure: Exception | None = None
        # Guards _watchers; notified after each finished request while somebody watches.
        self._progress = threading.Condition()
        self._watchers = 0
        self._wake_in, self._wake_out = socket.socketpair()
        self.hosts: Sequence[ServedHost] = tuple(
            ServedHost(host, host.address or f"127.0.0.{number}", self._post)
            for number, host in enumerate(hosts, 1)
        )
        self._thread = threading.Thread(target=self._run, name="loopback-site", daemon=True)

    # Called by the owner.

    def start(self) -> Site:
        """Bind every host and start serving; OSError where an address is taken."""
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._obey)
        try:
            for host in self.hosts:
                self._listen(host)
        except OSError:
            self._close_sockets()
            raise
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, close every socket, and raise what a `pages` callable raised."""
        if self._thread.is_alive():
            self._stopping = True
            self._post(lambda: None)
            self._thread.join(PATIENCE_SECONDS)
        else:
            self._close_sockets()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> Site:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def resolve(self) -> dict[str, str]:
        """Names to addresses, in the shape of `[fetch.resolve]`."""
        return {one.host.name: one.address for one in self.hosts if one.host.name}

    def wait_until(self, reached: Callable[[], bool], timeout: float = PATIENCE_SECONDS) -> None:
        """Block until `reached()`, asked again after each request comes or is answered."""
        with self._progress:
            self._watchers += 1
            try:
                if not self._progress.wait_for(reached, timeout):
                    raise TimeoutError(f"not reached in {timeout} s: {list(self.hosts)!r}")
            finally:
                self._watchers -= 1

    def forget(self) -> None:
        """Drop what was logged so far; returns when the loop has done so. Not the loop thread."""
        done = threading.Event()

        def clear() -> None:
            for host in self.hosts:
                host.exchanges = [one for one in host.exchanges if one.ended is None]
            done.set()

        self._post(clear)
        if not done.wait(PATIENCE_SECONDS):
            raise TimeoutError("the site's loop does not answer")

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        try:
            self._wake_out.send(b"!")
        except OSError:
            pass  # closed already: nobody is left to obey

    # The loop thread, from here on.

    def _listen(self, host: ServedHost) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.address, host.host.port))
        listener.listen(1024)
        listener.setblocking(False)
        host.port = listener.getsockname()[1]
        self._selector.register(
            listener, selectors.EVENT_READ, partial(self._accept, listener, host)
        )

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.step()
        finally:
            self._close_sockets()

    def step(self) -> None:
        """Wait for sockets or the next timer, then serve what is ready."""
        timeout = None
        if self._timers:
            timeout = max(0.0, self._timers[0][0] - time.monotonic())
        for key, mask in self._selector.select(timeout):
            key.data(mask)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _obey(self, _mask: int) -> None:
        self._wake_in.recv(4096)
        while self._commands:
            self._commands.popleft()()

    def _accept(self, listener: socket.socket, host: ServedHost, _mask: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # gone before it was taken
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock, host)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._ready, connection))

    def _ready(self, connection: _Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(connection)
            return
        try:
            data = connection.sock.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(connection.buffer) > MAX_HEAD_BYTES:
            self._drop(connection)
            return
        connection.buffer += data
        self._serve(connection)

    def _serve(self, connection: _Connection) -> None:
        """Take complete requests off the buffer until one has to wait."""
        while connection.exchange is None and connection in self._connections:
            head, mark, rest = connection.buffer.partition(b"\r\n\r\n")
            if not mark:
                return
            connection.buffer = rest
            if connection.poisoned:
                self._reset(connection)
            else:
                self._take(connection, head)

    def _take(self, connection: _Connection, head: bytes) -> None:
        host = connection.host
        method, _, line = head.partition(b"\r\n")[0].partition(b" ")
        target, _, version = line.rpartition(b" ")
        host.in_flight += 1
        exchange = Exchange(time.monotonic(), target.decode("latin-1"), host.in_flight, head)
        connection.exchange = exchange
        connection.last = version != b"HTTP/1.1" or b"connection: close" in head.lower()
        reply = self._reply(host, exchange.target, method)
        exchange.resource = reply.resource or exchange.target
        exchange.content_type = reply.content_type
        host.exchanges.append(exchange)
        if self._watchers:
            self._tell()
        delay = host.host.delay if reply.delay is None else reply.delay
        answer = partial(self._answer, connection, exchange, reply, method)
        if delay == math.inf:
            host.park(answer)
        elif delay > 0:
            self._at(exchange.started + delay, answer)
        else:
            answer()

    def _reply(self, host: ServedHost, target: str, method: bytes) -> Reply:
        if method not in (b"GET", b"HEAD"):
            return Reply(b"only GET and HEAD", 405, PLAIN, close=True)
        try:
            return host.reply_to(target)
        except Exception as problem:  # noqa: BLE001 - one bad page must not end the loop
            self._failure = self._failure or problem
            return Reply(repr(problem).encode(), 500, PLAIN)

    def _answer(
        self, connection: _Connection, exchange: Exchange, reply: Reply, method: bytes
    ) -> None:
        if connection.exchange is not exchange:
            return  # the client left while this answer was waiting
        exchange.status = reply.status
        connection.last = connection.last or reply.close
        connection.poisoned = reply.poisoned
        end = partial(self._end, connection, reply.end if reply.as_it_stands else "keep")
        steps = reply.steps(bodyless=method == b"HEAD")
        if reply.drip or reply.stream is not None:
            self._play(connection, exchange, steps, end)
            return
        data = next(steps)
        assert isinstance(data, bytes)
        self._send(connection, data, end)

    def _play(
        self,
        connection: _Connection,
        exchange: Exchange,
        steps: Iterator[bytes | float],
        end: Callable[[], None],
    ) -> None:
        """Take the next step; each further one comes through the heap, for others' sake."""
        if connection.exchange is not exchange:
            return  # the client has had enough
        again = partial(self._play, connection, exchange, steps, end)
        step = next(steps, None)
        if step is None:
            end()
        elif isinstance(step, bytes):
            self._send(connection, step, lambda: self._at(time.monotonic(), again))
        else:
            self._at(time.monotonic() + step, again)

    def _end(self, connection: _Connection, end: str) -> None:
        if end == "reset":
            self._reset(connection)
        elif end != "hold":
            connection.last = connection.last or end == "close"
            self._finish(connection)

    def _reset(self, connection: _Connection) -> None:
        try:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        except OSError:
            pass  # the client was faster
        self._drop(connection)

    def _send(self, connection: _Connection, data: bytes, then: Callable[[], None]) -> None:
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        if sent == len(data):
            then()
            return
        connection.out, connection.then = memoryview(data)[sent:], then
        self._watch(connection, selectors.EVENT_WRITE)

    def _flush(self, connection: _Connection) -> None:
        if connection.out is None:
            return
        try:
            sent = connection.sock.send(connection.out)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        connection.out = connection.out[sent:]
        if not connection.out:
            then, connection.out, connection.then = connection.then, None, None
            self._watch(connection, selectors.EVENT_READ)
            if then is not None:
                then()
            self._serve(connection)

    def _watch(self, connection: _Connection, events: int) -> None:
        self._selector.modify(connection.sock, events, partial(self._ready, connection))

    def _finish(self, connection: _Connection) -> None:
        self._settle(connection, aborted=False)
        if connection.last:
            self._drop(connection)
        elif connection.buffer:
            # Through the heap, so that a long pipeline cannot recurse.
            self._at(0.0, partial(self._serve, connection))

    def _drop(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._settle(connection, aborted=True)
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _settle(self, connection: _Connection, *, aborted: bool) -> None:
        exchange, connection.exchange = connection.exchange, None
        if exchange is None:
            return
        exchange.ended = time.monotonic()
        exchange.aborted = aborted
        connection.host.in_flight -= 1
        if self._watchers:
            self._tell()

    def _at(self, due: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (due, next(self._ticket), action))

    def _tell(self) -> None:
        with self._progress:
            self._progress.notify_all()

    def _close_sockets(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)
        for sock in (*self._listeners, self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()

    def __repr__(self) -> str:
        return f"Site({', '.join(map(repr, self.hosts))}, connections={len(self._connections)})"


if __name__ == "__main__":
    from syncrawl.testing.site_process import main

    raise SystemExit(main())
