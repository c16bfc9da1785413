"""The parse stage's step: a fetched page becomes records and links in scope.

One instance a parse thread, which owns its parsers. Everything here is pure but for the
queues: canonical form and scope are decided before the commit thread sees a link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from syncrawl.api import Link, Page, Parser
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.lease import Fetched, Parsed
from syncrawl.engine.watch import WorkWatch
from syncrawl.frontier.model import Entry, origin_of
from syncrawl.frontier.seen import SeenSet
from syncrawl.log import Log
from syncrawl.parse.collect import collect
from syncrawl.parse.html import base_of, make_page
from syncrawl.scope import Scope
from syncrawl.urls import Canonicalizer, Resolver, Url, fingerprint

# Links remembered, about 0.6 KiB each, and how long one may be to be worth it.
_MEMO = 16_384
_PLAIN = 200


class Source(Protocol):
    def get(self) -> Fetched | None: ...


class Sink(Protocol):
    def put(self, item: Parsed) -> None: ...


class NamedParser(NamedTuple):
    """A parser and the name it was selected by."""

    name: str
    parser: Parser


class LinkMemo:
    """Forms of links met lately: most links of a page stand on the pages before it too.

    Shared by the parse threads without a lock: they may compute an entry twice, and compute
    the same. Emptied when full, which costs less than keeping an order.
    """

    def __init__(self, most: int = _MEMO) -> None:
        self._most = most
        self._forms: dict[str, tuple[Url, int]] = {}

    def resolver(self, resolver: Resolver, base: str) -> Callable[[str], tuple[Url, int] | None]:
        """`resolver.resolve` that gives the fingerprint too and remembers plain links."""
        slow = resolver.resolve
        origin = origin_of(base)
        forms = self._forms

        def resolve(href: str) -> tuple[Url, int] | None:
            # What an absolute path means depends on nothing but the origin; what is not
            # ASCII, on the page's encoding as well.
            plain = href[:1] == "/" != href[1:2] and len(href) < _PLAIN and href.isascii()
            name = origin + href if plain else ""
            if plain and (known := forms.get(name)) is not None:
                return known
            url = slow(href)
            if url is None:
                return None
            form = (url, fingerprint(url.key))
            if plain:
                if len(forms) >= self._most:
                    forms.clear()
                forms[name] = form
            return form

        return resolve


class ParseStep:
    """One fetched item a step; None in the queue ends the worker."""

    def __init__(
        self,
        config: Config,
        *,
        parsers: Sequence[NamedParser],
        canonicalizer: Canonicalizer,
        memo: LinkMemo,
        scope: Scope,
        seen: SeenSet,
        source: Source,
        sink: Sink,
        give_credit: Callable[[], None],
        watch: WorkWatch,
        clock: Clock,
        log: Log,
    ) -> None:
        self._parsers = parsers
        self._canonicalizer = canonicalizer
        self._memo = memo
        self._scope = scope
        self._seen = seen
        self._source = source
        self._sink = sink
        self._give_credit = give_credit
        self._watch = watch
        self._clock = clock
        self._log = log
        self._deadline = config.parse.deadline
        # Totals, written by this step's thread alone: seconds at work, and items done.
        self.busy_seconds = 0.0
        self.items = 0
        self._at = ""  # the parser at work, to be named where it fails
        self._max_items = config.parse.max_items
        self._follow_nofollow = config.scope.follow_nofollow
        # With a depth limit, a known URL met on a shorter way has to reach the frontier.
        self._skip_known = config.scope.max_depth is None

    def open(self) -> None:
        """Give parsers that want it a start on their own thread."""
        for _, parser in self._parsers:
            getattr(parser, "open", _nothing)()

    def close(self) -> None:
        """The counterpart of `open`; a parser that fails here is told about and left."""
        for name, parser in self._parsers:
            try:
                getattr(parser, "close", _nothing)()
            except Exception as exc:  # noqa: BLE001 - a plugin may raise anything
                self._log.warning("parser failed to close", parser=name, error=repr(exc))

    def step(self) -> bool:
        """Do one item; False at the end."""
        fetched = self._source.get()
        if fetched is None:
            return False
        self._give_credit()
        parsed = Parsed(fetched)
        began = self._clock.monotonic()
        self._watch.begin("parse", fetched.lease, self._deadline)
        wanted = True
        try:
            if fetched.response is not None:
                self._parse(parsed)
        except Exception as exc:  # noqa: BLE001 - a plugin may raise anything
            fetched.outcome = "parse_error"
            fetched.detail = f"{type(exc).__name__}: {exc}"
            parsed.records, parsed.links = [], []
            self._log.warning(
                "parse failed", url=fetched.lease.url, parser=self._at, error=fetched.detail
            )
        finally:
            wanted = self._watch.end()
            self.busy_seconds += self._clock.monotonic() - began
            self.items += 1
            # Where the page was given up meanwhile, another has settled it, and taken this
            # worker's place.
            if wanted:
                fetched.response = None
                self._sink.put(parsed)
        return wanted

    def _parse(self, parsed: Parsed) -> None:
        page = self._page(parsed.fetched)
        parsed.length = len(page.body)
        parsed.body_hash = int(page.sha256[:16], 16)
        links: list[Link] = []
        for name, parser in self._parsers:
            self._at = name
            records, found = collect(parser, page, self._max_items)
            parsed.records.extend(records)
            links.extend(found)
        if links:
            self._sift(parsed, page, links)

    def _page(self, fetched: Fetched) -> Page:
        entry, response = fetched.lease.entry, fetched.response
        assert entry is not None
        assert response is not None
        canonical = self._canonicalizer.parse(entry.url)
        return make_page(
            url=entry.url,
            final_url=fetched.final_url,
            status=response.status,
            headers=response.headers,
            body=response.body,
            depth=entry.depth,
            label=entry.label,
            canonical_url=canonical.canonical if canonical else entry.url,
            referrer=entry.referrer,
            fetched_at=rfc3339(fetched.fetched_at),
            elapsed=round(fetched.elapsed, 6),
        )

    def _sift(self, parsed: Parsed, page: Page, links: list[Link]) -> None:
        """Canonicalise, leave out what scope refuses or is known, keep the rest as entries."""
        entry = parsed.fetched.lease.entry
        assert entry is not None
        base = base_of(page)
        resolve = self._memo.resolver(self._canonicalizer.resolver(base, page.encoding), base)
        refuse, priority_of = self._scope.refuse, self._scope.priority_of
        depth = entry.depth + 1
        refused = parsed.refused
        met: set[int] = set()
        for link in links:
            if link.nofollow and not self._follow_nofollow:
                refused["nofollow"] = refused.get("nofollow", 0) + 1
                continue
            found = resolve(link.url)
            if found is None:
                refused["invalid"] = refused.get("invalid", 0) + 1
                continue
            url, fp = found
            if fp in met:
                continue
            met.add(fp)
            reason = refuse(url, depth)
            if reason is not None:
                refused[reason] = refused.get(reason, 0) + 1
                continue
            if self._skip_known and fp in self._seen:
                continue
            priority = priority_of(url) if link.priority is None else link.priority
            parsed.links.append(
                Entry(url.spelling, fp, depth, priority, page.final_url, link.label)
            )


def rfc3339(wall: float) -> str:
    """Wall-clock seconds as RFC 3339 UTC with milliseconds."""
    whole = int(wall)
    date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{date}.{int((wall - whole) * 1000):03d}Z"


def _nothing() -> None:
    """What a parser without open() or close() does."""
