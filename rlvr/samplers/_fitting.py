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
from rlvr.model.attention import adopt, alike
from rlvr.samplers._by_length import ByLength
from rlvr.samplers._padded import Padded
from rlvr.samplers._recomputed import Recomputed
from rlvr.samplers._slots import Slots

Memory = Slots | Padded | ByLength | Recomputed
UNLIMITED = (0.0, float("inf"))
PADDED, EQUAL = (6, 3), (4, 4)
"""Prompt lengths of a test: with padding, and without."""
STIR, STIRRED_ROOM, LOW_STIRRED_ROOM = 8.0, 1e-4, 0.1
"""Scale of linear layer outputs in a perturbed model; and the tolerance of its logits, relative to the largest one: in float32, and in
16 bits."""


def fits(model: Any) -> str:
    """Return why the slot cache cannot be used for a model; empty if it can."""
    return adopt(model, lambda: _truth(model), lambda: _trial(model, Slots(model)))


@torch.no_grad()
def without_slots(model: Any) -> type[Padded] | type[ByLength] | type[Recomputed]:
    """Choose the cache for a model that cannot use slots. Raises ConfigError if none reproduces the model's probabilities."""
    training = model.training
    model.eval()
    try:
        expected, reason = _truth(model), ""
        for kind in (Padded, ByLength, Recomputed):
            try:
                memory = kind(model)
                found = _trial(model, memory)
                held = isinstance(memory, Recomputed) or memory.holds_all
                unfit = (kind is ByLength and steps_differ(model)) or (kind is Padded and fails_unpadded(model))
                if held and alike(found, expected, model.dtype) and not unfit:
                    return kind
                reason = f"its log-probabilities differ by {float((found - expected).abs().max()):.2g} from a plain forward pass"
            except Exception as error:  # each model family fails differently
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        model.train(training)
    raise ConfigError(f"the hf sampler cannot sample from a model of the family {model.config.model_type} ({reason}); sample with vllm")


@contextmanager
def stirred(model: Any) -> Iterator[None]:
    """Within this context, scale the output and change the bias of every linear layer but the head, to simulate other weights."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not model.get_output_embeddings()]

    def other(module: Any, given: Any, output: Tensor) -> Tensor:
        bias = 4 * STIR * torch.sin(7.0 * torch.arange(output.shape[-1], device=output.device))
        return STIR * output + bias.to(output.dtype)

    hooks = [layer.register_forward_hook(other) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def steps_differ(model: Any) -> bool:
    """Return whether a model's cached steps differ from its forward pass.

    In a new model a difference may be small and grow when training changes the weights; so the two are compared with perturbed weights. One
    case is known: transformers limits the time step of Mamba 2 in the forward pass, but not in cached steps.
    """
    if any(tuple(getattr(module, "time_step_limit", UNLIMITED)) != UNLIMITED for module in model.modules()):
        return True
    with stirred(model):
        expected, found = _truth(model), _trial(model, ByLength(model))
    room = STIRRED_ROOM if model.dtype in (torch.float32, torch.float64) else LOW_STIRRED_ROOM
    return not bool((found - expected).abs().max() <= room * expected.abs().max())


def fails_unpadded(model: Any) -> bool:
    """Return whether `PaddedCache` differs from a plain forward pass for prompts of equal length.

    transformers drops a mask without padding. An attention with a mask of its own may then look ahead: Doge does in version 4.56.
    """
    return not alike(_trial(model, Padded(model), EQUAL), _truth(model, EQUAL), model.dtype)


def _material(model: Any, lengths: tuple[int, int]) -> tuple[list[list[int]], list[int]]:
    """Make two prompts, and the tokens that follow: one for the first, two for the second."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return [[(7 * j + 3) % vocabulary for j in range(length)] for length in lengths], [k % vocabulary for k in (5, 2, 9)]


def _truth(model: Any, lengths: tuple[int, int] = PADDED) -> Tensor:
    """Compute the logits after the prompts and each following token, with plain forward passes of one row."""
    (long, short), (a, b, c) = _material(model, lengths)
    rows = (torch.tensor([row], device=model.device) for row in ([*long, a], [*short, b, c]))
    return torch.cat([model(input_ids=row, use_cache=False).logits[0, -n:].float() for row, n in zip(rows, (2, 3), strict=True)])


def _trial(model: Any, memory: Memory, lengths: tuple[int, int] = PADDED) -> Tensor:
    """Compute the reference logits with a cache: two steps of both rows, then the first row ends and the second moves to its slot."""
    prompts, (a, b, c) = _material(model, lengths)
    long, short = map(len, prompts)

    tensor = partial(torch.tensor, device=model.device)
    memory.fill(prompts, [0, 1], start=0, rows=2)
    first = memory.step(tensor([prompt[-1] for prompt in prompts]), tensor([long - 1, short - 1]))
    then = memory.step(tensor([a, b]), tensor([long, short]))
    memory.close_up(1, tensor([0]), tensor([1]))
    last = memory.step(tensor([c]), tensor([short + 1]))
    return torch.stack([first[0], then[0], first[1], then[1], last[0]])
