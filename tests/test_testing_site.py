"""The loopback site and the fake clock: what tests and benchmarks stand on must hold first."""

from __future__ import annotations

import html
import http.client
import json
import math
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from syncrawl.testing.clock import FakeClock
from syncrawl.testing.demo_site import demo_site
from syncrawl.testing.site import Answer, Host, Reply, Site
from syncrawl.testing.site_log import Exchange, HostLog
from syncrawl.testing.site_pages import FileTree, PageTree, respell, robots_text
from syncrawl.testing.site_process import SiteProcess

ANSWER_SECONDS = 10.0
"""How long a client here waits for bytes before the server counts as hung."""
UNMOVED_SECONDS = 0.05
"""Real time given to a wait that must not end by it; 50 times the fake timeout."""


def get(served: object, path: str, method: str = "GET") -> http.client.HTTPResponse:
    """One exchange on a connection of its own; the body has been read into `.read_body`."""
    client = http.client.HTTPConnection(
        served.address,  # type: ignore[attr-defined]
        served.port,  # type: ignore[attr-defined]
        timeout=ANSWER_SECONDS,
    )
    try:
        client.request(method, path, headers={"User-Agent": "probe/1.0"})
        response = client.getresponse()
        response.read_body = response.read()  # type: ignore[attr-defined]
        return response
    finally:
        client.close()


def body(response: http.client.HTTPResponse) -> bytes:
    return response.read_body  # type: ignore[attr-defined, no-any-return]


def test_answers_by_kind_of_page() -> None:
    pages: dict[str, Answer] = {
        "/": "<p>hé</p>",
        "/bytes": b"raw",
        "/gone": 410,
        "/away": Reply.redirect("/bytes", 301),
        "/typed": Reply(b"{}", content_type="application/json", headers=(("X-One", "1"),)),
    }
    with Site(Host(pages=pages, robots="User-agent: *\nDisallow: /no\n")) as site:
        host = site.hosts[0]
        assert body(get(host, "/")) == "<p>hé</p>".encode()
        assert body(get(host, "/bytes?x=1")) == b"raw"
        assert get(host, "/gone").status == 410
        assert get(host, "/none").status == 404
        away = get(host, "/away")
        assert (away.status, away.headers["Location"]) == (301, "/bytes")
        typed = get(host, "/typed")
        assert (typed.headers["Content-Type"], typed.headers["X-One"]) == ("application/json", "1")
        robots = get(host, "/robots.txt")
        assert robots.headers["Content-Type"].startswith("text/plain")
        assert b"Disallow: /no" in body(robots)
        head = get(host, "/", "HEAD")
        assert (body(head), head.headers["Content-Length"]) == (b"", "10")
        assert get(host, "/", "POST").status == 405
        assert host.log.robots == 1
        assert host.log.exchanges[0].header("user-agent") == "probe/1.0"
        assert host.log.statuses()[200] == 5


def test_what_is_streamed_goes_out_step_by_step_and_ends_as_it_says() -> None:
    def steps() -> Iterator[bytes | float]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
        yield 0.01
        yield b"abcd"

    def without_end() -> Iterator[bytes | float]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b"x" * 65536

    pages: dict[str, Answer] = {
        "/keep": Reply(stream=steps, end="keep"),
        "/reset": Reply(stream=steps, end="reset"),
        "/hold": Reply(stream=steps, end="hold"),
        "/endless": Reply(stream=without_end),
        "/": "still here",
    }
    with Site(Host(pages=pages)) as site:
        host = site.hosts[0]
        kept = http.client.HTTPConnection(host.address, host.port, timeout=ANSWER_SECONDS)
        for _ in range(2):
            kept.request("GET", "/keep")
            assert kept.getresponse().read() == b"abcd"
        kept.request("GET", "/reset")
        kept.getresponse().read()
        with pytest.raises(ConnectionResetError):
            kept.sock.recv(1)
        kept.close()
        with socket.create_connection((host.address, host.port), ANSWER_SECONDS) as client:
            client.sendall(b"GET /hold HTTP/1.1\r\n\r\n")
            site.wait_until(lambda: host.in_flight == 1)
            # One that reads and reads keeps nobody else from being served.
            with socket.create_connection((host.address, host.port), ANSWER_SECONDS) as other:
                other.sendall(b"GET /endless HTTP/1.1\r\n\r\n")
                for _ in range(100):
                    assert other.recv(65536)
                assert body(get(host, "/")) == b"still here"
        site.wait_until(lambda: host.in_flight == 0)
        aborted = {one.target: one.aborted for one in host.log.exchanges}
        assert aborted == {
            "/keep": False,
            "/reset": True,
            "/hold": True,
            "/endless": True,
            "/": False,
        }


