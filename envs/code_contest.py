"""Small programming tasks with input and output: generated, or from your own file with tests."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from rlvr.contracts import Environment, Verifier
from rlvr.envs._contest_families import FAMILIES, ContestProblem
from rlvr.envs._problem_files import parse_problems, read_problem_rows
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task, make_user_prompt

INSTRUCTION = "Read from standard input, write to standard output. Answer with one fenced block of Python."


class CodeContest(Environment):
    """Programming tasks: some tests are shown, the others are hidden and generated for every task.

    >>> import rlvr
    >>> env = rlvr.make_env("code_contest", hidden=4)
    >>> len(env.task("train", 0).reference["cases"])
    6
    """

    needs = {"verifier": "unit_tests"}
    max_prompt_tokens = 1536
    max_new_tokens = 768

    def __init__(
        self,
        *,
        verifier: Verifier,
        path: str = "",
        families: list[str] | None = None,
        shown: int = 2,
        hidden: int = 6,
        seed: int = 0,
        instruction: str = INSTRUCTION,
    ) -> None:
        """Choose the tasks.

        Args:
            verifier: runs the tests.
            path: JSON lines {"statement", "cases": [{"stdin", "stdout"}], "solution"?, "shown"?}; empty generates tasks.
            families: the families of generated tasks; all by default.
            shown: number of tests that a generated task shows.
            hidden: number of further tests that it does not show.
            seed: another seed gives different tasks.
            instruction: the text after each statement.
        """
        for name, value, least in (("shown", shown, 0), ("hidden", hidden, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 100:
                raise ConfigError(f"{name} is {value!r}; allowed: {least} to 100")
        for family in families or []:
            if family not in FAMILIES:
                raise ConfigError(f"there is no family {family!r}; {format_suggestion(str(family), FAMILIES)}")
        self.verifier, self.shown, self.hidden, self.seed, self.instruction = verifier, shown, hidden, seed, instruction
        self.families = sorted(families or FAMILIES)
        self._rows = (
            parse_problems(read_problem_rows(Path(path).expanduser(), ("problems.jsonl",)), _parse_row, "code_contest") if path else None
        )

    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`; a hash of the statement decides its split."""
        if split not in self.splits:
            raise ConfigError(f"code_contest has no split {split!r}; allowed: {', '.join(self.splits)}")
        if self._rows is not None:
            mine = self._rows_of_split(split)
            if not 0 <= index < len(mine):
                raise ConfigError(f"code_contest has no {split} problem {index}; it has 0 to {len(mine) - 1}")
            row = mine[index]
            return self._make_task(f"{split}/{index}", row["statement"], row["cases"], row["shown"], row["solution"])
        rng = random.Random(f"code_contest/{self.seed}/{split}/{index}")
        for _ in range(10_000):
            problem: ContestProblem = FAMILIES[rng.choice(self.families)](rng)
            if _is_held_out(problem.statement) == (split == "test"):
                cases = problem.make_cases(rng, self.shown + self.hidden)
                return self._make_task(f"{split}/{self.seed}.{index}", problem.statement, cases, self.shown, problem.solution)
        raise ConfigError(f"there is no {split!r} task in families {', '.join(self.families)}; name more families")

    def num_tasks(self, split: str) -> int | None:
        """Return the number of problems in the file for the split; None for generated tasks, which are endless."""
        return None if self._rows is None else len(self._rows_of_split(split))

    def gold(self, task: Task) -> str | None:
        """Return the known solution as a code block, or None."""
        solution = task.meta.get("solution")
        return f"```python\n{solution}\n```" if solution else None

    def _rows_of_split(self, split: str) -> list[dict[str, Any]]:
        return [row for row in self._rows or [] if _is_held_out(row["statement"]) == (split == "test")]

    def _make_task(self, name: str, statement: str, cases: list[dict[str, str]], shown: int, solution: str) -> Task:
        examples = "".join(f"\n\nInput:\n{case['stdin'].rstrip()}\nOutput:\n{case['stdout'].rstrip()}" for case in cases[:shown])
        text = f"{statement}{examples}\n\n{self.instruction}"
        return Task(make_user_prompt(text), {"kind": "stdio", "cases": cases}, id=f"code_contest/{name}", meta={"solution": solution})


def _is_held_out(statement: str) -> bool:
    return hashlib.blake2b(statement.encode(), digest_size=1).digest()[0] % 5 == 0


def _parse_row(row: dict[str, Any]) -> dict[str, Any]:
    cases = [{"stdin": str(case["stdin"]), "stdout": str(case["stdout"])} for case in row["cases"]]
    if not cases or not str(row["statement"]).strip():
        raise ValueError("the statement or the cases are empty")
    return {
        "statement": str(row["statement"]),
        "cases": cases,
        "shown": int(row.get("shown", 2)),
        "solution": str(row.get("solution") or ""),
    }


make = CodeContest
