"""Split the rows of a data set into training and held-out rows, and build the prompt of a row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.envs._data.rows import Row, read_file_rows, read_folder
from rlvr.envs._problem_files import load_hub_dataset
from rlvr.errors import ConfigError, NotFound, format_suggestion
from rlvr.task import Message, Task, make_user_prompt

SPACE = re.compile(r"\s+")


def load_data_source(target: str) -> dict[str, list[Row]]:
    """Load the rows of a file, a folder or a published data set, by split; "" if the split is unknown."""
    if target.startswith("hf:"):
        return load_hub_dataset(target)
    path = Path(target).expanduser()
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise NotFound(f"there is no file or folder {target!r}; give a data file, a folder with some, or hf:ORG/NAME")
    return {"": read_file_rows(path, target)}


def split_by_column(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    """Group rows by a column that names their split."""
    words = {"train": "train", "training": "train", "test": "test", "validation": "test", "valid": "test", "dev": "test"}
    found: dict[str, list[Row]] = {}
    for row in rows:
        said = str(row.values.get(column, "")).strip().lower()
        if said not in words:
            raise ConfigError(
                f"{row.location}: the column {column!r} (split) is {row.values.get(column)!r:.60}; it must be one of {', '.join(words)}"
            )
        found.setdefault(words[said], []).append(row)
    return found


def unnest_ground_truth(row: Row) -> Row:
    """Return a row with the column `ground_truth` that verl keeps inside the column `reward_model`."""
    nested = row.values.get("reward_model")
    if not isinstance(nested, Mapping) or "ground_truth" not in nested or "ground_truth" in row.values:
        return row
    return replace(row, values={**row.values, "ground_truth": nested["ground_truth"]})


def row_matches(row: Row, column: str, condition: Any, where: str) -> bool:
    """Return whether a row matches one entry of `where`: a value, a list of values, or a range."""
    if column not in row.values:
        raise ConfigError(f"{row.location}: where names the column {column!r}; {format_suggestion(column, row.values)}")
    value = row.values[column]
    if isinstance(condition, Mapping):
        if not condition or condition.keys() - {"min", "max"}:
            raise ConfigError(f"where.{column} is {dict(condition)!r}; it must be a value, a list of values, or {{min: ..., max: ...}}")
        try:
            return bool(float(condition.get("min", "-inf")) <= float(value) <= float(condition.get("max", "inf")))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{row.location}: where.{column} needs numbers, and the column is {value!r:.60}") from error
    allowed = condition if isinstance(condition, list | tuple) else [condition]
    return value in allowed or str(value) in map(str, allowed)  # the cells of a CSV file are texts


def hold_out(tasks: Sequence[Task], fraction: float) -> dict[str, list[Task]]:
    """Hold out a fraction of the questions, chosen by a digest of each question; rows with the same question stay together."""
    questions = sorted(
        {make_question_key(task) for task in tasks}, key=lambda key: hashlib.blake2b(key.encode("utf-8", "surrogatepass")).digest()
    )
    held = set(questions[: max(round(fraction * len(questions)), 1)]) if fraction and len(questions) > 1 else set()
    found = {
        "train": [task for task in tasks if make_question_key(task) not in held],
        "test": [task for task in tasks if make_question_key(task) in held],
    }
    return {name: of for name, of in found.items() if of or name == "train"}


def make_question_key(task: Task) -> str:
    """Make the key by which two questions are equal: the text, ignoring case and spacing."""
    return SPACE.sub(" ", task.question).strip().casefold()


def build_prompt(question: Any, system_prompt: str, instruction: str) -> tuple[Message, ...]:
    """Build the messages of one row; the question is a text, or messages that end with the user's."""
    if not isinstance(question, list):
        text = str(question).strip()
        return make_user_prompt(f"{text}\n\n{instruction}" if instruction else text, system=system_prompt)
    if not all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in question):
        raise ValueError("the question is a list, but not of messages {role, content}")
    *before, last = ({"role": str(message["role"]), "content": str(message["content"])} for message in question)
    if last["role"] != "user":
        raise ValueError(f"the last message of the question has the role {last['role']!r}; it must be user")
    head = make_user_prompt("", system=system_prompt)[:-1] if not any(message["role"] == "system" for message in before) else ()
    *_, asked = make_user_prompt(f"{last['content']}\n\n{instruction}" if instruction else last["content"])
    return (*head, *(Message(role=message["role"], content=message["content"]) for message in before), asked)
