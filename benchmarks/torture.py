"""SIGKILL at random moments, restart, until complete: is a URL lost or a page stored twice?

Each round starts the crawler and kills it: sometimes while it starts or recovers, mostly
within a second of its first request. When a crawl completes, its output is held against
what the site saw, and the next one begins with fresh state.

Bounds, per crawl: every page has exactly one record, none is torn; no page is requested
in a later run than the one that its record comes from (so nothing committed is fetched
again); refetches after a kill are at most what had been asked for and was not committed;
a refetched page had been answered no longer than 0.5 s before the kill (50 ms is what
the commit stage aims at; the rest is a busy machine).
"""

from __future__ import annotations

import csv
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from common import (
    Verdict,
    crawl_config,
    median,
    options,
    read_jsonl,
    say,
    start_crawler,
    table,
    workplace,
    write_config,
)

from syncrawl.testing.site_log import Exchange
from syncrawl.testing.site_pages import PageTree
from syncrawl.testing.site_process import SiteProcess

EARLY_SHARE = 0.25
"""How many of the kills come while the crawler starts or recovers."""
EARLY_SECONDS = 0.6
LATE_SECONDS = 1.0
LAG_SECONDS = 0.5
RUN_SECONDS = 120.0
STORES = ("jsonl", "sqlite", "csv")


@dataclass
class Crawl:
    """One crawl over all its runs: when each began, and when each was killed."""

    folder: Path
    started: list[float] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)

    def run_of(self, moment: float) -> int:
        """Which run a `time.monotonic` moment falls into."""
        return sum(begin <= moment for begin in self.started) - 1


@dataclass(frozen=True)
class Findings:
    """What one completed crawl shows; the lists have one entry a kill."""

    pages: int
    records: int
    lost: int
    doubled: int
    committed_refetched: int
    leased: list[int]
    refetched: list[int]
    ages: list[float]
    robots: int


def read_records(store: str, path: Path) -> list[dict[str, Any]]:
    """Every record; ValueError where one is torn or the database is damaged."""
    if store == "jsonl":
        return read_jsonl(path)
    if store == "csv":
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.reader(stream, strict=True))
        if any(len(row) != len(rows[0]) for row in rows):
            raise ValueError(f"{path.name} has a torn row")
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    with closing(sqlite3.connect(path)) as database:
        if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise ValueError(f"{path.name} is damaged")
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM records")]


def run_until_killed(
    crawl: Crawl, config: Path, site: SiteProcess, chance: random.Random, *, kill: bool
) -> bool:
    """One run; True when the crawl completed. RuntimeError where it fails or hangs."""
    seen = site.counts()[0]
    crawl.started.append(time.monotonic())
    stderr = crawl.folder / "stderr.txt"
    child = start_crawler([config, "--no-progress", "-q"], stderr)
    limit = time.monotonic() + RUN_SECONDS
    try:
        if kill and chance.random() < EARLY_SHARE:
            due = time.monotonic() + chance.uniform(0, EARLY_SECONDS)
        else:
            while kill and site.counts()[0] == seen and child.poll() is None:
                time.sleep(0.005)
            due = time.monotonic() + chance.uniform(0, LATE_SECONDS) if kill else limit
        while child.poll() is None and time.monotonic() < due:
            time.sleep(0.001)
        if child.poll() is None and not kill:
            raise RuntimeError(f"not complete after {RUN_SECONDS} s: {crawl.folder}")
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            crawl.killed.append(time.monotonic())
        code = child.wait()
    if code == -signal.SIGKILL:
        return False
    if code != 0:
        raise RuntimeError(f"run left with {code}: {stderr.read_text()[-2000:]}")
    return True


