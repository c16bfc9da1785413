"""Doubles and conformance suites, for this project's tests and for plugin authors'.

`stores.StoreContract` is the suite every store passes, `pages.page` builds a page as the
fetch stage would. The submodules are imported by name; this one imports nothing but the
fake clock, and that only when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncrawl.testing.clock import FakeClock

__all__ = ["FakeClock"]


def __getattr__(name: str) -> Any:
    """PEP 562: `syncrawl.testing.FakeClock` without the cost where it is not used."""
    if name != "FakeClock":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from syncrawl.testing.clock import FakeClock

    return FakeClock
