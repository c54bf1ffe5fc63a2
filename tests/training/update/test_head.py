"""The output head in a lower precision and on an accelerator: what is rounded, what is summed, and how much is computed at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.models.batch import TokenRows
from rlvr.models.device_defaults import CPU_DEFAULTS, get_device_defaults
from rlvr.training.update import output_head as head
from rlvr.training.update.output_head import compute_token_logprobs
from rlvr.training.update.policy import Policy
from tests.fixtures.families import model_of

TOKENS, SIZE, WORDS = 512, 64, 200


def material() -> tuple[Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(TOKENS, SIZE, generator=dice), torch.randn(WORDS, SIZE, generator=dice) / 4
    return hidden, weight, torch.randint(0, WORDS, (TOKENS,), generator=dice)


def truth(hidden: Tensor, weight: Tensor, target: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities and gradients in float64."""
    states, matrix = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logs = (states @ matrix.t()).log_softmax(-1).gather(1, target[:, None])[:, 0]
    slope, pull = torch.autograd.grad((logs * slopes).sum(), (states, matrix))
    return logs.detach(), slope, pull


def scored(autocast: bool, slopes: Tensor, **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, target = material()
    hidden.requires_grad_()
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logs, _ = compute_token_logprobs(hidden, weight, None, target, **how)
    assert logs.dtype == torch.float32
    slope, pull = torch.autograd.grad((logs * slopes).sum(), (hidden, weight))
    return logs.detach().double(), slope.double(), pull.double()


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_in_bfloat16_the_operands_are_rounded_and_the_logits_are_not() -> None:
    hidden, weight, target = material()
    slopes = torch.ones(TOKENS)
    rounded, _, _ = truth(hidden.bfloat16(), weight.bfloat16(), target, slopes)
    logs, _, _ = scored(True, slopes, tile_size=50)
    assert float((logs - rounded).abs().max()) < 1e-5  # logits rounded to bfloat16 would be off by 1e-2


def test_the_gradient_of_the_head_does_not_lose_bits_with_the_number_of_tiles() -> None:
    hidden, weight, target = material()
    slopes = torch.linspace(-1, 1, TOKENS)
    _, _, expected = truth(hidden.bfloat16(), weight.bfloat16(), target, slopes)
    (_, _, many), (_, _, one) = (scored(True, slopes, tile_size=tile_size) for tile_size in (8, 512))
    assert apart(many, one) < 1e-6 and apart(one, expected) < 2e-3  # products rounded tile by tile differ by 2e-3


def test_the_head_in_float32_is_exact_under_autocast() -> None:
    hidden, weight, target = material()
    slopes = torch.linspace(-1, 1, TOKENS)
    expected = truth(hidden, weight, target, slopes)
    for tile_size in (0, 100):
        found = scored(True, slopes, tile_size=tile_size, fp32_operands=True)
        assert float((found[0] - expected[0]).abs().max()) < 1e-5
        assert apart(found[1], expected[1]) < 1e-5 and apart(found[2], expected[2]) < 1e-5
    assert apart(scored(True, slopes, tile_size=100)[1], expected[1]) > 1e-3


def test_the_policy_hands_the_setting_on() -> None:
    rows = TokenRows([[3, 1, 4, 1, 5]], [[False, True, True, True, True]])
    batch = next(rows.iter_batches([0], max_tokens=99))
    model = model_of("llama")
    policies = [Policy(model, fp32_head=fp32) for fp32 in (False, True)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, exact = (policy(batch).logprobs for policy in policies)
        states = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state[0]
    logits = torch.nn.functional.linear(states.double(), model.lm_head.weight.double())
    expected = logits.log_softmax(-1).gather(1, batch.targets[:, None])[:, 0]
    assert float((exact - expected).detach().abs().max()) < 1e-6 < float((plain - expected).detach().abs().max())


def test_a_device_with_a_wide_product_gets_operands_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where `torch.mm` takes `out_dtype`; here a product in float32 takes its place."""
    slopes = torch.linspace(-1, 1, TOKENS)
    usual = scored(True, slopes, tile_size=50)
    asked = []

    def wide(a: Tensor, b: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        asked.append((a.dtype, b.dtype, out_dtype))
        return a.float() @ b.float()

    monkeypatch.setattr(head, "FP32_ACCUMULATION_DEVICES", {"cpu"})
    monkeypatch.setattr(torch, "mm", wide)
    found = scored(True, slopes, tile_size=50)
    assert set(asked) == {(torch.bfloat16, torch.bfloat16, torch.float32)} and len(asked) == 11 * 4
    assert all(apart(a, b) < 1e-6 for a, b in zip(found, usual, strict=True))


def test_tiles_are_as_large_as_the_device_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_device_defaults(torch.device("cpu")).max_head_logits // 151_936 == 27
    assert get_device_defaults(torch.device("xpu")).max_head_logits // 151_936 == 1766
    sizes: list[int] = []
    apply = head.TiledLogprobs.apply

    def noted(*args: Any) -> Any:
        sizes.append(args[5])
        return apply(*args)

    monkeypatch.setattr(head.TiledLogprobs, "apply", noted)
    slopes = torch.ones(TOKENS)
    whole = scored(False, slopes)
    assert sizes == []  # on a CPU, what fits into one tile is computed once
    monkeypatch.setattr("rlvr.models.device_defaults.CPU_DEFAULTS", replace(CPU_DEFAULTS, max_head_logits=10 * WORDS))
    tiled = scored(False, slopes)
    assert sizes == [10] and all(apart(a, b) < 1e-5 for a, b in zip(tiled, whole, strict=True))


@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_capped_and_scaled_heads_are_tiled(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TokenRows([[3, 1, 4, 1, 5, 9]], [[False, *[True] * 5]])
    batch = next(rows.iter_batches([0], max_tokens=99))
    model = model_of(family)
    policy, found = Policy(model, temperature=0.7), []
    for form in (None, policy.logit_transform):
        monkeypatch.setattr(policy, "logit_transform", form)
        scores = policy(batch, entropy=True)
        assert scores.entropy is not None
        found.append([*scores[:2], *torch.autograd.grad((scores.logprobs + scores.entropy).sum(), list(model.parameters()))])
        monkeypatch.setattr("rlvr.models.device_defaults.CPU_DEFAULTS", replace(CPU_DEFAULTS, max_head_logits=64))  # two tokens a tile
        monkeypatch.setattr(model, "forward", None)  # the model's own logits are not computed
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
