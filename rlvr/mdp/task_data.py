"""Environments from data in memory or in a file, and verifiers from functions: what a program gives where a recipe has names."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from rlvr.config.data_source import is_data_source
from rlvr.contracts import Environment, Plugin, Verifier
from rlvr.contracts.plugin import is_stepped_class, make_stepped_factory
from rlvr.contracts.task_list import TaskList
from rlvr.contracts.tokenizer import LoadedModel
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build, build_from_config, get_parameters, list_entries, load_factory, split_text_env_settings
from rlvr.synonyms import VERIFIERS
from rlvr.task import Task

NO_SETTINGS: Mapping[str, Any] = {}
DATA_ENV = "dataset"
"""The environment that reads data."""


def unwrap_environment(value: Any) -> Any:
    """Return the environment of a Gymnasium environment of this library, also through wrappers; anything else as it is.

    >>> import rlvr
    >>> type(unwrap_environment(rlvr.make("arithmetic"))).__name__
    'Arithmetic'
    """
    inner = getattr(getattr(value, "unwrapped", None), "environment", None)
    return inner if isinstance(inner, Environment) else value


def describe_text_env(value: Any, settings: Mapping[str, Any] = NO_SETTINGS) -> dict[str, Any] | None:
    """Return the configuration of the environment around a class or an object with `reset` and `step` over texts; None for anything else.

    Settings that the environment does not have are those of the class.

    >>> import gymnasium
    >>> sorted(describe_text_env(gymnasium.Env)), describe_text_env("arithmetic")
    (['env_class', 'name'], None)
    """
    own = value if isinstance(value, type) else type(value)
    if issubclass(own, Plugin):
        if not isinstance(value, type) or not is_stepped_class(value):
            return None
    elif not callable(getattr(own, "reset", None)) or not callable(getattr(own, "step", None)):
        return None
    space = getattr(value, "action_space", None)
    if space is not None and not isinstance(space, property) and type(space).__name__ != "Text":
        raise ConfigError(
            f"the actions of {value!r:.80} are {space!r:.60}, and a policy writes texts; rlvr.make_env('gymnasium', id='FrozenLake-v1') plays an "
            "environment with few discrete actions in words"
        )
    if isinstance(value, type):
        of_env, of_class = split_text_env_settings(value, settings)
    else:
        known = get_parameters(load_factory("env", "text_env")).keys() - {"kwargs"}
        of_env = {name: setting for name, setting in settings.items() if name in known}
        of_class = {name: setting for name, setting in settings.items() if name not in known}
    return {"name": "text_env", "env_class": _make_env_factory(value, of_class), **of_env}


def _make_env_factory(value: Any, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that builds an environment of a class, or copies an object, which keeps its state to itself."""
    if isinstance(value, type):
        if not settings and not issubclass(value, Environment):
            return value
        made: Callable[..., Any] = make_stepped_factory(value) if issubclass(value, Environment) else value

        def build() -> Any:
            return made(**settings)

    elif settings:
        raise ConfigError(f"{next(iter(settings))} is given for a {type(value).__name__} that is built already; set it when you build it")
    else:

        def build() -> Any:
            try:
                return copy.deepcopy(value)
            except TypeError as error:
                raise ConfigError(
                    f"a {type(value).__name__} cannot be copied ({error}), and each episode needs its own; give the class"
                ) from error

    build.__name__ = (value if isinstance(value, type) else type(value)).__name__
    build.reward_range = getattr(value, "reward_range", None)  # type: ignore[attr-defined]
    return build


def is_task_data(value: Any) -> bool:
    """Return whether a value is data: a file with data, tasks, or rows in memory."""
    return names_data_source(value) or is_rows(value)


def names_data_source(value: Any) -> TypeGuard[str | Path]:
    """Return whether a value names a file, a folder or a Hub data set with rows, and no environment."""
    return isinstance(value, str | Path) and str(value) not in (entry.name for entry in list_entries("env")) and is_data_source(str(value))


def is_rows(value: Any) -> bool:
    """Return whether a value is rows in memory: a list, a data frame or a `datasets.Dataset`."""
    return not isinstance(value, str | Mapping | type | Environment | LoadedModel) and (
        isinstance(value, Sequence) or hasattr(value, "to_dict") or hasattr(value, "column_names")
    )


def is_task_list(value: Any) -> TypeGuard[Sequence[Task]]:
    """Return whether a value is a list of tasks."""
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0 and all(isinstance(task, Task) for task in value)


def make_data_env(data: Any, *, verifier: Any = None, **settings: Any) -> Environment:
    """Build the environment of data: of tasks as they are, or of rows with a question and a reference."""
    if is_task_list(data):
        if settings:
            key = next(iter(settings))
            raise ConfigError(f"{key} is a setting of data in rows; tasks are taken as they are, and their only setting is verifier=")
        return TaskList(data, verifier=to_verifier("symbolic" if verifier is None else verifier))
    scored = {} if verifier is None else {"verifier": wrap_verifier_functions(verifier)}
    source = {"path": str(data)} if isinstance(data, str | Path) else {"rows": _to_rows(data)}
    made: Environment = build("env", DATA_ENV, **source, **scored, **settings)
    return made


