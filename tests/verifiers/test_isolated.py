"""No answer can stop a run through a verifier in worker processes, and what fails for every answer costs none its score."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.contracts import Verifier
from rlvr.errors import ConfigError, VerifierError
from rlvr.mdp.answer_faults import verify_recorded_answer
from rlvr.verifiers._workers.pool import WorkersFailed

SOURCE = """
import os, re, subprocess, sys, threading, time

def returns_twice(answer, reference):
    if answer == "bad":
        os.fork()
    return answer == reference

def starts_a_program(answer, reference):
    if answer == "bad":
        subprocess.Popen(["sleep", "4711"])
    return answer == reference

def writes_replies(answer, reference):
    if answer == "bad":
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b'{"verdict": {"score": 1.0}}\\n')
            except OSError:
                pass
    return answer == reference

def leaves_threads(answer, reference):
    def spin():
        while True:
            pass
    if answer == "bad":
        for _ in range(3):
            threading.Thread(target=spin, daemon=True).start()
    else:
        began = time.thread_time()
        while time.thread_time() - began < 0.3:
            pass
    return answer == reference

def score(answer, reference):
    print("what a verifier prints is no reply")
    if reference == "broken":
        os.kill(os.getpid(), 9)
    if answer == "die":
        os.kill(os.getpid(), 9)
    if answer == "exit":
        sys.exit(3)
    if answer == "much":
        return len(bytearray(10**11))
    if answer.startswith("9") and 9 ** (9 ** len(answer)) == 0:
        return 1
    return answer == reference or bool(re.fullmatch(r"(a+)+b", answer))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("isolated") / "mine.py"
    made.write_text(SOURCE)
    return made


@pytest.fixture(scope="module")
def verifier(path: Path) -> Iterator[Verifier]:
    made = rlvr.make_verifier("isolated", verifier=f"{path}:score", cpu_s=0.5, workers=1)
    yield made
    made.close()


@pytest.mark.parametrize("answer", ["a" * 60, "9" * 20, "die", "much"])
def test_an_answer_that_hangs_or_kills_the_verifier_scores_0_and_disturbs_no_other(verifier: Verifier, answer: str) -> None:
    verdict = rlvr.verify(verifier, answer=answer, reference="4")
    assert (verdict.score, verdict.fault) == (0.0, "answer"), verdict
    assert [rlvr.verify(verifier, answer=text, reference="4").score for text in ("4", "5", "\ud800")] == [1.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["returns_twice", "starts_a_program", "writes_replies", "leaves_threads"])
def test_no_answer_touches_another_one_and_nothing_is_left(path: Path, function: str) -> None:
    made = rlvr.make_verifier("isolated", verifier=f"{path}:{function}", cpu_s=0.8, workers=1)
    texts = ["4", "bad", "4", "5", "bad", "4", "4", "5"]
    assert [rlvr.verify(made, answer=text, reference="4").score for text in texts] == [float(text == "4") for text in texts]
    made.close()
    lines = [line for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists() and (line := path.read_bytes())]
    assert not [line for line in lines if line.split(b"\0")[:2] == [b"sleep", b"4711"]]


def test_a_verifier_that_exits_is_not_started_for_long(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def score(answer, reference):\n"
        "    if answer == 'exit':\n"
        f"        open({str(tmp_path / 'tries')!r}, 'a').write('x')\n"
        "        os._exit(3)\n"
        "    return answer == reference\n"
    )
    made = rlvr.make_verifier("isolated", verifier=f"{tmp_path}/mine.py:score", workers=1)
    verdict = rlvr.verify(made, answer="exit", reference="4")
    made.close()
    assert (verdict.score, verdict.fault) == (0.0, "answer") and "3 workers in a row" in verdict.reason, verdict
    assert (tmp_path / "tries").read_text() == "xxx"


