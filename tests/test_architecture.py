"""The rules of the tree, each of them shown to catch a planted violation."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import rlvr
from tests.conftest import read_listed_tests

ROOT = Path(__file__).resolve().parents[1]
LINKED_PACKAGES = ("envs", "verifiers", "sandbox")
"""Packages that stand beside `rlvr/` and import as `rlvr.envs`, ..., through links."""
PLUGIN_PACKAGES = (*LINKED_PACKAGES, "algorithms", "samplers", "tools")
LAYERS: Mapping[str, int] = {
    name: layer
    for layer, names in enumerate(
        (
            ("hints",),
            ("errors", "plugin_files", "python_source"),
            ("synonyms",),
            ("task", "turns"),
            ("episode", "extraction"),
            ("contracts",),
            ("registry", "config"),
            ("chat",),
            ("mdp",),
            ("models", "runs"),
            ("gateway",),
            PLUGIN_PACKAGES,
            ("rollout",),
            ("evaluation", "conformance", "integrations"),
            ("training", "serve", "viewer"),
            ("cluster",),
            ("cli",),
            ("api",),
            ("__main__",),
        )
    )
    for name in names
}
"""Who may import whom: a module imports from lower layers and from its own package, never from a higher layer or a neighbour."""
HEAVY_PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "sympy",
    "docker",
    "accelerate",
    "datasets",
    "peft",
    "matplotlib",
    "stable_baselines3",
    "ray",
)


# ---- reading the tree -------------------------------------------------------------------------------------------------


@cache
def parse_text(text: str) -> ast.Module:
    """Parse a module once for all rules, which read the tree and do not change it."""
    return ast.parse(text)


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the product as (dotted name, real file); each file once, at its real place."""
    for path in sorted((root / "rlvr").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if (len(parts) > 1 and parts[1] in LINKED_PACKAGES) or "__pycache__" in parts:
            continue
        yield ".".join(parts[:-1] if path.stem == "__init__" else parts), path
    for package in LINKED_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = ("rlvr", *path.relative_to(root).with_suffix("").parts)
            if "__pycache__" not in parts:
                yield ".".join(parts[:-1] if path.stem == "__init__" else parts), path


def imported(tree: ast.AST, package: str) -> Iterator[tuple[str, int]]:
    """Every module that the tree imports, wherever in it: inside functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            yield from ((str(arg.value), node.lineno) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def place(module: str) -> str:
    """The folder or core module that a dotted name of ours stands in: 'envs', 'learn', 'task', '' for the face."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


# ---- the laws: each takes a root and says what breaks it ------------------------------------------------------------------


def direction(root: Path) -> list[str]:
    """Lower never knows higher, and no kind of plugin knows another."""
    found = []
    for module, path in sources(root):
        here = place(module)
        if here and here not in LAYERS:
            found.append(f"rlvr/{here} has no layer; give it one in tests/test_architecture.py")
            continue
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for target, line in imported(parse_text(path.read_text("utf-8")), package):
            if target.split(".")[0] in LINKED_PACKAGES:
                found.append(f"{path.relative_to(root)}:{line}: imports {target}; say rlvr.{target}")
            there = place(target) if target.startswith("rlvr.") else ""
            if there not in LAYERS or there == here or not here:
                continue  # another package, a sibling, or a name of the face (`from rlvr import Task`)
            if LAYERS[there] >= LAYERS[here] or there in LINKED_PACKAGES:
                found.append(f"{path.relative_to(root)}:{line}: {here} must not import {there}")
    return found


def circles(root: Path) -> list[str]:
    """No module imports itself through others, not even inside a function; what only a type checker reads does not count."""
    graph: dict[str, set[str]] = {}
    names = {name for name, _ in sources(root)}
    for module, path in sources(root):
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = parse_text(path.read_text("utf-8"))
        targets = {target for target, _ in imported(_without_type_checking(tree), package)}
        ours = {target if target in names else target.rpartition(".")[0] for target in targets}
        graph[module] = ours & names - {"rlvr", module}
    found: list[str] = []
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            found.append(" -> ".join([*trail[trail.index(module) :], module]))
        elif module not in done:
            for other in sorted(graph[module]):
                walk(other, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        walk(module, ())
    return found


def _without_type_checking(tree: ast.Module) -> ast.Module:
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body=kept, type_ignores=[])


def names(root: Path) -> list[str]:
    """No module without a subject (utils, helpers), and no plugin file that hides a module of Python's own library."""
    found = [f"{path.relative_to(root)}: name it after its subject" for _, path in sources(root) if path.stem.strip("_") in VAGUE_NAMES]
    for package in LINKED_PACKAGES:
        for path in (root / package).glob("*.py"):
            if path.stem in sys.stdlib_module_names:
                found.append(f"{package}/{path.name} hides Python's own {path.stem!r}")
    return found


VAGUE_NAMES = {"utils", "util", "common", "misc", "helpers", "helper"}


def docstrings(root: Path) -> list[str]:
    """Every public module, class and function says what it is for."""
    found = []
    for _, path in sources(root):
        tree = parse_text(path.read_text("utf-8"))
        where = path.relative_to(root)
        if not ast.get_docstring(tree):
            found.append(f"{where}: the module has no docstring")
        for node in _public(tree):
            is_overload = any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)
            if not ast.get_docstring(node) and not is_overload:
                found.append(f"{where}:{node.lineno}: {node.name} has no docstring")
    return found


