"""The laws of the tree, each of them shown to catch a planted violation."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import rlvr

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("envs", "verifiers", "sandbox")
PLUGINS = (*ROOMS, "algos", "samplers", "tools")
# Who may know whom: a module imports what stands on a lower floor, and its own room. Everything in rlvr/ has a floor.
FLOORS: Mapping[str, int] = {
    name: floor
    for floor, names in enumerate(
        (
            ("errors", "task", "turns"),
            ("episode", "answers"),
            ("contracts",),
            ("plugins", "config", "dialects"),
            ("mdp",),
            ("model", "runs"),
            PLUGINS,
            ("rollout",),
            ("evaluation", "conformance", "adapters"),
            ("learn", "service", "viewer"),
            ("scale",),
            ("commands",),
            ("__main__",),
        )
    )
    for name in names
}
MOST_ENTRIES, MOST_FILES = 25, 16
HEAVY = ("torch", "transformers", "vllm", "sympy", "docker", "accelerate", "datasets", "peft", "matplotlib", "stable_baselines3", "ray")


# ---- reading the tree -------------------------------------------------------------------------------------------------


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the product as (dotted name, real file); each file once, at its real place."""
    for path in sorted((root / "rlvr").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if (len(parts) > 1 and parts[1] in ROOMS) or "__pycache__" in parts:
            continue
        yield ".".join(parts[:-1] if path.stem == "__init__" else parts), path
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
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
        if here and here not in FLOORS:
            found.append(f"rlvr/{here} has no floor; give it one in tests/test_architecture.py")
            continue
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for target, line in imported(ast.parse(path.read_text("utf-8")), package):
            if target.split(".")[0] in ROOMS:
                found.append(f"{path.relative_to(root)}:{line}: imports {target}; say rlvr.{target}")
            there = place(target) if target.startswith("rlvr.") else ""
            if there not in FLOORS or there == here or not here:
                continue  # another package, a sibling, or a name of the face (`from rlvr import Task`)
            if FLOORS[there] >= FLOORS[here] or there in ROOMS:
                found.append(f"{path.relative_to(root)}:{line}: {here} must not know {there}")
    return found


def circles(root: Path) -> list[str]:
    """No module imports itself through others, not even inside a function or for a type checker."""
    graph: dict[str, set[str]] = {}
    names = {name for name, _ in sources(root)}
    for module, path in sources(root):
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        targets = {target for target, _ in imported(ast.parse(path.read_text("utf-8")), package)}
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


def crowds(root: Path) -> list[str]:
    """No folder over sixteen files of its own (plugins are counted apart), and few things loose in `rlvr/`."""
    loose = [path.name for path in (root / "rlvr").iterdir() if path.name not in {*ROOMS, "py.typed", "__pycache__"}]
    found = [f"rlvr/ has {len(loose)} entries, at most {MOST_ENTRIES}"] if len(loose) > MOST_ENTRIES else []
    tops = [root / name for name in ("rlvr", *ROOMS, "tests", "benchmarks")]
    for folder in [top for top in tops if top.is_dir()] + [path for top in tops for path in top.rglob("*") if path.is_dir()]:
        files = list(folder.glob("*.py"))
        if folder.name in PLUGINS and folder.parent in (root, root / "rlvr"):
            files = [path for path in files if path.name.startswith("_")]
        if len(files) > MOST_FILES:
            found.append(f"{folder.relative_to(root)}/ has {len(files)} files, at most {MOST_FILES}")
    return found


def sizes(root: Path) -> list[str]:
    """No file over 350 lines, no function over 60 (tests may be long as files)."""
    found = []
    ours = {path for _, path in sources(root)} | set((root / "benchmarks").rglob("*.py"))
    for path in sorted(ours | set((root / "tests").rglob("*.py"))):
        text = path.read_text("utf-8")
        lines = text.count("\n")
        if path in ours and lines > 350:
            found.append(f"{path.relative_to(root)}: {lines} lines, at most 350")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    found.append(f"{path.relative_to(root)}:{node.lineno}: {node.name} has {length} lines, at most 60")
    return found


def names(root: Path) -> list[str]:
    """No drawer of odds and ends, and no room file that hides a module of Python's own library."""
    found = [f"{path.relative_to(root)}: name it after its one noun" for _, path in sources(root) if path.stem.strip("_") in DRAWERS]
    for room in ROOMS:
        for path in (root / room).glob("*.py"):
            if path.stem in sys.stdlib_module_names:
                found.append(f"{room}/{path.name} hides Python's own {path.stem!r}")
            if path.stem == "__init__":
                found.append(f"{room}/__init__.py: a room is a plain folder")
    return found


DRAWERS = {"utils", "util", "common", "misc", "helpers", "helper"}


def docstrings(root: Path) -> list[str]:
    """Every public module, class and function says what it is for; every record shows an example."""
    found = []
    for _, path in sources(root):
        tree = ast.parse(path.read_text("utf-8"))
        where = path.relative_to(root)
        if not ast.get_docstring(tree):
            found.append(f"{where}: the module has no docstring")
        for node in _public(tree):
            text = ast.get_docstring(node)
            if not text:
                found.append(f"{where}:{node.lineno}: {node.name} has no docstring")
            elif isinstance(node, ast.ClassDef) and _is_record(node) and ">>>" not in text:
                found.append(f"{where}:{node.lineno}: the record {node.name} shows no example")
    return found


def _public(tree: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(mark) for mark in node.decorator_list] + [ast.unparse(base) for base in node.bases]
    return any(mark.startswith("dataclass") or mark in ("TypedDict", "NamedTuple") for mark in marks)


def folder_of(package: str) -> str:
    """Where a package lies: rooms of plugins beside `rlvr/`, all others in it."""
    parts = package.split(".")
    return "/".join(parts[1:] if parts[1:2] and parts[1] in ROOMS else parts)


def packages(root: Path) -> list[str]:
    """pyproject's explicit list of packages is what lies on the disk, rooms by their links."""
    setuptools = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    listed = set(setuptools["packages"])
    on_disk = {"rlvr"} | {f"rlvr.{room}" for room in ROOMS}
    on_disk |= {name.rpartition(".")[0] if path.stem != "__init__" else name for name, path in sources(root)}
    found = [f"{name} lies on the disk and is not in pyproject's packages" for name in sorted(on_disk - listed)]
    found += [f"{name} is in pyproject's packages and not on the disk" for name in sorted(listed - on_disk)]
    for room in ROOMS:
        link = root / "rlvr" / room
        if not link.is_symlink() or os.readlink(link) != f"../{room}":
            found.append(f"rlvr/{room} must be a link to ../{room}")
        if setuptools["package-dir"].get(f"rlvr.{room}") != room:
            found.append(f"package-dir must map rlvr.{room} to {room}")
    return found


def plugin_files(root: Path) -> list[str]:
    """Each plugin file of a room ends with `make = ...`."""
    found = []
    for room in ROOMS:
        for path in sorted((root / room).glob("*.py")):
            last = ast.parse(path.read_text("utf-8")).body[-1]
            made = isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "make"
            if not path.name.startswith("_") and not made:
                found.append(f"{room}/{path.name} must end with `make = ...`")
    return found


LAWS: list[Callable[[Path], list[str]]] = [direction, circles, crowds, sizes, names, docstrings, packages, plugin_files]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: str(law.__name__))
def test_the_tree_obeys(law: Callable[[Path], list[str]]) -> None:
    assert law(ROOT) == []


