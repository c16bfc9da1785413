"""A disk that loses its power: what was written, what was synced, and what is left then.

`Recorder` stands between a process and its files: Python's own calls through `os`, and
SQLite's through the methods of its VFS, so nothing of either is imitated. `after` makes the
directory tree as it may look after the power went at some event: of what was not synced,
each write and each name may be there or not. Names are as lost as data where the
directory was not synced (fsync(2)). Run as a program, this file is the process that is recorded.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# Not files of any invariant: SQLite's shared memory is made anew, reports are for people.
UNIMPORTANT = ("-shm", "lock", ".json", ".json.tmp", ".tmp")
SECTOR = 512


class Event(NamedTuple):
    """`what` is write, truncate, sync, make, folder, unlink, entries or committed."""

    what: str
    path: str
    offset: int = 0
    data: bytes = b""


# -- recording ------------------------------------------------------------------------


class Recorder:
    """Events of all files below `root`, in order, from `install` on. One process, any thread."""

    def __init__(self, root: Path) -> None:
        self._root = str(root) + os.sep
        self.events: list[Event] = []

    def install(self) -> None:
        """Wrap the functions of `os` and SQLite's default VFS, for the rest of the process."""
        self._wrap_os()
        _Vfs(self)

    def note(self, what: str, path: str, offset: int = 0, data: bytes = b"") -> None:
        if (path + os.sep).startswith(self._root) and not path.endswith(UNIMPORTANT):
            self.events.append(Event(what, path, offset, data))

    def _wrap_os(self) -> None:
        real_open, real_write, real_truncate = os.open, os.write, os.ftruncate
        real_mkdir = os.mkdir

        def path_of(fd: int) -> str:
            return os.readlink(f"/proc/self/fd/{fd}")

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            new = flags & os.O_CREAT and not os.path.exists(path)
            fd = real_open(path, flags, *rest, **named)
            if new:
                self.note("make", path_of(fd))
            return fd

        def written(fd: int, data: Any) -> int:
            # The files of the stores are opened to append.
            offset = os.fstat(fd).st_size
            count = real_write(fd, data)
            self.note("write", path_of(fd), offset, bytes(data[:count]))
            return count

        def truncated(fd: int, size: int) -> None:
            real_truncate(fd, size)
            self.note("truncate", path_of(fd), size)

        def synced(real: Callable[[int], None]) -> Callable[[int], None]:
            def sync(fd: int) -> None:
                real(fd)
                path = path_of(fd)
                self.note("entries" if os.path.isdir(path) else "sync", path)

            return sync

        def made(path: Any, *rest: Any, **named: Any) -> None:
            real_mkdir(path, *rest, **named)
            self.note("folder", os.path.abspath(path))

        os.open, os.write, os.ftruncate, os.mkdir = opened, written, truncated, made
        os.fsync, os.fdatasync = synced(os.fsync), synced(os.fdatasync)


_POINTER = ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int, _POINTER)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)
_CLOSE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
# sqlite3_io_methods, version 3: a number, then pointers; https://sqlite.org/c3ref/io_methods.html
_METHODS = _POINTER * 19
_X_CLOSE, _X_WRITE, _X_TRUNCATE, _X_SYNC = 1, 3, 4, 5
_CREATE, _WAL = 0x4, 0x80000
_JOURNALS = 0x800 | 0x4000 | _WAL


class _VfsHead(ctypes.Structure):
    """The beginning of sqlite3_vfs; https://sqlite.org/c3ref/vfs.html"""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_name", ctypes.c_int),
        ("next", _POINTER),
        ("name", ctypes.c_char_p),
        ("data", _POINTER),
        ("x_open", _POINTER),
        ("x_delete", _POINTER),
    )


def sqlite_library() -> ctypes.CDLL | None:
    """The SQLite that Python's module uses; None where it shows none of its functions."""
    import _sqlite3

    library = ctypes.CDLL(_sqlite3.__file__)
    return library if hasattr(library, "sqlite3_vfs_find") else None


