"""What the stores share: their options, their errors, and a file that can be taken back.

Runs on the commit thread only. Imports the clock, `durable` and the errors; no other room.

A file is never made by `open()`: a crawl that resumes must find its output gone, not find
an empty one in its place. It is made by the first `checkpoint()` or write, mode 0600,
together with the missing directories above it (0700).
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import hashlib
import os
import select
import stat
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from syncrawl.clock import Clock, SystemClock
from syncrawl.directories import make_private, sync_entries
from syncrawl.errors import (
    ConfigError,
    DiskFull,
    OutputClosed,
    StateLocked,
    StoreDamaged,
    SyncrawlError,
)

STDOUT: Final = "-"
PUT_IT_BACK: Final = "put it back as it was, or start over with --fresh"
_TAIL_BYTES: Final = 256
# A pipe's reader is often started beside the crawl; longer than this means it was forgotten.
_PIPE_READER_PATIENCE: Final = 10.0
_PIPE_POLL: Final = 0.05
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def check_options(store: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse an option that `store` does not have, or a path that is no path: ConfigError."""
    for name, value in options.items():
        if name != "path" and name not in known:
            near = difflib.get_close_matches(str(name), ["path", *known], n=1)
            names = ", ".join(sorted({"path", *known}))
            raise ConfigError(
                f"the {store} store has no such option",
                key=f"stores.{name}",
                value=value,
                remedy=f"did you mean {near[0]!r}?" if near else f"it knows: {names}",
            )
    path = options.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(
            f"the {store} store needs a file path",
            key="stores.path",
            value=path,
            remedy='name a file, or "-" for standard output',
        )


def durability(options: Mapping[str, Any]) -> bool:
    """Whether checkpoints must survive a power loss too (option durability = "power")."""
    value = options.get("durability", "kill")
    if value not in ("kill", "power"):
        raise ConfigError(
            "no such durability",
            key="stores.durability",
            value=value,
            remedy='"kill" survives the death of this process, "power" that of the machine',
        )
    return bool(value == "power")


def real_path(options: Mapping[str, Any]) -> str:
    """The output's path without symbolic links; "-" stays. Two stores must not share one."""
    return located(str(options["path"]))


def located(path: str) -> str:
    """`path` as `real_path` gives it."""
    if path == STDOUT:
        return path
    # /dev/stdout on a pipe resolves to a name that is no file at all.
    if os.path.exists(path) and not os.path.isfile(path):
        return os.path.abspath(path)
    return os.path.realpath(path)


def whole(text: str) -> str:
    """`text` in a form UTF-8 can hold: surrogate pairs joined, lone ones as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value: Any) -> Any:
    """A copy of `value` in dicts, lists and scalars, every text made `whole`."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def damaged(path: str, what: str) -> StoreDamaged:
    """The error for an output that is not what its token says."""
    return StoreDamaged(f"the output {what}", key="stores.path", value=path, remedy=PUT_IT_BACK)


def unusable(path: str, why: str, remedy: str = "choose another path") -> ConfigError:
    """The error for an output that cannot be opened."""
    return ConfigError(why, key="stores.path", value=path, remedy=remedy)


def raise_if_final(error: OSError, path: str) -> None:
    """Raise what a failed write means if trying again is no use: no room, or no reader."""
    if error.errno in _NO_ROOM:
        raise no_room(path, str(error.strerror)) from error
    if error.errno == errno.EPIPE:
        raise OutputClosed(
            "the reader of the output closed it", key="stores.path", value=path
        ) from error


def no_room(path: str, why: str) -> DiskFull:
    """The error for an output that the disk, or a quota, has no room for."""
    return DiskFull(
        f"no room for the output ({why})",
        key="stores.path",
        value=path,
        remedy="free some space, then run the same command again",
    )


