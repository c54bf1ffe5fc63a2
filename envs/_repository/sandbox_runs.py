"""Run the tests of a project in a fresh session of the sandbox, on some variants of its files, and read what each test did."""

from __future__ import annotations

import importlib.machinery
import json
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.contracts import ExecutionResult, ExitStatus, Sandbox, SandboxSpec
from rlvr.envs._repository.project import Project
from rlvr.errors import ConfigError, SandboxError

logger = logging.getLogger("rlvr.envs.repository")
RUNNER_SOURCE = Path(__file__).with_name("suite_runner.py").read_text("utf-8")
"""The source of the program that runs the tests in the sandbox."""
PACKAGES_FOLDER = "/opt/rlvr/packages"
PYTEST_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
REQUEST_PATH = ".rlvr-request.json"
MEMORY_MB, DISK_MB, FILE_MB = 1024, 128, 64
ADDRESSES_MB = 768
"""The addresses of a process that runs tests: a variant that eats memory ends itself, and not the session."""
MAX_CALL_S = 570.0
RUN_OVERHEAD_S = 20.0


@dataclass(frozen=True)
class Variant:
    """Some files of a project in another version, and the tests to run on them.

    >>> Variant({"a.py": "x = 1"}).stop
    False
    """

    files: Mapping[str, str] = field(default_factory=dict)
    tests: Sequence[str] | None = None
    """The tests by their ids, in order; None: all tests of the files."""
    test_files: Sequence[str] = ()
    calls: Sequence[tuple[str, str, str]] = ()
    """Calls of functions after the tests: module, function, and the text of its arguments."""
    stop: bool = False
    """Whether to stop after the first test that fails."""
    trace: bool = False
    cpu_s: float = 20.0
    wall_s: float = 60.0


@dataclass(frozen=True)
class SuiteReport:
    """What the tests did on a variant.

    >>> SuiteReport({"a.py::test_it": ("passed", "")}).list_passed()
    ['a.py::test_it']
    """

    tests: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The outcome of each test (passed, failed, skipped) and the message of a failure."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """The files that could not be loaded, and why."""
    calls: Sequence[str] = ()
    """The text of each call's value."""
    functions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The functions that each test calls, as file and line."""
    recorded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The arguments of some calls of a function."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False
    """Whether all tests were run, or those up to the first failure."""
    timed_out: bool = False
    wall_s: float = 0.0

    def list_passed(self) -> list[str]:
        """Return the ids of the tests that passed."""
        return [test for test, (outcome, _) in self.tests.items() if outcome == "passed"]

    def passes(self, tests: Sequence[str]) -> bool:
        """Return whether each of these tests passed."""
        return self.ended and not self.timed_out and all(self.tests.get(test, ("",))[0] == "passed" for test in tests)

    def find_failure(self, tests: Sequence[str]) -> tuple[str, str] | None:
        """Return the first of these tests that failed, and its message."""
        return next(((test, self.tests[test][1]) for test in tests if self.tests.get(test, ("",))[0] == "failed"), None)


class SuiteFailure(Exception):
    """A run in the sandbox that gave no report, though the sandbox works: the programs in it are the reason."""


class SuiteSandbox:
    """Runs tests of projects in sessions of a sandbox."""

    def __init__(self, sandbox: Sandbox | None, packages: Sequence[str], framework: str) -> None:
        """Find the packages.

        Args:
            sandbox: opens the sessions.
            packages: names of packages that are installed here, which the project or its tests import; mounted read-only.
            framework: `pytest`, `unittest`, or `auto`: pytest where the sandbox can mount it.
        """
        if sandbox is None:
            raise ConfigError("the environment has no sandbox; it runs tests in one, so at least one tool must need it, such as bash")
        self.sandbox, self.packages, self.framework = sandbox, tuple(packages), framework
        self._package_mounts = {name: _find_package(name) for name in self.packages}

    def choose_framework(self, project: Project) -> str:
        """Return the framework for the tests of a project: pytest, if it is installed here, can be mounted, and does not use the project."""
        if self.framework != "auto":
            return self.framework
        if project.get_top_packages().intersection(PYTEST_PACKAGES) or not all(map(_locate_package, PYTEST_PACKAGES[:-1])):
            return "unittest"
        return "pytest" if self._can_mount else "unittest"

    @property
    def _can_mount(self) -> bool:
        return getattr(self.sandbox, "title", "") != "process"

    def get_mounts(self, framework: str) -> dict[str, str]:
        """Return what a session sees of this machine: the packages of the settings, and pytest."""
        found = {path: PACKAGES_FOLDER + "/" + Path(path).name for path in self._package_mounts.values()}
        if framework == "pytest":
            located = {name: _locate_package(name) for name in PYTEST_PACKAGES}
            if missing := [name for name in PYTEST_PACKAGES[:-1] if not located[name]]:
                raise ConfigError(
                    f"pytest needs {missing[0]!r}, which is not installed here; pip install pytest, or set framework to unittest"
                )
            found |= {path: PACKAGES_FOLDER + "/" + Path(path).name for path in located.values() if path}
        return {place: path for path, place in found.items()}

    def run(self, project: Project, framework: str, variants: Sequence[Variant], *, traced: bool = False) -> list[SuiteReport]:
        """Run the variants one after the other, in one fresh session.

        Raises:
            SandboxError: the sandbox failed.
            SuiteFailure: the programs in the session broke it, or did not end.
        """
        public = [f"{function.path}:{function.first_line}" for function in project.functions if function.is_public_function]
        extra = {
            "compiled": list(project.source_paths) if len(variants) > 2 else [],
            "traced": list(project.source_paths) if traced else [],
            "recorded": public if traced else [],
        }
        return self._run_request(project, framework, [_to_request(one) for one in variants], extra)

    def run_with_canaries(self, project: Project, framework: str, variant: Variant, nonce: str) -> tuple[SuiteReport, bool]:
        """Run one variant, then tests that must fail; returns the report, and whether they did."""
        path = f"test_{nonce}.py"
        canaries = [f"{path}::Test{nonce}::{name}" for name in ("test_equal", "test_true", "test_raises")]
        given = _to_request(variant)
        given |= {"tests": [*given["tests"], *canaries], "test_files": [*given["test_files"], path], "canaries": canaries}
        [report] = self._run_request(project, framework, [given], {"extra_files": {path: CANARY_SOURCE.format(nonce=nonce)}})
        return report, all(report.tests.get(test, ("",))[0] == "failed" for test in canaries)

    def _run_request(
        self, project: Project, framework: str, variants: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]
    ) -> list[SuiteReport]:
        mounts = self.get_mounts(framework)
        request: dict[str, Any] = {
            "framework": framework,
            "paths": list(project.search_paths),
            "packages": PACKAGES_FOLDER if mounts else "",
            "memory_mb": ADDRESSES_MB,
            "extra_files": {},
            "compiled": [],
            "traced": [],
            "recorded": [],
            "variants": list(variants),
            **extra,
        }
        files = {**project.files, REQUEST_PATH: json.dumps(request).encode()}
        spec = SandboxSpec(
            files=files, mounts=mounts, memory_mb=MEMORY_MB, disk_mb=DISK_MB, file_mb=FILE_MB, processes=128, output_bytes=32_000_000
        )
        command = f"exec env PYTHONHASHSEED=0 python3 -S -B -c {shlex.quote(RUNNER_SOURCE)} {REQUEST_PATH}"
        seconds = sum(float(one["wall_s"]) for one in variants)
        with self.sandbox.create_session(spec) as session:
            outcome = session.run(command, timeout=min(MAX_CALL_S, seconds + RUN_OVERHEAD_S))
        if outcome.status is ExitStatus.INTERNAL_ERROR:
            raise SandboxError(f"the sandbox failed: {outcome.reason}")
        return _parse_reports(outcome, len(variants))


CANARY_SOURCE = """import unittest


