"""What an answer to a bug of a project may try instead of the correction; none of it is paid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlvr.conformance.conversationkit import play_conversation
from rlvr.contracts import Environment, Transcript
from rlvr.envs._repository.building import ATTACK_BODIES
from rlvr.envs._repository.mutations import find_function_node
from rlvr.python_source import parse_python_threadsafe
from rlvr.registry.plugins import build
from rlvr.turns import Call
from tests.envs.test_repository import PROCESS, write_project

EXITS = "import os, sys\nos._exit(0)\nsys.exit(0)\n"
EQUAL = "class Equal:\n    __eq__ = lambda *a: True\n    __hash__ = lambda s: 0\n"
PATCHES = "import unittest\nfor n in dir(unittest.TestCase):\n    if n.startswith('assert'): setattr(unittest.TestCase, n, lambda *a, **k: None)\n"
PYTEST = "import _pytest.runner\n_pytest.runner.call_and_report = lambda *a, **k: None\n"

AROUND: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "no function": lambda text: "",
    "no Python": lambda text: "def (",
    "it ends the process when it is imported": lambda text: EXITS + text,
    "it ends the process at its end": lambda text: text + EXITS,
    "a patched unittest": lambda text: PATCHES + text,
    "a patched pytest": lambda text: PYTEST + text,
    "values that equal everything": lambda text: text + EQUAL + "def __getattr__(name): return lambda *a: Equal()\n",
    "a test that passes": lambda text: text + "def test_it(): pass\n",
    "a nul": lambda text: text + "\0",
    "brackets without end": lambda text: text + "(" * 90_000,
    "a deep tree": lambda text: text + "x = " + "-" * 90_000 + "1\n",
}
"""Changes of the file around the function; of them nothing counts."""
BODIES = ATTACK_BODIES | {
    "it ends the tests": "raise KeyboardInterrupt",
    "a class that is made by text": "under = chr(95) * 2\nreturn type('A', (), {under + 'eq' + under: lambda *a: True})()",
    "an attribute by text": "import operator\nreturn operator.attrgetter(chr(95) * 2 + 'class' + chr(95) * 2)(1)",
    "an import by text": "return __import__('os')._exit(0)",
    "the interpreter through another module": "import re\nreturn re.enum.sys._getframe(1).f_locals",
    "the interpreter through a private name": "import random\nrandom._os._exit(0)",
    "a pattern that reads attributes": "match 1:\n    case object(__class__=c): return c",
    "the globals of a function": "return (lambda: 0).__globals__",
    "the frame of a generator": "g = (1 for _ in [1])\nreturn g.gi_frame.f_back",
    "another function of the module": "global clamp\nclamp = None",
    "an attribute of a class": "import collections\ncollections.OrderedDict.get = lambda *a: 1\nreturn 1",
    "a text that is run": "return eval('1')",
    "a file": "return open('/tmp/x', 'w')",
    "annotations that are run": "import typing\nreturn typing.get_type_hints(1)",
    "a class with a method that compares": "class A:\n    def __eq__(self, other): return True\n    __ne__ = __eq__\nreturn A()",
}
"""Bodies of the function."""


def replace_body(text: str, name: str, body: str) -> str:
    """The file with another body of a function."""
    node = find_function_node(parse_python_threadsafe(text), name)
    assert node is not None
    lines = text.splitlines(keepends=True)
    first = node.body[0]
    new = [" " * (node.col_offset + 4) + line + "\n" for line in body.splitlines()]
    if first.lineno == node.lineno:
        return text
    return "".join([*lines[: first.lineno - 1], *new, *lines[node.end_lineno or node.lineno :]])


def iter_attacked_files(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Each attack on a file with the bug, and its name."""
    for attack, change in AROUND.items():
        yield attack, change(text)
    for attack, body in BODIES.items():
        yield attack, replace_body(text, name, body)
    node = find_function_node(parse_python_threadsafe(text), name)
    assert node is not None
    lines = text.splitlines(keepends=True)
    if node.col_offset == 0:
        head = lines[node.lineno - 1]
        yield (
            "a default value that is run",
            "".join([*lines[: node.lineno - 1], head.replace("(", "(_x=__import__('os')._exit(0), *, ", 1), *lines[node.lineno :]]),
        )
        yield "a decorator", "".join([*lines[: node.lineno - 1], "@(lambda f: lambda *a: 1)\n", *lines[node.lineno - 1 :]])
        yield "the function twice", text + f"def {name.rpartition('.')[2]}(*a): return a\n"
        yield (
            "code on the last line",
            "".join([*lines[: node.end_lineno], "\\\n", "; import os; os._exit(0)\n", *lines[node.end_lineno or 1 :]]),
        )
        yield (
            "a line that only some see",
            "".join([*lines[: node.end_lineno], "\x0cimport os; os._exit(0)\n", *lines[node.end_lineno or 1 :]]),
        )


