"""Turns in the learner: what a mask leaves out of the gradient and of the counts, and that every token is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings

from rlvr.episode import Episode
from rlvr.registry.plugins import build
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.algorithms.test_turns import batches, conversation
from tests.fixtures.gradients import apart, gradient
from tests.fixtures.learning import tiny_model

COUNTS = ("sampled", "trained", "masked", "dropped_zero_advantage", "dropped_unscored")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learner(name: str, **settings_: object) -> Learner:
    algorithm, optimization = build("algorithm", name, **settings_), OptimizationSettings(learning_rate=1e-3)
    return Learner(tiny_model(vocabulary=10), algorithm, optimization, accelerator=Accelerator(cpu=True), total_steps=3, max_new_tokens=9)


def with_malformed() -> list[Episode]:
    """Three conversations; a call of the second turn of the first, and all of the last, could not be read."""
    turns = [([], [0, 1], 0.0), ([5], [1, 0, 1], 0.25), ([6], [1], 0.5)]
    return [
        conversation(turns, malformed_turns=[1]),
        conversation([([], [1], 0.0), ([5], [0, 0], 0.0)]),
        conversation([([], [1, 1], 0.25)], malformed_turns=[0]),
    ]


def unsaid(e: Episode) -> Episode:
    """The same episode as if the environment had written the malformed turns."""
    acted = list(e.action_mask)
    for start, end in e.malformed_turn_spans:
        acted[start:end] = [False] * (end - start)
    rewards = [0.0] * len(acted)
    if any(acted):
        rewards[max(t for t, own in enumerate(acted) if own)] = e.reward
    return replace(e, action_mask=acted, rewards=rewards, meta={})


@pytest.mark.parametrize(
    ("name", "settings_"), [("grpo", {}), ("dapo", {}), ("gspo", {}), ("grpo", {"beta": 0.1}), ("dr_grpo", {}), ("rloo", {"beta": 0.0})]
)
def test_a_masked_turn_is_for_the_gradient_what_the_environment_wrote(name: str, settings_: dict[str, object]) -> None:
    group = with_malformed()
    masked = gradient(learner(name, mask_malformed_calls=True, **settings_), [group])
    others = learner(name, **settings_)
    algorithm = build("algorithm", name, **settings_)
    [rows] = algorithm.compute_advantages([group])
    alone = [[0.0 if not own else max(row, key=abs) for own in unsaid(e).action_mask] for e, row in zip(group, rows, strict=True)]
    others.algorithm.compute_advantages = lambda *_, **__: [alone]  # type: ignore[method-assign] # the mean is over all three in both
    assert apart(masked, gradient(others, [[unsaid(e) for e in group]])) < 1e-6
    assert apart(masked, gradient(learner(name, **settings_), [group])) > 1e-2


def test_the_tokens_of_masked_turns_are_counted_as_masked() -> None:
    group = with_malformed()
    for name in ("grpo", "grpo_turns", "gigpo"):
        metrics = learner(name, mask_malformed_calls=True).update([group])
        assert [metrics[f"tokens/{k}"] for k in ("sampled", "masked")] == [11.0, 3.0 + 2.0]
        assert metrics["tokens/sampled"] == metrics["tokens/trained"] + metrics["tokens/masked"] + metrics["tokens/dropped"]


def test_a_step_whose_turns_are_all_malformed_changes_nothing() -> None:
    group = [conversation([([], [k], float(k))], malformed_turns=[0]) for k in (0, 1)]
    for settings_ in ({}, {"beta": 0.1}, {"entropy_coef": 0.1}):
        subject = learner("grpo", mask_malformed_calls=True, **settings_)
        before = [p.detach().clone() for p in subject.policy.parameters()]
        metrics = subject.update([group])
        assert metrics["step/skipped"] == 1.0 and metrics["tokens/masked"] == 2.0
        assert all(torch.equal(a, b) for a, b in zip(before, subject.policy.parameters(), strict=True))


@pytest.mark.parametrize("name", ["grpo_turns", "gigpo"])
@settings(max_examples=15, deadline=None)
@given(groups=batches())
def test_random_groups_keep_every_token_and_stay_finite(name: str, groups: list[list[Episode]]) -> None:
    subject = learner(name, mask_malformed_calls=True)
    metrics = subject.update(groups)
    sampled, trained, masked, zero, unscored = (metrics[f"tokens/{k}"] for k in COUNTS)
    everyone = [e for group in groups for e in group]
    assert sampled == sum(e.num_policy_tokens for e in everyone) == trained + masked + zero + unscored
    assert unscored == sum(e.num_policy_tokens for e in everyone if not e.is_scored)
    assert masked == sum(end - start for e in everyone if e.is_scored for start, end in e.malformed_turn_spans)
    assert all(torch.isfinite(p).all() for p in subject.policy.parameters())
