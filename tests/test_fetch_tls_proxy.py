"""TLS and its failures, certificates from the environment, and proxies that serve or refuse."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncrawl.api import FetchError, Headers
from syncrawl.errors import ConfigError
from syncrawl.fetch.proxy import Proxies, Route, check_own_answer
from tests.fetching import both_clients, failure, fetch, fetching, request
from tests.servers import CLOSE, ScriptServer, make_certificate, ok, read_head

Client = Any


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "request_method"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1", "a.test")


@pytest.fixture
def secure(certificate: tuple[Path, Any]) -> Iterator[ScriptServer]:
    with ScriptServer({"/": [ok(b"secret")]}, tls=certificate[1]) as server:
        yield server


@both_clients
def test_a_page_over_tls(client: Client, secure: ScriptServer, certificate: Any) -> None:
    names = {"a.test": "127.0.0.1"}
    with fetching(client, ca_bundle=str(certificate[0]), resolve=names) as fetcher:
        for host in ("127.0.0.1", "a.test", "a.test", "A.TEST."):
            assert fetcher.fetch(request(secure.url(host=host))).body == b"secret"
    assert secure.connections == 3


@both_clients
def test_a_certificate_nobody_vouches_for(client: Client, secure: ScriptServer) -> None:
    error = failure(client, secure.url(), options={"verify": True})
    assert (error.outcome, error.retryable) == ("tls", False)


@both_clients
def test_a_certificate_for_another_name(
    client: Client, secure: ScriptServer, certificate: Any
) -> None:
    options = {"ca_bundle": str(certificate[0]), "resolve": {"b.test": "127.0.0.1"}}
    error = failure(client, secure.url(host="b.test"), options=options)
    assert (error.outcome, error.retryable) == ("tls", False)
    assert secure.targets == []


@both_clients
def test_without_verification_there_is_no_warning(client: Client, secure: ScriptServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fetch(client, secure.url(), options={"verify": False}).body == b"secret"


@both_clients
@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_the_environments_certificates(
    client: Client, secure: ScriptServer, certificate: Any, name: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv(name, str(certificate[0]))
    assert fetch(client, secure.url(), options={"verify": True}).status == 200
    monkeypatch.setenv(name, "/nonexistent")
    with pytest.raises(ConfigError) as caught:
        client({})
    assert caught.value.key == f"environment {name}"


@both_clients
def test_a_server_that_speaks_no_tls(client: Client) -> None:
    with ScriptServer(raw=lambda sock: sock.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")) as server:
        error = failure(client, server.url().replace("http:", "https:"))
    assert error.outcome == "tls"


@both_clients
def test_a_handshake_cut_off(client: Client) -> None:
    with ScriptServer(raw=lambda sock: sock.recv(10) and None) as server:
        error = failure(client, server.url().replace("http:", "https:"))
    assert error.outcome == "tls"


@both_clients
def test_a_stale_tls_connection_is_replaced(client: Client, certificate: Any) -> None:
    def script(server: ScriptServer, _: str) -> list[Any]:
        return [CLOSE] if len(server.targets) == 2 else [ok()]

    with (
        ScriptServer(handler=script, tls=certificate[1]) as server,
        fetching(client, ca_bundle=str(certificate[0])) as fetcher,
    ):
        fetcher.fetch(request(server.url()))
        assert fetcher.fetch(request(server.url())).retried_stale


# Proxies


class Tunnel:
    """A proxy that answers CONNECT with `answer` and, where that is 200, joins the two ends."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connected\r\n\r\n") -> None:
        self.answer = answer
        self.heads: list[bytes] = []

    def __call__(self, client: socket.socket) -> None:
        head = read_head(client)
        self.heads.append(head)
        client.sendall(self.answer)
        if b" 200 " not in self.answer:
            return
        port = int(head.split(b" ")[1].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port)) as target:
            back = threading.Thread(target=_pipe, args=(target, client), daemon=True)
            back.start()
            _pipe(client, target)
            back.join(5)


