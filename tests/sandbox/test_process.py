# ruff: noqa: E501  (programs stand in one line each)
"""Both sandboxes: what they promise is attacked, what programs are used to works, faults of ours are never a program's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlvr.conformance import check_plugin
from rlvr.conformance.check_runner import CheckSkipped
from rlvr.conformance.sandbox_kit import PROBES, check_sandbox
from rlvr.contracts import CheckerProgram, ExecutionResult, ExitStatus, Limits, Program, Sandbox
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build
from rlvr.sandbox._inside.frames import ConnectionBroken, pack_frame
from rlvr.sandbox._outside.local_supervisor import LocalSupervisorConnection
from rlvr.sandbox._outside.supervisor_connection import SupervisorConnection
from rlvr.sandbox.process import ProcessSandbox

BOTH = [
    pytest.param("docker_sandbox", marks=pytest.mark.docker, id="docker"),
    pytest.param("bubblewrap_sandbox", marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param("process_sandbox", id="process"),
]


@pytest.fixture(params=BOTH)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    chosen: Sandbox = request.getfixturevalue(request.param)
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBES)
def test_enforces(sandbox: Sandbox, name: str) -> None:
    try:
        wrong = PROBES[name](sandbox)
    except CheckSkipped as reason:  # no control groups for calls: only as a plain user, or under a container engine that forbids them
        pytest.skip(str(reason))
    assert wrong == ""


class Naive(Sandbox):
    """What everybody writes first; the kit must see through it. Only checks that are harmless without any limit run here."""

    def run_program(self, program: Program) -> ExecutionResult:
        done = subprocess.run([sys.executable, "-c", program.source], input=program.stdin, capture_output=True, timeout=60, check=False)
        return ExecutionResult(
            ExitStatus.OK if done.returncode == 0 else ExitStatus.RUNTIME_ERROR, done.returncode, done.stdout, done.stderr
        )


def test_the_kit_sees_through_a_plain_subprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = ("runs a program", "no sockets but local pairs", "output is limited", "argv is clean")
    monkeypatch.setattr("rlvr.conformance.sandbox_kit.PROBES", {name: PROBES[name] for name in harmless})
    rows = {row.name: row.ok for row in check_sandbox(Naive())}
    assert rows == {"runs a program": True, "no sockets but local pairs": False, "output is limited": False, "argv is clean": True}


def test_the_kit_runs_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("runs a program", "argv is clean")
    monkeypatch.setattr("rlvr.conformance.sandbox_kit.PROBES", {name: PROBES[name] for name in names})
    assert [(row.name, row.ok) for row in check_plugin("sandbox", "process", trusted=True)] == [(name, True) for name in names]


IDIOMS = {
    "for line in sys.stdin": "import sys\nfor line in sys.stdin: print(line.strip())",
    "open(0)": "print(open(0).read().strip())",
    "sys.stdin.buffer": "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.readline())\nsys.stdout.buffer.write(sys.stdin.buffer.readline())",
    "os.read(0)": "import os\nos.write(1, os.read(0, 100))",
    "open('/dev/stdin')": "print(open('/dev/stdin').read().strip())",
    "input() until EOFError": "try:\n    while True: print(input())\nexcept EOFError: pass",
    "input = sys.stdin.readline": "import sys\ninput = sys.stdin.readline\nprint(input().strip()); print(input().strip())",
    "sys.stdin.read": "import sys\nprint(*sys.stdin.read().split(), sep='\\n')",
    "iter(input, ...)": "import sys\nprint(*map(str.strip, iter(sys.stdin.readline, '')), sep='\\n')",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(line, end='')",
    "threads with a larger stack": (
        "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 26)\n"
        "def deep(n): return n and 1 + deep(n - 1)\n"
        "def main():\n    assert deep(20000) == 20000\n    print(sys.stdin.read().strip())\nt = threading.Thread(target=main)\nt.start()\nt.join()"
    ),
    "recursion limit": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef deep(n): return n and 1 + deep(n - 1)\nassert deep(50000) == 50000\nprint(sys.stdin.read().strip())"
    ),
    "__main__ guard": "def main(): print(open(0).read().strip())\nif __name__ == '__main__': main()",
    "io.BytesIO fast input": "import io, os\nprint(io.BytesIO(os.read(0, 10**6)).read().decode().strip())",
    "exit() at the end": "import sys\nprint(sys.stdin.read().strip())\nexit()",
    "sys.exit(0)": "import sys\nprint(sys.stdin.read().strip())\nsys.exit(0)",
    "os._exit after flush": "import os, sys\nprint(sys.stdin.read().strip())\nsys.stdout.flush()\nos._exit(0)",
    "atexit": "import atexit, sys\natexit.register(lambda: print(sys.stdin.read().strip()))",
    "tempfile": "import sys, tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write(sys.stdin.read().strip())\n    f.seek(0)\n    print(f.read())",
    "asyncio": "import asyncio, sys\nasync def main():\n    await asyncio.sleep(0)\n    print(sys.stdin.read().strip())\nasyncio.run(main())",
    "thread pool": "import sys\nfrom concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as p:\n    print(*p.map(str.strip, sys.stdin), sep='\\n')",
    "subprocess": "import subprocess, sys\nprint(subprocess.run(['cat'], input=sys.stdin.read(), capture_output=True, text=True).stdout.strip())",
    "os.fork": "import os, sys\nif os.fork() == 0:\n    print(sys.stdin.read().strip(), flush=True)\n    os._exit(0)\nos.wait()",
    "dataclasses and pickle": (
        "import dataclasses, pickle, sys\n@dataclasses.dataclass\nclass P:\n    x: str\nprint(pickle.loads(pickle.dumps(P(sys.stdin.read().strip()))).x)"
    ),
    "a stdout of its own": "import os, sys\nprint('alpha')\nold = sys.stdout\nsys.stdout = os.fdopen(os.dup(1), 'w')\nold.flush()\nprint('beta')",
    "a file left open": "import sys\nout = open('/dev/stdout', 'w')\nout.write(sys.stdin.read())",
    "an object that prints at its end": "import sys\nclass D:\n    def __del__(self): print(sys.stdin.read().strip())\nd = D()",
    "a thread that outlives main": "import sys, threading, time\ndef late():\n    time.sleep(0.2)\n    print(sys.stdin.read().strip())\nthreading.Thread(target=late).start()",
    "warnings as usual": "import sys, warnings\nwarnings.warn('x')\nprint(sys.stdin.read().strip())",
}


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom(sandbox: Sandbox, name: str) -> None:
    limits = Limits(memory_mb=256, processes=32)
    outcome = sandbox.run(Program(IDIOMS[name], b"alpha\nbeta\n", limits=limits))
    assert (outcome.status, outcome.stdout_bytes) == (ExitStatus.OK, b"alpha\nbeta\n"), outcome


def test_five_megabytes_in_and_out(sandbox: Sandbox) -> None:
    data = os.urandom(5_000_000)
    outcome = sandbox.run(Program("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", data))
    assert outcome.status is ExitStatus.OK and not outcome.truncated and outcome.stdout_bytes == data


def test_an_output_over_the_limit_is_marked_as_cut(sandbox: Sandbox) -> None:
    outcome = sandbox.run(Program("print('x' * 5000)", limits=Limits(output_bytes=1000)))
    assert outcome.status is ExitStatus.OUTPUT_LIMIT and outcome.truncated and len(outcome.stdout) == 1000


def test_errors_are_shown_without_our_frames(sandbox: Sandbox) -> None:
    outcome = sandbox.run(Program("def f():\n    return 1 / 0\nf()"))
    assert outcome.status is ExitStatus.RUNTIME_ERROR and outcome.exit_code == 1
    text = outcome.stderr_bytes.decode()
    assert (
        text.startswith("Traceback")
        and text.endswith("ZeroDivisionError: division by zero\n")
        and text.count("File ") == text.count("answer.py")
    )


def test_a_source_that_does_not_compile(sandbox: Sandbox) -> None:
    assert sandbox.run(Program("def f(:")).status is ExitStatus.COMPILE_ERROR
    assert sandbox.run(Program("print('\0')")).status in (ExitStatus.COMPILE_ERROR, ExitStatus.RUNTIME_ERROR)
    assert sandbox.run(Program("\ud800")).status in (ExitStatus.COMPILE_ERROR, ExitStatus.RUNTIME_ERROR)


def test_many_threads_share_it(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda n: sandbox.run(Program("print(int(input()) ** 2)", str(n).encode())), range(60)))
    assert [int(outcome.stdout) for outcome in outcomes] == [n * n for n in range(60)]


def test_a_judge_talks_with_the_program(sandbox: Sandbox) -> None:
    program = "import os\nwhile (data := os.read(3, 100)): os.write(4, data.upper())"
    judge = "import os, sys\nfor word in sys.stdin.read().split():\n    os.write(4, word.encode())\n    os.write(5, os.read(3, 100))"
    outcome = sandbox.run(Program(program, checker=CheckerProgram(judge, b"alpha beta")))
    assert (outcome.status, outcome.checker_output) == (ExitStatus.OK, b"ALPHABETA")


def test_a_judge_hears_the_end_of_a_program_that_dies(sandbox: Sandbox) -> None:
    outcome = sandbox.run(Program("import os\nos._exit(0)", checker=CheckerProgram("import os\nos.write(5, b'end' + os.read(3, 100))")))
    assert outcome.checker_output == b"end"


def test_what_it_used_is_measured(sandbox: Sandbox) -> None:
    outcome = sandbox.run(
        Program("x = bytearray(150 << 20)\nimport time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    )
    assert outcome.status is ExitStatus.OK
    assert 150 <= outcome.peak_mb <= 256 and 0.25 <= outcome.cpu_s <= 5 and outcome.wall_s >= 0.25
    assert "system-call filter" in outcome.isolation


HOLDING = """
import mmap, os, time
held = mmap.mmap(-1, {mb} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.madvise(mmap.MADV_HUGEPAGE)
for place in range(0, {mb} << 20, 1 << 12):
    held[place] = 1
time.sleep({seconds})
os._exit(0)
"""


@pytest.mark.parametrize("where", BOTH[1:])
@pytest.mark.parametrize(
    ("mb", "seconds", "limit_mb", "status"),
    [
        pytest.param(96, 0, 48, ExitStatus.MEMORY_LIMIT, id="for less than the time between two measurements"),
        pytest.param(40, 0.1, 51, ExitStatus.OK, id="beside processes of ours, each with some megabytes"),
    ],
)
def test_memory_is_measured_whenever_it_was_held(
    where: str, mb: int, seconds: float, limit_mb: int, status: ExitStatus, request: pytest.FixtureRequest
) -> None:
    sandbox: Sandbox = request.getfixturevalue(where)
    program = Program(HOLDING.format(mb=mb, seconds=seconds), limits=Limits(memory_mb=limit_mb))
    outcomes = [sandbox.run(program) for _ in range(20)]
    assert {outcome.status for outcome in outcomes} == {status}, outcomes


def test_programs_fork_where_the_default_of_multiprocessing_is_forkserver() -> None:
    source = """
import multiprocessing
from multiprocessing import context
from rlvr.sandbox._inside import zygote
context._default_context._default_context = context._concrete_contexts["forkserver"]  # as in Python 3.14
zygote.choose_fork()
if __name__ == "__main__":
    with multiprocessing.Pool(1) as pool:
        print(multiprocessing.get_start_method(), pool.map(abs, [-3]))
    multiprocessing.set_start_method("spawn", force=True)
    print(multiprocessing.get_start_method())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:2] == ["fork [3]", "spawn"], done


