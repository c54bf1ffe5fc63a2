"""Programs in every language: right, wrong, broken, hanging, crashing and greedy ones, where a compiler or an interpreter is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox
from rlvr.contracts.sandbox import Language
from rlvr.registry.plugins import build
from rlvr.sandbox._inside.toolchains import TOOLCHAINS
from rlvr.task import Task
from rlvr.verifiers.code.blocks import LANGUAGE_LABELS

DOUBLE = {
    "bash": "read n\necho $((n * 2))",
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2; }",
    "csharp": "using System;\nclass P { static void Main() { Console.WriteLine(int.Parse(Console.ReadLine()) * 2); } }",
    "go": 'package main\nimport "fmt"\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(n * 2) }',
    "java": """import java.util.*;
class Helper { static int twice(int n) { return 2 * n; } }
public final class Solution { public static void main(String[] args) { System.out.println(Helper.twice(new Scanner(System.in).nextInt())); } }""",
    "javascript": "console.log(require('fs').readFileSync(0, 'utf8') * 2)",
    "r": "n <- as.integer(readLines(file('stdin'), n = 1))\ncat(n * 2, '\\n')",
    "rust": 'fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap(); println!("{}", s.trim().parse::<i64>().unwrap() * 2); }',
    "typescript": "import * as fs from 'fs'\nconst n: number = Number(fs.readFileSync(0, 'utf8'))\nconsole.log(n * 2)",
}
BROKEN = {
    "bash": "if",
    "cpp": "int main( {",
    "csharp": "class {",
    "go": "package main\nfunc main() { x }",
    "java": "class A { void f( }",
    "javascript": "let = (",
    "r": "f(",
    "rust": "fn main() { x }",
    "typescript": "let n: number = (",
}
ENDLESS = {
    "bash": "while :; do :; done",
    "cpp": "int main() { volatile int n = 0; for (;;) n++; }",
    "csharp": "class P { static void Main() { for (;;) { } } }",
    "go": "package main\nfunc main() { for { } }",
    "java": "class A { public static void main(String[] args) { for (;;) { } } }",
    "javascript": "for (;;) { }",
    "r": "repeat { }",
    "rust": "fn main() { loop {} }",
    "typescript": "for (;;) { }",
}
GREEDY = {
    "bash": "x=xxxxxxxxxxxxxxxx\nwhile :; do x=$x$x; done",
    "cpp": "#include <cstring>\nint main() { for (;;) memset(new char[1 << 20], 1, 1 << 20); }",
    "csharp": "using System.Collections.Generic;\nclass P { static void Main() { var a = new List<byte[]>(); for (;;) { var b = new byte[1 << 20]; "
    "for (int i = 0; i < b.Length; i += 4096) b[i] = 1; a.Add(b); } } }",
    "go": "package main\nvar a [][]byte\nfunc main() { for { b := make([]byte, 1<<20); for i := range b { b[i] = 1 }; a = append(a, b) } }",
    "java": "import java.util.*;\nclass A { public static void main(String[] args) { List<byte[]> a = new ArrayList<>(); for (;;) "
    "a.add(new byte[1 << 20]); } }",
    "javascript": "const a = []; for (;;) a.push(new Array(1e6).fill(1.5))",
    "r": "a <- list()\nrepeat a[[length(a) + 1]] <- as.numeric(1:1e6) + 0.5",
    "rust": "fn main() { let mut a = Vec::new(); loop { a.push(vec![1u8; 1 << 20]); } }",
    "typescript": "const a: number[][] = []; for (;;) a.push(new Array(1e6).fill(1.5))",
}
SHORT = Limits(cpu_s=2, wall_s=4)
FAILED = (ExitStatus.RUNTIME_ERROR, ExitStatus.MEMORY_LIMIT, ExitStatus.TIMEOUT)
"""How greedy programs end: a runtime may refuse the memory itself, and a collector may be slow before that."""


def test_a_language_is_known_everywhere() -> None:
    assert {*get_args(Language)} == {"python", *TOOLCHAINS} == {*LANGUAGE_LABELS}
    assert {*DOUBLE} == {*BROKEN} == {*ENDLESS} == {*GREEDY} == {*TOOLCHAINS}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with build("sandbox", "bubblewrap", processes=1) as made:
        yield made


pytestmark = pytest.mark.bubblewrap
each_language = pytest.mark.parametrize("language", [*TOOLCHAINS])


def require(language: str) -> None:
    if not TOOLCHAINS[language].is_installed():
        assert os.environ.get("RLVR_REQUIRE_LANGUAGES") != "1", f"{language} is not installed"
        pytest.skip(f"NOT RUN: {language} is not installed")


@each_language
def test_a_program_runs_and_what_is_wrong_with_it_is_said(sandbox: Sandbox, language: Any) -> None:
    require(language)
    for number in (21, 4):  # the second time from the cache
        outcome = sandbox.run_program(Program(DOUBLE[language], b"%d\n" % number, language))
        assert (outcome.status, outcome.stdout.split(), outcome.stderr_bytes) == (ExitStatus.OK, [str(2 * number)], b""), outcome
    broken = sandbox.run_program(Program(BROKEN[language], language=language))
    expected = ExitStatus.COMPILE_ERROR if TOOLCHAINS[language].compiler else ExitStatus.RUNTIME_ERROR
    assert broken.status is expected and broken.stderr_bytes, broken
    assert sandbox.run_program(Program(ENDLESS[language], language=language, limits=SHORT)).status is ExitStatus.TIMEOUT
    greedy = sandbox.run_program(Program(GREEDY[language], language=language, limits=Limits(cpu_s=10, wall_s=20)))
    assert greedy.status in FAILED, greedy


@each_language
def test_answers_in_the_language_are_judged(sandbox: Sandbox, language: str) -> None:
    require(language)
    verifier = build("verifier", "unit_tests", sandbox=sandbox)
    cases = [{"stdin": "3\n", "stdout": "6"}, {"stdin": "-4\n", "stdout": "-8"}]
    task = Task("double", {"kind": "stdio", "cases": cases, "language": language})
    label = sorted(LANGUAGE_LABELS[language])[-1]
    assert verifier.verify(task, f"```text\n6\n```\n```{label}\n{DOUBLE[language]}\n```\n```text\n-8\n```").score == 1.0
    for wrong in (DOUBLE[language].replace("2", "3"), BROKEN[language], "exit"):
        assert verifier.verify(task, f"```{label}\n{wrong}\n```").score == 0.0, wrong


USUAL = {
    "cpp": """#include <bits/stdc++.h>
