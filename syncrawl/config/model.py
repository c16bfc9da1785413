"""The configuration's models: frozen, keyword-only, every default and unit here and only here.

Any thread; data only, imports nothing from the package. `load.py` fills them from TOML,
makes paths absolute and checks what a type cannot say; config.example.toml shows every
key, and a test holds the two together. A field's docstring is the comment above it;
fields whose type carries a "unit" also accept strings such as "15s", "1h30m", "5MiB".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

# Ten years: far beyond any use, and short of where threading's waits overflow.
_LONGEST = 10 * 365 * 86400
# What SQLite and the platform's size types hold.
_LARGEST = 2**63 - 1

Seconds = Annotated[float, Meta(ge=0, le=_LONGEST, extra={"unit": "duration"})]
# A bound on a wait that must be able to succeed: 0 would fail every time.
Timeout = Annotated[float, Meta(gt=0, le=_LONGEST, extra={"unit": "duration"})]
Bytes = Annotated[int, Meta(ge=0, le=_LARGEST, extra={"unit": "size"})]
Count = Annotated[int, Meta(ge=1, le=_LARGEST)]
Natural = Annotated[int, Meta(ge=0, le=_LARGEST)]
Rate = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
HttpStatus = Annotated[int, Meta(ge=100, le=599)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table.

    Subclasses repeat frozen and kw_only for type checkers, which do not inherit them.
    """


class CrawlConfig(Model, frozen=True, kw_only=True):
    """[crawl]: what to start from, where state lives, when to stop."""

    seeds: tuple[str, ...] = ()
    # One URL a line; blank lines and lines starting with # are skipped; "-" is stdin.
    seed_files: tuple[str, ...] = ()
    state_dir: str = "state"
    # Must name a contact: an http(s) URL or a mail address.
    user_agent: str = ""
    # 2xx pages committed over the life of the state; 0 = no limit.
    max_pages: Natural = 0
    # Seconds of this run; 0 = no limit.
    max_seconds: Seconds = 0.0
    # How long a stop waits for what is in flight.
    stop_grace: Seconds = 10.0
    # A run with nothing but waits longer than this ahead stops, resumable; 0 = wait for ever.
    max_wait: Seconds = 0.0
    # A host without any success for this long fails its URLs.
    give_up_after: Seconds = 3600.0
    # No progress for this long, and nothing due: every thread's stack goes to the log.
    stall_after: Timeout = 60.0
    # Keep the threads of `python -m syncrawl` on one CPU (Linux): the interpreter runs one at a
    # time anyway, and handing over between CPUs costs a quarter of the work.
    one_cpu: bool = True
    # What state and outputs survive: "kill", the end of the process at any instant; "power", that
    # of the machine too, for a sync of each file at each commit.
    durability: Literal["kill", "power"] = "kill"


class ScopeConfig(Model, frozen=True, kw_only=True):
    """[scope]: which links are accepted."""

    # "host": the seeds' host:port; "domain": the seeds' registrable domains; "any": all.
    follow: Literal["host", "domain", "any"] = "host"
    # Links from a seed have depth 1; None = no limit.
    max_depth: Natural | None = None
    # Regular expressions searched in the canonical URL; a URL must match one of `allow`, if any.
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    # Globs on the host name.
    deny_hosts: tuple[str, ...] = ()
    # 2xx pages committed per host over the life of the state; 0 = no limit.
    max_pages_per_host: Natural = 0
    # Priority of links by regular expression, searched in the canonical URL; the first that
    # matches counts. Links have 0 otherwise, seeds 100; a parser's own priority goes first.
    priorities: dict[str, Priority] = {}
    # Query parameters dropped from the canonical URL; a trailing * matches any ending.
    tracking_parameters: tuple[str, ...] = (
        "utm_*",
        "gclid",
        "dclid",
        "fbclid",
        "msclkid",
        "yclid",
        "igshid",
        "mc_cid",
        "mc_eid",
        "_ga",
        "_gl",
        "phpsessid",
        "jsessionid",
        "aspsessionid*",
    )
    # Follow links marked rel="nofollow" (or by a page's robots meta).
    follow_nofollow: bool = False
    # URLs longer than this are refused.
    max_url_bytes: Count = 8192


class RobotsConfig(Model, frozen=True, kw_only=True):
    """[robots]: obedience to robots.txt (RFC 9309)."""

    obey: bool = True
    # "protego", or the name of an installed syncrawl.robots plugin.
    engine: str = "protego"
    # A longer Crawl-delay counts as this one.
    max_crawl_delay: Seconds = 60.0
    # How long rules are used before they are fetched again (RFC 9309 section 2.4).
    cache_seconds: Seconds = 86400.0
    # Bytes of robots.txt that are read (RFC 9309 section 2.5 wants 500 KiB or more).
    max_bytes: Bytes = 512000


