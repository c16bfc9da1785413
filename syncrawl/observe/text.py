"""Numbers and foreign strings made fit for a terminal.

Any thread; imports the log's escaping only. Host names, URLs and messages come from the network:
whatever of them is printed goes through `printable` first.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncrawl.log import show


def printable(text: object, limit: int = 200) -> str:
    """`text` on one line, what a terminal might act on escaped, cut to `limit` characters first."""
    string = str(text)
    return show(string if len(string) <= limit else string[: limit - 1] + "…")


def human_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """7.25 -> "7.2 s", 95 -> "1 min 35 s", 7380 -> "2 h 3 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def columns(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as aligned lines; `right` names the columns that hold numbers."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
