"""What a run is started with from Python: names and mappings become a `RunConfig`, objects are kept as they are.

`resolve_run_inputs` is the first step of `rlvr.train` and of `Trainer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.algorithms.base.algorithm_spec import AlgorithmSpec
from rlvr.config import hub
from rlvr.config.config import (
    LogConfig,
    RunConfig,
    find_recipes,
    load_config,
    translate_flat_keys,
    translate_overrides,
    validate_config,
)
from rlvr.config.overrides import apply_overrides
from rlvr.config.rollout import RolloutConfig
from rlvr.config.training import TrainConfig
from rlvr.conformance.gold_check import find_unreadable_references
from rlvr.contracts import Environment, Tokenizer, Verifier
from rlvr.contracts.algorithm import Algorithm
from rlvr.contracts.tokenizer import LoadedModel
from rlvr.errors import ConfigError, format_suggestion
from rlvr.hints import explain_keyword
from rlvr.mdp.answer_faults import smoke_test_user_functions
from rlvr.mdp.task_data import (
    DATA_ENV,
    describe_text_env,
    is_rows,
    is_task_data,
    list_data_settings,
    make_data_env,
    names_data_source,
    unwrap_environment,
    wrap_verifier_functions,
)
from rlvr.mdp.tokenizers import get_model_vocab_size, load_tokenizer
from rlvr.registry.plugins import build_from_config, get_parameters, list_entries, load_factory
from rlvr.rollout.hang_watchdog import abort_on_blocked_interpreter
from rlvr.rollout.rollout import DEFAULT_CALL_TIMEOUT_S
from rlvr.synonyms import translate_env_name

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
    batch_source: Any = None
    """The class of the user's own batch source, if any."""


