# ruff: noqa: E501  (programs stand in one line each)
"""Whatever an answer does, its 0 stays a 0: no answer makes the test, the judge or the sandbox look broken."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlvr.contracts import ExecutionResult, ExitStatus, Program, Sandbox
from rlvr.task import Fault, Task, make_user_prompt
from rlvr.verifiers.unit_tests import UnitTests

LIMITS = {"wall_s": 0.8, "cpu_s": 0.4, "memory_mb": 96}

FED = {
    "an exception is passed back": "try:\n    r = f(1)\nexcept Exception as e:\n    r = e\nassert f(r) == 5",
    "an exception is expected": "try:\n    want = f(1)\nexcept Exception as e:\n    want = e\nassert f(2) == want and f(3) == 5",
    "a traceback is passed back": "import sys\ntry:\n    r = f(1)\nexcept Exception:\n    r = sys.exc_info()\nassert f([r, 1]) == 5",
    "the result is passed back": "r = f(1)\nfor k in range(3):\n    r = f([r])\nassert r == 5",
    "the result chooses what is passed": "r = f(1)\nif r == 2:\n    f(len)\nassert r == 5",
    "the result chooses what is expected": "import datetime\nwant = {2: datetime.date(2020, 1, 1)}\nr = f(1)\nw = want.get(r, 5) if isinstance(r, int) else 5\nassert f(1) == w",
    "the result is taken apart": "a, b = f(1), f(2)\nx = a + b\nassert f(x) == 10",
    "the arguments are changed": "xs = [1]\nf(xs)\nassert f(xs) == 5 and xs == [5]",
    "the test uses the shared folder": "open('/tmp/notes.txt', 'w').write('1')\nassert f(1) == 5",
    "the test calls check": "def check(candidate):\n    r = candidate(1)\n    assert candidate(r) == 5",
}  # fmt: skip

ANSWERS = [
    *(f"def f(x): raise {kind}" for kind in (
        "TypeError('x')", "NameError('f')", "AssertionError", "StopIteration(3)", "MemoryError", "RecursionError", "SystemExit(0)", "KeyboardInterrupt",
        "GeneratorExit", "OSError(5, 'x')", "UnicodeDecodeError('utf-8', b'', 0, 1, 'x')", "ExceptionGroup('x', [ValueError()])", "ImportError", "SyntaxError('x')",
    )),
    *(f"def f(x): return {value}" for value in (
        "2", "print", "f", "object()", "ValueError('x')", "__import__('datetime').date(2020, 1, 1)", "'\\ud800'", "float('nan')", "10 ** 6000", "iter([1])", "{1: {2}}", "type(x)",
    )),
    "class A:\n    def __getattr__(self, name): return A()\n    __eq__ = __call__ = lambda *a: True\ndef f(x): return A()",
    "class E(Exception):\n    def __str__(self): raise E\ndef f(x): raise E",
    "def f(x):\n    if isinstance(x, list): x.append(print); x.append(x)\n    return x",
    "def f(x):\n    r = []\n    for _ in range(99): r = [r]\n    return r",
    "open('/tmp/notes.txt', 'w').close()\nimport os\nos.chmod('/tmp/notes.txt', 0)\ndef f(x): return 2",
    "import os\nos.symlink('/nowhere/x', '/tmp/notes.txt')\ndef f(x): return 2",
    "import os\nos.mkdir('/tmp/notes.txt')\ndef f(x): return 2",
    "import os\nos.chmod('.', 0)\ndef f(x): return 2",
    "import os\nfor k in range(3, 10):\n    try: os.close(k)\n    except OSError: pass\ndef f(x): return 2",
    "import os\nfor k in range(3, 9):\n    try: os.write(k, b'\\0\\0\\0\\x0e{\"unfit\": \"x\"}' * 3)\n    except OSError: pass\ndef f(x): return 2",
    "import os\nfor k in range(3, 9):\n    try: os.write(k, b'\\xff' * 64)\n    except OSError: pass\ndef f(x): return 2",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\ndef f(x): return 2",
    "import os, signal\ndef f(x): os.kill(-1, signal.SIGKILL)",
    "import os\ndef f(x): os._exit(0)",
    "import os\nif os.fork(): os._exit(0)\ndef f(x): return 2",
    "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\nctypes.CDLL(None).syscall(60, 0)",
    "import resource\nfor k in range(16):\n    try: resource.setrlimit(k, (0, 0))\n    except (OSError, ValueError): pass\ndef f(x): return 2",
    "x = []\ntry: open('/proc/self/oom_score_adj', 'w').write('0')\nexcept OSError: pass\nwhile True: x.append(bytearray(1 << 20))",
    "import os\nwhile True: os.write(1, b'x' * 65536)",
    "def f(x):\n    while True: pass",
    "import os, fcntl\nfor k in range(10):\n    try: fcntl.fcntl(k, fcntl.F_SETFL, os.O_NONBLOCK)\n    except OSError: pass\ndef f(x): return 2",
    "import os\nfor name in os.listdir('/proc/self/fd'):\n    try: os.ftruncate(int(name), 0)\n    except OSError: pass\ndef f(x): return 2",
    "import os\nfor place in ('/etc/passwd', '/usr/bin/env', '/proc/self/status'):\n    try: os.link(place, 'x' + str(len(place)))\n    except OSError: pass\ndef f(x): return 2",
]  # fmt: skip


def cases() -> Iterator[tuple[str, str, str]]:
    """Every answer that raises with the tests of exceptions, and every answer with another test, in turn."""
    names = list(FED)
    for number, answer in enumerate(ANSWERS):
        for name in {names[0], names[number % len(names)]} if "\n" not in answer else {names[number % len(names)]}:
            yield name, FED[name], answer
    for answer in (answer for answer in ANSWERS if "notes.txt" in answer):
        yield "the shared folder", FED["the test uses the shared folder"], answer


def test_no_answer_makes_a_test_look_unfit(process_sandbox: Sandbox) -> None:
    verifier = UnitTests(sandbox=process_sandbox, limits=LIMITS)

    def one(case: tuple[str, str, str]) -> str:
        name, test, answer = case
        reference = {"kind": "asserts", "entry_point": "f", "test": test}
        verdict = verifier.verify(Task(make_user_prompt("x"), reference, id="t"), f"```python\n{answer}\n```")
        return "" if verdict.score == 0.0 else f"{name}; {answer!r}: {verdict.score} {verdict.fault} {verdict.reason}"

    with ThreadPoolExecutor(4) as threads:
        assert [line for line in threads.map(one, cases()) if line] == []


@pytest.mark.parametrize("kind", ["calls", "stdio"])
def test_no_answer_makes_calls_or_input_and_output_look_broken(process_sandbox: Sandbox, kind: str) -> None:
    case = {"args": [1], "expected": 5} if kind == "calls" else {"stdin": "1", "stdout": "5"}
    reference = {"kind": kind, "cases": [case], **({"function": "f"} if kind == "calls" else {})}
    verifier = UnitTests(sandbox=process_sandbox, limits=LIMITS)

    def one(answer: str) -> str:
        verdict = verifier.verify(Task(make_user_prompt("x"), reference, id="t"), f"```python\n{answer}\nprint(f(1))\n```")
        return "" if verdict.score == 0.0 else f"{answer!r}: {verdict.score} {verdict.fault} {verdict.reason}"

    with ThreadPoolExecutor(4) as threads:
        assert [line for line in threads.map(one, ANSWERS) if line] == []


class Broken(Sandbox):
    """A sandbox that works, except that runs of some programs fail."""

    def __init__(self, inner: Sandbox, fails: str) -> None:
        self.inner, self.fails = inner, fails

    def run_program(self, program: Program) -> ExecutionResult:
        return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason="no engine") if self.fails in program.source else self.inner.run(program)


def test_a_rehearsal_that_the_sandbox_failed_is_tried_again(process_sandbox: Sandbox) -> None:
    sandbox = Broken(process_sandbox, "dry_run_test()")
    verifier = UnitTests(sandbox=sandbox)
    task = Task(make_user_prompt("x"), {"kind": "asserts", "entry_point": "f", "test": "assert f(1) == 1"}, id="t")
    answer = "```python\ndef f(x): return x\n```"
    verdict = verifier.verify(task, answer)
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict
    sandbox.fails = "\0"
    assert verifier.verify(task, answer).score == 1.0


class SilentDryRun(Sandbox):
    """A sandbox that does not really run one program: it says that it ended well, and there is no record."""

    def __init__(self, inner: Sandbox, status: ExitStatus, report: bytes = b"") -> None:
        self.inner, self.status, self.report = inner, status, report

    def run_program(self, program: Program) -> ExecutionResult:
        if "dry_run_test()" in program.source:
            return ExecutionResult(self.status, 0, checker_output=self.report)
        return self.inner.run(program)


@pytest.mark.parametrize("status", [ExitStatus.OK, ExitStatus.RUNTIME_ERROR, ExitStatus.TIMEOUT, ExitStatus.MEMORY_LIMIT])
def test_a_dry_run_that_did_not_run_gives_no_score(process_sandbox: Sandbox, status: ExitStatus) -> None:
    verifier = UnitTests(sandbox=SilentDryRun(process_sandbox, status))
    task = Task(make_user_prompt("x"), {"kind": "asserts", "entry_point": "f", "test": "assert f(1) == 1"}, id="t")
    for answer in ("def f(x): return x", "def f(x): return 2"):
        verdict = verifier.verify(task, f"```python\n{answer}\n```")
        assert (verdict.score, verdict.fault) == (None, Fault.INFRA), verdict


@pytest.mark.parametrize(
    "test", ["import sys\nassert f(1) == 1\nsys.exit()", "import os\nos._exit(0)\nassert f(1) == 1", "while True: pass\nassert f(1) == 1"]
)
def test_a_test_that_does_not_finish_without_an_answer_is_a_fault_of_the_task(process_sandbox: Sandbox, test: str) -> None:
    verifier = UnitTests(sandbox=process_sandbox, limits={"wall_s": 2, "cpu_s": 1})
    verdict = verifier.verify(
        Task(make_user_prompt("x"), {"kind": "asserts", "entry_point": "f", "test": test}, id="t"), "```python\ndef f(x): return x\n```"
    )
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict
