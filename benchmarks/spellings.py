"""One site, every link in a random equivalent spelling: is any page fetched twice?

The links differ in case of host and scheme, default port, dot segments, escapes of `~` and
of letters, fragments, tracking parameters, parameter order, trailing slash, tabs and
spaces. The site counts fetches per resource, whatever the spelling. Beside it: the share
of duplicates among the same number of fetches by a crawler that compares absolute URLs
without their fragments, computed on the same pages, with every link respelled and with one
in ten.

Bounds: no page fetched twice; every page fetched.
"""

from __future__ import annotations

import html
import re
import socket
from collections import deque
from urllib.parse import urldefrag, urljoin

from common import Verdict, crawl, crawl_config, options, read_jsonl, say, table, workplace

from syncrawl.testing.site_pages import PageTree
from syncrawl.testing.site_process import SiteProcess

NAME = "Docs.Spellings.test"
ADDRESS = "127.0.0.41"
HREF = re.compile(rb'href="([^"]*)"')
RUN_SECONDS = 300.0


def free_port() -> int:
    """80, so that the default port can be spelled out, where this user may bind it; else any."""
    with socket.socket() as trial:
        try:
            trial.bind((ADDRESS, 80))
        except OSError:
            trial.bind((ADDRESS, 0))
        return int(trial.getsockname()[1])


def naive_duplicates(tree: PageTree, start: str, budget: int, respelled: float) -> float:
    """The share of `budget` fetches that a crawler without canonical URLs would waste.

    `respelled` is the share of links met in a spelling of their own; the others are met in
    the plain one.
    """
    ahead = deque([(start, 0)])
    seen = {start}
    fetched: set[int] = set()
    fetches = 0
    while ahead and fetches < budget:
        url, number = ahead.popleft()
        fetches += 1
        fetched.add(number)
        plain = tree.linked(number)
        for place, link in enumerate(HREF.findall(tree.body(number))):
            target = plain[place]
            spelled = html.unescape(link.decode()) if _chosen(number, place, respelled) else ""
            found = urldefrag(urljoin(url, (spelled or tree.path(target)).strip())).url
            if found not in seen:
                seen.add(found)
                ahead.append((found, target))
    return 1 - len(fetched) / fetches


def _chosen(number: int, place: int, share: float) -> bool:
    return (number * 7919 + place * 104_729) % 1000 < share * 1000


def main() -> int:
    """Crawl the site once and compare."""
    parser = options(__doc__)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    verdict = Verdict(report_only=chosen.report_only)
    port = free_port()
    netloc = NAME if port == 80 else f"{NAME}:{port}"
    tree = {"pages": chosen.pages, "spellings": chosen.seed, "host": netloc}
    host = {"name": NAME.lower(), "address": ADDRESS, "port": port, "tree": tree}
    made = PageTree(**tree)
    with workplace(chosen.keep) as folder, SiteProcess([host]) as site:
        # Not "/": that is another URL of page 0, which no canonical form can know.
        start = f"http://{netloc.lower()}{made.path(0)}"
        config = crawl_config([start], fetch={"resolve": site.resolve})
        crawl(folder, config, timeout=RUN_SECONDS)
        log = site.logs()[0]
        records = read_jsonl(folder / "pages.jsonl")
    fetched = log.resources()
    duplicates = fetched.total() - len(fetched)
    waste = {share: naive_duplicates(made, start, chosen.pages, share) for share in (1.0, 0.1)}
    say(f"port {port}; {chosen.pages} pages of 32 links, each in a random spelling")
    table(
        ["crawler", "fetches", "pages", "duplicates", "share"],
        [
            ["syncrawl", fetched.total(), len(fetched), duplicates, duplicates / fetched.total()],
            *(
                [
                    f"absolute URLs compared, {share:.0%} of the links respelled",
                    chosen.pages,
                    round(chosen.pages * (1 - part)),
                    round(chosen.pages * part),
                    part,
                ]
                for share, part in waste.items()
            ),
        ],
    )
    say()
    verdict.check(duplicates == 0, f"{duplicates} duplicate fetches (bound 0)")
    verdict.check(len(fetched) == chosen.pages, f"{len(fetched)} of {chosen.pages} pages fetched")
    verdict.check(len(records) == chosen.pages, f"{len(records)} records of {chosen.pages}")
    return verdict.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
