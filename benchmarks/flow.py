"""Flow control under pressure: hosts that throttle, die, crawl or lie, stores that stall.

Every figure is a server's count of what reached it, or the kernel's of what the crawler used;
report.json is read for states, limits and exit codes alone. `flow.py throttled shed ...`
plays the rows named, without names all of them; `--quick` shortens them.

    throttled    a host refuses (429) beyond 12 requests at once, 100 ms each
    drop         its capacity drops to 4 and comes back
    badhosts     a slow, a refusing and a dead host beside healthy ones; then 20 dead ones
    retry_after  Retry-After: 3 on one of five hosts, over a kill -9 and a restart
    stall        the store stalls for 30 s under 64 fetch threads and 200 KB pages
    slow_parser  a parser that needs 500 ms a page, on 4 threads
    failing      every request of one host fails
    gateway      a scraping API with 5 slots and a quota
    shed         a million links of low priority, ten thousand of high
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from common import (
    Verdict,
    crawl_config,
    median,
    options,
    read_jsonl,
    say,
    start_crawler,
    workplace,
    write_config,
)

_CAPACITY = 12
_CEILING = 32
# What a subprocess gets before it counts as hung.
_LONGEST = 300.0


class Hit(NamedTuple):
    """One request as the server saw it; times on the machine's monotonic clock."""

    host: str
    path: str
    arrived: float
    ended: float
    status: int


