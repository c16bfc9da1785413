"""The durable frontier and the worst: kills at any moment, damage, a full disk, other eyes.

Run as a program, this file is the child that gets killed (see `child`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diskcache
import msgspec
import pytest

from syncrawl.clock import SystemClock
from syncrawl.errors import (
    EXIT_CONDITION,
    ConfigError,
    DiskFull,
    StateDamaged,
    StateLocked,
    StateMismatch,
    SyncrawlError,
)
from syncrawl.frontier.bytesdisk import BytesDisk
from syncrawl.frontier.disk import DiskFrontier
from syncrawl.frontier.faults import translated
from syncrawl.frontier.inspect import Found, inspect, robots_note
from syncrawl.frontier.model import SHED, Batch, Counts, Entry, Finish
from syncrawl.testing.frontiers import by_host, done, drain, entries, entry, fp_of, successor, urls
from tests.support import ROOT, absent

RULES = "rules-1"
DATABASE = "cache.db"
MARKER = "format.json"

# A child that has not printed, died or ended after this long hangs.
CHILD_SECONDS = 60


def make(directory: Path, **options: Any) -> DiskFrontier:
    settings = {"queue_of": by_host, "fingerprint_rules": RULES, **options}
    return DiskFrontier(directory, clock=SystemClock(), **settings)


# -- the child ------------------------------------------------------------------------


class Log(msgspec.Struct):
    """What one commit of the child did; stored by that commit itself, as a note."""

    found: list[str] = []
    ended: list[tuple[str, str]] = []
    shed: list[str] = []
    alias: int = 0


def child(directory: str, kill_at: int, commits: int) -> None:
    """Commit for ever (or `commits` times) and print the number of each commit.

    With `kill_at`, the process kills itself as SQLite is about to run its `kill_at`-th
    statement, the first ones of which open or make the database.
    """
    if kill_at:
        kill_at_statement(kill_at)
    frontier = make(Path(directory))
    frontier.open()
    number = int(frontier.note("number") or b"0")
    while not commits or number < commits:
        number += 1
        taken = [one for queue, _ in list(frontier.backlog()) for one in frontier.take(queue, 2)]
        batch, log = workload(number, taken)
        batch.notes = {"number": b"%d" % number, f"log/{number}": msgspec.json.encode(log)}
        frontier.commit(batch)
        frontier.shelve(1, 3 * (number % 20))
        frontier.unshelve(number % 5)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    frontier.close()


def reviving_child(directory: str, kill_at: int) -> None:
    """Revive all that failed, and die at the `kill_at`-th statement of that."""
    frontier = make(Path(directory))
    frontier.open()
    frontier._cache._con.set_trace_callback(dying(kill_at))
    for _ in frontier.revive([]):
        pass
    frontier.close()


def workload(number: int, taken: list[Entry]) -> tuple[Batch, Log]:
    """Some of everything, as a function of the commit's number."""
    batch = Batch(found=[entry(f"{number}/{n}", f"{n % 3}.test") for n in range(9)])
    log = Log([one.url for one in batch.found], alias=entry(f"{number}/alias").fp)
    batch.aliases = [log.alias]
    log.shed = [f"http://0.test/{number}/shed-{n}" for n in range(number % 3)]
    batch.shed = [Entry(url, fp_of(url)) for url in log.shed]
    batch.shed += [entry(f"{number}/{n}", f"{n % 3}.test") for n in range(3)]
    batch.found += [entry(f"{number - 1}/{n}", f"{n % 3}.test") for n in range(9) if number > 1]
    for place, one in enumerate(taken):
        end: Any = ("done", "failed", "done", "dropped", "moved", "kept", "moved")[place % 7]
        if end == "moved":
            target = f"http://{(place + 1) % 3}.test/{number}/hop"
            hop = successor(one, attempts=one.attempts + 1, target=target, hops=1)
            batch.moved.append((one, hop))
        elif end != "kept":
            batch.finished.append(Finish(one, end, end))
            log.ended.append((one.url, end))
    return batch, log


