"""From plain values to the models: unknown keys, types, bounds, units; one line an error.

Any thread; pure. Imports the models, log (for redaction) and errors. Keys in errors are
spelled as a TOML file has them: fetch.workers, stores[0].type, host.rules[1].match.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from syncrawl.config.model import Config, HostRule, StoreConfig
from syncrawl.errors import ConfigError
from syncrawl.log import redact

__all__ = ["bad", "build", "join"]

_Model = TypeVar("_Model", bound=Struct)

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DECIMAL = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|min|[smhdw])(?: |$|(?=[0-9]))")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LONGEST_SHOWN = 100
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Keys whose values are, or hold, credentials: by what they are called, known or mistyped; and
# those that are called so and hold none.
_SECRET = re.compile(
    r"(?i)passw|passphrase|secret|token|api_?key|auth|cookie|credential|proxy|header|gateway"
)
_OPEN = re.compile(
    r"gateway\.(max_in_flight|(throttled|exhausted)_status|target_status_header|resume_after)\b"
)


def build(config: Config | Mapping[str, Any]) -> Config:
    """`config`, in the shape of config.toml or as a model, with every value checked.

    Durations and sizes become seconds and bytes. Raises ConfigError for an unknown key, a
    wrong type, a value out of bounds.
    """
    if isinstance(config, Mapping):
        config = _rules_moved(config)
    return _model(Config, config, "")


def bad(key: str, value: object, message: str, remedy: str) -> ConfigError:
    """A ConfigError whose value is fit to be shown: short, and without credentials."""
    if _SECRET.search(key) and not _OPEN.match(key):
        value = None
    elif isinstance(value, Mapping) or _holds_table(value):
        value = None  # where a table stands in the wrong place, any of its keys may be a password
    elif isinstance(value, int) and value.bit_length() > 256:
        value = f"an integer of {value.bit_length()} bits"  # Python may refuse to print it
    elif isinstance(value, (str, list, tuple)):
        text = value if isinstance(value, str) else repr(value)
        shown = redact(text)
        if shown != text:
            value = shown
        if len(shown) > _LONGEST_SHOWN:
            value = shown[:_LONGEST_SHOWN] + "..."
    return ConfigError(message, key=key, value=value, remedy=remedy)


def _holds_table(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)


def join(key: str, name: object) -> str:
    """The dotted key of `name` inside table `key`, quoted where TOML wants it quoted."""
    text = str(name)
    if not _BARE_KEY.fullmatch(text):
        text = json.dumps(text)
    return f"{key}.{text}" if key else text


# --- tables ---


def _rules_moved(config: Mapping[str, Any]) -> dict[str, Any]:
    """TOML's [[host.rules]] under the name the model has for them."""
    moved = dict(config)
    if "host_rules" in moved:
        raise bad("host_rules", None, "unknown key", "write these tables as [[host.rules]]")
    host = moved.get("host")
    if isinstance(host, Mapping) and "rules" in host:
        moved["host_rules"] = host["rules"]
        moved["host"] = {name: value for name, value in host.items() if name != "rules"}
    return moved


def _model(kind: type[_Model], value: Any, key: str) -> _Model:
    if isinstance(value, kind):
        given: Mapping[str, Any] = msgspec.structs.asdict(value)
    elif isinstance(value, Mapping):
        given = _options_apart(value, key) if kind is StoreConfig else value
    else:
        raise bad(key, value, "is no table", f"write it as [{key}] with its keys below")
    fields = _fields(kind)
    for name in given:
        if name not in fields:
            raise _unknown(kind, key, name, given[name])
    for name, field in fields.items():
        if field.required and name not in given:
            raise bad(join(key, name), None, "is missing", f"add {name} = {_example(field.type)}")
    spelled = {"host_rules": "host.rules"} if kind is Config else {}
    return kind(
        **{
            name: _value(fields[name].type, item, spelled.get(name) or join(key, name))
            for name, item in given.items()
        }
    )


