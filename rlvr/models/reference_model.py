"""Checks of a separate reference model (`reference.path`): the teacher of a distillation, or the anchor of a KL penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from rlvr.config.config import RunConfig
from rlvr.contracts import Tokenizer
from rlvr.contracts.algorithm import Algorithm
from rlvr.errors import ConfigError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.models.numerics_check import check_context_window


def check_reference_model(config: RunConfig, algorithm: Algorithm, mdp: TokenMDP, max_prompt_length: int) -> None:
    """Raise ConfigError if the reference is missing or unused, has another vocabulary than the policy, or a too short context window.

    `max_prompt_length` is the length of the longest prompt.
    """
    name, reference = config.algorithm["name"], config.reference
    if reference is None:
        if algorithm.traits.needs_teacher:
            raise ConfigError(f"{name} learns from a teacher, and reference.path is not set; set it to the folder of a model")
        return
    if not algorithm.traits.needs_reference:
        raise ConfigError(
            f"reference.path is {reference.path!r}, but {name} without a KL has no reference; set algorithm.beta, or remove it"
        )
    if algorithm.traits.syncs_reference:
        raise ConfigError(
            "algorithm.ref_model_sync_steps moves the reference toward the policy, and reference.path is another model; remove one"
        )
    folder = reference.local_folder
    _check_same_vocabulary(reference.path, folder, mdp.tokenizer)
    try:
        settings = AutoConfig.from_pretrained(folder)
    except Exception as error:  # each library raises its own error
        raise ConfigError(f"reference.path {reference.path!r} contains no model: {' '.join(str(error).split())[:300]}") from error
    check_context_window(mdp, settings, max_prompt_length, f"the model in reference.path {reference.path!r}")


def _check_same_vocabulary(path: str, folder: Path, tokenizer: Tokenizer) -> None:
    try:
        theirs = load_tokenizer(str(folder))
    except ConfigError as error:
        raise ConfigError(f"reference.path {path!r} has no tokenizer to compare with the policy's: {error}") from error
    ours, others = (get_vocabulary(t) for t in (tokenizer, theirs))
    if ours != others:
        differs = next((token for token in [*others, *ours] if ours.get(token) != others.get(token)), "")
        raise ConfigError(
            f"the model in reference.path {path!r} has another tokenizer than the policy ({len(others)} tokens and {len(ours)}; "
            f"{differs!r} differs), so their probabilities cannot be compared; use a model of the same family"
        )


def get_vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of all tokens; only the vocabulary size for a tokenizer that transformers cannot save."""
    whole: Any = to_transformers_tokenizer(tokenizer)
    return {"": tokenizer.vocab_size} if whole is None else dict(whole.get_vocab())
