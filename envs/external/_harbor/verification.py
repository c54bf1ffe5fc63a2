"""Verify the files of a conversation: the folder's tests run in a fresh sandbox that has only these files."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from rlvr.contracts import ExecutionResult, ExitStatus, Sandbox, SandboxSession, Transcript, Verifier, VerifierExample
from rlvr.envs.external._harbor.folders import TaskFolder
from rlvr.envs.external._harbor.images import TaskImage, get_or_build_image
from rlvr.envs.external._harbor.sessions import (
    SEARCH_PATH,
    SETUP_TIMEOUT_S,
    archive_answer_files,
    build_solution_command,
    copy_files_and_export_variables,
    make_sandbox_spec,
)
from rlvr.envs.external._harbor.staging import stage_answer_and_tests
from rlvr.errors import ToolInfrastructureError, require_text_answers
from rlvr.task import Fault, Task, Verdict

MAX_RUNS = 3  # of one verdict: the tests on the answer, the solution, the tests on that
MAX_REPORT_BYTES = 64_000
"""Most bytes read of a reward file or a summary."""
TEST_RUNNER_SOURCE = Path(__file__).with_name("test_runner.py").read_text("utf-8")
"""Source of the program that runs the tests in the sandbox."""
SUMMARY_PATTERN = re.compile(r"^=+ (.+) in [0-9.]+s(?: \([0-9:]+\))? =+$", re.MULTILINE)
COUNT_PATTERN = re.compile(r"(\d+) (passed|failed|error|errors|skipped|xfailed|xpassed|warning|warnings|deselected|rerun)")


@dataclass(frozen=True)
class RewardReport:
    """Result of a test run: a reward, or why there is none.

    >>> RewardReport(1.0).problem
    ''
    """

    reward: float | None
    problem: str = ""
    other_rewards: Mapping[str, float] = field(default_factory=dict)
    """Further rewards by name, for the log."""
    num_writes: int = 1
    """How often a reward was written while the tests ran."""
    num_strays: int = 0
    """How many processes outlived the process that started them."""
    exit_code: int = 0
    """Exit code of the tests; below 0: a signal."""
    changed_files: frozenset[str] = frozenset()
    """Test files that were changed while the tests ran, and files that were added beside them."""


class TaskFolderVerifier(Verifier):
    """Verify a conversation by the tests of its task folder: 1 for a reward of 1; with `partial` the reward itself, from 0 to 1.

    A reward that is missing, not a number or out of range is the answer's fault if the folder's solution gets a valid one, else the
    task's fault. Tests that hang are stopped in time for that comparison: a verdict that comes after the run has given up is no score,
    and an answer would lose its 0.
    """

    examples = (VerifierExample({"folder": ""}, correct=(), incorrect=("", "done", '{"reward": 1}')),)

    def __init__(
        self, folders: Mapping[str, TaskFolder], *, sandbox: Sandbox | None, disk_mb: int, partial: bool, timeout_s: float
    ) -> None:
        self.folders, self.sandbox, self.disk_mb, self.partial, self.timeout_s = folders, sandbox, disk_mb, partial, timeout_s
        self._solution_reports: dict[str, RewardReport] = {}
        self._locks = {name: Lock() for name in folders}

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Score 0: a text alone has changed no file."""
        return Verdict(0.0, "there was no sandbox session, so nothing was done")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Run the tests on the collected files."""
        if why := transcript.artifacts.get("trouble"):
            return Verdict(0.0, str(why), fault=Fault.ANSWER)
        left = transcript.artifacts.get("left")
        if not isinstance(left, bytes):
            return self.verify(task, transcript.answer)
        folder = self.folders[task.reference["folder"]]
        if folder.digest != task.reference["digest"]:
            return Verdict(None, f"the folder {folder.name!r} has changed since the task was made", fault=Fault.TASK)
        end = time.monotonic() + self.timeout_s
        try:
            if MAX_RUNS * (folder.test_timeout_s + SETUP_TIMEOUT_S) > self.timeout_s:
                self._test_solution(folder)  # first: if the answer hangs the tests, there may be no time for it
            found = self.run_tests(folder, left, end)
            plain = found.num_writes == 1 and not (found.num_strays or found.exit_code or found.changed_files)
            if found.reward and not plain and (why := self._find_tampering(folder, found)):
                found = RewardReport(None, why)
            if found.reward is None:
                return self._find_fault(folder, found)
        except ToolInfrastructureError as error:
            return Verdict(None, f"the tests of {folder.name} could not be run: {error}", fault=Fault.INFRA)
        full = abs(found.reward - 1.0) <= 1e-9
        score = min(1.0, found.reward) if self.partial else float(full)
        detail = {"reward": found.reward} | ({"rewards": dict(found.other_rewards)} if found.other_rewards else {})
        return Verdict(1.0 if full else score, f"the tests gave the reward {found.reward:g}", detail=detail)

    def run_tests(self, folder: TaskFolder, answer_archive: bytes, end: float = math.inf) -> RewardReport:
        """Run the tests on the collected files, in a fresh sandbox, and stop them at `end` (a `time.monotonic` value).

        Raises ToolInfrastructureError if the sandbox fails.
        """
        image = get_or_build_image(folder)
        with self._open_session(folder, image) as box:
            copy_files_and_export_variables(box, image, {})
            if wrong := stage_answer_and_tests(box, image, folder, answer_archive):
                return RewardReport(None, wrong)
            seconds = min(folder.test_timeout_s, max(end - time.monotonic(), 1.0))
            outcome = box.run(_build_test_command(folder, image), timeout=seconds)
            if outcome.status is ExitStatus.INTERNAL_ERROR:
                raise ToolInfrastructureError(f"the sandbox failed: {outcome.reason}")
            if (ended := _parse_report(outcome)) is None:
                said = outcome.stderr_bytes.decode("utf-8", "replace").strip().rpartition("\n")[2]
                return RewardReport(None, f"the tests were stopped ({outcome.reason or outcome.status.value}{said and ': '}{said})"[:300])
            seen: dict[str, Any] = {
                "num_strays": ended["strays"],
                "exit_code": ended["exit"],
                "changed_files": frozenset(ended["touched"]),
            }
            if folder.task_format == "terminal-bench":
                return replace(parse_pytest_summary(outcome.stdout_bytes.decode("utf-8", "replace"), ended["exit"]), **seen)
            return replace(_read_reward(box), num_writes=ended["changes"], **seen)

    def _open_session(self, folder: TaskFolder, image: TaskImage) -> SandboxSession:
        if self.sandbox is None:
            raise ToolInfrastructureError("the environment has no sandbox; its tools need one")
        return self.sandbox.create_session(make_sandbox_spec(image, folder, self.disk_mb))

    def _find_tampering(self, folder: TaskFolder, report: RewardReport) -> str:
        """Explain why a reward may be forged; '' if the folder's solution behaves the same way."""
        solved = self._test_solution(folder)
        if report.num_strays and not solved.num_strays:
            return "a process that had outlived its program was running while the reward was written"
        known = folder.solution_script and solved.reward is not None
        if known and (more := sorted(report.changed_files - solved.changed_files)):
            return f"{more[0] or 'the folder of the tests'} was changed while the tests ran"
        if report.exit_code < 0 and report.exit_code != solved.exit_code:
            return f"the tests were ended by signal {-report.exit_code}"
        if known and report.reward == 1.0 and report.exit_code != solved.exit_code:
            return f"the tests ended with status {report.exit_code}, and with {solved.exit_code} for the solution"
        differs = report.num_writes > solved.num_writes or (report.reward == 1.0 and report.num_writes < solved.num_writes)
        if known and differs:
            return f"the reward was written {report.num_writes} times, and {solved.num_writes} times for the solution"
        return ""

    def _find_fault(self, folder: TaskFolder, report: RewardReport) -> Verdict:
        """Find the fault of a missing reward: the task's, unless its own solution gets one."""
        solved = self._test_solution(folder)
        what = "its solution" if folder.solution_script else "the unchanged files"
        if solved.reward is None or (folder.solution_script and solved.reward < 1):
            why = f"{what} gets none either: {solved.problem}" if solved.reward is None else f"{what} gets {solved.reward:g}"
            return Verdict(None, f"the tests of {folder.name} gave no valid reward: {report.problem}; {why}", fault=Fault.TASK)
        return Verdict(0.0, f"the answer broke the tests: {report.problem}; the solution of the task does not", fault=Fault.ANSWER)

    def _test_solution(self, folder: TaskFolder) -> RewardReport:
        """Run the tests once on the solution (or on the unchanged files if there is none), and cache the report."""
        with self._locks[folder.name]:  # the verdicts on other folders do not wait
            if folder.name not in self._solution_reports:
                image = get_or_build_image(folder)
                with self._open_session(folder, image) as box:
                    copy_files_and_export_variables(box, image, folder.variables)
                    if folder.solution_script:
                        box.run(build_solution_command(folder), timeout=folder.test_timeout_s)
                    left = archive_answer_files(box, image, folder).get("left", b"")
                self._solution_reports[folder.name] = self.run_tests(folder, left) if left else RewardReport(None, "nothing is left")
            return self._solution_reports[folder.name]


