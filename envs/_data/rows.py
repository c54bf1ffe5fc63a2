"""Rows of data files, each with the file and the line it comes from: JSON lines, JSON lists, CSV, TSV, Parquet, and folders of those."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config.data_source import DATA_SUFFIXES, get_data_format
from rlvr.errors import ConfigError, MissingExtra, NotFound

MAX_FIELD_CHARS = 1 << 27
"""Longest field of a CSV file, in characters; Python's default of 131,072 is too short for long documents."""
SPLIT_WORDS: Mapping[str, Sequence[str]] = {
    "train": ("train", "training"),
    "test": ("test", "testing", "held", "heldout", "holdout", "validation", "valid", "val", "dev", "eval"),
}
"""Words in the name of a file or published split that identify the split; of several words for test, the first one counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data file.

    >>> Row("train.jsonl:3", {"question": "2+2?", "answer": "4"}).values["answer"]
    '4'
    """

    location: str
    """File and line, for messages and task ids. Rows of Parquet files and JSON lists count from 1."""
    values: Mapping[str, Any]


def read_file_rows(file: Path, display_name: str = "") -> list[Row]:
    """Read all rows of one file. `display_name` is its name in messages and locations; the default is the path."""
    display_name = display_name or str(file)
    kind = get_data_format(file.name)
    if kind == "parquet":
        return _read_parquet(file, display_name)
    raw = b""
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{display_name} is not valid UTF-8: byte {error.start} is {raw[error.start : error.start + 1]!r}; convert it"
        ) from error
    except (OSError, EOFError) as error:
        raise ConfigError(f"{display_name} cannot be read: {error}") from error
    if kind in ("csv", "tsv"):
        found = list(_parse_csv(text, display_name, "," if kind == "csv" else "\t"))
    elif kind == "json" and text.lstrip().startswith("["):
        found = list(_parse_json_list(text, display_name))
    elif kind in ("json", "jsonl"):
        found = list(_parse_json_lines(text, display_name))
    else:
        raise ConfigError(f"{display_name} has none of the known endings: {', '.join(DATA_SUFFIXES)}")
    if not found:
        raise ConfigError(f"{display_name} has no rows")
    return found


def read_folder(folder: Path) -> dict[str, list[Row]]:
    """Read the rows of a folder, subfolders included, by split; if no file name identifies a split, all are under ""."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and get_data_format(path.name) and not _is_hidden(path, folder)]
    files = [path for path in files if get_data_format(path.name) != "json"] or files  # published data sets have .json metadata files
    if not files:
        raise NotFound(f"the folder {str(folder)!r} has no data files; it needs files that end with one of {', '.join(DATA_SUFFIXES)}")
    named: dict[str, list[Path]] = {}
    for path in files:
        named.setdefault(find_split_word(path.name), []).append(path)
    return {split: [row for path in of for row in read_file_rows(path, str(path))] for split, of in map_to_train_and_test(named).items()}


def map_to_train_and_test(by_split_word: Mapping[str, Any]) -> dict[str, Any]:
    """Map words such as `validation` to `train` and `test`; if no word identifies a split, all is under "".

    >>> map_to_train_and_test({"train": 1, "validation": 2, "test": 3})
    {'train': 1, 'test': 3}
    """
    chosen = {split: next((word for word in words if word in by_split_word), None) for split, words in SPLIT_WORDS.items()}
    found = {split: by_split_word[word] for split, word in chosen.items() if word is not None}
    return found or {"": next(iter(by_split_word.values()))}


def find_split_word(name: str) -> str:
    """Find the word in a name that identifies the split; "" if there is none.

    >>> find_split_word("gsm8k_test-00000-of-00001.parquet"), find_split_word("questions.csv"), find_split_word("latest.csv")
    ('test', '', '')
    """
    words = re.findall(r"[a-z]+", name.lower())
    return next((word for word in words for known in SPLIT_WORDS.values() if word in known), "")


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _parse_json_lines(text: str, name: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{name}:{number}: not valid JSON ({error}); each line must be one JSON object") from error
            yield _make_row(value, f"{name}:{number}")


def _parse_json_list(text: str, name: str) -> Iterator[Row]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid JSON: {error}") from error
    yield from (_make_row(value, f"{name}:{number}") for number, value in enumerate(found, 1))


def _make_row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: {type(value).__name__} {value!r:.60} is not an object; a row is {{column: value, ...}}")
    return Row(place, value)


def _parse_csv(text: str, name: str, comma: str) -> Iterator[Row]:
    before = csv.field_size_limit(MAX_FIELD_CHARS)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=comma, strict=True)
    try:
        columns = reader.fieldnames or []
        if len(set(columns)) != len(columns) or not all(columns):
            raise ConfigError(f"{name}:1: the first line must name the columns, each once; it has {list(columns)[:12]!r}")
        line = 2
        for values in reader:
            if None in values or None in values.values():
                raise ConfigError(
                    f"{name}:{line}: this row has {_count_fields(values)} fields, and the first line names {len(columns)} columns"
                )
            yield Row(f"{name}:{line}", values)
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{name}:{reader.line_num}: not valid CSV ({error})") from error
    finally:
        csv.field_size_limit(before)


def _count_fields(values: Mapping[Any, Any]) -> int:
    return sum(value is not None for key, value in values.items() if key is not None) + len(values.get(None) or ())


def _read_parquet(file: Path, name: str) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "train", "convert the file to JSON lines") from error
    try:
        found = parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{name} is not a readable Parquet file: {' '.join(str(error).split())[:200]}") from error
    if not found:
        raise ConfigError(f"{name} has no rows")
    return [Row(f"{name}:{number}", values) for number, values in enumerate(found, 1)]
