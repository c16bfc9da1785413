"""What is checked before a crawl starts: process limits, the file system, paths, the lock.

Runs on the thread that calls `Crawl.run`, and in the CLI's check and status commands.
Reads the machine through /proc and changes nothing on it but the lock; where
/proc or a limit cannot be read, that check is passed over. Imports the config models
and the errors only.
"""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from syncrawl.clock import Clock, SystemClock
from syncrawl.config.model import Config
from syncrawl.directories import make_private
from syncrawl.errors import ConfigError, StateLocked

# Fewer fetch workers than this and the crawl could not do its work: it is refused, not fitted.
MIN_WORKERS = 8
# The transport keeps idle connections in at most this part of the descriptors.
IDLE_SHARE = 0.25
# Pipes to and from a parse child, and its pid descriptor.
DESCRIPTORS_PER_PROCESS = 4
# Lock, log, SQLite files of the state and the stores, and a socket for each look-up thread.
DESCRIPTORS_RESERVED = 50
# Threads beside the stages': main, commit, seeds, observer, progress, 16 for DNS look-ups.
TASKS_RESERVED = 21

# SQLite's write-ahead log needs shared memory, and flock a lock that every host sees.
NETWORK_FILESYSTEMS = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs3", "nfs4", "orangefs", "pvfs2", "smb", "smb2", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs"),
        *("fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs"),
    )
)

# A status command may hold the lock shared for an instant; a run tries this often before it
# believes that another run has it.
LOCK_ATTEMPTS = 5
LOCK_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Limit:
    """How many of something this process may still take, and which limit says so."""

    left: float
    name: str
    remedy: str


UNLIMITED = Limit(float("inf"), "", "")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allows: `descriptors` in this process, `tasks` (threads and processes)."""

    descriptors: Limit = UNLIMITED
    tasks: Limit = UNLIMITED


def read_limits(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Limits:
    """The limits of this process as of now; what cannot be read counts as unlimited."""
    tasks = min(_user_tasks(proc), _cgroup_tasks(proc, cgroups), key=lambda limit: limit.left)
    return Limits(_descriptors(proc), tasks)


def fit_workers(config: Config, limits: Limits | None = None) -> tuple[Config, list[str]]:
    """Fit the worker counts to the limits; one warning a change.

    Raises ConfigError (exit 2) naming the limit where fewer than 8 fetch workers fit (or
    fewer than were asked for, if that is less than 8).
    """
    limits = limits or read_limits()
    wanted = config.fetch.workers
    children = config.parse.processes
    # A child is a process of its own, beside the thread that feeds it.
    tasks = limits.tasks.left - TASKS_RESERVED - config.parse.threads - children
    descriptors = limits.descriptors.left * (1 - IDLE_SHARE) - DESCRIPTORS_RESERVED
    descriptors -= DESCRIPTORS_PER_PROCESS * children
    bounds = [(tasks, limits.tasks), (descriptors, limits.descriptors)]
    room, limit = min(bounds, key=lambda bound: bound[0])
    if room >= wanted:
        return config, []
    if room < min(MIN_WORKERS, wanted):
        raise ConfigError(
            f"only {max(0, int(room))} workers fit {limit.name}, {MIN_WORKERS} are needed",
            key="fetch.workers",
            value=wanted,
            remedy=limit.remedy,
        )
    fitted = int(room)
    fetch = msgspec.structs.replace(config.fetch, workers=fitted)
    warning = f"fetch.workers = {wanted} fitted to {fitted}: {limit.name}; {limit.remedy}"
    return msgspec.structs.replace(config, fetch=fetch), [warning]


def _descriptors(proc: Path) -> Limit:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return UNLIMITED
    used = _count(proc / "self/fd")
    return Limit(soft - used, f"ulimit -n {soft} ({used} in use)", "raise it with ulimit -n")


def _user_tasks(proc: Path) -> Limit:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or _is_exempt(proc):
        return UNLIMITED
    used = _tasks_of_user(proc, os.getuid())
    return Limit(soft - used, f"ulimit -u {soft} ({used} in use)", "raise it with ulimit -u")


def _is_exempt(proc: Path) -> bool:
    """Whether RLIMIT_NPROC does not bind us: the real root, or one of two capabilities (fork(2)).

    In a user namespace neither counts, since the kernel asks the initial one.
    """
    mapped = [row.split()[:2] for row in _lines(proc / "self/uid_map")]
    if mapped and mapped != [["0", "0"]]:
        return False
    if os.getuid() == 0:
        return True
    cap_sys_admin, cap_sys_resource = 1 << 21, 1 << 24
    effective = _status_field(proc / "self/status", "CapEff:", base=16) or 0
    return bool(effective & (cap_sys_admin | cap_sys_resource))


def _tasks_of_user(proc: Path, uid: int) -> int:
    """Threads of every process of `uid` that /proc shows; others may be hidden from us."""
    total = 0
    for entry in _entries(proc):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == uid:
                total += _status_field(entry / "status", "Threads:") or 1
        except OSError:
            continue  # the process has ended meanwhile
    return total


def _cgroup_tasks(proc: Path, cgroups: Path) -> Limit:
    """The tightest pids.max of our control group and its ancestors (cgroup v2 or v1)."""
    tightest = UNLIMITED
    for folder in _cgroup_folders(proc, cgroups):
        try:
            maximum = int((folder / "pids.max").read_text())
            used = int((folder / "pids.current").read_text())
        except (OSError, ValueError):
            continue  # not limited here ("max"), or not for us to read
        if maximum - used < tightest.left:
            name = f"the control group's pids.max {maximum} ({used} in use)"
            tightest = Limit(maximum - used, name, "raise the container's or service's task limit")
    return tightest


def _cgroup_folders(proc: Path, cgroups: Path) -> Iterator[Path]:
    for row in _lines(proc / "self/cgroup"):
        number, _, rest = row.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            root = cgroups
        elif "pids" in controllers.split(","):
            root = cgroups / "pids"
        else:
            continue
        inside = path.strip("/")
        folder = root / inside if ".." not in inside.split("/") else root
        yield folder
        for parent in folder.parents:
            if not parent.is_relative_to(root):
                break
            yield parent


def _status_field(path: Path, label: str, base: int = 10) -> int | None:
    for row in _lines(path):
        if row.startswith(label):
            return int(row[len(label) :].split()[0], base)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _count(path: Path) -> int:
    return len(_entries(path))


def filesystem_of(path: str | os.PathLike[str], mountinfo: Path | None = None) -> str:
    """The type of the file system that holds `path`, or would hold it; "" where unknown.

    The deepest mount point above the real path decides, and of several on one point the last
    in proc(5)'s mountinfo, which covers the others.
    """
    real = Path(os.path.realpath(path))
    best, found = -1, ""
    for row in _lines(mountinfo or Path("/proc/self/mountinfo")):
        before, _, after = row.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        if len(point.parts) >= best and real.is_relative_to(point):
            best, found = len(point.parts), after.split(" ")[0]
    return found


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as \\040 and \\134."""
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def check_filesystem(state_dir: str | os.PathLike[str], mountinfo: Path | None = None) -> None:
    """Raise ConfigError where the state would lie on a network file system."""
    kind = filesystem_of(state_dir, mountinfo)
    if kind in NETWORK_FILESYSTEMS:
        raise ConfigError(
            f"is on a network file system ({kind}), where SQLite's log and the lock do not hold",
            key="crawl.state_dir",
            value=os.fspath(state_dir),
            remedy="choose a directory on a local disk",
        )


