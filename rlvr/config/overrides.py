"""Apply overrides such as `a.b=value` from the command line to a configuration. The values are read as YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rlvr.errors import ConfigError

TEMPLATE_PATTERN = re.compile(r"\{[^\W\d]\w*\}")
EXPONENT_PATTERN = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply all overrides to a mapping.

    >>> apply_overrides({"train": {"steps": 1}}, ["train.steps=50", "algorithm.name=grpo"])
    {'train': {'steps': 50}, 'algorithm': {'name': 'grpo'}}
    """
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"the override {text!r} is not of the form key=value, for example train.steps=50")
        try:
            parsed = parse_value(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the override {text!r} has a value that is not YAML: {' '.join(str(error).split())}") from error
        data = set_key(data, key.strip().split("."), parse_exponents(parsed), text)
    return data


def parse_value(text: str) -> Any:
    """Parse the value of a setting as YAML; a template such as `{prompt}` is a text, and not a mapping without values.

    >>> parse_value("{prompt}"), parse_value("{name: grpo}")
    ('{prompt}', {'name': 'grpo'})
    """
    return text.strip() if TEMPLATE_PATTERN.fullmatch(text.strip()) else yaml.safe_load(text)


def drop_env_and_model_for_data_run(recipe: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Drop a recipe's example environment, tokenizer and model, if the overrides set `data.run`, which provides them.

    >>> drop_env_and_model_for_data_run({"env": {"name": "arithmetic"}, "train": {"steps": 1}}, ["data.run=runs/a"])
    {'train': {'steps': 1}, 'rollout': {}}
    """
    data = apply_overrides({}, overrides).get("data")
    if not isinstance(data, Mapping) or data.get("run") is None:
        return recipe
    example = ("env", "tokenizer", "model", "sft_warmup", "max_new_tokens")
    plain = {key: value for key, value in recipe.items() if key not in example}
    return plain | {"rollout": {key: value for key, value in recipe.get("rollout", {}).items() if key not in example}}


def set_key(data: Any, path: list[str], value: Any, text: str) -> dict[str, Any]:
    """Return a configuration in which the key of this path has this value; `text` is the override, for errors."""
    if data is None:
        data = {}
    if isinstance(data, str):  # `algorithm: grpo` is short for `{name: grpo}`
        data = {"path" if text.startswith(("model.", "frozen_models.")) else "name": data}  # and `model: DIR` for `{path: DIR}`
    if not isinstance(data, Mapping):
        raise ConfigError(f"the override {text!r} sets a key of {data!r}, which has no keys")
    head, *rest = path
    return {**data, head: set_key(data.get(head), rest, value, text) if rest else value}


def parse_exponents(value: Any) -> Any:
    """Turn strings such as `1e-5` into numbers: YAML 1.1 reads them as text.

    >>> parse_exponents({"learning_rate": "1e-5"})
    {'learning_rate': 1e-05}
    """
    if isinstance(value, dict):
        return {key: parse_exponents(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [parse_exponents(inner) for inner in value]
    return float(value) if isinstance(value, str) and EXPONENT_PATTERN.fullmatch(value) else value