def dying(number: int) -> Callable[[str], None]:
    """Kills this process as it is called for the time after `number`."""
    left = iter(range(number))

    def count(statement: str) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def kill_at_statement(number: int) -> None:
    """Die where SQLite is about to run its `number`-th statement, triggers' included."""
    connect = sqlite3.connect
    count = dying(number)

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


@contextlib.contextmanager
def running(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", __name__, str(directory), *(arguments or ("0", "0"))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


# -- kills ----------------------------------------------------------------------------


def killed_after(directory: Path, lines: int) -> int:
    """Let a child print `lines` commits, kill it then; the last number it printed."""
    with running(directory) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline(), "the child died early"
        process.kill()
        # What it printed between the last line read and its death counts as well.
        rest = process.communicate(timeout=CHILD_SECONDS)[0].split()
    return int(rest[-1]) if rest else 0


def killed_at(directory: Path, statement: int) -> int:
    """Let a child kill itself at a statement; the last number it printed, 0 for none."""
    with running(directory, str(statement), "0") as process:
        lines = process.communicate(timeout=CHILD_SECONDS)[0].split()
    assert process.returncode == -signal.SIGKILL
    return int(lines[-1]) if lines else 0


def assert_sound(directory: Path, printed: int) -> int:
    """All that was committed is there, nothing is torn; the number of the last commit."""
    frontier = make(directory)
    frontier.open()
    number = int(frontier.note("number") or b"0")
    assert printed <= number
    logs = {int(key[4:]): msgspec.json.decode(row, type=Log) for key, row in frontier.notes("log/")}
    assert sorted(logs) == list(range(1, number + 1))
    found = [url for log in logs.values() for url in log.found]
    ends = dict(end for log in logs.values() for end in log.ended)
    assert len(ends) == sum(len(log.ended) for log in logs.values()), "a URL ended twice"
    shed = [url for log in logs.values() for url in log.shed]
    counts = frontier.counts()
    how = list(ends.values())
    dropped = {"dropped": how.count("dropped"), SHED: len(shed)}
    assert counts == Counts(
        len(found) + len(shed),
        len(found) - len(ends),
        how.count("done"),
        how.count("failed"),
        {reason: count for reason, count in dropped.items() if count},
    )
    assert all(log.alias in frontier.seen for log in logs.values())
    assert len(frontier.seen) == len(found) + len(shed) + number
    frontier.commit(Batch(found=[Entry(url, fp_of(url)) for url in (*found, *shed)]))
    assert frontier.counts() == counts
    assert sorted(urls(drain(frontier))) == sorted(set(found) - ends.keys())
    frontier.close()
    return number


def test_a_kill_at_any_statement_of_a_new_state(tmp_path: Path) -> None:
    """The first statements make the database; a kill there leaves nothing, or a sound state."""
    for round, statement in enumerate((1, 3, 9, 20, 48, 52, 60, 72, 90, 110, 125)):
        directory = tmp_path / str(round)
        assert assert_sound(directory, killed_at(directory, statement)) <= 1


def test_kills_at_statements_of_one_state(tmp_path: Path) -> None:
    """Every second death goes unnoticed: two logs' worth are recovered at once."""
    last = 0
    for round, statement in enumerate((163, 171, 187, 211, 240, 301)):
        printed = killed_at(tmp_path / "state", statement)
        if round % 2:
            last = assert_sound(tmp_path / "state", max(printed, last))
    assert last > 3


def test_kills_at_random_moments(tmp_path: Path) -> None:
    last = 0
    for lines in (1, 17, 5, 40):
        printed = killed_after(tmp_path / "state", lines)
        last = assert_sound(tmp_path / "state", max(printed, last))
    assert last >= 63


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_many_kills(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    last = 0
    for _ in range(25):
        if chance.random() < 0.5:
            printed = killed_at(tmp_path / "state", chance.randrange(1, 1500))
        else:
            printed = killed_after(tmp_path / "state", chance.randrange(1, 60))
        if chance.random() < 0.7:
            last = assert_sound(tmp_path / "state", max(printed, last))
    assert_sound(tmp_path / "state", last)


def test_kills_while_failed_urls_are_revived(tmp_path: Path) -> None:
    """Whenever it dies, each URL is either failed or pending, and the next attempt goes on."""
    directory = tmp_path / "state"
    frontier = make(directory)
    frontier.open()
    failed = {one.fp: one for one in entries(40)}
    frontier.commit(Batch(found=entries(40)))
    taken = drain(frontier)
    for start in range(0, 40, 4):
        ends = [Finish(one, "failed", "5xx") for one in taken[start : start + 4]]
        frontier.commit(Batch(finished=ends))
    frontier.close()
    revived = []
    for statement in (9, 28, 34, 41, 60):
        with running(directory, str(statement), "revive") as process:
            assert process.wait(CHILD_SECONDS) == -signal.SIGKILL
        states = {fp: inspect(directory, fp) for fp in failed}
        frontier = make(directory)
        frontier.open()
        counts = frontier.counts()
        assert counts == Counts(40, 40 - counts.failed, failed=counts.failed)
        pending = {one.fp for one in drain(frontier)}
        for fp, found in states.items():
            assert found is not None
            assert found.state == ("pending" if fp in pending else "failed")
        frontier.close()
        revived.append(len(pending))
    assert revived == sorted(revived)
    assert set(revived) - {0, 40}, "it died before or after all of them"
    frontier = make(directory)
    frontier.open()
    assert sum(frontier.revive([])) == 40 - revived[-1]
    assert len(drain(frontier)) == 40
    frontier.close()


def test_a_look_up_while_a_crawl_commits(tmp_path: Path) -> None:
    """Reading beside a writer never fails, never holds it up and never writes."""
    directory = tmp_path / "state"
    fresh = entry("1/0", "0.test").fp
    with running(directory) as process:
        assert process.stdout is not None
        last = 0
        for _ in range(20):
            last = int(process.stdout.readline())
            found = inspect(directory, fresh)
            assert found is not None
            assert found.state in ("pending", "done", "failed", "dropped")
            newest = inspect(directory, entry(f"{last}/8", "2.test").fp)
            assert newest is not None
            assert newest.state is not None
        process.kill()
        process.wait(CHILD_SECONDS)
    # The log of a dead process is read too, and left for its successor.
    database, log = directory / DATABASE, directory / f"{DATABASE}-wal"
    before = database.read_bytes(), log.read_bytes()
    assert inspect(directory, entry(f"{last}/alias").fp) == Found("done")
    assert before == (database.read_bytes(), log.read_bytes())
    assert_sound(directory, last)


# -- damage ---------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A closed state with rows of every kind: 6 pending, 1 waiting, 3 finished, 1 shed."""
    directory = tmp_path / "state"
    frontier = make(directory, track_depth=True)
    frontier.open()
    frontier.commit(Batch(found=entries(8, depth=4) + entries(2, "b.test")))
    taken = frontier.take("a.test", 8)
    ends: list[Any] = ["done", "failed", "dropped"]
    frontier.commit(
        Batch(
            finished=[Finish(one, end, "why") for one, end in zip(taken, ends, strict=False)],
            moved=[(taken[3], successor(taken[3], attempts=1, due=9e9))],
            found=[entry(4, depth=2)],
            aliases=[77],
            shed=[entry("shed")],
            notes={"tokens": b"t", "robots/http://a.test": b"rules"},
        )
    )
    frontier.close()
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def poke(directory: Path, statement: str, *values: object) -> None:
    """Change the database behind the frontier's back; no log is left."""
    connection = sqlite3.connect(directory / DATABASE, isolation_level=None)
    assert connection.execute(statement, values).rowcount != 0, "nothing was damaged"
    connection.close()


def assert_refused(directory: Path, kind: type[SyncrawlError], says: str = "") -> None:
    """Opening raises exactly `kind`, in one line, and leaves every file as it is."""
    before = files(directory)
    for _ in range(2):
        frontier = make(directory, track_depth=True)
        with pytest.raises(kind) as caught:
            frontier.open()
        frontier.close()
        assert type(caught.value) is kind
        text = str(caught.value)
        assert "\n" not in text
        assert says in text
        assert caught.value.exit_code == EXIT_CONDITION
        assert files(directory) == before


def shorten(to: int) -> Callable[[Path], None]:
    return lambda directory: os.truncate(directory / DATABASE, to)


def overwrite(content: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / DATABASE).write_bytes(content)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(overwrite(random.Random(1).randbytes(20_000)), id="garbage"),
        pytest.param(overwrite(b"hello"), id="a few bytes"),
        pytest.param(overwrite(b"SQLite format 3\0" + bytes(4080)), id="a header alone"),
        pytest.param(shorten(16_384), id="cut"),
        pytest.param(shorten(4_096), id="one page"),
        pytest.param(shorten(0), id="empty"),
        pytest.param(lambda directory: (directory / DATABASE).unlink(), id="gone"),
    ],
)
def test_a_damaged_database_is_refused(state: Path, damage: Callable[[Path], None]) -> None:
    damage(state)
    assert_refused(state, StateDamaged, str(state))


