"""The configuration: what files may say, what errors tell, and the example against the models."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncrawl.config.load import config_from_mapping, load_config, validate
from syncrawl.config.model import (
    Config,
    CrawlConfig,
    FetchConfig,
    HostConfig,
    HostRule,
    StoreConfig,
)
from syncrawl.errors import ConfigError
from tests.support import ROOT

AGENT = "testbot/1.0 (+https://bot.example/about)"
CRAWL = {"seeds": ["https://a.example/"], "user_agent": AGENT}
EXAMPLE = ROOT / "config.example.toml"


def loaded(tmp_path: Path, text: str, *overrides: str) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_config(file, overrides)


def mapped(tmp_path: Path, **tables: Any) -> Config:
    mapping = {"crawl": CRAWL, **tables}
    return config_from_mapping(mapping, base=tmp_path, source="a test")


def refused(tmp_path: Path, **tables: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        mapped(tmp_path, **tables)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    return caught.value


MINIMAL = f'[crawl]\nseeds = ["https://a.example/"]\nuser_agent = "{AGENT}"\n'


# --- what a file brings ---


def test_a_minimal_file_gets_every_default(tmp_path: Path) -> None:
    config = loaded(tmp_path, MINIMAL)
    assert config.crawl.seeds == ("https://a.example/",)
    assert config.crawl.state_dir == str(tmp_path / "state")
    assert config.fetch == FetchConfig()
    assert config.stores == (StoreConfig(type="jsonl", path=str(tmp_path / "pages.jsonl")),)


def test_tables_land_in_the_models(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        MINIMAL
        + """
        [host]
        ceiling = 8
        [[host.rules]]
        match = "*.a.example"
        rate = 2
        [[host.rules]]
        match = "b.example"
        [fetch.resolve]
        "a.example" = "::1"
        [parse.options.page]
        depth = 3
        [[stores]]
        type = "csv"
        path = "out/pages.csv"
        fields = ["url", "title"]
        [[stores]]
        type = "postgres"
        dsn = "host=db"
        """,
    )
    assert config.host == HostConfig(ceiling=8)
    assert config.host_rules == (
        HostRule(match="*.a.example", rate=2.0),
        HostRule(match="b.example"),
    )
    assert config.fetch.resolve == {"a.example": "::1"}
    assert config.parse.options == {"page": {"depth": 3}}
    csv, postgres = config.stores
    assert csv.path == str(tmp_path / "out/pages.csv")
    assert csv.options == {"fields": ["url", "title"]}
    assert postgres == StoreConfig(type="postgres", options={"dsn": "host=db"})


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_config(str(file)).crawl.user_agent == AGENT


def test_loading_is_quick() -> None:
    load_config(EXAMPLE)
    times = []
    for _ in range(10):
        start = time.thread_time()
        load_config(EXAMPLE)
        times.append(time.thread_time() - start)
    assert min(times) < 0.010, "starting a command must not be felt"


# --- units ---


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (15, 15.0),
        (1.5, 1.5),
        ("15", 15.0),
        ("1.5", 1.5),
        ("15s", 15.0),
        ("250ms", 0.25),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1h 30min", 5400.0),
        ("2d", 172800.0),
        ("0.5 H", 1800.0),
        ("1w", 604800.0),
    ],
)
def test_durations(tmp_path: Path, written: object, seconds: float) -> None:
    got = mapped(tmp_path, fetch={"total_timeout": written}).fetch.total_timeout
    assert got == pytest.approx(seconds)
    assert type(got) is float


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "s", "15x", "1h30", "-5s", "1,5s", "1:30", "nan", "inf", "1e3s", "٣s"),
        *("9" * 400 + "s", float("nan"), float("inf"), -1, True, [15], 10**400, 0, "0s", "11000d"),
    ],
)
def test_what_is_no_duration(tmp_path: Path, written: object) -> None:
    error = refused(tmp_path, fetch={"total_timeout": written})
    assert error.key == "fetch.total_timeout"
    assert "1h30m" in str(error)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (15, 15),
        (5e6, 5_000_000),
        ("15", 15),
        ("64KiB", 65536),
        ("5MiB", 5 * 1024**2),
        ("1.5 MiB", 3 * 512 * 1024),
        ("10MB", 10_000_000),
        ("1GB", 1_000_000_000),
        ("1gib", 1024**3),
        ("0B", 0),
    ],
)
def test_sizes(tmp_path: Path, written: object, size: int) -> None:
    got = mapped(tmp_path, fetch={"max_body_bytes": written}).fetch.max_body_bytes
    assert got == size
    assert type(got) is int


@pytest.mark.parametrize("written", ["5M", "5 apples", "1.5B", 1.5, "-1KB", True, "9" * 400 + "GB"])
def test_what_is_no_size(tmp_path: Path, written: object) -> None:
    error = refused(tmp_path, fetch={"max_body_bytes": written})
    assert error.key == "fetch.max_body_bytes"
    assert "5MiB" in str(error)


def test_units_are_for_fields_that_have_them(tmp_path: Path) -> None:
    assert refused(tmp_path, fetch={"workers": "15s"}).key == "fetch.workers"
    assert refused(tmp_path, fetch={"workers": "15"}).key == "fetch.workers"


# --- types and bounds ---


@pytest.mark.parametrize(
    ("tables", "key", "says"),
    [
        ({"fetch": {"workers": 0}}, "fetch.workers", "at least 1"),
        ({"fetch": {"workers": 1.0}}, "fetch.workers", "whole number"),
        ({"fetch": {"workers": True}}, "fetch.workers", "boolean"),
        ({"fetch": {"workers": 2**20_000}}, "fetch.workers", "20001 bits"),
        ({"fetch": {"verify": 1}}, "fetch.verify", "true or false"),
        ({"fetch": {"verify": "yes"}}, "fetch.verify", "true or false"),
        ({"fetch": {"client": 3}}, "fetch.client", "in quotes"),
        ({"fetch": 3}, "fetch", "[fetch]"),
        ({"fetch": {"headers": "X: y"}}, "fetch.headers", "[fetch.headers]"),
        ({"fetch": {"headers": {"X": 1}}}, "fetch.headers.X", "in quotes"),
        ({"retry": {"budget_ratio": 1.5}}, "retry.budget_ratio", "at most 1"),
        ({"host": {"rate": float("inf")}}, "host.rate", "out of range"),
        ({"host": {"rules": {"match": "*"}}}, "host.rules", "[[host.rules]]"),
        ({"host": {"rules": [{"match": "*", "start": 0}]}}, "host.rules[0].start", "at least 1"),
        ({"host": {"rules": [{"match": "*"}, {}]}}, "host.rules[1].match", "missing"),
        ({"scope": {"follow": "hots"}}, "scope.follow", 'did you mean "host"?'),
        ({"scope": {"follow": 3}}, "scope.follow", '"domain"'),
        ({"scope": {"allow": "x"}}, "scope.allow", "brackets"),
        ({"scope": {"allow": ["x", 1]}}, "scope.allow[1]", "in quotes"),
        ({"stores": {"type": "csv"}}, "stores", "[[stores]]"),
        ({"stores": [{"path": "x"}]}, "stores[0].type", "missing"),
        ({"stores": [{"type": "csv", "path": "x"}, {"type": 5}]}, "stores[1].type", "in quotes"),
        ({"stores": [3]}, "stores[0]", "no table"),
        ({"parse": {"options": {"page": 3}}}, "parse.options.page", "[parse.options.page]"),
        ({"queues": {"max_bytes": "1KiB"}}, "queues.max_bytes", "at least 65536"),
    ],
)
def test_a_wrong_value_is_named(
    tmp_path: Path, tables: dict[str, Any], key: str, says: str
) -> None:
    error = refused(tmp_path, **tables)
    assert error.key == key
    assert says in str(error)
    assert "in a test" in str(error)


@pytest.mark.parametrize(
    ("tables", "key", "says"),
    [
        ({"fetch": {"worker": 3}}, "fetch.worker", "did you mean fetch.workers?"),
        ({"fetch": {"max-redirects": 3}}, "fetch.max-redirects", "fetch.max_redirects?"),
        ({"fetch": {"timeout": 3}}, "fetch.timeout", "fetch.total_timeout"),
        ({"fetch": {"max_depth": 3}}, "fetch.max_depth", "belongs in [scope]"),
        ({"seeds": []}, "seeds", "belongs in [crawl]"),
        ({"feth": {}}, "feth", "did you mean fetch?"),
        ({"host_rules": []}, "host_rules", "[[host.rules]]"),
        ({"host": {"rule": []}}, "host.rule", "host.rules?"),
        ({"host": {"rules": [{"match": "*", "active": 3}]}}, "host.rules[0].active", "[host]"),
        ({"log": {"qqq": 3}}, "log.qqq", "[log] knows file, format, level"),
        ({"log": {"a b": 3}}, 'log."a b"', "unknown key"),
        ({"": {}}, '""', "unknown key"),
    ],
)
def test_an_unknown_key_gets_a_suggestion(
    tmp_path: Path, tables: dict[str, Any], key: str, says: str
) -> None:
    error = refused(tmp_path, **tables)
    assert error.key == key
    assert "unknown key" in str(error)
    assert says in str(error)


# --- the file itself ---


def refused_file(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.value == str(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "does not exist" in refused_file(tmp_path / "none.toml")


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in refused_file(tmp_path)


def test_an_unreadable_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(MINIMAL)
    # Not by its mode, which does not stop root.
    assert "cannot be read (Not a directory)" in refused_file(file / "config.toml")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[crawl]\nseeds = [\n", "end of document"),
        (b"[crawl]\nuser_agent = bot\n", "line 2, column 14"),
        (b"[crawl]\n[crawl]\n", "line 2"),
        (b"[crawl]\n\xff\n", "not UTF-8 (at line 2)"),
        (b"a = " + b"[" * 50_000, "nests too deeply"),
        (b"a = " + b"9" * 5_000, "not valid TOML"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    assert says in refused_file(file)


# --- overrides ---


def test_overrides_win_and_take_toml_or_plain_strings(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        MINIMAL + '[[stores]]\ntype = "csv"\npath = "a.csv"\n',
        "fetch.workers=8",
        "fetch.total_timeout=1h30m",
        'crawl.seeds=["https://b.example/?a=b"]',
        "log.level = debug",
        "log.file=",
        'crawl.user_agent="other (x@y.example)"',
        "stores[0].path=b.csv",
        'fetch.resolve."a.example"=127.0.0.1',
        'host.rules=[{match="*", ceiling=2}]',
        "crawl.state_dir=here=there # kept",
    )
    assert config.fetch.workers == 8
    assert config.fetch.total_timeout == 5400.0
    assert config.crawl.seeds == ("https://b.example/?a=b",)
    assert config.log.level == "debug"
    assert config.log.file == ""
    assert config.crawl.user_agent == "other (x@y.example)"
    assert config.stores[0].path == str(tmp_path / "b.csv")
    assert config.fetch.resolve == {"a.example": "127.0.0.1"}
    assert config.host_rules[0].ceiling == 2
    assert config.crawl.state_dir == str(tmp_path / "here=there # kept")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("fetch.workers", "write KEY=VALUE"),
        ("=3", "is no key"),
        ("fetch..workers=3", "is no key"),
        ("fetch.=3", "is no key"),
        ("a b=3", "is no key"),
        ("fetch.wokers=3", "did you mean fetch.workers?"),
        ("fetch.workers=many", "is a string: expected a whole number"),
        ("fetch.workers=3\nfetch.verify=false", "more than one value"),
        ('fetch.client="urllib3', "not valid TOML"),
        ("crawl.seeds=https://b.example/", "brackets"),
        ("crawl.user_agent=2024", "string in quotes"),
        ("crawl.seeds.x=3", "in no table"),
        ("crawl.seeds[7]='x'", "no place 7"),
        ("crawl.seeds[7].x=3", "no place 7"),
    ],
)
def test_an_override_that_cannot_be(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, MINIMAL, override)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- paths ---


def test_paths_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, there = tmp_path / "home", tmp_path / "there"
    home.mkdir()
    (there / "sub").mkdir(parents=True)
    (there / "urls.txt").touch()
    (home / "ca.pem").touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (there / "config.toml").write_text(
        "[crawl]\nseed_files = ['urls.txt', '-']\nstate_dir = 'sub/state'\n"
        f"user_agent = '{AGENT}'\n"
        "[fetch]\nca_bundle = '~/ca.pem'\n"
        "[log]\nfile = '/var/log/x.log'\n"
        "[[stores]]\ntype = 'jsonl'\npath = '-'\n"
        "[[stores]]\ntype = 'x'\npath = 'db://host/name'\n"
    )
    config = load_config("there/config.toml")
    assert config.crawl.seed_files == (str(there / "urls.txt"), "-")
    assert config.crawl.state_dir == str(there / "sub/state")
    assert config.fetch.ca_bundle == str(home / "ca.pem")
    assert config.log.file == "/var/log/x.log"
    assert [store.path for store in config.stores] == ["-", "db://host/name"]


@pytest.mark.parametrize("path", ["a\0b", "~no-such-user-at-all/x", "", "-"])
def test_a_state_dir_that_is_no_path(tmp_path: Path, path: str) -> None:
    assert refused(tmp_path, crawl=CRAWL | {"state_dir": path}).key == "crawl.state_dir"


@pytest.mark.parametrize("path", [".", "..", "/", "sub/.."])
def test_the_state_dir_is_the_crawls_alone(tmp_path: Path, path: str) -> None:
    (tmp_path / "sub").mkdir()
    error = refused(tmp_path, crawl=CRAWL | {"state_dir": path})
    assert error.key == "crawl.state_dir"
    assert "holds the configuration file" in str(error)


@pytest.mark.parametrize(
    ("tables", "keys"),
    [
        (
            {"stores": [{"type": "csv", "path": "x"}, {"type": "jsonl", "path": "link/x"}]},
            ("stores[0].path", "stores[1].path"),
        ),
        (
            {"stores": [{"type": "csv", "path": "-"}, {"type": "jsonl", "path": "-"}]},
            ("stores[0].path", "stores[1].path"),
        ),
        (
            {"stores": [{"type": "csv", "path": "-"}], "log": {"file": "-"}},
            ("stores[0].path", "log.file"),
        ),
        (
            {"crawl": CRAWL | {"seed_files": ["u"]}, "stores": [{"type": "csv", "path": "u"}]},
            ("crawl.seed_files", "stores[0].path"),
        ),
        ({"stores": [{"type": "csv", "path": "state"}]}, ("crawl.state_dir", "stores[0].path")),
        (
            {"crawl": CRAWL | {"state_dir": "x/s"}, "stores": [{"type": "csv", "path": "x"}]},
            ("crawl.state_dir", "stores[0].path"),
        ),
    ],
)
def test_no_two_files_are_the_same(
    tmp_path: Path, tables: dict[str, Any], keys: tuple[str, str]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "u").touch()
    error = refused(tmp_path, **tables)
    assert all(key in str(error) for key in keys)


def test_the_state_may_hold_an_output_and_be_beside_its_namesake(tmp_path: Path) -> None:
    stores = [{"type": "csv", "path": "state/x.csv"}, {"type": "jsonl", "path": "state.jsonl"}]
    assert len(mapped(tmp_path, stores=stores).stores) == 2


# --- what a type cannot say ---


@pytest.mark.parametrize(
    "seed",
    [
        *("", "a.example", "ftp://a.example/", "http://", "https:///x", "mailto:a@b.example"),
        *("http://[::1/", "http://a.example:99999/", "http://a.example:x/", "//a.example/"),
    ],
)
def test_seeds_are_web_urls(tmp_path: Path, seed: str) -> None:
    error = refused(tmp_path, crawl=CRAWL | {"seeds": ["https://a.example/", seed]})
    assert error.key == "crawl.seeds[1]"
    assert repr(seed) in str(error)


@pytest.mark.parametrize(
    "seed", ["http://127.0.0.1:8000", "HTTPS://A.example/x y", "http://[::1]:80/", "https://ü.de/"]
)
def test_seeds_in_every_spelling(tmp_path: Path, seed: str) -> None:
    assert mapped(tmp_path, crawl=CRAWL | {"seeds": [seed]}).crawl.seeds == (seed,)


def test_there_must_be_something_to_start_from(tmp_path: Path) -> None:
    error = refused(tmp_path, crawl={"user_agent": AGENT})
    assert error.key == "crawl.seeds"
    assert "crawl.seed_files" in str(error)
    assert mapped(tmp_path, crawl={"user_agent": AGENT, "seed_files": ["-"]})


def test_seed_files_must_be_readable_files(tmp_path: Path) -> None:
    for name, says in (("none.txt", "does not exist"), (".", "is a directory")):
        error = refused(tmp_path, crawl=CRAWL | {"seed_files": ["-", name]})
        assert error.key == "crawl.seed_files[1]"
        assert says in str(error)


@pytest.mark.parametrize(
    "agent",
    ["bot (+https://b.example)", "bot http://127.0.0.1/", "bot/1 me@b.example", "m@localhost"],
)
def test_user_agents_with_a_contact(tmp_path: Path, agent: str) -> None:
    assert mapped(tmp_path, crawl=CRAWL | {"user_agent": agent}).crawl.user_agent == agent


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("", "missing"),
        ("  ", "missing"),
        ("bot/1.0", "contact"),
        ("bot (+https://)", "contact"),
        ("bot @", "contact"),
        ("bot b.example", "contact"),
        ("bot https://b.example\r\nX: y", "control"),
        ("bot https://b.example\x00", "control"),
        ("bot https://b.example ☃", "header"),
    ],
)
def test_user_agents_without(tmp_path: Path, agent: str, says: str) -> None:
    error = refused(tmp_path, crawl=CRAWL | {"user_agent": agent})
    assert error.key == "crawl.user_agent"
    assert says in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X y", "a"),
        ("", "a"),
        ("X:", "a"),
        ("X\n", "a"),
        ("X", "sesame\r\nY: b"),
        ("X", "sesame☃"),
        ("User-Agent", "sesame"),
        ("HOST", "sesame"),
        ("content-length", "0"),
    ],
)
def test_headers_that_cannot_be_sent(tmp_path: Path, name: str, value: str) -> None:
    error = refused(tmp_path, fetch={"headers": {name: value}})
    assert str(error.key).startswith("fetch.headers.")
    assert "sesame" not in str(error), "header values may be credentials"


def test_headers_that_can(tmp_path: Path) -> None:
    headers = {"Accept-Language": "de, en;q=0.5", "X": "é\tb", "Authorization": "Bearer x"}
    assert mapped(tmp_path, fetch={"headers": headers}).fetch.headers == headers


@pytest.mark.parametrize("name", ["allow", "deny"])
def test_patterns_must_compile(tmp_path: Path, name: str) -> None:
    error = refused(tmp_path, scope={name: ["fine", "a(b"]})
    assert error.key == f"scope.{name}[1]"
    assert "position 1" in str(error)


@pytest.mark.parametrize(
    ("host", "keys"),
    [
        ({"floor": 9, "ceiling": 8}, ("host.floor = 9", "host.ceiling = 8")),
        ({"floor": 33}, ("host.floor = 33", "host.ceiling = 32")),
        (
            {"rules": [{"match": "a"}, {"match": "b", "floor": 40}]},
            ("host.rules[1].floor = 40", "host.ceiling = 32"),
        ),
        (
            {"floor": 3, "rules": [{"match": "a", "ceiling": 2}]},
            ("host.floor = 3", "host.rules[0].ceiling = 2"),
        ),
    ],
)
def test_floor_above_ceiling(tmp_path: Path, host: dict[str, Any], keys: tuple[str, str]) -> None:
    error = refused(tmp_path, host=host)
    assert all(key in str(error) for key in keys)


def test_start_is_clamped_for_the_table_and_for_each_rule(tmp_path: Path) -> None:
    rules = [
        {"match": "a", "ceiling": 2},
        {"match": "b", "floor": 10},
        {"match": "c", "start": 99},
        {"match": "d", "ceiling": 20},
    ]
    config = mapped(tmp_path, host={"start": 50, "ceiling": 40, "rules": rules})
    assert config.host.start == 40
    assert [rule.start for rule in config.host_rules] == [2, 40, 40, 20]
    assert mapped(tmp_path, host={"floor": 6}).host.start == 6


def test_a_rule_that_fits_inherits_start(tmp_path: Path) -> None:
    config = mapped(tmp_path, host={"rules": [{"match": "a", "ceiling": 9}]})
    assert config.host_rules == (HostRule(match="a", ceiling=9),)


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"fetch": {"proxy": "socks5://h:1"}}, "fetch.proxy"),
        ({"fetch": {"proxy": "http://"}}, "fetch.proxy"),
        ({"fetch": {"resolve": {"a.example": "b.example"}}}, 'fetch.resolve."a.example"'),
        ({"fetch": {"resolve": {"a": "1.2.3"}}}, "fetch.resolve.a"),
        ({"fetch": {"ca_bundle": "none.pem"}}, "fetch.ca_bundle"),
        ({"parse": {"parsers": []}}, "parse.parsers"),
        ({"parse": {"parsers": ["page", "page"]}}, "parse.parsers[1]"),
        ({"stores": []}, "stores"),
        ({"stores": [{"type": "jsonl"}]}, "stores[0].path"),
        ({"scope": {"deny_hosts": ["ok", " "]}}, "scope.deny_hosts[1]"),
        ({"host": {"rules": [{"match": "https://a/"}]}}, "host.rules[0].match"),
    ],
)
def test_values_that_cannot_work(tmp_path: Path, tables: dict[str, Any], key: str) -> None:
    assert refused(tmp_path, **tables).key == key


@pytest.mark.parametrize("proxy", ["user:sesame@proxy:3128", "ftp://user:sesame@proxy:3128"])
def test_errors_show_no_credentials(tmp_path: Path, proxy: str) -> None:
    error = refused(tmp_path, fetch={"proxy": proxy})
    assert "sesame" not in str(error)
    assert "proxy:3128" in str(error)
    seeds = refused(tmp_path, crawl=CRAWL | {"seeds": "https://user:sesame@a.example/"})
    assert "sesame" not in str(seeds)


@pytest.mark.parametrize(
    "tables",
    [
        {"gateway": {"url": ["https://gw.example/?key=sesame&url={url}"]}},
        {"gateway": {"url": {"sesame": 1}}},
        {"gateway": {"url": 5355}},
        {"gateway": {"urls": "https://gw.example/?key=sesame&url={url}"}},
        {"gateway": {"key": "sesame"}},
        {"gateway": "https://gw.example/?key=sesame&url={url}"},
        {"gateway": ["https://gw.example/?key=sesame&url={url}"]},
        {"gateway_url": "https://gw.example/?key=sesame&url={url}"},
        {"fetch": {"proxy": ["user:sesame@proxy:3128"]}},
        {"fetch": {"proxy": "proxy:3128:user:sesame"}},
        {"fetch": {"proxy": "proxy:3128@user:sesame"}},
        {"fetch": {"http_proxy": "user:sesame@proxy:3128"}},
        {"fetch": {"headers": [["Authorization", "sesame"]]}},
        {"fetch": {"header": {"Authorization": "sesame"}}},
        {"fetch": {"cookies": "id=sesame"}},
        {"fetch": [{"headers": {"Authorization": "sesame"}}]},
        {"stores": {"type": "pg", "password": "sesame"}},
        {"stores": [{"type": {"password": "sesame"}}]},
        {"parse": {"options": {"page": [{"token": "sesame"}]}}},
        {"api_key": "sesame"},
    ],
)
def test_a_value_in_the_wrong_place_or_shape_shows_no_secret(
    tmp_path: Path, tables: dict[str, Any]
) -> None:
    text = str(refused(tmp_path, **tables))
    assert "sesame" not in text
    assert "5355" not in text


@pytest.mark.parametrize(
    "override",
    [
        "gateway.url",
        "gateway.url https://gw.example/sesame/?url={url}",
        "gateway.url:https://gw.example/sesame?u={url}",
        "gateway.url='https://gw.example/sesame",
        'fetch.proxy=["user:sesame@proxy"]',
    ],
)
def test_a_slip_in_an_override_shows_no_secret(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, MINIMAL, override)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "keys"),
    [
        ({"retry": {"backoff_base": 90}}, ("retry.backoff_base", "retry.backoff_max = 60")),
        (
            {"retry": {"backoff_base": 3, "backoff_max": 2}},
            ("retry.backoff_base", "retry.backoff_max = 2"),
        ),
        ({"fetch": {"read_timeout": 16}}, ("fetch.read_timeout", "fetch.total_timeout = 15")),
        (
            {"fetch": {"connect_timeout": 4, "total_timeout": 3}},
            ("fetch.connect_timeout", "fetch.total_timeout = 3"),
        ),
        (
            {"fetch": {"max_body_bytes": "2MiB"}, "queues": {"max_bytes": "1MiB"}},
            ("fetch.max_body_bytes", "queues.max_bytes = 1048576"),
        ),
        ({"gateway": {"resume_after": "1h"}}, ("gateway.resume_after", "gateway.url")),
        ({"gateway": {"max_in_flight": 7}}, ("gateway.max_in_flight", "gateway.url")),
        ({"gateway": {"exhausted_status": [402]}}, ("gateway.exhausted_status", "gateway.url")),
        (
            {"gateway": {"target_status_header": "X-Status"}},
            ("gateway.target_status_header", "gateway.url"),
        ),
        (
            {"gateway": {"url": "https://gw.example/?u={url}", "throttled_status": [200, 429]}},
            ("gateway.throttled_status", "holds 200"),
        ),
        ({"retry": {"budget_ratio": -0.1}}, ("retry.budget_ratio", "at least 0")),
        ({"host": {"rate": -1}}, ("host.rate", "at least 0")),
        ({"host": {"rules": [{"match": "a", "rate": -1}]}}, ("host.rules[0].rate", "at least 0")),
    ],
)
def test_a_contradiction_names_both_keys(
    tmp_path: Path, tables: dict[str, Any], keys: tuple[str, str]
) -> None:
    error = refused(tmp_path, **tables)
    assert error.key == keys[0]
    assert keys[1] in str(error)


@pytest.mark.parametrize(
    "tables",
    [
        {"retry": {"backoff_max": 0.5}},
        {"fetch": {"total_timeout": 2}},
        {"queues": {"max_bytes": "64KiB"}},
        {"fetch": {"max_body_bytes": "1GiB"}},
        {"fetch": {"connect_timeout": 15, "read_timeout": 15}},
        {"gateway": {"url": "https://gw.example/?u={url}"}, "fetch": {"proxy": "http://p:1"}},
    ],
)
def test_a_bound_may_be_set_alone(tmp_path: Path, tables: dict[str, Any]) -> None:
    mapped(tmp_path, **tables)


# --- built in code ---


def test_code_and_file_go_through_the_same_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    crawl = CrawlConfig(seeds=("https://a.example/",), user_agent=AGENT)
    assert validate(Config(crawl=crawl)) == loaded(tmp_path, MINIMAL)
    again = validate(Config(crawl=crawl))
    assert validate(again) == again, "a validated configuration may be validated again"


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"fetch": FetchConfig(workers="3")}, "fetch.workers"),  # type: ignore[arg-type]
        ({"fetch": FetchConfig(workers=0)}, "fetch.workers"),
        ({"host": HostConfig(floor=3, ceiling=2)}, "host.floor"),
        ({"host_rules": (HostRule(match="a", start=0),)}, "host.rules[0].start"),
        ({"stores": ()}, "stores"),
        ({"crawl": CrawlConfig(user_agent=AGENT)}, "crawl.seeds"),
    ],
)
def test_code_is_checked_like_a_file(tables: dict[str, Any], key: str) -> None:
    good = {"crawl": CrawlConfig(seeds=("https://a.example/",), user_agent=AGENT)}
    with pytest.raises(ConfigError) as caught:
        validate(Config(**(good | tables)))
    assert caught.value.key == key


def test_options_made_in_code_may_hold_anything(tmp_path: Path) -> None:
    crawl = CrawlConfig(seeds=("https://a.example/",), user_agent=AGENT)
    store = StoreConfig(type="mine", options={"callback": print})
    config = validate(Config(crawl=crawl, stores=(store,)), base=tmp_path)
    assert config.stores[0].options["callback"] is print


# --- anything at all ---

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(["15s", "5MiB", "-", "https://a.example/", "host", "*", AGENT]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def _table(model: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    names = [field.name for field in msgspec.structs.fields(model)]
    return st.dictionaries(st.sampled_from([*names, "rules", "typo"]), _VALUES, max_size=3)


_MAPPINGS = st.fixed_dictionaries(
    {},
    optional={
        field.name: _table(field.type) if isinstance(field.type, type) else _VALUES
        for field in msgspec.structs.fields(Config)
    }
    | {"typo": _VALUES},
)


@settings(max_examples=150, deadline=None)
@given(_MAPPINGS)
def test_any_mapping_is_a_config_or_one_line(mapping: dict[str, Any]) -> None:
    crawl = mapping.get("crawl", {})
    if isinstance(crawl, dict):
        mapping["crawl"] = CRAWL | crawl
    got = _config_or_error(mapping)
    if isinstance(got, Config):
        assert validate(got) == got
    else:
        assert got.key
        assert got.remedy
        assert str(got).isprintable()


def _config_or_error(mapping: dict[str, Any]) -> Config | ConfigError:
    try:
        return config_from_mapping(mapping, base=Path("/nonexistent/base"), source="a test")
    except ConfigError as error:
        return error


# --- the example ---

_DEFAULT_LINE = re.compile(r'#(?=\[|"|[\w-]+ = )')


def example_text() -> str:
    """The example with every commented default switched on."""
    lines = EXAMPLE.read_text().splitlines()
    return "\n".join(_DEFAULT_LINE.sub("", line, count=1) for line in lines)


def test_the_example_can_be_started_from(tmp_path: Path) -> None:
    config = loaded(tmp_path, EXAMPLE.read_text())
    defaults = Config(
        crawl=CrawlConfig(seeds=config.crawl.seeds, user_agent=config.crawl.user_agent)
    )
    assert config == validate(defaults, base=tmp_path)


def test_the_example_knows_no_other_key_than_the_models(tmp_path: Path) -> None:
    assert loaded(tmp_path, example_text())


def test_the_example_names_every_key() -> None:
    document = tomllib.loads(example_text())
    missing = [key for key, _ in _keys(Config, "") if not _has(document, key)]
    assert missing == []


def test_the_example_states_the_models_defaults(tmp_path: Path) -> None:
    """A value that is not the default says in its own or the preceding comment what is."""
    config = loaded(tmp_path, example_text())
    differing = []
    for key, default in _keys(Config, ""):
        if key.startswith("stores."):
            continue
        written = _get(config, key)
        if written != default and key not in ("crawl.state_dir",):
            differing.append(key)
    said = {
        **dict.fromkeys(("crawl.seeds", "crawl.user_agent"), "Default: none"),
        **dict.fromkeys(("fetch.headers", "fetch.resolve", "parse.options"), "Default: none"),
        "scope.max_depth": "Default: no limit",
        "host.rules.match": "default: none",
    }
    inherited = [key for key in differing if key.startswith("host.rules.") and key not in said]
    assert sorted(differing) == sorted([*said, *inherited])
    text = EXAMPLE.read_text()
    for key, words in said.items():
        assert words in _around(text, key), key
    for key in inherited:
        assert "default: as in [host]" in _around(text, key), key
    assert f'#state_dir = "{CrawlConfig().state_dir}"' in text
    [store] = Config().stores
    assert f'type = "{store.type}"\npath = "{store.path}"' in text


def _keys(model: type[msgspec.Struct], table: str) -> Iterator[tuple[str, object]]:
    """Every key of `model` as TOML spells it, with the model's default."""
    inner: dict[str, tuple[str, type[msgspec.Struct]]] = {
        "host_rules": ("host.rules", HostRule),
        "stores": ("stores", StoreConfig),
    }
    for field in msgspec.structs.fields(model):
        key = f"{table}.{field.name}" if table else field.name
        if field.name in inner and not table:
            yield from _keys(inner[field.name][1], inner[field.name][0])
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _keys(field.type, key)
        elif key != "stores.options":
            default = field.default
            yield (
                key,
                field.default_factory()
                if default is msgspec.NODEFAULT and (field.default_factory is not msgspec.NODEFAULT)
                else default,
            )


def _has(document: object, key: str) -> bool:
    for name in key.split("."):
        if isinstance(document, list):
            document = document[0]
        if not isinstance(document, Mapping) or name not in document:
            return False
        document = document[name]
    return True


def _get(config: Config, key: str) -> object:
    if key.startswith("host.rules."):
        return getattr(config.host_rules[0], key.rpartition(".")[2])
    table, name = key.split(".")
    return getattr(getattr(config, table), name)


def _around(text: str, key: str) -> str:
    """The line that sets `key` in its table, with the comment lines above it."""
    table, _, name = key.rpartition(".")
    start = re.search(rf"^#?\[+{re.escape(table)}\]+$", text, re.MULTILINE)
    whole = re.search(rf"^#?\[{re.escape(key)}[\].].*$", text, re.MULTILINE)
    if whole is None:
        assert start is not None, key
        whole = re.compile(rf"^#?{name} = .*$", re.MULTILINE).search(text, start.end())
    assert whole is not None, key
    above = text[: whole.start()].rstrip("\n").splitlines()
    comment: list[str] = []
    while above and above[-1].startswith("# "):
        comment.insert(0, above.pop())
    return " ".join([*comment, whole[0]])
