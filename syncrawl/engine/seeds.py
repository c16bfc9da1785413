"""Seeds, read lazily: from the configuration, from files of any size, from standard input.

A thread of its own reads (standard input may never end); the commit thread takes chunks.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

from syncrawl.config.model import CrawlConfig
from syncrawl.errors import ConfigError, StopCondition
from syncrawl.frontier.model import SEED_PRIORITY, Entry, host_of
from syncrawl.log import Log
from syncrawl.scope import Scope
from syncrawl.urls import Canonicalizer, Url, fingerprint, redact

_CHUNK = 500


class Chunk:
    """Some seeds in scope, and how many were refused, by reason."""

    __slots__ = ("entries", "refused")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.refused: dict[str, int] = {}


class SeedReader:
    """Reads seeds ahead of the commit thread, a few chunks at most."""

    def __init__(
        self,
        config: CrawlConfig,
        *,
        canonicalizer: Canonicalizer,
        scope: Scope,
        on_chunk: Callable[[], None],
        log: Log,
    ) -> None:
        self._config = config
        self._canonicalizer = canonicalizer
        self._scope = scope
        self._on_chunk = on_chunk
        self._log = log
        # host[:port] of every seed read; only added to, so look-ups need no lock.
        self.hosts: set[str] = set()
        # Filled by the reader, emptied by the commit thread; bound: what is read ahead costs
        # memory and helps nobody.
        self._chunks: queue.Queue[Chunk] = queue.Queue(4)
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._error: ConfigError | None = None
        # True while standard input is read (reader thread only).
        self._live = False
        # A daemon: a read of standard input cannot be interrupted and must not hold up the end.
        self._thread = threading.Thread(target=self._run, name="seeds", daemon=True)

    def start(self) -> None:
        """Begin to read. Raises StopCondition where the system has no thread for it."""
        try:
            self._thread.start()
        except RuntimeError as exc:
            raise StopCondition(f"no thread can be had to read seeds: {exc}") from exc

    def stop(self) -> None:
        """Read no further."""
        self._stopped.set()
        while self.take() is not None:
            continue

    def take(self) -> Chunk | None:
        """The next chunk, or None where none is ready. Raises ConfigError for a bad file."""
        try:
            return self._chunks.get_nowait()
        except queue.Empty:
            if self._error is not None and not self._stopped.is_set():
                raise self._error from None
            return None

    @property
    def ready(self) -> bool:
        """True where `take` has something to give (or to raise)."""
        return not self._chunks.empty() or self._error is not None

    @property
    def ended(self) -> bool:
        """True once every seed was read and taken."""
        return self._ended.is_set() and self._chunks.empty() and self._error is None

    def _run(self) -> None:
        try:
            for part in self._parts():
                self._hand_over(self._chunk(part))
                if self._stopped.is_set():
                    return
        except ConfigError as exc:
            self._error = exc
        finally:
            self._ended.set()
            self._on_chunk()

    def _parts(self) -> Iterator[list[str]]:
        """The seeds, many at a time; from standard input as soon as nobody has any left."""
        part: list[str] = []
        for text in self._texts():
            part.append(text)
            # Who writes to standard input may pause for ever after any line.
            if len(part) >= _CHUNK or (self._live and self._chunks.empty()):
                yield part
                part = []
        if part:
            yield part

    def _texts(self) -> Iterator[str]:
        yield from self._config.seeds
        for path in self._config.seed_files:
            self._live = path == "-"
            try:
                yield from _lines(self._file(path))
            # ValueError: a path or an input that is no text at all.
            except (OSError, ValueError) as exc:
                raise ConfigError(
                    f"cannot be read: {getattr(exc, 'strerror', None) or exc}",
                    key="crawl.seed_files",
                    value=path,
                    remedy="name a readable text file with one URL a line",
                ) from exc

    def _file(self, path: str) -> Iterator[str]:
        if path != "-":
            # Editors elsewhere put a byte order mark before the first URL.
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                yield from file
        elif sys.stdin is None:
            raise OSError("there is no standard input")
        else:
            yield from sys.stdin

    def _chunk(self, texts: list[str]) -> Chunk:
        chunk = Chunk()
        urls: list[Url] = []
        for text in texts:
            url = self._canonicalizer.parse(text)
            if url is None:
                self._log.warning("seed is no http(s) URL", seed=redact(text)[:200])
                chunk.refused["invalid"] = chunk.refused.get("invalid", 0) + 1
            else:
                urls.append(url)
        self._scope.extend(urls)
        self.hosts.update(host_of(url.spelling) for url in urls)
        for url in urls:
            reason = self._scope.refuse_seed(url)
            if reason is not None:
                chunk.refused[reason] = chunk.refused.get(reason, 0) + 1
                self._log.warning("seed is out of scope", seed=redact(url.spelling), reason=reason)
                continue
            entry = Entry(url.spelling, fingerprint(url.key), priority=SEED_PRIORITY, seed=True)
            chunk.entries.append(entry)
        return chunk

    def _hand_over(self, chunk: Chunk) -> None:
        if self._stopped.is_set():
            return
        # `stop` empties the queue after it set the flag, so this put always gets room.
        self._chunks.put(chunk)
        self._on_chunk()


def _lines(file: Iterable[str]) -> Iterator[str]:
    for line in file:
        text = line.strip()
        if text and not text.startswith("#"):
            yield text
