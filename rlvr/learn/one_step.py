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
from rlvr.learn.agreement import hold
from rlvr.learn.ahead import Ahead
from rlvr.learn.collect import Harvest, collect, collect_for_all, tokens_of
from rlvr.learn.crew import Crew
from rlvr.learn.held_out import accuracy, member_rewards
from rlvr.learn.processes import share, together
from rlvr.learn.questions.dynamic import Group
from rlvr.learn.questions.honeypots import paid
from rlvr.learn.update.learner import Learner
from rlvr.model.honesty import experts
from rlvr.runs.runlog import Learned, RunLog
from rlvr.runs.tally import talk_metrics, tool_seconds


def one_step(crew: Crew, run: RunLog, step: int, ahead: Ahead | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one step; return its metrics and its times."""
    began = time.perf_counter()
    fresh = collect_for_all if crew.rollout.shared else collect
    harvest = fresh(crew, step, version=step) if ahead is None else ahead.next(step)
    if ahead is None:
        crew.sampler.rest()
    sampled = time.perf_counter()
    metrics = crew.learner.update(share(crew.accelerator, harvest.groups))
    return concluded(crew, run, step, harvest, metrics, (began, sampled, time.perf_counter()), ahead)


def concluded(
    crew: Crew, run: RunLog, step: int, harvest: Harvest, metrics: dict[str, float], clock: tuple[float, float, float], ahead: Ahead | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Finish a step after the update: check its metrics, send the new weights to the sampler, and write the logs."""
    rare = experts(crew.model) or crew.sampling.top_k or crew.sampling.top_p < 1
    hold(metrics, crew.limit, steady=not rare)
    every, last = crew.config.eval.every, step + 1 == crew.config.train.steps
    judged = bool(every) and (step + 1) % every == 0
    if ahead is not None and (judged or last):
        ahead.settle()  # the sampler is about to need the newest weights
    if ahead is None or judged or last:
        crew.hand_over(step + 1)
    row: dict[str, Any] = {"step": step + 1, **sampled_metrics(harvest.everything), **conserved(metrics, harvest), **harvest.figures}
    if crew.environment.members:
        row |= member_rewards(crew.environment.members, sampled_from(harvest.everything))
    if crew.mdp.environment.max_turns > 1:
        row |= talk_metrics(sampled_from(harvest.everything))
    if crew.config.rollout.stale:
        row |= staleness(harvest.everything, step, crew.config.rollout.max_staleness)
    if judged:
        row["eval/accuracy"] = accuracy(crew)
    began, sampled, updated, ended = (*clock, time.perf_counter())
    times = {
        "step": step + 1,
        "step_time": ended - began,
        "time/wait_for_batch": sampled - began,
        "time/sample": harvest.timing.sampling,
        "time/verify_waited": harvest.timing.waiting,
        "time/verify": harvest.timing.verifying,
        "verify_hidden": harvest.timing.hidden,
        "time/update": updated - sampled,
        "tokens_per_second": tokens_of(harvest.everything) / (ended - began),
    }
    times |= crew.rollout.measured(times)
    if crew.mdp.worlds:
        times |= session_times(harvest)
    if crew.config.log.episodes:
        learned = together(crew.accelerator, lambda: made_of_episodes(crew.learner))
        nothing = [[((), None) for _ in group] for group in harvest.everything[len(harvest.groups) :]]
        run.episodes(step + 1, harvest.everything, [*learned, *nothing])
    if "honeypot" in harvest.dropped:
        run.honeypots(step + 1, paid(harvest.dropped["honeypot"]))
    run.metrics(row, times)  # last, so that a step with a metrics line has all its episodes even if the run is killed
    return row, times


def made_of_episodes(learner: Learner) -> list[list[Learned]]:
    """Return the advantages and log ratios of each episode in the last update, by group."""
    by_group = zip(learner.advantages, learner.log_ratios, strict=True)
    return [list(zip(advantages, ratios, strict=True)) for advantages, ratios in by_group]


def conserved(metrics: dict[str, float], harvest: Harvest) -> dict[str, float]:
    """Add dropped groups to the learner's token counts, and check sampled = trained + masked + dropped."""
    whole = dict(metrics)
    for reason, groups in harvest.dropped.items():
        if tokens := tokens_of(groups):
            whole[f"tokens/dropped_{reason}"] = float(tokens)
            whole["tokens/dropped"] += tokens
            whole["tokens/sampled"] += tokens
    counted = whole["tokens/trained"] + whole["tokens/masked"] + whole["tokens/dropped"]
    seen, sampled = whole["tokens/sampled"], tokens_of(harvest.everything)
    if not sampled == seen == counted:
        raise RlvrError(f"tokens are not conserved: {sampled} sampled, {seen:g} trained on or dropped, {counted:g} accounted for")
    return whole


def sampled_metrics(groups: list[Group]) -> dict[str, float | None]:
    """Compute metrics of all sampled episodes, including dropped ones; the reward covers only scored episodes."""
    everyone = sampled_from(groups)
    rewards = [episode.reward for episode in everyone if episode.scored]
    lengths = [episode.length for episode in everyone]
    mean = sum(rewards) / len(rewards) if rewards else None
    spread = (sum((r - mean) ** 2 for r in rewards) / max(len(rewards) - 1, 1)) ** 0.5 if mean is not None else None
    return parts_metrics(everyone) | {
        "reward": mean,
        "reward_std": spread,
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": sum(episode.cut_off for episode in everyone) / len(everyone),
        "unscored": len(everyone) - len(rewards),
        "num_tokens": sum(lengths),
    }


def sampled_from(groups: Sequence[Group]) -> list[Episode]:
    """Return the episodes that metrics count: all except baselines and canaries."""
    return [episode for group in groups for episode in group if not episode.aside]


def session_times(harvest: Harvest) -> dict[str, float]:
    """Return the times of tools and sessions, and the maximum number of open sessions."""
    asked = {"rollout/sampler_idle": harvest.timing.idle, "rollout/open_sessions": float(harvest.timing.open)}
    return tool_seconds(sampled_from(harvest.everything)) | (asked if harvest.timing.sampling else {})


def staleness(groups: Sequence[Group], step: int, most: int) -> dict[str, float]:
    """Compute a histogram of token staleness in steps, with at least `most` bins, and its mean."""
    tokens: Counter[int] = Counter()
    for episode in (episode for group in groups for episode in group):
        for version, count in episode.meta.get("versions") or [[episode.policy_version, episode.length]]:
            tokens[step - version] += count
    mean = sum(age * count for age, count in tokens.items()) / max(1, tokens.total())
    return {f"staleness/{age}": float(tokens[age]) for age in range(max([most, *tokens]) + 1)} | {"staleness/mean": mean}


def parts_metrics(everyone: Sequence[Episode]) -> dict[str, float | None]:
    """Compute the mean of each verdict component, and the correlation of a learned reward with the true one if both exist."""
    parts = [e.verdict.parts for e in everyone if e.scored and e.verdict is not None]
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    row: dict[str, float | None] = {f"rewards/{name}/mean": math.fsum(part[name] for part in parts) / len(parts) for name in names}
    if {"learned", "true"} <= set(names):
        learned, true = ([part[name] for part in parts] for name in ("learned", "true"))
        varied = len(set(learned)) > 1 and len(set(true)) > 1
        row["rewards/correlation"] = statistics.correlation(learned, true) if varied else None
    return row
