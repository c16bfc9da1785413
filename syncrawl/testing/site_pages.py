"""What a loopback site serves: a deterministic tree of linked pages, or files from a folder.

Called on the site's loop thread, so a page is made in some microseconds and nothing
here waits. Imports nothing of the package outside `testing`.
"""

from __future__ import annotations

import html
import mimetypes
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from syncrawl.testing.site_host import Answer, Reply

NEW_LINKS_DIVISOR = 2
KEPT_PAGES = 8_000
"""Pages a tree keeps once made: about 60 MB at the usual size."""
_SPREAD = 2_654_435_761  # odd, so that multiplying by it permutes numbers modulo a power of two
_SENTENCE = "A crawler that waits for one host leaves every other host waiting with it. "
_HOME = '<li><a href="/">home</a>\n'
_NUMBER = re.compile(r"[?&]id=(\d+)|/p(\d+)")


@dataclass(frozen=True, slots=True)
class PageTree:
    """`pages` pages reachable from "/", each with `links` links, about half of them to new pages.

    Page n has its own children and otherwise points all over the tree, the same on every
    run. A page is about `size` bytes. With `spellings` (a seed) links lead to
    `/~docs/page?id=N&lang=en`, each written in a random spelling that a canonical form must
    see through; `host` ("name" or "name:port") is then needed, for links are also written
    as absolute URLs. Every spelling of a page carries the same `Reply.resource`.
    `disallowed` adds that many links a page into /private/, for a robots.txt to forbid.
    """

    pages: int
    links: int = 32
    size: int = 7000
    spellings: int | None = None
    host: str = ""
    disallowed: int = 0
    _kept: dict[int, Reply] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, target: str) -> Answer:
        if target.startswith("/private/"):
            return Reply(b"<title>private</title>", resource="private")
        number = self.number(target)
        if number is None or number >= self.pages:
            return None
        reply = self._kept.get(number)
        if reply is None:
            reply = Reply(self.body(number), resource=f"p{number}")
            if len(self._kept) < KEPT_PAGES:
                self._kept[number] = reply
        return reply

    def number(self, target: str) -> int | None:
        """Which page a target means, in whatever spelling."""
        if target == "/":
            return 0
        match = _NUMBER.search(unquote(target))
        return int(match[1] or match[2]) if match else None

    def path(self, number: int) -> str:
        """The plain spelling of page `number`."""
        if self.spellings is not None:
            return f"/~docs/page?id={number}&lang=en"
        return f"/d{number % 100}/p{number}.html" if number else "/"

    def linked(self, number: int) -> list[int]:
        """The pages that page `number` links to, its children first."""
        fresh = self.links // NEW_LINKS_DIVISOR
        first = number * fresh + 1
        children = range(first, min(first + fresh, self.pages))
        known = self.links - len(children)
        start, pages = number * self.links, self.pages
        mixed = [(start + i) * _SPREAD % 4_294_967_296 % pages for i in range(known)]
        return [*children, *mixed]

    def body(self, number: int) -> bytes:
        """The HTML of page `number`."""
        items = self._items(number)
        if self.disallowed:
            items += [
                f'<li><a href="/private/{number}-{one}.html">private</a>\n'
                for one in range(self.disallowed)
            ]
        start = (
            f"<!DOCTYPE html>\n<html><head><title>Page {number}</title></head>\n"
            f"<body><h1>Page {number}</h1>\n<ul>\n{''.join(items)}</ul>\n<p>"
        )
        return f"{start}{_prose(max(0, self.size - len(start)))}</p></body></html>\n".encode()

    def _items(self, number: int) -> list[str]:
        if self.spellings is None:
            # Written out rather than through path(): this is most of what a page costs.
            return [
                f'<li><a href="/d{one % 100}/p{one}.html">see {one}</a>\n' if one else _HOME
                for one in self.linked(number)
            ]
        chance = random.Random(self.spellings * 1_000_003 + number)
        return [
            f'<li><a href="{html.escape(respell(self.path(one), self.host, chance))}">{one}</a>\n'
            for one in self.linked(number)
        ]


