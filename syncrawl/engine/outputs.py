"""All stores of a crawl as one: written, checkpointed and recovered together.

Commit thread only. A store is known to the state by its type and real path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from syncrawl.api import Record, Store
from syncrawl.errors import StoreFailed, SyncrawlError
from syncrawl.log import Log

_TRIES = 3
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class NamedStore(NamedTuple):
    """A store and the key that its token is kept under: "type:real path"."""

    key: str
    store: Store


class Outputs:
    """A batch is in every store, up to its checkpoint, or recovered out of all of them."""

    def __init__(self, stores: Sequence[NamedStore], *, log: Log) -> None:
        self._stores = stores
        self._log = log
        self._tokens: dict[str, bytes] = {}
        # Tokens of stores that are not configured this time, kept for when they are.
        self._others: dict[str, bytes] = {}
        self._opened: list[NamedStore] = []

    def grown_without_state(self) -> list[str]:
        """Outputs that hold something already though no state is there to say what."""
        paths = [key.partition(":")[2] for key in sorted(self.keys)]
        return [path for path in paths if os.path.isfile(path) and os.path.getsize(path)]

    @property
    def keys(self) -> set[str]:
        return {named.key for named in self._stores}

    def open(self, packed: bytes | None) -> bytes:
        """Open every store and bring it to its token, or to a first one; the tokens, packed.

        Raises StoreDamaged where an output holds less than its token, ConfigError where it
        cannot be opened.
        """
        known = _decode(packed) if packed else {}
        for named in self._stores:
            self._open(named, known.get(named.key))
        # Only now, when every output was found sound, may one be created or touched.
        for key, store in self._stores:
            self._tokens[key] = known.get(key) or store.checkpoint()
        self._others = {key: token for key, token in known.items() if key not in self.keys}
        return self._packed()

    def _open(self, named: NamedStore, token: bytes | None) -> None:
        try:
            named.store.open()
            self._opened.append(named)
            if token is not None:
                named.store.recover(token)
        except SyncrawlError:
            raise
        except BaseException as exc:
            raise StoreFailed(
                f"{named.key} cannot be opened: {type(exc).__name__}: {exc}",
                key="stores",
                remedy="repair it and run again, nothing is lost",
            ) from exc

    def write(self, records: list[Record]) -> bytes:
        """Write a batch to every store; the new tokens, packed.

        A store that raises makes all go back to their last tokens and try again, a few
        times; then StoreFailed, and at once where one cannot go back: a further try would
        write the batch twice. A deliberate error (disk full, pipe closed) is final at once.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                for _, store in self._stores:
                    store.write(records)
                tokens = {key: store.checkpoint() for key, store in self._stores}
            except SyncrawlError:
                self._recover()
                raise
            except BaseException as exc:  # signals are the main thread's alone
                self._log.error("store failed", error=repr(exc), attempt=attempt)
                recovered = self._recover()
                if attempt == _TRIES or not recovered:
                    times = f"{attempt} times" if recovered else "and cannot be recovered now"
                    raise StoreFailed(
                        f"a store failed {times}: {type(exc).__name__}: {exc}",
                        key="stores",
                        remedy="repair it and run again, nothing is lost",
                    ) from exc
            else:
                self._tokens = tokens
                return self._packed()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close what was opened; an error is told about, the outputs are safe by their tokens."""
        for key, store in self._opened:
            try:
                store.close()
            except BaseException as exc:  # noqa: BLE001 - a plugin may raise anything
                self._log.error("store failed to close", store=key, error=repr(exc))
        self._opened = []

    def _packed(self) -> bytes:
        return msgspec.msgpack.encode({**self._others, **self._tokens})

    def _recover(self) -> bool:
        """Take every store back to its last token; False where one would not go."""
        recovered = True
        for key, store in self._stores:
            try:
                store.recover(self._tokens[key])
            except BaseException as exc:  # noqa: BLE001 - the next start recovers again
                self._log.error("store failed to recover", store=key, error=repr(exc))
                recovered = False
        return recovered

    def __repr__(self) -> str:
        return f"Outputs({', '.join(sorted(self.keys))})"


def tokens_of(packed: bytes | None) -> Mapping[str, bytes]:
    """The tokens in a packed form, by store key."""
    return _decode(packed) if packed else {}
