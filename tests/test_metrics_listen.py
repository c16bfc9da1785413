"""/metrics: where it may listen, what it says, and that nothing about it holds up a crawl."""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from syncrawl.config.listen import listen_address
from syncrawl.config.load import config_from_mapping
from syncrawl.errors import EXIT_USAGE, ConfigError
from syncrawl.log import NullLog
from syncrawl.observe import listen
from syncrawl.observe.exporter import Exporter
from syncrawl.observe.report import assemble, empty

# An answer or an end that has not come by now does not come.
STUCK_SECONDS = 10.0
EVIL = 'a"b\\c\nd'


@contextmanager
def listening(
    snapshot: Callable[[], Mapping[str, Any]], place: str = "127.0.0.1:0", **more: Any
) -> Iterator[Exporter]:
    exporter = Exporter(place, snapshot, **more)
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.stop()


def scrape(exporter: Exporter, host: str = "127.0.0.1") -> str:
    address = f"http://{host}:{exporter.port}/metrics"
    with urllib.request.urlopen(address, timeout=STUCK_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def figures(text: str) -> dict[str, float]:
    found = re.findall(r"^(syncrawl_\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def some_report() -> dict[str, Any]:
    return assemble(
        status="running",
        exit_code=None,
        totals={"requests": 100, "pages": 80, "retries": 5, "duplicates": 8, "bytes": 7},
        run={},
        groups={"outcomes": {"2xx": 80, "timeout": 3}, "dropped": {"robots": 7}},
        urls={"seen": 200, "pending": 110, "done": 80, "failed": 3, "dropped": 7},
        hosts={
            "a.example": {"in_flight": 2, "limit": 6.5, "paused_until": 1234.5, "health": 0.25}
            | {
                "retry_share": 0.1,
                "pending": 9,
                "outcomes": {"throttled": 4},
                "condition": "throttled",
            },
            "b.example": {"paused_until": None},
        },
        hosts_omitted=17,
        stages={
            "commit": {"depth": 3, "oldest_age": 1.5, "blocked_put_seconds": 2.5},
            "parse": {"starved_get_seconds": 0.5, "rejected": 2},
        },
        bottleneck={"stage": "commit", "share": 0.83},
        frontier={"found": 12.5, "finished": 2.5},
    )


@pytest.fixture(scope="module")
def told() -> dict[str, float]:
    with listening(some_report) as exporter:
        return figures(scrape(exporter))


class TestFigures:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("requests_total", 100),
            ("pages_total", 80),
            ("decoded_bytes_total", 7),
            ("retries_total", 5),
            ("retry_share", 0.05),
            ("duplicate_share", 0.1),
            ('outcomes_total{class="timeout"}', 3),
            ('dropped_urls_total{reason="robots"}', 7),
            ('urls{state="pending"}', 110),
            ("urls_seen", 200),
            ('stage_depth{stage="commit"}', 3),
            ('stage_oldest_age_seconds{stage="commit"}', 1.5),
            ('stage_blocked_put_seconds_total{stage="commit"}', 2.5),
            ('stage_starved_get_seconds_total{stage="parse"}', 0.5),
            ('stage_rejected_total{stage="parse"}', 2),
            ('bottleneck_share{stage="commit"}', 0.83),
            ('frontier_urls_per_second{kind="found"}', 12.5),
            ('frontier_urls_per_second{kind="finished"}', 2.5),
            ('host_in_flight{host="a.example"}', 2),
            ('host_limit{host="a.example"}', 6.5),
            ('host_paused_until_timestamp_seconds{host="a.example"}', 1234.5),
            ('host_paused_until_timestamp_seconds{host="b.example"}', 0),
            ('host_retry_share{host="a.example"}', 0.1),
            ('host_health{host="a.example"}', 0.25),
            ('host_pending_urls{host="a.example"}', 9),
            ('host_condition{condition="throttled",host="a.example"}', 1),
            ('host_condition{condition="ok",host="b.example"}', 1),
            ('host_outcomes_total{class="throttled",host="a.example"}', 4),
            ("hosts_omitted", 17),
        ],
    )
    def test_each_is_the_reports(self, told: dict[str, float], name: str, value: float) -> None:
        assert told[f"syncrawl_{name}"] == value

    def test_states_do_not_count_a_url_twice(self, told: dict[str, float]) -> None:
        states = [value for name, value in told.items() if name.startswith("syncrawl_urls{")]
        assert sum(states) == told["syncrawl_urls_seen"]

    def test_nothing_but_ours(self, told: dict[str, float]) -> None:
        with listening(some_report) as exporter:
            text = scrape(exporter)
        names = re.findall(r"^(\w+)", text, re.MULTILINE)
        assert names
        assert all(name.startswith("syncrawl_") for name in names)

    def test_what_a_site_calls_itself_stays_in_its_label(self) -> None:
        data = assemble(status="running", exit_code=None, totals={}, run={}, hosts={EVIL: {}})
        with listening(lambda: data) as exporter:
            assert 'syncrawl_host_limit{host="a\\"b\\\\c\\nd"} 0.0' in scrape(exporter)

    def test_each_scrape_looks_again(self) -> None:
        data = empty()
        with listening(lambda: data) as exporter:
            assert figures(scrape(exporter))["syncrawl_pages_total"] == 0
            data["pages"] = 9
            assert figures(scrape(exporter))["syncrawl_pages_total"] == 9