ROWS = ["meta", "counts", "s:1", "d:2", "f:2", "z:2", "p:2:%", "n:tokens"]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("value", ["text", 5, 2**62, 1.5, None], ids=str)
def test_a_value_that_is_no_bytes_is_refused(state: Path, row: str, value: object) -> None:
    poke(state, "UPDATE Cache SET value = ? WHERE key LIKE ?", value, row)
    assert_refused(state, StateDamaged, "not plain bytes")


class Bomb:
    """Unpickled, it makes the directory that it is aimed at."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("row", ROWS)
def test_a_pickle_is_never_unpickled(state: Path, tmp_path: Path, row: str) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    poke(state, "UPDATE Cache SET mode = 4, value = ? WHERE key LIKE ?", bomb, row)
    assert_refused(state, StateDamaged, "not plain bytes")
    with contextlib.suppress(StateDamaged):
        inspect(state, entry(4).fp)
    assert not (tmp_path / "exploded").exists()
    # The bomb is a live one.
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists()


def test_a_pickled_key_is_never_unpickled(state: Path, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    poke(state, "UPDATE Cache SET raw = 0, key = ? WHERE key = 'n:tokens'", bomb)
    assert_refused(state, StateDamaged, "not plain bytes")
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_planted_while_it_is_open_is_never_unpickled(state: Path, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    frontier = make(state)
    frontier.open()
    poke(state, "UPDATE Cache SET mode = 4, value = ? WHERE key != 'counts'", bomb)
    with pytest.raises(StateDamaged):
        frontier.take("a.test", 1)
    with pytest.raises(StateDamaged):
        frontier.note("tokens")
    with pytest.raises(StateDamaged):
        list(frontier.notes(""))
    frontier.close()
    assert not (tmp_path / "exploded").exists()


def test_a_file_that_a_row_names_is_neither_read_nor_deleted(state: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    frontier = make(state)
    frontier.open()
    poke(state, "UPDATE Cache SET filename = '../precious' WHERE key IN ('counts', 'n:tokens')")
    with pytest.raises(StateDamaged):
        frontier.note("tokens")
    frontier.commit(Batch(notes={"tokens": b""}))
    frontier.close()
    assert precious.read_bytes() == b"precious"


def test_the_disk_stores_bytes_under_text_and_nothing_else(tmp_path: Path) -> None:
    disk = BytesDisk(str(tmp_path))
    for key in (b"bytes", 1, None, ("p", 1)):
        with pytest.raises(TypeError):
            disk.put(key)
    for value in ("text", 1, None, {"a": 1}, bytearray(b"x")):
        with pytest.raises(TypeError):
            disk.store(value, False)
    with pytest.raises(TypeError):
        disk.store(b"x", True)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("p:2:%", "unfinished"),
        ("d:2", "unfinished"),
        ("s:1", "known"),
        ("counts", "unfinished"),
    ],
)
def test_a_missing_row_is_noticed(state: Path, row: str, says: str) -> None:
    poke(state, "DELETE FROM Cache WHERE key LIKE ?", row)
    assert_refused(state, StateDamaged, says)


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("meta", b"[]"),
        ("meta", b'{"format": "one"}'),
        ("counts", b"{"),
        ("counts", b'{"seen": 10, "unfinished": 7, "done": 0}'),
        ("s:1", b"12345"),
        ("d:2", b"\xc1"),
        ("d:2", b"\x91\x92\x01\xcd\x03\xe7"),
        ("z:2", b"\x91\x01"),
        ("p:2:%", b"\x90"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(state: Path, row: str, value: bytes) -> None:
    poke(state, "UPDATE Cache SET value = ? WHERE key LIKE ?", value, row)
    assert_refused(state, StateDamaged)


@pytest.mark.parametrize("key", ["p:x", "p:2:0:0.0:2", "s:one", "d:", "p:9:0:nan:x:a.test"])
def test_a_key_that_makes_no_sense_is_refused(state: Path, key: str) -> None:
    one = "SELECT key FROM Cache WHERE key LIKE ? LIMIT 1"
    poke(state, f"UPDATE Cache SET key = ? WHERE key = ({one})", key, f"{key[:2]}%")
    assert_refused(state, StateDamaged)


@pytest.mark.parametrize("value", [b"\x90", b"junk", b"\xc1"])
def test_a_bundle_that_makes_no_sense_is_noticed_when_it_is_taken(
    state: Path, value: bytes
) -> None:
    poke(state, "UPDATE Cache SET value = ? WHERE key LIKE 'p:2:%'", value)
    frontier = make(state)
    frontier.open()
    with pytest.raises(StateDamaged) as caught:
        frontier.take("b.test", 1)
    assert "\n" not in str(caught.value)
    frontier.close()


def test_a_bundle_of_other_entries_is_noticed(state: Path) -> None:
    poke(
        state,
        "UPDATE Cache SET value = (SELECT value FROM Cache WHERE key LIKE 'p:1:%')"
        " WHERE key LIKE 'p:2:%'",
    )
    frontier = make(state)
    frontier.open()
    with pytest.raises(StateDamaged, match="other entries"):
        frontier.take("b.test", 1)
    frontier.close()


def test_settings_that_diskcache_cannot_use_are_damage(state: Path) -> None:
    poke(state, "INSERT INTO Settings VALUES ('disk_evil', 1)")
    frontier = make(state)
    with pytest.raises(StateDamaged, match="settings"):
        frontier.open()
    frontier.close()


# -- what the database raises -----------------------------------------------------------


def database_error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"as SQLite says it: {name}")
    error.sqlite_errorname = name
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (database_error("SQLITE_FULL"), DiskFull),
        (database_error("SQLITE_IOERR_WRITE"), DiskFull),
        (database_error("SQLITE_IOERR_READ"), StateDamaged),
        (database_error("SQLITE_CORRUPT"), StateDamaged),
        (database_error("SQLITE_READONLY"), StateDamaged),
        (database_error("SQLITE_BUSY"), StateLocked),
        (sqlite3.OperationalError("Could not decode to UTF-8"), StateDamaged),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull),
        (PermissionError(errno.EACCES, "Permission denied"), StateDamaged),
        (ValueError("two\nlines"), StateDamaged),
        (KeyError("counts"), StateDamaged),
        (TypeError("a mistake of ours"), TypeError),
    ],
    ids=str,
)
def test_what_the_database_raises_becomes_ours(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, translated(Path("/state")):
        raise error
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("last", [sqlite3.OperationalError("cannot rollback"), diskcache.Timeout()])
def test_what_came_first_is_what_counts(last: Exception) -> None:
    """A full disk shows as a rollback that fails, or as diskcache's Timeout."""

    def fail() -> None:
        try:
            raise database_error("SQLITE_FULL")
        except sqlite3.OperationalError:
            raise last from None

    with pytest.raises(DiskFull), translated(Path("/state")):
        fail()


