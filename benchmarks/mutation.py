"""Mutation tests of the algorithms: change every operator, number and branch of `rlvr/algorithms/`, one at a time, and run the tests.

    pip install cosmic-ray
    python benchmarks/mutation.py                    all mutants
    python benchmarks/mutation.py --sample 400       a random sample over all files
    python benchmarks/mutation.py --only credit.py kl.py

The mutants are cosmic-ray's. Its own runner starts a new interpreter for each, which costs more than the tests do; here each
runs in a fork of a process that has torch loaded, in a copy of the tree. Code that never runs, which no test can detect, is left out:
annotations of functions, and imports under `if TYPE_CHECKING`. The last line is JSON; survivors are listed
above it as differences.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ALGOS = Path("rlvr/algorithms")
TESTS = ("edges", "credit", "recipes", "losses", "equivalences", "expectation", "formulas", "open_parts", "preferences", "distill")
FIRST = {
    "settings": "recipes",
    "recipe": "recipes",
    "checks": "recipes",
    "credit": "credit",
    "returns": "credit",
    "preferences": "preferences",
    "preference": "preferences",
}
FIRST["distill"] = "distill"
FIRST |= dict.fromkeys(("gtpo", "high_entropy", "clip_cov", "kl_cov", "dppo", "max_rl", "entropy", "covariance"), "open_parts")
"""Which test file runs first, by file of the algorithms; `losses` for the others."""
HEAVY = ("torch", "accelerate", "hypothesis", "pytest", "numpy", "yaml", "pydantic", "transformers.models.qwen2.modeling_qwen2")
CPU_S, DEADLINE_S = 60, 900.0
KEPT = "_hypothesis_internal_use_settings"
EXAMPLES = 8
"""How many examples hypothesis tries: a mutant that survives because of that is still a survivor."""


@dataclass(frozen=True)
class Mutant:
    """One change: the operator, its position in a file, and where that is."""

    path: str
    operator: str
    arguments: tuple[tuple[str, Any], ...]
    occurrence: int
    start: tuple[int, int]
    end: tuple[int, int]

    def code(self, source: str) -> str | None:
        """The whole file with the change in it."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        changed: str | None = mutate_code(source, get_operator(self.operator)(**dict(self.arguments)), self.occurrence)
        return changed


def mutants(names: Sequence[str]) -> list[Mutant]:
    """All mutants, without those that cannot matter because the line never runs or means the same."""
    from cosmic_ray.commands.init import _all_work_items

    files = sorted(path.relative_to(ROOT) for path in (ROOT / ALGOS).rglob("*.py") if not names or path.name in names)
    silent = {str(path): list(never_run((ROOT / path).read_text("utf-8"))) for path in files}
    found = []
    for item in _all_work_items([ROOT / path for path in files], {}):
        [m] = item.mutations
        path = str(m.module_path.relative_to(ROOT))
        if not any(a <= m.start_pos and m.end_pos <= b for a, b in silent[path]):
            found.append(
                Mutant(path, m.operator_name, tuple(sorted(m.operator_args.items())), m.occurrence, tuple(m.start_pos), tuple(m.end_pos))
            )
    return found


