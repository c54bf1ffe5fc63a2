"""MBPP: small Python functions with three assertions each (Austin et al., 2021), from your own file or through `datasets`."""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path
from typing import Any

from rlvr.contracts import Environment, Verifier
from rlvr.envs._problem_files import download_rows, parse_problems, read_problem_rows
from rlvr.errors import ConfigError
from rlvr.python_source import parse_python_threadsafe
from rlvr.task import Task, make_user_prompt

LIMITS_BY_PROBLEM = {123: {"cpu_s": 30.0, "wall_s": 60.0}}
"""Limits of problems whose published solution may exceed the default 5 s: 123 tries every divisor of every number to 9999."""
INSTRUCTION = "Write the function `{signature}`. Answer with one fenced block of Python."


class MBPP(Environment):
    """Functions to write from a sentence; the prompt gives only the name and the arguments, the assertions are hidden.

    >>> import rlvr
    >>> env = rlvr.make_env("mbpp", path="data/mbpp_sanitized.json")  # doctest: +SKIP
    >>> env.task("test", 0).reference["entry_point"]  # doctest: +SKIP
    'similar_elements'
    """

    needs = {"verifier": "unit_tests"}
    max_prompt_tokens = 1024
    max_new_tokens = 768

    def __init__(self, *, verifier: Verifier, path: str = "", shown: int = 0, instruction: str = INSTRUCTION) -> None:
        """Set the source of the problems.

        Args:
            verifier: runs the assertions.
            path: a JSON file of problems {"task_id", "prompt" or "text", "code", "test_list"}; empty downloads the sanitized ones.
            shown: number of assertions that the prompt shows. They remain tests, so with more than 0 an answer can copy them.
            instruction: the text after each problem; {signature} is replaced by the name and the arguments.
        """
        if isinstance(shown, bool) or not isinstance(shown, int) or shown < 0:
            raise ConfigError(f"shown is {shown!r}; a whole number of at least 0 is needed")
        self.verifier, self.shown, self.instruction = verifier, shown, instruction
        self.path = Path(path).expanduser() if path else None
        self._problems: dict[str, list[dict[str, Any]]] = {}

    def task(self, split: str, index: int) -> Task:
        """Return the problem at `index` of the split, in the order of the file."""
        problems = self._load_problems(split)
        if not 0 <= index < len(problems):
            raise ConfigError(f"mbpp has no {split} problem {index}; it has 0 to {len(problems) - 1}")
        problem = problems[index]
        lines = [problem["prompt"], "", self.instruction.format(signature=problem["signature"])]
        lines += ["", "It must satisfy:", *problem["tests"][: self.shown]] if self.shown else []
        reference = {
            "kind": "asserts",
            "entry_point": problem["entry_point"],
            "test": "\n".join(problem["tests"]),
            "setup": problem["setup"],
            "limits": LIMITS_BY_PROBLEM.get(problem["id"], {}),
        }
        return Task(make_user_prompt("\n".join(lines)), reference, id=f"mbpp/{split}/{problem['id']}", meta={"solution": problem["code"]})

    def num_tasks(self, split: str) -> int:
        """Return the number of problems in the split."""
        return len(self._load_problems(split))

    def gold(self, task: Task) -> str:
        """Return the published solution."""
        return f"```python\n{task.meta['solution']}\n```"

    def _load_problems(self, split: str) -> list[dict[str, Any]]:
        if split not in self.splits:
            raise ConfigError(f"mbpp has no split {split!r}; allowed: {', '.join(self.splits)}")
        if not self._problems:
            if self.path:
                found = read_problem_rows(self.path, ("mbpp_sanitized.json", "sanitized-mbpp.json", "mbpp.jsonl"))
            else:
                found = [row for part in ("train", "test") for row in download_rows("google-research-datasets/mbpp", "sanitized", part)]
            everything = parse_problems(found, _parse_problem, "MBPP")
            self._problems = {name: [p for p in everything if _compute_split(p) == name] for name in self.splits}
        return self._problems[split]


def _compute_split(problem: dict[str, Any]) -> str:
    """Compute the split from a hash of the question, so that no question is in both; each gets about half."""
    return "test" if hashlib.blake2b(problem["prompt"].encode(), digest_size=1).digest()[0] % 2 else "train"


def _parse_problem(row: dict[str, Any]) -> dict[str, Any]:
    code, tests = str(row["code"]).replace("\r\n", "\n"), [str(test) for test in row["test_list"]]
    tree = parse_python_threadsafe(code)
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    used = [
        node.id for test in tests for node in ast.walk(parse_python_threadsafe(test)) if isinstance(node, ast.Name) and node.id in defined
    ]
    if not used:
        raise ValueError("its assertions call no function that its code defines")
    function = defined[used[0]]
    # the published assertions may use what the published code imports
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import) and _is_standard_library(node)]
    return {
        "id": row["task_id"],
        "prompt": str(row.get("prompt") or row["text"]).strip(),
        "code": code,
        "tests": tests,
        "setup": "\n".join([*imports, *map(str, row.get("test_imports") or [])]),
        "entry_point": function.name,
        "signature": f"{function.name}({ast.unparse(function.args)})",
    }


def _is_standard_library(node: ast.Import) -> bool:
    return all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)


make = MBPP
