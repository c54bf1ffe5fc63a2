"""What a run is started with from Python: names and mappings become a `RunConfig`, objects are kept as they are.

`resolve_run_inputs` is the first step of `rlvr.train` and of `Trainer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config.config import RunConfig, load_config, validate_config
from rlvr.config.overrides import apply_overrides
from rlvr.config.rollout import RolloutConfig
from rlvr.config.training import TrainConfig
from rlvr.contracts import Environment, Tokenizer
from rlvr.contracts.algorithm import Algorithm
from rlvr.contracts.tokenizer import LoadedModel
from rlvr.errors import ConfigError, format_suggestion
from rlvr.hints import explain_keyword

OBJECT_PREFIX = "object:"
"""How a configuration names an object that was given from Python; a run with one cannot be repeated from its configuration alone."""
DEFAULT_SECTIONS: Mapping[str, Any] = {
    "seed": 0,
    "rollout": {"prompts_per_step": 4, "num_generations": 4},
    "train": {"steps": 10, "learning_rate": 1e-6},
    "eval": {"tasks": 30},
    "log": {"save_every": 10},
}
"""The sizes of a run without a recipe: small, so that a first call ends."""


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The configuration of a run, and the objects that replace what it names.

    >>> RunInputs(load_config("quickstart")).environment is None
    True
    """

    config: RunConfig
    model: Any = None
    tokenizer: Tokenizer | None = None
    environment: Environment | None = None
    algorithm: Algorithm | None = None


def resolve_run_inputs(
    recipe: RunConfig | str | Path | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    env: Any = None,
    algorithm: Any = None,
    **sections: Any,
) -> RunInputs:
    """Make the configuration of a run from a recipe, settings by dotted key, sections, and plugins by name or as objects.

    Args:
        recipe: a configuration, the name of a recipe, a YAML file, a mapping, or None: then env and model must be given.
        settings: values by dotted key, {"train.steps": 5}; or as on the command line, ["train.steps=5"].
        model: a folder or a Hub id, a mapping (the section `model`), or a model object.
        tokenizer: a name, a folder, a Hub id, or a tokenizer object.
        env: a name, a mapping, or an environment object.
        algorithm: a name, a mapping, or an algorithm object.
        sections: sections of the configuration, such as train={"steps": 5}, or seed=1; and keys of the sections `train` and `rollout`,
            such as steps=5, learning_rate=1e-6, num_generations=8.
    """
    overrides, objects = list[str](), dict[str, Any]()
    if isinstance(model, LoadedModel):
        model, tokenizer = model.model, model.tokenizer if tokenizer is None else tokenizer
    for name, value, kind in (("env", env, Environment), ("algorithm", algorithm, Algorithm)):
        if isinstance(value, kind):
            objects["environment" if name == "env" else name] = value
            overrides.append(f"{name}={json.dumps({'name': _name_object(value)})}")
        elif value is not None:
            overrides.append(f"{name}={json.dumps({'name': value} if isinstance(value, str) else value)}")
    if isinstance(model, str | Path):
        overrides += [f"model={json.dumps({'path': str(model)})}", "tokenizer=null"]
    elif isinstance(model, Mapping):
        overrides.append(f"model={json.dumps(model)}")
    elif model is not None:
        if tokenizer is None and not getattr(model.config, "_name_or_path", ""):
            raise ConfigError(f"the model is a {type(model).__name__} object and no tokenizer is given; give tokenizer= too")
        objects["model"] = model
        overrides.append(f"model={json.dumps({'path': _name_object(model)})}")
        tokenizer = model.config._name_or_path if tokenizer is None else tokenizer
    if isinstance(tokenizer, str | Path):
        overrides.append(f"tokenizer={json.dumps(str(tokenizer))}")
    elif tokenizer is not None:
        objects["tokenizer"] = tokenizer
        overrides.append(f"tokenizer={json.dumps(_name_object(tokenizer))}")
    for section, value in sections.items():
        if section not in RunConfig.model_fields:
            overrides.append(f"{_find_section(section)}.{section}={json.dumps(value)}")
        elif isinstance(value, Mapping):
            overrides += [f"{section}.{key}={json.dumps(inner)}" for key, inner in value.items()]
        else:
            overrides.append(f"{section}={json.dumps(value)}")
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            known = "." in key or key in RunConfig.model_fields
            overrides.append(f"{key if known else f'{_find_section(key)}.{key}'}={json.dumps(value)}")
    else:
        overrides += list(settings or ())
    return RunInputs(_load(recipe, overrides), **objects)


def _find_section(key: str) -> str:
    """Return the section of a key that is given without one: `train` or `rollout`."""
    for section, fields in (("train", TrainConfig.model_fields), ("rollout", RolloutConfig.model_fields)):
        if key in fields:
            return section
    known = [*RunConfig.model_fields, *TrainConfig.model_fields, *RolloutConfig.model_fields]
    raise ConfigError(f"there is no setting {key!r}; {explain_keyword(key) or format_suggestion(key, known)}")


def _load(recipe: Any, overrides: Sequence[str]) -> RunConfig:
    if isinstance(recipe, RunConfig):
        data = recipe.model_dump(mode="json")
        return validate_config(apply_overrides(data, overrides), "the configuration") if overrides else recipe
    if isinstance(recipe, str | Path):
        return load_config(recipe, overrides)
    if recipe is None or isinstance(recipe, Mapping):
        made = apply_overrides(dict(DEFAULT_SECTIONS if recipe is None else recipe), overrides)
        if "env" not in made:
            raise ConfigError("no environment is given; write env='arithmetic', data='train.jsonl', or name a recipe")
        if "model" not in made:
            raise ConfigError("no model is given; write model='Qwen/Qwen2.5-0.5B-Instruct', a folder, or a model object")
        return validate_config(made, "the call")
    raise ConfigError(f"the recipe is a {type(recipe).__name__}; give the name of a recipe, a YAML file, a mapping or a RunConfig")


def _name_object(value: Any) -> str:
    return f"{OBJECT_PREFIX}{type(value).__name__}"