template <std::integral T> T twice(T n) { return 2 * n; }
int main() { int n; std::cin >> n; std::vector<std::thread> all; std::atomic<int> sum = 0;
for (int k = 0; k < 12; k++) all.emplace_back([&, k] { std::vector<int> own(1000, k == 0 ? twice(n) : 0); sum += own[999]; });
for (auto& one : all) one.join(); std::cout << sum; }""",
    "csharp": """using System; using System.Numerics; using System.Text;
class P { static void Main() { Console.OutputEncoding = Encoding.UTF8; Console.WriteLine(BigInteger.Parse(Console.ReadLine()) * 2); } }""",
    "typescript": """import { createInterface } from "readline"
for await (const line of createInterface({ input: process.stdin })) console.log(Number(line) * 2)""",
}
"""What models write, and what a runtime makes hard: threads, a byte order mark, a library beside the standard one, waiting at the top."""


@pytest.mark.parametrize("language", [*USUAL])
def test_usual_programs_are_judged(sandbox: Sandbox, language: str) -> None:
    require(language)
    verifier = build("verifier", "unit_tests", sandbox=sandbox)
    task = Task("double", {"kind": "stdio", "cases": [{"stdin": "3\n", "stdout": "6"}], "language": language})
    verdict = verifier.verify(task, f"```{language}\n{USUAL[language]}\n```")
    assert verdict.score == 1.0, verdict


def test_a_source_without_room_is_a_fault_of_the_program() -> None:
    with build("sandbox", "bubblewrap", processes=1, disk_mb=4) as small:
        for kilobytes, limits in ((5000, Limits()), (3000, Limits(file_mb=2))):
            outcome = small.run_program(Program("#" * (kilobytes << 10), language="bash", limits=limits))
            assert outcome.status is ExitStatus.COMPILE_ERROR and "there is room for a file of" in outcome.reason, outcome
        verifier = build("verifier", "unit_tests", sandbox=small)
        task = Task("double", {"kind": "stdio", "cases": [{"stdin": "3\n", "stdout": "6"}], "language": "bash"})
        assert verifier.verify(task, f"```bash\n{'#' * (5 << 20)}\n{DOUBLE['bash']}\n```").score == 0.0
        assert verifier.verify(task, f"```bash\n{'#' * (3 << 20)}\n{DOUBLE['bash']}\n```").score == 1.0
        full = Program(DOUBLE["bash"], language="bash", files={"a": bytes(4 << 20)})
        assert small.run_program(full).status is ExitStatus.INTERNAL_ERROR, "what the task brings fills the disk"
