"""The algorithms a second time, written from the formulas of `rlvr show algorithm` and the papers, to compare with `rlvr/algorithms/`.

Nothing of `rlvr/algorithms/` is imported here, and this file was written before that folder was read. An answer is one row, scored by
itself in float64; every formula is a plain expression over the tokens of that row, and the gradient is autograd's. Where a formula leaves
something open, the reading taken here is stated beside it. `benchmarks/algos/agreement.py` makes the comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlvr.episode import Episode

Settings = Mapping[str, Any]
Groups = Sequence[Sequence["Answer"]]
SAME = 1e-6
"""Rewards that are closer than this are equal."""


@dataclass
class Answer:
    """One answer of a step. Every tensor has one number per token that the policy chose.

    >>> Answer.__dataclass_fields__["group"].type
    'int'
    """

    episode: Episode
    group: int
    old: Tensor
    reference: Tensor
    entropy: Tensor
    """Of the weights before the step, as `old`."""
    values: Tensor
    sampler: Tensor
    advantage: Tensor = field(default_factory=lambda: torch.zeros(0))
    returns: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def length(self) -> int:
        """How many tokens the policy chose."""
        return len(self.old)

    @property
    def rewards(self) -> Tensor:
        """The reward of each token that the policy chose."""
        return torch.tensor([r for r, on in zip(self.episode.rewards, self.episode.action_mask, strict=True) if on], dtype=torch.float64)

    @property
    def reward(self) -> float:
        """All of them."""
        return float(self.rewards.sum())

    @property
    def turns(self) -> list[slice]:
        """Which of its tokens belong to each turn."""
        out, start = [], 0
        for first, last in self.episode.turn_spans:
            out.append(slice(start, start + last - first))
            start += last - first
        return out


def scored(group: Sequence[Answer]) -> list[Answer]:
    """The members that are compared: they have a score, and are no greedy or mismatched answers."""
    return [a for a in group if a.episode.is_scored and not a.episode.meta]


def trained(groups: Groups, settings: Settings) -> list[Answer]:
    """The answers whose tokens are in the loss."""
    masked = settings.get("mask_truncated_completions", False)
    return [a for group in groups for a in scored(group) if not (masked and a.episode.is_cut_by_token_or_time_limit)]


# ---- advantages -----------------------------------------------------------------------------------------------------------


def spread(numbers: Sequence[float]) -> float:
    """The standard deviation of a sample: divided by n - 1."""
    return float(torch.tensor(numbers, dtype=torch.float64).std(correction=1)) if len(numbers) > 1 else 0.0


def mean(numbers: Sequence[float]) -> float:
    """The mean."""
    return sum(numbers) / len(numbers)


def normalised(numbers: Sequence[float], settings: Settings) -> list[float]:
    """(x - mean) / (std + epsilon); 0 where all are equal, or there is only one. Without the division if `scale_rewards` is none."""
    if len(numbers) < 2 or max(numbers) - min(numbers) <= SAME:
        return [0.0] * len(numbers)
    divisor = 1.0 if settings.get("scale_rewards") == "none" else spread(numbers) + settings.get("advantage_epsilon", 1e-4)
    return [(x - mean(numbers)) / divisor for x in numbers]


def constant(answer: Answer, value: float) -> Tensor:
    """The same number for every token."""
    return torch.full((answer.length,), value, dtype=torch.float64)


def of_group(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """GRPO and Dr.GRPO. With `scale_rewards=batch` the divisor is the deviation of all rewards of the step."""
    everyone = [a.reward for group in groups for a in scored(group)]
    for group in groups:
        members = scored(group)
        if settings.get("scale_rewards") == "batch":
            centred = normalised([a.reward for a in members], {"scale_rewards": "none"})
            found = [x / (spread(everyone) + settings.get("advantage_epsilon", 1e-4)) for x in centred]
        else:
            found = normalised([a.reward for a in members], settings)
        for a, x in zip(members, found, strict=True):
            a.advantage = constant(a, x)


def whiten_tokens(groups: Groups, settings: Settings) -> None:
    """Mean 0 and deviation 1 (divided by n) over all tokens that train."""
    everything = torch.cat([a.advantage for a in trained(groups, settings)])
    for a in trained(groups, settings):
        a.advantage = (a.advantage - everything.mean()) / everything.std(correction=0)


def whiten_answers(groups: Groups, settings: Settings) -> None:
    """The same over answers, each of which has one number."""
    everything = torch.stack([a.advantage[0] for a in trained(groups, settings)])
    for a in trained(groups, settings):
        a.advantage = (a.advantage - everything.mean()) / everything.std(correction=0)


def baselined(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """REINFORCE++-baseline."""
    of_group(groups, {**settings, "scale_rewards": "none"}, state)
    whiten_tokens(groups, settings)


def by_parts(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """GDPO: each part of the verdict is normalised within its group."""
    for group in groups:
        members = scored(group)
        sums = [0.0] * len(members)
        for part, weight in settings["reward_weights"].items():
            column = normalised([a.episode.verdict.components[part] for a in members if a.episode.verdict is not None], settings)
            sums = [total + weight * x for total, x in zip(sums, column, strict=True)]
        for a, x in zip(members, sums, strict=True):
            a.advantage = constant(a, x)
    whiten_answers(groups, settings)


def plain(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """REINFORCE, with the running baseline if the state has one."""
    for group in groups:
        for a in scored(group):
            a.advantage = constant(a, a.reward - state.get("baseline", 0.0))


def less_greedy(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """ReMax: the reward to go, less that of the whole greedy answer."""
    for group in groups:
        [greedy] = [a for a in group if a.episode.meta.get("greedy")]
        for a in scored(group):
            a.advantage = to_go(a.rewards, settings.get("gamma", 1.0)) - greedy.reward


def less_others(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """RLOO: the penalty of the KL is summed over the answer and taken from its reward."""
    for group in groups:
        members = scored(group)
        paid = [a.reward - settings["beta"] * float((a.old - a.reference).sum()) for a in members]
        for a, mine in zip(members, paid, strict=True):
            others = (sum(paid) - mine) / (len(paid) - 1) if len(paid) > 1 else mine
            a.advantage = constant(a, mine - others)


def to_go(rewards: Tensor, discount: float) -> Tensor:
    """The discounted sum of this number and those that follow."""
    out, later = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        later = float(rewards[t]) + discount * later
        out[t] = later
    return out


def whitened_to_go(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """REINFORCE++."""
    for group in groups:
        for a in scored(group):
            a.advantage = to_go(a.rewards - settings["beta"] * (a.old - a.reference), settings.get("gamma", 1.0))
    whiten_tokens(groups, settings)


def generalised(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """PPO: GAE over the tokens that the policy chose; what follows the last one is worth 0. The returns are not whitened."""
    gamma, lam = settings.get("gamma", 1.0), settings.get("lam", 0.95)
    for group in groups:
        for a in scored(group):
            paid = a.rewards - settings["beta"] * (a.old - a.reference)
            following = torch.cat([a.values[1:], a.values.new_zeros(1)])
            a.advantage = to_go(paid + gamma * following - a.values, gamma * lam)
            a.returns = a.advantage + a.values
    whiten_tokens(groups, settings)


def relative(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """MaxRL."""
    for group in groups:
        members = scored(group)
        middle = mean([a.reward for a in members]) if members else 0.0
        for a in members:
            a.advantage = constant(a, (a.reward - middle) / middle if middle > 0 else 0.0)


def turn_returns(answer: Answer, discount: float) -> list[float]:
    """The return of each turn; within a turn nothing is discounted."""
    earned = torch.stack([answer.rewards[span].sum() for span in answer.turns])
    return [float(x) for x in to_go(earned, discount)]


def by_turns(members: Sequence[Answer], settings: Settings, key: Callable[[Answer, int], Any]) -> dict[int, list[float]]:
    """The normalised return of each turn, among the turns with the same key; by the answer's place."""
    alike: dict[Any, list[tuple[int, int, float]]] = defaultdict(list)
    for i, a in enumerate(members):
        for turn, value in enumerate(turn_returns(a, settings["turn_discount"])):
            alike[key(a, turn)].append((i, turn, value))
    out = {i: [0.0] * len(a.turns) for i, a in enumerate(members)}
    for found in alike.values():
        for (i, turn, _), x in zip(found, normalised([value for *_, value in found], settings), strict=True):
            out[i][turn] = x
    return out


