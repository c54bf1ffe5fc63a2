"""A quiz of names: what does a reader who has never seen the project think that a class, a function or a setting is?

Draws names at random from the source, and prints them with their signatures (as an editor shows them: decorators, the parameters of a
constructor, the values that a setting may have) and without their docstrings; `--key` writes the docstrings to a
file. One reader writes down what each does; another one scores that against the key. Names of tests, private names, special methods, and
names without a docstring are left out. `--project` and `--folders` draw from the tree of another project, which has no settings here.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlvr.config.config import RunConfig  # noqa: E402
from rlvr.config.key_reference import iter_sections, list_keys  # noqa: E402

FOLDERS = ("rlvr", "envs", "verifiers", "sandbox")
DESCRIBED_DECORATORS = ("property", "cached_property", "classmethod", "staticmethod", "contextmanager", "overload")


def read_names(project: Path, folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every public class and function, as (module and signature, first line of the docstring)."""
    for folder in folders:
        for path in sorted((project / folder).rglob("*.py")):
            if any(parent.is_symlink() for parent in (path, *path.parents) if parent.is_relative_to(project) and parent != project):
                continue  # the folder is in the list by itself
            yield from read_body(ast.parse(path.read_text("utf-8")).body, path.relative_to(project).with_suffix("").as_posix())


def read_body(body: list[ast.stmt], place: str) -> Iterator[tuple[str, str]]:
    """The names of a module or a class."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        about = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            yield f"{place}: class {node.name}({bases}){describe_constructor(node)}", about
            yield from read_body(node.body, f"{place}: {node.name}")
        else:
            returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            kind = "".join(f"@{text} " for text in map(ast.unparse, node.decorator_list) if text in DESCRIBED_DECORATORS)
            yield f"{place}: {kind}{node.name}({ast.unparse(node.args)}){returned}", about


def describe_constructor(node: ast.ClassDef) -> str:
    """What an editor shows of a constructor: the parameters of `__init__`, or the fields of a dataclass."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return f": __init__({ast.unparse(item.args)})"
    fields = [
        f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}"
        for item in node.body
        if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation)
    ]
    return f": {', '.join(fields)}" if fields else ""


def read_settings() -> Iterator[tuple[str, str]]:
    """Every key of a recipe with its description."""
    for path, section in iter_sections(RunConfig):
        for key in list_keys(section):
            facts = "; ".join(filter(None, [f"default {key.default_text}", key.limits]))
            yield f"setting {f'{path}.{key.name}'.strip('.')}: {key.type_text} ({facts})", key.description


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="how many names; one in five is a setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key", type=Path, help="where the docstrings are written")
    parser.add_argument("--project", type=Path, default=ROOT, help="the tree of a project; of another one only names are drawn")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="its folders with code")
    options = parser.parse_args()
    draw, project = random.Random(options.seed), options.project.resolve()
    names = [row for row in read_names(project, options.folders) if row[1]]
    settings = [row for row in read_settings() if row[1]] if project == ROOT else []
    num_settings = options.count // 5 if settings else 0
    chosen = draw.sample(names, options.count - num_settings) + draw.sample(settings, num_settings)
    draw.shuffle(chosen)
    for number, (name, _) in enumerate(chosen, 1):
        print(f"{number}. {name}")
    if options.key:
        options.key.write_text("".join(f"{number}. {name}\n   {about}\n" for number, (name, about) in enumerate(chosen, 1)), "utf-8")
    print(json.dumps({"names": len(names), "settings": len(settings), "drawn": len(chosen)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
