"""List what is installed, from which distribution, and what does not load.

Runs on the main thread; loads each plugin in turn.
"""

from __future__ import annotations

import argparse

from syncrawl.cli.common import one_line, out, out_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `plugins`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """Print the list; 0 even where a plugin does not load, since nothing was asked of it."""
    from syncrawl.observe.text import columns
    from syncrawl.registry import describe

    found = describe()
    if args.json:
        out_json(found)
        return 0
    rows = [("GROUP", "NAME", "DISTRIBUTION", "API", "")]
    for plugin in found:
        error = f"does not load: {one_line(plugin['error'])}" if plugin["error"] else ""
        rows.append(
            (
                plugin["group"].removeprefix("syncrawl."),
                plugin["name"],
                f"{plugin['distribution']} {plugin['version']}",
                str(plugin["api_version"] or "-"),
                error,
            )
        )
    for line in columns(rows):
        out(line)
    return 0
