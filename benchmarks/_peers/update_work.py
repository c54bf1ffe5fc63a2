"""The workload of `update_vs_trl.py`: models with random weights, and a fixed batch for each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

GENERATIONS = 8


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and the shape of its batch.

    >>> SIZE_PRESETS["1.5b"].num_hidden_layers
    28
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocabularies: tuple[int, ...]
    prompts: int
    prompt: int
    """The tokens of each answer."""
    shortest: int
    longest: int
    rows_at_once: int
    """The size of TRL's micro-batches."""
    tokens_at_once: int
    """Of ours."""


REAL: dict[str, Any] = {
    "vocabularies": (151_936,),
    "prompts": 8,
    "prompt": 256,
    "shortest": 128,
    "longest": 1024,
    "rows_at_once": 8,
    "tokens_at_once": 8192,
}
SIZES = {
    "tiny": Size(
        hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocabularies=(1_000, 32_000, 150_000), prompts=4, prompt=32, shortest=16, longest=128, rows_at_once=32, tokens_at_once=4096,
    ),
    "0.5b": Size(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, **REAL
    ),
    "1.5b": Size(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, **REAL
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """The input of both sides.

    >>> len(Job("tiny", 1000).batch())
    32
    """

    size: str
    vocabulary: int
    device: str = "cpu"
    precision: str = "fp32"

    def batch(self) -> list[dict[str, Any]]:
        """The fixed batch as plain lists; rewards differ inside each group, so every row has a gradient."""
        dice, rows, size = random.Random(0), [], SIZES[self.size]
        for _ in range(size.prompts):
            prompt = [dice.randrange(4, self.vocabulary) for _ in range(size.prompt)]
            for k in range(GENERATIONS):
                length = round(size.shortest * (size.longest / size.shortest) ** (k / (GENERATIONS - 1)))
                said = [dice.randrange(4, self.vocabulary) for _ in range(length)]
                rows.append({"prompt": prompt, "said": said, "reward": dice.random()})
        return rows

    def model(self) -> Any:
        """A Qwen2 with the same weights on both sides, in float32; bf16 is set by autocast."""
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        size = SIZES[self.size]
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=self.vocabulary, hidden_size=size.hidden_size, intermediate_size=size.intermediate_size,
            num_hidden_layers=size.num_hidden_layers, num_attention_heads=size.num_attention_heads,
            num_key_value_heads=size.num_key_value_heads, max_position_embeddings=2 * (size.prompt + size.longest),
            tie_word_embeddings=True,
        )  # fmt: skip
        return Qwen2ForCausalLM(config).to(self.device)
