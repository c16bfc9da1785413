"""The conformance suite of a store: what the crawl relies on, as tests.

Used by pytest in a store's own test module; imports the plugin API only. A store's
author writes three things:

    class TestMyStore(StoreContract):
        factory = "my_package.store:my_store"

        def options(self, tmp_path):
            return {"path": str(tmp_path / "out.mine")}

        def read(self, tmp_path):
            return [json.loads(line) for line in (tmp_path / "out.mine").read_text().splitlines()]

`read` must give back every record that another process can see at that moment. A store
whose output is not a file under `tmp_path` also overrides `move`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from syncrawl.api import Record, Store, StoreDamaged

FIRST: list[dict[str, Any]] = [{"url": f"http://a.test/{n}", "n": n} for n in range(5)]
SECOND: list[dict[str, Any]] = [{"url": f"http://b.test/{n}", "n": n} for n in range(7)]
THIRD: list[dict[str, Any]] = [{"url": "http://c.test/", "n": 0}]

# A child that is to kill itself and has not after this many seconds hangs.
CHILD_SECONDS = 60

# Run by `python -c` with one JSON argument. With "steps", the store is used up to a point
# and the child kills itself there; without, it writes batches until it is killed, and
# prints after each checkpoint how many records the token stands for.
_CHILD = """
import importlib, json, os, signal, sys
spec = json.loads(sys.argv[1])
sys.path[:] = spec["path"]
module, _, name = spec["factory"].partition(":")
store = getattr(importlib.import_module(module), name)(spec["options"])
store.open()
if spec["token"]:
    store.recover(bytes.fromhex(spec["token"]))
else:
    print(json.dumps([store.checkpoint().hex(), 0]), flush=True)
for step in spec["steps"]:
    if step == "checkpoint":
        print(json.dumps([store.checkpoint().hex(), 0]), flush=True)
    else:
        store.write(step)
if spec["steps"]:
    os.kill(os.getpid(), signal.SIGKILL)
count = spec["count"]
while True:
    for size in (3, 1, 40):
        store.write([{"url": "http://a.test/", "n": count + n} for n in range(size)])
        count += size
    print(json.dumps([store.checkpoint().hex(), count]), flush=True)
