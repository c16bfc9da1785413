"""The hostile site, crawled by the benchmark's command: in the suite with short timeouts, and slow
with the defaults.
"""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from syncrawl.testing.hostile import hostile_site
from tests.support import ROOT

# Forty times the total timeout, at which the command itself gives up, and what building takes.
QUICK_SECONDS = 100.0
SLOW_SECONDS = 660.0


def crawl(seconds: float, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/hostile.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_crawl_of_all_of_it_ends_by_itself_and_in_bounds() -> None:
    crawl(QUICK_SECONDS, "--total-timeout", "1.5")


@pytest.mark.slow
@pytest.mark.timeout(SLOW_SECONDS)
@pytest.mark.parametrize("client", ["urllib3", "requests"])
def test_with_the_default_timeouts(client: str) -> None:
    crawl(SLOW_SECONDS, "--client", client)


def test_each_behaviour_has_a_host_and_says_what_it_does() -> None:
    hostile = hostile_site()
    assert len(hostile.behaviours) == len(hostile.site.hosts) > 100
    with hostile:
        seeds = hostile.config["crawl"]["seeds"]
        hosts = {urlsplit(seed).hostname for seed in seeds}
        assert hosts == {f"{name}.hostile.test" for name in hostile.behaviours}
        assert hosts == set(hostile.config["fetch"]["resolve"])
        assert hostile.host("gzip-bomb").url("/") in seeds
    assert all(one.does and one.ends for one in hostile.behaviours.values())
