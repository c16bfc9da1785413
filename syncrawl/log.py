"""Structured events on structlog: one line an event, secrets out, terminals safe.

Called from any thread; imports nothing from the package but errors and directories. Nothing global
is configured, so a program that embeds the crawler keeps its own structlog and logging
set-up. structlog itself is imported by `make_logger`, not before.

The order in every line: time (RFC 3339, UTC), level, thread, event, key-values.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from syncrawl.directories import make_private
from syncrawl.errors import ConfigError

if TYPE_CHECKING:
    from syncrawl.config.model import LogConfig

__all__ = ["Log", "NullLog", "TextSink", "make_logger", "redact", "show"]

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_HIDDEN = "***"
# Compared in lower case with "-" and "." read as "_".
_SECRET_NAMES = frozenset(
    (
        *("authorization", "proxy_authorization", "cookie", "cookies", "set_cookie"),
        *("password", "passwd", "secret", "client_secret"),
        *("token", "access_token", "auth_token", "api_key", "apikey", "x_api_key"),
    )
)
# Everything a URL parser may take for userinfo: WHATWG parsers read backslashes as slashes,
# do without the second slash after a special scheme, and skip line breaks.
_USERINFO = re.compile(r"(?i)(\bhttps?:[/\\]*|[/\\]{2})[^ /\\?#]*@")
_SECRET_PARAMETER = re.compile(
    r"(?i)([?&;](?:access_token|auth_token|token|api_?key|client_secret|secret|passw(?:or)?d)=)"
    r"[^&;#\s\"']+"
)

# One value's characters; a traceback or the stacks of every thread get more.
_LONGEST_VALUE = 4096
_LONGEST_BLOCK = 65536
_MOST_ITEMS = 50
_DEEPEST = 4
# Fields of several lines, shown below the event on a console.
_BLOCKS = ("exception", "stack", "stacks")


class Log(Protocol):
    """What the package logs through: an event name and key-values.

    None of these raises, whatever the values and the state of the output. The level is
    fixed when the log is made; a call below it costs well under a microsecond, so only
    expensive arguments need a guard. `exc_info=True` (or an exception) adds the
    traceback, `stack=` or `stacks=` a text of several lines.
    """

    def debug(self, event: str, /, **values: Any) -> Any: ...

    def info(self, event: str, /, **values: Any) -> Any: ...

    def warning(self, event: str, /, **values: Any) -> Any: ...

    def error(self, event: str, /, **values: Any) -> Any: ...

    def bind(self, **values: Any) -> Log:
        """A log that adds `values` to each event."""
        ...


class NullLog:
    """Drops every event; the default for library users and tests."""

    def debug(self, event: str, /, **values: Any) -> None:
        pass

    info = warning = error = debug

    def bind(self, **values: Any) -> Self:
        return self


class TextSink(Protocol):
    """Where a line goes when the caller brings the stream: a live view, a test's StringIO."""

    def write(self, text: str, /) -> Any: ...

    def flush(self) -> Any: ...


def make_logger(
    config: LogConfig, *, stream: TextSink | None = None, wall: Callable[[], float] = time.time
) -> Log:
    """A log that writes as `[log]` says; to `stream` instead where one is given.

    `wall` gives seconds since the epoch. Raises ConfigError (log.file) where the file
    cannot be opened. A file is created 0600, its missing directories 0700; it is appended
    to, and closed when the last logger bound from this one is gone.
    """
    structlog = _import_structlog()
    console = config.format == "console"
    log = structlog.wrap_logger(
        _sink(config.file, stream),
        processors=[_Renderer(wall, _console_line if console else _json_line)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.level]),
        context_class=dict,
    )
    # wrap_logger's proxy assembles a logger on each call; bind() assembles it once.
    return cast(Log, log.bind())


# --- structlog without asyncio ---

# Guards sys.modules["asyncio"] between putting the stand-in there and taking it out.
_import_lock = threading.Lock()


