"""Plugins: find (reads metadata, imports nothing) -> load (imports one) -> construct.

Any thread; keeps no state, so what is installed meanwhile is found. Imports the plugin
API and the errors. The built-in stages come in by the same entry points as a plugin's.

A name that two distributions offer is refused, naming both: which of them came first on
`sys.path` must not decide what a crawl does. A built-in name is the exception: it always
means the built-in, so that no installed package can take its place unseen; `describe()`
says of the other that it is hidden.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from syncrawl.api import API_VERSION
from syncrawl.errors import PluginError, SyncrawlError

GROUPS: Final = (
    "syncrawl.parsers",
    "syncrawl.stores",
    "syncrawl.fetchers",
    "syncrawl.frontiers",
    "syncrawl.robots",
    "syncrawl.renderers",
    "syncrawl.challenges",
)

# What a constructed plugin must be able to do; the optional methods of api.py are not here.
_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "syncrawl.parsers": ("parse",),
    "syncrawl.stores": ("open", "write", "checkpoint", "recover", "close"),
    "syncrawl.fetchers": ("fetch", "close"),
    "syncrawl.robots": ("parse",),
    "syncrawl.challenges": ("recognise",),
}

# The configuration key whose value chooses a plugin: what an error has to point at.
_KEYS: Final[Mapping[str, str]] = {
    "syncrawl.parsers": "parse.parsers",
    "syncrawl.stores": "stores.type",
    "syncrawl.fetchers": "fetch.client",
    "syncrawl.robots": "robots.engine",
    "syncrawl.challenges": "fetch.challenges",
}

Factory = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point: `name` in `group` is `value` ("module:factory") of `distribution`."""

    group: str
    name: str
    value: str
    distribution: str
    version: str
    builtin: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.group}) of {self.distribution} {self.version}"


def find(group: str | None = None) -> list[Plugin]:
    """What is installed, in `group` ("syncrawl.stores" or "stores") or in all; no import."""
    groups = GROUPS if group is None else (_full(group),)
    found = []
    points = metadata.entry_points()
    for name in groups:
        # A set: one distribution seen twice on sys.path counts once.
        found += sorted({_plugin(point) for point in points.select(group=name)}, key=_order)
    return found


def load(group: str, name: str) -> Factory:
    """Import the plugin `name` of `group` and give its factory.

    PluginError, naming the distribution, when it cannot be had: not installed (with a
    suggestion), offered twice, raising at import, or made for another major version.
    """
    factory, _ = _import(_select(find(group), group, name))
    return factory


def construct(group: str, name: str, options: Mapping[str, Any]) -> Any:
    """Load `name` of `group` and call its factory with the plugin's own options table.

    What the factory raises on purpose (ConfigError and its kin) passes through; anything
    else, or an object without the group's methods, is a PluginError.
    """
    plugin = _select(find(group), group, name)
    factory, _ = _import(plugin)
    try:
        made = factory(options)
    except SyncrawlError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(plugin, f"its factory raised {_told(error)}") from error
    missing = [m for m in _METHODS.get(plugin.group, ()) if not callable(getattr(made, m, None))]
    if missing:
        raise _failed(plugin, f"its factory gave an object without {', '.join(missing)}()")
    return made


def broken(group: str, name: str, why: str) -> PluginError:
    """The error of a plugin that was constructed and does not work; it names the distribution."""
    try:
        return _failed(_select(find(group), group, name), why)
    except PluginError:
        # Not an installed one: it was put in by whoever runs the crawl.
        return PluginError(why, key=_KEYS.get(_full(group)), value=name)


def describe() -> list[dict[str, Any]]:
    """Every plugin as a row for `syncrawl plugins --json`; loads each, whatever it raises.

    Keys: group, name, value, distribution, version, builtin, api_version (None where the
    module declares none), error (None where it could be loaded and would be used).
    """
    rows = []
    plugins = find()
    for plugin in plugins:
        declared, error = None, None
        try:
            _, declared = _import(plugin)
            if _select(plugins, plugin.group, plugin.name) != plugin:
                error = f"hidden by the built-in {plugin.name!r}"
        except SyncrawlError as failure:
            error = str(failure)
        rows.append(
            {
                "group": plugin.group,
                "name": plugin.name,
                "value": plugin.value,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "builtin": plugin.builtin,
                "api_version": declared,
                "error": error,
            }
        )
    return rows


def _full(group: str) -> str:
    full = group if group in GROUPS else f"syncrawl.{group}"
    if full not in GROUPS:
        raise ValueError(f"no plugin group {group!r}; there are {', '.join(GROUPS)}")
    return full


def _order(plugin: Plugin) -> tuple[bool, str, str]:
    return (not plugin.builtin, plugin.name, plugin.distribution)


def _plugin(point: metadata.EntryPoint) -> Plugin:
    # Broken metadata (no Name, no Version) is somebody else's fault, and must not hide the rest.
    distribution = point.dist
    fields: Any = distribution.metadata if distribution is not None else {}
    owner = str(fields.get("Name") or "an unnamed distribution")
    return Plugin(
        group=point.group,
        name=point.name,
        value=point.value,
        distribution=owner,
        version=str(fields.get("Version") or "?"),
        builtin=re.sub(r"[-_.]+", "-", owner).lower() == "syncrawl",
    )


def _select(plugins: Iterable[Plugin], group: str, name: str) -> Plugin:
    full = _full(group)
    key, kind = _KEYS.get(full, full), full.removeprefix("syncrawl.")
    installed = [plugin for plugin in plugins if plugin.group == full]
    offers = [plugin for plugin in installed if plugin.name == name]
    if not offers:
        names = sorted({plugin.name for plugin in installed})
        near = difflib.get_close_matches(name, names, n=1)
        listed = f"installed: {', '.join(names)}" if names else "none is installed"
        hint = f"did you mean {near[0]!r}? ({listed})" if near else listed
        raise PluginError(f"no such plugin among the {kind}", key=key, value=name, remedy=hint)
    if len(offers) > 1 and not offers[0].builtin:
        owners = " and ".join(f"{p.distribution} {p.version} ({p.value})" for p in offers)
        raise PluginError(
            f"two plugins have this name: {owners}",
            key=key,
            value=name,
            remedy="uninstall one of them",
        )
    return offers[0]


def _import(plugin: Plugin) -> tuple[Factory, str | None]:
    """The factory of `plugin`, and the API version its module declares."""
    try:
        point = metadata.EntryPoint(plugin.name, plugin.value, plugin.group)
        factory = point.load()
        module = sys.modules[point.module]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A module may do anything while it is imported, sys.exit() included.
        raise _failed(plugin, f"importing {plugin.value} raised {_told(error)}") from error
    declared = getattr(module, "SYNCRAWL_API", None)
    if declared is not None:
        declared = str(declared)
        if declared.split(".", 1)[0] != API_VERSION.split(".", 1)[0]:
            raise _failed(
                plugin,
                f"it is made for plugin API {declared}, and this is {API_VERSION}",
                "install a version of it that fits",
            )
    if not callable(factory):
        raise _failed(plugin, f"{plugin.value} is not callable")
    return factory, declared


def _failed(plugin: Plugin, why: str, remedy: str | None = None) -> PluginError:
    return PluginError(
        f"{plugin.distribution} {plugin.version}: {why}",
        key=_KEYS.get(plugin.group, plugin.group),
        value=plugin.name,
        remedy=remedy or f"reinstall or remove {plugin.distribution}",
    )


def _told(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
