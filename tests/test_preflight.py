"""Limits, file systems, paths, the lock, and setting an old state aside."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from syncrawl.config.model import Config, CrawlConfig, FetchConfig, ParseConfig, StoreConfig
from syncrawl.engine import preflight
from syncrawl.engine.fresh import set_aside
from syncrawl.engine.preflight import (
    Limit,
    Limits,
    StateLock,
    check_filesystem,
    check_writable,
    filesystem_of,
    fit_workers,
    held,
    read_limits,
)
from syncrawl.errors import ConfigError, StateLocked

# A child that should have spoken by now is stuck.
STUCK_SECONDS = 20.0


def wants(workers: int, /, **parse: int) -> Config:
    return Config(fetch=FetchConfig(workers=workers), parse=ParseConfig(**parse))


def allows(descriptors: float = float("inf"), tasks: float = float("inf")) -> Limits:
    return Limits(
        Limit(descriptors, "ulimit -n 256", "raise it with ulimit -n"),
        Limit(tasks, "ulimit -u 64", "raise it with ulimit -u"),
    )


class TestFitWorkers:
    def test_enough_changes_nothing(self) -> None:
        config = wants(32)
        assert fit_workers(config, allows(256, 64)) == (config, [])

    def test_workers_are_fitted_to_the_tighter_limit_and_it_is_said(self) -> None:
        config, warnings = fit_workers(wants(200), allows(256, 64))
        assert config.fetch.workers == 64 - preflight.TASKS_RESERVED - config.parse.workers
        assert len(warnings) == 1
        assert "fetch.workers = 200" in warnings[0]
        assert "ulimit -u 64" in warnings[0]
        config, warnings = fit_workers(wants(200), allows(256, 1000))
        assert config.fetch.workers == 192 - preflight.DESCRIPTORS_RESERVED
        assert "ulimit -n" in warnings[0]

    def test_what_is_fitted_really_fits(self) -> None:
        for tasks in range(30, 90):
            config, _ = fit_workers(wants(64, workers=1), allows(tasks=tasks))
            assert config.fetch.workers + 1 + preflight.TASKS_RESERVED <= tasks

    def test_parse_processes_take_their_share(self) -> None:
        without = fit_workers(wants(64, workers=2), allows(tasks=60))[0].fetch.workers
        # Two children, with a thread each that stands in for a worker's.
        beside = fit_workers(wants(64, workers=2, processes=2), allows(tasks=60))[0].fetch.workers
        assert beside == without - 2

    def test_fewer_than_eight_is_refused_with_limit_and_remedy(self) -> None:
        with pytest.raises(ConfigError) as caught:
            fit_workers(wants(32), allows(tasks=preflight.TASKS_RESERVED + 2 + 7))
        told = str(caught.value)
        assert caught.value.exit_code == 2
        assert "fetch.workers" in told
        assert "only 7 workers fit ulimit -u 64" in told
        assert "raise it with ulimit -u" in told
        fitted, _ = fit_workers(wants(32), allows(tasks=preflight.TASKS_RESERVED + 2 + 8))
        assert fitted.fetch.workers == 8

    def test_who_asks_for_less_than_eight_gets_it(self) -> None:
        config, warnings = fit_workers(wants(2, workers=1), allows(tasks=26))
        assert (config.fetch.workers, warnings) == (2, [])
        with pytest.raises(ConfigError):
            fit_workers(wants(4, workers=1), allows(tasks=24))


class TestReadLimits:
    """Against a made-up /proc, since ours says what this machine happens to allow."""

    @pytest.fixture
    def proc(self, tmp_path: Path) -> Path:
        proc = tmp_path / "proc"
        (proc / "self/fd").mkdir(parents=True)
        for number in range(7):
            (proc / "self/fd" / str(number)).touch()
        (proc / "self/status").write_text("Name:\tx\nCapEff:\t0000000000000000\nThreads:\t3\n")
        for pid, threads in (("10", 3), ("11", 5)):
            (proc / pid).mkdir()
            (proc / pid / "status").write_text(f"Name:\tx\nThreads:\t{threads}\n")
        return proc

    @pytest.fixture
    def rlimits(self, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
        values = {
            resource.RLIMIT_NOFILE: resource.RLIM_INFINITY,
            resource.RLIMIT_NPROC: resource.RLIM_INFINITY,
        }
        monkeypatch.setattr(resource, "getrlimit", lambda which: (values[which], values[which]))
        return values

    def test_unlimited(self, proc: Path, rlimits: dict[int, int]) -> None:
        assert read_limits(proc, proc / "none") == Limits()

    def test_descriptors_in_use_are_gone(self, proc: Path, rlimits: dict[int, int]) -> None:
        rlimits[resource.RLIMIT_NOFILE] = 256
        limit = read_limits(proc, proc / "none").descriptors
        assert limit.left == 249
        assert "ulimit -n 256" in limit.name

    def test_tasks_are_those_of_the_whole_user(
        self, proc: Path, rlimits: dict[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rlimits[resource.RLIMIT_NPROC] = 64
        monkeypatch.setattr(os, "getuid", lambda: (proc / "10").stat().st_uid)
        monkeypatch.setattr(preflight, "_is_exempt", lambda proc: False)
        assert read_limits(proc, proc / "none").tasks.left == 64 - 8

    @pytest.mark.parametrize(
        ("uid", "capabilities", "mapped", "exempt"),
        [
            (0, 0, "0 0 4294967295", True),
            (1000, 0, "0 0 4294967295", False),
            (1000, 1 << 24, "0 0 4294967295", True),
            (1000, 1 << 21, "0 0 4294967295", True),
            # Root of a user namespace is nobody special to the kernel.
            (0, 1 << 24, "0 100000 65536", False),
        ],
    )
    def test_who_is_not_bound_by_ulimit_u(
        self,
        proc: Path,
        monkeypatch: pytest.MonkeyPatch,
        uid: int,
        capabilities: int,
        mapped: str,
        exempt: bool,
    ) -> None:
        monkeypatch.setattr(os, "getuid", lambda: uid)
        (proc / "self/status").write_text(f"CapEff:\t{capabilities:016x}\n")
        (proc / "self/uid_map").write_text(f"         {mapped}\n")
        assert preflight._is_exempt(proc) is exempt

    @pytest.mark.parametrize("version", [1, 2])
    def test_the_tightest_control_group_above_us_counts(
        self, proc: Path, rlimits: dict[int, int], version: int
    ) -> None:
        groups = proc / "cgroup"
        root = groups if version == 2 else groups / "pids"
        (root / "a/b").mkdir(parents=True)
        (proc / "self/cgroup").write_text("0::/a/b\n" if version == 2 else "8:pids:/a/b\n")
        for folder, maximum, used in ((root / "a", "100", "40"), (root / "a/b", "max", "3")):
            (folder / "pids.max").write_text(maximum)
            (folder / "pids.current").write_text(used)
        limit = read_limits(proc, groups).tasks
        assert limit.left == 60
        assert "pids.max 100" in limit.name

    def test_this_machine(self) -> None:
        limits = read_limits()
        assert limits.descriptors.left > 0
        assert limits.tasks.left > 0


MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:30 / /mnt/share\\040one rw - nfs4 server:/x rw,vers=4.2
23 21 0:31 / /mnt rw shared:1 - tmpfs tmpfs rw
24 21 0:32 / /data rw - ext4 /dev/sdb1 rw
25 24 0:33 / /data rw - fuse.sshfs me@there:/ rw
26 21 0:34 / /database rw - xfs /dev/sdc1 rw
garbage
"""