class Stage:
    """A folder, the hosts in it, and what was measured of the crawler that met them."""

    def __init__(self, folder: Path, verdict: Verdict, *, quick: bool) -> None:
        self.folder = folder
        self.verdict = verdict
        self.quick = quick
        self.hits: list[Hit] = []
        # (clock seconds, resident bytes) of the crawler.
        self.memory: list[tuple[float, int]] = []
        self.port = _free_port()
        # When the last crawl was started, on the machine's monotonic clock.
        self.began = 0.0

    def host(self, number: int, **spec: Any) -> dict[str, Any]:
        """A host of its own loopback address."""
        return {"address": f"127.7.{number // 200}.{number % 200 + 1}", "port": self.port, **spec}

    @contextmanager
    def site(self, hosts: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Serve `hosts`; `hits` are there afterwards."""
        log = self.folder / "hits.json"
        spec = self.folder / "site.json"
        spec.write_text(json.dumps({"hosts": hosts, "log": str(log)}))
        program = Path(__file__).with_name("flow_sites.py")
        server = subprocess.Popen(
            [sys.executable, str(program), str(spec)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":
                raise RuntimeError("the site did not start")
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(_LONGEST)
        self.hits = sorted(
            (Hit(*row) for row in json.loads(log.read_text())), key=lambda hit: hit.arrived
        )

    def crawl(
        self,
        seeds: Iterable[str],
        *,
        expect: int = 0,
        until: Callable[[], bool] | None = None,
        path: Path | None = None,
        **tables: Any,
    ) -> dict[str, Any]:
        """Run the crawler; `until` true kills it. The report, empty where it was killed."""
        (self.folder / "seeds.txt").write_text("\n".join(seeds) + "\n")
        config = crawl_config([], **tables)
        del config["crawl"]["seeds"]
        config["crawl"]["seed_files"] = ["seeds.txt"]
        file = write_config(self.folder, config)
        before = os.environ.get("PYTHONPATH")
        self.began = time.monotonic()
        if path is not None:
            os.environ["PYTHONPATH"] = str(path)
        try:
            crawler = start_crawler([file, "--no-progress", "-q"], self.folder / "stderr.txt")
        finally:
            if path is not None:
                os.environ.pop("PYTHONPATH")
                if before is not None:
                    os.environ["PYTHONPATH"] = before
        started = time.monotonic()
        while crawler.poll() is None:
            self._sample(crawler.pid)
            if until is not None and until():
                crawler.kill()
                crawler.wait()
                return {}
            if time.monotonic() - started > _LONGEST:
                crawler.kill()
                raise RuntimeError("the crawler is still running")
            time.sleep(0.1)
        if crawler.returncode != expect:
            messages = (self.folder / "stderr.txt").read_text()[-2000:]
            raise RuntimeError(f"syncrawl left with {crawler.returncode}: {messages}")
        report: dict[str, Any] = json.loads((self.folder / "state" / "report.json").read_text())
        return report

    def _sample(self, pid: int) -> None:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        self.memory.append((time.monotonic(), pages * os.sysconf("SC_PAGE_SIZE")))

    def grown(self, start: float, end: float) -> float:
        """How far memory rose above its value at `start`, until `end`; MB."""
        window = [size for at, size in self.memory if start <= at <= end]
        return (max(window) - window[0]) / 1e6 if window else 0.0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _name(host: Mapping[str, Any]) -> str:
    return f"{host['address']}:{host['port']}"


def _pages(hits: Iterable[Hit], host: str | None = None) -> list[Hit]:
    return [hit for hit in hits if hit.path != "/robots.txt" and (host is None or hit.host == host)]


def _in_service(hits: Sequence[Hit], start: float, end: float) -> float:
    """Requests in service at once between two moments, averaged over time; refusals left out."""
    busy = sum(
        max(0.0, min(hit.ended, end) - max(hit.arrived, start))
        for hit in hits
        if hit.status not in (429, 509)
    )
    return busy / (end - start)


def _peak(hits: Sequence[Hit]) -> int:
    """The most requests that were under way at once, refusals included."""
    steps = sorted(
        [(hit.arrived, 1) for hit in hits] + [(hit.ended, -1) for hit in hits if hit.ended]
    )
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def _rate(hits: Iterable[Hit], start: float, end: float) -> float:
    return sum(start <= hit.arrived < end for hit in hits) / (end - start)


# -- one host that throttles ----------------------------------------------------------------


def throttled(stage: Stage) -> None:
    """Close below the capacity, at the price of few refusals."""
    seconds = 25 if stage.quick else 60
    host = stage.host(0, service=0.1, capacity=[[0, _CAPACITY]], pages=10**6)
    with stage.site([host]):
        stage.crawl([f"http://{_name(host)}/p/0"], crawl={"max_seconds": seconds})
    pages = _pages(stage.hits)
    start = pages[0].arrived + 5
    end = pages[0].arrived + seconds - 1
    mean = _in_service(pages, start, end)
    window = [hit for hit in pages if start <= hit.arrived < end]
    refused = sum(hit.status == 429 for hit in window) / len(window)
    share = mean / _CAPACITY
    stage.verdict.check(
        share >= 0.85, f"{mean:.2f} of {_CAPACITY} at once after 5 s ({share:.1%}; >= 85%)"
    )
    stage.verdict.check(refused <= 0.01, f"{refused:.2%} of {len(window)} refused (<= 1%)")


def drop(stage: Stage) -> None:
    """Down and up again, each within three seconds."""
    first, second, seconds = (12, 24, 36) if stage.quick else (20, 40, 60)
    steps = [[0, _CAPACITY], [first, 4], [second, _CAPACITY]]
    host = stage.host(0, service=0.1, capacity=steps, pages=10**6)
    with stage.site([host]):
        stage.crawl([f"http://{_name(host)}/p/0"], crawl={"max_seconds": seconds})
    pages = _pages(stage.hits)
    start = pages[0].arrived
    down = _settled(pages, start + first, lambda mean, refused: mean >= 3 and refused <= 2)
    up = _settled(pages, start + second, lambda mean, _: mean >= 0.85 * _CAPACITY)
    stage.verdict.check(down <= 3, f"settled {down:.1f} s after the drop to 4 (<= 3 s)")
    stage.verdict.check(up <= 3, f"at 85% of 12 again {up:.1f} s after its return (<= 3 s)")
    peak = _peak(pages)
    stage.verdict.check(peak <= _CEILING, f"never more than {peak} at once (<= {_CEILING})")


def _settled(pages: Sequence[Hit], start: float, good: Callable[[float, int], bool]) -> float:
    """Seconds from `start` to the first half second that is `good` as a whole."""
    for tenth in range(150):
        at = start + tenth / 10
        window = [hit for hit in pages if at <= hit.arrived < at + 0.5]
        if good(_in_service(pages, at, at + 0.5), sum(hit.status == 429 for hit in window)):
            return at - start
    return float("inf")


# -- hosts beside others --------------------------------------------------------------------


def badhosts(stage: Stage) -> None:
    """Bad hosts cost the healthy ones next to nothing, and many dead ones only for a time."""
    seconds = 15 if stage.quick else 25
    healthy = [stage.host(n, service=0.02, pages=10**5) for n in range(17)]
    bad = [
        stage.host(50, service=5.0, pages=10**5, fanout=3),
        stage.host(51, capacity=[[0, 0]], pages=10**5),
        stage.host(52, dead=True),
    ]
    losses = []
    for _ in range(1 if stage.quick else 3):
        alone = _healthy_rate(stage, healthy, [], seconds)
        beside = _healthy_rate(stage, healthy, bad, seconds)
        losses.append(1 - beside / alone)
    loss = median(losses)
    stage.verdict.check(loss <= 0.05, f"3 bad of 20 cost the healthy {loss:.1%} (<= 5%)")
    healthy = [stage.host(n, service=0.02, pages=10**5) for n in range(20)]
    dead = [stage.host(100 + n, dead=True) for n in range(20)]
    alone = _healthy_rate(stage, healthy, [], seconds)
    startup = _pages(stage.hits)[0].arrived - stage.began
    _healthy_rate(stage, healthy, dead, 45 if stage.quick else 60)
    pages = _pages(stage.hits)
    # Not from the first hit: nobody might be asked for a while.
    first = stage.began + startup
    spans = [_rate(pages, first + at, first + at + 5) / alone for at in range(0, 40, 5)]
    worst = 1 - min(spans)
    stage.verdict.check(worst <= 0.5, f"20 dead of 40 cost {worst:.1%} at worst (<= 50%)")
    last = 1 - spans[-1]
    stage.verdict.check(last <= 0.05, f"and {last:.1%} once they have been failed (<= 5%)")


def _healthy_rate(
    stage: Stage, healthy: list[dict[str, Any]], bad: list[dict[str, Any]], seconds: float
) -> float:
    """Requests a second that healthy hosts get, each held to 8; from the third second on.

    The bad ones are listed first: nobody has answered yet when they are met.
    """
    _clean(stage.folder)
    hosts = bad + healthy
    seeds = [f"http://{_name(host)}/p/{n}" for n in (0, 5, 7) for host in hosts]
    with stage.site(hosts):
        stage.crawl(
            seeds,
            crawl={"max_seconds": seconds},
            host={"rate": 8, "burst": 2},
            fetch={"connect_timeout": 3, "total_timeout": 10},
        )
    names = {_name(host) for host in healthy}
    stage.hits = [hit for hit in stage.hits if hit.host in names]
    pages = _pages(stage.hits)
    start = pages[0].arrived
    return _rate(pages, start + 3, start + seconds - 1)


def retry_after(stage: Stage) -> None:
    """Three seconds of silence for one host, over a kill, and none for the others."""
    hosts = [stage.host(n, service=0.05, pages=3000) for n in range(5)]
    hosts[0] |= {"throttle_at": 30, "retry_after": 3}
    seeds = [f"http://{_name(host)}/p/0" for host in hosts]
    limits = {"rate": 20, "burst": 2}
    with stage.site(hosts):
        # The log of hits is written at the end: the state tells when the pause began.
        paused = _Once(lambda: _is_paused(stage.folder, _name(hosts[0])))
        stage.crawl(seeds, host=limits, until=lambda: paused.for_seconds(1.0))
        stage.crawl(seeds, host=limits, crawl={"max_seconds": 6})
    pages = _pages(stage.hits, _name(hosts[0]))
    refused = next(hit for hit in pages if hit.status == 429)
    later = [hit.arrived for hit in pages if hit.arrived > refused.ended]
    since = later[0] - refused.ended
    stage.verdict.check(since >= 3.0, f"the next request came after {since:.2f} s (>= 3 s)")
    others = [
        _rate(_pages(stage.hits, _name(host)), refused.ended, refused.ended + 0.8)
        for host in hosts[1:]
    ]
    slowest = min(others)
    stage.verdict.check(slowest >= 16, f"the others went on at {slowest:.1f}/s of 20")


class _Once:
    """Whether something has been true for a while."""

    def __init__(self, test: Callable[[], bool]) -> None:
        self._test = test
        self._since: float | None = None

    def for_seconds(self, seconds: float) -> bool:
        if self._since is None and self._test():
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= seconds


def _is_paused(folder: Path, host: str) -> bool:
    try:
        status = json.loads((folder / "state" / "status.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(status["hosts"].get(host, {}).get("paused_until"))


def failing(stage: Stage) -> None:
    """A host where everything fails gets its share of retries and no more."""
    bad = stage.host(0, status=500)
    good = [stage.host(n, service=0.01, pages=400) for n in range(1, 6)]
    seeds = [f"http://{_name(bad)}/{n}" for n in range(200)]
    seeds += [f"http://{_name(host)}/p/0" for host in good]
    with stage.site([bad, *good]):
        report = stage.crawl(seeds)
    asked = sum(hit.host == _name(bad) for hit in stage.hits)
    stage.verdict.check(asked <= 221, f"{asked} requests for 200 URLs + robots.txt (<= 221)")
    share = report["retry_share"]
    stage.verdict.check(share <= 0.1, f"overall retry share {share:.1%} (<= 10%)")
    _check_sums(stage, report)


# -- our own pipeline -----------------------------------------------------------------------

_PLUGINS = '''
import json, os, time

class SlowParser:
    def parse(self, page):
        time.sleep(0.5)
        yield {"url": page.url}

def slow_parser(options):
    return SlowParser()

class StallingStore:
    """Stands still once, for the seconds and from the record that its options name."""

    def __init__(self, options):
        self.path, self.left = options["path"], options["after"]
        self.seconds, self.flag = options["seconds"], options["flag"]

    def open(self):
        self.file = open(self.path, "ab")

    def write(self, records):
        for record in records:
            self.file.write(json.dumps({"url": record["url"]}).encode() + b"\\n")
            self.left -= 1
            if self.left == 0:
                self.tell("begins")
                time.sleep(self.seconds)
                self.tell("ends")

    def tell(self, what):
        with open(self.flag, "a") as file:
            file.write(f"{what} {time.monotonic()}\\n")

    def checkpoint(self):
        self.file.flush()
        return str(self.file.tell()).encode()

    def recover(self, token):
        self.file.truncate(int(token))

    def close(self):
        self.file.close()

def stalling_store(options):
    return StallingStore(options)
'''


def _plugins(folder: Path) -> Path:
    """A folder to put on the path: one distribution with a parser and a store."""
    place = folder / "plugins"
    info = place / "flow_plugins-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (place / "flow_plugins.py").write_text(_PLUGINS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flow-plugins\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[syncrawl.parsers]\nslow = flow_plugins:slow_parser\n"
        "[syncrawl.stores]\nstalling = flow_plugins:stalling_store\n"
    )
    return place


def stall(stage: Stage) -> None:
    """A store that stands still stops the requests; nothing grows and nothing is lost."""
    seconds = 10 if stage.quick else 30
    count = 6000
    hosts = [stage.host(n, service=0.1, page="leaf", size=200_000) for n in range(8)]
    seeds = [f"http://{_name(hosts[n % 8])}/{n}" for n in range(count)]
    flag = stage.folder / "flag.txt"
    store = {
        "type": "stalling",
        "path": "pages.jsonl",
        "after": 1500,
        "seconds": seconds,
        "flag": str(flag),
    }
    depths: list[int] = []

    def look() -> bool:
        try:
            status = json.loads((stage.folder / "state" / "status.json").read_text())
            depths.append(max(each["depth"] for each in status["stages"].values()))
        except (OSError, ValueError):
            pass  # not written yet
        return False

    with stage.site(hosts):
        report = stage.crawl(
            seeds,
            until=look,
            path=_plugins(stage.folder),
            fetch={"workers": 64},
            host={"start": 8},
            stores=[store],
        )
    begins, ends = (float(line.split()[1]) for line in flag.read_text().splitlines())
    pages = _pages(stage.hits)
    during = [hit.arrived for hit in pages if begins <= hit.arrived < ends]
    last = max(during, default=begins) - begins
    stage.verdict.check(last <= 2, f"requests stopped {last:.2f} s into the stall (<= 2 s)")
    stage.verdict.check(max(depths) <= 128, f"no queue held more than {max(depths)} (<= 128)")
    grown = stage.grown(begins, ends)
    stage.verdict.check(grown < 20, f"memory grew by {grown:.1f} MB in the stall (< 20 MB)")
    before = _rate(pages, begins - 4, begins)
    after = _rate(pages, ends + 2, ends + 4)
    stage.verdict.check(
        after >= 0.85 * before, f"{after:.0f}/s two seconds after it, {before:.0f}/s before (85%)"
    )
    written = Counter(record["url"] for record in read_jsonl(stage.folder / "pages.jsonl"))
    whole = len(written) == count and set(written.values()) == {1}
    stage.verdict.check(whole, f"{len(written)} of {count} pages written, each once")
    _check_sums(stage, report)


def slow_parser(stage: Stage) -> None:
    """Fetching settles at what the parsers can do."""
    seconds = 25 if stage.quick else 40
    hosts = [stage.host(n, service=0.05, page="leaf", size=20_000) for n in range(8)]
    seeds = [f"http://{_name(hosts[n % 8])}/{n}" for n in range(4000)]
    with stage.site(hosts):
        stage.crawl(
            seeds,
            path=_plugins(stage.folder),
            crawl={"max_seconds": seconds, "stop_grace": 2},
            parse={"workers": 4, "parsers": ["slow"]},
        )
    pages = _pages(stage.hits)
    start = pages[0].arrived
    rate = _rate(pages, start + 12, start + seconds - 2)
    stage.verdict.check(abs(rate - 8) <= 0.8, f"{rate:.2f} pages/s (8 +- 10%)")
    grown = stage.grown(start + 12, start + seconds - 2)
    stage.verdict.check(grown < 5, f"memory grew by {grown:.1f} MB meanwhile (< 5 MB)")


# -- a gateway ------------------------------------------------------------------------------


def gateway(stage: Stage) -> None:
    """The plan's limits move one limit alone, and end the crawl so that it can go on."""
    count = 900
    targets = [f"http://target{n % 6}.test/{n}" for n in range(count)]
    host = stage.host(
        0,
        gateway=True,
        page="leaf",
        service=0.1,
        capacity=[[0, 5]],
        quota=600,
        fields={"X-Target-Status": "200"},
    )
    url = f"http://{_name(host)}/fetch?key=secret&url={{url}}"
    tables: dict[str, Any] = {
        "gateway": {"url": url, "max_in_flight": 10, "target_status_header": "X-Target-Status"},
        "robots": {"obey": False},
    }
    with stage.site([host]):
        report = stage.crawl(targets, expect=4, **tables)
    pages = _pages(stage.hits)
    end = next(hit.arrived for hit in pages if hit.status == 509)
    mean = _in_service(pages, end - 5, end)
    stage.verdict.check(4.25 <= mean <= 5, f"{mean:.2f} at once of 5 slots (>= 85%)")
    moved = [key for key, each in report["hosts"].items() if each["limit"] < 4]
    stage.verdict.check(not moved, f"{len(moved)} of {len(report['hosts'])} host limits cut (0)")
    stage.verdict.check(True, "exit 4 with the quota used up")
    again = {key: value for key, value in host.items() if key != "quota"}
    with stage.site([again]):
        report = stage.crawl(targets, **tables)
    written = Counter(
        record["canonical_url"] for record in read_jsonl(stage.folder / "pages.jsonl")
    )
    whole = len(written) == count and set(written.values()) == {1}
    stage.verdict.check(whole, f"{len(written)} of {count} pages after a second run, each once")
    _check_sums(stage, report)


# -- more than can be crawled ---------------------------------------------------------------


def shed(stage: Stage) -> None:
    """High priority first, within a host and among hosts; memory flat; every URL accounted for."""
    for hosts, action in ((1, "drop"), (1, "defer"), (50, "drop"), (50, "defer")):
        say(f"-- {hosts} host(s), action = {action}")
        _clean(stage.folder)
        stage.memory.clear()
        _shed(stage, hosts, action)


def _shed(stage: Stage, count: int, action: str) -> None:
    low, high, indexes = (100_000, 1_000, 20) if stage.quick else (1_000_000, 10_000, 200)
    hosts = [stage.host(n, page="index") for n in range(count)]
    names = [_name(host) for host in hosts]
    for host in hosts:
        host |= {"hosts": names, "low": low // indexes, "high": high // indexes}
    seeds = [f"http://{names[n % count]}/index/{n}" for n in range(indexes)]
    with stage.site(hosts):
        report = stage.crawl(
            seeds,
            crawl={"max_pages": indexes + high + 500},
            scope={"priorities": {"/high/": 10}, "follow": "any"},
            shed={"max_pending": 50_000 if not stage.quick else 10_000, "action": action},
        )
    pages = _pages(stage.hits)
    wanted = sum(hit.path.startswith("/high/") for hit in pages)
    stage.verdict.check(wanted == high, f"{wanted} of {high} pages of high priority fetched")
    within = sum(_inversions(_pages(pages, name), 1.0) for name in names)
    stage.verdict.check(within == 0, f"{within} of low priority before high on the same host (0)")
    # Towards the end of the high ones the hosts that still have some are busy with them, and
    # others are ready: only before that are hosts of both kinds ready together.
    among = _inversions(pages, 0.95)
    stage.verdict.check(among == 0, f"{among} before 95% of the high ones on all hosts (0)")
    # From when the queues are full and four tenths of the links are found, to the end.
    indexed = [hit.arrived for hit in pages if hit.path.startswith("/index/")]
    start, end = indexed[int(len(indexed) * 0.4)], stage.memory[-1][0]
    grown = stage.grown(start, end)
    peak = max(size for _, size in stage.memory) / 1e6
    what = f"memory grew by {grown:.1f} MB over the last 60% of the links (peak {peak:.0f} MB)"
    stage.verdict.check(grown < 20, what)
    urls = report["urls"]
    everything = indexes + low + high
    stage.verdict.check(urls["seen"] == everything, f"{urls['seen']} URLs seen of {everything}")
    _check_sums(stage, report)
    say(f"        {urls}")


def _inversions(pages: Sequence[Hit], share: float) -> int:
    """Pages of low priority asked for before `share` of the high ones had been.

    What was admitted before the links were found is left out, and so is what is under way at
    once with the last of them.
    """
    kinds = [hit.path.split("/")[1] for hit in pages]
    places = [place for place, kind in enumerate(kinds) if kind == "high"]
    if not places:
        return 0
    indexes = [place for place, kind in enumerate(kinds) if kind == "index"]
    first = max(max(indexes, default=0), places[0])
    last = places[int(len(places) * share) - 1] - _CEILING
    return kinds[first:last].count("low") if last > first else 0


def _check_sums(stage: Stage, report: Mapping[str, Any]) -> None:
    urls = report["urls"]
    ends = sum(
        urls[name] for name in ("pending", "deferred", "leased", "done", "failed", "dropped")
    )
    stage.verdict.check(ends == urls["seen"], f"the counts add up: {ends} of {urls['seen']} seen")


def _clean(folder: Path) -> None:
    """Leave nothing of the run before."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


ROWS: dict[str, Callable[[Stage], None]] = {
    each.__name__: each
    for each in (
        *(throttled, drop, badhosts, retry_after, stall, slow_parser, failing, gateway, shed),
    )
}


def main() -> int:
    """Play the rows and judge them."""
    parser = options(__doc__)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], help="rows to play; all by default")
    parser.add_argument("--quick", action="store_true", help="shorter, for a first look")
    arguments = parser.parse_args()
    verdict = Verdict(report_only=arguments.report_only)
    with workplace(arguments.keep) as folder:
        for name in arguments.rows or ROWS:
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            _clean(place)
            say(f"== {name}: {(ROWS[name].__doc__ or '').strip()}")
            ROWS[name](Stage(place, verdict, quick=arguments.quick))
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
