"""The algebra workers: killed, stopped or given too much, they change no verdict and outlive nobody."""

from __future__ import annotations

import concurrent.futures
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers._workers import pool as workers
from rlvr.verifiers._workers.pool import BudgetExceeded, WorkersFailed
from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.math.values.algebra_pool import AlgebraPool
from rlvr.verifiers.symbolic import Symbolic

# only a proof counts for absolute values, so these pairs reach the workers; the wrong ones part where no sample point lies
PAIRS = [(f"|x-{n}|", f"|{n}-x|") for n in range(2, 42)]
PAIRS += [(f"|x-{n}|", f"{n}-x") for n in range(1000, 1004)]
SLOW = parse_answer(r"|(\sin x+\cos x+\tan x+\cot x+\sec x+1)^{12}+\sqrt{1+\sin^2 x}|")


def scores(verifier: Symbolic) -> list[float | None]:
    return [ask(verifier, *pair).score for pair in PAIRS]


def ask(verifier: Symbolic, gold: str, answer: str) -> Verdict:
    return verifier.verify(Task(make_user_prompt("?"), id="t", reference=gold), answer)


@pytest.fixture
def pool() -> Iterator[AlgebraPool]:
    made = AlgebraPool(1, cpu_s=0.4, wall_factor=2.0)
    yield made
    made.close()


def wait_for(pool: AlgebraPool, count: int) -> set[int]:
    """The processes of a pool, as soon as there are so many."""
    deadline = time.monotonic() + 60
    while len(pool.list_pids()) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(pool.list_pids()) == count
    return set(pool.list_pids())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_pairs_reach_the_workers() -> None:
    with Symbolic() as verifier:
        assert ask(verifier, *PAIRS[0]).score == 1.0
        pids = verifier.pool.list_pids()
        assert len(pids) == 1
    assert not any(alive(pid) for pid in pids)


def test_workers_start_when_they_are_needed_or_long_work_begins() -> None:
    with Symbolic() as verifier:
        assert ask(verifier, "1/2", "0.5").score == 1.0
        assert verifier.pool.list_pids() == []
        verifier.prepare()
        both = wait_for(verifier.pool, 2)
        assert scores(verifier) == scores(verifier)
        assert set(verifier.pool.list_pids()) == both


def test_closing_ends_what_is_asked_and_leaves_no_process() -> None:
    pool = AlgebraPool(1, cpu_s=60)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.is_equal, SLOW, parse_answer("|x|"), pool.new_budget()) for _ in range(2)]  # one of them waits
        pids = wait_for(pool, 1)
        pool.close()
        assert all(isinstance(future.exception(30), WorkersFailed) for future in asked)
    assert pool.list_pids() == [] and not any(map(alive, pids))
    assert pool.is_equal(parse_answer("|x-1|"), parse_answer("|1-x|"), pool.new_budget()) is True
    pool.close()


def test_killing_workers_changes_no_verdict() -> None:
    with Symbolic() as verifier:
        undisturbed = scores(verifier)
    assert 0.0 in undisturbed and 1.0 in undisturbed
    with Symbolic(workers=2) as verifier, concurrent.futures.ThreadPoolExecutor(4) as threads:
        kills = 0
        for start in range(0, len(PAIRS), 11):
            some = threads.map(lambda pair: ask(verifier, *pair).score, PAIRS[start : start + 11])
            for pid in verifier.pool.list_pids():  # both, while they are asked
                os.kill(pid, signal.SIGKILL)
                kills += 1
            assert list(some) == undisturbed[start : start + 11]
        assert kills >= 4