class TestFilesystem:
    @pytest.fixture
    def mounts(self, tmp_path: Path) -> Path:
        path = tmp_path / "mountinfo"
        path.write_text(MOUNTS)
        return path

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/home/me/state", "ext4"),
            ("/mnt/share one/crawl/state", "nfs4"),
            ("/mnt/other", "tmpfs"),
            ("/data/state", "fuse.sshfs"),
            ("/database/state", "xfs"),
        ],
    )
    def test_the_deepest_and_latest_mount_decides(self, mounts: Path, path: str, kind: str) -> None:
        assert filesystem_of(path, mounts) == kind

    def test_a_network_file_system_is_refused(self, mounts: Path) -> None:
        with pytest.raises(ConfigError, match=r"crawl\.state_dir = .*nfs4.*local disk"):
            check_filesystem("/mnt/share one/state", mounts)
        check_filesystem("/home/me/state", mounts)
        check_filesystem("/home/me/state", mounts / "absent")

    def test_through_a_link(self, mounts: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("/data/x")
        assert filesystem_of(tmp_path / "link" / "state", mounts) == "fuse.sshfs"


class TestWritable:
    def test_what_can_be_made_is_not_made(self, tmp_path: Path) -> None:
        check_writable(tmp_path / "a/b/c", key="k")
        check_writable(tmp_path / "a/b", key="k", directory=True)
        check_writable(tmp_path, key="k", directory=True)
        assert list(tmp_path.iterdir()) == []

    def test_wrong_kinds(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(ConfigError, match="is not a directory"):
            check_writable(file, key="crawl.state_dir", directory=True)
        with pytest.raises(ConfigError, match="is a directory"):
            check_writable(tmp_path, key="stores.path")
        with pytest.raises(ConfigError, match="is not a directory"):
            check_writable(file / "below", key="stores.path")
        with pytest.raises(ConfigError, match=r"stores\.path"):
            check_writable("x" * 5000, key="stores.path")

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Root may write anywhere, so the kernel's answer is put in its mouth.
        monkeypatch.setattr(os, "access", lambda path, mode, **_: False)
        monkeypatch.setattr(os, "supports_effective_ids", set())
        with pytest.raises(ConfigError, match="is not writable: change its permissions"):
            check_writable(tmp_path / "a", key="k")


HOLD = """
import sys
from syncrawl.engine.preflight import StateLock
with StateLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


class TestStateLock:
    def test_one_at_a_time_also_in_one_process(self, tmp_path: Path) -> None:
        state = tmp_path / "deep/state"
        assert held(state) is None
        assert not state.exists()
        with StateLock(state):
            assert state.stat().st_mode & 0o777 == 0o700
            assert held(state) == os.getpid()
            with pytest.raises(StateLocked, match=rf"pid {os.getpid()}\) holds it") as caught:
                StateLock(state).acquire()
            assert caught.value.exit_code == 4
        assert held(state) is None
        with StateLock(state):
            pass

    def test_the_kernel_lets_go_of_a_killed_run(self, tmp_path: Path) -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            assert held(tmp_path) == child.pid
            with pytest.raises(StateLocked, match=str(child.pid)):
                StateLock(tmp_path).acquire()
            child.send_signal(signal.SIGKILL)
            child.wait(STUCK_SECONDS)
        assert held(tmp_path) is None
        StateLock(tmp_path).acquire()

    def test_a_glance_at_the_lock_does_not_stop_a_run_that_starts(self, tmp_path: Path) -> None:
        import fcntl

        lock = StateLock(tmp_path)
        (tmp_path / "lock").touch()
        glance = os.open(tmp_path / "lock", os.O_RDONLY)
        fcntl.flock(glance, fcntl.LOCK_SH)
        waits = 0

        class Clock:
            def monotonic(self) -> float:
                return 0.0

            wall = monotonic

            def wait(self, condition: object, timeout: float | None) -> None:
                nonlocal waits
                waits += 1
                if waits == 2:
                    os.close(glance)

        lock._clock = Clock()
        lock.acquire()
        lock.release()
        assert waits == 2

    def test_no_directory_can_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"crawl\.state_dir"):
            StateLock(tmp_path / "file/state").acquire()


class TestSetAside:
    def config(self, tmp_path: Path, *paths: str) -> Config:
        stores = [StoreConfig(type="jsonl", path=path) for path in paths]
        return Config(crawl=CrawlConfig(state_dir=str(tmp_path / "state")), stores=tuple(stores))

    def old_run(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state/frontier").write_text(text)
        (tmp_path / "pages.jsonl").write_text(text)

    def test_state_and_outputs_move_together_and_nothing_is_lost(self, tmp_path: Path) -> None:
        config = self.config(tmp_path, str(tmp_path / "pages.jsonl"), "-", "")
        assert set_aside(config) == []
        self.old_run(tmp_path, "first")
        moves = set_aside(config)
        assert [Path(new).name for _, new in moves] == ["pages.jsonl.1", "state.1"]
        self.old_run(tmp_path, "second")
        set_aside(config)
        assert (tmp_path / "pages.jsonl.1").read_text() == "first"
        assert (tmp_path / "state.1/frontier").read_text() == "first"
        assert (tmp_path / "pages.jsonl.2").read_text() == "second"
        assert (tmp_path / "state.2/frontier").read_text() == "second"
        assert not (tmp_path / "state").exists()

    def test_one_number_for_all(self, tmp_path: Path) -> None:
        self.old_run(tmp_path, "x")
        (tmp_path / "pages.jsonl.1").write_text("somebody's")
        moves = set_aside(self.config(tmp_path, str(tmp_path / "pages.jsonl")))
        assert [Path(new).suffix for _, new in moves] == [".2", ".2"]
        assert (tmp_path / "pages.jsonl.1").read_text() == "somebody's"

    def test_a_database_keeps_its_log(self, tmp_path: Path) -> None:
        for name in ("db", "db-wal", "db-shm"):
            (tmp_path / name).write_text(name)
        set_aside(self.config(tmp_path, str(tmp_path / "db")))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["db.1", "db.1-shm", "db.1-wal"]

    def test_pipes_stay(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert set_aside(self.config(tmp_path, str(tmp_path / "pipe"))) == []

    def test_a_running_crawl_is_left_alone(self, tmp_path: Path) -> None:
        self.old_run(tmp_path, "x")
        before = sorted(tmp_path.rglob("*"))
        with StateLock(tmp_path / "state"), pytest.raises(StateLocked):
            set_aside(self.config(tmp_path, str(tmp_path / "pages.jsonl")))
        assert sorted(set(tmp_path.rglob("*")) - {tmp_path / "state/lock"}) == before

    def test_a_lock_that_was_moved_aside_meanwhile_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.old_run(tmp_path, "x")
        config, really_open = self.config(tmp_path), os.open

        def open_then_lose(path: Path, *rest: int) -> int:
            """The old lock is opened; before it is locked, another process starts afresh."""
            descriptor = really_open(path, *rest)
            monkeypatch.setattr(os, "open", really_open)
            set_aside(config)
            (tmp_path / "state").mkdir()
            return descriptor

        monkeypatch.setattr(os, "open", open_then_lose)
        with StateLock(tmp_path / "state"):
            assert held(tmp_path / "state") == os.getpid()
            assert held(tmp_path / "state.1") is None

    def test_what_cannot_be_renamed_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.old_run(tmp_path, "x")

        def busy(old: Path, new: Path) -> None:
            raise OSError(16, "Device or resource busy")

        monkeypatch.setattr(os, "rename", busy)
        with pytest.raises(ConfigError, match=r"--fresh = .*state'.*busy"):
            set_aside(self.config(tmp_path))
        assert (tmp_path / "state/frontier").read_text() == "x"
