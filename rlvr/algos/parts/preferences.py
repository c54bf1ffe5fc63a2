"""Preferences: select pairs of answers, and compute the preference loss and its gradient per answer.

The gradient of such a loss is one number per answer, its advantage, times the gradient of the answer's log-probability. So the loss is
computed from whole answers before the step, and the step itself needs only the advantages: an answer may be in any micro-batch. With
s = beta * (l - l_ref), log-probabilities summed over the answer (or its mean over the tokens):

    dpo     -(1 - e) log sigmoid(s+ - s-) - e log sigmoid(s- - s+)          e is the label smoothing (cDPO)
    ipo     ((s+ - s-) / beta - 1 / (2 beta))^2
    kto     w_D (1 - sigmoid(s - z)) where desirable, w_U (1 - sigmoid(z - s)) where not;
            z = max(0, the mean s of answers to other prompts), a constant to the gradient

They are valid only at the weights that scored the answers, so each batch serves one optimizer step. `select_best` is for imitation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rlvr.algos.parts.credit import TOLERANCE, Rewards, Total, alone
from rlvr.episode import Episode
from rlvr.errors import ConfigError

LOSSES = ("dpo", "ipo")


class Pulls(NamedTuple):
    """The advantage of each answer (the negative derivative of the loss with respect to its log-probability), and metrics.

    >>> of_pairs([[0.0, 1.0]], [[0.0, 0.0]], 0.1).pulls
    [[-0.05, 0.05]]
    """

    pulls: list[list[float]]
    figures: dict[str, float]


def pair(rewards: Rewards) -> tuple[int, int] | None:
    """Find the best and the worst answer of a group; None if they tie.

    >>> pair([0.0, 1.0, None, 0.5]), pair([1.0, 1.0])
    ((1, 0), None)
    """
    scored = [(reward, i) for i, reward in enumerate(rewards) if reward is not None]
    if len(scored) < 2:
        return None
    best, worst = max(scored, key=lambda x: (x[0], -x[1])), min(scored)
    return None if best[0] - worst[0] <= TOLERANCE else (best[1], worst[1])


def loss(d: float, beta: float, how: str, smoothing: float) -> float:
    """Compute the loss of one pair.

    >>> loss(0.0, 0.1, "dpo", 0.0) == math.log(2)
    True
    """
    if how == "ipo":
        return (d / beta - 1 / (2 * beta)) ** 2
    return (1 - smoothing) * _softplus(-d) + smoothing * _softplus(d)


def pull(d: float, beta: float, how: str, smoothing: float) -> float:
    """Compute the negative derivative of the pair loss with respect to the better answer's log-probability."""
    if how == "ipo":
        return 2 * (1 / (2 * beta) - d / beta)
    return beta * ((1 - smoothing) * _sigmoid(-d) - smoothing * _sigmoid(d))


def pairs(rewards: Rewards, most: int = 1) -> list[tuple[int, int]]:
    """Select up to `most` disjoint pairs: the best with the worst, the second best with the second worst, and so on.

    >>> pairs([0.0, 1.0, None, 0.5, 1.0], most=3)
    [(1, 0), (4, 3)]
    """
    left, found = list(rewards), list[tuple[int, int]]()
    while len(found) < most and (picked := pair(left)):
        found.append(picked)
        left[picked[0]] = left[picked[1]] = None
    return found


def of_pairs(
    rewards: Sequence[Rewards],
    shifts: Sequence[Sequence[float]],
    beta: float,
    *,
    how: str = "dpo",
    smoothing: float = 0.0,
    most: int = 1,
    total: Total = alone,
) -> Pulls:
    """Compute DPO or IPO on the pairs of each group. `shifts` has s of every answer; `rewards` is None for excluded answers."""
    chosen = [(g, *picked) for g, group in enumerate(rewards) for picked in pairs(group, most)]
    [count] = total([float(len(chosen))])
    advantages = [[0.0] * len(group) for group in rewards]
    sums = [0.0] * 4
    for g, up, down in chosen:
        better, worse = shifts[g][up], shifts[g][down]
        force = pull(better - worse, beta, how, smoothing) / count  # the mean over pairs
        advantages[g][up], advantages[g][down] = force, -force
        seen = (loss(better - worse, beta, how, smoothing), better, worse, float(better > worse))
        sums = [x + y for x, y in zip(sums, seen, strict=True)]
    cost, better, worse, right = (x / max(count, 1.0) for x in total(sums))
    figures = {"preference/pairs": count}
    if count:
        figures |= {"loss": cost, "preference/loss": cost, "rewards/accuracies": right} | _told(better, worse)
    return Pulls(advantages, figures)


