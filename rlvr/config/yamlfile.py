"""Read YAML, TOML and JSON files as plain data, with clear errors."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from rlvr.errors import ConfigError

MAX_DEPTH = 50
MAX_VALUES = 100_000
"""The maximum of values in a file, with each alias (*name) counted as all that it stands for: few lines can stand for more than any memory."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file, or a TOML or JSON file by its ending; raise ConfigError if it is invalid or unreadable."""
    parse = {".toml": tomllib.loads, ".json": json.loads}.get(path.suffix.lower())
    try:
        text = path.read_text("utf-8" if parse is None else "utf-8-sig")
        return _parse_yaml(text, path) if parse is None else _parse_plainly(parse, text, path)
    except RecursionError as error:
        raise _build_shape_error(path, f"values nested more than {MAX_DEPTH} deep") from error
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: bytes that are no text, or a number of thousands of digits
        language = "YAML" if parse is None else path.suffix[1:].upper()
        raise ConfigError(f"{path} is not valid {language}: {' '.join(str(error).split())[:300]}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _parse_plainly(parse: Callable[[str], Any], text: str, path: Path) -> Any:
    data = parse(text)
    _count_values(data, path, {})
    return data


def _parse_yaml(text: str, path: Path) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _count_values(node, path, {})  # before the values are made: a merge (<<) copies what its aliases stand for
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _list_values(tree: Any) -> Iterable[Any] | None:
    """List what a node of YAML, or a value, holds; None for a scalar."""
    if isinstance(tree, yaml.MappingNode):
        return [part for pair in tree.value for part in pair]
    if isinstance(tree, yaml.SequenceNode | list):
        return tree.value if isinstance(tree, yaml.SequenceNode) else tree
    return tree.values() if isinstance(tree, dict) else None


def _count_values(tree: Any, path: Path, counts: dict[int, tuple[int, int] | None], depth: int = 0) -> tuple[int, int]:
    """Return the number of values in a tree, and its height; what several aliases stand for is visited once, and counted each time.

    Raise ConfigError if an alias holds itself, or if there are more values, or nested more deeply, than any settings have.
    """
    inner = _list_values(tree)
    if inner is None:
        return 1, 0
    if id(tree) in counts:
        if (known := counts[id(tree)]) is None:
            raise _build_shape_error(path, "an alias (*name) inside of what it names")
    else:
        counts[id(tree)] = None  # being counted
        below = [_count_values(value, path, counts, depth + 1) for value in inner] if depth < MAX_DEPTH else [(0, MAX_DEPTH)]
        known = counts[id(tree)] = 1 + sum(size for size, _ in below), 1 + max((height for _, height in below), default=0)
    if known[0] > MAX_VALUES:
        raise _build_shape_error(path, f"aliases (*name) that stand for more than {MAX_VALUES:,} values in all, or as many values")
    if depth + known[1] > MAX_DEPTH:
        raise _build_shape_error(path, f"values nested more than {MAX_DEPTH} deep")
    return known


def _build_shape_error(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path} has {what}, which no setting can be; write the value out")
