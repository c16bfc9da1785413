"""The records and links a parser yields from a file or a URL, as JSON.

Runs on the main thread, without a crawl around it.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syncrawl.cli.common import add_config, load, out_json
from syncrawl.errors import ConfigError

if TYPE_CHECKING:
    from syncrawl.api import Link, Page
    from syncrawl.config.model import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `parse`."""
    parser.add_argument("source", metavar="FILE|URL", help="a file, - for stdin, or an http(s) URL")
    parser.add_argument("--parser", default="page", metavar="NAME", help="default: page")
    parser.add_argument("--url", help="the URL a file is taken to have (default: file's own)")
    parser.add_argument("--content-type", help="of a file; default: by its name, else text/html")
    add_config(parser, option=True)


def execute(args: argparse.Namespace) -> int:
    """Print {"url", "parser", "records", "links"}; links are resolved and canonical."""
    from syncrawl.config.model import Config
    from syncrawl.parse.collect import collect
    from syncrawl.registry import construct

    config = load(args) if args.config else Config()
    page = _fetched(args.source, config) if _is_url(args.source) else _from_file(args)
    parser = construct("parsers", args.parser, config.parse.options.get(args.parser, {}))
    opened, closed = getattr(parser, "open", None), getattr(parser, "close", None)
    if opened:
        opened()
    try:
        records, links = collect(parser, page, config.parse.max_items)
    finally:
        if closed:
            closed()
    out_json(
        {
            "url": page.url,
            "parser": args.parser,
            "records": records,
            "links": _resolved(links, page, config),
        }
    )
    return 0


def _is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def _from_file(args: argparse.Namespace) -> Page:
    from mimetypes import guess_type

    from syncrawl.api import Headers

    path = args.source
    try:
        body = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(reason, key="FILE", value=path, remedy="name a file or a URL") from error
    content_type = args.content_type or guess_type(path)[0] or "text/html"
    url = args.url or (Path(path).absolute().as_uri() if path != "-" else "file:///dev/stdin")
    return _page(url, url, 200, Headers({"Content-Type": content_type}), body, 0.0)


def _fetched(url: str, config: Config) -> Page:
    from syncrawl.cli.fetch import follow

    *_, last = follow(url, config)
    if isinstance(last, Exception):
        raise last
    return _page(url, last.url, last.status, last.headers, last.body, last.elapsed)


def _page(url: str, final_url: str, status: int, headers: Any, body: bytes, elapsed: float) -> Page:
    from syncrawl.parse.html import make_page
    from syncrawl.urls import redact

    # As a crawl would give it to a parser: without the password that was typed.
    url = redact(url)
    return make_page(
        url=url,
        final_url=final_url,
        status=status,
        headers=headers,
        body=body,
        depth=0,
        label=None,
        canonical_url=url,
        referrer=None,
        fetched_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        elapsed=elapsed,
    )


def _resolved(links: list[Link], page: Page, config: Config) -> list[dict[str, Any]]:
    from syncrawl.parse.html import base_of
    from syncrawl.urls import Canonicalizer

    resolver = Canonicalizer(config.scope.tracking_parameters).resolver(base_of(page))
    rows = []
    for link in links:
        url = resolver.resolve(link.url)
        rows.append(
            {
                "href": link.url,
                "url": url.spelling if url else None,
                "canonical": url.canonical if url else None,
                "priority": link.priority,
                "label": link.label,
                "nofollow": link.nofollow,
            }
        )
    return rows
