"""The policy: compute the log-probabilities that a causal language model gives to the chosen tokens.

The output head is applied only at policy tokens, in tiles (see `rlvr.training.update.output_head`). The temperature divides the
logits, so the log-probabilities are those of the sampled distribution. The model is always in evaluation mode: in training
mode, dropout and router noise would make the ratio between two passes depend on two random masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlvr.errors import ConfigError, RlvrError
from rlvr.models.batch import Batch
from rlvr.models.compiled_layers import select_forward, use_compiled_layers
from rlvr.models.device_defaults import get_device_defaults
from rlvr.models.layout_attention import are_close, build_layout_kwargs
from rlvr.samplers._sampling_support import LogitMask
from rlvr.training.update.output_head import (
    FULL_PRECISION_DTYPES,
    LogitTransform,
    compute_full_logprobs,
    compute_token_logprobs,
    detect_logit_transform,
    get_trunk,
)

T = TypeVar("T")


class PolicyOutputs(NamedTuple):
    """The policy's outputs at each policy token.

    >>> PolicyOutputs._fields
    ('logprobs', 'entropy', 'values', 'divergence')
    """

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None
    divergence: Tensor | None = None

    def to_loss_inputs(self) -> dict[str, Any]:
        """Return entropy, values and divergence as keyword arguments of LossInputs."""
        return {"entropy": self.entropy, "values": self.values, "divergence": self.divergence}


class Policy(nn.Module):
    """A causal language model, with a critic's head if the algorithm needs one.

    >>> Policy(model, temperature=1.0)(batch).logprobs  # doctest: +SKIP
    """

    def __init__(self, model: Any, *, temperature: float = 1.0, value_head: bool = False, fp32_head: bool = False) -> None:
        super().__init__()
        self.model = model.eval()
        self._no_split_modules = getattr(model, "_no_split_modules", None)  # the modules that FSDP must not split
        self.temperature = temperature
        size = model.config.get_text_config().hidden_size
        self.value: nn.Module | None = nn.Linear(size, 1) if value_head else None
        """The critic: a linear head on the policy's hidden states, or a network of its own (see `rlvr.training.update.networks.critic`)."""
        if isinstance(self.value, nn.Linear):
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)
            self.value.to(device=next(model.parameters()).device, dtype=next(model.parameters()).dtype)
        self.fp32_head = fp32_head
        self.uses_compiled_layers = False
        """True if the layers compiled by `rlvr.models.compiled_layers` are used."""
        self.make_logit_filter: Callable[[Batch], LogitMask] | None = None
        """Builds the filter that applies top_p and top_k to the logits of a batch (see `rlvr.samplers._sampling_support`); None: no filter.
        """
        self.divergence: Callable[[Policy, Batch, Tensor], Tensor] | None = None
        """Computes the divergence from a teacher (see `rlvr.training.update.networks.teacher_divergence`); None without a teacher."""
        self.logit_transform: LogitTransform | None = None
        """The logit transform after the head; None: the model computes logits itself, as its head is not linear or has an adapter."""
        if not has_no_weights(model):
            self.detect_logit_transform()

    def train(self, mode: bool = True) -> Self:
        """Ignore the requested mode and keep the model in evaluation mode; called by torch and wrappers."""
        super().train(mode)
        self.model.eval()
        return self

    def detect_logit_transform(self) -> None:
        """Detect the logit transform. A model without weights is tested after its weights are loaded."""
        self.logit_transform = detect_logit_transform(self.model, _make_probe_tokens(self.model))

    def run_with_weights(self, work: Callable[[], T]) -> T:
        """Run a function that uses the model's weights; FSDP gathers sharded weights for it layer by layer."""
        return work()

    def forward(self, batch: Batch, entropy: bool = False, values: bool = False) -> PolicyOutputs:
        """Compute the outputs at the policy tokens of a micro-batch."""
        if self.logit_transform is None:
            return self._forward_full_logits(batch, entropy, values)
        cut = None if self.make_logit_filter is None else self.make_logit_filter(batch)
        head, form, fp32 = self.model.get_output_embeddings(), self.logit_transform, self.fp32_head
        with use_compiled_layers() if self.uses_compiled_layers else nullcontext():
            hidden = self.compute_hidden_states(batch)
            logprobs, entropies = compute_token_logprobs(
                hidden,
                head.weight,
                head.bias,
                batch.targets,
                temperature=self.temperature,
                entropy=entropy,
                logit_transform=form,
                fp32_operands=fp32,
                logit_mask=cut,
            )
        far = self.divergence(self, batch, hidden) if self.divergence is not None and torch.is_grad_enabled() else None
        return PolicyOutputs(logprobs, entropies, self._compute_values(batch, hidden, logprobs.dtype) if values else None, far)

    def compute_hidden_states(self, batch: Batch) -> Tensor:
        """Compute the hidden state before each policy token, as the input of the output head."""
        states = get_trunk(self.model)(input_ids=batch.input_ids, **_build_model_kwargs(batch)).last_hidden_state
        return states.reshape(-1, states.shape[-1]).index_select(0, batch.source_positions)

    def compute_vocab_logprobs(self, hidden: Tensor) -> Tensor:
        """Compute the log-probability of every token of the vocabulary from hidden states, at least in float32, without a filter of top_p."""
        head = self.model.get_output_embeddings()
        wide = hidden.dtype if hidden.dtype in FULL_PRECISION_DTYPES else torch.float32
        bias = None if head.bias is None else head.bias.to(wide)
        logits = nn.functional.linear(hidden.to(wide), head.weight.to(wide), bias)
        return ((self.logit_transform or LogitTransform())(logits) / self.temperature).log_softmax(-1)

    def iter_head_tiles(self, hidden: Tensor) -> Iterator[slice]:
        """Yield slices of hidden states whose logits fit into memory together."""
        size = max(1, get_device_defaults(hidden.device).max_head_logits // len(self.model.get_output_embeddings().weight))
        yield from (slice(start, start + size) for start in range(0, len(hidden), size))

    @torch.no_grad()
    def compute_vocab_statistic(self, batch: Batch, statistic: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Compute a number for each policy token from the log-probabilities of the whole vocabulary there: `statistic` gets those of some
        tokens, [tokens, vocabulary], and the ids that were sampled.
        """
        if self.logit_transform is None:
            logits = self.model(input_ids=batch.input_ids, **_build_model_kwargs(batch)).logits
            return statistic(self._select_logits(logits, batch).log_softmax(-1), batch.targets)
        hidden = self.compute_hidden_states(batch)
        with torch.autocast(hidden.device.type, enabled=False):
            found = [statistic(self.compute_vocab_logprobs(hidden[tile]), batch.targets[tile]) for tile in self.iter_head_tiles(hidden)]
        return torch.cat(found) if found else hidden.sum(-1)

    def _select_logits(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the logits at the policy tokens, at least in float32 and divided by the temperature."""
        logits = logits.reshape(-1, logits.shape[-1]).index_select(0, batch.source_positions)
        return (logits if logits.dtype == torch.float64 else logits.float()) / self.temperature

    def _forward_full_logits(self, batch: Batch, entropy: bool, values: bool) -> PolicyOutputs:
        """Compute the outputs if the model itself must compute the logits, for all positions."""
        with use_compiled_layers() if self.uses_compiled_layers else nullcontext():
            out = self.model(input_ids=batch.input_ids, output_hidden_states=values, **_build_model_kwargs(batch))
        logits = self._select_logits(out.logits, batch)
        logits = logits if self.make_logit_filter is None else self.make_logit_filter(batch)(logits, slice(None))
        logprobs, entropies = compute_full_logprobs(logits, batch.targets, entropy=entropy)
        if not values:
            return PolicyOutputs(logprobs, entropies, None)
        hidden = out.hidden_states[-1].flatten(0, 1).index_select(0, batch.source_positions)
        return PolicyOutputs(logprobs, entropies, self._compute_values(batch, hidden, logprobs.dtype))

    def _compute_values(self, batch: Batch, hidden: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Compute the critic's value for each token."""
        if self.value is None:
            return None
        found: Tensor = self.value(hidden).sum(-1) if isinstance(self.value, nn.Linear) else self.value(batch)
        return found.to(dtype)


def _build_model_kwargs(batch: Batch) -> dict[str, Any]:
    """Build the model's keyword arguments for the layout of a batch."""
    return {"use_cache": False} if batch.layout is None else build_layout_kwargs(batch.layout, batch.layout.positions)


def require_float32(outputs: PolicyOutputs) -> PolicyOutputs:
    """Return the outputs; raise if they are less precise than float32. In bfloat16 a log-probability of -6 has steps of 0.03, which is noise."""
    if outputs.logprobs.dtype not in FULL_PRECISION_DTYPES:
        raise _build_precision_error(outputs.logprobs.dtype)
    return outputs


def _build_precision_error(dtype: torch.dtype) -> RlvrError:
    return RlvrError(
        f"the log-probabilities are {dtype}, and must be float32; a wrapper of the model casts its outputs: "
        "remove output_dtype from its mixed-precision policy"
    )


def has_no_weights(model: nn.Module) -> bool:
    """Return whether a model has no weights yet, on the meta device."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


@torch.no_grad()
def check_deterministic_forward(model: Any) -> None:
    """Raise ConfigError if a model's log-probabilities differ between passes, which would make ratios noise."""
    first, again = (model(input_ids=_make_probe_tokens(model), use_cache=False).logits.float() for _ in range(2))
    if not are_close(again, first, model.dtype):
        raise ConfigError(
            f"a model of the family {model.config.model_type} gives different probabilities each time it scores the same tokens (by "
            f"{float((again - first).abs().max()):.2g}), although it is in evaluation mode: dropout or router noise stays on, and its "
            "gradients would be noise; set it to 0 in its config.json or in model.config"
        )


def _make_probe_tokens(model: Any) -> Tensor:
    embedding = model.get_input_embeddings().weight
    return torch.arange(1, 9, device=embedding.device)[None] % embedding.shape[0]


def enable_gradient_checkpointing(model: nn.Module) -> None:
    """Recompute each decoder layer in the backward pass, keeping only its inputs.

    transformers' own implementation needs training mode, which turns dropout and router noise on.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"train.gradient_checkpointing is true, but a {type(model).__name__} has no layers for it; set it to false")
    for layer in layers:
        layer.forward = MethodType(_forward_checkpointed, layer)  # bound: a copy of the model gets its own


def _forward_checkpointed(self: Any, *args: Any, **kwargs: Any) -> Any:
    once = partial(select_forward(self), self)
    if not torch.is_grad_enabled():
        return once(*args, **kwargs)
    return checkpoint(once, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