def parse_pytest_summary(text: str, exit_code: int | None) -> RewardReport:
    """Parse the reward of a pytest run: 1 if it succeeded, and its last summary counts only passed tests.

    >>> parse_pytest_summary("=== 2 passed in 0.01s ===", 0).reward, parse_pytest_summary("=== 1 failed, 1 passed in 0.01s ===", 1).reward
    (1.0, 0.0)
    """
    found = SUMMARY_PATTERN.findall(text[-MAX_REPORT_BYTES:])
    if not found:
        return RewardReport(None, f"pytest wrote no summary (exit status {exit_code})")
    counts = {kind.rstrip("s"): int(count) for count, kind in COUNT_PATTERN.findall(found[-1])}
    passed = counts.get("passed", 0) and not any(counts.get(kind) for kind in ("failed", "error", "skipped", "xfailed", "xpassed"))
    others = {f"tests/{kind}": float(count) for kind, count in counts.items()}
    return RewardReport(float(bool(passed) and exit_code == 0), other_rewards=others, num_writes=len(found))


def parse_reward(text: str, *, is_json: bool) -> RewardReport:
    """Parse the reward from the text of reward.json or reward.txt.

    >>> parse_reward("1", is_json=False).reward, parse_reward('{"reward": 0.5, "style": 1}', is_json=True).reward
    (1.0, 0.5)
    >>> parse_reward("7.5", is_json=False).problem
    'the reward is 7.5; it must be a number from 0 to 1'
    """
    try:
        value: Any = json.loads(text) if is_json else float(text.strip())
    except (ValueError, RecursionError):
        return RewardReport(None, f"the reward is {text.strip()!r:.80}; it must be a number from 0 to 1")
    others: dict[str, float] = {}
    if isinstance(value, dict):
        others = {str(name): float(one) for name, one in value.items() if _is_reward(one)}
        if len(others) < len(value) or ("reward" not in others and len(others) != 1):
            return RewardReport(None, f"the rewards are {text.strip()!r:.80}; numbers from 0 to 1 are needed, one of them named reward")
        value = others.get("reward", next(iter(others.values())))
    if not _is_reward(value):
        return RewardReport(None, f"the reward is {value!r:.80}; it must be a number from 0 to 1")
    return RewardReport(float(value), other_rewards=others)


