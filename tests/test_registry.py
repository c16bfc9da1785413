"""The registry, against distributions that exist only as metadata on `sys.path`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syncrawl import registry
from syncrawl.api import API_VERSION, ConfigError
from syncrawl.errors import PluginError

PATIENCE = 30


class Site:
    """A directory on `sys.path` into which distributions are put as an installer would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        distribution: str,
        points: dict[str, dict[str, str]],
        code: str | None = None,
        version: str = "1.2",
    ) -> str:
        """Install `distribution` with these entry points, and its module; the module's name."""
        module = distribution.replace("-", "_")
        info = self.path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = []
        for group, names in points.items():
            lines.append(f"[{group}]")
            lines += [f"{name} = {value}" for name, value in names.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        if code is not None:
            (self.path / f"{module}.py").write_text(code)
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and name.startswith("fake"):
            del sys.modules[name]


STORE = """
class Fake:
    def __init__(self, options): self.options = options
    def open(self): ...
    def write(self, records): ...
    def checkpoint(self): return b""
    def recover(self, token): ...
    def close(self): ...
"""


def test_the_built_ins_come_in_by_the_same_door() -> None:
    stores = {plugin.name: plugin for plugin in registry.find("stores") if plugin.builtin}
    assert set(stores) >= {"jsonl", "csv", "sqlite"}
    assert stores["jsonl"].value == "syncrawl.store.jsonl:jsonl_store"
    assert stores["jsonl"].distribution == "syncrawl"
    assert registry.find("syncrawl.stores") == registry.find("stores")
    from syncrawl.store.jsonl import jsonl_store

    assert registry.load("stores", "jsonl") is jsonl_store


def test_finding_imports_nothing(site: Site) -> None:
    module = site.add("fake-one", {"syncrawl.stores": {"one": "fake_one:Fake"}}, "raise SystemExit")
    (found,) = [plugin for plugin in registry.find() if plugin.name == "one"]
    assert (found.group, found.distribution, found.version) == (
        "syncrawl.stores",
        "fake-one",
        "1.2",
    )
    assert not found.builtin
    assert module not in sys.modules


def test_only_what_is_selected_is_imported(site: Site) -> None:
    one = site.add("fake-one", {"syncrawl.stores": {"one": "fake_one:Fake"}}, STORE)
    two = site.add("fake-two", {"syncrawl.stores": {"two": "fake_two:Fake"}}, STORE)
    made = registry.construct("stores", "one", {"path": "x"})
    assert made.options == {"path": "x"}
    assert one in sys.modules
    assert two not in sys.modules


def test_an_unknown_name_lists_what_is_installed(site: Site) -> None:
    site.add("fake-one", {"syncrawl.stores": {"parquet": "fake_one:Fake"}})
    with pytest.raises(PluginError, match="did you mean 'parquet'") as raised:
        registry.load("stores", "parkuet")
    assert (raised.value.key, raised.value.value) == ("stores.type", "parkuet")
    assert raised.value.exit_code == 2
    with pytest.raises(PluginError, match="installed: csv, jsonl, parquet, sqlite"):
        registry.load("stores", "zzz")
    with pytest.raises(PluginError, match="none is installed"):
        registry.load("renderers", "zzz")


def test_an_unknown_group_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no plugin group"):
        registry.find("storez")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import a_module_nobody_has", "a_module_nobody_has"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class KO(BaseException): pass\nraise KO", "KO"),
        ("def broken(:", "SyntaxError"),
        ("Other = 1", "AttributeError"),
        ("Fake = 1", "not callable"),
        (None, "ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_loaded_names_its_distribution(
    site: Site, code: str | None, why: str
) -> None:
    site.add("fake-one", {"syncrawl.stores": {"one": "fake_one:Fake"}}, code)
    with pytest.raises(PluginError) as raised:
        registry.load("stores", "one")
    assert "fake-one 1.2" in str(raised.value)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    (row,) = [row for row in registry.describe() if row["name"] == "one"]
    assert why in row["error"]


