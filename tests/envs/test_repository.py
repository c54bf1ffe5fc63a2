"""Tasks from a Python project: what is built, what is dropped, what is stored, and what the verdicts are."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import Sandbox, Transcript
from rlvr.envs._repository.building import BuildSettings, RepositoryTask, _Builder
from rlvr.envs._repository.project import Project
from rlvr.envs._repository.sandbox_runs import SuiteSandbox
from rlvr.envs.repository import Repository, main
from rlvr.errors import ConfigError, SandboxError
from rlvr.registry.plugins import build
from rlvr.task import Fault, Task, Verdict

FILES = {
    "README.md": "# Tiny\n",
    "tiny/__init__.py": '"""Tiny."""\n',
    "tiny/numbers.py": '''"""Numbers."""


def clamp(value, low, high):
    """Return the value, not below low and not above high."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def share(total, count):
    """Return the largest equal parts of a total, and what is left."""
    if count == 0:
        raise ValueError("no parts")
    part = total // count
    return [part] * count, total - part * count


class Stack:
    """A stack with a limit."""

    def __init__(self, limit=3):
        self.limit = limit
        self.items = []

    def push(self, item):
        """Add an item; raise OverflowError if the stack is full."""
        if len(self.items) >= self.limit:
            raise OverflowError("full")
        self.items.append(item)
        return len(self.items)

    def pop(self, default=None):
        """Remove the last item and return it, or the default."""
        if not self.items:
            return default
        return self.items.pop()


def untested(value):
    """Return one more."""
    return value + 1
