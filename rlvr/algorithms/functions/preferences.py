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

from rlvr.algorithms.functions.advantages import REWARD_TOLERANCE, AllReduce, Rewards, single_process_all_reduce
from rlvr.episode import Episode, keep_last_branch
from rlvr.errors import ConfigError

PREFERENCE_LOSSES = ("dpo", "ipo")


class PreferenceAdvantages(NamedTuple):
    """The advantage of each answer (the negative derivative of the loss with respect to its log-probability), and metrics.

    >>> compute_preference_advantages([[0.0, 1.0]], [[0.0, 0.0]], 0.1).advantages
    [[-0.05, 0.05]]
    """

    advantages: list[list[float]]
    metrics: dict[str, float]


def find_best_worst_pair(rewards: Rewards) -> tuple[int, int] | None:
    """Find the best and the worst answer of a group; None if they tie.

    >>> find_best_worst_pair([0.0, 1.0, None, 0.5]), find_best_worst_pair([1.0, 1.0])
    ((1, 0), None)
    """
    scored = [(reward, i) for i, reward in enumerate(rewards) if reward is not None]
    if len(scored) < 2:
        return None
    best, worst = max(scored, key=lambda x: (x[0], -x[1])), min(scored)
    return None if best[0] - worst[0] <= REWARD_TOLERANCE else (best[1], worst[1])


def compute_pair_loss(margin: float, beta: float, preference_loss: str, smoothing: float) -> float:
    """Compute the loss of one pair.

    >>> compute_pair_loss(0.0, 0.1, "dpo", 0.0) == math.log(2)
    True
    """
    if preference_loss == "ipo":
        return (margin / beta - 1 / (2 * beta)) ** 2
    return (1 - smoothing) * _softplus(-margin) + smoothing * _softplus(margin)


def compute_pair_advantage(margin: float, beta: float, preference_loss: str, smoothing: float) -> float:
    """Compute the negative derivative of the pair loss with respect to the better answer's log-probability."""
    if preference_loss == "ipo":
        return 2 * (1 / (2 * beta) - margin / beta)
    return beta * ((1 - smoothing) * _sigmoid(-margin) - smoothing * _sigmoid(margin))


def pair_best_with_worst(rewards: Rewards, max_pairs: int = 1) -> list[tuple[int, int]]:
    """Select up to `max_pairs` disjoint pairs: the best with the worst, the second best with the second worst, and so on.

    >>> pair_best_with_worst([0.0, 1.0, None, 0.5, 1.0], max_pairs=3)
    [(1, 0), (4, 3)]
    """
    left, found = list(rewards), list[tuple[int, int]]()
    while len(found) < max_pairs and (picked := find_best_worst_pair(left)):
        found.append(picked)
        left[picked[0]] = left[picked[1]] = None
    return found


def compute_preference_advantages(
    rewards: Sequence[Rewards],
    implicit_rewards: Sequence[Sequence[float]],
    beta: float,
    *,
    preference_loss: str = "dpo",
    smoothing: float = 0.0,
    max_pairs: int = 1,
    all_reduce: AllReduce = single_process_all_reduce,
) -> PreferenceAdvantages:
    """Compute DPO or IPO on the pairs of each group. `implicit_rewards` has s of every answer; `rewards` is None for excluded answers."""
    chosen = [(g, *picked) for g, group in enumerate(rewards) for picked in pair_best_with_worst(group, max_pairs)]
    [count] = all_reduce([float(len(chosen))])
    advantages = [[0.0] * len(group) for group in rewards]
    sums = [0.0] * 4
    for g, up, down in chosen:
        better, worse = implicit_rewards[g][up], implicit_rewards[g][down]
        force = compute_pair_advantage(better - worse, beta, preference_loss, smoothing) / count  # the mean over pairs
        advantages[g][up], advantages[g][down] = force, -force
        seen = (compute_pair_loss(better - worse, beta, preference_loss, smoothing), better, worse, float(better > worse))
        sums = [x + y for x, y in zip(sums, seen, strict=True)]
    cost, better, worse, right = (x / max(count, 1.0) for x in all_reduce(sums))
    figures = {"preference/num_pairs": count}
    if count:
        figures |= {"loss": cost, "preference/loss": cost, "rewards/accuracies": right} | _build_reward_metrics(better, worse)
    return PreferenceAdvantages(advantages, figures)


