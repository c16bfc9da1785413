"""What the end-to-end tests share: a crawl of a loopback site from a few settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from syncrawl.config.load import config_from_mapping
from syncrawl.config.model import Config
from syncrawl.engine.crawl import Crawl
from syncrawl.observe.report import Report
from syncrawl.testing.site import Site

# No crawl of these tests takes longer than a few seconds unless it hangs.
CRAWL_SECONDS = 60.0
AGENT = "testbot/1.0 (+http://bot.example/)"


def settings(folder: Path, seeds: list[str], **tables: Any) -> Config:
    """A configuration in `folder` writing pages.jsonl; `tables` are laid over it."""
    base: dict[str, Any] = {
        "crawl": {"seeds": seeds, "state_dir": "state", "user_agent": AGENT},
        "retry": {"backoff_base": 0.05, "backoff_max": 0.1},
        "fetch": {"workers": 16},
        "stores": [{"type": "jsonl", "path": "pages.jsonl"}],
    }
    for name, table in tables.items():
        if isinstance(table, Mapping) and isinstance(base.get(name), Mapping):
            base[name] = {**base[name], **table}
        else:
            base[name] = table
    return config_from_mapping(base, base=folder, source="test")


def crawl(config: Config, **arguments: Any) -> Report:
    """Run to the end, or fail by name where that takes longer than CRAWL_SECONDS."""
    running = Crawl(config, **arguments)
    late = threading.Timer(CRAWL_SECONDS, running.stop, ["the test's time is over"])
    late.start()
    try:
        report = running.run()
    finally:
        late.cancel()
    assert report.data["reason"] != "the test's time is over", report.data
    assert running.hung() == []
    return report


def records(folder: Path, name: str = "pages.jsonl") -> list[dict[str, Any]]:
    """The records in a jsonl output, every line of it whole."""
    lines = (folder / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def paths(site: Site, host: int = 0) -> list[str]:
    """What a host was asked for, in order, robots.txt left out."""
    return [one.target for one in site.hosts[host].log.exchanges if one.target != "/robots.txt"]


def adds_up(report: Report) -> bool:
    """Invariant 3: every URL ever accepted is in exactly one state."""
    urls = dict(report.data["urls"])
    return bool(urls.pop("seen") == sum(urls.values()))


def links(*targets: str) -> str:
    """A page that links to `targets`."""
    items = "".join(f'<a href="{target}">x</a>' for target in targets)
    return f"<title>t</title><body>{items}</body>"
