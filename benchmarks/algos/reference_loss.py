"""The losses of the independent reference: see `benchmarks/algos/reference.py`, of which this is the second half.

A loss is a scalar over the answers of one optimizer step, each with its log-probabilities under the weights that train.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.algos.reference import SAME, Answer, Groups, Settings, scored, to_go

__all__ = ["DIRECT", "TOKEN", "New", "policy_loss", "to_go"]


@dataclass
class New:
    """One answer under the weights that train: what carries a gradient.

    >>> New.__dataclass_fields__["logprobs"].type
    'Tensor'
    """

    answer: Answer
    logprobs: Tensor
    entropy: Tensor
    values: Tensor
    chosen: Tensor
    """What Clip-Cov and KL-Cov have chosen of the tokens; False elsewhere."""

    @property
    def log_ratio(self) -> Tensor:
        """The log of the ratio: l - l_old, per token."""
        return self.logprobs - self.answer.old


# ---- one token's loss -----------------------------------------------------------------------------------------------------


def ratio_of(new: New, level: str) -> Tensor:
    """The ratio of each token: its own, the answer's geometric mean, that with a gradient of its own, or the answer's product."""
    if level == "token":
        return new.log_ratio.exp()
    if level == "completion":
        return new.log_ratio.sum().exp().expand(new.answer.length)
    whole = new.log_ratio.mean().exp()
    if level == "sequence":
        return whole.expand(new.answer.length)
    return whole.detach() * (new.logprobs - new.logprobs.detach()).exp()


def clipped(new: New, settings: Settings) -> Tensor:
    """PPO's clip; `delta` bounds the ratio itself, which matters where the advantage is negative."""
    low, high = settings["epsilon"], settings.get("epsilon_high")
    ratio, gain = ratio_of(new, settings["importance_sampling_level"]), new.answer.advantage
    bounded = ratio if settings.get("delta") is None else ratio.clamp(max=settings["delta"])
    return -torch.minimum(bounded * gain, ratio.clamp(1 - low, 1 + (low if high is None else high)) * gain)


def capped(new: New, settings: Settings) -> Tensor:
    """CISPO, and REINFORCE off-policy: a constant weight of at most `ratio_max` for each log-probability."""
    return -new.log_ratio.detach().exp().clamp(max=settings["ratio_max"]) * new.answer.advantage * new.logprobs


def gated(new: New, settings: Settings) -> Tensor:
    """SAPO."""
    gain = new.answer.advantage
    heat = torch.where(gain > 0, settings["sapo_temperature_pos"], settings["sapo_temperature_neg"])
    return -(4 / heat) * torch.sigmoid(heat * (new.log_ratio.exp() - 1)) * gain


def masked_by_probability(new: New, settings: Settings) -> Tensor:
    """DPPO: `old` is the sampler's."""
    p, before, gain = new.logprobs.exp(), new.answer.old.exp(), new.answer.advantage
    gone = (gain > 0) & (p - before > settings["dppo_mask_high"]) | (gain < 0) & (before - p > settings["dppo_mask_low"])
    return -new.log_ratio.clamp(max=20).exp() * gain * (~gone).detach()


def without_chosen(new: New, settings: Settings) -> Tensor:
    """Clip-Cov: the chosen tokens lose their gradient."""
    return torch.where(new.chosen, 0.0, clipped(new, {**settings, "importance_sampling_level": "token"}))


def held_where_chosen(new: New, settings: Settings) -> Tensor:
    """KL-Cov: no clip; the chosen tokens are held."""
    held = torch.where(new.chosen, settings["kl_cov_coef"] * new.log_ratio.abs(), 0.0)
    return -new.log_ratio.exp() * new.answer.advantage + held


def with_teacher(new: New, settings: Settings) -> Tensor:
    """Distillation at the sampled token: what the teacher finds likelier than the policy did is a reward of its own."""
    gain = new.answer.advantage + settings["teacher_weight"] * (new.answer.reference - new.answer.old)
    low, ratio = settings["epsilon"], new.log_ratio.exp()
    return -torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + low) * gain)


