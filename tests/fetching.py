"""What the fetch tests share: both clients, and requests with test-sized bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from syncrawl.api import FetchError, Headers, Request, Response
from syncrawl.fetch.requests_client import RequestsFetcher
from syncrawl.fetch.transport import Urllib3Fetcher

CLIENTS = [
    pytest.param(Urllib3Fetcher, id="urllib3"),
    pytest.param(RequestsFetcher, id="requests"),
]
both_clients = pytest.mark.parametrize("client", CLIENTS)

TOTAL = 10.0
"""Seconds an exchange may take where the test is not about time; far above what one needs."""


def request(url: str, **changes: Any) -> Request:
    """A request for `url` with a wide deadline; `total` sets another."""
    total = changes.pop("total", TOTAL)
    fields = {"max_body_bytes": 1 << 20, "headers": Headers({"User-Agent": "test"}), **changes}
    return Request(url, time.monotonic() + total, **fields)


@contextmanager
def fetching(client: Callable[..., Any], **options: Any) -> Iterator[Any]:
    """A fetcher that is closed afterwards; reads certificates only where the test names some."""
    if "ca_bundle" not in options:
        options.setdefault("verify", False)
    fetcher = client(options)
    try:
        yield fetcher
    finally:
        fetcher.close()


def fetch(client: Callable[..., Any], url: str, **changes: Any) -> Response:
    """One exchange with a fetcher of its own; `options` are its [fetch] table."""
    with fetching(client, **changes.pop("options", {})) as fetcher:
        response: Response = fetcher.fetch(request(url, **changes))
        return response


def failure(client: Callable[..., Any], url: str, **changes: Any) -> FetchError:
    """The FetchError that fetching `url` raises."""
    with pytest.raises(FetchError) as caught:
        fetch(client, url, **changes)
    return caught.value
