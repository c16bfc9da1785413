"""Show how a crawl stands, while it runs and after it.

Runs on the main thread; reads status.json and report.json and asks whether the lock is
held. Touches neither the frontier nor the stores, so it works beside a running crawl.
"""

from __future__ import annotations

import argparse
from typing import Any

from syncrawl.cli.common import add_config, load, out, out_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `status`."""
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """Print the state; 0 whatever it is."""
    state_dir = load(args).crawl.state_dir
    data = current(state_dir)
    if args.json:
        out_json(data)
        return 0
    from syncrawl.observe.report import NONE, summary
    from syncrawl.observe.text import printable

    out(f"state_dir   {printable(state_dir)}")
    if data["pid"] is not None:
        out(f"running     yes, process {data['pid'] or 'unknown'}")
    elif data["status"] == NONE:
        out("running     no, and no crawl has left a report here")
        return 0
    else:
        out("running     no")
    out(summary(data))
    return 0


def current(state_dir: str) -> dict[str, Any]:
    """The report of `state_dir` in the contract's shape, with `alive` and `pid` added.

    A report that says "running" with nobody holding the lock is of a run that was killed:
    its status reads "interrupted".
    """
    from syncrawl.engine.preflight import held
    from syncrawl.observe.report import INTERRUPTED, RUNNING, empty, read_status

    pid = held(state_dir)
    data = read_status(state_dir) or empty()
    if pid is None and data["status"] == RUNNING:
        data["status"] = INTERRUPTED
    elif pid is not None and data["status"] != RUNNING:
        # It holds the lock but has not written yet: what is there is of the run before.
        data["status"], data["exit_code"] = RUNNING, None
    return data | {"alive": pid is not None, "pid": pid}