def test_a_poisoned_connection_is_reset_when_it_is_used_again() -> None:
    with Site(Host(pages={"/": Reply(b"fine", poisoned=True)})) as site:
        host = site.hosts[0]
        kept = http.client.HTTPConnection(host.address, host.port, timeout=ANSWER_SECONDS)
        kept.request("GET", "/")
        assert kept.getresponse().read() == b"fine"
        kept.request("GET", "/")
        with pytest.raises(ConnectionResetError):
            kept.getresponse()
        kept.close()
        # What was reset was never taken up.
        assert len(host.log) == 1


def test_each_host_has_its_own_address_and_log() -> None:
    with Site(Host(pages={"/": "a"}), Host(pages={"/": "b"}, name="two.test")) as site:
        first, second = site.hosts
        assert body(get(first, "/")) == b"a"
        assert body(get(second, "/")) == b"b"
        assert (first.address, second.address) == ("127.0.0.1", "127.0.0.2")
        assert second.url("/x") == f"http://two.test:{second.port}/x"
        assert site.resolve == {"two.test": "127.0.0.2"}
        assert (len(first.log), len(second.log)) == (1, 1)


def test_connection_is_kept_and_pipelined_requests_are_answered_in_order() -> None:
    with Site(Host(pages=lambda target: target, delay=0.01)) as site:
        host = site.hosts[0]
        with socket.create_connection((host.address, host.port), ANSWER_SECONDS) as client:
            ask = b"".join(f"GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for n in range(3))
            client.sendall(ask + b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n")
            got = b"".join(iter(lambda: client.recv(65536), b""))
        assert re.findall(rb"\r\n\r\n(/[a-z0-9]+)", got) == [b"/0", b"/1", b"/2", b"/last"]
        assert host.log.peak == 1


def test_a_request_in_pieces_and_a_body_larger_than_the_socket_buffers() -> None:
    big = bytes(range(256)) * 40_000
    with Site(Host(pages={"/": big})) as site:
        host = site.hosts[0]
        with socket.create_connection((host.address, host.port), ANSWER_SECONDS) as client:
            for piece in (b"GE", b"T / HTTP/1.1\r\nConnection: clo", b"se\r\n\r", b"\n"):
                client.sendall(piece)
            got = b"".join(iter(lambda: client.recv(1 << 20), b""))
        assert got.partition(b"\r\n\r\n")[2] == big
        kept = http.client.HTTPConnection(host.address, host.port, timeout=ANSWER_SECONDS)
        for _ in range(2):
            kept.request("GET", "/")
            assert kept.getresponse().read() == big
        kept.close()
        site.wait_until(lambda: host.in_flight == 0)
        exchange = host.log.exchanges[0]
        assert exchange.ended is not None
        assert not exchange.aborted


def test_throttle_counts_what_is_in_flight() -> None:
    pages: dict[str, Answer] = {"/slow": Reply(b"ok", delay=math.inf), "/": "ok"}
    with Site(Host(pages=pages, max_concurrent=2, retry_after="3")) as site:
        host = site.hosts[0]
        held = [threading.Thread(target=get, args=(host, "/slow")) for _ in range(2)]
        for thread in held:
            thread.start()
        site.wait_until(lambda: host.in_flight == 2)
        refused = get(host, "/")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "3")
        host.release()
        for thread in held:
            thread.join(ANSWER_SECONDS)
        assert get(host, "/").status == 200
        assert host.log.peak == 3
        assert host.log.statuses() == {200: 3, 429: 1}


def test_delay_holds_one_request_and_no_other() -> None:
    pages: dict[str, Answer] = {"/slow": Reply(b"slow", delay=math.inf), "/fast": "fast"}
    with Site(Host(pages=pages)) as site:
        host = site.hosts[0]
        waiting = threading.Thread(target=get, args=(host, "/slow"))
        waiting.start()
        site.wait_until(lambda: host.in_flight == 1)
        assert body(get(host, "/fast")) == b"fast"
        host.release()
        waiting.join(ANSWER_SECONDS)
        site.wait_until(lambda: host.in_flight == 0)
        slow, fast = host.log.exchanges
        assert slow.ended is not None
        assert fast.ended is not None
        assert fast.ended < slow.ended

    with Site(Host(pages={"/": "x"}, delay=0.05)) as site:
        get(site.hosts[0], "/")
        site.wait_until(lambda: site.hosts[0].in_flight == 0)
        one = site.hosts[0].log.exchanges[0]
        assert one.ended is not None
        assert one.ended - one.started >= 0.05


def test_client_that_leaves_is_recorded_and_frees_its_slot() -> None:
    with Site(Host(pages={"/": Reply(b"x", delay=math.inf)})) as site:
        host = site.hosts[0]
        client = socket.create_connection((host.address, host.port), ANSWER_SECONDS)
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        site.wait_until(lambda: host.in_flight == 1)
        client.close()
        site.wait_until(lambda: host.in_flight == 0)
        host.release()
        assert host.log.exchanges[0].aborted
        assert host.log.exchanges[0].status == 0


@pytest.mark.parametrize("drip_head", [False, True])
def test_drip_sends_single_bytes(drip_head: bool) -> None:
    reply = Reply(b"abc", drip=0.002, drip_head=drip_head, close=True)
    with Site(Host(pages={"/": reply})) as site:
        host = site.hosts[0]
        with socket.create_connection((host.address, host.port), ANSWER_SECONDS) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            pieces = list(iter(lambda: client.recv(65536), b""))
        assert b"".join(pieces).endswith(b"\r\n\r\nabc")
        site.wait_until(lambda: host.in_flight == 0)
        took = host.log.exchanges[0]
        assert took.ended is not None
        bytes_alone = len(b"".join(pieces)) if drip_head else 3
        assert took.ended - took.started >= 0.002 * bytes_alone


def test_raw_bytes_go_out_untouched_and_end_the_connection() -> None:
    with Site(Host(pages={"/": Reply(raw=b"garbage\r\n")})) as site:
        host = site.hosts[0]
        with socket.create_connection((host.address, host.port), ANSWER_SECONDS) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"".join(iter(lambda: client.recv(100), b"")) == b"garbage\r\n"


def test_error_in_a_page_answers_500_and_is_raised_on_close() -> None:
    def pages(target: str) -> str:
        raise KeyError(target)

    site = Site(Host(pages=pages)).start()
    assert get(site.hosts[0], "/").status == 500
    assert get(site.hosts[0], "/robots.txt").status == 404
    with pytest.raises(KeyError, match="/"):
        site.close()


def test_a_taken_address_is_an_error_and_leaves_nothing_open() -> None:
    with Site(Host(pages={})) as site, pytest.raises(OSError, match="in use"):
        Site(Host(pages={}, port=site.hosts[0].port)).start()


def test_forget_and_wait_until_time_out() -> None:
    with Site(Host(pages={"/": "x"})) as site:
        get(site.hosts[0], "/")
        site.wait_until(lambda: site.hosts[0].in_flight == 0)
        site.forget()
        assert len(site.hosts[0].log) == 0
        with pytest.raises(TimeoutError, match="not reached"):
            site.wait_until(lambda: False, timeout=0.01)


def test_log_figures() -> None:
    times = [0.0, 0.4, 0.9, 1.0, 5.0]
    log = HostLog("a", [Exchange(t, f"/{t}", 1, status=200, resource="r") for t in times])
    assert [log.busiest(seconds) for seconds in (0.05, 0.5, 1.0, 1.1, 9.0)] == [1, 2, 3, 4, 5]
    assert (log.first, log.last, log.robots, log.resources()["r"]) == (0.0, None, 0, 5)
    again = HostLog.from_mapping(json.loads(json.dumps(log.as_mapping())))
    assert [one.as_row() for one in again.exchanges] == [one.as_row() for one in log.exchanges]


# The generated pages.


def hrefs(page: bytes) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'href="([^"]*)"', page.decode())]


