"""The report: the contract's dictionary, its summary for people, and its files.

`assemble` and `Report` run on whatever thread ends or watches the crawl; the files are
written by the engine (report.json) and the observer (status.json), and read by other
processes at any time, which is why they only ever appear whole. Imports msgspec and
the observe room's own text helpers.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from syncrawl.observe.text import columns, human_bytes, human_seconds, printable

REPORT_FILE = "report.json"
STATUS_FILE = "status.json"

# `status` of a report. RUNNING only in status.json; INTERRUPTED is never written, but is
# what a reader makes of a RUNNING whose process is gone.
RUNNING = "running"
FINISHED = "finished"
LIMIT = "limit"
STOPPED = "stopped"
CONDITION = "condition"
FAILED = "failed"
INTERRUPTED = "interrupted"
NONE = "none"

STAGES = ("fetch", "parse", "commit")
URL_STATES = ("seen", "pending", "deferred", "leased", "done", "failed", "dropped")

# Numbers counted twice: over the life of the state, and under `run` for this run alone.
_TOTALS: Mapping[str, float] = {
    "seconds": 0.0,
    "requests": 0,
    "pages": 0,
    "bytes": 0,
    "wire_bytes": 0,
    "retries": 0,
    "retry_share": 0.0,
    "duplicates": 0,
    "duplicate_share": 0.0,
}
_GROUPS = ("dropped", "refused", "outcomes")
_STAGE: dict[str, Any] = {
    "depth": 0,
    "oldest_age": 0.0,
    "blocked_put_seconds": 0.0,
    "starved_get_seconds": 0.0,
    "rejected": 0,
}
_HOST: dict[str, Any] = {
    "pages": 0,
    "requests": 0,
    "pending": 0,
    "in_flight": 0,
    "in_flight_peak": 0,
    "limit": 0,
    "paused_until": None,
    "retry_share": 0.0,
    "rate": 0.0,
    "outcomes": {},
    "health": 1.0,
    "latency": None,
    "condition": "ok",
}


def assemble(
    *,
    status: str,
    exit_code: int | None,
    totals: Mapping[str, float],
    run: Mapping[str, float],
    groups: Mapping[str, Mapping[str, float]] | None = None,
    run_groups: Mapping[str, Mapping[str, float]] | None = None,
    urls: Mapping[str, int] | None = None,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    hosts_omitted: int = 0,
    stages: Mapping[str, Mapping[str, Any]] | None = None,
    bottleneck: Mapping[str, Any] | None = None,
    frontier: Mapping[str, float] | None = None,
    reason: str = "",
    updated_at: float | None = None,
) -> dict[str, Any]:
    """The report in the contract's shape; a part that is not given is there, empty.

    `totals` and `run` carry seconds, requests, pages, bytes (decoded), wire_bytes, retries and
    duplicates, over the life of the state and of this run; `retry_share` and `duplicate_share`
    are worked out here. `groups` and `run_groups` carry outcomes, dropped and refused. `hosts`
    and `stages` may leave fields out; `hosts_omitted` counts the hosts that `hosts` is without.
    `frontier` is its growth in URLs a second. `reason` says in words why it ended or what it
    waits for, `updated_at` is Unix time. `reason`, `updated_at`, `hosts_omitted` and `frontier`
    are additions to the contract.
    """
    report: dict[str, Any] = {"status": status, "exit_code": exit_code, "reason": reason}
    report["updated_at"] = time.time() if updated_at is None else updated_at
    report |= _counts(totals, groups or {})
    report["urls"] = {state: (urls or {}).get(state, 0) for state in URL_STATES}
    report["hosts"] = {key: {**_HOST, **host} for key, host in (hosts or {}).items()}
    report["hosts_omitted"] = hosts_omitted
    report["stages"] = {name: {**_STAGE, **(stages or {}).get(name, {})} for name in STAGES}
    report["bottleneck"] = {"stage": "fetch", "share": 0.0} | dict(bottleneck or {})
    report["frontier"] = {"found": 0.0, "finished": 0.0} | dict(frontier or {})
    report["run"] = _counts(run, run_groups or {})
    return report


def _counts(
    totals: Mapping[str, float], groups: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    counts: dict[str, Any] = {name: totals.get(name, zero) for name, zero in _TOTALS.items()}
    # Of all the requests made, those that repeated an earlier one; of all pages, those whose body
    # had been seen.
    counts["retry_share"] = round(counts["retries"] / max(1, counts["requests"]), 6)
    counts["duplicate_share"] = round(counts["duplicates"] / max(1, counts["pages"]), 6)
    for name in _GROUPS:
        counts[name] = dict(groups.get(name, {}))
    return counts


def empty(status: str = NONE) -> dict[str, Any]:
    """A report of nothing: what `status` shows where no crawl has run."""
    return assemble(status=status, exit_code=None, totals={}, run={})


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended; `data` has the shape of report.json."""

    status: str
    exit_code: int
    data: Mapping[str, Any]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """A report whose status and exit code are those of `data`."""
        return cls(data["status"], data["exit_code"], data)

    def as_dict(self) -> dict[str, Any]:
        """A copy of `data` that may be changed."""
        return dict(self.data)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write report.json at `path`; see `write_json`."""
        write_json(path, self.data)


def write_json(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Put `data` at `path` by an atomic rename, mode 0600; raises OSError.

    Readers see the old file or the new one, whole. There is no fsync: the file tells about
    the crawl, the crawl does not depend on it. One writer a path, since the name
    beside it is fixed (a killed writer leaves at most one such file, reused next time).
    """
    target = os.fspath(path)
    beside = f"{target}.tmp"
    body = msgspec.json.encode(data) + b"\n"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(body)
    os.replace(beside, target)