def of_kto(
    rewards: Sequence[Rewards],
    shifts: Sequence[Sequence[float]],
    elsewhere: Sequence[float],
    beta: float,
    *,
    desirable_from: float,
    weights: tuple[float, float],
    total: Total = alone,
) -> Pulls:
    """Compute KTO: an answer is desirable if it scores at least `desirable_from`; `elsewhere` has s of answers to other prompts."""
    added, count = total([math.fsum(elsewhere), float(len(elsewhere))])
    z = max(0.0, added / count) if count else 0.0
    [everyone] = total([float(sum(r is not None for group in rewards for r in group))])
    advantages = [[0.0] * len(group) for group in rewards]
    sums = [0.0] * 5
    for g, group in enumerate(rewards):
        for i, reward in enumerate(group):
            if reward is None:
                continue
            good = reward >= desirable_from
            sign, weight, s = (1.0, weights[0], shifts[g][i]) if good else (-1.0, weights[1], shifts[g][i])
            value = _sigmoid(sign * (s - z))
            advantages[g][i] = sign * weight * beta * value * (1 - value) / everyone
            seen = (weight * (1 - value), float(good), float(not good), s if good else 0.0, 0.0 if good else s)
            sums = [x + y for x, y in zip(sums, seen, strict=True)]
    cost, goods, bads, better, worse = total(sums)
    figures = {"preference/desirable": goods, "preference/undesirable": bads, "kl/mismatched": z / beta}
    if goods + bads:
        figures["loss"] = figures["preference/loss"] = cost / (goods + bads)
    if goods and bads:
        figures |= _told(better / goods, worse / bads)
    return Pulls(advantages, figures)


def best(rewards: Rewards, *, at_least: float = 0.0) -> int | None:
    """Return the index of the best answer of a group: the first with the highest score, if that is above `at_least`.

    >>> best([0.0, 1.0, None, 1.0]), best([0.0, None]), best([0.0, 0.4], at_least=0.5)
    (1, None, None)
    """
    scored = [(reward, -i) for i, reward in enumerate(rewards) if reward is not None and reward > at_least]
    return -max(scored)[1] if scored else None


def paired(groups: Sequence[Sequence[Episode]], most: int) -> list[list[Episode]]:
    """Return the members of each group's pairs, without groups that have no pair."""
    found = []
    for group in groups:
        members = sorted(i for picked in pairs([e.reward for e in group], most) for i in picked)
        found.append([group[i] for i in members])
    kept = [group for group in found if group]
    if not kept:
        raise ConfigError(
            f"there are no pairs to train on: in each of the {len(groups)} groups all scores are equal; use a run with more "
            "answers per prompt, a higher temperature, or tasks that it solves sometimes"
        )
    return kept


def of_both_kinds(groups: Sequence[Sequence[Episode]], desirable_from: float) -> list[list[Episode]]:
    """Return all groups; raise ConfigError unless some answers are desirable and some are not."""
    good = sum(e.reward >= desirable_from for group in groups for e in group)
    everyone = sum(len(group) for group in groups)
    if good in (0, everyone):
        kind = "undesirable" if not good else "desirable"
        raise ConfigError(
            f"all {everyone} answers are {kind}: KTO needs both kinds; their scores range from "
            f"{min(e.reward for group in groups for e in group):g} to {max(e.reward for group in groups for e in group):g}, "
            f"and desirable_from is {desirable_from:g}; set it between them, or use a run that is sometimes right"
        )
    return [list(group) for group in groups]


def best_ones(groups: Sequence[Sequence[Episode]], at_least: float) -> list[list[Episode]]:
    """Return the best answer of each group that has one above `at_least`."""
    found = [best([e.reward for e in group], at_least=at_least) for group in groups]
    kept = [[group[i]] for group, i in zip(groups, found, strict=True) if i is not None]
    if not kept:
        raise ConfigError(f"none of the {len(groups)} groups has an answer with a score above {at_least:g}; lower algorithm.at_least")
    return kept


def mismatched(groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
    """Add KTO's baseline episodes to each group: its prompt with the answers of the next group that has another prompt.

    They have `meta["mismatched"]`. If there is no other prompt, nothing is added; KTO then uses z = 0.
    """
    asked = [[e.tokens[: e.prompt_length] for e in group[:1]] for group in groups]
    longest = max((len(e.tokens) for group in groups for e in group), default=0)
    found = []
    for g, group in enumerate(groups):
        following = next((groups[k] for k in [*range(g + 1, len(groups)), *range(g)] if asked[k] != asked[g]), ())
        answers = [e for e in following if e.scored and e.length]
        pairs_ = zip([e for e in group if e.scored and e.length], answers, strict=False)
        found.append([*group, *(_grafted(e, other, longest) for e, other in pairs_)])
    return found


def _grafted(episode: Episode, other: Episode, longest: int) -> Episode:
    at, there = episode.prompt_length, other.prompt_length
    tokens = [*episode.tokens[:at], *other.tokens[there:]][:longest]
    acted = [*episode.acted[:at], *other.acted[there:]][:longest]
    nothing = [0.0] * len(tokens)
    meta = {**episode.meta, "mismatched": True}
    return replace(episode, tokens=tokens, acted=acted, logprobs=nothing, rewards=nothing, verdict=None, text="", meta=meta)


def _told(better: float, worse: float) -> dict[str, float]:
    return {"rewards/chosen": better, "rewards/rejected": worse, "rewards/margins": better - worse}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
