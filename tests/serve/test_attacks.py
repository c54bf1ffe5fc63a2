"""`rlvr serve` against clients that are broken, slow or hostile: each gets its error, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.serve.served import VERIFIERS, Server, served, until

TOKEN = "a-token-of-the-tests-0123456789"
WORLDS = '''
import pathlib, time
from rlvr import Task, make_user_prompt
from rlvr.contracts import Environment, Session, StepResult, Verifier


class World(Session):
    def __init__(self, task, log):
        self.task, self.log, self.said = task, log, []

    def step(self, turn):
        word, _, rest = turn.text.partition(" ")
        if word == "sleep":
            time.sleep(float(rest))
        self.said.append(turn.text)
        return StepResult(({"role": "user", "content": f"turn {len(self.said)}"},), done=word == "end")

    def close(self):
        with self.log.open("a") as file:
            file.write(f"{self.task.id} closed\\n")


class Slow(Environment):
    """Opens after as many seconds as the split's index says."""

    needs = {"verifier": "exact"}
    max_turns = 50

    def __init__(self, *, verifier: Verifier, log: str) -> None:
        self.verifier, self.log = verifier, pathlib.Path(log)

    def task(self, split, index):
        return Task(make_user_prompt("?"), "end", id=f"slow/{split}/{index}", meta={"seconds": index / 10})

    def new_session(self, task, *, seed):
        time.sleep(task.meta["seconds"])
        return World(task, self.log)


class Odd(Verifier):
    """Its verdicts are no JSON."""

    def verify(self, task, answer):
        from rlvr import Verdict
        return Verdict(1.0, {"a set"} if answer == "odd" else "fine")
