"""Host names to addresses: under a deadline, cached, and checked for private ranges.

`resolve` runs on fetch threads; the look-ups themselves run on a few daemon threads,
because getaddrinfo takes no timeout and a hung one must block neither an exchange nor
the exit. Imports the clock, the errors and `deadline`.
"""

from __future__ import annotations

import errno
import ipaddress
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from syncrawl.errors import ConfigError, FetchError
from syncrawl.fetch.deadline import Exchange
from syncrawl.urls import to_ascii

if TYPE_CHECKING:
    from syncrawl.clock import Clock

MAX_THREADS = 16
"""Look-ups at once. Each hung name holds one thread until the system's resolver gives up."""

IDLE_SECONDS = 30.0
"""A look-up thread without work for this long ends."""

MAX_CACHED = 20_000
"""Names remembered; above it the oldest are forgotten."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052 section 2.1
# Private to some machine's network, and public to `ipaddress` in one of its versions or in all.
_ALSO_PRIVATE = (
    ipaddress.IPv4Network("168.63.129.16/32"),  # the host's agent and metadata, in one large cloud
    ipaddress.IPv4Network("192.0.0.0/24"),  # RFC 6890; another cloud's metadata
    ipaddress.IPv4Network("192.88.99.0/24"),  # RFC 7526: a relay of 6to4, once
    ipaddress.IPv6Network("3fff::/20"),  # RFC 9637: documentation
)
_PERMANENT = frozenset(
    value for name in ("EAI_NONAME", "EAI_NODATA") if (value := getattr(socket, name, None))
)


class Address(NamedTuple):
    """One candidate: an address family and the address in text, scope id included."""

    family: int
    text: str


Lookup = Callable[[bytes], list[Address]]


def system_lookup(name: bytes) -> list[Address]:
    """Ask the operating system; raises OSError (socket.gaierror) where it has no answer."""
    # As bytes: a str would go through the 2003 IDNA codec, which refuses names DNS serves.
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(Address(int(item[0]), str(item[4][0])) for item in found))


@lru_cache(maxsize=4096)
def is_private(address: str) -> bool:
    """Whether `address` leads anywhere but the public internet.

    Loopback, private, shared (RFC 6598), link-local, unspecified, multicast and reserved
    ranges, and IPv6 forms that carry such an IPv4 address: mapped, 6to4, NAT64 (IANA
    special-purpose registries, RFC 6890). What cannot be read counts as private.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is None and parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            return is_private(str(inner))
        if parsed.is_site_local:
            return True
    if any(parsed in network for network in _ALSO_PRIVATE):
        return True
    return not parsed.is_global or parsed.is_multicast or parsed.is_reserved


def is_private_as_written(host: str) -> bool:
    """`is_private` for who asks no DNS: an address in any notation, localhost, or no host at all.

    All that can be told of a target that a proxy looks up; other names pass.
    """
    name = _plain(host)
    if literal(name) is None:
        # A number in any base, with as few dots as it likes, is an IPv4 address to browsers.
        name = to_ascii(name) or ""
    if literal(name) is not None:
        return is_private(name)
    return not name or name == "localhost" or name.endswith(".localhost")


def literal(host: str) -> Address | None:
    """`host` as an address where it is one in the usual notation, else None."""
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return None
    return Address(socket.AF_INET if parsed.version == 4 else socket.AF_INET6, host)


class _Entry:
    """One name's answer, or the wait for it. Written once, by the look-up thread."""

    __slots__ = ("addresses", "done", "expires", "failure")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.addresses: tuple[Address, ...] = ()
        self.failure: OSError | None = None
        self.expires = float("inf")