def _pipe(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one end left, which ends the tunnel


@both_clients
@pytest.mark.parametrize("how", ["config", "environment"])
def test_http_through_a_proxy(client: Client, how: str, monkeypatch: Any) -> None:
    with ScriptServer(handler=lambda *_: [ok(b"by proxy")]) as server:
        url = f"http://name%40corp:pa%2Ess@127.0.0.1:{server.port}"
        options = {"proxy": url} if how == "config" else {}
        if how == "environment":
            monkeypatch.setenv("HTTP_PROXY", url)
        # Names are the proxy's business: neither looked up nor checked here.
        response = fetch(
            client, "http://far.invalid/a%2f?b#c", allow_private=False, options=options
        )
        assert server.targets == ["http://far.invalid/a%2f?b"]
        lines = server.requests[0].decode().split("\r\n")
    assert response.body == b"by proxy"
    assert response.address is None
    assert "Host: far.invalid" in lines
    (line,) = [line for line in lines if line.startswith("Proxy-Authorization")]
    assert base64.b64decode(line.split()[2]) == b"name@corp:pa.ss"


@both_clients
@pytest.mark.parametrize("how", ["config", "environment"])
def test_https_through_a_tunnel(
    client: Client, secure: ScriptServer, certificate: Any, how: str, monkeypatch: Any
) -> None:
    tunnel = Tunnel()
    with ScriptServer(raw=tunnel) as server:
        url = f"http://u:p@127.0.0.1:{server.port}"
        options: dict[str, Any] = {"ca_bundle": str(certificate[0])}
        if how == "config":
            options["proxy"] = url
        else:
            monkeypatch.setenv("HTTPS_PROXY", url)
        with fetching(client, **options) as fetcher:
            for _ in range(2):
                response = fetcher.fetch(request(secure.url(host="a.test"), allow_private=False))
                assert response.body == b"secret"
    assert len(tunnel.heads) == 1, "the tunnel is kept alive"
    assert tunnel.heads[0].startswith(f"CONNECT a.test:{secure.port} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic dTpw" in tunnel.heads[0]
    assert b"Proxy-" not in secure.requests[0]
    assert secure.requests[0].startswith(b"GET / HTTP/1.1\r\n")


@both_clients
def test_no_proxy_goes_direct(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ScriptServer({"/": [ok()]}) as server:
        assert fetch(client, server.url()).status == 200


@both_clients
def test_a_407_is_the_set_ups_fault(client: Client, secure: ScriptServer) -> None:
    answer = ok(b"", status="407 Auth")
    with ScriptServer(handler=lambda *_: [answer]) as server:
        options = {"proxy": f"http://127.0.0.1:{server.port}"}
        error = failure(client, "http://far.invalid/", options=options)
        assert (error.outcome, error.retryable) == ("proxy", False)
    with ScriptServer(raw=Tunnel(answer)) as server:
        options = {"proxy": f"http://u:topsecret@127.0.0.1:{server.port}"}
        error = failure(client, secure.url(), options=options)
    assert (error.outcome, error.retryable) == ("proxy", False)
    assert "topsecret" not in str(error)


@both_clients
def test_a_tunnel_that_is_forbidden_is_the_proxys_policy_for_that_target(client: Client) -> None:
    with ScriptServer(raw=Tunnel(ok(b"", status="403 Forbidden"))) as server:
        options = {"proxy": f"http://127.0.0.1:{server.port}"}
        error = failure(client, "https://far.invalid/", options=options)
    assert (error.outcome, error.retryable) == ("proxy_denied", False)


@both_clients
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there(client: Client, scheme: str) -> None:
    with ScriptServer() as server:
        proxy = f"http://127.0.0.1:{server.port}"
    error = failure(client, f"{scheme}://far.invalid/", options={"proxy": proxy})
    assert (error.outcome, error.retryable) == ("proxy", False)
    assert proxy in error.message


@both_clients
@pytest.mark.parametrize("answer", [ok(b"", status="504 Timeout"), b"", b"rubbish\r\n\r\n"])
def test_a_tunnel_that_cannot_be_made_may_be_later(client: Client, answer: bytes) -> None:
    with ScriptServer(raw=Tunnel(answer)) as server:
        options = {"proxy": f"http://127.0.0.1:{server.port}"}
        error = failure(client, "https://far.invalid/", options=options)
    assert (error.outcome, error.retryable) == ("proxy", True)


@both_clients
def test_the_proxys_own_errors_are_told_from_the_targets(client: Client) -> None:
    answers = {
        "http://a.invalid/": [ok(b"", "Via: 1.1 p")],
        "http://b.invalid/": [ok(b"", "Via: 1.1 p", status="503 Busy")],
        "http://c.invalid/": [ok(b"", status="503 Busy")],
        "http://d.invalid/": [ok(b"", "Via: 1.1 p", "X-Squid-Error: x", status="403 No")],
    }
    with (
        ScriptServer(answers) as server,  # type: ignore[arg-type]
        fetching(client, proxy=f"http://127.0.0.1:{server.port}") as fetcher,
    ):
        assert fetcher.fetch(request("http://a.invalid/")).status == 200
        assert fetcher.fetch(request("http://b.invalid/")).status == 503
        for url, own in (
            ("http://c.invalid/", ("proxy", True)),
            ("http://d.invalid/", ("proxy_denied", False)),  # its policy stays what it is
        ):
            with pytest.raises(FetchError) as caught:
                fetcher.fetch(request(url))
            assert (caught.value.outcome, caught.value.retryable) == own


def test_via_alone_speaks_before_anything_is_known() -> None:
    route = Route("http://p", key="k")
    with pytest.raises(FetchError):
        check_own_answer(route, 503, Headers([("Via", "1.1 p")]))
    check_own_answer(route, 503, Headers())
    check_own_answer(route, 404, Headers([("Via", "1.1 p")]))
    with pytest.raises(FetchError):
        check_own_answer(route, 502, Headers([("Proxy-Status", "p; error=dns_timeout")]))


def test_choice_of_the_proxy() -> None:
    environment = {"http": "http://one:81", "all": "two", "no": "near.test,.inner.test"}
    proxies = Proxies("", environment)
    one, two = proxies.route("http", "far.test"), proxies.route("https", "far.test")
    assert one is not None
    assert two is not None
    assert (one.url, two.url) == ("http://one:81", "http://two:80")
    assert proxies.route("http", "near.test") is None
    assert proxies.route("http", "x.inner.test:8080") is None
    configured = Proxies("http://[::1]:3128", environment).route("https", "near.test")
    assert configured is not None
    assert (configured.url, configured.host) == ("http://[::1]:3128", "::1")
    assert Proxies("", {}).route("http", "far.test") is None


@pytest.mark.parametrize("text", ["https://p", "socks5://p", "http://", "http://p:x", "http://[x"])
def test_a_proxy_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Proxies(text)
    assert caught.value.key == "fetch.proxy"


@pytest.mark.parametrize(
    "text", ["http://u:top/secret@p:80", "u:[top:secret@p", "http://u:top@p:x"]
)
def test_an_unusable_proxy_shows_nothing_of_its_password(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Proxies(text)
    assert "top" not in str(caught.value)


def test_tls_is_no_older_than_1_2() -> None:
    from syncrawl.fetch.connect import tls_context

    assert tls_context("", verify=False).minimum_version >= ssl.TLSVersion.TLSv1_2
