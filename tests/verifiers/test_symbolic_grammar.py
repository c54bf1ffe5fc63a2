"""The grammar runs nothing: a look at the syntax tree of every file of the math verifier."""

from __future__ import annotations

import ast
import contextlib
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError

ROOM = Path(__file__).parents[2] / "verifiers"
BANNED = {
    "eval",
    "exec",
    "compile",
    "sympify",
    "parse_expr",
    "parse_latex",
    "S",
    "lambdify",
    "__import__",
    "loads_pickle",
    "simplify_logic",
}


def calls(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            names.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.name for alias in node.names} & {"pickle", "marshal", "shelve"}
    return names


def reached(start: str) -> set[Path]:
    """The files of the room that a file imports, and theirs."""
    found, rest = set(), [start, "_workers.worker_main", "math.values.algebra"]
    while rest:
        path = ROOM / (rest.pop().replace(".", "/") + ".py")
        if path not in found:
            found.add(path)
            rest += re.findall(r"from rlvr\.verifiers\.([\w.]+) import", path.read_text("utf-8"))
    return found


def test_no_text_is_ever_run() -> None:
    files = reached("symbolic")
    assert len(files) > 15
    for path in files:
        called = calls(path)
        if not re.search(r"(?<!re\.)\bcompile\(", path.read_text("utf-8")):
            called -= {"compile"}
        assert not called & BANNED, f"{path.name} calls {called & BANNED}"
        assert not called & {"pickle", "marshal", "shelve"}, f"{path.name} unpickles"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.from_regex(r"-?([0-9]{1,15}|[1-9][0-9]{0,2}(,[0-9]{3}){1,4})(\.[0-9]{1,15})?", fullmatch=True, alphabet="-0123456789,."))
def test_plain_numbers_take_a_short_cut_to_the_tree_that_the_whole_grammar_gives(number: str) -> None:
    assert parse_answer(number) == parse_answer(f"${number}$")


ENDLESS = ["½", "∞", "ab ", "x^", "1+", "1,", "{", "(1,", "not ", "$x$ ", r"\int ", r"\sqrt{2}", r"\frac12", r"\text{a}", r"\ln ", r"\le "]


@pytest.mark.parametrize("piece", ENDLESS)
def test_a_text_is_read_or_refused_in_proportion_to_its_length(piece: str) -> None:
    def cost(length: int) -> float:
        spent = []
        for _ in range(5):
            start = time.thread_time()
            with contextlib.suppress(LimitExceeded, ParseError):
                parse_answer.__wrapped__(piece * (length // len(piece)))
            spent.append(time.thread_time() - start)
        return min(spent)

    assert cost(5_600) < 24 * cost(700)
