"""Packed rows by a kernel for segments: the lengths, indices and windows that it is given, with a stand-in that computes densely.

The kernels themselves run on CUDA only. The stand-in has their meaning: causality is aligned to the end of a segment, and a window
counts the token itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.models import layout_attention as attention
from rlvr.models import varlen
from rlvr.models.batch import TokenRows
from rlvr.models.varlen import SegmentBoundaries, attend_with_matmul, build_segment_boundaries, choose_kernel
from rlvr.registry.plugins import build
from rlvr.training.update import packing
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.packing import PackingMode, SegmentLayout, choose_packing, pack_rows
from rlvr.training.update.policy import Policy
from tests.fixtures.families import model_of
from tests.fixtures.learning import episode, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spelt_out(
    query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, *, scale: float | None, window: int, softcap: float
) -> Tensor:
    """Each query alone, in Python: what the kernels promise, written another way than `dense`."""
    out, group = [], query.shape[1] // key.shape[1]
    for s in range(len(lengths.query_offsets) - 1):
        (a, b), (c, d) = lengths.query_offsets[s : s + 2].tolist(), lengths.key_offsets[s : s + 2].tolist()
        for i in range(a, b):
            last = d - (b - 1 - i)  # the last query sees the last key
            first = max(c, last - window) if window else c
            heads = []
            for h in range(query.shape[1]):
                scores = key[first:last, h // group] @ query[i, h] * (scale if scale is not None else query.shape[2] ** -0.5)
                scores = softcap * torch.tanh(scores / softcap) if softcap else scores
                heads.append(scores.softmax(0) @ value[first:last, h // group])
            out.append(torch.stack(heads))
    return torch.stack(out)


def grown(rows: int = 3) -> TokenRows:
    """Prompts with several answers each, one too short to be shared, and one with a single answer."""
    g = torch.Generator().manual_seed(2)
    tokens, acted = [], []
    for prompt, answers in ((6, (1, 4, 9)), (4, (3, 3)), (2, (5, 2)), (7, (4,)))[:rows]:
        head = torch.randint(0, 32, (prompt,), generator=g).tolist()
        for n in answers:
            tokens.append(head + torch.randint(0, 32, (n,), generator=g).tolist())
            acted.append([False] * prompt + [True] * n)
    return TokenRows(tokens, acted)


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (3, 0.0), (0, 1.5), (1, 2.0)])
def test_what_kernels_are_compared_with_is_what_they_promise(window: int, softcap: float) -> None:
    dice, lengths = torch.Generator().manual_seed(0), build_segment_boundaries([5, 3, 1], [5, 8, 4], "cpu")
    query, key, value = (torch.randn(n, heads, 8, generator=dice) for n, heads in ((9, 4), (17, 2), (17, 2)))
    how: dict[str, Any] = {"scale": 0.3, "window": window, "softcap": softcap}
    assert torch.allclose(attend_with_matmul(query, key, value, lengths, **how), spelt_out(query, key, value, lengths, **how), atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2", "mistral", "gemma2"])
@pytest.mark.parametrize("rows", [3, 4])
def test_packed_by_a_kernel_rows_equal_each_row_alone(family: str, rows: int) -> None:
    """With grouped heads, sliding windows (mistral, gemma2) and soft caps (gemma2) too."""
    model, material = model_of(family), grown(rows)
    policy, how, chosen = Policy(model, temperature=0.7), PackingMode(spelt_out), range(len(material.tokens))
    truth = torch.cat([policy(next(material.iter_batches([i], max_tokens=99))).logprobs for i in chosen])
    expected = torch.autograd.grad(truth.sum(), list(model.parameters()))
    assert packing.find_packing_mismatch(model, policy, how) == ""
    batch = pack_rows(material, chosen, "cpu", how)
    assert isinstance(batch.layout, SegmentLayout) and batch.layout.lengths.max_key_length == 14
    found = policy(batch).logprobs
    assert float((found - truth).detach().abs().max()) < 1e-5 * (1 + float(truth.detach().abs().max()))
    for a, b in zip(torch.autograd.grad(found.sum(), list(model.parameters())), expected, strict=True):
        assert float((a - b).norm()) <= 2e-5 * float(b.norm()) + 1e-6


def test_a_line_whose_prompts_are_not_shared_is_not_copied() -> None:
    layout = pack_rows(
        TokenRows([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]]), [0, 1], "cpu", PackingMode(attend_with_matmul)
    ).layout
    assert layout.keys is None and layout.lengths.query_offsets.tolist() == layout.lengths.key_offsets.tolist() == [0, 2, 3]


def test_with_a_kernel_rows_are_packed_also_where_that_computes_no_fewer_tokens() -> None:
    rows = TokenRows([[1, 2, 3], [4, 5, 6]], [[False, True, True], [False, True, True]])
    for how, packed in (
        (PackingMode(attend_with_matmul), True),
        (PackingMode(), False),
        (PackingMode(attend_with_matmul, padding_reason="a state"), False),
    ):
        [part], lay = packing.plan_batches(rows, [0, 1], 99, how)
        assert (lay(part, "cpu").layout is not None) == packed


def test_queries_are_answers_and_keys_are_prompt_and_answer() -> None:
    rows = TokenRows([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8, 9]], [[False] * 4 + [True] * 2, [False] * 4 + [True] * 3])
    layout = pack_rows(rows, [0, 1], "cpu", PackingMode(attend_with_matmul)).layout
    assert layout.lengths.query_offsets.tolist() == [0, 4, 5, 7] and layout.lengths.key_offsets.tolist() == [0, 4, 9, 15]
    assert layout.keys.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 6]


def test_a_learner_packs_by_the_kernel_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a step is that of buckets; no mask is made."""
    found = []
    for kernel in (None, attend_with_matmul):
        monkeypatch.setattr(packing, "choose_kernel", lambda device, dtype, kernel=kernel: (kernel, ""))
        learner = Learner(
            tiny_model(),
            build("algorithm", "grpo", beta=0.1),
            OptimizationSettings(learning_rate=1e-2),
            accelerator=Accelerator(cpu=True),
            total_steps=1,
        )
        assert learner.packing.kernel is kernel
        learner.update([[episode([1, 2, 3, 4, 5], [k, 7 - k, 3], [-2.0] * 3, float(k % 2), "g") for k in range(4)]])
        found.append(torch.cat([p.detach().flatten() for p in learner.policy.parameters()]))
    assert torch.allclose(found[0], found[1], atol=1e-5)


