"""A process that is lost is noticed by the others at once, without their backend."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.training.distributed import peer_monitor as watch
from rlvr.training.distributed.peer_monitor import PeerLost, PeerMonitor
from tests.training.peers.launch import ended, free_port, started


def until(true: Callable[[], Any], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


def read(peer: socket.socket) -> dict[str, Any]:
    peer.settimeout(10)
    line: dict[str, Any] = json.loads(peer.recv(4096).splitlines()[0])
    return line


@pytest.mark.slow
def test_a_killed_process_ends_the_others_with_words(tmp_path: Path) -> None:
    codes = ended(started(3, "tests.training.peers.watching", [], tmp_path), 90)
    said = [(tmp_path / f"{rank}.out").read_text() for rank in range(3)]
    assert codes == [3, 3, -9], said
    for rank in (0, 1):
        assert f"error: process {rank} of 3 waited for another process that exited or did not answer: process 2 ended" in said[rank], said
    assert "closed what was open" in said[0]  # an error was raised in it
    assert "closed" not in said[1]  # it was ended, as nothing can be raised in it


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The main process of three with its connections, and their other ends."""
    monkeypatch.setattr(watch, "GRACE_S", 0.2)
    made = [socket.socketpair() for _ in range(2)]
    yield {1: made[0][0], 2: made[1][0]}, [made[0][1], made[1][1]]
    for pair in made:
        for one in pair:
            one.close()


def test_who_says_that_it_has_ended_is_not_missed(pairs: Any) -> None:
    peers, others = pairs
    with PeerMonitor(0, 3, peers) as watching:
        others[0].sendall(b'{"ended": true}\n')
        others[0].close()
        assert not until(lambda: watching.failure, 1.0)
    assert read(others[1]) == {"ended": True}


def test_what_failed_in_one_process_is_told_to_the_others(pairs: Any) -> None:
    peers, others = pairs
    with (
        pytest.raises(PeerLost, match=r"process 0 of 3 waited .*process 1 failed: ValueError: no; see its message"),
        PeerMonitor(0, 3, peers),
    ):
        others[0].sendall(b'{"failed": "Value')
        time.sleep(0.05)
        others[0].sendall(b'Error: no"}\n')
        assert read(others[1]) == {"lost": "process 1 failed: ValueError: no"}
        assert until(lambda: False)  # until the error is raised here


def test_an_error_of_the_backend_comes_first_and_stays(pairs: Any) -> None:
    peers, others = pairs
    with pytest.raises(RuntimeError, match="gloo"), PeerMonitor(0, 3, peers) as watching:
        others[1].close()
        assert watching.wait_for_failure(10.0) == "process 2 ended without a word, as if killed"
        raise RuntimeError("gloo: connection closed")
    assert read(others[0])["lost"].startswith("process 2")
    assert not [thread for thread in threading.enumerate() if thread.name == "peers"]


def test_a_stranger_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(watch, "broadcast", told.append)

    def visit() -> None:
        assert until(lambda: told)
        for line in (
            b'{"rank": 1, "token": "guess"}\n',
            b"GET / HTTP/1.1\n",
            b"[1]\n",
            b"",
            json.dumps({"rank": 7, "token": told[0][1]}).encode() + b"\n",
        ):
            with socket.create_connection(("127.0.0.1", told[0][0])) as stranger:
                stranger.sendall(line)
        with socket.create_connection(("127.0.0.1", told[0][0])) as ours:
            ours.sendall(json.dumps({"rank": 1, "token": told[0][1]}).encode() + b"\n")
            ours.recv(1)

    visitor = threading.Thread(target=visit)
    visitor.start()
    found = watch._accept_peers(2, 30.0)
    assert found is not None and list(found) == [1]
    found[1].close()
    visitor.join(10)
    assert watch._accept_peers(2, 0.2) is None  # nobody comes


def test_a_port_that_is_closed_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "broadcast", lambda told: (free_port(), "token"))
    assert watch._connect_to_main(1, 5.0) is None