# -- states of others -----------------------------------------------------------------


@pytest.mark.parametrize("meta", [b'{"format": 2}', b'{"format": 0, "fingerprints": "rules-1"}'])
def test_another_format_is_refused(state: Path, meta: bytes) -> None:
    poke(state, "UPDATE Cache SET value = ? WHERE key = 'meta'", meta)
    assert_refused(state, StateMismatch, "this version reads 1")


def test_other_fingerprint_rules_are_refused(state: Path) -> None:
    before = files(state)
    with pytest.raises(StateMismatch) as caught:
        make(state, fingerprint_rules="rules-2").open()
    assert (caught.value.key, caught.value.exit_code) == ("scope.tracking_parameters", 4)
    assert "rules-1, now rules-2" in str(caught.value)
    assert files(state) == before


def test_another_program_s_cache_is_refused(tmp_path: Path) -> None:
    with diskcache.Cache(str(tmp_path / "state"), tag_index=1) as cache:
        cache["counts"] = {"theirs": 1}
    (tmp_path / "state").chmod(0o755)
    assert_refused(tmp_path / "state", StateMismatch, "another program")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o755


def test_another_program_s_database_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("CREATE TABLE precious (value)")
    connection.close()
    assert_refused(tmp_path, StateMismatch, "another program")