def check_writable(path: str | os.PathLike[str], *, key: str, directory: bool = False) -> None:
    """Raise ConfigError unless `path` can be written, or made; creates nothing.

    `directory` says what `path` is to be. Missing parents count as makeable where the
    nearest one that exists is a writable directory.
    """
    place = Path(path)

    def refuse(reason: str, remedy: str) -> ConfigError:
        return ConfigError(reason, key=key, value=str(place), remedy=remedy)

    try:
        if place.exists():
            if directory and not place.is_dir():
                raise refuse("is not a directory", "remove it or choose another path")
            if not directory and place.is_dir():
                raise refuse("is a directory", "name a file")
            target = place
        else:
            target = next(parent for parent in place.absolute().parents if parent.exists())
            if not target.is_dir():
                raise refuse(f"{target} is not a directory", "choose another path")
        needed = os.W_OK | os.X_OK if target.is_dir() else os.W_OK
        writable = os.access(target, needed, effective_ids=os.access in os.supports_effective_ids)
    except OSError as error:
        raise refuse(error.strerror or str(error), "choose another path") from error
    if not writable:
        raise refuse(f"{target} is not writable", "change its permissions or choose another path")


class StateLock:
    """The one run that may use a state directory: flock(2) on `lock` inside it.

    The kernel lets go of it however the process ends, SIGKILL included; the pid inside the
    file is for messages only. Acquired and released by one thread; a context manager.
    """

    def __init__(self, state_dir: str | os.PathLike[str], clock: Clock | None = None) -> None:
        self._directory = Path(state_dir)
        self._path = self._directory / "lock"
        self._clock = clock or SystemClock()
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Make the directory (0700) where missing and take the lock; raises StateLocked."""
        try:
            make_private(self._directory)
            for _ in range(LOCK_ATTEMPTS):
                if self._try():
                    return
                self._pause()
        except OSError as error:
            raise ConfigError(
                error.strerror or str(error),
                key="crawl.state_dir",
                value=str(self._directory),
                remedy="choose a directory that can be written",
            ) from error
        pid = _pid_in(self._path)
        raise StateLocked(
            f"another run{f' (pid {pid})' if pid else ''} holds it",
            key="crawl.state_dir",
            value=str(self._directory),
            remedy="wait for it, stop it, or choose another state_dir",
        )

    def release(self) -> None:
        """Let go; the file stays, since removing it would let two runs lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> StateLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "free" if self._descriptor is None else "held"
        return f"<StateLock {self._path} {state} here>"

    def _try(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The directory may have been moved aside between the opening and the locking.
            if not os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
        self._descriptor = descriptor
        return True

    def _pause(self) -> None:
        condition = threading.Condition()
        with condition:
            self._clock.wait(condition, LOCK_PAUSE)


def held(state_dir: str | os.PathLike[str]) -> int | None:
    """The pid of the run that holds `state_dir` (0 where it is not told), None where none does.

    Creates nothing. Tries the lock shared, for an instant, which a starting run rides out.
    """
    path = Path(state_dir, "lock")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(path) or 0
    finally:
        os.close(descriptor)
    return None


def _pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text()[:20])
    except (OSError, ValueError):
        return None
