"""Whole crawls of loopback sites: what is fetched, what is kept, how they end and go on."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from syncrawl.cli.explain import explain
from syncrawl.clock import SystemClock
from syncrawl.engine.crawl import Crawl
from syncrawl.errors import StateLocked, StateMismatch, StoreDamaged
from syncrawl.testing.site import Site
from syncrawl.testing.site_host import Host, Reply
from tests.crawling import adds_up, crawl, links, paths, records, settings

FIELDS = [
    "url",
    "canonical_url",
    "final_url",
    "status",
    "depth",
    "referrer",
    "fetched_at",
    "elapsed",
    "content_type",
    "encoding",
    "length",
    "sha256",
    "title",
    "text_excerpt",
    "links",
]


def test_crawls_to_the_end_and_a_finished_state_makes_no_request(tmp_path: Path) -> None:
    pages = {"/": links("/a", "/b/", "/b", "/missing"), "/a": links("/#top"), "/b/": "b"}
    with Site(Host(pages=pages)) as site:
        config = settings(tmp_path, [site.hosts[0].url()])
        report = crawl(config)
        assert report.exit_code == 0
        assert report.status == "finished"
        assert sorted(paths(site)) == ["/", "/a", "/b/", "/missing"]
        site.forget()
        again = crawl(config)
        assert again.exit_code == 0
        assert site.hosts[0].log.exchanges == []
        assert again.data["pages"] == 3
        assert again.data["run"]["pages"] == 0
    kept = records(tmp_path)
    assert [list(record) for record in kept] == [FIELDS] * 3
    assert {record["url"].partition(":")[2][-3:] for record in kept}
    assert report.data["urls"] == {
        "seen": 4,
        "pending": 0,
        "deferred": 0,
        "leased": 0,
        "done": 3,
        "failed": 1,
        "dropped": 0,
    }
    assert report.data["outcomes"] == {"2xx": 3, "4xx": 1}
    assert (tmp_path / "state" / "report.json").exists()


def test_robots_are_asked_once_and_obeyed(tmp_path: Path) -> None:
    pages = {"/": links("/no/x", "/yes", "/no/y"), "/yes": links("/no/x")}
    with Site(Host(pages=pages, robots="User-agent: *\nDisallow: /no/")) as site:
        report = crawl(settings(tmp_path, [site.hosts[0].url()]))
        assert sorted(paths(site)) == ["/", "/yes"]
        assert site.hosts[0].log.robots == 1
    assert report.data["dropped"] == {"robots": 2}
    assert report.data["urls"]["dropped"] == 2
    assert adds_up(report)


class Tomorrow(SystemClock):
    """The machine's clock, 25 hours ahead."""

    wall = staticmethod(lambda: time.time() + 25 * 3600.0)


def test_robots_are_kept_across_runs_for_their_time(tmp_path: Path) -> None:
    pages = {"/": links("/no/x"), "/late": "x", "/later": "y"}
    with Site(Host(pages=pages, robots="User-agent: *\nDisallow: /no/")) as site:
        url = site.hosts[0].url
        crawl(settings(tmp_path, [url()]))
        crawl(settings(tmp_path, [url(), url("/late"), url("/no/y")]))
        assert paths(site) == ["/", "/late"]
        assert site.hosts[0].log.robots == 1
        crawl(settings(tmp_path, [url(), url("/later")]), clock=Tomorrow())
        assert site.hosts[0].log.robots == 2


def test_robots_that_fail_keep_a_host_closed_until_they_answer(tmp_path: Path) -> None:
    answers = [500, 503, Reply(b"User-agent: *\nDisallow: /no/", content_type="text/plain")]

    def pages(target: str) -> Reply | int | str:
        if target == "/robots.txt":
            return answers.pop(0) if answers else 500
        assert not answers, "a page was asked for before the rules were known"
        return links("/no/x") if target == "/" else "x"

    # A callable that serves /robots.txt itself needs a host whose robots is not set apart.
    lookup = _Everything(pages)
    with Site(Host(pages=lookup)) as site:
        crawl(settings(tmp_path, [site.hosts[0].url()]))
        assert paths(site) == ["/"]
        assert site.hosts[0].log.robots == 3


