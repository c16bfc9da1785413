"""Records as CSV with a fixed set of columns.

Runs on the commit thread only. Imports its neighbour `files` and the errors.

Lines end with "\\n", as every other text file here, and not with the "\\r\\n" of RFC 4180
section 2; readers of the RFC's form accept both. Line breaks inside a cell become "\\n".
A cell whose text a spreadsheet would run as a formula gets a leading apostrophe
(OWASP, "CSV Injection"); numbers, also those written as text, stay as they are.
Other control characters become U+FFFD. The header is written into an empty output only:
an existing file is continued as it is, whatever its header says.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from syncrawl.api import Record
from syncrawl.errors import ConfigError
from syncrawl.store.files import AppendFile, check_options, durability, plain, whole

DEFAULT_FIELDS = (
    "url",
    "canonical_url",
    "final_url",
    "status",
    "depth",
    "referrer",
    "fetched_at",
    "elapsed",
    "content_type",
    "encoding",
    "length",
    "sha256",
    "title",
    "text_excerpt",
    "links",
)

# Full-width forms of the signs count: some spreadsheets fold them.
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def csv_store(options: Mapping[str, Any]) -> CsvStore:
    """A store for `[[stores]] type = "csv"`; options: path, fields (list), durability."""
    check_options("csv", options, ("fields", "durability"))
    fields = options.get("fields", DEFAULT_FIELDS)
    if (
        not isinstance(fields, list | tuple)
        or not fields
        or not all(isinstance(name, str) and name for name in fields)
        or len(set(fields)) != len(fields)
    ):
        raise ConfigError(
            "the columns of a csv store are a list of distinct, non-empty names",
            key="stores.fields",
            value=fields,
            remedy='for instance ["url", "status", "title"]',
        )
    return CsvStore(AppendFile(options["path"], power=durability(options)), fields)


class CsvStore:
    """Appends rows to a file, standard output or a pipe; unknown record keys are left out."""

    def __init__(self, file: AppendFile, fields: Sequence[str] = DEFAULT_FIELDS) -> None:
        self._file = file
        self._fields = tuple(fields)

    def __repr__(self) -> str:
        return f"<CsvStore {len(self._fields)} columns, {self._file!r}>"

    def open(self) -> None:
        """Open the output; what it holds already stays."""
        self._file.open()

    def write(self, records: Iterable[Record]) -> None:
        """Append one row a record, a missing key as an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([_cell(record.get(name)) for name in self._fields] for record in records)
        rows = text.getvalue()
        if not rows:
            return
        if self._file.empty:
            header = io.StringIO()
            csv.writer(header, lineterminator="\n").writerow(map(_cell, self._fields))
            rows = header.getvalue() + rows
        try:
            data = rows.encode()
        except UnicodeEncodeError:
            data = whole(rows).encode()
        self._file.append(data)

    def checkpoint(self) -> bytes:
        """A token for all that was written; see `AppendFile.checkpoint`."""
        return self._file.checkpoint()

    def recover(self, token: bytes) -> None:
        """Cut off what came after `token`; StoreDamaged when the file holds less."""
        self._file.recover(token)

    def close(self) -> None:
        """Let go of the output."""
        self._file.close()


def _cell(value: Any) -> str | int | float:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ""
    return _text(msgspec.json.encode(plain(value)).decode())


def _text(value: str) -> str:
    if value[:1] in _FORMULA and not _NUMBER.fullmatch(value):
        value = "'" + value
    if value.isprintable():
        return value
    # The csv module leaves a lone CR unquoted, and readers take it for a row's end.
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("\ufffd", value)