def list_data_settings() -> list[str]:
    """List the settings of an environment of data, with those of tools."""
    names = [*get_parameters(load_factory("env", DATA_ENV)), *get_parameters(load_factory("env", "with_tools"))]
    return [name for name in dict.fromkeys(names) if name not in ("path", "rows", "verifier", "env", "sandbox", "max_new_tokens")]


def _to_rows(data: Any) -> list[dict[str, Any]]:
    """Convert a data frame, a `datasets.Dataset` or a list of mappings to rows."""
    if hasattr(data, "column_names"):
        return [dict(row) for row in data]
    if hasattr(data, "to_dict"):
        return [{str(key): value for key, value in row.items()} for row in data.to_dict("records")]
    if wrong := [row for row in data if not isinstance(row, Mapping)]:
        raise ConfigError(
            f"a row of the data is {wrong[0]!r:.80}; each must be a dict such as {{'question': ..., 'answer': ...}}, or each an rlvr.Task"
        )
    return [dict(row) for row in data]


def wrap_verifier_functions(verifier: Any) -> Any:
    """Turn functions and lists into a verifier; names and mappings stay as they are, so that a configuration can hold them."""
    if isinstance(verifier, str):
        return VERIFIERS.get(verifier, verifier)
    has_objects = isinstance(verifier, Mapping) and not all(isinstance(key, str) for key in verifier)
    return verifier if isinstance(verifier, Verifier) or (isinstance(verifier, Mapping) and not has_objects) else to_verifier(verifier)


def to_verifier(verifier: Any, settings: Mapping[str, Any] | None = None) -> Any:
    """Build a verifier from a function, a list of verifiers with equal weights, a name, a mapping or a class."""
    settings = settings or {}
    if isinstance(verifier, str):
        verifier = VERIFIERS.get(verifier, verifier)
    if isinstance(verifier, Sequence) and not isinstance(verifier, str):
        return _weigh_verifiers(verifier, settings)
    if isinstance(verifier, str | type):
        return build("verifier", verifier, **settings)
    if isinstance(verifier, Mapping):
        if settings and not all(isinstance(key, str) for key in verifier):
            raise _make_mix_error(settings)
        return build_from_config("verifier", {**verifier, **settings})
    if isinstance(verifier, Verifier):
        if settings:
            key = next(iter(settings))
            raise ConfigError(f"{key} is given for a verifier that is built already ({type(verifier).__name__}); set it when you build it")
        return verifier
    if not callable(verifier):
        raise ConfigError(
            f"the verifier is a {type(verifier).__name__}; give a name, a mapping, a verifier, or a function f(answer, reference)"
        )
    own, rest = _split_function_settings(verifier, settings)
    return build(
        "verifier", "function", function=functools.wraps(verifier)(functools.partial(verifier, **own)) if own else verifier, **rest
    )


def _weigh_verifiers(verifiers: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """Build the weighted mean of a list of verifiers, or of mappings {"verifier": ..., "weight": ...}; of a single one, itself."""
    if not verifiers:
        raise ConfigError("the list of verifiers is empty; give at least one")
    rest = {name: value for name, value in settings.items() if name != "weights"}
    given = settings.get("weights")
    if given is not None and (not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(verifiers)):
        raise ConfigError(f"weights is {given!r:.80}, and there are {len(verifiers)} verifiers; give a list with the weight of each")
    parts = [dict(part) if isinstance(part, Mapping) and "verifier" in part else {"verifier": part} for part in verifiers]
    if len(parts) == 1 and parts[0].keys() == {"verifier"}:
        return to_verifier(parts[0]["verifier"], rest)
    if rest:
        raise _make_mix_error(rest)
    if given is not None:
        if any("weight" in part for part in parts):
            raise ConfigError("weights is given, and a verifier of the list has a weight of its own; give one of them")
        parts = [{**part, "weight": weight} for part, weight in zip(parts, given, strict=True)]
    return build("verifier", "composite", components=[{**part, "verifier": wrap_verifier_functions(part["verifier"])} for part in parts])


def _make_mix_error(settings: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"a mean of several verifiers has no setting {next(iter(settings))!r}; weights are given as rlvr.make_verifier([f, g], "
        "weights=[1.0, 0.2]), and a setting goes to its part: rlvr.make_verifier([f, {'name': 'numeric', 'tolerance': 0.1}])"
    )


def _split_function_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into keywords of the function itself and settings of the verifier `function`."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        known = {}  # type: ignore[assignment]
    taken = get_parameters(load_factory("verifier", "function"))
    own = {name: value for name, value in settings.items() if name in known and name not in taken}
    return own, {name: value for name, value in settings.items() if name not in own}
