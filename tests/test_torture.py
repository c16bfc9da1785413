"""SIGKILL at random moments: the benchmark's command, a few rounds in the suite, more when slow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT

KILL_SECONDS = 15.0


def torture(store: str, rounds: int) -> None:
    command = [sys.executable, "benchmarks/torture.py", "--rounds", str(rounds), "--store", store]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60 + rounds * KILL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
def test_a_few_kills(store: str) -> None:
    torture(store, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["jsonl", "sqlite", "csv"])
def test_many_kills(store: str) -> None:
    torture(store, 20)