TOKEN: dict[str, Callable[[New, Settings], Tensor]] = {
    **dict.fromkeys(("cispo", "reinforce", "reinforce_baseline", "remax"), capped),
    "sapo": gated,
    "dppo": masked_by_probability,
    "clip_cov": without_chosen,
    "distill": with_teacher,
    "kl_cov": held_where_chosen,
}


def covariances(news: Sequence[New]) -> list[Tensor]:
    """How log-probability and advantage of each token vary together, over the tokens of the optimizer step."""
    gain = torch.cat([n.answer.advantage for n in news])
    logs = torch.cat([n.answer.old for n in news])
    return [(n.answer.advantage - gain.mean()) * (n.answer.old - logs.mean()) for n in news]


def choose(name: str, news: Sequence[New], settings: Settings) -> None:
    """Mark the tokens that Clip-Cov or KL-Cov chooses: at least one, those with the largest covariance among the candidates.

    The answers of groups with equal rewards have no gradient, and are not among the tokens that are compared.
    """
    news = [n for n in news if bool((n.answer.advantage != 0).any())]
    found = covariances(news)
    everything = torch.cat(found)
    if name == "clip_cov":
        inside = (everything > settings["clip_cov_lb"]) & (everything < settings["clip_cov_ub"])
        share, everything = settings["clip_cov_ratio"], torch.where(inside, everything, -torch.inf)
    else:
        share = settings["kl_cov_ratio"]
    limit = everything.sort(descending=True).values[max(1, int(share * len(everything))) - 1]
    for new, cov in zip(news, torch.split(everything, [len(c) for c in found]), strict=True):
        new.chosen = (cov >= limit) & cov.isfinite()


# ---- additions ------------------------------------------------------------------------------------------------------------


def divergence(new: New, estimator: str) -> Tensor:
    """The KL to the reference at each token. `k3_ratio` is k3 times the ratio, with the gradient through both."""
    k1 = new.logprobs - new.answer.reference
    k3 = (-k1).exp() - 1 + k1
    return {"k1": k1, "k2": 0.5 * k1**2, "k3": k3, "k3_ratio": k3 * new.log_ratio.exp()}[estimator]


def value_loss(new: New, settings: Settings) -> Tensor:
    """The larger of the two squared errors, of the value and of the value kept within `epsilon_value` of the old one."""
    a, near = new.answer, settings["epsilon_value"]
    kept = a.values + (new.values - a.values).clamp(-near, near)
    return settings["vf_coef"] * 0.5 * torch.maximum((new.values - a.returns) ** 2, (kept - a.returns) ** 2)


def correction(new: New, settings: Settings) -> Tensor:
    """The weight for the mismatch with the sampler."""
    ratio, cap = (new.answer.old - new.answer.sampler).exp(), settings.get("importance_sampling_cap", 2.0)
    how = settings.get("importance_sampling_correction", "none")
    if how.startswith("sequence"):
        ratio = (new.answer.old - new.answer.sampler).sum().exp().expand(new.answer.length)
    if how == "none":
        return torch.ones_like(ratio)
    return ratio.clamp(max=cap) if how.endswith("truncate") else torch.where(ratio > cap, 0.0, ratio)


def token_losses(name: str, new: New, settings: Settings) -> Tensor:
    """All terms of one answer's tokens. The correction weighs the algorithm's own term and the KL in the loss, not the critic's."""
    loss = TOKEN.get(name, clipped)(new, settings)
    if settings.get("kl_in", "loss") == "loss" and settings.get("beta"):
        loss = loss + settings["beta"] * divergence(new, settings["kl_estimator"])
    loss = loss * correction(new, settings)
    if settings.get("entropy_coef"):
        loss = loss - settings["entropy_coef"] * new.entropy
    if name == "ppo":
        loss = loss + value_loss(new, settings)
    return loss


# ---- the mean over tokens and answers -------------------------------------------------------------------------------------


