"""Scope: each reason, what `follow` means, and extension while other threads read."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from syncrawl import scope as scope_module
from syncrawl.config.model import ScopeConfig
from syncrawl.errors import ConfigError
from syncrawl.scope import REASONS, Scope, host_name, registrable_domain
from syncrawl.urls import Canonicalizer, Url

CANON = Canonicalizer(())


def url(text: str) -> Url:
    found = CANON.parse(text)
    assert found is not None
    return found


def scope(*seeds: str, **config: object) -> Scope:
    return Scope(ScopeConfig(**config), map(url, seeds))  # type: ignore[arg-type]


def refusals(subject: Scope, *texts: str) -> list[str | None]:
    return [subject.refuse(url(text), 1) for text in texts]


def test_follow_host_means_the_authority() -> None:
    subject = scope("http://example.com/", "https://other.example:8443/x")
    assert refusals(
        subject,
        "http://EXAMPLE.com.:80/a",
        "https://example.com/a",
        "https://other.example:8443/",
    ) == [None, None, None]
    assert (
        refusals(
            subject,
            "http://example.com:8080/",
            "http://www.example.com/",
            "http://example.com.evil.example/",
            "https://other.example/",
        )
        == ["host"] * 4
    )


def test_follow_domain_means_the_registrable_domain() -> None:
    subject = scope("http://www.example.co.uk:81/", "http://127.0.0.1:80/", follow="domain")
    assert refusals(
        subject,
        "http://example.co.uk/",
        "https://a.b.example.co.uk:8080/",
        "http://127.0.0.1:9000/",
    ) == [None, None, None]
    assert (
        refusals(subject, "http://other.co.uk/", "http://co.uk/", "http://1.127.0.0.1.nip.example/")
        == ["host"] * 3
    )


def test_follow_any() -> None:
    assert refusals(scope("http://a/", follow="any"), "http://b/", "https://c:1/") == [None, None]


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("www.example.com:8080", "example.com"),
        ("a.b.co.uk", "b.co.uk"),
        ("x.y.github.io", "y.github.io"),
        ("github.io", "github.io"),
        ("localhost:80", "localhost"),
        ("a.internal", "a.internal"),
        ("10.0.0.1:80", "10.0.0.1"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("www.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
    ],
)
def test_registrable_domain(host: str, domain: str) -> None:
    assert registrable_domain(host) == domain


@pytest.mark.parametrize(
    ("host", "name"),
    [("A.example:80", "a.example"), ("a", "a"), ("[::1]:80", "::1"), ("[::1]", "::1")],
)
def test_host_name(host: str, name: str) -> None:
    assert host_name(host) == name


def test_depth() -> None:
    limited = scope("http://h/", max_depth=2)
    assert [limited.refuse(url("http://h/a"), depth) for depth in (0, 2, 3)] == [
        None,
        None,
        "depth",
    ]
    assert scope("http://h/").refuse(url("http://h/a"), 10**6) is None
    assert scope("http://h/", max_depth=0).refuse(url("http://h/a"), 1) == "depth"


def test_length_is_of_what_is_requested() -> None:
    subject = scope("http://h/", max_url_bytes=20)
    assert refusals(subject, "http://h/" + "a" * 11, "http://h/" + "a" * 12) == [None, "too_long"]
    # Two characters of text, twelve bytes on the wire.
    assert refusals(subject, "http://h/éé") == ["too_long"]


def test_allow_and_deny_search_the_canonical_url() -> None:
    subject = scope("http://h/", allow=("/docs/", r"\?page="), deny=(r"\.pdf$", "(?i)/PRIVATE/"))
    assert refusals(
        subject,
        "http://h/docs/a",
        "http://h/x?page=2",
        "http://h/%64ocs/b",
        "http://h/x",
        "http://h/docs/a.pdf",
        "http://h/docs/private/",
    ) == [None, None, None, "allow", "deny", "deny"]


def test_deny_hosts() -> None:
    subject = scope(
        "http://h/",
        follow="any",
        deny_hosts=("*.Ads.example", "bücher.example", "10.*", "::1", "cdn?.example"),
    )
    denied = [
        "http://a.ads.example:81/",
        "http://x.y.ADS.example./",
        "http://bücher.example/",
        "http://10.1.2.3/",
        "http://[::1]:80/",
        "http://cdn1.example/",
    ]
    assert refusals(subject, *denied) == ["deny_hosts"] * len(denied)
    assert refusals(
        subject, "http://ads.example/", "http://cdn12.example/", "http://ads.example.com/"
    ) == [None, None, None]
    assert subject.denied_host("A.ads.example:8080")
    assert not subject.denied_host("h")
    assert not scope("http://h/").denied_host("")


def test_the_first_pattern_found_sets_the_priority() -> None:
    subject = scope(
        "http://h/", follow="any", priorities={r"/news/": 5, r"[.]pdf$": -5, r"^https?://h/": 1}
    )
    priorities = {
        "http://h/news/a.pdf": 5,
        "http://o/a.pdf": -5,
        # In the canonical URL, whatever the spelling.
        "http://o/n%65ws/": 5,
        "HTTP://H:80/x": 1,
        "http://o/": 0,
    }
    assert {text: subject.priority_of(url(text)) for text in priorities} == priorities
    assert scope("http://h/").priority_of(url("http://h/")) == 0


def test_a_bad_pattern_among_the_priorities() -> None:
    with pytest.raises(ConfigError) as caught:
        scope("http://h/", priorities={"fine": 1, "(": 2})
    assert (caught.value.key, caught.value.value) == ("scope.priorities", "(")


def test_deny_hosts_can_be_replaced() -> None:
    subject = scope("http://h/", follow="any", deny_hosts=("a.example",))
    urls = ["http://a.example/", "http://b.example/", "http://h/"]
    assert refusals(subject, *urls) == ["deny_hosts", None, None]
    subject.deny_hosts_changed(["b.*", "*.Ä.example"])
    # What was decided and remembered by the old globs is gone with them.
    assert refusals(subject, *urls) == [None, "deny_hosts", None]
    assert subject.denied_host("x.xn--4ca.example:81")
    assert not subject.denied_host("a.example")
    subject.extend([url("http://new/")])
    assert refusals(subject, *urls) == [None, "deny_hosts", None]
    subject.deny_hosts_changed([])
    assert refusals(subject, *urls) == [None, None, None]


def test_a_decision_made_before_deny_hosts_changed_does_not_outlive_it() -> None:
    subject = scope("http://h/", follow="any")
    one = url("http://bad/")
    before = subject._followed
    old_reason = subject._decide(one, before)
    subject.deny_hosts_changed(["bad"])
    # A parse thread that was on its way writes what it found by the old globs.
    before.decisions[one.origin] = old_reason
    assert subject.refuse(one, 1) == "deny_hosts"


@contextmanager
def readers(subject: Scope, urls: list[Url]) -> Iterator[None]:
    """Three threads ask `subject` about `urls` all the while; what they raise is raised here."""
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for one in urls:
                subject.refuse(one, 1)

    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(read) for _ in range(3)]
        try:
            yield
        finally:
            stop.set()
        for each in reading:
            each.result(timeout=30)


def test_threads_may_read_while_deny_hosts_change() -> None:
    subject = scope("http://h/", follow="any")
    urls = [url(f"http://h{number}/") for number in range(50)]
    with readers(subject, urls):
        for one in urls:
            subject.deny_hosts_changed([one.host])
            assert [subject.refuse(other, 1) for other in urls] == [
                "deny_hosts" if other is one else None for other in urls
            ]


def test_scheme() -> None:
    odd = Url("ftp://h/", "ftp://h/", "ftp://h", "h", "ftp://h")
    assert scope("http://h/", follow="any").refuse(odd, 0) == "scheme"


def test_cheapest_reason_is_given() -> None:
    subject = scope("http://h/", max_depth=0, max_url_bytes=15, deny=("x",), deny_hosts=("o",))
    other = url("http://o/x" + "x" * 20)
    assert subject.refuse(other, 1) == "depth"
    assert subject.refuse(other, 0) == "too_long"
    assert subject.refuse(url("http://o/x"), 0) == "host"
    assert set(REASONS) >= {"depth", "too_long", "host"}


@pytest.mark.parametrize("key", ["allow", "deny"])
@pytest.mark.parametrize("pattern", ["(", "[a-", "*", "(?P<a>x)(?P<a>y)", "a{99999999999}"])
def test_bad_pattern_names_key_value_and_remedy(key: str, pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scope("http://h/", **{key: ("fine", pattern)})
    assert caught.value.key == f"scope.{key}"
    assert caught.value.value == pattern
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("follow", "accepted", "refused"),
    [
        ("host", "http://new.example/", "http://www.new.example/"),
        ("domain", "http://www.new.example/", "http://third.example/"),
    ],
)
def test_extend_follows_a_seeds_redirect(follow: str, accepted: str, refused: str) -> None:
    subject = scope("http://h/", follow=follow)
    assert refusals(subject, accepted, refused) == ["host", "host"]
    subject.extend([url("http://new.example/landing")])
    assert refusals(subject, accepted, refused, "http://h/") == [None, "host", None]


def test_extend_keeps_other_rules() -> None:
    subject = scope("http://h/", deny_hosts=("new.example",))
    subject.extend([url("http://new.example/")])
    assert refusals(subject, "http://new.example/") == ["deny_hosts"]


def test_a_decision_made_before_an_extension_does_not_outlive_it() -> None:
    subject = scope("http://h/")
    before = subject._followed
    subject.extend([url("http://new.example/")])
    # A parse thread that took the old names writes its answer after the extension.
    before.decisions["http://new.example"] = "host"
    assert refusals(subject, "http://new.example/") == [None]


def test_threads_may_read_while_one_extends() -> None:
    subject = scope("http://h/")
    urls = [url(f"http://h{number}/") for number in range(200)]
    with readers(subject, urls):
        for one in urls:
            subject.extend([one])
            assert subject.refuse(one, 1) is None
    assert [subject.refuse(one, 1) for one in urls] == [None] * len(urls)


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_module, "_MAX_DECISIONS", 8)
    subject = scope("http://h1/", "http://h90/")
    for number in range(100):
        expected = None if number in (1, 90) else "host"
        assert subject.refuse(url(f"http://h{number}/"), 1) == expected
        assert len(subject._followed.decisions) <= 8
    assert subject.refuse(url("http://" + "a" * 400 + "/"), 1) == "host"
    assert all(len(origin) < 400 for origin in subject._followed.decisions)


def test_repr_tells_what_is_followed() -> None:
    assert repr(scope("http://b/", "http://a:81/")) == "<Scope following a:81, b>"
    assert repr(scope(follow="any")) == "<Scope following any host>"


def test_the_suffix_list_is_read_only_where_it_is_asked_for() -> None:
    code = """if True:
        import sys
        from syncrawl.config.model import ScopeConfig
        from syncrawl.scope import Scope
        from syncrawl.urls import Canonicalizer
        seed = Canonicalizer(()).parse("http://a.example/")
        Scope(ScopeConfig(), [seed]).refuse(seed, 0)
        assert "publicsuffixlist" not in sys.modules
        Scope(ScopeConfig(follow="domain"), [seed])
        assert "publicsuffixlist" in sys.modules
        assert "asyncio" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
