"""Episode: one trajectory as aligned token lists. The record that flows from the environment to the gradient.

There is no split into prompt and completion: `acted` says which tokens the policy chose, so a conversation of many
turns needs nothing more. Advantages are not a field; an algorithm computes them from a group of episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlvr.task import Verdict

ABOVE_ZERO = 1e-6
"""How far rounding may lift a log-probability above 0."""


class End(StrEnum):
    """Why an episode is over."""

    TERMINATED = "terminated"
    """The policy stopped by itself (an EOS or stop token), or the environment closed the conversation."""
    TRUNCATED = "truncated"
    """A length or turn cap was reached first."""
    FAILED = "failed"
    """The machinery failed. No score; never trained on, never counted as wrong."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory. All lists have one length T, checked at birth.

    >>> Episode(task_id="arithmetic/train/7", group="g0", tokens=[5, 6, 2], acted=[False, True, True],
    ...         logprobs=[0.0, -0.1, -0.2], rewards=[0.0, 0.0, 1.0], end=End.TERMINATED).reward
    1.0
    """

    task_id: str
    group: str
    """Siblings (answers to the same task in the same step) share it."""
    tokens: list[int]
    acted: list[bool]
    """True where the policy chose the token: the only places that train."""
    logprobs: list[float]
    """The sampler's log-probability of each acted token under its sampling distribution; 0.0 elsewhere."""
    rewards: list[float]
    """Per token. A terminal verdict pays its score on the last acted token."""
    end: End
    policy_version: int = 0
    """Of the weights that chose every one of its tokens: a batch is sampled by one version from its first token to its last.
    -1: no policy's (a gold solution), and its log-probabilities are nobody's either."""
    verdict: Verdict | None = None
    text: str = ""
    """What the policy said, decoded once: the text that was judged."""
    turns: int = 1
    error: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", End(self.end))
        length = len(self.tokens)
        lengths = {"acted": len(self.acted), "logprobs": len(self.logprobs), "rewards": len(self.rewards)}
        if any(n != length for n in lengths.values()):
            raise ValueError(f"episode of {self.task_id!r}: {length} tokens but {lengths}; all lists must have one length")
        if self.acted and self.acted[0]:
            raise ValueError(f"episode of {self.task_id!r}: the first token cannot be acted, nothing precedes it")
        for name, values in (("logprobs", self.logprobs), ("rewards", self.rewards)):
            bad = next((i for i, v in enumerate(values) if not math.isfinite(v)), None)
            if bad is not None:
                raise ValueError(f"episode of {self.task_id!r}: {name}[{bad}] is {values[bad]}, not a finite number")
            stray = next((i for i, v in enumerate(values) if v and not self.acted[i]), None)
            if stray is not None:
                raise ValueError(f"episode of {self.task_id!r}: {name}[{stray}] is {values[stray]} where the policy did not choose")
        if any(lp > ABOVE_ZERO for lp in self.logprobs):
            raise ValueError(f"episode of {self.task_id!r}: a log-probability is above 0 ({max(self.logprobs)})")
        if self.end is End.FAILED and any(self.rewards):
            raise ValueError(f"episode of {self.task_id!r} failed and yet carries a reward")

    @property
    def reward(self) -> float:
        """The undiscounted return."""
        return math.fsum(self.rewards)

    @property
    def scored(self) -> bool:
        """Whether this episode may train and count: it did not fail and its verdict has a score."""
        return self.end is not End.FAILED and (self.verdict is None or self.verdict.scored)

    @property
    def aside(self) -> bool:
        """Whether it is only a yardstick for its siblings (a greedy answer, a mismatched one) and no answer to learn from."""
        return bool(self.meta.get("greedy") or self.meta.get("mismatched"))

    @property
    def cut_off(self) -> bool:
        """Whether there was no room left for what it would have said. One that used up its turns has said each of them to its end."""
        return self.end is End.TRUNCATED and self.meta.get("cut") != "turns"

    @property
    def length(self) -> int:
        """How many tokens the policy chose."""
        return sum(self.acted)

    @property
    def prompt_length(self) -> int:
        """How many tokens stand before the policy's first."""
        return self.acted.index(True) if True in self.acted else len(self.acted)
