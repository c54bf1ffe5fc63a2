"""Resolve model names, a folder or a Hugging Face Hub id such as Qwen/Qwen2.5-0.5B, to a local folder."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError, MissingExtra, NotFound

HUB_ID_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
"""ORG/NAME, with @REVISION for a commit, a tag or a branch."""
CONFIG_FILE_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")
"""The files of a tokenizer and a configuration."""
IGNORED_FILE_PATTERNS = ("original/*", "onnx/*", "gguf/*", "coreml/*", "flax_model*", "tf_model*")
"""Weights in other formats, which are not downloaded."""


RUN_WITHOUT_MODEL = "the folder of a run that has saved no checkpoint, so there is no model in it; train it, or resume it with --resume"


def is_model_folder(value: Any) -> bool:
    """Return whether a value names a folder with a model."""
    return isinstance(value, str | Path) and (Path(value) / "config.json").is_file()


@lru_cache(maxsize=64)
def resolve_model_folder(name: str, revision: str | None = None, *, include_code: bool = False, include_weights: bool = True) -> Path:
    """Return the folder of a model: `name` itself, or the local copy of the Hub's files, which are downloaded if necessary.

    Args:
        name: a folder, or ORG/NAME, or ORG/NAME@REVISION.
        revision: a commit, a tag or a branch of the Hub; None: that of the name, or main.
        include_code: also fetch Python files; only for models whose own code may run (`model.trust_remote_code`).
        include_weights: also fetch the weights.
    """
    place = Path(name).expanduser()
    if name and place.is_dir():
        if revision:
            raise ConfigError(f"model.revision is {revision!r}, but {name!r} is a folder; only ids of the Hub have revisions")
        return place
    if not HUB_ID_PATTERN.fullmatch(name):
        raise NotFound(f"{name!r} is not a folder, and not an id of the Hugging Face Hub (ORG/NAME, such as Qwen/Qwen2.5-0.5B)")
    model, _, said = name.partition("@")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise MissingExtra("huggingface_hub", "train", "give a folder") from error
    wanted = [*CONFIG_FILE_PATTERNS, *(["*.py"] if include_code else [])]
    revision = revision or said or None
    try:
        found = Path(snapshot_download(model, revision=revision, allow_patterns=[*wanted, *(["*.safetensors"] if include_weights else [])],
                                       ignore_patterns=list(IGNORED_FILE_PATTERNS)))  # fmt: skip
        if include_weights and not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(model, revision=revision, allow_patterns=[*wanted, "pytorch_model*.bin"]))
    except (OSError, ValueError) as error:
        at = f" --revision {revision}" if revision else ""
        raise NotFound(
            f"the model {model!r} is not on this machine and cannot be fetched from the Hugging Face Hub ({_shorten(error)}). "
            f"Fetch it where the Hub can be reached: `hf download {model}{at} --local-dir DIR`, and give the folder DIR. "
            "A gated model also needs `hf auth login`"
        ) from error
    if not (found / "config.json").is_file():
        raise NotFound(
            f"{model!r} on the Hugging Face Hub, or its copy in {found}, has no config.json; it is not a model that can be loaded"
        )
    return found


def check_remote_code(folder: Path, name: str, *, trusted: bool) -> None:
    """Raise ConfigError if a model brings its own Python code, unless the user trusts it."""
    brings = _find_remote_code_class(folder)
    if brings and not trusted:
        raise ConfigError(
            f"the model {name!r} brings its own code ({brings}), which would run in this process with all your rights. Read it; then set "
            "model.trust_remote_code=true, and for a Hub id model.revision=COMMIT, so that the code you read is the code that runs"
        )


def _find_remote_code_class(folder: Path) -> str:
    """Return the class that a folder's configuration loads from its own Python files; "" if there is none."""
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    own = settings.get("auto_map") if isinstance(settings, dict) else None
    if not isinstance(own, dict) or not own:
        return ""
    return str(own.get("AutoModelForCausalLM") or next(iter(own.values())))


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split()).split(". ")[0][:160] or type(error).__name__