def _import_structlog() -> Any:
    """structlog, also where asyncio cannot be imported.

    structlog names asyncio at import time and uses it in its async methods only, which
    this package never calls. The stand-in is visible to other threads for the length of
    one import, and only in a process where their own `import asyncio` would have failed.
    """
    with _import_lock:
        if "structlog" not in sys.modules:
            try:
                import asyncio  # noqa: F401  only to learn whether it can be
            except Exception:  # noqa: BLE001  a lock-down may raise anything
                return _import_with_stand_in()
        import structlog

        return structlog


def _import_with_stand_in() -> Any:
    absent = object()
    before: Any = sys.modules.get("asyncio", absent)
    sys.modules["asyncio"] = types.ModuleType("asyncio")
    try:
        import structlog
    finally:
        if before is absent:
            del sys.modules["asyncio"]
        else:
            sys.modules["asyncio"] = before
    return structlog


# --- from event to line ---


class _Renderer:
    """The one structlog processor: event dictionary in, finished line out. Never raises."""

    def __init__(self, wall: Callable[[], float], line: Callable[[dict[str, Any]], str]) -> None:
        self._wall = wall
        self._line = line

    def __call__(self, _: Any, level: str, event: MutableMapping[str, Any]) -> str:
        try:
            return self._line(self._fields(level, event))
        except Exception as error:  # noqa: BLE001  logging must not cost a worker its item
            name = type(error).__name__
            return self._line(self._head(level, f"event that cannot be shown ({name})"))

    def _head(self, level: str, event: Any) -> dict[str, Any]:
        return {
            "timestamp": _timestamp(self._wall()),
            "level": level,
            "thread": threading.current_thread().name,
            "event": event,
        }

    def _fields(self, level: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        fields = self._head(level, _plain(event.pop("event", "")))
        trace = _traceback(event.pop("exc_info", None))
        if trace:
            event["exception"] = trace
        for name, value in event.items():
            if name in _BLOCKS:
                fields[name] = _redacted(str(value), _LONGEST_BLOCK)
            elif name not in fields:
                fields[name] = _HIDDEN if _is_secret(name) else _plain(value)
        return fields


def _timestamp(seconds: float) -> str:
    whole = math.floor(seconds)
    milliseconds = int((seconds - whole) * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def _traceback(exc_info: Any) -> str:
    if isinstance(exc_info, BaseException):
        exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
    elif exc_info and not isinstance(exc_info, tuple):
        exc_info = sys.exc_info()
    if not exc_info or exc_info[0] is None:
        return ""
    return "".join(traceback.format_exception(*exc_info)).rstrip("\n")


def _json_line(fields: dict[str, Any]) -> str:
    # ASCII only: C1 controls and bidi overrides are escaped along with the rest, so that
    # a JSON log, too, can be looked at on a terminal.
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":")) + "\n"


def _console_line(fields: dict[str, Any]) -> str:
    timestamp, level, thread, event, *_ = fields.values()
    parts = [f"{timestamp} {level:<7} [{show(thread)}] {show(str(event))}"]
    blocks = []
    for name, value in list(fields.items())[4:]:
        if name in _BLOCKS:
            blocks += [f"    {show(line)}" for line in value.splitlines()]
        else:
            parts.append(f"{show(name)}={_console_value(value)}")
    return "\n".join([" ".join(parts), *blocks]) + "\n"


def _console_value(value: Any) -> str:
    if not isinstance(value, str):
        return show(str(value))
    bare = value and value.isprintable() and not any(mark in value for mark in " \"'")
    return value if bare else repr(value)


