"""A state directory read from outside: never written to, and nothing in it is trusted.

Any thread, any process, also beside a running crawl. Imports sqlite3, not diskcache,
which writes as it opens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from syncrawl.errors import StateDamaged, StateMismatch
from syncrawl.frontier.faults import damaged, translated
from syncrawl.frontier.rows import DATABASE, FORMAT, MARKER, Meta, decode_meta

# diskcache's word for a value that is in the row as it is.
_MODE_RAW = 1
_BUSY_SECONDS = 5.0


class StateReader:
    """One snapshot of a state's rows, sorted by key. Use it in a `with`, inside `translated`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        uri = (directory / DATABASE).absolute().as_uri() + "?mode=ro"
        if not (directory / f"{DATABASE}-wal").exists():
            # Without a log nobody has the database open, and looking must leave no log behind.
            uri += "&immutable=1"
        self._connection = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None
        )

    def __enter__(self) -> Self:
        self._connection.execute("BEGIN")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def tables(self) -> set[str]:
        """The names of the tables."""
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in rows}

    def is_empty(self) -> bool:
        """True where there is no row at all."""
        return self._connection.execute("SELECT 1 FROM Cache LIMIT 1").fetchone() is None

    def get(self, key: str) -> bytes | None:
        """The value of one row. Raises StateDamaged where it is not plain bytes."""
        row = self._connection.execute(
            "SELECT mode, filename, value FROM Cache WHERE key = ? AND raw = 1", (key,)
        ).fetchone()
        return None if row is None else self._plain(key, *row)

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix`, without it."""
        for (key,) in self._rows("key", prefix):
            yield key[len(prefix) :]

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """The same with their values. Raises StateDamaged where one is not plain bytes."""
        for key, *columns in self._rows("key, mode, filename, value", prefix):
            yield key[len(prefix) :], self._plain(key, *columns)

    def check_rows(self) -> None:
        """Raise StateDamaged where any row is not text and plain bytes, or would expire."""
        odd = self._connection.execute(
            "SELECT key FROM Cache WHERE typeof(key) != 'text' OR raw != 1"
            " OR mode != ? OR filename IS NOT NULL OR typeof(value) != 'blob'"
            " OR expire_time IS NOT NULL LIMIT 1",
            (_MODE_RAW,),
        ).fetchone()
        if odd is not None:
            raise self._odd(odd[0])

    def _rows(self, columns: str, prefix: str) -> sqlite3.Cursor:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return self._connection.execute(
            f"SELECT {columns} FROM Cache WHERE key >= ? AND key < ? AND raw = 1 ORDER BY key",
            (prefix, end),
        )

    def _plain(self, key: str, mode: object, filename: object, value: object) -> bytes:
        if mode != _MODE_RAW or filename is not None or not isinstance(value, bytes):
            raise self._odd(key)
        return value

    def _odd(self, key: object) -> StateDamaged:
        name = key if isinstance(key, str) else "?"
        return damaged(self._directory, f"row {name} is not plain bytes")


def is_there(directory: Path) -> bool:
    """True where a database is that may be a state of ours; a new one's is empty at first."""
    try:
        return (directory / DATABASE).stat().st_size > 0
    except FileNotFoundError:
        return False


def check(directory: Path, rules: str) -> bool:
    """Whether a state is there that can be gone on with; looks and leaves all as it is.

    Raises StateMismatch for one of another version, other `rules` or another program,
    StateDamaged for one that cannot be read.
    """
    with translated(directory):
        meta = _read_meta(directory)
        if meta is None:
            if (directory / MARKER).exists():
                raise damaged(directory, f"{DATABASE} is gone or empty")
            return False
    if meta.format != FORMAT:
        raise StateMismatch(
            f"the state has format {meta.format}, this version reads {FORMAT}",
            key="crawl.state_dir",
            value=str(directory),
            remedy="finish it with the version that wrote it, or start over with --fresh",
        )
    if meta.fingerprints != rules:
        raise StateMismatch(
            "the state was made with other rules for comparing URLs "
            f"({meta.fingerprints}, now {rules})",
            key="scope.tracking_parameters",
            remedy="restore the setting, or start over with --fresh",
        )
    return True


def _read_meta(directory: Path) -> Meta | None:
    """The meta row; None for a database that a crash left before it had one."""
    if not is_there(directory):
        return None
    with StateReader(directory) as reader:
        tables = reader.tables()
        if "Cache" in tables:
            raw = reader.get("meta")
            if raw is not None:
                return decode_meta(raw)
            if reader.is_empty():
                return None
        elif not tables or tables == {"Settings"}:
            return None
    raise StateMismatch(
        "this directory holds another program's data",
        key="crawl.state_dir",
        value=str(directory),
        remedy="choose another crawl.state_dir",
    )
