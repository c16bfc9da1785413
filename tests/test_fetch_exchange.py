"""One exchange, over both clients: what is sent, what comes back, what goes wrong and how."""

from __future__ import annotations

import errno
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncrawl.api import FetchError, Headers
from syncrawl.errors import ConfigError
from syncrawl.fetch.deadline import DeadlineSocket
from syncrawl.fetch.transport import Urllib3Fetcher
from syncrawl.testing import FakeClock
from tests.fetching import TOTAL, both_clients, failure, fetch, fetching, request
from tests.servers import (
    CLOSE,
    RESET,
    SILENT,
    ScriptServer,
    head,
    make_certificate,
    ok,
    read_head,
)

pytestmark = both_clients

Client = Any


def test_a_page_comes_back_whole(client: Client) -> None:
    with ScriptServer(
        {"/": [ok(b"<p>hi", "Content-Type: text/html", "X-A: 1", "X-A: 2")]}
    ) as server:
        response = fetch(client, server.url())
    assert (response.status, response.body, response.complete) == (200, b"<p>hi", True)
    assert response.headers["content-type"] == "text/html"
    assert response.headers.get_all("x-a") == ["1", "2"]
    assert response.wire_bytes == 5
    assert response.address == "127.0.0.1"
    assert 0 < response.ttfb <= response.elapsed
    assert not response.retried_stale


def test_what_is_sent(client: Client) -> None:
    with ScriptServer({"/p": [ok()]}) as server:
        fetch(
            client,
            server.url("/p"),
            headers=Headers({"User-Agent": "bot (+http://x.test/)", "X-Mine": "per request"}),
            options={"headers": {"X-Mine": "configured", "Accept-Language": "en"}},
        )
        lines = server.requests[0].decode("latin-1").split("\r\n")
    assert lines[0] == "GET /p HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}" in lines
    assert "User-Agent: bot (+http://x.test/)" in lines
    assert "Accept-Language: en" in lines
    assert "X-Mine: per request" in lines
    assert not any("configured" in line or line.lower().startswith("cookie") for line in lines)
    (coding,) = [line for line in lines if line.startswith("Accept-Encoding")]
    assert coding.startswith("Accept-Encoding: gzip, deflate")


@pytest.mark.parametrize(
    ("spelling", "sent"),
    [
        ("/%7euser/%2F?a=%c3%a4&b", "/%7euser/%2F?a=%c3%a4&b"),
        ("/a/../b//c?x={}|y", "/a/../b//c?x={}|y"),
        ("/100%", "/100%"),
        ("?q=1", "/?q=1"),
        ("/a?b?c=/d#frag", "/a?b?c=/d"),
        ("/a b", "/a%20b"),
        ("/é", "/%C3%A9"),
    ],
)
def test_the_target_is_sent_as_it_is_spelled(client: Client, spelling: str, sent: str) -> None:
    with ScriptServer(handler=lambda *_: [ok()]) as server:
        fetch(client, server.url(spelling))
        assert server.targets == [sent]


def test_no_cookie_is_kept(client: Client) -> None:
    with ScriptServer({"/": [ok(b"", "Set-Cookie: a=1; Path=/")]}) as server:
        with fetching(client) as fetcher:
            fetcher.fetch(request(server.url()))
            fetcher.fetch(request(server.url()))
        assert b"ookie" not in server.requests[1]


def test_a_redirect_is_handed_back(client: Client) -> None:
    with ScriptServer({"/": [ok(b"moved", "Location: /b", status="302 Found")]}) as server:
        response = fetch(client, server.url())
        assert server.targets == ["/"]
    assert (response.status, response.headers["location"], response.body) == (302, "/b", b"moved")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_a_status_without_body_waits_for_none(client: Client, status: str) -> None:
    fields = ("Content-Length: 5", "Content-Encoding: gzip")
    with (
        ScriptServer({"/": [head(*fields, status=status)]}) as server,
        fetching(client) as fetcher,
    ):
        for _ in range(2):
            response = fetcher.fetch(request(server.url(), total=5.0))
            assert (response.status, response.body) == (int(status[:3]), b"")
        assert server.connections == 1


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "302 Found"])
def test_a_long_body_beside_the_point_is_cut_and_dropped(client: Client, status: str) -> None:
    answer = head("Content-Length: 1000000", status=status) + b"x" * 100_000
    with (
        ScriptServer({"/": [answer, SILENT], "/b": [ok()]}) as server,
        fetching(client) as fetcher,
    ):
        response = fetcher.fetch(request(server.url()))
        assert (len(response.body), response.complete) == (65536, False)
        fetcher.fetch(request(server.url("/b")))
        assert server.connections == 2