def test_a_program_starts_processes(sandbox: Sandbox) -> None:
    source = "from concurrent.futures import ProcessPoolExecutor\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as pool: print(*pool.map(abs, [-3, 4]))"
    outcome = sandbox.run(Program(source))
    assert (outcome.status, outcome.stdout) == (ExitStatus.OK, "3 4\n"), outcome


def test_a_file_with_a_path_is_refused(sandbox: Sandbox) -> None:
    outcome = sandbox.run(Program("print(1)", files={"../x": b""}))
    assert outcome.status is ExitStatus.INTERNAL_ERROR and "plain" in outcome.reason


ROOMY = Limits(cpu_s=20, wall_s=60, memory_mb=900, processes=64)


def compiled(sandbox: Sandbox, language: str, source: str, stdin: bytes = b"") -> ExecutionResult:
    """Run it; an image without that toolchain is said aloud, and is a failure where the docker sandbox is required."""
    outcome = sandbox.run(Program(source, stdin, language, ROOMY))  # type: ignore[arg-type]
    if outcome.status is ExitStatus.INTERNAL_ERROR and "toolchain" in outcome.reason:
        assert language in outcome.reason and "python" in outcome.reason
        assert os.environ.get("RLVR_REQUIRE_DOCKER") != "1", outcome.reason
        pytest.skip(f"NOT RUN: {outcome.reason}")
    return outcome


