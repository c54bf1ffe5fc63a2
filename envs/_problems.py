"""Read problem sets from files or through `datasets`, with error messages that name the file and the line."""

from __future__ import annotations

import gzip
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rlvr.errors import ConfigError, MissingExtra, NotFound

T = TypeVar("T")


def rows(path: Path, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The objects in a JSON list or in JSON lines, plain or gzipped; `path` is the file, or a folder with one of `names`."""
    file = path if path.is_file() else next((path / name for name in names if (path / name).is_file()), None)
    if file is None:
        raise NotFound(f"there is no file {str(path)!r}, nor a folder with {' or '.join(names)} in it; give the path of the problems")
    raw = file.read_bytes()
    try:
        text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
        found = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); a JSON list or JSON lines, gzipped or not, are needed") from error
    if not found or not all(isinstance(row, dict) for row in found):
        raise ConfigError(f"{file} is not a list of problems; each must be a JSON object")
    return found


def download(dataset: str, name: str | None, split: str, instead: str = "a file of problems") -> list[dict[str, Any]]:
    """The same rows through `datasets`; `instead` names what the user can give as `path` instead, for error messages."""
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise MissingExtra("datasets", "train", f"set path to {instead}") from error
    try:
        with _quiet_hub():
            return [dict(row) for row in load_dataset(dataset, name, split=split)]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{dataset} is not on this machine and cannot be fetched from the Hugging Face Hub ({' '.join(str(error).split())}); "
            f"try again where the Hub can be reached, or set path to {instead} (--set path=..., in a suite --set NAME.path=...)"
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


def parsed(found: list[dict[str, Any]], parse: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    """Parse every row; the error for a bad row names it."""
    done = []
    for number, row in enumerate(found):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # published code has invalid escapes, which give warnings
                warnings.simplefilter("ignore", DeprecationWarning)
                done.append(parse(row))
        except (KeyError, TypeError, ValueError, SyntaxError) as error:
            raise ConfigError(
                f"problem {number} is not a valid {what} problem ({type(error).__name__}: {error}); it has {sorted(row)[:12]}"
            ) from error
    return done
