"""Opens connections: look-up, address check, connect, tunnel, TLS, each under the deadline.

Runs on fetch threads. The two connection classes are urllib3's with their own dialling,
their own one-write request and a tolerant answer; both clients use them. Imports
`deadline`, `resolve`, `proxy`, `wire` and urllib3.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from urllib3.connection import HTTPConnection, HTTPSConnection

from syncrawl.errors import ConfigError, FetchError
from syncrawl.fetch import proxy
from syncrawl.fetch.deadline import (
    DeadlineSocket,
    DeadlineTLSSocket,
    Exchange,
    current_exchange,
)
from syncrawl.fetch.resolve import Address, Resolver, is_private
from syncrawl.fetch.wire import RawBody, WireResponse, receive

if TYPE_CHECKING:
    from syncrawl.fetch.proxy import Route

ADDRESS_SECONDS = 1.0
"""How long one address may take while another is left to try (RFC 8305 in spirit)."""


class Dialer:
    """Turns a host and a port into a connected socket, within `connect_timeout`.

    The address that was checked is the one connected to; there is no second look-up.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def open(self, host: str, port: int, exchange: Exchange, *, check: bool) -> DeadlineSocket:
        """A connected socket. Raises FetchError ("dns", "address") or OSError."""
        candidates = self._resolver.resolve(host, exchange)
        if check and not exchange.allow_private:
            candidates = _public(host, candidates)
        exchange.phase = "connect"
        until = exchange.clock.monotonic() + exchange.limit(exchange.connect_timeout)
        failure: OSError = socket.gaierror(socket.EAI_NONAME, "no address")
        for number, address in enumerate(candidates):
            left = until - exchange.clock.monotonic()
            if left <= 0:
                break
            last = number == len(candidates) - 1
            try:
                sock = _connected(address, port, left if last else min(left / 2, ADDRESS_SECONDS))
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                failure = error
                continue
            if number:
                self._resolver.prefer(host, address)
            exchange.address = address.text
            return sock
        raise failure


def _public(host: str, candidates: tuple[Address, ...]) -> tuple[Address, ...]:
    public = tuple(address for address in candidates if not is_private(address.text))
    if candidates and not public:
        raise FetchError(
            f"{host} is {candidates[0].text}, which is no public address",
            outcome="address",
            retryable=False,
            host=host,
        )
    return public


def _connected(address: Address, port: int, seconds: float) -> DeadlineSocket:
    sock = DeadlineSocket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect((address.text, port))
        sock.arm()
    except BaseException:
        sock.close()
        raise
    return sock


class Link(NamedTuple):
    """What a connection needs beyond its origin: shared, read-only."""

    dialer: Dialer
    tls: ssl.SSLContext
    route: Route | None