def test_an_empty_cache_is_as_good_as_none(tmp_path: Path) -> None:
    """A process that was killed while it made the state leaves one."""
    diskcache.Cache(str(tmp_path / "state")).close()
    frontier = make(tmp_path / "state")
    assert frontier.open() is False
    frontier.commit(Batch(found=entries(1)))
    frontier.close()
    frontier = make(tmp_path / "state")
    assert frontier.open() is True
    frontier.close()


def test_a_state_without_its_marker_gets_it_back(state: Path) -> None:
    (state / MARKER).unlink()
    frontier = make(state)
    assert frontier.open() is True
    frontier.close()
    assert (state / MARKER).read_bytes() == b'{"format":1,"fingerprints":"rules-1"}'


def test_a_directory_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("mine")
    with pytest.raises(StateDamaged, match="cannot be opened"):
        make(tmp_path / "state").open()
    assert (tmp_path / "state").read_text() == "mine"


def test_a_path_that_diskcache_would_expand_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCRAWL_ELSEWHERE", "elsewhere")
    with pytest.raises(ConfigError, match="environment variable"):
        make(tmp_path / "$SYNCRAWL_ELSEWHERE").open()
    assert list(tmp_path.iterdir()) == []


def test_a_database_locked_by_another_process_says_so(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontier = make(state)
    frontier.open()
    frontier._cache._sql("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(state / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateLocked, match="another process"):
        frontier.commit(Batch(notes={"n": b"x"}))
    other.execute("ROLLBACK")
    other.close()
    frontier.commit(Batch(notes={"n": b"x"}))
    frontier.close()


# -- other eyes -----------------------------------------------------------------------


def test_nobody_else_may_read_the_state(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        frontier = make(tmp_path / "state")
        frontier.open()
        frontier.commit(Batch(found=entries(3)))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()
    }
    names = [DATABASE, f"{DATABASE}-shm", f"{DATABASE}-wal", MARKER]
    assert modes == dict.fromkeys(names, 0o600)
    frontier.close()


def test_a_state_that_others_could_read_is_closed_to_them(state: Path) -> None:
    state.chmod(0o755)
    (state / DATABASE).chmod(0o644)
    frontier = make(state)
    frontier.open()
    frontier.close()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / DATABASE).stat().st_mode) == 0o600


