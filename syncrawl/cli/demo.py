"""Crawl a hostile little site on loopback, live; needs no network.

Runs on the main thread; the site runs threads of its own. State and records go to a
temporary directory that is removed at the end.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from syncrawl.cli.common import add_view, say
from syncrawl.cli.run import Stopper, crawl_through, leveled

if TYPE_CHECKING:
    from syncrawl.testing.demo_site import Demo

DEFAULT_SECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `demo`."""
    parser.add_argument(
        "--seconds",
        type=_positive,
        default=DEFAULT_SECONDS,
        metavar="N",
        help=f"about how long (default {DEFAULT_SECONDS:g})",
    )
    add_view(parser)


def execute(args: argparse.Namespace) -> int:
    """Serve the site, crawl it, and say what happened at each host."""
    from syncrawl.config.load import config_from_mapping
    from syncrawl.testing.demo_site import demo_site

    demo = demo_site(args.seconds)
    stopper = Stopper()
    with stopper.installed(), tempfile.TemporaryDirectory(prefix="syncrawl-demo-") as place:
        with demo.site:
            config = config_from_mapping(demo.config, base=Path(place), source="the demo")
            # Without -v the events would push the live view off the screen.
            config = leveled(config, verbose=args.verbose, quiet=not args.verbose)
            code = crawl_through(config, stopper, quiet=args.quiet, progress=not args.no_progress)
        if not args.quiet:
            _tell(demo, Path(place, "pages.jsonl"))
    return code


def _positive(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be from 1 to 3600 seconds")
    return value


def _tell(demo: Demo, records: Path) -> None:
    """What each host was asked for, by its own account, and what was stored."""
    from syncrawl.observe.text import columns

    rows = [("what the hosts saw", "requests", "robots", "at once", "answers")]
    for host in demo.site.hosts:
        log = host.log
        answers = ", ".join(
            f"{count} x {status}" for status, count in sorted(log.statuses().items())
        )
        rows.append((host.netloc, str(len(log)), str(log.robots), str(log.peak), answers))
    say("")
    for line in columns(rows, right=frozenset({1, 2, 3})):
        say(line)
    stored = records.read_bytes().count(b"\n") if records.exists() else 0
    say(f"\n{stored} records were stored, and removed again with the state")