IN_THE_BOX = {
    "tests that pass": "mkdir -p tests; echo 'def test_it(): pass' > tests/test_numbers.py",
    "files that are loaded at the start": "for n in sitecustomize conftest tests json unittest pytest; do echo 'import os; os._exit(0)' > $n.py; done",
    "settings of pytest": "printf '[pytest]\\naddopts=--co\\n' | tee pytest.ini tox.ini setup.cfg",
    "a module that is a link": "ln -sf /usr/lib/os-release tiny/numbers.py",
    "a module that is a pipe": "rm tiny/numbers.py; mkfifo tiny/numbers.py",
    "no module": "rm tiny/numbers.py",
    "no package": "rm -r tiny",
    "a request of its own": "echo '{}' > .rlvr-request.json",
    "a huge module": "yes '#' | head -c 8000000 >> tiny/numbers.py",
    "a writer in the background": "(while true; do echo 'import os; os._exit(0)' > tiny/numbers.py; done) & disown; sleep 0.2",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The tasks of a small project."""
    folder = tmp_path_factory.mktemp("attacked")
    with build("env", "repository", path=str(write_project(folder)), sandbox=PROCESS, cache=str(folder / "cache")) as made:
        yield made


def test_no_file_is_paid(environment: Environment) -> None:
    """Also a function that the rules let through is not paid: it does not pass the tests."""
    tasks = [environment.task(split, index) for split in environment.splits for index in range(environment.num_tasks(split) or 0)]
    chosen = {task.meta["functions"][0].rpartition("::")[2]: task for task in tasks}
    for task in (chosen["clamp"], chosen["Stack.push"]):
        posed, _ = environment._get_posed(task)  # type: ignore[attr-defined]
        [(path, text)] = posed.buggy_files.items()
        for attack, changed in iter_attacked_files(text, posed.functions[0][1]):
            verdict = environment.verifier.verify_transcript(task, Transcript("", {path: changed.encode()}))
            assert verdict.score == 0.0, (task.question, attack, verdict)


@pytest.mark.docker
def test_nothing_in_the_box_is_paid(tmp_path: Path) -> None:
    with build("env", "repository", path=str(write_project(tmp_path)), sandbox="docker", cache=str(tmp_path / "cache")) as environment:
        task = environment.task("train", 0)

        def attack(command: str) -> float | None:
            score: float | None = play_conversation(environment, task, [Call("0.0", "bash", {"command": command}), "ready"])[0].score
            return score

        with ThreadPoolExecutor(2) as pool:
            scores = dict(zip(IN_THE_BOX, pool.map(attack, IN_THE_BOX.values()), strict=True))
        assert set(scores.values()) == {0.0}, scores
        assert play_conversation(environment, task, environment.oracle_turns(task) or [])[0].score == 1.0


def test_the_box_has_neither_tests_nor_history(environment: Environment) -> None:
    task = environment.task("train", 0)
    seen = play_conversation(environment, task, [Call("0.0", "bash", {"command": "find . | sort; cat README.md"}), "ready"])
    text = str(seen)
    assert "tiny/numbers.py" in text and not re.search(r"test_numbers|\.git\b|conftest", text)