def test_tree_is_whole_deterministic_and_half_new() -> None:
    tree = PageTree(5000)
    links = tree.linked(7)
    assert links == PageTree(5000).linked(7)
    assert (len(links), links[:16]) == (32, list(range(113, 129)))
    reached, ahead = {0}, [0]
    while ahead:
        new = set(tree.linked(ahead.pop())) - reached
        reached |= new
        ahead += new
    assert reached == set(range(5000))
    page = tree("/")
    assert isinstance(page, Reply)
    assert 6900 <= len(page.body) <= 7100
    found = [tree.number(one) for one in hrefs(page.body)]
    assert found == tree.linked(0)
    assert tree("/d0/p5000.html") is None
    assert tree("/elsewhere") is None


def test_tree_links_into_the_disallowed_area() -> None:
    page = PageTree(10, disallowed=2).body(3)
    assert [one for one in hrefs(page) if "private" in one] == [
        "/private/3-0.html",
        "/private/3-1.html",
    ]


def plainly(url: str) -> tuple[str, str, tuple[str, ...]]:
    """A canonical form by the standard library alone, independent of the crawler's."""
    parts = urlsplit(url)
    path = re.sub(
        r"%([0-9A-Fa-f]{2})",
        lambda escape: chr(int(escape[1], 16)),
        parts.path,
    )
    path = urlsplit(urljoin("http://x/", path)).path.rstrip("/")
    kept = [one for one in parts.query.split("&") if one and not one.startswith(("utm_", "gclid"))]
    port = parts.port or 80
    return f"{parts.hostname}:{port}", path, tuple(sorted(kept))