class TestWhere:
    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("127.0.0.1:9464", ("127.0.0.1", 9464)),
            ("127.9.9.9:0", ("127.9.9.9", 0)),
            ("[::1]:65535", ("::1", 65535)),
            ("localhost:1", ("127.0.0.1", 1)),
        ],
    )
    def test_loopback_addresses(self, text: str, place: tuple[str, int]) -> None:
        assert listen_address(text) == place

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "9464",
            "127.0.0.1",
            ":9464",
            "127.0.0.1:",
            "127.0.0.1:65536",
            pytest.param("127.0.0.1:" + "9" * 5000, id="endless"),
            "127.0.0.1:-1",
            "127.0.0.1:\u0669",
            "0.0.0.0:9464",
            "[::]:9464",
            "10.0.0.1:1",
            "8.8.8.8:1",
            "::1:9464",
            "[127.0.0.1]:1",
            "[::1:1",
            "example.com:1",
            "localhost.evil:1",
        ],
    )
    def test_no_others(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"metrics\.listen") as caught:
            listen_address(text)
        assert caught.value.key == "metrics.listen"

    @pytest.mark.parametrize(
        ("text", "reason", "remedy"),
        [
            ("::1:9464", "IPv6 without brackets", 'write it as "[::1]:9464"'),
            ("[127.0.0.1]:1", "IPv4 in brackets", 'write it as "127.0.0.1:1"'),
            ("9464", "no host:port", 'write it as "127.0.0.1:9464"'),
            ("0.0.0.0:9464", "no loopback address", "tunnel"),
        ],
    )
    def test_what_is_wrong_and_how_it_is_written(self, text: str, reason: str, remedy: str) -> None:
        base = {"crawl": {"seeds": ["http://a.example/"], "user_agent": "t/1 (+http://b.example)"}}
        tables = {**base, "stores": [{"type": "jsonl", "path": "o"}], "metrics": {"listen": text}}
        # The check of the configuration and the socket know one rule.
        for refuse in (
            lambda: config_from_mapping(tables, base=Path("/nowhere"), source="test"),
            Exporter(text, empty).start,
        ):
            with pytest.raises(ConfigError) as caught:
                refuse()
            assert reason in str(caught.value)
            assert remedy in str(caught.value)

    def test_what_slipped_past_the_configuration_is_refused_here(self) -> None:
        with pytest.raises(ConfigError, match="loopback") as caught:
            Exporter("0.0.0.0:0", empty).start()
        assert caught.value.key == "metrics.listen"

    def test_a_library_that_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(ConfigError) as caught:
            Exporter("127.0.0.1:0", empty).start()
        assert caught.value.exit_code == EXIT_USAGE
        assert caught.value.key == "metrics.listen"
        assert "install prometheus-client" in str(caught.value)

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            exporter = Exporter(f"127.0.0.1:{taken.getsockname()[1]}", empty)
            with pytest.raises(ConfigError) as caught:
                exporter.start()
            exporter.stop()
        assert caught.value.exit_code == EXIT_USAGE
        assert (caught.value.key, "another port" in str(caught.value)) == ("metrics.listen", True)

    def test_ipv6(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        with listening(empty, "[::1]:0") as exporter:
            assert "syncrawl_pages_total" in scrape(exporter, "[::1]")

    def test_no_resolver_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def ask(*_: object) -> Any:
            raise AssertionError("a resolver was asked")

        monkeypatch.setattr(socket, "getfqdn", ask)
        monkeypatch.setattr(socket, "gethostbyaddr", ask)
        with listening(empty) as exporter:
            assert scrape(exporter)


class RecordingLog(NullLog):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, event: str, /, **values: Any) -> None:
        self.warnings.append(f"{event}: {values['error']}")


