"""Directories of outputs, logs and state: private to their owner, their entries synced.

Any thread; the standard library only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_private(directory: str | os.PathLike[str]) -> None:
    """Make `directory` and what is missing above it, each 0700; one that exists stays as it is.

    `os.makedirs` gives its mode to the last one only (since Python 3.7), and the files'
    names would be there for all to read. Raises OSError, NotADirectoryError where a file
    is in the way.
    """
    path = Path(directory)
    for one in (*reversed(path.parents), path):
        if one.is_dir():
            continue
        try:
            os.mkdir(one, 0o700)
        except FileExistsError:
            # Another process was first, unless what is there is a file.
            if not one.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), one) from None


def sync_entries(directory: Path) -> None:
    """Sync `directory` and those above it: whichever of them were made just now.

    A file that was synced is still lost where the directory that names it was not
    (fsync(2), "Notes").

    One that this user may not read is left out, since its entries are another's. Raises
    OSError where the disk does not take it.
    """
    for one in (directory.absolute(), *directory.absolute().parents):
        try:
            fd = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