@pytest.mark.parametrize(("language", "source", "broken", "stop"), [
    ("cpp", "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2; }", "int main( {", ExitStatus.COMPILE_ERROR),
    ("javascript", "console.log(require('fs').readFileSync(0, 'utf8') * 2)", "let = (", ExitStatus.RUNTIME_ERROR),
])  # fmt: skip
@pytest.mark.docker
def test_other_languages(docker_sandbox: Sandbox, language: str, source: str, broken: str, stop: ExitStatus) -> None:
    outcome = compiled(docker_sandbox, language, source, b"21")
    assert (outcome.status, outcome.stdout_bytes.strip()) == (ExitStatus.OK, b"42"), outcome
    assert compiled(docker_sandbox, language, broken).status is stop


@pytest.mark.skipif(shutil.which("node") is None, reason="NOT RUN: node is not installed")
def test_javascript_starts_with_the_smallest_default_memory(process_sandbox: Sandbox) -> None:
    program = Program("console.log(require('fs').readFileSync(0, 'utf8') * 2)", language="javascript", stdin=b"21")
    outcome = process_sandbox.run(program)
    assert (outcome.status, outcome.stdout_bytes.strip()) == (ExitStatus.OK, b"42"), outcome
    many = Program("const a = []; for (;;) a.push(new Array(1e6).fill(1.5))", language="javascript")
    assert process_sandbox.run(many).status is ExitStatus.MEMORY_LIMIT


