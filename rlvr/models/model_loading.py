"""Load the policy from a folder or create it from a configuration; export its tokenizer for transformers."""

from __future__ import annotations

import importlib
import logging
import threading
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rlvr.config.config import ModelConfig
from rlvr.config.hub import RUN_WITHOUT_MODEL
from rlvr.contracts import Tokenizer as TokenizerContract
from rlvr.errors import ConfigError
from rlvr.mdp.tokenizers import EOS, SPECIALS, UNK, ByteTokenizer, CharTokenizer, HFTokenizer, count_tokenizer_ids
from rlvr.models.numerics_check import get_position_limit

_logger = logging.getLogger(__name__)
MODEL_LOAD_LOCK = threading.RLock()
"""Held while a model is created or loaded. transformers temporarily patches its own classes; two threads at once can leave the patches in
place, after which no model of the process has tied weights."""
tokenizers_library: Any = importlib.import_module("tokenizers")  # by name: type checkers confuse `tokenizers` with our own module
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<policy>{{ message.content }}<eos>"
    "{% else %}<user>{{ message.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<policy>{% endif %}"
)


def load_model(config: ModelConfig, tokenizer: TokenizerContract | None = None, seed: int = 0) -> Any:
    """Load or create the policy as a Hugging Face causal language model; a tokenizer is needed only to create one."""
    dtype = getattr(torch, config.dtype)
    if config.path is not None:
        return _load_model_folder(config, dtype)
    torch.manual_seed(seed)
    with MODEL_LOAD_LOCK:
        return _build_new_model(config, tokenizer)


def load_position_limit(config: ModelConfig) -> int | None:
    """Return the longest row that the policy of this configuration can be trained on; None: no limit is known."""
    try:
        if config.path is not None:
            settings = AutoConfig.from_pretrained(config.local_folder, trust_remote_code=config.trust_remote_code)
        else:
            settings = AutoConfig.for_model(**(config.config or {}))
        return get_position_limit(settings)
    except Exception as error:  # what is wrong with the model is said when it is built
        _logger.debug("no limit of positions is known: %s", error)
        return None


def build_meta_model(config: ModelConfig, tokenizer: TokenizerContract | None = None) -> Any:
    """Build the policy without weights: parameters on the meta device, buffers with their values."""
    with MODEL_LOAD_LOCK, init_empty_weights(include_buffers=False):
        if config.path is None:
            model = _build_new_model(config, tokenizer)
        else:
            try:
                settings = AutoConfig.from_pretrained(config.local_folder, trust_remote_code=config.trust_remote_code)
                model = AutoModelForCausalLM.from_config(
                    settings, dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code
                )
            except ConfigError:
                raise
            except Exception as error:  # each library raises its own error
                raise _build_load_error(config.path, error) from error
    model.tie_weights()
    if config.path is not None and (config.local_folder / "generation_config.json").is_file():
        model.generation_config = _make_savable(GenerationConfig.from_pretrained(config.local_folder))
    return model


def _build_new_model(config: ModelConfig, tokenizer: TokenizerContract | None) -> Any:
    """Create a new model with random weights."""
    settings = dict(config.config or {})
    family = settings.pop("model_type", None)
    if not isinstance(family, str):
        raise ConfigError("model.config has no model_type; write for example model_type: qwen2")
    if tokenizer is None:
        raise ConfigError("a model created from a config needs a tokenizer to know its vocabulary")
    ids = {"vocab_size": count_tokenizer_ids(tokenizer), "eos_token_id": tokenizer.eos_id, "bos_token_id": None, "pad_token_id": None}
    try:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(ids | settings)), dtype=getattr(torch, config.dtype))
    except Exception as error:
        raise ConfigError(f"model.config does not build a model: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _load_model_folder(config: ModelConfig, dtype: torch.dtype) -> Any:
    """Load a model from a folder or the Hub; check that no weight is missing, and make its generation config savable."""
    disable_progress_bar()  # only our own progress bar
    name, folder = str(config.path), config.local_folder
    try:
        with MODEL_LOAD_LOCK:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, output_loading_info=True, trust_remote_code=config.trust_remote_code
            )
    except Exception as error:  # a truncated file, other shapes, invalid JSON: each library raises its own error
        raise _build_load_error(name, error) from error
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"model.path {name!r} does not contain a complete causal language model: {len(missing)} weights are missing, such as "
            f"{missing[0]}, and would be random; is it a reward model, or an incomplete copy?"
        )
    model.generation_config = _make_savable(model.generation_config)
    return model


def _build_load_error(folder: str, error: Exception) -> ConfigError:
    if (Path(folder) / "config.yaml").is_file():
        return ConfigError(f"model.path {folder!r} is {RUN_WITHOUT_MODEL}")
    return ConfigError(f"model.path {folder!r} contains no causal language model: {' '.join(str(error).split())[:300]}")


def _make_savable(generation_config: Any) -> Any:
    """Return a generation config that can be saved; one with a temperature but without do_sample, for example, cannot."""
    try:
        generation_config.validate(strict=True)
    except ValueError:
        return GenerationConfig(**{name: getattr(generation_config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")})
    return generation_config


def to_transformers_tokenizer(tokenizer: TokenizerContract) -> Any:
    """Convert the tokenizer to one that transformers can save, so that a checkpoint folder is complete.

    Characters are written as byte-level symbols (a space as Ġ): AutoTokenizer loads any folder whose model is a Qwen2 as a
    byte-level tokenizer, and would lose characters that are not byte-level symbols.
    """
    if isinstance(tokenizer, HFTokenizer):
        return tokenizer.tokenizer
    if not isinstance(tokenizer, CharTokenizer | ByteTokenizer):
        return None
    symbols = tokenizers_library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    one_by_one = tokenizers_library.pre_tokenizers.Split(tokenizers_library.Regex("[\\s\\S]"), "isolated")
    if isinstance(tokenizer, CharTokenizer):
        words, split = [symbols.pre_tokenize_str(char)[0][0] for char in tokenizer.alphabet], [one_by_one, symbols]
    else:
        words, split = _list_byte_symbols(), [symbols, one_by_one]
    words = [*SPECIALS, *words]
    made = tokenizers_library.Tokenizer(
        tokenizers_library.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIALS[UNK])
    )
    made.add_special_tokens(list(SPECIALS))
    made.pre_tokenizer = tokenizers_library.pre_tokenizers.Sequence(split)
    made.decoder = tokenizers_library.decoders.ByteLevel()
    exported = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIALS[EOS], unk_token=SPECIALS[UNK], clean_up_tokenization_spaces=False
    )
    exported.chat_template = CHAT_TEMPLATE
    return exported


def _list_byte_symbols() -> list[str]:
    """List the symbols that byte-level tokenizers write for the bytes 0 to 255.

    >>> _list_byte_symbols()[32], _list_byte_symbols()[97]
    ('Ġ', 'a')
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))  # the bytes without a visible character get those from 256 on, in order
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def count_parameters(model: Any) -> int:
    """Return the number of parameters of a model."""
    return sum(weight.numel() for weight in model.parameters())
