"""The policy's log-probabilities: chunked equals full, any layout equals the model's own logits, and nothing large stays alive."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlvr.models import layout_attention as attention
from rlvr.models.batch import TokenRows
from rlvr.training.update import packing
from rlvr.training.update.output_head import LogitTransform, compute_token_logprobs
from rlvr.training.update.policy import Policy
from tests.fixtures.families import FAMILIES, UNUSUAL, model_of


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(seed: int = 0) -> TokenRows:
    g = torch.Generator().manual_seed(seed)
    lengths = [3, 12, 7, 7, 2, 9, 12, 5]
    tokens = [torch.randint(0, 32, (n,), generator=g).tolist() for n in lengths]
    acted = [[j > 0 and (j > 2 or n < 4) and j != 6 for j in range(n)] for n in lengths]
    return TokenRows(tokens, acted)


def naive(model: Any, material: TokenRows, temperature: float) -> Tensor:
    """Each row alone through the model's own forward."""
    out = []
    for tokens, places in zip(material.tokens, material.acted_positions, strict=True):
        ids = torch.from_numpy(tokens)[None]
        logs = (model(input_ids=ids, use_cache=False).logits[0].float() / temperature).log_softmax(-1)
        out.append(logs[places - 1, tokens[places]])
    return torch.cat(out)


def scored(policy: Policy, material: TokenRows, budget: int) -> Tensor:
    out = torch.zeros(material.num_policy_tokens)
    for batch in material.iter_batches(range(len(material.tokens)), max_tokens=budget):
        out = out.index_copy(0, batch.entry_positions, policy(batch).logprobs)
    return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [1, 30, 1000])
def test_any_layout_equals_each_row_alone(family: str, budget: int) -> None:
    model = model_of(family)
    policy = Policy(model, temperature=0.7)
    ours, truth = scored(policy, rows(), budget), naive(model, rows(), 0.7)
    assert float((ours - truth).detach().abs().max()) < 1e-5 * (1 + float(truth.detach().abs().max()))
    grads = [torch.autograd.grad(x.sum(), list(model.parameters()), allow_unused=True) for x in (ours, truth)]
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert float((a - b).norm()) <= 2e-5 * float(b.norm()) + 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_that_share_their_prompt_equal_each_row_alone(family: str) -> None:
    """Where the family fits; where it does not, the reason is stated and the model is left as it was."""
    model = model_of(family)
    policy = Policy(model, temperature=0.7)
    before = model.config._attn_implementation
    reason = packing.find_packing_mismatch(model, policy)
    assert bool(reason) == (family in UNUSUAL), reason
    if reason:
        assert model.config._attn_implementation == before
        return
    material = families_of_rows()
    out = torch.zeros(material.num_policy_tokens)
    bins, computed = packing.plan_packed_batches(material, range(len(material.tokens)), 16)
    assert len(bins) > 1 and sorted(i for part in bins for i in part) == list(range(len(material.tokens)))
    for part in bins:
        batch = packing.pack_rows(material, part)
        assert batch.input_ids.numel() <= 16
        computed -= batch.input_ids.numel()
        out = out.index_copy(0, batch.entry_positions, policy(batch).logprobs)
    assert computed == 0  # the plan's own count, by which it is compared with padded rows
    truth = naive(model, material, 0.7)
    assert float((out - truth).detach().abs().max()) < 1e-5 * (1 + float(truth.detach().abs().max()))
    grads = [torch.autograd.grad(x.sum(), list(model.parameters()), allow_unused=True) for x in (out, truth)]
    for a, b in zip(*grads, strict=True):
        if a is not None and b is not None:
            assert float((a - b).norm()) <= 2e-5 * float(b.norm()) + 1e-6


def test_generation_and_saving_are_untouched_by_packing(tmp_path: Any) -> None:
    model = model_of("llama")
    ids = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    how = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1] * 5]), "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    before = model.generate(ids, **how)
    assert packing.find_packing_mismatch(model, Policy(model)) == "" and model.config._attn_implementation == attention.ATTENTION_NAME
    assert torch.equal(model.generate(ids, **how), before)
    model.save_pretrained(tmp_path)
    assert attention.ATTENTION_NAME not in (tmp_path / "config.json").read_text()
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(ids, **how), before)


