"""Which part of an answer `unit_tests` runs, what stands in front of it, and how much memory it may ask for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox
from rlvr.errors import ConfigError
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.code.blocks import extract_code, insert_prelude, parse_blocks
from rlvr.verifiers.unit_tests import UnitTests

CALLS = {"kind": "calls", "function": "f", "cases": [{"args": [3], "expected": 9}]}
STDIO = {"kind": "stdio", "cases": [{"stdin": "3", "stdout": "9"}]}
ASSERTS = {"kind": "asserts", "entry_point": "f", "test": "assert f(3) == 9"}
KINDS: dict[str, dict[str, Any]] = {"stdio": STDIO, "calls": CALLS, "asserts": ASSERTS}
RIGHT, WRONG = "def f(x):\n    return x * x\n", "def f(x):\n    return x\n"


@pytest.fixture(scope="module")
def verifier(process_sandbox: Sandbox) -> UnitTests:
    return UnitTests(sandbox=process_sandbox)


def judge(verifier: UnitTests, reference: dict[str, Any], answer: str) -> Verdict:
    return verifier.verify(Task(make_user_prompt("write it"), reference, id="t"), answer)


def fenced(text: str, label: str = "python", indent: str = "") -> str:
    return "".join(f"{indent}{line}\n" for line in [f"```{label}", *text.rstrip("\n").split("\n"), "```"])


@pytest.mark.parametrize(("text", "found"), [
    ("```\na\n```", ["a\n"]),
    ("1. So:\n   ```python\n   if x:\n       y\n\n   z\n   ```\n", ["if x:\n    y\n\nz\n"]),
    ("- ```python\n  a\n    b\n  ```", ["a\n  b\n"]),
    ("10. ~~~\n    a\n    ~~~", ["a\n"]),
    ("\t```\n\ta\n\t\tb\n\t```", ["a\n    b\n"]),
    ("   ```\n a\n     b\n   ```", ["a\n  b\n"]),
    ("```\n  a\n   ```", ["  a\n"]),
    ("````\n```\na\n```\n````", ["```\na\n```\n"]),
    ("```\ndef f():\n    '''\n    ```\n    x\n    ```\n    '''\n```", ["def f():\n    '''\n    ```\n    x\n    ```\n    '''\n"]),
    ("~~~\n```\n~~~", ["```\n"]),
    ("```\r\na\r\n```\r\n", ["a\r\n"]),
    ("```python title=\"x\"\na\n```", ["a\n"]),
    ("inline ```a``` text", []),
    ("```\na\n```\n```\nb", None),
    ("```\na\n``` b", None),
])  # fmt: skip
def test_blocks_are_read_as_markdown_says(text: str, found: list[str] | None) -> None:
    read = parse_blocks(text)
    assert (None if read is None else [block.text for block in read]) == found


@pytest.mark.parametrize("reference", [CALLS, ASSERTS])
@pytest.mark.parametrize(("answer", "score"), [
    (fenced(RIGHT) + "For example:\n" + fenced("print(f(3))"), 1.0),
    (fenced(RIGHT) + "It prints:\n" + fenced("9", ""), 1.0),
    (fenced(RIGHT) + "Run it:\n" + fenced("python answer.py", "bash"), 1.0),
    (fenced(WRONG) + "Rather:\n" + fenced(RIGHT) + "Usage:\n" + fenced("f(3)\n"), 1.0),
    (fenced(RIGHT) + "Rather:\n" + fenced(WRONG) + "Usage:\n" + fenced("f(3)\n"), 0.0),
    (fenced(RIGHT) + fenced("f = lambda x: x"), 0.0),
    (fenced(RIGHT) + fenced("def fg(x): return x"), 1.0),
    (fenced(WRONG) + fenced("class Solution:\n    def f(self, x):\n        return x * x"), 1.0),
    (fenced("1 + 1") + fenced("from math import *\nf = lambda x: x * x", ""), 1.0),
    ("<think>\n" + fenced(RIGHT) + "</think>\n" + fenced(WRONG), 0.0),
    ("1. The code:\n\n" + fenced(RIGHT, indent="   ") + "2. Done.", 1.0),
])  # fmt: skip
def test_the_last_block_that_defines_the_function_counts(verifier: UnitTests, reference: dict[str, Any], answer: str, score: float) -> None:
    verdict = judge(verifier, reference, answer)
    assert verdict.score == score, verdict


@pytest.mark.parametrize(("answer", "score"), [
    (fenced("print(int(input()) ** 2)") + "Output:\n" + fenced("9", ""), 1.0),
    (fenced("print(int(input()) ** 2)") + "Output:\n" + fenced("9", "text"), 1.0),
    (fenced("print(9)") + fenced("print(int(input()))"), 0.0),
    (fenced("print(0)", "") + fenced("print(int(input()) ** 2)", ""), 1.0),
    (fenced("#include <x>", "cpp") + fenced("print(int(input()) ** 2)", "Py"), 1.0),
])  # fmt: skip
def test_of_whole_programs_the_last_one_in_the_tasks_language_counts(verifier: UnitTests, answer: str, score: float) -> None:
    verdict = judge(verifier, STDIO, answer)
    assert verdict.score == score, verdict


def test_a_byte_order_mark_is_skipped_as_in_a_file(verifier: UnitTests) -> None:
    task = Task(make_user_prompt("?"), {"kind": "asserts", "entry_point": "f", "test": "assert f(2) == 4"}, id="t")
    for answer in ("```python\n\ufeffdef f(x): return 2 * x\n```", "\ufeff```python\ndef f(x): return 2 * x\n```"):
        assert verifier.verify(task, answer).score == 1.0


def test_many_blocks_are_read_in_linear_time() -> None:
    def used(count: int) -> float:
        text = "```python\ndef f(x):\n   return x\n```\n" * count + "- " * count + " " * count + "`" * count
        began = time.thread_time()  # other threads of the worker may be busy
        extract_code(text, "python", "f")
        return time.thread_time() - began

    assert min(used(16_000) for _ in range(3)) < 16 * max(min(used(2_000) for _ in range(3)), 1e-3)


@pytest.mark.parametrize("future", [
    "from __future__ import annotations\n",
    "# a comment\n\nfrom __future__ import annotations, division  # both\n",
    '"""Words\nfrom __future__ import nothing\n"""\nfrom __future__ import annotations\n',
    "'''Words.'''\nfrom __future__ import (\n    annotations,\n)\nfrom __future__ import division\n",
    "",
])  # fmt: skip
@pytest.mark.parametrize("kind", ["stdio", "calls", "asserts"])
def test_the_prelude_stands_behind_future_imports(verifier: UnitTests, future: str, kind: str) -> None:
    reference: dict[str, Any] = KINDS[kind]
    body = "def f(x: Nothing[x]) -> None:\n    return math.prod([x, x])\n" if future else "def f(x):\n    return math.prod([x, x])\n"
    body += "if __name__ == '__main__':\n    print(f(int(input())))\n"
    verdict = judge(verifier, {**reference, "prelude": "import math"}, fenced(future + body))
    assert verdict.score == 1.0, (verdict, insert_prelude("import math", future + body))


def test_a_prelude_does_not_touch_text_that_only_looks_like_an_import() -> None:
    source = "x = '''\nfrom __future__ import annotations\n'''\n"
    assert insert_prelude("import math", source) == "import math\n" + source


class Small(Sandbox):
    memory_mb = 100

    def run_program(self, program: Program) -> ExecutionResult:
        assert program.limits.memory_mb <= self.memory_mb
        return ExecutionResult(ExitStatus.OK, stdout_bytes=b"9")


def test_more_memory_than_the_sandbox_has_is_the_tasks_fault() -> None:
    verdict = judge(UnitTests(sandbox=Small()), {**STDIO, "limits": {"memory_mb": 101}}, fenced("print(9)"))
    assert (verdict.score, verdict.fault) == (None, Fault.TASK) and "memory_mb is 101" in verdict.reason
    assert judge(UnitTests(sandbox=Small()), {**STDIO, "limits": {"memory_mb": 100}}, fenced("print(9)")).score == 1.0
    assert judge(UnitTests(sandbox=Small()), STDIO, fenced("print(9)")).score == 1.0, "our default gives way"
    with pytest.raises(ConfigError, match="memory_mb is 200"):
        UnitTests(sandbox=Small(), limits={"memory_mb": 200})


@pytest.mark.parametrize("case", [{"args": [print], "expected": 1}, {"args": [1], "expected": {"a": object()}}])
def test_a_case_that_is_no_data_is_the_tasks_fault(verifier: UnitTests, case: dict[str, Any]) -> None:
    verdict = judge(verifier, {**CALLS, "cases": [case]}, fenced(RIGHT))
    assert (verdict.score, verdict.fault) == (None, Fault.TASK) and "plain data" in verdict.reason


def test_a_case_too_deep_to_be_sent_is_the_tasks_fault(verifier: UnitTests) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    verdict = judge(verifier, {**CALLS, "cases": [{"args": [deep], "expected": 1}]}, fenced(RIGHT))
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict


@pytest.mark.parametrize(("names", "after"), [(30, 32), (60, 1)])
def test_the_end_of_a_future_import_is_searched_in_a_bounded_number_of_lines(names: int, after: int) -> None:
    source = "\n".join(["from __future__ import (", *["    annotations,"] * names, ")", "print(math.pi)"])
    assert insert_prelude("import math", source).split("\n").index("import math") == after
