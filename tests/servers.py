"""Loopback servers that send exactly the bytes a test wrote down, and remember who asked.

A path's script is a list of steps: bytes are sent, a float is a pause in seconds, and
CLOSE, RESET and SILENT say how the connection goes on. After a script without such an
end the connection waits for the next request, as a keep-alive server does.
"""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import which
from typing import Any

from tests.support import absent

CLOSE = "close"
RESET = "reset"
SILENT = "silent"

Step = bytes | float | str
Script = Sequence[Step]

SERVER_TIMEOUT = 20.0
"""Seconds after which a server thread gives up on a client that neither talks nor leaves."""


def ok(body: bytes = b"hello", *fields: str, status: str = "200 OK") -> bytes:
    """A well-formed answer with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def head(*fields: str, status: str = "200 OK") -> bytes:
    """Only a head; the framing is up to `fields`."""
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode("latin-1")


def drip(data: bytes, seconds: float) -> list[Step]:
    """`data` a byte at a time, with a pause before each."""
    steps: list[Step] = []
    for position in range(len(data)):
        steps += [seconds, data[position : position + 1]]
    return steps


class ScriptServer:
    """Serves scripts by path; `handler` may choose one by what has been asked before."""

    def __init__(
        self,
        scripts: dict[str, Script] | None = None,
        *,
        handler: Callable[[ScriptServer, str], Script] | None = None,
        tls: ssl.SSLContext | None = None,
        raw: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._scripts = scripts or {}
        self._handler = handler
        self._tls = tls
        self._raw = raw
        self.requests: list[bytes] = []
        self.targets: list[str] = []
        self.connections = 0
        # Set when a client has closed its end of a connection that a script held open.
        self.left = threading.Event()
        self._stop = threading.Event()
        # Guards _open and connections.
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{host}:{self.port}{path}"

    def __enter__(self) -> ScriptServer:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # Wakes accept(), which a close of the listener alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the client was faster
        for thread in [self._accepting, *self._threads]:
            thread.join(SERVER_TIMEOUT)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        sock = plain
        sock.settimeout(SERVER_TIMEOUT)
        try:
            if self._raw is not None:
                self._raw(sock)
                return
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            while self._answer(sock):
                pass
        except OSError:
            pass  # the client left in the middle, as some tests make it do
        finally:
            with self._lock:
                self._open.discard(plain)
            sock.close()
            plain.close()
            self.left.set()

    def _answer(self, sock: socket.socket) -> bool:
        request = read_head(sock)
        if not request:
            return False
        target = request.split(b" ", 2)[1].decode("latin-1")
        self.requests.append(request)
        self.targets.append(target)
        if self._handler is not None:
            script = self._handler(self, target)
        else:
            script = self._scripts.get(target, [ok(b"", status="404 Not Found")])
        return self._play(sock, script)

    def _play(self, sock: socket.socket, script: Script) -> bool:
        for step in script:
            if isinstance(step, bytes):
                sock.sendall(step)
            elif isinstance(step, float):
                if self._stop.wait(step):
                    return False
            elif step == RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            elif step == SILENT:
                while sock.recv(4096):
                    pass
                return False
            else:
                return False
        return True


def read_head(sock: socket.socket) -> bytes:
    """One request's head; b"" where the client closed instead of asking."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = sock.recv(1)
        if not more:
            return b""
        data += more
    return data


def make_certificate(folder: Path, *names: str) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for `names`: its PEM file, and a server context with it."""
    openssl = which("openssl")
    if openssl is None:
        absent("openssl")
    key, pem = folder / "key.pem", folder / "cert.pem"
    alternatives = ",".join(
        f"{'IP' if name.replace('.', '').isdigit() else 'DNS'}:{name}" for name in names
    )
    command: list[Any] = [openssl, "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", key, "-out", pem]
    command += ["-subj", f"/CN={names[0]}", "-addext", f"subjectAltName={alternatives}"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return pem, context
