"""One URL through the real fetch stage: its redirects, status, headers, timings and size.

Runs on the main thread. Politeness is the person's who typed it: robots.txt is not
consulted and no gate is passed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syncrawl.cli.common import add_config, load, one_line, out, out_json
from syncrawl.errors import ConfigError, FetchError

if TYPE_CHECKING:
    from syncrawl.api import Response
    from syncrawl.config.model import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fetch`."""
    parser.add_argument("url", metavar="URL")
    add_config(parser, optional=True)
    parser.add_argument("--body", action="store_true", help="print the decoded body to stdout")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the decoded body to FILE")
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """Fetch and tell; 0 where the last hop got an answer, whatever its status, else 1."""
    from syncrawl.config.model import Config

    config = load(args) if args.config else Config()
    hops = list(follow(args.url, config))
    last = hops[-1]
    rows = [_row(hop) for hop in hops]
    body = b"" if isinstance(last, FetchError) else last.body
    if args.output:
        _write(args.output, body)
    if args.json:
        out_json({**rows[-1], "hops": rows[:-1]})
    elif not args.body:
        _tell(rows)
    if args.body and sys.stdout is not None:
        sys.stdout.buffer.write(body)
    if isinstance(last, FetchError) and (args.body or args.output):
        raise last
    return last.exit_code if isinstance(last, FetchError) else 0


def follow(url: str, config: Config) -> Iterator[Response | FetchError]:
    """The exchanges from `url` on, redirects followed one by one; a failure is the last of them.

    ConfigError where `url` is no http(s) URL.
    """
    from syncrawl.cli.check import selected
    from syncrawl.fetch.target import location
    from syncrawl.registry import construct
    from syncrawl.urls import Canonicalizer

    canonicalizer = Canonicalizer(config.scope.tracking_parameters)
    target = canonicalizer.parse(url)
    if target is None:
        raise ConfigError(
            "is no http or https URL", key="URL", value=url, remedy="write it out, with http://"
        )
    named = {target.host}
    named.update(found.host for seed in config.crawl.seeds if (found := canonicalizer.parse(seed)))
    group, client, options = next(selected(config))
    fetcher = construct(group, client, options)
    try:
        for _ in range(config.fetch.max_redirects + 1):
            try:
                response = fetcher.fetch(_request(target.spelling, config, target.host in named))
            except FetchError as error:
                yield error
                return
            yield response
            onward = location(response, target.spelling)
            target = canonicalizer.parse(onward) if onward else None
            if target is None:
                return
        yield FetchError(
            f"more than {config.fetch.max_redirects} redirects",
            outcome="redirect_limit",
            retryable=False,
            url=url,
        )
    finally:
        fetcher.close()


def _request(url: str, config: Config, named: bool) -> Any:
    import syncrawl
    from syncrawl.api import Headers, Request
    from syncrawl.clock import SystemClock

    agent = config.crawl.user_agent or f"syncrawl/{syncrawl.__version__}"
    private = config.fetch.private_addresses
    return Request(
        url,
        deadline=SystemClock.monotonic() + config.fetch.total_timeout,
        max_body_bytes=config.fetch.max_body_bytes,
        headers=Headers([("User-Agent", agent)]),
        # Typed by hand is as good as a seed.
        allow_private=private == "allow" or (private == "seeds" and named),
    )


def _row(hop: Response | FetchError) -> dict[str, Any]:
    from syncrawl.limits.signals import outcome_of_status

    if isinstance(hop, FetchError):
        return {
            "url": hop.url,
            "outcome": hop.outcome,
            "error": hop.message,
            "retryable": hop.retryable,
        }
    return {
        "url": hop.url,
        "outcome": outcome_of_status(hop.status),
        "status": hop.status,
        "address": hop.address,
        "ttfb": round(hop.ttfb, 6),
        "elapsed": round(hop.elapsed, 6),
        "length": len(hop.body),
        "wire_bytes": hop.wire_bytes,
        "complete": hop.complete,
        "headers": [list(pair) for pair in hop.headers.pairs()],
    }


def _tell(rows: list[dict[str, Any]]) -> None:
    from syncrawl.observe.text import columns, human_bytes

    for row in rows[:-1]:
        out(f"{row['status']}  {one_line(row['url'])}  ({row['elapsed'] * 1000:.1f} ms)")
    last = rows[-1]
    lines = [("url", one_line(str(last["url"])))]
    if "error" in last:
        lines += [("outcome", last["outcome"]), ("error", one_line(last["error"]))]
        lines.append(("retryable", "yes" if last["retryable"] else "no"))
    else:
        size, wire = human_bytes(last["length"]), human_bytes(last["wire_bytes"])
        lines += [
            ("status", str(last["status"])),
            ("outcome", last["outcome"]),
            ("address", str(last["address"] or "-")),
            ("first byte", f"{last['ttfb'] * 1000:.1f} ms"),
            ("elapsed", f"{last['elapsed'] * 1000:.1f} ms"),
            ("size", f"{size}, {wire} on the wire" + ("" if last["complete"] else ", cut")),
        ]
    for line in columns(lines):
        out(line)
    for name, value in last.get("headers", ()):
        out(f"  {one_line(name)}: {one_line(value)}")


def _write(path: str, body: bytes) -> None:
    try:
        Path(path).write_bytes(body)
    except OSError as error:
        raise ConfigError(
            error.strerror or str(error),
            key="--output",
            value=path,
            remedy="name a file that can be written",
        ) from error
