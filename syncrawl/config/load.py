"""Configuration from a TOML file, a mapping or code: read, overridden, anchored, checked.

Any thread; reads the one file it is given. Imports the models, shape and checks. Every
failure is a ConfigError (exit 2): one line with key, value and remedy.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from syncrawl.config.checks import check, check_state_dir, clamped
from syncrawl.config.model import Config, StoreConfig
from syncrawl.config.shape import bad, build
from syncrawl.errors import ConfigError

__all__ = ["config_from_mapping", "load_config", "validate"]


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """The configuration in the TOML file `path`, with `overrides` ("KEY=VALUE") applied.

    A KEY is dotted (fetch.workers, stores[0].path, fetch.resolve."a.example"); a VALUE is
    TOML, or else taken as a string. Relative paths, in overrides too, are relative to the
    file's directory. Raises ConfigError.
    """
    file = Path(path)
    mapping = _parse(file)
    for override in overrides:
        _apply(mapping, override)
    source = f"{file} and --set" if overrides else str(file)
    config = config_from_mapping(mapping, base=file.absolute().parent, source=source)
    for place, store in enumerate(config.stores):
        if store.path and os.path.realpath(store.path) == os.path.realpath(file):
            key = f"stores[{place}].path"
            raise bad(key, store.path, "is this configuration file", "choose another path")
    return config


def config_from_mapping(mapping: Mapping[str, Any], *, base: Path, source: str) -> Config:
    """The configuration in `mapping`, which has the shape of config.toml.

    Relative paths start at `base`; `source` says in errors where the mapping came from.
    Raises ConfigError.
    """
    try:
        config = validate(build(mapping), base=base)
        check_state_dir(config, base)
    except ConfigError as error:
        error.remedy = f"{error.remedy} (in {source})"
        raise
    return config


def validate(config: Config, *, base: Path | None = None) -> Config:
    """`config` with every value checked, paths absolute and starts clamped: fit to be run.

    The one door for files and for configurations built in code. Relative paths start at
    `base`, by default the working directory. Raises ConfigError.
    """
    config = _anchored(build(config), (base or Path.cwd()).absolute())
    check(config)
    return clamped(config)


# --- the file ---


def _parse(file: Path) -> dict[str, Any]:
    try:
        # Editors on Windows put a byte-order mark in front, which TOML 1.0 does not know.
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        message, remedy = "does not exist", "start from config.example.toml"
    except IsADirectoryError:
        message, remedy = "is a directory", "name the TOML file in it"
    except OSError as error:
        message, remedy = f"cannot be read ({error.strerror})", "check the path and its permissions"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message, remedy = f"is not UTF-8 (at line {line})", "save it as UTF-8"
    except RecursionError:
        message, remedy = "nests too deeply", "flatten it"
    except ValueError as error:  # TOMLDecodeError, a null byte in the path, an endless integer
        message, remedy = f"is not valid TOML: {error}", 'strings need quotes: key = "value"'
    raise bad("config file", str(file), message, remedy)


# --- overrides ---

_STEP = re.compile(
    r"""\s*(?:(?P<bare>[A-Za-z0-9_-]+)|"(?P<double>[^"\\]*)"|'(?P<single>[^']*)')"""
    r"""(?P<places>(?:\[[0-9]{1,4}\])*)\s*(?P<more>\.|$)"""
)


def _apply(mapping: dict[str, Any], override: str) -> None:
    """Set one dotted key in `mapping`; tables on the way are made, array places are not."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals:
        remedy = "write KEY=VALUE, such as fetch.workers=8"
        raise bad("--set", _key_alone(key), "has no value", remedy)
    *way, last = _steps(key)
    node: Any = mapping
    for step in way:
        if isinstance(step, str) and isinstance(node, dict):
            node = node.setdefault(step, {})
        elif isinstance(step, int) and isinstance(node, list) and step < len(node):
            node = node[step]
        else:
            raise _no_way(key, step)
    fits = isinstance(node, dict) if isinstance(last, str) else isinstance(node, list)
    if not fits or (isinstance(last, int) and last >= len(node)):
        raise _no_way(key, last)
    node[last] = _toml_value(key, text)


def _key_alone(text: str) -> str:
    """What of a slip may be shown: a value that ran into its key may be a secret."""
    return re.split(r"[\s:/?]", text, maxsplit=1)[0]


def _no_way(key: str, step: str | int) -> ConfigError:
    what = f"there is no place {step}" if isinstance(step, int) else f"{step} is in no table"
    return bad("--set", key, what, "places count from 0, in arrays that the file has")


def _steps(key: str) -> list[str | int]:
    steps: list[str | int] = []
    position, more = 0, "."
    while more:
        match = _STEP.match(key, position)
        if match is None:
            remedy = "write it dotted, such as fetch.workers or stores[0].path"
            raise bad("--set", _key_alone(key), "is no key", remedy)
        steps.append(
            next(match[kind] for kind in ("bare", "double", "single") if match[kind] is not None)
        )
        steps += [int(place) for place in re.findall(r"[0-9]+", match["places"])]
        position, more = match.end(), match["more"]
    return steps


def _toml_value(key: str, text: str) -> Any:
    """The TOML value `text`; a text that is none, such as a bare word or URL, as a string.

    Where a string does not fit the field, its type check says so.
    """
    text = text.strip()
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[:1] in ('"', "'", "[", "{"):
            remedy = "quote the whole KEY=VALUE for the shell"
            raise bad(key, text, f"is not valid TOML: {error}", remedy) from None
        return text
    if len(document) > 1:
        raise bad(key, text, "holds more than one value", "use --set once a key")
    return document["value"]


# --- paths ---


def _anchored(config: Config, base: Path) -> Config:
    crawl, fetch, log = config.crawl, config.fetch, config.log
    if crawl.state_dir in ("", "-"):
        remedy = 'name a directory, such as "state"'
        raise bad("crawl.state_dir", crawl.state_dir, "is no directory", remedy)
    seed_files = tuple(
        _absolute(file, f"crawl.seed_files[{place}]", base)
        for place, file in enumerate(crawl.seed_files)
    )
    stores = tuple(_store(store, place, base) for place, store in enumerate(config.stores))
    state_dir = _absolute(crawl.state_dir, "crawl.state_dir", base)
    return replace(
        config,
        crawl=replace(crawl, state_dir=state_dir, seed_files=seed_files),
        fetch=replace(fetch, ca_bundle=_absolute(fetch.ca_bundle, "fetch.ca_bundle", base)),
        log=replace(log, file=_absolute(log.file, "log.file", base)),
        stores=stores,
    )


def _store(store: StoreConfig, place: int, base: Path) -> StoreConfig:
    if "://" in store.path:
        return store  # a plugin's address, not a file
    return replace(store, path=_absolute(store.path, f"stores[{place}].path", base))


def _absolute(path: str, key: str, base: Path) -> str:
    """`path` under `base`, ~ expanded; "" and "-" have meanings of their own and stay."""
    if path in ("", "-"):
        return path
    if "\0" in path:
        raise bad(key, path, "holds a null character", "write a plain path")
    try:
        return str(base / Path(path).expanduser())
    except RuntimeError:
        remedy = "write the path out, or ./~name for a file of that name"
        raise bad(key, path, "names no known home directory", remedy) from None