@pytest.mark.docker
def test_a_large_program_is_compiled_once_for_twenty_cases(docker_sandbox: Sandbox) -> None:
    """20 compilations take more than a second: each would print another time."""
    source = "#include <cstdio>\nchar room[20 << 20] = {1};\nint main() { puts(__TIME__); return room[9]; }"
    outcomes = [compiled(docker_sandbox, "cpp", source) for _ in range(20)]
    assert {outcome.status for outcome in outcomes} == {ExitStatus.OK}
    assert len({outcome.stdout for outcome in outcomes}) == 1, [outcome.stdout for outcome in outcomes]


@pytest.mark.docker
def test_a_program_too_large_to_keep_is_a_compile_error(docker_sandbox: Sandbox) -> None:
    outcome = compiled(docker_sandbox, "cpp", "char room[33 << 20] = {1};\nint main() { return room[9]; }")
    assert outcome.status is ExitStatus.COMPILE_ERROR, outcome
    assert "File too large" in outcome.stderr_bytes.decode() or "32 MB" in outcome.reason, outcome


@pytest.mark.parametrize("source", [
    '#include "/dev/zero"\nint main() {}',
    "template <int n> struct A { A<n + 1> a; };\nA<0> a;\nint main() {}",
    "char x[1 << 30] = {1};\nint main() {}",
], ids=["reads without end", "templates without end", "a huge binary"])  # fmt: skip
@pytest.mark.docker
def test_a_compiler_under_attack_is_a_compile_error_and_no_more(docker_sandbox: Sandbox, source: str) -> None:
    assert compiled(docker_sandbox, "cpp", source).status is ExitStatus.COMPILE_ERROR
    assert docker_sandbox.run(Program("import os\nprint(os.listdir('.'))")).stdout_bytes == b"[]\n"


def test_the_process_sandbox_has_to_be_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match=r"trusted=True.*--set 'sandbox=\{name: process, trusted: true\}', where"):
        build("sandbox", "process")


