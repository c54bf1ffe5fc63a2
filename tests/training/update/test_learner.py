"""The learner: a step moves what it should, leaves out what it must, and accounts for every token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError, RlvrError
from rlvr.models.device_defaults import CPU_DEFAULTS
from rlvr.registry.plugins import build
from rlvr.task import Fault, Verdict
from rlvr.training.update import fsdp as sharded
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.learning import episode, learn, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learner(name: str = "grpo", *, model: Any = None, budget: Any = 8192, parts: int = 1, seed: int = 0, **settings: Any) -> Learner:
    optimization = OptimizationSettings(learning_rate=1e-2, minibatches_per_step=parts, max_tokens_per_microbatch=budget)
    return Learner(
        model or tiny_model(), build("algorithm", name, **settings), optimization, accelerator=Accelerator(cpu=True), total_steps=10,
        max_new_tokens=4, seed=seed,
    )  # fmt: skip


def group(rewards: list[float | None], name: str = "g") -> list[Episode]:
    rows = []
    for k, reward in enumerate(rewards):
        said = [(3 * k + j) % 8 for j in range(1 + k % 4)]
        e = episode([1, 2], said, [-2.0] * len(said), reward or 0.0, name)
        if reward is None:
            e = Episode(
                e.task_id, e.group, e.tokens, e.action_mask, e.logprobs, [0.0] * len(e.tokens), StopReason.TERMINATED,
                verdict=Verdict(None, "the engine is gone", fault=Fault.INFRA),
            )  # fmt: skip
        rows.append(e)
    return rows


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in learner.policy.parameters()])


def test_a_wrapper_that_casts_log_probabilities_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = sharded.prepare_with_accelerate

    def casting(policy: Any, optimizer: Any, accelerator: Any) -> tuple[Any, Any]:
        policy.register_forward_hook(lambda module, given, scores: scores._replace(logprobs=scores.logprobs.bfloat16()))
        return prepared(policy, optimizer, accelerator)

    monkeypatch.setattr(sharded, "prepare_with_accelerate", casting)
    with pytest.raises(RlvrError, match=r"torch\.bfloat16, and must be float32"):
        learner()


def test_a_step_moves_the_weights_and_reports() -> None:
    subject = learner()
    before = weights(subject)
    metrics = subject.update([group([1.0, 0.0, 1.0, 0.0])])
    assert not torch.equal(before, weights(subject))
    assert metrics["grad_norm"] > 0 and metrics["step/skipped"] == 0
    assert all(math.isfinite(v) for v in metrics.values())


def test_a_learner_takes_what_its_device_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused AdamW without temporary tensors, and the tokens of a forward pass, by device; here that of an accelerator is the CPU's."""
    model = tiny_model()
    assert learner(model=model).optimizer.param_groups[0]["fused"] is None
    monkeypatch.setattr("rlvr.models.device_defaults.CPU_DEFAULTS", replace(CPU_DEFAULTS, fused_optimizer=True, tokens_per_microbatch=7))
    subject = learner(model=model, budget="auto")
    assert subject.optimizer.param_groups[0]["fused"] is True and subject.max_tokens_per_microbatch == 7
    before = weights(subject)
    subject.update([group([1.0, 0.0])])
    assert not torch.equal(before, weights(subject))


def test_unscored_episodes_are_left_out_and_never_read_as_zero() -> None:
    with_none, without = learner(), learner()
    with_none.update([group([1.0, 0.0, 1.0, 0.0, None, None])])
    metrics = without.update([group([1.0, 0.0, 1.0, 0.0])])
    assert torch.equal(weights(with_none), weights(without))
    assert metrics["tokens/sampled"] == metrics["tokens/trained"]