def _is_reward(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1


def _build_test_command(folder: TaskFolder, image: TaskImage) -> str:
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in {**folder.variables, **folder.test_variables}.items())
    log = "" if folder.task_format == "terminal-bench" else "/logs/verifier/test-stdout.txt"
    run = f"-I -S -c {shlex.quote(TEST_RUNNER_SOURCE)} {shlex.quote(log)} /bin/bash /tests/{shlex.quote(folder.test_script)}"
    found = f'python3=$(PATH="{SEARCH_PATH}:$PATH"; type -P python3)'
    return f'{found}\n{exported}cd {shlex.quote(image.workdir)}\n/bin/chmod -R a+rx /tmp/tests\nexec "$python3" {run}'


def _parse_report(outcome: ExecutionResult) -> dict[str, Any] | None:
    """Parse the report of the test runner; None if the tests were stopped before it was written."""
    if outcome.status not in (ExitStatus.OK, ExitStatus.RUNTIME_ERROR):
        return None
    try:
        said = json.loads(outcome.stderr_bytes.decode("utf-8", "replace").strip().rpartition("\n")[2])
    except ValueError:
        return None
    return said if isinstance(said, dict) and {"exit", "strays", "changes", "touched"} <= said.keys() else None


def _read_reward(sandbox_session: SandboxSession) -> RewardReport:
    """Read the reward that the tests wrote. Two different ones count as none: a program of the answer may have written one."""
    found = list[RewardReport]()
    for name in ("reward.json", "reward.txt"):
        try:
            data = sandbox_session.read_file(f"logs/verifier/{name}", MAX_REPORT_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            return RewardReport(None, f"{name} cannot be read: {error.strerror}")
        text = data.decode("utf-8", "replace")
        found.append(parse_reward(text, is_json=name.endswith("json")) if text.strip() else RewardReport(None, f"{name} is empty"))
    if len(found) == 2 and found[0].reward != found[1].reward:
        return RewardReport(None, "reward.json and reward.txt say different things")
    return found[0] if found else RewardReport(None, "the tests wrote no reward")
