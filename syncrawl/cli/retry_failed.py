"""Make failed URLs pending again, for the next run to try.

Runs on the main thread, on a state that no crawl is using: it takes the lock that a run takes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from syncrawl.cli.common import add_config, load, out, say

if TYPE_CHECKING:
    from syncrawl.config.model import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `retry-failed`."""
    add_config(parser)
    parser.add_argument(
        "--class",
        metavar="CLASS",
        action="append",
        default=[],
        dest="classes",
        help="only what failed with this outcome, such as timeout or 5xx; repeatable",
    )


def execute(args: argparse.Namespace) -> int:
    """Say how many URLs are pending again; 0 also where none had failed."""
    from syncrawl.engine.preflight import StateLock
    from syncrawl.engine.rooms import FRONTIER_DIR
    from syncrawl.errors import EXIT_CONDITION
    from syncrawl.frontier.reader import is_there

    config = load(args)
    state_dir = Path(config.crawl.state_dir)
    if not is_there(state_dir / FRONTIER_DIR):
        say(f"syncrawl: there is no crawl in {state_dir}")
        return EXIT_CONDITION
    with StateLock(state_dir):
        revived = revive(config, frozenset(args.classes))
        if revived:
            _tell_report(state_dir, revived)
    of = f" that failed with {', '.join(args.classes)}" if args.classes else " that failed"
    count = f"{revived:,} URLs{of} are" if revived > 1 else f"one URL{of} is"
    out(f"{count} pending again" if revived else f"no URLs{of}{_hint(args.classes)}")
    return 0


def _hint(classes: list[str]) -> str:
    """What a class that no outcome has may have been meant for; a plugin may have its own."""
    import difflib

    from syncrawl.limits.signals import RULES

    for name in classes:
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, n=1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(RULES))}"
            return f" ({name} is no class that we know: {meant})"
    return ""


def revive(config: Config, classes: frozenset[str]) -> int:
    """Take back what failed with one of `classes` (any, where that is empty); how many."""
    from syncrawl.clock import SystemClock
    from syncrawl.engine.gates import GateKeys
    from syncrawl.engine.rooms import FRONTIER_DIR
    from syncrawl.frontier.disk import DiskFrontier
    from syncrawl.urls import Canonicalizer

    frontier = DiskFrontier(
        Path(config.crawl.state_dir) / FRONTIER_DIR,
        clock=SystemClock(),
        queue_of=GateKeys(config).queue_of,
        fingerprint_rules=Canonicalizer(config.scope.tracking_parameters).rules_id,
        track_depth=config.scope.max_depth is not None,
        power=config.crawl.durability == "power",
    )
    frontier.open()
    try:
        return sum(frontier.revive(classes))
    finally:
        frontier.close()


def _tell_report(state_dir: Path, revived: int) -> None:
    """Have `status` tell what is true now; the counters of requests stay as they were."""
    from syncrawl.observe import report as reports

    data = reports.read_status(state_dir)
    if data is None:
        return
    data["urls"]["failed"] -= revived
    data["urls"]["pending"] += revived
    data |= {"status": reports.STOPPED, "reason": f"{revived} failed URLs are to be tried again"}
    for name in (reports.STATUS_FILE, reports.REPORT_FILE):
        reports.write_json(state_dir / name, data)