@pytest.mark.parametrize("end", [CLOSE, SILENT])
def test_an_error_whose_body_fails_still_has_its_status(client: Client, end: str) -> None:
    answer = head("Content-Length: 50", "Retry-After: 7", status="503 Busy") + b"short"
    with ScriptServer({"/": [answer, end]}) as server:
        response = fetch(client, server.url(), options={"read_timeout": 0.3})
    assert (response.status, response.headers["retry-after"]) == (503, "7")
    assert not response.complete


# Connections: kept, stale, broken


def test_a_connection_is_used_again(client: Client) -> None:
    chunked = head("Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    with (
        ScriptServer({"/": [ok()], "/c": [chunked]}) as server,
        fetching(client) as fetcher,
    ):
        for path in ("/", "/c", "/", "/c"):
            assert fetcher.fetch(request(server.url(path))).status == 200
        assert server.connections == 1


@pytest.mark.parametrize(
    "script",
    [
        [ok(b"hello", "Connection: close")],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
        [head("Transfer-Encoding: chunked", "Content-Length: 5") + b"5\r\nhello\r\n0\r\n\r\n"],
        [head("Content-Length: 5-") + b"hello", CLOSE],
    ],
    ids=["close", "1.0", "both framings", "bad length"],
)
def test_a_connection_that_cannot_be_trusted_is_not_used_again(client: Client, script: Any) -> None:
    with ScriptServer({"/": script}) as server, fetching(client) as fetcher:
        for _ in range(2):
            response = fetcher.fetch(request(server.url()))
            assert response.body == b"hello"
            assert not response.retried_stale
        assert server.connections == 2


def stale_server(end: str) -> ScriptServer:
    """Answers the first request of a connection; at the second it ends the connection."""
    return ScriptServer(handler=lambda server, _: [ok()] if len(server.targets) != 2 else [end])


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_stale_connection_is_replaced_once(client: Client, end: str) -> None:
    asked: list[bool] = []

    def leave() -> bool:
        asked.append(True)
        return True

    with stale_server(end) as server, fetching(client) as fetcher:
        first = fetcher.fetch(request(server.url()), leave)
        second = fetcher.fetch(request(server.url()), leave)
        assert (server.connections, len(server.targets)) == (2, 3)
    assert (first.retried_stale, second.retried_stale) == (False, True)
    assert asked == [True]
    assert second.body == b"hello"


def test_the_second_try_takes_no_other_kept_connection(client: Client) -> None:
    """Two kept connections are both stale: one retry must be enough."""
    both_open = threading.Barrier(2)
    heads: list[bytes] = []

    def once(sock: socket.socket) -> None:
        heads.append(read_head(sock))
        if len(heads) <= 2:
            both_open.wait(5)
        sock.sendall(ok())
        read_head(sock)

    with ScriptServer(raw=once) as server, fetching(client) as fetcher:

        def first() -> None:
            fetcher.fetch(request(server.url()))

        threads = [threading.Thread(target=first) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(fetcher._course.pools.idle) == 2
        response = fetcher.fetch(request(server.url()))
        assert server.connections == 3
    assert (response.status, response.retried_stale) == (200, True)


def test_a_stale_connection_is_an_error_without_leave(client: Client) -> None:
    with stale_server(CLOSE) as server, fetching(client) as fetcher:
        fetcher.fetch(request(server.url()))
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request(server.url()), lambda: False)
        assert (server.connections, len(server.targets)) == (1, 2)
    assert (caught.value.outcome, caught.value.ours) == ("stale", True)


