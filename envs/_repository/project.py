"""A Python project as data: its files, its functions, its tests, and the commits of its history. Nothing of it is imported or run here."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from rlvr.errors import ConfigError
from rlvr.python_source import parse_python_threadsafe

IGNORED_FOLDERS = {
    *("__pycache__", "node_modules", "build", "dist", "venv", "env", "site-packages"),
    *(".git", ".hg", ".svn", ".tox", ".nox", ".venv", ".eggs", ".idea", ".vscode", ".github", ".circleci"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
}
TEST_FOLDERS = {"tests", "test"}
OTHER_FOLDERS = {"docs", "doc", "examples", "example", "benchmarks", "benchmark", "scripts", "tools", "tasks", "ci", "bin"}
"""Folders at the top of a project whose files are not its library."""
OTHER_FILES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py"}
MAX_FILE_BYTES, MAX_PROJECT_BYTES = 2_000_000, 24_000_000
"""Files above the first are left out; a project above the second is refused, because all files are sent to the sandbox."""
MAX_SOURCE_BYTES = 190_000
"""A larger module gets no bugs: what a session leaves of one file is limited."""
METADATA_FOLDER = ".rlvr-metadata"
"""A folder that is added to the search path, so that `importlib.metadata` finds the version of the project."""
GIT_TIMEOUT_S = 120.0
GIT_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""A stranger's repository may name programs in its configuration: no command used here starts one, and none may fetch."""


@dataclass(frozen=True)
class Function:
    """A function or method of a project, by its file and its name in the file.

    >>> Function("a.py", "Stack.push", 10, 10, 12, is_public_function=False).key
    'a.py::Stack.push'
    """

    path: str
    name: str
    """The name with those of the classes around it: `Stack.push`."""
    first_line: int
    """The line of its first decorator, or of `def`: what Python gives as the first line of its code."""
    def_line: int
    end_line: int
    is_public_function: bool
    """Whether it can be called by its module's name: it is in no class."""

    @property
    def key(self) -> str:
        """Its name in the whole project."""
        return f"{self.path}::{self.name}"


@dataclass(frozen=True)
class Project:
    r"""The files of a project, and what is a test.

    >>> project = Project("p", {"p/a.py": b"def f():\n    return 1\n", "tests/test_a.py": b""})
    >>> project.source_paths, project.test_files, [function.key for function in project.functions]
    (('p/a.py',), ('tests/test_a.py',), ['p/a.py::f'])
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)

    @cached_property
    def test_files(self) -> tuple[str, ...]:
        """The files with tests."""
        return tuple(path for path in sorted(self.files) if _is_test_file(path))

    @cached_property
    def hidden_paths(self) -> frozenset[str]:
        """What the policy does not see: the tests, and all files beside them."""
        return frozenset(path for path in self.files if is_hidden(path))

    @cached_property
    def source_paths(self) -> tuple[str, ...]:
        """The modules of the project's library, which may get bugs."""
        return tuple(path for path in sorted(self.files) if self._is_source(path))

    @cached_property
    def search_paths(self) -> tuple[str, ...]:
        """The folders that are put on Python's search path, relative to the project."""
        tops = [folder for folder in ("src", "lib") if any(path.startswith(f"{folder}/") and path.endswith(".py") for path in self.files)]
        has_metadata = any(path.startswith(METADATA_FOLDER) for path in self.files)
        return (*tops, ".", *([METADATA_FOLDER] if has_metadata else []))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """All functions and methods of the library whose name is unique in their file."""
        return tuple(function for path in self.source_paths for function in find_functions(path, self.files[path]))

    def get_module(self, path: str) -> str:
        """Return the name by which a file of the project is imported."""
        parts = PurePosixPath(path).with_suffix("").parts
        parts = parts[1:] if parts[0] in self.search_paths else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def get_top_packages(self) -> set[str]:
        """Return the names of the packages and modules at the top of the library."""
        return {self.get_module(path).partition(".")[0] for path in self.source_paths}

    def compute_digest(self) -> str:
        """Return a digest of all files."""
        state = hashlib.blake2b(digest_size=16)
        for path, data in sorted(self.files.items()):
            state.update(f"{len(path.encode())} {len(data)} {path}".encode())
            state.update(data)
        return state.hexdigest()

    def _is_source(self, path: str) -> bool:
        parts = PurePosixPath(path).parts
        if not path.endswith(".py") or is_hidden(path) or parts[0] in OTHER_FOLDERS or path in OTHER_FILES or parts[0] == METADATA_FOLDER:
            return False
        return len(self.files[path]) <= MAX_SOURCE_BYTES and all(part.isidentifier() for part in PurePosixPath(path).with_suffix("").parts)


