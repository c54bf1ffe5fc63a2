"""Held-out tasks: evaluate the policy, and check that none was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr.contracts import SamplingParams
from rlvr.episode import Episode
from rlvr.evaluation.evaluate import compute_mean_reward, count_available_tasks, make_eval_requests
from rlvr.evaluation.statistics import estimate_mean
from rlvr.evaluation.summary import MAX_UNSCORED_FRACTION
from rlvr.task import Task
from rlvr.training.components import Components
from rlvr.training.processes import map_sharded
from rlvr.training.task_sampling.task_order import WARMUP_PURPOSE, TaskOrder


def compute_held_out_score(episodes: Sequence[Episode]) -> float | None:
    """Return the mean score on the held-out tasks; None if too many of them have no score.

    Too many are more than 2 %, because the others may be the easy ones.
    """
    return compute_mean_reward(episodes) if count_unscored(episodes) <= MAX_UNSCORED_FRACTION * len(episodes) else None


def count_unscored(episodes: Sequence[Episode]) -> int:
    """Count the episodes without a score."""
    return sum(not episode.is_scored for episode in episodes)


def has_partial_scores(episodes: Sequence[Episode]) -> bool:
    """Return whether any score lies between wrong (0) and right (1), so that the mean is no accuracy."""
    return any(episode.is_scored and episode.reward not in (0.0, 1.0) for episode in episodes)


def sample_held_out(components: Components) -> list[Episode]:
    """Sample a completion of each held-out task, over all processes."""
    settings = components.config.eval
    if not settings.tasks:
        return []
    return _sample_split(components, settings.split, settings.tasks, settings.temperature)


def estimate_score_interval(components: Components, episodes: Sequence[Episode]) -> list[float] | None:
    """Estimate the 95 % interval of the mean score; None without scores. Tasks with the same question count as one."""
    questions = [components.environment.task(components.config.eval.split, index).question for index in range(len(episodes))]
    found = estimate_mean([episode.reward if episode.is_scored else None for episode in episodes], questions)
    return [found.low, found.high] if found and math.isfinite(found.low) else None


def compute_mean_scores_by_env(components: Components, episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Return the mean score on each environment of a mixture; empty for other environments."""
    return {
        name: compute_mean_reward([e for e in episodes if parse_sub_environment(e.task_id) == name])
        for name in components.environment.sub_environments
    }


def evaluate_split(components: Components, split: str, num_tasks: int, temperature: float = 0.0) -> float | None:
    """Return the mean score on the first tasks of a split."""
    return compute_mean_reward(_sample_split(components, split, num_tasks, temperature))


def build_sub_environment_metrics(names: Sequence[str], episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Return the mean reward on each environment of a mixture, as metrics of a step."""
    return {f"reward/{name}": compute_mean_reward([e for e in episodes if parse_sub_environment(e.task_id) == name]) for name in names}


def parse_sub_environment(task_id: str) -> str:
    """Return the environment of a mixture that a task is from.

    >>> parse_sub_environment("mixture/sums/arithmetic/train/7")
    'sums'
    """
    return task_id.split("/")[1]


def _sample_split(components: Components, split: str, num_tasks: int, temperature: float) -> list[Episode]:
    """Sample a completion of each of the first tasks of a split, over all processes."""
    sampling = SamplingParams(temperature, stop_ids=components.tokenizer.stop_ids)
    asked = make_eval_requests(components.environment, split, num_tasks, 1, components.config.seed)
    return map_sharded(
        components.accelerator,
        asked,
        lambda mine: components.rollout.collect(mine, sampling),
        on_main_only=components.rollout.main_process_samples,
    )


def count_held_out_and_contaminated(components: Components) -> tuple[int, int]:
    """Count the different held-out tasks, and those of them that were trained on."""
    config, environment = components.config, components.environment
    if not config.eval.tasks:
        return 0, 0
    count = count_available_tasks(environment, config.eval.split, config.eval.tasks)
    held_out = {_get_task_identity(environment.task(config.eval.split, index)) for index in range(count)}
    questions = {question for question, _ in held_out}
    passed = [(components.task_sampler.task_order, components.task_sampler.position)]
    if config.sft_warmup:
        passed.append(
            (
                TaskOrder(environment, "train", seed=config.seed, purpose=WARMUP_PURPOSE),
                config.sft_warmup.max_steps * config.sft_warmup.batch_size,
            )
        )
    indices = {schedule.get_index(position) for schedule, end in passed for position in range(end)}  # each task is made once
    given = (environment.task("train", index) for index in sorted(indices))
    trained = {_get_task_identity(task) for task in given if task.question in questions}
    if components.offline_dataset is not None:
        trained |= {_get_task_identity(task) for task in components.offline_dataset.load_tasks(components.mdp)}
    return len(held_out), len(held_out & trained)


def _get_task_identity(task: Task) -> tuple[str, str]:
    """Return the identity of a task: its question and its reference, because many tasks can share one question."""
    return task.question, repr(task.reference)
