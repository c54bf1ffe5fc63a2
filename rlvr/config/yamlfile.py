"""Read YAML files as plain data, with clear errors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from rlvr.errors import ConfigError

MAX_DEPTH = 50


def read_yaml(path: Path) -> Any:
    """Read a YAML file, or a TOML file by its ending; raise ConfigError if it is invalid or unreadable."""
    is_toml = path.suffix.lower() == ".toml"
    try:
        text = path.read_text("utf-8-sig" if is_toml else "utf-8")
        data = tomllib.loads(text) if is_toml else yaml.safe_load(text)
        _check_tree(data, path)
        return data
    except (yaml.YAMLError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid {'TOML' if is_toml else 'YAML'}: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _check_tree(data: Any, path: Path, holders: tuple[int, ...] = ()) -> None:
    """Raise ConfigError if an alias holds itself, or if values nest more deeply than any setting."""
    if not isinstance(data, dict | list):
        return
    if id(data) in holders or len(holders) >= MAX_DEPTH:
        what = "an alias (*name) inside of what it names" if id(data) in holders else f"values nested more than {MAX_DEPTH} deep"
        raise ConfigError(f"{path} has {what}, which no setting can be; write the value out")
    for value in data.values() if isinstance(data, dict) else data:
        _check_tree(value, path, (*holders, id(data)))