def test_respelled_links_stay_equivalent_and_differ() -> None:
    chance = random.Random(5)
    seen = set()
    for _ in range(500):
        spelled = respell("/~docs/page?id=7&lang=en", "Docs.test", chance)
        seen.add(spelled)
        cleaned = re.sub(r"[\t\n]", "", spelled.strip())
        whole = urljoin("http://docs.test/", cleaned)
        assert plainly(whole) == ("docs.test:80", "/~docs/page", ("id=7", "lang=en")), spelled
    assert len(seen) > 400


def test_spelled_tree_knows_its_pages_in_every_spelling() -> None:
    tree = PageTree(300, spellings=3, host="docs.test:8000")
    page = tree("/")
    assert isinstance(page, Reply)
    for link, number in zip(hrefs(page.body), tree.linked(0), strict=True):
        target = urljoin("http://docs.test:8000/", re.sub(r"[\t\n]", "", link.strip()))
        parts = urlsplit(target)
        reply = tree(f"{parts.path}?{parts.query}")
        assert isinstance(reply, Reply), link
        assert reply.resource == f"p{number}"


def test_files_are_served_and_nothing_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub dir").mkdir(parents=True)
    (root / "a.html").write_text("<p>a")
    (root / "sub dir" / "index.html").write_text("<p>index")
    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret")
    with Site(Host(pages=FileTree(root))) as site:
        host = site.hosts[0]
        assert body(get(host, "/a.html?x=1")) == b"<p>a"
        assert get(host, "/a.html").headers["Content-Type"] == "text/html"
        assert body(get(host, "/sub%20dir/")) == b"<p>index"
        assert get(host, "/sub%20dir").headers["Location"] == "/sub%20dir/"
        for outside in ("/../secret", "/%2e%2e/secret", "/out", "/a.html/", "/%00"):
            assert get(host, outside).status == 404, outside


