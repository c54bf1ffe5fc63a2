"""Run a verifier of yours in worker processes with a limit of processor time, so that no answer can stop a run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, VerifierError, require_text_answers
from rlvr.registry.plugins import build_from_config
from rlvr.task import Fault, Task, Verdict, to_plain_json
from rlvr.verifiers._isolated_worker import CONFIG_VARIABLE
from rlvr.verifiers._workers.pool import BudgetExceeded, Worker, WorkerPool, WorkersDied, WorkersFailed

HANDLER_FILE = Path(__file__).with_name("_isolated_worker.py")
WALL_FACTOR = 6.0
HARMLESS_ANSWER = "0"
MAX_KNOWN_FAILURES = 1000


class IsolatedVerifier(Verifier):
    """Another verifier in processes of its own, which are killed when they exceed their limits.

    Python cannot interrupt a long C call, such as a regular expression with much backtracking or the power of two large integers,
    and everything else in the process waits for it. Here a worker is killed instead. If the verifier then judges another answer within
    its limits, the failure is the answer's: score 0. Otherwise there is no score. A worker judges many answers, so what the verifier
    keeps in global variables stays.

    >>> import rlvr
    >>> rlvr.verify(rlvr.make_verifier("isolated", verifier="numeric"), answer="4.0", reference="4").score
    1.0
    """

    examples = (VerifierExample(reference="4", correct=("4",), incorrect=("5", "44", "")),)

    def __init__(
        self, *, verifier: str | Mapping[str, Any] = "exact", cpu_s: float = 10.0, memory_mb: int = 4096, workers: int = 2
    ) -> None:
        """Set the verifier and its limits.

        Args:
            verifier: a name, path/to/file.py:Verifier, path/to/file.py:function, or a mapping with a name and settings.
            cpu_s: processor seconds for one answer.
            memory_mb: address space of a worker, in MiB.
            workers: number of worker processes; an answer that fails is repeated in another one, which ends after it.
        """
        if isinstance(cpu_s, bool) or not isinstance(cpu_s, int | float) or not cpu_s > 0:
            raise ConfigError(f"cpu_s is {cpu_s!r}; it must be a number above 0, such as 10")
        if not isinstance(verifier, str | Mapping):
            raise ConfigError(
                f"verifier is a {type(verifier).__name__}; each worker builds its own, so give a name, path/to/file.py:function "
                "or a mapping with a name and settings"
            )
        inner: Verifier = build_from_config("verifier", verifier)
        if inner.traits.takes_transcript or inner.traits.is_async:
            what = "reads whole conversations" if inner.traits.takes_transcript else "is awaited"
            inner.close()
            raise ConfigError(f"the verifier {verifier!r} {what}, and cannot be isolated; use it without")
        self.needs_reference, self.columns, self.instruction = inner.needs_reference, inner.columns, inner.instruction
        self.has_bounded_score = inner.has_bounded_score
        inner.close()
        self._known: dict[str, Any] | None = None
        """The last request that got a verdict: it tells whether a failure is the answer's."""
        self._known_failures = set[str]()
        """Exceptions, with their lines, that the verifier raised in a new worker too: no earlier answer is their cause."""
        self.pool = WorkerPool(
            workers,
            cpu_s=float(cpu_s),
            memory_mb=memory_mb,
            wall_factor=WALL_FACTOR,
            handler_file=HANDLER_FILE,
            work_name="the verifier",
            environment={**os.environ, CONFIG_VARIABLE: json.dumps(verifier if isinstance(verifier, str) else dict(verifier))},
        )

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify in a worker."""
        request = {
            "task": {"prompt": list(task.prompt), "reference": task.reference, "id": task.id, "meta": dict(task.meta)},
            "answer": answer,
        }
        if to_plain_json(request) != request:
            return Verdict(None, "the task has values that are not JSON, which a worker cannot receive", fault=Fault.TASK)
        reply, pid = dict[str, Any](), 0
        for is_last in (False, True):  # the second time in a new worker: an earlier answer may have left something behind
            try:
                reply = self.pool.send_request(request, self.pool.new_budget(), to_new_worker=is_last, is_sound=self._is_sound)
            except (BudgetExceeded, WorkersDied) as error:
                if isinstance(error, WorkersDied) or is_last:  # the pool has tried several workers
                    return self._judge_failure(error, self._known or request | {"answer": HARMLESS_ANSWER})
            except WorkersFailed as error:  # no worker has seen the answer
                if is_last:
                    return Verdict(None, str(error), fault=Fault.INFRA)
            else:
                if "verdict" in reply:
                    self._known = request
                    if pid:  # the one before could not
                        self.pool.retire_worker(pid)
                    return Verdict(**reply["verdict"])
                if reply["is_sound"] and reply["raised_at"] in self._known_failures:
                    break
                pid = reply["pid"]
                if is_last and "raised_at" in reply and len(self._known_failures) < MAX_KNOWN_FAILURES:
                    self._known_failures.add(reply["raised_at"])
        raise VerifierError(f"the verifier raised {reply.get('raised') or reply.get('failed') or reply.get('missing')}")

    def _is_sound(self, worker: Worker, reply: Mapping[str, Any]) -> bool:
        """Whether a worker that gave this reply goes on: after a failure it does if it still judges the last request that one could."""
        if "raised_at" in reply and (known := self._known):
            with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError):
                return "verdict" in worker.send_request(known | {"cpu_s": self.pool.cpu_s}, WALL_FACTOR * self.pool.cpu_s)
        return "verdict" in reply

    def _judge_failure(self, error: BudgetExceeded | WorkersDied, other_request: Mapping[str, Any]) -> Verdict:
        try:
            if "verdict" in self.pool.send_request(dict(other_request), self.pool.new_budget(), is_sound=self._is_sound):
                return Verdict(0.0, f"{error}; another answer is within the limits", fault=Fault.ANSWER)
        except (BudgetExceeded, WorkersFailed):
            pass
        return Verdict(None, f"{error}; another answer fails too, so this one is not the cause", fault=Fault.INFRA)

    def prepare(self) -> None:
        """Start the workers."""
        self.pool.start_workers()

    def close(self) -> None:
        """Stop the workers."""
        self.pool.close()


make = IsolatedVerifier