class HostConfig(Model, frozen=True, kw_only=True):
    """[host]: the limits of each host's gate."""

    # What shares one gate: "host" (host:port), "domain" (registrable), "address" (a machine).
    key: Literal["host", "domain", "address"] = "host"
    # Concurrent requests: where the adaptive limit starts, its lowest and highest value.
    # `start` is clamped into [floor, ceiling]; floor above ceiling is an error.
    start: Count = 4
    floor: Count = 1
    ceiling: Count = 32
    # Requests a second (0 = off) and how many may start at once.
    rate: Rate = 0.0
    burst: Count = 1
    # Hosts worked on at the same time.
    active: Count = 100


class HostRule(Model, frozen=True, kw_only=True):
    """[[host.rules]]: other limits for the hosts a glob matches; the first match wins.

    None means "as in [host]". `active` counts hosts, so it exists in [host] alone.
    """

    match: str
    key: Literal["host", "domain", "address"] | None = None
    start: Count | None = None
    floor: Count | None = None
    ceiling: Count | None = None
    rate: Rate | None = None
    burst: Count | None = None


class PauseConfig(Model, frozen=True, kw_only=True):
    """[pause]: how long a host is left alone that keeps refusing (429, 503, 403, challenges)."""

    # Refusals in a row at the host's floor, with no success between, before the first pause.
    refusals: Count = 3
    # The first pause; each further one lasts twice as long (and up to a quarter more, by chance).
    first: Timeout = 60.0
    longest: Timeout = 86400.0
    # Quiet time after which the next pause starts at `first` again.
    forgiven_after: Seconds = 1800.0


class FetchConfig(Model, frozen=True, kw_only=True):
    """[fetch]: how one exchange is made."""

    # "urllib3", "requests", or the name of an installed syncrawl.fetchers plugin.
    client: str = "urllib3"
    workers: Count = 32
    connect_timeout: Timeout = 5.0
    # Silence allowed between two reads.
    read_timeout: Timeout = 10.0
    # Bytes a second that an answer must come at, on average over read_timeout; 0 = any pace.
    min_pace: Bytes = 0
    # DNS, connect, TLS, headers and body of one exchange together.
    total_timeout: Timeout = 15.0
    max_redirects: Natural = 5
    # Decoded bytes; a longer body fails the URL as too_large.
    max_body_bytes: Bytes = 10 * 1024 * 1024
    headers: dict[str, str] = {}
    # One proxy URL for everything; "" = the environment's HTTP(S)_PROXY and NO_PROXY.
    proxy: str = ""
    # PEM file; "" = REQUESTS_CA_BUNDLE, SSL_CERT_FILE, else certifi.
    ca_bundle: str = ""
    verify: bool = True
    # Loopback, private and link-local targets: those that seeds name, all, or none.
    private_addresses: Literal["seeds", "allow", "deny"] = "seeds"
    # Static DNS: name = address, like curl --resolve.
    resolve: dict[str, str] = {}
    # Seconds an answer is kept, and a failure.
    dns_ttl: Seconds = 60.0
    dns_negative_ttl: Seconds = 10.0
    # Recognisers of challenge pages: "known", or names of installed syncrawl.challenges plugins.
    challenges: tuple[str, ...] = ("known",)


class RetryConfig(Model, frozen=True, kw_only=True):
    """[retry]: failed attempts."""

    # Attempts a URL gets, the first included.
    max_attempts: Count = 3
    # Retries may be at most this share of first attempts, a host's (never fewer than 2) and all
    # hosts' together.
    budget_ratio: Share = 0.1
    # Refusals (429, 503) cost a URL no attempt; this many fail it all the same.
    max_refusals: Count = 20
    # Full jitter: uniform in 0 .. min(backoff_max, backoff_base * 2**attempt).
    backoff_base: Seconds = 1.0
    backoff_max: Seconds = 60.0
    # Retry-After above this counts as this.
    max_retry_after: Seconds = 86400.0