def test_robots_text() -> None:
    assert robots_text(disallow=("/p/",), crawl_delay=0.05) == (
        "User-agent: *\nDisallow: /p/\nCrawl-delay: 0.05\n"
    )


# The site in its own process.


def test_process_serves_a_spec_and_tells_what_it_saw(tmp_path: Path) -> None:
    (tmp_path / "f.html").write_text("file")
    hosts: list[dict[str, Any]] = [
        {"tree": {"pages": 5}, "robots": "User-agent: *\n", "replies": {"/x": {"status": 503}}},
        {"root": str(tmp_path), "name": "files.test"},
        {"replies": {"/": {"body": "hi", "headers": [["X-A", "b"]], "delay": 0.0}}},
    ]
    with SiteProcess(hosts) as site:
        assert site.resolve == {"files.test": "127.0.0.2"}
        answers = []
        for (address, port), path in zip(
            [site.addresses[0], *site.addresses], ["/x", "/", "/f.html", "/"], strict=True
        ):
            client = http.client.HTTPConnection(address, port, timeout=ANSWER_SECONDS)
            client.request("GET", path)
            response = client.getresponse()
            answers.append((response.status, response.read()[:4], response.headers["X-A"]))
            client.close()
        assert answers == [
            (503, b"", None),
            (200, b"<!DO", None),
            (200, b"file", None),
            (200, b"hi", "b"),
        ]
        assert site.counts() == [2, 1, 1]
        logs = site.logs()
        assert [len(log) for log in logs] == [2, 1, 1]
        assert logs[0].resources() == {"p0": 1, "/x": 1}
        assert logs[0].first is not None
        assert abs(logs[0].first - time.monotonic()) < ANSWER_SECONDS
        assert site.url(1, "/f") == f"http://files.test:{site.addresses[1][1]}/f"
        site.forget()
        assert [len(log) for log in site.logs()] == [0, 0, 0]
        assert site.cpu_seconds() > 0


