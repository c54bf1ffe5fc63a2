"""`rlvr serve` as a client sees it: a real server, real worker processes, real kills."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.serve.served import VERIFIERS, Server, served, until

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("verifiers") / "moody.py"
    path.write_text(VERIFIERS, "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def server(file: str) -> Iterator[Server]:
    limits = ("--workers", "2", "--threads", "2", "--queue", "200", "--max-body", "100000", "--memory", "300000", "--timeout", "1.5")
    sessions = ("--env", "guess_number", "--sessions", "3", "--open-wait", "0", "--lease", "1.2")
    with served("numeric", f"{file}:Moody", f"{file}:Together", f"{file}:Awaited", *sessions, *limits, token=TOKEN) as running:
        until(lambda: running.ask("/healthz")[1]["workers"] == 2)
        yield running


def rows(*answers: str, reference: str = "4") -> list[dict[str, Any]]:
    return [{"id": place, "reference": reference, "answer": answer} for place, answer in enumerate(answers)]


@pytest.mark.slow
def test_one_verdict_and_a_batch(server: Server) -> None:
    assert server.ask("/verify", {"id": "a", "reference": "4", "answer": "4.0"}) == (
        200, {"id": "a", "score": 1.0, "reason": "4.0 equals 4", "fault": "none"},
    )  # fmt: skip
    said = server.lines(rows("4", "5", "4", "lots"))
    assert {line["index"]: line["score"] for line in said} == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    assert all(line["id"] == line["index"] for line in said)
    status, text = server.ask("/verify/batch", {"rows": rows("4", "5")})
    assert status == 200 and sorted(json.loads(line)["score"] for line in text.splitlines()) == [0.0, 1.0]


@pytest.mark.parametrize(("raw", "words"), [(b'{"id": ' + b"9" * 5000 + b"}", "digits"), (b"{", "line 1"), (b"[" * 50_000, "recursion")])
def test_a_body_that_is_no_json_is_told_why(server: Server, raw: bytes, words: str) -> None:
    status, said = server.ask("/verify", raw=raw)
    assert status == 422 and "not JSON" in said["error"] and words in said["error"]


def test_a_row_that_is_wrong_is_told_and_harms_no_other(server: Server) -> None:
    raw = b'{"reference": "4", "answer": "4"}\n{bad\n{"answer": "4"}\n[' + b"[" * 5000 + b'\n{"reference": "4", "answer": "5"}\n'
    status, data, _ = server.exchange("/verify/batch", raw=raw, content_type="application/x-ndjson")
    said = {line["index"]: line for line in map(json.loads, data.splitlines())}
    assert status == 200 and (said[0]["score"], said[4]["score"]) == (1.0, 0.0)
    assert all("error" in said[place] and "score" not in said[place] for place in (1, 2, 3))
    assert server.ask("/verify", {"reference": "4"})[0] == 422


def test_a_token_is_needed_and_is_nowhere_told(server: Server) -> None:
    for given in ("Bearer wrong", "Bearer ", "Basic " + TOKEN, TOKEN):
        assert server.ask("/verify", rows("4")[0], authorization=given)[0] == 401
    assert server.ask("/metrics", authorization="x")[0] == 401
    assert server.ask("/healthz", authorization="x") == (200, {"ok": True, "workers": 2, "version": "0.1.0"})
    assert server.ask("/verify?verifier=Moody", rows("secret")[0])[1]["reason"] == "None"  # nor do the workers have it
    assert "POST other 401" in "".join(server.said) and TOKEN not in "".join(server.said)


def test_large_bodies_and_too_many_rows_are_refused(server: Server) -> None:
    status, said = server.ask("/verify", {"reference": "4", "answer": "4" * 200_000})
    assert status == 413 and "100000 bytes" in said["error"]
    with raw_socket(server) as link:  # the size is not said, and found out
        link.sendall(head(server, "/verify", "Transfer-Encoding: chunked") + b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        for _ in range(4):
            link.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        assert link.recv(20).startswith(b"HTTP/1.1 413")
    assert server.ask("/verify/batch", {"rows": rows(*["4"] * 201)})[0] == 413


def test_a_client_that_sends_ten_megabytes_gets_the_answer_and_keeps_its_connection(server: Server) -> None:
    link = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    with closing(link):
        for token, status in ((TOKEN, 413), ("wrong", 401)):
            for _ in range(3):
                link.request("POST", "/verify", b"x" * 10_000_000, {"Authorization": f"Bearer {token}"})
                reply = link.getresponse()
                assert reply.status == status and json.loads(reply.read())["error"]
        link.request("GET", "/healthz")
        assert link.getresponse().status == 200


def test_a_body_with_a_million_values_stops_nobody() -> None:
    """Nothing else runs in a process while it parses JSON. Commas in a text are no values."""
    values = b"{" + b",".join(b'"%d":1' % number for number in range(800_000)) + b"}"
    row = b'{"reference": "4", "answer": "4", "meta": %s}' % values
    with served("numeric", "--workers", "1", token=TOKEN) as server:
        until(lambda: server.ask("/healthz")[0] == 200)
        for path, raw in (("/verify", row), ("/verify/batch", b'{"rows": [%s]}' % row), ("/sessions", values), ("/openrlhf", values)):
            began = time.monotonic()
            status, said = server.ask(path, raw=raw)
            assert status == 413 and "200,000 values" in said["error"], (path, status, said)
            assert time.monotonic() - began < 1.0, path
        status, said = server.ask("/verify/batch", raw=row + b"\n", **{"content-type": "application/x-ndjson"})
        assert status == 200 and "200,000 values" in said["error"]
        status, said = server.ask("/verify", raw=b'{"reference": "4", "answer": "%s"}' % (b"1, " * 300_000))
        assert status == 200 and said["score"] == 0.0


def test_what_is_too_much_is_refused_with_a_time_to_wait(server: Server) -> None:
    slow = threading.Thread(target=lambda: server.lines(rows(*["sleep 0.4"] * 12), "/verify/batch?verifier=Moody"))
    slow.start()
    until(lambda: "rlvr_rows_waiting 0\n" not in server.ask("/metrics")[1])
    status, data, headers = server.exchange("/verify/batch", {"rows": rows(*["4"] * 195)})
    slow.join()
    assert status == 429 and int(headers["retry-after"]) >= 1, data
    links = [raw_socket(server) for _ in range(4)]
    for link in links:  # bodies that are announced and do not come hold memory
        link.sendall(head(server, "/verify", "Content-Length: 90000"))
    time.sleep(0.2)
    assert links[3].recv(20).startswith(b"HTTP/1.1 429")
    for link in links:
        link.close()


def test_a_killed_worker_loses_no_verdict(server: Server) -> None:
    before = server.workers()
    found: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: found.extend(server.lines(rows(*["sleep 0.05"] * 40), "/verify/batch?verifier=Moody")))
    asking.start()
    time.sleep(0.3)
    os.kill(before[0], signal.SIGKILL)
    asking.join(30)
    assert sorted(line["index"] for line in found) == list(range(40))
    assert [line["score"] for line in found] == [1.0] * 40
    until(lambda: server.ask("/healthz")[1]["workers"] == 2)
    assert "rlvr_rows_again_total" in server.ask("/metrics")[1]


@pytest.mark.slow
def test_an_answer_that_kills_its_process_has_no_score_and_harms_no_other(server: Server, tmp_path: Path) -> None:
    answers = ["4", "die", "5", f"die-once {tmp_path / 'once'}", "4"]
    said = {line["index"]: line for line in server.lines(rows(*answers), "/verify/batch?verifier=Moody")}
    assert [said[place]["score"] for place in range(5)] == [1.0, None, 0.0, 1.0, 1.0]
    assert said[1]["fault"] == "infra" and "died 3 times" in said[1]["reason"]
    until(lambda: server.ask("/healthz")[1]["workers"] == 2)


def test_a_verdict_has_its_time_and_an_error_is_no_score(server: Server) -> None:
    said = {line["index"]: line for line in server.lines(rows("4", "sleep 5", "raise", "5", "4"), "/verify/batch?verifier=Moody")}
    assert [said[place]["score"] for place in range(5)] == [1.0, None, None, 0.0, 1.0]
    assert [said[place]["fault"] for place in (1, 2)] == ["infra", "infra"] and "1.5 s" in said[1]["reason"]


def test_a_verifier_that_judges_together_gets_many(server: Server) -> None:
    said = server.lines(rows(*["4"] * 30), "/verify/batch?verifier=Together")
    assert {line["reason"] for line in said} == {"30 together"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verifier", "answers", "score"),
    [
        ("Together", ["4", "sleep 3", "5", "4"], None),
        ("Awaited", ["4", "sleep 3", "5", "4", *["sleep 0.7"] * 20], None),  # longer than the timeout only one after the other
    ],
    ids=["together", "awaited"],
)
def test_an_answer_that_takes_too_long_takes_no_other_of_its_batch_along(
    server: Server, verifier: str, answers: list[str], score: float | None
) -> None:
    said = {line["index"]: line for line in server.lines(rows(*answers), f"/verify/batch?verifier={verifier}")}
    assert [said[place]["score"] for place in range(len(answers))] == [1.0, score, 0.0, 1.0, *[0.0] * (len(answers) - 4)]
    assert score is not None or (said[1]["fault"] == "infra" and "within 1.5 s" in said[1]["reason"])


@pytest.mark.slow
def test_a_batch_of_which_every_answer_takes_too_long_ends(file: str) -> None:
    with served(f"{file}:Together", "--workers", "1", "--timeout", "0.5") as running:
        began = time.monotonic()
        said = running.lines(rows(*["sleep 60"] * 40))
        assert [line["score"] for line in said] == [None] * 40 and time.monotonic() - began < 30
        assert running.lines(rows("4"))[0]["score"] == 1.0


def test_a_repeated_key_gets_the_same_verdicts(server: Server) -> None:
    asked = rows("pid", "pid"), "/verify/batch?verifier=Moody"
    first = server.lines(*asked, idempotency_key="k1")
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)
    until(lambda: server.ask("/healthz")[1]["workers"] == 2)
    again = server.lines(*asked, idempotency_key="k1")
    assert sorted(map(json.dumps, first)) == sorted(map(json.dumps, again))
    assert server.lines(*asked, idempotency_key="k2") != first
    status, said = server.ask("/verify?verifier=Moody", rows("pid")[0], idempotency_key="k1")
    assert status == 422 and "Idempotency-Key" in said["error"]
    server.lines(rows("raise"), "/verify/batch?verifier=Moody", idempotency_key="k3")
    [line] = server.lines(rows("raise"), "/verify/batch?verifier=Moody", idempotency_key="k3")
    assert line["score"] is None  # judged again, and failed again


def test_a_key_finds_the_verdicts_of_a_reply_that_broke_off(server: Server) -> None:
    body = json.dumps({"rows": [*rows("pid"), *rows("sleep 0.5")]}).encode()
    with raw_socket(server) as link:
        link.sendall(head(server, "/verify/batch?verifier=Moody", f"Content-Length: {len(body)}", "Idempotency-Key: broken") + body)
        text = link.recv(4096)
        while b'"index"' not in text:
            text += link.recv(4096)
    first = json.loads(text[text.index(b'{"index"') :].split(b"\n")[0])
    data = server.exchange("/verify/batch?verifier=Moody", raw=body, idempotency_key="broken")[1]
    assert first in [json.loads(line) for line in data.splitlines()]


def test_sessions_open_hear_and_close(server: Server) -> None:
    status, opened = server.ask("/sessions", {"env": "guess_number", "split": "test", "index": 3, "seed": 1})
    assert status == 201 and "reference" not in json.dumps(opened)
    path, low, high = f"/sessions/{opened['session']}", 1, 100
    for _ in range(opened["max_turns"]):
        guess = (low + high) // 2
        _, heard = server.ask(f"{path}/step", {"text": str(guess)})
        if heard["done"]:
            break
        low, high = (guess + 1, high) if "higher" in heard["messages"][0]["content"] else (low, guess - 1)
    closed = server.ask(f"{path}/close", {})[1]
    described = server.ask("/openapi.json")[1]["paths"]["/sessions/{session}/close"]["post"]["responses"]["200"]
    assert closed["verdict"]["score"] == 1.0 and set(closed) == set(described["content"]["application/json"]["schema"]["properties"])
    assert server.ask(f"{path}/step", {"text": "1"})[0] == 410
    assert server.ask("/sessions", {"env": "nothing"})[0] == server.ask("/sessions", {"index": -1})[0] == 422


def test_a_step_and_a_close_that_are_repeated_with_their_key_are_done_once(server: Server) -> None:
    path = f"/sessions/{server.ask('/sessions', {'env': 'guess_number', 'split': 'test', 'index': 3})[1]['session']}"
    turn = {"text": "1"}
    first = server.ask(f"{path}/step", turn, idempotency_key="a")
    with ThreadPoolExecutor(4) as many:
        assert set(map(str, many.map(lambda _: server.ask(f"{path}/step", turn, idempotency_key="a"), range(8)))) == {str(first)}
    assert server.ask(f"{path}/step", {"text": "2"}, idempotency_key="a")[0] == 422, "another turn under the same key"
    assert server.ask(f"{path}/step", {"text": 5}, idempotency_key="b")[0] == 422
    assert server.ask(f"{path}/step", turn, idempotency_key="b")[0] == 200, "what was refused may be put right"
    assert server.ask(f"{path}/step", turn)[0] == server.ask(f"{path}/step", turn)[0] == 200
    closed = server.ask(f"{path}/close", {}, idempotency_key="c")
    assert closed[0] == 200 and closed[1]["turns"] == 4
    assert server.ask(f"{path}/close", {}, idempotency_key="c") == closed
    assert server.ask(f"{path}/close", {}, idempotency_key="d")[0] == server.ask(f"{path}/close", {})[0] == 410


@pytest.mark.parametrize("query", ["name=Together", "verifiers=Together", "verifier=Moody&verifier=Together"])
def test_a_query_that_chooses_nothing_is_refused(server: Server, query: str) -> None:
    """Otherwise the first verifier would judge, and its verdict would be taken for that of another."""
    for path, body in (("/verify", rows("4")[0]), ("/verify/batch", {"rows": rows("4")})):
        status, said = server.ask(f"{path}?{query}", body)
        assert status == 422 and "?verifier=NAME" in said["error"]


def test_a_wrong_method_is_an_error_in_json(server: Server) -> None:
    status, said = server.ask("/verify", None)
    assert status == 405 and "takes no GET; send POST" in said["error"]


def test_a_lease_ends_and_there_are_so_many(server: Server) -> None:
    opened = [server.ask("/sessions", {}) for _ in range(4)]
    assert [status for status, _ in opened] == [201, 201, 201, 429]
    until(lambda: "rlvr_sessions_open 0\n" in server.ask("/metrics")[1])
    assert server.ask(f"/sessions/{opened[0][1]['session']}/step", {"text": "1"})[0] == 410


def test_the_shapes_of_other_trainers(server: Server) -> None:
    asked = {"query": ["2+2=4", "1+1=3"], "prompts": ["2+2=", "1+1="], "labels": ["4", "2"]}
    assert server.ask("/openrlhf", asked)[1]["rewards"] == [1.0, 0.0]
    assert server.ask("/openrlhf", asked | {"labels": ["4", "no number"]})[0] == 503  # no score is not told as 0
    assert server.ask("/openrlhf", asked | {"query": ["4", "3"]})[0] == 422
    assert "both must be texts" in server.ask("/openrlhf", {"query": [4], "prompts": [""], "labels": ["4"]})[1]["error"]
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}
    row = {"responses_create_params": {"input": [{"role": "user", "content": "2+2="}]}, "response": {"output": [text]}}
    status, said = server.ask("/verify", row | {"expected_answer": "4", "extra": 1})
    assert (status, said["reward"], said["extra"], said["response"]) == (200, 1.0, 1, row["response"])
    assert server.ask("/verify", row)[0] == 422
    assert server.ask("/seed_session", {}) == (200, {})


def test_only_a_message_of_the_policy_is_an_answer_and_an_unreadable_one_is_no_zero(server: Server) -> None:
    row = {"responses_create_params": {"input": "2+2="}, "expected_answer": "4"}
    right, wrong = ({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]} for text in ("4", "5"))
    from_tool = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "4"}]}
    for output, reward in (([right], 1.0), ([wrong, from_tool], 0.0), ([from_tool], 0.0), ([], 0.0), ([{**right, "content": "4"}], 1.0)):
        status, said = server.ask("/verify", row | {"response": {"output": output}})
        assert (status, said["reward"]) == (200, reward), output
    for response in (5, None, {}, {"output": "4"}, {"output": [5]}, {"output": [{"content": 5}]}, {"output": [{"content": [{"text": 4}]}]}):
        assert server.ask("/verify", row | {"response": response})[0] == 422, response


@pytest.mark.slow
def test_an_answer_that_takes_all_of_its_process_does_not_hold_up_another(file: str) -> None:
    with served(f"{file}:Moody", "--workers", "2", "--timeout", "20") as running:
        until(lambda: running.ask("/healthz")[1]["workers"] == 2)
        first = running.ask("/verify", {"reference": "4", "answer": "pid"})[1]["reason"]
        slow = threading.Thread(target=running.ask, args=("/verify", {"reference": "4", "answer": "sleep 2"}))
        slow.start()
        time.sleep(0.3)
        pids = {running.ask("/verify", {"reference": "4", "answer": "pid"})[1]["reason"] for _ in range(10)}
        slow.join()
    assert first not in pids


def test_the_document_names_every_route(server: Server) -> None:
    from rlvr.serve.app import ServiceRoutes

    document = server.ask("/openapi.json")[1]
    pool: Any = type("Pool", (), {"settings": {"verifiers": {}}})()
    routes = {route.path for route in ServiceRoutes(pool, None, max_rows=1).build_router().routes}  # type: ignore[arg-type]
    assert set(document["paths"]) == routes - {"/openapi.json"}
    assert document["paths"]["/verify"]["post"]["parameters"][0]["schema"]["enum"] == ["numeric", "Moody", "Together", "Awaited"]


@pytest.mark.slow
def test_a_stop_lets_what_runs_end(file: str) -> None:
    with served(f"{file}:Moody", "--workers", "1", "--timeout", "20") as running:
        [worker] = running.workers()
        found: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: found.extend(running.lines(rows(*["sleep 0.2"] * 6))))
        asking.start()
        time.sleep(0.3)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            running.ask("/healthz")
        asking.join(20)
        assert [line["score"] for line in found] == [1.0] * 6
        assert running.process.wait(15) == 0
        until(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_server(file: str) -> None:
    with served(f"{file}:Moody", "--workers", "1") as running:
        [worker] = running.workers()
        running.process.kill()
        until(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "no verifier is called 'nosuch'"),
        ([], "nothing to serve"),
        (["numeric", "--host", "0.0.0.0"], "other machines can reach"),
        (["numeric", "--workers", "0"], "workers is 0"),
        (["numeric", "--timeout", "nan"], "--timeout is nan"),
        (["numeric", "--request-timeout", "inf"], "--request-timeout is inf"),
        (["numeric", "--token-file", "/dev/zero"], "printable"),
        (["{name: numeric, tolerance: high}"], "tolerance"),
        (["numeric", "numeric"], "two verifiers are called 'numeric'"),
        (["numeric", "--token-file", "/nowhere/token"], "cannot be read"),
    ],
)
def test_a_wrong_start_is_one_message(arguments: list[str], words: str) -> None:
    with pytest.raises(AssertionError, match=words), served(*arguments):
        pass


def raw_socket(server: Server) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((str(parts.hostname), parts.port or 80), timeout=10)


def head(server: Server, path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {server.token}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()