def test_a_reused_connection_that_dies_within_the_head_is_not_retried(client: Client) -> None:
    def script(server: ScriptServer, _: str) -> list[Any]:
        return [ok()] if len(server.targets) == 1 else [b"HTTP/1.1 200 O", RESET]

    with ScriptServer(handler=script) as server, fetching(client) as fetcher:
        fetcher.fetch(request(server.url()))
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request(server.url()))
        assert len(server.targets) == 2
    assert caught.value.outcome in ("connection", "protocol")


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_fresh_connection_that_dies_is_an_error(client: Client, end: str) -> None:
    with ScriptServer({"/": [end]}) as server:
        error = failure(client, server.url())
        assert len(server.targets) == 1
    assert (error.outcome, error.retryable, error.ours) == ("connection", True, False)
    assert error.url == server.url()


def test_a_refused_connection(client: Client) -> None:
    with ScriptServer() as server:
        url = server.url()
    error = failure(client, url)
    assert (error.outcome, error.retryable) == ("connect", True)
    assert error.host == url.split("/")[2]


def test_idle_connections_are_bounded_over_all_hosts(client: Client) -> None:
    names = {f"h{number}.test": "127.0.0.1" for number in range(12)}
    with (
        ScriptServer({"/": [ok()]}) as server,
        fetching(client, resolve=names, workers=2) as fetcher,
    ):
        for name in names:
            fetcher.fetch(request(server.url(host=name)))
        idle = fetcher._course.pools.idle
        assert len(idle) == 8
        fetcher.fetch(request(server.url(host="h11.test")))
        assert server.connections == 12
        fetcher.fetch(request(server.url(host="h0.test")))
        assert server.connections == 13
    assert len(idle) == 0


def test_out_of_descriptors_is_our_pressure_and_frees_some(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with ScriptServer({"/": [ok()]}) as server, fetching(client) as fetcher:
        fetcher.fetch(request(server.url()))
        assert len(fetcher._course.pools.idle) == 1
        monkeypatch.setattr("syncrawl.fetch.connect._connected", none_left)
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request("http://127.0.0.2:1/"))
        assert len(fetcher._course.pools.idle) == 0
    assert (caught.value.outcome, caught.value.ours) == ("connect", True)


def test_a_connection_to_a_private_address_serves_nobody_who_may_not(client: Client) -> None:
    with ScriptServer({"/": [ok()]}) as server, fetching(client) as fetcher:
        fetcher.fetch(request(server.url()))
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(request(server.url(), allow_private=False))
        assert len(server.targets) == 1
    assert (caught.value.outcome, caught.value.retryable) == ("address", False)


def test_many_threads_share_one_fetcher(client: Client) -> None:
    threads, rounds = 16, 12
    bodies = {f"/{number}": [ok(b"%d" % number)] for number in range(threads)}
    wrong: list[object] = []
    with ScriptServer(bodies) as server, fetching(client) as fetcher:  # type: ignore[arg-type]

        def work(number: int) -> None:
            for _ in range(rounds):
                body = fetcher.fetch(request(server.url(f"/{number}"))).body
                if body != b"%d" % number:
                    wrong.append((number, body))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
        assert not any(worker.is_alive() for worker in workers)
        assert server.connections <= threads
    assert wrong == []
    assert len(server.targets) == threads * rounds


# Bounds of the body


def test_a_declared_length_above_the_cap_is_refused_unread(client: Client) -> None:
    with ScriptServer({"/": [head("Content-Length: 101"), SILENT]}) as server:
        error = failure(client, server.url(), max_body_bytes=100)
        assert server.left.wait(5)
    assert (error.outcome, error.retryable, error.wire_bytes) == ("too_large", False, 0)


@pytest.mark.parametrize(
    ("fields", "piece"),
    [((), b"x" * 10_000), (("Transfer-Encoding: chunked",), b"2710\r\n" + b"x" * 10_000 + b"\r\n")],
    ids=["until close", "chunked"],
)
def test_an_endless_body_ends_at_the_cap(
    client: Client, fields: tuple[str, ...], piece: bytes
) -> None:
    with ScriptServer({"/": [head(*fields), *[piece] * 500, SILENT]}) as server:
        error = failure(client, server.url(), max_body_bytes=200_000)
        assert server.left.wait(5)
    assert error.outcome == "too_large"
    assert 200_000 < error.wire_bytes < 400_000


