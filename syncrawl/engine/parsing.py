"""The parse stage's step: a fetched page becomes records and links in scope.

One instance a parse thread, which owns its parsers, or the child process that has them.
Everything here is pure but for the queues: canonical form and scope are decided before the
commit thread sees a link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from syncrawl import registry
from syncrawl.clock import Clock
from syncrawl.config.model import Config
from syncrawl.engine.lease import Fetched, Parsed
from syncrawl.engine.watch import WorkWatch
from syncrawl.errors import PluginError
from syncrawl.frontier.model import Entry, origin_of
from syncrawl.frontier.seen import SeenSet
from syncrawl.log import Log
from syncrawl.parse.keeper import ChildKeeper, ChildLost, ParserRaised, ParseTimeout
from syncrawl.parse.work import Bench, NamedParser, ParserUnusable, Parts, Work, told
from syncrawl.scope import Scope
from syncrawl.urls import Canonicalizer, Resolver, Url, fingerprint

__all__ = ["LinkMemo", "NamedParser", "ParseStep", "Sink", "Source", "rfc3339"]

# Links remembered, about 0.6 KiB each, and how long one may be to be worth it.
_MEMO = 16_384
_PLAIN = 200


class Source(Protocol):
    def get(self) -> Fetched | None: ...


class Sink(Protocol):
    def put(self, item: Parsed) -> None: ...


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
    """One fetched item a step; None in the queue ends the worker.

    With `child`, that parses, and `parsers` are not used.
    """

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
        child: ChildKeeper | None = None,
    ) -> None:
        self._bench = Bench(parsers, config.parse.max_items)
        self._child = child
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
        # A child has a deadline of its own. That it holds is not taken for granted.
        self._limit = child.longest if child else config.parse.deadline
        # Totals, written by this step's thread alone: seconds at work, and items done.
        self.busy_seconds = 0.0
        self.items = 0
        self._follow_nofollow = config.scope.follow_nofollow
        # With a depth limit, a known URL met on a shorter way has to reach the frontier.
        self._skip_known = config.scope.max_depth is None

    def open(self) -> None:
        """Give parsers that want it a start on their own thread, or start the child.

        Raises PluginError where one cannot be opened.
        """
        try:
            (self._child or self._bench).open()
        except ParserUnusable as exc:
            raise _plugin_error(exc) from exc

    def close(self) -> None:
        """The counterpart of `open`; a parser that fails here is told about and left."""
        if self._child:
            self._child.close()
        else:
            self._bench.close(self._on_failed_close)
        # The step's totals are read until the crawl ends; its parsers may hold much.
        self._bench = Bench((), 0)

    def _on_failed_close(self, name: str, error: BaseException) -> None:
        self._log.warning("parser failed to close", parser=name, error=told(error))

    def step(self) -> bool:
        """Do one item; False at the end.

        Raises PluginError where there can be no parsers any more; the item is then no more
        than leased, and thus pending in the next run.
        """
        fetched = self._source.get()
        if fetched is None:
            return False
        self._give_credit()
        parsed = Parsed(fetched)
        began = self._clock.monotonic()
        self._watch.begin("parse", fetched.lease, self._limit, fetched, self._at)
        wanted = True
        unusable: PluginError | None = None
        try:
            if fetched.response is not None:
                self._parse(parsed)
        except ParserUnusable as exc:
            unusable = _plugin_error(exc)
        except BaseException as exc:  # noqa: BLE001 - a plugin may raise anything, SystemExit too
            self._fail(parsed, exc)
        finally:
            wanted = self._watch.end()
            self.busy_seconds += self._clock.monotonic() - began
            self.items += 1
            # Where the page was given up meanwhile, another has settled it, and taken this
            # worker's place.
            if wanted and unusable is None:
                fetched.response = None
                self._sink.put(parsed)
        if unusable is not None:
            raise unusable
        return wanted

    def _parse(self, parsed: Parsed) -> None:
        response = parsed.fetched.response
        assert response is not None
        work = (self._child or self._bench).parse(self._parts(parsed.fetched), response.body)
        parsed.length = work.length
        parsed.body_hash = work.body_hash
        parsed.records = work.records
        if work.links:
            self._sift(parsed, work)

    def _fail(self, parsed: Parsed, error: BaseException) -> None:
        """Nothing of the page counts; its outcome says why."""
        fetched = parsed.fetched
        fetched.outcome = "parse_timeout" if isinstance(error, ParseTimeout) else "parse_error"
        # An error that a child tells of names its class itself.
        known = isinstance(error, ChildLost | ParserRaised)
        fetched.detail = str(error) if known else told(error)
        parsed.records, parsed.links = [], []
        values = {"stack": error.stack} if isinstance(error, ChildLost) and error.stack else {}
        self._log.warning(
            "parse failed",
            url=fetched.lease.url,
            parser=self._at(),
            error=fetched.detail,
            **values,
        )

    def _at(self) -> str:
        """The parser that has, or last had, the page."""
        return (self._child or self._bench).at

    def _parts(self, fetched: Fetched) -> Parts:
        entry, response = fetched.lease.entry, fetched.response
        assert entry is not None
        assert response is not None
        canonical = self._canonicalizer.parse(entry.url)
        return Parts(
            entry.url,
            fetched.final_url,
            response.status,
            response.headers.pairs(),
            entry.depth,
            entry.label,
            canonical.canonical if canonical else entry.url,
            entry.referrer,
            rfc3339(fetched.fetched_at),
            round(fetched.elapsed, 6),
        )

    def _sift(self, parsed: Parsed, work: Work) -> None:
        """Canonicalise, leave out what scope refuses or is known, keep the rest as entries."""
        entry = parsed.fetched.lease.entry
        assert entry is not None
        base = work.base
        resolve = self._memo.resolver(self._canonicalizer.resolver(base, work.encoding), base)
        refuse, priority_of = self._scope.refuse, self._scope.priority_of
        depth = entry.depth + 1
        refused = parsed.refused
        referrer = parsed.fetched.final_url
        met: set[int] = set()
        for link in work.links:
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
            parsed.links.append(Entry(url.spelling, fp, depth, priority, referrer, link.label))


def _plugin_error(error: ParserUnusable) -> PluginError:
    if error.parser:
        return registry.broken("parsers", error.parser, error.message)
    return PluginError(error.message)


def rfc3339(wall: float) -> str:
    """Wall-clock seconds as RFC 3339 UTC with milliseconds."""
    whole = int(wall)
    date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{date}.{int((wall - whole) * 1000):03d}Z"