def check_creatable(path: str) -> None:
    """Refuse a new file at `path` that this user could not make; makes nothing."""
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise unusable(path, f"{above} is not a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise unusable(path, f"this user cannot write to {above}")


def make_parents(path: str) -> None:
    """Make the directories above `path`, private to this user."""
    try:
        make_private(os.path.dirname(path))
    except OSError as error:
        raise cannot_open(error, path) from error


def cannot_open(error: OSError, path: str) -> SyncrawlError:
    """What a failed opening means: a path that cannot be used, unless only room is short."""
    if error.errno in _NO_ROOM:
        return no_room(path, str(error.strerror))
    return unusable(path, f"cannot be opened for writing: {error.strerror}")


class _Token(msgspec.Struct, frozen=True):
    """What a file held at a checkpoint: its size, and a digest of its last bytes."""

    size: int
    tail: str


_STREAM_TOKEN: Final = b'{"stream":true}'


def _digest(tail: bytes) -> str:
    return hashlib.blake2b(tail, digest_size=8).hexdigest()


class AppendFile:
    """A file that only grows between checkpoints, and shrinks only back to one.

    Standard output, pipes and devices are streams: they are written to, and
    `recover()` leaves them as they are. Writes are unbuffered, so what `append()`
    returned from has reached the kernel and outlives this process. An OSError that may
    pass (an I/O error, say) is left as it is: the caller recovers and tries again.
    """

    def __init__(self, path: str, *, power: bool = False, clock: Clock | None = None) -> None:
        self.path = located(path)
        self._power = power
        self._clock = clock or SystemClock()
        self._fd: int | None = None
        self._stream = path == STDOUT
        self._identity = (0, 0)
        self._size = 0
        self._tail = b""

    def __repr__(self) -> str:
        state = "closed" if self._fd is None else f"{self._size} bytes"
        return f"<AppendFile {self.path} {'stream, ' if self._stream else ''}{state}>"

    @property
    def empty(self) -> bool:
        """Whether nothing has been written: a new file, or a stream not yet used."""
        return self._size == 0

    def open(self) -> None:
        """Open what exists; a file that does not is made later. ConfigError if it cannot be."""
        if self._fd is not None:
            return
        self._size, self._tail = 0, b""
        if self.path == STDOUT:
            self._fd = _stdout()
            return
        try:
            mode = os.stat(self.path).st_mode
        except FileNotFoundError:
            check_creatable(self.path)
            return
        except OSError as error:
            raise cannot_open(error, self.path) from error
        self._stream = not stat.S_ISREG(mode)
        if stat.S_ISDIR(mode):
            raise unusable(self.path, "is a directory")
        try:
            if self._stream:
                self._fd = self._open_stream()
            else:
                self._adopt(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))
        except OSError as error:
            raise cannot_open(error, self.path) from error

    def append(self, data: bytes) -> None:
        """Write all of `data`, on a line of its own even if the file ended within one."""
        if not data:
            return
        fd = self._ready()
        if self._tail and not self._tail.endswith(b"\n"):
            data = b"\n" + data
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(fd, rest)
            except BlockingIOError:
                # A pipe that we, or whoever shares it, opened so: wait as a blocking one would.
                _wait_writable(fd)
                continue
            except OSError as error:
                raise_if_final(error, self.path)
                raise
            self._size += written
            done = bytes(rest[max(0, written - _TAIL_BYTES) : written])
            self._tail = (self._tail + done)[-_TAIL_BYTES:]
            rest = rest[written:]

    def checkpoint(self) -> bytes:
        """A token for what the file holds now. StoreDamaged if others moved or changed it."""
        fd = self._ready()
        if self._stream:
            return _STREAM_TOKEN
        here = self._found()
        if here.st_size != self._size:
            raise damaged(self.path, "was changed by another program while it was written")
        if self._power:
            self._sync(fd)
        return msgspec.json.encode(_Token(self._size, _digest(self._tail)))

    def recover(self, token: bytes) -> None:
        """Cut the file back to `token`; StoreDamaged, the file untouched, if it holds less."""
        if self._stream:
            return
        try:
            wanted = msgspec.json.decode(token, type=_Token)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise damaged(self.path, "is not what the state's token was made for") from error
        if self._fd is None:
            raise damaged(self.path, "is gone")
        size = self._found().st_size
        if size < wanted.size:
            raise damaged(self.path, f"has {size} bytes and had {wanted.size}")
        tail = self._read_tail(self._fd, wanted.size)
        if _digest(tail) != wanted.tail:
            raise damaged(self.path, f"is another file: other bytes before {wanted.size}")
        if size > wanted.size:
            try:
                os.ftruncate(self._fd, wanted.size)
            except OSError as error:
                raise_if_final(error, self.path)
                raise
            if self._power:
                self._sync(self._fd)
        self._size, self._tail = wanted.size, tail

    def close(self) -> None:
        """Let go of the file and of the lock on it."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _ready(self) -> int:
        """The descriptor, of a file made now if there was none."""
        if self._fd is None:
            make_parents(self.path)
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_CREAT
            try:
                self._adopt(os.open(self.path, flags, 0o600))
            except OSError as error:
                raise cannot_open(error, self.path) from error
        assert self._fd is not None
        return self._fd

    def _adopt(self, fd: int) -> None:
        try:
            self._lock(fd)
            here = os.fstat(fd)
            self._identity = (here.st_dev, here.st_ino)
            self._size = here.st_size
            self._tail = self._read_tail(fd, self._size)
            if self._power:
                sync_entries(Path(self.path).parent)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _lock(self, fd: int) -> None:
        # Two crawls on one file would each cut off what the other has appended.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateLocked(
                "another process is writing to this output",
                key="stores.path",
                value=self.path,
                remedy="wait until it has ended, or choose another path",
            ) from error
        except OSError:
            pass  # a filesystem without locks: the lock is a help, not a condition

    def _found(self) -> os.stat_result:
        try:
            here = os.stat(self.path)
        except OSError as error:
            raise damaged(self.path, f"is gone ({error.strerror})") from error
        if (here.st_dev, here.st_ino) != self._identity:
            raise damaged(self.path, "was replaced by another file")
        return here

    def _read_tail(self, fd: int, size: int) -> bytes:
        start = max(0, size - _TAIL_BYTES)
        return os.pread(fd, size - start, start)

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise_if_final(error, self.path)
            raise

    def _open_stream(self) -> int:
        """Open a pipe or device for writing, waiting a little for a pipe's reader."""
        deadline = self._clock.monotonic() + _PIPE_READER_PATIENCE
        pause = threading.Condition()
        while True:
            try:
                # Non-blocking, because a blocking open waits for a reader for ever.
                return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                if self._clock.monotonic() >= deadline:
                    raise unusable(
                        self.path, "nothing reads this pipe", "start its reader first"
                    ) from error
                with pause:
                    self._clock.wait(pause, _PIPE_POLL)


def _stdout() -> int:
    # A duplicate of the number 1 taken blindly might be a database opened in its place.
    try:
        if sys.__stdout__ is None:
            raise OSError
        sys.__stdout__.flush()
        return os.dup(sys.__stdout__.fileno())
    except (OSError, ValueError) as error:
        raise unusable(STDOUT, "standard output is closed", "name a file instead") from error


def _wait_writable(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    poller.poll()