def show(text: str) -> str:
    """`text` with everything a terminal might act on escaped as in a Python string.

    Controls (C0, DEL, C1), line and bidi separators, invisible format characters and lone
    surrogates are escaped; letters of every script stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


# --- what may be said ---


def redact(text: str) -> str:
    """`text` without credentials: userinfo of any URL in it, and secret query parameters."""
    if "@" in text:
        text = _USERINFO.sub(rf"\1{_HIDDEN}@", text)
    if "=" in text:
        text = _SECRET_PARAMETER.sub(rf"\1{_HIDDEN}", text)
    return text


def _redacted(text: str, longest: int) -> str:
    if len(text) <= longest:
        return redact(text)
    # Twice the length is looked at, so that no secret is cut in two and half of it shown.
    return redact(text[: 2 * longest])[:longest] + "..."


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _normal(name) in _SECRET_NAMES


def _normal(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON can say it: redacted, bounded, anything foreign by its repr."""
    if isinstance(value, str):
        return _redacted(value, _LONGEST_VALUE)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int):
        # Python refuses to print integers of thousands of digits in decimal.
        return value if value.bit_length() < 1024 else hex(value)[:_LONGEST_VALUE]
    if depth < _DEEPEST and isinstance(value, Mapping):
        some = [(name, value[name]) for name, _ in zip(value, range(_MOST_ITEMS), strict=False)]
        return {
            _redacted(str(name), _LONGEST_VALUE): (
                _HIDDEN if _is_secret(name) else _plain(item, depth + 1)
            )
            for name, item in some
        }
    if depth < _DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        if isinstance(value, tuple) and len(value) == 2 and _is_secret(value[0]):
            return [value[0], _HIDDEN]  # a header field as (name, value)
        some = [item for item, _ in zip(value, range(_MOST_ITEMS), strict=False)]
        return [_plain(item, depth + 1) for item in some]
    return _redacted(_description(value), _LONGEST_VALUE)


def _description(value: object) -> str:
    try:
        if isinstance(value, BaseException):
            return f"{type(value).__name__}: {value}"
        return repr(value)
    except Exception:  # noqa: BLE001  a foreign __repr__ may raise anything
        return f"<{type(value).__name__} that cannot be shown>"


# --- where lines go ---


class _Sink:
    """Ends structlog's chain: takes a finished line under each level's name, never raises."""

    def write(self, line: str) -> None:
        raise NotImplementedError

    def debug(self, line: str) -> None:
        self.write(line)

    info = warning = error = critical = debug


class _DescriptorSink(_Sink):
    """Lines to a file descriptor: one os.write each, so threads need no lock.

    Closes the descriptor with the last reference where `owned`.
    """

    def __init__(self, descriptor: int, *, owned: bool) -> None:
        self._descriptor = descriptor
        if owned:
            # Not at exit: threads may still log then, and the number may be another file's.
            weakref.finalize(self, os.close, descriptor).atexit = False

    def write(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            pass  # closed, broken or full: there is nowhere left to say so


class _StreamSink(_Sink):
    """Lines to an object with write() and flush(): one write() each."""

    def __init__(self, stream: TextSink) -> None:
        self._stream = stream
        # Guards the use of _stream, which need not be thread-safe. Reentrant, because a
        # signal handler may log while its own thread is inside write().
        self._lock = threading.RLock()

    def write(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line)
                self._stream.flush()
            except Exception:  # noqa: BLE001, S110  a closed or broken stream costs the line only
                pass


class _NowhereSink(_Sink):
    """A process without stderr (sys.stderr is None)."""

    def write(self, line: str) -> None:
        pass


def _sink(file: str, stream: TextSink | None) -> _Sink:
    if stream is not None:
        return _StreamSink(stream)
    if file not in ("", "-"):
        return _DescriptorSink(_open(file), owned=True)
    standard = sys.stdout if file == "-" else sys.stderr
    if standard is None:
        return _NowhereSink()
    try:
        return _DescriptorSink(standard.fileno(), owned=False)
    except (OSError, ValueError, AttributeError):
        return _StreamSink(standard)  # replaced by an object of the embedding program


def _open(file: str) -> int:
    try:
        make_private(os.path.dirname(file) or ".")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        return os.open(file, flags, 0o600)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot be opened for appending ({reason})",
            key="log.file",
            value=file,
            remedy='name a file this user may write, or "" for stderr',
        ) from error
