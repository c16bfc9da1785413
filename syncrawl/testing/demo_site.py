"""The hostile little site that `python -m syncrawl demo` crawls, and the config for it.

Built on any thread; the site then runs its own. Imports nothing of the package outside
`testing`. Names end in .demo.test and are resolved by the config, so no DNS is asked.
"""

from __future__ import annotations

import html
import random
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from syncrawl.testing.site import Answer, Host, Reply, Site
from syncrawl.testing.site_pages import PageTree, respell, robots_text

SHARE_OF_TIME = 0.8
"""How much of the time asked for the slowest host should need; the rest is start and end."""
CRAWL_DELAY = 0.25
SLOW_SECONDS = 0.4
QUICK_SECONDS = 0.01
TROUBLES: dict[str, Answer] = {
    "/missing": 404,
    "/broken": 500,
    "/moved": Reply.redirect("/section-1", 301),
    "/elsewhere": Reply.redirect("/section-2/", 302),
    "/loop/a": Reply.redirect("/loop/b"),
    "/loop/b": Reply.redirect("/loop/a"),
}


@dataclass(frozen=True, slots=True)
class Demo:
    """A site that is not started yet (`with demo.site:`) and what crawls it.

    `troubles` are the paths on the mixed host that do not answer 200.
    """

    site: Site
    seconds: float

    @property
    def troubles(self) -> tuple[str, ...]:
        return tuple(TROUBLES)

    @property
    def config(self) -> dict[str, Any]:
        """The crawl in the shape of config.toml, paths relative. Only once the site has started."""
        return {
            "crawl": {
                "seeds": [host.url("/") for host in self.site.hosts],
                "state_dir": "state",
                "user_agent": "syncrawl-demo/1.0 (+https://demo.test/contact)",
                "max_seconds": self.seconds,
            },
            "scope": {"follow": "host"},
            "host": {"start": 4, "floor": 1, "ceiling": 16},
            "fetch": {
                "workers": 32,
                "total_timeout": 5,
                "private_addresses": "allow",
                "resolve": self.site.resolve,
            },
            "retry": {"backoff_base": 0.2, "backoff_max": 2},
            "stores": [{"type": "jsonl", "path": "pages.jsonl"}],
        }


def demo_site(seconds: float = 20.0) -> Demo:
    """Five hosts that a crawl of about `seconds` gets through: quick, slow, polite, busy, mixed.

    The polite one states a fractional Crawl-delay, the busy one answers 429 beyond three
    requests at a time, the mixed one spells its links at random and has errors, redirects
    and a redirect loop. The quick one links into an area that its robots.txt disallows.
    """
    span = seconds * SHARE_OF_TIME
    private = robots_text(disallow=("/private/",))
    slow_pages = max(5, int(span / SLOW_SECONDS * 3))
    site = Site(
        Host(
            name="quick.demo.test",
            pages=PageTree(max(50, int(span * 100)), disallowed=2),
            delay=QUICK_SECONDS,
            robots=private,
        ),
        Host(
            name="slow.demo.test",
            pages=PageTree(slow_pages),
            delay=SLOW_SECONDS,
            robots=private,
        ),
        Host(
            name="polite.demo.test",
            pages=PageTree(max(5, int(span / CRAWL_DELAY))),
            delay=QUICK_SECONDS,
            robots=robots_text(crawl_delay=CRAWL_DELAY),
        ),
        Host(
            name="busy.demo.test",
            pages=PageTree(max(20, int(span * 8))),
            delay=5 * QUICK_SECONDS,
            max_concurrent=3,
            retry_after="1",
        ),
        Host(
            name="mixed.demo.test",
            pages=lambda target: _mixed(target, site.hosts[-1].netloc),
            delay=2 * QUICK_SECONDS,
            robots=404,
        ),
    )
    return Demo(site, seconds)


def _mixed(target: str, netloc: str) -> Answer:
    path = unquote(target.partition("?")[0]).rstrip("/")
    if path in TROUBLES:
        return TROUBLES[path]
    here = path.rpartition("-")[2]
    if path and not (path.startswith("/section-") and here.isdigit() and int(here) < 40):
        return None
    chance = random.Random(path)
    links = [respell(f"/section-{chance.randrange(40)}?b=2&a=1", netloc, chance) for _ in range(20)]
    items = "".join(f'<li><a href="{html.escape(link)}">section</a>\n' for link in links)
    items += "".join(f'<li><a href="{one}">{one}</a>\n' for one in TROUBLES)
    return f"<!DOCTYPE html><title>Section {here or 'list'}</title><ul>\n{items}</ul>"
