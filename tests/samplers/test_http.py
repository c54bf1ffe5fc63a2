"""The client that samplers ask endpoints with: answers in every shape, and nobody who waits after it was closed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.samplers._http import HttpClient, NoReply
from tests.fixtures.endpoint import endpoint

BODY = b'{"ok": true}'


def soon() -> float:
    return time.monotonic() + 20


@pytest.mark.parametrize("length", [b"", b"Content-Length: 12\r\n"], ids=["to the end", "so many bytes"])
def test_an_answer_is_read_whole_from_a_server_that_closes_after_it(length: bytes) -> None:
    def closes(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + length + b"\r\n")
        time.sleep(0.1)  # what follows comes on its own
        handler.wfile.write(BODY)

    with endpoint(lambda path, body, before: closes) as seen:
        asked = HttpClient(seen.url)
        assert [asked.request("GET", "/", deadline=soon()).json() for _ in range(2)] == [{"ok": True}] * 2
        assert not asked._idle and not asked._busy
        asked.close()


def test_an_answer_that_breaks_off_in_the_middle_is_none() -> None:
    def half(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + BODY[:5])

    with endpoint(lambda path, body, before: half) as seen:
        asked = HttpClient(seen.url)
        with pytest.raises(NoReply, match=r"closed the connection.*5 bytes read, 7 more expected"):
            asked.request("GET", "/", deadline=soon())
        assert not asked._idle and not asked._busy


@contextmanager
def listening(backlog: int) -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        yield server


@contextmanager
def full() -> Iterator[str]:
    """Where nobody takes a connection: the line of those who wait is full."""
    with listening(0) as server:
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for client in waiting:
            client.close()


@contextmanager
def mute() -> Iterator[str]:
    """Where a connection is taken and no secret is agreed on."""
    with listening(5) as server:
        yield f"https://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("place", [full, mute], ids=["connecting", "agreeing on a secret"])
def test_who_waits_for_a_connection_is_broken_off_too(place: Any) -> None:
    told: list[str] = []

    def asks() -> None:
        with pytest.raises(NoReply) as raised:
            asked.request("GET", "/", deadline=soon())
        told.append(str(raised.value))

    with place() as url:
        asked = HttpClient(url)
        thread = threading.Thread(target=asks)
        thread.start()
        while not any(asked._busy.values()):
            time.sleep(0.01)
        time.sleep(0.2)
        asked.close()
        thread.join(10)
        assert not thread.is_alive() and "closed the connection" in told[0]


@pytest.fixture
def lost_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Names are looked up for a minute, which no timeout of ours shortens; it is set once a lookup is under way."""
    asked, over = threading.Event(), threading.Event()

    def looks(*_: Any, **__: Any) -> Any:
        asked.set()
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", looks)
    yield asked
    over.set()


def test_a_name_that_is_not_found_is_waited_for_until_the_deadline(lost_names: threading.Event) -> None:
    began = time.monotonic()
    with pytest.raises(NoReply, match="did not respond in time"):
        HttpClient("http://somewhere.example").request("GET", "/", deadline=began + 0.3)
    assert time.monotonic() - began < 30


def test_who_waits_for_a_name_is_broken_off_too(lost_names: threading.Event) -> None:
    asked = HttpClient("http://somewhere.example")
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        asking = pool.submit(asked.request, "GET", "/", deadline=began + 50)
        assert lost_names.wait(20)
        asked.close()
        assert "aborted by the caller" in str(asking.exception(30))
    assert time.monotonic() - began < 40


@pytest.mark.parametrize("url", ["http://localhost:99999", "http://localhost:port/v1", "http://[::1", "localhost:8000", "ftp://host"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a server"):
        HttpClient(url)
    assert HttpClient("http://[::1]/v1")._make_connection().host == "::1"


def test_a_key_loses_its_line_break_and_one_that_cannot_be_sent_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(lambda path, body, before: (200, {})) as seen:
        asked = HttpClient(seen.url, api_key_env="SOME_KEY")
        monkeypatch.setenv("SOME_KEY", "sk-secret\r\n")
        asked.request("GET", "/", deadline=soon())
        for key in ("sk-secret\nmore", "sk-secret\u201d"):
            monkeypatch.setenv("SOME_KEY", key)
            for asks in (lambda: asked.request("GET", "/", deadline=soon()), lambda: asked.connect(deadline=soon())):
                with pytest.raises(ConfigError, match="SOME_KEY contains characters") as raised:
                    asks()
                assert "secret" not in str(raised.value)
        asked.close()
    assert [headers["Authorization"] for headers in seen.headers] == ["Bearer sk-secret"]
