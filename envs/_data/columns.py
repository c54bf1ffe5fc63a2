"""Columns of a data set: guess the question and the reference column, and fill templates such as `{question}`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.errors import ConfigError, format_suggestion
from rlvr.extraction import extract_answer

QUESTION_COLUMNS = ("question", "problem", "prompt", "query", "instruction", "input")
REFERENCE_COLUMNS = ("answer", "reference", "ground_truth", "target", "label", "final_answer", "expected", "gold")
SOLUTION_COLUMNS = ("solution",)
"""Column names that are guessed, in any case. A solution is the reference only if no column is named like an answer."""
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
CALCULATOR_ANNOTATION = re.compile(r"<<[^>]*>>")
"""The annotations of GSM8K's solutions."""
GROUPED_NUMBER = re.compile(r"[-+$]*\d{1,3}(?:,\d{3})+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ColumnTemplate:
    r"""A text with columns in braces; a template of one column alone gives its value, of any type.

    >>> ColumnTemplate.parse("Is {a} above {b}?", ["a", "b"], "question").fill({"a": 3, "b": 2})
    'Is 3 above 2?'
    >>> ColumnTemplate.parse("tests", ["tests"], "reference").fill({"tests": [1, 2]})
    [1, 2]
    """

    text: str
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, columns: Sequence[str], setting_name: str) -> ColumnTemplate:
        """Parse a template, or the name of one column. Raises ConfigError for unknown columns."""
        if text in columns:
            text = f"{{{text}}}"
        used = tuple(name for name in PLACEHOLDER.findall(text) if name)
        for name in used:
            if name not in columns:
                raise ConfigError(
                    f"{setting_name} uses the column {name!r}; {format_suggestion(name, columns)}. A brace of the text itself is {{{{ or }}}}"
                )
        if setting_name in ("question", "reference") and not used:
            raise ConfigError(
                f"{setting_name} is {text!r:.80}, which names no column; {format_suggestion(text, columns)}. A template is a text with {{column}}"
            )
        return cls(text, used)

    def fill(self, values: Mapping[str, Any]) -> Any:
        """Fill the template for one row; ValueError if a column is empty."""
        for name in self.columns:
            if is_empty(values.get(name)):
                raise ValueError(f"the column {name!r} is empty")
        if self.columns and self.text == f"{{{self.columns[0]}}}":
            return values[self.columns[0]]
        return PLACEHOLDER.sub(lambda at: _format_cell(values[at[1]]) if at[1] else at[0][0], self.text)


def is_empty(value: Any) -> bool:
    """Return whether a cell is empty.

    >>> [is_empty(value) for value in (None, " ", float("nan"), [], 0, False)]
    [True, True, True, True, False, False]
    """
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or value in ([], {})
        or (isinstance(value, float) and math.isnan(value))
    )


def _format_cell(value: Any) -> str:
    """Format a cell for use in a text: lists of texts line by line, other structures as JSON."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)


def guess_column(columns: Sequence[str], setting: str, source_name: str) -> str:
    """Return the column with a usual name for the question or the reference; "" if no column has one.

    Raises ConfigError if several match.

    >>> guess_column(["id", "problem", "solution", "answer"], "reference", "math.jsonl")
    'answer'
    """
    names = QUESTION_COLUMNS if setting == "question" else REFERENCE_COLUMNS
    found = [column for column in columns if column.lower() in names]
    if not found and setting == "reference":
        found = [column for column in columns if column.lower() in SOLUTION_COLUMNS]
    if len(found) > 1:
        raise ConfigError(
            f"{source_name} has several columns that may be the {setting}: {', '.join(found)}; choose one with {setting}=COLUMN. "
            f"Its columns: {_format_columns(columns)}"
        )
    return found[0] if found else ""


def make_missing_column_error(columns: Sequence[str], setting: str, source_name: str) -> ConfigError:
    """Make the error for a column that cannot be guessed."""
    names = QUESTION_COLUMNS if setting == "question" else (*REFERENCE_COLUMNS, *SOLUTION_COLUMNS)
    return ConfigError(
        f"{source_name} has no column that is known to be the {setting} ({', '.join(names)}); it has {_format_columns(columns)}. "
        f"Name one by the environment's setting {setting}: a column, or a template such as '... {{COLUMN}} ...' "
        f"(env.{setting}=COLUMN for rlvr train, --set {setting}=COLUMN for rlvr eval, make_env(data, {setting}=...) in Python)"
    )


def detect_answer_mark(references: Sequence[Any]) -> str:
    r"""Detect how most references mark their final answer: `hash` (after ####), `boxed` (in \boxed{}), or `whole`.

    >>> detect_answer_mark(["3+4=7\n#### 7", "#### 8"]), detect_answer_mark(["7", "8"])
    ('hash', 'whole')
    """
    for mark, sign in (("hash", "####"), ("boxed", "\\boxed")):
        if sum(isinstance(text, str) and sign in text for text in references) * 2 > len(references):
            return mark
    return "whole"


def extract_reference(value: Any, mark: str) -> Any:
    r"""Extract the final answer from a reference; ValueError if the mark is missing. Numbers become texts.

    >>> extract_reference("She has 7.\n#### 1,007", "hash"), extract_reference("so \\boxed{\\frac12}", "boxed"), extract_reference(4, "whole")
    ('1007', '\\frac12', '4')
    """
    if isinstance(value, bool | int | float):
        return str(value)
    if not isinstance(value, str):
        return value
    if mark == "whole":
        return value.strip()
    text = value.rpartition("####")[2].strip() if mark == "hash" and "####" in value else ""
    text = (extract_answer(value, "boxed", multiple_answers="last").text or "") if mark == "boxed" else text
    if not text:
        raise ValueError(
            f"the reference has no {'number after ####' if mark == 'hash' else 'box'}, as most others have: {value.strip()[-60:]!r}"
        )
    return text.replace(",", "") if GROUPED_NUMBER.fullmatch(text) else text


def _format_columns(columns: Sequence[str]) -> str:
    return ", ".join(map(str, columns[:30])) + (", ..." if len(columns) > 30 else "")
