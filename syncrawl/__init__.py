"""syncrawl: a thread-based, synchronous web crawler with pluggable stages and flow control.

`Crawl(load_config("config.toml")).run()` is the library's whole front door. The
names are loaded when first used, so that `import syncrawl` (and with it the command
line's start) costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncrawl.config.load import load_config
    from syncrawl.config.model import Config
    from syncrawl.engine.crawl import Crawl

    __version__: str

__all__ = ["Config", "Crawl", "__version__", "load_config"]

_HOMES = {
    "Config": "syncrawl.config.model",
    "Crawl": "syncrawl.engine.crawl",
    "load_config": "syncrawl.config.load",
}


def __getattr__(name: str) -> Any:
    """PEP 562: find a public name in its module the first time it is asked for."""
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("syncrawl")
    except PackageNotFoundError:
        return "0+unknown"  # run from a source tree that was never installed
