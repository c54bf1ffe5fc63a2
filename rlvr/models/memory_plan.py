"""Estimate the memory of a training run on each device: weights, gradients, optimizer, reference, activations, logits, engine.

No weights are allocated: the model is built on the meta device, where tensors have shapes and no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlvr.config.config import RunConfig
from rlvr.config.hub import resolve_model_folder
from rlvr.errors import ConfigError
from rlvr.mdp.tokenizers import count_tokenizer_ids, load_tokenizer
from rlvr.models.device_defaults import get_device_defaults, resolve_microbatch_tokens, resolve_mixed_precision
from rlvr.models.model_loading import MODEL_LOAD_LOCK

BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}


FREED_AFTER_UPDATE = {"gradients", "gathered weights", "cast weights", "optimizer step", "activations", "logits"}
"""Items that exist only during the update. What is left, such as the weights and the optimizer, stays while an engine samples."""
DEFAULT_MEMORY_FRACTION = 0.4
"""The default of the setting `memory_fraction` of the sampler vllm."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One item of the memory of a device.

    >>> MemoryItem("weights", 28e9, "float32, 4 bytes each").gigabytes
    28.0
    """

    name: str
    bytes: float
    why: str

    @property
    def gigabytes(self) -> float:
        """The size in units of 10^9 bytes."""
        return round(self.bytes / 1e9, 3)

    def to_dict(self) -> dict[str, Any]:
        """Return the item as plain JSON."""
        return asdict(self)


def build_meta_model(config: RunConfig) -> Any:
    """Build the model of a run on the meta device."""
    try:
        if config.model.path is not None:
            family = AutoConfig.from_pretrained(
                resolve_model_folder(config.model.path, config.model.revision, include_weights=False),
                trust_remote_code=config.model.trust_remote_code,
            )
        else:
            given = {"vocab_size": count_tokenizer_ids(load_tokenizer(str(config.tokenizer))), **(config.model.config or {})}
            family = AutoConfig.for_model(given.pop("model_type"), **given)
        with MODEL_LOAD_LOCK, torch.device("meta"):
            return AutoModelForCausalLM.from_config(family, dtype=getattr(torch, config.model.dtype))
    except ConfigError:
        raise
    except Exception as error:  # a missing folder, an unknown family: each raises its own error
        raise ConfigError(f"the model of this recipe cannot be planned: {' '.join(str(error).split())[:200]}") from error


def plan_memory(
    config: RunConfig, device: torch.device, *, processes: int = 1, sharded: bool = False, frozen_models: Sequence[str] = ()
) -> list[MemoryItem]:
    """Estimate the memory of one device, largest item first. `sharded`: FSDP2 over `processes`."""
    model = build_meta_model(config)
    shape, own = model.config.get_text_config(), get_device_defaults(device)
    share = processes if sharded else 1
    weights = sum(p.numel() for p in model.parameters())
    wide, dtype = BYTES_PER_NUMBER[config.model.dtype], config.model.dtype
    mixed = resolve_mixed_precision(config.train.mixed_precision, device, dtype)
    computed = {"no": dtype, "bf16": "bfloat16", "fp16": "float16"}[mixed]
    trained = weights if config.model.lora is None else _count_adapter_parameters(model, config)
    over = f", over {share} devices" if share > 1 else ""
    parts = [
        MemoryItem("weights", weights * wide / share, f"{weights:,} in {dtype}{over}"),
        MemoryItem("gradients", trained * wide / share, f"{trained:,} trained{over}"),
        MemoryItem("optimizer", 2 * trained * wide / share, f"two moments of AdamW{over}"),
    ]
    if sharded:
        parts.append(
            _estimate_gathered_weights(model, BYTES_PER_NUMBER[computed], wide if config.model.fp32_head else BYTES_PER_NUMBER[computed])
        )
    elif computed != dtype:
        parts.append(
            MemoryItem("cast weights", weights * BYTES_PER_NUMBER[computed], f"autocast keeps {computed} copies during a micro-batch")
        )
    if not own.fused_optimizer and device.type != "cpu":
        parts.append(MemoryItem("optimizer step", trained * wide / share, "temporary tensors of an optimizer that is not fused"))
    for name in frozen_models:
        if name in config.frozen_models or config.model.lora is None:  # with the adapter off, the model is its own reference
            about = f"a frozen model{over or ' in each process'}, as large as the policy"
            parts.append(MemoryItem(name, weights * wide / share, about))
    tokens = resolve_microbatch_tokens(config.train.max_tokens_per_microbatch, device)
    kept = estimate_activation_bytes(model, tokens, wide, BYTES_PER_NUMBER[computed], checkpointing=config.train.gradient_checkpointing)
    parts.append(MemoryItem("activations", kept, f"{tokens:,} tokens in {computed}"))
    logits = min(own.max_head_logits, tokens * shape.vocab_size)
    parts.append(MemoryItem("logits", 3 * 4 * logits, f"three tiles of {logits:,} in float32"))
    return sorted([*parts, *_estimate_engine_memory(config, shape, weights, BYTES_PER_NUMBER[computed])], key=lambda part: -part.bytes)


def _estimate_gathered_weights(model: Any, layer_bytes_per_number: int, other_bytes_per_number: int) -> MemoryItem:
    """Estimate what FSDP2 gathers at a time: the current and the next layer, the gradient of one, embedding, norm and head."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [sum(p.numel() for p in module.parameters()) for module in model.modules() if type(module).__name__ in names]
    largest, rest = max(layers, default=0), sum(p.numel() for p in model.parameters()) - sum(layers)
    needed = (2 * layer_bytes_per_number + layer_bytes_per_number + 4) * largest + other_bytes_per_number * rest
    return MemoryItem(
        "gathered weights", float(needed), f"two layers of {largest:,}, the gradient of one, and {rest:,} of embedding and head"
    )


