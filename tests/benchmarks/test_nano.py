"""`benchmarks/nano.py`, GRPO in one file, against the learner: the same answers must give the same gradient."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from benchmarks import nano
from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build
from rlvr.task import Verdict
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.gradients import apart, gradient


def as_episode(answer: nano.Answer, logs: list[float], group: str) -> Episode:
    n, t = len(answer.prompt), len(answer.tokens)
    return Episode(
        group, group, [*answer.prompt, *answer.tokens], [False] * n + [True] * t, [0.0] * n + logs, [0.0] * (n + t - 1) + [answer.reward],
        StopReason.TERMINATED, verdict=Verdict(answer.reward, ""),
    )  # fmt: skip


def collected(model: Any) -> list[list[nano.Answer]]:
    return nano.collect(model, random.Random(3), torch.Generator().manual_seed(3), prompts=4, answers=6, length=3)


def whole(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("budget", [8192, 40])
@pytest.mark.parametrize("stale", [False, True])
def test_the_gradient_of_the_learner_is_that_of_the_single_file(budget: int, stale: bool) -> None:
    """`is_off_policy`: the answers come from other weights, so that the ratios are not 1 and some are clipped."""
    sampler, model = nano.make_model(1), nano.make_model(2 if stale else 1)
    groups = collected(sampler)
    ids, acted = nano.pad([a for group in groups for a in group])
    with torch.no_grad():
        old = nano.logprobs(sampler, ids)
    nano.grpo_loss(model, groups, old).backward()
    expected = whole(model)
    logs = [row[on].tolist() for row, on in zip(old, acted[:, 1:], strict=True)]
    episodes, rows = [], iter(logs)
    for g, group in enumerate(groups):
        episodes.append([as_episode(answer, next(rows), f"g{g}") for answer in group])
    learner = Learner(
        model, build("algorithm", "grpo", old_from_sampler=True), OptimizationSettings(max_tokens_per_microbatch=budget),
        accelerator=Accelerator(cpu=True), total_steps=1,
    )  # fmt: skip
    model.zero_grad()
    assert apart(gradient(learner, episodes), expected) < 1e-6
    assert len({len(a.tokens) for group in groups for a in group}) > 1 and expected.norm() > 1e-3


def test_it_learns() -> None:
    history = nano.train(25, prompts=6, answers=12, length=1)
    assert sum(history[-5:]) / 5 > sum(history[:5]) / 5 + 0.2
