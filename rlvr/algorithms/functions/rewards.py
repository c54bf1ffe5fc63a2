"""Rewards other than the score: the components of a verdict, and the reward of the greedy answer."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr.algorithms.functions.advantages import Rewards
from rlvr.algorithms.functions.answer_batch import AnswerBatch
from rlvr.errors import ConfigError


def get_component_rewards(answers: AnswerBatch, weights: Mapping[str, float]) -> dict[str, list[Rewards]]:
    """Return the named components of the verdicts. A missing component is 0: verification stopped early, or the answer made it fail."""
    verdicts = [
        [e.verdict if counts else None for e, counts in zip(group, row, strict=True)]
        for group, row in zip(answers.groups, answers.is_counted, strict=True)
    ]
    good = [v.components for row in verdicts for v in row if v is not None and v.score]
    any_good, *have = answers.all_reduce([float(len(good)), *(float(sum(name in parts for parts in good)) for name in weights)])
    if any_good and (lost := [name for name, count in zip(weights, have, strict=True) if not count]):
        there = ", ".join(dict.fromkeys(name for parts in good for name in parts)) or "none"
        raise ConfigError(f"reward_weights names {lost[0]!r}, but the verdicts of scored answers have the components: {there}")
    return {name: [[None if v is None else v.components.get(name, 0.0) for v in row] for row in verdicts] for name in weights}


def get_greedy_rewards(answers: AnswerBatch) -> list[float | None]:
    """Return the reward of each group's greedy answer; None if it has no score."""
    if answers.groups and not any(e.meta.get("greedy") for group in answers.groups for e in group):
        raise ConfigError("the baseline is a greedy answer, and no group has one (an episode with meta['greedy'] true)")
    return [next((e.reward for e in group if e.meta.get("greedy") and e.is_scored), None) for group in answers.groups]