def read_status(state_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The latest of status.json and report.json in `state_dir`; None where neither can be read."""
    found: list[tuple[float, dict[str, Any]]] = []
    for name in (STATUS_FILE, REPORT_FILE):
        path = Path(state_dir, name)
        try:
            data = msgspec.json.decode(path.read_bytes())
            modified = path.stat().st_mtime
        except (OSError, msgspec.DecodeError):
            continue
        if isinstance(data, dict):
            found.append((modified, _filled(data)))
    # Written last: report.json at an end, so it wins a tie.
    return max(reversed(found), key=lambda pair: pair[0])[1] if found else None


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with every field of the contract that an older or newer writer left out."""
    report = empty()
    for name, value in data.items():
        default = report.get(name)
        if isinstance(default, dict) and not isinstance(value, dict):
            continue
        report[name] = default | value if isinstance(default, dict) else value
    report["hosts"] = {
        key: _HOST | host for key, host in report["hosts"].items() if isinstance(host, dict)
    }
    for name, stage in report["stages"].items():
        report["stages"][name] = _STAGE | (stage if isinstance(stage, dict) else {})
    return report


def summary(data: Mapping[str, Any]) -> str:
    """The few lines a person reads at the end of a run, or from `status`."""
    run, urls = data["run"], data["urls"]
    seconds = run["seconds"] or data["seconds"]
    pace = run["pages"] / seconds if seconds else 0.0
    rows = [
        ["status", _headline(data)],
        ["pages", f"{data['pages']:,}" + _this_run(data, "pages") + f", {pace:,.1f}/s"],
        ["requests", f"{data['requests']:,}" + _this_run(data, "requests") + _retries(data)],
        ["bytes", f"{human_bytes(data['bytes'])} ({human_bytes(data['wire_bytes'])} on the wire)"],
        ["seconds", human_seconds(data["seconds"])],
        ["urls", ", ".join(f"{urls[s]:,} {s}" for s in URL_STATES if urls[s] or s == "seen")],
    ]
    rows += [[name, _by_reason(data[name])] for name in _GROUPS[::-1] if data[name]]
    if data["duplicates"]:
        share = f"{data['duplicates']:,} pages ({data['duplicate_share']:.0%})"
        rows.append(["duplicates", f"{share} with a body seen before"])
    growth = data["frontier"]
    rows.append(["frontier", f"{growth['found']:.1f} URLs/s found, {growth['finished']:.1f} ended"])
    label, _, rest = bottleneck_line(data).partition(": ")
    rows.append([label, rest])
    return "\n".join(columns(rows) + _stages(data["stages"]) + _slowest(data["hosts"]))


# Conditions of hosts that could serve us and will not; "refusing" is the verdict on one given up.
_AGAINST_US = ("throttled", "blocking", "refusing")
# What the share of each bottleneck is a share of.
_SHARES = {
    "fetch": "fetch, {} of the workers' time in exchanges",
    "parse": "parse, {} of the time blocked",
    "commit": "store, {} of the time blocked",
    "politeness": "politeness, {} of the time no host, proxy or gateway was ready",
    "cpu": "cpu, {} of one core",
}


def bottleneck_line(data: Mapping[str, Any]) -> str:
    """The one line that says what slows the crawl: "bottleneck: store, 83% of the time ..."."""
    verdict = data["bottleneck"]
    if not verdict["share"]:
        return "bottleneck: none"
    words = _SHARES.get(verdict["stage"], printable(verdict["stage"], 20) + ", {}")
    share = f"{verdict['share']:.0%}"
    return f"bottleneck: {words.format(share)}"


def _headline(data: Mapping[str, Any]) -> str:
    code = "" if data["exit_code"] is None else f", exit code {data['exit_code']}"
    reason = f": {printable(data['reason'])}" if data.get("reason") else ""
    return f"{printable(data['status'])}{code}{reason}"


def _this_run(data: Mapping[str, Any], name: str) -> str:
    here = data["run"][name]
    return "" if here == data[name] else f" ({here:,} in this run)"


def _retries(data: Mapping[str, Any]) -> str:
    retries = data["retries"]
    return f", {retries:,} of them retries ({data['retry_share']:.1%})" if retries else ""


def _by_reason(counts: Mapping[str, float], most: int = 8) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    listed = ", ".join(f"{printable(name, 40)} {count:,}" for name, count in ordered[:most])
    return listed + (f", and {len(ordered) - most} more" if len(ordered) > most else "")


def _stages(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [["stage", "waiting", "oldest", "blocked", "starved", "rejected"]]
    for name, stage in stages.items():
        seconds = ("oldest_age", "blocked_put_seconds", "starved_get_seconds")
        rows.append(
            [
                printable(name, 20),
                f"{stage['depth']:,}",
                *(human_seconds(stage[field]) for field in seconds),
                f"{stage['rejected']:,}",
            ]
        )
    return ["", *columns(rows, right=frozenset(range(1, 6)))]


def slowest_hosts(
    hosts: Mapping[str, Mapping[str, Any]], count: int = 5
) -> list[tuple[str, Mapping[str, Any]]]:
    """The hosts that hold a crawl up longest: most pending for their rate, busy ones first."""

    def delay(item: tuple[str, Mapping[str, Any]]) -> tuple[float, float]:
        host = item[1]
        return (host["pending"] / max(host["rate"], 0.01), -host["rate"])

    return heapq.nlargest(count, hosts.items(), key=delay)


def _slowest(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not hosts:
        return []
    titles = ["slowest hosts", "pages", "pending", "rate", "in flight", "limit", "peak", "retries"]
    rows = [[*titles, "health", "condition", "outcomes"]]
    for key, host in slowest_hosts(hosts):
        rows.append(
            [
                printable(key, 50),
                f"{host['pages']:,}",
                f"{host['pending']:,}",
                f"{host['rate']:.1f}/s",
                f"{host['in_flight']:,}",
                f"{host['limit']:g}",
                f"{host['in_flight_peak']:,}",
                f"{host['retry_share']:.1%}",
                f"{host['health']:.0%}",
                standing(host, time.time()),
                _by_reason(host["outcomes"], 4),
            ]
        )
    return ["", *columns(rows, right=frozenset(range(1, 9)))]


def standing(host: Mapping[str, Any], now: float) -> str:
    """How a host is doing with us, in words; `now` is Unix time."""
    word = printable(host["condition"], 20)
    if word in _AGAINST_US:
        word = f"turning against us ({word})"
    until = host["paused_until"]
    left = until - now if isinstance(until, (int, float)) else 0.0
    return f"{word}, paused for {human_seconds(left)}" if left > 0 else word
