"""The rule of `rlvr.contracts.fault_rule`, applied to a conversation whose session or verifier raised.

The controls are conversations of the same task that owe nothing to the policy: one that is known to be right (the oracle turns, else the
gold answer), or a world that hears one harmless text, if none is known; and, if the policy called tools and no right calls are known, one
with the tools' own examples. If they can be played and verified, and the policy's own turns fail whenever they are played again in a new
session, the conversation scores 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.contracts import Environment, StepResult, Transcript, Verifier
from rlvr.contracts.fault_rule import AnswerAtFault, retry_and_attribute_failure
from rlvr.errors import ConfigError, SandboxOutage, describe_exception
from rlvr.mdp.sessions import RAISED, LazySession, call_with_exceptions, load_recorded_transcript, verify_transcript_safely
from rlvr.task import Fault, Task, Verdict
from rlvr.turns import Call, Turn

HARMLESS_TEXT = "-"
"""What the policy of a control says, if no right answer is known."""
HARMLESS_NUMBER = "0"
"""What it says where that text fails too, as with an environment that reads each turn as a number."""
MAX_COMPARED_REFERENCES = 3
"""Of how many tasks the references are tried as answers, before a run: few, as a function of the user may be slow."""
FAILURE = "failure"
"""The detail of an answer's own 0: the failure that only this answer causes."""
_logger = logging.getLogger(__name__)
_logged_failures = set[tuple[str, str]]()


def smoke_test_user_functions(env: Environment, split: str) -> None:
    """Call the functions of the user among the verifiers once, with a harmless answer to the first task, before a model is loaded.

    Raises ConfigError if no text could cure what a function does: it takes the answer for messages, is called with other arguments than
    it has, or returns a value outside of its range. Any other error may be that of an answer in another form, and is left to the run.
    """
    verifier = getattr(env, "verifier", None)
    if not isinstance(verifier, Verifier) or env.num_tasks(split) == 0:
        return  # what checks environments says it
    for function in _iter_functions(verifier):
        task = env.task(split, 0)
        try:
            verdict = function.verify(task, HARMLESS_TEXT)
        except Exception as error:
            if getattr(error, "is_certain", False):
                raise ConfigError(f"the verifier cannot score an answer to the first task, {task.id}: {error}") from error
            _logger.info("a trial answer to %s: %s", task.id, describe_exception(error))
        else:
            if verdict.detail.get("out_of_range"):
                raise ConfigError(f"the verifier cannot score an answer to the first task, {task.id}: {verdict.reason}")
        if doubt := _find_reference_doubt(env, split, function):
            _logger.warning("%s", doubt)


def _find_reference_doubt(env: Environment, split: str, function: Verifier) -> str:
    """Say that a function does not prefer the reference of a task to those of others, if all of the first tasks show it; else "".

    References that are no answers as they stand (a function may want a box around them) score nothing, and say nothing.
    """
    size = env.num_tasks(split)
    tasks = [env.task(split, index) for index in range(min(size or MAX_COMPARED_REFERENCES, MAX_COMPARED_REFERENCES))]
    if not function.needs_reference or len({task.reference for task in tasks if isinstance(task.reference, str)}) < max(len(tasks), 2):
        return ""
    try:
        own = [function.verify(task, str(task.reference)).score for task in tasks]
        others = [function.verify(task, str(other.reference)).score for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True)]
    except Exception as error:  # as above: of an answer in another form
        _logger.info("the references of %s as answers: %s", type(env).__name__, describe_exception(error))
        return ""
    pairs = [(a, b) for a, b in zip(own, others, strict=True) if a is not None and b is not None]
    if len(pairs) < len(tasks):
        return ""
    shown = f"the reference of {tasks[0].id}, {tasks[0].reference!r:.40}, scores {pairs[0][0]:g} as its answer, and "
    shown += f"{tasks[1].reference!r:.40}, that of {tasks[1].id}, {pairs[0][1]:g}"
    name = getattr(function, "name", type(function).__name__)
    if all(a < b for a, b in pairs):
        return f"{name} gives wrong answers higher scores than right ones: {shown}. Is the sign of the score wrong?"
    if all(a == b > 0 for a, b in pairs):
        return f"{name} does not tell right answers from wrong ones: {shown}. Does it compare with the reference of this task?"
    return ""


