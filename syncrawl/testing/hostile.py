"""The hostile site: one host a behaviour, for our tests and for plugin authors'.

    with hostile_site() as hostile:
        config = hostile.config          # in the shape of config.toml
        ...                              # crawl it; it ends by itself
        hostile.behaviours["gzip-bomb"].ends

Each behaviour has a host of its own, so that what one does to its host's limits says
nothing about another. Names end in .hostile.test and are resolved by the config. Imports
nothing of the package outside `testing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from syncrawl.testing.hostile_heads import codings, heads, statuses
from syncrawl.testing.hostile_kit import Behaviour
from syncrawl.testing.hostile_pages import across, markup, redirects, traps
from syncrawl.testing.hostile_robots import robots
from syncrawl.testing.hostile_wire import bodies, framing, slow
from syncrawl.testing.site import Host, Reply, ServedHost, Site

__all__ = ["Behaviour", "Hostile", "hostile_site"]

# Redirects between hosts: whose page, to which host's.
_ACROSS = (
    ("robots-elsewhere", "/robots.txt", "robots-bom", "/robots.txt"),
    ("to-another-host", "/", "charset-none", "/last"),
    ("to-closed-host", "/", "robots-bom", "/b"),
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """The site, and what each of its hosts does. Start it with `with`."""

    site: Site
    behaviours: dict[str, Behaviour]

    def __enter__(self) -> Hostile:
        self.site.start()
        # Ports are known from here on.
        for name, path, other, place in _ACROSS:
            pages = self.behaviours[name].pages
            assert isinstance(pages, dict)
            pages[path] = Reply.redirect(self.host(other).url(place))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.site.close()

    def host(self, name: str) -> ServedHost:
        """The host of one behaviour: its URLs and what it has seen."""
        return self.site.hosts[list(self.behaviours).index(name)]

    @property
    def config(self) -> dict[str, Any]:
        """A crawl of all of it, paths relative. Only once the site has started."""
        return {
            "crawl": {
                "seeds": [self.host(name).url(one.path) for name, one in self.behaviours.items()],
                "state_dir": "state",
                "user_agent": "syncrawl-hostile/1.0 (+https://hostile.test/contact)",
                # Robots that are a server error close their host for as long as this.
                "give_up_after": 90,
            },
            "robots": {"max_crawl_delay": 2},
            "pause": {"first": 5, "longest": 10},
            "fetch": {
                "workers": 64,
                "private_addresses": "allow",
                "resolve": self.site.resolve,
            },
            "stores": [{"type": "jsonl", "path": "pages.jsonl"}],
        }


def hostile_site(*, pause: float = 0.5, trap_pages: int = 30) -> Hostile:
    """Some hundred hosts, bad in one way each.

    `pause` is the seconds between the bytes of those that drip; `trap_pages` how many pages
    the traps make before they end (0: they do not).
    """
    behaviours = [
        *slow(pause),
        *bodies(),
        *framing(),
        *heads(),
        *statuses(),
        *codings(),
        *redirects(),
        *markup(),
        *traps(trap_pages),
        *robots(),
        *across(),
    ]
    hosts = [
        Host(
            name=f"{one.name}.hostile.test",
            address=f"127.0.{1 + number // 200}.{1 + number % 200}",
            pages=one.pages,
            robots=one.robots,
        )
        for number, one in enumerate(behaviours)
    ]
    return Hostile(Site(*hosts), {one.name: one for one in behaviours})
