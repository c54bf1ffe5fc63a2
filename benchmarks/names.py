"""Can a stranger tell from a name what it is? Draw names at random, with signatures and without docstrings, for a blind reader.

    python benchmarks/names.py --seed 1 --count 100 > questions.txt             what the reader sees
    python benchmarks/names.py --seed 1 --count 100 --answers > answers.txt     the docstrings, for whoever scores the reader's guesses

The same seed draws the same names from the same tree, so a figure can be repeated. Only what has a docstring (or a comment beside it)
can be scored, so only that is drawn: classes, functions, methods, configuration keys and metrics, in proportion to how many there are.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("rlvr", "envs", "verifiers", "sandbox")
NOT_METRICS = ("application/", "runs/", "checkpoints/", "text/", "etc/", "data/", "cpu/", "envs/", "in/", "root/", "up/")
METRIC = re.compile(r"[\"']((?:[a-z_]+)/(?:[a-z_]+))[\"']")


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The parameters and the return type of a function, as source."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def names_in(node: ast.AST, place: str, comments: list[str]) -> Iterator[tuple[str, str]]:
    """Every documented class, function, method and configuration key below a node: (what is shown, its docstring)."""
    body = getattr(node, "body", [])
    for number, child in enumerate(body):
        if isinstance(child, ast.ClassDef):
            if text := ast.get_docstring(child):
                bases = ", ".join(map(ast.unparse, child.bases))
                yield f"class {place}.{child.name}({bases})", text
            yield from names_in(child, f"{place}.{child.name}", comments)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(child)) and not child.name.startswith("__"):
                yield f"def {place}.{child.name}{signature(child)}", text
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name) and ".config." in place:
            after = body[number + 1] if number + 1 < len(body) else None
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
            line = comments[(child.end_lineno or child.lineno) - 1]
            text = after.value.value if documented else line.partition("  # ")[2]  # type: ignore[union-attr]
            if text:
                yield f"config key {place.rpartition('.')[2]}.{child.target.id}: {ast.unparse(child.annotation)}", str(text)


def all_names(root: Path) -> list[tuple[str, str]]:
    """Every name of the product that can be drawn, with the text that explains it."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if path.is_symlink() or any(parent.is_symlink() for parent in path.parents):
                continue
            source = path.read_text("utf-8")
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            found.update(names_in(ast.parse(source), module, source.split("\n")))
    return sorted(found.items())


def metrics(root: Path) -> list[tuple[str, str]]:
    """The metrics that the code logs by name, with the line that logs each."""
    found: dict[str, str] = {}
    for path in sorted((root / "rlvr").rglob("*.py")):
        if any(parent.is_symlink() for parent in path.parents):
            continue
        for line in path.read_text("utf-8").split("\n"):
            for name in METRIC.findall(line):
                if not name.startswith(NOT_METRICS) and name not in ("tok/s", "tokens/s"):
                    found.setdefault(f"metric {name}", line.strip())
    return sorted(found.items())


def main() -> None:
    """Print the questions, or the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--answers", action="store_true")
    asked = parser.parse_args()
    drawn = random.Random(asked.seed).sample(all_names(asked.root) + metrics(asked.root), asked.count)
    for number, (name, text) in enumerate(drawn, 1):
        print(f"{number}. {name}" + (f"\n    {text}\n" if asked.answers else ""))


if __name__ == "__main__":
    main()
