"""Directory entries that survive the loss of power.

Any thread; the standard library only. A file that was synced is still lost where the
directory that names it was not (fsync(2), "Notes").
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_entries(directory: Path) -> None:
    """Sync `directory` and those above it: whichever of them were made just now.

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
