"""One training step: from tasks to episodes, from episodes to new weights, and the log lines.

A step depends only on the weights, the states of learner and task sampler, the prefetched batches, the seed and the step number.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlvr.episode import Episode
from rlvr.errors import RlvrError
from rlvr.models.numerics_check import has_experts
from rlvr.runs.conversation_stats import compute_conversation_metrics, compute_tool_times
from rlvr.runs.run_log import RunLog, TokenDiagnostics
from rlvr.training.collect import RolloutBatch, collect_batch, collect_batch_on_main, count_tokens
from rlvr.training.held_out import build_sub_environment_metrics, evaluate_held_out
from rlvr.training.processes import all_gather, local_shard
from rlvr.training.rollout_prefetcher import RolloutPrefetcher
from rlvr.training.sampler_mismatch import check_logprob_mismatch
from rlvr.training.task_sampling.canary import find_rewarded
from rlvr.training.task_sampling.dynamic_sampling import Group
from rlvr.training.trainer import Trainer
from rlvr.training.update.learner import Learner


def run_training_step(
    crew: Trainer, run: RunLog, step: int, prefetcher: RolloutPrefetcher | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one step; return its metrics and its times."""
    began = time.perf_counter()
    fresh = collect_batch_on_main if crew.rollout.main_process_samples else collect_batch
    harvest = fresh(crew, step, version=step) if prefetcher is None else prefetcher.next_batch(step)
    if prefetcher is None:
        crew.sampler.sleep()
    sampled = time.perf_counter()
    metrics = crew.learner.update(local_shard(crew.accelerator, harvest.groups))
    return finish_step(crew, run, step, harvest, metrics, (began, sampled, time.perf_counter()), prefetcher)


def finish_step(
    crew: Trainer,
    run: RunLog,
    step: int,
    batch: RolloutBatch,
    metrics: dict[str, float],
    timestamps: tuple[float, float, float],
    prefetcher: RolloutPrefetcher | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Finish a step after the update: check its metrics, send the new weights to the sampler, and write the logs."""
    rare = has_experts(crew.model) or crew.sampling.top_k or crew.sampling.top_p < 1
    check_logprob_mismatch(metrics, crew.max_logprob_mismatch, check_every_token=not rare)
    every, last = crew.config.eval.every, step + 1 == crew.config.train.steps
    judged = bool(every) and (step + 1) % every == 0
    if prefetcher is not None and (judged or last):
        prefetcher.drain()  # the sampler is about to need the newest weights
    if prefetcher is None or judged or last:
        crew.sync_weights(step + 1)
    row: dict[str, Any] = {
        "step": step + 1,
        **compute_sampling_metrics(batch.all_groups),
        **check_token_accounting(metrics, batch),
        **batch.metrics,
    }
    if crew.environment.sub_environments:
        row |= build_sub_environment_metrics(crew.environment.sub_environments, select_counted_episodes(batch.all_groups))
    if crew.mdp.environment.max_turns > 1:
        row |= compute_conversation_metrics(select_counted_episodes(batch.all_groups))
    if crew.config.rollout.is_off_policy:
        row |= compute_staleness_metrics(batch.all_groups, step, crew.config.rollout.max_staleness)
    if judged:
        row["eval/accuracy"] = evaluate_held_out(crew)
    began, sampled, updated, ended = (*timestamps, time.perf_counter())
    times = {
        "step": step + 1,
        "step_time": ended - began,
        "time/wait_for_batch": sampled - began,
        "time/sample": batch.timing.sampling_s,
        "time/verify_wait": batch.timing.verify_tail_s,
        "time/verify": batch.timing.total_verify_s,
        "verify_hidden": batch.timing.hidden_fraction,
        "time/update": updated - sampled,
        "tokens_per_second": count_tokens(batch.all_groups) / (ended - began),
    }
    times |= crew.rollout.compute_extra_metrics(times)
    if crew.mdp.has_sessions:
        times |= compute_session_times(batch)
    if crew.config.log.episodes:
        learned = all_gather(crew.accelerator, lambda: get_token_diagnostics(crew.learner))
        nothing = [[((), None) for _ in group] for group in batch.all_groups[len(batch.groups) :]]
        run.log_episodes(step + 1, batch.all_groups, [*learned, *nothing])
    if "canary" in batch.dropped:
        run.log_rewarded_canaries(step + 1, find_rewarded(batch.dropped["canary"]))
    run.log_metrics(row, times)  # last, so that a step with a metrics line has all its episodes even if the run is killed
    return row, times


def get_token_diagnostics(learner: Learner) -> list[list[TokenDiagnostics]]:
    """Return the advantages and log ratios of each episode in the last update, by group."""
    by_group = zip(learner.advantages, learner.log_ratios, strict=True)
    return [list(zip(advantages, ratios, strict=True)) for advantages, ratios in by_group]


def check_token_accounting(metrics: dict[str, float], batch: RolloutBatch) -> dict[str, float]:
    """Add dropped groups to the learner's token counts, and check sampled = trained + masked + dropped."""
    whole = dict(metrics)
    for reason, groups in batch.dropped.items():
        if tokens := count_tokens(groups):
            whole[f"tokens/dropped_{reason}"] = float(tokens)
            whole["tokens/dropped"] += tokens
            whole["tokens/sampled"] += tokens
    counted = whole["tokens/trained"] + whole["tokens/masked"] + whole["tokens/dropped"]
    seen, sampled = whole["tokens/sampled"], count_tokens(batch.all_groups)
    if not sampled == seen == counted:
        raise RlvrError(f"tokens are not conserved: {sampled} sampled, {seen:g} trained on or dropped, {counted:g} accounted for")
    return whole


def compute_sampling_metrics(groups: list[Group]) -> dict[str, float | None]:
    """Compute metrics of all sampled episodes, including dropped ones; the reward covers only scored episodes."""
    everyone = select_counted_episodes(groups)
    rewards = [episode.reward for episode in everyone if episode.is_scored]
    lengths = [episode.num_policy_tokens for episode in everyone]
    mean = sum(rewards) / len(rewards) if rewards else None
    spread = (sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)) ** 0.5 if mean is not None else None
    return compute_component_metrics(everyone) | {
        "reward": mean,
        "reward_std": spread,
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": sum(episode.truncated_mid_turn for episode in everyone) / len(everyone),
        "unscored": len(everyone) - len(rewards),
        "num_tokens": sum(lengths),
    }


