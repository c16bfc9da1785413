"""Hosts where little is allowed: no asyncio, no privileges, few descriptors and processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host
from tests.crawling import AGENT, links
from tests.support import ROOT, absent

RUN_SECONDS = 60.0
NOBODY = 65534

# Runs the command line in a process that tells, at its end, what it did behind our back.
WATCHED = """
import json, os, sys
written, bound = set(), []
def watch(event, args):
    if event == "open" and isinstance(args[0], str) and args[2] is not None:
        if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.add(os.path.abspath(args[0]))
    elif event == "sqlite3.connect":
        written.add(os.path.abspath(str(args[0])))
    elif event in ("os.mkdir", "os.rename"):
        written.add(os.path.abspath(os.fspath(args[1 if event == "os.rename" else 0])))
    elif event == "socket.bind":
        bound.append(repr(args[1]))
sys.addaudithook(watch)
from syncrawl.cli import main
code = main(sys.argv[1:])
told = {"code": code, "written": sorted(written), "bound": bound,
        "asyncio": "asyncio" in sys.modules, "uid": os.getuid()}
print(json.dumps(told))
"""

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("asyncio", "_asyncio"):
            raise ImportError(f"{name} is not available on this host")
sys.meta_path.insert(0, Blocker())
"""


def write_config(folder: Path, seed: str, client: str = "urllib3", workers: int = 16) -> Path:
    path = folder / "config.toml"
    path.write_text(
        f"""
        [crawl]
        seeds = ["{seed}"]
        user_agent = "{AGENT}"
        [fetch]
        client = "{client}"
        workers = {workers}
        """
    )
    return path


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    names = ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV")
    base = {name: os.environ[name] for name in names if name in os.environ}
    base["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), base.get("PYTHONPATH"))))
    return subprocess.run(
        command,
        cwd=folder,
        env={**base, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def pages() -> dict[str, str]:
    return {"/": links(*(f"/p{n}" for n in range(50)))} | {f"/p{n}": "x" for n in range(50)}


@pytest.mark.parametrize("client", ["urllib3", "requests"])
def test_a_whole_crawl_where_asyncio_cannot_be_imported(tmp_path: Path, client: str) -> None:
    with Site(Host(pages=pages())) as site:
        config = write_config(tmp_path, site.hosts[0].url(), client)
        code = BLOCKED + WATCHED
        done = run([sys.executable, "-c", code, str(config), "-v"], tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["code"], told["asyncio"]) == (0, False)
    assert len((tmp_path / "pages.jsonl").read_text().splitlines()) == 51


def test_nothing_is_written_elsewhere_and_nothing_listens(tmp_path: Path) -> None:
    with Site(Host(pages=pages())) as site:
        config = write_config(tmp_path, site.hosts[0].url())
        done = run([sys.executable, "-c", WATCHED, str(config)], tmp_path)
    told = json.loads(done.stdout)
    assert told["code"] == 0, done.stderr
    # urllib3 finds out whether there is IPv6 by binding, not listening, to a free port.
    assert [address for address in told["bound"] if address != "('::1', 0)"] == []
    allowed = (str(tmp_path / "state"), str(tmp_path / "pages.jsonl"), "/dev/null")
    # mkdir(exist_ok) of the folder itself is tried, and finds it there.
    elsewhere = [path for path in told["written"] if not path.startswith(allowed)]
    assert [path for path in elsewhere if path != str(tmp_path)] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.toml",
        "pages.jsonl",
        "state",
    ]
    assert any(path.startswith(allowed[0]) for path in told["written"])


def unprivileged(command: list[str], *, files: int, tasks: int) -> list[str]:
    """`command` as nobody, with these limits; a skip where this process cannot become nobody.

    The one capability that is left reads the interpreter where only root may look; it
    grants no writing and lifts no limit.
    """
    setpriv, prlimit = shutil.which("setpriv"), shutil.which("prlimit")
    if os.getuid() != 0 or setpriv is None or prlimit is None:
        absent("root with setpriv(1) and prlimit(1), to become another user")
    reader = "dac_read_search"
    return [
        setpriv,
        *("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
        *("--inh-caps", f"-all,+{reader}", "--ambient-caps", f"-all,+{reader}"),
        *("--bounding-set", f"-all,+{reader}"),
        *(prlimit, f"--nofile={files}", f"--nproc={tasks}"),
        *command,
    ]


def test_a_crawl_of_an_unprivileged_user_fits_its_workers(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents[:2]:
        os.chmod(parent, 0o755)
    with Site(Host(pages=pages())) as site:
        config = write_config(tmp_path, site.hosts[0].url(), workers=100)
        command = unprivileged([sys.executable, "-c", WATCHED, str(config)], files=256, tasks=64)
        os.chown(tmp_path, NOBODY, NOBODY)
        done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["code"], told["uid"]) == (0, NOBODY), done.stderr
    assert "fetch.workers = 100 fitted to" in done.stderr
    assert len((tmp_path / "pages.jsonl").read_text().splitlines()) == 51
    assert not [path for path in told["written"] if path.startswith(str(ROOT))]


def test_limits_too_low_for_eight_workers_are_one_line(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents[:2]:
        os.chmod(parent, 0o755)
    config = write_config(tmp_path, "http://127.0.0.1:9/")
    command = unprivileged([sys.executable, "-c", WATCHED, str(config)], files=256, tasks=20)
    os.chown(tmp_path, NOBODY, NOBODY)
    done = run(command, tmp_path)
    assert json.loads(done.stdout)["code"] == 2
    assert "ulimit -u" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml"]