def compute_kto_advantages(
    rewards: Sequence[Rewards],
    implicit_rewards: Sequence[Sequence[float]],
    mismatched_rewards: Sequence[float],
    beta: float,
    *,
    desirable_threshold: float,
    weights: tuple[float, float],
    all_reduce: AllReduce = single_process_all_reduce,
) -> PreferenceAdvantages:
    """Compute KTO: an answer is desirable if it scores at least `desirable_threshold`; `mismatched_rewards` has s of answers to other
    prompts.
    """
    added, count = all_reduce([math.fsum(mismatched_rewards), float(len(mismatched_rewards))])
    z = max(0.0, added / count) if count else 0.0
    [everyone] = all_reduce([float(sum(r is not None for group in rewards for r in group))])
    advantages = [[0.0] * len(group) for group in rewards]
    sums = [0.0] * 5
    for g, group in enumerate(rewards):
        for i, reward in enumerate(group):
            if reward is None:
                continue
            good = reward >= desirable_threshold
            sign, weight, s = (1.0, weights[0], implicit_rewards[g][i]) if good else (-1.0, weights[1], implicit_rewards[g][i])
            value = _sigmoid(sign * (s - z))
            advantages[g][i] = sign * weight * beta * value * (1 - value) / everyone
            seen = (weight * (1 - value), float(good), float(not good), s if good else 0.0, 0.0 if good else s)
            sums = [x + y for x, y in zip(sums, seen, strict=True)]
    cost, goods, bads, better, worse = all_reduce(sums)
    figures = {"preference/num_desirable": goods, "preference/num_undesirable": bads, "kto/kl_baseline": z / beta}
    if goods + bads:
        figures["loss"] = figures["preference/loss"] = cost / (goods + bads)
    if goods and bads:
        figures |= _build_reward_metrics(better / goods, worse / bads)
    return PreferenceAdvantages(advantages, figures)


def select_best(rewards: Rewards, *, score_threshold: float = 0.0) -> int | None:
    """Return the index of the best answer of a group: the first with the highest score, if that is above `score_threshold`.

    >>> select_best([0.0, 1.0, None, 1.0]), select_best([0.0, None]), select_best([0.0, 0.4], score_threshold=0.5)
    (1, None, None)
    """
    scored = [(reward, -i) for i, reward in enumerate(rewards) if reward is not None and reward > score_threshold]
    return -max(scored)[1] if scored else None


def select_paired_answers(groups: Sequence[Sequence[Episode]], max_pairs: int) -> list[list[Episode]]:
    """Return the members of each group's pairs, without groups that have no pair."""
    found = []
    for group in groups:
        members = sorted(i for picked in pair_best_with_worst([e.reward for e in group], max_pairs) for i in picked)
        found.append([group[i] for i in members])
    kept = [group for group in found if group]
    if not kept:
        raise ConfigError(
            f"there are no pairs to train on: in each of the {len(groups)} groups all scores are equal; use a run with more "
            "answers per prompt, a higher temperature, or tasks that it solves sometimes"
        )
    return kept


def require_desirable_and_undesirable(groups: Sequence[Sequence[Episode]], desirable_threshold: float) -> list[list[Episode]]:
    """Return all groups; raise ConfigError unless some answers are desirable and some are not."""
    good = sum(e.reward >= desirable_threshold for group in groups for e in group)
    everyone = sum(len(group) for group in groups)
    if good in (0, everyone):
        kind = "undesirable" if not good else "desirable"
        raise ConfigError(
            f"all {everyone} answers are {kind}: KTO needs both kinds; their scores range from "
            f"{min(e.reward for group in groups for e in group):g} to {max(e.reward for group in groups for e in group):g}, "
            f"and desirable_threshold is {desirable_threshold:g}; set it between them, or use a run that is sometimes right"
        )
    return [list(group) for group in groups]


def select_best_answers(groups: Sequence[Sequence[Episode]], score_threshold: float) -> list[list[Episode]]:
    """Return the best answer of each group that has one above `score_threshold`."""
    found = [select_best([e.reward for e in group], score_threshold=score_threshold) for group in groups]
    kept = [[group[i]] for group, i in zip(groups, found, strict=True) if i is not None]
    if not kept:
        raise ConfigError(
            f"none of the {len(groups)} groups has an answer with a score above {score_threshold:g}; lower algorithm.score_threshold"
        )
    return kept


def add_mismatched_answers(groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
    """Add KTO's baseline episodes to each group: its prompt with the answers of the next group that has another prompt.

    They have `meta["mismatched"]`. If there is no other prompt, nothing is added; KTO then uses z = 0.
    """
    asked = [[e.tokens[: e.prompt_length] for e in group[:1]] for group in groups]
    longest = max((len(e.tokens) for group in groups for e in group), default=0)
    found = []
    for g, group in enumerate(groups):
        following = next((groups[k] for k in [*range(g + 1, len(groups)), *range(g)] if asked[k] != asked[g]), ())
        answers = [e for e in following if e.is_scored and e.num_policy_tokens]
        pairs_ = zip([e for e in group if e.is_scored and e.num_policy_tokens], answers, strict=False)
        found.append([*group, *(_combine_prompt_and_answer(e, other, longest) for e, other in pairs_)])
    return found


def _combine_prompt_and_answer(episode: Episode, other: Episode, longest: int) -> Episode:
    episode, other = keep_last_branch(episode), keep_last_branch(other)
    at, there = episode.prompt_length, other.prompt_length
    tokens = [*episode.tokens[:at], *other.tokens[there:]][:longest]
    acted = [*episode.action_mask[:at], *other.action_mask[there:]][:longest]
    nothing = [0.0] * len(tokens)
    meta = {**episode.meta, "mismatched": True}
    return replace(episode, tokens=tokens, action_mask=acted, logprobs=nothing, rewards=nothing, verdict=None, text="", meta=meta)


def _build_reward_metrics(better: float, worse: float) -> dict[str, float]:
    return {"rewards/chosen": better, "rewards/rejected": worse, "rewards/margins": better - worse}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