def seen_before(answer: Answer, turn: int) -> tuple[int, ...]:
    """The ids before a turn."""
    return tuple(answer.episode.tokens[: answer.episode.turn_spans[turn][0]])


def turns_of_group(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """GRPO by turn."""
    for group in groups:
        found = by_turns(members := scored(group), settings, lambda a, turn: turn)
        for i, a in enumerate(members):
            a.advantage = torch.zeros(a.length, dtype=torch.float64)
            for span, x in zip(a.turns, found[i], strict=True):
                a.advantage[span] = x


def group_in_group(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """GiGPO: the advantage of the answer, and that of the turn among the turns after the same ids."""
    of_group(groups, settings, state)
    for group in groups:
        found = by_turns(members := scored(group), settings, seen_before)
        for i, a in enumerate(members):
            for span, x in zip(a.turns, found[i], strict=True):
                a.advantage[span] += settings["turn_weight"] * x


def certain_or_not(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """GTPO. `r+` is 0 on the tokens of wrong answers, `r-` on those of right ones; each is normalised (divided by n) over all tokens of
    the group, and the advantage is their sum.
    """
    b = settings["entropy_weight"]
    for group in groups:
        members = scored(group)
        right = [a for a in members if a.reward >= settings["success_threshold"]]
        for a in members:
            a.advantage = torch.zeros(a.length, dtype=torch.float64)
        if max(a.reward for a in members) - min(a.reward for a in members) <= SAME:
            continue
        for mine, sign in ((right, 1), ([a for a in members if all(a is not k for k in right)], -1)):
            shaped = {id(a): torch.zeros(a.length, dtype=torch.float64) for a in members}
            for a in mine:
                for t in range(a.length):
                    there = [float(k.entropy[t].clamp(min=1e-3)) ** sign for k in mine if k.length > t]
                    share = len(there) * float(a.entropy[t].clamp(min=1e-3)) ** sign / sum(there)
                    shaped[id(a)][t] = sign * (a.reward if sign > 0 else 1.0) * (1 - b + b * share)
            everything = torch.cat(list(shaped.values()))
            for a in members if mine else ():
                a.advantage += (shaped[id(a)] - everything.mean()) / (everything.std(correction=0) + 1e-6)


def uncertain_only(groups: Groups, settings: Settings, state: dict[str, Any]) -> None:
    """High-entropy tokens: the given share of the tokens of all scored answers, those with the highest entropy."""
    of_group(groups, settings, state)
    everything = torch.cat([a.entropy for group in groups for a in scored(group)])
    limit = everything.sort(descending=True).values[int(len(everything) * settings["entropy_share"]) - 1]
    for a in trained(groups, settings):
        a.advantage = torch.where(a.entropy >= limit, a.advantage, 0.0)


ADVANTAGES: dict[str, Callable[[Groups, Settings, dict[str, Any]], None]] = {
    **dict.fromkeys(("grpo", "dr_grpo", "dapo", "gspo", "gspo_token", "cispo", "sapo", "clip_cov", "kl_cov", "dppo"), of_group),
    "distill": of_group,
    "gdpo": by_parts,
    "reinforce": plain,
    "reinforce_baseline": plain,
    "remax": less_greedy,
    "rloo": less_others,
    "reinforce_pp": whitened_to_go,
    "reinforce_pp_baseline": baselined,
    "ppo": generalised,
    "max_rl": relative,
    "grpo_turns": turns_of_group,
    "gigpo": group_in_group,
    "gtpo": certain_or_not,
    "high_entropy": uncertain_only,
}
