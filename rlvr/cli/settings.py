"""Parse `--set key=value` and `--cluster` of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlvr.config.cluster import ClusterConfig
from rlvr.config.overrides import parse_exponents, parse_value
from rlvr.config.yamlfile import read_yaml
from rlvr.errors import ConfigError, NotFound
from rlvr.hints import translate_config_key

SETTING_KEY = r"([\w-]+\.)?[^\W\d]\w*"
"""A setting, optionally prefixed with the name of its environment."""
EXAMPLES = {"--set": "--set tolerance=0.01", "--sampler": "--sampler retries=3"}


def parse_settings(setting_pairs: Sequence[str], option_name: str = "--set") -> dict[str, Any]:
    """Parse the key=value pairs of `--set`, or of another option; each value is YAML.

    >>> parse_settings(["tolerance=1e-3", "levels=[2+2]"])
    {'tolerance': 0.001, 'levels': ['2+2']}
    """
    found: dict[str, Any] = {}
    for text in setting_pairs:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(SETTING_KEY, key.strip()):
            raise ConfigError(f"{option_name} {text!r} is not of the form key=value, for example {EXAMPLES[option_name]}")
        if key.strip() in found:
            raise ConfigError(f"{option_name} names {key.strip()!r} twice; give each setting once")
        try:
            found[key.strip()] = parse_exponents(parse_value(value))
        except yaml.YAMLError as error:
            raise ConfigError(f"{option_name} {text!r} has a value that is not YAML: {' '.join(str(error).split())}") from error
    return found


def find_config_key(word: str) -> str:
    """Find the key of a run's configuration that a word of this or of another library means, with its section; "" if there is none.

    >>> find_config_key("learning_rate"), find_config_key("train.lr"), find_config_key("batch_size"), find_config_key("colour")
    ('train.learning_rate', 'train.learning_rate', 'rollout.prompts_per_step', '')
    """
    from rlvr.config.config import RunConfig  # every command reads this module, and only an error needs these
    from rlvr.config.key_reference import iter_sections

    sections = {path: kind.model_fields for path, kind in iter_sections(RunConfig)}
    usual = [f"{path}.{word}".strip(".") for path in ("", "train", "rollout") if word in sections[path]]
    others = [f"{path}.{word}" for path in sections if word in sections[path]]
    return next(iter(usual), "") or translate_config_key(word) or next(iter(others), "")


def is_switch(key: str) -> bool:
    """Whether the value of a key of a run's configuration is true or false.

    >>> is_switch("train.gradient_checkpointing"), is_switch("train.steps")
    (True, False)
    """
    from rlvr.config.config import RunConfig
    from rlvr.config.key_reference import iter_sections

    section, _, name = key.rpartition(".")
    kind = dict(iter_sections(RunConfig)).get(section)
    return kind is not None and name in kind.model_fields and kind.model_fields[name].annotation is bool


def make_cluster_overrides(cluster_option: str) -> list[str]:
    """Convert `--cluster` (an address, or a YAML file with cluster settings) into overrides of a recipe.

    >>> make_cluster_overrides("auto"), make_cluster_overrides("")
    (['cluster.address=auto'], [])
    """
    if not cluster_option:
        return []
    path = Path(cluster_option)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        return [f"cluster.address={cluster_option}"]
    if not path.is_file():
        raise NotFound(f"--cluster {cluster_option!r} is not a file; give auto, local, HOST:PORT, or a YAML file with a section `cluster`")
    found = read_yaml(path)
    found = found.get("cluster", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not found.keys() <= ClusterConfig.model_fields.keys():
        names = ", ".join(ClusterConfig.model_fields)
        raise ConfigError(f"--cluster {cluster_option!r} has {found!r:.80} where settings of a cluster are expected: {names}")
    return [f"cluster.{name}={json.dumps(value)}" for name, value in found.items()]
