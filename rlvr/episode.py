"""Episode: one trajectory as aligned token lists, passed from the rollout to the learner.

There is no split into prompt and completion: `action_mask` marks the tokens that the policy generated, also in conversations of many
turns. Advantages are not a field; an algorithm computes them from a group of episodes.

A conversation whose history is rewritten, by an agent that compacts it or starts a second conversation, is a tree. Its tokens are still
one list, in the order in which they came; `segments` says which stretch continues which. Each token is there once, and so is each token
that the policy generated, in the context in which it was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from operator import index
from typing import Any

from rlvr.hints import Hinted
from rlvr.task import Verdict

LOGPROB_EPS = 1e-6
"""The largest positive log-probability that is accepted as a rounding error."""


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    """The policy stopped (an EOS or stop token), or the environment ended the conversation."""
    TRUNCATED = "truncated"
    """A limit on tokens, turns or time was reached first."""
    FAILED = "failed"
    """The task, the sampler or the infrastructure failed. The episode has no score; it is never trained on and never counted as wrong."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of an episode's tokens: from `start` to the start of the next segment. It continues the end of its parent.

    >>> Segment(start=7, parent=0)
    Segment(start=7, parent=0)
    """

    start: int
    parent: int = -1
    """The index of the segment that it continues; -1 for one that begins a new context."""


AUXILIARY_MARKS = ("greedy", "mismatched", "canary")
"""The marks in the `meta` of episodes that are not trained on."""


@dataclass(frozen=True, slots=True)
class Episode(Hinted):
    """One trajectory. All lists have the same length T, checked on construction.

    >>> Episode(task_id="arithmetic/train/7", group="g0", tokens=[5, 6, 2], action_mask=[False, True, True],
    ...         logprobs=[0.0, -0.1, -0.2], rewards=[0.0, 0.0, 1.0], stop_reason=StopReason.TERMINATED).reward
    1.0
    """

    _synonyms = dict.fromkeys(("completion", "response", "output"), "text")
    _hints = {
        **dict.fromkeys(
            ("prompt", "prompt_ids", "prompt_tokens"),
            "the prompt is the tokens before the first of the policy: tokenizer.decode(episode.tokens[:episode.prompt_length])",
        ),
        **dict.fromkeys(("score", "passed"), "write .reward, or .verdict for its score and reason"),
    }

    task_id: str
    group: str
    """The id of the group: the completions of one task in one step."""
    tokens: list[int]
    action_mask: list[bool]
    """True where the policy generated the token; only these tokens are trained on."""
    logprobs: list[float]
    """The sampler's log-probability of each policy token under its sampling distribution; 0.0 elsewhere."""
    rewards: list[float]
    """The reward of each token. A score without step rewards is on the last policy token."""
    stop_reason: StopReason
    policy_version: int = 0
    """The version of the weights that sampled the tokens; a whole batch is sampled by one version. -1: not sampled by a policy (a gold
    solution); the log-probabilities are meaningless.
    """
    verdict: Verdict | None = None
    text: str = ""
    """The decoded text of the policy that was verified."""
    turns: int = 1
    error: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    """The tree of the tokens, in order of their starts; empty if every token continues the one before it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_reason", StopReason(self.stop_reason))
        if self.segments:
            self._check_segments()
        aligned = len(self.tokens) == len(self.action_mask) == len(self.logprobs) == len(self.rewards)
        if not aligned or any(self.action_mask[:1]) or (self.stop_reason is StopReason.FAILED and any(self.rewards)):
            raise self._build_consistency_error()
        for logprob, reward, acted in zip(self.logprobs, self.rewards, self.action_mask, strict=True):
            fits = acted or not (logprob or reward)
            if not fits or not -math.inf < logprob <= LOGPROB_EPS or not math.isfinite(reward):
                raise self._build_consistency_error()

    def _check_segments(self) -> None:
        """Raise ValueError if the segments are no tree of these tokens."""
        starts = [segment.start for segment in self.segments]
        ordered = starts[0] == 0 and all(one < other for one, other in pairwise([*starts, len(self.tokens)]))
        if not ordered or any(not -1 <= segment.parent < number for number, segment in enumerate(self.segments)):
            raise ValueError(
                f"episode of {self.task_id!r}: the segments {self.segments!r:.200} are no tree of its {len(self.tokens)} tokens; the first "
                "starts at 0, each later one after the one before it, and a parent comes before its children"
            )
        if wrong := [segment.start for segment in self.segments if segment.parent < 0 and self.action_mask[segment.start]]:
            raise ValueError(f"episode of {self.task_id!r}: token {wrong[0]} begins a context and cannot be a policy token")

    def _build_consistency_error(self) -> ValueError:
        """Build the error that describes the inconsistency of the lists."""
        whose, lists = f"episode of {self.task_id!r}", ("tokens", "action_mask", "logprobs", "rewards")
        lengths = {name: len(getattr(self, name)) for name in lists}
        if len(set(lengths.values())) > 1:
            return ValueError(f"{whose}: {lengths}; all lists must have the same length")
        if any(self.action_mask[:1]):
            return ValueError(f"{whose}: the first token cannot be a policy token, because no prompt precedes it")
        for name in ("logprobs", "rewards"):
            for i, (value, acted) in enumerate(zip(getattr(self, name), self.action_mask, strict=True)):
                if not math.isfinite(value):
                    return ValueError(f"{whose}: {name}[{i}] is {value}, not a finite number")
                if value and not acted:
                    return ValueError(f"{whose}: {name}[{i}] is {value}, at a token that the policy did not generate")
        if max(self.logprobs, default=0.0) > LOGPROB_EPS:
            return ValueError(f"{whose}: a log-probability is above 0 ({max(self.logprobs)})")
        return ValueError(f"{whose} failed but has a reward")

    @property
    def reward(self) -> float:
        """The sum of the episode's rewards; 0.0 also for an episode without a score, see `is_scored`."""
        return math.fsum(self.rewards)

    @property
    def is_scored(self) -> bool:
        """Whether the episode did not fail, and its verdict, if there is one, has a score.

        Other episodes do not count for training and metrics.
        """
        return self.stop_reason is not StopReason.FAILED and (self.verdict is None or self.verdict.is_scored)

    @property
    def is_auxiliary(self) -> bool:
        """Whether the episode is a canary, or only a baseline of its group (greedy or mismatched), and not trained on."""
        return any(self.meta.get(name) for name in AUXILIARY_MARKS)

    @property
    def is_cut_by_token_or_time_limit(self) -> bool:
        """Whether a limit other than that on turns ended the episode: on tokens, the context window, or time. The last turn may be complete."""
        return self.stop_reason is StopReason.TRUNCATED and self.meta.get("truncated") != "turns"

    @property
    def turn_spans(self) -> list[tuple[int, int]]:
        """The start and end in `tokens` of each policy turn: the runs of tokens that the policy generated.

        >>> Episode("t", "g", [5, 6, 7, 8], [False, True, False, True], [0.0] * 4, [0.0] * 4, StopReason.TERMINATED).turn_spans
        [(1, 2), (3, 4)]
        """
        found, edges = list[tuple[int, int]](), [*self.action_mask, True, False]  # `index` looks at a million tokens in milliseconds
        end = 0
        while (start := edges.index(True, end)) < len(self.action_mask):
            end = min(edges.index(False, start), len(self.action_mask))
            found.append((start, end))
        return self._split_at_forks(found) if self.segments else found

    def _split_at_forks(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Split runs of policy tokens where a branch begins: what stands before it in the list is another turn. A fork within a turn, after
        which that turn goes on, does not split it.
        """
        starts = [segment.start for number, segment in enumerate(self.segments) if number and segment.parent != number - 1]
        return [pair for start, end in spans for pair in pairwise([start, *(at for at in starts if start < at < end), end])]

    @property
    def branches(self) -> list[list[tuple[int, int]]]:
        """The paths of the tree from the first token to each end, as ranges in `tokens`: the contexts that the policy has seen.

        >>> e = Episode("t", "g", [5, 6, 7, 8], [False, True, False, True], [0.0] * 4, [0.0] * 4, StopReason.TERMINATED)
        >>> e.branches
        [[(0, 4)]]
        >>> from dataclasses import replace
        >>> replace(e, segments=(Segment(0), Segment(1, parent=0), Segment(2, parent=0))).branches
        [[(0, 1), (1, 2)], [(0, 1), (2, 4)]]
        """
        return [find_path(self.segments, number, len(self.tokens)) for number in find_leaves(self.segments)]

    @property
    def malformed_turn_spans(self) -> list[tuple[int, int]]:
        """The start and end in `tokens` of each turn with a call that could not be parsed (see `meta["malformed_turns"]`)."""
        return self._select_turn_spans("malformed_turns")

    @property
    def masked_turn_spans(self) -> list[tuple[int, int]]:
        """The start and end in `tokens` of each turn that is not trained on: no agent was there to receive it, or it is a summary that is not to be
        trained (see `meta["masked_turns"]`).
        """
        return self._select_turn_spans("masked_turns")

    def _select_turn_spans(self, name: str) -> list[tuple[int, int]]:
        chosen = set(self.meta.get(name, ()))
        return [span for turn, span in enumerate(self.turn_spans) if turn in chosen] if chosen else []

    @property
    def num_policy_tokens(self) -> int:
        """The number of tokens that the policy generated."""
        return sum(self.action_mask)

    @property
    def prompt_length(self) -> int:
        """The number of tokens before the policy's first token."""
        return self.action_mask.index(True) if True in self.action_mask else len(self.action_mask)


def find_leaves(segments: Sequence[Segment]) -> list[int]:
    """Return the indices of the segments that no other one continues; [0] for a list without segments.

    >>> find_leaves([Segment(0), Segment(4, parent=0), Segment(9, parent=0)])
    [1, 2]
    """
    parents = {segment.parent for segment in segments}
    return [number for number in range(max(1, len(segments))) if number not in parents]


def find_path(segments: Sequence[Segment], number: int, num_tokens: int) -> list[tuple[int, int]]:
    """Return the ranges of tokens from the beginning of a context to the end of a segment.

    >>> find_path([Segment(0), Segment(4, parent=0), Segment(9, parent=0)], 2, num_tokens=12)
    [(0, 4), (9, 12)]
    """
    if not segments:
        return [(0, num_tokens)]
    ends = [*(segment.start for segment in segments[1:]), num_tokens]
    path = list[tuple[int, int]]()
    while number >= 0:
        path.append((segments[number].start, ends[number]))
        number = segments[number].parent
    return path[::-1]


def keep_last_branch(episode: Episode) -> Episode:
    """Return an episode with the tokens of its last branch alone, for what takes one list.

    >>> e = Episode("t", "g", [5, 6, 7], [False, True, True], [0.0] * 3, [0.0] * 3, StopReason.TERMINATED, segments=(Segment(0), Segment(1, 0), Segment(2, 0)))
    >>> keep_last_branch(e).tokens
    [5, 7]
    """
    if not episode.segments:
        return episode
    path = find_path(episode.segments, len(episode.segments) - 1, len(episode.tokens))
    lists = ("tokens", "action_mask", "logprobs", "rewards")
    kept: dict[str, Any] = {name: [value for a, b in path for value in getattr(episode, name)[a:b]] for name in lists}
    meta = {name: value for name, value in episode.meta.items() if name not in ("masked_turns", "malformed_turns")}  # they count all turns
    return replace(episode, **kept, segments=(), meta=meta)


def segments_to_json(segments: Sequence[Segment]) -> list[list[int]]:
    """Convert segments to pairs of a start and a parent.

    >>> segments_to_json((Segment(0), Segment(4, parent=0)))
    [[0, -1], [4, 0]]
    """
    return [[segment.start, segment.parent] for segment in segments]


def segments_from_json(pairs: Iterable[Sequence[int]]) -> tuple[Segment, ...]:
    """Build segments from pairs of a start and a parent; raise TypeError or ValueError for anything else.

    >>> segments_from_json([[0, -1]])
    (Segment(start=0, parent=-1),)
    """
    return tuple(Segment(index(start), index(parent)) for start, parent in pairs)