def _prose(length: int) -> str:
    return (_SENTENCE * (length // len(_SENTENCE) + 1))[:length]


def respell(path: str, host: str, chance: random.Random) -> str:
    """`http://host` + `path` in a random spelling with the same canonical form.

    Varies what RFC 3986 section 6.2 and the WHATWG URL standard call equivalent (case of
    scheme and host, default port, dot segments, escapes of unreserved characters, tabs and
    surrounding spaces), and what a crawler treats so: fragment, tracking parameters,
    parameter order, one trailing slash. `path` has a query; `host` may carry a port.
    """
    bare, _, query = path.partition("?")
    parameters = query.split("&") if query else []
    if chance.random() < 0.5:
        parameters.append(chance.choice(["utm_source=feed", "utm_medium=x&utm_id=7", "gclid=a1"]))
    chance.shuffle(parameters)
    bare = _respell_path(bare, chance)
    spelled = f"{bare}?{'&'.join(parameters)}" if parameters else bare
    if chance.random() < 0.3:
        spelled += chance.choice(["#", "#top", "#a?b=c"])
    if chance.random() < 0.3:
        cut = chance.randrange(1, len(spelled))
        spelled = spelled[:cut] + chance.choice("\t\n") + spelled[cut:]
    if chance.random() < 0.5:
        spelled = _respell_host(host, chance) + spelled
    return f"  {spelled}\n" if chance.random() < 0.2 else spelled


def _respell_path(path: str, chance: random.Random) -> str:
    segments = path.split("/")[1:]
    tilde = chance.choice(["~", "%7E", "%7e"])
    segments = [one.replace("~", tilde) for one in segments]
    if chance.random() < 0.3:
        last = segments[-1]
        at = chance.randrange(len(last)) if last else 0
        segments[-1] = f"{last[:at]}%{ord(last[at]):02X}{last[at + 1 :]}" if last else last
    if chance.random() < 0.4:
        detour = chance.choice([["."], ["gone", ".."], ["%2e"], ["gone", "%2E."]])
        at = chance.randrange(len(segments))
        segments[at:at] = detour
    return "/" + "/".join(segments) + chance.choice(["", "", "/"])


def _respell_host(host: str, chance: random.Random) -> str:
    name, _, port = host.partition(":")
    name = "".join(chance.choice([char.upper(), char]) for char in name)
    port = f":{port}" if port else chance.choice(["", ":80", ":"])
    return chance.choice(["http:", "HTTP:", "Http:", ""]) + f"//{name}{port}"


class FileTree:
    """Serves the files under `root` as a plain web server would.

    A folder's URL without its slash is redirected to the one with it, where index.html
    answers. Nothing outside `root` is served, symbolic links out of it included.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve()

    def __call__(self, target: str) -> Answer:
        path = unquote(target.partition("?")[0])
        if "\0" in path:
            return None
        file = (self.root / path.lstrip("/")).resolve()
        if not file.is_relative_to(self.root):
            return None
        if file.is_dir():
            if not path.endswith("/"):
                return Reply.redirect(quote(path) + "/", 301)
            file = file / "index.html"
        elif path.endswith("/"):
            return None
        if not file.is_file():
            return None
        kind, coding = mimetypes.guess_type(file.name)
        if coding is not None:
            kind = f"application/{coding}"
        return Reply(file.read_bytes(), content_type=kind or "application/octet-stream")


def robots_text(
    *, disallow: tuple[str, ...] = (), crawl_delay: float | None = None, agent: str = "*"
) -> str:
    """A small robots.txt (RFC 9309)."""
    lines = [f"User-agent: {agent}", *(f"Disallow: {path}" for path in disallow)]
    if crawl_delay is not None:
        lines.append(f"Crawl-delay: {crawl_delay:g}")
    return "\n".join(lines) + "\n"
