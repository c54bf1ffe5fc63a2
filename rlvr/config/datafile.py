"""Recognize command line arguments that name data: files, folders, or data sets of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz")
"""The file extensions that the environment `dataset` reads."""
HUB = "hf:"
"""The prefix of a Hub data set: hf:ORG/NAME, hf:ORG/NAME:CONFIG."""

OTHER = ("config.yaml", "eval.yaml", "config.json")
"""A folder with one of these is a run, an evaluation or a model, whose files are not data."""


def format_of(name: str) -> str:
    """Return the format of a file by its name: jsonl, json, csv, tsv or parquet; "" for other files.

    >>> format_of("train.jsonl.gz"), format_of("notes.txt")
    ('jsonl', '')
    """
    ending = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    return ending.removesuffix(".gz").removeprefix(".")


def is_data(target: str) -> bool:
    """Return whether an argument names data instead of a recipe or a suite: a data file, a folder with some, or hf:ORG/NAME.

    >>> is_data("train.jsonl"), is_data("hf:openai/gsm8k"), is_data("quickstart")
    (True, True, False)
    """
    if target.startswith(HUB) or format_of(target):
        return True
    folder = Path(target).expanduser()
    if not target or not folder.is_dir() or any((folder / name).is_file() for name in OTHER):
        return False
    return any(path.is_file() and format_of(path.name) for path in folder.rglob("*"))