# -- no room --------------------------------------------------------------------------


def fill(directory: Path) -> int:
    """Commit until there is no room; how many commits got through. The state must be sound."""
    frontier = make(directory)
    frontier.open()
    full: DiskFull | None = None
    number = 0
    while full is None:
        found = [entry(f"{number}-{n}", label="x" * 200) for n in range(50)]
        counts = frontier.counts()
        try:
            frontier.commit(Batch(found=found, notes={"number": b"%d" % (number + 1)}))
        except DiskFull as exc:
            full = exc
        else:
            number += 1
        assert number < 1_000, "there was room without end"
    assert "no room for the state" in str(full)
    assert frontier.counts() == counts == Counts(50 * number, 50 * number)
    assert found[0].fp not in frontier.seen
    with contextlib.suppress(DiskFull):
        frontier.close()
    return number


def assert_goes_on(directory: Path, commits: int) -> None:
    """With room again, everything committed is there and more can be."""
    frontier = make(directory)
    assert frontier.open() is True
    assert frontier.note("number") == b"%d" % commits
    assert frontier.counts() == Counts(50 * commits, 50 * commits)
    taken = drain(frontier)
    assert len(taken) == 50 * commits
    frontier.commit(done(taken))
    frontier.close()


def test_a_full_disk_stops_and_loses_nothing(tmp_path: Path) -> None:
    small, roomy = tmp_path / "small", tmp_path / "roomy"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        absent("the right to mount a tmpfs")
    try:
        commits = fill(small / "state")
        assert commits > 1
        shutil.copytree(small / "state", roomy)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert_goes_on(roomy, commits)