def test_under_autocast_attention_is_computed_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary positions widen queries and keys; gathered so, they and the masks would be twice as large, and converted in every layer."""
    seen = list[torch.dtype]()
    attend = torch.nn.functional.scaled_dot_product_attention

    def noted(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, **how: Any) -> Tensor:
        seen.extend(x.dtype for x in (query, key, value, attn_mask) if x is not None)
        return attend(query, key, value, attn_mask=attn_mask, **how)

    def kernel(query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, **how: Any) -> Tensor:
        seen.extend(x.dtype for x in (query, key, value))
        return attend_with_matmul(query.float(), key.float(), value.float(), lengths, **how).to(query.dtype)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    policy, rows = Policy(model_of("llama")), grown()
    assert packing.find_packing_mismatch(policy.model, policy) == ""
    for how, each in ((PackingMode(None, torch.bfloat16), 4), (PackingMode(kernel, torch.bfloat16), 3)):
        seen.clear()
        batch = pack_rows(rows, range(len(rows.tokens)), "cpu", how)
        masks = [] if how.kernel else [bucket.mask for bucket in batch.layout.buckets if bucket.mask is not None]
        with torch.autocast("cpu", torch.bfloat16):
            assert policy(batch).logprobs.dtype is torch.float32
        assert set(seen) == {torch.bfloat16} and len(seen) >= each
        assert how.kernel or (masks and {mask.dtype for mask in masks} == {torch.bfloat16})


def broken(
    query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, *, scale: float | None, window: int, softcap: float
) -> Tensor:
    raise RuntimeError("head size 4 is not supported")


def test_a_kernel_that_a_model_does_not_fit_gives_way_to_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "choose_kernel", lambda device, dtype: (broken, ""))
    policy = Policy(model_of("llama"))
    how = choose_packing([policy], torch.device("cpu"), "float32", torch.no_grad)
    assert how.kernel is None and how.padding_reason == "" and "head size 4 is not supported" in how.no_kernel_reason
    assert policy.model.config._attn_implementation == attention.ATTENTION_NAME
    capped = choose_packing([Policy(model_of("gemma2"))], torch.device("cpu"), "float32", torch.no_grad)
    assert "its attention has softcap, which this layout does not compute" in capped.padding_reason


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example one that aligns causality to the beginning."""

    def to_the_left(query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, **how: Any) -> Tensor:
        mine = torch.diff(lengths.query_offsets).tolist()
        ends = [n for start, n in zip(lengths.key_offsets[:-1].tolist(), mine, strict=True) for n in range(start, start + n)]
        return attend_with_matmul(query, key[ends], value[ends], build_segment_boundaries(mine, mine, "cpu"), **how)

    def without_slope_of_keys(query: Tensor, key: Tensor, value: Tensor, lengths: SegmentBoundaries, **how: Any) -> Tensor:
        return attend_with_matmul(query, key * 0.0 + key.detach(), value, lengths, **how)

    assert varlen.find_kernel_mismatch(attend_with_matmul, torch.device("cpu"), torch.bfloat16) == ""
    assert "differs from plain products" in varlen.find_kernel_mismatch(to_the_left, torch.device("cpu"), torch.bfloat16)
    assert "differs from plain products" in varlen.find_kernel_mismatch(without_slope_of_keys, torch.device("cpu"), torch.bfloat16)
    assert "fails (RuntimeError: head size 4" in varlen.find_kernel_mismatch(broken, torch.device("cpu"), torch.bfloat16)