# ---- the laws catch what they are for -----------------------------------------------------------------------------------

DOC = '"""What it is for."""\n'
PLANTED: list[tuple[Callable[[Path], list[str]], str, str, str]] = [
    (direction, "envs/a.py", DOC + "from rlvr.verifiers.b import x\nmake = 1\n", "must not know verifiers"),
    (direction, "envs/a.py", DOC + "import rlvr.samplers.b\nmake = 1\n", "must not know samplers"),
    (direction, "verifiers/a.py", DOC + "import importlib\nimportlib.import_module('rlvr.sandbox.b')\nmake = 1\n", "must not know sandbox"),
    (direction, "rlvr/samplers/a.py", DOC + "from rlvr.algorithms import b\n", "must not know algos"),
    (direction, "rlvr/samplers/a.py", DOC + "from ..learn import b\n", "must not know learn"),
    (direction, "rlvr/task.py", DOC + "def f():\n    from rlvr.registry.plugins import build\n", "task must not know plugins"),
    (direction, "rlvr/mdp/env.py", DOC + "import rlvr.cli.commands\n", "mdp must not know commands"),
    (direction, "rlvr/cli/a.py", DOC + "from rlvr.envs.a import A\n", "commands must not know envs"),
    (direction, "tests/../rlvr/mdp/env.py", DOC + "from verifiers import numeric\n", "say rlvr.verifiers"),
    (
        direction,
        "rlvr/mdp/env.py",
        DOC + "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import rlvr.training.train\n",
        "mdp must not know learn",
    ),
    (direction, "rlvr/viewer/a.py", DOC + "import rlvr.training.train\n", "viewer must not know learn"),
    (direction, "rlvr/novelty/__init__.py", DOC, "has no floor"),
    (circles, "rlvr/mdp/env.py", DOC + "import rlvr.rollout.rollout\n", "rlvr.mdp.env -> rlvr.rollout.rollout -> rlvr.mdp.env"),
    (
        circles,
        "rlvr/mdp/env.py",
        DOC + "def f():\n    import rlvr.rollout.rollout\n",
        "rlvr.mdp.env -> rlvr.rollout.rollout -> rlvr.mdp.env",
    ),
    (circles, "verifiers/_b.py", DOC + "def f():\n    from rlvr.verifiers.math.compare import b\n", "judge.b -> rlvr.verifiers._b"),
    (sizes, "rlvr/mdp/env.py", DOC + "x = 1\n" * 350, "351 lines"),
    (sizes, "tests/test_a.py", "def f():\n" + "    x = 1\n" * 60, "61 lines"),
    (names, "rlvr/utils.py", DOC, "one noun"),
    (names, "verifiers/_helpers.py", DOC, "one noun"),
    (names, "envs/json.py", DOC, "hides Python's own"),
    (names, "sandbox/__init__.py", DOC, "plain folder"),
    (docstrings, "rlvr/mdp/env.py", "x = 1\n", "module has no docstring"),
    (docstrings, "rlvr/mdp/env.py", DOC + "class A:\n    " + DOC + "    def f(self): ...\n", "f has no docstring"),
    (docstrings, "rlvr/mdp/env.py", DOC + "@dataclass(frozen=True)\nclass A:\n    " + DOC, "shows no example"),
    (packages, "rlvr/extra/__init__.py", DOC, "rlvr.extra lies on the disk"),
    (plugin_files, "envs/a.py", DOC + "x = 1\n", "must end with"),
]


