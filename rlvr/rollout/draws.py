"""What is to be collected: draws, and the seeds that decide everything about them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from rlvr.contracts import Completion
from rlvr.mdp.rules import no_task
from rlvr.task import Task


def seed_of(*parts: object) -> int:
    """One seed from whatever names a random choice; the same parts give the same seed in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, slots=True)
class Part:
    """What is there of an answer.

    >>> Part([7, 9], [-0.5, -0.1], [[3, 2]]).tokens
    [7, 9]
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    """Which version of the weights sampled how many of the tokens, in their order."""

    def and_then(self, completion: Completion, version: int) -> Part:
        """With what was sampled after it."""
        before, count = self.versions, len(completion.tokens)
        same = before and before[-1][0] == version
        spans = [*before[:-1], [version, before[-1][1] + count]] if same else [*before, [version, count]]
        return Part([*self.tokens, *completion.tokens], [*self.logprobs, *completion.logprobs], spans)


@dataclass(frozen=True, slots=True)
class Draw:
    """One episode to collect: which task, in which group, with which randomness.

    >>> Draw(Task("t", user("2+2=")), group="0:t", seed=7).group        # doctest: +SKIP
    '0:t'
    """

    task: Task
    group: str
    seed: int
    meta: dict[str, object] = field(default_factory=dict)
    world: int | None = None
    """The seed of its session; None: one for the whole group, so that its members begin in the same world."""
    part: Part | None = None
    """What is there of an answer that is sampled in parts, at first nothing; None: the answer is sampled whole."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise no_task(self.task)

    @property
    def world_seed(self) -> int:
        """The seed that the session is opened with."""
        return seed_of("world", self.group, self.task.id) if self.world is None else self.world