def _public(tree: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def folder_of(package: str) -> str:
    """Where a package lies: the linked packages beside `rlvr/`, all others in it."""
    parts = package.split(".")
    return "/".join(parts[1:] if parts[1:2] and parts[1] in LINKED_PACKAGES else parts)


def packages(root: Path) -> list[str]:
    """pyproject's explicit list of packages is what lies on the disk, linked packages by their links."""
    setuptools = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    listed = set(setuptools["packages"])
    on_disk = {"rlvr"} | {f"rlvr.{package}" for package in LINKED_PACKAGES}
    on_disk |= {name.rpartition(".")[0] if path.stem != "__init__" else name for name, path in sources(root)}
    found = [f"{name} lies on the disk and is not in pyproject's packages" for name in sorted(on_disk - listed)]
    found += [f"{name} is in pyproject's packages and not on the disk" for name in sorted(listed - on_disk)]
    for package in LINKED_PACKAGES:
        link = root / "rlvr" / package
        if not link.is_symlink() or os.readlink(link) != f"../{package}":
            found.append(f"rlvr/{package} must be a link to ../{package}")
        if setuptools["package-dir"].get(f"rlvr.{package}") != package:
            found.append(f"package-dir must map rlvr.{package} to {package}")
    return found


def plugin_files(root: Path) -> list[str]:
    """Each plugin file of a linked package ends with `make = ...`."""
    found = []
    for package in LINKED_PACKAGES:
        for path in sorted((root / package).glob("*.py")):
            last = parse_text(path.read_text("utf-8")).body[-1]
            made = isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "make"
            if not path.name.startswith("_") and not made:
                found.append(f"{package}/{path.name} must end with `make = ...`")
    return found


def capabilities(root: Path) -> list[str]:
    """What a plugin can do is data: nothing asks which method a class overrides, and nothing assigns methods to a user's class."""
    found = []
    for _, path in sources(root):
        where = path.relative_to(root)
        for node in ast.walk(parse_text(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__":
                found.append(f"{where}:{node.lineno}: __init_subclass__ changes classes of others; say it in a record, or with a decorator")
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot) and _is_method_check(node, where):
                found.append(f"{where}:{node.lineno}: asks which method a class overrides; read it from the `traits` of the plugin")
    return found


def _is_method_check(node: ast.Compare, where: Path) -> bool:
    """`kind.load is not Sampler.load`, or the same with getattr; of another project's classes nothing else can be asked."""
    left, right = node.left, node.comparators[0]
    if isinstance(left, ast.Attribute) and isinstance(right, ast.Attribute):
        return left.attr == right.attr and isinstance(right.value, ast.Name) and right.value.id[:1].isupper()
    through = all("getattr(" in ast.unparse(side) for side in (left, right))
    return through and FOREIGN_OBJECTS not in where.as_posix()


FOREIGN_OBJECTS = "envs/external/_foreign"


def prints(root: Path) -> list[str]:
    """The library logs (`logging.getLogger(__name__)`); only the command line, and programs whose output is a protocol, print."""
    found = []
    for _, path in sources(root):
        where = path.relative_to(root).as_posix()
        if where.startswith("rlvr/cli/") or where.startswith(PRINTING_PROGRAMS):
            continue
        for node in ast.walk(parse_text(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                found.append(f"{where}:{node.lineno}: prints; use logging.getLogger(__name__)")
    return found


PRINTING_PROGRAMS = (
    *("sandbox/_inside/", "envs/external/_harbor/test_runner.py", "verifiers/_sql_runner.py", "rlvr/tools/_sql_process.py"),
    "rlvr/serve/command.py",  # the log of requests of the command `rlvr serve`
    "rlvr/training/distributed/peer_monitor.py",  # the last line before it ends a process whose main thread hangs
)
"""Files that run as programs of their own, whose output is read by the process that started them, or are a command."""

RULES: list[Callable[[Path], list[str]]] = [direction, circles, names, docstrings, packages, plugin_files, capabilities, prints]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_the_tree_obeys(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


# ---- the laws catch what they are for -----------------------------------------------------------------------------------

DOC = '"""What it is for."""\n'
PLANTED: list[tuple[Callable[[Path], list[str]], str, str, str]] = [
    (direction, "envs/a.py", DOC + "from rlvr.verifiers.b import x\nmake = 1\n", "must not import verifiers"),
    (direction, "envs/a.py", DOC + "import rlvr.samplers.b\nmake = 1\n", "must not import samplers"),
    (
        direction,
        "verifiers/a.py",
        DOC + "import importlib\nimportlib.import_module('rlvr.sandbox.b')\nmake = 1\n",
        "must not import sandbox",
    ),
    (direction, "rlvr/samplers/a.py", DOC + "from rlvr.algorithms import b\n", "must not import algorithms"),
    (direction, "rlvr/samplers/a.py", DOC + "from ..training import b\n", "must not import training"),
    (direction, "rlvr/task.py", DOC + "def f():\n    from rlvr.registry.plugins import build\n", "task must not import registry"),
    (direction, "rlvr/mdp/env.py", DOC + "import rlvr.cli.commands\n", "mdp must not import cli"),
    (direction, "rlvr/cli/a.py", DOC + "from rlvr.envs.a import A\n", "cli must not import envs"),
    (direction, "tests/../rlvr/mdp/env.py", DOC + "from verifiers import numeric\n", "say rlvr.verifiers"),
    (
        direction,
        "rlvr/mdp/env.py",
        DOC + "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import rlvr.training.train\n",
        "mdp must not import training",
    ),
    (direction, "rlvr/viewer/a.py", DOC + "import rlvr.training.train\n", "viewer must not import training"),
    (direction, "rlvr/novelty/__init__.py", DOC, "has no layer"),
    (circles, "rlvr/mdp/env.py", DOC + "import rlvr.rollout.rollout\n", "rlvr.mdp.env -> rlvr.rollout.rollout -> rlvr.mdp.env"),
    (
        circles,
        "rlvr/mdp/env.py",
        DOC + "def f():\n    import rlvr.rollout.rollout\n",
        "rlvr.mdp.env -> rlvr.rollout.rollout -> rlvr.mdp.env",
    ),
    (circles, "verifiers/_b.py", DOC + "def f():\n    from rlvr.verifiers.math.compare import b\n", "compare.b -> rlvr.verifiers._b"),
    (names, "rlvr/utils.py", DOC, "its subject"),
    (names, "verifiers/_helpers.py", DOC, "its subject"),
    (names, "envs/json.py", DOC, "hides Python's own"),
    (docstrings, "rlvr/mdp/env.py", "x = 1\n", "module has no docstring"),
    (docstrings, "rlvr/mdp/env.py", DOC + "class A:\n    " + DOC + "    def f(self): ...\n", "f has no docstring"),
    (packages, "rlvr/extra/__init__.py", DOC, "rlvr.extra lies on the disk"),
    (capabilities, "rlvr/rollout/a.py", DOC + "y = kind.load_model is not Sampler.load_model\n", "which method a class overrides"),
    (capabilities, "verifiers/a.py", DOC + "y = type(v).averify is Verifier.averify\nmake = 1\n", "which method a class overrides"),
    (capabilities, "rlvr/mdp/env.py", DOC + "y = getattr(e, n) is not getattr(Environment, n)\n", "which method a class overrides"),
    (capabilities, "rlvr/mdp/env.py", DOC + "class A:\n    def __init_subclass__(cls): ...\n", "changes classes of others"),
    (prints, "rlvr/mdp/env.py", DOC + "print('note')\n", "use logging"),
    (prints, "verifiers/a.py", DOC + "def f():\n    print('note')\nmake = 1\n", "use logging"),
    (plugin_files, "envs/a.py", DOC + "x = 1\n", "must end with"),
]


@pytest.mark.parametrize(("rule", "path", "text", "words"), PLANTED, ids=[f"{p[0].__name__}-{i}" for i, p in enumerate(PLANTED)])
def test_a_planted_violation_is_caught(tmp_path: Path, rule: Callable[[Path], list[str]], path: str, text: str, words: str) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = tomllib.loads(pyproject)["tool"]["setuptools"]["packages"]
    clean = {
        "pyproject.toml": pyproject,
        "rlvr/__init__.py": DOC,
        "rlvr/registry/plugins.py": DOC,
        "rlvr/rollout/rollout.py": DOC + "from rlvr.mdp.env import TokenEnv\n",
        "rlvr/mdp/env.py": DOC + "from rlvr.registry.plugins import build\n",
        "rlvr/cli/commands.py": DOC,
        **{f"{folder_of(name)}/__init__.py": DOC for name in listed if name.split(".")[-1] not in LINKED_PACKAGES},
        "verifiers/math/compare/b.py": DOC + "from rlvr.verifiers import _b\n",
        **{f"{package}/_b.py": DOC for package in LINKED_PACKAGES},
    }
    for name, content in clean.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "tests").mkdir()
    for package in LINKED_PACKAGES:
        (tmp_path / "rlvr" / package).symlink_to(f"../{package}")
    assert rule(tmp_path) == [], "the clean tree must pass before the violation is planted"
    planted = tmp_path / path
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text, "utf-8")
    assert any(words in line for line in rule(tmp_path)), rule(tmp_path)


def test_a_missing_package_and_a_broken_link_are_caught(tmp_path: Path) -> None:
    (tmp_path / "rlvr").mkdir()
    (tmp_path / "rlvr" / "__init__.py").write_text(DOC, "utf-8")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    assert any("not on the disk" in line for line in packages(tmp_path))
    assert any("must be a link" in line for line in packages(tmp_path))


# ---- the light face -----------------------------------------------------------------------------------------------------

BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
BLOCKED = set(%r)
sys.meta_path.insert(0, Block())
"""


def python(code: str, *, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", BLOCKER % (blocked,) + code], capture_output=True, text=True, timeout=60, env=env)


def test_import_works_with_every_heavy_package_absent() -> None:
    done = python("import rlvr; print(rlvr.Task('2+2=', '4').question)", blocked=HEAVY_PACKAGES)
    assert (done.returncode, done.stdout) == (0, "2+2=\n"), done.stderr


def test_the_blocker_blocks() -> None:
    assert "No module named 'sympy'" in python("import sympy", blocked=HEAVY_PACKAGES).stderr


def test_help_imports_nothing_heavy() -> None:
    heavy = {*HEAVY_PACKAGES, "gymnasium", "numpy", "pydantic", "yaml", "rich"}
    code = f"import rlvr.cli.commands, sys; code = rlvr.cli.commands.run_command(['--help']); print(code, sorted(set(sys.modules) & {heavy!r}))"
    done = python(code)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 []"), done.stdout + done.stderr


def test_public_names_are_sorted_complete_and_loadable() -> None:
    tree = ast.parse((ROOT / "rlvr" / "__init__.py").read_text("utf-8"))
    typed = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.If)  # TYPE_CHECKING: what editors see
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert rlvr.__all__ == sorted(rlvr.__all__) and set(rlvr.__all__) == typed
    assert all(getattr(rlvr, name) is not None and name in dir(rlvr) for name in rlvr.__all__)
    with pytest.raises(AttributeError, match="rlvr has no 'evalute'; did you mean 'evaluate'"):
        _ = rlvr.evalute


@pytest.mark.parametrize("mark", ["slow", "release"])
def test_a_test_that_is_listed_is_there(mark: str) -> None:
    for line in read_listed_tests(mark):
        path, _, name = line.partition("::")
        assert (ROOT / path).is_file() and (
            not name or re.search(rf"^def {re.escape(name.partition('[')[0])}\b", (ROOT / path).read_text("utf-8"), re.M)
        ), line


def test_the_tools_are_set_to_strict() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert tool["mypy"]["strict"] is True
    assert tool["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    check = (ROOT / "Makefile").read_text("utf-8").split("\ncheck:")[1].split("\n\n")[0]
    assert all(word in check for word in ("ruff check", "ruff format --check", "mypy", "pyright"))
