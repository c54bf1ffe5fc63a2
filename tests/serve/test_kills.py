"""Worker processes that are killed again and again: rows that did not cause it keep their verdicts."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from rlvr.serve.chunks import MAX_SHARED_DEATHS, FairQueue, RowChunk
from rlvr.serve.metrics import ServiceMetrics
from rlvr.serve.pool import MAX_DEATHS_HOLDING, MAX_DEATHS_VERIFYING, ServicePool, WorkerProcess
from tests.serve.served import ROOT, VERIFIERS, served, until

LINE = b'{"reference": "4", "answer": "4"}'


@pytest.fixture
def moody(tmp_path: Path) -> str:
    path = tmp_path / "moody.py"
    path.write_text(VERIFIERS, "utf-8")
    return f"{path}:Moody"


@pytest.fixture
def pool() -> Iterator[ServicePool]:
    """A pool whose processes are not started."""
    made = ServicePool({"verifiers": {"numeric": "numeric"}, "threads": 2}, workers=1, metrics=ServiceMetrics())
    yield made
    asyncio.run(made.close())


def batch(*answers: str) -> list[dict[str, Any]]:
    return [{"id": place, "reference": "4", "answer": answer} for place, answer in enumerate(answers)]


def test_workers_that_are_killed_while_they_start_cost_no_verdict(moody: str) -> None:
    with served(moody, "--workers", "2", "--threads", "1") as running:
        until(lambda: running.ask("/healthz")[1]["workers"] == 2)
        found: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: found.extend(running.lines(batch(*["sleep 0.05"] * 20))))
        asking.start()
        until(lambda: "rlvr_rows_waiting 0\n" not in running.ask("/metrics")[1])
        killed = set[int]()

        def kill_new() -> bool:
            for pid in set(running.workers()) - killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            return len(killed) >= 16

        until(kill_new, 30)
        asking.join(30)
        assert [line["score"] for line in sorted(found, key=lambda line: line["index"])] == [1.0] * 20, found


def test_a_row_under_suspicion_does_not_wait_for_all_others(pool: ServicePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only process that is left gets no more of the queue until it is empty, and then the row, with nothing else."""
    monkeypatch.setattr(WorkerProcess, "send_chunk", lambda hand, number, chunk: hand.running_chunks.update({number: chunk}))
    [hand] = pool.worker_processes
    hand.is_ready = True
    rows = [RowChunk("numeric", [LINE], place, [].append) for place in range(9)]  # type: ignore[arg-type]  # each of a request of its own
    for row in rows[:8]:
        pool.queue.append(row)
    pool.dispatch()
    assert len(hand.running_chunks) == pool.max_chunks
    pool.quarantined.append(rows[8].slice_rows(range(1), num_deaths_verifying=1, num_deaths_holding=1))
    for left in range(pool.max_chunks - 1, 0, -1):
        hand.running_chunks.pop(min(hand.running_chunks))
        pool.dispatch()
        assert len(hand.running_chunks) == left and not hand.has_quarantined_row
    hand.running_chunks.clear()
    pool.dispatch()
    assert [chunk.num_deaths_verifying for chunk in hand.running_chunks.values()] == [1]
    hand.running_chunks.clear()
    pool.dispatch()
    assert len(hand.running_chunks) == pool.max_chunks and not hand.has_quarantined_row


def test_a_process_whose_threads_hang_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "moody.py"
    path.write_text(f"{VERIFIERS}\nimport rlvr.mdp.verifier_executor\n\nrlvr.mdp.verifier_executor.MAX_HUNG_THREADS = 2\n", "utf-8")
    with served(f"{path}:Moody", "--workers", "1", "--threads", "1", "--timeout", "0.3") as running:
        found = running.lines(batch(*["sleep 900"] * 5, "4"))
        assert [line["score"] for line in sorted(found, key=lambda line: line["index"])] == [None] * 5 + [1.0], found


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """A verifier that keeps the lock of Python for years if the answer is `LOCKING`."""
    path = tmp_path / "pattern.py"
    path.write_text(
        "import re\n\n\ndef pattern(answer, reference):\n    return bool(re.match('(a+)+$', answer)) or answer == reference\n", "utf-8"
    )
    return f"{path}:pattern"


LOCKING = {"reference": "4", "answer": "a" * 60 + "b"}


def test_a_process_whose_lock_of_python_is_kept_does_not_outlive_the_server(pattern: str) -> None:
    with served(pattern, "--workers", "1", "--timeout", "1") as running:
        (worker,) = running.workers()

        def ask() -> None:
            with suppress(OSError, HTTPException):
                running.ask("/verify", LOCKING)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(1)
        running.process.kill()
        running.process.wait()
        until(lambda: not Path(f"/proc/{worker}").exists(), 30)
        asking.join()


