"""SFT warmup: supervised steps on gold solutions, so that some of the first completions are right."""

from __future__ import annotations

import copy

from rlvr.config.config import WarmstartConfig
from rlvr.learn import agreement
from rlvr.learn.crew import Crew
from rlvr.learn.held_out import mean_score
from rlvr.learn.processes import share
from rlvr.learn.questions.schedule import Schedule
from rlvr.learn.questions.stored import gold_row
from rlvr.learn.update.handed import Sharded
from rlvr.learn.update.learner import Learner, Optimization
from rlvr.learn.update.sharded import FromMain
from rlvr.plugins.registry import build
from rlvr.runs.progress import Work

LOOK_EVERY, LOOKED_AT = 5, 400
"""The evaluation interval in steps during the warmup, and the number of evaluated tasks."""


def warmstart(crew: Crew, settings: WarmstartConfig, work: Work) -> None:
    """Train on the gold solutions of training tasks (never held-out ones) for a number of steps."""
    blank = copy.deepcopy(crew.model) if crew.fill is not None else None
    learner = taught(crew, settings, work)
    if isinstance(weights := learner.weights, Sharded):  # the next learner shards a model of its own
        crew.model, crew.fill = blank, FromMain(weights.held())
    else:
        crew.model = weights.model()
    del learner, weights
    crew.accelerator.free_memory()


def taught(crew: Crew, settings: WarmstartConfig, work: Work) -> Learner:
    """Train the SFT warmup, and return its learner."""
    schedule = Schedule(crew.environment, "train", seed=crew.config.seed, purpose="warmstart")
    learner = Learner(
        crew.model,
        build("algorithm", "grpo"),  # supervised steps do not use it; one with a critic would have an untrained head
        Optimization(
            learning_rate=settings.learning_rate,
            max_tokens_per_microbatch=crew.config.train.max_tokens_per_microbatch,  # the same memory limit as in training
            gradient_checkpointing=crew.config.train.gradient_checkpointing,
        ),
        accelerator=crew.accelerator,
        fill=crew.fill,
        total_steps=settings.steps,
        seed=crew.config.seed,
        max_completion_length=crew.mdp.max_new_tokens,
        fp32_head=crew.config.model.fp32_head,
    )
    if learner.sharded:
        agreement.trusted_shards(learner, longest=crew.mdp.max_length)
    numbers: dict[str, float | str] = {}
    cut = 0
    for step in range(settings.steps):
        tasks = share(crew.accelerator, schedule.tasks(step * settings.batch_size, settings.batch_size))
        rows = [gold_row(crew.mdp, task) for _, task in tasks]
        numbers["loss"] = learner.supervise(rows)["loss"]
        if cut := cut + sum(tokens[-1] not in crew.mdp.tokenizer.stop_ids for tokens, _ in rows):
            numbers["solutions cut at rollout.max_completion_length"] = f"{cut}"
        work.advance(numbers)
        if settings.until < 1 and (step + 1) % LOOK_EVERY == 0:
            crew.sampler.receive(learner.weights, 0)
            numbers["accuracy"] = skill = mean_score(crew, "train", LOOKED_AT) or 0.0  # the held-out tasks are never used here
            crew.sampler.rest()
            if skill >= settings.until:
                break
    return learner
