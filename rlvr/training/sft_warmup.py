"""SFT warmup: supervised steps on gold solutions, so that some of the first completions are right."""

from __future__ import annotations

import copy
from dataclasses import replace

from rlvr.config.config import SFTWarmupConfig
from rlvr.registry.plugins import build
from rlvr.runs.progress import ProgressReporter
from rlvr.training import sampler_mismatch
from rlvr.training.components import Components
from rlvr.training.held_out import evaluate_split
from rlvr.training.processes import get_local_shard
from rlvr.training.task_sampling.offline_dataset import tokenize_gold
from rlvr.training.task_sampling.task_order import WARMUP_PURPOSE, TaskOrder
from rlvr.training.update.fsdp import MainProcessWeightLoader
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.policy_weights import ShardedWeights

EVAL_INTERVAL_STEPS, NUM_EVAL_TASKS = 5, 400
"""The evaluation interval in steps during the warmup, and the number of evaluated tasks."""


def run_sft_warmup(components: Components, settings: SFTWarmupConfig, progress: ProgressReporter) -> Components:
    """Train on the gold solutions of training tasks (never held-out ones); return the components with the trained model."""
    blank = copy.deepcopy(components.model) if components.weight_loader is not None else None
    learner = _train_sft_warmup(components, settings, progress)
    if isinstance(weights := learner.weights, ShardedWeights):  # the next learner shards a model of its own
        trained = replace(components, model=blank, weight_loader=MainProcessWeightLoader(weights.gather_on_main()))
    else:
        trained = replace(components, model=weights.gather_model())
    del learner, weights
    components.accelerator.free_memory()
    return trained


def _train_sft_warmup(components: Components, settings: SFTWarmupConfig, progress: ProgressReporter) -> Learner:
    """Train the SFT warmup, and return its learner."""
    schedule = TaskOrder(components.environment, "train", seed=components.config.seed, purpose=WARMUP_PURPOSE)
    learner = Learner(
        components.model,
        build("algorithm", "grpo"),  # supervised steps do not use it; one with a critic would have an untrained head
        OptimizationSettings(
            learning_rate=settings.learning_rate,
            max_tokens_per_microbatch=components.config.train.max_tokens_per_microbatch,  # the same memory limit as in training
            gradient_checkpointing=components.config.train.gradient_checkpointing,
        ),
        accelerator=components.accelerator,
        weight_loader=components.weight_loader,
        total_steps=settings.max_steps,
        seed=components.config.seed,
        max_new_tokens=components.mdp.max_new_tokens,
        fp32_head=components.config.model.fp32_head,
    )
    if learner.is_sharded:
        sampler_mismatch.check_sharded_model_numerics(learner, max_length=components.mdp.max_length)
    numbers: dict[str, float | str] = {}
    cut = 0
    for step in range(settings.max_steps):
        tasks = get_local_shard(components.accelerator, schedule.load_tasks(step * settings.batch_size, settings.batch_size))
        rows = [tokenize_gold(components.mdp, task) for _, task in tasks]
        numbers["loss"] = learner.train_supervised(rows)["loss"]
        if cut := cut + sum(tokens[-1] not in components.mdp.tokenizer.stop_ids for tokens, _ in rows):
            numbers["solutions cut at rollout.max_new_tokens"] = f"{cut}"
        progress.advance(numbers)
        if settings.target_accuracy < 1 and (step + 1) % EVAL_INTERVAL_STEPS == 0:
            components.sampler.update_weights(learner.weights, 0)
            numbers["accuracy"] = skill = (
                evaluate_split(components, "train", NUM_EVAL_TASKS) or 0.0
            )  # the held-out tasks are never used here
            components.sampler.sleep()
            if skill >= settings.target_accuracy:
                break
    return learner