def test_every_sampled_token_is_accounted_for() -> None:
    metrics = learner().update([group([1.0, 0.0, None, 0.2]), group([1.0, 1.0, 1.0]), group([None, None])])
    assert metrics["tokens/sampled"] == 10 + 6 + 3
    assert metrics["tokens/dropped_unscored"] == 3 + 3 and metrics["tokens/dropped_zero_advantage"] == 6
    assert metrics["tokens/sampled"] == metrics["tokens/trained"] + metrics["tokens/masked"] + metrics["tokens/dropped"]
    assert metrics["frac_reward_zero_std"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("groups", [[[0.5, 0.5, 0.5]], [[0.95] * 7], [[1.0]], [[None, None]], [[1.0, None]], []])
def test_a_step_that_teaches_nothing_is_skipped_and_says_so(groups: list[list[float | None]]) -> None:
    subject = learner()
    before = weights(subject)
    metrics = subject.update([group(g, f"g{k}") for k, g in enumerate(groups)])
    assert metrics["step/skipped"] == 1 and metrics["optimizer_steps"] == 0
    assert torch.equal(before, weights(subject)) and not subject.optimizer.state_dict()["state"]
    assert all(math.isfinite(v) for v in metrics.values())


def test_no_reference_and_no_old_pass_where_nothing_needs_them() -> None:
    calls = []
    for name, settings, parts, passes in (
        ("grpo", {}, 1, 1),
        ("grpo", {}, 2, 3),
        ("grpo", {"beta": 0.1}, 1, 1),
        ("grpo", {"num_iterations": 2}, 1, 3),
    ):
        expected = passes + 1  # the last one, on a few rows, measures how far the update moved the policy
        subject = learner(name, parts=parts, **settings)
        forward, count = subject.policy.forward, [0]
        subject.policy.forward = lambda *a, forward=forward, count=count, **k: (count.__setitem__(0, count[0] + 1), forward(*a, **k))[1]
        subject.update([group([1.0, 0.0, 0.5, 0.2])])
        assert (subject.reference is None) == (not settings.get("beta"))
        calls.append((count[0], expected))
    assert all(got == wanted for got, wanted in calls), calls


def test_state_brings_a_learner_back_to_the_bit() -> None:
    data = [group([1.0, 0.0, 0.5, 0.2], f"g{k}") for k in range(3)]
    whole = learner("grpo", parts=2, beta=0.1, kl_target=0.5)
    for _ in range(4):
        last = whole.update(data)
    first = learner("grpo", parts=2, beta=0.1, kl_target=0.5)
    for _ in range(2):
        first.update(data)
    model = tiny_model(seed=5)
    second = learner("grpo", model=model, parts=2, seed=99, beta=0.1, kl_target=0.5)
    model.load_state_dict(first.policy.model.state_dict())
    second.frozen_models = first.frozen_models  # it is frozen: the run folder holds it once, and no checkpoint does
    assert first.state_dict()["reference"] is None
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        again = second.update(data)
    assert torch.equal(weights(whole), weights(second)) and last == again


def test_in_bfloat16_a_policy_that_has_not_moved_has_no_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.models.device_defaults.CPU_DEFAULTS", replace(CPU_DEFAULTS, max_head_logits=24))
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        subject = Learner(
            tiny_model(), build("algorithm", "grpo", beta=0.1), OptimizationSettings(learning_rate=1e-2),
            accelerator=Accelerator(cpu=True, mixed_precision="bf16"), total_steps=3,
        )  # fmt: skip
        first, second = (subject.update([group([1.0, 0.0, 0.5, 0.2])]) for _ in range(2))
        assert first["kl"] == 0.0 and first["grad_norm"] > 0 and second["kl"] > 0
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_the_reference_follows_the_policy_where_asked() -> None:
    subject = learner("grpo", beta=0.1, ref_model_sync_steps=2, ref_model_mixup_alpha=1.0)
    assert subject.reference is not None
    for step in range(1, 5):
        subject.update([group([1.0, 0.0, 0.5, 0.2])])
        held = torch.cat([p.flatten() for p in subject.reference.policy.parameters()])
        assert torch.equal(held, weights(subject)) == (step % 2 == 0)


def test_the_reference_moves_by_the_share_that_is_set() -> None:
    subject = learner("grpo", beta=0.1, ref_model_sync_steps=1, ref_model_mixup_alpha=0.25)
    assert subject.reference is not None
    start = torch.cat([p.flatten() for p in subject.reference.policy.parameters()]).clone()
    subject.update([group([1.0, 0.0, 0.5, 0.2])])
    held, moved = torch.cat([p.flatten() for p in subject.reference.policy.parameters()]), weights(subject)
    assert not torch.equal(moved, start)
    assert torch.allclose(held, 0.75 * start + 0.25 * moved, rtol=0, atol=1e-7)
    assert not torch.allclose(held, moved, rtol=0, atol=1e-7)


def test_a_reference_that_is_an_adapters_base_cannot_be_asked_to_follow() -> None:
    model = tiny_model()
    model.disable_adapter = lambda: None  # what marks a model under an adapter
    assert learner("grpo", model=model, beta=0.1).reference.adapted_model is model  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="ref_model_sync_steps=0"):
        learner("grpo", model=model, beta=0.1, ref_model_sync_steps=2)


def test_while_the_critic_is_trained_alone_the_policy_holds_still() -> None:
    subject = learner("ppo", value_pretraining_steps=2, beta=0.0)
    policy = subject.policy
    for step in range(3):
        before = [p.detach().clone() for p in policy.model.parameters()], policy.value.weight.detach().clone()
        metrics = subject.update([group([1.0, 0.0, 0.5, 0.2])])
        still = all(torch.equal(a, b) for a, b in zip(before[0], policy.model.parameters(), strict=True))
        assert still == (step < 2) and not torch.equal(before[1], policy.value.weight) and metrics["grad_norm"] > 0


def test_the_mismatch_is_measured_before_any_step_also_where_the_sampler_is_believed() -> None:
    data = [group([1.0, 0.0, 0.5, 0.2])]
    plain, believed = (learner("grpo", old_from_sampler=believes).update(data) for believes in (False, True))
    keys = [k for k in plain if k.startswith("sampling/") or k == "mismatch_kl"]
    assert len(keys) >= 9 and all(believed[k] == pytest.approx(plain[k]) for k in keys) and plain["mismatch_kl"] > 1e-3
    cut = learner("grpo", parts=2, old_from_sampler=True).update(data)
    assert math.isfinite(cut["mismatch_kl"])


def test_supervision_teaches_the_acted_tokens() -> None:
    subject = learner()
    rows = [([1, 2, 5, 6], [False, False, True, True]), ([2, 1, 7], [False, False, True])]
    losses = [subject.train_supervised(rows)["loss"] for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    with pytest.raises(ConfigError, match="action mask"):
        subject.train_supervised([([1, 2], [False, False])])


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    subject = learner()
    with torch.no_grad():
        subject.policy.model.lm_head.weight[0, 0] = float("nan")
    before = weights(subject)
    metrics = subject.update([group([1.0, 0.0])])
    assert metrics["step/nonfinite_minibatches"] == 1 and torch.equal(before.nan_to_num(), weights(subject).nan_to_num())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "reinforce", "ppo"])
def test_it_learns_the_bandit_and_not_with_the_sign_flipped(name: str) -> None:
    settings: dict[str, Any] = {"beta": 0.0} if name == "ppo" else {}
    assert learn(name, "bandit", steps=40, **settings) > 0.9
    assert learn(name, "bandit", steps=40, sign=-1.0, **settings) < 0.3