def _is_test_file(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py") or name in ("test.py", "tests.py"))


def is_hidden(path: str) -> bool:
    """Return whether a file belongs to the tests.

    >>> [is_hidden(path) for path in ("a/tests/data.json", "test_a.py", "conftest.py", "a/b.py")]
    [True, True, True, False]
    """
    pure = PurePosixPath(path)
    return bool(TEST_FOLDERS.intersection(pure.parts[:-1])) or _is_test_file(path) or pure.name in ("conftest.py", "pytest.ini", "tox.ini")


def find_functions(path: str, data: bytes) -> list[Function]:
    """Find the functions of a file whose names are unique in it; those inside functions belong to the outer one."""
    try:
        tree = parse_python_threadsafe(data.decode())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[Function] = []

    def look(body: Sequence[ast.stmt], around: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{around}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found.append(Function(path, around + node.name, first, node.lineno, node.end_lineno or node.lineno, not around))
            else:
                for name in ("body", "orelse", "finalbody"):
                    look(getattr(node, name, ()), around)

    look(tree.body, "")
    names = [function.name for function in found]
    return [function for function in found if names.count(function.name) == 1]


# ---- from the disk


def read_project(path: str) -> Project:
    """Read a project from a folder, or the package of that name which is installed here."""
    if not path:
        raise ConfigError("path is empty; give the folder of a Python project with tests, or the name of an installed package")
    root = Path(path).expanduser()
    if not root.is_dir():
        return _read_installed_package(path)
    files = _read_folder(root)
    if not any(name.endswith(".py") for name in files):
        raise ConfigError(f"{path} has no Python files; give the folder of a Python project with tests")
    return Project(root.resolve().name, {**files, **_build_metadata(files)})


def _read_installed_package(name: str) -> Project:
    spec = importlib.machinery.PathFinder.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"there is no folder {name!r}, and no installed package of that name; give the folder of a Python project")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return Project(name, {f"{name}/{path}": data for path, data in _read_folder(folder).items()})


def _read_folder(root: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in IGNORED_FOLDERS and not name.endswith(".egg-info"))
        for name in sorted(names):
            found = Path(folder, name)
            if found.is_symlink() or not found.is_file() or found.stat().st_size > MAX_FILE_BYTES or name.endswith((".pyc", ".so", ".o")):
                continue
            files[found.relative_to(root).as_posix()] = data = found.read_bytes()
            total += len(data)
            if total > MAX_PROJECT_BYTES:
                raise ConfigError(f"{root} has more than {MAX_PROJECT_BYTES:,} bytes; give a folder with the project alone")
    return files


def _build_metadata(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Build the metadata of an installed project, from those of its sdist or the static ones of its pyproject.toml."""
    text = files.get("PKG-INFO", b"").decode("utf-8", "replace")
    found = {key: one[1].strip() for key in ("Name", "Version") if (one := re.search(rf"^{key}:(.*)$", text, re.MULTILINE))}
    if len(found) < 2:
        try:
            declared = tomllib.loads(files.get("pyproject.toml", b"").decode()).get("project", {})
        except (ValueError, AttributeError):
            return {}
        found = {"Name": str(declared.get("name", "")), "Version": str(declared.get("version", "0"))}
    name = re.sub(r"[^A-Za-z0-9.]+", "_", found["Name"])
    version = re.sub(r"[^A-Za-z0-9.+!-]+", "", found["Version"])
    if not name or not version:
        return {}
    text = f"Metadata-Version: 2.1\nName: {found['Name']}\nVersion: {version}\n"
    return {f"{METADATA_FOLDER}/{name}-{version}.dist-info/METADATA": text.encode()}


# ---- from git


@dataclass(frozen=True)
class Commit:
    """A commit with one parent that changed files of the library: the project after it, and the changed files before it.

    >>> Commit("1f2e", "Correct the sum", Project("p", {}), {}, ()).id
    '1f2e'
    """

    id: str
    subject: str
    project: Project
    files_before: Mapping[str, bytes]
    changed_tests: tuple[str, ...]


def iter_commits(path: str, name: str, max_commits: int) -> Iterator[Commit]:
    """Yield the commits of a folder's history, the newest first, that change one to three files of the library and some test file."""
    root = Path(path).expanduser()
    if not (root / ".git").exists():
        return
    lines = _run_git(root, "rev-list", "--first-parent", "--parents", "--max-count=20000", "HEAD").decode().splitlines()
    count = 0
    for words in map(str.split, lines):
        if len(words) != 2:
            continue
        commit, parent = words
        raw = _run_git(root, "diff-tree", "-r", "-z", "--no-renames", "--name-status", parent, commit).decode("utf-8", "replace")
        parts = raw.split("\0")
        changes = dict(zip(parts[1::2], parts[0::2], strict=False))
        library = [one for one in changes if one.endswith(".py") and not is_hidden(one) and one not in OTHER_FILES]
        tests = tuple(sorted(one for one, how in changes.items() if _is_test_file(one) and how in ("A", "M")))
        if not 1 <= len(library) <= 3 or not tests or any(changes[one] != "M" for one in library):
            continue
        if (count := count + 1) > max_commits:
            return
        files = _read_git_tree(root, commit)
        project = Project(name, {**files, **_build_metadata(files)})
        if set(library) <= set(project.source_paths):
            before = {one: _run_git(root, "cat-file", "blob", f"{parent}:{one}") for one in library}
            subject = _run_git(root, "log", "-1", "--no-show-signature", "--format=%s", commit).decode("utf-8", "replace").strip()
            yield Commit(commit, subject, project, before, tests)


def _read_git_tree(root: Path, commit: str) -> dict[str, bytes]:
    entries: list[tuple[str, str]] = []
    for entry in _run_git(root, "ls-tree", "-r", "-z", "-l", commit).decode("utf-8", "replace").split("\0"):
        head, _, path = entry.partition("\t")
        mode, kind, blob, size = (*head.split(), "", "", "", "")[:4]
        kept = kind == "blob" and mode != "120000" and size.isdecimal() and int(size) <= MAX_FILE_BYTES
        if kept and not IGNORED_FOLDERS.intersection(path.split("/")[:-1]):
            entries.append((path, blob))
    data = _run_git(root, "cat-file", "--batch", given="".join(f"{blob}\n" for _, blob in entries).encode())
    files: dict[str, bytes] = {}
    place = 0
    for path, _ in entries:
        end = data.index(b"\n", place)
        length = int(data[place:end].split()[2])
        files[path] = data[end + 1 : end + 1 + length]
        place = end + 2 + length
    if sum(map(len, files.values())) > MAX_PROJECT_BYTES:
        raise ConfigError(f"{root} has more than {MAX_PROJECT_BYTES:,} bytes at {commit[:12]}; set max_commits to 0")
    return files


def _run_git(root: Path, *words: str, given: bytes = b"") -> bytes:
    command = [
        "git",
        "-C",
        str(root),
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "log.showSignature=false",
        *words,
    ]
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
            env={"PATH": os.environ.get("PATH", ""), **GIT_ENVIRONMENT},
        ).stdout
    except FileNotFoundError:
        raise ConfigError("git is not installed, and reversed commits need it; install it, or leave `commits` out of kinds") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git {words[0]} in {root} took more than {GIT_TIMEOUT_S:g} s; leave `commits` out of kinds") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip()
        raise ConfigError(f"git {words[0]} in {root} failed: {said:.200}; leave `commits` out of kinds") from None


def find_head(path: str) -> str:
    """Return the id of the newest commit of a folder, or '' without a history."""
    root = Path(path).expanduser()
    return _run_git(root, "rev-parse", "HEAD").decode().strip() if (root / ".git").exists() else ""
