"""What only the requests client has: sessions with their auth, netrc, and mocks by `responses`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.auth import AuthBase, HTTPDigestAuth

from syncrawl.api import FetchError
from syncrawl.fetch.requests_client import RequestsFetcher, requests_fetcher
from tests.fetching import request
from tests.servers import ScriptServer, ok


class Token(AuthBase):
    def __call__(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        prepared.headers["Authorization"] = "Bearer token"
        return prepared


def session_with(auth: Any) -> requests.Session:
    session = requests.Session()
    session.auth = auth
    return session


def test_an_auth_plug_in_signs_requests() -> None:
    fetcher = RequestsFetcher({"verify": False}, make_session=lambda: session_with(Token()))
    with ScriptServer({"/": [ok()]}) as server:
        fetcher.fetch(request(server.url()))
        assert b"Authorization: Bearer token\r\n" in server.requests[0]
    fetcher.close()


def test_digest_auth_answers_the_challenge() -> None:
    challenge = 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"'

    def script(server: ScriptServer, _: str) -> list[Any]:
        signed = b"Authorization: Digest" in server.requests[-1]
        return [ok(b"in")] if signed else [ok(b"no", challenge, status="401 Who")]

    def make() -> requests.Session:
        return session_with(HTTPDigestAuth("u", "p"))

    fetcher = RequestsFetcher({"verify": False}, make_session=make)
    with ScriptServer(handler=script) as server:
        assert fetcher.fetch(request(server.url("/a%2f"))).body == b"in"
        assert server.targets == ["/a%2f", "/a%2f"]
    fetcher.close()


def test_netrc_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password it\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fetcher = requests_fetcher({"verify": False})
    with ScriptServer({"/": [ok()]}) as server:
        fetcher.fetch(request(server.url()))
        assert b"Authorization: Basic bWU6aXQ=\r\n" in server.requests[0]
    fetcher.close()


def test_each_thread_has_its_session() -> None:
    made: list[requests.Session] = []

    def make() -> requests.Session:
        made.append(requests.Session())
        return made[-1]

    fetcher = RequestsFetcher({"verify": False}, make_session=make)
    with ScriptServer({"/": [ok()]}) as server:

        def work() -> None:
            for _ in range(3):
                fetcher.fetch(request(server.url()))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    fetcher.close()
    assert len(made) == 3
    assert len(server.targets) == 9


@pytest.fixture
def mocked() -> Any:
    if sys.modules.get("asyncio", True) is None:
        pytest.skip("responses needs asyncio, which is blocked here")
    import responses

    with responses.RequestsMock() as mock:
        yield mock


def test_a_mocked_answer(mocked: Any) -> None:
    mocked.get("http://mock.test/p", body=b"mocked", headers={"X-A": "1"}, status=200)
    fetcher = requests_fetcher({"verify": False})
    response = fetcher.fetch(request("http://mock.test/p"))
    fetcher.close()
    assert (response.status, response.body) == (200, b"mocked")
    assert response.headers["x-a"] == "1"


def test_a_mocked_redirect_is_not_followed(mocked: Any) -> None:
    mocked.get("http://mock.test/", status=301, headers={"Location": "/elsewhere"})
    fetcher = requests_fetcher({"verify": False})
    assert fetcher.fetch(request("http://mock.test/")).status == 301
    fetcher.close()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (requests.exceptions.ConnectTimeout(TimeoutError("x")), "timeout"),
        (requests.exceptions.ConnectionError(ConnectionResetError(104, "reset")), "connection"),
        (requests.exceptions.ChunkedEncodingError("bad"), "protocol"),
        (requests.exceptions.InvalidURL("bad"), "url"),
    ],
)
def test_requests_own_errors_are_translated(mocked: Any, error: Exception, outcome: str) -> None:
    mocked.get("http://mock.test/", body=error)
    fetcher = requests_fetcher({"verify": False})
    with pytest.raises(FetchError) as caught:
        fetcher.fetch(request("http://mock.test/"))
    fetcher.close()
    assert caught.value.outcome == outcome
    assert caught.value.url == "http://mock.test/"


def test_a_mocked_body_obeys_the_cap(mocked: Any) -> None:
    mocked.get("http://mock.test/", body=b"x" * 1000)
    fetcher = requests_fetcher({"verify": False})
    with pytest.raises(FetchError) as caught:
        fetcher.fetch(request("http://mock.test/", max_body_bytes=999))
    fetcher.close()
    assert caught.value.outcome == "too_large"