def test_which_kernel_a_device_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(varlen, "find_kernel_mismatch", lambda kernel, device, dtype: "")
    assert choose_kernel(torch.device("cpu"), torch.bfloat16) == (None, "only CUDA has kernels for it")
    assert choose_kernel(cuda, torch.float32)[0] is None and "not in float32" in choose_kernel(cuda, torch.float32)[1]
    assert choose_kernel(cuda, torch.bfloat16) == (varlen.attend_with_torch, "")


def test_torch_s_kernel_gets_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the keyword for grouped heads, which came with torch 2.12."""
    from torch.nn.attention import varlen as theirs

    seen: dict[str, Any] = {}

    def newer(*args: Any, scale: float, window_size: tuple[int, int], enable_gqa: bool = False) -> Tensor:
        seen.update(scale=scale, window_size=window_size, enable_gqa=enable_gqa, lengths=args[3:])
        out: Tensor = args[0]
        return out

    def older(*args: Any, scale: float, window_size: tuple[int, int]) -> Tensor:
        return newer(*args, scale=scale, window_size=window_size)

    query, key = torch.randn(3, 4, 8), torch.randn(5, 2, 8)
    for kernel, grouped in ((newer, True), (older, False)):
        monkeypatch.setattr(theirs, "varlen_attn", kernel)
        for window, expected in ((0, (-1, 0)), (4, (3, 0))):
            varlen.attend_with_torch(query, key, key, build_segment_boundaries([3], [5], "cpu"), scale=0.5, window=window, softcap=0.0)
            assert seen["window_size"] == expected and seen["enable_gqa"] == grouped and seen["scale"] == 0.5
            assert seen["lengths"][2:] == (3, 5)
    with pytest.raises(NotImplementedError, match="soft cap"):
        varlen.attend_with_torch(query, key, key, build_segment_boundaries([3], [5], "cpu"), scale=None, window=0, softcap=30.0)
