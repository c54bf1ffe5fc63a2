"""Verify the files of a conversation: the folder's tests run in a fresh sandbox that has only these files."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from rlvr.contracts import Box, Example, Outcome, Sandbox, Stop, Transcript, Verifier
from rlvr.envs._harbor.boxes import PATH, begun, collected, place, solving
from rlvr.envs._harbor.folders import Folder
from rlvr.envs._harbor.images import Image, prepared
from rlvr.envs._harbor.laying import lay
from rlvr.errors import ToolCrash
from rlvr.task import Fault, Task, Verdict

LONGEST = 64_000
"""Most bytes read of a reward file or a summary."""
INSIDE = Path(__file__).with_name("inside.py").read_text("utf-8")
"""Source of the program that runs the tests in the sandbox."""
SUMMARY = re.compile(r"^=+ (.+) in [0-9.]+s(?: \([0-9:]+\))? =+$", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|error|errors|skipped|xfailed|xpassed|warning|warnings|deselected|rerun)")


@dataclass(frozen=True)
class Found:
    """Result of a test run: a reward, or why there is none.

    >>> Found(1.0).trouble
    ''
    """

    reward: float | None
    trouble: str = ""
    others: Mapping[str, float] = field(default_factory=dict)
    """Further rewards by name, for the log."""
    writes: int = 1
    """How often a reward was written while the tests ran."""
    strays: int = 0
    """How many processes outlived the process that started them."""
    exit: int = 0
    """Exit code of the tests; below 0: a signal."""
    touched: frozenset[str] = frozenset()
    """Test files that were changed while the tests ran, and files that were added beside them."""


class FolderTests(Verifier):
    """Verify a conversation by the tests of its task folder: 1 for a reward of 1; with `partial` the reward itself, from 0 to 1.

    A reward that is missing, not a number or out of range is the answer's fault if the folder's solution gets a valid one, else the
    task's fault.
    """

    examples = (Example({"folder": ""}, right=(), wrong=("", "done", '{"reward": 1}')),)

    def __init__(self, folders: Mapping[str, Folder], *, sandbox: Sandbox | None, disk_mb: int, partial: bool) -> None:
        self.folders, self.sandbox, self.disk_mb, self.partial = folders, sandbox, disk_mb, partial
        self._solutions: dict[str, Found] = {}
        self._lock = Lock()

    def verify(self, task: Task, answer: str) -> Verdict:
        """Score 0: a text alone has changed no file."""
        return Verdict(0.0, "there was no sandbox session, so nothing was done")

    def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """Run the tests on the collected files."""
        if why := transcript.evidence.get("trouble"):
            return Verdict(0.0, str(why), fault=Fault.ANSWER)
        left = transcript.evidence.get("left")
        if not isinstance(left, bytes):
            return self.verify(task, transcript.answer)
        folder = self.folders[task.reference["folder"]]
        if folder.digest != task.reference["digest"]:
            return Verdict(None, f"the folder {folder.name!r} has changed since the task was made", fault=Fault.TASK)
        try:
            found = self.tested(folder, left)
            plain = found.writes == 1 and not (found.strays or found.exit or found.touched)
            if found.reward and not plain and (why := self._doubt(folder, found)):
                found = Found(None, why)
            if found.reward is None:
                return self._blame(folder, found)
        except ToolCrash as error:
            return Verdict(None, f"the tests of {folder.name} could not be run: {error}", fault=Fault.INFRA)
        full = abs(found.reward - 1.0) <= 1e-9
        score = min(1.0, found.reward) if self.partial else float(full)
        detail = {"reward": found.reward} | ({"rewards": dict(found.others)} if found.others else {})
        return Verdict(1.0 if full else score, f"the tests gave the reward {found.reward:g}", detail=detail)

    def tested(self, folder: Folder, left: bytes) -> Found:
        """Run the tests on the collected files, in a fresh sandbox. Raises ToolFailure if the sandbox fails."""
        image = prepared(folder)
        with self._open(folder, image) as box:
            begun(box, image, {})
            if wrong := lay(box, image, folder, left):
                return Found(None, wrong)
            outcome = box.run(_command(folder, image), timeout=folder.test_seconds)
            if outcome.stop is Stop.IE:
                raise ToolCrash(f"the sandbox failed: {outcome.reason}")
            if (ended := _report(outcome)) is None:
                said = outcome.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
                return Found(None, f"the tests were stopped ({outcome.reason or outcome.stop.value}{said and ': '}{said})"[:300])
            seen = {"strays": ended["strays"], "exit": ended["exit"], "touched": frozenset(ended["touched"])}
            if folder.form == "terminal-bench":
                return replace(summed(outcome.stdout.decode("utf-8", "replace"), ended["exit"]), **seen)
            return replace(_reward(box), writes=ended["changes"], **seen)

    def _open(self, folder: Folder, image: Image) -> Box:
        if self.sandbox is None:
            raise ToolCrash("the environment has no sandbox; its tools need one")
        return self.sandbox.open(place(image, folder, self.disk_mb))

    def _doubt(self, folder: Folder, found: Found) -> str:
        """Explain why a reward may be forged; '' if the folder's solution behaves the same way."""
        solved = self._solution(folder)
        if found.strays and not solved.strays:
            return "a process that had outlived its program was running while the reward was written"
        known = folder.solver and solved.reward is not None
        if known and (more := sorted(found.touched - solved.touched)):
            return f"{more[0] or 'the folder of the tests'} was changed while the tests ran"
        if found.exit < 0 and found.exit != solved.exit:
            return f"the tests were ended by signal {-found.exit}"
        if known and found.reward == 1.0 and found.exit != solved.exit:
            return f"the tests ended with status {found.exit}, and with {solved.exit} for the solution"
        differs = found.writes > solved.writes or (found.reward == 1.0 and found.writes < solved.writes)
        if known and differs:
            return f"the reward was written {found.writes} times, and {solved.writes} times for the solution"
        return ""

    def _blame(self, folder: Folder, found: Found) -> Verdict:
        """Find the fault of a missing reward: the task's, unless its own solution gets one."""
        solved = self._solution(folder)
        what = "its solution" if folder.solver else "the unchanged files"
        if solved.reward is None or (folder.solver and solved.reward < 1):
            why = f"{what} gets none either: {solved.trouble}" if solved.reward is None else f"{what} gets {solved.reward:g}"
            return Verdict(None, f"the tests of {folder.name} gave no valid reward: {found.trouble}; {why}", fault=Fault.TASK)
        return Verdict(0.0, f"the answer broke the tests: {found.trouble}; the solution of the task does not", fault=Fault.ANSWER)

    def _solution(self, folder: Folder) -> Found:
        """Run the tests once on the solution (or on the unchanged files if there is none), and cache the report."""
        with self._lock:
            if folder.name not in self._solutions:
                image = prepared(folder)
                with self._open(folder, image) as box:
                    begun(box, image, folder.variables)
                    if folder.solver:
                        box.run(solving(folder), timeout=folder.test_seconds)
                    left = collected(box, image, folder).get("left", b"")
                self._solutions[folder.name] = self.tested(folder, left) if left else Found(None, "nothing is left")
            return self._solutions[folder.name]