def _iter_functions(verifier: Verifier) -> Iterator[Verifier]:
    """Yield the verifiers that are a function of the user, also those in a weighted mean."""
    if hasattr(verifier, "function"):
        yield verifier
    for part in getattr(verifier, "components", {}).values():
        yield from _iter_functions(part)


class _ControlFailed(Exception):
    """A conversation could not be played or verified."""


def verify_conversation(
    environment: Environment,
    task: Task,
    ending: Transcript | Verdict,
    turns: Sequence[Turn],
    num_steps: int,
    *,
    seed: int = 0,
) -> Verdict:
    """Verify a finished conversation, or decide whose fault it is that it cannot be verified.

    Args:
        environment: the environment, whose verifier is asked.
        task: the task.
        ending: the transcript, or a verdict without a score if it could not be collected.
        turns: the policy's turns.
        num_steps: how many of them the session received.
        seed: the seed of the session.

    Raises:
        SandboxOutage: the engine of the sandbox stays away.
    """
    verdict = (
        ending if isinstance(ending, Verdict) else verify_transcript_safely(environment.verifier, task, ending, raised=(SandboxOutage,))
    )
    return resolve_failed_verdict(environment, task, verdict, ending, turns, num_steps, seed=seed)


def verify_recorded_answer(environment: Environment, task: Task, text: str, record: Mapping[str, Any] | None) -> Verdict:
    """Verify a recorded answer again: its text or, if its session was recorded, what the session left behind."""
    turns: tuple[Turn, ...] = (Turn(text),)
    ending: Transcript | Verdict = Transcript(text)
    if record is not None:
        ending = load_recorded_transcript(record)
        turns = ending.turns if isinstance(ending, Transcript) else ()
    num_steps = len(ending.step_results) if isinstance(ending, Transcript) else 0
    return verify_conversation(environment, task, ending, turns, num_steps)


def resolve_failed_verdict(
    environment: Environment,
    task: Task,
    verdict: Verdict,
    ending: Transcript | Verdict,
    turns: Sequence[Turn],
    num_steps: int,
    *,
    seed: int = 0,
    context_window: int = 0,
    retry: Callable[[], Verdict] | None = None,
) -> Verdict:
    """Return the verdict unchanged, or, if something raised and the rule says that the answer is to blame, its own 0. The arguments are those
    of `verify_conversation`, and `context_window`: the tokens that the conversation could have; `retry`: repeats what raised, if that was
    neither the session nor the verifier.

    A verdict without a score that a verifier returned is its own decision, and stays as it is.
    """
    if verdict.score is not None or RAISED not in verdict.detail:
        return verdict

    def verify_again() -> Verdict:
        assert isinstance(ending, Transcript)
        return _score(environment, task, ending)

    def play_again() -> Verdict:
        _score(environment, task, _play_turns(environment, task, turns, num_steps, seed=seed, context_window=context_window))
        return verdict  # it worked this time, in another session: a transient failure, without a score

    def control() -> None:
        for played in _iter_controls(environment, task, turns):
            try:
                _score(environment, task, _play_turns(environment, task, played, len(played), seed=seed, context_window=context_window))
            except SandboxOutage:
                raise
            except Exception:
                if [turn.text for turn in played] != [HARMLESS_TEXT]:
                    raise
                number = (_build_oracle_turn(HARMLESS_NUMBER, 0),)
                _score(environment, task, _play_turns(environment, task, number, 1, seed=seed, context_window=context_window))

    decided = _apply_rule(environment, verdict, control, retry or (verify_again if isinstance(ending, Transcript) else play_again))
    if decided.fault is Fault.ANSWER and not environment.verifier.has_bounded_score:
        return replace(decided, score=_find_lowest_reward(environment, task))
    return decided


