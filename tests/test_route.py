"""When the way through a proxy or gateway ends a crawl, and when it does not."""

from __future__ import annotations

import pytest

from syncrawl.engine.route import RouteWatch
from syncrawl.log import NullLog


def watching() -> tuple[RouteWatch, list[tuple[int, str]]]:
    """A watch, and what it ends the crawl with."""
    ends: list[tuple[int, str]] = []
    route = RouteWatch(
        resume_after=0.0,
        hold=lambda _: None,
        end_with=lambda code, why: ends.append((code, why)),
        log=NullLog(),
    )
    return route, ends


@pytest.mark.parametrize(
    ("outcome", "times"),
    [("gateway_unreached", 10), ("gateway_failed", 20), ("proxy_denied", 20), ("proxy", 15)],
)
def test_a_way_that_lets_nothing_through_ends_the_crawl(outcome: str, times: int) -> None:
    route, ends = watching()
    for _ in range(times - 1):
        route.note(outcome, "why", final=False)
    assert ends == []
    route.note(outcome, "why", final=False)
    ((code, why),) = ends
    assert code == 4
    assert why.startswith(f"{times} times in a row, why")
    assert ("retry-failed" in why) is (outcome == "gateway_failed"), "they have failed by then"


@pytest.mark.parametrize("outcome", ["gateway_unreached", "gateway_failed"])
def test_an_answer_of_a_target_starts_the_count_again(outcome: str) -> None:
    route, ends = watching()
    for _ in range(5):
        for _ in range(9):
            route.note(outcome, "why", final=False)
        route.note("5xx", "", final=False)
    assert ends == []


def test_a_slow_target_is_no_gateway_that_is_not_there() -> None:
    route, ends = watching()
    for _ in range(50):
        route.note("gateway_timeout", "headers: silent for 10 s", final=False)
        for _ in range(9):
            route.note("gateway_unreached", "connect: refused", final=False)
    assert ends == [], "a connection stood, whatever became of it"


@pytest.mark.parametrize("outcome", ["proxy", "proxy_denied"])
def test_what_a_proxy_says_of_targets_does_not_end_a_crawl_that_gets_through(outcome: str) -> None:
    route, ends = watching()
    route.note("2xx", "", final=False)
    for _ in range(100):
        route.note(outcome, "403", final=outcome == "proxy_denied")
    assert ends == []