'''


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds") / "closed.txt"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "moody.py").write_text(VERIFIERS, "utf-8")
    (folder / "worlds.py").write_text(WORLDS, "utf-8")
    return str(folder / "moody.py"), str(folder / "worlds.py")


@pytest.fixture(scope="module")
def server(files: tuple[str, str], log: Path) -> Iterator[Server]:
    moody, worlds = files
    limits = ("--workers", "1", "--threads", "1", "--timeout", "1.5", "--request-timeout", "1", "--lease", "1", "--sessions", "20")
    plugins = ("numeric", f"{moody}:Moody", f"{worlds}:Odd", "--env", f"{{name: '{worlds}:Slow', log: '{log}'}}")
    with served(*plugins, *limits, "--max-body", "200000", token=TOKEN) as running:
        yield running


ROW = {"reference": "4", "answer": "4"}


def link_to(server: Server) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((str(parts.hostname), parts.port or 80), timeout=10)


def head(*headers: str, path: str = "/verify", token: str = TOKEN) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers, "", ""]).encode()


def status_of(link: socket.socket) -> int:
    """The status of the reply; 0 if the connection was closed without one."""
    try:
        data = link.recv(4096)
    except ConnectionResetError:
        return 0
    return int(data.split()[1]) if data else 0


def well(server: Server) -> bool:
    return bool(server.ask("/verify", ROW) == (200, {"id": None, "score": 1.0, "reason": "4 equals 4", "fault": "none"}))


# ---- connections


@pytest.mark.slow
def test_a_head_that_does_not_come_is_not_waited_for(server: Server) -> None:
    body = json.dumps(ROW).encode()
    with link_to(server) as silent, link_to(server) as dripping, link_to(server) as after:
        after.sendall(head(f"Content-Length: {len(body)}") + body)
        assert status_of(after) == 200
        began = time.monotonic()
        dripping.sendall(b"POST /verify HTTP/1.1\r\nX: ")
        after.sendall(b"POST /verify HT")  # the second request of a connection
        closed: dict[socket.socket, float] = {}
        for link in (silent, dripping, after):
            link.settimeout(0.05)
        while len(closed) < 3:
            assert time.monotonic() - began < 8, "a connection without a request is still open"
            for link in {silent, dripping, after} - closed.keys():
                with suppress(TimeoutError):
                    if over(link, drip=link is dripping):
                        closed[link] = time.monotonic() - began
    assert min(closed.values()) > 0.5 and well(server)


def over(link: socket.socket, *, drip: bool) -> bool:
    """Whether the server has closed a connection."""
    try:
        if drip:
            link.sendall(b"y")
        return not link.recv(100)
    except ConnectionError:
        return True


def test_a_refused_body_without_end_is_cut_off(server: Server) -> None:
    with link_to(server) as link:
        link.sendall(head("Transfer-Encoding: chunked") + b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        began = time.monotonic()
        with pytest.raises(OSError):  # the answer is 413, and the connection is closed after the time for a request
            while time.monotonic() - began < 15:
                link.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
                time.sleep(0.001)
    assert well(server)


@pytest.mark.parametrize(("token", "status"), [(TOKEN, 413), ("wrong" * 5, 401)])
def test_a_client_that_closes_its_connection_reads_why_a_large_body_was_refused(server: Server, token: str, status: int) -> None:
    """It sends the whole body first, as `urllib` does; a reset while it sends would hide the reply."""
    body = b"x" * 700_000
    with link_to(server) as link:
        link.sendall(head("Connection: close", f"Content-Length: {len(body)}", token=token))
        for start in range(0, len(body), 100_000):
            link.sendall(body[start : start + 100_000])
            time.sleep(0.02)
        assert status_of(link) == status
    assert well(server)


@pytest.mark.parametrize("token", [TOKEN, "wrong" * 5])
def test_a_body_of_a_million_parts_holds_up_nobody(server: Server, token: str) -> None:
    """Also without the token: the rest of a refused body is read, and each of its parts is parsed in the thread that serves all clients."""
    with link_to(server) as link:
        before = cpu_seconds(server)
        link.sendall(head("Transfer-Encoding: chunked", token=token))
        with suppress(OSError):
            for _ in range(100):
                link.sendall(b"1\r\n \r\n" * 10_000)
        link.settimeout(10)
        with suppress(ConnectionError):
            while link.recv(4096):
                pass
        assert cpu_seconds(server) - before < 1.0 and well(server)


def cpu_seconds(server: Server) -> float:
    """The time that the process of a service has used, without its workers."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("pause", "token"), [(0.0, TOKEN), (0.1, TOKEN), (0.0, "wrong" * 5)])
def test_a_body_that_is_not_http_is_an_error_without_a_trace(server: Server, pause: float, token: str) -> None:
    with link_to(server) as link:
        link.sendall(head("Transfer-Encoding: chunked", token=token) + (b"" if pause else b"no length\r\n"))
        time.sleep(pause)
        link.sendall(b"no length\r\n" if pause else b"")
        assert status_of(link) == 400
    time.sleep(0.1)
    assert "Traceback" not in "".join(server.said) and well(server)


def test_a_body_in_a_thousand_rows_each_a_part_is_read(server: Server) -> None:
    row = json.dumps(ROW).encode() + b" " * 40 + b"\n"
    parts = [b"%x\r\n%b\r\n" % (len(row), row) for _ in range(2000)]
    with link_to(server) as link:
        link.sendall(
            head("Transfer-Encoding: chunked", "Content-Type: application/x-ndjson", path="/verify/batch")
            + b"".join([*parts, b"0\r\n\r\n"])
        )
        assert status_of(link) == 200


def test_a_head_without_end_is_cut_off(server: Server) -> None:
    for one in (b"X: ", b""):  # one header without end, and headers without end
        with link_to(server) as link, pytest.raises(OSError):
            link.sendall(b"POST /verify HTTP/1.1\r\n" + one)
            for number in range(1000):
                link.sendall(b"y" * 4096 if one else b"X%d: %s\r\n" % (number, b"y" * 4096))
            raise AssertionError("four megabytes of a head were taken")
    assert well(server)


@pytest.mark.parametrize(
    ("headers", "body", "statuses"),
    [
        (["Content-Length: 5"], json.dumps(ROW).encode(), {400, 422}),
        (["Content-Length: 500"], json.dumps(ROW).encode(), {408}),
        (["Content-Length: -5"], b"", {400}),
        (["Content-Length: 1e3"], b"", {400}),
        (["Content-Length: 99999999999999999999"], b"", {400, 413}),
        (["Content-Length: 5", "Content-Length: 6"], b"xxxxxx", {400}),
        (["Content-Length: 5", "Transfer-Encoding: chunked"], b"0\r\n\r\n", {400, 422}),
        (["Transfer-Encoding: chunked"], b"zz\r\n", {0, 400, 408}),
        (["Transfer-Encoding: chunked"], b"-5\r\nxxxxx\r\n", {0, 400, 408}),
        (["Transfer-Encoding: chunked"], b"10\r\nx", {408}),
        (["Transfer-Encoding: chunked"], b"1c\r\n" + b'{"reference": 4, "answer":""' + b"\r\n1\r\n}\r\n0\r\n\r\n", {200}),
        (["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13", "Content-Length: 0"], b"",
         {400, 422}),
    ],
)  # fmt: skip
def test_wrong_lengths_are_refused(server: Server, headers: list[str], body: bytes, statuses: set[int]) -> None:
    with link_to(server) as link:
        link.sendall(head(*headers) + body)
        assert status_of(link) in statuses
    assert well(server)


# ---- contents


def test_nested_json_is_the_client_s_error_and_holds_nothing(server: Server) -> None:
    for depth in (300, 480, 900, 990, 3000, 90_000):
        nested = "[" * depth + "]" * depth
        for path, text in (
            ("/verify", '{"reference": "4", "answer": "4", "id": %s}'),
            ("/verify", '{"reference": %s, "answer": "4"}'),
            ("/verify", '{"reference": "4", "answer": "4", "meta": {"a": %s}}'),
            ("/verify", '{"response": {}, "responses_create_params": {}, "expected_answer": "4", "extra": %s}'),
            ("/openrlhf", '{"query": ["4"], "prompts": [""], "labels": [%s]}'),
            ("/sessions", '{"index": 0, "more": %s}'),
        ):
            began = time.monotonic()
            status, said = server.ask(path, raw=(text % nested).encode())
            assert status in (200, 201, 422, 503), (path, depth, status, said)
            assert time.monotonic() - began < 1.4, "it waited for the deadline"
    until(lambda: "rlvr_sessions_open 0\n" in server.ask("/metrics")[1])
    assert well(server)


def test_any_text_is_judged_and_given_back(server: Server) -> None:
    for text in ("\ud800", "\x00", "\u202e4", "٤", "4\u200b", "\U0001f600" * 100, "\r\n\u2028", "ﷺ"):
        status, said = server.ask("/verify", {**ROW, "id": text, "answer": text})
        assert status == 200 and said["id"] == text and said["score"] in (0.0, 1.0), text
    raw = b'\xff\xfe{"reference"\n' + b'{"reference": "4", "answer": "\xff"}\n' + b'{"reference": "4", "answer": "4", "id": NaN}\n'
    status, data, _ = server.exchange("/verify/batch", raw=raw, content_type="application/x-ndjson")
    said = {line["index"]: line for line in map(strict, data.splitlines())}
    assert status == 200 and "error" in said[0] and "error" in said[1] and (said[2]["score"], said[2]["id"]) == (1.0, "nan")


def strict(line: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_rows_with_the_same_id_have_their_own_verdicts(server: Server) -> None:
    said = server.lines([{**ROW, "id": "same", "answer": answer} for answer in ("4", "5", "4", "lots")])
    assert {line["index"]: line["score"] for line in said} == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}


def test_a_verdict_that_is_no_json_is_a_failure_at_once(server: Server) -> None:
    began = time.monotonic()
    said = {line["index"]: line for line in server.lines([{**ROW, "answer": "odd"}, ROW], "/verify/batch?verifier=Odd")}
    assert (said[0]["score"], said[0]["fault"], said[1]["score"]) == (None, "infra", 1.0) and time.monotonic() - began < 1.4


# ---- clients that leave


@pytest.mark.parametrize("path", ["/verify/batch", "/openrlhf"])
def test_rows_of_a_client_that_left_are_not_judged(server: Server, path: str) -> None:
    answers = ["sleep 0.2"] * 60
    body: Any = {"query": answers, "prompts": [""] * 60, "labels": ["4"] * 60}
    if path == "/verify/batch":
        body = {"rows": [{**ROW, "answer": answer} for answer in answers]}
    data = json.dumps(body).encode()
    link = link_to(server)
    link.sendall(head(f"Content-Length: {len(data)}", path=f"{path}?verifier=Moody") + data)
    until(lambda: "rlvr_rows_waiting 0\n" not in server.ask("/metrics")[1])
    began = time.monotonic()
    link.close()
    until(lambda: "rlvr_rows_waiting 0\n" in server.ask("/metrics")[1])
    assert time.monotonic() - began < 6.0  # all rows take twelve seconds
    assert well(server)


def test_the_log_has_no_text_of_a_client(server: Server) -> None:
    server.ask(f"/no%0Asuch-route?token={TOKEN}", ROW)
    server.ask("/verify", ROW, authorization="Bearer stolen-token-of-somebody")
    server.ask("/verify?verifier=my-secret-verifier", ROW)
    connection = link_to(server)
    connection.sendall(head("Content-Length: 500", path=f"/verify?my-secret={TOKEN}") + b"my-secret-body")
    connection.close()
    time.sleep(0.2)
    told = "".join(server.said)
    assert all(word not in told for word in (TOKEN, "stolen", "such-route", "my-secret"))
    assert "Traceback" not in told


# ---- sessions


def opened(server: Server, index: int = 0) -> str:
    status, said = server.ask("/sessions", {"index": index})
    assert status == 201, said
    return f"/sessions/{said['session']}"


def test_two_sessions_do_not_meet_and_one_has_one_call_at_a_time(server: Server) -> None:
    one, two = opened(server), opened(server)
    said = [server.ask(f"{path}/step", {"text": "x"})[1]["messages"][0]["content"] for path in (one, two, one, one)]
    assert said == ["turn 1", "turn 1", "turn 2", "turn 3"]
    slow = threading.Thread(target=lambda: server.ask(f"{one}/step", {"text": "sleep 0.5"}))
    slow.start()
    time.sleep(0.2)
    assert server.ask(f"{one}/step", {"text": "x"})[0] == server.ask(f"{one}/close", {})[0] == 409
    slow.join()
    assert server.ask(f"{two}/step", {"text": "end"})[1]["done"] is True
    assert server.ask(f"{two}/step", {"text": "end"})[0] == 422
    assert server.ask(f"{two}/close", {})[1]["verdict"]["score"] == 1.0
    assert server.ask(f"{one}/close", {"verify": False})[1] == {"closed": True}


def test_a_call_that_is_refused_leaves_its_session_as_it_was(server: Server) -> None:
    path = opened(server)
    told: list[int] = []
    flood = [threading.Thread(target=lambda: told.append(server.ask("/sessions", {"index": 9})[0])) for _ in range(8)]
    for thread in flood:
        thread.start()
    until(lambda: 429 in told)
    statuses = {server.ask(f"{path}/{call}", {"text": "x"})[0] for call in ("close", "step")}
    for thread in flood:
        thread.join()
    assert statuses == {429}, statuses
    assert server.ask(f"{path}/step", {"text": "x"})[0] in (200, 410)  # 410: its lease ended meanwhile; never busy for ever
    until(lambda: "rlvr_sessions_open 0\n" in server.ask("/metrics")[1])


def test_what_opens_too_late_is_closed(server: Server, log: Path) -> None:
    assert server.ask("/sessions", {"index": 25})[0] == 504  # it opens after 2.5 s, and 1.5 s are allowed
    until(lambda: log.exists() and "slow/train/25 closed" in log.read_text())


def test_a_session_whose_client_left_before_the_reply_is_closed(server: Server) -> None:
    body = json.dumps({"split": "train", "index": 2}).encode()
    before = open_sessions(server)
    for _ in range(4):
        with link_to(server) as link:
            link.sendall(head(f"Content-Length: {len(body)}", path="/sessions") + body)
            time.sleep(0.05)
    began = time.monotonic()
    while not (opened := open_sessions(server) > before):  # they open one after the other
        assert time.monotonic() - began < 5
    until(lambda: open_sessions(server) <= before, 0.9)  # the lease alone would take a second
    assert opened


def open_sessions(server: Server) -> int:
    return int(server.ask("/metrics")[1].rpartition("rlvr_sessions_open ")[2].partition("\n")[0])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("rebound.example", ""),
        ("localhost@page.example", ""),
        ("", "https://page.example"),
        ("", "null"),
        ("", "http://localhost.page.example"),
    ],
)
def test_a_web_page_reaches_no_service_without_a_token(open_server: Server, host: str, origin: str) -> None:
    named = {name: value for name, value in (("host", host), ("origin", origin)) if value}
    for path, body in (("/verify", ROW), ("/metrics", None)):
        status, data, _ = open_server.exchange(path, body, raw=None, method="", **named)
        assert status == 403 and b"start it with a token" in data
    assert open_server.exchange("/healthz", method="GET", raw=None, **named)[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_reaches_it(open_server: Server, host: str) -> None:
    assert open_server.ask("/verify", ROW, host=f"{host}:8765", origin=f"http://{host}")[0] == 200


@pytest.fixture(scope="module")
def open_server() -> Iterator[Server]:
    """A service without a token."""
    with served("numeric", "--workers", "1") as running:
        yield running


def test_a_lease_ends_and_its_world_is_closed(server: Server, log: Path) -> None:
    path = opened(server, 1)
    until(lambda: log.exists() and "slow/train/1 closed" in log.read_text())
    assert server.ask(f"{path}/step", {"text": "x"})[0] == 410


# ---- the end


@pytest.mark.slow
def test_a_stop_under_load_ends_in_time_and_tells_no_zero(files: tuple[str, str]) -> None:
    rows = [{**ROW, "id": number, "answer": "sleep 0.1"} for number in range(200)]
    found: list[bytes] = []

    def client() -> None:
        try:
            found.append(running.exchange("/verify/batch", {"rows": rows})[1])
        except (http.client.HTTPException, OSError) as error:
            found.append(getattr(error, "partial", b""))

    with served(f"{files[0]}:Moody", "--workers", "1", "--threads", "1", "--grace", "1") as running:
        clients = [threading.Thread(target=client) for _ in range(4)]
        idle, slow = link_to(running), link_to(running)
        slow.sendall(head("Content-Length: 100").replace(b"Host: x", b"Host: localhost"))
        for thread in clients:
            thread.start()
        until(lambda: "rlvr_rows_waiting 0\n" not in running.ask("/metrics")[1])
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(15) == 0 and time.monotonic() - began < 12
        assert status_of(slow) == 503
        for thread in clients:
            thread.join(10)
        idle.close()
        slow.close()
    lines = [json.loads(line) for data in found for line in data.split(b"\n") if line.endswith(b"}")]
    assert {line["score"] for line in lines} <= {1.0, None} and len(lines) < 800


@pytest.mark.slow
def test_a_session_for_which_there_is_no_box_is_refused_at_once_and_the_others_go_on() -> None:
    env = "{name: shell, sandbox: {name: process, trusted: true, max_sessions: 2}}"
    limits = ("--workers", "1", "--threads", "2", "--timeout", "20", "--open-wait", "0")
    with served("exact", "--env", env, *limits, token=TOKEN) as server:
        opened = [server.ask("/sessions", {"index": i}) for i in range(2)]
        assert [status for status, _ in opened] == [201, 201], opened
        began = time.monotonic()
        refused = [server.exchange("/sessions", {"index": 2 + i}) for i in range(6)]
        assert {status for status, _, _ in refused} == {429} and b"all 2 sessions are open" in refused[0][1]
        assert all(headers["retry-after"] == "5" for *_, headers in refused)
        status, said = server.ask(f"/sessions/{opened[0][1]['session']}/step", {"text": "no call"})
        assert status == 200 and said["done"] and time.monotonic() - began < 10  # in vain they had waited for 20 s each, with both threads
        assert server.ask(f"/sessions/{opened[0][1]['session']}/close", {"verify": False})[0] == 200
        assert server.ask("/sessions", {"index": 9})[0] == 201


def test_opens_wait_for_a_session_in_their_order_and_hold_no_thread() -> None:
    env = "{name: shell, sandbox: {name: process, trusted: true, max_sessions: 2}}"
    limits = ("--workers", "1", "--threads", "2", "--timeout", "60", "--open-wait", "60")
    with served("exact", "--env", env, *limits, token=TOKEN) as server:
        held = [server.ask("/sessions", {"index": i})[1]["session"] for i in range(2)]
        left = http.client.HTTPConnection(server.url.removeprefix("http://"))  # waits first, and leaves
        left.request("POST", "/sessions", json.dumps({"index": 9}), {"authorization": f"Bearer {TOKEN}"})
        got: list[tuple[int, int]] = []
        waiting = []
        for number in range(2):
            thread = threading.Thread(target=lambda number=number: got.append((number, server.ask("/sessions", {"index": number})[0])))
            thread.start()
            waiting.append(thread)
            time.sleep(0.2)  # so that they arrive in this order
        assert not got
        status, said = server.ask(f"/sessions/{held[0]}/step", {"text": "no call"})
        assert status == 200 and said["done"]  # while three wait
        left.close()
        assert server.ask(f"/sessions/{held[0]}/close", {"verify": False})[0] == 200
        until(lambda: got)
        assert got == [(0, 201)] and server.ask("/healthz")[0] == 200
        assert server.ask(f"/sessions/{held[1]}/close", {"verify": False})[0] == 200
        until(lambda: len(got) == 2)
        assert got[1] == (1, 201)
        for thread in waiting:
            thread.join()
        assert "rlvr_sessions_open 2\n" in server.ask("/metrics")[1]
