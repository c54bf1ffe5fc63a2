"""Read problem sets from files or through `datasets`, with error messages that name the file and the line."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rlvr.envs._data.rows import Row, find_split_word, map_to_train_and_test, read_file_rows
from rlvr.errors import ConfigError, MissingExtra, NotFound

T = TypeVar("T")


def read_problem_rows(path: Path, file_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Read the objects of a JSON list or JSON lines, plain or gzipped; `path` is the file, or a folder with one of `file_names`."""
    file = path if path.is_file() else next((path / name for name in file_names if (path / name).is_file()), None)
    if file is None:
        raise NotFound(f"there is no file {str(path)!r}, nor a folder with {' or '.join(file_names)} in it; give the path of the problems")
    return [dict(row.values) for row in read_file_rows(file)]


def parse_rows(rows: Sequence[Row], parse: Callable[[dict[str, Any]], T], requirement: str) -> list[T]:
    """Parse every row of a file; the error for a bad row names its line and what each line needs."""
    done = []
    for row in rows:
        try:
            done.append(parse(dict(row.values)))
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{row.location}: {error}; {requirement}") from error
    return done


def download_rows(dataset: str, config_name: str | None, split: str, path_hint: str = "a file of problems") -> list[dict[str, Any]]:
    """Download the rows of a split through `datasets`; error messages suggest `path_hint` as the value of `path`."""
    how = "in Python path=..., in a shell --set path=..., in a suite --set NAME.path=..."
    otherwise = f"try again where the Hub can be reached, or set path to {path_hint} ({how}); the env 'arithmetic' needs no download"
    return [dict(row) for row in _load_dataset(dataset, config_name, split, f"set path to {path_hint}", otherwise)]


def load_hub_dataset(target: str) -> dict[str, list[Row]]:
    """Load the rows of hf:ORG/NAME or hf:ORG/NAME:CONFIG, by split (train, test)."""
    name, _, config = target.removeprefix("hf:").partition(":")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ConfigError(
            f"{target!r} is not the name of a data set; write hf:ORG/NAME, or hf:ORG/NAME:CONFIG, such as hf:openai/gsm8k:main"
        )
    fetch = f"fetch it where the Hub can be reached (`hf download {name} --repo-type dataset --local-dir DIR`), and give the folder DIR"
    found = _load_dataset(name, config or None, None, "give a data file", fetch)
    named = map_to_train_and_test({find_split_word(split) or split: split for split in found})
    return {split: [Row(f"{name}/{of}:{number}", dict(row)) for number, row in enumerate(found[of], 1)] for split, of in named.items()}


def _load_dataset(dataset: str, config: str | None, split: str | None, missing_package_hint: str, offline_hint: str) -> Any:
    """Call `load_dataset`; turn every failure into one ConfigError."""
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise MissingExtra("datasets", "train", missing_package_hint) from error
    try:
        with _quiet_hub():
            return load_dataset(dataset, config, split=split)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        if "Config name is missing" in why:
            raise ConfigError(f"{dataset} has several configurations; choose one: hf:{dataset}:CONFIG ({why[:300]})") from error
        raise ConfigError(
            f"{dataset} is not on this machine and cannot be fetched from the Hugging Face Hub ({why}); {offline_hint}"
        ) from error


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the Hub client, which logs each of its retries; the final error is reported once."""
    hub = logging.getLogger("huggingface_hub")
    before = hub.level
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(before)


def parse_problems(rows: list[dict[str, Any]], parse: Callable[[dict[str, Any]], T], dataset_title: str) -> list[T]:
    """Parse every problem; the error for a bad one names its number."""
    done = []
    for number, row in enumerate(rows):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # published code has invalid escapes, which give warnings
                warnings.simplefilter("ignore", DeprecationWarning)
                done.append(parse(row))
        except (KeyError, TypeError, ValueError, SyntaxError) as error:
            raise ConfigError(
                f"problem {number} is not a valid {dataset_title} problem ({type(error).__name__}: {error}); it has {sorted(row)[:12]}"
            ) from error
    return done