class Replayed(SupervisorConnection):
    """A supervisor that says what it is given, in small pieces."""

    handshake = {"isolation": []}

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self.said, self.at = said, 0

    def send(self, data: bytes, deadline: float) -> None:
        pass

    def receive(self, buffer: memoryview, deadline: float) -> int:
        piece = self.said[self.at : self.at + min(len(buffer), 30_000)]
        buffer[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)

    def is_alive(self) -> bool:
        return True

    def shut_down(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_large_output_is_never_held_more_than_twice() -> None:
    """Buffers that grow by copying leave the memory of a long run in pieces."""
    header = {"stop": "OK", "exit": 0, "reason": "", "cut": False, "cpu": 0, "wall": 0, "peak": 0, "fatal": ""}
    channel = Replayed(b"".join(pack_frame(header, {"stdout": bytes(8_000_000), "stderr": b"", "report": b""})))
    tracemalloc.start()
    try:
        outcome, sound = channel.run_program(Program(""))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sound and len(outcome.stdout) == 8_000_000
    assert most < 2.1 * 8_000_000


def test_a_limit_above_the_sandbox_is_said_and_not_scored(process_sandbox: Sandbox) -> None:
    outcome = process_sandbox.run(Program("print(1)", limits=Limits(memory_mb=1 << 20)))
    assert outcome.status is ExitStatus.INTERNAL_ERROR and "memory_mb" in outcome.reason


@pytest.mark.parametrize("name", ["cpu_s", "wall_s", "file_mb", "output_bytes"])
@pytest.mark.parametrize("value", [float("inf"), 1e300])
def test_a_limit_that_no_kernel_takes_is_said_and_not_scored(process_sandbox: Sandbox, name: str, value: float) -> None:
    outcome = process_sandbox.run(Program("print(1)", limits=Limits(**{name: value})))  # type: ignore[arg-type]
    assert outcome.status is ExitStatus.INTERNAL_ERROR and outcome.unsupported
    assert outcome.reason == f"limit {name} is {value}; at most 1e+12 is possible"
    assert process_sandbox.run(Program("print(1)", limits=Limits(wall_s=1e12))).ok


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": b"print(1)"}, "source of the program is b'print(1)'; a text is needed"),
        ({"source": "", "stdin": "text"}, "stdin of the program is 'text'; bytes are needed"),
        ({"source": "", "limits": None}, "limits of the program is None; rlvr.Limits(...) is needed"),
        ({"source": "", "checker": 5}, "checker of the program is 5; a CheckerProgram, or None, is needed"),
        ({"source": "", "files": {"a": "text"}}, "the file 'a' of the program is 'text'; bytes are needed"),
        ({"source": "", "files": [1]}, "files of the program is [1]; a mapping of names to bytes is needed"),
    ],
)
def test_a_part_of_a_wrong_type_is_told_in_one_sentence(process_sandbox: Sandbox, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        process_sandbox.run(Program(**wrong))


def test_a_killed_supervisor_is_nobodys_fault_and_is_replaced() -> None:
    with build("sandbox", "process", trusted=True, processes=1) as sandbox:
        assert sandbox.run(Program("print(1)")).status is ExitStatus.OK
        process = sandbox._pool.list_supervisors()[0]._process
        timer = threading.Timer(0.5, process.kill)
        timer.start()
        outcome = sandbox.run(Program("import time\ntime.sleep(60)", limits=Limits(wall_s=60)))
        timer.join()
        assert outcome.status is ExitStatus.INTERNAL_ERROR
        assert sandbox.run(Program("print(2)")).stdout == "2\n"


@pytest.mark.parametrize(
    ("isolation", "stop"), [(["a user id of its own"], ExitStatus.INTERNAL_ERROR), (["no network"], ExitStatus.SANDBOX_VIOLATION)]
)
def test_a_program_that_can_kill_its_supervisor_gains_nothing(
    monkeypatch: pytest.MonkeyPatch, isolation: list[str], stop: ExitStatus
) -> None:
    """Without a user id and a process space of its own, a program runs as the user of its supervisor, and may kill it."""
    with ProcessSandbox(trusted=True, processes=1) as sandbox:
        assert sandbox.run(Program("")).status is ExitStatus.OK
        supervisors = set()

        def torn(channel: LocalSupervisorConnection, program: Program) -> Any:
            supervisors.add(channel._process.pid)
            channel.handshake = {**channel.handshake, "isolation": isolation}
            channel._process.kill()
            raise ConnectionBroken("the supervisor exited")

        monkeypatch.setattr(LocalSupervisorConnection, "run_program", torn)
        assert sandbox.run(Program("")).status is stop
        assert len(supervisors) == (2 if stop is ExitStatus.SANDBOX_VIOLATION else 1)


def test_a_killed_run_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    script = (
        "import os, signal\nfrom rlvr.registry.plugins import build\nfrom rlvr.contracts import Program\n"
        "s = build('sandbox', 'process', trusted=True, processes=1)\ns.run(Program('open(\"x\", \"w\").write(\"y\")'))\n"
        "print(s._pool.list_supervisors()[0]._process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}

    def killed_run() -> int:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == -9, done.stderr
        return int(done.stdout)

    first = killed_run()
    (left,) = tmp_path.iterdir()
    stranger = tmp_path / "rlvr-sandbox-of-somebody"
    stranger.mkdir()
    (stranger / "owner").write_text("another-machine|boot|space|1|1")
    killed_run()
    assert not left.exists() and stranger.exists(), "what a dead run left is swept, and nothing else"
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{first}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_leaves_no_process_behind() -> None:
    with build("sandbox", "process", trusted=True, processes=1) as sandbox:
        sandbox.run(Program("print(1)"))
        folder, pid = sandbox._pool.list_supervisors()[0]._folder, sandbox._pool.list_supervisors()[0]._process.pid
    assert not os.path.exists(folder)
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