def test_a_limit_on_file_sizes_stops_and_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from tests.test_frontier_crash import fill\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))\n"
        "print(fill(Path(sys.argv[1])))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 1
    assert_goes_on(tmp_path / "state", int(run.stdout))


# -- look-ups -------------------------------------------------------------------------


def test_a_look_up_tells_the_state_of_each_url(state: Path) -> None:
    before = files(state)
    looked = {n: inspect(state, entry(n).fp) for n in (*range(8), "never")}
    states = ["done", "failed", "dropped", *["pending"] * 5, None]
    assert [found.state for found in looked.values() if found] == states
    failed, moved, lowered = looked[1], looked[3], looked[4]
    assert failed is not None
    assert failed.reason == "why"
    assert failed.entry is not None
    assert failed.entry.url == entry(1).url
    assert moved is not None
    assert moved.entry is not None
    assert (moved.due, moved.entry.attempts) == (9e9, 1)
    assert lowered is not None
    assert lowered.entry is not None
    assert lowered.entry.depth == 2
    assert looked[0] == inspect(state, 77) == Found("done")
    assert robots_note(state, "http://a.test") == b"rules"
    assert robots_note(state, "http://b.test") is None
    assert inspect(state, entry("shed").fp) == Found("dropped", SHED)
    assert files(state) == before


def test_a_look_up_where_no_state_is(tmp_path: Path) -> None:
    assert inspect(tmp_path / "nowhere", 1) is None
    assert robots_note(tmp_path / "nowhere", "http://a.test") is None
    (tmp_path / DATABASE).touch()
    assert inspect(tmp_path, 1) is None
    diskcache.Cache(str(tmp_path / "empty")).close()
    assert inspect(tmp_path / "empty", 1) == Found(None)


def test_a_look_up_needs_no_diskcache() -> None:
    code = "import sys, syncrawl.frontier.inspect; sys.exit('diskcache' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=CHILD_SECONDS)


def test_a_look_up_in_garbage_is_one_clear_line(state: Path) -> None:
    (state / DATABASE).write_bytes(b"garbage" * 1000)
    for look in (lambda: inspect(state, 1), lambda: robots_note(state, "http://a.test")):
        with pytest.raises(StateDamaged) as caught:
            look()
        assert "\n" not in str(caught.value)


def test_a_fingerprint_across_two_others_is_no_hit(tmp_path: Path) -> None:
    frontier = make(tmp_path / "state")
    frontier.open()
    frontier.commit(Batch(aliases=[0x1122334455667788, 0x99AABBCCDDEEFF00]))
    frontier.close()
    packed = (0x1122334455667788).to_bytes(8, sys.byteorder) + (0x99AABBCCDDEEFF00).to_bytes(
        8, sys.byteorder
    )
    across = int.from_bytes(packed[4:12], sys.byteorder)
    assert inspect(tmp_path / "state", across) == Found(None)
    assert inspect(tmp_path / "state", 0x99AABBCCDDEEFF00) == Found("done")


if __name__ == "__main__":
    if sys.argv[3] == "revive":
        reviving_child(sys.argv[1], int(sys.argv[2]))
    else:
        child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
