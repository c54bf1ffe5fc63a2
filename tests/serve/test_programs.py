"""Programs and tools over HTTP, in a real sandbox: `/run_code` as verl asks it, and sessions of an environment with tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.served import Server, served

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    env = "{name: arithmetic, tools: [python, calculator], dialect: hermes}"
    with served("--sandbox", "docker", "--env", env, "--workers", "1", "--timeout", "60") as running:
        yield running


def ran(server: Server, code: str, **more: Any) -> dict[str, Any]:
    """The request of verl's `call_sandbox_api`, and what it reads of the reply."""
    body = {
        "compile_timeout": 10, "run_timeout": 5, "code": code, "stdin": "", "memory_limit_MB": 256, "language": "python", "files": {},
        "fetch_files": [],
    }  # fmt: skip
    status, said = server.ask("/run_code", body | more, content_type="application/json", accept="application/json")
    assert status == 200, said
    assert said["status"] in ("Success", "Failed", "SandboxError") and {"compile_result", "run_result", "message"} <= said.keys()
    return dict(said)


def test_a_program_runs(server: Server) -> None:
    said = ran(server, "print(int(input()) ** 2)", stdin="12\n")
    run = said["run_result"]
    assert said["status"] == "Success" and said["compile_result"] is None
    assert (run["status"], run["stdout"], run["stderr"], run["return_code"]) == ("Finished", "144\n", "", 0) and run["execution_time"] > 0


def test_how_a_program_may_end(server: Server) -> None:
    said = ran(server, "import sys; print('half'); sys.exit(3)")
    assert (said["status"], said["run_result"]["return_code"], said["run_result"]["stdout"]) == ("Failed", 3, "half\n")
    said = ran(server, "1 / 0")
    assert said["status"] == "Failed" and "ZeroDivisionError" in said["run_result"]["stderr"]
    said = ran(server, "while True: pass", run_timeout=1)
    assert (said["status"], said["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    said = ran(server, "print('\ud800' == chr(0xd800))")
    assert said["status"] in ("Success", "Failed")
    said = ran(server, "x = bytearray(1 << 30)", memory_limit_MB=128)
    assert said["status"] == "Failed"


def test_a_program_in_another_language_runs_or_its_absence_is_told(server: Server) -> None:
    assert ran(server, "echo $((6 * 7))", language="bash")["run_result"]["stdout"] == "42\n"
    said = ran(server, "fn main() {}", language="rust")
    assert said["status"] == "Success" or (said["status"] == "SandboxError" and "no toolchain for 'rust'" in said["message"])


def test_a_request_that_cannot_be_run_is_refused(server: Server) -> None:
    for wrong in ({"language": "cobol"}, {"run_timeout": "long"}, {"memory_limit_MB": [1]}):
        assert server.ask("/run_code", {"code": "print(1)"} | wrong)[0] == 422


def test_programs_run_at_once_and_do_not_mix(server: Server) -> None:
    found: dict[int, str] = {}

    def one(number: int) -> None:
        found[number] = ran(server, f"print({number})")["run_result"]["stdout"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: f"{number}\n" for number in range(6)}


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_session_calls_its_tools_over_http(server: Server) -> None:
    status, said = server.ask("/sessions", {"split": "train", "index": 1, "seed": 5})
    assert status == 201 and {"python", "calculator"} <= {tool["name"] for tool in said["tools"]}
    path = f"/sessions/{said['session']}"
    question = said["prompt"][-1]["content"].rstrip("= ?")
    first = server.ask(f"{path}/step", {"text": called("python", code="n = 6 * 7\nopen('kept', 'w').write('x')\nprint(n)")})[1]
    assert "42" in first["messages"][0]["content"] and first["done"] is False
    second = server.ask(f"{path}/step", {"text": called("python", code="print(open('kept').read() * 3)")})[1]
    assert "xxx" in second["messages"][0]["content"]  # one box for the whole conversation
    failed = server.ask(f"{path}/step", {"text": called("python", code="1 / 0")})[1]
    assert "ZeroDivisionError" in failed["messages"][0]["content"]
    result = server.ask(f"{path}/step", {"text": called("calculator", expression=question)})[1]["messages"][0]["content"].strip()
    server.ask(f"{path}/step", {"text": result})
    status, closed = server.ask(f"{path}/close", {})
    assert status == 200 and closed["verdict"]["score"] == 1.0, (question, result, closed)


def test_two_sessions_have_their_own_boxes(server: Server) -> None:
    paths = []
    for _ in range(2):
        status, said = server.ask("/sessions", {"split": "train", "index": 1})
        assert status == 201
        paths.append(f"/sessions/{said['session']}")
    server.ask(f"{paths[0]}/step", {"text": called("python", code="open('mine', 'w').write('secret')")})
    heard = server.ask(f"{paths[1]}/step", {"text": called("python", code="print(open('mine').read())")})[1]
    assert "FileNotFoundError" in heard["messages"][0]["content"] and "secret" not in heard["messages"][0]["content"]
    assert [server.ask(f"{path}/close", {"verify": False})[1] for path in paths] == [{"closed": True}] * 2