def combined(rows: Sequence[tuple[int, Tensor]], how: str, longest: int) -> Tensor:
    """The losses of the answers of one optimizer step, each with its group, as one number."""
    losses = [loss for _, loss in rows]
    everything = torch.cat(losses)
    if how == "token-mean":
        return everything.mean()
    if how == "token-sum":
        return everything.sum()
    if how == "seq-mean-token-mean":
        return torch.stack([loss.mean() for loss in losses]).mean()
    if how == "seq-mean-token-sum":
        return torch.stack([loss.sum() for loss in losses]).mean()
    if how == "seq-mean-token-sum-norm":
        return torch.stack([loss.sum() / longest for loss in losses]).mean()
    groups: dict[int, list[Tensor]] = defaultdict(list)
    for group, loss in rows:
        groups[group].append(loss)
    return torch.stack([torch.cat(group).mean() for group in groups.values()]).mean()  # prompt-mean


def policy_loss(name: str, news: Sequence[New], settings: Settings, longest: int) -> Tensor:
    """The loss of one optimizer step."""
    if name in ("clip_cov", "kl_cov"):
        choose(name, news, settings)
    return combined([(n.answer.group, token_losses(name, n, settings)) for n in news], settings["loss_aggregation"], longest)


# ---- preferences and imitation: the loss of a whole step --------------------------------------------------------------------


def pairs_of(groups: Groups, settings: Settings) -> list[tuple[Answer, Answer]]:
    """The best with the worst of each group, the second best with the second worst, and so on; ties are no pairs.

    Of equal answers the first is taken.
    """
    out = []
    for group in groups:
        left = scored(group)
        for _ in range(settings.get("pairs_per_group", 1)):
            better, worse = (max(left, key=lambda a: a.reward), min(left, key=lambda a: a.reward)) if left else (None, None)
            if better is None or worse is None or better.reward - worse.reward <= SAME:
                break
            out.append((better, worse))
            left = [a for a in left if a is not better and a is not worse]
    return out


def paired(groups: Groups, news: dict[int, New], settings: Settings) -> Tensor:
    """DPO, cDPO and IPO."""
    losses = []
    for better, worse in pairs_of(groups, settings):
        gap = (news[id(better)].logprobs - better.reference).sum() - (news[id(worse)].logprobs - worse.reference).sum()
        if settings["preference_loss"] == "ipo":
            losses.append((gap - 1 / (2 * settings["beta"])) ** 2)
        else:
            d, smooth = settings["beta"] * gap, settings.get("label_smoothing", 0.0)
            losses.append(-(1 - smooth) * d.sigmoid().log() - smooth * (-d).sigmoid().log())
    return torch.stack(losses).mean()


def desirable(groups: Groups, news: dict[int, New], settings: Settings) -> Tensor:
    """KTO; z comes from the prompts with answers to other prompts."""
    beta = settings["beta"]
    others = [a for group in groups for a in group if a.episode.meta.get("mismatched")]
    z = max(0.0, float(torch.stack([beta * (a.old - a.reference).sum() for a in others]).mean()))
    losses = []
    for group in groups:
        for a in scored(group):
            s = beta * (news[id(a)].logprobs - a.reference).sum()
            good = a.reward >= settings["desirable_threshold"]
            weight = settings["desirable_weight"] if good else settings["undesirable_weight"]
            losses.append(weight * (1 - torch.sigmoid(s - z if good else z - s)))
    return torch.stack(losses).mean()


def imitated(groups: Groups, news: dict[int, New], settings: Settings) -> Tensor:
    """SFT and best-of-N: the first of the best answers of each group, if its score is above `score_threshold`."""
    kept = []
    for group in groups:
        best = max(scored(group), key=lambda a: a.reward)
        if best.reward > settings["score_threshold"]:
            kept.append((best.group, -news[id(best)].logprobs))
    return combined(kept, settings["loss_aggregation"], 0)


DIRECT: dict[str, Callable[[Groups, dict[int, New], Settings], Tensor]] = {
    **dict.fromkeys(("dpo", "online_dpo", "online_ipo"), paired),
    "kto": desirable,
    **dict.fromkeys(("sft", "best_of_n"), imitated),
}