def _options_apart(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    own = {name: entry[name] for name in ("type", "path") if name in entry}
    options = {name: item for name, item in entry.items() if name not in own}
    return own | {"options": options}


@cache
def _fields(kind: type[Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _unknown(kind: type[Struct], key: str, name: object, value: object) -> ConfigError:
    text = str(name)
    at = join(key, text)
    names = [known for known in _fields(kind) if known != "host_rules"]
    names += ["rules"] if key == "host" else []
    # A name that is right in another table says more than one that is nearly right in this.
    homes = [
        table
        for table, field in _fields(Config).items()
        if isinstance(field.type, type) and text in _fields(field.type)
    ]
    if homes:
        return bad(at, value, "unknown key", f"it belongs in [{homes[0]}]")
    close = [join(key, known) for known in _close(text, names)]
    if close:
        return bad(at, value, "unknown key", f"did you mean {' or '.join(close)}?")
    listed = ", ".join(sorted(names))
    where = f"[{key}]" if key else "the file"
    return bad(at, value, "unknown key", f"{where} knows {listed}")


def _close(word: str, words: Iterable[str]) -> list[str]:
    import difflib  # needed for errors only

    return difflib.get_close_matches(word.lower(), list(words), n=3, cutoff=0.65)


# --- values ---


def _value(kind: Any, value: Any, key: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _model(kind, value, key)
    if get_origin(kind) is tuple:
        return _array(get_args(kind)[0], value, key)
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise bad(key, value, "is no table", f"write it as [{key}] with its keys below")
        item_kind = get_args(kind)[1]
        return {str(name): _value(item_kind, item, join(key, name)) for name, item in value.items()}
    if isinstance(value, str) or (isinstance(value, float) and _base(kind) is int):
        value = _quantity(kind, value, key)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise _refused(kind, value, key) from None


def _array(kind: Any, value: Any, key: str) -> tuple[Any, ...]:
    tables = kind in (HostRule, StoreConfig)
    if not isinstance(value, (list, tuple)):
        remedy = f"write [[{key}]]" if tables else f"put it in brackets: [{_example(kind)}]"
        raise bad(key, value, "is no array", remedy)
    return tuple(_value(kind, item, f"{key}[{place}]") for place, item in enumerate(value))


def _refused(kind: Any, value: object, key: str) -> ConfigError:
    options = _options(kind)
    if options:
        listed = ", ".join(f'"{option}"' for option in options)
        close = _close(value, options) if isinstance(value, str) else []
        remedy = f'did you mean "{close[0]}"?' if close else "choose one of them"
        return bad(key, value, f"is none of {listed}", remedy)
    base = _base(kind)
    right_type = type(value) is base or (base is float and type(value) is int)
    message = "is out of range" if right_type else f"is {_type_name(value)}"
    return bad(key, value, message, f"expected {_expected(kind)}")


def _type_name(value: object) -> str:
    names = {str: "a string", bool: "a boolean", int: "a whole number", float: "a number"}
    tables = {list: "an array", tuple: "an array", dict: "a table"}
    return (names | tables).get(type(value), f"of type {type(value).__name__}")


# --- what a field's type says ---


def _unwrapped(kind: Any) -> Any:
    """`kind` without its "or None"."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _base(kind: Any) -> Any:
    kind = _unwrapped(kind)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _metas(kind: Any) -> list[Meta]:
    kind = _unwrapped(kind)
    return [part for part in get_args(kind)[1:] if isinstance(part, Meta)]


def _unit(kind: Any) -> str | None:
    return next((meta.extra["unit"] for meta in _metas(kind) if meta.extra), None)


def _options(kind: Any) -> tuple[str, ...]:
    kind = _unwrapped(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _expected(kind: Any) -> str:
    unit = _unit(kind)
    names = {str: "a string in quotes", bool: "true or false", int: "a whole number"}
    what = {
        "duration": 'a duration: seconds, or such as "250ms", "15s", "1h30m", "2d"',
        "size": 'a size: bytes, or such as "64KiB", "5MiB", "10MB"',
    }.get(unit or "", names.get(_base(kind), "a number"))
    bounds = []
    for meta in _metas(kind):
        bounds += [f"more than {meta.gt:g}"] if meta.gt is not None else []
        bounds += [f"at least {meta.ge}"] if meta.ge is not None else []
        # Bounds that only keep a number inside its machine type would help nobody.
        bounds += [f"at most {meta.le:g}"] if meta.le is not None and meta.le < 1e9 else []
    return ", ".join([what, *bounds])


def _example(kind: Any) -> str:
    return {str: '"..."', bool: "true"}.get(_base(kind), "1")


# --- durations and sizes ---


def _quantity(kind: Any, value: str | float, key: str) -> object:
    """Seconds or bytes for a field with a unit; anything else as it came."""
    unit = _unit(kind)
    if unit is None:
        return value
    if isinstance(value, float):
        # 5e6 is how TOML writes a round number of bytes.
        return int(value) if value.is_integer() else value
    text = value.strip().lower()
    number = float(text) if _NUMBER.fullmatch(text) else None
    if number is None:
        number = _seconds(text) if unit == "duration" else _bytes(text)
    if number is None:
        raise bad(key, value, f"is no {unit}", f"expected {_expected(kind)}")
    if unit == "duration":
        return number
    if not number.is_integer():
        raise bad(key, value, "is no whole number of bytes", f"expected {_expected(kind)}")
    return int(number)


def _seconds(text: str) -> float | None:
    total, end = 0.0, 0
    while match := _DURATION.match(text, end):
        total += float(match[1]) * _SECONDS[match[2]]
        end = match.end()
    return total if text and end == len(text) else None


def _bytes(text: str) -> float | None:
    match = _SIZE.fullmatch(text)
    factor = match and (_DECIMAL | _BINARY).get(match[2])
    return float(match[1]) * factor if match and factor else None
