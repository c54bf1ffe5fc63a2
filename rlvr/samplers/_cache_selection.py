"""Choose the KV cache that the hf sampler uses for a model.

    SlotCache             fast; for models with attention only, plain or with a sliding window
    PaddedCache           for other kinds of attention: a soft cap, a mask of its own
    LengthGroupedCache    for models with another state (a recurrence, a convolution) that the cache of transformers stores
    RecomputingCache      slow; for models that keep a state elsewhere

Each is tested on a few tokens against plain forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlvr.errors import ConfigError
from rlvr.models.layout_attention import are_close, try_enable_layout
from rlvr.samplers._length_grouped_cache import LengthGroupedCache
from rlvr.samplers._padded_cache import PaddedCache
from rlvr.samplers._recomputing_cache import RecomputingCache
from rlvr.samplers._slot_cache import SlotCache

KVCache = SlotCache | PaddedCache | LengthGroupedCache | RecomputingCache
UNLIMITED = (0.0, float("inf"))
PADDED_LENGTHS, EQUAL_LENGTHS = (6, 3), (4, 4)
"""Prompt lengths of a test: with padding, and without."""
PERTURBATION_SCALE, PERTURBED_TOLERANCE, LOW_PRECISION_PERTURBED_TOLERANCE = 8.0, 1e-4, 0.1
"""Scale of linear layer outputs in a perturbed model; and the tolerance of its logits, relative to the largest one: in float32, and in
16 bits."""


def find_slot_cache_problem(model: Any) -> str:
    """Return why the slot cache cannot be used for a model; empty if it can."""
    return try_enable_layout(model, lambda: _compute_reference_logits(model), lambda: _compute_cache_logits(model, SlotCache(model)))


@torch.no_grad()
def choose_fallback_cache(model: Any) -> type[PaddedCache] | type[LengthGroupedCache] | type[RecomputingCache]:
    """Choose the cache for a model that cannot use slots. Raises ConfigError if none reproduces the model's probabilities."""
    training = model.training
    model.eval()
    try:
        expected, reason = _compute_reference_logits(model), ""
        for kind in (PaddedCache, LengthGroupedCache, RecomputingCache):
            try:
                memory = kind(model)
                found = _compute_cache_logits(model, memory)
                held = isinstance(memory, RecomputingCache) or memory.supports_all_layers
                unfit = (kind is LengthGroupedCache and _has_inconsistent_cached_steps(model)) or (
                    kind is PaddedCache and _is_padded_cache_wrong(model)
                )
                if held and are_close(found, expected, model.dtype) and not unfit:
                    return kind
                reason = f"its log-probabilities differ by {float((found - expected).abs().max()):.2g} from a plain forward pass"
            except Exception as error:  # each model family fails differently
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        model.train(training)
    raise ConfigError(f"the hf sampler cannot sample from a model of the family {model.config.model_type} ({reason}); sample with vllm")


@contextmanager
def _perturb_linear_layers(model: Any) -> Iterator[None]:
    """Within this context, scale the output and change the bias of every linear layer but the head, to simulate other weights."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not model.get_output_embeddings()]

    def other(module: Any, given: Any, output: Tensor) -> Tensor:
        bias = 4 * PERTURBATION_SCALE * torch.sin(7.0 * torch.arange(output.shape[-1], device=output.device))
        return PERTURBATION_SCALE * output + bias.to(output.dtype)

    hooks = [layer.register_forward_hook(other) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _has_inconsistent_cached_steps(model: Any) -> bool:
    """Return whether a model's cached steps differ from its forward pass.

    In a new model a difference may be small and grow when training changes the weights; so the two are compared with perturbed weights. One
    case is known: transformers limits the time step of Mamba 2 in the forward pass, but not in cached steps.
    """
    if any(tuple(getattr(module, "time_step_limit", UNLIMITED)) != UNLIMITED for module in model.modules()):
        return True
    with _perturb_linear_layers(model):
        expected, found = _compute_reference_logits(model), _compute_cache_logits(model, LengthGroupedCache(model))
    room = PERTURBED_TOLERANCE if model.dtype in (torch.float32, torch.float64) else LOW_PRECISION_PERTURBED_TOLERANCE
    return not bool((found - expected).abs().max() <= room * expected.abs().max())


def _is_padded_cache_wrong(model: Any) -> bool:
    """Return whether `PaddedCache` differs from a plain forward pass for prompts of equal length.

    transformers drops a mask without padding. An attention with a mask of its own may then look ahead: Doge does in version 4.56.
    """
    return not are_close(
        _compute_cache_logits(model, PaddedCache(model), EQUAL_LENGTHS), _compute_reference_logits(model, EQUAL_LENGTHS), model.dtype
    )


def _make_test_tokens(model: Any, prompt_lengths: tuple[int, int]) -> tuple[list[list[int]], list[int]]:
    """Make two prompts, and the tokens that follow: one for the first, two for the second."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return [[(7 * j + 3) % vocabulary for j in range(length)] for length in prompt_lengths], [k % vocabulary for k in (5, 2, 9)]


def _compute_reference_logits(model: Any, prompt_lengths: tuple[int, int] = PADDED_LENGTHS) -> Tensor:
    """Compute the logits after the prompts and each following token, with plain forward passes of one row."""
    (long, short), (a, b, c) = _make_test_tokens(model, prompt_lengths)
    rows = (torch.tensor([row], device=model.device) for row in ([*long, a], [*short, b, c]))
    return torch.cat([model(input_ids=row, use_cache=False).logits[0, -n:].float() for row, n in zip(rows, (2, 3), strict=True)])


def _compute_cache_logits(model: Any, cache: KVCache, prompt_lengths: tuple[int, int] = PADDED_LENGTHS) -> Tensor:
    """Compute the reference logits with a cache: two steps of both rows, then the first row ends and the second moves to its slot."""
    prompts, (a, b, c) = _make_test_tokens(model, prompt_lengths)
    long, short = map(len, prompts)

    tensor = partial(torch.tensor, device=model.device)
    cache.add_rows(prompts, [0, 1], first_row=0, max_rows=2)
    first = cache.step(tensor([prompt[-1] for prompt in prompts]), tensor([long - 1, short - 1]))
    then = cache.step(tensor([a, b]), tensor([long, short]))
    cache.compact(1, tensor([0]), tensor([1]))
    last = cache.step(tensor([c]), tensor([short + 1]))
    return torch.stack([first[0], then[0], first[1], then[1], last[0]])
