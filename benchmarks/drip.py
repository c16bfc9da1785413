"""A server that sends one byte each 0.5 s: does the total deadline hold?

It drips the head of one answer and the body of another, for ever. Each is fetched by both
clients through the fetch stage's transport, and once by `python -m syncrawl fetch`; the
site notes when the connection is dropped. Then the same thread fetches a plain page.

Bounds: with total_timeout = 5 the exchange is over within 5.3 s, as the caller and as the
site see it; the thread that made it fetches the next page at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import USER_AGENT, Verdict, crawl_config, options, run_child, table, workplace
from common import write_config as write

from syncrawl.api import Fetcher, FetchError, Headers, Request
from syncrawl.testing.site_process import SiteProcess

TOTAL_TIMEOUT = 5.0
BOUND_SECONDS = 5.3
FREE_SECONDS = 0.5
DRIP_SECONDS = 0.5
BODY = "x" * 4096
PATHS = {"header bytes": "/head", "body bytes": "/body"}
RUN_SECONDS = 60.0


def clients() -> dict[str, Callable[[Mapping[str, Any]], Fetcher]]:
    """The built-in fetchers' factories."""
    from syncrawl.fetch.requests_client import requests_fetcher
    from syncrawl.fetch.transport import urllib3_fetcher

    return {"urllib3": urllib3_fetcher, "requests": requests_fetcher}


def fetch(fetcher: Fetcher, url: str) -> tuple[float, str]:
    """(seconds, outcome) of one exchange."""
    started = time.monotonic()
    request = Request(
        url,
        deadline=started + TOTAL_TIMEOUT,
        max_body_bytes=1 << 20,
        headers=Headers({"User-Agent": USER_AGENT}),
    )
    try:
        outcome = str(fetcher.fetch(request).status)
    except FetchError as problem:
        outcome = problem.outcome
    return time.monotonic() - started, outcome


def through_transport(site: SiteProcess, name: str, path: str) -> list[Any]:
    """One dripping exchange and then a plain one, on the same thread."""
    fetcher = clients()[name]({"total_timeout": TOTAL_TIMEOUT, "private_addresses": "allow"})
    with ThreadPoolExecutor(1) as thread:
        dripped = thread.submit(fetch, fetcher, site.url(0, path))
        plain = thread.submit(fetch, fetcher, site.url(0, "/"))
        (seconds, outcome), (after, status) = dripped.result(), plain.result()
    fetcher.close()
    return [seconds, outcome, seen_by_site(site, path), after, status]


def through_command(site: SiteProcess, folder: Path, path: str) -> list[Any]:
    """The same by `python -m syncrawl fetch`; only the site can time the exchange."""
    config = crawl_config([site.url(0)], fetch={"total_timeout": TOTAL_TIMEOUT})
    file = write(folder, config)
    command = [sys.executable, "-m", "syncrawl", "fetch", site.url(0, path), str(file)]
    run = run_child(command, folder, RUN_SECONDS)
    if not site.counts()[0]:
        raise RuntimeError(f"the fetch command asked for nothing: {run.stderr[-2000:]}")
    return ["-", f"exit {run.returncode}", seen_by_site(site, path), "-", "-"]


def seen_by_site(site: SiteProcess, path: str) -> float:
    """Seconds from the request to the client's leaving; infinite where it has not left."""
    time.sleep(2 * DRIP_SECONDS)  # the site notices at its next byte at the latest
    mine = [one for log in site.logs() for one in log.exchanges if one.target == path]
    site.forget()
    one = mine[-1]
    return float("inf") if one.ended is None else one.ended - one.started


def main() -> int:
    """Time each way and judge."""
    parser = options(__doc__)
    parser.add_argument("--without-command", action="store_true", help="the transport alone")
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    replies = {
        "/": "plain",
        "/head": {"body": BODY, "drip": DRIP_SECONDS, "drip_head": True},
        "/body": {"body": BODY, "drip": DRIP_SECONDS},
    }
    rows = []
    with workplace(chosen.keep) as folder, SiteProcess([{"replies": replies}]) as site:
        for what, path in PATHS.items():
            for name in clients():
                rows.append([f"{what}, {name}", *through_transport(site, name, path)])
            if not chosen.without_command:
                rows.append([f"{what}, fetch command", *through_command(site, folder, path)])
    table(["dripping", "caller s", "outcome", "site s", "next page s", "status"], rows)
    for name, seconds, outcome, site_seconds, after, status in rows:
        slowest = site_seconds if seconds == "-" else max(seconds, site_seconds)
        verdict.check(slowest <= BOUND_SECONDS, f"{name}: over in {slowest:.2f} s (5.3)")
        if after != "-":
            free = outcome == "timeout" and status == "200" and after <= FREE_SECONDS
            verdict.check(free, f"{name}: {outcome}, then {status} after {after:.3f} s")
    return verdict.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