def test_an_answer_that_no_worker_has_seen_gets_no_score(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = rlvr.make_verifier("isolated", verifier=f"{path}:score", workers=1)
    reply = {"verdict": {"score": 1.0, "reason": ""}}
    for outcomes, score in (([WorkersFailed("none is free"), reply], 1.0), ([WorkersFailed("none is free")] * 2, None)):
        waiting = iter([*outcomes, reply])

        def send(request: Any, budget: Any, waiting: Iterator[Any] = waiting, **settings: Any) -> Any:
            outcome = next(waiting)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(made.pool, "send_request", send)
        verdict = rlvr.verify(made, answer="4", reference="4")
        assert (verdict.score, verdict.fault) == (score, "none" if score else "infra"), verdict
    made.close()


def test_the_first_answer_of_all_may_be_the_one_that_hangs(path: Path) -> None:
    made = rlvr.make_verifier("isolated", verifier=f"{path}:score", cpu_s=0.5, workers=1)
    assert rlvr.verify(made, answer="a" * 60, reference="4").score == 0.0
    made.close()


def test_a_verifier_that_fails_for_every_answer_gives_no_score(path: Path) -> None:
    made = rlvr.make_verifier("isolated", verifier=f"{path}:score", cpu_s=0.5, workers=1)
    verdict = rlvr.verify(made, answer="5", reference="broken")
    made.close()
    assert (verdict.score, verdict.fault) == (None, "infra"), verdict


def test_what_the_verifier_raises_is_told(verifier: Verifier) -> None:
    with pytest.raises(VerifierError, match="SystemExit: 3"):
        verifier.verify(rlvr.Task("2+2=", "4"), "exit")


RAISING = """
import os

broken = False
files = []

def score(answer, reference):
    global broken
    with open({pids!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    if answer == "break":
        broken = True
    if broken:
        raise OSError("too many open files")
    return float(answer) == float(reference)
"""


def test_answers_that_make_the_verifier_raise_cost_no_new_worker_each(tmp_path: Path) -> None:
    """The rule on failures repeats each of them eight times, with controls between."""
    (tmp_path / "mine.py").write_text(RAISING.format(pids=str(tmp_path / "pids")))
    made = rlvr.make_verifier("isolated", verifier=f"{tmp_path}/mine.py:score")
    env = rlvr.make_env([{"question": "2+2=", "answer": "4"}], verifier=made)
    texts = ["4", *(f"four {number}" for number in range(5))]
    verdicts = [verify_recorded_answer(env, env.task("train", 0), text, None) for text in texts]
    made.close()
    assert [verdict.score for verdict in verdicts] == [1.0, *[0.0] * 5], verdicts
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) > 80 and len(set(pids)) <= 4, len(set(pids))


def test_an_answer_that_breaks_a_worker_costs_no_other_its_score(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RAISING.format(pids=str(tmp_path / "pids")))
    made = rlvr.make_verifier("isolated", verifier=f"{tmp_path}/mine.py:score", workers=1)
    for _ in range(2):  # the second time the failure is known
        with pytest.raises(VerifierError, match="too many open files"):
            made.verify(rlvr.Task("2+2=", "4"), "break")
        assert [made.verify(rlvr.Task("2+2=", "4"), text).score for text in ("4", "5")] == [1.0, 0.0]
    made.close()


DAMAGED = """
import os, sys

damaged = False

def score(answer, reference):
    global damaged
    sys.stdin.read()
    if answer == "damage":
        damaged = True
    if damaged and answer == "7":
        raise OSError("too many open files")
    if answer == "raise":
        raise ValueError("no number")
    return os.getpid() if answer == "pid" else float(answer == reference)
"""


def test_a_worker_serves_others_while_a_failure_is_repeated_in_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DAMAGED)
    made = rlvr.make_verifier("isolated", verifier=f"{tmp_path}/mine.py:score", workers=1)

    def judge(answer: str) -> float | None:
        return made.verify(rlvr.Task("3+4=", "7"), answer).score

    worker = judge("pid")
    with pytest.raises(VerifierError, match="no number"):
        judge("raise")
    assert judge("pid") == worker
    assert [judge(text) for text in ("damage", "7", "7")] == [0.0, 1.0, 1.0]
    assert judge("pid") != worker, "the worker that could not judge what a new one can is still used"
    made.close()


def test_a_verifier_that_waits_gets_time_in_proportion(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ndef score(answer, reference):\n    time.sleep(1)\n    return answer == reference\n")
    made = rlvr.make_verifier("isolated", verifier=f"{tmp_path}/slow.py:score", cpu_s=0.5, workers=1)
    began = time.monotonic()
    assert rlvr.verify(made, answer="4", reference="4").score == 1.0
    assert time.monotonic() - began > 1
    made.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"verifier": 3}, "verifier is a int"), ({"cpu_s": 0}, "cpu_s is 0"), ({"verifier": "session_reward"}, "reads whole conversations")],
)
def test_what_cannot_be_isolated_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rlvr.make_verifier("isolated", **given)
