"""What the benchmarks share: bounds and tables, and the crawler run as a child process.

Every figure is the site's (requests as the server saw them) or the kernel's (CPU of the
child); none is the crawler's own. Times are `time.monotonic`, one clock for all
processes of a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

USER_AGENT = "syncrawl-benchmark/1.0 (+https://benchmark.test/contact)"
EXIT_MISSED = 1


def say(line: str = "") -> None:
    """One line on standard output, at once: a benchmark's table is its product."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header; the first column to the left, the others to the right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        say("  ".join([first, *rest]))
        if number == 0:
            say("  ".join("-" * width for width in widths))


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def median(values: Iterable[float]) -> float:
    """The median; NaN where there is no value."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


class Verdict:
    """Collects bounds, prints each as met or missed, and gives the exit code."""

    def __init__(self, *, report_only: bool) -> None:
        self.report_only = report_only
        self.missed: list[str] = []

    def check(self, met: bool, what: str) -> None:
        """Record one bound; `what` is printed with its figure."""
        say(f"{'ok    ' if met else 'MISSED'}  {what}")
        if not met:
            self.missed.append(what)

    def exit_code(self) -> int:
        """0 when every bound was met, or when only a report was asked for."""
        if not self.missed:
            return 0
        say(f"{len(self.missed)} of the bounds missed")
        return 0 if self.report_only else EXIT_MISSED


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    # As for ^C: a benchmark that is stopped must end the children it started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument(
        "--report-only", action="store_true", help="exit 0 even where a bound is missed"
    )
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    return parser


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """A folder for configs, states and outputs; removed afterwards unless kept."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with TemporaryDirectory(prefix="syncrawl-benchmark-") as folder:
        yield Path(folder)


# Configs.


def crawl_config(seeds: Sequence[str], **tables: Any) -> dict[str, Any]:
    """A config mapping for `seeds` with durable state and a jsonl store; `tables` go over it."""
    config: dict[str, Any] = {
        "crawl": {"seeds": list(seeds), "state_dir": "state", "user_agent": USER_AGENT},
        "fetch": {"private_addresses": "allow"},
        "stores": [{"type": "jsonl", "path": "pages.jsonl"}],
        "log": {"level": "warning"},
    }
    for name, value in tables.items():
        old = config.get(name)
        config[name] = {**old, **value} if isinstance(old, dict) else value
    return config


def to_toml(config: Mapping[str, Any]) -> str:
    """TOML for a mapping of tables, sub-tables and lists of tables of plain values."""
    return "\n".join(_table_lines(config, ())) + "\n"


def _table_lines(content: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in content.items():
        if not _is_table(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in content.items():
        if not _is_table(value):
            continue
        inner = (*path, _key(key))
        for one in value if isinstance(value, list) else [value]:
            name = ".".join(inner)
            yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            yield from _table_lines(one, inner)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)
    )


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    # JSON's strings, numbers, booleans and flat arrays are TOML's too.
    return json.dumps(value)


# The crawler as a child.


@dataclass(frozen=True)
class ChildRun:
    """How a child process ended; CPU in seconds, memory in bytes."""

    returncode: int
    wall_seconds: float
    cpu_seconds: float
    peak_memory: int
    stderr: str


def write_config(folder: Path, config: Mapping[str, Any], name: str = "config.toml") -> Path:
    """Write `config` as TOML into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(to_toml(config))
    return path


def start_crawler(arguments: Sequence[str | Path], stderr: Path) -> subprocess.Popen[bytes]:
    """Start `python -m syncrawl` with `arguments`; its messages go to the file `stderr`."""
    with stderr.open("ab") as messages:
        return subprocess.Popen(
            [sys.executable, "-m", "syncrawl", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
        )


def run_child(command: Sequence[str], folder: Path, timeout: float) -> ChildRun:
    """Run `command` to its end and measure it; killed, with RuntimeError, after `timeout` s."""
    folder.mkdir(parents=True, exist_ok=True)
    messages = folder / "stderr.txt"
    with messages.open("wb") as stream:
        started = time.monotonic()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream
        )
    try:
        while True:
            # wait4, for the usage of this child alone; polled, because it knows no timeout.
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - started > timeout:
                raise RuntimeError(f"still running after {timeout} s: {' '.join(command)}")
            time.sleep(0.02)
    except BaseException:
        child.kill()
        child.wait()
        raise
    child.returncode = os.waitstatus_to_exitcode(status)
    return ChildRun(
        child.returncode,
        time.monotonic() - started,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
        messages.read_text(errors="replace"),
    )


def crawl(folder: Path, config: Mapping[str, Any], *, timeout: float, expect: int = 0) -> ChildRun:
    """Write the config, run the crawler on it, and insist on its exit code."""
    path = write_config(folder, config)
    command = [sys.executable, "-m", "syncrawl", str(path), "--no-progress", "-q"]
    run = run_child(command, folder, timeout)
    if run.returncode != expect:
        raise RuntimeError(f"syncrawl left with {run.returncode}: {run.stderr.strip()[-2000:]}")
    return run


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every record of a file; ValueError names a line that is none."""
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except ValueError as problem:
            raise ValueError(f"{path.name}:{number} is no record: {line[:80]!r}") from problem
    return records
