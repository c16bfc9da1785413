"""Nothing that a stranger wrote makes a crawl reach into the network it runs in.

The "public" internet is a loopback server behind public addresses: connections to those are
diverted to it, every other connection is attempted as it stands, and noted. The private
listeners count connections, not requests.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from syncrawl.cli import main
from syncrawl.config.model import Config
from syncrawl.fetch import connect
from syncrawl.fetch.resolve import Address, is_private
from syncrawl.observe.report import Report
from tests.crawling import adds_up, crawl, links, settings
from tests.servers import CLOSE, ScriptServer, ok

PUBLIC = "93.184.216.34"
PUBLIC_6 = "2606:2800:220:1::1"

clients = pytest.mark.parametrize("client", ["urllib3", "requests"])

# Hosts as a hostile page may write them. {} is the private listeners' port.
SPELLINGS = [
    "127.0.0.1:{}", "127.0.0.2:{}", "127.1:{}", "127.0.1:{}", "2130706433:{}", "0x7f000001:{}",
    "0x7f.1:{}", "0177.0.0.1:{}", "017700000001:{}", "0X7F.0x0.0.01:{}", "127.0.0.1.:{}",
    "0.0.0.0:{}", "0:{}", "localhost:{}", "LOCALHOST.:{}", "a.localhost:{}", "[::1]:{}",
    "[0:0:0:0:0:0:0:1]:{}", "[::]:{}", "[::ffff:127.0.0.1]:{}", "[::ffff:7f00:2]:{}",
    "[::127.0.0.1]:{}", "[::ffff:0:127.0.0.1]:{}", "[64:ff9b::127.0.0.1]:{}",
    "[64:ff9b:1::7f00:1]:{}", "[2002:7f00:1::1]:{}", "[2001:0:53aa:64c:0:fbff:80ff:fffe]:{}",
    "[fe80::1]:{}", "[fc00::1]:{}", "[fd00:ec2::254]:{}", "[fec0::1]:{}", "[ff02::1]:{}",
    "169.254.169.254:{}", "100.64.0.1:{}", "100.100.100.200:{}", "10.0.0.1:{}", "172.16.0.1:{}",
    "192.168.1.1:{}", "192.0.0.192:{}", "168.63.129.16:{}", "198.18.0.1:{}", "224.0.0.1:{}",
    "255.255.255.255:{}", "public.test@127.0.0.1:{}", "public.test:80@127.0.0.1:{}",
    "127.0.0.1:{}\\@public.test", "１２７.０.０.１:{}", "127。0。0。1:{}", "ⓛocalhost:{}",
    "%31%32%37.0.0.1:{}", "127%2e0.0.1:{}", "127.0&#9;.0.1:{}", "127.0&#10;.0.1:{}",
    "inside.test:{}", "inside6.test:{}", "mapped.test:{}", "İnside.test:{}",
]  # fmt: skip

NAMES = {
    "public.test": [PUBLIC],
    "inside.test": ["127.0.0.1"],
    "inside6.test": ["::1"],
    "mapped.test": ["::ffff:127.0.0.1", "fd00::1"],
    "both.test": ["127.0.0.1", PUBLIC, "::1"],
}


class Internet:
    """What a crawl under test sees: names, the public server, and every address it dialled."""

    def __init__(self, server: ScriptServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, Sequence[str] | Callable[[], Sequence[str]]] = dict(NAMES)
        self.dialled: list[str] = []
        self._server = server
        self._really = socket.getaddrinfo
        self._connected = connect._connected
        monkeypatch.setattr(socket, "getaddrinfo", self._getaddrinfo)
        monkeypatch.setattr(connect, "_connected", self._connect)

    def _getaddrinfo(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        found = self.names.get(name)
        if found is None:
            if name.endswith(".test"):
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return self._really(host, port, *args, **kwargs)
        texts = found() if callable(found) else found
        return [
            (socket.AF_INET6 if ":" in text else socket.AF_INET, 1, 6, "", (text, 0))
            for text in texts
        ]

    def _connect(self, address: Address, port: int, seconds: float) -> Any:
        self.dialled.append(address.text)
        if address.text in (PUBLIC, PUBLIC_6):
            home = Address(socket.AF_INET, "127.0.0.1")
            return self._connected(home, self._server.port, seconds)
        return self._connected(address, port, seconds)

    @property
    def private(self) -> list[str]:
        """The addresses dialled that lead into the network we run in."""
        return [text for text in self.dialled if is_private(text)]


class Listeners:
    """The private network: one port on two loopback addresses, and on ::1 where there is one."""

    def __init__(self) -> None:
        first = socket.create_server(("127.0.0.1", 0))
        self.port: int = first.getsockname()[1]
        self._sockets = [first, socket.create_server(("127.0.0.2", self.port))]
        try:
            self._sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        except OSError:
            pass  # a machine without IPv6: what is dialled there is noted all the same

    def accepted(self) -> int:
        """Connections that the kernel has taken for us, asked for anything or not."""
        found = 0
        for sock in self._sockets:
            sock.setblocking(False)
            try:
                while True:
                    sock.accept()[0].close()
                    found += 1
            except BlockingIOError:
                continue
        return found

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@contextmanager
def world(
    monkeypatch: pytest.MonkeyPatch, handler: Callable[[str, int], Sequence[Any]]
) -> Iterator[tuple[Internet, Listeners]]:
    """The public server answers `handler(target, private port)`."""
    private = Listeners()

    def script(_: ScriptServer, target: str) -> Sequence[Any]:
        return handler(target, private.port)

    try:
        with ScriptServer(handler=script) as server:
            yield Internet(server, monkeypatch), private
    finally:
        private.close()


def run(folder: Path, client: str = "urllib3", **changes: Any) -> Report:
    return crawl(config(folder, client, **changes))


def config(folder: Path, client: str = "urllib3", **changes: Any) -> Config:
    seeds = changes.pop("seeds", ["http://public.test/"])
    fetch = {"client": client, "workers": 8, "verify": False, **changes.pop("fetch", {})}
    tables = {"scope": {"follow": "any"}, "fetch": fetch, **changes}
    return settings(folder, seeds, **tables)


def page(body: str, *fields: str) -> list[bytes]:
    return [ok(body.encode(), "Content-Type: text/html; charset=utf-8", *fields)]


def missing() -> list[bytes]:
    return [ok(b"", status="404 Not Found")]


def moved(status: int, location: str) -> list[bytes]:
    where = location.encode("utf-8").decode("latin-1")
    return [ok(b"", f"Location: {where}", status=f"{status} Moved")]


def outcomes(report: Report) -> Mapping[str, int]:
    found: Mapping[str, int] = report.data["outcomes"]
    return found


def unreached(internet: Internet, private: Listeners) -> None:
    assert internet.private == []
    assert private.accepted() == 0


@clients
@pytest.mark.parametrize("obey", [True, False])
def test_no_link_reaches_a_private_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, obey: bool
) -> None:
    def handler(target: str, port: int) -> list[bytes]:
        if target != "/":
            return missing()
        body = links(*(f"http://{host.format(port)}/secret" for host in SPELLINGS))
        return page(body + f'<iframe src="//127.0.0.1:{port}/frame"></iframe>')

    with world(monkeypatch, handler) as (internet, private):
        report = run(tmp_path, client, robots={"obey": obey})
        unreached(internet, private)
    assert report.exit_code == 0
    assert adds_up(report)
    assert report.data["urls"]["failed"] > 30, "the links were found, and every one refused"


@clients
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_reaches_a_private_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, status: int
) -> None:
    hosts = [host for host in SPELLINGS if "&#" not in host]

    def handler(target: str, port: int) -> list[bytes]:
        if target == "/":
            return page(links(*(f"/{number}" for number in range(len(hosts)))))
        if target == "/robots.txt":
            return missing()
        return moved(status, f"http://{hosts[int(target[1:])].format(port)}/secret")

    with world(monkeypatch, handler) as (internet, private):
        report = run(tmp_path, client, robots={"obey": False})
        unreached(internet, private)
    assert report.exit_code == 0
    assert adds_up(report)


@clients
def test_no_other_way_of_naming_a_page_reaches_a_private_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    def handler(target: str, port: int) -> list[bytes]:
        inside = f"127.0.0.1:{port}"
        return {
            "/": page(links("/base", "/refresh", "/field", "/canonical")),
            "/base": page(f'<base href="http://{inside}/"><a href="secret">x</a>'),
            "/refresh": page(f'<meta http-equiv="refresh" content="0; url=http://{inside}/r">'),
            "/field": page("<title>t</title>", f"Refresh: 0; url=http://{inside}/f"),
            "/canonical": page(
                f'<link rel="canonical" href="http://{inside}/c">',
                f"Link: <http://{inside}/n>; rel=next",
            ),
        }.get(target) or missing()

    with world(monkeypatch, handler) as (internet, private):
        report = run(tmp_path, client)
        unreached(internet, private)
    assert outcomes(report)["2xx"] == 5


@clients
@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "inside.test:{}", "[::1]:{}"])
def test_a_robots_txt_that_redirects_inside_costs_its_own_host_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, host: str
) -> None:
    def handler(target: str, port: int) -> list[bytes]:
        if target == "/robots.txt":
            return moved(302, f"http://{host.format(port)}/robots.txt")
        return page("<title>t</title>")

    with world(monkeypatch, handler) as (internet, private):
        report = run(tmp_path, client)
        unreached(internet, private)
    assert report.data["urls"]["failed"] == 1
    assert report.data["urls"]["pending"] == 0


@clients
def test_a_name_with_both_kinds_of_address_leads_to_the_public_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    def handler(target: str, _: int) -> list[bytes]:
        return page(links("http://both.test/in")) if target in ("/", "/in") else missing()

    with world(monkeypatch, handler) as (internet, private):
        report = run(tmp_path, client)
        unreached(internet, private)
    assert outcomes(report)["2xx"] == 2


@clients
@pytest.mark.parametrize("keep", [True, False])
def test_an_answer_of_the_dns_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, keep: bool
) -> None:
    """Public when robots.txt is asked for, private from then on; kept-alive or dialled anew."""
    asked: list[str] = []

    def rebound() -> Sequence[str]:
        asked.append("rebound.test")
        return [PUBLIC] if len(asked) == 1 else ["127.0.0.1"]

    def handler(target: str, port: int) -> list[Any]:
        if target == "/":
            return page(links(*(f"http://rebound.test:{port}/{n}" for n in range(4))))
        return [*missing(), *([] if keep else [CLOSE])]

    with world(monkeypatch, handler) as (internet, private):
        internet.names["rebound.test"] = rebound
        report = run(tmp_path, client, fetch={"dns_ttl": 0})
        unreached(internet, private)
    assert adds_up(report)
    assert report.data["urls"]["failed"] == 4
    if not keep:
        assert len(asked) > 1
        assert report.data["outcomes"]["address"] >= 1


@clients
def test_hosts_that_share_a_machine_are_looked_up_and_never_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    def handler(target: str, port: int) -> list[bytes]:
        if target != "/":
            return missing()
        inside = ("127.0.0.1", "127.1", "localhost", "inside.test", "[::1]", "inside6.test")
        return page(links(*(f"http://{host}:{port}/" for host in inside)))

    with world(monkeypatch, handler) as (internet, private):
        report = run(tmp_path, client, host={"key": "address"})
        unreached(internet, private)
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("policy", "seed", "reached"),
    [
        ("seeds", "127.0.0.2", {"127.0.0.2"}),
        ("seeds", "localhost", {"127.0.0.1"}),
        ("allow", "127.0.0.2", {"127.0.0.1", "127.0.0.2"}),
        ("deny", "127.0.0.2", set()),
    ],
)
def test_a_seed_opens_its_own_host_and_port_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, seed: str, reached: set[str]
) -> None:
    body = [""]
    with (
        world(monkeypatch, lambda *_: missing()) as (internet, _),
        ScriptServer(handler=lambda *_: page(body[0])) as inside,
        ScriptServer() as neighbour,
    ):
        internet.names["localhost"] = ["127.0.0.1"]
        # The servers listen on one address: what goes to another arrives there too.
        monkeypatch.setattr(connect, "_connected", _diverted(internet))
        hosts = ["127.0.0.1", "127.0.0.2"]
        body[0] = links(
            *(f"http://{host}:{inside.port}/x" for host in hosts),
            f"http://{seed}:{neighbour.port}/x",
            f"http://{seed}.:{inside.port}/x",
        )
        run(
            tmp_path,
            seeds=[f"http://{seed}:{inside.port}/"],
            fetch={"private_addresses": policy},
            robots={"obey": False},
        )
        assert set(internet.dialled) == reached
        assert neighbour.connections == (1 if policy == "allow" else 0)


def _diverted(internet: Internet) -> Callable[..., Any]:
    def connected(address: Address, asked: int, seconds: float) -> Any:
        internet.dialled.append(address.text)
        return internet._connected(Address(socket.AF_INET, "127.0.0.1"), asked, seconds)

    return connected


@clients
def test_what_is_pending_falls_under_the_policy_of_the_run_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """A private URL left pending by a run that might have asked for it, then no longer may."""

    def handler(target: str, port: int) -> list[bytes]:
        if target == "/robots.txt":
            return missing()
        return page(links(*(f"http://127.0.0.1:{port}/{number}" for number in range(5))))

    with world(monkeypatch, handler) as (internet, private):
        first = run(
            tmp_path,
            client,
            crawl={"max_pages": 1},
            fetch={"private_addresses": "allow"},
            robots={"obey": False},
        )
        assert first.data["urls"]["pending"] + first.data["urls"]["deferred"] == 5
        private.accepted()
        internet.dialled.clear()
        second = run(tmp_path, client, robots={"obey": False})
        unreached(internet, private)
    assert second.data["urls"]["failed"] == 5
    assert outcomes(second)["address"] == 5


@clients
@pytest.mark.parametrize("how", ["configured", "environment"])
def test_a_proxy_is_not_asked_for_private_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, how: str
) -> None:
    """Behind a proxy no name is looked up here; what is an address as it stands is refused."""
    names = ("inside", "public.test@", "%31%32%37", "mapped.test", "İnside")
    hosts = [host for host in SPELLINGS if not host.startswith(names)]

    def handler(target: str, port: int) -> list[bytes]:
        if target == "http://public.test/":
            return page(
                links(
                    *(
                        f"{scheme}://{host.format(port)}/"
                        for host in hosts
                        for scheme in ("http", "https")
                    )
                )
            )
        return missing()

    with world(monkeypatch, handler) as (internet, private):
        server = internet._server
        proxy = f"http://127.0.0.1:{server.port}"
        fetch = {"proxy": proxy} if how == "configured" else {}
        if how == "environment":
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, proxy)
            monkeypatch.setenv("no_proxy", "")
        report = run(tmp_path, client, fetch=fetch, robots={"obey": False})
        assert private.accepted() == 0
    asked = [target for target in server.targets if "public.test" not in target]
    assert asked == []
    assert report.exit_code == 0
    assert outcomes(report)["address"] > 10


def test_a_proxy_is_asked_for_a_private_address_that_a_seed_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(monkeypatch, lambda *_: page("<title>t</title>")) as (internet, _):
        proxy = f"http://127.0.0.1:{internet._server.port}"
        report = run(
            tmp_path,
            seeds=["http://127.0.0.9:81/"],
            fetch={"proxy": proxy},
            robots={"obey": False},
        )
        assert internet._server.targets == ["http://127.0.0.9:81/"]
    assert outcomes(report) == {"2xx": 1}


@clients
@pytest.mark.parametrize("command", ["fetch", "parse"])
def test_one_url_by_hand_opens_its_own_host_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    client: str,
    command: str,
) -> None:
    def handler(_: str, port: int) -> list[bytes]:
        return moved(302, f"http://127.0.0.1:{port}/secret")

    written = tmp_path / "crawl.toml"
    written.write_text(
        f'[crawl]\nseeds = ["http://public.test/"]\nuser_agent = "t (+http://bot.example/)"\n'
        f'[fetch]\nclient = "{client}"\nverify = false\n'
        '[[stores]]\ntype = "jsonl"\npath = "pages.jsonl"\n'
    )
    options = [str(written)] if command == "fetch" else ["--config", str(written)]
    with world(monkeypatch, handler) as (internet, private):
        assert main([command, "http://public.test/x", *options]) != 0
        unreached(internet, private)
        said = capsys.readouterr()
        assert "is no public address" in said.out + said.err


def test_the_guard_stands_while_many_threads_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that alternate look-up by look-up: each exchange goes by the one it checked."""
    turn = threading.Lock()
    count = [0]

    def flickering() -> Sequence[str]:
        with turn:
            count[0] += 1
            return [PUBLIC] if count[0] % 2 else ["127.0.0.1"]

    def handler(target: str, port: int) -> list[Any]:
        if target == "/":
            return page(
                links(*(f"http://f{n}.test:{port}/{m}" for n in range(8) for m in range(4)))
            )
        return [*missing(), CLOSE]

    with world(monkeypatch, handler) as (internet, private):
        for number in range(8):
            internet.names[f"f{number}.test"] = flickering
        report = run(tmp_path, fetch={"dns_ttl": 0}, robots={"obey": False})
        unreached(internet, private)
    assert adds_up(report)