def test_process_ends_with_its_input(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"hosts": [{"replies": {}}]}')
    done = subprocess.run(
        [sys.executable, "-m", "syncrawl.testing.site", "--spec", str(spec)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["address"] == "127.0.0.1"


def test_process_that_cannot_start_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="left with code"), SiteProcess([{"dealy": 1}]):
        pass
    assert "dealy" in capfd.readouterr().err


# The demo.


def test_demo_serves_every_hardship_and_a_config() -> None:
    demo = demo_site(5)
    with demo.site as site:
        config = demo.config
        hosts = {host.host.name.partition(".")[0]: host for host in site.hosts}
        assert set(hosts) == {"quick", "slow", "polite", "busy", "mixed"}
        assert set(config["crawl"]["seeds"]) == {host.url("/") for host in site.hosts}
        assert config["fetch"]["resolve"] == site.resolve
        assert config["crawl"]["max_seconds"] == 5
        assert b"Crawl-delay: 0." in body(get(hosts["polite"], "/robots.txt"))
        assert b"Disallow: /private/" in body(get(hosts["quick"], "/robots.txt"))
        assert hosts["slow"].host.delay >= 10 * hosts["quick"].host.delay
        assert hosts["busy"].host.max_concurrent == 3
        home = hrefs(body(get(hosts["quick"], "/")))
        assert any(one.startswith("/private/") for one in home)
        troubles = {get(hosts["mixed"], one).status for one in demo.troubles}
        assert troubles == {404, 500, 301, 302}
        for link in hrefs(body(get(hosts["mixed"], "/section-7/?a=1"))):
            whole = urljoin(hosts["mixed"].url("/"), re.sub(r"[\t\n]", "", link.strip()))
            path = plainly(whole)[1]
            assert get(hosts["mixed"], path).status == 200 or path in demo.troubles, link
        assert get(hosts["mixed"], "/sect%69on-7/?utm_source=x").status == 200
        loop = get(hosts["mixed"], "/loop/a").headers["Location"]
        assert get(hosts["mixed"], loop).headers["Location"] == "/loop/a"


# The fake clock.


def waiting_thread(
    clock: FakeClock, condition: threading.Condition, until: float
) -> tuple[threading.Thread, list[float]]:
    """A thread that waits until `until` by `clock`, as the scheduler's workers do."""
    woken: list[float] = []

    def run() -> None:
        with condition:
            while (left := until - clock.monotonic()) > 0:
                clock.wait(condition, left)
            woken.append(clock.monotonic())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, woken


def test_clock_stands_until_it_is_moved() -> None:
    clock = FakeClock(start=5.0, wall=100.0)
    assert (clock.monotonic(), clock.wall()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.wall()) == (7.5, 102.5)
    clock.shift_wall(-50)
    assert (clock.monotonic(), clock.wall()) == (7.5, 52.5)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_clock_wait_ends_when_time_has_passed_it() -> None:
    clock = FakeClock(start=0.0)
    condition = threading.Condition()
    thread, woken = waiting_thread(clock, condition, until=10.0)
    clock.wait_for_waiters(1)
    clock.advance(9.0)
    assert clock.waiters() in (0, 1)
    clock.wait_for_waiters(1)  # it looked, and waits again
    assert woken == []
    clock.advance(1.0)
    thread.join(ANSWER_SECONDS)
    assert woken == [10.0]
    assert clock.waiters() == 0


class Deaf(threading.Condition):
    """A condition whose waiters sleep on through a notify until `wake`."""

    def notify_all(self) -> None:
        pass

    def wake(self) -> None:
        with self:
            super().notify_all()


def test_clock_strikes_out_whom_it_wakes_and_real_time_wakes_nobody() -> None:
    clock = FakeClock()
    condition = Deaf()
    returned = threading.Event()

    def run() -> None:
        with condition:
            clock.wait(condition, 0.001)
        returned.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    clock.wait_for_waiters(1)
    assert not returned.wait(UNMOVED_SECONDS)
    clock.advance(1.0)
    assert clock.waiters() == 0
    assert not returned.is_set()
    condition.wake()
    assert returned.wait(ANSWER_SECONDS)
    thread.join(ANSWER_SECONDS)


def test_clock_wait_ends_by_a_notify() -> None:
    clock = FakeClock()
    condition = threading.Condition()
    ended = threading.Event()

    def run() -> None:
        with condition:
            clock.wait(condition, None)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    clock.wait_for_waiters(1)
    with condition:
        condition.notify()
    assert ended.wait(ANSWER_SECONDS)
    thread.join(ANSWER_SECONDS)
    assert clock.waiters() == 0


def test_clock_does_not_wait_for_nothing() -> None:
    clock = FakeClock()
    condition = threading.Condition()
    with condition:
        clock.wait(condition, 0.0)
        clock.wait(condition, -1.0)
    assert clock.waiters() == 0


def test_clock_tells_when_nobody_waits() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        FakeClock().wait_for_waiters(1, timeout=0.01)


def test_clock_moved_from_several_threads_wakes_everybody() -> None:
    clock = FakeClock(start=0.0)
    conditions = [threading.Condition() for _ in range(3)]
    waiting = [waiting_thread(clock, one, until=200.0) for one in conditions * 3]
    clock.wait_for_waiters(9)

    def move() -> None:
        for _ in range(100):
            clock.advance(0.5)

    movers = [threading.Thread(target=move, daemon=True) for _ in range(4)]
    for thread in movers:
        thread.start()
    for thread in movers:
        thread.join(ANSWER_SECONDS)
    assert clock.monotonic() == 200.0
    clock.advance(0.0)  # a thread may have registered just after the last move
    for thread, woken in waiting:
        thread.join(ANSWER_SECONDS)
        assert woken == [200.0]