def summed(text: str, exit_code: int | None) -> Found:
    """Parse the reward of a pytest run: 1 if it succeeded, and its last summary counts only passed tests.

    >>> summed("=== 2 passed in 0.01s ===", 0).reward, summed("=== 1 failed, 1 passed in 0.01s ===", 1).reward
    (1.0, 0.0)
    """
    found = SUMMARY.findall(text[-LONGEST:])
    if not found:
        return Found(None, f"pytest wrote no summary (exit status {exit_code})")
    counts = {kind.rstrip("s"): int(count) for count, kind in COUNT.findall(found[-1])}
    passed = counts.get("passed", 0) and not any(counts.get(kind) for kind in ("failed", "error", "skipped", "xfailed", "xpassed"))
    others = {f"tests/{kind}": float(count) for kind, count in counts.items()}
    return Found(float(bool(passed) and exit_code == 0), others=others, writes=len(found))


def rewarded(text: str, *, structured: bool) -> Found:
    """Parse the reward from the text of reward.json or reward.txt.

    >>> rewarded("1", structured=False).reward, rewarded('{"reward": 0.5, "style": 1}', structured=True).reward
    (1.0, 0.5)
    >>> rewarded("7.5", structured=False).trouble
    'the reward is 7.5; it must be a number from 0 to 1'
    """
    try:
        value: Any = json.loads(text) if structured else float(text.strip())
    except (ValueError, RecursionError):
        return Found(None, f"the reward is {text.strip()!r:.80}; it must be a number from 0 to 1")
    others: dict[str, float] = {}
    if isinstance(value, dict):
        others = {str(name): float(one) for name, one in value.items() if _is_reward(one)}
        if len(others) < len(value) or ("reward" not in others and len(others) != 1):
            return Found(None, f"the rewards are {text.strip()!r:.80}; numbers from 0 to 1 are needed, one of them named reward")
        value = others.get("reward", next(iter(others.values())))
    if not _is_reward(value):
        return Found(None, f"the reward is {value!r:.80}; it must be a number from 0 to 1")
    return Found(float(value), others=others)


def _is_reward(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1


def _command(folder: Folder, image: Image) -> str:
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in {**folder.variables, **folder.test_variables}.items())
    log = "" if folder.form == "terminal-bench" else "/logs/verifier/test-stdout.txt"
    run = f"-I -S -c {shlex.quote(INSIDE)} {shlex.quote(log)} /bin/bash /tests/{shlex.quote(folder.script)}"
    found = f'python3=$(PATH="{PATH}:$PATH"; type -P python3)'
    return f'{found}\n{exported}cd {shlex.quote(image.workdir)}\n/bin/chmod -R a+rx /tmp/tests\nexec "$python3" {run}'


def _report(outcome: Outcome) -> dict[str, Any] | None:
    """Parse the report of the test runner; None if the tests were stopped before it was written."""
    if outcome.stop not in (Stop.OK, Stop.RE):
        return None
    try:
        said = json.loads(outcome.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
    except ValueError:
        return None
    return said if isinstance(said, dict) and {"exit", "strays", "changes", "touched"} <= said.keys() else None


def _reward(box: Box) -> Found:
    """Read the reward that the tests wrote. Two different ones count as none: a program of the answer may have written one."""
    found = list[Found]()
    for name in ("reward.json", "reward.txt"):
        try:
            data = box.get(f"logs/verifier/{name}", LONGEST)
        except FileNotFoundError:
            continue
        except OSError as error:
            return Found(None, f"{name} cannot be read: {error.strerror}")
        text = data.decode("utf-8", "replace")
        found.append(rewarded(text, structured=name.endswith("json")) if text.strip() else Found(None, f"{name} is empty"))
    if len(found) == 2 and found[0].reward != found[1].reward:
        return Found(None, "reward.json and reward.txt say different things")
    return found[0] if found else Found(None, "the tests wrote no reward")
