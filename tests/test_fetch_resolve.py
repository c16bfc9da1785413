"""Names to addresses: one look-up a name, cached, bounded, and never into private ranges."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from syncrawl.api import FetchError
from syncrawl.clock import SystemClock
from syncrawl.fetch.deadline import Exchange
from syncrawl.fetch.resolve import (
    MAX_THREADS,
    Address,
    Resolver,
    is_private,
    literal,
    system_lookup,
)
from syncrawl.testing import FakeClock
from tests.fetching import both_clients, failure, request
from tests.servers import ScriptServer, ok

V4 = socket.AF_INET
V6 = socket.AF_INET6
PUBLIC = Address(V4, "93.184.216.34")

PATIENCE = 5.0
"""Seconds a thread of a test may take to get where it is going."""


def resolver(lookup: Callable[[bytes], Any], clock: Any = None, **changes: Any) -> Resolver:
    fields = {"static": {}, "ttl": 60.0, "negative_ttl": 10.0, **changes}
    return Resolver(clock=clock or FakeClock(), lookup=lookup, **fields)


def exchange(clock: Any = None, seconds: float = PATIENCE) -> Exchange:
    clock = clock or SystemClock()
    return Exchange(
        clock=clock,
        deadline=clock.monotonic() + seconds,
        connect_timeout=seconds,
        read_timeout=seconds,
        allow_private=True,
    )


def test_an_answer_is_kept_for_its_time_and_a_failure_for_less() -> None:
    clock = FakeClock()
    asked: list[bytes] = []

    def lookup(name: bytes) -> list[Address]:
        asked.append(name)
        if name == b"no.test":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [PUBLIC]

    names = resolver(lookup, clock)
    for _ in range(3):
        assert names.resolve("A.test.", exchange(clock)) == (PUBLIC,)
        with pytest.raises(FetchError):
            names.resolve("no.test", exchange(clock))
    assert asked == [b"a.test", b"no.test"]
    clock.advance(11)
    names.resolve("a.test", exchange(clock))
    with pytest.raises(FetchError):
        names.resolve("no.test", exchange(clock))
    assert asked == [b"a.test", b"no.test", b"no.test"]
    clock.advance(50)
    names.resolve("a.test", exchange(clock))
    assert asked[3:] == [b"a.test"]


@pytest.mark.parametrize(
    ("code", "retryable"),
    [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True), (socket.EAI_FAIL, True)],
)
def test_a_name_that_is_unknown_is_not_asked_again(code: int, retryable: bool) -> None:
    def lookup(_: bytes) -> list[Address]:
        raise socket.gaierror(code, "why")

    with pytest.raises(FetchError) as caught:
        resolver(lookup).resolve("no.test", exchange())
    assert (caught.value.outcome, caught.value.retryable) == ("dns", retryable)
    assert "no.test" in str(caught.value)


def test_no_address_at_all_is_a_failure() -> None:
    with pytest.raises(FetchError) as caught:
        resolver(lambda _: []).resolve("empty.test", exchange())
    assert caught.value.outcome == "dns"


def test_one_look_up_serves_all_who_wait() -> None:
    asked: list[bytes] = []
    started, release = threading.Event(), threading.Event()

    def lookup(name: bytes) -> list[Address]:
        asked.append(name)
        started.set()
        release.wait(PATIENCE)
        return [PUBLIC]

    names = resolver(lookup, SystemClock())
    found: list[Any] = []
    waiters = [
        threading.Thread(target=lambda: found.append(names.resolve("a.test", exchange())))
        for _ in range(8)
    ]
    for waiter in waiters:
        waiter.start()
    assert started.wait(PATIENCE)
    # One that cannot wait leaves alone; the others get the answer.
    with pytest.raises(TimeoutError):
        names.resolve("a.test", exchange(seconds=0.05))
    release.set()
    for waiter in waiters:
        waiter.join(PATIENCE)
    assert found == [(PUBLIC,)] * 8
    assert asked == [b"a.test"]


def test_a_hung_name_does_not_hold_the_others_and_threads_are_bounded() -> None:
    release = threading.Event()
    running: list[bytes] = []

    def lookup(name: bytes) -> list[Address]:
        if name.startswith(b"hang"):
            running.append(name)
            release.wait(PATIENCE)
        return [PUBLIC]

    names = resolver(lookup, SystemClock())
    try:
        for number in range(MAX_THREADS - 1):
            with pytest.raises(TimeoutError):
                names.resolve(f"hang{number}.test", exchange(seconds=0.01))
        assert names.resolve("fine.test", exchange()) == (PUBLIC,)
        for number in range(10):
            with pytest.raises(TimeoutError):
                names.resolve(f"hang-more{number}.test", exchange(seconds=0.01))
        assert f"{MAX_THREADS} threads" in repr(names)
        assert len(running) <= MAX_THREADS
        daemons = [thread for thread in threading.enumerate() if thread.name == "syncrawl-dns"]
        assert daemons
        assert all(thread.daemon for thread in daemons), "a hung look-up would block the exit"
    finally:
        release.set()


def test_a_lookup_that_breaks_leaves_nobody_waiting() -> None:
    def lookup(_: bytes) -> list[Address]:
        raise UnicodeError("label too long")

    with pytest.raises(FetchError) as caught:
        resolver(lookup).resolve("x" * 300 + ".test", exchange())
    assert caught.value.outcome == "dns"


def test_families_take_turns_and_the_one_that_worked_goes_first() -> None:
    six = [Address(V6, "2001:db8::1"), Address(V6, "2001:db8::2")]
    four = [Address(V4, "192.0.2.1"), Address(V4, "192.0.2.2")]
    names = resolver(lambda _: [*six, *four])
    ordered = names.resolve("a.test", exchange())
    assert ordered == (six[0], four[0], six[1], four[1])
    names.prefer("a.test", four[0])
    assert names.resolve("a.test", exchange()) == (four[0], six[0], six[1], four[1])
    names.prefer("unknown.test", four[0])


def test_static_names_and_addresses_ask_nobody() -> None:
    def lookup(_: bytes) -> list[Address]:
        raise AssertionError("asked")

    names = resolver(lookup, static={"A.test": "127.0.0.9", "six.test": "::1"})
    assert names.resolve("a.TEST.", exchange()) == (Address(V4, "127.0.0.9"),)
    assert names.resolve("six.test", exchange()) == (Address(V6, "::1"),)
    assert names.resolve("192.0.2.7", exchange()) == (Address(V4, "192.0.2.7"),)
    assert names.resolve("[2001:db8::7]", exchange()) == (Address(V6, "2001:db8::7"),)
    assert literal("127.1") is None, "the system's resolver decides what this is"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "0.0.0.0", "100.64.0.1", "192.0.0.1", "192.0.0.192",
        "192.88.99.1", "168.63.129.16", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1",
        "fec0::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::1",
        "2002:c0a8:101::", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "3fff::1",
        "::127.0.0.1", "nonsense",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert is_private(address)


@pytest.mark.parametrize(
    "address",
    [
        "93.184.216.34",
        "8.8.8.8",
        "2606:2800:220:1::1",
        "::ffff:8.8.8.8",
        "2002:808:808::1",
        "64:ff9b::8.8.8.8",
    ],
)
def test_public_addresses(address: str) -> None:
    assert not is_private(address)


@pytest.mark.parametrize("name", [b"127.1", b"2130706433", b"0x7f.1", b"localhost"])
def test_other_spellings_of_loopback_are_seen_through(name: bytes) -> None:
    assert all(is_private(address.text) for address in system_lookup(name))


@both_clients
@pytest.mark.parametrize("host", ["127.0.0.1", "inside.test", "127.1", "[::ffff:127.0.0.1]"])
def test_no_exchange_reaches_a_private_address(client: Any, host: str) -> None:
    with ScriptServer({"/": [ok()]}) as server:
        error = failure(
            client,
            server.url(host=host),
            allow_private=False,
            options={"resolve": {"inside.test": "127.0.0.1"}},
        )
        assert server.connections == 0
    assert (error.outcome, error.retryable) == ("address", False)


@both_clients
def test_only_the_checked_addresses_are_connected_to(client: Any) -> None:
    """A name with a public and a private address never leads to the private one."""
    answers = [Address(V4, "127.0.0.1"), Address(V4, "0.0.0.0")]
    asked: list[bytes] = []

    def lookup(name: bytes) -> list[Address]:
        asked.append(name)
        return answers

    names = Resolver(clock=SystemClock(), static={}, ttl=0, negative_ttl=0, lookup=lookup)
    fetcher = client({"verify": False}, resolver=names)
    with ScriptServer({"/": [ok()]}) as server:
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request(server.url(host="rebound.test"), allow_private=False))
        assert fetcher.fetch(request(server.url(host="rebound.test"))).address == "127.0.0.1"
        assert server.connections == 1
    fetcher.close()
    assert caught.value.outcome == "address"
    assert len(asked) == 2, "one look-up an exchange: what was checked is what is used"


@both_clients
def test_names_dns_serves_and_idna_refuses(client: Any) -> None:
    with ScriptServer({"/": [ok()]}) as server:
        for name in ("under_score.test", "a--b.test", "-x.test", "bücher.test"):
            asked: list[bytes] = []

            def lookup(text: bytes, asked: list[bytes] = asked) -> list[Address]:
                asked.append(text)
                return [Address(V4, "127.0.0.1")]

            names = Resolver(clock=SystemClock(), static={}, ttl=1, negative_ttl=1, lookup=lookup)
            fetcher = client({"verify": False}, resolver=names)
            assert fetcher.fetch(request(server.url(host=name))).status == 200
            fetcher.close()
            assert asked == [name.encode("idna") if not name.isascii() else name.encode()]
