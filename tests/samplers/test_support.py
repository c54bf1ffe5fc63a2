"""top_p and top_k: the trainer scores the same tokens as the sampler, cut and normalised alike."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from rlvr.config.config import RunConfig
from rlvr.errors import ConfigError
from rlvr.models.batch import TokenRows
from rlvr.registry.plugins import build, build_from_config
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers._sampling_support import SamplingSupportMask, compute_support_mask, make_sampling_support_mask
from rlvr.training.train import train
from rlvr.training.update.output_head import compute_token_logprobs
from tests.fixtures.tiny import tiny_run


def by_hand(row: Tensor, top_k: int, top_p: float) -> set[int]:
    order = sorted(range(len(row)), key=lambda i: -float(row[i]))[: top_k or None]
    odds, chosen, total = row[order].double().softmax(0).tolist(), set[int](), 0.0
    for token, odd in zip(order, odds, strict=True):
        if total >= top_p < 1:
            break
        chosen.add(token)
        total += odd
    return chosen


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.7), (5, 0.6), (100, 0.999), (1, 1.0), (0, 1.0)])
def test_what_is_kept_is_what_the_definition_says(top_k: int, top_p: float) -> None:
    logits = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)) * 2
    for row, stays in zip(logits, compute_support_mask(logits, top_k, top_p), strict=True):
        assert set(stays.nonzero()[:, 0].tolist()) == by_hand(row, top_k, top_p)


@pytest.mark.parametrize("chunk", [0, 3])
def test_the_gradient_is_that_of_the_cut_distribution(chunk: int) -> None:
    """Log-probability, entropy and their gradients against autograd over only the tokens that are kept."""
    dice = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 6, generator=dice, dtype=torch.float64).requires_grad_() for n in (8, 11))
    logits, support = (hidden @ weight.T) / 0.8, SamplingSupportMask(4, 0.8)
    target = torch.tensor([sorted(by_hand(row, 4, 0.8))[0] for row in logits.detach()])
    push = torch.randn(2, 8, generator=dice, dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(logits):
        ids = sorted(by_hand(row.detach(), 4, 0.8))
        logs = row[ids].log_softmax(0)
        expected = expected + push[0, i] * logs[ids.index(int(target[i]))] - push[1, i] * (logs.exp() * logs).sum()
    found, entropy = compute_token_logprobs(
        hidden,
        weight,
        None,
        target,
        temperature=0.8,
        tile_size=chunk,
        entropy=True,
        logit_mask=lambda values, part: support.mask_logits(values, target[part]),
    )
    assert entropy is not None
    ours = (push[0] * found).sum() + (push[1] * entropy).sum()
    assert float((ours - expected).detach().abs()) < 1e-10
    grads = [torch.autograd.grad(x, [hidden, weight], retain_graph=True) for x in (ours, expected)]
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)
    whole = torch.autograd.grad(compute_token_logprobs(hidden, weight, None, target, temperature=0.8)[0].sum(), [hidden])[0]
    assert not torch.allclose(grads[0][0], whole, atol=1e-3)


def test_a_chosen_token_that_rounding_puts_outside_is_kept() -> None:
    cut = SamplingSupportMask(1, 1.0).mask_logits(torch.tensor([[1.0, 0.9999999, 0.0]]), torch.tensor([1]))
    assert float(cut.log_softmax(-1)[0, 1]) == pytest.approx(-0.693, abs=1e-3)


def test_after_an_optimizer_step_the_tokens_are_those_of_before() -> None:
    batch = next(TokenRows([[5, 6, 2], [5, 7, 1]], [[False, True, True], [False, True, True]]).iter_batches([0, 1], max_tokens=64))
    support, logits = SamplingSupportMask(2, 1.0, recorded=True), torch.randn(4, 9, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = support.make_policy_mask(batch)(logits, slice(None))
    moved = support.make_policy_mask(batch)(-logits[1:3], slice(1, 3))
    assert torch.equal(moved > -1e29, before[1:3] > -1e29)
    assert torch.equal(support.make_reference_mask(batch)(logits * 0, slice(None)) > -1e29, before > -1e29)


RUNS: dict[str, dict[str, Any]] = {
    "once": {"rollout": {"top_p": 0.7}},
    "top_k": {"rollout": {"top_k": 3}},
    "minibatches": {"rollout": {"top_p": 0.7}, "train": {"steps": 2, "learning_rate": 1e-3, "minibatches_per_step": 2}},
    "ppo": {"rollout": {"top_p": 0.7}, "algorithm": {"name": "ppo"}},
}


def config(**changes: Any) -> RunConfig:
    rollout = {"prompts_per_step": 4, "num_generations": 4} | changes.pop("rollout", {})
    return tiny_run(rollout=rollout, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_in_a_run_every_ratio_is_1_at_the_first_step(name: str, tmp_path: Path) -> None:
    start = {"max_steps": 40, "batch_size": 16, "learning_rate": 1e-2}
    train(config(sft_warmup=start, eval={"tasks": 0}, **RUNS[name]), out=tmp_path, console=Console(file=io.StringIO()))
    gaps = [row["sampling/logp_difference_max"] for row in read_jsonl(tmp_path / "metrics.jsonl") if row["optimizer_steps"]]
    assert gaps and max(gaps) < 1e-4  # over the whole distribution it would be up to -log 0.7


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "stale": ({"rollout": {"top_p": 0.9, "max_staleness": 1}}, "come from older weights"),
    "kl": ({"rollout": {"top_k": 5}, "algorithm": {"name": "grpo", "beta": 0.1}}, "rollout.top_k is 5.*KL to the reference"),
    "bypass": (
        {
            "rollout": {"top_p": 0.9},
            "algorithm": {"name": "grpo", "old_from_sampler": True},
            "train": {"steps": 1, "learning_rate": 1e-3, "minibatches_per_step": 2},
        },
        "never scores the completions with the weights that sampled them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_before_any_work(name: str) -> None:
    changes, words = REFUSED[name]
    asked = config(**changes)
    with pytest.raises(ConfigError, match=words):
        make_sampling_support_mask(asked, build_from_config("algorithm", asked.algorithm))


def test_without_sampling_there_is_nothing_to_cut() -> None:
    assert make_sampling_support_mask(config(), build("algorithm", "grpo")) is None
    assert make_sampling_support_mask(config(rollout={"top_p": 0.5}), build("algorithm", "sft")) is None
