"""Mutation tests: change an operator, a number or a branch somewhere in the product, and see whether the quick tests notice.

    pip install cosmic-ray pytest-cov
    python benchmarks/mutation.py --sample 200                      mutants drawn at random over all files
    python benchmarks/mutation.py --sample 60 --only 'rlvr/algorithms/*'
    python benchmarks/mutation.py --map lines.db --sample 200       keep the map of lines and tests, or use it again

The mutants are cosmic-ray's. First the quick tests run once with coverage, which says which tests execute a line. Each mutant then runs the
tests of its line, in a copy of the tree, until one fails: at most MAX_TESTS, those first that execute the fewest lines. Code that never runs,
which no test can detect, is left out: annotations, docstrings and imports under `if TYPE_CHECKING`. A line that no quick test executes is
counted as not covered; it survives. Survivors are listed as differences; the last line is JSON.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rlvr", "envs", "verifiers", "sandbox")
LINKED = ("envs", "verifiers", "sandbox")
"""Folders beside `rlvr` that are imported through it."""
QUICK = "not (slow or docker or bubblewrap or vllm or chromium or release)"
MAX_TESTS = 60
TIMEOUT_S = 240


@dataclass(frozen=True)
class Mutant:
    """One change: the operator, its position in a file, and where that is."""

    path: str
    operator: str
    arguments: tuple[tuple[str, Any], ...]
    occurrence: int
    start: tuple[int, int]

    def apply(self, source: str) -> str | None:
        """The whole file with the change in it; None if it is the same program."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        try:
            changed: str | None = mutate_code(source, get_operator(self.operator)(**dict(self.arguments)), self.occurrence)
            return None if changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)) else changed
        except (SyntaxError, AttributeError):  # cosmic-ray cannot replace an exception with a dotted name
            return None

    def describe(self) -> str:
        """The line before and after."""
        source = (ROOT / self.path).read_text("utf-8")
        before, after = source.splitlines(), (self.apply(source) or "").splitlines()
        line = next((f"- {a.strip()}\n    + {b.strip()}" for a, b in zip(before, after, strict=False) if a != b), "")
        return f"{self.path}:{self.start[0]}  {self.operator}\n    {line}"


def list_mutants(path: Path) -> list[Mutant]:
    """All mutants of a file, without those that cannot matter because the line never runs."""
    from cosmic_ray.commands.init import _all_work_items

    silent = list(find_silent_spans(path.read_text("utf-8")))
    found = []
    for item in _all_work_items([path], {}):
        [m] = item.mutations
        if not any(a <= tuple(m.start_pos) and tuple(m.end_pos) <= b for a, b in silent):
            name = path.relative_to(ROOT).as_posix()
            found.append(Mutant(name, m.operator_name, tuple(sorted(m.operator_args.items())), m.occurrence, tuple(m.start_pos)))
    return found


