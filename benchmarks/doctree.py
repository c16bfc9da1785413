"""A documentation tree that nobody here wrote: does the crawl find what `wget -r` finds?

The HTML of a Debian documentation package (or any --root) is served over loopback. First
`wget -r -l inf -np -e robots=off` takes it, then syncrawl; the site notes which 200
text/html answers each of them got, and these are compared by comparison key.

Bound: the same set of pages, and nothing else.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from common import Verdict, crawl, crawl_config, options, run_child, say, table, workplace

from syncrawl.config.model import ScopeConfig
from syncrawl.testing.site_log import HostLog
from syncrawl.testing.site_process import SiteProcess
from syncrawl.urls import Canonicalizer

CANDIDATES = ("/usr/share/doc/python3-doc/html", "/usr/share/doc/libxslt1-dev/html")
NEEDED_PAGES = 50
"""A tree with fewer pages shows nothing."""
RUN_SECONDS = 600.0
WGET_SERVER_ERROR = 8
"""wget's code where some URL answered with an error, as broken links in real trees do."""
SHOWN = 20


def find_root(given: Path | None) -> Path:
    """The tree to serve; SystemExit says what to install where there is none."""
    for root in [given] if given else map(Path, CANDIDATES):
        if root.is_dir() and sum(1 for _ in root.resolve().rglob("*.html")) >= NEEDED_PAGES:
            return root
    raise SystemExit(
        f"no tree of {NEEDED_PAGES} HTML pages: apt install python3-doc, or name one with --root"
    )


def pages_of(log: HostLog, base: str) -> set[str]:
    """Comparison keys of the 200 text/html answers."""
    canonicalizer = Canonicalizer(ScopeConfig().tracking_parameters)
    keys = set()
    for one in log.exchanges:
        if one.status == 200 and one.content_type.startswith("text/html"):
            url = canonicalizer.parse(base + one.target)
            if url is None:
                raise ValueError(f"{one.target!r} was requested and is no URL")
            keys.add(url.key)
    return keys


def wget(folder: Path, url: str) -> None:
    """Mirror `url`, whatever robots.txt says."""
    program = shutil.which("wget")
    if program is None:
        raise SystemExit("wget is not installed: apt install wget")
    command = [program, "-r", "-l", "inf", "-np", "-e", "robots=off", "-q"]
    run = run_child([*command, "-P", str(folder), url], folder, RUN_SECONDS)
    if run.returncode not in (0, WGET_SERVER_ERROR):
        raise RuntimeError(f"wget left with {run.returncode}: {run.stderr[-2000:]}")


def main() -> int:
    """Crawl the tree twice and compare."""
    parser = options(__doc__)
    parser.add_argument("--root", type=Path, help="folder with the tree")
    parser.add_argument("--start", default="/", help="path to begin at")
    parser.add_argument("--without-syncrawl", action="store_true", help="wget alone")
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    root = find_root(chosen.root)
    with workplace(chosen.keep) as folder, SiteProcess([{"root": str(root)}]) as site:
        base, start = site.url(0, ""), site.url(0, chosen.start)
        wget(folder / "wget", start)
        reference = site.logs()[0]
        if chosen.without_syncrawl:
            say(f"wget -r: {len(reference)} requests, {len(pages_of(reference, base))} pages")
            return 0
        site.forget()
        config = crawl_config([start], robots={"obey": False})
        crawl(folder / "crawl", config, timeout=RUN_SECONDS)
        compare(root, reference, site.logs()[0], base, verdict)
    return verdict.exit_code()


def compare(root: Path, reference: HostLog, ours: HostLog, base: str, verdict: Verdict) -> None:
    """Print both sets' sizes and name what only one of them has."""
    theirs, found = pages_of(reference, base), pages_of(ours, base)
    files = sum(1 for _ in root.resolve().rglob("*.html"))
    say(f"{root}: {files} .html files")
    table(
        ["crawler", "requests", "200 text/html", "by comparison key"],
        [
            [name, len(log), _html(log), len(keys)]
            for name, log, keys in (
                ("wget -r", reference, theirs),
                ("syncrawl", ours, found),
            )
        ],
    )
    missing, extra = sorted(theirs - found), sorted(found - theirs)
    for what, keys in (("only wget", missing), ("only syncrawl", extra)):
        for key in keys[:SHOWN]:
            say(f"  {what}: {key}")
    verdict.check(not missing, f"{len(missing)} pages missing (bound 0)")
    verdict.check(not extra, f"{len(extra)} pages beyond wget's (bound 0)")


def _html(log: HostLog) -> int:
    return sum(
        one.status == 200 and one.content_type.startswith("text/html") for one in log.exchanges
    )


if __name__ == "__main__":
    raise SystemExit(main())
