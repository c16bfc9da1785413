"""How a crawl sees a URL: canonical form, key, scope, robots, state, what it waits for.

Runs on the main thread; asks nobody over the network. What the state knows comes from
`syncrawl.frontier.inspect`, which reads a state directory without touching it, so this
works beside a running crawl.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syncrawl.cli.common import add_config, load, one_line, out, out_json

if TYPE_CHECKING:
    from syncrawl.config.model import Config
    from syncrawl.urls import Url

UNKNOWN = "unknown"
NOT_SEEN = "not seen"


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
    waits_for: str = "nothing: it will never be fetched"


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
    """All that the configuration and the state directory say about `url`.

    Hosts that a seed's redirect added to the scope are known to the run alone; a URL on one
    of them reads "refused: host" here unless the state has it.
    """
    from syncrawl.scope import Scope
    from syncrawl.urls import Canonicalizer, fingerprint

    canonicalizer = Canonicalizer(config.scope.tracking_parameters)
    target = canonicalizer.parse(url)
    if target is None:
        return Explanation(url=url)
    seeds = [seed for text in _seeds(config) if (seed := canonicalizer.parse(text))]
    is_seed = any(seed.key == target.key for seed in seeds)
    known = _look_up(config, target)
    depth = 0 if is_seed else known.get("depth", 0)
    refusal = Scope(config.scope, seeds).refuse(target, depth)
    allowed = _robots_allow(config, target, known.get("robots"))
    return Explanation(
        url=url,
        canonical=target.canonical,
        key=target.key,
        host=target.host,
        fingerprint=f"{fingerprint(target.key):016x}",
        scope=f"refused: {refusal}" if refusal else "accepted" + (" (a seed)" if is_seed else ""),
        robots={None: UNKNOWN, True: "allowed", False: "disallowed"}[allowed]
        if config.robots.obey
        else "not obeyed",
        state=known.get("state", UNKNOWN) + (f": {why}" if (why := known.get("reason")) else ""),
        attempts=known.get("attempts"),
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


def _look_up(config: Config, url: Url) -> Mapping[str, Any]:
    """What the state directory knows of `url`; {} where it cannot be asked.

    Keys, each of which may be missing: state ("not seen" among them), reason, depth,
    attempts, due (Unix time before which it is not tried), paused_until (its host's, Unix
    time), robots (its origin's packed RobotsEntry).
    """
    from syncrawl import frontier

    if not Path(config.crawl.state_dir).exists():
        return {"state": NOT_SEEN, "reason": "no crawl has run here"}
    inspect = getattr(frontier, "inspect", None)
    found: Mapping[str, Any] = inspect(config.crawl.state_dir, url) if inspect else {}
    return found


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


def _waits_for(config: Config, url: Url, known: Mapping[str, Any], *, refused: bool) -> str:
    from syncrawl.cli.status import current
    from syncrawl.observe.text import human_seconds

    state = known.get("state")
    if state in ("done", "failed", "dropped"):
        return "nothing: it is finished"
    if refused:
        return "nothing: it will never be fetched"
    if state is None:
        return UNKNOWN
    if state == NOT_SEEN:
        return "a page that links to it, or its place among the seeds"
    status = current(config.crawl.state_dir)
    if not status["alive"]:
        return "a run: none is running"
    if state == "leased":
        return "its own exchange, which is under way"
    now = time.time()
    if (due := known.get("due") or 0.0) > now:
        return f"its next attempt, in {human_seconds(due - now)}"
    host = status["hosts"].get(url.host, {})
    paused = known.get("paused_until") or host.get("paused_until") or 0.0
    if paused > now:
        return f"its host, which is paused for {human_seconds(paused - now)}"
    return f"its turn among {host.get('pending', 'the')} URLs pending on its host"