def find_silent_spans(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The positions of annotations and of imports for type checkers."""
    for node in ast.walk(ast.parse(source)):
        parts: list[Any] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            parts = [node.returns, *(argument.annotation for argument in arguments)]
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            parts = list(node.body)
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        for part in parts:
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def draw_mutants(files: Sequence[Path], count: int, dice: random.Random) -> list[Mutant]:
    """Draw mutants: a file as often as it has lines, and one of its mutants."""
    of_file: dict[Path, list[Mutant]] = {}
    texts = {path: path.read_text("utf-8") for path in files}
    chosen: list[Mutant] = []
    for path in dice.choices(files, [text.count("\n") for text in texts.values()], k=4 * count):
        if path not in of_file:
            of_file[path] = list_mutants(path)
        mutant = dice.choice(of_file[path]) if of_file[path] else None
        if mutant and mutant not in chosen and mutant.apply(texts[path]):
            chosen.append(mutant)
    return chosen[:count]


class LineMap:
    """Which quick tests execute a line, from the data of coverage.py."""

    def __init__(self, data: Path) -> None:
        database = sqlite3.connect(data)
        contexts = dict(database.execute("select id, context from context"))
        files = dict(database.execute("select id, path from file"))
        self.tests: dict[str, dict[int, set[str]]] = {}
        self.num_lines = Counter[str]()
        for file, context, bits in database.execute("select file_id, context_id, numbits from line_bits"):
            test = contexts[context].partition("|")[0]
            lines = [8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
            self.num_lines[test] += len(lines)
            of_file = self.tests.setdefault(files[file], {})
            for line in lines:
                of_file.setdefault(line, set()).add(test)

    def choose_tests(self, mutant: Mutant) -> list[str]:
        """The tests to run for a mutant. A line that only an import executes is tried with the tests of its file."""
        of_file = self.tests.get(mutant.path, {})
        line = of_file.get(mutant.start[0], set())
        found = line - {""} or ({test for tests in of_file.values() for test in tests} - {""} if line else set())
        return sorted(found, key=lambda test: (self.num_lines[test], test))[:MAX_TESTS]


def run_pytest(tree: Path, arguments: Sequence[str], timeout: float) -> int | None:
    """Run pytest in a tree and return its exit code; None if it did not end in time."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a compiled module would hide the next mutant of its file
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    child = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def measure_lines(tree: Path, data: Path) -> None:
    """Run the quick tests once, and record which test executes which line."""
    settings = tree / ".coveragerc"
    folders = "\n    ".join(str(tree / package) for package in PACKAGES)  # the linked ones by their own paths
    settings.write_text(f"[run]\nsource =\n    {folders}\nrelative_files = True\ndata_file = {data}\n", "utf-8")
    how = ["--numprocesses", str(os.cpu_count() or 1), "--dist", "loadgroup", "-m", QUICK]
    code = run_pytest(tree, [*how, "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="], 7200)
    if code != 0:
        raise SystemExit(f"the quick tests end with {code} without any change, so the result would mean nothing")


def copy_tree(target: Path) -> Path:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns(".*", "__pycache__")
    return Path(shutil.copytree(ROOT, target, symlinks=True, ignore=ignored))


def try_mutant(mutant: Mutant, tests: Sequence[str], trees: SimpleQueue[Path]) -> str:
    """Run the tests of a mutant: `killed`, `endless`, `survived` or `uncovered`."""
    if not tests:
        return "uncovered"
    tree = trees.get()
    path = tree / mutant.path
    source = path.read_text("utf-8")
    try:
        path.write_text(mutant.apply(source) or source, "utf-8")
        code = run_pytest(tree, ["-x", "-n", "0", *tests], TIMEOUT_S)
    finally:
        path.write_text(source, "utf-8")
        trees.put(tree)
    return "endless" if code is None else "survived" if code == 0 else "killed"


def main() -> None:
    """Draw the mutants, run the tests, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="*", help="a pattern of paths")
    parser.add_argument("--map", type=Path, help="the file with the lines that each test executes; made if it is missing")
    asked = parser.parse_args()
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if not path.is_symlink())
    files = [path for path in files if fnmatch.fnmatch(path.relative_to(ROOT).as_posix(), asked.only)]
    files = [path for path in files if path.relative_to(ROOT).parts[1] not in LINKED]
    chosen = draw_mutants(files, asked.sample, random.Random(asked.seed))
    outcomes: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory(prefix="rlvr-mutation-") as home:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(asked.jobs):
            trees.put(copy_tree(Path(home) / f"tree-{number}"))
        data = asked.map or Path(home) / "lines.db"
        if not data.exists():
            measure_lines(Path(home) / "tree-0", data)
        lines = LineMap(data)
        with ThreadPoolExecutor(asked.jobs) as pool:
            tried = pool.map(lambda mutant: (mutant, try_mutant(mutant, lines.choose_tests(mutant), trees)), chosen)
            for number, (mutant, outcome) in enumerate(tried, 1):
                outcomes[mutant] = outcome
                if outcome in ("survived", "uncovered"):
                    print(f"{outcome.upper()} {mutant.describe()}", flush=True)
                if number % 20 == 0:
                    print(f"... {number} of {len(chosen)}: {dict(Counter(outcomes.values()))}", flush=True)
    counts = Counter(outcomes.values())
    share = (counts["killed"] + counts["endless"]) / max(1, len(outcomes))
    by_folder = Counter(
        "/".join(mutant.path.split("/")[:2]) for mutant, outcome in outcomes.items() if outcome in ("survived", "uncovered")
    )
    error = math.sqrt(share * (1 - share) / max(1, len(outcomes)))
    figures = {"tested": len(outcomes), "seed": asked.seed, **counts}
    print(json.dumps({**figures, "killed_share": round(share, 4), "stderr": round(error, 4), "survivors": dict(by_folder)}))


if __name__ == "__main__":
    main()