class Test{nonce}(unittest.TestCase):
    def test_equal(self):
        self.assertEqual([1, 2], [1, 3])

    def test_true(self):
        assert {{"a": 1}} == {{"a": 2}}

    def test_raises(self):
        with self.assertRaises(ValueError):
            pass
"""
"""Tests that fail, unless something has made all tests pass."""


def _to_request(variant: Variant) -> dict[str, Any]:
    tests = None if variant.tests is None else list(variant.tests)
    files = list(variant.test_files) if tests is None else list(dict.fromkeys(test.partition("::")[0] for test in tests))
    return {
        "files": dict(variant.files),
        "tests": tests,
        "test_files": files,
        "calls": [list(one) for one in variant.calls],
        "stop": variant.stop,
        "trace": variant.trace,
        "cpu_s": variant.cpu_s,
        "wall_s": variant.wall_s,
    }


def _parse_reports(outcome: ExecutionResult, count: int) -> list[SuiteReport]:
    lines = outcome.stdout_bytes.decode("utf-8", "replace").splitlines() if not outcome.truncated else []
    if outcome.status is not ExitStatus.OK or len(lines) != count:
        said = outcome.stderr.strip().rpartition("\n")[2]
        raise SuiteFailure(
            f"the tests gave no report ({outcome.status.value}{', ' + outcome.reason if outcome.reason else ''}){said and ': '}{said}"[:400]
        )
    found = []
    for line in lines:
        made = json.loads(line)
        found.append(
            SuiteReport(
                tests={test: (str(one[0]), str(one[1])) for test, one in made["tests"].items()},
                errors=made["errors"],
                calls=made["calls"],
                functions=made["functions"],
                recorded=made["recorded"],
                seconds=made["seconds"],
                ended=bool(made.get("end")),
                timed_out=bool(made["timed_out"]),
                wall_s=float(made["wall"]),
            )
        )
    return found


# ---- packages of this machine


def _locate_package(name: str) -> str:
    """Return the folder or file of a pure Python package that is installed here, without importing it; '' if there is none."""
    spec = importlib.machinery.PathFinder.find_spec(name)
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ())
    return os.path.realpath(places[0]) if places else os.path.realpath(spec.origin) if spec.origin and spec.origin.endswith(".py") else ""


def _find_package(name: str) -> str:
    if not isinstance(name, str) or not name.isidentifier() or not (place := _locate_package(name)):
        raise ConfigError(
            f"packages has {name!r:.60}, and no package of that name is installed here; write the names by which Python imports them"
        )
    return place
