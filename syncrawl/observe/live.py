"""The live view: a table that rich redraws in place on a terminal.

Runs on the progress thread alone. Imports rich at once, so only progress.py imports
this module, and only when there is a terminal to draw on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from syncrawl.observe.pace import Pace, Snapshot
from syncrawl.observe.report import bottleneck_line, slowest_hosts, standing
from syncrawl.observe.text import human_bytes, human_seconds, printable


class LiveView:
    """A table redrawn in place by rich, with log lines printed above it."""

    def __init__(self, stream: TextIO, *, wall: Callable[[], float], max_items: int = 256) -> None:
        self._wall = wall
        self._max_items = max_items
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        # No refresh thread and no redirection: this thread draws, and sys.stdout stays as it is.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._live.start()

    def show(self, snapshot: Snapshot, pace: Pace) -> None:
        self._live.update(self._render(snapshot, pace), refresh=True)

    def log(self, line: str) -> None:
        # The logger has escaped what a site sent; Text keeps rich from reading it as markup.
        self._console.print(Text(line.rstrip("\n")), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _render(self, snapshot: Snapshot, pace: Pace) -> Any:
        urls = snapshot["urls"]
        head = (
            f"{snapshot['pages']:,} pages  {pace.pages():,.1f}/s  "
            f"{human_bytes(pace.bytes())}/s  "
            f"{urls['pending']:,} pending  {urls['leased']:,} in flight  "
            f"{urls['done']:,} done  {urls['failed']:,} failed  {urls['dropped']:,} dropped"
        )
        eta = pace.eta()
        foot = (
            f"{human_seconds(snapshot['run']['seconds'])} so far, "
            + ("to go: unknown" if eta is None else f"about {human_seconds(eta)} to go")
            + f", {bottleneck_line(snapshot)}"
        )
        return Group(
            Text(head, style="bold"),
            self._stages(snapshot["stages"]),
            self._hosts(snapshot["hosts"], pace),
            Text(foot, style="dim"),
        )

    def _stages(self, stages: Mapping[str, Mapping[str, Any]]) -> Any:
        table = Table.grid(padding=(0, 2))
        for name, stage in stages.items():
            table.add_row(
                name,
                ProgressBar(total=self._max_items, completed=stage["depth"], width=24),
                f"{stage['depth']:,}",
                f"oldest {human_seconds(stage['oldest_age'])}"
                if stage["oldest_age"] >= 0.1
                else "",
            )
        return table

    def _hosts(self, hosts: Mapping[str, Mapping[str, Any]], pace: Pace) -> Any:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("slowest hosts", no_wrap=True, max_width=40)
        for title in ("pages", "pending", "rate", "in flight", "limit"):
            table.add_column(title, justify="right")
        table.add_column("", no_wrap=True)
        for key, host in slowest_hosts(hosts, 8):
            table.add_row(
                printable(key, 60),
                f"{host['pages']:,}",
                f"{host['pending']:,}",
                f"{pace.host(key):.1f}/s",
                f"{host['in_flight']}",
                f"{host['limit']:g}",
                self._note(host),
            )
        return table

    def _note(self, host: Mapping[str, Any]) -> str:
        told = standing(host, self._wall())
        return "" if told == "ok" else told
