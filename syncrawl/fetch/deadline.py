"""What one exchange may still spend, and sockets that hold every system call to it.

Runs on fetch threads. Imports the clock only. urllib3, requests and http.client bound
one `recv`; a server that drips bytes outlives that for ever. So the bound sits in the
socket: before each call its timeout becomes the smaller of the silence allowed and
what is left of the whole exchange. The exchange reaches the socket by a thread-local,
because no client library between the two would carry it.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from syncrawl.clock import Clock

READ_BUFFER = 32 * 1024
"""Bytes asked of the kernel at once: a usual page with its header in one call."""


# A request head up to this size goes to the kernel in one call.
_ONE_SEND = 8 * 1024


class DeadlineExceeded(TimeoutError):
    """Nothing is left of the exchange's total time."""


class TooSlow(TimeoutError):
    """The answer comes, but below the pace asked for."""


class Exchange:
    """One fetch in progress: its bounds, where it stands, and what it learned.

    Confined to the thread that makes the exchange. `phase` is one of "start", "dns",
    "connect", "tls", "send", "headers", "body". `target` and `authority` are the request
    target and the Host field as they go on the wire. `fresh` asks for a new connection,
    `reused` tells that an old one serves.
    """

    __slots__ = (
        "_waited",
        "_waited_bytes",
        "address",
        "allow_private",
        "authority",
        "clock",
        "connect_timeout",
        "deadline",
        "first_byte_at",
        "fresh",
        "late",
        "min_pace",
        "phase",
        "read_timeout",
        "reused",
        "sent_at",
        "started",
        "target",
        "wire_bytes",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        deadline: float,
        connect_timeout: float,
        read_timeout: float,
        allow_private: bool,
        min_pace: int = 0,
        target: str = "/",
        authority: str = "",
    ) -> None:
        self.clock = clock
        self.deadline = deadline
        self.connect_timeout = connect_timeout
        self.read_timeout = read_timeout
        self.allow_private = allow_private
        self.target = target
        self.authority = authority
        self.started = clock.monotonic()
        self.phase = "start"
        self.fresh = False
        self.reused = False
        self.sent_at: float | None = None
        self.first_byte_at: float | None = None
        # Seconds that the first bytes had lain in the kernel before this thread saw them.
        self.late = 0.0
        self.address: str | None = None
        self.wire_bytes = 0
        self.min_pace = min_pace
        # What has come since the pace was last looked at, and the seconds of waiting for it.
        self._waited = 0.0
        self._waited_bytes = 0

    def limit(self, most: float) -> float:
        """Seconds the next wait may take: `most`, or what is left where that is less.

        Raises DeadlineExceeded when nothing is left.
        """
        left = self.deadline - self.clock.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the total time is used up")
        return left if left < most else most

    def answers(self, sock: socket.socket) -> None:
        """The first bytes of the answer were read from `sock`."""
        self.first_byte_at = self.clock.monotonic()
        self.late = _lain(sock)

    def came(self, count: int, began: float) -> None:
        """`count` bytes of the answer came, waited for since `began`.

        Raises TooSlow where all that came in a `read_timeout` of waiting is less than
        `min_pace` asks for. What this process does between two reads is not the host's pace.
        """
        self._waited += self.clock.monotonic() - began
        self._waited_bytes += count
        if self._waited >= self.read_timeout:
            if self._waited_bytes < self.min_pace * self._waited:
                raise TooSlow(f"slower than {self.min_pace} bytes/s")
            self._waited, self._waited_bytes = 0.0, 0

    @property
    def latency(self) -> float | None:
        """Seconds that the host took to answer: waits of this process, such as for the
        interpreter lock, are left out. None where nothing was sent or nothing came.
        """
        if self.sent_at is None or self.first_byte_at is None:
            return None
        return max(0.0, self.first_byte_at - self.sent_at - self.late)

    def expired(self) -> bool:
        """Whether the total time, not only the silence allowed, is used up."""
        return self.clock.monotonic() >= self.deadline

    def restart(self) -> None:
        """Forget the dead kept-alive connection; the second try gets a new one."""
        self.fresh = True
        self.reused = False
        self.phase = "start"

    def __repr__(self) -> str:
        left = self.deadline - self.clock.monotonic()
        return f"<Exchange {self.target!r} in {self.phase}, {left:.2f} s left>"


# struct tcp_info (linux/tcp.h): eight bytes of flags, then 32-bit counters, of which this one is
# the milliseconds since data last arrived.
_LAST_DATA_RECEIVED = 52
_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None


def _lain(sock: socket.socket) -> float:
    """Seconds since data last arrived at `sock`, to a few milliseconds; 0 where nobody says."""
    if _TCP_INFO is None:
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA_RECEIVED + 4)
        (milliseconds,) = struct.unpack_from("@I", info, _LAST_DATA_RECEIVED)
    except (OSError, struct.error):
        return 0.0  # no TCP, or another system's idea of the struct
    return float(milliseconds) / 1000.0


class _Current(threading.local):
    exchange: Exchange | None = None


_current = _Current()


