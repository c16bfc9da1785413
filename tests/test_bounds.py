"""Bounds from latency: they follow the pace, and nothing talks them to zero."""

from __future__ import annotations

from syncrawl.config.model import Config, FetchConfig, ParseConfig, QueuesConfig
from syncrawl.engine.bounds import Bounds, LatencyBound
from tests.test_scheduler import Bench, config


def bounds(**parse: int) -> Bounds:
    return Bounds(
        Config(
            fetch=FetchConfig(workers=32),
            parse=ParseConfig(**parse),  # type: ignore[arg-type]
            queues=QueuesConfig(latency_seconds=2.0),
        )
    )


def test_it_starts_at_the_hard_cap() -> None:
    assert (bounds().fetched(0.1), bounds().inbox()) == (64, 64)


def test_a_slow_parser_lowers_it_to_what_is_parsed_in_time() -> None:
    subject = bounds(workers=4)
    for second in range(1, 20):
        subject.note_parse(8 * second, 4.0 * second)  # 500 ms a page, four threads busy
    assert subject.fetched(0.0) == 16, "8 a second, two seconds"
    assert subject.fetched(1.0) == 24, "what is being fetched holds its place for a second more"


def test_it_never_falls_below_the_workers() -> None:
    subject = bounds(workers=4)
    for minute in range(1, 5):
        subject.note_parse(minute, 4 * 60.0 * minute)
    assert subject.fetched(0.0) == 4


def test_a_quick_parser_gets_no_more_than_the_cap() -> None:
    subject = bounds()
    subject.note_parse(10_000, 1.0)
    assert subject.fetched(5.0) == 64


def test_a_stalled_or_starved_stage_keeps_its_bound() -> None:
    subject = bounds(workers=4)
    subject.note_parse(40, 20.0)
    before = subject.fetched(0.0)
    for _ in range(1000):
        subject.note_parse(40, 20.0)  # nothing done, nobody busy
        subject.note_parse(40, 500.0)  # busy with one that does not end
    assert subject.fetched(0.0) == before


def test_off_means_the_cap_alone() -> None:
    bound = LatencyBound(0.0, workers=2, least=2, most=64)
    bound.pace.note(1, 100.0)
    assert bound.items() == 64


def test_a_lower_bound_holds_for_new_credits() -> None:
    bench = Bench(config(max_items=16, start=32, workers=32))
    bench.prove("a")
    bench.offer("a", 1)
    for _ in range(16):
        bench.finish(bench.take())
        bench.offer("a", 1)
    bench.offer("a", 40)
    leases = bench.take_all()
    assert len(leases) == 16
    bench.scheduler.set_bound(4)
    for lease in leases[:12]:
        bench.finish(lease)
        assert bench.lease() is None, "more credits are out than the bound allows"
    bench.finish(leases[12])
    assert len(bench.take_all()) == 1
    bench.scheduler.set_bound(16)
    assert len(bench.take_all()) == 12


def test_hosts_without_an_answer_leave_credits_of_a_low_bound_to_others() -> None:
    """With as many credits as workers it is a share of those that counts, below it of these."""
    bench = Bench(config(max_items=64, workers=32))
    bench.prove("a")
    bench.offer("a", 40)
    bench.scheduler.set_bound(8)
    held = bench.take_all()
    for number in range(20):
        bench.offer(f"n{number}", 1)
    for lease in held:
        bench.finish(lease)
    leases = bench.take_all()
    assert sum(lease.doubted for lease in leases) <= 6
    assert "a" in {lease.host.key for lease in leases}
    assert len(leases) == 8
