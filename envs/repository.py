"""Find and correct a bug in a Python project with tests: `{name: repository, path: DIR}`. The project's own tests are hidden and decide.

    python -m rlvr.envs.repository DIR [--set tasks_per_function=2]

builds the tasks in advance, and prints what was kept and what was dropped and why.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlvr.contracts import Environment, Sandbox, SandboxFilesSession, SandboxSpec, Session
from rlvr.contracts.tool import Tool
from rlvr.envs._repository.building import BuildReport, BuildSettings, RepositoryTask, build_tasks, compute_build_digest
from rlvr.envs._repository.cache import StoredTasks, get_default_folder, load_or_build
from rlvr.envs._repository.project import Project, find_head, iter_commits, read_project
from rlvr.envs._repository.sandbox_runs import DISK_MB, FILE_MB, MEMORY_MB, SuiteSandbox
from rlvr.envs._repository.verification import RepositoryVerifier
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

KINDS = ("mutants", "commits")
FRAMEWORKS = ("auto", "pytest", "unittest")


class Repository(Environment):
    """Any Python project with tests as tasks: a bug in one of its functions, or a commit reversed. Its hidden tests verify the correction.

    The policy gets the project without its tests, and without its history. Of its files only the functions with the bug count: they are
    put into the original project, whose tests then run in a fresh sandbox. A function may use no name that could reach the tests, such as
    `getattr`, `__eq__` or `sys`, and no new import, unless the original function has it.

    Tasks are built once, in the sandbox, and stored by a digest of the project and the settings: `prepare` builds them. A bug is a task if
    the unmodified project passes its tests five times, the bug fails them, and no attack on the tests passes.

    >>> import rlvr
    >>> env = rlvr.make_env("repository", path="my_project")  # doctest: +SKIP
    >>> env.num_tasks("train")  # doctest: +SKIP
    312
    """

    needs = {"tools": ["bash", "files", "submit"], "sandbox": "auto"}
    requires_tool_call = True
    max_turns = 24
    max_prompt_tokens = 2048
    max_new_tokens = 8192

    def __init__(
        self,
        *,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        path: str = "",
        kinds: Sequence[str] = KINDS,
        packages: Sequence[str] = (),
        framework: str = "auto",
        seed: int = 0,
        tasks_per_function: int = 4,
        max_tasks: int = 400,
        max_tests: int = 24,
        max_commits: int = 40,
        max_build_s: float = 3600.0,
        workers: int = 0,
        cache: str = "",
        max_turns: int | None = None,
        instruction: str = "",
    ) -> None:
        """Set the project and how tasks are built from it. Nothing is built yet.

        Args:
            tools: the tools of the policy; at least one of them must run in the sandbox.
            sandbox: opens the sessions of the policy, and runs the project's tests; all programs of the project run in it.
            path: the folder of a Python project with tests, or the name of an installed package that contains its tests.
            kinds: `mutants`: small bugs in its functions; `commits`: commits of its history that are reversed, where it has a `.git`.
            packages: names of pure Python packages installed here that the project or its tests import; the sandbox sees them read-only.
            framework: what runs the tests: `pytest` (installed here, mounted into the sandbox), `unittest`, or `auto`.
            seed: another seed gives other bugs.
            tasks_per_function: the most bugs of one function.
            max_tasks: the most bugs of the project; reversed commits come on top.
            max_tests: the most hidden tests of a task.
            max_commits: the most commits that are tried.
            max_build_s: after this time nothing more is tried; what was built is stored, and the report says that it is not complete.
            workers: how many sessions build at once; 0: half the processors.
            cache: the folder for built tasks; empty: `rlvr/repository` in the user's cache.
            max_turns: the most turns of the policy, turns with tool calls included.
            instruction: a system message.
        """
        self.tools, self.sandbox, self.path, self.instruction = tuple(tools), sandbox, path, instruction
        self.max_turns = self.max_turns if max_turns is None else max_turns
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int) or self.max_turns < 2:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 2 are needed, a call and the answer")
        listed = [] if isinstance(kinds, str) else list(kinds)
        if not listed or any(kind not in KINDS for kind in listed):
            wrong = str(next((kind for kind in listed if kind not in KINDS), kinds))
            raise ConfigError(f"kinds has {wrong!r}; it must be a list of kinds: {format_suggestion(wrong, list(KINDS))}")
        if framework not in FRAMEWORKS:
            raise ConfigError(f"framework is {framework!r}; {format_suggestion(str(framework), list(FRAMEWORKS))}")
        numbers = {"tasks_per_function": tasks_per_function, "max_tasks": max_tasks, "max_tests": max_tests}
        for name, value, lowest in (
            *((name, value, 1) for name, value in numbers.items()),
            ("max_commits", max_commits, 0),
            ("workers", workers, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ConfigError(f"{name} is {value!r}; a whole number from {lowest} is needed")
        if isinstance(max_build_s, bool) or not isinstance(max_build_s, int | float) or not max_build_s > 0:
            raise ConfigError(f"max_build_s is {max_build_s!r}; a number of seconds above 0 is needed")
        if not path:
            raise ConfigError("path is empty; give the folder of a Python project with tests, or the name of an installed package")
        if isinstance(packages, str):
            raise ConfigError(f"packages is {packages!r}; write a list of names, such as [{packages}]")
        self.settings = BuildSettings(tuple(listed), seed, tasks_per_function, max_tasks, max_tests, max_commits, float(max_build_s))
        self.cache_folder = Path(cache).expanduser() if cache else get_default_folder()
        self.workers = workers or max(1, (os.cpu_count() or 2) // 2)
        self._packages, self._framework = tuple(packages), framework
        self._suite: SuiteSandbox | None = None
        self._stored: StoredTasks | None = None
        self._lock = threading.RLock()
        self.verifier = RepositoryVerifier(self._load_tasks, self._get_suite)
        self.max_prompt_tokens += len(instruction.encode())

    @property
    def report(self) -> BuildReport:
        """What was built, and what was dropped and why; the tasks are built first if they are not stored yet."""
        return self._load_tasks().report

    def prepare(self) -> None:
        """Start the sandbox, and build the tasks if they are not stored yet."""
        super().prepare()
        self._load_tasks()

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks of the split."""
        return len(self._get_split(split))

    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`."""
        rows = self._get_split(split)
        if not 0 <= index < len(rows):
            raise ConfigError(f"{self.path} has no {split} task {index}; it has 0 to {len(rows) - 1}")
        posed, stored = rows[index], self._load_tasks()
        project = stored.report.project
        return Task(
            make_user_prompt(_build_question(project, posed), system=self.instruction),
            {"build": stored.digest, "task": posed.key},
            id=f"repository/{split}/{project}/{posed.key}",
            meta={"kind": posed.kind, "functions": [f"{path}::{name}" for path, name in posed.functions], "change": posed.change},
        )

    def gold(self, task: Task) -> str:
        """Return a placeholder answer: only the files are verified."""
        return "ready"

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return the turns that write the original files."""
        posed, project = self._get_posed(task)
        calls = [
            Call(f"{turn}.0", "write_file", {"path": path, "text": project.files[path].decode()})
            for turn, path in enumerate(posed.buggy_files)
        ]
        return [*calls, self.gold(task)]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a sandbox session with the project: without its tests, with the bug."""
        posed, project = self._get_posed(task)
        files = {path: data for path, data in project.files.items() if path not in project.hidden_paths}
        files |= {path: text.encode() for path, text in posed.buggy_files.items()}
        mounts = self._get_suite().get_mounts(self._load_tasks().framework)
        return RepositorySession(
            task, self.tools, sandbox=self.sandbox, seed=seed, files=files, artifact_paths=list(posed.buggy_files), mounts=mounts
        )

    def _get_posed(self, task: Task) -> tuple[RepositoryTask, Project]:
        stored = self._load_tasks()
        posed = stored.get(task.reference["task"])
        if posed is None:
            raise ConfigError(f"{task.id} is not among the tasks that are built now; the project or its settings changed")
        return posed, stored.get_project(posed.tree)

    def _get_split(self, split: str) -> list[RepositoryTask]:
        if split not in self.splits:
            raise ConfigError(f"repository has no split {split!r}; allowed: {', '.join(self.splits)}")
        return self._load_tasks().by_split[split]

    def _get_suite(self) -> SuiteSandbox:
        with self._lock:
            if self._suite is None:
                self._suite = SuiteSandbox(self.sandbox, self._packages, self._framework)
            return self._suite

    def _load_tasks(self) -> StoredTasks:
        """Return the stored tasks, and build them first if they are not there."""
        with self._lock:
            if self._stored is None:
                suite, project = self._get_suite(), read_project(self.path)
                wants_commits = "commits" in self.settings.kinds and self.settings.max_commits > 0
                head = find_head(self.path) if wants_commits else ""
                commits = iter_commits(self.path, project.name, self.settings.max_commits if head else 0)
                digest = compute_build_digest(project, self.settings, suite, head)
                self._stored = load_or_build(
                    self.cache_folder, digest, lambda: build_tasks(project, commits, suite, self.settings, self.workers)
                )
                vars(self)["has_loaded_tasks"] = True
            return self._stored


class RepositorySession(SandboxFilesSession):
    """A conversation with the files of a project, which may be some megabytes, and with what its build mounted."""

    def __init__(self, task: Task, tools: Sequence[Tool], *, mounts: Mapping[str, str], **settings: Any) -> None:
        super().__init__(task, tools, **settings)
        self._mounts = mounts

    def sandbox_spec(self) -> SandboxSpec:
        """Return the spec of a session as large as that of the tests."""
        return SandboxSpec(files=self._files, mounts=self._mounts, memory_mb=MEMORY_MB, disk_mb=DISK_MB, file_mb=FILE_MB, processes=128)


def _build_question(project: str, posed: RepositoryTask) -> str:
    names = [f"{name} in {path}" for path, name in posed.functions]
    which = f"the function {names[0]}" if len(names) == 1 else f"the functions {', '.join(names[:-1])} and {names[-1]}"
    return (
        f"The Python project {project} in this folder has a bug in {which}: {posed.statement}\n"
        f"Find it and correct it. The docstrings are right. Hidden tests will be run. Only {'this function' if len(names) == 1 else 'these functions'} "
        "will be taken from your files, so leave the rest as it is; do not use getattr, open, classes of your own, names with two underscores or modules "
        "such as sys where the code does not use them already, and import nothing new but small pure modules such as math or re. "
        "When you have finished, say so."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the tasks of a project and write the table; returns the exit status."""
    import rlvr

    parser = argparse.ArgumentParser(prog="python -m rlvr.envs.repository", description="Build the tasks of a Python project in advance.")
    parser.add_argument("path", help="the folder of a project with tests, or the name of an installed package")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the environment; may be repeated")
    given = parser.parse_args(arguments)
    settings = {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in given.set)}
    try:
        with rlvr.make_env("repository", path=given.path, **settings) as env:
            env.prepare()
            sys.stdout.write(f"{env.report.describe()}\n")
    except rlvr.RlvrError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

make = Repository
