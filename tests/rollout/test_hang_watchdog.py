"""A verifier that blocks the whole interpreter ends the run with words; a run that is only stopped goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import re, sys, time
import rlvr
from rlvr.rollout import hang_watchdog

hang_watchdog.MIN_LIMIT_S = 1.5

def blocks(answer, reference):
    return bool(re.fullmatch(r"(a+)+b", "a" * 60))

def waits(answer, reference):
    print("in the verifier", flush=True)
    time.sleep(3)
    return True

env = rlvr.make_env([{"prompt": "2+2=", "answer": "4"}], verifier=globals()[sys.argv[1]])
report = rlvr.evaluate(env, policy=lambda prompt: "x", split="train", call_timeout_s=1.5 if sys.argv[1] == "blocks" else 20)
print(report.envs["Dataset"].mean_score.value)
"""


def start(which: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, which], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def has_watcher(pid: int) -> bool:
    return any(str(pid) in path.read_text().split("\0") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())


@pytest.mark.slow
def test_a_call_that_blocks_the_interpreter_ends_the_run_and_is_named() -> None:
    run = start("blocks")
    said = run.communicate(timeout=120)[1]
    assert run.returncode == -signal.SIGABRT
    assert "error: this process is aborted: for 1.5 s one call has held the lock" in said
    assert "{name: isolated, verifier: NAME}" in said
    assert "in blocks" in said
    assert not has_watcher(run.pid)


@pytest.mark.slow
def test_a_run_that_is_stopped_and_continued_is_left_alone() -> None:
    run = start("waits")
    assert run.stdout is not None
    assert run.stdout.readline() == "in the verifier\n"
    os.kill(run.pid, signal.SIGSTOP)
    time.sleep(5)
    os.kill(run.pid, signal.SIGCONT)
    out, said = run.communicate(timeout=120)
    assert (run.returncode, out) == (0, "in the verifier\n1.0\n"), said  # the first call was the trial before sampling
    assert not has_watcher(run.pid)
