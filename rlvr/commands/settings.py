"""`--set key=value`: read the settings of a plugin from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from rlvr.config.overrides import number
from rlvr.errors import ConfigError

KEY = r"([\w-]+\.)?[^\W\d]\w*"
"""A setting, optionally prefixed with the name of its environment."""
EXAMPLES = {"--set": "--set tolerance=0.01", "--sampler": "--sampler retries=3"}


def settings_from(pairs: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """The settings that `--set`, or another option, names; each value is read as YAML.

    >>> settings_from(["tolerance=1e-3", "levels=[2+2]"])
    {'tolerance': 0.001, 'levels': ['2+2']}
    """
    found: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(KEY, key.strip()):
            raise ConfigError(f"{option} {text!r} is not of the form key=value, for example {EXAMPLES[option]}")
        if key.strip() in found:
            raise ConfigError(f"{option} names {key.strip()!r} twice; give each setting once")
        try:
            found[key.strip()] = number(yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise ConfigError(f"{option} {text!r} has a value that is not YAML: {' '.join(str(error).split())}") from error
    return found
