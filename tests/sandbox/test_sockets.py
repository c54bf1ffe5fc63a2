"""What waits in sockets counts as memory, also where its senders are gone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox, SandboxSpec
from rlvr.sandbox._inside import sockets

FILL = """
import os, socket, time
def fill(kind, closes):
    kept = []
    try:
        while True:
            reader, writer = socket.socketpair(socket.AF_UNIX, kind)
            kept.append(reader)
            writer.setblocking(False)
            try:
                while True:
                    writer.send(b"x" * 60_000)
            except BlockingIOError:
                pass
            if closes:
                writer.close()
            else:
                kept.append(writer)
    except OSError:
        time.sleep(5)
        os._exit(0)
"""
FILLS = [f"fill(socket.{kind}, {closes})" for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET") for closes in (False, True)]


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.bubblewrap), pytest.param("docker", marks=pytest.mark.docker)])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    chosen: Sandbox = request.getfixturevalue(f"{request.param}_sandbox")
    return chosen


@pytest.mark.parametrize("fill", FILLS)
def test_a_session_fills_no_memory_through_sockets(sandbox: Sandbox, fill: str) -> None:
    forks = "for _ in range(20):\n    if os.fork() == 0:\n        "
    with sandbox.create_session(SandboxSpec(memory_mb=300)) as box:
        late = box.run(f"{FILL}\n{forks}{fill}\ntime.sleep(4)", language="python", timeout=8)
        assert late.status is ExitStatus.MEMORY_LIMIT
        assert box.run("echo well").stdout == "well\n"


FILL_TCP = """
import os, socket, time
door = socket.create_server(("127.0.0.1", 0), backlog=64)
kept = []
for _ in range(100):
    writer = socket.create_connection(door.getsockname())
    kept += [writer, door.accept()[0]]
    writer.setblocking(False)
    try:
        while True:
            writer.send(b"x" * 60_000)
    except BlockingIOError:
        pass
    if CLOSES:
        writer.close()
time.sleep(6)
"""


@pytest.mark.parametrize("closes", [False, True])
def test_a_session_fills_no_memory_through_connections_of_tcp(sandbox: Sandbox, closes: bool) -> None:
    with sandbox.create_session(SandboxSpec(memory_mb=300, loopback=True)) as box:
        late = box.run(f"CLOSES = {closes}\n{FILL_TCP}", language="python", timeout=20)
        assert late.status is ExitStatus.MEMORY_LIMIT, late
        assert box.run("echo well").stdout == "well\n"


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_a_program_may_have_many_sockets_that_are_empty(sandbox: Sandbox, kind: str) -> None:
    source = f"import socket, time\nkept = [socket.socketpair(socket.AF_UNIX, socket.{kind}) for _ in range(110)]\ntime.sleep(0.3)\nprint(len(kept))"
    outcome = sandbox.run(Program(source, limits=Limits(memory_mb=64)))
    assert (outcome.status, outcome.stdout) == (ExitStatus.OK, "110\n")


@pytest.fixture
def full() -> Iterator[list[socket.socket]]:
    """Sockets of this process, with 5 MB or more in them."""
    kept = []
    for _ in range(50):
        reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        writer.setblocking(False)
        assert writer.send(b"x" * 100_000) == 100_000
        kept += [reader, writer]
    yield kept
    for one in kept:
        one.close()


def test_the_bytes_are_counted(full: list[socket.socket]) -> None:
    meter = sockets.open_meter()
    if meter is None:
        pytest.skip("this kernel lists no sockets")
    with contextlib.closing(meter):
        before = meter._measure()
        assert before >= 5_000_000
        full[0].recv(1 << 20)
        assert before - 2_000_000 < meter._measure() <= before - 100_000
