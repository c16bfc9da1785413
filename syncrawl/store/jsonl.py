"""Records as JSON Lines: one object a line, UTF-8, one write a batch.

Runs on the commit thread only. Imports its neighbour `files` and the errors.

Lone surrogates, which UTF-8 and most readers refuse, become U+FFFD. The line ends of
Unicode (U+0085, U+2028, U+2029) are escaped, so that a record stays one line for readers
that split on those as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from syncrawl.api import Record
from syncrawl.store.files import AppendFile, check_options, durability, plain

_LINE_ENDS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")


def jsonl_store(options: Mapping[str, Any]) -> JsonlStore:
    """A store for `[[stores]] type = "jsonl"`; options: path, durability ("kill" | "power")."""
    check_options("jsonl", options, ("durability",))
    return JsonlStore(AppendFile(options["path"], power=durability(options)))


class JsonlStore:
    """Appends JSON Lines to a file, standard output or a pipe."""

    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder(enc_hook=_as_dict)

    def __repr__(self) -> str:
        return f"<JsonlStore {self._file!r}>"

    def open(self) -> None:
        """Open the output; what it holds already stays."""
        self._file.open()

    def write(self, records: Iterable[Record]) -> None:
        """Append one line a record; TypeError for a value JSON has no form for."""
        batch = list(records)
        try:
            lines = self._encoder.encode_lines(batch)
        except UnicodeEncodeError:
            lines = self._encoder.encode_lines([plain(record) for record in batch])
        for char, escaped in _LINE_ENDS:
            lines = lines.replace(char, escaped)
        self._file.append(lines)

    def checkpoint(self) -> bytes:
        """A token for all that was written; see `AppendFile.checkpoint`."""
        return self._file.checkpoint()

    def recover(self, token: bytes) -> None:
        """Cut off what came after `token`; StoreDamaged when the file holds less."""
        self._file.recover(token)

    def close(self) -> None:
        """Let go of the output."""
        self._file.close()


def _as_dict(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a record holds a {type(value).__name__}, which JSON has no form for")
