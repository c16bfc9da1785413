"""What a type cannot say: each check reads a well-typed Config and names the keys at fault.

Any thread. Looks at the file system, writes nothing, opens nothing, resolves no name.
Imports the models, listen, shape (for its error) and errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from syncrawl.config.listen import listen_address
from syncrawl.config.model import (
    BUILT_IN_STORES,
    Config,
    CrawlConfig,
    FetchConfig,
    GatewayConfig,
    HostConfig,
    HostRule,
    ParseConfig,
    PauseConfig,
    QueuesConfig,
    ScopeConfig,
)
from syncrawl.config.shape import bad, join
from syncrawl.urls import Canonicalizer

__all__ = ["check", "check_state_dir", "clamped"]

_CONTACT = re.compile(r"https?://[^\s/?#]*\w|[^\s@()<>:;,]+@[^\s@()<>:;,]*\w")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.1
# Who we are is crawl.user_agent's to say; the rest frames the message itself.
_OWN_HEADERS = {
    "user-agent": "set crawl.user_agent instead",
    "host": "the URL says it; fetch.resolve sends a name to another address",
    "content-length": "remove it",
    "transfer-encoding": "remove it",
    "connection": "remove it",
}


def check(config: Config) -> None:
    """Raise ConfigError for the first thing that cannot work; paths are absolute already."""
    _check_seeds(config.crawl)
    _check_user_agent(config.crawl.user_agent)
    _check_scope(config.scope)
    _check_host(config.host, config.host_rules)
    _check_pause(config.pause)
    _check_fetch(config.fetch)
    _check_order(config)
    _check_gateway(config.gateway)
    _check_address_keys(config)
    _check_parse(config.parse)
    _check_outputs(config)
    if config.metrics.listen:
        listen_address(config.metrics.listen)


def clamped(config: Config) -> Config:
    """`config` with each start inside its [floor, ceiling], for [host] and for every rule.

    A rule gets a start of its own only where the inherited one does not fit its bounds.
    """
    host = config.host
    rules = []
    for rule in config.host_rules:
        floor, ceiling = _bounds(host, rule)
        wanted = host.start if rule.start is None else rule.start
        start = min(max(wanted, floor), ceiling)
        inherited = rule.start is None and start == host.start
        rules.append(rule if inherited else replace(rule, start=start))
    start = min(max(host.start, host.floor), host.ceiling)
    return replace(config, host=replace(host, start=start), host_rules=tuple(rules))


def check_state_dir(config: Config, base: Path) -> None:
    """Refuse a state directory that is, or holds, `base`, where the configuration lives.

    The state directory is the crawl's alone: its mode becomes 0700, and a fresh start
    moves all of it aside.
    """
    state = Path(os.path.realpath(config.crawl.state_dir))
    if Path(os.path.realpath(base)).is_relative_to(state):
        raise bad(
            "crawl.state_dir",
            config.crawl.state_dir,
            "holds the configuration file",
            'name a directory for the state alone, such as "state"',
        )


# --- [crawl] ---


def _check_seeds(crawl: CrawlConfig) -> None:
    if not crawl.seeds and not crawl.seed_files:
        remedy = 'name a URL in crawl.seeds, or a file of URLs ("-" for stdin) in crawl.seed_files'
        raise bad("crawl.seeds", None, "there is nothing to start from", remedy)
    for place, seed in enumerate(crawl.seeds):
        if not _is_web_url(seed):
            remedy = 'write it out, such as "https://example.com/"'
            raise bad(f"crawl.seeds[{place}]", seed, "is no http or https URL", remedy)
    for place, file in enumerate(crawl.seed_files):
        if file != "-":
            _check_readable(f"crawl.seed_files[{place}]", file, directory=False)


def _is_web_url(text: str) -> bool:
    # A browser mends "https:///x" and the like; in a configuration it is a slip.
    written_out = re.match(r"\s*https?://[^/?#\\]", text, re.IGNORECASE)
    return written_out is not None and Canonicalizer(()).parse(text) is not None


def _check_readable(key: str, path: str, *, directory: bool) -> None:
    if not os.path.exists(path):
        raise bad(key, path, "does not exist", "relative paths start at the configuration file")
    if os.path.isdir(path) and not directory:
        raise bad(key, path, "is a directory", "name a file")
    if not os.access(path, os.R_OK):
        raise bad(key, path, "may not be read", "give this user leave to read it")


def _check_user_agent(agent: str) -> None:
    key = "crawl.user_agent"
    example = 'such as "mybot/1.0 (+https://example.com/bot)"'
    if not agent.strip():
        raise bad(key, None, "is missing", f"say who crawls and how to reach them, {example}")
    _check_field_value(key, agent)
    if not _CONTACT.search(agent):
        raise bad(key, agent, "names no contact", f"add an http(s) URL or mail address, {example}")


def _check_field_value(key: str, value: str) -> None:
    """RFC 9110 section 5.5: no controls but tab; and what a client can send is Latin-1."""
    if _CONTROL.search(value):
        raise bad(key, value, "holds a control character", "write it on one line")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        remedy = "use ASCII, percent-encoding the rest"
        raise bad(key, value, "cannot be sent in a header", remedy) from None


# --- [scope], [host] ---


def _check_scope(scope: ScopeConfig) -> None:
    for name, patterns in (("scope.allow", scope.allow), ("scope.deny", scope.deny)):
        for place, pattern in enumerate(patterns):
            _check_pattern(f"{name}[{place}]", pattern)
    for pattern in scope.priorities:
        _check_pattern("scope.priorities", pattern)
    _check_globs("scope.deny_hosts[{}]", scope.deny_hosts)


def _check_pattern(key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"is no regular expression ({error})"
        remedy = "mend it; a backslash is written '\\.' in single quotes"
        raise bad(key, pattern, message, remedy) from None


def _check_globs(key: str, globs: Sequence[str]) -> None:
    for place, glob in enumerate(globs):
        if not glob.strip() or "/" in glob:
            remedy = 'name hosts, such as "*.example.com"'
            raise bad(key.format(place), glob, "matches no host name", remedy)


def _bounds(host: HostConfig, rule: HostRule) -> tuple[int, int]:
    floor = host.floor if rule.floor is None else rule.floor
    ceiling = host.ceiling if rule.ceiling is None else rule.ceiling
    return floor, ceiling


def _check_host(host: HostConfig, rules: Sequence[HostRule]) -> None:
    _check_globs("host.rules[{}].match", [rule.match for rule in rules])
    cases = [("host.floor", host.floor, "host.ceiling", host.ceiling)]
    for place, rule in enumerate(rules):
        floor, ceiling = _bounds(host, rule)
        lower = "host.floor" if rule.floor is None else f"host.rules[{place}].floor"
        upper = "host.ceiling" if rule.ceiling is None else f"host.rules[{place}].ceiling"
        cases.append((lower, floor, upper, ceiling))
    for lower, floor, upper, ceiling in cases:
        if floor > ceiling:
            message = f"is above {upper} = {ceiling}"
            raise bad(lower, floor, message, "lower the one or raise the other")


def _check_pause(pause: PauseConfig) -> None:
    if pause.first > pause.longest:
        message = f"is longer than pause.longest = {pause.longest:g}"
        raise bad("pause.first", pause.first, message, "lower the one or raise the other")


# What may not be greater than what in a table: (table, key, key of its bound).
_ORDER = (
    ("retry", "backoff_base", "backoff_max"),
    ("fetch", "connect_timeout", "total_timeout"),
    ("fetch", "read_timeout", "total_timeout"),
)


def _check_order(config: Config) -> None:
    """A default above a bound that was set gives way to it: a bound may be set alone."""
    remedy = "lower the one or raise the other"
    for table, name, bound in _ORDER:
        given = getattr(config, table)
        value, most = getattr(given, name), getattr(given, bound)
        if value > most and value != getattr(type(given)(), name):
            message = f"is longer than {table}.{bound} = {most:g}"
            raise bad(f"{table}.{name}", value, message, remedy)
    body, held = config.fetch.max_body_bytes, config.queues.max_bytes
    if body > held and body != FetchConfig().max_body_bytes and held != QueuesConfig().max_bytes:
        # One body of that size is let through alone; who sets both has meant something else.
        message = f"is above queues.max_bytes = {held}"
        raise bad("fetch.max_body_bytes", body, message, remedy)


def _check_address_keys(config: Config) -> None:
    """Whoever fetches through somebody else never learns a target's address."""
    keys: list[tuple[str, str | None]] = [("host.key", config.host.key)]
    keys += [(f"host.rules[{place}].key", rule.key) for place, rule in enumerate(config.host_rules)]
    others = {"gateway.url": config.gateway.url, "fetch.proxy": config.fetch.proxy}
    for key, value in keys:
        for other, given in others.items():
            if value == "address" and given:
                message = f"cannot be used with {other}, behind which no target is resolved"
                raise bad(key, value, message, 'use "host" or "domain"')


