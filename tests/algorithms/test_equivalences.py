"""Where two algorithms are the same thing: on the policy's own samples (ratio 1), their gradients must agree to 1e-10."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.contracts.algorithm import LossInputs
from rlvr.episode import Episode
from tests.algorithms.test_credit import said
from tests.fixtures.learning import factory

LENGTHS, REWARDS, L_MAX = (3, 1, 5, 2), (1.0, 0.0, 0.5, 0.0), 6


def members() -> list[Episode]:
    return [said(r, length=n) for n, r in zip(LENGTHS, REWARDS, strict=True)]


def slope(name: str, *, values: Any = None, **overrides: Any) -> Tensor:
    """d loss / d log-probability of every token, on the policy's own samples."""
    algorithm = factory(name)(**overrides)
    zeros = [[[0.0] * len(e.tokens) for e in members()]]
    [advantages] = algorithm.compute_advantages([members()], penalties=zeros, values=values)
    new = torch.linspace(-2, -0.5, sum(LENGTHS), dtype=torch.float64).requires_grad_()
    rows = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
    flat = torch.tensor([a for row in advantages for a in row[1:]], dtype=torch.float64)
    inputs = LossInputs(
        logprobs=new,
        old_logprobs=new.detach(),
        rollout_logprobs=new.detach(),
        advantages=flat,
        rows=rows,
        num_rows=4,
        frozen_logprobs={"reference": new.detach() - 0.3},
    )
    losses, _ = algorithm.compute_token_losses(inputs)
    weights = torch.tensor(algorithm.compute_row_weights(list(LENGTHS), ["0"] * 4, max_length=L_MAX), dtype=torch.float64)
    [g] = torch.autograd.grad((losses * weights[rows]).sum(), new)
    return g


def same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=0, atol=1e-10)) and float(a.abs().max()) > 0


LENGTH_OF_TOKEN = torch.repeat_interleave(torch.tensor(LENGTHS, dtype=torch.float64), torch.tensor(LENGTHS))


def test_grpo_without_deviation_and_length_is_reinforce_with_the_groups_mean() -> None:
    plain = slope("grpo", scale_rewards="none", loss_aggregation="seq-mean-token-sum")
    assert same(plain, slope("reinforce", advantage="dr_grpo", scale_rewards="none"))


def test_rloo_is_the_centred_gradient_times_g_over_g_minus_one() -> None:
    centred = slope("grpo", scale_rewards="none", loss_aggregation="seq-mean-token-sum")
    assert same(slope("rloo"), centred * 4 / 3)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "sapo"])
def test_on_policy_the_gates_agree_with_grpo(name: str) -> None:
    assert same(slope(name), slope("grpo"))


def test_on_policy_cispo_is_dapo() -> None:
    assert same(slope("cispo"), slope("dapo"))


def test_dr_grpo_is_grpo_without_deviation_times_length_over_cap() -> None:
    assert same(slope("dr_grpo"), slope("grpo", scale_rewards="none") * LENGTH_OF_TOKEN / L_MAX)


def test_token_mean_is_the_length_weighted_sequence_mean() -> None:
    assert same(slope("grpo", loss_aggregation="token-mean"), slope("grpo") * LENGTH_OF_TOKEN * 4 / sum(LENGTHS))


def test_one_prompt_makes_prompt_mean_token_mean() -> None:
    assert same(slope("grpo", loss_aggregation="prompt-mean"), slope("grpo", loss_aggregation="token-mean"))


def test_beta_zero_is_no_reference_and_beta_is_felt() -> None:
    assert same(slope("grpo", beta=0.0), slope("grpo")) and not same(slope("grpo", beta=0.5), slope("grpo"))


def test_ppo_without_opinions_is_reinforce_with_token_mean() -> None:
    zeros = [[[0.0] * (n + 1) for n in LENGTHS]]
    ppo = slope("ppo", values=zeros, whiten="none", lam=1.0, beta=0.0)
    assert same(ppo, slope("reinforce", loss_aggregation="token-mean"))


def test_gdpo_with_one_reward_is_grpo_whitened_over_answers() -> None:
    assert same(slope("gdpo"), slope("grpo", whiten="samples"))


def test_a_perfect_sampler_makes_the_corrections_and_the_bypass_nothing() -> None:
    for how in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"):
        assert same(slope("grpo", importance_sampling_correction=how), slope("grpo"))
    assert same(slope("grpo", old_from_sampler=True), slope("grpo"))
