"""Foreign exceptions become FetchErrors here, and only here.

Runs on fetch threads; imports the standard library and `deadline`. urllib3 and requests
wrap one another several deep, so the root is looked for: whatever they call it, it is one
of the standard library's exceptions, and the phase tells what it means.
"""

from __future__ import annotations

import errno
import http.client
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

from syncrawl.errors import FetchError
from syncrawl.fetch.deadline import TooSlow

if TYPE_CHECKING:
    from syncrawl.fetch.deadline import Exchange

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BROKEN = (ConnectionError, http.client.RemoteDisconnected, ssl.SSLError)


def translate(error: Exception, exchange: Exchange) -> FetchError:
    """The FetchError that `error` stands for; one that is already wrapped in it is kept."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, FetchError):
            return cause
    # The innermost known cause says most; wrappers come first in the list.
    for cause in reversed(causes):
        found = _classified(cause, exchange)
        if found is not None:
            return found
    text = f"{exchange.phase}: {type(error).__name__}: {_text(error)}"
    if exchange.phase == "start" and isinstance(error, ValueError):
        # Nothing was sent yet: the client library would not have the URL.
        return FetchError(text, outcome="url", retryable=False)
    return FetchError(text, outcome="protocol")


def is_stale(error: Exception, exchange: Exchange) -> bool:
    """Whether a kept-alive connection died before a single byte of the answer.

    RFC 9112 section 9.3.1: such a GET may be sent again at once.
    """
    if not exchange.reused or exchange.first_byte_at is not None:
        return False
    if exchange.phase not in ("send", "headers"):
        return False
    return any(
        isinstance(cause, _BROKEN) and not isinstance(cause, TimeoutError)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it wraps, outermost first, each once."""
    queue: list[BaseException] = [error]
    seen: set[int] = set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = [current.__cause__, getattr(current, "reason", None), *current.args]
        queue.extend(item for item in inner if isinstance(item, BaseException))


def _classified(cause: BaseException, exchange: Exchange) -> FetchError | None:
    phase = exchange.phase
    text = f"{phase}: {_text(cause)}"
    if isinstance(cause, TimeoutError):
        if isinstance(cause, TooSlow):
            text = f"{phase}: {cause}, over {exchange.read_timeout:g} s"
        elif exchange.expired():
            text = f"{phase}: the total time is used up"
        elif phase in ("connect", "dns"):
            text = f"{phase}: no answer in {exchange.connect_timeout:g} s"
        else:
            text = f"{phase}: silent for {exchange.read_timeout:g} s"
        return FetchError(text, outcome="timeout")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FetchError(text, outcome="tls", retryable=False)
    if isinstance(cause, OSError) and cause.errno in _OUT_OF_RESOURCES:
        return FetchError(text, outcome="connect", ours=True)
    if phase in ("connect", "tls") and isinstance(cause, OSError):
        return FetchError(text, outcome=phase)
    if isinstance(cause, http.client.IncompleteRead):
        return FetchError(f"{phase}: the body ended early", outcome="incomplete")
    if isinstance(cause, _BROKEN):
        return FetchError(text, outcome="incomplete" if phase == "body" else "connection")
    if isinstance(cause, http.client.HTTPException):
        return FetchError(text, outcome="protocol")
    if isinstance(cause, OSError) and cause.errno is not None:
        return FetchError(text, outcome="connection")
    return None


def _text(cause: BaseException) -> str:
    # Bytes of a stranger's server end up in logs: short, and without control characters.
    text = str(cause) or type(cause).__name__
    return "".join(char if char.isprintable() else " " for char in text)[:200]
