"""A loopback site in a process of its own, so that it does not share the GIL with a crawl.

`python -m syncrawl.testing.site --spec FILE` serves the hosts that FILE (JSON) describes
and obeys one word a line on standard input: `log` prints every exchange as one JSON line,
`counts` how many there are, `forget` clears the logs, `cpu` the seconds used, and the end
of input stops it, so it dies with whoever started it. `SiteProcess` is the other end of
those pipes. Imports nothing outside `testing`.

A spec is `{"hosts": [{...}]}`; a host has the fields of `site.Host` except `pages`, and
one of `tree` (the fields of `PageTree`), `root` (a folder) or `replies` (target -> body,
status, or the fields of `Reply` with a text body); `replies` goes before the other two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from syncrawl.testing.site import Answer, Host, Pages, Reply, Site
from syncrawl.testing.site_log import HostLog
from syncrawl.testing.site_pages import FileTree, PageTree

STOP_SECONDS = 10.0
"""Real seconds a site's process gets to leave after its input has ended."""


def host_from_spec(spec: Mapping[str, Any]) -> Host:
    """The `Host` that one entry of a spec describes; TypeError names an unknown field."""
    fields = dict(spec)
    replies = {key: _answer(value) for key, value in fields.pop("replies", {}).items()}
    tree, root = fields.pop("tree", None), fields.pop("root", None)
    others: Pages = {}
    if tree is not None:
        others = PageTree(**tree)
    elif root is not None:
        others = FileTree(root)
    if isinstance(fields.get("robots"), Mapping):
        fields["robots"] = _answer(fields["robots"])

    def pages(target: str) -> Answer:
        if target in replies:
            return replies[target]
        return others(target) if callable(others) else None

    return Host(pages=pages if callable(others) else replies, **fields)


def _answer(value: Any) -> Answer:
    if not isinstance(value, Mapping):
        return value  # type: ignore[no-any-return]
    fields = dict(value)
    for name in ("body", "raw"):
        if isinstance(fields.get(name), str):
            fields[name] = fields[name].encode()
    if "headers" in fields:
        fields["headers"] = tuple((key, text) for key, text in fields["headers"])
    return Reply(**fields)


class SiteProcess:
    """Starts a site's process and asks it what it saw; a context manager.

    `addresses` are (address, port) and `netlocs` the `host:port` of its URLs, in the
    spec's order. Times in its logs are this machine's `time.monotonic`, as here.
    """

    def __init__(self, hosts: Sequence[Mapping[str, Any]]) -> None:
        self.hosts = [dict(host) for host in hosts]
        self.addresses: list[tuple[str, int]] = []
        self.netlocs: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SiteProcess:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as spec:
            json.dump({"hosts": self.hosts}, spec)
            spec.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "syncrawl.testing.site", "--spec", spec.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                served = self._answer()
            except BaseException:
                self.close()
                raise
        self.addresses = [(one["address"], one["port"]) for one in served]
        self.netlocs = [one["netloc"] for one in served]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def url(self, index: int, path: str = "/") -> str:
        """The absolute URL of `path` on host `index`."""
        return f"http://{self.netlocs[index]}{path}"

    @property
    def resolve(self) -> dict[str, str]:
        """Names to addresses, in the shape of `[fetch.resolve]`."""
        pairs = zip(self.hosts, self.addresses, strict=True)
        return {host["name"]: address for host, (address, _) in pairs if host.get("name")}

    def logs(self) -> list[HostLog]:
        """What each host saw since the start or the last `forget`."""
        self._tell("log")
        return [HostLog.from_mapping(one) for one in self._answer()]

    def counts(self) -> list[int]:
        """Requests seen by each host; cheap enough to poll."""
        self._tell("counts")
        return [int(one) for one in self._answer()]

    def forget(self) -> None:
        """Clear the logs."""
        self._tell("forget")
        self._answer()

    def cpu_seconds(self) -> float:
        """User and system time the site has used."""
        self._tell("cpu")
        return float(self._answer())

    def close(self) -> None:
        """End its input, wait, and kill it where it does not leave."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has left already
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _tell(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the site's process left with code {self._process.wait()}")
        return json.loads(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a spec until standard input ends."""
    options = argparse.ArgumentParser(
        prog="python -m syncrawl.testing.site", description="Serve a site on loopback."
    )
    options.add_argument("--spec", required=True, type=Path, help="JSON file with the hosts")
    chosen = options.parse_args(argv)
    spec = json.loads(chosen.spec.read_text())
    with Site(*map(host_from_spec, spec["hosts"])) as site:
        _print(
            [{"address": one.address, "port": one.port, "netloc": one.netloc} for one in site.hosts]
        )
        for line in sys.stdin:
            _obey(site, line.strip())
    return 0


def _obey(site: Site, word: str) -> None:
    if word == "log":
        _print([one.log.as_mapping() for one in site.hosts])
    elif word == "counts":
        _print([len(one.exchanges) for one in site.hosts])
    elif word == "forget":
        site.forget()
        _print("ok")
    elif word == "cpu":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _print(used.ru_utime + used.ru_stime)
    else:
        _print(f"unknown word {word!r}")


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
