"""Recognize command line arguments that name data: files, folders, or data sets of the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz")
"""The file extensions that the environment `dataset` reads."""
HUB_PREFIX = "hf:"
"""The prefix of a Hub data set: hf:ORG/NAME, hf:ORG/NAME:CONFIG."""

MAX_RECIPE_BYTES = 1_000_000
"""A JSON file that is larger is data, and is not read to find out."""
NON_DATA_MARKERS = ("config.yaml", "eval.yaml", "config.json")
"""A folder with one of these is a run, an evaluation or a model, whose files are not data."""


def get_data_format(file_name: str) -> str:
    """Return the format of a file by its name: jsonl, json, csv, tsv or parquet; "" for other files.

    >>> get_data_format("train.jsonl.gz"), get_data_format("notes.txt")
    ('jsonl', '')
    """
    ending = next((suffix for suffix in DATA_SUFFIXES if file_name.lower().endswith(suffix)), "")
    return ending.removesuffix(".gz").removeprefix(".")


def is_json_recipe(path: Path) -> bool:
    """Return whether a JSON file is a recipe and no data: one mapping that names an environment, or a model with data."""
    try:
        if path.suffix.lower() != ".json" or path.stat().st_size > MAX_RECIPE_BYTES:
            return False
        found = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    named = {key for key, value in found.items() if isinstance(value, str | Mapping)} if isinstance(found, Mapping) else set()
    has_model = bool(named & {"model", "model_name_or_path"})
    return bool(named & {"env", "environment"}) or (has_model and bool(named & {"data", "dataset", "train_dataset"}))


def is_data_source(target: str) -> bool:
    """Return whether an argument names data instead of a recipe or a suite: a data file, a folder with some, or hf:ORG/NAME.

    >>> is_data_source("train.jsonl"), is_data_source("hf:openai/gsm8k"), is_data_source("quickstart")
    (True, True, False)
    """
    if target.startswith(HUB_PREFIX):
        return True
    if get_data_format(target):
        return not is_json_recipe(Path(target).expanduser())
    folder = Path(target).expanduser()
    if not target or not folder.is_dir() or any((folder / name).is_file() for name in NON_DATA_MARKERS):
        return False
    return any(path.is_file() and get_data_format(path.name) for path in folder.rglob("*"))
