"""Validate a configuration, its plugins, the process limits and the paths; fetches nothing.

Runs on the main thread and creates nothing: plugins are constructed, not opened.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syncrawl.cli.common import add_config, load, one_line, out, warn

if TYPE_CHECKING:
    from syncrawl.config.model import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `check`."""
    add_config(parser)


def execute(args: argparse.Namespace) -> int:
    """Print what would be used; the first thing that is wrong ends it with one line and exit 2."""
    from syncrawl.engine.preflight import fit_workers, held
    from syncrawl.observe.text import columns

    config = load(args)
    check_paths(config)
    plugins = construct_plugins(config)
    config, warnings = fit_workers(config)
    for warning in warnings:
        warn(warning)
    pid = held(config.crawl.state_dir)
    rows = [*_described(config), ("plugins", ", ".join(plugins))]
    if pid is not None:
        rows.append(("locked", f"by a running crawl, process {pid or 'unknown'}"))
    for line in columns([(name, one_line(value)) for name, value in rows]):
        out(line)
    out("ok")
    return 0


def check_paths(config: Config) -> None:
    """Raise ConfigError where a path that the crawl would write is no good."""
    from syncrawl.engine.preflight import check_filesystem, check_writable

    check_filesystem(config.crawl.state_dir)
    check_writable(config.crawl.state_dir, key="crawl.state_dir", directory=True)
    for store in config.stores:
        if store.path not in ("", "-") and "://" not in store.path:
            check_writable(store.path, key="stores.path")
    if config.log.file not in ("", "-"):
        check_writable(config.log.file, key="log.file")


def construct_plugins(config: Config) -> list[str]:
    """Load and construct every plugin the configuration selects; their names, as group/name."""
    from syncrawl.registry import construct

    names = []
    for group, name, options in selected(config):
        plugin = construct(group, name, options)
        if group == "fetchers":
            plugin.close()
        names.append(f"{group}/{name}")
    return names


def selected(config: Config) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The plugins a configuration names: group (without "syncrawl."), name, options."""
    import msgspec

    yield "fetchers", config.fetch.client, msgspec.structs.asdict(config.fetch)
    yield "robots", config.robots.engine, {}
    for name in config.fetch.challenges:
        yield "challenges", name, {}
    for name in config.parse.parsers:
        yield "parsers", name, dict(config.parse.options.get(name, {}))
    for store in config.stores:
        yield "stores", store.type, {"path": store.path, **store.options}


def _described(config: Config) -> Iterator[tuple[str, str]]:
    from syncrawl.urls import redact

    crawl, host = config.crawl, config.host
    seeds = [redact(seed) for seed in crawl.seeds]
    seeds += [f"the lines of {path}" for path in crawl.seed_files]
    more = f" and {len(seeds) - 3} more" if len(seeds) > 3 else ""
    yield "seeds", ", ".join(seeds[:3]) + more
    yield "user_agent", crawl.user_agent
    yield "state_dir", f"{crawl.state_dir} ({_existing(crawl.state_dir)})"
    for store in config.stores:
        where = "standard output" if store.path == "-" else store.path
        state = f" ({_existing(store.path)})" if store.path not in ("", "-") else ""
        yield "store", f"{store.type} {where}{state}".strip()
    depth = "any depth" if config.scope.max_depth is None else f"depth {config.scope.max_depth}"
    yield "scope", f"follow {config.scope.follow}, {depth}, max_pages {crawl.max_pages or 'off'}"
    yield "robots", "obeyed" if config.robots.obey else "NOT obeyed"
    rate = f", {host.rate:g} requests/s" if host.rate else ""
    yield "per host", f"{host.floor} to {host.ceiling} at once, {host.start} at first{rate}"
    yield (
        "workers",
        f"{config.fetch.workers} fetch, {config.parse.threads} parse"
        + (f" with {config.parse.processes} processes" if config.parse.processes else ""),
    )

    yield from _through(config)
    if config.shed.max_pending:
        shed = f"{config.shed.action} above {config.shed.max_pending:,} pending"
        yield "shed", f"{shed}, below priority {config.shed.below_priority}"
    if config.scope.priorities:
        yield "priorities", f"{len(config.scope.priorities)} patterns"
    if config.crawl.durability == "power":
        yield "durability", "power: every commit is synced"
    if config.metrics.listen:
        yield "metrics", f"http://{config.metrics.listen}/metrics"


def _through(config: Config) -> Iterator[tuple[str, str]]:
    """Who stands between us and the targets; of a URL that may hold a key, the host alone."""
    from urllib.parse import urlsplit

    for name, url in (("gateway", config.gateway.url), ("proxy", config.fetch.proxy)):
        if url:
            host = urlsplit(url).netloc.rpartition("@")[2]
            plan = f", {config.gateway.max_in_flight} at once" if name == "gateway" else ""
            yield name, f"{host}{plan}"


def _existing(path: str) -> str:
    return "exists" if Path(path).exists() else "would be created"