def resolve_run_inputs(
    recipe: RunConfig | str | Path | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    env: Any = None,
    data: Any = None,
    verifier: Any = None,
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
        data: data instead of an environment, as in `make_data_env`; or a mapping, the section `data`.
        verifier: with data, or an environment by name: how answers are scored.
        algorithm: a name, a mapping, or an algorithm object.
        sections: sections of the configuration, such as train={"steps": 5}, or seed=1; and keys without their section: of `train`,
            `rollout` and `log` (steps=5, num_generations=8), of the algorithm (beta=0.04), with data those of its environment
            (tools=[...]), and `lora`, the adapter of the model.
    """
    recipe, settings, model, env, data = resolve_positional_arguments(recipe, settings, model, env, data)
    if isinstance(data, Mapping):
        sections, data = {"data": data, **sections}, None
    env = translate_env_name(unwrap_environment(env))
    if (described := describe_text_env(env)) is not None:
        env = build_from_config("env", described)
    if data is None and env is not None and is_task_data(env):  # an environment as in `make_env`
        data, env = env, None
    if isinstance(env, Mapping) and verifier is None and env.get("verifier") is not None and not _is_plain(env["verifier"]):
        verifier, env = env["verifier"], {key: value for key, value in env.items() if key != "verifier"}  # a function, or a verifier
    if isinstance(env, Environment):
        _try_verifier(env)
    sections = dict(sections)
    if data is not None:
        if env is not None:
            raise ConfigError("data and env are both given; data is an environment of its own, so give one of them")
        settings, columns = _split_env_settings(settings)
        if wrong := next((name for name in ("name", "path", "rows") if name in columns), ""):
            raise ConfigError(f"env.{wrong} is set, and data is given, which is an environment of its own; give one of them")
        columns = _take(sections, list_data_settings()) | columns
        env = _make_env_of_data(data, _replace_settings(verifier, columns.pop("verifier", None)), columns)
    elif verifier is not None:
        if env is None or isinstance(env, Environment):
            raise ConfigError(
                "verifier goes with data, or with env as the name of an environment; set it on the environment: "
                "env=rlvr.make_env(name, verifier=...)"
            )
        env, settings = _set_on_environment(
            env, {"verifier": wrap_verifier_functions(verifier), **_take(sections, TOOL_SETTINGS)}, settings
        )
    elif env is not None and not isinstance(env, Environment) and any(name in sections for name in TOOL_SETTINGS):
        env, settings = _set_on_environment(env, _take(sections, TOOL_SETTINGS), settings)
    elif isinstance(env, type):
        env = build_from_config("env", env)
    elif given_tools := [name for name in TOOL_SETTINGS if name in sections]:
        raise ConfigError(
            f"{given_tools[0]} goes with data, or with env as the name of an environment; an environment that is made already gets it "
            f"where it is made: env=rlvr.make_env(name, {given_tools[0]}=...)"
        )
    algorithm = _add_algorithm_settings("grpo" if algorithm is None and recipe is None else algorithm, sections)
    if isinstance(algorithm, Mapping) and not _is_plain(algorithm):  # with a function of the user
        algorithm = build_from_config("algorithm", algorithm)
    if isinstance(sections.get("report_to"), str):
        sections["report_to"] = [] if sections["report_to"] == "none" else [sections["report_to"]]
    if (lora := sections.pop("lora", None)) is not None:
        sections["model"] = {"lora": _read_lora(lora)}
    overrides, objects = list[str](), dict[str, Any]()
    if isinstance(model, LoadedModel):
        model, tokenizer = model.model, model.tokenizer if tokenizer is None else tokenizer
    for name, value, kind in (("env", env, Environment), ("algorithm", algorithm, Algorithm)):
        if isinstance(value, kind):
            objects["environment" if name == "env" else name] = value
            overrides.append(f"{name}={json.dumps(_describe_object(value))}")
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
        objects["tokenizer"] = tokenizer = load_tokenizer(tokenizer, model_vocab_size=get_model_vocab_size(objects.get("model")))
        overrides.append(f"tokenizer={json.dumps(_name_object(tokenizer))}")
    section_of = _find_sections(key for key in sections if key not in RunConfig.model_fields)
    for section, value in sections.items():
        if section in section_of:
            overrides.append(f"{section_of[section]}.{section}={json.dumps(value)}")
        elif isinstance(value, Mapping) and not value and RunConfig.model_fields[section].default is None:
            overrides.append(f"{section}={{}}")  # an empty section is there: data={} trains on the gold solutions
        elif isinstance(value, Mapping):
            overrides += [f"{section}.{key}={json.dumps(inner)}" for key, inner in value.items()]
        else:
            overrides.append(f"{section}={json.dumps(value)}")
    given = _to_overrides(settings)
    if "environment" in objects and (lost := next((one.partition("=")[0] for one in given if re.match(r"env[.=]", one)), "")):
        raise ConfigError(f"{lost} is set, but env is an object, which has its settings already; set it when the environment is made")
    overrides += given
    if recipe is None and isinstance(env, Environment) and "test" not in env.splits:  # such as data of a single row
        overrides = ["eval.tasks=0", *overrides]
    return RunInputs(_load(recipe, overrides), **objects)


def resolve_positional_arguments(recipe: Any, settings: Any, model: Any, env: Any, data: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the arguments of a run, where a model and an environment or data may stand in order, as in `rlvr.evaluate`, in the places of
    the recipe and of its settings.

    >>> import rlvr
    >>> loaded = rlvr.LoadedModel(object(), rlvr.load_tokenizer("chars"))
    >>> resolve_positional_arguments(loaded, "arithmetic", None, None, None)[2:] == (loaded, "arithmetic", None)
    True
    >>> resolve_positional_arguments("arithmetic", None, "DIR", None, None)
    (None, None, 'DIR', 'arithmetic', None)
    """
    second = unwrap_environment(settings)
    if isinstance(recipe, str) and env is None and data is None and _names_environment_only(recipe):
        recipe, env = None, recipe
    names_second = (isinstance(second, str | Path | Environment | type) and not (isinstance(second, str) and "=" in second)) or (
        isinstance(second, Mapping) and "name" in second
    )
    is_override = isinstance(second, Sequence) and all(isinstance(part, str) for part in second)
    has_data = names_data_source(second) or (is_rows(second) and not is_override)
    is_hub_id = isinstance(recipe, str) and bool(hub.HUB_ID_PATTERN.fullmatch(recipe)) and not Path(recipe).exists()
    is_hub_id = is_hub_id and not str(recipe).endswith((".yaml", ".yml", ".toml"))  # a recipe that is not there
    is_model = isinstance(recipe, LoadedModel) or hub.is_model_folder(recipe) or hasattr(recipe, "named_parameters")
    if model is not None or not (is_model or (is_hub_id and (names_second or has_data))):
        if names_second or has_data:
            raise ConfigError(
                f"the second argument is {second!r:.80}, and the first, {recipe!r:.80}, is no folder of a model; write rlvr.train(model=..., "
                f"{'data=..., verifier=...' if has_data else 'env=...'})"
            )
        return recipe, settings, model, env, data
    if has_data and data is None:
        data, settings = second, None
    elif names_second and env is None:
        env, settings = second, None
    elif has_data or names_second:
        raise ConfigError(f"the second argument is {second!r:.80}, and {'data' if has_data else 'env'}= is given too; give one of them")
    return None, settings, recipe, env, data


def _names_environment_only(name: str) -> bool:
    """Whether a name is that of an environment, and of no recipe."""
    return name in [entry.name for entry in list_entries("env")] and name not in find_recipes() and not Path(name).exists()


TOOL_SETTINGS = ("tools", "max_turns", "dialect")
"""Keywords of a run that are settings of an environment with tools."""


def _set_on_environment(env: Any, changes: Mapping[str, Any], settings: Mapping[str, Any] | Sequence[str] | None) -> tuple[Any, Any]:
    """Set a verifier or tools of an environment that is named: a mapping where a configuration can hold it, else an object, with the
    settings of the run that are its own. Returns it and the other settings.
    """
    named = {**(env if isinstance(env, Mapping) else {"name": env}), **changes}
    if _is_plain(named):
        return named, settings
    rest, own = _split_env_settings(settings)
    made = build_from_config("env", {**named, **own})
    if "verifier" in changes:
        _try_verifier(made)
    return made, rest


def _take(given: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Remove the keys of that name, except sections of the configuration, and return them."""
    return {name: given.pop(name) for name in names if name in given and name not in RunConfig.model_fields}


def _split_env_settings(settings: Mapping[str, Any] | Sequence[str] | None) -> tuple[list[str], dict[str, Any]]:
    """Split off the settings of the environment, {"env.question": "frage"}, of a run whose environment is made here."""
    given = _to_overrides(settings)
    own = [one for one in given if one.startswith("env.")]
    found: dict[str, Any] = apply_overrides({}, own).get("env", {})
    return [one for one in given if one not in own], found


def _to_overrides(settings: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """Write settings as on the command line: ["train.steps=5"]."""
    if callable(settings):
        raise ConfigError(f"the settings are {settings!r}; a function that scores answers is a keyword: verifier=function, with data=rows")
    if not isinstance(settings, Mapping):
        return list(settings or ())
    section_of = _find_sections(key for key in settings if "." not in key and key not in RunConfig.model_fields)
    try:
        return [
            f"{section_of[key]}.{key}={json.dumps(value)}" if key in section_of else f"{key}={json.dumps(value)}"
            for key, value in settings.items()
        ]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the settings cannot be written into the record of a run: {error}; they are texts, numbers, lists and mappings. Give an object "
            "as a keyword: env=rlvr.make_env(name, setting=object), model=, verifier="
        ) from None


def _replace_settings(verifier: Any, settings: Any) -> Any:
    """Replace a verifier by that of the settings, or settings of the verifier: {"env.verifier.tolerance": 0.1}."""
    if not isinstance(settings, Mapping) or "name" in settings or verifier is None:
        return verifier if settings is None else settings
    if not isinstance(verifier, str | Mapping):
        raise ConfigError(f"env.verifier.{next(iter(settings))} is set, but the verifier is an object, which has its settings already")
    return {**({"name": verifier} if isinstance(verifier, str) else verifier), **settings}


def _make_env_of_data(data: Any, verifier: Any, settings: Mapping[str, Any]) -> Any:
    """Make the environment of data: a mapping where a configuration can hold it, else an object. Its references must be readable."""
    wanted = None if verifier is None else wrap_verifier_functions(verifier)
    made = make_data_env(data, verifier=wanted, **settings)
    _try_verifier(made)
    find_unreadable_references(made).raise_if_none_readable()
    plain = isinstance(data, str | Path) and not isinstance(wanted, Verifier)
    if not plain or not _is_plain(settings):
        return made
    made.close()
    return {"name": DATA_ENV, "path": str(data), **({} if wanted is None else {"verifier": wanted}), **settings}


def _try_verifier(env: Environment) -> None:
    """Call the functions among the verifiers once; one that blocks the interpreter ends the process with a message."""
    with abort_on_blocked_interpreter(DEFAULT_CALL_TIMEOUT_S):
        smoke_test_user_functions(env, env.splits[0])


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _add_algorithm_settings(algorithm: Any, sections: dict[str, Any]) -> Any:
    """Move settings of the algorithm that are given as keywords, such as beta=0.04, to the algorithm."""
    if not isinstance(algorithm, str | Mapping):
        return algorithm
    name = algorithm if isinstance(algorithm, str) else algorithm.get("name", "grpo")
    known = get_parameters(load_factory("algorithm", name))
    reserved = {*TrainConfig.model_fields, *RolloutConfig.model_fields, *LogConfig.model_fields}
    own = _take(sections, [key for key in known if key not in reserved])
    return {**({"name": name} if isinstance(algorithm, str) else algorithm), **own} if own else algorithm


def _read_lora(lora: Any) -> Any:
    """Read the settings of an adapter, also from a LoraConfig of peft."""
    if isinstance(lora, Mapping):
        words = {"r": "rank", "lora_alpha": "alpha"}
        return {words.get(key, key): value for key, value in lora.items() if (key, value) != ("target_modules", "all-linear")}
    if not hasattr(lora, "r"):
        return lora
    if getattr(lora, "lora_dropout", 0):
        raise ConfigError(f"lora_dropout is {lora.lora_dropout}; adapters are trained without dropout, so set it to 0")
    targets = None if lora.target_modules is None or isinstance(lora.target_modules, str) else sorted(lora.target_modules)
    return {"rank": lora.r, "alpha": lora.lora_alpha, **({} if targets is None else {"target_modules": targets})}


def check_setting_names(algorithm: Any, sections: Mapping[str, Any], *, on_data: bool, on_env: bool = False) -> None:
    """Raise ConfigError for keywords of a run that are no settings. Needs no heavy package, and is called before those are imported."""
    rest = dict(sections)
    _add_algorithm_settings("grpo" if algorithm is None else algorithm, rest)
    free = {*RunConfig.model_fields, "lora", *(list_data_settings() if on_data else ()), *(TOOL_SETTINGS if on_env else ())}
    _find_sections(key for key in rest if key not in free)


def _find_sections(keys: Iterable[str]) -> dict[str, str]:
    """Return the section of each key that is given without one: `train`, `rollout` or `log`; one error names all unknown keys."""
    sections = {"train": TrainConfig.model_fields, "rollout": RolloutConfig.model_fields, "log": LogConfig.model_fields}
    found = {key: next((name for name, fields in sections.items() if key in fields), "") for key in keys}
    if unknown := [key for key, section in found.items() if not section]:
        known = [*RunConfig.model_fields, *(field for fields in sections.values() for field in fields)]
        told = [f"{key!r}; {explain_keyword(key, 'train') or format_suggestion(key, known)}" for key in unknown]
        raise ConfigError(f"there is no setting {'; and no '.join(told)}")
    return found


def _load(recipe: Any, overrides: Sequence[str]) -> RunConfig:
    if isinstance(recipe, RunConfig):
        data = recipe.model_dump(mode="json")
        return validate_config(apply_overrides(data, overrides), "the configuration") if overrides else recipe
    if isinstance(recipe, str | Path):
        return load_config(recipe, overrides)
    if recipe is None or isinstance(recipe, Mapping):
        given = DEFAULT_SECTIONS if recipe is None else translate_flat_keys(recipe, "the recipe")
        made = apply_overrides(dict(given), translate_overrides(overrides))
        if "env" not in made:
            raise ConfigError("no environment is given; write env='arithmetic', data='train.jsonl', or name a recipe")
        if "model" not in made:
            raise ConfigError("no model is given; write model='Qwen/Qwen2.5-0.5B-Instruct', a folder, or a model object")
        return validate_config(made, "the call")
    raise ConfigError(f"the recipe is a {type(recipe).__name__}; give the name of a recipe, a YAML file, a mapping or a RunConfig")


def _describe_object(value: Environment | Algorithm) -> dict[str, Any]:
    """Describe an environment or an algorithm for the record of the run: an algorithm of a name by its name and its changed settings."""
    spec = getattr(value, "spec", None)
    if (
        isinstance(value, Algorithm)
        and isinstance(spec, AlgorithmSpec)
        and spec.name in [entry.name for entry in list_entries("algorithm")]
    ):
        settings = {name: setting for name, setting, differs in value.describe_settings() if differs}
        if load_factory("algorithm", spec.name) is spec and _is_plain(settings):
            return {"name": spec.name, **settings}
    return {"name": _name_object(value)}


def _name_object(value: Any) -> str:
    return f"{OBJECT_PREFIX}{type(value).__name__}"
