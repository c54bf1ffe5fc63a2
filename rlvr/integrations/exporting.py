"""Implementation of `rlvr export-env`: write the file or package with which a trainer loads an environment.

The file contains only the name and the settings of the environment and a call of the adapter. The dataset rows identify tasks by split and
index; references are never exported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError, format_suggestion
from rlvr.integrations.formats import FORMATS, SINGLE_TURN_FORMATS, ExportFormat
from rlvr.integrations.rows import make_rows, write_jsonl
from rlvr.plugin_files import resolve_plugin_files
from rlvr.registry.plugins import build

NON_WORD_PATTERN = re.compile(r"[^0-9a-zA-Z]+")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export wrote: the folder, its files, the number of rows, and how to use the files.

    >>> ExportResult(Path("out"), ("rlvr_arithmetic.py",), 100, "load it").rows
    100
    """

    folder: Path
    files: tuple[str, ...]
    rows: int
    usage: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def export_env(
    name: str, framework: str, out: str | Path, *, settings: Mapping[str, Any] | None = None, split: str = "train", count: int | None = None
) -> ExportResult:
    """Write an environment for a framework, into a new or empty folder."""
    if framework not in FORMATS:
        raise ConfigError(f"--to {framework!r} is not a framework; {format_suggestion(framework, FORMATS)}")
    kind, folder = FORMATS[framework], Path(out)
    resolved: Mapping[str, Any] = resolve_plugin_files(dict(settings or {}))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; choose another --out")
    environment: Environment = build("env", name, **resolved)
    with environment:
        if framework in SINGLE_TURN_FORMATS and (environment.max_turns > 1 or environment.tools):
            raise ConfigError(f"{name} is a conversation, and the export to {kind.title} takes single answers; use trl, inspect or skyrl")
        count = _resolve_count(environment, split, count)
        values = _build_template_values(name, kind, resolved, split, count, environment)
        rows = _make_rows(environment, kind, split, count)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = [Template(file).substitute(values) for file in kind.files]
        for file, text in zip(names, kind.files.values(), strict=True):
            (folder / file).write_text(Template(text).substitute(values), "utf-8")
        if kind.data_file:
            write_jsonl(folder / kind.data_file, rows)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; choose another --out") from error
    files = (*names, kind.data_file) if kind.data_file else tuple(names)
    return ExportResult(folder, files, count, values["use"], resolved)


def _resolve_count(environment: Environment, split: str, count: int | None) -> int:
    if split not in environment.splits:
        raise ConfigError(f"--split is {split!r}; {format_suggestion(split, environment.splits)}")
    size = environment.num_tasks(split)
    if count is not None and (count < 1 or (size is not None and count > size)):
        raise ConfigError(f"--count is {count}; the split {split!r} has {'unlimited tasks' if size is None else f'{size} tasks'}")
    return count or size or 1000


def _build_template_values(
    name: str, kind: ExportFormat, settings: Mapping[str, Any], split: str, count: int, environment: Environment
) -> dict[str, str]:
    """Make the values of the templates. Names and settings become Python literals."""
    whole, made = resolve_plugin_files(name), name.rpartition(":")[2]
    word = NON_WORD_PATTERN.sub("_", made).strip("_").lower()
    values = {
        "name": word, "title": kind.title, "tested": kind.tested_version, "module": f"rlvr_{word}", "dist": f"rlvr-{word.replace('_', '-')}",
        "agent": f"rlvr_{word}_agent", "name_repr": repr(whole), "settings": repr(json.loads(json.dumps(settings))), "split": split,
        "split_repr": repr(split), "count": str(count), "tokens": str(environment.max_new_tokens),
    }  # fmt: skip
    return values | {"use": Template(kind.usage).substitute(values)}


def _make_rows(environment: Environment, kind: ExportFormat, split: str, count: int) -> Sequence[Mapping[str, Any]]:
    if not kind.data_file:
        return []
    if not kind.row_function:
        return make_rows(environment, split, count)
    make = _import_function(kind.row_function)
    return [make(environment, split, index) for index in range(count)]


def _import_function(where: str) -> Callable[..., Mapping[str, Any]]:
    from importlib import import_module

    module, _, name = where.partition(":")
    made: Callable[..., Mapping[str, Any]] = getattr(import_module(module), name)
    return made