# --- [fetch], [gateway], [parse] ---


def _check_fetch(fetch: FetchConfig) -> None:
    for name, value in fetch.headers.items():
        key = join("fetch.headers", name)
        if not _FIELD_NAME.fullmatch(name):
            remedy = "use letters, digits and hyphens"
            raise bad(key, None, "is no header name", remedy)
        if name.lower() in _OWN_HEADERS:
            raise bad(key, None, "cannot be set here", _OWN_HEADERS[name.lower()])
        _check_field_value(key, value)
    if fetch.proxy and not _is_web_url(fetch.proxy):
        remedy = 'write it as "http://host:port"'
        error = bad("fetch.proxy", None, "is no http or https URL", remedy)
        _, at, host = fetch.proxy.rpartition("@")
        # Whatever is written here in whichever order may be a password; a host with a port is not.
        if at and re.fullmatch(r"[\w.-]+(:[0-9]+)?", host):
            error.value = host
        raise error
    if fetch.ca_bundle:
        _check_readable("fetch.ca_bundle", fetch.ca_bundle, directory=True)
    if fetch.resolve:
        _check_addresses(fetch.resolve)


def _check_addresses(resolve: dict[str, str]) -> None:
    import ipaddress  # 3 ms that only static DNS needs

    for name, address in resolve.items():
        try:
            ipaddress.ip_address(address)
        except ValueError:
            key = join("fetch.resolve", name)
            remedy = 'write "name" = "address", such as "example.com" = "192.0.2.1"'
            raise bad(key, address, "is no IP address", remedy) from None


