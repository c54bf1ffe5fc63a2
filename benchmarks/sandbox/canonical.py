"""Judge published and wrong solutions of HumanEval and MBPP in the docker sandbox. One JSON line.

    python benchmarks/sandbox/canonical.py --humaneval HumanEval.jsonl.gz --mbpp mbpp_sanitized.json [--wrong]

With --wrong every task also gets an empty body, a constant, another task's solution under its own name, and three mutants.
Those that pass are run again in plain Python (inside the sandbox), which shows whether the tests are to blame.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlvr.contracts import Environment, ExitStatus, Program
from rlvr.registry.plugins import build
from rlvr.task import Task

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.GtE: ast.Gt,
}
SWAPS |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And, ast.Mod: ast.FloorDiv, ast.FloorDiv: ast.Mod}


def mutants(source: str, seed: int) -> Iterator[str]:
    """Up to three copies of the source with one operator or number changed."""
    draw = random.Random(seed)
    places = [
        n
        for n, node in enumerate(ast.walk(ast.parse(source)))
        if type(node) in SWAPS or (isinstance(node, ast.Constant) and type(node.value) is int)
    ]
    for place in draw.sample(places, min(3, len(places))):
        tree = ast.parse(source)
        node = list(ast.walk(tree))[place]
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int)
            node.value += 1
        for parent in ast.walk(tree):
            for name, value in ast.iter_fields(parent):
                if value is node and type(node) in SWAPS:
                    setattr(parent, name, SWAPS[type(node)]())
                elif isinstance(value, list) and node in value and type(node) in SWAPS:
                    value[value.index(node)] = SWAPS[type(node)]()
        yield ast.unparse(tree)


def wrong(task: Task, other: Task, seed: int) -> Iterator[tuple[str, str]]:
    """Wrong answers to a task, by kind."""
    entry, foreign = task.reference["entry_point"], other.reference["entry_point"]
    yield "empty", f"def {entry}(*args, **kwargs):\n    pass"
    yield "constant", f"def {entry}(*args, **kwargs):\n    return {seed % 3 - 1}"
    yield "foreign", f"{other.meta['solution']}\n{entry} = {foreign}"
    yield from (("mutant", source) for source in mutants(task.meta["solution"], seed))


def bare(env: Any, task: Task, code: str) -> bool:
    """Whether plain Python, with the tests after the code, would accept it."""
    reference = task.reference
    check = f"\ncheck({reference['entry_point']})" if "def check(" in reference["test"] else ""
    source = f"{reference.get('prelude', '')}\n{reference.get('setup', '')}\n{code}\n{reference['test']}{check}\n"
    return bool(env.verifier.sandbox.run(Program(source)).stop is ExitStatus.OK)


def survey(env: Environment, threads: int, with_wrong: bool) -> dict[str, Any]:
    """All tasks of all splits."""
    tasks = [env.task(split, index) for split in env.splits for index in range(env.size(split) or 0)]
    env.verifier.verify(tasks[0], env.gold(tasks[0]) or "")  # the containers start before the clock does
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        gold = list(pool.map(lambda task: env.verifier.verify(task, env.gold(task) or "").score, tasks))
        row: dict[str, Any] = {"tasks": len(tasks), "passed": gold.count(1.0), "seconds": round(time.perf_counter() - began, 2)}
        row["unjudged"] = gold.count(None)
        if with_wrong:
            pairs = [(task, *item) for n, task in enumerate(tasks) for item in wrong(task, tasks[(n + 7) % len(tasks)], n)]
            scores = list(pool.map(lambda pair: env.verifier.verify(pair[0], f"```python\n{pair[2]}\n```").score, pairs))
            for kind in ("empty", "constant", "foreign", "mutant"):
                paid = [pair for pair, score in zip(pairs, scores, strict=True) if pair[1] == kind and score == 1.0]
                row[kind] = sum(pair[1] == kind for pair in pairs)
                row[f"{kind}_paid"] = len(paid)
                row[f"{kind}_paid_beyond_bare_python"] = sum(not bare(env, task, code) for task, _, code in paid)
            row["mutation_score"] = round(1 - row["mutant_paid"] / max(row["mutant"], 1), 3)
            row["without_verdict"] = scores.count(None)
    return row


def main() -> None:
    """Measure what was requested."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--humaneval", default="")
    arguments.add_argument("--mbpp", default="")
    arguments.add_argument("--wrong", action="store_true")
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    result = {}
    for name in ("humaneval", "mbpp"):
        if getattr(given, name):
            env = build("env", name, path=getattr(given, name))
            result[name] = survey(env, given.threads, given.wrong)
            env.verifier.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