@pytest.mark.parametrize(("law", "path", "text", "words"), PLANTED, ids=[f"{p[0].__name__}-{i}" for i, p in enumerate(PLANTED)])
def test_a_planted_violation_is_caught(tmp_path: Path, law: Callable[[Path], list[str]], path: str, text: str, words: str) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = tomllib.loads(pyproject)["tool"]["setuptools"]["packages"]
    clean = {
        "pyproject.toml": pyproject,
        "rlvr/__init__.py": DOC,
        "rlvr/registry/plugins.py": DOC,
        "rlvr/rollout/rollout.py": DOC + "from rlvr.mdp.env import TokenEnv\n",
        "rlvr/mdp/env.py": DOC + "from rlvr.registry.plugins import build\n",
        "rlvr/cli/commands.py": DOC,
        **{f"{folder_of(name)}/__init__.py": DOC for name in listed if name.split(".")[-1] not in ROOMS},
        "verifiers/math/compare/b.py": DOC + "from rlvr.verifiers import _b\n",
        **{f"{room}/_b.py": DOC for room in ROOMS},
    }
    for name, content in clean.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "tests").mkdir()
    for room in ROOMS:
        (tmp_path / "rlvr" / room).symlink_to(f"../{room}")
    assert law(tmp_path) == [], "the clean tree must pass before the violation is planted"
    planted = tmp_path / path
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text, "utf-8")
    assert any(words in line for line in law(tmp_path)), law(tmp_path)


def test_crowded_folders_are_caught(tmp_path: Path) -> None:
    for folder in ("rlvr/training", "envs", "tests"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(17):
            (tmp_path / folder / f"a{number}.py").write_text(DOC, "utf-8")
    for number in range(MOST_ENTRIES):
        (tmp_path / "rlvr" / f"a{number}.yaml").touch()
    assert crowds(tmp_path) == [
        f"rlvr/ has {MOST_ENTRIES + 1} entries, at most {MOST_ENTRIES}",
        "tests/ has 17 files, at most 16",
        "rlvr/training/ has 17 files, at most 16",
    ]


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
    done = python("import rlvr; print(rlvr.Task('t', rlvr.user('2+2='), '4').question)", blocked=HEAVY)
    assert (done.returncode, done.stdout) == (0, "2+2=\n"), done.stderr


def test_the_blocker_blocks() -> None:
    assert "No module named 'sympy'" in python("import sympy", blocked=HEAVY).stderr


def test_help_imports_nothing_heavy() -> None:
    heavy = {*HEAVY, "gymnasium", "numpy", "pydantic", "yaml", "rich"}
    code = f"import rlvr.cli.commands, sys; code = rlvr.cli.commands.run(['--help']); print(code, sorted(set(sys.modules) & {heavy!r}))"
    done = python(code)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 []"), done.stdout + done.stderr


def test_public_names_are_sorted_and_complete() -> None:
    tree = ast.parse((ROOT / "rlvr" / "__init__.py").read_text("utf-8"))
    bound = {
        a.asname or a.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__" for a in node.names
    }
    assert rlvr.__all__ == sorted(rlvr.__all__)
    assert {name for name in bound if not name.startswith("_")} <= set(rlvr.__all__)
    assert [name for name in rlvr.__all__ if not hasattr(rlvr, name)] == []


def test_the_tools_are_set_to_strict() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert tool["mypy"]["strict"] is True
    assert tool["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    check = (ROOT / "Makefile").read_text("utf-8").split("\ncheck:")[1].split("\n\n")[0]
    assert all(word in check for word in ("ruff check", "ruff format --check", "mypy", "pyright"))
