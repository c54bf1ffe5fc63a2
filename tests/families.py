"""Tiny models of the usual families, some of which attend in ways of their own. For tests of everything that lays tokens out."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 4,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False},
    "qwen3": {},
    "mistral": {"sliding_window": 4},
    "gemma2": {"final_logit_softcapping": 5.0, "sliding_window": 4, "query_pre_attn_scalar": 4},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {},
    "granite": {"logits_scaling": 3.0},
    "phi": {},
}
UNUSUAL = {"mistral", "gemma2"}
"""Those with a sliding window or a soft cap."""


def model_of(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    wanted = {"vocab_size": 32} if family == "gpt2" else SIZES
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**(wanted | FAMILIES[family] | changes)))
    for p in model.parameters():  # large enough that a wrong position or mask shows
        p.data.mul_(3.0 if p.dim() > 1 else 1.0)
    return model.float().eval()
