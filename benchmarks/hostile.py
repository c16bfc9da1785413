"""One crawl over a hundred bad servers: does it end by itself, and in bounds?

The hostile site (`syncrawl.testing.hostile`) runs here, the crawler is a child with 64 fetch
threads and, but for the site's own settings, the default configuration. With
`--total-timeout` the exchanges get less than the default 15 s, and the crawl is quicker.

Bounds: exit code 0; each behaviour comes to its end (`Behaviour.ends`); no exchange takes longer
than total_timeout + 5%, from the request's head to the last byte or the client's leaving
as the site sees it; no host is asked more than it should be; RSS under 300 MB; no thread
is left over and no traceback told.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common import Verdict, options, run_child, say, table, workplace, write_config

from syncrawl.config.load import load_config
from syncrawl.engine.rooms import FRONTIER_DIR
from syncrawl.frontier.inspect import inspect
from syncrawl.testing.hostile import Hostile, hostile_site
from syncrawl.urls import Canonicalizer, fingerprint

CLIENTS = ("urllib3", "requests")
DEFAULT_TOTAL = 15.0
SLACK = 1.05
MOST_MEMORY = 300 * 1000 * 1000
PATIENCE = 40
"""A crawl may take this many times the total timeout: three attempts, and robots given up."""
DRIPS_PER_TIMEOUT = 20


def ends(hostile: Hostile, config_file: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(URL, the end it came to, the ends it may come to) of each URL that has one to come to."""
    config = load_config(config_file)
    canonicalizer = Canonicalizer(config.scope.tracking_parameters)
    frontier = Path(config.crawl.state_dir) / FRONTIER_DIR
    for name, behaviour in hostile.behaviours.items():
        for path, allowed in {behaviour.path: behaviour.ends, **behaviour.others}.items():
            url = canonicalizer.parse(hostile.host(name).url(path))
            assert url is not None
            found = inspect(frontier, fingerprint(url.key))
            end = "no state" if found is None else found.reason or found.state or "never met"
            yield url.spelling, end, allowed


def longest(hostile: Hostile) -> tuple[float, str]:
    """The seconds of the longest exchange as the site saw it, and its URL."""
    now = time.monotonic()
    return max(
        ((one.ended or now) - one.started, host.url(one.target)[:100])
        for host in hostile.site.hosts
        for one in host.exchanges
    )


def main() -> int:
    """Crawl the site once and judge."""
    parser = options(__doc__)
    parser.add_argument("--total-timeout", type=float, help="seconds; default: the crawler's")
    parser.add_argument("--client", choices=CLIENTS, default=CLIENTS[0])
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    total = chosen.total_timeout or DEFAULT_TOTAL
    with (
        workplace(chosen.keep) as folder,
        hostile_site(pause=total / DRIPS_PER_TIMEOUT) as hostile,
    ):
        config = hostile.config
        config["fetch"]["client"] = chosen.client
        if chosen.total_timeout:
            config["fetch"] |= {"total_timeout": total, "read_timeout": total * 2 / 3}
            config["crawl"]["give_up_after"] = 6 * total
            config["retry"] = {"backoff_base": total / 10}
        file = write_config(folder, config)
        command = [sys.executable, "-m", "syncrawl", str(file), "--no-progress"]
        run = run_child(command, folder, PATIENCE * total)
        found = list(ends(hostile, file))
        seconds, url = longest(hostile)
        asked = {
            name: (len(hostile.host(name).log), behaviour.requests)
            for name, behaviour in hostile.behaviours.items()
        }
    table(["end", "URLs"], sorted(Counter(end for _, end, _ in found).items()))
    say(f"{len(hostile.behaviours)} hosts, {sum(count for count, _ in asked.values())} requests")
    verdict.check(run.returncode == 0, f"exit code {run.returncode} after {run.wall_seconds:.1f} s")
    for where, end, allowed in found:
        if end not in allowed:
            verdict.check(False, f"{where[:100]} ended as {end}, not {' or '.join(allowed)}")
    bad = sum(end not in allowed for _, end, allowed in found)
    verdict.check(not bad, f"{len(found) - bad} of {len(found)} URLs came to their end")
    verdict.check(seconds <= total * SLACK, f"longest exchange {seconds:.2f} s ({url})")
    for name, (count, most) in asked.items():
        if count > most:
            verdict.check(False, f"{name} was asked {count} times (bound {most})")
    memory = run.peak_memory
    verdict.check(memory < MOST_MEMORY, f"peak RSS {memory / 1e6:.0f} MB (bound 300)")
    verdict.check("hung thread" not in run.stderr, "no thread is left over")
    verdict.check("Traceback" not in run.stderr, "no traceback")
    return verdict.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
