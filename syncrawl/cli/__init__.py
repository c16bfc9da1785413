"""The command line: finds the command, runs it, and turns how it ended into an exit code.

Runs on the main thread. Imports little until the command is known, since
`--version` and a shell's completion should not wait for a crawler; each command is a
module beside this one with `add_arguments(parser)` and `execute(args)`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from syncrawl.cli.common import (
    complain,
    guard_standard_streams,
    leave_at_once,
    leave_quietly,
    left_over,
    say_left,
)
from syncrawl.errors import EXIT_CONDITION, EXIT_INTERNAL, EXIT_SIGNAL, EXIT_USAGE, SyncrawlError

# The order is that of the help.
COMMANDS = {
    "run": "run or resume the crawl of a configuration (the default)",
    "check": "validate a configuration, its plugins, limits and paths; fetches nothing",
    "demo": "crawl a hostile little site on loopback, live; needs no network",
    "status": "counts and pressure of a crawl, while it runs and after it",
    "explain": "how a URL is seen: canonical form, scope, robots, state",
    "fetch": "fetch one URL through the real fetch stage",
    "parse": "the records and links a parser yields, as JSON",
    "plugins": "what is installed, and what does not load",
    "retry-failed": "make failed URLs pending again, for the next run to try",
}

# Options that take the next word, so that finding the command steps over both.
_VALUED = frozenset(
    (
        *("--set", "--max-pages", "--seconds", "--parser", "--config", "--content-type", "--url"),
        *("-o", "--output", "--class"),
    )
)

_EPILOG = """\
`syncrawl CONFIG.toml` is `syncrawl run CONFIG.toml`. A word that is exactly a command's name
is that command; a configuration file of such a name is reached as ./NAME.

exit codes: 0 the end or a limit you set was reached; 1 internal error; 2 bad usage or
configuration; 3 stopped by a signal, resumable; 4 stopped by a condition named on stderr,
resumable. `syncrawl COMMAND --help` tells the options of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; leaves no exception to the caller.

    Ends the process where a thread of the command's would never let it end.
    """
    threads = set(threading.enumerate())
    code = _run(list(sys.argv[1:] if argv is None else argv))
    left = left_over(threads)
    if left:
        say_left(left)
        leave_at_once(code)
    return code


def _run(words: list[str]) -> int:
    guard_standard_streams()
    verbose = "-v" in words or "--verbose" in words
    command = "run"
    try:
        command, words = find_command(words)
        if command == "":
            return _top(words)
        module = import_module(f"syncrawl.cli.{command.replace('-', '_')}")
        parser = argparse.ArgumentParser(
            prog=f"syncrawl {command}", description=COMMANDS[command].capitalize()
        )
        parser.add_argument("-v", "--verbose", action="store_true", help="tell more")
        module.add_arguments(parser)
        code: int = module.execute(parser.parse_args(words))
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where what goes wrong with it can still be told
        return code
    except SyncrawlError as error:
        complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        return leave_quietly(EXIT_CONDITION if command == "run" else 128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        return EXIT_SIGNAL if command == "run" else 128 + signal.SIGINT
    except SystemExit as leaving:  # argparse, after it has spoken
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _failed(error, verbose=verbose)


def _failed(error: Exception, *, verbose: bool) -> int:
    """Tell of an error that nobody meant to raise: one line, with -v a traceback."""
    if verbose:
        import traceback

        traceback.print_exc()
    hint = "" if verbose else " (-v shows where)"
    complain(f"internal error: {type(error).__name__}: {error}{hint}")
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        return leave_quietly(EXIT_INTERNAL)
    return EXIT_INTERNAL


def find_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command of a command line and the words left for it; "" where none is named.

    The first word that is no option is the command if it is exactly the name of one;
    anything else is a configuration for `run`, with its options before or after it.
    """
    skip = False
    for place, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            break
        elif word.startswith("-") and word != "-":
            skip = word in _VALUED
        elif word in COMMANDS:
            return word, [*words[:place], *words[place + 1 :]]
        elif os.path.exists(word) or "." in word or os.sep in word:
            return "run", list(words)
        else:
            import difflib

            near = difflib.get_close_matches(word, COMMANDS, 1)
            meant = f"did you mean {near[0]}?" if near else "see syncrawl --help"
            complain(f"{word}: no such command or configuration file: {meant}")
            raise SystemExit(EXIT_USAGE)
    return ("run" if "--" in words else ""), list(words)


def _top(words: list[str]) -> int:
    """The command line without a command: --help, --version, or a usage error."""
    listed = "\n".join(f"  {name:<14}{summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="syncrawl",
        usage="syncrawl [COMMAND] [OPTIONS] CONFIG.toml",
        description=f"A thread-based, synchronous web crawler.\n\ncommands:\n{listed}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    if parser.parse_args(words).version:
        import syncrawl

        print(f"syncrawl {syncrawl.__version__}")  # noqa: T201 - asked for
        return 0
    parser.print_usage(sys.stderr)
    complain("name a configuration file, or a command (syncrawl --help lists them)")
    return EXIT_USAGE
