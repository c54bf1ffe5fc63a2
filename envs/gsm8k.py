"""GSM8K: grade-school word problems with whole-number answers (Cobbe et al., 2021), from your own files or through `datasets`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.contracts import Environment, Verifier
from rlvr.envs._data.rows import read_file_rows
from rlvr.envs._problem_files import download_rows, parse_rows
from rlvr.errors import ConfigError, NotFound
from rlvr.task import Task, make_user_prompt

CALCULATOR_ANNOTATION = re.compile(r"<<[^>]*>>")
INSTRUCTION = "Reason step by step. Put the final number alone on the last line, after ####."


class GSM8K(Environment):
    """Word problems; the reference is the number after `####` in the published solution.

    >>> import rlvr
    >>> env = rlvr.make_env("gsm8k", path="data/gsm8k")  # doctest: +SKIP
    >>> env.num_tasks("test"), env.task("test", 0).reference  # doctest: +SKIP
    (1319, '18')
    """

    needs = {"verifier": "symbolic"}
    max_prompt_tokens = 1536
    max_new_tokens = 1280

    def __init__(self, *, verifier: Verifier, path: str = "", instruction: str = INSTRUCTION) -> None:
        """Set the source of the problems.

        Args:
            verifier: verifies the final number.
            path: a folder with train.jsonl and test.jsonl (or gsm8k_train.jsonl ...), lines {"question", "answer"};
                empty downloads them through `datasets`.
            instruction: the text after each question.
        """
        self.verifier, self.instruction = verifier, instruction
        self.path = Path(path).expanduser() if path else None
        self._rows: dict[str, list[tuple[str, str]]] = {}
        if self.path is not None and not self.path.is_dir():
            what = "is a file, not a folder" if self.path.is_file() else "is no folder"
            raise NotFound(f"path {path!r} {what}; it needs train.jsonl and test.jsonl, lines {{question, answer}}")

    def task(self, split: str, index: int) -> Task:
        """Return the problem at `index`, in the published order."""
        rows = self._load_split(split)
        if not 0 <= index < len(rows):
            raise ConfigError(f"gsm8k has no {split} problem {index}; it has 0 to {len(rows) - 1}")
        question, solution = rows[index]
        prompt = make_user_prompt(f"{question}\n\n{self.instruction}" if self.instruction else question)
        return Task(prompt, _extract_final_number(solution), id=f"gsm8k/{split}/{index}", meta={"solution": solution})

    def num_tasks(self, split: str) -> int:
        """Return the number of problems in the split."""
        return len(self._load_split(split))

    def gold(self, task: Task) -> str:
        """Return the published solution without its calculator annotations."""
        return CALCULATOR_ANNOTATION.sub("", task.meta["solution"])

    def _load_split(self, split: str) -> list[tuple[str, str]]:
        if split not in self.splits:
            raise ConfigError(f"gsm8k has no split {split!r}; allowed: {', '.join(self.splits)}")
        if split not in self._rows:
            self._rows[split] = _load_from_folder(self.path, split) if self.path else _download_split(split)
        return self._rows[split]


def _load_from_folder(folder: Path, split: str) -> list[tuple[str, str]]:
    candidates = [folder / f"{split}.jsonl", folder / f"gsm8k_{split}.jsonl"]
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        raise NotFound(f"{folder} has neither {candidates[0].name} nor {candidates[1].name}; put the {split} split there")
    return parse_rows(read_file_rows(file), _parse_row, 'each line must be {"question": ..., "answer": "... #### 18"}')


def _download_split(split: str) -> list[tuple[str, str]]:
    found = download_rows("openai/gsm8k", "main", split, "a folder that holds train.jsonl and test.jsonl")
    return [_parse_row(row) for row in found]


def _parse_row(row: Any) -> tuple[str, str]:
    if not isinstance(row, Mapping) or not isinstance(row.get("question"), str) or not isinstance(row.get("answer"), str):
        raise ValueError("it is not an object with the strings question and answer")
    if not row["question"].strip() or not _extract_final_number(row["answer"]):
        raise ValueError("the question is empty, or the answer has no number after ####")
    return row["question"].strip(), row["answer"].strip()


def _extract_final_number(solution: str) -> str:
    return solution.rpartition("####")[2].strip().replace(",", "") if "####" in solution else ""


make = GSM8K
