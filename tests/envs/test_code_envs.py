"""The code environments pose sound problems: both halves of every generator agree, and files that do not fit are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.contracts import Sandbox
from rlvr.envs._contest_families import FAMILIES
from rlvr.envs.code_contest import CodeContest
from rlvr.envs.humaneval import HumanEval
from rlvr.envs.mbpp import MBPP
from rlvr.errors import ConfigError, NotFound
from rlvr.verifiers.unit_tests import UnitTests

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "mbpp_sanitized.json"


@pytest.fixture(scope="module")
def verifier(process_sandbox: Sandbox) -> UnitTests:
    return UnitTests(sandbox=process_sandbox)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_halves_of_a_family_agree(verifier: UnitTests, family: str) -> None:
    env = CodeContest(verifier=verifier, families=[family])
    for index in range(2):
        task = env.task("train", index)
        assert verifier.verify(task, env.gold(task) or "").score == 1.0
        later = (env.task("train", n) for n in range(index + 1, index + 50))
        others = next(task_ for task_ in later if env.gold(task_) != env.gold(task))
        assert verifier.verify(others, env.gold(task) or "").score == 0.0, "another task's program must not pass"
        first = task.reference["cases"][0]["stdout"]
        assert verifier.verify(task, f"```python\nprint({first!r})\n```").score == 0.0, "a constant must not pass"


def test_hidden_tests_are_not_in_the_prompt(verifier: UnitTests) -> None:
    task = CodeContest(verifier=verifier, shown=1, hidden=5).task("train", 3)
    assert len(task.reference["cases"]) == 6
    hidden = [case["stdin"] for case in task.reference["cases"][1:]]
    assert not [text for text in hidden if text.strip() in task.question]


def test_a_statement_belongs_to_one_split(verifier: UnitTests) -> None:
    env = CodeContest(verifier=verifier)
    train, test = ({env.task(split, index).question.split("\n\n")[0] for index in range(200)} for split in ("train", "test"))
    assert not train & test


def test_a_file_of_problems(verifier: UnitTests, tmp_path: Path) -> None:
    row = {"statement": "Print twice the number.", "cases": [{"stdin": "2", "stdout": "4"}], "solution": "print(2 * int(input()))"}
    (tmp_path / "problems.jsonl").write_text(json.dumps(row))
    env = CodeContest(verifier=verifier, path=str(tmp_path))
    split = next(split for split in env.splits if env.num_tasks(split))
    task = env.task(split, 0)
    assert verifier.verify(task, env.gold(task) or "").score == 1.0
    (tmp_path / "bad.jsonl").write_text('{"statement": "x"}')
    with pytest.raises(ConfigError, match="cases"):
        CodeContest(verifier=verifier, path=str(tmp_path / "bad.jsonl"))


def test_files_that_are_not_there_or_not_problems(verifier: UnitTests, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"task_id": 1}]')
    for kind in (MBPP, HumanEval):
        with pytest.raises(NotFound, match="nowhere"):
            kind(verifier=verifier, path=str(tmp_path / "nowhere")).num_tasks("test")
        with pytest.raises(ConfigError, match="problem 0"):
            kind(verifier=verifier, path=str(tmp_path / "x.json")).num_tasks("test")


@pytest.mark.skipif(not DATA.is_file(), reason=f"the published MBPP is not at {DATA}")
def test_published_mbpp_problems_accept_their_own_solutions_only(verifier: UnitTests) -> None:
    env = MBPP(verifier=verifier, path=str(DATA))
    assert (env.num_tasks("train") or 0) + (env.num_tasks("test") or 0) == 427
    for index in range(0, 200, 25):
        task, other = env.task("test", index), env.task("test", index + 1)
        assert verifier.verify(task, env.gold(task) or "").score == 1.0, task.id
        assert verifier.verify(task, env.gold(other) or "").score == 0.0, task.id
        assert "assert" not in task.question


def test_a_problem_whose_published_solution_is_slow_has_more_time(verifier: UnitTests, tmp_path: Path) -> None:
    slow, quick = (
        {"task_id": n, "prompt": f"Say {n}.", "code": "def f():\n    return 1\n", "test_list": ["assert f() == 1"]} for n in (123, 2)
    )
    (tmp_path / "x.json").write_text(json.dumps([slow, quick]))
    env = MBPP(verifier=verifier, path=str(tmp_path / "x.json"))
    tasks = [env.task(split, index) for split in env.splits for index in range(env.num_tasks(split) or 0)]
    limits = {task.id.rpartition("/")[2]: task.reference["limits"] for task in tasks}
    assert limits["123"]["cpu_s"] == 30 and limits["2"] == {}
    assert [verifier.verify(task, env.gold(task)).score for task in tasks] == [1.0, 1.0]