def test_a_process_whose_first_row_keeps_the_lock_of_python_ends_by_itself(pattern: str, tmp_path: Path) -> None:
    """The row arrives before the process has sent a heartbeat."""
    settings = {"verifiers": {"pattern": pattern}, "slots": 2, "threads": 1, "call_timeout_s": 1.0, "max_silence_s": 1.5}
    row = json.dumps(LOCKING).encode()
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "marks").open("w+b") as marks:
        command = [sys.executable, "-m", "rlvr.serve.worker", str(theirs.fileno()), str(marks.fileno())]
        worker = subprocess.Popen(command, pass_fds=[theirs.fileno(), marks.fileno()], cwd=ROOT)
        ours.sendall(json.dumps(settings).encode() + b"\nV 1 0 0 pattern %d\n" % len(row) + row)
        try:
            assert worker.wait(60) == 1
        finally:
            worker.kill()
            worker.wait()


def test_an_answer_that_keeps_the_lock_of_python_gets_no_score_in_its_time_and_holds_up_no_other(pattern: str) -> None:
    with served(pattern, "--workers", "2", "--timeout", "1") as running:
        until(lambda: running.ask("/healthz")[1]["workers"] == 2)
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(running.ask("/verify", LOCKING)))
        asking.start()
        time.sleep(2)  # the process is known to be silent
        waited = []
        while asking.is_alive():
            began = time.monotonic()
            assert running.ask("/verify", {"reference": "4", "answer": "4"})[1]["score"] == 1.0
            waited.append(time.monotonic() - began)
            time.sleep(0.1)
        asking.join()
    assert found[0][1] == {"id": None, "score": None, "reason": "the verifier gave no verdict within 1 s", "fault": "infra"}, found
    assert len(waited) < 100 and max(waited) < 1.5, waited


def test_a_row_that_is_judged_again_does_not_wait_for_all_others(moody: str, tmp_path: Path) -> None:
    with served(moody, "--workers", "2", "--threads", "1") as running:
        until(lambda: running.ask("/healthz")[1]["workers"] == 2)
        found = running.lines(batch(f"die-once {tmp_path / 'once'}", *["sleep 0.02"] * 300))
        order = [line["index"] for line in found]
        assert {line["score"] for line in found} == {1.0} and order.index(0) < 200, order.index(0)


def test_only_the_row_that_was_judged_when_a_process_died_is_under_suspicion(pool: ServicePool) -> None:
    told: list[bytes] = []
    chunk = RowChunk("numeric", [LINE] * 6, 10, lambda lines, count: told.append(lines))
    pool.num_waiting_rows = 6
    chunk.pending_rows -= {0}
    pool.retry_chunk(chunk, {2})
    assert [(one.first_index, one.num_deaths_verifying) for one in pool.quarantined] == [(12, 1)]
    assert sorted((part.first_index, len(part.rows), part.num_deaths_verifying) for part in pool.queue) == [(11, 1, 0), (13, 3, 0)]
    while pool.quarantined:  # it is alone now; a death before it was judged does not count against it
        one = pool.quarantined.popleft()
        pool.retry_chunk(one, {0} if one.num_deaths_holding % 2 else ())
    [line] = told
    assert b'"index": 12,' in line and b"died %d times" % MAX_DEATHS_VERIFYING in line and b'"score": null' in line


