"""The kit of tools passes our own, and finds each defect that it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlvr.conformance import check_plugin, check_tool, list_failures
from rlvr.conformance.check_runner import run_checks
from rlvr.conformance.toolkit import check_tool_in_context, iter_tool_checks
from rlvr.contracts.tool import ToolContext
from rlvr.registry.plugins import PACKAGE_FOLDER, list_entries
from tests.tools.fakes import FakeBox

SOUND = '''\
"""A plugin with a defect in it."""
import itertools
from rlvr import Tool, ToolError, ToolExample, tool
COUNT = itertools.count(1)


class Planted(Tool):
    """Say a text so many times."""
    examples = (ToolExample("say", {"text": "ab", "times": 2}, "abab 1"), ToolExample("say", {"text": "ab", "times": 999}, "too many", ok=False))

    def setup(self):
        self.count = 0

    @tool
    def say(self, text: str, times: int = 1) -> str:
        """Say it.

        Args:
            text: what is said.
            times: how often.
        """
        if times > 99:
            raise ToolError("too many")
        self.count += 1
        return text * times + f" {self.count}"
'''
DEFECTS = [
    ("it can be built", "class Planted(Tool):", "class Planted:", "not an rlvr.Tool"),
    ("it says what it is for", '    """Say a text so many times."""\n', "", "no docstring"),
    ("its names and descriptions are complete", "            times: how often.\n", "", "'times' of say has no description"),
    ("its names and descriptions are complete", "text: str", "text", "has no type"),
    ("its examples do what they say", '"abab 1"', '"baba"', "is not in"),
    ("its examples do what they say", "ok=False", "ok=True", "gave ok=False"),
    ("its examples do what they say", "return text * times", "return 7; text * times", "is not in"),
    ("no argument of the right type breaks it", "self.count += 1", "self.count += 1; text.encode()", "raise ToolError"),
    ("no argument of the right type breaks it", "self.count += 1", "self.count += 1; 1 / times", "ZeroDivisionError"),
    ("it can be ended twice", "    @tool", "    def teardown(self):\n        del self.count\n\n    @tool", "AttributeError"),
    ("it can be closed twice", "    @tool", "    def close(self):\n        del self.missing\n\n    @tool", "AttributeError"),
]  # fmt: skip


def planted(folder: Path, old: str, new: str) -> str:
    assert old in SOUND
    path = folder / "planted.py"
    path.write_text(SOUND.replace(old, new), "utf-8")
    return f"{path}:Planted"


@pytest.mark.parametrize(("wanted", "old", "new", "words"), DEFECTS, ids=[f"{n}-{d[0]}" for n, d in enumerate(DEFECTS)])
def test_the_tool_kit_finds(wanted: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    checks = {check.name: check for check in run_checks(iter_tool_checks(planted(tmp_path, old, new), {}))}
    check = checks.get(wanted) or checks["it can be closed"]
    assert not check.ok and words in check.detail, check


def test_state_shared_between_conversations_is_found(tmp_path: Path) -> None:
    name = planted(
        tmp_path, "    def setup(self):\n        self.count = 0", "    shared = []\n\n    def setup(self):\n        self.shared.clear()"
    )
    path = Path(name.split(":")[0])
    path.write_text(path.read_text("utf-8").replace("self.count += 1", "self.shared.append(1); self.count = len(self.shared)"), "utf-8")
    checks = {check.name: check for check in run_checks(iter_tool_checks(name, {}))}
    assert checks["its examples do what they say"].ok and not checks["two conversations share nothing"].ok


def test_the_sound_tool_passes(tmp_path: Path) -> None:
    checks = check_tool(planted(tmp_path, "ab", "ab"))
    assert list_failures(checks) == [] and [check.name for check in checks if check.skipped] == ["opening it without its box is refused"]


SETTINGS: dict[str, dict[str, Any]] = {"sql": {"script": "create table t(n)"}}
BOXED = ("python", "bash", "files")
ELSEWHERE = ("mcp", "search")
"""Held to the kit in tests of their own, below: they need other packages."""


@pytest.mark.parametrize("name", [entry.name for entry in list_entries("tool") if entry.source == "rlvr" and entry.name not in ELSEWHERE])
def test_our_tools_keep_the_contract(name: str) -> None:
    context = ToolContext(sandbox_session=FakeBox()) if name in BOXED else ToolContext()
    checks = check_tool_in_context(name, context, **SETTINGS.get(name, {}))
    assert list_failures(checks) == []
    assert sum(not check.skipped for check in checks) >= 9, [check for check in checks if check.skipped]


def test_search_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The river flows.", "utf-8")
    assert list_failures(check_plugin("tool", "search", path=str(tmp_path))) == []


def test_every_tool_on_the_disk_is_held_to_the_kit() -> None:
    on_disk = {path.stem for path in (PACKAGE_FOLDER / "tools").glob("*.py") if not path.stem.startswith("_")}
    assert {entry.name for entry in list_entries("tool") if entry.source == "rlvr"} == on_disk
    assert set(BOXED) | set(ELSEWHERE) | {"calculator", "function", "submit", "sql"} == on_disk


def test_without_a_box_what_cannot_be_checked_says_so() -> None:
    checks = check_tool("bash")
    assert list_failures(checks) == [] and any("needs a sandbox box" in check.detail for check in checks if check.skipped)


WORLDLY = """
from rlvr import Tool, ToolExample, tool


class Stock(Tool):
    '''Counts items of its world.'''
    examples = (ToolExample("count", {"item": "lamp"}, "3"),)

    def setup(self):
        self.stock = self.context.data["stock"]

    @tool
    def count(self, item: str) -> str:
        '''Count an item.

        Args:
            item: its name.
        '''
        return str(self.stock.get(item, 0))
"""


def test_a_tool_that_reads_data_of_its_world_says_where_to_give_it(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(WORLDLY, "utf-8")
    failed = list_failures(check_tool(f"{tmp_path / 'stock.py'}:Stock"))
    assert len(failed) == 1 and "example_data = {...}" in failed[0] and "KeyError: 'stock'" in failed[0]
    given = WORLDLY.replace("    examples", '    example_data = {"stock": {"lamp": 3}}\n    examples')
    (tmp_path / "given.py").write_text(given, "utf-8")
    assert list_failures(check_tool(f"{tmp_path / 'given.py'}:Stock")) == []


def test_a_function_without_examples_is_checked_by_its_own_calls_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def vowels(text: str) -> int:\n"
        '    """Count the vowels of a text.\n\n    Args:\n        text: the text.\n    """\n'
        "    return sum(letter in 'aeiou' for letter in text)\n"
    )
    checks = list(run_checks(iter_tool_checks("function", {"function": f"{path}:vowels"})))
    assert not [check for check in checks if not check.ok], checks
    assert [check.name for check in checks if check.skipped and "examples" in check.detail]
