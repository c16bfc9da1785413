"""Helpers every test module may use: where the public cases are, and skips that CI forbids."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
CASES = Path(os.environ.get("SYNCRAWL_CASES", ROOT.parent / "shared" / "cases"))


def absent(what: str) -> NoReturn:
    """Skip because `what` is not on this machine; a failure where all of it must be there."""
    if os.environ.get("SYNCRAWL_REQUIRE_ALL") == "1":
        pytest.fail(f"SYNCRAWL_REQUIRE_ALL=1, but {what} is absent")
    pytest.skip(f"{what} is absent")


def cases_file(name: str) -> Path:
    """The public case file `name`, or a skip that says it is absent."""
    path = CASES / name
    if not path.exists():
        # Not a service that CI could start: what CI has it lays beside the checkout.
        pytest.skip(f"the case file {name} is absent")
    return path
