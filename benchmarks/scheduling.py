"""Four hosts, one of them slow: does the slow one hold the others up?

Hosts that answer in 10, 10, 10 and 200 ms, 1,200 pages in all, 4 in flight per host. On
one site process, interleaved: a bare probe, a global limit of 20, one shared queue with
per-host semaphores (see designs.py; both take 300 pages of each host, as published), and
syncrawl with durable state and robots. Time runs from the first request to the
1,200th page's answer, as the site saw them.

Bounds: syncrawl within 1.15 times the probe (aim 1.06); never more than 4 in flight.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from common import Verdict, crawl, crawl_config, median, options, run_child, say, table, workplace

from syncrawl.testing.site_log import HostLog
from syncrawl.testing.site_pages import PageTree, robots_text
from syncrawl.testing.site_process import SiteProcess

DELAYS = (0.010, 0.010, 0.010, 0.200)
BUDGET = 1200
PER_HOST = 4
BOUND, AIM = 1.15, 1.06
PUBLISHED = {"probe": 1.24, "global": 3.87, "queue": 16.28}
PAGES, LINKS, PAGE_BYTES = 200_000, 8, 1000
"""Small pages, for it is waiting that is compared; 4 new links each, so no host runs dry."""
RUN_SECONDS = 120.0


def hosts() -> list[dict[str, object]]:
    """The site's spec."""
    tree = {"pages": PAGES, "links": LINKS, "size": PAGE_BYTES}
    robots = robots_text(disallow=("/private/",))
    return [{"tree": tree, "delay": delay, "robots": robots} for delay in DELAYS]


def seconds_to_budget(logs: list[HostLog]) -> float:
    """First request (robots included) to the last answer of the budget, over all hosts."""
    first = min(log.first for log in logs if log.first is not None)
    ends = sorted(
        one.ended
        for log in logs
        for one in log.pages
        if one.status == 200 and one.ended is not None and not one.aborted
    )
    if len(ends) < BUDGET:
        raise RuntimeError(f"only {len(ends)} of {BUDGET} pages were answered")
    return ends[BUDGET - 1] - first


def mixed_targets(site: SiteProcess) -> list[tuple[str, int, str]]:
    """300 pages of each host, the hosts taking turns."""
    tree = PageTree(PAGES, LINKS)
    share = BUDGET // len(DELAYS)
    return [(*address, tree.path(page)) for page in range(share) for address in site.addresses]


def syncrawl_run(site: SiteProcess, folder: Path) -> None:
    """One whole crawl, with fresh state."""
    config = crawl_config(
        [site.url(index) for index in range(len(DELAYS))],
        crawl={"max_pages": BUDGET},
        host={"start": PER_HOST, "floor": PER_HOST, "ceiling": PER_HOST},
        fetch={"workers": 32},
    )
    crawl(folder, config, timeout=RUN_SECONDS)


def measure(site: SiteProcess, run: Callable[[], object]) -> tuple[float, int, list[int]]:
    """(seconds, the most in flight at one host, pages per host) of one run."""
    site.forget()
    run()
    logs = site.logs()
    return seconds_to_budget(logs), max(log.peak for log in logs), [len(log.pages) for log in logs]


def main() -> int:
    """Run the rounds and judge the medians."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--slow-rounds", type=int, default=1, help="of the global and queue designs"
    )
    parser.add_argument("--without-syncrawl", action="store_true", help="the other designs alone")
    chosen = parser.parse_args()
    results: dict[str, list[tuple[float, int, list[int]]]] = {}
    with workplace(chosen.keep) as folder, SiteProcess(hosts()) as site:
        targets = folder / "targets.json"
        targets.write_text(json.dumps(mixed_targets(site)))
        script = str(Path(__file__).with_name("designs.py"))
        for number in range(chosen.rounds):
            names = ["probe", *(["global", "queue"] if number < chosen.slow_rounds else [])]
            runs: dict[str, Callable[[], object]] = {
                name: lambda name=name: _design(script, name, targets, folder)  # type: ignore[misc]
                for name in names
            }
            if not chosen.without_syncrawl:
                place = folder / f"crawl-{number}"
                runs["syncrawl"] = lambda place=place: syncrawl_run(site, place)  # type: ignore[misc]
            for name, run in runs.items():
                results.setdefault(name, []).append(measure(site, run))
                say(f"round {number + 1}: {name} {results[name][-1][0]:.3f} s")
    return judge(results, Verdict(report_only=chosen.report_only))


def _design(script: str, name: str, targets: Path, folder: Path) -> None:
    run = run_child([sys.executable, script, name, str(targets)], folder / name, RUN_SECONDS)
    if run.returncode:
        raise RuntimeError(f"{name} failed: {run.stderr[-2000:]}")


def judge(results: dict[str, list[tuple[float, int, list[int]]]], verdict: Verdict) -> int:
    """Print the table and check the bounds."""
    times = {name: median(one[0] for one in runs) for name, runs in results.items()}
    say()
    table(
        ["design", "median s", "x probe", "published s", "most in flight", "pages per host"],
        [
            [
                name,
                times[name],
                times[name] / times["probe"],
                PUBLISHED.get(name, "-"),
                max(one[1] for one in runs),
                "/".join(map(str, runs[-1][2])),
            ]
            for name, runs in results.items()
        ],
    )
    say()
    if "syncrawl" in results:
        ratio = times["syncrawl"] / times["probe"]
        verdict.check(ratio <= BOUND, f"{ratio:.3f} x the probe (bound {BOUND}, aim {AIM})")
        peak = max(one[1] for one in results["syncrawl"])
        verdict.check(peak <= PER_HOST, f"at most {peak} in flight per host (bound {PER_HOST})")
        for other in [name for name in ("global", "queue") if name in times]:
            say(f"        {times[other] / times['syncrawl']:.2f} times as fast as {other}")
    return verdict.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
