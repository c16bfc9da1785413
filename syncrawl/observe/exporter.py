"""/metrics for a monitoring system: the report's figures in Prometheus' text format.

Served by prometheus_client's own WSGI server on daemon threads, on a loopback address. A
scrape takes one snapshot, as the observer does, and holds nobody up. prometheus_client is
imported here alone, and only where `[metrics] listen` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from syncrawl.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

# Hosts that are told of one by one: a label value each is what a monitoring system suffers from.
MOST_HOSTS = 200

# (field of the report, name, help) of what only grows.
_COUNTERS = (
    ("requests", "requests", "Requests made: pages, robots.txt, redirect hops, retries."),
    ("pages", "pages", "Pages (2xx answers) committed."),
    ("bytes", "decoded_bytes", "Body bytes after decoding."),
    ("wire_bytes", "wire_bytes", "Body bytes as received."),
    ("retries", "retries", "Requests that repeated an earlier one."),
    ("duplicates", "duplicates", "Pages whose body had been seen."),
)
_GROUPS = (
    ("outcomes", "outcomes", "class", "URLs by the outcome of their exchanges."),
    ("dropped", "dropped_urls", "reason", "URLs dropped, by reason."),
    ("refused", "refused_urls", "reason", "URLs that scope refused, by reason."),
)
_GAUGES = (
    ("retry_share", "retry_share", "Retries among all requests."),
    ("duplicate_share", "duplicate_share", "Duplicates among all pages."),
)
_STAGE_GAUGES = (
    ("depth", "stage_depth", "Items that wait before a stage or are in it."),
    ("oldest_age", "stage_oldest_age_seconds", "Age of the oldest of them."),
)
_STAGE_COUNTERS = (
    ("blocked_put_seconds", "stage_blocked_put_seconds", "Time producers waited for room."),
    ("starved_get_seconds", "stage_starved_get_seconds", "Time the stage's workers had no work."),
    ("rejected", "stage_rejected", "Items turned away."),
)
_HOST_GAUGES = (
    ("in_flight", "host_in_flight", "Requests under way."),
    ("limit", "host_limit", "Requests at once that the host is given now."),
    ("paused_until", "host_paused_until_timestamp_seconds", "When its pause ends (0 = none)."),
    ("retry_share", "host_retry_share", "Retries among the host's requests."),
    ("health", "host_health", "From 0 (turning against us) to 1."),
    ("pending", "host_pending_urls", "URLs that wait for the host."),
)


class Exporter:
    """Answers /metrics on `listen` ("127.0.0.1:9464"; port 0 takes a free one)."""

    def __init__(self, listen: str, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._listen = listen
        self._snapshot = snapshot
        self._server: WSGIServer | None = None

    def start(self) -> None:
        """Listen. Raises ConfigError where the address cannot be had."""
        import prometheus_client

        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        registry.register(_Figures(self._snapshot))
        host, _, port = self._listen.rpartition(":")
        try:
            self._server, _ = prometheus_client.start_http_server(
                int(port), addr=host.strip("[]"), registry=registry
            )
        except OSError as error:
            raise ConfigError(
                f"cannot be listened on ({error.strerror})",
                key="metrics.listen",
                value=self._listen,
                remedy='choose another port, or "" to do without',
            ) from error

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "not started"
        return self._server.server_port

    def stop(self) -> None:
        """Let go of the address; a scrape under way ends by itself."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __repr__(self) -> str:
        return f"Exporter({self._listen}, {'stopped' if self._server is None else 'listening'})"


class _Figures:
    """prometheus_client's idea of a collector: asked at every scrape."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The figures of one snapshot."""
        data = self._snapshot()
        yield from _totals(data)
        yield from _stages(data["stages"])
        yield from _hosts(data)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    metric = GaugeMetricFamily(f"syncrawl_{name}", text, labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    metric = CounterMetricFamily(f"syncrawl_{name}", text, labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric


def _totals(data: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for field, name, text in _COUNTERS:
        yield CounterMetricFamily(f"syncrawl_{name}", text, value=data[field])
    for field, name, text in _GAUGES:
        yield GaugeMetricFamily(f"syncrawl_{name}", text, value=data[field])
    for field, name, label, text in _GROUPS:
        yield _counter(name, text, label, data[field])
    states = {state: n for state, n in data["urls"].items() if state != "seen"}
    yield _gauge("urls", "URLs by state.", "state", states)
    yield GaugeMetricFamily("syncrawl_urls_seen", "URLs ever accepted.", value=data["urls"]["seen"])
    growth = data["frontier"]
    yield _gauge(
        "frontier_urls_per_second", "URLs found, and brought to their end.", "kind", growth
    )
    verdict = data["bottleneck"]
    yield _gauge(
        "bottleneck_share",
        "What limits the crawl, and the share of its time that it does.",
        "stage",
        {verdict["stage"]: verdict["share"]},
    )


def _stages(stages: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    for fields, make in ((_STAGE_GAUGES, _gauge), (_STAGE_COUNTERS, _counter)):
        for field, name, text in fields:
            yield make(name, text, "stage", {key: each[field] for key, each in stages.items()})


def _hosts(data: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    hosts = data["hosts"]
    for field, name, text in _HOST_GAUGES:
        yield _gauge(name, text, "host", {key: host[field] or 0 for key, host in hosts.items()})
    outcomes = CounterMetricFamily(
        "syncrawl_host_outcomes", "Outcomes of a host's exchanges.", labels=["host", "class"]
    )
    for key, host in hosts.items():
        for outcome, count in host["outcomes"].items():
            outcomes.add_metric([key, outcome], count)
    yield outcomes
    yield GaugeMetricFamily(
        "syncrawl_hosts_omitted",
        f"Hosts beyond the {MOST_HOSTS} that are told of one by one.",
        value=data["hosts_omitted"],
    )
