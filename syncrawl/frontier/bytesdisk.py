"""diskcache as the frontier uses it: one database file of text keys and bytes.

Commit thread only: diskcache connections are per thread, and a second one would meet
"database is locked". The only module that imports diskcache.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import diskcache

from syncrawl.directories import make_private, sync_entries
from syncrawl.errors import ConfigError, SyncrawlError
from syncrawl.frontier.faults import damaged
from syncrawl.frontier.rows import DATABASE


class BytesDisk(diskcache.Disk):  # type: ignore[misc] # diskcache publishes no types
    """Stores bytes under text keys and refuses all else, so nothing is ever unpickled.

    diskcache would unpickle whatever a row says is a pickle (CVE-2025-69872), and delete
    whatever file a row names.
    """

    def put(self, key: Any) -> tuple[str, bool]:
        """The key as stored. Raises TypeError for anything but text."""
        if type(key) is not str:
            raise TypeError(f"a frontier key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        """A stored key. Raises StateDamaged for anything but text."""
        if not raw or type(key) is not str:
            raise damaged(Path(self._directory), "a row's key is not text")
        return key

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        """The columns of a value. Raises TypeError for anything but bytes."""
        if type(value) is not bytes or read:
            raise TypeError(f"a frontier value is bytes, not {type(value).__name__}")
        return 0, diskcache.core.MODE_RAW, None, value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        """A stored value. Raises StateDamaged for anything but bytes in the row itself."""
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not bytes:
            raise damaged(Path(self._directory), "a row's value is not plain bytes")
        return value

    def remove(self, file_path: str) -> None:
        """Leave it: no row of ours has a file, so the name is somebody else's doing."""


# Pages of 4 KiB that SQLite keeps in memory.
_CACHE_PAGES = 2048


def open_cache(directory: Path, *, power: bool = False) -> Any:
    """The diskcache.Cache of a state, made where there is none; readable by its owner only.

    With `power`, a transaction that has ended survives the loss of power.

    The caller has made sure that what is there is a state of ours: diskcache writes its
    settings as it opens.
    """
    path = str(directory)
    if os.path.expandvars(os.path.expanduser(path)) != path:
        # diskcache expands them and would go elsewhere.
        raise ConfigError(
            "holds the name of an environment variable",
            key="crawl.state_dir",
            value=path,
            remedy="choose a path without $ and ~",
        )
    make_private(directory)
    database = directory / DATABASE
    # SQLite gives its companions the database's mode.
    os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    for made, mode in ((directory, 0o700), (database, 0o600)):
        if made.stat().st_mode & 0o077:
            os.chmod(made, mode)
    if power:
        # SQLite syncs the directory for its log, but did not make the database.
        sync_entries(directory)
    cache = diskcache.Cache.__new__(diskcache.Cache)
    try:
        cache.__init__(
            path,
            disk=BytesDisk,
            disk_min_file_size=1 << 30,
            eviction_policy="none",
            size_limit=1 << 62,
            cull_limit=0,
            # Rows are written once and read once, if at all: diskcache's own 32 MiB of cached
            # pages would only be memory.
            sqlite_cache_size=_CACHE_PAGES,
            statistics=0,
            tag_index=0,
            sqlite_journal_mode="wal",
            # In WAL mode, NORMAL syncs at checkpoints of the log only, FULL at every commit.
            sqlite_synchronous=2 if power else 1,
            # Freed pages are used again; giving them back moves others at every commit.
            sqlite_auto_vacuum=0,
            # A read error of a mapped file is a SIGBUS, not an exception.
            sqlite_mmap_size=0,
        )
    except (SyncrawlError, OSError, sqlite3.Error, diskcache.Timeout):
        _let_go(cache)
        raise
    except Exception as exc:
        _let_go(cache)
        # diskcache takes attribute names and pragmas from its settings table.
        raise damaged(directory, f"its settings cannot be used: {exc!r}") from exc
    return cache


def _let_go(cache: Any) -> None:
    """Close the connection of a cache whose constructor failed; diskcache leaves it open."""
    connection = getattr(getattr(cache, "_local", None), "con", None)
    if connection is not None:
        connection.close()