''',
    "tests/__init__.py": "",
    "tests/test_numbers.py": """import unittest

from tiny.numbers import Stack, clamp, share


class NumbersTest(unittest.TestCase):
    def test_clamp(self):
        self.assertEqual([clamp(n, 2, 5) for n in range(8)], [2, 2, 2, 3, 4, 5, 5, 5])

    def test_share(self):
        self.assertEqual([share(7, 3), share(6, 2)], [([2, 2, 2], 1), ([3, 3], 0)])
        self.assertRaises(ValueError, share, 1, 0)

    def test_stack(self):
        stack = Stack(2)
        self.assertEqual([stack.push("a"), stack.push("b")], [1, 2])
        self.assertRaises(OverflowError, stack.push, "c")
        self.assertEqual([stack.pop(), stack.pop(), stack.pop(7)], ["b", "a", 7])
""",
}


PROCESS = {"name": "process", "trusted": True}


def write_project(folder: Path, changed: dict[str, str] | None = None) -> Path:
    """Write a small project with tests, with some files changed."""
    root = folder / "tiny_project"
    for path, text in (FILES | (changed or {})).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    return root


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """The tasks of the small project, built once."""
    folder = tmp_path_factory.mktemp("repository")
    with make_repository(PROCESS, folder, write_project(folder)) as made:
        yield made


def make_repository(sandbox: Any, folder: Path, project: Path | str, **settings: Any) -> Repository:
    made: Repository = build("env", "repository", path=str(project), sandbox=sandbox, cache=str(folder / "cache"), workers=2, **settings)
    return made


def iter_tasks(environment: Repository) -> Iterator[tuple[Task, RepositoryTask, Project]]:
    for split in environment.splits:
        for index in range(environment.num_tasks(split)):
            task = environment.task(split, index)
            yield task, *environment._get_posed(task)


def verify(environment: Repository, task: Task, change: Callable[[str, str], str]) -> Verdict:
    """The verdict on a file, made of the one with the bug and the original."""
    posed, project = environment._get_posed(task)
    files = {path: change(text, project.files[path].decode()).encode() for path, text in posed.buggy_files.items()}
    return environment.verifier.verify_transcript(task, Transcript("ready", files))


# ---- what is built


def test_every_bug_is_in_one_function_and_the_statement_names_what_is_wrong(environment: Repository) -> None:
    names = set()
    for task, posed, project in iter_tasks(environment):
        [(path, name)] = posed.functions
        names.add(name)
        [function] = [one for one in project.functions if (one.path, one.name) == (path, name)]
        before, after = project.files[path].decode().splitlines(), posed.buggy_files[path].splitlines()
        assert before != after and before[: function.def_line - 1] == after[: function.def_line - 1]
        rest = len(before) - function.end_line
        assert before[function.end_line :] == after[len(after) - rest :]
        assert name in task.question and re.search(r"must (return|raise) .+, and it|the hidden test .+ fails: ", task.question)
        assert "tests/test_numbers.py" not in {*posed.buggy_files}
    assert {"clamp", "share", "Stack.push", "Stack.pop"} <= names and "untested" not in names


def test_the_original_scores_1_and_the_unchanged_files_score_0(environment: Repository) -> None:
    for task, _, _ in list(iter_tasks(environment))[::4]:
        assert verify(environment, task, lambda buggy, right: right).score == 1.0
        assert verify(environment, task, lambda buggy, right: buggy).score == 0.0


def test_no_function_is_in_both_splits(environment: Repository) -> None:
    owners: dict[tuple[str, str], set[str]] = {}
    for _, posed, _ in iter_tasks(environment):
        for function in posed.functions:
            owners.setdefault(function, set()).add(posed.split)
    assert all(len(splits) == 1 for splits in owners.values()) and set().union(*owners.values()) == {"train", "test"}


def test_nothing_of_the_project_is_loaded_in_this_process(environment: Repository) -> None:
    assert environment.num_tasks("train") and not [name for name in sys.modules if name == "tiny" or name.startswith("tiny.")]


def test_the_same_settings_build_the_same_tasks_and_another_seed_others(environment: Repository, tmp_path: Path) -> None:
    project = write_project(tmp_path)
    keys = [[posed.key for _, posed, _ in iter_tasks(environment)]]
    for seed in (0, 1):
        with make_repository(PROCESS, tmp_path, project, seed=seed) as again:
            keys.append([posed.key for _, posed, _ in iter_tasks(again)])
    assert keys[0] == keys[1] != keys[2]


# ---- what is dropped


def test_a_project_whose_tests_fail_is_refused_with_the_reason(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"tests/test_numbers.py": "import unittest\nimport missing_package\n"})
    for _ in range(2):  # the second time from the stored report
        with (
            make_repository(PROCESS, tmp_path, project) as environment,
            pytest.raises(ConfigError, match=r"tests do not pass unmodified.*No module named 'missing_package'"),
        ):
            environment.prepare()


def test_a_flaky_test_is_left_out_and_reported(tmp_path: Path) -> None:
    flaky = """import os, unittest
from tiny.numbers import clamp
PATH = "/dev/shm/runs"

class FlakyTest(unittest.TestCase):
    def test_every_second_time(self):
        runs = len(open(PATH).read()) if os.path.exists(PATH) else 0
        open(PATH, "a").write("x")
        self.assertEqual(clamp(3, 1, 5) + runs % 2, 3)
"""
    with make_repository(PROCESS, tmp_path, write_project(tmp_path, {"tests/test_flaky.py": flaky})) as environment:
        assert all("Flaky" not in test for _, posed, _ in iter_tasks(environment) for test in posed.tests)
        left_out = {**environment.report.tests_left_out, **{one["change"]: one["reason"] for one in environment.report.dropped}}
        assert any("test_every_second_time" in test for test in left_out)


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("share(4, 2)", "a function whose tests pay an empty function"),
        ("self.assertEqual(clamp(9, 2, 5), 5)", "a bug for which the shown value alone is paid"),
        ("self.assertEqual(clamp(3, 2, 5), 3)", "a bug that no test notices"),
    ],
)
def test_a_bug_that_weak_tests_cannot_tell_is_dropped(tmp_path: Path, test: str, reason: str) -> None:
    text = f"import unittest\nfrom tiny.numbers import *\n\nclass WeakTest(unittest.TestCase):\n    def test_it(self):\n        {test}\n"
    with make_repository(PROCESS, tmp_path, write_project(tmp_path, {"tests/test_numbers.py": text})) as environment:
        with contextlib.suppress(ConfigError):  # no task may be left
            environment.prepare()
        [report] = (tmp_path / "cache").glob("*/report.json")
        assert reason in {one["reason"] for one in json.loads(report.read_text())["dropped"]}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"path": ""}, "path is empty"),
        ({"path": "no_such_folder"}, "no folder 'no_such_folder', and no installed package"),
        ({"kinds": ["mutant"]}, "kinds has 'mutant'; .*did you mean 'mutants'"),
        ({"framework": "nose"}, "framework is 'nose'"),
        ({"tasks_per_function": 0}, "tasks_per_function is 0; a whole number from 1"),
        ({"packages": ["no_such_package"]}, "packages has 'no_such_package', and no package of that name"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    given = {"path": str(write_project(tmp_path)), "cache": str(tmp_path / "cache"), **settings}
    with pytest.raises(ConfigError, match=told):
        build("env", "repository", sandbox=PROCESS, **given).prepare()


# ---- what is stored


def test_built_tasks_are_read_from_the_cache_until_the_project_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(tmp_path)
    with make_repository(PROCESS, tmp_path, project, tasks_per_function=1) as first:
        questions = [task.question for task, _, _ in iter_tasks(first)]
    monkeypatch.setattr("rlvr.envs.repository.build_tasks", lambda *_: pytest.fail("it builds again"))
    with make_repository(PROCESS, tmp_path, project, tasks_per_function=1) as second:
        assert [task.question for task, _, _ in iter_tasks(second)] == questions
    (project / "tiny" / "numbers.py").write_text(FILES["tiny/numbers.py"] + "\n\nx = 1\n")
    with make_repository(PROCESS, tmp_path, project, tasks_per_function=1) as third, pytest.raises(pytest.fail.Exception):
        third.prepare()


def test_the_command_builds_in_advance_and_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set=cache={tmp_path / 'cache'}", "--set=sandbox={name: process, trusted: true}", "--set=tasks_per_function=1"]
    assert main([str(write_project(tmp_path)), *settings]) == 0
    assert re.search(r"tests +3 with unittest, 3 pass, 0 flaky\n", capsys.readouterr().out)
    assert main([str(tmp_path / "nowhere"), *settings]) == 1
    assert "there is no folder" in capsys.readouterr().err


# ---- verdicts


def test_another_correct_function_scores_1_and_what_is_around_it_does_not_count(environment: Repository) -> None:
    task = next(task for task, posed, _ in iter_tasks(environment) if posed.functions[0][1] == "clamp")
    other = "import os\n\n\ndef clamp(value, low, high):\n    import math\n    return math.floor(min(max(value, low), high))\n"
    assert verify(environment, task, lambda *_: other).score == 1.0
    helped = "def helper(*values):\n    return sorted(values)[1]\n\n\ndef clamp(*values):\n    return helper(*values)\n"
    assert verify(environment, task, lambda *_: helped).score == 0.0


def test_an_answer_that_makes_all_tests_pass_is_noticed(environment: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of answers refuse this one; the tests that must fail would notice it too."""
    task = next(task for task, posed, _ in iter_tasks(environment) if posed.functions[0][1] == "clamp" and "it returns" in task.question)
    patched = "import unittest\nfor n in dir(unittest.TestCase):\n    if n.startswith('assert'): setattr(unittest.TestCase, n, lambda *a, **k: None)\n"
    monkeypatch.setattr("rlvr.envs._repository.verification.graft_functions", lambda original, buggy, answer, names: answer)
    verdict = verify(environment, task, lambda buggy, right: patched + buggy)
    assert (verdict.score, verdict.reason) == (0.0, "tests that must fail passed, so the answer has changed the tests")


def test_a_sandbox_that_fails_is_no_zero(environment: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise SandboxError("the engine is gone")

    monkeypatch.setattr(environment._get_suite().sandbox, "create_session", fail)
    verdict = verify(environment, environment.task("train", 0), lambda buggy, right: right)
    assert verdict.score is None and verdict.fault is Fault.INFRA


def test_a_task_of_another_build_is_the_fault_of_the_task(environment: Repository) -> None:
    task = replace(environment.task("train", 0), reference={"build": "0", "task": "mutant-0"})
    verdict = environment.verifier.verify_transcript(task, Transcript("ready", {}))
    assert verdict.score is None and verdict.fault is Fault.TASK


# ---- commits


def test_a_commit_is_reversed_and_its_tests_decide(tmp_path: Path) -> None:
    wrong = FILES["tiny/numbers.py"].replace("total // count", "total // (count + 1)")
    few = (
        FILES["tests/test_numbers.py"]
        .replace("share(7, 3), share(6, 2)", "share(0, 2)")
        .replace("([2, 2, 2], 1), ([3, 3], 0)", "([0, 0], 0)")
    )
    project = write_project(tmp_path, {"tiny/numbers.py": wrong, "tests/test_numbers.py": few})

    def commit(subject: str, **changed: str) -> None:
        for path, text in changed.items():
            (project / path).write_text(text)
        git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", subject], check=True)

    subprocess.run(["git", "init", "-q", str(project)], check=True)
    commit("Begin")
    commit("Divide by the count", **{"tiny/numbers.py": FILES["tiny/numbers.py"], "tests/test_numbers.py": FILES["tests/test_numbers.py"]})
    commit(
        "Say more",
        **{"tiny/numbers.py": FILES["tiny/numbers.py"] + "\n\nx = 1\n", "tests/test_numbers.py": FILES["tests/test_numbers.py"] + "\n"},
    )
    config = project / ".git" / "config"
    config.write_text(config.read_text() + "[core]\n\tfsmonitor = touch fsmonitor-was-run\n\tpager = touch pager-was-run\n")
    with make_repository(PROCESS, tmp_path, project, tasks_per_function=1) as environment:
        [(task, posed)] = [(task, posed) for task, posed, _ in iter_tasks(environment) if posed.kind == "commit"]
        assert posed.functions == [("tiny/numbers.py", "share")] and posed.buggy_files == {"tiny/numbers.py": wrong}
        assert "test_share fails" in task.question
        assert verify(environment, task, lambda buggy, right: right).score == 1.0
        assert verify(environment, task, lambda buggy, right: buggy).score == 0.0
        assert "a commit that changes more than the bodies of functions" in environment.report.count_dropped()
    assert not [path for path in project.rglob("*-was-run")]


# ---- the sandboxes with pytest


@pytest.mark.docker
def test_tests_of_pytest_run_with_the_mounted_one(tmp_path: Path) -> None:
    text = """import pytest
from tiny.numbers import clamp, share

@pytest.mark.parametrize("n, expected", [(0, 2), (1, 2), (3, 3), (7, 5), (9, 5)])
def test_clamp(n, expected, tmp_path):
    assert clamp(n, 2, 5) == expected

def test_share():
    assert share(7, 3) == ([2, 2, 2], 1) and share(6, 2) == ([3, 3], 0)
    with pytest.raises(ValueError):
        share(1, 0)
"""
    project = write_project(tmp_path, {"tests/test_numbers.py": text})
    with make_repository("docker", tmp_path, project, max_tasks=8) as environment:
        assert environment.report.framework == "pytest" and environment.report.num_passed_tests == 6
        for task, _, _ in iter_tasks(environment):
            assert verify(environment, task, lambda buggy, right: right).score == 1.0


def test_functions_that_share_a_task_are_in_one_split() -> None:
    def make_task(key: str, *names: str) -> RepositoryTask:
        return RepositoryTask(key, "commit", "", [("a.py", name) for name in names], {}, [], "")

    tasks = [make_task("1", "a", "b"), make_task("2", "b", "c"), *(make_task(f"of {name}", name) for name in "defghijk")]
    for seed in range(20):
        builder = _Builder(Project("p", {}), iter(()), SuiteSandbox(FailingSandbox(), (), "unittest"), BuildSettings(seed=seed), 1)
        splits = {task.key: task.split for task in builder._assign_splits(tasks)}
        assert splits["1"] == splits["2"] and 2 <= list(splits.values()).count("test") <= 4


class FailingSandbox(Sandbox):
    """A sandbox that is never asked."""

    def run_program(self, program: Any) -> Any:
        raise AssertionError
