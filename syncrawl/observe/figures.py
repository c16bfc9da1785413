"""The report's figures as prometheus_client's metric families.

Runs on a scrape's thread. Imports prometheus_client at once, so only exporter.py imports this
module, and only where `[metrics] listen` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from syncrawl.log import Log

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
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class Figures:
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


def _totals(data: Mapping[str, Any]) -> Iterator[Metric]:
    for field, name, text in _COUNTERS:
        yield CounterMetricFamily(f"syncrawl_{name}", text, value=data[field])
    for field, name, text in _GAUGES:
        yield GaugeMetricFamily(f"syncrawl_{name}", text, value=data[field])
    for field, name, label, text in _GROUPS:
        yield _family(CounterMetricFamily, name, text, (label,), _by_key(data[field]))
    states = {state: count for state, count in data["urls"].items() if state != "seen"}
    yield _family(GaugeMetricFamily, "urls", "URLs by state.", ("state",), _by_key(states))
    yield GaugeMetricFamily("syncrawl_urls_seen", "URLs ever accepted.", value=data["urls"]["seen"])
    text = "URLs found, and brought to their end."
    growth = _by_key(data["frontier"])
    yield _family(GaugeMetricFamily, "frontier_urls_per_second", text, ("kind",), growth)
    verdict = data["bottleneck"]
    text = "What limits the crawl, and the share of its time that it does."
    share = _by_key({verdict["stage"]: verdict["share"]})
    yield _family(GaugeMetricFamily, "bottleneck_share", text, ("stage",), share)


def _stages(stages: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    kinds: tuple[tuple[_Family, Any], ...] = (
        (GaugeMetricFamily, _STAGE_GAUGES),
        (CounterMetricFamily, _STAGE_COUNTERS),
    )
    for kind, fields in kinds:
        for field, name, text in fields:
            values = _by_key({key: stage[field] for key, stage in stages.items()})
            yield _family(kind, name, text, ("stage",), values)


def _hosts(data: Mapping[str, Any]) -> Iterator[Metric]:
    hosts: Mapping[str, Mapping[str, Any]] = data["hosts"]
    for field, name, text in _HOST_GAUGES:
        values = _by_key({key: host[field] or 0 for key, host in hosts.items()})
        yield _family(GaugeMetricFamily, name, text, ("host",), values)
    text = "1 for how the host does with us: ok, slow, throttled, blocking, failing, ..."
    conditions = (((key, host["condition"]), 1) for key, host in hosts.items())
    yield _family(GaugeMetricFamily, "host_condition", text, ("host", "condition"), conditions)
    outcomes = (
        ((key, outcome), count)
        for key, host in hosts.items()
        for outcome, count in host["outcomes"].items()
    )
    text = "Outcomes of a host's exchanges."
    yield _family(CounterMetricFamily, "host_outcomes", text, ("host", "class"), outcomes)
    text = "Hosts beyond those that are told of one by one."
    yield GaugeMetricFamily("syncrawl_hosts_omitted", text, value=data["hosts_omitted"])


def _by_key(values: Mapping[str, float]) -> Iterator[tuple[tuple[str], float]]:
    return (((key,), value) for key, value in values.items())


def _family(
    kind: _Family,
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    """One metric with a sample for each of `values`, which are (label values, figure)."""
    metric = kind(f"syncrawl_{name}", text, labels=labels)
    for key, value in values:
        metric.add_metric(key, value)
    return metric
