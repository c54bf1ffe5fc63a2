"""Canary tasks: unsolvable tasks, sampled with the regular ones. A rewarded answer proves that the verifier has a loophole.

A canary is a task of the step with another reference: a long random number or word. The policy sees the same prompt, so it cannot
distinguish canaries; an answer is right by chance with a probability below one in a billion. Canaries are never trained on and count in
no other metric.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.errors import CheckFailed, ConfigError
from rlvr.mdp.sessions import verify_answer_safely
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.task import Task

REWARDED_THRESHOLD = 0.5
"""A canary with a score above this counts as rewarded; lower scores may be partial credit for the format."""
NUM_CHECKED_TASKS = 5
"""The number of tasks on which the verifier is tested before the run."""
NUMBER_PATTERN = re.compile(r"\s*[-+]?[\d,]*\.?\d+\s*")


class CanaryTasks:
    """Samples canary tasks, counts the rewarded ones, and stops the run if there are too many.

    >>> import rlvr
    >>> environment = rlvr.make_env("arithmetic")
    >>> canaries, tasks = CanaryTasks(environment, fraction=0.01, max_rewarded=3, seed=0), [(0, environment.task("train", 0))]
    >>> len(canaries.make_requests(tasks, step=0, first_group_number=0, num_regular_completions=200))
    2
    """

    def __init__(self, environment: Environment, *, fraction: float, max_rewarded: int, seed: int) -> None:
        self.fraction, self.max_rewarded, self.seed = fraction, max_rewarded, seed
        self.num_rewarded_total = self.num_rewarded_in_step = self.num_sampled_in_step = 0
        if fraction:
            _check_canary_support(environment)

    def make_requests(
        self, tasks: Sequence[tuple[int, Task]], *, step: int, first_group_number: int, num_regular_completions: int
    ) -> list[list[RolloutRequest]]:
        """Make the canary requests of one sampling round, each a group of one; `num_regular_completions` is the number of regular completions."""
        if not self.fraction:
            return []
        rng = random.Random(derive_seed(self.seed, "canaries", step, first_group_number))
        count = int(self.fraction * num_regular_completions + rng.random())
        found = []
        for number in range(first_group_number, first_group_number + count):
            index, task = rng.choice(tasks)
            seed = derive_seed(self.seed, "canary", step, number)
            pot = make_canary(task, seed)
            meta = {"split": "train", "index": index, "reference": pot.reference, "canary": True, "dropped": "canary"}
            found.append([RolloutRequest(pot, f"{step + 1}:canary:{number}", seed, meta)])
        return found

    def observe_groups(self, groups: Sequence[Sequence[Episode]]) -> None:
        """Count the results of the canaries of a round."""
        answers = [episode for group in groups for episode in group if episode.is_scored]
        caught = select_rewarded_canaries(groups)
        self.num_sampled_in_step += len(answers)
        self.num_rewarded_in_step += len(caught)
        self.num_rewarded_total += len(caught)

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of a step, and reset its counters: scored canaries, rewarded ones, and rewarded ones in total."""
        told = {
            "canary/scored": self.num_sampled_in_step,
            "canary/rewarded": self.num_rewarded_in_step,
            "canary/rewarded_total": self.num_rewarded_total,
        }
        self.num_sampled_in_step = self.num_rewarded_in_step = 0
        return {name: float(value) for name, value in told.items()} if self.fraction else {}

    def raise_if_too_many_rewarded(self, metrics: Mapping[str, Any]) -> None:
        """Raise CheckFailed if too many canaries were rewarded; `metrics` are those of the last step."""
        if (count := metrics.get("canary/rewarded_total", 0.0)) > self.max_rewarded:
            raise CheckFailed(
                f"the verifier rewarded {count:.0f} answers to canary tasks, which cannot be solved "
                f"(rollout.max_rewarded_canaries is {self.max_rewarded}), so it has a loophole and the policy has found it. "
                "The answers are in canaries.jsonl of the run folder; repair the verifier (`rlvr audit` finds more), "
                "and train again from a checkpoint before the first of them"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"num_rewarded": self.num_rewarded_total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.num_rewarded_total = int(state["num_rewarded"])


def select_rewarded_canaries(groups: Sequence[Sequence[Episode]]) -> list[Episode]:
    """Return the rewarded canaries."""
    return [
        e
        for group in groups
        for e in group
        if e.verdict is not None and e.verdict.score is not None and e.verdict.score > REWARDED_THRESHOLD
    ]


def make_canary(task: Task, seed: int) -> Task:
    """Return the task with a reference of the same kind that no answer matches.

    >>> make_canary(Task(({"role": "user", "content": "2+2="},), "4", id="t"), seed=0).reference
    '524533559245'
    """
    return replace(task, reference=_replace_reference(task, random.Random(seed)))


def _replace_reference(task: Task, rng: random.Random) -> Any:
    was, digits = task.reference, rng.randrange(10**11, 10**12)
    if isinstance(was, bool) or not isinstance(was, str | int | float) or not str(was).strip():
        raise ConfigError(
            f"rollout.canary_fraction needs references that are a text or a number, and that of {task.id} is {was!r:.80}; set it to 0 here"
        )
    if not isinstance(was, str):
        return type(was)(digits)
    return str(digits) if NUMBER_PATTERN.fullmatch(was) else "".join(rng.choices(string.ascii_lowercase, k=16))


def _check_canary_support(environment: Environment) -> None:
    """Raise ConfigError if canaries do not work for this environment, tested with its gold answers."""
    if environment.max_turns > 1 or environment.tools:
        raise ConfigError("rollout.canary_fraction works for environments of one turn without tools; set it to 0 here")
    for index in range(min(NUM_CHECKED_TASKS, environment.num_tasks("train") or NUM_CHECKED_TASKS)):
        task = environment.task("train", index)
        pot, said = make_canary(task, index), environment.gold(task) or str(task.reference)
        verdict = verify_answer_safely(environment.verifier, pot, lambda said=said: said)  # type: ignore[misc]
        if verdict.score is None:
            raise ConfigError(
                f"rollout.canary_fraction is set, and the verifier cannot judge the reference {pot.reference!r} in place of "
                f"{str(task.reference)!r:.40} ({verdict.reason}); set it to 0 here"
            )
        if verdict.score > REWARDED_THRESHOLD:
            raise ConfigError(
                f"rollout.canary_fraction is set, and the verifier rewards {said!r:.60} although the reference was replaced: it does not compare "
                "with the reference, so canary tasks cannot show anything; set it to 0 here"
            )
