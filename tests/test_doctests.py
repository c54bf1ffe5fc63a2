"""Every example in a docstring of the product is run, and prints what the docstring says. Examples marked SKIP are only counted."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from rlvr.errors import MissingExtra

ROOT = Path(__file__).resolve().parents[1]
LINKED_PACKAGES = ("envs", "verifiers", "sandbox")
"""Packages that stand beside `rlvr/` and import as `rlvr.envs`, ..., through links."""
OPTION_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MIN_EXAMPLES = 700


def find_modules() -> dict[str, Path]:
    """The modules that have examples, by the name under which they are imported."""
    found = {}
    for package in ("rlvr", *LINKED_PACKAGES):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.resolve() == path and ">>>" in path.read_text("utf-8"):  # a path through a link is another name of the same file
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                found[f"rlvr.{name}" if package in LINKED_PACKAGES else name] = path
    return found


def list_optional_packages() -> set[str]:
    """The packages of the extras in pyproject.toml, as they are imported."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    listed = [re.match(r"[\w.-]+", requirement) for requirements in extras.values() for requirement in requirements]
    return {name[0].replace("-", "_") for name in listed if name}


def count_examples(source: str) -> int:
    """How many examples the docstrings of a file have, read from its text."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return sum(len(doctest.DocTestParser().get_examples(text)) for text in texts)


def run_examples(module: ModuleType) -> tuple[int, str]:
    """How many examples a module has, and the report on those that fail."""
    runner, report, found = doctest.DocTestRunner(verbose=False, optionflags=OPTION_FLAGS), list[str](), 0
    for test in doctest.DocTestFinder().find(module, module.__name__):
        found += len(test.examples)
        runner.run(test, out=report.append)
    return found, "".join(report)


MODULES = find_modules()
OPTIONAL_PACKAGES = list_optional_packages()


def is_optional(error: ImportError | MissingExtra) -> bool:
    """Whether an import failed because an optional package is missing."""
    return isinstance(error, MissingExtra) or (error.name or "").partition(".")[0] in OPTIONAL_PACKAGES


def get_group(name: str) -> str:
    """The package below `rlvr` to which a module belongs: its modules import the same packages, so one worker runs them."""
    return name.split(".")[1] if name.count(".") > 1 else "rlvr"


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(get_group(name))) for name in MODULES])
def test_the_examples_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except (ImportError, MissingExtra) as error:
        if is_optional(error):
            pytest.skip(f"{name} cannot be imported here: {error}")
        raise
    found, report = run_examples(module)
    assert not report, report
    assert found == count_examples(MODULES[name].read_text("utf-8")), "an example stands where doctest does not see it"
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


def test_there_are_many_examples() -> None:
    assert sum(count_examples(path.read_text("utf-8")) for path in MODULES.values()) >= MIN_EXAMPLES
    assert {get_group(name) for name in MODULES} >= {"rlvr", *LINKED_PACKAGES}


@pytest.mark.parametrize(
    ("text", "words"),
    [(">>> 1 + 1\n3\n", "Got:\n    2"), (">>> nobody\n1\n", "NameError"), (">>> print('a b')\na\nb\n>>> [1, 2]\n[1, ...]\n", "")],
    ids=["another value", "an unknown name", "as it should be"],
)
def test_a_wrong_example_is_reported(text: str, words: str) -> None:
    found, report = run_examples(ModuleType("planted", text))
    assert found == count_examples(f'"""{text}"""') > 0
    assert words in report and bool(report) == bool(words)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ImportError("no", name="vllm.config"), True), (ImportError("no", name="rlvr.mdp.gone"), False), (MissingExtra("vllm", "vllm"), True)],
)
def test_only_a_missing_optional_package_skips(error: ImportError | MissingExtra, expected: bool) -> None:
    assert is_optional(error) is expected
