"""Limits: the bucket, AIMD, the gate over every path, pauses, retries, and the signals table."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from syncrawl.config.model import Config, HostConfig, HostRule, PauseConfig, RetryConfig
from syncrawl.engine.gates import GateKeys, HostMaker, limits_for
from syncrawl.engine.hosts import Lookup
from syncrawl.engine.ledger import HostTotals
from syncrawl.errors import FetchError
from syncrawl.limits.aimd import AimdLimiter
from syncrawl.limits.bucket import TokenBucket
from syncrawl.limits.gate import NEVER, HostGate
from syncrawl.limits.pause import RefusalPause
from syncrawl.limits.retry import RetryBudget, RetryPolicy
from syncrawl.limits.signals import (
    RULES,
    UNREACHABLE,
    Fate,
    Signal,
    outcome_of_error,
    outcome_of_status,
    rule_of,
)
from syncrawl.testing.clock import FakeClock

# Margin for sums of floats, far below anything a limit is about.
CLOSE = 1e-9


def starts(bucket: TokenBucket, until: float) -> list[float]:
    """The start times of a client that starts whenever it may, from 0 on."""
    times: list[float] = []
    now = 0.0
    while now <= until:
        bucket.take(now)
        times.append(now)
        now = max(now, bucket.ready_at())
    return times


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# -- bucket -------------------------------------------------------------------------------


def test_a_bucket_without_rate_and_delay_holds_nothing_back() -> None:
    bucket = TokenBucket()
    assert bucket.idle
    bucket.take(5.0)
    assert bucket.ready_at() <= 5.0


def test_the_rate_is_the_distance_between_starts() -> None:
    assert gaps(starts(TokenBucket(rate=4.0), 2.0)) == pytest.approx([0.25] * 8)


def test_a_burst_comes_at_once_and_then_at_the_rate() -> None:
    times = starts(TokenBucket(rate=2.0, burst=3), 2.0)
    assert times == pytest.approx([0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 2.0])


def test_a_rest_earns_no_more_than_the_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    starts(bucket, 1.0)
    resumed = 1_000.0
    for _ in range(3):
        assert bucket.ready_at() <= resumed
        bucket.take(resumed)
    assert bucket.ready_at() == pytest.approx(resumed + 0.5)


@given(
    rate=st.floats(0.1, 1000.0),
    burst=st.integers(1, 20),
    rests=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=60),
)
def test_no_window_holds_more_than_burst_plus_rate(
    rate: float, burst: int, rests: list[float]
) -> None:
    bucket = TokenBucket(rate, burst)
    times: list[float] = []
    now = 0.0
    for rest in rests:
        now = max(now + rest / rate, bucket.ready_at())
        bucket.take(now)
        times.append(now)
    for first, last in itertools.combinations(range(len(times)), 2):
        allowed = burst + rate * (times[last] - times[first])
        assert last - first + 1 <= allowed + 1e-6


@pytest.mark.parametrize("delay", [0.02, 0.05, 1.0, 60.0])
def test_a_crawl_delay_is_the_gap_between_starts_with_a_small_margin(delay: float) -> None:
    apart = gaps(starts(TokenBucket(delay=delay), delay * 10))
    assert all(delay < gap <= delay + min(0.005, delay * 0.05) + CLOSE for gap in apart)


def test_a_crawl_delay_makes_the_burst_one() -> None:
    bucket = TokenBucket(rate=100.0, burst=50, delay=1.0)
    bucket.take(0.0)
    assert bucket.ready_at() > 1.0


@pytest.mark.parametrize(
    ("rate", "delay", "slower"), [(1.0, 0.5, 1.0), (10.0, 0.5, 0.5), (2.0, 0.5, 0.5)]
)
def test_of_rate_and_delay_the_slower_wins(rate: float, delay: float, slower: float) -> None:
    bucket = TokenBucket(rate=rate, delay=delay)
    bucket.take(0.0)
    assert slower <= bucket.ready_at() <= slower + 0.005


def test_a_delay_learnt_late_counts_from_the_start_before_it() -> None:
    bucket = TokenBucket()
    bucket.take(10.0)
    bucket.set_delay(2.0)
    assert 12.0 < bucket.ready_at() <= 12.01
    bucket.set_delay(0.0)
    assert bucket.ready_at() <= 10.0


# -- AIMD ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "floor", "ceiling", "limit"),
    [(4, 1, 32, 4), (1, 2, 8, 2), (50, 1, 8, 8), (3, 3, 3, 3)],
)
def test_the_start_is_clamped(start: int, floor: int, ceiling: int, limit: int) -> None:
    assert AimdLimiter(start, floor, ceiling).limit == limit


def test_a_window_of_successes_adds_one() -> None:
    limiter = AimdLimiter(10, 1, 32)
    for _ in range(10):
        limiter.on_success(1.0, 0.9, tested=True)
    assert 10.9 < limiter.limit <= 11.0


def test_an_idle_host_does_not_drift_up() -> None:
    limiter = AimdLimiter(4, 1, 32)
    for _ in range(3):
        limiter.on_success(1.0, 0.9, tested=False)
    assert limiter.limit == 4.0
    limiter.on_success(1.0, 0.9, tested=True)
    assert limiter.limit > 4.0


def test_a_burst_of_refusals_is_one_cut() -> None:
    limiter = AimdLimiter(16, 1, 32)
    cut = [limiter.on_refusal(now=10.0 + i, admitted_at=9.0, level=16) for i in range(16)]
    assert cut == [True] + [False] * 15
    assert limiter.limit == 8.0
    assert limiter.cuts == 1
    assert limiter.on_refusal(now=30.0, admitted_at=10.5, level=8)
    assert limiter.limit == 4.0


def test_the_limit_stays_between_floor_and_ceiling() -> None:
    limiter = AimdLimiter(4, 3, 6)
    for now in range(10):
        limiter.on_refusal(now=now + 0.5, admitted_at=now, level=3)
    assert limiter.limit == 3.0
    assert limiter.at_floor
    for second in range(20, 1_020):
        limiter.on_success(second + 0.1, second, tested=True)
    assert limiter.limit == 6.0
    assert not limiter.at_floor


# -- gate ---------------------------------------------------------------------------------


def gate(rate: float = 0.0, burst: int = 1, start: int = 2, ceiling: int = 4) -> HostGate:
    return HostGate(TokenBucket(rate, burst), AimdLimiter(start, 1, ceiling))


def test_a_full_gate_is_never_ready_and_admits_nobody() -> None:
    subject = gate()
    assert subject.try_admit(0.0)
    assert subject.try_admit(0.0)
    assert subject.ready_at() == NEVER
    assert not subject.try_admit(1e9)
    subject.release()
    assert subject.try_admit(0.0)
    assert subject.in_flight == 2


def test_a_limit_of_nearly_three_is_two() -> None:
    subject = gate()
    subject.limiter.limit = 2.99
    assert [subject.try_admit(0.0) for _ in range(3)] == [True, True, False]


def test_a_pause_holds_back_both_paths_and_is_never_shortened() -> None:
    subject = gate()
    subject.try_admit(0.0)
    subject.pause(60.0)
    subject.pause(5.0)
    assert not subject.try_admit(59.9)
    assert not subject.try_readmit(59.9)
    assert subject.try_readmit(60.0)
    assert subject.try_admit(60.0)


def test_a_hop_takes_a_token_but_no_slot() -> None:
    subject = gate(rate=1.0)
    subject.try_admit(0.0)
    assert not subject.try_readmit(0.5)
    assert subject.try_readmit(1.0)
    assert subject.in_flight == 1
    assert not subject.try_readmit(1.5), "the hop took the token"
    assert not subject.try_admit(1.5), "the hop's token holds the next start back"


def test_a_hop_is_refused_once_the_limit_was_cut_below_what_is_in_flight() -> None:
    subject = gate()
    subject.try_admit(0.0)
    subject.try_admit(0.0)
    subject.limiter.on_refusal(now=1.0, admitted_at=0.0, level=1)
    assert not subject.try_readmit(2.0)
    subject.release()
    assert subject.try_readmit(2.0)


def test_a_slot_is_not_given_back_twice() -> None:
    subject = gate()
    subject.try_admit(0.0)
    subject.release()
    with pytest.raises(AssertionError, match="twice"):
        subject.release()


class GateMachine(RuleBasedStateMachine):
    """Invariant 1 over random admissions, hops, ends, refusals, successes and pauses."""

    @initialize(
        start=st.integers(1, 10),
        floor=st.integers(1, 4),
        extra=st.integers(0, 8),
        rate=st.sampled_from([0.0, 1.0, 7.0]),
        burst=st.integers(1, 4),
        delay=st.sampled_from([0.0, 0.5]),
    )
    def build(
        self, start: int, floor: int, extra: int, rate: float, burst: int, delay: float
    ) -> None:
        self.now = 0.0
        self.ceiling = floor + extra
        self.gate = HostGate(
            TokenBucket(rate, burst, delay), AimdLimiter(start, floor, self.ceiling)
        )
        self.delay = delay
        self.flying: list[tuple[float, int, bool]] = []
        self.last_start = float("-inf")

    def started(self) -> None:
        assert self.now >= self.gate.paused_until
        assert self.now - self.last_start >= self.delay
        self.last_start = self.now

    @rule()
    def admit(self) -> None:
        before, limit = self.gate.in_flight, int(self.gate.limiter.limit)
        tested = self.gate.tested
        assert tested == (before + 1 >= limit)
        if self.gate.try_admit(self.now):
            assert before < limit
            self.flying.append((self.now, before, tested))
            self.started()
        else:
            assert self.gate.ready_at() > self.now

    @precondition(lambda self: self.flying)
    @rule()
    def readmit(self) -> None:
        # The slot that the hop goes on is its own: the others must be below the limit.
        others, limit = self.gate.in_flight - 1, int(self.gate.limiter.limit)
        before = self.gate.in_flight
        if self.gate.try_readmit(self.now):
            assert others < limit
            self.started()
        assert self.gate.in_flight == before

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 100), good=st.booleans())
    def end(self, which: int, good: bool) -> None:
        admitted_at, before, tested = self.flying.pop(which % len(self.flying))
        self.gate.release()
        limiter = self.gate.limiter
        limit, refused = limiter.limit, limiter.refused
        if good:
            limiter.on_success(self.now, admitted_at, tested=tested)
            assert tested or limiter.limit == limit
            assert refused is None or limiter.limit <= max(limit, refused)
        else:
            limiter.on_refusal(self.now, admitted_at, before + 1)
            assert limiter.limit >= limit / 2

    @rule(seconds=st.floats(0.0, 3.0))
    def pause(self, seconds: float) -> None:
        before = self.gate.paused_until
        self.gate.pause(self.now + seconds)
        assert self.gate.paused_until >= before

    @rule(seconds=st.floats(0.0, 4.0))
    def advance(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def never_above_the_ceiling(self) -> None:
        if not hasattr(self, "gate"):
            return
        assert self.gate.in_flight == len(self.flying) <= self.ceiling
        assert self.gate.limiter.floor <= self.gate.limiter.limit <= self.ceiling


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# -- pauses -------------------------------------------------------------------------------


def pauser() -> RefusalPause:
    return RefusalPause(PauseConfig(), random.Random(7))


def refuse_until_paused(subject: RefusalPause, now: float) -> float:
    """Refuse at the floor, a second apart, until a pause comes; its length."""
    for _ in range(10):
        seconds = subject.on_refusal(now, at_floor=True)
        if seconds:
            return seconds
        now += 1.0
    raise AssertionError("no pause after ten refusals at the floor")


def test_the_third_refusal_at_the_floor_pauses() -> None:
    subject = pauser()
    first = [subject.on_refusal(now, at_floor=True) for now in (0.0, 1.0)]
    assert first == [0.0, 0.0]
    assert 60.0 <= subject.on_refusal(2.0, at_floor=True) <= 75.0


def test_refusals_above_the_floor_do_not_pause() -> None:
    subject = pauser()
    assert not any(subject.on_refusal(now, at_floor=False) for now in range(20))


def test_a_success_ends_the_streak() -> None:
    subject = pauser()
    for now in range(20):
        assert not subject.on_refusal(now, at_floor=True)
        if now % 2:
            subject.on_success()


def test_each_pause_is_twice_as_long_up_to_a_day() -> None:
    subject, now = pauser(), 0.0
    lengths = []
    for _ in range(15):
        seconds = refuse_until_paused(subject, now)
        lengths.append(seconds)
        now += seconds + 10.0
    for number, seconds in enumerate(lengths):
        asked = min(86_400.0, 60.0 * 2**number)
        assert asked <= seconds <= min(86_400.0, asked * 1.25)


def test_half_an_hour_of_service_forgets_the_past() -> None:
    subject = pauser()
    first = refuse_until_paused(subject, 0.0)
    second = refuse_until_paused(subject, first + 1_700.0)
    assert second >= 120.0
    later = first + 1_700.0 + second + 1_900.0
    assert refuse_until_paused(subject, later) <= 75.0


def test_one_burst_at_a_high_floor_is_one_pause() -> None:
    subject = pauser()
    pauses = [subject.on_refusal(0.01 * i, at_floor=True) for i in range(32)]
    assert [60.0 <= seconds <= 75.0 for seconds in pauses if seconds] == [True]


# -- retries ------------------------------------------------------------------------------


def policy(**config: float) -> RetryPolicy:
    return RetryPolicy(RetryConfig(**config), random.Random(3))  # type: ignore[arg-type]


def test_max_attempts_counts_the_first() -> None:
    subject = policy(max_attempts=3)
    assert [subject.may_retry(attempts) for attempts in (1, 2, 3)] == [True, True, False]
    assert not policy(max_attempts=1).may_retry(1)


@pytest.mark.parametrize("attempt", [1, 3, 6, 10, 5_000])
def test_the_delay_is_spread_between_zero_and_its_bound(attempt: int) -> None:
    subject = policy(backoff_base=1.0, backoff_max=60.0)
    bound = min(60.0, 2.0 ** min(attempt, 30))
    delays = [subject.delay(attempt) for _ in range(400)]
    assert 0.0 <= min(delays) < bound * 0.1
    assert bound * 0.9 < max(delays) <= bound


NOON = 784_108_800.0  # Sun, 06 Nov 1994 08:00:00 GMT, the date of RFC 9110's examples


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0000000000000000000000000000005", 5.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 2_977.0),  # IMF-fixdate
        ("Sunday, 06-Nov-94 08:49:37 GMT", 2_977.0),  # RFC 850
        ("Sun Nov  6 08:49:37 1994", 2_977.0),  # asctime: always UTC
        ("Sun, 06 Nov 1994 07:59:59 GMT", None),  # past
        ("0", None),  # at once: our own back-off is the least that applies
        ("-5", None),
        ("1.5", None),
        ("120s", None),
        ("1e3", None),
        ("0x10", None),
        ("٣", None),
        ("120, 120", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("86401", 86_400.0),
        ("9" * 30, 86_400.0),
        ("9" * 5_000, 86_400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
        ("Sun, 06 Nov 99999999999999999999 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 +99999999999999999999", None),
        ("Sun, 06 Nov 1994 25:00:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert policy().retry_after(value, NOON) == seconds


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.sampled_from(
                ["Sun,", "06", "Nov", "1994", "08:49:37", "GMT", "+9" * 9, "9" * 25, "-", ":", "am"]
            ),
            max_size=9,
        ).map(" ".join),
    )
)
def test_no_retry_after_raises_or_asks_for_more_than_the_cap(value: str) -> None:
    seconds = policy(max_retry_after=50.0).retry_after(value, NOON)
    assert seconds is None or 0.0 < seconds <= 50.0


@pytest.mark.parametrize(
    ("ratio", "first", "granted"),
    [(0.1, 0, 2), (0.1, 20, 2), (0.1, 25, 2), (0.1, 30, 3), (0.5, 9, 4), (0.0, 1_000, 2)],
)
def test_retries_stay_below_a_share_of_first_attempts(
    ratio: float, first: int, granted: int
) -> None:
    budget = RetryBudget(ratio, first_attempts=first)
    assert [budget.spend() for _ in range(granted + 2)] == [True] * granted + [False] * 2
    assert budget.retries == granted


def test_first_attempts_earn_further_retries() -> None:
    budget = RetryBudget(0.1, first_attempts=20, retries=2)
    assert not budget.spend()
    budget.first_attempts = 30
    assert budget.spend()


# -- signals ------------------------------------------------------------------------------

FATES = {
    Fate.DONE: {"2xx", "304", "duplicate"},
    Fate.DROPPED: {"redirect_scope", "robots"},
    Fate.RETRY: {
        *("408", "425", "5xx", "timeout", "dns", "connect", "connection"),
        *("incomplete", "protocol", "lost", "gateway_failed", "gateway_timeout"),
    },
    Fate.REFUSED: {"throttled", "challenge", "proxy", "gateway_unreached"},
    Fate.AGAIN: {
        *("redirect", "pressure", "stale"),
        *("gateway_throttled", "gateway_exhausted", "gateway_refused"),
    },
    Fate.FAILED: {
        *("redirect_limit", "redirect_loop", "redirect_bad", "3xx", "4xx", "tls", "decode"),
        *("parse_error", "parse_timeout", "too_large", "address", "url", "internal"),
        *("403", "451", "proxy_denied"),
    },
}


def test_every_outcome_has_its_fate() -> None:
    found = {fate: {name for name, line in RULES.items() if line.fate is fate} for fate in Fate}
    assert found == FATES


def test_what_we_caused_is_no_signal_to_the_host() -> None:
    silent = {name for name, line in RULES.items() if line.signal is Signal.NOTHING}
    ours = {"address", "url", "pressure", "stale", "internal", "lost"}
    assert silent == ours | {"gateway_exhausted", "gateway_refused"}
    routed = {name for name, line in RULES.items() if line.signal is Signal.ROUTE}
    gateways = {"gateway_throttled", "gateway_failed", "gateway_unreached"}
    assert routed == {"proxy", "proxy_denied"} | gateways


def test_only_a_good_page_raises_and_only_a_refusal_cuts() -> None:
    assert [name for name, line in RULES.items() if line.signal is Signal.SUCCESS] == ["2xx"]
    refusals = [name for name, line in RULES.items() if line.signal is Signal.REFUSAL]
    assert refusals == ["throttled", "challenge"]
    forbidden = [name for name, line in RULES.items() if line.signal is Signal.FORBIDDEN]
    assert forbidden == ["403", "451"]


def test_what_costs_an_attempt_counts_against_the_host() -> None:
    # A worker that hung is our own misfortune, but a page that does it costs an attempt; and
    # what a gateway answers may be on its bill.
    costly = {rule_of(name).signal for name in FATES[Fate.RETRY] - {"lost", "gateway_failed"}}
    assert costly == {Signal.FAILURE}
    assert all(rule_of(name).signal is Signal.FAILURE for name in UNREACHABLE)


def test_every_status_is_an_outcome_of_the_table() -> None:
    assert {outcome_of_status(status) for status in range(1_000)} <= RULES.keys()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((200, "2xx"), (204, "2xx"), (206, "2xx"), (300, "3xx"), (304, "304"), (399, "3xx")),
        *((401, "4xx"), (404, "4xx"), (408, "408"), (410, "4xx"), (425, "425")),
        *((429, "throttled"), (500, "5xx"), (503, "throttled"), (504, "5xx"), (509, "5xx")),
        *((100, "protocol"), (199, "protocol"), (600, "protocol"), (0, "protocol")),
    ],
)
def test_statuses_that_matter(status: int, outcome: str) -> None:
    assert outcome_of_status(status) == outcome


@pytest.mark.parametrize(
    ("outcome", "ours", "counted"),
    [
        ("connect", False, "connect"),
        ("connect", True, "pressure"),  # no file descriptor left
        ("pressure", True, "pressure"),
        ("proxy", True, "proxy"),
        ("made_up", True, "made_up"),
    ],
)
def test_an_error_of_our_own_doing_blames_no_host(outcome: str, ours: bool, counted: str) -> None:
    error = FetchError("no", outcome=outcome, ours=ours)
    assert outcome_of_error(error) == counted


def test_an_outcome_nobody_knows_blames_no_host() -> None:
    assert rule_of("made_up_by_a_plugin") == RULES["internal"]


# -- which gate, which limits -------------------------------------------------------------


def gate_key(host: str, config: Config) -> str:
    return GateKeys(config).queue_of(host)


@pytest.mark.parametrize(
    ("by", "host", "key"),
    [
        ("host", "example.com", "example.com"),
        ("host", "example.com.:8080", "example.com:8080"),
        ("host", "[::1]:8080", "[::1]:8080"),
        ("host", "[::1]", "[::1]"),
        ("domain", "www.example.co.uk:8080", "example.co.uk"),
        ("domain", "127.0.0.1:8080", "127.0.0.1"),
    ],
)
def test_what_shares_a_gate(by: str, host: str, key: str) -> None:
    assert gate_key(host, Config(host=HostConfig(key=by))) == key  # type: ignore[arg-type]


def test_a_rule_can_make_one_gate_of_a_domain() -> None:
    config = Config(host_rules=(HostRule(match="*.Example.com", key="domain", rate=0.5),))
    assert gate_key("a.example.com", config) == gate_key("b.example.com:81", config)
    assert gate_key("a.example.org", config) == "a.example.org"
    assert limits_for(config, "example.com").rate == 0.5
    assert limits_for(config, "a.example.org").rate == 0.0


def test_the_first_rule_that_matches_wins_whatever_its_case() -> None:
    rules = (HostRule(match="*.Example.com", start=2), HostRule(match="*", start=9, ceiling=10))
    config = Config(host=HostConfig(start=4, ceiling=20), host_rules=rules)
    first, second = limits_for(config, "www.example.com:8080"), limits_for(config, "other.example")
    assert (first.start, first.ceiling) == (2, 20)
    assert (second.start, second.ceiling) == (9, 10)
    assert limits_for(Config(), "x") == HostConfig()


def test_a_host_whose_gate_is_its_machines_looks_its_address_up_first() -> None:
    rules = (HostRule(match="*.example", key="address"),)
    maker = HostMaker(Config(host_rules=rules), {}, clock=FakeClock(), rng=random.Random(1))
    assert maker.new_host("a.example").lookup is Lookup.DUE
    assert maker.new_host("a.test").lookup is Lookup.NONE


def test_a_pause_outlives_the_run_that_earned_it() -> None:
    clock = FakeClock()
    saved = {"a": HostTotals(pages=7, requests=9, paused_until=clock.wall() + 30.0)}
    maker = HostMaker(Config(), saved, clock=clock, rng=random.Random(1))
    host = maker.new_host("a")
    assert (host.pages, host.requests) == (7, 9)
    assert not host.gate.try_admit(clock.monotonic() + 29.9)
    assert host.gate.try_admit(clock.monotonic() + 30.1)
    assert maker.new_host("b").gate.try_admit(clock.monotonic())