class Resolver:
    """Each name is looked up by at most one thread at a time, whoever else waits for it.

    `static` maps names to addresses (`[fetch.resolve]`); `ttl` and `negative_ttl` are the
    seconds that an answer and a failure are kept. Thread-safe.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        static: Mapping[str, str],
        ttl: float,
        negative_ttl: float,
        lookup: Lookup = system_lookup,
    ) -> None:
        self._clock = clock
        self._ttl = ttl
        self._negative_ttl = negative_ttl
        self._lookup = lookup
        self._static = {_plain(name): _static(name, text) for name, text in static.items()}
        # Guards _entries, _threads and _busy (names queued or being looked up).
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._threads = 0
        self._busy = 0
        # Filled by resolve(), emptied by the look-up threads. Unbounded, but it holds one
        # item per name not yet known, and only threads that wait here add one.
        self._wanted: queue.SimpleQueue[tuple[str, _Entry]] = queue.SimpleQueue()

    def resolve(self, host: str, exchange: Exchange) -> tuple[Address, ...]:
        """The addresses of `host`, in the order to try.

        Raises FetchError: "dns" where there are none, "timeout" where none came in time.
        """
        name = _plain(host)
        fixed = self._static.get(name)
        if fixed is not None:
            return fixed
        address = literal(name)
        if address is not None:
            return (address,)
        entry = self._entry(name)
        if not entry.done.is_set():
            exchange.phase = "dns"
            if not entry.done.wait(exchange.limit(exchange.connect_timeout)):
                raise TimeoutError(f"no answer from DNS about {name}")
        if entry.failure is not None:
            raise _dns_error(name, entry.failure)
        return entry.addresses

    def prefer(self, host: str, address: Address) -> None:
        """Try `address` first from now on: the others of `host` did not answer."""
        with self._lock:
            entry = self._entries.get(_plain(host))
            if entry is not None and address in entry.addresses:
                rest = [other for other in entry.addresses if other != address]
                entry.addresses = (address, *rest)

    def _entry(self, name: str) -> _Entry:
        now = self._clock.monotonic()
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and now < entry.expires:
                return entry
            self._entries.pop(name, None)
            entry = self._entries[name] = _Entry()
            while len(self._entries) > MAX_CACHED:
                del self._entries[next(iter(self._entries))]
            self._busy += 1
            start = self._threads < min(self._busy, MAX_THREADS)
            self._threads += start
            self._wanted.put((name, entry))
        if start:
            self._start()
        return entry

    def _start(self) -> None:
        """One more look-up thread; without any at all, whoever waits is told at once."""
        try:
            threading.Thread(target=self._run, name="syncrawl-dns", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
                alone = self._threads == 0
            while alone:
                try:
                    _, entry = self._wanted.get_nowait()
                except queue.Empty:
                    return
                # Our own shortage, known as such by its number, and not to be remembered.
                entry.failure = OSError(errno.ENOMEM, f"no thread for a look-up: {error}")
                entry.expires = self._clock.monotonic()
                with self._lock:
                    self._busy -= 1
                entry.done.set()

    def _run(self) -> None:
        while True:
            try:
                name, entry = self._wanted.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._busy < self._threads:
                        self._threads -= 1
                        return
                continue
            self.step(name, entry)
            with self._lock:
                self._busy -= 1

    def step(self, name: str, entry: _Entry) -> None:
        """Look one name up and let those who wait for it go on."""
        try:
            entry.addresses = _interleaved(self._lookup(name.encode("ascii")))
            if not entry.addresses:
                entry.failure = socket.gaierror(socket.EAI_NONAME, "no address")
        except (OSError, UnicodeError) as error:
            entry.failure = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            kept = self._negative_ttl if entry.failure is not None else self._ttl
            entry.expires = self._clock.monotonic() + kept
            entry.done.set()

    def __repr__(self) -> str:
        with self._lock:
            return f"<Resolver {len(self._entries)} names, {self._threads} threads>"


def _plain(host: str) -> str:
    name = host.strip("[]").rstrip(".").lower()
    # A static name may be written as people read it; URLs have it in ASCII.
    return name if name.isascii() else (to_ascii(name) or name)


def _static(name: str, text: str) -> tuple[Address, ...]:
    address = literal(text.strip("[] "))
    if address is None:
        raise ConfigError(
            "is no IP address", key=f"fetch.resolve.{name}", value=text, remedy="write an address"
        )
    return (address,)


def _interleaved(found: Iterable[Address]) -> tuple[Address, ...]:
    """The system's order (RFC 6724), families taking turns, as RFC 8305 section 4 has it."""
    by_family: dict[int, list[Address]] = {}
    for address in found:
        by_family.setdefault(address.family, []).append(address)
    ordered: list[Address] = []
    groups = list(by_family.values())
    while groups:
        for group in groups:
            ordered.append(group.pop(0))
        groups = [group for group in groups if group]
    return tuple(ordered)


def _dns_error(name: str, failure: OSError) -> FetchError:
    if failure.errno == errno.ENOMEM and not isinstance(failure, socket.gaierror):
        return FetchError(f"DNS: {failure.strerror}", outcome="dns", ours=True)
    permanent = failure.errno in _PERMANENT
    detail: Any = failure.strerror or failure
    return FetchError(f"DNS: {detail} ({name})", outcome="dns", retryable=not permanent, host=name)
