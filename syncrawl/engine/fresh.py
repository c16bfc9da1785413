"""`--fresh`: an old state and its outputs are renamed aside; nothing is merged or deleted.

Runs on the thread that calls `Crawl.run`, before anything of the crawl is opened.
Imports the preflight's lock, the config models and the errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from syncrawl.config.model import Config
from syncrawl.engine.preflight import StateLock
from syncrawl.errors import ConfigError

# What SQLite keeps beside a database; with another name they would no longer belong to it.
_COMPANIONS = ("-wal", "-shm", "-journal")


def set_aside(config: Config) -> list[tuple[str, str]]:
    """Rename the state directory and every store's file to NAME.1 (or .2, ...); old, new names.

    One number serves them all, so that what belongs together is seen to. Pipes, devices
    and "-" are left alone. Raises StateLocked while another run uses the state, with
    nothing renamed. Outputs go first: were we killed half-way, the old state would still
    miss its outputs and refuse to run, where outputs without a state would be added to.
    """
    state = Path(config.crawl.state_dir)
    lock = StateLock(state) if state.is_dir() else None
    if lock:
        lock.acquire()
    try:
        moves = list(_moves(config, state))
        for old, new in moves:
            _rename(old, new)
    finally:
        if lock:
            lock.release()
    return [(str(old), str(new)) for old, new in moves]


def _moves(config: Config, state: Path) -> Iterator[tuple[Path, Path]]:
    outputs = [Path(store.path) for store in config.stores if store.path not in ("", "-")]
    old = [path for path in outputs if path.is_file() or path.is_dir()]
    if os.path.lexists(state):
        old.append(state)
    number = next(n for n in count(1) if not any(os.path.lexists(f"{path}.{n}") for path in old))
    for path in old:
        for companion in _COMPANIONS:
            if os.path.lexists(f"{path}{companion}"):
                yield Path(f"{path}{companion}"), Path(f"{path}.{number}{companion}")
        yield path, Path(f"{path}.{number}")


def _rename(old: Path, new: Path) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        raise ConfigError(
            f"cannot be renamed aside to {new}: {error.strerror}",
            key="--fresh",
            value=str(old),
            remedy="move it yourself, or choose other paths",
        ) from error