@pytest.mark.parametrize("size", [100, 65_536, 200_000])
def test_a_body_that_just_fits(client: Client, size: int) -> None:
    plain = head("Connection: close") + b"x" * size
    with ScriptServer({"/": [plain, CLOSE], "/l": [ok(b"x" * size)]}) as server:
        assert len(fetch(client, server.url(), max_body_bytes=size).body) == size
        assert len(fetch(client, server.url("/l"), max_body_bytes=size).body) == size
        assert failure(client, server.url(), max_body_bytes=size - 1).outcome == "too_large"


@pytest.mark.parametrize("fields", [(), ("Content-Length: 300000",)])
def test_truncate_keeps_the_first_bytes(client: Client, fields: tuple[str, ...]) -> None:
    with ScriptServer({"/": [head(*fields) + b"x" * 300_000, SILENT]}) as server:
        response = fetch(client, server.url(), max_body_bytes=1000, truncate=True)
        assert server.left.wait(5)
    assert (response.body, response.complete) == (b"x" * 1000, False)


def test_growth_is_asked_for_before_it_happens(client: Client) -> None:
    asked: list[int] = []
    with ScriptServer(
        {
            "/small": [ok(b"x" * 65_536)],
            "/stated": [ok(b"x" * 200_000)],
            "/open": [head("Connection: close") + b"x" * 150_000, CLOSE],
        }
    ) as server:
        fetch(client, server.url("/small"), grow=asked.append)
        assert asked == []
        fetch(client, server.url("/stated"), grow=asked.append)
        assert asked == [200_000]
        asked.clear()
        fetch(client, server.url("/open"), grow=asked.append)
        assert asked == [131_072, 196_608]


def test_a_refusal_to_grow_passes_through_and_drops_the_connection(client: Client) -> None:
    ours = FetchError("no room", outcome="pressure", ours=True)

    def refuse(total: int) -> None:
        raise ours

    with ScriptServer({"/": [head("Content-Length: 100000"), SILENT]}) as server:
        assert failure(client, server.url(), grow=refuse) is ours
        assert server.left.wait(5)


# Heads and framing as they come


@pytest.mark.parametrize(
    "block",
    [
        b"My Param: None\r\nContent-Type: text/x\r\nContent-Length: 2\r\n",
        b"X-A : 1\r\nContent-Type: text/x\r\nContent-Length: 2\r\n",
        b' "Server": x\r\nContent-Type: text/x\r\nContent-Length: 2\r\n',
        b"\tServer: x\r\n\tContent-Type: text/x\r\n\tContent-Length: 2\r\n",
        b"no colon at all\r\nContent-Type: text/x\r\nContent-Length: 2\r\n",
        b": no name\r\nContent-Type: text/x\r\nContent-Length: 2\r\n",
        b"Content-Type: text/x\nContent-Length: 2\n",
        b"Content-Type:\r\n text/x\r\nContent-Length:2\r\n",
        b"Content-Type: text/x\r\nContent-Length: 2, 2\r\nContent-Length: 2\r\n",
    ],
)
def test_no_odd_line_hides_the_others(client: Client, block: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\n" + block + b"\r\nhi"
    with ScriptServer({"/": [answer, SILENT]}) as server:
        response = fetch(client, server.url(), options={"read_timeout": 2.0})
    assert response.body == b"hi"
    assert response.headers["content-type"] == "text/x"


@pytest.mark.parametrize("length", ["350-", "-10", "+5", "1_0", "0x5", "", "9" * 400])
def test_a_length_that_is_no_number_counts_as_none(client: Client, length: str) -> None:
    with ScriptServer({"/": [head(f"Content-Length: {length}") + b"hello", CLOSE]}) as server:
        assert fetch(client, server.url()).body == b"hello"


def test_a_byte_above_ascii_in_a_field_is_kept(client: Client) -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-Name: f\xc3\xa9\xe9\r\nContent-Length: 0\r\n\r\n"
    with ScriptServer({"/": [answer]}) as server:
        response = fetch(client, server.url())
    assert response.headers["x-name"].encode("latin-1") == b"f\xc3\xa9\xe9"


@pytest.mark.parametrize("code", [100, 102, 103])
def test_interim_answers_are_not_the_answer(client: Client, code: int) -> None:
    interim = head("Link: </a.css>; rel=preload", status=f"{code} Wait")
    with (
        ScriptServer({"/": [interim, 0.05, interim, ok(b"page")], "/b": [ok(b"next")]}) as server,
        fetching(client) as fetcher,
    ):
        assert fetcher.fetch(request(server.url())).body == b"page"
        assert fetcher.fetch(request(server.url("/b"))).body == b"next"
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"<html>no head at all</html>",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 70_000,
        head(*[f"X-{number}: y" for number in range(200)]),
        head("X: " + "y" * 70_000),
        head(*[f"X-{number}: {'y' * 60_000}" for number in range(9)]),
        head("Content-Length: 5", "Content-Length: 6") + b"hello",
        head(status="103 Hints") * 20 + ok(),
        head("Upgrade: x", status="101 Switching"),
    ],
    ids=lambda answer: repr(answer[:24]),
)
def test_what_is_no_answer_is_a_protocol_error(client: Client, answer: bytes) -> None:
    with ScriptServer({"/": [answer, CLOSE]}) as server:
        error = failure(client, server.url())
    assert error.outcome == "protocol"
    assert str(error).isprintable()


