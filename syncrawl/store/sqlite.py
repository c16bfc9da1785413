"""Records as rows of an SQLite table, whose columns are the record keys in the order seen.

Runs on the commit thread only; SQLite itself holds us to that. Imports its neighbour
`files` and the errors.

A new database is put into WAL mode: whoever reads it during the crawl neither waits for
us nor makes us wait, and a commit needs no fsync to survive the death of this process.
While it is open, `-wal` and `-shm` files lie beside it and belong to it. A database that
exists keeps its mode. Ids are never used twice (AUTOINCREMENT), so a program that polls
for `id > last` misses no row after rows were taken back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from syncrawl.api import Record
from syncrawl.directories import sync_entries
from syncrawl.errors import ConfigError
from syncrawl.store.files import (
    STDOUT,
    cannot_open,
    check_creatable,
    check_options,
    damaged,
    durability,
    make_parents,
    no_room,
    plain,
    real_path,
    unusable,
    whole,
)

MAX_COLUMNS: Final = 200
EXTRA: Final = "extra"
# How long another program may hold the database before our write counts as failed.
_BUSY_SECONDS: Final = 10.0
_ROW_NAMES: Final = ("rowid", "_rowid_", "oid")
_MAX_NAME_BYTES: Final = 128
_INT64: Final = range(-(2**63), 2**63)


def sqlite_store(options: Mapping[str, Any]) -> SqliteStore:
    """A store for `[[stores]] type = "sqlite"`; options: path, table = "records", durability."""
    check_options("sqlite", options, ("table", "durability"))
    table = options.get("table", "records")
    if not _usable_name(table) or table.lower().startswith("sqlite_"):
        raise ConfigError(
            "not a table name SQLite accepts", key="stores.table", value=table, remedy="rename it"
        )
    path = real_path(options)
    if path == STDOUT:
        raise unusable(path, "the sqlite store needs a file", "name one, or use jsonl")
    return SqliteStore(path, table, power=durability(options))


class _Token(msgspec.Struct, frozen=True):
    """What the table held: its last id, its rows, and a digest of the last row.

    The digest covers the first `columns` columns, so that later ones do not matter.
    """

    last: int
    rows: int
    columns: int
    digest: str


class SqliteStore:
    """Inserts rows; a transaction is open from the first write to the next checkpoint.

    A key that has no column to go to (it clashes with another but for its case or with our
    `id`, or 200 columns are taken) goes into the JSON object in column `extra`.
    Nested values are JSON text, integers beyond 64 bits text, booleans 0 and 1.
    An sqlite3.Error that may pass (a lock held for long, say) is left as it is.
    """

    def __init__(self, path: str, table: str = "records", *, power: bool = False) -> None:
        self.path = path
        self._name = table
        self._table = _quoted(table)
        self._power = power
        self._db: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._broken = ""
        self._forget()

    def __repr__(self) -> str:
        state = "closed" if self._db is None else f"committed to id {self._last}"
        return f"<SqliteStore {self.path} table {self._name!r}, {state}>"

    def open(self) -> None:
        """Open what exists, changing nothing; the rest is made by the first checkpoint."""
        if self._db is not None:
            return
        self._broken = ""
        self._forget()
        try:
            mode = os.stat(self.path).st_mode
        except FileNotFoundError:
            check_creatable(self.path)
            return
        except OSError as error:
            raise unusable(self.path, f"cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(mode):
            raise unusable(self.path, "the sqlite store needs a regular file")
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise unusable(self.path, "this user may not read and write it")
        self._connect()

    def write(self, records: Iterable[Record]) -> None:
        """Insert one row a record, adding columns as new keys come up."""
        batch = list(records)
        if not batch:
            return
        with self._translating():
            db = self._ready()
            if not db.in_transaction:
                self._begin(db)
            # Records of one parser have the same keys: one statement then serves the batch.
            for keys, group in groupby(batch, key=tuple):
                self._insert(db, keys, group)

    def checkpoint(self) -> bytes:
        """COMMIT, and a token for what the table then holds."""
        with self._translating():
            db = self._ready()
            if not db.in_transaction:
                self._begin(db)
            self._last = self._last_id(db)
            digest = self._digest(db, self._last, len(self._columns))
            db.execute("COMMIT")
        self._check_place()
        return msgspec.json.encode(_Token(self._last, self._rows, len(self._columns), digest))

    def recover(self, token: bytes) -> None:
        """Delete the rows that came after `token`; StoreDamaged when there are fewer."""
        try:
            wanted = msgspec.json.decode(token, type=_Token)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise damaged(self.path, "is not what the state's token was made for") from error
        if self._broken:
            raise damaged(self.path, self._broken)
        if self._db is None:
            raise damaged(self.path, "is gone")
        self._check_place()
        with self._translating():
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._take_back(self._db, wanted)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            self._rows, self._last = wanted.rows, self._last_id(self._db)

    def close(self) -> None:
        """Close the database; what was not checkpointed is rolled back."""
        if self._db is not None:
            db, self._db = self._db, None
            db.close()

    def _forget(self) -> None:
        """Know nothing of the table: before it is opened, and where it is missing."""
        self._columns: list[str] = []
        self._taken: dict[str, str] = {}
        self._row = ""
        # Counting walks the whole table; -1 until somebody needs it.
        self._rows = -1
        self._last = 0

    def _connect(self) -> None:
        here = os.stat(self.path)
        self._identity = (here.st_dev, here.st_ino)
        if self._power:
            # SQLite syncs the directory for its log, but did not make the database.
            sync_entries(Path(self.path).parent)
        uri = f"file:{quote(os.fsencode(self.path))}?mode=rw"
        db = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
        # Rows from before the crawl may hold text that is no UTF-8.
        db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        try:
            db.execute(f"PRAGMA synchronous = {'FULL' if self._power else 'NORMAL'}")
            self._learn(db)
        except sqlite3.DatabaseError as error:
            db.close()
            if _code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                self._raise_if_final(error)
                raise
            # Whether this is a bad path or a damaged output, only a token can tell.
            self._broken = "is no SQLite database, or a damaged one"
            return
        except BaseException:
            db.close()
            raise
        self._db = db

    def _ready(self) -> sqlite3.Connection:
        """The connection, to a database and table made now if there were none."""
        if self._broken:
            raise unusable(self.path, self._broken)
        if self._db is None:
            make_parents(self.path)
            try:
                # Made here and not by SQLite, for the mode; its own files take it over.
                flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
                os.close(os.open(self.path, flags, 0o600))
            except FileExistsError:
                pass
            except OSError as error:
                raise cannot_open(error, self.path) from error
            self._connect()
            return self._ready()
        if not self._row:
            self._make_table(self._db)
        return self._db

    def _make_table(self, db: sqlite3.Connection) -> None:
        if not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"CREATE TABLE {self._table} (id INTEGER PRIMARY KEY AUTOINCREMENT)")
        self._learn(db)

    def _learn(self, db: sqlite3.Connection) -> None:
        """Read what the table is like: its columns, the name of its row ids, the last id."""
        self._forget()
        kind = db.execute(
            "SELECT type FROM sqlite_master WHERE lower(name) = lower(?)", (self._name,)
        ).fetchone()
        if kind is None:
            return
        if kind[0] != "table":
            raise self._unfit(f"is a {kind[0]}, not a table")
        columns = db.execute(f"PRAGMA table_info({self._table})").fetchall()
        composite = sum(column[5] > 0 for column in columns) > 1
        for _, name, declared, _, _, key in columns:
            if key and declared.upper() == "INTEGER" and not composite:
                self._row = _quoted(name)
                self._taken[name.lower()] = ""
                continue
            self._columns.append(name)
            self._taken[name.lower()] = name
        if not self._row:
            self._row = next((n for n in _ROW_NAMES if n not in self._taken), "")
            if not self._row:
                raise self._unfit("hides the ids of its rows")
            self._taken[self._row] = ""
        self._last = self._last_id(db)

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(
            why, key="stores.table", value=self._name, remedy="choose another table name"
        )

    def _begin(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        if self._last_id(db) != self._last:
            raise damaged(self.path, "was changed by another program while it was written")
        if self._rows < 0:
            self._rows = db.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0]

    def _insert(
        self, db: sqlite3.Connection, keys: tuple[str, ...], group: Iterable[Record]
    ) -> None:
        columns = [self._column(db, key) for key in keys]
        own = [(key, column) for key, column in zip(keys, columns, strict=True) if column]
        beside = [key for key, column in zip(keys, columns, strict=True) if not column]
        names = [_quoted(column) for _, column in own]
        if beside:
            names.append(_quoted(self._extra(db)))
        rows = []
        for record in group:
            row = [_cell(record[key]) for key, _ in own]
            if beside:
                row.append(_cell({key: record[key] for key in beside}))
            rows.append(row)
        if names:
            marks = ",".join("?" * len(names))
            into = f"INSERT INTO {self._table} ({','.join(names)}) VALUES ({marks})"
            db.executemany(into, rows)
        else:
            for _ in rows:
                db.execute(f"INSERT INTO {self._table} DEFAULT VALUES")
        self._rows += len(rows)

    def _column(self, db: sqlite3.Connection, key: str) -> str:
        """The column for a record's key, added if there is room; "" sends it to `extra`."""
        known = self._taken.get(key.lower() if isinstance(key, str) else "")
        if known is not None:
            return known if known == key and key != EXTRA else ""
        # One place is kept for `extra` itself.
        if not _usable_name(key) or key.lower() == EXTRA or len(self._columns) >= MAX_COLUMNS - 1:
            return ""
        self._add(db, key)
        return key

    def _extra(self, db: sqlite3.Connection) -> str:
        if EXTRA not in self._taken:
            self._add(db, EXTRA)
        return self._taken[EXTRA]

    def _add(self, db: sqlite3.Connection, name: str) -> None:
        # No type is declared: SQLite then stores the text "007" as text and 7 as a number.
        db.execute(f"ALTER TABLE {self._table} ADD COLUMN {_quoted(name)}")
        self._columns.append(name)
        self._taken[name.lower()] = name

    def _take_back(self, db: sqlite3.Connection, wanted: _Token) -> None:
        self._learn(db)
        if not self._row:
            raise damaged(self.path, f"has no table {self._name!r} any more")
        kept = db.execute(
            f"SELECT count(*) FROM {self._table} WHERE {self._row} <= ?", (wanted.last,)
        ).fetchone()[0]
        if kept != wanted.rows:
            raise damaged(self.path, f"has {kept} of the {wanted.rows} rows it had")
        if len(self._columns) < wanted.columns:
            raise damaged(self.path, "has fewer columns than it had")
        if self._digest(db, wanted.last, wanted.columns) != wanted.digest:
            raise damaged(self.path, f"is another database: row {wanted.last} differs")
        db.execute(f"DELETE FROM {self._table} WHERE {self._row} > ?", (wanted.last,))

    def _last_id(self, db: sqlite3.Connection) -> int:
        found = db.execute(f"SELECT max({self._row}) FROM {self._table}").fetchone()[0]
        return int(found or 0)

    def _digest(self, db: sqlite3.Connection, row: int, columns: int) -> str:
        names = ",".join(_quoted(name) for name in self._columns[:columns]) or "NULL"
        found = db.execute(
            f"SELECT {names} FROM {self._table} WHERE {self._row} = ?", (row,)
        ).fetchone()
        return hashlib.blake2b(repr(found).encode("utf-8", "replace"), digest_size=8).hexdigest()

    def _check_place(self) -> None:
        try:
            here = os.stat(self.path)
        except OSError as error:
            raise damaged(self.path, f"is gone ({error.strerror})") from error
        if (here.st_dev, here.st_ino) != self._identity:
            raise damaged(self.path, "was replaced by another file")

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._raise_if_final(error)
            raise

    def _raise_if_final(self, error: sqlite3.Error) -> None:
        code = _code(error)
        if self._db is not None:
            # SQLite's own word for a file moved away is "read-only", or an I/O error.
            self._check_place()
        if code == sqlite3.SQLITE_FULL:
            raise no_room(self.path, str(error)) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(self.path, f"is damaged: {error}") from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise unusable(self.path, f"cannot be written: {error}") from error


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None for what Python's module raises by itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _usable_name(name: object) -> bool:
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def _cell(value: Any) -> Any:
    """What SQLite is given for a value of a record."""
    if isinstance(value, str):
        return value if value.isascii() else whole(value)
    if value is None or isinstance(value, float | bytes):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else str(value)
    return msgspec.json.encode(plain(value)).decode()