@pytest.mark.parametrize("cut", [b"V 1 0 2 0", b"V 1 0 2 0.00 1", b"V 1 0 2 0.001 9\n{"])
def test_a_message_that_is_cut_tells_no_row(pool: ServicePool, cut: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process dies while it writes: where the count of the rows arrived and their verdicts did not, they are judged again."""
    program = tmp_path / "cut.py"
    lines = (f"#!{sys.executable}", "import os, sys", "os.read(int(sys.argv[3]), 9999)", f"os.write(int(sys.argv[3]), {cut!r})", "")
    program.write_text("\n".join(lines), "utf-8")
    program.chmod(0o700)
    monkeypatch.setattr("rlvr.serve.pool.sys.executable", str(program))
    told: list[bytes] = []
    [hand] = pool.worker_processes
    pool.num_waiting_rows, hand.running_chunks = 2, {1: RowChunk("numeric", [LINE] * 2, 0, lambda lines, count: told.append(lines))}

    async def life() -> None:
        with suppress(EOFError):
            await hand._run_process()
        hand._handle_death()

    asyncio.run(asyncio.wait_for(life(), 30))
    assert told == [] and pool.num_waiting_rows == 2 and [chunk.pending_rows for chunk in pool.queue] == [{0, 1}]


def test_a_row_that_is_lost_too_often_is_judged_alone_and_at_last_given_up(pool: ServicePool) -> None:
    told: list[bytes] = []
    pool.queue.append(RowChunk("numeric", [LINE] * 2, 0, lambda lines, count: told.append(lines)))
    pool.num_waiting_rows, deaths = 2, 0
    while pool.num_waiting_rows:
        deaths += 1
        held = [*pool.queue, *pool.quarantined]
        assert all(part.needs_own_process == (deaths > MAX_SHARED_DEATHS) for part in held) and len(held) == (
            2 if deaths > MAX_SHARED_DEATHS else 1
        )
        while pool.queue.take():
            pass
        pool.quarantined.clear()
        for part in held:
            pool.retry_chunk(part, ())
    assert deaths == MAX_DEATHS_HOLDING and len(told) == 2 and all(b'"fault": "infra"' in line for line in told)


def test_slow_answers_of_one_client_leave_room_for_another(moody: str) -> None:
    with served(moody, "--workers", "1", "--threads", "4") as running:
        running.lines(batch(*["sleep 0.3"] * 4))  # the service knows that rows are slow, so that each is a chunk of its own
        slow = threading.Thread(target=running.lines, args=(batch(*["sleep 0.3"] * 60),))
        slow.start()  # 6 s of work for three threads
        until(lambda: "rlvr_rows_waiting 0\n" not in running.ask("/metrics")[1])
        began = time.monotonic()
        found = running.lines(batch(*["4"] * 3))
        waited, is_going_on = time.monotonic() - began, slow.is_alive()
        slow.join(60)
    assert {line["score"] for line in found} == {1.0} and is_going_on and waited < 3, waited


def test_slow_answers_of_one_chunk_do_not_wait_for_each_other(moody: str) -> None:
    with served(moody, "--workers", "1", "--threads", "8", "--timeout", "2") as running:
        running.lines(batch(*["4"] * 600))  # the service knows that rows are fast, so that many are one chunk
        began = time.monotonic()
        found = running.lines(batch(*["sleep 20"] * 8, *["4"] * 40))
        waited = time.monotonic() - began
    assert len(found) == 48 and {line["score"] for line in found if line["index"] >= 8} == {1.0}
    assert [line["fault"] for line in found if line["index"] < 8] == ["infra"] * 8
    assert waited < 10, waited  # one after the other: 16 s


def test_a_slow_answer_holds_up_none_behind_it(moody: str) -> None:
    with served(moody, "--workers", "1", "--threads", "4") as running:
        running.lines(batch(*["4"] * 600))
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=30)
        connection.request("POST", "/verify/batch", json.dumps({"rows": batch("sleep 6", *["4"] * 40)}))
        began, reply = time.monotonic(), connection.getresponse()
        first = [json.loads(reply.readline()) for _ in range(40)]
        waited = time.monotonic() - began
        last = json.loads(reply.readline())
        connection.close()
    assert waited < 4 and {line["index"] for line in first} == {*range(1, 41)}, waited
    assert last["index"] == 0 and last["score"] == 1.0


def test_rows_that_are_given_back_after_the_slow_one_ended_leave_no_chunk_behind(pool: ServicePool) -> None:
    (worker, *_), told = pool.worker_processes, list[bytes]()
    worker.running_chunks[1] = RowChunk("numeric", [LINE] * 3, 7, lambda lines, count: told.append(lines))
    pool.num_waiting_rows = 3
    worker._handle_message([b"V", b"1", b"0", b"1", b"0.0", b"0"], b"")
    worker._handle_message([b"G", b"1", b"1", b"2", b"0"], b"")
    assert not worker.running_chunks and pool.num_waiting_rows == 2 and len(told) == 1
    assert sorted(chunk.first_index + at for chunk in pool.queue for at in range(len(chunk.rows))) == [8, 9]


def test_the_queue_takes_from_each_request_in_turn() -> None:
    queue, clients = FairQueue(), [lambda lines, count: None for _ in range(3)]
    for client, count in zip(clients, (5, 1, 2), strict=True):
        for place in range(count):
            queue.append(RowChunk("numeric", [LINE], place, client))
    assert len(queue) == len([*queue]) == 8
    order = [clients.index(chunk.on_lines) for chunk in iter(queue.take, None)]
    assert order == [0, 1, 2, 0, 2, 0, 0, 0] and not queue
    queue.append(RowChunk("numeric", [LINE], 0, clients[0]))
    queue.append(RowChunk("numeric", [LINE], 0, clients[1]))
    taken = queue.take(lambda chunk: chunk.on_lines is clients[1])
    assert taken is not None and taken.on_lines is clients[1] and len(queue) == 1
    assert queue.take(lambda chunk: chunk.on_lines is clients[1]) is None and len(queue) == 1


def test_a_session_is_opened_while_the_only_worker_is_replaced() -> None:
    """No session is lost that was never opened; so it is with other calls."""
    with served("--env", "guess_number", "--workers", "1") as running:
        for path in ("/sessions", "/tasks"):
            (pid,) = running.workers()
            os.kill(pid, signal.SIGKILL)
            until(lambda gone=pid: gone not in running.workers())
            status, said = running.ask(path, {"split": "test", "index": 3})
            assert status in (200, 201), said
