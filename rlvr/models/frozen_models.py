"""Checks of the models of the section `frozen_models`, and of the tokenizers that models were trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from rlvr.config.config import ModelConfig, RunConfig
from rlvr.contracts import Tokenizer
from rlvr.contracts.algorithm import Algorithm
from rlvr.errors import ConfigError, format_suggestion
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.models.numerics_check import check_context_window


def check_frozen_models(config: RunConfig, algorithm: Algorithm, mdp: TokenMDP, max_prompt_length: int) -> None:
    """Raise ConfigError if a frozen model is missing or unused, has another vocabulary than the policy, or a too short context window.

    `max_prompt_length` is the length of the longest prompt.
    """
    name, given, wanted = config.algorithm["name"], config.frozen_models, algorithm.traits.scoring_models
    for other in given:
        if other == "reference" and other not in wanted:
            raise ConfigError(f"frozen_models.reference is set, but {name} without a KL has no reference; set algorithm.beta, or remove it")
        if other not in wanted:
            has_kl = hasattr(getattr(algorithm, "settings", None), "beta")
            known = format_suggestion(other, {*wanted, *(["reference"] if has_kl else [])}) if wanted or has_kl else "remove it"
            known += " (reference needs algorithm.beta above 0)" if has_kl and "reference" not in wanted else ""
            raise ConfigError(f"frozen_models.{other} is set, but {name} has no model of that name; {known}")
    if missing := [other for other in algorithm.traits.frozen_models if other not in given]:
        raise ConfigError(f"{name} learns from another model, and frozen_models.{missing[0]} is not set; set it to the folder of a model")
    if algorithm.traits.syncs_reference and "reference" in given:
        raise ConfigError(
            "algorithm.ref_model_sync_steps moves the reference toward the policy, and frozen_models.reference is another model; remove one"
        )
    for other, model in given.items():
        where = f"frozen_models.{other} {model.path!r}"
        folder = model.local_folder
        _check_same_vocabulary(where, folder, mdp.tokenizer)
        try:
            settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # each library raises its own error
            raise ConfigError(f"{where} contains no model: {' '.join(str(error).split())[:300]}") from error
        check_context_window(mdp, settings, max_prompt_length, f"the model in {where}")


def _check_same_vocabulary(where: str, folder: Path, tokenizer: Tokenizer) -> None:
    try:
        theirs = load_tokenizer(str(folder))
    except ConfigError as error:
        raise ConfigError(f"{where} has no tokenizer to compare with the policy's: {error}") from error
    ours, others = (_get_vocabulary(t) for t in (tokenizer, theirs))
    if ours != others:
        differs = next((token for token in [*others, *ours] if ours.get(token) != others.get(token)), "")
        raise ConfigError(
            f"the model in {where} has another tokenizer than the policy ({len(others)} tokens and {len(ours)}; "
            f"{differs!r} differs), so their probabilities cannot be compared; use a model of the same family"
        )


def check_policy_tokenizer(model: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise ConfigError if a tokenizer gives a token of text another id than the one in the folder of the policy's model.

    Tokens that were added, such as one for padding, may have other ids.
    """
    try:
        own = load_tokenizer(str(model.local_folder))
    except ConfigError:
        return  # the folder has none
    ours, theirs = _get_vocabulary(tokenizer), _get_vocabulary(own)
    added = {*_get_added_tokens(tokenizer), *_get_added_tokens(own)}
    shared = [token for token in theirs if token in ours and token not in added]
    moved = sorted((token for token in shared if ours[token] != theirs[token]), key=theirs.__getitem__)
    if moved:
        token = moved[0]
        raise ConfigError(
            f"tokenizer is another one than that of the model in {model.path}: {token!r} has the id {ours[token]}, and the model was trained "
            f"with {theirs[token]} ({len(moved)} of {len(shared)} common tokens differ); leave tokenizer out"
        )


def _get_added_tokens(tokenizer: Tokenizer) -> set[str]:
    whole: Any = to_transformers_tokenizer(tokenizer)
    return set() if whole is None else {*whole.get_added_vocab(), *whole.all_special_tokens}


def _get_vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of all tokens; only the vocabulary size for a tokenizer that transformers cannot save."""
    whole: Any = to_transformers_tokenizer(tokenizer)
    return {"": tokenizer.vocab_size} if whole is None else dict(whole.get_vocab())
