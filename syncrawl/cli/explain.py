"""How a crawl sees a URL: canonical form, key, scope, robots, state, what it waits for.

Runs on the main thread; asks nobody over the network. What the state knows comes from
`frontier.inspect`, which reads a state without touching it, so this works beside a
running crawl.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from syncrawl.cli.common import add_config, load, one_line, out, out_json

if TYPE_CHECKING:
    from syncrawl.config.model import Config
    from syncrawl.urls import Url

UNKNOWN = "unknown"
NOT_SEEN = "not seen"
NEVER = "nothing: it will never be fetched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a state says of a URL; `due` is Unix time, `robots` its origin's packed RobotsEntry."""

    state: str = NOT_SEEN
    reason: str = ""
    depth: int = 0
    attempts: int | None = None
    due: float = 0.0
    robots: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of one URL; `scope`, `robots` and `state` are verdicts in a word or two."""

    url: str
    canonical: str | None = None
    key: str | None = None
    host: str | None = None
    fingerprint: str | None = None
    scope: str = "refused: not an http or https URL"
    robots: str = UNKNOWN
    state: str = UNKNOWN
    attempts: int | None = None
    waits_for: str = NEVER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `explain`."""
    parser.add_argument("url", metavar="URL")
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """Print the explanation; 0 whatever it says."""
    explanation = asdict(explain(args.url, load(args)))
    if args.json:
        out_json(explanation)
        return 0
    from syncrawl.observe.text import columns

    rows = [
        (name, one_line(str(value))) for name, value in explanation.items() if value is not None
    ]
    for line in columns(rows):
        out(line)
    return 0


def explain(url: str, config: Config) -> Explanation:
    """All that the configuration and the state directory say about `url`."""
    from syncrawl.scope import Scope
    from syncrawl.urls import Canonicalizer, fingerprint, redact

    canonicalizer = Canonicalizer(config.scope.tracking_parameters)
    target = canonicalizer.parse(url)
    if target is None:
        return Explanation(url=redact(url))
    seeds = [seed for text in _seeds(config) if (seed := canonicalizer.parse(text))]
    is_seed = any(seed.key == target.key for seed in seeds)
    known = _look_up(config, target)
    scope = Scope(config.scope, seeds)
    scope.restore(_followed(config))
    refusal = scope.refuse_seed(target) if is_seed else scope.refuse(target, known.depth)
    allowed = _robots_allow(config, target, known.robots)
    return Explanation(
        url=redact(url),
        canonical=target.canonical,
        key=target.key,
        host=target.host,
        fingerprint=f"{fingerprint(target.key):016x}",
        scope=f"refused: {refusal}" if refusal else "accepted" + (" (a seed)" if is_seed else ""),
        robots={None: UNKNOWN, True: "allowed", False: "disallowed"}[allowed]
        if config.robots.obey
        else "not obeyed",
        state=known.state + (f": {known.reason}" if known.reason else ""),
        attempts=known.attempts,
        waits_for=_waits_for(config, target, known, refused=bool(refusal) or allowed is False),
    )


def _seeds(config: Config) -> list[str]:
    """Seeds of the configuration and of its seed files; stdin is left alone."""
    seeds = list(config.crawl.seeds)
    for path in config.crawl.seed_files:
        if path != "-":
            with open(path, encoding="utf-8", errors="replace") as file:
                seeds += [text for line in file if (text := line.strip()) and text[0] != "#"]
    return seeds


def _followed(config: Config) -> list[str]:
    """Hosts or domains that seeds' redirects added to the scope in earlier runs."""
    import msgspec

    from syncrawl.engine.commit import FOLLOWED
    from syncrawl.engine.rooms import FRONTIER_DIR
    from syncrawl.frontier.inspect import kept_note

    packed = kept_note(Path(config.crawl.state_dir, FRONTIER_DIR), FOLLOWED)
    return msgspec.msgpack.decode(packed, type=list[str]) if packed else []


def _look_up(config: Config, url: Url) -> Known:
    """What the state directory knows of `url`; raises StateDamaged where it cannot be read."""
    from syncrawl.engine.rooms import FRONTIER_DIR
    from syncrawl.frontier.inspect import inspect, robots_note
    from syncrawl.urls import fingerprint

    directory = Path(config.crawl.state_dir, FRONTIER_DIR)
    found = inspect(directory, fingerprint(url.key))
    if found is None:
        return Known(reason="no crawl has run here")
    entry = found.entry
    return Known(
        state=found.state or NOT_SEEN,
        reason=found.reason or "",
        depth=entry.depth if entry else 0,
        attempts=entry.attempts if entry else None,
        due=found.due,
        robots=robots_note(directory, url.origin),
    )


def _robots_allow(config: Config, url: Url, packed: bytes | None) -> bool | None:
    """The verdict of the rules in the state; None where none are known."""
    if not config.robots.obey:
        return True
    if packed is None:
        return None
    from syncrawl.fetch.robots import RobotsEntry, rules_for_status
    from syncrawl.registry import construct

    entry = RobotsEntry.decode(packed)
    rules = rules_for_status(
        entry.status,
        entry.body,
        construct("robots", config.robots.engine, {}),
        config.crawl.user_agent,
        config.robots.max_bytes,
    )
    return None if rules is None else rules.allowed(url.spelling)


def _waits_for(config: Config, url: Url, known: Known, *, refused: bool) -> str:
    from syncrawl.cli.status import current
    from syncrawl.observe.text import human_seconds

    if known.state in ("done", "failed", "dropped"):
        return "nothing: it is finished"
    if refused:
        return NEVER
    if known.state == NOT_SEEN:
        return "a page that links to it, or its place among the seeds"
    status = current(config.crawl.state_dir)
    if not status["alive"]:
        return "a run: none is running"
    now = time.time()
    if known.due > now:
        return f"its next attempt, in {human_seconds(known.due - now)}"
    # With host.key = "domain" or "address" the gate has another name, and no entry here.
    host = status["hosts"].get(url.host, {})
    paused = host.get("paused_until") or 0.0
    if paused > now:
        return f"its host, which is paused for {human_seconds(paused - now)}"
    return f"its turn among {host.get('pending', 'the')} URLs pending on its host"