def test_a_spawned_process_gets_a_verifier_with_workers_of_its_own() -> None:
    with (
        Symbolic(conventions={"units": "required"}) as verifier,
        concurrent.futures.ProcessPoolExecutor(1, mp.get_context("spawn")) as processes,
    ):
        assert ask(verifier, *PAIRS[0]).score == 1.0
        tasks = [Task(make_user_prompt("?"), id="t", reference=gold) for gold, _ in (*PAIRS[:2], ("5 cm", "5"))]
        answers = [*(answer for _, answer in PAIRS[:2]), "5"]
        there = list(processes.map(verifier.verify, tasks, answers))
        assert [verdict.score for verdict in there] == [1.0, 1.0, 0.0]
        assert there[2].detail == {"conventions": {"units": "required"}}


def test_too_much_algebra_is_the_answers_fault_and_the_next_question_is_answered(pool: AlgebraPool) -> None:
    with pytest.raises(BudgetExceeded):
        pool.is_equal(SLOW, parse_answer("|x|"), pool.new_budget())
    assert pool.is_equal(parse_answer("|x-1|"), parse_answer("|1-x|"), pool.new_budget()) is True


def test_a_budget_is_spent_only_once(pool: AlgebraPool) -> None:
    budget = pool.new_budget()
    with pytest.raises(BudgetExceeded):
        pool.is_equal(SLOW, parse_answer("|x|"), budget)
    start = time.process_time()
    with pytest.raises(BudgetExceeded):
        pool.is_equal(parse_answer("|x-1|"), parse_answer("|1-x|"), budget)
    assert time.process_time() - start < 0.2


def test_a_worker_that_is_stopped_is_replaced_and_nobody_is_blamed(pool: AlgebraPool) -> None:
    assert pool.is_equal(parse_answer("|x-1|"), parse_answer("|1-x|"), pool.new_budget()) is True
    (stopped,) = pool.list_pids()
    os.kill(stopped, signal.SIGSTOP)
    assert pool.is_equal(parse_answer("|x-2|"), parse_answer("|2-x|"), pool.new_budget()) is True
    assert not alive(stopped)
    assert pool.list_pids() != [stopped]


def test_a_worker_that_is_killed_while_it_starts_is_started_again(pool: AlgebraPool) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asked = threads.submit(pool.is_equal, parse_answer("|x-1|"), parse_answer("|1-x|"), pool.new_budget())
        for _ in range(5):
            (starting,) = wait_for(pool, 1)
            os.kill(starting, signal.SIGKILL)
            while starting in pool.list_pids():
                time.sleep(0.01)
        assert asked.result(60) is True


def test_a_dead_pool_gives_no_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)\n", "utf-8")
    monkeypatch.setattr(workers, "WORKER_FILE", broken)
    with Symbolic() as verifier:
        verdict = ask(verifier, *PAIRS[0])
        assert verdict.score is None and verdict.fault is Fault.INFRA
        assert ask(verifier, "1/2", "0.5").score == 1.0
        with pytest.raises(WorkersFailed):
            verifier.pool.is_equal(parse_answer("|x|"), parse_answer("|-x|"), verifier.pool.new_budget())
        monkeypatch.undo()
        assert ask(verifier, *PAIRS[0]).score == 1.0  # a fault of the machinery is not remembered


def test_memory_is_limited() -> None:
    pool = AlgebraPool(1, cpu_s=1.5, memory_mb=300)
    try:
        with pytest.raises(BudgetExceeded):
            pool.is_equal(("fun", "abs", ("pow", ("num", 7, 1), ("num", 10**10, 1))), ("sym", "x"), pool.new_budget())
        assert pool.is_equal(parse_answer("|x-1|"), parse_answer("|1-x|"), pool.new_budget()) is True
    finally:
        pool.close()


def test_an_interpreter_that_ends_without_closing_leaves_no_worker() -> None:
    code = (
        "from rlvr.verifiers.symbolic import Symbolic; from rlvr.task import Task, make_user_prompt\n"
        "v = Symbolic(); v.verify(Task(make_user_prompt('?'), '|x-1|', id='t'), '|1-x|'); print(v.pool.list_pids()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 20
    while alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(done.stdout))