def families_of_rows() -> TokenRows:
    """Three prompts with several answers each (one token and two turns among them), and one that stands alone."""
    g = torch.Generator().manual_seed(2)
    tokens, acted = [], []
    for prompt, answers in ((6, (1, 4, 9)), (4, (3, 3)), (2, (5, 2)), (7, (4,))):
        head = torch.randint(0, 32, (prompt,), generator=g).tolist()
        for n in answers:
            tokens.append(head + torch.randint(0, 32, (n,), generator=g).tolist())
            acted.append([False] * prompt + [j != 2 for j in range(n)])
    return TokenRows(tokens, acted)


def test_a_head_with_more_to_it_is_noticed() -> None:
    assert Policy(model_of("llama")).logit_transform == Policy(model_of("qwen2")).logit_transform == LogitTransform()
    assert Policy(model_of("gemma2")).logit_transform == LogitTransform(softcap=5.0) and Policy(
        model_of("granite")
    ).logit_transform == LogitTransform(scale=1 / 3)
    fresh = model_of("gemma2", final_logit_softcapping=1000.0)  # so wide that it does nothing to the logits of now
    assert (
        Policy(fresh).logit_transform == LogitTransform(softcap=1000.0)
        and Policy(model_of("gemma2", final_logit_softcapping=None)).logit_transform == LogitTransform()
    )


def test_a_head_that_its_configuration_does_not_describe_is_left_to_the_model() -> None:
    """A cap without its setting, and a setting without its cap: the output of the head is probed, not only the configuration read."""
    silent = model_of("gemma2", final_logit_softcapping=None)
    forward = type(silent).forward

    def capped(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        out.logits = 50 * torch.tanh(out.logits / 50)
        return out

    silent.forward = MethodType(capped, silent)
    boastful = model_of("llama")
    boastful.config.final_logit_softcapping = 30.0
    for model in (silent, boastful):
        assert Policy(model).logit_transform is None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize(
    ("chunk", "form"),
    [
        *((n, LogitTransform()) for n in (1, 2, 5, 7, 100)),
        (3, LogitTransform(softcap=2.0)),
        (2, LogitTransform(0.3, 1.5)),
        (3, LogitTransform(4.0)),
    ],
)
def test_chunked_equals_full(bias: bool, entropy: bool, chunk: int, form: LogitTransform) -> None:
    g = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 6, generator=g, dtype=torch.float64).requires_grad_() for n in (7, 11))
    offset = torch.randn(11, generator=g, dtype=torch.float64).requires_grad_() if bias else None
    target, slopes = torch.randint(0, 11, (7,), generator=g), torch.randn(2, 7, generator=g, dtype=torch.float64)
    logits = form.scale * torch.nn.functional.linear(hidden, weight, offset)
    logits = (form.softcap * torch.tanh(logits / form.softcap) if form.softcap else logits) / 0.6
    logs = logits.log_softmax(-1)
    expected = (logs.gather(1, target[:, None])[:, 0], -(logs.exp() * logs).sum(-1))
    got = compute_token_logprobs(hidden, weight, offset, target, temperature=0.6, tile_size=chunk, entropy=entropy, logit_transform=form)
    leaves = [x for x in (hidden, weight, offset) if x is not None]
    assert torch.allclose(got[0], expected[0], atol=1e-12)
    total, truth = (got[0] * slopes[0]).sum(), (expected[0] * slopes[0]).sum()
    if entropy:
        assert got[1] is not None and torch.allclose(got[1], expected[1], atol=1e-12)
        total, truth = total + (got[1] * slopes[1]).sum(), truth + (expected[1] * slopes[1]).sum()
    else:
        assert got[1] is None
    for a, b in zip(torch.autograd.grad(total, leaves), torch.autograd.grad(truth, leaves), strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_the_entropy_over_a_real_vocabulary_is_exact_in_pieces_too() -> None:
    dice = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(6, 16, generator=dice), 1.5 * torch.randn(50_000, 16, generator=dice)
    offset, target = torch.full((50_000,), 10.0), torch.zeros(6, dtype=torch.long)  # logits that are large, as a trained model's are
    found = []
    for dtype, chunk in ((torch.float64, 0), (torch.float32, 3)):
        states = hidden.to(dtype).requires_grad_()
        _, entropy = compute_token_logprobs(states, weight.to(dtype), offset.to(dtype), target, tile_size=chunk, entropy=True)
        assert entropy is not None
        entropy.sum().backward()
        assert states.grad is not None
        found.append((entropy.detach().double(), states.grad.double()))
    (true, true_slope), (got, slope) = found
    assert (got - true).abs().max() < 2e-5 and (slope - true_slope).norm() < 2e-5 * true_slope.norm()


def test_bfloat16_stays_near() -> None:
    g = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 16, generator=g) for n in (9, 50))
    target = torch.randint(0, 50, (9,), generator=g)
    full, _ = compute_token_logprobs(hidden, weight, None, target)
    half = hidden.bfloat16().requires_grad_()
    got, _ = compute_token_logprobs(half, weight.bfloat16(), None, target, tile_size=4)
    assert got.dtype == torch.float32 and float((got - full).detach().abs().max()) < 0.1
    [grad] = torch.autograd.grad(got.sum(), half)
    assert grad.dtype == torch.bfloat16 and torch.isfinite(grad).all()


