"""Exceptions of the database become ours, here and nowhere else.

Any thread. Imports sqlite3, msgspec and the errors; diskcache's own Timeout is known by
the database error in its context, so that reading a state needs no diskcache.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from syncrawl.errors import DiskFull, StateDamaged, StateLocked, StopCondition, SyncrawlError

# Writes that the system refused. SQLite says FULL for ENOSPC alone, not for quotas and limits.
_REFUSED_WRITES = ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_FSYNC")


def damaged(directory: Path, message: str) -> StateDamaged:
    """The error for a state that cannot be gone on with as it is."""
    return StateDamaged(message, key="crawl.state_dir", value=str(directory))


@contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Raises StateDamaged, StateLocked or DiskFull for whatever the database raises inside."""
    try:
        yield
    except SyncrawlError:
        raise
    except Exception as exc:
        cause = _first(exc)
        if cause is not None:
            raise _from_sqlite(cause, directory) from exc
        if isinstance(exc, msgspec.MsgspecError | ValueError):
            raise damaged(directory, f"the state cannot be read: {exc}") from exc
        if isinstance(exc, KeyError):
            raise damaged(directory, f"row {exc} is gone") from exc
        if isinstance(exc, OSError):
            raise _from_os(exc, directory) from exc
        raise


def _first(exc: BaseException | None) -> sqlite3.Error | None:
    """The first database error of a chain: a failed rollback hides what made it necessary."""
    first = None
    while exc is not None:
        if isinstance(exc, sqlite3.Error):
            first = exc
        exc = exc.__context__
    return first


def _from_sqlite(exc: sqlite3.Error, directory: Path) -> StopCondition:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    name = getattr(exc, "sqlite_errorname", "")
    if code == sqlite3.SQLITE_FULL or name in _REFUSED_WRITES:
        return _full(directory, str(exc))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StateLocked(
            f"another process uses the state ({exc})",
            key="crawl.state_dir",
            value=str(directory),
        )
    return damaged(directory, f"the state database answers: {exc}")


def _from_os(exc: OSError, directory: Path) -> StopCondition:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _full(directory, exc.strerror or str(exc))
    return damaged(directory, f"the state cannot be opened: {exc}")


def _full(directory: Path, why: str) -> DiskFull:
    return DiskFull(
        f"no room for the state ({why})",
        key="crawl.state_dir",
        value=str(directory),
        remedy="make room, then run again: nothing is lost",
    )
