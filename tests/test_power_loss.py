"""`durability = "power"`: a real crawl, and the disk as it may be when the power goes in it.

tests/power.py records what a crawl writes and syncs; here the crawl goes on from what is left.
"""

from __future__ import annotations

import csv
import json
import pickle
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from syncrawl.testing.site import Host, Site
from syncrawl.testing.site_pages import PageTree
from tests import power
from tests.crawling import crawl, paths, settings
from tests.support import ROOT, absent

PAGES = 40
# A crawl of forty pages takes a second; recorded, two.
CHILD_SECONDS = 60
STORES = {
    "jsonl": ["jsonl"],
    "csv": ["csv"],
    "sqlite": ["sqlite"],
    "two at once": ["sqlite", "jsonl"],
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if power.sqlite_library() is None:
        absent("an SQLite whose functions can be reached")
    with Site(Host(pages=PageTree(PAGES), delay=0.005)) as serving:
        yield serving


def tables(site: Site, stores: list[str], durability: str) -> dict[str, Any]:
    return {
        "seeds": [site.hosts[0].url("/")],
        "stores": [{"type": kind, "path": f"out/deep/pages.{kind}"} for kind in stores],
        "crawl": {"durability": durability},
        # Small batches: more commits in which the power can go.
        "fetch": {"workers": 2},
    }


def recorded(folder: Path, options: dict[str, Any]) -> list[power.Event]:
    """The events of a whole crawl, in a process of its own."""
    (folder / "crawl").mkdir()
    out = folder / "events"
    subprocess.run(
        [sys.executable, "-m", "tests.power", str(folder / "crawl"), str(out), json.dumps(options)],
        cwd=ROOT,
        check=True,
        timeout=CHILD_SECONDS,
    )
    return [power.Event(*event) for event in pickle.loads(out.read_bytes())]


def urls_in(file: Path) -> list[str]:
    """The URLs of an output's records, each of which must be whole."""
    if file.suffix == ".jsonl":
        found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    elif file.suffix == ".csv":
        with file.open(encoding="utf-8", newline="") as rows:
            found = list(csv.DictReader(rows))
    else:
        with closing(sqlite3.connect(file)) as database:
            database.row_factory = sqlite3.Row
            found = [dict(row) for row in database.execute("SELECT * FROM records")]
    assert all(record["sha256"] and int(record["status"]) == 200 for record in found)
    return [record["url"] for record in found]


def faults(
    folder: Path, site: Site, events: list[power.Event], options: dict[str, Any], seed: int
) -> list[str]:
    """What is wrong with the crawl that goes on after the power went."""
    place = folder / "crawl"
    shutil.rmtree(place)
    place.mkdir()
    power.after(events, place, random.Random(seed))
    committed = {
        url for event in events if event.what == "committed" for url in json.loads(event.data)
    }
    site.forget()
    report = crawl(settings(place, **options))
    if report.exit_code != 0:
        return [f"exit code {report.exit_code}: {report.data['reason']}"]
    found = []
    host = site.hosts[0]
    again = committed & {host.url(target) for target in paths(site)}
    if again:
        found.append(f"fetched again though committed: {sorted(again)}")
    for store in options["stores"]:
        urls = urls_in(place / store["path"])
        if len(urls) != len(set(urls)):
            found.append(f"twice in {store['type']}")
        if len(set(urls)) != PAGES:
            found.append(f"{len(set(urls))} of {PAGES} pages in {store['type']}")
    return found


def moments(events: list[power.Event], count: int, chance: random.Random) -> list[int]:
    """When the power goes: after commits that are to be kept, else anywhere."""
    ends = [place + 1 for place, event in enumerate(events) if event.what == "committed"]
    assert len(ends) >= 5, "too few commits to lose the power among"
    return chance.sample(ends, min(count // 2, len(ends))) + [
        chance.randrange(len(events) + 1) for _ in range(count - count // 2)
    ]


def check(folder: Path, site: Site, stores: list[str], losses: int, seed: int) -> None:
    options = tables(site, stores, "power")
    events = recorded(folder, options)
    for moment in moments(events, losses, random.Random(seed)):
        found = faults(folder, site, events[:moment], options, moment)
        assert not found, f"seed {seed}, power lost after event {moment}: {found}"


@pytest.mark.parametrize("stores", STORES.values(), ids=STORES)
def test_nothing_committed_is_lost_with_the_power(
    stores: list[str], site: Site, tmp_path: Path
) -> None:
    check(tmp_path, site, stores, losses=4, seed=random.randrange(1_000_000))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stores", STORES.values(), ids=STORES)
def test_many_losses(stores: list[str], site: Site, tmp_path: Path) -> None:
    check(tmp_path, site, stores, losses=100, seed=random.randrange(1_000_000))


def test_without_the_setting_it_is(site: Site, tmp_path: Path) -> None:
    # What the tests above would find, if nothing were synced.
    options = tables(site, ["jsonl"], "kill")
    events = recorded(tmp_path, options)
    last = max(place for place, event in enumerate(events) if event.what == "committed")
    assert faults(tmp_path, site, events[: last + 1], options, 1)