def _count_adapter_parameters(model: Any, config: RunConfig) -> int:
    """Count the parameters of the adapter."""
    assert config.model.lora is not None
    names, head = config.model.lora.target_modules, model.get_output_embeddings()
    layers = [(name.rpartition(".")[2], m) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    return sum(config.model.lora.rank * (m.in_features + m.out_features) for name, m in layers if not names or name in names)


def estimate_activation_bytes(model: Any, tokens: int, weight_bytes: int, compute_bytes: int, *, checkpointing: bool) -> float:
    """Estimate the activations of one micro-batch: residual stream and norms in the precision of the weights (`weight_bytes` bytes), the
    rest in the compute precision. `tests/models/test_plan.py` compares the estimate with counted tensors.
    """
    shape = model.config.get_text_config()
    width, heads = shape.hidden_size, shape.num_attention_heads
    head = getattr(shape, "head_dim", None) or width // heads
    attended = head * (heads + (getattr(shape, "num_key_value_heads", None) or heads))
    normed = any(name.endswith("q_norm") for name, _ in model.named_modules())
    layer = (
        6 * width * weight_bytes
        + (2 * attended + 4 * getattr(shape, "intermediate_size", 4 * width)) * compute_bytes
        + 2 * attended * weight_bytes * normed
    )
    if checkpointing:  # the inputs of all layers, and one layer in full
        return float(tokens * (shape.num_hidden_layers * width * weight_bytes + layer))
    return float(tokens * shape.num_hidden_layers * layer)


def _estimate_engine_memory(config: RunConfig, model_config: Any, num_weights: int, bytes_per_number: int) -> list[MemoryItem]:
    """Estimate the engine of the hf or vllm sampler, if it runs in the training process."""
    sampler = config.rollout.sampler
    kv_heads = getattr(model_config, "num_key_value_heads", None) or model_config.num_attention_heads
    head = getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads
    token = 2 * model_config.num_hidden_layers * kv_heads * head * bytes_per_number
    length = config.rollout.max_length or config.rollout.max_new_tokens or 0
    if sampler["name"] == "hf":
        rows = min(512, config.rollout.prompts_per_step * config.rollout.num_generations)
        return [
            MemoryItem("KV cache", float(token * rows * length), f"hf: up to {rows} answers of {length} tokens, {token:,} bytes a token")
        ]
    if sampler["name"] == "vllm" and sampler.get("placement", "colocated") == "colocated" and sampler.get("sleep", True) is False:
        return [
            MemoryItem("engine", float(num_weights * bytes_per_number), "vllm: its weights, beside the trainer's, as it does not sleep")
        ]
    return []


def estimate_bytes_while_sampling(config: RunConfig, parts: list[MemoryItem], device_bytes: float) -> float:
    """Estimate a GPU's memory while an engine samples that sleeps during the update; 0 without such an engine.

    The estimate is what the trainer keeps, and the engine's fraction of the device.
    """
    sampler = config.rollout.sampler
    shares_gpu = sampler.get("placement", "colocated") == "colocated" or (sampler.get("placement") == "local" and not sampler.get("gpus"))
    if sampler["name"] != "vllm" or not shares_gpu or not sampler.get("sleep", True):
        return 0.0
    kept = sum(part.bytes for part in parts if part.name not in FREED_AFTER_UPDATE)
    return float(kept + sampler.get("memory_fraction", DEFAULT_MEMORY_FRACTION) * device_bytes)


def suggest_savings(parts: list[MemoryItem], config: RunConfig) -> str:
    """Suggest how to reduce the largest item."""
    return {
        "weights": "shard them with FSDP2 (--gpus), or set model.dtype=bfloat16 with model.lora",
        "gradients": "set model.lora.rank, or shard them with FSDP2 (--gpus)",
        "optimizer": "set model.lora.rank, or shard it with FSDP2 (--gpus)",
        "reference": "set algorithm.beta=0, or model.lora.rank: the model without its adapter is the reference",
        "activations": "set train.max_tokens_per_microbatch lower"
        + ("" if config.train.gradient_checkpointing else ", or train.gradient_checkpointing=true"),
        "KV cache": "set rollout.sampler to vllm, or rollout.max_new_tokens lower",
        "engine": "let the engine sleep (rollout.sampler.sleep), or use a server",
    }.get(parts[0].name, "use a smaller model or a larger device")
