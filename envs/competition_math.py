r"""MATH (Hendrycks et al., 2021): competition mathematics, with answers in \boxed{}, from your own files or through `datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr.contracts import Environment, Verifier
from rlvr.envs._data.rows import read_file_rows
from rlvr.envs._problem_files import download_rows, parse_problems, parse_rows
from rlvr.errors import ConfigError, NotFound
from rlvr.extraction import extract_answer
from rlvr.task import Task, make_user_prompt

HUB_DATASETS = {"train": "DigitalLearningGmbH/MATH-lighteval", "test": "HuggingFaceH4/MATH-500"}
"""The data sets of the splits. The 500 problems are of the 5,000 that MATH itself holds out, so that no training problem is among them."""
INSTRUCTION = r"Reason step by step, and put your final answer within \boxed{}."


class CompetitionMath(Environment):
    r"""Problems with a solution and an answer, from a file of JSON lines {"problem", "solution", "answer", "subject", "level"}.

    >>> import rlvr
    >>> env = rlvr.make_env("competition_math", path="data/math500.jsonl")  # doctest: +SKIP
    >>> env.task("test", 0).reference  # doctest: +SKIP
    '\\left( 3, \\frac{\\pi}{2} \\right)'
    """

    needs = {"verifier": "symbolic"}
    max_prompt_tokens = 2048
    max_new_tokens = 2048

    def __init__(self, *, verifier: Verifier, path: str = "", instruction: str = INSTRUCTION, subject: str = "") -> None:
        """Set the source of the problems.

        Args:
            verifier: verifies the boxed answer.
            path: a .jsonl file (the split test, or train if its name says so), or a folder with train.jsonl and test.jsonl;
                empty downloads, through `datasets`, the 7,500 training problems of MATH and, for the split test, the 500 of MATH-500.
            instruction: the text after each problem.
            subject: keep the problems of one subject only ("Algebra").
        """
        self.verifier, self.instruction, self.subject = verifier, instruction, subject
        self.path = Path(path).expanduser() if path else None
        self._rows: dict[str, list[dict[str, Any]]] = {}
        if self.path is not None and not self.path.exists():
            raise NotFound(
                f"there is no file or folder {path!r}; path names a .jsonl file of problems, or a folder with train.jsonl and test.jsonl"
            )

        if self.path is not None and self.path.is_file():  # one split, which the name of the file decides; it replaces those of the class
            vars(self)["splits"] = ("train",) if "train" in self.path.stem else ("test",)

    def task(self, split: str, index: int) -> Task:
        """Return the problem at `index`, in the order of the file."""
        rows = self._load_split(split)
        if not 0 <= index < len(rows):
            raise ConfigError(f"competition_math has no {split} problem {index}; it has 0 to {len(rows) - 1}")
        row = rows[index]
        prompt = make_user_prompt(f"{row['problem']}\n\n{self.instruction}" if self.instruction else row["problem"])
        meta: dict[str, Any] = {key: row[key] for key in ("subject", "level", "solution", "conventions") if key in row}
        return Task(prompt, row["answer"], id=f"competition_math/{split}/{row.get('unique_id', index)}", meta=meta)

    def num_tasks(self, split: str) -> int:
        """Return the number of problems in the split."""
        return len(self._load_split(split))

    def gold(self, task: Task) -> str:
        """Return the boxed reference."""
        return f"The answer is $\\boxed{{{task.reference}}}$."

    def _load_split(self, split: str) -> list[dict[str, Any]]:
        if split not in self.splits:
            raise ConfigError(f"competition_math has no split {split!r}; allowed: {', '.join(self.splits)}")
        if split not in self._rows and self.path is None:
            self._rows[split] = self._filter_subject(
                parse_problems(download_rows(HUB_DATASETS[split], None, split), _fill_missing_answer, "competition")
            )
        if split not in self._rows and self.path is not None:
            file = self.path / f"{split}.jsonl" if self.path.is_dir() else self.path
            if not file.is_file():
                raise NotFound(f"{self.path} has no {split}.jsonl; put the {split} split there")
            self._rows[split] = self._filter_subject(
                parse_rows(read_file_rows(file), _fill_missing_answer, "each line needs problem, solution, answer")
            )
        return self._rows[split]

    def _filter_subject(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if not self.subject or row.get("subject") == self.subject]


def _fill_missing_answer(row: Any) -> dict[str, Any]:
    """Complete one row: a missing answer is taken from the last box of the solution."""
    if not isinstance(row, dict) or not isinstance(row.get("problem"), str):
        raise ValueError("it has no 'problem'")
    if not isinstance(row.get("answer"), str):
        row["answer"] = extract_answer(str(row.get("solution", "")), "boxed", multiple_answers="last").text or ""
    if "type" in row and "subject" not in row:
        row["subject"] = row["type"]
    if isinstance(level := row.get("level"), str) and level.removeprefix("Level ").isdecimal():  # "Level 5" there, 5 in MATH-500
        row["level"] = int(level.removeprefix("Level "))
    return row


make = CompetitionMath
