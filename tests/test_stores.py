"""The built-in stores: each passes the suite for plugins, then what is its own."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncrawl.api import ConfigError, Store, StoreDamaged
from syncrawl.errors import DiskFull, StateLocked
from syncrawl.store import sqlite as sqlite_module
from syncrawl.store.csv import DEFAULT_FIELDS, csv_store
from syncrawl.store.files import AppendFile, real_path
from syncrawl.store.jsonl import jsonl_store
from syncrawl.store.sqlite import MAX_COLUMNS, sqlite_store
from syncrawl.testing.stores import StoreContract
from tests.support import absent

# A thread or child of these tests that takes longer than this hangs.
PATIENCE = 20


class TestJsonl(StoreContract):
    factory = "syncrawl.store.jsonl:jsonl_store"

    def options(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "pages.jsonl")}

    def read(self, tmp_path: Path) -> list[dict[str, Any]]:
        text = (tmp_path / "pages.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


class TestCsv(StoreContract):
    factory = "syncrawl.store.csv:csv_store"

    def options(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "pages.csv"), "fields": ["url", "n"]}

    def read(self, tmp_path: Path) -> list[dict[str, Any]]:
        limit = csv.field_size_limit(10_000_000)
        try:
            with (tmp_path / "pages.csv").open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
        finally:
            csv.field_size_limit(limit)

    def stored(self, record: Any) -> dict[str, Any]:
        return {key: str(value) for key, value in record.items()}


class TestSqlite(StoreContract):
    factory = "syncrawl.store.sqlite:sqlite_store"

    def options(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "pages.sqlite")}

    def read(self, tmp_path: Path) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in row.items() if key != "id"}
            for row in rows(tmp_path / "pages.sqlite")
        ]


@contextlib.contextmanager
def using(store: Store) -> Iterator[Store]:
    """`store`, opened as for a new crawl and closed at the end."""
    store.open()
    try:
        store.checkpoint()
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def using_again(store: Store, token: bytes) -> Iterator[Store]:
    """`store`, opened as by a crawl that goes on from `token`."""
    try:
        store.open()
        store.recover(token)
        yield store
    finally:
        store.close()


def write_and_keep(store: Store) -> None:
    store.write([RECORD])
    store.checkpoint()


@contextlib.contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """A user's own connection to the database at `path`, committed at the end."""
    db = sqlite3.connect(path)
    try:
        with db:
            yield db
    finally:
        db.close()


def rows(path: Path, table: str = "records") -> list[dict[str, Any]]:
    with database(path) as db:
        found = db.execute(f"SELECT * FROM '{table}' ORDER BY rowid")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]


@pytest.fixture(params=[jsonl_store, csv_store], ids=["jsonl", "csv"])
def text_store(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[jsonl_store, csv_store, sqlite_store], ids=["jsonl", "csv", "sqlite"])
def any_store(request: pytest.FixtureRequest) -> Any:
    return request.param


RECORD = {"url": "http://a.test/", "status": 200}


