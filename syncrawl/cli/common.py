"""What the commands share: speaking to stderr and stdout, and the options they have in common.

Runs on the main thread. Imports nothing heavy at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncrawl.config.model import Config


# Seconds that threads get which are about to end when a command is over.
LEFT_SECONDS = 1.0
# Names of hung threads that are listed.
MOST_NAMES = 20


def complain(message: str) -> None:
    """One error line on stderr."""
    say(f"syncrawl: error: {_without_secrets(message)}")


def warn(message: str) -> None:
    """One warning line on stderr."""
    say(f"syncrawl: warning: {_without_secrets(message)}")


def one_line(message: str) -> str:
    """`message` without line breaks and without anything a terminal might act on."""
    from syncrawl.log import show

    return show(" ".join(message.split()))


def _without_secrets(message: str) -> str:
    from syncrawl.log import redact

    # An error names the URL as it was typed, password and all.
    return one_line(redact(message))


def say(text: str) -> None:
    """A line on stderr; a stderr that is closed or full is nobody's error."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # there is nowhere left to say so


def out(text: str) -> None:
    """A line on stdout, for commands whose output is their result.

    What stdout's encoding cannot hold is escaped. BrokenPipeError passes through.
    """
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    safe = text.encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(safe + "\n")


def out_json(value: Any) -> None:
    """`value` on stdout as indented JSON."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=repr)
    out(msgspec.json.format(encoded, indent=2).decode())


def guard_standard_streams() -> None:
    """Put /dev/null in the place of a standard descriptor that is closed.

    The next file opened would get its number, and what was meant for stdout would go into
    the crawl's state.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one


def leave_quietly(code: int) -> int:
    """Return `code` after stdout's reader has gone, so that nothing complains at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        pass  # without a descriptor to spare the interpreter's own complaint stands
    return code


def left_over(before: set[threading.Thread]) -> list[str]:
    """Threads that came after `before` and would hold up the interpreter's exit.

    Those that are about to end are given LEFT_SECONDS.
    """
    until = time.monotonic() + LEFT_SECONDS
    threads = [one for one in threading.enumerate() if one not in before and not one.daemon]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]


def say_left(names: Sequence[str]) -> None:
    """Name threads that are left behind; they may be many."""
    more = ", ..." if len(names) > MOST_NAMES else ""
    listed = ", ".join(names[:MOST_NAMES])
    say(f"syncrawl: leaving without {len(names)} hung thread(s): {one_line(listed)}{more}")


def leave_at_once(code: int) -> None:
    """End the process without waiting for its threads; what was said is flushed first."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass  # its reader has gone
    os._exit(code)


def add_config(
    parser: argparse.ArgumentParser, *, optional: bool = False, option: bool = False
) -> None:
    """CONFIG, as an argument or as the option --config, and --set."""
    if option:
        parser.add_argument("--config", metavar="CONFIG.toml", help="the configuration file")
    else:
        parser.add_argument(
            "config",
            metavar="CONFIG.toml",
            nargs="?" if optional else None,
            help="the configuration file",
        )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one dotted key with a TOML value; repeatable",
    )


def add_view(parser: argparse.ArgumentParser) -> None:
    """What commands that show a crawl offer: -q and --no-progress."""
    parser.add_argument("-q", "--quiet", action="store_true", help="print warnings and errors only")
    parser.add_argument("--no-progress", action="store_true", help="neither live view nor lines")


def load(args: argparse.Namespace) -> Config:
    """The configuration a command line names, its overrides applied."""
    from syncrawl.config.load import load_config

    overrides = list(args.overrides)
    if getattr(args, "max_pages", None) is not None:
        overrides.append(f"crawl.max_pages={args.max_pages}")
    return load_config(args.config, overrides)
