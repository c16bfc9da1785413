"""Nothing a server, a resolver or a network does keeps an exchange beyond its deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncrawl.api import FetchError, Headers
from syncrawl.clock import SystemClock
from syncrawl.fetch.deadline import DeadlineExceeded, Exchange, TooSlow, current_exchange, making
from syncrawl.fetch.resolve import Address, Resolver
from syncrawl.testing import FakeClock
from tests.fetching import both_clients, failure, fetching, request
from tests.servers import SILENT, ScriptServer, drip, head, make_certificate, ok

TOTAL = 0.6
"""The deadline of most tests here: many pauses of `PAUSE` fit in, so only a total bound ends it."""

PAUSE = 0.05

SLACK = 0.3
"""Seconds an exchange may end after its deadline, on a machine that does other things too."""

Client = Any


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1", "a.test")


DRIPS = {
    "head": drip(head("X-Slow: " + "y" * 200), PAUSE),
    "first line": [SILENT],
    "body": [head("Content-Length: 500"), *drip(b"x" * 500, PAUSE)],
    "chunks": [head("Transfer-Encoding: chunked"), *drip(b"1\r\nx\r\n" * 100, PAUSE)],
    "chunk size": [head("Transfer-Encoding: chunked"), *drip(b"0" * 500, PAUSE)],
    "until close": [head(), *drip(b"x" * 500, PAUSE)],
    "gzip head": [head("Content-Encoding: gzip"), b"\x1f\x8b\x08\x08", *drip(b"x" * 500, PAUSE)],
    "interim": [head(status="103 Hints"), *drip(head(status="103 Hints"), PAUSE)],
    "trailer": [head("Transfer-Encoding: chunked") + b"0\r\n", *drip(b"A: b\r\n" * 99, PAUSE)],
}


@both_clients
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", DRIPS)
def test_a_dripping_server_is_left_at_the_deadline(
    client: Client, kind: str, tls: bool, certificate: tuple[Path, Any]
) -> None:
    pem, context = certificate
    with (
        ScriptServer({"/": DRIPS[kind]}, tls=context if tls else None) as server,
        fetching(client, ca_bundle=str(pem)) as fetcher,
    ):
        began = time.monotonic()
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request(server.url(), total=TOTAL))
        took = time.monotonic() - began
        assert server.left.wait(5), "the connection was not dropped"
    assert caught.value.outcome == "timeout"
    assert "total time" in caught.value.message
    assert TOTAL <= took < TOTAL + SLACK


@both_clients
@pytest.mark.parametrize("kind", ["head", "body"])
@pytest.mark.slow
def test_the_published_figure(client: Client, kind: str) -> None:
    """A byte each 0.5 s against a total of 5 s ends within 5.3 s."""
    steps: list[Any] = drip(head("X: " + "y" * 50), 0.5)
    if kind == "body":
        steps = [head("Content-Length: 50"), *drip(b"x" * 50, 0.5)]
    with ScriptServer({"/": steps}) as server, fetching(client) as fetcher:
        began = time.monotonic()
        with pytest.raises(FetchError):
            fetcher.fetch(request(server.url(), total=5.0))
        assert 5.0 <= time.monotonic() - began < 5.3


@both_clients
def test_silence_ends_earlier_than_the_total(client: Client) -> None:
    with ScriptServer({"/": [head("Content-Length: 9"), b"x", SILENT]}) as server:
        began = time.monotonic()
        error = failure(client, server.url(), options={"read_timeout": 0.2})
        took = time.monotonic() - began
    assert (error.outcome, error.retryable) == ("timeout", True)
    assert "silent for 0.2 s" in error.message
    assert error.wire_bytes <= 1
    assert 0.2 <= took < 0.2 + SLACK


@both_clients
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", ["body", "chunks", "head"])
def test_an_answer_below_the_pace_asked_for_is_left(
    client: Client, kind: str, tls: bool, certificate: tuple[Path, Any]
) -> None:
    pem, context = certificate
    options = {"ca_bundle": str(pem), "read_timeout": 0.4, "min_pace": 1000}
    with ScriptServer({"/": DRIPS[kind]}, tls=context if tls else None) as server:
        found = failure(client, server.url(), options=options)
        assert server.left.wait(5), "the connection was not dropped"
    assert found.outcome == "timeout"
    assert "slower than 1000 bytes/s, over 0.4 s" in found.message


@both_clients
def test_an_answer_at_the_pace_asked_for_is_taken(client: Client) -> None:
    # 20 bytes a second, in several spans of the read timeout.
    dripping = [head("Content-Length: 20"), *drip(b"x" * 20, PAUSE)]
    with (
        ScriptServer({"/": dripping}) as server,
        fetching(client, read_timeout=0.3, min_pace=5) as fetcher,
    ):
        assert fetcher.fetch(request(server.url())).body == b"x" * 20


@both_clients
def test_a_pause_within_the_read_timeout_is_no_fault(client: Client) -> None:
    steps = [head("Content-Length: 3"), *drip(b"abc", 0.1)]
    with (
        ScriptServer({"/": steps}) as server,
        fetching(client, read_timeout=5.0) as fetcher,
    ):
        assert fetcher.fetch(request(server.url())).body == b"abc"


@both_clients
def test_a_handshake_that_never_comes(client: Client) -> None:
    with ScriptServer(raw=lambda sock: [sock.recv(4096) for _ in range(2)] and None) as server:
        url = server.url().replace("http:", "https:")
        began = time.monotonic()
        error = failure(client, url, total=TOTAL)
        assert time.monotonic() - began < TOTAL + SLACK
    assert error.outcome == "timeout"
    assert error.message.startswith("tls:")


@both_clients
def test_a_peer_that_never_reads(client: Client) -> None:
    stop = threading.Event()
    with ScriptServer(raw=lambda _: stop.wait(10) and None) as server:
        # Large enough not to fit the buffers of both ends.
        large = Headers({"X-Large": "x" * (16 << 20)})
        began = time.monotonic()
        error = failure(client, server.url(), total=TOTAL, headers=large)
        assert time.monotonic() - began < TOTAL + SLACK
        stop.set()
    assert error.outcome == "timeout"
    assert error.message.startswith("send:")


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that answers no connection attempt: its queue is full and nobody accepts."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    held = []
    try:
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
            held.append(sock)
        yield listener.getsockname()[1]
    finally:
        for sock in [*held, listener]:
            sock.close()


@both_clients
@pytest.mark.parametrize("bound", ["connect_timeout", "total"])
def test_a_connection_that_is_never_made(client: Client, dead_port: int, bound: str) -> None:
    options = {"connect_timeout": 0.3} if bound == "connect_timeout" else {}
    began = time.monotonic()
    error = failure(client, f"http://127.0.0.1:{dead_port}/", total=0.5, options=options)
    took = time.monotonic() - began
    assert error.outcome == "timeout"
    assert error.message.startswith("connect:")
    assert took < (0.3 if options else 0.5) + SLACK


@both_clients
def test_a_dead_address_leaves_time_for_the_next(client: Client, dead_port: int) -> None:
    """127.0.0.1 hangs on this port; 127.0.0.2 refuses or answers, here it answers."""
    answers = [Address(socket.AF_INET, "127.0.0.1"), Address(socket.AF_INET, "127.0.0.2")]
    resolver = Resolver(
        clock=SystemClock(), static={}, ttl=60, negative_ttl=1, lookup=lambda _: list(answers)
    )
    listener = socket.create_server(("127.0.0.2", dead_port))
    served = threading.Thread(target=_serve_twice, args=(listener,), daemon=True)
    served.start()
    fetcher = client({"connect_timeout": 1.0}, resolver=resolver)
    try:
        first = fetcher.fetch(request(f"http://two.test:{dead_port}/"))
        began = time.monotonic()
        second = fetcher.fetch(request(f"http://two.test:{dead_port}/"))
        took = time.monotonic() - began
    finally:
        fetcher.close()
        served.join(5)
        listener.close()
    assert first.address == second.address == "127.0.0.2"
    assert first.elapsed >= 0.5
    assert took < 0.4, "the address that answered was not tried first"


def _serve_twice(listener: socket.socket) -> None:
    for _ in range(2):
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(ok(b"", "Connection: close"))


@both_clients
def test_a_hung_resolver_costs_the_deadline_and_no_more(client: Client) -> None:
    release = threading.Event()

    def hang(_: bytes) -> list[Address]:
        release.wait(10)
        return []

    resolver = Resolver(clock=SystemClock(), static={}, ttl=1, negative_ttl=1, lookup=hang)
    fetcher = client({}, resolver=resolver)
    try:
        began = time.monotonic()
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request("http://hang.test/", total=0.3))
        assert time.monotonic() - began < 0.3 + SLACK
    finally:
        release.set()
        fetcher.close()
    assert caught.value.outcome == "timeout"
    assert caught.value.message.startswith("dns:")


@both_clients
def test_a_deadline_that_has_passed_sends_nothing(client: Client) -> None:
    with ScriptServer({"/": [ok()]}) as server:
        assert failure(client, server.url(), total=-1.0).outcome == "timeout"
        assert server.targets == []


# The parts


def exchange(clock: FakeClock, **changes: Any) -> Exchange:
    fields = {"deadline": clock.monotonic() + 10, "connect_timeout": 5, "read_timeout": 4}
    return Exchange(clock=clock, allow_private=True, **{**fields, **changes})


def test_the_limit_is_the_smaller_of_silence_and_total() -> None:
    clock = FakeClock()
    made = exchange(clock)
    assert made.limit(4) == 4
    clock.advance(8)
    assert made.limit(4) == pytest.approx(2)
    clock.advance(2)
    assert made.expired()
    with pytest.raises(DeadlineExceeded):
        made.limit(4)


def test_the_exchange_belongs_to_its_thread() -> None:
    clock = FakeClock()
    seen: list[object] = []

    def elsewhere() -> None:
        try:
            seen.append(current_exchange())
        except RuntimeError:
            seen.append(None)

    with making(exchange(clock)) as outer:
        with making(exchange(clock)) as inner:
            assert current_exchange() is inner
        assert current_exchange() is outer
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(5)
    assert seen == [None]
    with pytest.raises(RuntimeError):
        current_exchange()


def test_only_waiting_counts_as_the_hosts_pace() -> None:
    clock = FakeClock()
    made = exchange(clock, read_timeout=10.0, min_pace=100)
    made.came(500, clock.monotonic() - 5.0)
    # Ours: no room for the body for a while.
    clock.advance(60.0)
    made.came(499, clock.monotonic() - 4.9)
    with pytest.raises(TooSlow, match="slower than 100 bytes/s"):
        made.came(0, clock.monotonic() - 0.1)