def test_an_interrupt_is_not_a_plugin_error(site: Site) -> None:
    site.add("fake-one", {"syncrawl.stores": {"one": "fake_one:Fake"}}, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.load("stores", "one")


@pytest.mark.parametrize("value", ["", ":", "fake one:Fake", "fake_one:"])
def test_an_entry_point_without_sense(site: Site, value: str) -> None:
    site.add("fake-one", {"syncrawl.stores": {"one": value}}, STORE)
    with pytest.raises(PluginError, match="fake-one"):
        registry.load("stores", "one")


def test_two_distributions_with_one_name_are_refused(site: Site) -> None:
    for owner in ("fake-one", "fake-two"):
        module = owner.replace("-", "_")
        site.add(owner, {"syncrawl.stores": {"twice": f"{module}:Fake"}}, STORE)
    with pytest.raises(PluginError) as raised:
        registry.load("stores", "twice")
    assert "fake-one" in str(raised.value)
    assert "fake-two" in str(raised.value)
    errors = [row["error"] for row in registry.describe() if row["name"] == "twice"]
    assert len(errors) == 2
    assert all("fake-one" in error and "fake-two" in error for error in errors)


def test_one_name_in_two_groups_is_two_plugins(site: Site) -> None:
    site.add("fake-one", {"syncrawl.stores": {"page": "fake_one:Fake"}}, STORE)
    assert registry.load("stores", "page").__module__ == "fake_one"


def test_a_built_in_cannot_be_replaced_unseen(site: Site) -> None:
    site.add("fake-one", {"syncrawl.stores": {"jsonl": "fake_one:Fake"}}, STORE)
    assert registry.load("stores", "jsonl").__module__ == "syncrawl.store.jsonl"
    rows = {row["distribution"]: row for row in registry.describe() if row["name"] == "jsonl"}
    assert rows["syncrawl"]["error"] is None
    assert "hidden by the built-in" in rows["fake-one"]["error"]


@pytest.mark.parametrize(
    ("declared", "fits"),
    [(None, True), (API_VERSION, True), ("1.9", True), ("2.0", False), ("0.9", False)],
)
def test_another_major_version_is_refused(site: Site, declared: str | None, fits: bool) -> None:
    code = STORE if declared is None else f"{STORE}\nSYNCRAWL_API = {declared!r}\n"
    site.add("fake-one", {"syncrawl.stores": {"one": "fake_one:Fake"}}, code)
    (row,) = [row for row in registry.describe() if row["name"] == "one"]
    if fits:
        assert registry.construct("stores", "one", {}).options == {}
        assert (row["api_version"], row["error"]) == (declared, None)
        return
    with pytest.raises(PluginError, match=rf"fake-one 1\.2.*plugin API {declared}"):
        registry.load("stores", "one")
    assert declared in row["error"]


def test_a_factory_that_fails(site: Site) -> None:
    code = """
from syncrawl.api import ConfigError
def refuses(options): raise ConfigError("no", key="stores.x")
def breaks(options): raise KeyError("path")
def leaves(options): raise SystemExit
def halves(options): return object()
"""
    names = {name: f"fake_one:{name}" for name in ("refuses", "breaks", "leaves", "halves")}
    site.add("fake-one", {"syncrawl.stores": names}, code)
    with pytest.raises(ConfigError, match=r"stores\.x"):
        registry.construct("stores", "refuses", {})
    for name, why in (
        ("breaks", "fake-one 1.2: its factory raised KeyError"),
        ("leaves", "fake-one 1.2: its factory raised SystemExit"),
        ("halves", r"fake-one 1.2: its factory gave an object without open, write"),
    ):
        with pytest.raises(PluginError, match=why):
            registry.construct("stores", name, {})


def test_metadata_that_is_broken_hides_nothing_else(site: Site) -> None:
    info = site.path / "fake_bad-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[syncrawl.stores]\nbad = fake_bad:Fake\n")
    names = {plugin.name for plugin in registry.find("stores")}
    assert {"bad", "jsonl"} <= names
    with pytest.raises(PluginError, match="an unnamed distribution"):
        registry.load("stores", "bad")


def test_the_description_is_plain_data(site: Site) -> None:
    site.add("fake-one", {"syncrawl.stores": {"one": "fake_one:Fake"}}, STORE)
    rows = json.loads(json.dumps(registry.describe()))
    assert {row["group"] for row in rows} <= set(registry.GROUPS)
    (row,) = [row for row in rows if row["name"] == "one"]
    assert row == {
        "group": "syncrawl.stores",
        "name": "one",
        "value": "fake_one:Fake",
        "distribution": "fake-one",
        "version": "1.2",
        "builtin": False,
        "api_version": None,
        "error": None,
    }


def test_a_store_brings_in_no_other_room() -> None:
    script = (
        "import sys; from syncrawl import registry; registry.load('stores', 'jsonl')\n"
        "heavy = {'lxml', 'urllib3', 'requests', 'diskcache', 'sqlite3', 'asyncio', 'rich'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
