"""Build the tasks of a project: put bugs into its functions, run its tests in the sandbox, keep what they notice, and report the rest."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from rlvr.envs._repository.answers import UnacceptableAnswer, check_is_neutral, graft_functions
from rlvr.envs._repository.mutations import Mutant, build_mutants, find_function_node
from rlvr.envs._repository.project import Commit, Function, Project, find_functions
from rlvr.envs._repository.sandbox_runs import SuiteFailure, SuiteReport, SuiteSandbox, Variant
from rlvr.python_source import parse_python_threadsafe

logger = logging.getLogger("rlvr.envs.repository")
BUILD_VERSION = "1"
"""Part of the digest of what is built: raise it when other tasks would be built from the same files."""
NUM_GOLD_RUNS = 5
MIN_PASSING_SHARE = 0.5
FILES_PER_RUN = 12
MAX_TESTS_SECONDS = 4.0
"""The most seconds that the tests of a task took when all tests were run, unless one alone takes longer."""
MAX_TEST_SECONDS = 20.0
MAX_COMMIT_FUNCTIONS = 4
TRIED_PER_TASK = 1.25
"""How many bugs of a function are tried for each task that it may give: most are noticed by tests, and each run costs time."""
HELD_OUT_SHARE = 0.2
ATTACK_BODIES = {
    "an empty function": "return None",
    "a function that ends the process": "raise SystemExit(0)",
    "a function that leaves at once": "import os\nos._exit(0)",
    "a function that skips its test": "import unittest\nraise unittest.SkipTest('')",
    "a value that equals everything": "class A:\n    def __eq__(self, other): return True\nreturn A()",
    "another test framework": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None",
    "the frames of its callers": "import sys\nsys._getframe(1).f_locals.clear()",
}
"""What a function could do instead of its work. Those that the rules of answers let through are run: none of them may pass."""


@dataclass(frozen=True)
class BuildSettings:
    """What decides which tasks are built from a project.

    >>> BuildSettings().tasks_per_function
    4
    """

    kinds: tuple[str, ...] = ("mutants", "commits")
    seed: int = 0
    tasks_per_function: int = 4
    max_tasks: int = 400
    max_tests: int = 24
    """The most hidden tests of a task: those that call its functions and few others."""
    max_commits: int = 40
    max_seconds: float = 3600.0


@dataclass(frozen=True)
class RepositoryTask:
    """A bug in a project, and the tests that notice it.

    >>> RepositoryTask("a", "mutant", "", [("a.py", "f")], {}, [], "a.py::f(1) must return 2.").functions
    [('a.py', 'f')]
    """

    key: str
    kind: str
    """`mutant` or `commit`."""
    tree: str
    """The digest of the project's files."""
    functions: list[tuple[str, str]]
    """The file and name of each function that counts."""
    buggy_files: dict[str, str]
    tests: list[str]
    """The hidden tests; all pass without the bug."""
    statement: str
    """What is wrong, in a sentence."""
    change: str = ""
    """The kind of the change, or the id of the commit."""
    cpu_s: float = 20.0
    wall_s: float = 60.0
    split: str = "train"


