"""/metrics for a monitoring system: the report's figures in Prometheus' text format.

Served on daemon threads, on a loopback address; see listen.py. A scrape takes one snapshot, as
the observer does, and holds nobody up. prometheus_client is imported by these two alone, and
only where `[metrics] listen` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from syncrawl.config.listen import listen_address
from syncrawl.errors import ConfigError
from syncrawl.log import Log, NullLog

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from syncrawl.observe.listen import Server

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
    """Answers /metrics on `listen` ("127.0.0.1:9464"; port 0 takes a free one).

    A snapshot that raises is answered with status 500, and logged once until one succeeds.
    """

    def __init__(
        self, listen: str, snapshot: Callable[[], Mapping[str, Any]], *, log: Log | None = None
    ) -> None:
        self._listen = listen
        self._snapshot = snapshot
        self._log = log or NullLog()
        self._server: Server | None = None

    def start(self) -> None:
        """Listen.

        Raises ConfigError where the address cannot be had or is no loopback one, and where
        prometheus_client is not installed.
        """
        host, port = listen_address(self._listen)
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app

            from syncrawl.observe.listen import Server
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "prometheus_client":
                raise
            remedy = 'install prometheus-client, or set "" to do without'
            raise self._refused("needs prometheus_client, which is missing", remedy) from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures(self._snapshot, self._log))
        try:
            self._server = Server(host, port, make_wsgi_app(registry))
        except OSError as error:
            reason = f"cannot be listened on ({error.strerror})"
            raise self._refused(reason, 'choose another port, or "" to do without') from error

    def _refused(self, reason: str, remedy: str) -> ConfigError:
        return ConfigError(reason, key="metrics.listen", value=self._listen, remedy=remedy)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "not started"
        return self._server.server_port

    def stop(self) -> None:
        """Let go of the address; a scrape under way ends by itself."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __repr__(self) -> str:
        return f"Exporter({self._listen}, {'stopped' if self._server is None else 'listening'})"


class _Figures:
    """prometheus_client's idea of a collector: asked at every scrape."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]], log: Log) -> None:
        self._snapshot = snapshot
        self._log = log
        self._failing = False

    def collect(self) -> Iterator[Metric]:
        """The figures of one snapshot."""
        # All of them before the first goes out: a scrape is whole, or fails.
        try:
            data = self._snapshot()
            found = [*_totals(data), *_stages(data["stages"]), *_hosts(data)]
        except Exception as error:
            if not self._failing:
                self._failing = True
                self._log.warning("metrics_not_served", error=str(error))
            raise
        self._failing = False
        yield from found


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