"""


class StoreContract:
    """Subclass it as `TestSomething`; pytest collects the tests with it."""

    factory: ClassVar[str] = ""
    """Where the store's factory is, as "module:name"; a killed child process needs it so."""

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        """The options for an output under `tmp_path`; JSON-able."""
        raise NotImplementedError

    def read(self, tmp_path: Path) -> list[dict[str, Any]]:
        """Every record in the output, oldest first, as another process would see it."""
        raise NotImplementedError

    def make(self, tmp_path: Path) -> Store:
        """A new, unopened store on the output; the factory called with the options."""
        module, _, name = self.factory.partition(":")
        store: Store = getattr(import_module(module), name)(self.options(tmp_path))
        return store

    def stored(self, record: Record) -> dict[str, Any]:
        """How the store gives `record` back, where that differs (all text, say)."""
        return dict(record)

    def move(self, tmp_path: Path) -> None:
        """Take the output away from where the store looks for it."""
        away = tmp_path / "elsewhere"
        away.mkdir()
        for path in tmp_path.iterdir():
            if path != away:
                path.rename(away / path.name)

    def assert_holds(self, tmp_path: Path, *batches: Iterable[Record]) -> None:
        """The output holds exactly these batches, in order."""
        assert self.read(tmp_path) == [self.stored(r) for batch in batches for r in batch]

    def killed(self, tmp_path: Path, *steps: object) -> list[bytes]:
        """Run `steps` (batches and "checkpoint") in a child that then gets SIGKILL: its tokens."""
        with self._child(tmp_path, steps=steps) as child:
            out, err = child.communicate(timeout=CHILD_SECONDS)
        assert child.returncode == -signal.SIGKILL, err.decode()
        return [bytes.fromhex(json.loads(line)[0]) for line in out.splitlines()]

    def _child(self, tmp_path: Path, **spec: object) -> subprocess.Popen[bytes]:
        spec = {"steps": (), "token": "", "count": 0, **spec}
        spec["path"] = [os.path.abspath(entry) for entry in sys.path]
        spec["factory"], spec["options"] = self.factory, dict(self.options(tmp_path))
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(spec)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    # What is written is there.

    def test_what_was_checkpointed_can_be_read(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            store.checkpoint()
            self.assert_holds(tmp_path, FIRST)
            store.write(SECOND)
            store.checkpoint()
            self.assert_holds(tmp_path, FIRST, SECOND)
        self.assert_holds(tmp_path, FIRST, SECOND)

    def test_a_batch_may_be_a_generator_and_may_be_empty(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write([])
            store.checkpoint()
            store.write(record for record in FIRST)
            store.checkpoint()
        self.assert_holds(tmp_path, FIRST)

    def test_any_text_comes_back(self, tmp_path: Path) -> None:
        texts = ["Grüße", "日本語", "🦊", "שלום", 'say "hi", ok', "two\nlines", "a\u2028b", "  x "]
        records = [{"url": text, "n": n} for n, text in enumerate(texts)]
        with _opened(self, tmp_path) as store:
            store.write(records)
            store.checkpoint()
        self.assert_holds(tmp_path, records)

    def test_text_that_utf8_cannot_hold_costs_no_record(self, tmp_path: Path) -> None:
        broken = {"url": "half a pair: \ud83e", "n": 1}
        with _opened(self, tmp_path) as store:
            store.write([*FIRST, broken, *SECOND])
            store.checkpoint()
        assert len(self.read(tmp_path)) == len(FIRST) + 1 + len(SECOND)

    def test_a_big_record_comes_back(self, tmp_path: Path) -> None:
        big = [{"url": "x" * 5_000_000, "n": 1}]
        with _opened(self, tmp_path) as store:
            store.write(big)
            store.write(FIRST)
            store.checkpoint()
        self.assert_holds(tmp_path, big, FIRST)

    # What came after a token can be taken back, exactly.

    def test_recover_drops_what_came_later(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            token = store.checkpoint()
            store.write(SECOND)
            store.recover(token)
            self.assert_holds(tmp_path, FIRST)
            store.write(THIRD)
            store.checkpoint()
        self.assert_holds(tmp_path, FIRST, THIRD)

    def test_recover_drops_what_was_checkpointed_later(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            token = store.checkpoint()
            store.write(SECOND)
            store.checkpoint()
            store.recover(token)
            store.recover(token)
            self.assert_holds(tmp_path, FIRST)
            store.write(THIRD)
            again = store.checkpoint()
            store.recover(again)
        self.assert_holds(tmp_path, FIRST, THIRD)

    def test_a_token_outlives_the_store(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            token = store.checkpoint()
            store.write(SECOND)
            store.checkpoint()
        for _ in range(2):
            with _resumed(self, tmp_path, token) as store:
                self.assert_holds(tmp_path, FIRST)
                store.write(THIRD)
                store.checkpoint()
        self.assert_holds(tmp_path, FIRST, THIRD)

    def test_the_first_token_empties_a_new_output(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        store.open()
        token = store.checkpoint()
        store.write(FIRST)
        store.checkpoint()
        store.recover(token)
        self.assert_holds(tmp_path)
        store.write(SECOND)
        store.checkpoint()
        store.close()
        self.assert_holds(tmp_path, SECOND)

    def test_what_an_output_held_before_is_never_taken_back(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            store.checkpoint()
        store = self.make(tmp_path)
        store.open()
        token = store.checkpoint()
        store.write(SECOND)
        store.checkpoint()
        store.recover(token)
        self.assert_holds(tmp_path, FIRST)
        store.write(THIRD)
        store.checkpoint()
        store.close()
        self.assert_holds(tmp_path, FIRST, THIRD)

    def test_a_write_that_raises_can_be_taken_back(self, tmp_path: Path) -> None:
        def breaking() -> Iterator[Record]:
            yield from SECOND
            raise LookupError("midway")

        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            token = store.checkpoint()
            store.write(THIRD)
            with pytest.raises(LookupError):
                store.write(breaking())
            store.recover(token)
            self.assert_holds(tmp_path, FIRST)
            store.write(THIRD)
            store.checkpoint()
        self.assert_holds(tmp_path, FIRST, THIRD)

    # A crash at any instant.

    def test_killed_between_write_and_checkpoint(self, tmp_path: Path) -> None:
        tokens = self.killed(tmp_path, FIRST, "checkpoint", SECOND)
        with _resumed(self, tmp_path, tokens[-1]) as store:
            self.assert_holds(tmp_path, FIRST)
            store.write(THIRD)
            store.checkpoint()
        self.assert_holds(tmp_path, FIRST, THIRD)

    def test_killed_after_a_checkpoint(self, tmp_path: Path) -> None:
        tokens = self.killed(tmp_path, FIRST, "checkpoint", SECOND, "checkpoint")
        self.assert_holds(tmp_path, FIRST, SECOND)
        with _resumed(self, tmp_path, tokens[-1]):
            self.assert_holds(tmp_path, FIRST, SECOND)

    def test_killed_after_a_checkpoint_whose_token_was_lost(self, tmp_path: Path) -> None:
        tokens = self.killed(tmp_path, FIRST, "checkpoint", SECOND, "checkpoint")
        with _resumed(self, tmp_path, tokens[1]) as store:
            self.assert_holds(tmp_path, FIRST)
            store.write(SECOND)
            store.checkpoint()
        self.assert_holds(tmp_path, FIRST, SECOND)

    def test_killed_before_the_first_batch_was_kept(self, tmp_path: Path) -> None:
        tokens = self.killed(tmp_path, FIRST)
        with _resumed(self, tmp_path, tokens[0]) as store:
            self.assert_holds(tmp_path)
            store.write(SECOND)
            store.checkpoint()
        self.assert_holds(tmp_path, SECOND)

    @pytest.mark.parametrize("checkpoints", [1, 10, 50])
    def test_killed_while_it_writes(self, tmp_path: Path, checkpoints: int) -> None:
        token, count = "", 0
        for _ in range(2):
            with self._child(tmp_path, token=token, count=count) as child:
                assert child.stdout is not None
                watchdog = threading.Timer(CHILD_SECONDS, child.kill)
                watchdog.start()
                lines = [child.stdout.readline() for _ in range(checkpoints)]
                child.kill()
                watchdog.cancel()
                lines += child.stdout.readlines()
                # The kill may have cut the last line; its checkpoint then counts as lost.
                whole = [line for line in lines if line.endswith(b"\n")]
                assert whole, child.stderr.read().decode() if child.stderr else ""
            token, count = json.loads(whole[-1])
            with _resumed(self, tmp_path, bytes.fromhex(token)) as store:
                token = store.checkpoint().hex()
            self.assert_holds(tmp_path, [{"url": "http://a.test/", "n": n} for n in range(count)])

    # An output that is not the one the token was made for.

    def test_an_output_shorter_than_its_token_is_refused(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            early = store.checkpoint()
            store.write(SECOND)
            late = store.checkpoint()
            store.recover(early)
        self.assert_refused(tmp_path, late)
        self.assert_holds(tmp_path, FIRST)

    def test_other_records_in_the_same_place_are_refused(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            start = store.checkpoint()
            store.write(FIRST)
            late = store.checkpoint()
            store.recover(start)
            other = [{"url": record["url"].upper(), "n": record["n"]} for record in FIRST]
            store.write(other)
            store.checkpoint()
        self.assert_refused(tmp_path, late)
        self.assert_holds(tmp_path, other)

    def test_an_output_that_was_moved_is_refused(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            token = store.checkpoint()
        self.move(tmp_path)
        before = _files(tmp_path)
        self.assert_refused(tmp_path, token)
        assert _files(tmp_path).keys() == before.keys(), "refusing it made a new one"

    def test_a_token_that_is_no_token_is_refused(self, tmp_path: Path) -> None:
        with _opened(self, tmp_path) as store:
            store.write(FIRST)
            store.checkpoint()
        self.assert_refused(tmp_path, b"\xff no token")
        self.assert_holds(tmp_path, FIRST)

    def assert_refused(self, tmp_path: Path, token: bytes) -> None:
        """A new store raises StoreDamaged for `token`, and leaves every file as it was."""
        before = _files(tmp_path)
        store = self.make(tmp_path)
        store.open()
        with pytest.raises(StoreDamaged):
            store.recover(token)
        store.close()
        assert _files(tmp_path) == before, "the refused output was changed"


class _opened:
    """A store opened for a new crawl: its first token is made before any write."""

    def __init__(self, contract: StoreContract, tmp_path: Path) -> None:
        self._store = contract.make(tmp_path)

    def __enter__(self) -> Store:
        self._store.open()
        self._store.checkpoint()
        return self._store

    def __exit__(self, *exc: object) -> None:
        self._store.close()


class _resumed(_opened):
    """A store opened by a crawl that goes on: recovered to its last token."""

    def __init__(self, contract: StoreContract, tmp_path: Path, token: bytes) -> None:
        super().__init__(contract, tmp_path)
        self._token = token

    def __enter__(self) -> Store:
        self._store.open()
        self._store.recover(self._token)
        return self._store


def _files(tmp_path: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(tmp_path))] = path.read_bytes()
    return found