@pytest.mark.parametrize(
    "answer",
    [
        head("Content-Length: 20") + b"12345",
        head("Transfer-Encoding: chunked") + b"5\r\nhello\r\n",
        head("Transfer-Encoding: chunked") + b"9\r\nhello",
        head("Transfer-Encoding: chunked") + b"HTTP/1.1 200 OK\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"0x5\r\nhello\r\n0\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"-5\r\nhello\r\n0\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"1_0\r\nhello",
    ],
    ids=lambda answer: repr(answer[15:]),
)
@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_body_cut_short_is_incomplete(client: Client, answer: bytes, end: str) -> None:
    with ScriptServer({"/": [answer, 0.05, end]}) as server:
        error = failure(client, server.url())
    assert (error.outcome, error.retryable) == ("incomplete", True)


def test_chunks_with_extensions_and_trailers(client: Client) -> None:
    body = b"5;a=b\r\nhello\r\n1 \r\n!\r\n0;x\r\nX-Trailer: 1\r\n\r\n"
    with ScriptServer({"/": [head("Transfer-Encoding: chunked") + body]}) as server:
        assert fetch(client, server.url()).body == b"hello!"


# Settings


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/",
        "nonsense",
        "http://",
        "http://[::1",
        "http://h:99999/",
        "http://a b/",
        "http://h:0/",
    ],
)
def test_what_is_no_url_is_refused_unsent(client: Client, url: str) -> None:
    error = failure(client, url)
    assert (error.outcome, error.retryable) == ("url", False)


