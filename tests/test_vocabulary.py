"""The words of `docs/glossary.md` that were retired do not come back: as names in the product, or anywhere."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("rlvr", "envs", "verifiers", "sandbox")
EXEMPT = {"docs/glossary.md", "tests/test_vocabulary.py", "CHANGELOG.md"}
SEED_MARK = "part of a seed"
"""A comment beside a string that random numbers are derived from: another word would change every run."""
SUFFIXES = {".py", ".md", ".yaml", ".toml", ".html", ".js", ".css", ".sh", ".ipynb"}


def read_tables(text: str) -> tuple[list[str], list[str]]:
    """The two tables of retired words: those that are nowhere, and those that are no name of the product."""
    part = text.partition("## Retired words")[2]
    rows = re.findall(r"^\| (`?)([^|`]+)`? \|", part, flags=re.MULTILINE)
    words = [word.strip() for mark, word in rows if not mark and word.strip() not in ("retired", "---")]
    return words, [word.strip() for mark, word in rows if mark]


WORDS, NAMES = read_tables((ROOT / "docs/glossary.md").read_text("utf-8"))


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    names = listed.stdout.split("\n") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name] or [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    return [path for path in found if path.is_file() and not path.is_symlink() and (path.suffix in SUFFIXES or path.name == "Makefile")]


FORMS = "|".join(re.escape(word.lower()).replace("\\ ", "[ _-]") for word in WORDS)
PATTERN = re.compile(rf"(?<![a-z])({FORMS})s?(?![a-z])")


def find_words(text: str) -> list[str]:
    """The retired words in a text, also as parts of identifiers: `crew` is in `crew_from` and in `the_crew`."""
    return [found[1] for found in PATTERN.finditer(text.lower())]


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of all classes, functions, methods and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        if isinstance(node, ast.ClassDef):
            yield from (
                (line.target.id, line.lineno) for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            )


def test_the_glossary_has_both_tables() -> None:
    assert len(WORDS) > 8 and len(NAMES) > 200


def test_no_retired_word_anywhere() -> None:
    found = []
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if name not in EXEMPT:
            text = path.read_text("utf-8", errors="replace")
            for number, line in enumerate(text.split("\n") if find_words(text) else (), 1):
                if SEED_MARK not in line:
                    found += [f"{name}:{number}: {word}" for word in find_words(line)]
    assert found == []


def test_no_retired_name_in_the_product() -> None:
    retired, found = set(NAMES), []
    for path in tracked_files():
        name = path.relative_to(ROOT)
        if path.suffix == ".py" and name.parts[0] in PRODUCT and retired & {*re.findall(r"\w+", text := path.read_text("utf-8"))}:
            found += [f"{name}:{line}: {word}" for word, line in defined_names(ast.parse(text)) if word in retired]
    assert found == []


@pytest.mark.parametrize("planted", ["the crew of a run", "def crew_from(config): ...", "rollout.lockstep=true", "Honeypots are asked"])
def test_a_planted_word_is_found(planted: str) -> None:
    assert find_words(planted)


@pytest.mark.parametrize(
    "planted", ["class Heard: ...", "def taken_back(): ...", "class A:\n    acted: int", "class A:\n    def hear(self): ..."]
)
def test_a_planted_name_is_found(planted: str) -> None:
    assert {name for name, _ in defined_names(ast.parse(planted))} & set(NAMES)


def test_usual_words_are_left_alone() -> None:
    assert not find_words("screw, the collector of garbage, overlong penalty, a batch of episodes")
