"""Many pages from a cheap server: pages a second, and CPU a page, beside a bare fetch loop.

20,000 pages of 7 KB and 32 links, robots on, durable state, jsonl; from nginx where it is
installed, else from this project's own site process. In turn, round by round: a bare
urllib3 loop over the same pages (8 threads, one HTTPConnectionPool; see designs.py), and
syncrawl. CPU is the child's own, user and system, from its start to its end.

Bound: syncrawl's CPU a page at most 4 times the bare loop's.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common import (
    ChildRun,
    Verdict,
    crawl,
    crawl_config,
    median,
    options,
    run_child,
    say,
    table,
    workplace,
)

from syncrawl.testing.site_pages import PageTree
from syncrawl.testing.site_process import SiteProcess

BOUND = 4.0
ADDRESS = "127.0.0.1"
START_SECONDS = 10.0
RUN_SECONDS = 600.0
ROBOTS = "User-agent: *\nDisallow: /private/\n"
NGINX = """\
{user}daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  types {{ text/html html; text/plain txt; }}
  log_format requests '$msec $status $uri';
  access_log {folder}/access.log requests buffer=64k flush=200ms;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
  fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  keepalive_requests 10000000;
  sendfile on;
  open_file_cache max=200;
  server {{ listen {address}:{port}; root {folder}/site; }}
}}
"""


@dataclass(frozen=True)
class Seen:
    """What the server saw of one run."""

    pages: int
    robots: int
    seconds: float


class Server(Protocol):
    """What both servers offer."""

    name: str
    port: int

    def seen(self) -> Seen:
        """What came since this was last asked."""
        ...


class OwnServer:
    """The site process of this project."""

    name = "own site process"

    def __init__(self, site: SiteProcess) -> None:
        self.site = site
        self.port = site.addresses[0][1]

    def seen(self) -> Seen:
        log = self.site.logs()[0]
        self.site.forget()
        good = [one for one in log.pages if one.status == 200]
        seconds = (log.last or 0.0) - (log.first or 0.0)
        return Seen(len(good), log.robots, seconds)


class Nginx:
    """nginx over files; it writes its log within 0.2 s, and that log is what was seen."""

    name = "nginx"

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.log = log
        self.read = 0

    def seen(self) -> Seen:
        time.sleep(1.0)  # the log's own flush interval, with room
        with self.log.open("rb") as stream:
            stream.seek(self.read)
            lines = [line.split() for line in stream.read().splitlines()]
            self.read = stream.tell()
        robots = sum(path == b"/robots.txt" for _, _, path in lines)
        good = sum(status == b"200" for _, status, _ in lines) - robots
        times = [float(moment) for moment, _, _ in lines]
        return Seen(good, robots, max(times) - min(times) if times else 0.0)


def write_site(folder: Path, pages: int) -> None:
    """The tree as files."""
    tree = PageTree(pages)
    for number in range(min(pages, 100)):
        (folder / f"d{number}").mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_bytes(tree.body(0))
    (folder / "robots.txt").write_text(ROBOTS)
    for number in range(1, pages):
        (folder / tree.path(number).lstrip("/")).write_bytes(tree.body(number))


def free_port() -> int:
    """A port that was free a moment ago; nginx cannot be given 0."""
    with socket.socket() as trial:
        trial.bind((ADDRESS, 0))
        return int(trial.getsockname()[1])


@contextmanager
def nginx(program: str, folder: Path, pages: int) -> Iterator[Server]:
    """nginx over the tree, until the block ends."""
    write_site(folder / "site", pages)
    port = free_port()
    # As root, nginx's worker would become `nobody`, who cannot read a private folder.
    user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, address=ADDRESS, user=user))
    command = [program, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]
    server = subprocess.Popen(command)
    try:
        limit = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection((ADDRESS, port), 1.0).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"nginx does not start, see {folder}/error.log") from None
                time.sleep(0.05)
        yield Nginx(port, folder / "access.log")
    finally:
        server.terminate()
        server.wait()


@contextmanager
def own_server(pages: int) -> Iterator[Server]:
    """The site process over the same tree."""
    with SiteProcess([{"tree": {"pages": pages}, "robots": ROBOTS}]) as site:
        yield OwnServer(site)


def find_nginx(wanted: str) -> str | None:
    """nginx's path, Debian's own place included, unless the own server is wanted."""
    if wanted == "own":
        return None
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None and wanted == "nginx":
        raise SystemExit("nginx is not installed: apt install nginx-light, or --server own")
    return found


def bare_run(folder: Path, port: int, pages: int) -> ChildRun:
    """The bare loop over all pages."""
    tree = PageTree(pages)
    folder.mkdir(parents=True, exist_ok=True)
    targets = folder / "targets.json"
    targets.write_text(json.dumps([(ADDRESS, port, tree.path(page)) for page in range(pages)]))
    script = str(Path(__file__).with_name("designs.py"))
    run = run_child([sys.executable, script, "urllib3", str(targets)], folder, RUN_SECONDS)
    if run.returncode:
        raise RuntimeError(f"the bare loop failed: {run.stderr[-2000:]}")
    return run


def main() -> int:
    """Run the rounds and judge the medians."""
    parser = options(__doc__)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("auto", "nginx", "own"), default="auto")
    parser.add_argument("--without-syncrawl", action="store_true", help="the bare loop alone")
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    results: dict[str, list[tuple[ChildRun, Seen]]] = {}
    program = find_nginx(chosen.server)
    with workplace(chosen.keep) as folder:
        place = folder / "nginx"
        serving = nginx(program, place, chosen.pages) if program else own_server(chosen.pages)
        with serving as server:
            say(f"{chosen.pages} pages from {server.name}")
            for number in range(chosen.rounds):
                bare = bare_run(folder / "bare", server.port, chosen.pages)
                results.setdefault("bare urllib3", []).append((bare, server.seen()))
                if chosen.without_syncrawl:
                    continue
                config = crawl_config([f"http://{ADDRESS}:{server.port}/"])
                run = crawl(folder / f"crawl-{number}", config, timeout=RUN_SECONDS)
                results.setdefault("syncrawl", []).append((run, server.seen()))
    judge(results, chosen.pages, verdict)
    return verdict.exit_code()


def judge(results: dict[str, list[tuple[ChildRun, Seen]]], pages: int, verdict: Verdict) -> None:
    """Print the medians and check the bounds."""
    cpu = {
        name: median(run.cpu_seconds / pages * 1e6 for run, _ in runs)
        for name, runs in results.items()
    }
    table(
        ["crawler", "pages/s", "CPU us/page", "x bare", "wall s", "peak MiB", "rounds"],
        [
            [
                name,
                round(median(seen.pages / seen.seconds for _, seen in runs)),
                round(cpu[name]),
                cpu[name] / cpu["bare urllib3"],
                median(run.wall_seconds for run, _ in runs),
                round(max(run.peak_memory for run, _ in runs) / 2**20),
                len(runs),
            ]
            for name, runs in results.items()
        ],
    )
    if "syncrawl" not in results:
        return
    saw = [(seen.pages, seen.robots) for _, seen in results["syncrawl"]]
    verdict.check(all(one == (pages, 1) for one in saw), f"pages and robots.txt served: {saw}")
    ratio = cpu["syncrawl"] / cpu["bare urllib3"]
    verdict.check(ratio <= BOUND, f"{ratio:.2f} times the bare loop's CPU a page (bound {BOUND:g})")


if __name__ == "__main__":
    raise SystemExit(main())
