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
from rlvr.mdp.sessions import judged
from rlvr.rollout.draws import Draw, seed_of
from rlvr.task import Task

PAID = 0.5
"""A canary with a score above this counts as rewarded; lower scores may be partial credit for the format."""
TRIED = 5
"""The number of tasks on which the verifier is tested before the run."""
NUMBER = re.compile(r"\s*[-+]?[\d,]*\.?\d+\s*")


class Honeypots:
    """Samples canary tasks, counts the rewarded ones, and stops the run if there are too many.

    >>> Honeypots(environment, share=0.01, most=3, seed=0).draws(asked, step=0, first=0, answers=256)        # doctest: +SKIP
    """

    def __init__(self, environment: Environment, *, share: float, most: int, seed: int) -> None:
        self.share, self.most, self.seed = share, most, seed
        self.paid = self.paid_now = self.asked_now = 0
        if share:
            check(environment)

    def draws(self, asked: Sequence[tuple[int, Task]], *, step: int, first: int, answers: int) -> list[list[Draw]]:
        """Make the canary requests of one sampling round, each a group of one; `answers` is the number of regular completions."""
        if not self.share:
            return []
        dice = random.Random(seed_of(self.seed, "honeypots", step, first))
        count = int(self.share * answers + dice.random())
        found = []
        for number in range(first, first + count):
            index, task = dice.choice(asked)
            seed = seed_of(self.seed, "honeypot", step, number)
            pot = unsolvable(task, seed)
            meta = {"split": "train", "index": index, "reference": pot.reference, "honeypot": True, "dropped": "honeypot"}
            found.append([Draw(pot, f"{step + 1}:honeypot:{number}", seed, meta)])
        return found

    def opened(self, groups: Sequence[Sequence[Episode]]) -> None:
        """Count the results of the canaries of a round."""
        answers = [episode for group in groups for episode in group if episode.scored]
        caught = paid(groups)
        self.asked_now += len(answers)
        self.paid_now += len(caught)
        self.paid += len(caught)

    def figures(self) -> dict[str, float]:
        """Return the metrics of a step, and reset its counters: scored canaries, rewarded ones, and rewarded ones in total."""
        told = {"honeypots/asked": self.asked_now, "honeypots/paid": self.paid_now, "honeypots/paid_so_far": self.paid}
        self.asked_now = self.paid_now = 0
        return {name: float(value) for name, value in told.items()} if self.share else {}

    def check(self, row: Mapping[str, Any]) -> None:
        """Raise CheckFailed if too many canaries were rewarded; `row` has the metrics of the last step."""
        if (count := row.get("honeypots/paid_so_far", 0.0)) > self.most:
            raise CheckFailed(
                f"the verifier was paid {count:.0f} times for tasks that cannot be solved (rollout.honeypot_limit is {self.most}), so it "
                "has a hole and the policy has found it. The answers are in honeypots.jsonl of the run folder; repair the verifier "
                "(`rlvr audit` finds more), and train again from a checkpoint before the first of them"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"paid": self.paid}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.paid = int(state["paid"])


def paid(groups: Sequence[Sequence[Episode]]) -> list[Episode]:
    """Return the rewarded canaries."""
    return [e for group in groups for e in group if e.verdict is not None and e.verdict.score is not None and e.verdict.score > PAID]


def unsolvable(task: Task, seed: int) -> Task:
    """Return the task with a reference of the same kind that no answer matches.

    >>> unsolvable(Task("t", ({"role": "user", "content": "2+2="},), "4"), seed=0).reference
    '671858751281'
    """
    return replace(task, reference=_other(task, random.Random(seed)))


def _other(task: Task, dice: random.Random) -> Any:
    was, digits = task.reference, dice.randrange(10**11, 10**12)
    if isinstance(was, bool) or not isinstance(was, str | int | float) or not str(was).strip():
        raise ConfigError(
            f"rollout.honeypots needs references that are a text or a number, and that of {task.id} is {was!r:.80}; set it to 0 here"
        )
    if not isinstance(was, str):
        return type(was)(digits)
    return str(digits) if NUMBER.fullmatch(was) else "".join(dice.choices(string.ascii_lowercase, k=16))


def check(environment: Environment) -> None:
    """Raise ConfigError if canaries do not work for this environment, tested with its gold answers."""
    if environment.max_turns > 1 or environment.tools:
        raise ConfigError("rollout.honeypots works for environments of one turn without tools; set it to 0 here")
    for index in range(min(TRIED, environment.size("train") or TRIED)):
        task = environment.task("train", index)
        pot, said = unsolvable(task, index), environment.gold(task) or str(task.reference)
        verdict = judged(environment.verifier, pot, lambda said=said: said)  # type: ignore[misc]
        if verdict.score is None:
            raise ConfigError(
                f"rollout.honeypots is set, and the verifier cannot judge the reference {pot.reference!r} in place of "
                f"{str(task.reference)!r:.40} ({verdict.reason}); set it to 0 here"
            )
        if verdict.score > PAID:
            raise ConfigError(
                f"rollout.honeypots is set, and the verifier pays {said!r:.60} although the reference was replaced: it does not compare "
                "with the reference, so honeypots cannot tell anything; set it to 0 here"
            )