def current_exchange() -> Exchange:
    """The exchange this thread is making; RuntimeError where it makes none."""
    exchange = _current.exchange
    if exchange is None:
        raise RuntimeError("no exchange is being made on this thread")
    return exchange


class making:
    """Context: `exchange` is what this thread's sockets are held to."""

    __slots__ = ("_exchange", "_outer")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> Exchange:
        self._outer = _current.exchange
        _current.exchange = self._exchange
        return self._exchange

    def __exit__(self, *_: object) -> None:
        _current.exchange = self._outer


# The two classes below repeat each other on purpose: `super()` must reach the plain and
# the TLS socket, and a mixin between them costs a frame on every read.


class DeadlineSocket(socket.socket):
    """A TCP socket whose every blocking call is held to the thread's exchange.

    Once `armed`, its timeouts are the kernel's (SO_RCVTIMEO, SO_SNDTIMEO), not Python's:
    Python would poll before each call, and with many threads the interpreter lock that is let go
    and taken back a second time costs more than the call.
    """

    _receive_limit = 0.0
    _send_limit = 0.0

    def arm(self) -> None:
        """Leave waiting to the kernel from now on; the connection stands."""
        self.settimeout(None)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        exchange = _current.exchange
        if exchange is None:
            return super().recv_into(buffer, nbytes, flags)
        self._limit_receive(exchange)
        began = exchange.clock.monotonic() if exchange.min_pace else 0.0
        try:
            count = super().recv_into(buffer, nbytes, flags)
        except BlockingIOError:
            raise TimeoutError("nothing came in the time allowed") from None
        if began and exchange.first_byte_at is not None:
            exchange.came(count, began)
        if count and exchange.first_byte_at is None and exchange.phase == "headers":
            exchange.answers(self)
        return count

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        exchange = _current.exchange
        if exchange is not None:
            self._limit_receive(exchange)
        try:
            return super().recv(bufsize, flags)
        except BlockingIOError:
            raise TimeoutError("nothing came in the time allowed") from None

    def send(self, data: Any, flags: int = 0) -> int:
        self._limit_send()
        try:
            return super().send(data, flags)
        except BlockingIOError:
            raise TimeoutError("nothing could be sent in the time allowed") from None

    def sendall(self, data: Any, flags: int = 0) -> None:
        if len(data) > _ONE_SEND and self.gettimeout() is None:
            # More than one call to the kernel: only Python's own loop bounds them together.
            _hold(self.settimeout)
            try:
                super().sendall(data, flags)
            finally:
                self.settimeout(None)
            return
        self._limit_send()
        try:
            super().sendall(data, flags)
        except BlockingIOError:
            raise TimeoutError("nothing could be sent in the time allowed") from None

    def makefile(self, *args: Any, **kwargs: Any) -> Any:
        # Only http.client asks, always for "rb", and without naming a buffer size.
        return super().makefile("rb", READ_BUFFER)

    def _limit_receive(self, exchange: Exchange) -> None:
        limit = exchange.limit(exchange.read_timeout)
        if self.gettimeout() is not None:
            self.settimeout(limit)
        elif limit != self._receive_limit:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(limit))
            self._receive_limit = limit

    def _limit_send(self) -> None:
        exchange = _current.exchange
        if exchange is None:
            return
        limit = exchange.limit(exchange.read_timeout)
        if self.gettimeout() is not None:
            self.settimeout(limit)
        elif limit != self._send_limit:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit))
            self._send_limit = limit


def _timeval(seconds: float) -> bytes:
    """struct timeval (sys/time.h); never zero, which would mean no limit."""
    microseconds = max(1, int(seconds * 1e6))
    return struct.pack("@ll", *divmod(microseconds, 1_000_000))


class DeadlineTLSSocket(ssl.SSLSocket):
    """A TLS socket whose every blocking call is held to the thread's exchange.

    OpenSSL's read, write and handshake loops in C take the socket's timeout as a bound for
    the whole call, however many records it needs.
    """

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        exchange = _current.exchange
        if exchange is None:
            return super().recv_into(buffer, nbytes, flags)
        self.settimeout(exchange.limit(exchange.read_timeout))
        began = exchange.clock.monotonic() if exchange.min_pace else 0.0
        count = super().recv_into(buffer, nbytes, flags)
        if began and exchange.first_byte_at is not None:
            exchange.came(count, began)
        if count and exchange.first_byte_at is None and exchange.phase == "headers":
            exchange.answers(self)
        return count

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        _hold(self.settimeout)
        return super().recv(buflen, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        _hold(self.settimeout)
        return super().send(data, flags)

    def do_handshake(self, block: bool = False) -> None:
        _hold(self.settimeout)
        super().do_handshake(block)

    def makefile(self, *args: Any, **kwargs: Any) -> Any:
        # Only http.client asks, always for "rb", and without naming a buffer size.
        return super().makefile("rb", READ_BUFFER)


def _hold(settimeout: Callable[[float | None], None]) -> None:
    exchange = _current.exchange
    if exchange is not None:
        settimeout(exchange.limit(exchange.read_timeout))