def _check_gateway(gateway: GatewayConfig) -> None:
    if not gateway.url:
        for name in GatewayConfig.__struct_fields__:
            value = getattr(gateway, name)
            if value != getattr(GatewayConfig(), name):
                remedy = "set gateway.url too, or remove it"
                raise bad(f"gateway.{name}", value, "is set and gateway.url is not", remedy)
        return
    # What stands in the URL besides is often a key: it is not shown.
    if "{url}" not in gateway.url or not _is_web_url(gateway.url.replace("{url}", "x")):
        remedy = 'write it as "https://api.example.com/fetch?key=KEY&url={url}"'
        raise bad("gateway.url", None, "is no http or https URL with {url} in it", remedy)
    if "@" in gateway.url.partition("//")[2].partition("/")[0]:
        remedy = "credentials go into the path or the query, as the gateway's manual says"
        raise bad("gateway.url", None, "holds user:password@, which is not sent", remedy)
    for key in ("throttled_status", "exhausted_status"):
        good = [status for status in getattr(gateway, key) if 200 <= status <= 299]
        if good:
            message = f"holds {good[0]}, which is how pages come"
            raise bad(f"gateway.{key}", list(getattr(gateway, key)), message, "remove it")
    both = set(gateway.throttled_status) & set(gateway.exhausted_status)
    if both:
        message = f"shares {min(both)} with gateway.exhausted_status"
        remedy = "a status means one or the other"
        raise bad("gateway.throttled_status", list(gateway.throttled_status), message, remedy)
    name = gateway.target_status_header
    if name and not _FIELD_NAME.fullmatch(name):
        remedy = "use letters, digits and hyphens"
        raise bad("gateway.target_status_header", name, "is no header name", remedy)


def _check_parse(parse: ParseConfig) -> None:
    if not parse.parsers:
        remedy = 'name at least one, such as ["page"]'
        raise bad("parse.parsers", list(parse.parsers), "is empty", remedy)
    for place, name in enumerate(parse.parsers):
        if name in parse.parsers[:place]:
            key = f"parse.parsers[{place}]"
            raise bad(key, name, "is named twice", "remove one: each page would yield it twice")


# --- where bytes go ---


def _check_outputs(config: Config) -> None:
    """No two of the files a crawl writes, nor one it reads, may be the same one."""
    if not config.stores:
        raise bad("stores", [], "no store would hold the records", "add a [[stores]] table")
    for place, store in enumerate(config.stores):
        if store.type in BUILT_IN_STORES and not store.path:
            remedy = 'name a file, or "-" for standard output'
            raise bad(f"stores[{place}].path", None, "is missing", remedy)
    taken: dict[str, str] = {}
    for key, path in _claims(config):
        real = path if path == "-" else os.path.realpath(path)
        if real in taken:
            message = f"is the same as {taken[real]}"
            raise bad(key, path, message, "give each a path of its own")
        taken[real] = key
    state = os.path.realpath(config.crawl.state_dir)
    for key, path in _claims(config):
        if path != "-" and state.startswith(os.path.realpath(path) + os.sep):
            message = f"would have to be a directory: crawl.state_dir = {state!r} lies in it"
            raise bad(key, path, message, "give each a path of its own")


def _claims(config: Config) -> Iterable[tuple[str, str]]:
    # A seed file named twice does no harm; "-" there is stdin, not stdout.
    for file in dict.fromkeys(config.crawl.seed_files):
        if file != "-":
            yield "crawl.seed_files", file
    yield "crawl.state_dir", config.crawl.state_dir
    for place, store in enumerate(config.stores):
        # A plugin's path may be a URL, or one database that several stores share.
        if store.path and store.type in BUILT_IN_STORES:
            yield f"stores[{place}].path", store.path
    if config.log.file:
        yield "log.file", config.log.file
