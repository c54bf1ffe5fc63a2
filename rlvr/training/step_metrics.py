"""The metrics of a step, computed from its batch; and the check that no token is lost."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import compress

import numpy as np

from rlvr.episode import Episode
from rlvr.errors import RlvrError
from rlvr.runs.conversation_stats import compute_tool_time_metrics
from rlvr.training.batch_sources import RolloutBatch, count_policy_tokens
from rlvr.training.task_sampling.dynamic_sampling import Group

NGRAM = 4
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def add_dropped_token_counts(metrics: dict[str, float], batch: RolloutBatch) -> dict[str, float]:
    """Add dropped groups to the learner's token counts, and check sampled = trained + masked + dropped."""
    whole = dict(metrics)
    for reason, groups in batch.dropped.items():
        if tokens := count_policy_tokens(groups):
            whole[f"tokens/dropped_{reason}"] = float(tokens)
            whole["tokens/dropped"] += tokens
            whole["tokens/sampled"] += tokens
    counted = whole["tokens/trained"] + whole["tokens/masked"] + whole["tokens/dropped"]
    seen, sampled = whole["tokens/sampled"], count_policy_tokens(batch.all_groups)
    if not sampled == seen == counted:
        raise RlvrError(f"tokens are not conserved: {sampled} sampled, {seen:g} trained on or dropped, {counted:g} accounted for")
    return whole


def compute_sampling_metrics(groups: list[Group]) -> dict[str, float | None]:
    """Compute metrics of all sampled episodes, including dropped ones; the reward covers only scored episodes."""
    everyone = drop_baselines_and_canaries(groups)
    rewards = [episode.reward for episode in everyone if episode.is_scored]
    lengths = [episode.num_policy_tokens for episode in everyone]
    mean = sum(rewards) / len(rewards) if rewards else None
    spread = (sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)) ** 0.5 if mean is not None else None
    return (
        _compute_component_metrics(everyone)
        | {
            "reward": mean,
            "reward_std": spread,
            "reward_stderr": _estimate_reward_error(groups),
            "completions/mean_length": sum(lengths) / len(lengths),
            "completions/max_length": max(lengths),
            "completions/clipped_ratio": sum(episode.is_cut_by_token_or_time_limit for episode in everyone) / len(everyone),
            "completions/repetition": compute_repetition(everyone),
            "unscored": len(everyone) - len(rewards),
            "num_completions": len(everyone),
            "num_tokens": sum(lengths),
        }
        | estimate_entropy(everyone)
    )


def _estimate_reward_error(groups: Sequence[Group]) -> float | None:
    """Estimate the standard error of the mean reward from the means of the groups, because answers to one prompt are alike; None for fewer
    than two groups.
    """
    scored = [[episode.reward for episode in group if episode.is_scored and not episode.is_auxiliary] for group in groups]
    means = [math.fsum(rewards) / len(rewards) for rewards in scored if rewards]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None


def estimate_entropy(episodes: Sequence[Episode]) -> dict[str, float]:
    """Estimate the mean entropy of the distributions that tokens were sampled from, in nats: the mean of -log p of the sampled tokens.

    It needs no pass over the vocabulary and counts the tokens of every episode, also of those without a gradient. An algorithm that
    computes the exact entropy replaces it.
    """
    sampled = [np.asarray([*compress(e.logprobs, e.action_mask)]) for e in episodes if e.policy_version >= 0]
    count = sum(map(len, sampled))
    return {"entropy": -math.fsum(float(part.sum()) for part in sampled) / count} if count else {}


def compute_repetition(episodes: Sequence[Episode]) -> float:
    """Compute the share of n-grams of four tokens that an answer has said before, as the mean over answers of at least 16 tokens."""
    shares = []
    for episode in episodes:
        tokens = [*compress(episode.tokens, episode.action_mask)]  # an array of a short list costs more than the list
        if len(tokens) >= 4 * NGRAM:
            said = np.asarray(tokens, dtype=np.uint64)
            grams = said[: 1 - NGRAM].copy()
            for k in range(1, NGRAM):
                grams = grams * HASH_FACTOR + said[k : len(said) - NGRAM + 1 + k]  # wraps around; a collision changes little
            shares.append(1 - len(set(grams.tolist())) / len(grams))
    return math.fsum(shares) / len(shares) if shares else 0.0


def drop_baselines_and_canaries(groups: Sequence[Group]) -> list[Episode]:
    """Return the episodes that metrics count: all except baselines and canaries."""
    return [episode for group in groups for episode in group if not episode.is_auxiliary]


def compute_session_timing_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Return the times of tools and sessions, and the maximum number of open sessions."""
    asked = {"time/sampler_idle": batch.timing.sampler_idle_s, "rollout/max_open_sessions": float(batch.timing.max_open_sessions)}
    return compute_tool_time_metrics(drop_baselines_and_canaries(batch.all_groups)) | (asked if batch.timing.sampling_s else {})


def compute_token_staleness_metrics(groups: Sequence[Group], step: int, max_staleness: int) -> dict[str, float]:
    """Compute a histogram of token staleness in steps, with at least `max_staleness` + 1 bins, and its mean."""
    tokens: Counter[int] = Counter()
    for episode in (episode for group in groups for episode in group):
        for version, count in episode.meta.get("versions") or [[episode.policy_version, episode.num_policy_tokens]]:
            tokens[step - version] += count
    mean = sum(age * count for age, count in tokens.items()) / max(1, tokens.total())
    return {f"staleness/{age}": float(tokens[age]) for age in range(max([max_staleness, *tokens]) + 1)} | {"staleness/mean": mean}


def _compute_component_metrics(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Compute the mean of each verdict component, and the correlation of a learned reward with the true one if both exist."""
    parts = [e.verdict.components for e in episodes if e.is_scored and e.verdict is not None]
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    row: dict[str, float | None] = {f"rewards/{name}/mean": math.fsum(part[name] for part in parts) / len(parts) for name in names}
    if {"learned", "true"} <= set(names):
        learned, true = ([part[name] for part in parts] for name in ("learned", "true"))
        varied = len(set(learned)) > 1 and len(set(true)) > 1
        row["rewards/learned_true_correlation"] = statistics.correlation(learned, true) if varied else None
    return row
