"""Hosts that push back: the other side of benchmarks/flow.py, in one process and one thread.

`python benchmarks/flow_sites.py SPEC.json` listens on every host of the spec, prints "ready", and
writes its log of requests when it is told to end (SIGTERM). A selector and a heap of timers
keep service times and concurrency limits exact while the crawler uses most of the machine.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_TARGET = re.compile(rb"GET (\S+) HTTP")


class Host:
    """One listener: `spec` says what it answers; see flow.py's rows for the keys."""

    def __init__(self, spec: dict[str, Any], clock: Callable[[], float]) -> None:
        self.spec = spec
        self.name = f"{spec['address']}:{spec['port']}"
        self._clock = clock
        self.in_service = 0
        self.first_at: float | None = None
        self.count = 0

    def answer(self, path: str) -> tuple[float, int, dict[str, str], bytes, bool]:
        """(seconds of service, status, fields, body, whether it holds a place meanwhile)."""
        now = self._clock()
        if path == "/robots.txt":
            return 0.0, 404, {}, b"", False
        if self.first_at is None:
            self.first_at = now
        self.count += 1
        spec = self.spec
        capacity = self._capacity(now - self.first_at)
        if capacity is not None and self.in_service >= capacity:
            return 0.0, 429, {}, b"", False
        if spec.get("throttle_at") == self.count:
            return 0.0, 429, {"Retry-After": str(spec["retry_after"])}, b"", False
        if spec.get("quota") is not None and self.count > spec["quota"]:
            return 0.0, 509, {}, b"", False
        status = spec.get("status", 200)
        fields = dict(spec.get("fields", {}))
        body = self._body(path) if status == 200 else b""
        return spec.get("service", 0.0), status, fields, body, True

    def _capacity(self, since: float) -> int | None:
        """How many are served at once, `since` seconds after the first request."""
        steps = self.spec.get("capacity")
        if not steps:
            return None
        return [count for start, count in steps if since >= start][-1]

    def _body(self, path: str) -> bytes:
        spec = self.spec
        if spec.get("gateway"):
            path = "/" + unquote(path.partition("url=")[2]).split("/", 3)[3]
        kind = spec.get("page", "tree")
        if kind == "tree":
            # Each page links to `fanout` new ones of its own, up to `pages` in all.
            number = int(path.rpartition("/")[2] or 0)
            width = spec.get("fanout", 3)
            links = range(number * width + 1, number * width + width + 1)
            shown = "".join(f'<a href="/p/{n}">{n}</a>' for n in links if n < spec["pages"])
        elif kind == "index" and path.startswith("/index/"):
            shown = self._index(int(path.rpartition("/")[2]))
        else:
            shown = ""
        page = f"<html><title>{path}</title>{shown}</html>".encode()
        return page.ljust(spec.get("size", 0))

    def _index(self, number: int) -> str:
        """`low` and `high` links, dealt out over `hosts`."""
        spec = self.spec
        hosts = spec["hosts"]
        parts = []
        for kind in ("low", "high"):
            first = number * spec[kind]
            for link in range(first, first + spec[kind]):
                parts.append(f'<a href="http://{hosts[link % len(hosts)]}/{kind}/{link}"></a>')
        return "".join(parts)


class Connection:
    """One client's socket: what came in and is not a whole request yet, what has to go out."""

    def __init__(self, sock: socket.socket, host: Host) -> None:
        self.sock = sock
        self.host = host
        self.incoming = b""
        self.outgoing = b""


class Site:
    """The loop. The log has one row a request: host, path, arrival, end of service, status."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.log: list[tuple[str, str, float, float, int]] = []
        self.running = True
        self._blocked: list[socket.socket] = []
        for each in spec["hosts"]:
            self._listen(Host(each, time.monotonic))

    def _listen(self, host: Host) -> None:
        address = (host.spec["address"], host.spec["port"])
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if host.spec.get("dead"):
            # A queue of one that is full: further SYNs are dropped, as by a host that is gone.
            listener.listen(0)
            self._blocked.append(listener)
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(address)
                self._blocked.append(filler)
            return
        listener.listen(1024)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, host)

    def run(self) -> None:
        """Serve until `running` is false."""
        while self.running:
            timeout = 0.2
            if self._timers:
                timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
            for key, events in self._selector.select(timeout):
                if isinstance(key.data, Host):
                    self._accept(key.fileobj, key.data)
                elif events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                else:
                    self._read(key.data)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()

    def _accept(self, listener: Any, host: Host) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, host)
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        connection.incoming += data
        while b"\r\n\r\n" in connection.incoming:
            head, _, connection.incoming = connection.incoming.partition(b"\r\n\r\n")
            match = _TARGET.match(head)
            if match is None:
                self._close(connection)
                return
            self._serve(connection, match[1].decode("latin-1"))

    def _serve(self, connection: Connection, path: str) -> None:
        host = connection.host
        arrived = time.monotonic()
        seconds, status, fields, body, holds = host.answer(path)
        host.in_service += holds

        def end() -> None:
            host.in_service -= holds
            self.log.append((host.name, path, arrived, time.monotonic(), status))
            lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
            lines += ["Content-Type: text/html", *(f"{k}: {v}" for k, v in fields.items())]
            connection.outgoing += "\r\n".join(lines).encode() + b"\r\n\r\n" + body
            self._flush(connection)

        if seconds:
            heapq.heappush(self._timers, (arrived + seconds, next(self._numbers), end))
        else:
            end()

    def _flush(self, connection: Connection) -> None:
        try:
            sent = connection.sock.send(connection.outgoing)
            connection.outgoing = connection.outgoing[sent:]
        except BlockingIOError:
            pass  # later, when there is room
        except OSError:
            self._close(connection)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        try:
            self._selector.modify(connection.sock, wanted, connection)
        except (KeyError, ValueError):
            pass  # closed meanwhile

    def _close(self, connection: Connection) -> None:
        try:
            self._selector.unregister(connection.sock)
        except (KeyError, ValueError):
            return  # closed already
        connection.sock.close()


def main() -> None:
    """Serve the spec named on the command line; the log goes where it says."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    site = Site(spec)

    def stop(*_: object) -> None:
        site.running = False

    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    site.run()
    Path(spec["log"]).write_text(json.dumps(site.log))


if __name__ == "__main__":
    main()