class TestOptionsAndPaths:
    @pytest.mark.parametrize("path", [None, "", 7, "a\0b"])
    def test_a_path_is_needed(self, any_store: Any, path: object) -> None:
        with pytest.raises(ConfigError, match=r"stores\.path"):
            any_store({"path": path})

    def test_an_unknown_option_gets_a_suggestion(self, any_store: Any) -> None:
        with pytest.raises(ConfigError, match="did you mean 'durability'") as raised:
            any_store({"path": "x", "durabilty": "power"})
        assert raised.value.key == "stores.durabilty"
        with pytest.raises(ConfigError, match="it knows: "):
            any_store({"path": "x", "zzz": 1})

    def test_durability_has_two_values(self, any_store: Any) -> None:
        with pytest.raises(ConfigError, match=r"stores\.durability"):
            any_store({"path": "x", "durability": "full"})

    def test_files_and_directories_are_private_and_made_late(
        self, any_store: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "new" / "er" / "out"
        store = any_store({"path": str(path)})
        store.open()
        assert not (tmp_path / "new").exists()
        store.checkpoint()
        store.close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def test_an_existing_file_keeps_its_mode(self, any_store: Any, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.touch(mode=0o640)
        path.chmod(0o640)
        with using(any_store({"path": str(path)})) as store:
            store.write([RECORD])
            store.checkpoint()
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_a_path_that_cannot_be_is_one_clear_line(self, any_store: Any, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for path in (tmp_path, tmp_path / "file" / "out", tmp_path / "file" / "a" / "out"):
            with pytest.raises(ConfigError) as raised:
                any_store({"path": str(path)}).open()
            assert raised.value.key == "stores.path"
            assert raised.value.value == str(path)
            assert "\n" not in str(raised.value)
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_directory_that_takes_no_files(self, any_store: Any, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            tmp_path.chmod(0o500)
            path = tmp_path / "out"
        elif Path("/proc/version").exists():
            path = Path("/proc/out")  # the one place where root cannot make a file either
        else:
            absent("/proc, which root cannot write to")
        store = any_store({"path": str(path)})
        with pytest.raises(ConfigError, match=r"stores\.path"), using(store):
            pass

    def test_a_symbolic_link_is_followed(self, any_store: Any, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with using(any_store({"path": str(tmp_path / "link")})) as store:
            store.write([RECORD])
            store.checkpoint()
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").stat().st_size > 0
        assert real_path({"path": str(tmp_path / "link")}) == str(tmp_path / "real")
        assert real_path({"path": "-"}) == "-"

    def test_only_power_durability_syncs(
        self, text_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        for durability, times in (("kill", 0), ("power", 1)):
            options = {"path": str(tmp_path / durability), "durability": durability}
            with using(text_store(options)) as store:
                synced.clear()
                store.write([RECORD])
                store.checkpoint()
            assert len(synced) == times


class TestAppending:
    def test_a_file_without_a_last_newline_keeps_its_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.write_bytes(b'{"mine": 1}\n{"half')
        store = jsonl_store({"path": str(path)})
        store.open()
        token = store.checkpoint()
        assert path.read_bytes() == b'{"mine": 1}\n{"half'
        for _ in range(2):
            store.write([{"a": 1}])
            store.write([{"a": 2}])
            store.checkpoint()
            assert path.read_bytes() == b'{"mine": 1}\n{"half\n{"a":1}\n{"a":2}\n'
            store.recover(token)
            assert path.read_bytes() == b'{"mine": 1}\n{"half'
        store.close()

    def test_short_writes_are_continued(
        self, text_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, whole, short = os.write, tmp_path / "whole", tmp_path / "short"
        records = [{"url": f"http://a.test/{n}"} for n in range(100)]
        with using(text_store({"path": str(whole)})) as store:
            store.write(records)
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:7])))
        with using(text_store({"path": str(short)})) as store:
            store.write(records)
            token = store.checkpoint()
            store.write(records)
            store.recover(token)
        assert short.read_bytes() == whole.read_bytes()

    def test_a_full_disk_is_named_and_can_be_taken_back(
        self, text_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, path, room = os.write, tmp_path / "out", [5, 0]

        def filling(fd: int, data: bytes) -> int:
            if (left := room.pop(0)) == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(fd, bytes(data[:left]))

        with using(text_store({"path": str(path)})) as store:
            store.write([RECORD])
            token, before = store.checkpoint(), path.read_bytes()
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", filling)
                with pytest.raises(DiskFull, match="No space left"):
                    store.write([RECORD])
            assert len(path.read_bytes()) == len(before) + 5
            store.recover(token)
            assert path.read_bytes() == before
            store.write([RECORD])
            assert store.checkpoint() != token

    def test_a_device_without_room(self, text_store: Any) -> None:
        if not Path("/dev/full").exists():
            absent("/dev/full")
        with using(text_store({"path": "/dev/full"})) as store, pytest.raises(DiskFull):
            store.write([RECORD])

    def test_another_failure_is_one_that_may_pass(
        self, text_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(fd: int, data: bytes) -> int:
            raise OSError(errno.EIO, "Input/output error")

        with using(text_store({"path": str(tmp_path / "out")})) as store:
            monkeypatch.setattr(os, "write", failing)
            with pytest.raises(OSError, match="Input/output error"):
                store.write([RECORD])

    def test_moved_while_it_was_written(self, any_store: Any, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with using(any_store({"path": str(path)})) as store:
            store.write([RECORD])
            token = store.checkpoint()
            path.rename(tmp_path / "away")
            store.write([RECORD])
            with pytest.raises(StoreDamaged, match="is gone"):
                store.checkpoint()
            path.touch()
            with pytest.raises(StoreDamaged, match="replaced"):
                store.recover(token)
        assert path.read_bytes() == b""

    def test_changed_while_it_was_written(self, text_store: Any, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with using(text_store({"path": str(path)})) as store:
            store.write([RECORD])
            with path.open("a") as other:
                other.write("other\n")
            with pytest.raises(StoreDamaged, match="another program"):
                store.checkpoint()

    def test_two_writers_of_one_file(self, text_store: Any, tmp_path: Path) -> None:
        options = {"path": str(tmp_path / "out")}
        with using(text_store(options)), pytest.raises(StateLocked, match="another process"):
            text_store(options).open()
        with using(text_store(options)):
            pass  # the lock went with its holder

    def test_a_shorter_file_is_told_with_both_sizes(self, text_store: Any, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with using(text_store({"path": str(path)})) as store:
            store.write([RECORD] * 20)
            token, size = store.checkpoint(), path.stat().st_size
        os.truncate(path, 10)
        store = text_store({"path": str(path)})
        told = f"has 10 bytes and had {size}"
        with pytest.raises(StoreDamaged, match=told), using_again(store, token):
            pass

    def test_a_longer_file_with_another_tail_is_refused(
        self, text_store: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "out"
        with using(text_store({"path": str(path)})) as store:
            store.write([RECORD] * 20)
            token = store.checkpoint()
        other = path.read_bytes().replace(b"a.test", b"b.test") * 2
        path.write_bytes(other)
        store = text_store({"path": str(path)})
        store.open()
        with pytest.raises(StoreDamaged, match="another file"):
            store.recover(token)
        store.close()
        assert path.read_bytes() == other


class TestStreams:
    def test_standard_output_is_not_taken_back(
        self, text_store: Any, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with using(text_store({"path": "-"})) as store:
            store.write([RECORD])
            token = store.checkpoint()
            store.write([RECORD])
            store.recover(token)
            store.write([RECORD])
        assert capfd.readouterr().out.count("http://a.test/") == 3

    def test_standard_output_stays_open_after_close(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with using(jsonl_store({"path": "-"})):
            pass
        os.write(1, b"still here")
        assert capfd.readouterr().out == "still here"

    def test_standard_output_that_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "__stdout__", None)
        with pytest.raises(ConfigError, match="standard output is closed"):
            jsonl_store({"path": "-"}).open()

    def test_a_reader_that_left(self, tmp_path: Path) -> None:
        script = (
            "import os, sys; from syncrawl.errors import OutputClosed\n"
            "from syncrawl.store.jsonl import jsonl_store\n"
            "store = jsonl_store({'path': '-'}); store.open(); sys.stdin.read()\n"
            "try: store.write([{'a': 1}])\n"
            "except OutputClosed as error: sys.exit(error.exit_code)\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.close()
        child.stdin.close()
        assert child.wait(PATIENCE) == 4

    def test_a_fifo_is_written_like_a_file(self, text_store: Any, tmp_path: Path) -> None:
        path, got = tmp_path / "pipe", []
        os.mkfifo(path)
        reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
        reader.start()
        with using(text_store({"path": str(path)})) as store:
            store.write([RECORD] * 2)
            store.recover(store.checkpoint())
            store.write([RECORD])
        reader.join(PATIENCE)
        assert got[0].count(b"http://a.test/") == 3
        assert stat.S_ISFIFO(path.stat().st_mode)

    def test_a_fifo_without_a_reader_is_not_waited_for_in_vain(self, tmp_path: Path) -> None:
        class Clock:
            now = 0.0

            def monotonic(self) -> float:
                return self.now

            wall = monotonic

            def wait(self, condition: threading.Condition, timeout: float | None) -> None:
                self.now += timeout or 0.0

        os.mkfifo(tmp_path / "pipe")
        clock = Clock()
        with pytest.raises(ConfigError, match="nothing reads this pipe"):
            AppendFile(str(tmp_path / "pipe"), clock=clock).open()
        assert 5 < clock.now < 30

    def test_a_pipe_that_does_not_block_is_waited_for(self) -> None:
        read, write = os.pipe()
        os.set_blocking(write, False)
        file = AppendFile(f"/proc/self/fd/{write}")
        file.open()
        # Opening it anew gave a blocking one; the shared kind is what is tested.
        assert file._fd is not None
        os.dup2(write, file._fd)
        data, got = b"x" * 300_000 + b"\n", bytearray()

        def drain() -> None:
            while len(got) < len(data):
                got.extend(os.read(read, 65536))

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        file.append(data)
        reader.join(PATIENCE)
        file.close()
        os.close(read)
        os.close(write)
        assert bytes(got) == data

    def test_sqlite_needs_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="needs a file"):
            sqlite_store({"path": "-"})
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ConfigError, match="regular file"):
            sqlite_store({"path": str(tmp_path / "pipe")}).open()


def written(store_factory: Any, path: Path, *records: Any, **options: Any) -> str:
    with using(store_factory({"path": str(path), **options})) as store:
        store.write(records)
        store.checkpoint()
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


class TestJsonlText:
    def test_one_object_a_line_in_utf8(self, tmp_path: Path) -> None:
        text = written(jsonl_store, tmp_path / "out", {"a": "é", "b": [1, None]}, {"c": 2**70})
        assert text == '{"a":"é","b":[1,null]}\n{"c":1180591620717411303424}\n'

    def test_a_record_is_one_line_for_every_reader(self, tmp_path: Path) -> None:
        record = {"a": "x\n\r\x0b\x0c\x1c\x85\u2028\u2029y"}
        (line,) = written(jsonl_store, tmp_path / "out", record).splitlines()
        assert json.loads(line) == record

    def test_lone_surrogates_anywhere_are_replaced(self, tmp_path: Path) -> None:
        record = {"k\udc80": ["\ud83e\udd8a", {"x": "\ud83e!"}]}
        text = written(jsonl_store, tmp_path / "out", RECORD, record)
        assert json.loads(text.splitlines()[1]) == {"k\ufffd": ["🦊", {"x": "\ufffd!"}]}

    def test_what_json_has_no_form_for(self, tmp_path: Path) -> None:
        assert written(jsonl_store, tmp_path / "nan", {"a": float("nan")}) == '{"a":null}\n'
        with using(jsonl_store({"path": str(tmp_path / "out")})) as store:
            with pytest.raises(TypeError, match="object"):
                store.write([RECORD, {"a": object()}])
            assert (tmp_path / "out").read_bytes() == b""


class TestCsvText:
    def test_the_default_columns_are_the_default_record(self, tmp_path: Path) -> None:
        text = written(csv_store, tmp_path / "out", RECORD)
        assert text.splitlines()[0] == ",".join(DEFAULT_FIELDS)
        assert text.splitlines()[1] == "http://a.test/,,,200" + "," * 11

    def test_unknown_keys_are_left_out_and_missing_ones_are_empty(self, tmp_path: Path) -> None:
        text = written(csv_store, tmp_path / "out", {"b": 1, "x": 2}, {"a": 3}, fields=["a", "b"])
        assert text == "a,b\n,1\n3,\n"

    def test_the_header_is_written_once(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        store = csv_store({"path": str(path), "fields": ["a"]})
        store.open()
        token = store.checkpoint()
        for _ in range(2):
            store.write([{"a": 1}])
            store.write([{"a": 2}])
            assert path.read_text() == "a\n1\n2\n"
            store.recover(token)
            assert path.read_text() == ""
        store.close()
        assert written(csv_store, path, {"a": 1}, fields=["a"]) == "a\n1\n"
        assert written(csv_store, path, {"a": 2}, fields=["a"]) == "a\n1\n2\n"

    @pytest.mark.parametrize(
        ("value", "cell"),
        [
            ("=1+1", "'=1+1"),
            ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("＝1", "'＝1"),
            ("\r=1", '"\'\n=1"'),
            ("-5", "-5"),
            ("+3.5e2", "+3.5e2"),
            (-5, "-5"),
            (-0.5, "-0.5"),
            (True, "true"),
            (False, "false"),
            (None, '""'),
            (float("inf"), '""'),
            ("a=b", "a=b"),
            ("a,b", '"a,b"'),
            ('say "x"', '"say ""x"""'),
            ("a\nb", '"a\nb"'),
            ("a\rb\r\nc", '"a\nb\nc"'),
            ("a\0b\x1bc", "a\ufffdb\ufffdc"),
            ("\ud83e", "\ufffd"),
            ({"a": [1, "x\ud83e"]}, '"{""a"":[1,""x\ufffd""]}"'),
            ([], "[]"),
        ],
    )
    def test_a_cell(self, tmp_path: Path, value: Any, cell: str) -> None:
        assert written(csv_store, tmp_path / "out", {"a": value}, fields=["a"]) == f"a\n{cell}\n"

    @pytest.mark.parametrize("fields", [[], "url", ["a", "a"], ["a", ""], [1], None])
    def test_fields_are_distinct_names(self, fields: Any) -> None:
        with pytest.raises(ConfigError, match=r"stores\.fields"):
            csv_store({"path": "x", "fields": fields})


class TestSqliteTable:
    def fill(self, path: Path, *records: Any, **options: Any) -> list[dict[str, Any]]:
        with using(sqlite_store({"path": str(path), **options})) as store:
            store.write(records)
            store.checkpoint()
        return rows(path, options.get("table", "records"))

    def test_columns_are_the_keys_in_the_order_seen(self, tmp_path: Path) -> None:
        found = self.fill(tmp_path / "db", {"b": 1, "a": "x"}, {"a": "y", 'q"; --': 2})
        assert [list(row.items()) for row in found] == [
            [("id", 1), ("b", 1), ("a", "x"), ('q"; --', None)],
            [("id", 2), ("b", None), ("a", "y"), ('q"; --', 2)],
        ]

    def test_values_keep_their_kind(self, tmp_path: Path) -> None:
        record = {
            "text": "007",
            "int": 7,
            "float": 0.5,
            "bool": True,
            "none": None,
            "big": 2**63,
            "edge": -(2**63),
            "nested": {"a": [1, "é"]},
            "half": "\ud83e",
            "nul": "a\0b",
        }
        (row,) = self.fill(tmp_path / "db", record)
        assert row == {
            **record,
            "id": 1,
            "bool": 1,
            "big": "9223372036854775808",
            "nested": '{"a":[1,"é"]}',
            "half": "\ufffd",
        }

    def test_keys_that_cannot_be_columns_go_beside(self, tmp_path: Path) -> None:
        first = {"Title": "a", "title": "b", "id": 5, "": 1, "x" * 200: 2, "extra": 3, "n\0": 4}
        found = self.fill(tmp_path / "db", first, {"TITLE": "c"}, {})
        assert [(row["id"], row["Title"]) for row in found] == [(1, "a"), (2, None), (3, None)]
        assert json.loads(found[0]["extra"]) == {k: v for k, v in first.items() if k != "Title"}
        assert json.loads(found[1]["extra"]) == {"TITLE": "c"}
        # The same keys go the same way in the next run.
        assert json.loads(self.fill(tmp_path / "db", first)[3]["extra"])["title"] == "b"

    def test_columns_are_bounded(self, tmp_path: Path) -> None:
        record = {f"k{n}": n for n in range(MAX_COLUMNS + 50)}
        (row,) = self.fill(tmp_path / "db", record)
        assert len(row) == MAX_COLUMNS + 1
        beside = json.loads(row.pop("extra"))
        del row["id"]
        assert {**row, **beside} == record

    def test_ids_are_not_used_again(self, tmp_path: Path) -> None:
        with using(sqlite_store({"path": str(tmp_path / "db")})) as store:
            store.write([RECORD])
            token = store.checkpoint()
            store.write([RECORD] * 3)
            store.checkpoint()
            store.recover(token)
            store.write([RECORD])
            store.checkpoint()
        assert [row["id"] for row in rows(tmp_path / "db")] == [1, 5]

    def test_another_table_name(self, tmp_path: Path) -> None:
        (row,) = self.fill(tmp_path / "db", RECORD, table="my pages")
        assert row["url"] == RECORD["url"]

    @pytest.mark.parametrize("table", ["", "sqlite_x", 3, "a\0b"])
    def test_a_table_name_sqlite_refuses(self, table: Any) -> None:
        with pytest.raises(ConfigError, match=r"stores\.table"):
            sqlite_store({"path": "x", "table": table})

    def test_a_reader_neither_waits_nor_makes_us_wait(self, tmp_path: Path) -> None:
        path = tmp_path / "db"
        with using(sqlite_store({"path": str(path)})) as store:
            store.write([RECORD])
            store.checkpoint()
            reader = sqlite3.connect(path, timeout=0)
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
            store.write([RECORD])
            assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
            store.checkpoint()
            assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
            reader.close()
        assert len(rows(path)) == 2
        assert os.listdir(tmp_path) == ["db"], "a clean end leaves one file"

    def test_a_database_that_exists_keeps_its_own(self, tmp_path: Path) -> None:
        path = tmp_path / "db"
        with database(path) as db:
            db.execute("CREATE TABLE mine (a)")
            db.execute("INSERT INTO mine VALUES (1)")
            db.execute("CREATE TABLE records (url TEXT, note)")
            db.execute("INSERT INTO records VALUES ('old', CAST(x'ff' AS TEXT))")
        store = sqlite_store({"path": str(path)})
        store.open()
        token = store.checkpoint()
        store.write([{"url": "new", "rowid": 7}])
        store.checkpoint()
        store.recover(token)
        store.write([{"url": "newer", "rowid": 7}])
        store.checkpoint()
        store.close()
        with database(path) as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            assert db.execute("SELECT * FROM mine").fetchall() == [(1,)]
            found = db.execute("SELECT url, extra FROM records ORDER BY rowid").fetchall()
        assert found == [("old", None), ("newer", '{"rowid":7}')]

    def test_a_view_is_no_place_for_records(self, tmp_path: Path) -> None:
        with database(tmp_path / "db") as db:
            db.execute("CREATE VIEW records AS SELECT 1")
        with pytest.raises(ConfigError, match="view") as raised:
            sqlite_store({"path": str(tmp_path / "db")}).open()
        assert raised.value.key == "stores.table"

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("my notes\n" * 1000)
        store = sqlite_store({"path": str(path)})
        store.open()
        with pytest.raises(ConfigError, match="no SQLite database"):
            store.checkpoint()
        with pytest.raises(StoreDamaged, match="no SQLite database"):
            store.recover(b'{"last":1,"rows":1,"columns":1,"digest":""}')
        store.close()
        assert path.read_text() == "my notes\n" * 1000

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
    def test_a_database_cut_short_is_refused(self, tmp_path: Path, share: float) -> None:
        path = tmp_path / "db"
        with using(sqlite_store({"path": str(path)})) as store:
            store.write([{"url": f"http://a.test/{n}", "text": "x" * 500} for n in range(500)])
            token = store.checkpoint()
        cut = path.read_bytes()[: int(path.stat().st_size * share)]
        path.write_bytes(cut)
        store = sqlite_store({"path": str(path)})
        with pytest.raises(StoreDamaged), using_again(store, token):
            pass
        assert path.read_bytes() == cut

    def test_rows_deleted_or_replaced_are_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "db"
        with using(sqlite_store({"path": str(path)})) as store:
            store.write([{"url": f"http://a.test/{n}"} for n in range(9)])
            token = store.checkpoint()
            store.write([RECORD])
            store.checkpoint()

        def resumed(statement: str) -> list[dict[str, Any]]:
            with database(path) as db:
                db.execute(statement)
            with using_again(sqlite_store({"path": str(path)}), token):
                return rows(path)

        for damage, repair in (
            ("UPDATE records SET url = 'x' WHERE id = 9", "SET url = 'http://a.test/8'"),
            ("UPDATE records SET id = 99 WHERE id = 9", "SET id = 9 WHERE id = 99 --"),
            ("ALTER TABLE records RENAME TO away", ""),
        ):
            with pytest.raises(StoreDamaged):
                resumed(damage)
            with database(path) as db:
                db.execute(
                    f"UPDATE records {repair} WHERE id = 9"
                    if repair
                    else "ALTER TABLE away RENAME TO records"
                )
            assert len(rows(path)) == 10
        # A column the user adds is no damage.
        assert len(resumed("ALTER TABLE records ADD COLUMN seen DEFAULT 0")) == 9

    def test_a_row_missing_from_the_middle_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "db"
        with using(sqlite_store({"path": str(path)})) as store:
            store.write([{"url": f"http://a.test/{n}"} for n in range(9)])
            token = store.checkpoint()
        with database(path) as db:
            db.execute("DELETE FROM records WHERE id = 3")
        store = sqlite_store({"path": str(path)})
        with pytest.raises(StoreDamaged, match="8 of the 9 rows"), using_again(store, token):
            pass
        assert len(rows(path)) == 8

    @pytest.mark.parametrize("mode", ["wal", "delete", "truncate"])
    def test_moved_in_any_journal_mode(self, tmp_path: Path, mode: str) -> None:
        path = tmp_path / "db"
        with database(path) as db:
            db.execute(f"PRAGMA journal_mode = {mode}")
            db.execute("CREATE TABLE mine (a)")
        with using(sqlite_store({"path": str(path)})) as store:
            store.write([RECORD])
            store.checkpoint()
            path.rename(tmp_path / "away")
            with pytest.raises(StoreDamaged, match="is gone"):
                write_and_keep(store)

    def test_rows_of_another_writer_are_not_taken_back(self, tmp_path: Path) -> None:
        path = tmp_path / "db"
        with using(sqlite_store({"path": str(path)})) as store:
            store.write([RECORD])
            store.checkpoint()
            with database(path) as db:
                db.execute("INSERT INTO records (url) VALUES ('other')")
            with pytest.raises(StoreDamaged, match="another program"):
                store.write([RECORD])
        assert [row["url"] for row in rows(path)] == [RECORD["url"], "other"]

    def test_a_column_added_by_a_failed_batch_can_be_added_again(self, tmp_path: Path) -> None:
        with using(sqlite_store({"path": str(tmp_path / "db")})) as store:
            token = store.checkpoint()
            with pytest.raises(TypeError):
                store.write([{"a": 1}, {"b": [object()]}])
            store.recover(token)
            store.write([{"b": 1}])
            store.checkpoint()
        assert rows(tmp_path / "db") == [{"id": 1, "b": 1}]

    def test_a_locked_database_is_a_failure_that_may_pass(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_module, "_BUSY_SECONDS", 0.01)
        path = tmp_path / "db"
        with using(sqlite_store({"path": str(path)})) as store:
            token = store.checkpoint()
            other = sqlite3.connect(path)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                store.write([RECORD])
            other.close()
            store.recover(token)
            store.write([RECORD])
            store.checkpoint()
        assert len(rows(path)) == 1

    def test_a_full_disk_is_named_and_can_be_taken_back(self, tmp_path: Path) -> None:
        path = tmp_path / "db"
        with using(store := sqlite_store({"path": str(path)})):
            store.write([RECORD])
            token = store.checkpoint()
            assert store._db is not None
            store._db.execute("PRAGMA max_page_count = 8")
            with pytest.raises(DiskFull):
                store.write([{"url": "x" * 5_000_000}])
            store._db.execute("PRAGMA max_page_count = 100000")
            store.recover(token)
            store.write([RECORD])
            store.checkpoint()
        assert len(rows(path)) == 2