def examine(
    crawl: Crawl,
    records: list[dict[str, Any]],
    exchanges: list[Exchange],
    pages: int,
    wall_offset: float,
) -> Findings:
    """Hold the records of a completed crawl against what the site saw."""
    number = PageTree(pages).number
    record_runs: dict[int, int] = {}
    for record in records:
        page = number("/" + str(record["url"]).split("/", 3)[3])
        fetched = datetime.fromisoformat(str(record["fetched_at"])).timestamp() - wall_offset
        if page is not None:
            run = crawl.run_of(fetched)
            record_runs[page] = min(run, record_runs.get(page, run))
    asked: dict[int, list[Exchange]] = {}
    robots = 0
    for one in exchanges:
        page = number(one.target)
        if page is None:
            robots += one.target == "/robots.txt"
        else:
            asked.setdefault(page, []).append(one)
    late = sum(
        any(crawl.run_of(one.started) > record_runs[page] for one in requests)
        for page, requests in asked.items()
        if page in record_runs
    )
    leased, refetched, ages = [], [], []
    for run, kill in enumerate(crawl.killed):
        before = {
            page: [one for one in requests if one.started <= kill]
            for page, requests in asked.items()
        }
        open_pages = [
            page for page, old in before.items() if old and record_runs.get(page, -1) > run
        ]
        again = [
            page
            for page, old in before.items()
            if old and any(crawl.run_of(one.started) == run for one in old)
            if len(asked[page]) > len(old)
        ]
        leased.append(len(open_pages))
        refetched.append(len(again))
        ages += [
            kill - old.ended
            for page in again
            for old in before[page][-1:]
            if old.ended is not None and not old.aborted
        ]
    return Findings(
        pages=pages,
        records=len(records),
        lost=pages - len(record_runs),
        doubled=len(records) - len(record_runs),
        committed_refetched=late,
        leased=leased,
        refetched=refetched,
        ages=ages,
        robots=robots,
    )


def torture(
    store: str, rounds: int, pages: int, seed: int, folder: Path, tell: Callable[[str], None]
) -> list[Findings]:
    """Kill `rounds` times over as many crawls as that takes; the last one runs to its end."""
    chance = random.Random(seed)
    wall_offset = time.time() - time.monotonic()
    findings: list[Findings] = []
    kills = 0
    with SiteProcess(
        [{"tree": {"pages": pages}, "robots": "User-agent: *\nDisallow: /x\n"}]
    ) as site:
        while kills < rounds:
            crawl = Crawl(folder / f"{store}-{len(findings)}")
            stores = [{"type": store, "path": f"pages.{store}"}]
            config = write_config(crawl.folder, crawl_config([site.url(0)], stores=stores))
            complete = False
            while not complete:
                complete = run_until_killed(crawl, config, site, chance, kill=kills < rounds)
                kills += not complete
            records = read_records(store, crawl.folder / f"pages.{store}")
            exchanges = site.logs()[0].exchanges
            site.forget()
            findings.append(examine(crawl, records, exchanges, pages, wall_offset))
            tell(f"crawl {len(findings)} complete after {len(crawl.killed)} kills")
    return findings


def main() -> int:
    """Torture the store and judge every crawl."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="kills")
    parser.add_argument("--store", choices=STORES, default="jsonl")
    parser.add_argument("--pages", type=int, default=3000, help="pages a crawl")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    with workplace(chosen.keep) as folder:
        findings = torture(chosen.store, chosen.rounds, chosen.pages, chosen.seed, folder, say)
    table(
        ["crawl", "kills", "pages", "records", "lost", "doubled", "again", "most again", "robots"],
        [
            [
                number,
                len(one.refetched),
                one.pages,
                one.records,
                one.lost,
                one.doubled,
                one.committed_refetched,
                max(one.refetched, default=0),
                one.robots,
            ]
            for number, one in enumerate(findings, 1)
        ],
    )
    judge(findings, verdict)
    return verdict.exit_code()


def judge(findings: list[Findings], verdict: Verdict) -> None:
    """Check the bounds over all crawls."""
    refetched = [count for one in findings for count in one.refetched]
    leased = [count for one in findings for count in one.leased]
    ages = [age for one in findings for age in one.ages]
    lost = sum(one.lost for one in findings)
    doubled = sum(one.doubled for one in findings)
    again = sum(one.committed_refetched for one in findings)
    verdict.check(lost == 0, f"{lost} URLs lost (bound 0)")
    verdict.check(doubled == 0, f"{doubled} duplicate records (bound 0), and none torn")
    verdict.check(again == 0, f"{again} committed pages fetched again (bound 0)")
    over = sum(count > bound for count, bound in zip(refetched, leased, strict=True))
    verdict.check(
        over == 0,
        f"refetches after a kill: median {median(refetched):g}, most {max(refetched, default=0)};"
        f" more than was leased after {over} of {len(refetched)} kills (bound 0)",
    )
    oldest = max(ages, default=0.0)
    verdict.check(
        oldest <= LAG_SECONDS,
        f"answered but uncommitted at a kill: median {median(ages):.3f} s, oldest {oldest:.3f} s"
        f" (bound {LAG_SECONDS} s)",
    )


if __name__ == "__main__":
    raise SystemExit(main())
