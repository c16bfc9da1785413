"""Every error syncrawl raises on purpose, under one root.

Runs on any thread; imports nothing from the package. An error carries fields
(`url`, `host`, `key`, `value`, `remedy`) so that callers never parse messages,
and its class carries the process exit code of the contract. Foreign exceptions
(urllib3, sqlite3, lxml ...) are translated once, where they enter.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SIGNAL = 3
EXIT_CONDITION = 4


class SyncrawlError(Exception):
    """Root of all deliberate errors; `exit_code` is what the CLI leaves with."""

    exit_code = EXIT_INTERNAL

    def __init__(
        self,
        message: str,
        *,
        url: str | None = None,
        host: str | None = None,
        key: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.url = url
        self.host = host
        self.key = key
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        parts = []
        if self.key is not None:
            parts.append(f"{self.key} = {self.value!r}" if self.value is not None else self.key)
        parts.append(self.message)
        if self.remedy:
            parts.append(self.remedy)
        # One line always: an error is read in a terminal, a log field or a CI summary.
        return " ".join(": ".join(parts).split())


class ConfigError(SyncrawlError):
    """The configuration or the command line cannot be used: one line, key, value, remedy."""

    exit_code = EXIT_USAGE


class StopCondition(SyncrawlError):
    """The crawl cannot go on now but can be resumed; the message names the condition."""

    exit_code = EXIT_CONDITION


class StateLocked(StopCondition):
    """Another run holds the state directory."""


class StateMismatch(StopCondition):
    """The state directory was written by another version or for other fingerprint rules."""


class StateDamaged(StopCondition):
    """The state directory cannot be read back."""


class StoreDamaged(StopCondition):
    """An output is shorter than its token says, or is not where it was; left untouched."""


class StoreFailed(StopCondition):
    """A store kept raising after bounded retries."""


class OutputClosed(StopCondition):
    """Standard output, or a pipe that a store writes to, was closed by its reader."""


class DiskFull(StopCondition):
    """No space is left for the state or an output."""


class ProxyRefused(StopCondition):
    """The configured proxy refused us (407, connection refused); no host is to blame."""


class PluginError(SyncrawlError):
    """A plugin cannot be found, loaded or constructed, or broke its protocol."""

    exit_code = EXIT_USAGE


class FetchError(SyncrawlError):
    """An exchange that brought no usable response.

    `outcome` is the class counted in the report; `retryable` says whether a later
    attempt could succeed; `ours` marks pressure inside this process (no attempt is
    charged, no signal goes to the host). `phase` says how far the exchange had come
    ("dns", "connect", "tls", "send", "headers", "body"), None where nobody tells.
    """

    exit_code = EXIT_CONDITION

    def __init__(
        self,
        message: str,
        *,
        outcome: str,
        retryable: bool = True,
        ours: bool = False,
        url: str | None = None,
        host: str | None = None,
        wire_bytes: int = 0,
        phase: str | None = None,
    ) -> None:
        super().__init__(message, url=url, host=host)
        self.phase = phase
        self.outcome = outcome
        self.retryable = retryable
        self.ours = ours
        self.wire_bytes = wire_bytes