def test_a_request_field_cannot_smuggle_another(client: Client) -> None:
    with ScriptServer({"/": [ok()]}) as server:
        failure(client, server.url(), headers=Headers({"X": "a\r\nY: b"}))
        assert server.targets == []


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"resolve": {"a.test": "not an address"}}, "fetch.resolve.a.test"),
        ({"proxy": "socks5://127.0.0.1:1"}, "fetch.proxy"),
        ({"ca_bundle": "/nonexistent.pem"}, "fetch.ca_bundle"),
        ({"headers": {"X": "a\nb"}}, "fetch.headers.'X'"),
        ({"connect_timeout": "soon"}, "fetch"),
    ],
)
def test_settings_that_cannot_work_are_named(client: Client, options: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client(options)
    assert caught.value.key == key


def test_an_idle_connection_grows_old(client: Client) -> None:
    clock = FakeClock(start=time.monotonic())
    fetcher = client({"verify": False}, clock=clock)
    with ScriptServer({"/": [ok()]}) as server:
        for _ in range(2):
            fetcher.fetch(request(server.url(), total=1000.0))
        assert server.connections == 1
        clock.advance(61)
        fetcher.fetch(request(server.url(), total=1000.0))
        assert server.connections == 2
        assert len(fetcher._course.pools.idle) == 1
    fetcher.close()


def test_the_fetcher_tells_its_state(client: Client) -> None:
    with ScriptServer({"/": [ok()]}) as server, fetching(client) as fetcher:
        fetcher.fetch(request(server.url()))
        assert "1 origins" in repr(fetcher)
    assert isinstance(fetcher, Urllib3Fetcher) == (client is Urllib3Fetcher)


# Latency: the host's share of the time to the first byte

ELSEWHERE = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    sock, _ = server.accept()
    while head := sock.recv(4096):
        time.sleep(float(head.split(b" ")[1][1:]))
        sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
"""
"""A server in a process of its own: our interpreter lock must not be its lock too."""

HELD = 0.05
"""Seconds that a busy thread keeps the interpreter lock, once it has it."""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    command = [sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.fixture
def busy(elsewhere: str) -> Iterator[str]:
    """Two threads fight for the interpreter lock; the URL of a server that does not."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=work) for _ in range(2)]
    sys.setswitchinterval(HELD)
    try:
        for thread in threads:
            thread.start()
        yield elsewhere
    finally:
        sys.setswitchinterval(interval)
        over.set()
        for thread in threads:
            thread.join(TOTAL)


def latencies(client: Client, url: str) -> tuple[list[float], list[float]]:
    """Of nine exchanges on one connection: latency, and time to the first byte."""
    with fetching(client) as fetcher:
        found = [fetcher.fetch(request(url)) for _ in range(9)]
    return [one.latency for one in found], [one.ttfb for one in found]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when data has arrived")
def test_our_own_lateness_is_not_the_hosts(client: Client, busy: str) -> None:
    # Even a quick host takes long enough for the lock to be gone when it answers.
    seconds, ttfb = latencies(client, f"{busy}/0.02")
    assert statistics.median(ttfb) > 0.02 + HELD / 2, "the lock was held, or this shows nothing"
    assert statistics.median(seconds) < 0.02 + HELD / 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when data has arrived")
def test_a_slow_hosts_lateness_is_its_own(client: Client, busy: str) -> None:
    seconds, _ = latencies(client, f"{busy}/0.1")
    assert 0.09 < min(seconds) < 0.1 + HELD


def test_a_host_is_timed_from_when_the_request_went_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from when this thread came to notice it."""
    send = DeadlineSocket.sendall

    def send_and_notice_late(sock: DeadlineSocket, data: bytes) -> None:
        send(sock, data)
        time.sleep(0.05)

    monkeypatch.setattr(DeadlineSocket, "sendall", send_and_notice_late)
    with ScriptServer({"/": [0.1, ok()]}) as server:
        seconds, _ = latencies(client, server.url())
    assert 0.09 < min(seconds) < 0.14


def test_a_host_that_waits_is_slow(client: Client) -> None:
    with ScriptServer({"/": [0.1, ok()]}) as server:
        seconds, _ = latencies(client, server.url())
    assert 0.09 < min(seconds) < 0.2


def test_a_body_that_takes_its_time_is_no_latency(client: Client) -> None:
    size = 300_000
    script = [head(f"Content-Length: {size}") + b"x", 0.3, b"x" * (size - 1)]
    with ScriptServer({"/": script}) as server:
        response = fetch(client, server.url())
    assert response.elapsed > 0.3
    assert response.latency is not None
    assert response.latency < 0.2


def test_a_handshake_is_no_latency(client: Client, tmp_path: Path) -> None:
    context = make_certificate(tmp_path, "127.0.0.1")[1]

    def serve(plain: socket.socket) -> None:
        time.sleep(0.3)  # the handshake takes this long
        with context.wrap_socket(plain, server_side=True) as sock:
            read_head(sock)
            sock.sendall(ok())

    with ScriptServer(raw=serve) as server:
        response = fetch(client, server.url().replace("http", "https"))
    assert response.ttfb > 0.3
    assert response.latency is not None
    assert response.latency < 0.2


def test_a_resent_request_counts_from_its_own_start(client: Client) -> None:
    def handler(server: ScriptServer, target: str) -> list[Any]:
        return [0.3, CLOSE] if len(server.targets) == 2 else [ok()]

    with ScriptServer(handler=handler) as server, fetching(client) as fetcher:
        fetcher.fetch(request(server.url()))
        response = fetcher.fetch(request(server.url()))
    assert response.retried_stale
    assert response.latency < 0.2
