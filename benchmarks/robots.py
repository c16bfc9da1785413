"""robots.txt under concurrency: four hosts, 32 threads starting at once.

Every host has a disallowed area that its pages link into, and 8 seeds, so that all
threads want the same four robots.txt at the start; one host states `Crawl-delay: 0.05`.

Bounds: exactly one robots.txt request a host, before any page of it; nothing disallowed
fetched; the host with the delay at no more than 20 requests a second in any window, which
is checked as 21 starts never within 1 s less the jitter of the site's clock.
"""

from __future__ import annotations

from common import Verdict, crawl, crawl_config, median, options, table, workplace

from syncrawl.testing.site_log import HostLog
from syncrawl.testing.site_pages import PageTree, robots_text
from syncrawl.testing.site_process import SiteProcess

CRAWL_DELAY = 0.05
HOSTS = 4
SEEDS_PER_HOST = 8
JITTER_SECONDS = 0.010
"""How much later or earlier than it was sent the site may note a request on a busy machine."""
RUN_SECONDS = 300.0


def spans(log: HostLog, starts: int) -> list[float]:
    """The time from each request to the one `starts` later."""
    times = sorted(one.started for one in log.exchanges)
    return [later - early for early, later in zip(times, times[starts:], strict=False)]


def main() -> int:
    """Crawl the four hosts once and judge what they saw."""
    parser = options(__doc__)
    parser.add_argument("--pages", type=int, default=200, help="pages a host")
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    tree = {"pages": chosen.pages, "size": 2000, "disallowed": 3}
    hosts = [
        {
            "tree": tree,
            "delay": 0.005,
            "robots": robots_text(
                disallow=("/private/",), crawl_delay=CRAWL_DELAY if number == 0 else None
            ),
        }
        for number in range(HOSTS)
    ]
    paths = [PageTree(chosen.pages).path(page) for page in range(SEEDS_PER_HOST)]
    with workplace(chosen.keep) as folder, SiteProcess(hosts) as site:
        seeds = [site.url(host, path) for path in paths for host in range(HOSTS)]
        crawl(folder, crawl_config(seeds, fetch={"workers": 32}), timeout=RUN_SECONDS)
        logs = site.logs()
    judge(logs, chosen.pages, verdict)
    return verdict.exit_code()


def judge(logs: list[HostLog], pages: int, verdict: Verdict) -> None:
    """Print what each host saw and check the bounds."""
    table(
        ["host", "requests", "robots.txt", "disallowed", "busiest second", "median gap s"],
        [
            [
                log.name,
                len(log),
                log.robots,
                log.resources()["private"],
                log.busiest(1.0),
                median(spans(log, 1)),
            ]
            for log in logs
        ],
    )
    robots = sum(log.robots for log in logs)
    first = sum(log.exchanges[0].target == "/robots.txt" for log in logs)
    private = sum(log.resources()["private"] for log in logs)
    fetched = [len(log.resources()) for log in logs]
    verdict.check(robots == HOSTS, f"{robots} robots.txt requests (bound {HOSTS})")
    verdict.check(first == HOSTS, f"{first} hosts were asked for robots.txt first")
    verdict.check(private == 0, f"{private} disallowed pages fetched (bound 0)")
    verdict.check(fetched == [pages] * HOSTS, f"pages fetched per host: {fetched}")
    shortest = min(spans(logs[0], round(1 / CRAWL_DELAY)), default=float("inf"))
    verdict.check(
        shortest >= 1.0 - JITTER_SECONDS,
        f"with Crawl-delay {CRAWL_DELAY}, 21 starts take {shortest:.3f} s or more (bound 1 s)",
    )


if __name__ == "__main__":
    raise SystemExit(main())