class _Everything(dict[str, object]):
    """A mapping that answers every target through a function."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self._answer = answer

    def __contains__(self, target: object) -> bool:
        return True

    def __getitem__(self, target: str) -> object:
        return self._answer(target)  # type: ignore[operator] # tests pass functions


def test_a_host_that_cannot_be_reached_fails_its_urls(tmp_path: Path) -> None:
    with Site(Host(pages={"/": "x"})) as site:
        alive = site.hosts[0].url()
        config = settings(
            tmp_path, [alive, "http://127.0.0.9:9/", "http://127.0.0.9:9/b"], retry={}
        )
        report = crawl(config)
    assert report.exit_code == 0
    assert report.data["urls"]["failed"] == 2
    assert report.data["outcomes"]["unreachable"] == 2
    assert report.data["pages"] == 1
    assert adds_up(report)


@pytest.mark.parametrize("limit", [1, 7, 20])
def test_max_pages_is_met_exactly_and_can_be_raised(tmp_path: Path, limit: int) -> None:
    pages = {"/": links(*(f"/p{n}" for n in range(30)))}
    pages |= {f"/p{n}": "x" for n in range(30) if n % 3}
    with Site(Host(pages=pages), Host(pages=pages)) as site:
        seeds = [host.url() for host in site.hosts]
        report = crawl(settings(tmp_path, seeds, crawl={"max_pages": limit}))
        assert report.exit_code == 0
        assert report.status == "limit"
        assert report.data["pages"] == limit
        assert len(records(tmp_path)) == limit
        answered = [one for host in site.hosts for one in host.log.exchanges if one.status == 200]
        assert len(answered) == limit
        assert adds_up(report)
        report = crawl(settings(tmp_path, seeds))
        assert report.status == "finished"
    assert len(records(tmp_path)) == len({record["url"] for record in records(tmp_path)}) == 42


def test_max_pages_per_host_defers_the_rest(tmp_path: Path) -> None:
    pages = {"/": links(*(f"/p{n}" for n in range(20)))} | {f"/p{n}": "x" for n in range(20)}
    with Site(Host(pages=pages), Host(pages=pages)) as site:
        seeds = [host.url() for host in site.hosts]
        report = crawl(settings(tmp_path, seeds, scope={"max_pages_per_host": 5}))
        assert report.status == "finished"
        assert [host["pages"] for host in report.data["hosts"].values()] == [5, 5]
        assert [len(paths(site, n)) for n in (0, 1)] == [5, 5]
        assert report.data["urls"]["deferred"] == 32
        assert adds_up(report)
        report = crawl(settings(tmp_path, seeds, scope={"max_pages_per_host": 100}))
        assert report.data["pages"] == 42
    assert report.data["urls"]["deferred"] == 0


def test_stop_finishes_what_is_in_flight_and_a_later_run_the_rest(tmp_path: Path) -> None:
    slow = Reply(b"slow", delay=0.2)
    pages = {"/": links(*(f"/p{n}" for n in range(20)))} | {f"/p{n}": slow for n in range(20)}
    with Site(Host(pages=pages)) as site:
        config = settings(tmp_path, [site.hosts[0].url()])
        running = Crawl(config)
        stopper = threading.Thread(
            target=lambda: (site.wait_until(lambda: len(paths(site)) >= 4), running.stop("enough"))
        )
        stopper.start()
        report = running.run()
        stopper.join()
        assert (report.status, report.exit_code) == ("stopped", 3)
        assert report.data["reason"] == "enough"
        asked = paths(site)
        assert len(records(tmp_path)) == len(asked) < 21
        assert report.data["urls"]["leased"] == 0
        assert adds_up(report)
        site.forget()
        report = crawl(config)
        assert report.data["pages"] == 21
        assert not set(asked) & set(paths(site))


def test_max_seconds_ends_a_run_with_success(tmp_path: Path) -> None:
    pages = {"/": links("/slow"), "/slow": Reply(b"x", delay=0.8)}
    with Site(Host(pages=pages)) as site:
        report = crawl(settings(tmp_path, [site.hosts[0].url()], crawl={"max_seconds": 0.4}))
    assert (report.status, report.exit_code) == ("limit", 0)
    assert report.data["pages"] == 2


def test_a_tighter_scope_applies_on_resume(tmp_path: Path) -> None:
    pages = {"/": links("/keep/a", "/drop/a", "/drop/b")}
    pages |= {"/keep/a": "x", "/drop/a": "x", "/drop/b": "x"}
    with Site(Host(pages=pages)) as site:
        seeds = [site.hosts[0].url()]
        crawl(settings(tmp_path, seeds, crawl={"max_pages": 1}))
        report = crawl(settings(tmp_path, seeds, scope={"deny": ["/drop/"]}))
        assert sorted(paths(site)) == ["/", "/keep/a"]
    assert report.data["dropped"] == {"deny": 2}
    assert adds_up(report)


def test_new_seeds_are_added_on_resume(tmp_path: Path) -> None:
    with Site(Host(pages={"/": "x", "/late": "y"})) as site:
        url = site.hosts[0].url
        crawl(settings(tmp_path, [url()]))
        crawl(settings(tmp_path, [url(), url("/late")]))
        assert paths(site) == ["/", "/late"]


def test_failures_are_tried_again_within_their_attempts(tmp_path: Path) -> None:
    failures = {"/flaky": 1, "/broken": 99}

    def answer(target: str) -> object:
        if failures.get(target, 0) > 0:
            failures[target] -= 1
            return 500
        return links("/flaky", "/broken") if target == "/" else "x"

    with Site(Host(pages=answer)) as site:  # type: ignore[arg-type] # any answer will do
        report = crawl(settings(tmp_path, [site.hosts[0].url()]))
        assert paths(site).count("/flaky") == 2
        # Two retries is what one host is always granted; /flaky has used one of them.
        assert paths(site).count("/broken") == 2
    assert report.data["retries"] == 2
    assert report.data["urls"]["failed"] == 1
    assert adds_up(report)


def test_retry_after_pauses_the_host_and_costs_no_attempt(tmp_path: Path) -> None:
    refusals = [Reply(b"", 429, headers=(("Retry-After", "1"),))]

    def answer(target: str) -> object:
        if target == "/a" and refusals:
            return refusals.pop()
        return links("/a", "/b") if target == "/" else "x"

    with Site(Host(pages=answer)) as site:  # type: ignore[arg-type] # any answer will do
        config = settings(
            tmp_path,
            [site.hosts[0].url()],
            host={"start": 1, "ceiling": 1},
            retry={"max_attempts": 1},
        )
        report = crawl(config)
        log = [one for one in site.hosts[0].log.exchanges if one.target != "/robots.txt"]
        refused = next(n for n, one in enumerate(log) if one.status == 429)
        assert log[refused + 1].started - log[refused].ended >= 1.0
    assert report.data["urls"]["done"] == 3
    assert report.data["outcomes"]["throttled"] == 1


def test_crawl_delay_spaces_the_starts(tmp_path: Path) -> None:
    pages = {"/": links(*(f"/p{n}" for n in range(12)))} | {f"/p{n}": "x" for n in range(12)}
    with Site(Host(pages=pages, robots="User-agent: *\nCrawl-delay: 0.1")) as site:
        crawl(settings(tmp_path, [site.hosts[0].url()]))
        starts = [one.started for one in site.hosts[0].log.exchanges if one.target != "/robots.txt"]
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert len(gaps) == 12
    assert sum(gaps) >= 12 * 0.1
    assert min(gaps) >= 0.095


def test_redirects(tmp_path: Path) -> None:
    pages = {
        "/": links("/slash", "/seen", "/new", "/loop", "/out", "/no", "/chain", "/none"),
        "/slash": Reply.redirect("/slash/"),
        "/slash/": "followed",
        "/seen": Reply.redirect("/"),
        "/new": Reply.redirect("/target"),
        "/target": "new",
        "/loop": Reply.redirect("/loop2"),
        "/loop2": Reply.redirect("/loop"),
        "/out": Reply.redirect("http://127.0.0.99/"),
        "/no": Reply.redirect("/private/x"),
        "/chain": Reply.redirect("/c1"),
        "/none": Reply(status=302),
    }
    pages |= {f"/c{n}": Reply.redirect(f"/c{n + 1}") for n in range(1, 20)}
    with Site(Host(pages=pages, robots="User-agent: *\nDisallow: /private/")) as site:
        report = crawl(settings(tmp_path, [site.hosts[0].url()]))
        asked = paths(site)
        assert "/private/x" not in asked
        assert asked.count("/") == 1
        assert asked.count("/target") == 1
        final = {r["url"].rpartition("/")[2]: r["final_url"] for r in records(tmp_path)}
        assert final["slash"] == site.hosts[0].url("/slash/")
        assert final["new"] == site.hosts[0].url("/target")
    outcomes = report.data["outcomes"]
    assert outcomes["duplicate"] == 1
    assert outcomes["redirect_loop"] == 1
    assert outcomes["redirect_scope"] == 1
    assert outcomes["redirect_limit"] == 1
    assert outcomes["robots"] == 1
    assert outcomes["3xx"] == 1
    assert report.data["dropped"] == {"redirect_host": 1, "robots": 1}
    assert report.data["pages"] == 3
    assert adds_up(report)


def test_a_redirect_to_another_host_goes_through_its_gate_and_robots(tmp_path: Path) -> None:
    there = Host(pages={"/x": "there"}, robots="User-agent: *\nDisallow: /no", name="there.test")
    with Site(Host(pages={}, name="here.test"), there) as site:
        here, other = site.hosts
        pages = here.host.pages
        assert isinstance(pages, dict)
        pages |= {
            "/": links("/go", "/forbidden"),
            "/go": Reply.redirect(other.url("/x")),
            "/forbidden": Reply.redirect(other.url("/no/x")),
        }
        config = settings(
            tmp_path,
            [here.url()],
            scope={"follow": "any"},
            fetch={"resolve": site.resolve, "private_addresses": "allow"},
        )
        report = crawl(config)
        assert other.log.robots == 1
        assert paths(site, 1) == ["/x"]
    kept = {record["url"]: record for record in records(tmp_path)}
    assert kept[here.url("/go")]["final_url"] == other.url("/x")
    assert report.data["dropped"] == {"robots": 1}
    assert adds_up(report)


def test_a_seeds_redirect_extends_what_is_followed_also_after_a_restart(tmp_path: Path) -> None:
    pages = {"/": links("/a", "/b"), "/a": "x", "/b": "x"}
    with Site(Host(pages={}, name="old.test"), Host(pages=pages, name="new.test")) as site:
        old, new = site.hosts
        assert isinstance(old.host.pages, dict)
        old.host.pages["/"] = Reply.redirect(new.url())
        fetch = {"resolve": site.resolve, "private_addresses": "allow"}
        crawl(settings(tmp_path, [old.url()], fetch=fetch, crawl={"max_pages": 2}))
        config = settings(tmp_path, [old.url()], fetch=fetch)
        assert explain(new.url("/a"), config).scope == "accepted"
        report = crawl(config)
        assert sorted(paths(site, 1)) == ["/", "/a", "/b"]
    assert report.data["urls"]["dropped"] == 0


def test_max_depth_counts_links_from_the_seed(tmp_path: Path) -> None:
    pages = {"/": links("/1"), "/1": links("/2"), "/2": links("/3"), "/3": "x"}
    with Site(Host(pages=pages)) as site:
        report = crawl(settings(tmp_path, [site.hosts[0].url()], scope={"max_depth": 2}))
        assert paths(site) == ["/", "/1", "/2"]
    assert report.data["refused"] == {"depth": 1}


def test_a_known_url_met_on_a_shorter_way_takes_that_depth(tmp_path: Path) -> None:
    # /far is found at depth 3 first; the slow seed then links to it directly.
    pages = {
        "/a": links("/b"),
        "/b": links("/1", "/2", "/3", "/4", "/far"),
        "/slow": Reply(links("/far").encode(), delay=0.3),
        "/far": Reply(links("/beyond").encode(), delay=0.0),
        "/beyond": "x",
    }
    with Site(Host(pages=pages)) as site:
        url = site.hosts[0].url
        seeds = [url("/a"), url("/slow")]
        config = settings(
            tmp_path, seeds, scope={"max_depth": 2}, host={"start": 2, "ceiling": 2, "rate": 8}
        )
        crawl(config)
        assert "/beyond" in paths(site)


def test_several_stores_hold_the_same_records(tmp_path: Path) -> None:
    stores = [
        {"type": "jsonl", "path": "out.jsonl"},
        {"type": "csv", "path": "out.csv", "fields": ["url", "status"]},
        {"type": "sqlite", "path": "out.db"},
    ]
    with Site(Host(pages={"/": links("/a"), "/a": "x"})) as site:
        crawl(settings(tmp_path, [site.hosts[0].url()], stores=stores))
    import sqlite3

    urls = sorted(record["url"] for record in records(tmp_path, "out.jsonl"))
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert sorted(line.partition(",")[0] for line in lines[1:]) == urls
    database = sqlite3.connect(tmp_path / "out.db")
    try:
        rows = database.execute("SELECT url FROM records ORDER BY url").fetchall()
    finally:
        database.close()
    assert [row[0] for row in rows] == urls


def test_a_shortened_output_stops_the_resume_and_stays_as_it_is(tmp_path: Path) -> None:
    with Site(Host(pages={"/": links("/a"), "/a": "x"})) as site:
        config = settings(tmp_path, [site.hosts[0].url()], crawl={"max_pages": 1})
        crawl(config)
        output = tmp_path / "pages.jsonl"
        output.write_bytes(output.read_bytes()[:-10])
        before = output.read_bytes()
        with pytest.raises(StoreDamaged):
            crawl(settings(tmp_path, [site.hosts[0].url()]))
        assert output.read_bytes() == before
        output.unlink()
        with pytest.raises(StoreDamaged):
            crawl(settings(tmp_path, [site.hosts[0].url()]))
        assert not output.exists()


def test_the_state_of_another_crawl_is_refused(tmp_path: Path) -> None:
    with Site(Host(pages={"/": "x"}), Host(pages={"/": "y"})) as site:
        crawl(settings(tmp_path, [site.hosts[0].url()]))
        other = settings(
            tmp_path, [site.hosts[1].url()], stores=[{"type": "jsonl", "path": "other.jsonl"}]
        )
        with pytest.raises(StateMismatch, match="another crawl"):
            crawl(other)
    assert not (tmp_path / "other.jsonl").exists()


def test_a_running_crawl_locks_its_state(tmp_path: Path) -> None:
    with Site(Host(pages={"/": Reply(b"x", delay=float("inf"))})) as site:
        config = settings(tmp_path, [site.hosts[0].url()])
        first = Crawl(config)
        thread = threading.Thread(target=first.run)
        thread.start()
        try:
            site.wait_until(lambda: paths(site) == ["/"])
            with pytest.raises(StateLocked):
                crawl(config)
        finally:
            site.hosts[0].release()
            thread.join()
    assert len(records(tmp_path)) == 1


def test_two_crawls_in_one_process_do_not_meet(tmp_path: Path) -> None:
    pages = {"/": links(*(f"/p{n}" for n in range(40)))} | {f"/p{n}": "x" for n in range(40)}
    folders = [tmp_path / "one", tmp_path / "two"]
    with Site(Host(pages=pages), Host(pages=pages)) as site:
        threads = []
        for folder, host in zip(folders, site.hosts, strict=True):
            folder.mkdir()
            threads.append(threading.Thread(target=crawl, args=[settings(folder, [host.url()])]))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, folder in enumerate(folders):
            assert len(records(folder)) == 41
            assert len(paths(site, number)) == 41


def test_a_parser_that_raises_costs_that_page_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from syncrawl.parse.html import PageParser

    parse = PageParser.parse

    def failing(self: PageParser, page: object) -> object:
        if page.url.endswith("/bad"):  # type: ignore[attr-defined] # a Page
            raise RuntimeError("no")
        return parse(self, page)  # type: ignore[arg-type] # a Page

    monkeypatch.setattr(PageParser, "parse", failing)
    with Site(Host(pages={"/": links("/bad", "/good"), "/bad": "x", "/good": "y"})) as site:
        report = crawl(settings(tmp_path, [site.hosts[0].url()]))
    assert report.data["outcomes"]["parse_error"] == 1
    assert len(records(tmp_path)) == 2
    assert report.data["urls"]["failed"] == 1


def test_a_stuck_output_does_not_outlast_a_stop(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pages = {"/": links(*(f"/p{n}" for n in range(900)))}
    pages |= {f"/p{n}": "x" * 900 for n in range(900)}
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Site(Host(pages=pages)) as site:
        config = settings(
            tmp_path,
            [site.hosts[0].url()],
            crawl={"stop_grace": 0.1, "max_seconds": 2},
            stores=[{"type": "jsonl", "path": "pipe"}],
        )
        running = Crawl(config)
        report = running.run()
        assert (report.status, report.exit_code) == ("limit", 0)
        assert "commit_0" in running.hung()
        # With its reader gone the write fails, and the thread that was left behind ends.
        os.close(reader)
        for thread in threading.enumerate():
            if thread.name.startswith("commit"):
                thread.join(10.0)
                assert not thread.is_alive()


def test_hosts_that_hang_after_their_first_answer_leave_workers_to_the_others(
    tmp_path: Path,
) -> None:
    names = [f"/p{n}" for n in range(200)]
    hanging = {"/": links(*names)} | dict.fromkeys(names, Reply(b"", delay=float("inf")))
    good = {"/": links(*names)} | dict.fromkeys(names, "x")
    with Site(Host(pages=hanging), Host(pages=hanging), Host(pages=good)) as site:
        config = settings(
            tmp_path,
            [host.url() for host in site.hosts],
            # They hang for as long as this run lasts.
            crawl={"max_seconds": 20, "stop_grace": 0.1},
            fetch={"workers": 8, "total_timeout": 60, "read_timeout": 60},
        )
        running = Crawl(config)
        done = threading.Thread(
            target=lambda: (
                site.wait_until(lambda: len(paths(site, 2)) == 201, timeout=15.0),
                running.stop("the good host is done"),
            )
        )
        done.start()
        report = running.run()
        done.join()
        for host in site.hosts:
            host.release()
    assert report.data["reason"] == "the good host is done"


def test_seconds_are_over_the_life_of_the_state(tmp_path: Path) -> None:
    slow = Reply(b"x", delay=0.3)
    with Site(Host(pages={"/": links("/a", "/b"), "/a": slow, "/b": slow})) as site:
        seeds = [site.hosts[0].url()]
        first = crawl(settings(tmp_path, seeds, crawl={"max_pages": 2}, host={"ceiling": 1}))
        second = crawl(settings(tmp_path, seeds))
    assert first.data["seconds"] >= 0.3
    assert second.data["seconds"] >= 0.3 + second.data["run"]["seconds"]


def test_seed_files_are_read_and_bad_lines_counted(tmp_path: Path) -> None:
    with Site(Host(pages={f"/s{n}": "x" for n in range(1200)})) as site:
        url = site.hosts[0].url
        lines = ["# seeds", "", "not a url", *(url(f"/s{n}") for n in range(1200))]
        (tmp_path / "seeds.txt").write_text("\n".join(lines))
        report = crawl(settings(tmp_path, [], crawl={"seed_files": ["seeds.txt"], "seeds": []}))
    assert report.data["pages"] == 1200
    assert report.data["refused"] == {"invalid": 1}


def test_private_addresses_are_reached_only_where_a_seed_names_them(tmp_path: Path) -> None:
    with Site(Host(pages={}), Host(pages={"/": "secret"})) as site:
        here, private = site.hosts
        assert isinstance(here.host.pages, dict)
        here.host.pages["/"] = links(private.url(), "/r")
        here.host.pages["/r"] = Reply.redirect(private.url("/x"))
        report = crawl(settings(tmp_path, [here.url()], scope={"follow": "any"}))
        assert private.log.exchanges == []
    assert report.exit_code == 0
    assert report.data["pages"] == 1
    assert report.data["outcomes"]["address"] == 2


def test_no_thread_is_left_behind_by_a_stop_condition(tmp_path: Path) -> None:
    """A library user's program must be able to exit after a run that a store ended."""
    names = [f"/p{n}" for n in range(300)]
    pages = {"/": links(*names)} | dict.fromkeys(names, "x" * 500)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Site(Host(pages=pages)) as site:
        config = settings(
            tmp_path,
            [site.hosts[0].url()],
            queues={"max_items": 8},
            stores=[{"type": "jsonl", "path": "pipe"}],
        )
        running = Crawl(config)
        closing = threading.Thread(
            target=lambda: (site.wait_until(lambda: len(paths(site)) > 20), os.close(reader))
        )
        closing.start()
        report = running.run()
        closing.join()
    assert (report.status, report.exit_code) == ("condition", 4)
    assert running.hung() == []
    late = [one for one in threading.enumerate() if one.name.startswith(("fetch", "parse"))]
    for thread in late:
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_robots_txt_that_leads_to_a_denied_host_is_not_asked_for_there(tmp_path: Path) -> None:
    def pages(target: str) -> Reply | str:
        if target == "/robots.txt":
            return Reply.redirect(site.hosts[1].url("/robots.txt"))
        return "x"

    with Site(Host(pages=pages), Host(pages={"/": "y"})) as site:
        config = settings(
            tmp_path,
            [site.hosts[0].url()],
            scope={"deny_hosts": [site.hosts[1].address]},
            fetch={"private_addresses": "allow"},
        )
        report = crawl(config)
        assert len(site.hosts[1].log) == 0
    assert report.data["pages"] == 1, "as after too many redirects (RFC 9309, section 2.3.1.2)"
