"""Whose fault is a failure? The one rule that decides between an answer's own 0 and no score.

What a policy wrote or left behind may make code fail. If that cost the answer its score, a policy could learn to lose its zeros; if every
failure were a 0, an outage would teach it nonsense. So a failure is never judged by its kind, but by an experiment: the same work is done
beside a control that the answer has no influence on, such as a harmless text or an untouched world.

- The control fails too: the failure is shared. There is no score (fault `infra`).
- The control works, and the answer's own work never does: the answer is the cause. It is the answer's 0 (fault `answer`).
- The answer's own work succeeds when it is repeated: the failure was transient.

`rlvr.mdp.answer_faults` applies the rule to sessions, artifacts and verifiers that raise; a verifier with failures of its own kind, such as
an endpoint that does not reply, applies it itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rlvr.errors import RlvrError, SandboxOutage

T = TypeVar("T")
CONTROL_ROUNDS = 8
"""How often in turn the control must work and the failed work must not, before the answer counts as the cause. What fails every second time
at random passes that in one of 65,000 cases."""
TIMEOUT_ROUNDS = 2
"""How often, after a timeout: each round waits for another one, and a run has a timeout of its own, after which there is no score."""


class AnswerAtFault(RlvrError):
    """A failure that only this answer causes; the answer scores 0."""


def retry_and_attribute_failure(
    error: Exception,
    control: Callable[[], object],
    retry: Callable[[], T] | None,
    *,
    failures: tuple[type[BaseException], ...] = (Exception, SystemExit),
    rounds: int = CONTROL_ROUNDS,
) -> T:
    """Find out whether an answer caused a failure; return the result of its work if that succeeds now.

    Args:
        error: the failure.
        control: does the same work without the answer.
        retry: repeats the failed work; None if it is certain to fail again, so that a control that works decides.
        failures: the exceptions that are failures; others are raised.
        rounds: how often both are done.

    Raises:
        AnswerAtFault: the control works, and the answer's own work never does.

    If the control fails too, `error` is raised.

    >>> retry_and_attribute_failure(ValueError("a hiccup"), lambda: None, lambda: 4)
    4
    """

    async def run_control() -> None:
        control()

    async def run_again() -> T:
        assert retry is not None
        return retry()

    awaited: Coroutine[Any, Any, T] = aretry_and_attribute_failure(
        error, run_control, None if retry is None else run_again, failures=failures, rounds=rounds
    )
    try:
        awaited.send(None)  # nothing in there waits, so the first step is the last one
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise RuntimeError("a control or its repetition waited")


async def aretry_and_attribute_failure(
    error: Exception,
    control: Callable[[], Awaitable[object]],
    retry: Callable[[], Awaitable[T]] | None,
    *,
    failures: tuple[type[BaseException], ...] = (Exception, SystemExit),
    rounds: int = CONTROL_ROUNDS,
) -> T:
    """Find out whether an answer caused a failure, like `retry_and_attribute_failure`, with work that is awaited."""
    for _ in range(rounds):
        try:
            await control()
        except SandboxOutage:
            raise
        except failures:
            raise error from None
        if retry is None:
            break
        try:
            return await retry()
        except SandboxOutage:
            raise
        except failures:
            continue
    raise AnswerAtFault(str(error)) from error
