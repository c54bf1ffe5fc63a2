"""The reward model: a causal model's trunk with a scalar head on the last token of prompt and answer.

It is saved as a sequence classifier of transformers with one label, so that other tools can load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from rlvr.config.config import ModelConfig
from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError
from rlvr.models.model_loading import MODEL_LOAD_LOCK

Rows = Sequence[Sequence[int]]


def build_reward_model(config: ModelConfig, tokenizer: Tokenizer, seed: int) -> Any:
    """Build a classifier with one label: the trunk of an existing model with a new head, or a new model from a configuration."""
    torch.manual_seed(seed)
    transformers.utils.logging.set_verbosity_error()  # suppress the warning about the new head
    dtype = getattr(torch, config.dtype)
    try:
        if config.path is not None:
            with MODEL_LOAD_LOCK:
                made, found = AutoModelForSequenceClassification.from_pretrained(
                    config.local_folder,
                    num_labels=1,
                    dtype=dtype,
                    pad_token_id=None,
                    output_loading_info=True,
                    trust_remote_code=config.trust_remote_code,
                )
            if lost := sorted(name for name in found["missing_keys"] if not name.startswith("score.")):
                raise ConfigError(f"{len(lost)} weights are missing there, such as {lost[0]}, and would be random")
            return made
        settings = dict(config.config or {})
        ids = {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_id, "bos_token_id": None, "pad_token_id": None}
        shape = AutoConfig.for_model(settings.pop("model_type"), **(ids | settings), num_labels=1)
        with MODEL_LOAD_LOCK:
            return AutoModelForSequenceClassification.from_config(shape, dtype=dtype)
    except Exception as error:
        raise ConfigError(
            f"no reward model can be built from {config}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error


class RewardModel(nn.Module):
    """A reward model that scores rows of tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Rows) -> Tensor:
        """Compute one score per row. Padding is on the right, where no real token attends to it."""
        device = next(self.model.parameters()).device
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
        last = torch.tensor([len(row) - 1 for row in rows], device=device)
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        scores: Tensor = self.model.score(hidden[torch.arange(len(rows), device=device), last]).squeeze(-1)
        return scores.float()


def load_reward_model(folder: Path) -> RewardModel:
    """Load a trained reward model for scoring."""
    transformers.utils.logging.set_verbosity_error()  # missing weights are reported below
    try:
        with MODEL_LOAD_LOCK:
            model, found = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder} does not contain a reward model: {' '.join(str(error).split())[:300]}") from error
    if found["missing_keys"] or model.config.num_labels != 1:
        kind = " or ".join(model.config.architectures or ["model"])
        raise ConfigError(
            f"{folder} does not contain a reward model but a {kind} without a head that gives one score; "
            "name the checkpoints/last of a run of `rlvr train reward_model`"
        )
    return RewardModel(model).eval().requires_grad_(False)