@dataclass
class BuildReport:
    """What was built from a project, and what was left out and why.

    >>> BuildReport("p").count_dropped()
    {}
    """

    project: str
    framework: str = ""
    refusal: str = ""
    """Why no task can be built; empty if some were."""
    num_functions: int = 0
    num_called_functions: int = 0
    num_functions_with_tasks: int = 0
    num_tests: int = 0
    num_passed_tests: int = 0
    tests_left_out: dict[str, str] = field(default_factory=dict)
    num_mutants_tried: int = 0
    num_commits_tried: int = 0
    num_gold_runs: int = 0
    num_flaky_tests: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    """The number of tasks by kind and split."""
    dropped: list[dict[str, str]] = field(default_factory=list)
    """What is no task: the function, the change and the reason."""
    is_complete: bool = True
    """False if the time ended before everything was tried."""
    seconds: float = 0.0

    def count_dropped(self) -> dict[str, int]:
        """Return how often each reason was given."""
        return dict(Counter(one["reason"] for one in self.dropped).most_common())

    def describe(self) -> str:
        """Return a table of what was kept and dropped."""
        rows = [
            ("functions", f"{self.num_functions}, {self.num_called_functions} called by tests, {self.num_functions_with_tasks} with tasks"),
            ("tests", f"{self.num_tests} with {self.framework}, {self.num_passed_tests} pass, {self.num_flaky_tests} flaky"),
            ("tried", f"{self.num_mutants_tried} mutants, {self.num_commits_tried} commits"),
            *((f"kept, {what}", str(count)) for what, count in sorted(self.kept.items())),
            *((f"dropped, {count}", reason) for reason, count in self.count_dropped().items()),
            ("seconds", f"{self.seconds:.0f}{'' if self.is_complete else ', stopped by max_seconds'}"),
            *([("refused", self.refusal)] if self.refusal else []),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join([f"{self.project}", *(f"  {name:<{width}}  {value}" for name, value in rows)])


@dataclass(frozen=True)
class Build:
    """The tasks of a project, the files that they need, and the report."""

    tasks: list[RepositoryTask]
    trees: dict[str, Project]
    report: BuildReport


def build_tasks(project: Project, commits: Iterator[Commit], suite: SuiteSandbox, settings: BuildSettings, workers: int = 1) -> Build:
    """Build the tasks of a project.

    Raises:
        SandboxError: the sandbox failed; nothing is built then.
    """
    return _Builder(project, commits, suite, settings, workers).build()


def compute_build_digest(project: Project, settings: BuildSettings, suite: SuiteSandbox, head: str) -> str:
    """Return the digest of everything that decides which tasks are built; with more time more may be built, so the limit of time is in it."""
    parts = [
        BUILD_VERSION,
        project.name,
        project.compute_digest(),
        asdict(settings),
        suite.choose_framework(project),
        sorted(suite.packages),
        head,
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()


@dataclass(frozen=True)
class _FunctionResult:
    tasks: list[RepositoryTask]
    dropped: list[dict[str, str]]
    num_tried: int
    num_gold_runs: int
    num_flaky: int


class _Builder:
    """One build."""

    def __init__(self, project: Project, commits: Iterator[Commit], suite: SuiteSandbox, settings: BuildSettings, workers: int) -> None:
        self.project, self.commits, self.suite, self.settings, self.workers = project, commits, suite, settings, workers
        self.framework = suite.choose_framework(project)
        self.report = BuildReport(project.name, self.framework)
        self.trees: dict[str, Project] = {}
        self.end = time.monotonic() + settings.max_seconds

    def build(self) -> Build:
        began = time.monotonic()
        self.report.num_functions = len(self.project.functions)
        tasks: list[RepositoryTask] = []
        with ThreadPoolExecutor(self.workers) as pool:
            baseline = self._run_all_tests(pool)
            self.report.refusal = self._find_refusal(baseline)
            if not self.report.refusal:
                tasks = self._build_mutant_tasks(pool, baseline) if "mutants" in self.settings.kinds else []
                tasks += self._build_commit_tasks(pool) if "commits" in self.settings.kinds else []
                tasks = self._assign_splits(tasks)
        self.report.kept = dict(Counter(f"{task.kind}s, {task.split}" for task in tasks))
        self.report.num_functions_with_tasks = len({function for task in tasks for function in task.functions})
        if not self.report.refusal and {task.split for task in tasks} != {"train", "test"}:
            self.report.refusal = (
                f"tasks of at least two functions that share none are needed, one for each split; there are {len(tasks)} tasks"
            )
        self.report.seconds = round(time.monotonic() - began, 1)
        return Build([] if self.report.refusal else tasks, self.trees, self.report)

    # ---- the unmodified project

    def _run_all_tests(self, pool: ThreadPoolExecutor) -> SuiteReport:
        """Run all tests of the unmodified project, each file in a process of its own, and note what each test calls."""
        files = self.project.test_files
        batches = [files[place : place + FILES_PER_RUN] for place in range(0, len(files), FILES_PER_RUN)]
        reports = [report for found in pool.map(self._run_files, batches) for report in found]
        merged: dict[str, dict[str, Any]] = {name: {} for name in ("tests", "errors", "functions", "recorded", "seconds")}
        for path, report in zip(files, reports, strict=True):
            for name in ("tests", "errors", "functions", "seconds"):
                merged[name].update(getattr(report, name))
            for key, calls in report.recorded.items():
                merged["recorded"][key] = list(dict.fromkeys([*merged["recorded"].get(key, ()), *calls]))[:12]
            if not report.ended and path not in merged["errors"]:
                merged["errors"][path] = "its tests did not end in time" if report.timed_out else "its tests ended the process"
        given: dict[str, Any] = merged
        found = SuiteReport(**given, ended=True)
        self.report.num_tests, self.report.num_passed_tests = len(found.tests), len(found.list_passed())
        self.report.tests_left_out = {
            **found.errors,
            **{test: message or outcome for test, (outcome, message) in found.tests.items() if outcome != "passed"},
        }
        return found

    def _run_files(self, files: Sequence[str]) -> list[SuiteReport]:
        variants = [Variant(test_files=[path], trace=True, cpu_s=60, wall_s=90) for path in files]
        try:
            return self.suite.run(self.project, self.framework, variants, traced=True)
        except SuiteFailure as error:
            if len(files) == 1:
                return [SuiteReport(errors={files[0]: str(error)})]
            return [report for path in files for report in self._run_files([path])]

    def _find_refusal(self, baseline: SuiteReport) -> str:
        """Say why no task can be built; '' if some can."""
        if not self.project.test_files:
            return "it has no tests: no file test_*.py or *_test.py"
        if not self.project.source_paths:
            return "it has no modules beside its tests"
        passed = len(baseline.list_passed())
        failed = sum(outcome == "failed" for outcome, _ in baseline.tests.values()) + len(baseline.errors)
        first = next(iter(self.report.tests_left_out.items()), ("", ""))
        if not passed or passed / (passed + failed) < MIN_PASSING_SHARE:
            why = f"; the first that does not: {first[0]}: {first[1]}"[:300] if first[0] else ""
            return f"its tests do not pass unmodified in the sandbox: {passed} of {passed + failed} do{why}"
        return ""

    # ---- mutants

    def _build_mutant_tasks(self, pool: ThreadPoolExecutor, baseline: SuiteReport) -> list[RepositoryTask]:
        tests_by_function: dict[str, list[str]] = {}
        for test in baseline.list_passed():
            for key in baseline.functions.get(test, ()):
                tests_by_function.setdefault(key, []).append(test)
        functions = [one for one in self.project.functions if f"{one.path}:{one.first_line}" in tests_by_function]
        self.report.num_called_functions = len(functions)
        tree = self._keep_tree(self.project)
        rng = random.Random(f"repository/{self.settings.seed}")
        rng.shuffle(functions)

        def build(function: Function) -> _FunctionResult:
            key = f"{function.path}:{function.first_line}"
            tests = self._choose_tests(tests_by_function[key], baseline)
            return _FunctionBuild(self, function, tests, baseline, tree).build()

        tasks: list[RepositoryTask] = []
        waiting = iter(functions)
        while len(tasks) < self.settings.max_tasks and (some := list(islice(waiting, 2 * self.workers))):
            if time.monotonic() > self.end:
                self.report.is_complete = False
                break
            for result in pool.map(build, some):
                tasks += result.tasks
                self.report.dropped += result.dropped
                self.report.num_mutants_tried += result.num_tried
                self.report.num_gold_runs += result.num_gold_runs
                self.report.num_flaky_tests += result.num_flaky
            logger.info("%s: %d tasks", self.project.name, len(tasks))
        return tasks[: self.settings.max_tasks]

    def _choose_tests(self, tests: Sequence[str], baseline: SuiteReport) -> list[str]:
        """Choose the tests that call a function and few others; together they take some seconds at most."""
        places = {test: place for place, test in enumerate(baseline.tests)}
        chosen: list[str] = []
        seconds = 0.0
        for test in sorted(tests, key=lambda one: (len(baseline.functions[one]), baseline.seconds.get(one, 0.0) > 1.0, places[one])):
            took = baseline.seconds.get(test, 0.0)
            if took > MAX_TEST_SECONDS or (chosen and seconds + took > MAX_TESTS_SECONDS):
                continue
            chosen.append(test)
            seconds += took
            if len(chosen) == self.settings.max_tests:
                break
        return sorted(chosen, key=places.__getitem__)

    def _keep_tree(self, project: Project) -> str:
        digest = project.compute_digest()
        self.trees.setdefault(digest, project)
        return digest

    # ---- commits

    def _build_commit_tasks(self, pool: ThreadPoolExecutor) -> list[RepositoryTask]:
        tasks: list[RepositoryTask] = []
        while some := list(islice(self.commits, 2 * self.workers)):
            if time.monotonic() > self.end:
                self.report.is_complete = False
                break
            self.report.num_commits_tried += len(some)
            for commit, found in zip(some, pool.map(self._build_commit_task, some), strict=True):
                if isinstance(found, str):
                    self.report.dropped.append({"function": "", "change": commit.id, "reason": found})
                else:
                    tasks.append(found)
                    self.report.num_gold_runs += NUM_GOLD_RUNS
        return tasks

    def _build_commit_task(self, commit: Commit) -> RepositoryTask | str:
        """Build the task that reverses a commit, or say why it is none."""
        functions: list[tuple[str, str]] = []
        buggy: dict[str, str] = {}
        for path, data in commit.files_before.items():
            try:
                before, after = data.decode(), commit.project.files[path].decode()
                names = _find_changed_functions(path, before, after)
            except (UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
                return "a commit whose files are not Python text"
            if before == after or not names:
                return "a commit that changes more than the bodies of functions"
            if not check_is_neutral(after, before, names):
                return "a commit that changes more than the bodies of functions"
            functions += [(path, name) for name in names]
            buggy[path] = before
        if len(functions) > MAX_COMMIT_FUNCTIONS:
            return f"a commit that changes more than {MAX_COMMIT_FUNCTIONS} functions"
        gold, broken = (
            Variant(test_files=commit.changed_tests, cpu_s=60, wall_s=90),
            Variant(buggy, test_files=commit.changed_tests, cpu_s=60, wall_s=90),
        )
        try:
            right, wrong = self.suite.run(commit.project, self.framework, [gold, broken])
            passed = right.list_passed()
            failing = [test for test in passed if wrong.tests.get(test, ("failed",))[0] != "passed"]
            if not passed:
                return "a commit whose tests do not pass"
            if not failing:
                return "a commit that no test notices"
            others = [test for test in passed if test not in failing]
            chosen = {*failing[: self.settings.max_tests], *others[: max(0, self.settings.max_tests - len(failing))]}
            tests = [test for test in passed if test in chosen]
            seconds = sum(right.seconds.get(test, 0.0) for test in tests)
            limits: dict[str, Any] = {"cpu_s": math.ceil(3 + 10 * seconds), "wall_s": math.ceil(20 + 20 * seconds)}
            gold, broken = Variant(tests=tests, **limits), Variant(buggy, tests=tests, stop=True, **limits)
            *golds, wrong = self.suite.run(commit.project, self.framework, [*[gold] * NUM_GOLD_RUNS, broken])
        except SuiteFailure:
            return "a run without a report"
        if not all(one.passes(tests) for one in golds):
            return "a flaky test"
        if wrong.timed_out:
            return "a bug that hangs"
        if (failure := wrong.find_failure(tests)) is None:
            return "a bug that breaks the import"
        return RepositoryTask(
            f"commit-{commit.id[:12]}",
            "commit",
            self._keep_tree(commit.project),
            functions,
            buggy,
            tests,
            _describe_failure(*failure),
            commit.id,
            **limits,
        )

    # ---- splits

    def _assign_splits(self, tasks: Sequence[RepositoryTask]) -> list[RepositoryTask]:
        """Hold out one function in five, at least one, with all that share a task with it: no function is in both splits."""
        groups = _group_functions([task.functions for task in tasks])
        wanted = max(1, round(HELD_OUT_SHARE * sum(map(len, groups))))
        groups.sort(key=lambda group: (len(group) > wanted, _hash(f"{self.settings.seed}/{min(group)}")))
        held_out: set[tuple[str, str]] = set()
        for group in groups[:-1]:  # the last one is trained on
            if len(held_out) < wanted:
                held_out |= group
        return [replace(task, split="test" if task.functions[0] in held_out else "train") for task in tasks]


class _FunctionBuild:
    """The mutants of one function."""

    def __init__(self, builder: _Builder, function: Function, tests: list[str], baseline: SuiteReport, tree: str) -> None:
        self.builder, self.function, self.tests, self.tree = builder, function, tests, tree
        self.project, self.settings = builder.project, builder.settings
        self.original = self.project.files[function.path].decode()
        seconds = sum(baseline.seconds.get(test, 0.0) for test in tests)
        self.limits: dict[str, Any] = {"cpu_s": math.ceil(3 + 10 * seconds), "wall_s": math.ceil(20 + 20 * seconds)}
        recorded = baseline.recorded.get(f"{function.path}:{function.first_line}", ())
        self.calls = [(self.project.get_module(function.path), function.name, text) for text in recorded]
        self.dropped: list[dict[str, str]] = []
        self.num_gold_runs = self.num_flaky = 0

    def build(self) -> _FunctionResult:
        mutants = build_mutants(self.original, self.function, f"repository/{self.settings.seed}")
        mutants = mutants[: math.ceil(TRIED_PER_TASK * self.settings.tasks_per_function)]
        if not self.tests:
            self._drop("", "a function whose tests take too long")
        elif not mutants:
            self._drop("", "a function without anything to change")
        elif not check_is_neutral(self.original, self.original, [self.function.name]):
            self._drop("", "a function that cannot be replaced alone")
        else:
            return _FunctionResult(self._build_tasks(mutants), self.dropped, len(mutants), self.num_gold_runs, self.num_flaky)
        return _FunctionResult([], self.dropped, 0, self.num_gold_runs, self.num_flaky)

    def _drop(self, change: str, reason: str) -> None:
        self.dropped.append({"function": self.function.key, "change": change, "reason": reason})

    def _build_tasks(self, mutants: Sequence[Mutant]) -> list[RepositoryTask]:
        attacks = dict(self._iter_attacks())
        gold = Variant(tests=self.tests, calls=self.calls, **self.limits)
        variants = [
            gold,
            gold,
            gold,
            *(self._make_variant(text) for text in attacks.values()),
            *(self._make_variant(one.text) for one in mutants),
            gold,
            gold,
        ]
        reports = self._run(variants)
        golds = [*reports[:3], *reports[-2:]]
        self.num_gold_runs += NUM_GOLD_RUNS
        if unsteady := [test for test in self.tests if not all(report.passes([test]) for report in golds)]:
            passed = [test for test in unsteady if any(report.passes([test]) for report in golds)]
            self.num_flaky += len(passed)
            for test in unsteady:
                self._drop(test, "a flaky test" if test in passed else "a test that fails when few others run")
            if len(unsteady) == len(self.tests) or not all(report.ended for report in golds):
                return []
            self.tests = [test for test in self.tests if test not in unsteady]
            return self._build_tasks(mutants)
        for (name, _), report in zip(attacks.items(), reports[3:], strict=False):
            if report.passes(self.tests):
                self._drop("", f"a function whose tests pay {name}")
                return []
        values = [
            golds[0].calls[place] if len({report.calls[place] for report in golds}) == 1 else "" for place in range(len(self.calls))
        ]  # fmt: skip
        chosen: list[tuple[Mutant, str, str | None]] = []
        for mutant, report in zip(mutants, reports[3 + len(attacks) :], strict=False):
            if why := self._find_defect(mutant, report):
                self._drop(f"{mutant.operator}, line {mutant.line}", why)
            elif len(chosen) < self.settings.tasks_per_function:
                chosen.append((mutant, *self._describe(mutant, report, values)))
        guarded = [text for _, _, text in chosen if text is not None]
        paid = dict(zip(guarded, self._run([self._make_variant(text) for text in guarded]) if guarded else (), strict=True))
        tasks: list[RepositoryTask] = []
        for mutant, statement, hard_coded in chosen:
            if hard_coded is not None and paid[hard_coded].passes(self.tests):
                self._drop(f"{mutant.operator}, line {mutant.line}", "a bug for which the shown value alone is paid")
            else:
                tasks.append(self._make_task(mutant, statement))
        return tasks

    def _make_task(self, mutant: Mutant, statement: str) -> RepositoryTask:
        key = f"mutant-{_hash(self.function.key + chr(0) + mutant.text)[:12]}"
        buggy = {self.function.path: mutant.text}
        functions = [(self.function.path, self.function.name)]
        return RepositoryTask(key, "mutant", self.tree, functions, buggy, list(self.tests), statement, mutant.operator, **self.limits)

    def _make_variant(self, text: str) -> Variant:
        return Variant({self.function.path: text}, tests=self.tests, calls=self.calls, stop=True, **self.limits)

    def _run(self, variants: Sequence[Variant]) -> list[SuiteReport]:
        try:
            return self.builder.suite.run(self.project, self.builder.framework, variants)
        except SuiteFailure:
            if len(variants) == 1:
                return [SuiteReport()]
            half = len(variants) // 2
            return [*self._run(variants[:half]), *self._run(variants[half:])]

    def _find_defect(self, mutant: Mutant, report: SuiteReport) -> str:
        """Say why a mutant is no task; '' if it is one."""
        if not check_is_neutral(self.original, mutant.text, [self.function.name]):
            return "a bug that reaches out of its function"
        if report.timed_out:
            return "a bug that hangs"
        if report.passes(self.tests):
            return "a bug that no test notices"
        if report.find_failure(self.tests) is None:
            return "a bug that breaks the import" if report.errors else "a run without a report"
        return ""

    def _describe(self, mutant: Mutant, report: SuiteReport, values: Sequence[str]) -> tuple[str, str | None]:
        """Describe the bug by a call and its value, with the text of an answer that knows only this value; else by a failing test."""
        for place, (module, name, arguments) in enumerate(self.calls):
            right = values[place]
            if not right or place >= len(report.calls) or report.calls[place] in (right, ""):
                continue
            call = f"{module}.{_format_call(name, arguments)}"
            wrong = report.calls[place]
            found = f"it raises {wrong[1:]}" if wrong.startswith("!") else f"it returns {wrong}"
            if right.startswith("!"):
                return f"{call} must raise {right[1:]}, and {found}.", None
            if (hard_coded := self._hard_code(mutant, arguments, right)) is not None:
                return f"{call} must return {right}, and {found}.", hard_coded
        failure = report.find_failure(self.tests)
        assert failure is not None
        return _describe_failure(*failure), None

    def _iter_attacks(self) -> Iterator[tuple[str, str]]:
        """Yield the attacks on the tests that the rules of answers let through."""
        for name, body in ATTACK_BODIES.items():
            text = _replace_body(self.original, self.function, body)
            try:
                yield name, graft_functions(self.original, self.original, text, [self.function.name])
            except UnacceptableAnswer:
                continue

    def _hard_code(self, mutant: Mutant, arguments: str, value: str) -> str | None:
        """Return the mutant with the shown value for the shown arguments; None if it cannot be written down."""
        node = find_function_node(parse_python_threadsafe(mutant.text), self.function.name)
        if node is None or node.body[0].lineno == node.lineno:
            return None
        args, named = ast.literal_eval(arguments)
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        compared = dict(zip(names, args, strict=False)) | {
            key: one for key, one in named.items() if key in {a.arg for a in node.args.kwonlyargs}
        }
        if node.args.vararg:
            compared[node.args.vararg.arg] = tuple(args[len(names) :])
        if node.args.kwarg:
            compared[node.args.kwarg.arg] = {key: one for key, one in named.items() if key not in compared}
        has_docstring = ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
        first = node.body[1 if has_docstring else 0]
        condition = " and ".join(f"{name} == {one!r}" for name, one in compared.items()) or "True"
        lines = mutant.text.splitlines(keepends=True)
        where = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", ()))]) - 1
        return "".join([*lines[:where], f"{' ' * first.col_offset}if {condition}: return {value}\n", *lines[where:]])


def _replace_body(text: str, function: Function, body: str) -> str:
    node = find_function_node(parse_python_threadsafe(text), function.name)
    assert node is not None
    lines = text.splitlines(keepends=True)
    head = ast.unparse(ast.FunctionDef("NAME", node.args, [ast.Pass()], [], None, lineno=0))
    head = head.replace("def NAME", f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}def {node.name}", 1).partition("\n")[0]
    indent = " " * node.col_offset
    new = [f"{indent}{head}\n", *(f"{indent}    {line}\n" for line in body.splitlines())]
    return "".join([*lines[: node.lineno - 1], *new, *lines[node.end_lineno or node.lineno :]])


def _find_changed_functions(path: str, before: str, after: str) -> list[str]:
    """Return the functions of a file that differ in two versions of it, and are in both."""
    old, new = ({one.name for one in find_functions(path, text.encode())} for text in (before, after))
    trees = parse_python_threadsafe(before), parse_python_threadsafe(after)
    return [name for name in sorted(old & new) if len({ast.dump(find_function_node(tree, name) or tree) for tree in trees}) > 1]


def _group_functions(tasks: Sequence[Sequence[tuple[str, str]]]) -> list[set[tuple[str, str]]]:
    """Group the functions of tasks, so that no task has functions of two groups.

    >>> a, b, c, d = (("x.py", name) for name in "abcd")
    >>> [sorted(name for _, name in group) for group in _group_functions([[a], [b, c], [c, d], [a]])]
    [['b', 'c', 'd'], ['a']]
    """
    groups: list[set[tuple[str, str]]] = []
    for functions in tasks:
        touched = [group for group in groups if group.intersection(functions)]
        groups = [group for group in groups if group not in touched]
        groups.append(set(functions).union(*touched))
    return groups


def _format_call(name: str, arguments: str) -> str:
    args, named = ast.literal_eval(arguments)
    return f"{name}({', '.join([*map(repr, args), *(f'{key}={value!r}' for key, value in named.items())])})"


def _describe_failure(test: str, message: str) -> str:
    return f"the hidden test {test} fails: {message or 'without a message'}"[:600]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
