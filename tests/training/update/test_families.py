"""Families of models that would be trained wrongly without a word: noise that stays on, and states that run from row to row."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from rlvr.errors import ConfigError
from rlvr.models import layout_attention as attention
from rlvr.models.batch import TokenRows
from rlvr.registry.plugins import build
from rlvr.samplers._cache_selection import find_slot_cache_problem
from rlvr.training.update import packing
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.policy import Policy, enable_gradient_checkpointing
from tests.fixtures.families import FAMILIES, NOISY, STATE, UNUSUAL, model_of


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


ROWS = [([3, 1, 4, 1, 5, 9], [False] * 2 + [True] * 4), ([3, 1, 7, 2, 8], [False] * 2 + [True] * 3), ([6, 2, 6], [False, True, True])]


def plain(model: Any) -> list[Tensor | None]:
    """The gradient of cross-entropy over the acted tokens, a row at a time, in evaluation mode."""
    subject, count = copy.deepcopy(model).eval(), sum(sum(acted) for _, acted in ROWS)
    for tokens, acted in ROWS:
        logs = subject(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)
        (-sum(logs[i - 1, tokens[i]] for i, on in enumerate(acted) if on) / count).backward()
    return [p.grad for p in subject.parameters()]


def taught(model: Any, monkeypatch: pytest.MonkeyPatch, **how: Any) -> list[Tensor | None]:
    """The gradient that the learner's supervised step has before it is clipped."""
    learner = Learner(
        model, build("algorithm", "grpo"), OptimizationSettings(max_grad_norm=1e9, **how), accelerator=Accelerator(cpu=True), total_steps=1
    )
    seen: list[Tensor | None] = []

    def note(parameters: Any, *args: Any) -> Tensor:
        seen[:] = [None if p.grad is None else p.grad.clone() for p in parameters]
        return torch.tensor(1.0)

    monkeypatch.setattr(learner.accelerator, "clip_grad_norm_", note)
    learner.train_supervised(ROWS)
    return seen


def apart(found: list[Tensor | None], expected: list[Tensor | None]) -> float:
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)) ** 0.5


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", NOISY)
def test_a_family_with_noise_of_its_own_has_the_gradient_of_evaluation_mode(
    family: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(family).train()
    ids = torch.arange(1, 12)[None]
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)  # it is noisy
    expected = plain(model)
    assert apart(taught(model, monkeypatch, gradient_checkpointing=checkpointing), expected) < 1e-5


def test_checkpointed_layers_are_computed_twice_and_copies_have_their_own() -> None:
    model = model_of("llama")
    enable_gradient_checkpointing(model)
    enable_gradient_checkpointing(model)  # as a warmup and the training after it do
    counts: list[int] = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: counts.append(1))
    ids = torch.arange(1, 6)[None]
    model(input_ids=ids, use_cache=False).logits.sum().backward()
    assert len(counts) == 2
    with torch.no_grad():
        before = model(input_ids=ids, use_cache=False).logits
        other = copy.deepcopy(model)
        for p in model.parameters():
            p.zero_()
        assert torch.equal(other(input_ids=ids, use_cache=False).logits, before)


class Restless(nn.Module):
    """Dropout that does not ask for the mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.1)


def test_a_model_whose_passes_differ_is_refused_and_named() -> None:
    model = model_of("llama")
    model.model.norm = nn.Sequential(model.model.norm, Restless())
    with pytest.raises(ConfigError, match="family llama gives different probabilities each time"):
        Learner(model, build("algorithm", "grpo"), OptimizationSettings(), accelerator=Accelerator(cpu=True), total_steps=1)


def test_checkpointing_a_model_without_layers_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no layers for it"):
        enable_gradient_checkpointing(nn.Linear(2, 2))


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("family", STATE)
def test_a_state_that_runs_from_row_to_row_is_found_however_little_it_is_worth(family: str, scale: float) -> None:
    model = model_of(family)
    for name, p in model.named_parameters():
        if p.dim() > 1 and "embed" not in name:
            p.data.mul_(scale)
    before = str(model.config._attn_implementation)
    assert packing.find_packing_mismatch(model, Policy(model)) and find_slot_cache_problem(model)
    assert model.config._attn_implementation == before


def test_what_mixes_beside_attention_in_every_layer_is_found() -> None:
    """Each layer attends as it should, so counting them would not be enough."""
    model = model_of("falcon_h1")
    model.set_attn_implementation(attention.ATTENTION_NAME)
    assert "a convolution or a recurrent state" in attention.find_mixing_outside_attention(model)


def test_a_layer_that_does_not_attend_is_found_even_where_it_adds_nothing_yet() -> None:
    model = model_of("lfm2")
    for name, p in model.named_parameters():
        if "conv.out_proj" in name:
            p.data.zero_()
    model.set_attn_implementation(attention.ATTENTION_NAME)
    assert attention.find_mixing_outside_attention(model).startswith("2 of its 4 layers (such as 0)")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNUSUAL])
def test_in_a_packed_line_no_row_depends_on_another(family: str) -> None:
    model = model_of(family)
    policy = Policy(model)
    assert packing.find_packing_mismatch(model, policy) == "" and attention.find_mixing_outside_attention(model) == ""
    prompts, found = ([5, 6, 7, 8, 9], [1, 2, 3, 4, 5]), []
    for first in ([11, 12, 13, 14], [21, 22, 23, 24]):
        tokens = [prompts[0] + first, prompts[0] + [9, 9, 3], prompts[1] + [7, 1]]
        rows = TokenRows(tokens, [[False] * 5 + [True] * (len(t) - 5) for t in tokens])
        with torch.no_grad():
            found.append(policy(packing.pack_rows(rows, [0, 1, 2])).logprobs[4:])
    assert torch.equal(*found)