@pytest.mark.parametrize("chunk", [0, 3])
def test_under_autocast_the_second_logits_are_the_first(chunk: int) -> None:
    """In full precision the slopes of log p over the vocabulary add up to nothing: only if both passes agree."""
    g = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(8, 16, generator=g).mul_(4).requires_grad_(), torch.randn(40, 16, generator=g).mul_(2).requires_grad_()
    target = torch.randint(0, 40, (8,), generator=g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logs, _ = compute_token_logprobs(hidden, weight, None, target, tile_size=chunk)
    assert logs.dtype == torch.float32
    [grad] = torch.autograd.grad(logs.sum(), hidden)
    wide, _ = compute_token_logprobs(hidden, weight, None, target)
    [truth] = torch.autograd.grad(wide.sum(), hidden)
    assert float((grad - truth).norm() / truth.norm()) < 0.05


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight = torch.randn(5, 4).requires_grad_(), torch.randn(9, 4)
    logs, _ = compute_token_logprobs(hidden, weight, None, torch.arange(5), tile_size=2)
    logs.sum().backward()
    assert hidden.grad is not None and weight.grad is None


def test_no_tensor_of_tokens_by_vocabulary_is_kept() -> None:
    hidden, weight = torch.randn(64, 8).requires_grad_(), torch.randn(500, 8).requires_grad_()
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        compute_token_logprobs(hidden, weight, None, torch.zeros(64, dtype=torch.long), tile_size=8)
    assert kept and max(kept) < 64 * 500 / 4


def test_dropout_is_off_whatever_mode_is_asked_for() -> None:
    policy = Policy(model_of("llama", attention_dropout=0.5).train()).train()
    ids = torch.arange(8)[None]
    assert policy.training and torch.equal(policy.model(input_ids=ids).logits, policy.model(input_ids=ids).logits)


def test_a_batch_s_places_stay_on_the_cpu_where_the_step_s_columns_are() -> None:
    rows = families_of_rows()
    for batch in (rows.build_padded_batch([0, 1], "meta"), packing.pack_rows(rows, [0, 1], "meta")):
        assert batch.input_ids.device.type == "meta" and batch.entry_positions.device.type == "cpu"


class _Prompt(np.ndarray[Any, Any]):
    def tolist(self) -> Any:
        raise AssertionError("token by token in Python")


def test_prompts_are_compared_as_bytes() -> None:
    rows = TokenRows([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 9, 6]], [[False] * 4 + [True]] * 3)
    rows.tokens = [row.view(_Prompt) for row in rows.tokens]
    assert packing.group_by_prompt(rows, [0, 2, 1]) == [(4, [0, 1]), (0, [2])]