class TestHoldsNobodyUp:
    @pytest.fixture(autouse=True)
    def _never_polled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A stop that waited for the loop's next look would not come.
        monkeypatch.setattr(listen, "POLL", 2 * STUCK_SECONDS)

    def test_a_stop_is_immediate_and_gives_the_port_back(self) -> None:
        exporter = Exporter("127.0.0.1:0", empty)
        exporter.start()
        port = exporter.port
        scrape(exporter)
        began = time.monotonic()
        exporter.stop()
        exporter.stop()
        assert time.monotonic() - began < STUCK_SECONDS
        with listening(empty, f"127.0.0.1:{port}") as again:
            assert again.port == port

    def test_a_scrape_that_hangs_stops_neither_the_end_nor_the_next_scrape(self) -> None:
        entered, let_go = threading.Event(), threading.Event()
        first = threading.Lock()

        def snapshot() -> dict[str, Any]:
            if first.acquire(blocking=False):
                entered.set()
                assert let_go.wait(STUCK_SECONDS)
            return empty()

        exporter = Exporter("127.0.0.1:0", snapshot)
        exporter.start()
        with socket.create_connection(("127.0.0.1", exporter.port), STUCK_SECONDS) as hanging:
            hanging.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert entered.wait(STUCK_SECONDS)
            assert "syncrawl_pages_total" in scrape(exporter)
            began = time.monotonic()
            exporter.stop()
            assert time.monotonic() - began < STUCK_SECONDS
            let_go.set()
            # Read to the end, so that its thread is done before the test is.
            assert b"200 OK" in b"".join(iter(lambda: hanging.recv(65536), b""))

    def test_its_threads_let_the_process_end(self) -> None:
        before = set(threading.enumerate())
        with listening(empty):
            ours = set(threading.enumerate()) - before
            assert [thread.name for thread in ours] == ["metrics"]
            assert all(thread.daemon for thread in ours)

    def test_a_client_that_goes_away_or_is_silent_is_no_news(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert listen._Handler.timeout == listen.SILENCE
        monkeypatch.setattr(listen._Handler, "timeout", 0.05)
        with listening(empty) as exporter:
            silent = socket.create_connection(("127.0.0.1", exporter.port), STUCK_SECONDS)
            rude = socket.create_connection(("127.0.0.1", exporter.port), STUCK_SECONDS)
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            rude.sendall(b"GET")
            rude.close()
            # Closed by the server: the thread that waited for it is free again.
            assert silent.recv(1) == b""
            silent.close()
            assert scrape(exporter)
        assert capfd.readouterr() == ("", "")

    def test_a_snapshot_that_raises_is_500_and_logged_once(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        log, trouble = RecordingLog(), [RuntimeError("torn"), RuntimeError("torn")]

        def snapshot() -> dict[str, Any]:
            if trouble:
                raise trouble.pop()
            return empty()

        with listening(snapshot, log=log) as exporter:
            for _ in range(2):
                with pytest.raises(urllib.error.HTTPError) as caught:
                    scrape(exporter)
                with caught.value as answer:
                    assert answer.code == 500
            assert scrape(exporter)
            assert log.warnings == ["metrics_not_served: torn"]
            trouble.append(RuntimeError("again"))
            with pytest.raises(urllib.error.HTTPError) as caught:
                scrape(exporter)
            caught.value.close()
        assert log.warnings[1:] == ["metrics_not_served: again"]
        assert capfd.readouterr() == ("", "")
