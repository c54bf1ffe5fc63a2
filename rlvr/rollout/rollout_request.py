"""Rollout requests: the episodes to sample, and the seeds that determine them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from rlvr.contracts import Completion
from rlvr.mdp.token_mdp import build_task_error
from rlvr.task import Task


def derive_seed(*parts: object) -> int:
    """Derive a seed from the values that identify a random choice; it is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, slots=True)
class PartialCompletion:
    """A partial completion: its tokens so far.

    >>> PartialCompletion([7, 9], [-0.5, -0.1], [[3, 2]]).tokens
    [7, 9]
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_spans: list[list[int]] = field(default_factory=list)
    """Spans of [version of the weights, number of tokens], in order."""

    def extend(self, completion: Completion, version: int) -> PartialCompletion:
        """Return this partial completion extended by a sampled completion."""
        before, count = self.version_spans, len(completion.tokens)
        same = before and before[-1][0] == version
        spans = [*before[:-1], [version, before[-1][1] + count]] if same else [*before, [version, count]]
        return PartialCompletion([*self.tokens, *completion.tokens], [*self.logprobs, *completion.logprobs], spans)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A request for one episode: the task, the group and the seed."""

    task: Task
    group: str
    seed: int
    meta: dict[str, object] = field(default_factory=dict)
    session_seed_override: int | None = None
    """The seed of the session; None: one seed for the whole group, so that its members start in the same state."""
    partial_completion: PartialCompletion | None = None
    """The partial completion to continue (initially empty); None: no partial rollout."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise build_task_error(self.task)

    @property
    def session_seed(self) -> int:
        """The seed of the session."""
        return derive_seed("world", self.group, self.task.id) if self.session_seed_override is None else self.session_seed_override