def never_run(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The positions of function annotations and of imports for type checkers."""
    for node in ast.walk(ast.parse(source)):
        parts: list[Any] = []
        if isinstance(node, ast.FunctionDef):
            yield from header(node)
            parts = [inner.annotation for inner in ast.walk(node) if isinstance(inner, ast.AnnAssign)]
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            parts = [node]
        elif isinstance(node, ast.AnnAssign) and node.col_offset == 0:
            parts = [node.annotation]
        for part in parts:
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def header(node: ast.FunctionDef) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """A function's first lines, without the defaults, which do run."""
    at = node.lineno, node.col_offset
    for default in sorted((d for d in [*node.args.defaults, *node.args.kw_defaults] if d), key=lambda d: (d.lineno, d.col_offset)):
        yield at, (default.lineno, default.col_offset)
        assert default.end_lineno is not None and default.end_col_offset is not None
        at = default.end_lineno, default.end_col_offset
    yield at, (node.body[0].lineno, node.body[0].col_offset)


def run_tests(copy: Path, first: str = "credit") -> tuple[int, float]:
    """Run the tests in a fork of this process: 0 they pass, 1 one failed, 2 they did not finish; and the CPU seconds."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        failed = True
        try:
            order = sorted(TESTS, key=lambda name: (name != "edges", name != first))
            failed = any(fails(copy / "tests" / "algos" / f"test_{name}.py") for name in order)
        finally:
            os._exit(failed)
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
            return (2 if slow else int(status != 0)), usage.ru_utime + usage.ru_stime
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 2, float(CPU_S)


def fails(file: Path) -> bool:
    """Run one test file. Tests that train are left to slower suites, and a failing example is not shrunk."""
    import pytest
    from hypothesis import Phase, settings

    class Fewer:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            for item in items:
                if hasattr(item.obj, KEPT):
                    setattr(item.obj, KEPT, settings(getattr(item.obj, KEPT), max_examples=EXAMPLES))

    settings.register_profile("mutation", phases=(Phase.explicit, Phase.generate), database=None, derandomize=True)
    settings.load_profile("mutation")
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", "not bandit", *quiet, str(file)], plugins=[Fewer()]) != 0


def work(home: str, jobs: Any, results: Any) -> None:
    """One worker: a copy of the tree, everything heavy imported once, a fork for each mutant."""
    copy = Path(home)
    for name in ("rlvr", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    os.chdir(copy)
    sys.dont_write_bytecode = True  # a stale one would hide the next mutant
    sys.path.insert(0, str(copy))
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    for name in HEAVY:
        importlib.import_module(name)
    results.put((None, *run_tests(copy)))
    for mutant in iter(jobs.get, None):
        path = copy / mutant.path
        source = path.read_text("utf-8")
        changed = mutant.code(source)
        if changed is None or not differs(changed, source):
            results.put((mutant, 3, 0.0))
            continue
        path.write_text(changed, "utf-8")
        results.put((mutant, *run_tests(copy, FIRST.get(path.stem, "losses"))))
        path.write_text(source, "utf-8")


def differs(changed: str, source: str) -> bool:
    """Whether the change is valid Python and differs from the original."""
    try:
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def shown(mutant: Mutant) -> str:
    """The line before and after."""
    source = (ROOT / mutant.path).read_text("utf-8")
    before, after = source.splitlines(), (mutant.code(source) or "").splitlines()
    lines = [f"- {a.strip()}\n    + {b.strip()}" for a, b in zip(before, after, strict=False) if a != b][:1]
    return f"{mutant.path}:{mutant.start[0]}  {mutant.operator}\n    {''.join(lines)}"


def main() -> None:
    """Draw the mutants, run the tests, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="how many mutants to draw; 0: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--after", type=int, default=0, help="skip so many of the sample: they were run before")
    parser.add_argument("--only", nargs="*", default=[], help="file names inside rlvr/algorithms")
    asked = parser.parse_args()
    everything = mutants(asked.only)
    chosen = list(everything)
    random.Random(asked.seed).shuffle(chosen)
    chosen = chosen[asked.after :][: asked.sample or len(chosen)]
    context = get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    survivors: list[Mutant] = []
    count: Counter[int] = Counter()
    spent = 0.0
    with tempfile.TemporaryDirectory(prefix="rlvr-mutation-") as home:
        workers = [context.Process(target=work, args=(f"{home}/{k}", jobs, results), daemon=False) for k in range(asked.jobs)]
        for mutant in [*chosen, *([None] * asked.jobs)]:
            jobs.put(mutant)
        for worker in workers:
            worker.start()
        for k in range(len(chosen) + asked.jobs):
            mutant, outcome, seconds = results.get(timeout=10 * DEADLINE_S)
            if mutant is None:
                print(f"the tests without a change: {'pass' if outcome == 0 else 'FAIL'} in {seconds:.1f} s of processor time", flush=True)
                if outcome:
                    raise SystemExit("the tests fail without any change, so the result would mean nothing")
                continue
            count[outcome] += 1
            spent += seconds
            if outcome == 0:
                survivors.append(mutant)
                print(f"SURVIVED {shown(mutant)}", flush=True)
            elif outcome == 2:
                print(f"ENDLESS {shown(mutant)}", flush=True)
            if k % 20 == 0:
                print(f"... {k} of {len(chosen)}, {len(survivors)} survived, {spent:.0f} s of processor time", flush=True)
        for worker in workers:
            worker.join()
    tested = count[0] + count[1] + count[2]
    per_file = Counter(m.path.rsplit("/", 1)[1] for m in survivors)
    print(
        json.dumps(
            {
                "benchmark": "mutation", "mutants": len(everything), "tested": tested, "seed": asked.seed,
                "killed": count[1], "endless": count[2], "survived": count[0],
                "killed_share": round(1 - count[0] / tested, 4) if tested else None, "survivors": dict(per_file),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