class GatewayConfig(Model, frozen=True, kw_only=True):
    """[gateway]: a scraping API that fetches on our behalf, under a plan."""

    # Template; {url} is replaced by the percent-encoded target. "" = no gateway.
    url: str = ""
    # Requests at once that the plan allows; its own "too many" moves the limit below this.
    max_in_flight: Count = 10
    # The gateway's own answers: too many at once; quota used up.
    throttled_status: tuple[HttpStatus, ...] = (429,)
    exhausted_status: tuple[HttpStatus, ...] = (509,)
    # The response header that carries the target's status; "" = the status is the target's.
    target_status_header: str = ""
    # When the quota is used up: wait this long and go on; 0 = stop, resumable (exit code 4).
    resume_after: Seconds = 0.0


class ShedConfig(Model, frozen=True, kw_only=True):
    """[shed]: the least valuable URLs are put off, or given up, before they cost a fetch."""

    # Pending URLs beyond this are shed, lowest priority first; 0 = no limit.
    max_pending: Natural = 0
    # "defer": kept on disk and taken up when there is room; "drop": counted and forgotten.
    action: Literal["defer", "drop"] = "defer"
    # Only URLs of a lower priority than this are shed (links have 0, seeds 100).
    below_priority: Priority = 1
    # New links are shed too while a stage's queue has been full for this long; 0 = never.
    full_after: Seconds = 0.0


class ParseConfig(Model, frozen=True, kw_only=True):
    """[parse]: the parse stage."""

    workers: Count = 2
    # Child processes that parse, each with a thread of its own: they then take the place of
    # `workers`; 0 = parse in the threads themselves.
    processes: Natural = 0
    # Seconds one page may take.
    deadline: Timeout = 30.0
    parsers: tuple[str, ...] = ("page",)
    # [parse.options.NAME]: handed to that parser's factory.
    options: dict[str, dict[str, Any]] = {}
    # Records and links one page may yield.
    max_items: Count = 1_000_000

    @property
    def threads(self) -> int:
        """Threads of the parse stage."""
        return self.processes or self.workers


class QueuesConfig(Model, frozen=True, kw_only=True):
    """[queues]: the bounds between stages."""

    # Items before a stage, what is being fetched included; 0 = twice the fetch workers.
    max_items: Natural = 0
    # Body bytes alive in the process, from lease to commit; a lease reserves 64 KiB of them.
    max_bytes: Annotated[int, Meta(ge=65536, le=_LARGEST, extra={"unit": "size"})] = (
        128 * 1024 * 1024
    )
    # A stage's queue holds no more than the stage works off in this long, by its measured pace;
    # max_items bounds it in any case. 0 = max_items alone.
    latency_seconds: Seconds = 2.0

    def bound(self, workers: int) -> int:
        """Items that a queue may hold where `workers` fetch."""
        # A worker needs a place in the queue before it fetches: fewer places than workers would
        # leave some idle, many more would only let pages wait uncommitted.
        return self.max_items or 2 * workers


BUILT_IN_STORES = ("jsonl", "csv", "sqlite")
"""The stores that write files of their own, and know the option `durability`."""


class StoreConfig(Struct, frozen=True, kw_only=True):
    """[[stores]]: one output. Keys beyond these two are the store's own options."""

    # "jsonl", "csv", "sqlite", or the name of an installed syncrawl.stores plugin.
    type: str
    # "-" is standard output.
    path: str = ""
    options: dict[str, Any] = {}


class MetricsConfig(Model, frozen=True, kw_only=True):
    """[metrics]: figures for a monitoring system."""

    # Loopback host:port where /metrics answers in Prometheus' text format; "" = off.
    listen: str = ""


class LogConfig(Model, frozen=True, kw_only=True):
    """[log]: where events go; the live view is separate."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"
    # "" = stderr, "-" = stdout.
    file: str = ""


class Config(Model, frozen=True, kw_only=True):
    """A whole configuration; what `syncrawl.Crawl` takes."""

    crawl: CrawlConfig = CrawlConfig()
    scope: ScopeConfig = ScopeConfig()
    robots: RobotsConfig = RobotsConfig()
    host: HostConfig = HostConfig()
    # TOML spells these [[host.rules]]; the loader moves them here.
    host_rules: tuple[HostRule, ...] = ()
    pause: PauseConfig = PauseConfig()
    fetch: FetchConfig = FetchConfig()
    gateway: GatewayConfig = GatewayConfig()
    retry: RetryConfig = RetryConfig()
    shed: ShedConfig = ShedConfig()
    parse: ParseConfig = ParseConfig()
    queues: QueuesConfig = QueuesConfig()
    # Where no [[stores]] is given.
    stores: tuple[StoreConfig, ...] = (StoreConfig(type="jsonl", path="pages.jsonl"),)
    metrics: MetricsConfig = MetricsConfig()
    log: LogConfig = LogConfig()
