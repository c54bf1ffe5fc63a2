# ruff: noqa: E501  (tables stand in one line a row)
"""The mcp tool against a real server of the real SDK, over stdio and over HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts.schema import inline_schema_references
from rlvr.contracts.tool import run_tool_call
from rlvr.errors import MissingExtra, ToolInfrastructureError
from rlvr.tools.mcp import Mcp
from rlvr.turns import Call

SERVER = str(Path(__file__).with_name("mcp_server.py"))
pytest.importorskip("mcp")


def said(opened: Mcp, name: str, **given: Any) -> tuple[str, bool]:
    result = run_tool_call(opened, Call("0.0", name, given))
    return result.text, result.ok


@pytest.fixture
def server() -> Iterator[Mcp]:
    with Mcp(command=[sys.executable, SERVER], call_timeout_s=30, start_timeout_s=120).session() as opened:
        yield opened


def test_a_server_over_stdio(server: Mcp) -> None:
    assert [spec.name for spec in server.specs()] == ["add", "die", "fail", "length", "note", "wait"]
    length = next(spec for spec in server.specs() if spec.name == "length")
    assert "$ref" not in str(length.parameters) and "title" not in str(length.parameters)
    assert said(server, "add", x=1, y=2) == ("3", True)
    assert said(server, "length", point={"x": 3, "y": 4}) == ("25", True)
    assert [said(server, "note", text="a")[0] for _ in range(2)] == ["1 notes", "2 notes"], "state lives as long as the conversation"
    text, ok = said(server, "fail", reason="no such day")
    assert not ok and "fail" in text
    assert not said(server, "add", x="1", y=2)[1]
    server.call_timeout_s = 0.2
    assert server.connection is not None
    server.connection.call_timeout_s = 0.2
    text, ok = said(server, "wait", seconds=2)
    assert not ok and "longer than 0.2 s" in text, "a slow call is told, so that slowness buys nothing"
    server.connection.call_timeout_s = 30
    assert said(server, "add", x=2, y=2) == ("4", True), "the server lives on"
    with pytest.raises(ToolInfrastructureError, match="failed"):
        said(server, "die")
    with pytest.raises(ToolInfrastructureError):
        said(server, "add", x=1, y=2)


def test_the_server_ends_with_the_conversation() -> None:
    opened = Mcp(command=[sys.executable, SERVER], prefix="demo_", only=["add"], start_timeout_s=120).start()
    assert [spec.name for spec in opened.specs()] == ["demo_add"] and said(opened, "demo_add", x=1, y=1) == ("2", True)
    connection = opened.connection
    opened.teardown()
    opened.teardown()
    assert connection is not None and connection.thread is not None and not connection.thread.is_alive()
    assert [spec.name for spec in opened.specs()] == ["demo_add"], "the list of the last conversation"


def test_a_server_over_http() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        with Mcp(url=f"http://127.0.0.1:{port}/mcp", start_timeout_s=60).session() as opened:
            assert said(opened, "add", x=20, y=22) == ("42", True)
    finally:
        process.terminate()
        process.wait(30)


def test_a_server_that_does_not_come_up_is_not_waited_for() -> None:
    with pytest.raises(ToolInfrastructureError, match=r"did not start|did not answer"):
        Mcp(command=[sys.executable, "-c", "import sys; sys.exit('no config')"], start_timeout_s=60).start()
    with pytest.raises(ToolInfrastructureError, match="did not answer within 1 s"):
        Mcp(command=[sys.executable, "-c", "import time; time.sleep(60)"], start_timeout_s=1).start()
    with pytest.raises(ToolInfrastructureError):
        Mcp(command=["/no/such/program"], start_timeout_s=60).start()


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings, words in (({}, "either"), ({"command": ["a"], "url": "b"}, "either"), ({"command": "a b"}, "a list"), ({"url": "u", "call_timeout_s": 0}, "timeout")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            Mcp(**settings)


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"\[mcp\]"):
        Mcp(url="http://127.0.0.1:1/mcp").start()


def test_schemas_become_plain() -> None:
    loop = {
        "$defs": {"N": {"properties": {"n": {"$ref": "#/$defs/N"}}}},
        "properties": {"n": {"$ref": "#/$defs/N"}, "title": {"type": "string"}},
    }
    plain = inline_schema_references(loop)
    assert "$ref" not in str(plain)[:200] and plain["properties"]["title"] == {"type": "string"}
    assert inline_schema_references({"oneOf": [{"type": "string"}]}) == {"anyOf": [{"type": "string"}]}
