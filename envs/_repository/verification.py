"""Verify the files of a conversation: their functions are put into the original project, and its tests run in a fresh sandbox."""

from __future__ import annotations

import secrets
from typing import Any

from rlvr.contracts import Transcript, Verifier, VerifierExample
from rlvr.envs._repository.answers import UnacceptableAnswer, graft_functions
from rlvr.envs._repository.cache import StoredTasks
from rlvr.envs._repository.sandbox_runs import SuiteFailure, SuiteSandbox, Variant
from rlvr.errors import SandboxError, require_text_answers
from rlvr.task import Fault, Task, Verdict

MAX_FILE_BYTES = 400_000
"""The most bytes of one file."""


class RepositoryVerifier(Verifier):
    """Verify a conversation by the hidden tests of its project: 1 if every one passes, else 0.

    Of the answer only the functions of the task count. They are put into the original file, so no test, no setting and no other code of
    the answer is in the sandbox of the verdict. An answer that uses what could reach the tests scores 0 before anything runs. Beside the
    hidden tests some run that must fail; if one of them passes, the answer has changed the tests, and scores 0.
    """

    examples = (VerifierExample({"build": "", "task": ""}, correct=(), incorrect=("", "done", "def f(): pass")),)

    def __init__(self, stored: Any, suite: Any) -> None:
        """Take what gives the tasks, and what gives the sandbox: both are known only when the tasks are built."""
        self._get_stored, self._get_suite = stored, suite

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Score 0: a text alone has changed no file."""
        return Verdict(0.0, "there was no sandbox session, so nothing was done")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Run the hidden tests on the functions of the files in the artifacts."""
        stored: StoredTasks = self._get_stored()
        posed = stored.get(task.reference["task"])
        if posed is None or stored.digest != task.reference["build"]:
            return Verdict(
                None, f"{task.id} is not among the tasks that are built now; the project or its settings changed", fault=Fault.TASK
            )
        project = stored.get_project(posed.tree)
        files: dict[str, str] = {}
        for path, buggy in posed.buggy_files.items():
            found = transcript.artifacts.get(path)
            if not isinstance(found, bytes):
                return Verdict(0.0, f"{path} is missing" if found is None else f"{path} cannot be read: {found!r:.40}")
            if len(found) > MAX_FILE_BYTES:
                return Verdict(0.0, f"{path} has more than {MAX_FILE_BYTES:,} bytes")
            names = [name for one, name in posed.functions if one == path]
            try:
                files[path] = graft_functions(project.files[path].decode(), buggy, found.decode(), names)
            except UnicodeDecodeError:
                return Verdict(0.0, f"{path} is not UTF-8 text")
            except UnacceptableAnswer as error:
                return Verdict(0.0, f"{path}: {error}")
        if files == posed.buggy_files:
            return Verdict(0.0, "the functions are as they were")
        suite: SuiteSandbox = self._get_suite()
        variant = Variant(files, tests=posed.tests, stop=True, cpu_s=posed.cpu_s, wall_s=posed.wall_s)
        try:
            report, canaries_failed = suite.run_with_canaries(project, stored.framework, variant, f"rlvr{secrets.token_hex(6)}")
        except SandboxError as error:
            return Verdict(None, f"the tests could not be run: {error}", fault=Fault.INFRA)
        except SuiteFailure as error:
            return Verdict(0.0, str(error), fault=Fault.ANSWER)
        passed = sum(report.tests.get(test, ("",))[0] == "passed" for test in posed.tests)
        if report.passes(posed.tests):
            if not canaries_failed:
                return Verdict(0.0, "tests that must fail passed, so the answer has changed the tests")
            return Verdict(1.0, f"all {passed} hidden tests pass")
        if report.timed_out:
            return Verdict(0.0, "the hidden tests did not end in time")
        failure = report.find_failure(posed.tests)
        if failure is None:
            return Verdict(0.0, next((f"{path}: {why}" for path, why in report.errors.items()), "the hidden tests ended early")[:300])
        return Verdict(0.0, f"{failure[0]} fails: {failure[1]}"[:300])