def select_counted_episodes(groups: Sequence[Group]) -> list[Episode]:
    """Return the episodes that metrics count: all except baselines and canaries."""
    return [episode for group in groups for episode in group if not episode.auxiliary]


def compute_session_times(batch: RolloutBatch) -> dict[str, float]:
    """Return the times of tools and sessions, and the maximum number of open sessions."""
    asked = {"rollout/sampler_idle": batch.timing.sampler_idle_s, "rollout/open_sessions": float(batch.timing.max_open_sessions)}
    return compute_tool_times(select_counted_episodes(batch.all_groups)) | (asked if batch.timing.sampling_s else {})


def compute_staleness_metrics(groups: Sequence[Group], step: int, max_staleness: int) -> dict[str, float]:
    """Compute a histogram of token staleness in steps, with at least `most` bins, and its mean."""
    tokens: Counter[int] = Counter()
    for episode in (episode for group in groups for episode in group):
        for version, count in episode.meta.get("versions") or [[episode.policy_version, episode.num_policy_tokens]]:
            tokens[step - version] += count
    mean = sum(age * count for age, count in tokens.items()) / max(1, tokens.total())
    return {f"staleness/{age}": float(tokens[age]) for age in range(max([max_staleness, *tokens]) + 1)} | {"staleness/mean": mean}


def compute_component_metrics(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Compute the mean of each verdict component, and the correlation of a learned reward with the true one if both exist."""
    parts = [e.verdict.components for e in episodes if e.is_scored and e.verdict is not None]
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    row: dict[str, float | None] = {f"rewards/{name}/mean": math.fsum(part[name] for part in parts) / len(parts) for name in names}
    if {"learned", "true"} <= set(names):
        learned, true = ([part[name] for part in parts] for name in ("learned", "true"))
        varied = len(set(learned)) > 1 and len(set(true)) > 1
        row["rewards/correlation"] = statistics.correlation(learned, true) if varied else None
    return row