class _Vfs:
    """SQLite's default VFS with five of its methods recorded; there to stay."""

    kept: list[Any] = []  # noqa: RUF012 - what C code holds pointers to must live as long

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # Open files by address: path, and whether a sync is still to sync the directory.
        self._files: dict[int, tuple[str, bool]] = {}
        self._patched: dict[int, int] = {}
        library = sqlite_library()
        assert library is not None
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_VfsHead)
        vfs = library.sqlite3_vfs_find(None).contents
        self._open, self._delete = _OPEN(vfs.x_open), _DELETE(vfs.x_delete)
        vfs.x_open = self._keep(_OPEN(self._on_open))
        vfs.x_delete = self._keep(_DELETE(self._on_delete))

    def _keep(self, function: Any) -> int | None:
        self.kept.append(function)
        return ctypes.cast(function, _POINTER).value

    def _on_open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        # SQLite keeps the pointer that it is handed, so that very one goes on.
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        new = bool(flags & _CREATE) and bool(path) and not os.path.exists(path)
        result: int = self._open(vfs, name, file, flags, out)
        methods = _POINTER.from_address(file)
        if result == 0 and methods.value:
            # SQLite's own VFS syncs the directory with the first sync of a log that it made.
            self._files[file] = (path, new and bool(flags & _JOURNALS))
            methods.value = self._patch(methods.value)
            if new:
                self._recorder.note("make", path)
        return result

    def _on_delete(self, vfs: int, name: bytes, sync_entries: int) -> int:
        result: int = self._delete(vfs, name, sync_entries)
        path = os.fsdecode(name)
        if result == 0:
            self._recorder.note("unlink", path)
            if sync_entries:
                self._recorder.note("entries", os.path.dirname(path))
        return result

    def _patch(self, address: int) -> int:
        """A copy of the methods at `address` that records; one for each kind of file."""
        if address in self._patched:
            return self._patched[address]
        methods = _METHODS.from_buffer_copy(_METHODS.from_address(address))
        real_close = _CLOSE(methods[_X_CLOSE])
        real_write, real_sync = _WRITE(methods[_X_WRITE]), _SYNC(methods[_X_SYNC])
        real_truncate = _TRUNCATE(methods[_X_TRUNCATE])

        def write(file: int, data: int, count: int, offset: int) -> int:
            result: int = real_write(file, data, count, offset)
            self._recorder.note(
                "write", self._files[file][0], offset, ctypes.string_at(data, count)
            )
            return result

        def truncate(file: int, size: int) -> int:
            result: int = real_truncate(file, size)
            self._recorder.note("truncate", self._files[file][0], size)
            return result

        def sync(file: int, flags: int) -> int:
            result: int = real_sync(file, flags)
            path, first = self._files[file]
            self._recorder.note("sync", path)
            if first:
                self._recorder.note("entries", os.path.dirname(path))
                self._files[file] = (path, False)
            return result

        def close(file: int) -> int:
            self._files.pop(file, None)
            return int(real_close(file))

        for place, kind, function in (
            (_X_CLOSE, _CLOSE, close),
            (_X_WRITE, _WRITE, write),
            (_X_TRUNCATE, _TRUNCATE, truncate),
            (_X_SYNC, _SYNC, sync),
        ):
            methods[place] = self._keep(kind(function))
        self.kept.append(methods)
        self._patched[address] = ctypes.addressof(methods)
        return self._patched[address]


# -- losing power ---------------------------------------------------------------------


@dataclass
class _File:
    """`safe` is what was synced; `waiting` what was written since, in order."""

    safe: bytearray = field(default_factory=bytearray)
    waiting: list[Event] = field(default_factory=list)

    def sync(self) -> None:
        for event in self.waiting:
            _apply(self.safe, event)
        self.waiting = []

    def left(self, chance: random.Random) -> bytes:
        """The content after the power went: any of what waits is there, whole or in part."""
        content = bytearray(self.safe)
        for event in self.waiting:
            if chance.random() < 0.5:
                kept = event.data
                if chance.random() < 0.2:
                    kept = kept[: chance.randrange(len(kept) // SECTOR + 1) * SECTOR]
                _apply(content, event._replace(data=kept))
        return bytes(content)


def _apply(content: bytearray, event: Event) -> None:
    if event.what == "truncate":
        del content[event.offset :]
        content.extend(bytes(event.offset - len(content)))
        return
    content.extend(bytes(max(0, event.offset - len(content))))
    content[event.offset : event.offset + len(event.data)] = event.data


def after(events: Iterable[Event], folder: Path, chance: random.Random) -> None:
    """Fill the empty `folder`, as which they were recorded, with what is left after `events`."""
    now: dict[str, _File | None] = {}
    safe: dict[str, _File | None] = {}
    for what, path, offset, data in events:
        if what == "make":
            now[path] = _File()
        elif what == "folder":
            now[path] = None
        elif what == "unlink":
            now.pop(path, None)
        elif what == "entries":
            here = {one for one in (*now, *safe) if os.path.dirname(one) == path}
            for one in here & now.keys():
                safe[one] = now[one]
            for one in here - now.keys():
                del safe[one]
        elif what in ("write", "truncate", "sync"):
            file = now[path]
            assert file is not None, path
            if what == "sync":
                file.sync()
            else:
                file.waiting.append(Event(what, path, offset, data))
    for path in sorted(now.keys() | safe.keys()):
        # Where a name was made or taken away and that not synced, either may be found.
        names = (
            chance.choice((now, safe)) if now.get(path, ...) is not safe.get(path, ...) else safe
        )
        if path not in names or not os.path.isdir(os.path.dirname(path)):
            continue
        file = names[path]
        if file is None:
            os.mkdir(path, 0o700)
        else:
            Path(path).write_bytes(file.left(chance))


# -- the process that is recorded -------------------------------------------------------


def main(folder: str, out: str, tables: str) -> None:
    """Crawl as `tables` say, in `folder`, and leave the events in `out`."""
    from syncrawl.frontier.disk import DiskFrontier
    from tests.crawling import crawl, settings

    recorder = Recorder(Path(folder))
    recorder.install()
    real_commit = DiskFrontier.commit

    def commit(self: DiskFrontier, batch: Any) -> Any:
        result = real_commit(self, batch)
        done = [end.entry.url for end in batch.finished if end.state == "done"]
        if done:
            recorder.events.append(Event("committed", "", 0, json.dumps(done).encode()))
        return result

    DiskFrontier.commit = commit  # type: ignore[method-assign] # to see when it returns
    report = crawl(settings(Path(folder), **json.loads(tables)))
    assert report.exit_code == 0, report.data
    Path(out).write_bytes(pickle.dumps([tuple(event) for event in recorder.events]))


if __name__ == "__main__":
    main(*sys.argv[1:])
