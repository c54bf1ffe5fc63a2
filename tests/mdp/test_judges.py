"""The judges: as many at once as asked for, in order, and never in the way of the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from rlvr.mdp.verifier_executor import DaemonThreadExecutor

CHILD = """
import time
from rlvr.contracts import SamplingParams, Verifier
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.rollout.rollout import RolloutRequest, Rollout
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.mdp.tokenizers import load_tokenizer
from tests.fixtures.worlds import TOKENS, Sums

class Hangs(Verifier):
    def verify(self, task, answer):
        time.sleep(120)

environment, tokenizer, sampler = Sums(verifier=Hangs()), load_tokenizer(TOKENS), ScriptedSampler()
sampler.setup(environment, tokenizer)
with Rollout(TokenMDP(environment, tokenizer), sampler=sampler, call_timeout_s=0.2) as rollout:
    [episode] = rollout.collect([RolloutRequest(environment.task("train", 0), "g", 0)], SamplingParams(stop_ids=tokenizer.stop_ids))
print(episode.error)
"""


def test_a_process_ends_while_a_verifier_hangs() -> None:
    root, began = Path(__file__).parents[2], time.monotonic()
    done = subprocess.run([sys.executable, "-c", CHILD], cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "no verdict within 0.2 s" in done.stdout and time.monotonic() - began < 60


def test_no_more_than_so_many_at_once_and_all_in_order() -> None:
    judges, gate, begun = DaemonThreadExecutor(2), threading.Event(), []

    def work(number: int) -> int:
        begun.append(number)
        gate.wait(20)
        return number

    waiting = [judges.submit(work, number) for number in range(6)]
    while len(begun) < 2:
        time.sleep(0.01)
    time.sleep(0.1)
    assert sorted(begun) == [0, 1] and waiting[3].cancel() and not waiting[0].cancel()
    gate.set()
    assert [w.result(20) for w in waiting if not w.cancelled()] == [0, 1, 2, 4, 5]
    judges.close()


def test_what_goes_wrong_is_told_to_who_waits_and_the_next_is_judged() -> None:
    judges = DaemonThreadExecutor(1)
    wrong = judges.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        wrong.result(20)
    assert judges.submit(int, "3").result(20) == 3
    judges.close()


def test_closing_drops_what_has_not_begun_and_ends_the_threads() -> None:
    before, judges, gate, here = set(threading.enumerate()), DaemonThreadExecutor(1), threading.Event(), threading.Event()

    def work() -> bool:
        here.set()
        return gate.wait(20)

    first = judges.submit(work)
    second = judges.submit(int, "3")
    assert here.wait(20)
    judges.close()
    with pytest.raises(CancelledError):
        second.result(20)
    with pytest.raises(RuntimeError, match="closed"):
        judges.submit(int, "3")
    gate.set()
    assert first.result(20)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def test_no_more_than_so_many_threads_that_hang_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.mdp.verifier_executor.MAX_HUNG_THREADS", 2)
    judges, gate = DaemonThreadExecutor(1), threading.Event()
    for _ in range(3):
        hung = judges.submit(gate.wait, 20)
        until = time.monotonic() + 5
        while not hung.running() and time.monotonic() < until:
            time.sleep(0.005)
        judges.abandon(hung)
    waits = judges.submit(max, 3, 4)
    time.sleep(0.1)
    assert not waits.done() and judges.max_workers == 3
    gate.set()
    assert waits.result(20) == 4
    judges.close()


def test_coroutines_wait_without_a_thread_each() -> None:
    async def waits(number: int) -> int:
        await asyncio.sleep(0.3)
        return number

    judges = DaemonThreadExecutor(2)
    began = time.monotonic()
    jobs = [judges.submit(waits, number) for number in range(50)]
    assert [job.result(timeout=10) for job in jobs] == list(range(50))
    assert time.monotonic() - began < 5 and len(judges._threads) <= 2
    judges.close()


def test_a_coroutine_that_raises_or_is_given_up_harms_no_other() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    ended = threading.Event()

    async def hangs() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    judges = DaemonThreadExecutor(1)
    with pytest.raises(ValueError, match="broken"):
        judges.submit(fails).result(timeout=10)
    job = judges.submit(hangs)
    time.sleep(0.1)
    judges.abandon(job)
    assert ended.wait(10) and judges.submit(max, 1, 2).result(timeout=10) == 2
    last = judges.submit(hangs)
    time.sleep(0.1)
    judges.close()
    with pytest.raises(CancelledError):
        last.result(timeout=10)