def _find_lowest_reward(environment: Environment, task: Task) -> float:
    """Return what an answer that makes a plain reward fail gets: no more than an empty or a harmless one, and no more than 0.

    Where rewards are negative, a 0 would pay for the failure.
    """
    found = [verify_transcript_safely(environment.verifier, task, text).score for text in ("", HARMLESS_TEXT)]
    return min([0.0, *(score for score in found if score is not None)])


def _apply_rule(environment: Environment, failed: Verdict, control: Callable[[], object], retry: Callable[[], Verdict]) -> Verdict:
    """Return the verdict that a failure gets by the rule: an own 0, the failed verdict itself, or that of a repetition."""
    try:
        return retry_and_attribute_failure(_ControlFailed(failed.reason), control, retry)
    except _ControlFailed:
        return failed
    except AnswerAtFault:
        name = type(environment).__name__
        if (key := (name, failed.reason[:60])) not in _logged_failures and len(_logged_failures) < 100:
            _logged_failures.add(key)
            _logger.warning(
                "%s: %s. Only this answer causes it, so it scores 0; `rlvr check env` plays turns that may do that",
                name,
                failed.reason[:400],
            )
        reason = f"{failed.reason[:600]}; a harmless conversation of this task works, so the answer is the cause"
        return Verdict(0.0, reason, fault=Fault.ANSWER, detail={FAILURE: failed.reason[:600]})


def _play_turns(
    environment: Environment, task: Task, turns: Sequence[Turn], num_steps: int, *, seed: int = 0, context_window: int = 0
) -> Transcript:
    """Play turns in a new session, of which the session receives the first `num_steps`; raise if it fails."""
    if not environment.traits.is_interactive:
        return Transcript(turns[-1].text if turns else "", turns=tuple(turns), step_results=(StepResult(done=True),) * min(1, len(turns)))
    handle = LazySession(environment, task, seed=seed, context_window=context_window)
    results: list[StepResult] = []
    try:
        handle.open()
        for turn in turns[:num_steps]:
            results.append(handle.step(turn))
            if results[-1].done:
                break
        played = turns if len(results) == num_steps else turns[: len(results)]
        ending = handle.collect_transcript(tuple(played), tuple(results))
    finally:
        handle.close()
    if isinstance(ending, Verdict):
        raise _ControlFailed(ending.reason)
    return ending


def _build_oracle_turn(turn: str | Call | Sequence[Call], number: int) -> Turn:
    """Build a policy's turn from one of the oracle turns.

    >>> _build_oracle_turn([Call("", "add", {"amount": 4})], 2).calls[0].id
    '2.0'
    """
    if isinstance(turn, str):
        return Turn(turn, content=turn)
    calls = [turn] if isinstance(turn, Call) else list(turn)
    return Turn("", calls=tuple(replace(call, id=f"{number}.{place}") for place, call in enumerate(calls)))


def _iter_controls(environment: Environment, task: Task, turns: Sequence[Turn]) -> Iterator[Sequence[Turn]]:
    """Yield the turns of each control."""
    oracle = environment.oracle_turns(task)
    if oracle is None:
        gold = environment.gold(task)
        oracle = [HARMLESS_TEXT if gold is None else gold]
        examples = [Call("", one.name, one.arguments) for tool in environment.tools for one in type(tool).examples]
        if examples and any(turn.calls for turn in turns):
            yield [_build_oracle_turn(examples, 0)]
    yield [_build_oracle_turn(turn, number) for number, turn in enumerate(oracle)]


def _score(environment: Environment, task: Task, transcript: Transcript) -> Verdict:
    """Verify a transcript, with its step rewards; raise if there is no score."""
    verdict = verify_transcript_safely(environment.verifier, task, transcript, raised=(SandboxOutage,))
    if verdict.score is None:
        raise _ControlFailed(verdict.reason)
    if environment.traits.has_step_rewards and verdict.fault is not Fault.ANSWER:
        rewards = call_with_exceptions(lambda: tuple(environment.step_rewards_for_turns(task, list(transcript.turns), verdict)))
        replace(verdict, step_rewards=rewards)  # checks their sum
        if any(not -len(transcript.turns) <= reward.turn < len(transcript.turns) for reward in rewards):
            raise _ControlFailed("a step reward is for a turn that there is not")
    return verdict
