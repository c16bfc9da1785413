"""Keeps connections alive between exchanges, bounded over all origins together.

Any fetch thread. urllib3's own pools each keep what they like; with a hundred hosts that
is more file descriptors than a locked-down process has. Here a pool is only a factory with
urllib3's `urlopen`; what is idle lies in one place with one bound. Imports `connect`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.connection import is_connection_dropped

from syncrawl.fetch.connect import Connection, Link, PlainConnection, TlsConnection
from syncrawl.fetch.deadline import Exchange, current_exchange
from syncrawl.fetch.resolve import is_private

if TYPE_CHECKING:
    import ssl

    from syncrawl.clock import Clock
    from syncrawl.fetch.connect import Dialer
    from syncrawl.fetch.proxy import Route
    from syncrawl.fetch.target import Target

IDLE_SECONDS = 60.0
"""An idle connection older than this is not used again: middle boxes forget it in silence."""

YOUNG_SECONDS = 0.02
"""An idle connection younger than this is used unseen; a dead one then costs a resend."""

MAX_POOLS = 4096
"""Pool objects kept; they hold no connection, so the bound is about memory only."""

Key = tuple[str, str, int, "str | None"]
"""Scheme, host, port, and the proxy's URL."""


class IdleConnections:
    """At most `bound` connections are idle at any moment, the longest idle are closed first."""

    def __init__(self, bound: int, clock: Clock) -> None:
        self._bound = bound
        self._clock = clock
        # Guards _by_key, _count and _closed.
        self._lock = threading.Lock()
        # Filled by give(), emptied by take() and by eviction; the origin used last is at the end.
        self._by_key: OrderedDict[Key, list[Connection]] = OrderedDict()
        self._count = 0
        self._closed = False

    def take(self, key: Key) -> Connection | None:
        """The connection to `key` given back last, still to be checked; None where none is."""
        with self._lock:
            waiting = self._by_key.get(key)
            if waiting is None:
                return None
            connection = waiting.pop()
            # Where the last one is too old, the others are older still.
            expired = self._clock.monotonic() - connection.idle_since > IDLE_SECONDS
            dropped = [connection, *waiting] if expired else []
            self._count -= len(dropped) or 1
            if expired or not waiting:
                del self._by_key[key]
        for old in dropped:
            old.close()
        return None if expired else connection

    def give(self, key: Key, connection: Connection) -> None:
        """Keep an open connection for the next exchange, or close it where there is no room."""
        connection.idle_since = self._clock.monotonic()
        surplus: Connection | None = None
        with self._lock:
            if self._closed:
                surplus = connection
            else:
                self._by_key.setdefault(key, []).append(connection)
                self._by_key.move_to_end(key)
                self._count += 1
                if self._count > self._bound:
                    surplus = self._evict()
        if surplus is not None:
            surplus.close()

    def _evict(self) -> Connection:
        # Under the lock.
        key, waiting = next(iter(self._by_key.items()))
        connection = waiting.pop(0)
        self._count -= 1
        if not waiting:
            del self._by_key[key]
        return connection

    def release_all(self, *, closing: bool = False) -> None:
        """Close everything idle: at the end, or because the process is out of descriptors."""
        with self._lock:
            self._closed = self._closed or closing
            every = [connection for waiting in self._by_key.values() for connection in waiting]
            self._by_key.clear()
            self._count = 0
        for connection in every:
            connection.close()

    def __len__(self) -> int:
        with self._lock:
            return self._count

    def __repr__(self) -> str:
        with self._lock:
            return f"<IdleConnections {self._count}/{self._bound}, {len(self._by_key)} origins>"


class PlainPool(HTTPConnectionPool):
    """urllib3's pool for one http origin, its idle connections kept elsewhere."""

    ConnectionCls = PlainConnection
    key: Key
    idle: IdleConnections

    def _get_conn(self, timeout: float | None = None) -> Any:
        return _usable(self) or self._new_conn()

    def _put_conn(self, conn: Any) -> None:
        _give_back(self, conn)

    def _validate_conn(self, conn: Any) -> None:
        _ensure_connected(conn)


class TlsPool(HTTPSConnectionPool):
    """urllib3's pool for one https origin, its idle connections kept elsewhere."""

    ConnectionCls = TlsConnection
    key: Key
    idle: IdleConnections

    def _get_conn(self, timeout: float | None = None) -> Any:
        return _usable(self) or self._new_conn()

    def _put_conn(self, conn: Any) -> None:
        _give_back(self, conn)

    def _validate_conn(self, conn: Any) -> None:
        # Not urllib3's: it warns at each unverified request, and `verify` was the user's word.
        _ensure_connected(conn)


Pool = PlainPool | TlsPool


def _is_young(connection: Connection, exchange: Exchange) -> bool:
    """Whether asking the kernel if it still stands would cost more than the rare resend."""
    return exchange.clock.monotonic() - connection.idle_since < YOUNG_SECONDS


def _usable(pool: Pool) -> Connection | None:
    """An idle connection that is still open and that this exchange may use."""
    exchange = current_exchange()
    while not exchange.fresh:
        connection = pool.idle.take(pool.key)
        if connection is None:
            return None
        private = not exchange.allow_private and is_private(connection.address or "")
        refused = private and connection.link.route is None
        if not refused and (
            _is_young(connection, exchange) or not is_connection_dropped(connection)
        ):
            exchange.reused = True
            exchange.address = connection.address
            return connection
        connection.close()
    return None


def _give_back(pool: Pool, connection: Connection | None) -> None:
    if connection is None:
        return
    if connection.sock is None:
        connection.close()
    else:
        pool.idle.give(pool.key, connection)


def _ensure_connected(connection: HTTPConnection) -> None:
    # Here and not in request(), whose connection errors urllib3 takes for early answers.
    if connection.sock is None:
        connection.connect()


class Pools:
    """The pool of each origin; made on demand, shared by all fetch threads."""

    def __init__(self, *, dialer: Dialer, tls: ssl.SSLContext, clock: Clock, max_idle: int) -> None:
        self._dialer = dialer
        self._tls = tls
        self.idle = IdleConnections(max_idle, clock)
        # Guards additions to and removals from _pools; a look-up takes no lock.
        self._lock = threading.Lock()
        self._pools: dict[Key, Pool] = {}

    def get(self, target: Target, route: Route | None) -> Pool:
        """The pool that serves `target` through `route`."""
        key = (target.scheme, target.host, target.port, None if route is None else route.url)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._make(key, Link(self._dialer, self._tls, route))
            with self._lock:
                pool = self._pools.setdefault(key, pool)
                while len(self._pools) > MAX_POOLS:
                    del self._pools[next(iter(self._pools))]
        return pool

    def _make(self, key: Key, link: Link) -> Pool:
        make = TlsPool if key[0] == "https" else PlainPool
        pool = make(key[1], key[2], link=link)
        pool.key = key
        pool.idle = self.idle
        return pool

    def close(self) -> None:
        """Close what is idle; what is in use closes when it is given back."""
        self.idle.release_all(closing=True)

    def __repr__(self) -> str:
        return f"<Pools {len(self._pools)} origins, {self.idle!r}>"