class PlainConnection(HTTPConnection):
    """An http connection, direct or through a forwarding proxy."""

    def __init__(self, *args: Any, link: Link, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.link = link
        self.address: str | None = None
        self.idle_since = 0.0

    def connect(self) -> None:
        self.sock = _dial(self, current_exchange())

    def request(self, method: str, url: str, *_: Any, **kwargs: Any) -> None:
        _send(self, method, kwargs)

    def getresponse(self) -> RawBody:  # type: ignore[override]
        return _answer(self)


class TlsConnection(HTTPSConnection):
    """An https connection, direct or through a proxy's CONNECT tunnel."""

    def __init__(self, *args: Any, link: Link, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.link = link
        self.address: str | None = None
        self.idle_since = 0.0

    def connect(self) -> None:
        exchange = current_exchange()
        sock = _dial(self, exchange)
        try:
            if self.link.route is not None:
                _tunnel(sock, self.host, self.port, self.link.route)
            exchange.phase = "tls"
            self.sock = self.link.tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        self.is_verified = self.link.tls.verify_mode == ssl.CERT_REQUIRED

    def request(self, method: str, url: str, *_: Any, **kwargs: Any) -> None:
        _send(self, method, kwargs)

    def getresponse(self) -> RawBody:  # type: ignore[override]
        return _answer(self)


Connection = PlainConnection | TlsConnection


def _dial(connection: Connection, exchange: Exchange) -> DeadlineSocket:
    link = connection.link
    route = link.route
    if route is None:
        sock = link.dialer.open(connection._dns_host, connection.port, exchange, check=True)
    else:
        try:
            sock = link.dialer.open(route.host, route.port, exchange, check=False)
        except (OSError, FetchError) as error:
            if exchange.expired():
                raise
            raise proxy.refused(route, str(error)) from error
        exchange.address = None
    connection.address = exchange.address
    return sock


def _tunnel(sock: DeadlineSocket, host: str, port: int, route: Route) -> None:
    """Ask the proxy for a tunnel; RFC 9110 section 9.3.6."""
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", "Proxy-Connection: Keep-Alive"]
    if route.authorization is not None:
        lines.append(f"Proxy-Authorization: {route.authorization}")
    sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    answer = WireResponse(sock, method="HEAD")
    try:
        answer.begin()
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(
            f"the proxy {route.url} broke off at CONNECT {authority}: {error}",
            outcome="proxy",
            host=route.host,
        ) from error
    finally:
        answer.close()
    if answer.status == 407:
        raise proxy.refused(route, f"it answered 407 to CONNECT {authority}")
    if answer.status == 403:
        # Its policy for this target: others may be open to us.
        raise FetchError(
            f"the proxy {route.url} answered 403 to CONNECT {authority}",
            outcome=proxy.DENIED,
            retryable=False,
            host=route.host,
        )
    if not 200 <= answer.status < 300:
        raise FetchError(
            f"the proxy {route.url} answered {answer.status} to CONNECT {authority}",
            outcome="proxy",
            host=route.host,
        )


def _send(connection: Connection, method: str, kwargs: Mapping[str, Any]) -> None:
    """Write the whole request in one call; the exchange says the target, spelled as it is.

    The URL handed down by the libraries has passed their re-quoting, so it is not used.
    """
    exchange = current_exchange()
    sock = connection.sock
    if sock is None:
        raise ConnectionAbortedError("the connection was closed before the request")
    lines = [f"{method} {exchange.target} HTTP/1.1", f"Host: {exchange.authority}"]
    for name, value in (kwargs.get("headers") or {}).items():
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        if name.lower() != "host":
            lines.append(f"{name}: {text}")
    route = connection.link.route
    if route is not None and route.authorization and isinstance(connection, PlainConnection):
        lines.append(f"Proxy-Authorization: {route.authorization}")
    head = "\r\n".join([*lines, "", ""])
    if head.count("\n") != len(lines) + 1 or head.count("\r") != len(lines) + 1:
        raise ValueError("a header field holds a line break")
    connection._response_options = _Options(
        method, kwargs.get("preload_content", True), kwargs.get("decode_content", True)
    )  # type: ignore[assignment]
    data = head.encode("latin-1")
    exchange.phase = "send"
    # Before the call: after it, this thread may have had to wait for the interpreter lock.
    exchange.sent_at = exchange.clock.monotonic()
    sock.sendall(data)


class _Options(NamedTuple):
    """What `getresponse` needs to know of the request, in urllib3's words."""

    request_method: str
    preload_content: bool
    decode_content: bool
    request_url: str | None = None


def _answer(connection: Connection) -> RawBody:
    current_exchange().phase = "headers"
    options = connection._response_options
    connection._response_options = None
    return receive(connection, options)


def tls_context(ca_bundle: str, *, verify: bool) -> ssl.SSLContext:
    """The context every TLS connection shares; its sockets are held to the deadline.

    `ca_bundle` is a PEM file or a directory; "" means REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or
    SSL_CERT_FILE, else certifi's list. Raises ConfigError where it cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = DeadlineTLSSocket
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    key, path = "fetch.ca_bundle", ca_bundle
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        if not path:
            key, path = f"environment {name}", os.environ.get(name, "")
    if not path:
        import certifi

        path = certifi.where()
    try:
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read as a list of certificates ({error})",
            key=key,
            value=path,
            remedy="name a PEM file",
        ) from None
    return context
