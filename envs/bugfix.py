"""Find and correct one bug in a small Python package. Hidden calls of the package decide the score."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlvr.contracts import SandboxFilesSession, Session
from rlvr.envs._bugfix_families import FAMILIES, Bug
from rlvr.envs._sandbox_env import NAME_STEMS, SandboxEnvironment, draw_name_for_split
from rlvr.errors import ConfigError
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

KINDS = tuple(FAMILIES)
NUM_CASES = 12
"""Number of hidden calls of the function with the bug; at least three of them fail at the beginning."""
NUM_OTHER_CASES = 2
"""Number of hidden calls of every other function."""


@dataclass(frozen=True)
class BuggyPackage:
    """A package with one bug, the failing call that the prompt shows, and the hidden test calls.

    >>> BuggyPackage("amber_1f", {}, {}, "", []).name
    'amber_1f'
    """

    name: str
    files: Mapping[str, str]
    correct_files: Mapping[str, str]
    """The files without the bug."""
    failing_call: str
    cases: list[dict[str, Any]]


class Bugfix(SandboxEnvironment):
    """A Python package of a few files with one bug, and a call that fails. Other calls test the files, in a fresh sandbox.

    Only the files of the package count. Tests, settings and files that the policy adds do not affect the verdict.

    >>> from rlvr.envs._bugfix_families import FAMILIES
    >>> sum(len(family.bugs) for family in FAMILIES.values())
    34
    """

    needs = {"verifier": "package_tests", "tools": ["bash", "files", "submit"], "sandbox": "auto"}
    requires_tool_call = True
    all_kinds = KINDS
    max_turns = 16
    max_prompt_tokens = 640
    max_new_tokens = 2048

    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`. One package name in five is held out, so that no question is in two splits."""
        rng = random.Random(f"bugfix/{self.seed}/{split}/{index}")
        kind = rng.choice(self.kinds)
        name = draw_name_for_split(rng, split, lambda: f"{rng.choice(NAME_STEMS)}_{rng.randrange(16**4):04x}")
        posed = _build_package(f"bugfix/{self.seed}", kind, name)
        question = (
            f"The Python package {name} in this folder has a bug: {posed.failing_call} Find it and correct it. The docstrings are right. "
            f"Only the files {', '.join(sorted(posed.files))} count, and other calls will be tried. When you have finished, say so."
        )
        reference = {"files": sorted(posed.files), "cases": copy.deepcopy(posed.cases)}
        return Task(
            make_user_prompt(question, system=self.instruction),
            reference,
            id=f"bugfix/{split}/{self.seed}.{index}",
            meta={"kind": kind, "name": name},
        )

    def gold(self, task: Task) -> str:
        """Return a placeholder answer: only the files are verified."""
        return "ready"

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return the turns that write the correct module."""
        posed = self._get_package(task)
        path = next(path for path in posed.files if posed.files[path] != posed.correct_files[path])
        return [Call("0.0", "write_file", {"path": path, "text": posed.correct_files[path]}), self.gold(task)]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a sandbox session with the package."""
        files = self._get_package(task).files
        return SandboxFilesSession(
            task,
            self.tools,
            sandbox=self.sandbox,
            seed=seed,
            files={path: text.encode() for path, text in files.items()},
            artifact_paths=sorted(files),
        )

    def _get_package(self, task: Task) -> BuggyPackage:
        return _build_package(f"bugfix/{self.seed}", task.meta["kind"], task.meta["name"])


@lru_cache(maxsize=4096)
def _build_package(seed: str, kind: str, name: str) -> BuggyPackage:
    """Build the package, its bug and its hidden calls."""
    rng = random.Random(f"{seed}/{kind}/{name}")
    bug = rng.choice(FAMILIES[kind].bugs)
    beside = rng.choice([other for other in KINDS if other != kind])
    right = {f"{name}/{one}.py": FAMILIES[one].source for one in (kind, beside)}
    right[f"{name}/__init__.py"] = f'"""The package {name}."""\n'
    files = right | {f"{name}/{kind}.py": FAMILIES[kind].source.replace(bug.correct_code, bug.buggy_code, 1)}
    failing, passing = _draw_inputs(rng, kind, bug)
    shown, hidden = failing[0], failing[1:] + passing
    expected = _run_function(kind, None, bug.function, [shown])[0]
    call = f"{name}.{kind}.{bug.function}({', '.join(map(repr, shown))})"
    again = "called a second time, " if bug.kind == "mutable default" else ""
    cases = [_make_case(f"{name}.{kind}", kind, bug.function, args) for args in hidden]
    for one in (kind, beside):
        for function, inputs in FAMILIES[one].input_generators.items():
            if (one, function) != (kind, bug.function):
                cases += [_make_case(f"{name}.{one}", one, function, inputs(rng)) for _ in range(NUM_OTHER_CASES)]
    return BuggyPackage(name, files, right, f"{again}{call} must return {expected!r}, and it does not.", cases)


def _draw_inputs(rng: random.Random, kind: str, bug: Bug) -> tuple[list[list[Any]], list[list[Any]]]:
    """Draw arguments for which the bug shows (at least four different ones), and others."""
    failing: list[list[Any]] = []
    passing: list[list[Any]] = []
    for _ in range(5_000):
        args = FAMILIES[kind].input_generators[bug.function](rng)
        if args in failing or args in passing:
            continue
        before = [args] if bug.kind == "mutable default" else []  # the second call is the one that fails
        wrong = _run_function(kind, bug, bug.function, [*before, args])[-1] != _run_function(kind, None, bug.function, [args])[-1]
        (failing if wrong else passing).append(args)
        if len(failing) >= 4 and len(failing) + len(passing) > NUM_CASES:
            return failing[:NUM_CASES], passing[: NUM_CASES - min(len(failing), NUM_CASES) + 1]
    raise ConfigError(f"the bug {bug} shows in too few inputs; this is a defect of the environment")


def _make_case(module: str, kind: str, function: str, args: list[Any]) -> dict[str, Any]:
    return {"module": module, "function": function, "args": args, "expected": _run_function(kind, None, function, [args])[0]}


def _run_function(kind: str, bug: Bug | None, function: str, inputs: Sequence[list[Any]]) -> list[Any]:
    """Run a function, with a bug or without, on several inputs in turn; an exception is returned by its name."""
    names: dict[str, Any] = {}
    source = FAMILIES[kind].source
    exec(_compile_source(source.replace(bug.correct_code, bug.buggy_code, 1) if bug else source), names)
    found = []
    for args in inputs:
        try:
            found.append(names[function](*copy.deepcopy(args)))
        except Exception as error:
            found.append(type(error).__name__)
    return found


@lru_cache(maxsize=256)
def _compile_source(source: str) -> Any:
    return compile(source, "family.py", "exec")


make = Bugfix
