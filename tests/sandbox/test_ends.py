"""The end of a program: a fact of the kernel's, within a deadline, and never anybody else's loss."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.conformance.survivors import HEADLESS_PROGRAM, SURVIVOR_PROBES, SURVIVOR_PROGRAMS
from rlvr.contracts import CheckerProgram, ExitStatus, Limits, Program, Sandbox
from rlvr.registry.plugins import build
from rlvr.sandbox._inside import meter, seccomp, streams, supervisor
from rlvr.sandbox._inside import process_killer as ends
from rlvr.sandbox._inside import workdirs as places
from rlvr.sandbox._inside.toolchains import BinaryCache, compute_compiler_limits
from rlvr.sandbox._inside.zygote_client import ChildProcess
from rlvr.task import Fault, Task, make_user_prompt


@pytest.fixture(scope="module")
def nested() -> Iterator[Sandbox]:
    """Containers in which each program has a process space of its own."""
    with build("sandbox", "docker", containers=1, namespaces=True) as sandbox:
        yield sandbox


@pytest.mark.docker
@pytest.mark.parametrize("name", SURVIVOR_PROBES)
def test_process_spaces_hold_too(nested: Sandbox, name: str) -> None:
    assert SURVIVOR_PROBES[name](nested) == ""


@pytest.mark.docker
def test_which_way_applies_is_told(nested: Sandbox, docker_sandbox: Sandbox, process_sandbox: Sandbox) -> None:
    assert f"every program ended by {ends.BY_USER_ID}" in docker_sandbox.run(Program("")).isolation
    assert f"every program ended by {ends.BY_NAMESPACE}" in nested.run(Program("")).isolation
    assert any(line.startswith("every program ended by") for line in process_sandbox.run(Program("")).isolation)


@pytest.mark.docker
def test_a_program_in_a_nest_sees_itself_and_nothing_of_the_machine(nested: Sandbox) -> None:
    source = """
import os
print([name for name in os.listdir('/proc') if name.isdecimal()] == [str(os.getpid())])
print(os.listdir('/sys'), os.path.exists('/dev/pts/ptmx'), os.listdir('/dev/mqueue') if os.path.exists('/dev/mqueue') else [])
print('docker' in open('/proc/self/cgroup').read())
status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
print({int(status[name], 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')})
for name in ('oom_score_adj', 'comm'):
    try:
        open('/proc/self/' + name, 'w').write('0')
        print(name)
    except OSError:
        pass
"""
    outcome = nested.run(Program(source))
    assert outcome.stdout_bytes.decode().splitlines() == ["True", "[] False []", "False", "{0}"], outcome


@pytest.mark.parametrize(
    "call",
    [
        "seccomp",
        "memfd_create",
        "pidfd_open",
        "sched_setaffinity",
        "io_setup",
        "inotify_init",
        "a call of tomorrow",
        "clone into namespaces",
    ],
)
def test_calls_that_no_program_needs_are_refused(process_sandbox: Sandbox, call: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("NOT RUN: the numbers here are those of x86_64")
    numbers = {
        "seccomp": 317,
        "memfd_create": 319,
        "pidfd_open": 434,
        "sched_setaffinity": 203,
        "io_setup": 206,
        "inotify_init": 253,
        "a call of tomorrow": 467,
        "clone into namespaces": 56,
    }
    first = {"pidfd_open": "os.getpid()", "clone into namespaces": "0x10000011"}.get(call, "0")
    source = f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.syscall({numbers[call]}, {first}, 0, 0, 0, 0), ctypes.get_errno())"
    assert process_sandbox.run(Program(source)).stdout_bytes.decode().strip() in ("-1 1", "-1 38")


def test_the_filter_for_programs_is_the_tighter_one() -> None:
    for machine in seccomp.CALL_TABLES:
        lengths = [len(seccomp.build_filter(machine, strictness)) for strictness in (1, 2, 3)]
        assert lengths == sorted(set(lengths))


def test_a_program_gives_the_kernel_no_filter_to_compile(process_sandbox: Sandbox) -> None:
    source = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(bytes.fromhex("06000000ffff0000"))
program = (ctypes.c_ushort * 8)(1)
ctypes.cast(program, ctypes.POINTER(ctypes.c_void_p))[1] = ctypes.addressof(code)
one, _ = socket.socketpair()
print(libc.setsockopt(one.fileno(), 1, 26, program, 16), ctypes.get_errno())
print(libc.prctl(22, 2, program, 0, 0), ctypes.get_errno())
"""
    assert process_sandbox.run(Program(source)).stdout.split() == ["-1", "1", "-1", "1"]


def test_a_program_that_syncs_does_not_make_the_machine_write(process_sandbox: Sandbox) -> None:
    """A `sync` of the kernel on a closed descriptor fails; the one that does nothing succeeds."""
    if os.uname().machine != "x86_64":
        pytest.skip("NOT RUN: the numbers here are those of x86_64")
    source = "import ctypes, os\nos.sync()\nprint(ctypes.CDLL(None).syscall(306, 99))"
    assert process_sandbox.run(Program(source)).stdout == "0\n"


def test_a_program_makes_the_machine_forget_no_files(process_sandbox: Sandbox) -> None:
    """An advice to the kernel for a closed descriptor fails; the one that does nothing succeeds."""
    if not seccomp.is_architecture_supported():
        pytest.skip("NOT RUN: there is no filter for this processor")
    outcome = process_sandbox.run(Program("import os\nos.posix_fadvise(99, 0, 0, os.POSIX_FADV_DONTNEED)\nprint('ignored')"))
    assert (outcome.status, outcome.stdout) == (ExitStatus.OK, "ignored\n")


@pytest.mark.docker
def test_a_container_has_few_terminals(docker_sandbox: Sandbox) -> None:
    source = """
import os
held = []
try:
    while len(held) < 200:
        held.append(os.openpty())
except OSError:
    pass
print(len(held))
"""
    assert int(docker_sandbox.run(Program(source)).stdout) <= supervisor.MAX_TERMINALS
    with docker_sandbox.create_session() as session:
        opened = session.run(source, language="python")
        assert 0 < int(opened.stdout) <= supervisor.MAX_TERMINALS, opened


@pytest.mark.docker
@pytest.mark.parametrize("kind", ["stdio", "calls", "asserts"])
def test_an_answer_without_a_first_thread_scores_zero(docker_sandbox: Sandbox, kind: str) -> None:
    """It would rather have no score: that takes it out of its group."""
    limits = {"wall_s": 1, "cpu_s": 1}
    references: dict[str, dict[str, Any]] = {
        "stdio": {"kind": "stdio", "cases": [{"stdin": "", "stdout": "1"}], "limits": limits},
        "calls": {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": 1}], "limits": limits},
        "asserts": {"kind": "asserts", "entry_point": "f", "test": "assert f(1) == 1", "limits": limits},
    }
    verifier = build("verifier", "unit_tests", sandbox=docker_sandbox)
    began = time.monotonic()
    verdict = verifier.verify(
        Task(make_user_prompt("x"), references[kind], id="t"), f"```python\n{HEADLESS_PROGRAM}\ndef f(x): return 0\n```"
    )
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("source", SURVIVOR_PROGRAMS.values(), ids=SURVIVOR_PROGRAMS)
def test_nothing_is_left_when_a_judge_was_there(process_sandbox: Sandbox, source: str) -> None:
    outcome = process_sandbox.run(Program(source, checker=CheckerProgram("import os, time\ntime.sleep(0.5)\nos.write(5, b'end')")))
    assert outcome.status is ExitStatus.OK and outcome.checker_output == b"end", outcome
    assert SURVIVOR_PROBES["no process outlives the run"](process_sandbox) == ""


@pytest.mark.docker
@pytest.mark.parametrize("namespaces", [False, True], ids=["by user id", "in a nest"])
def test_whoever_stays_behind_is_ended_without_the_loss_of_a_container(namespaces: bool) -> None:
    with build("sandbox", "docker", containers=1, namespaces=namespaces) as sandbox:
        sandbox.run(Program(""))
        before = sandbox.list_container_ids()
        for source in SURVIVOR_PROGRAMS.values():
            outcome = sandbox.run(Program(source))
            assert outcome.status is ExitStatus.OK, outcome
        assert sandbox.list_container_ids() == before


class Undying(ends.ProcessKiller):
    """Programs that nothing ends."""

    def kill_all(self, uids: list[int]) -> None:
        pass

    def wait_until_empty(self, timeout_s: float) -> bool:
        time.sleep(0.001)
        return False

    def list_remaining_pids(self) -> list[int]:
        return [4711] if self._spared_pids else []


class Silent:
    def receive_message(self, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return False


@pytest.mark.parametrize("theirs", [True, False], ids=["the program's own", "a stranger's"])
def test_what_cannot_be_ended_costs_the_container_and_is_the_programs_own_fault(monkeypatch: pytest.MonkeyPatch, theirs: bool) -> None:
    monkeypatch.setattr(supervisor, "KILL_TIMEOUT_S", 0.05)
    watching: Any = supervisor.Supervisor.__new__(supervisor.Supervisor)
    watching.uid, watching.zygote = None, Silent()
    watching.killer = Undying(None, use_cgroup=False, spared_pids={1} if theirs else set(), unused_uid=None)
    run = streams.RunState({"output_bytes": 1})
    born = ChildProcess(1)
    born.exit_report = {"status": 0, "peak_kb": 1, "cpu": 0}
    run.children = [born]
    watching._kill_program(run)
    assert run.fatal_error and run.exit_status == ("SANDBOX_VIOLATION" if theirs else "")


@pytest.mark.parametrize(("elapsed", "state", "threads", "stop"), [
    (1.5, "S", 1, "TIMEOUT"),
    (1.5, "Z", 2, "TIMEOUT"),  # its first thread has ended, it has not
    (1.5, "Z", 1, ""),  # dead: the zygote will say so
    (10.5, "Z", 1, "TIMEOUT"),  # at the hard limit, whatever seems to be true
])  # fmt: skip
def test_the_clock_believes_no_state_of_a_process(
    monkeypatch: pytest.MonkeyPatch, elapsed: float, state: str, threads: int, stop: str
) -> None:
    monkeypatch.setattr(meter, "read_process_stat", lambda pid: [state, *["0"] * 16, str(threads), "0"])
    monkeypatch.setattr(meter, "read_cpu_wait_s", lambda pid: 0.0)
    watching: Any = supervisor.Supervisor.__new__(supervisor.Supervisor)
    watching.killer = SimpleNamespace(list_program_pids=list)
    run = streams.RunState({"wall_s": 1.0})
    run.children = [ChildProcess(1)]
    watching._enforce_wall_limit(run, elapsed)
    assert run.exit_status == stop


@pytest.mark.parametrize(("waited", "stop"), [(1.0, ""), (0.2, "TIMEOUT")])
def test_the_wait_of_a_childs_child_for_a_processor_is_no_time_of_the_program(
    monkeypatch: pytest.MonkeyPatch, waited: float, stop: str
) -> None:
    """The compiler driver sleeps while the compiler itself waits."""
    monkeypatch.setattr(meter, "read_process_stat", lambda pid: ["S", *["0"] * 16, "1", "0"])
    monkeypatch.setattr(meter, "read_cpu_wait_s", lambda pid: waited if pid == 2 else 0.0)
    watching: Any = supervisor.Supervisor.__new__(supervisor.Supervisor)
    watching.killer = SimpleNamespace(list_program_pids=lambda: [1, 2])
    run = streams.RunState({"wall_s": 1.0})
    run.children = [ChildProcess(1)]
    watching._enforce_wall_limit(run, 1.5)
    assert run.exit_status == stop


@pytest.mark.parametrize(("waits", "processes", "end"), [
    (lambda now: 0.0, 14, 5.0),
    (lambda now: min(now, 2.0), 14, 7.0),  # they keep each other waiting for two seconds
    (lambda now: min(max(now - 3.0, 0.0), 2.0), 14, 8.0),  # later: of the time before, at most a second
    (lambda now: now // 0.8 * 0.8, 1, 50.0),  # a busy machine: the kernel counts a wait when it ends
])  # fmt: skip
def test_processes_that_wait_at_once_wait_no_longer_than_one(
    monkeypatch: pytest.MonkeyPatch, waits: Callable[[float], float], processes: int, end: float
) -> None:
    now = 0.0
    monkeypatch.setattr(meter, "read_process_stat", lambda pid: ["S", *["0"] * 16, "1", "0"])
    monkeypatch.setattr(meter, "read_cpu_wait_s", lambda pid: waits(now))
    watching: Any = supervisor.Supervisor.__new__(supervisor.Supervisor)
    watching.killer = SimpleNamespace(list_program_pids=lambda: [*range(1, processes + 1)])
    watching.meter = SimpleNamespace(get_memory_bytes=lambda: 0, get_total_cpu_s=lambda: 4.0, exceeds_memory=lambda most: False)
    run = streams.RunState({"wall_s": 5.0, "memory_mb": 1, "cpu_s": 5.0})
    run.children = [ChildProcess(1)]
    while not run.exit_status:
        now += 0.005
        watching._check_limits(run, 0, 0.0, 0.0, now)
    assert run.exit_status == "TIMEOUT" and now == pytest.approx(end, abs=0.1)


def test_a_process_without_its_first_thread_is_seen_to_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", HEADLESS_PROGRAM])
    try:
        deadline = time.monotonic() + 20
        while meter.read_process_stat(child.pid)[:1] != ["Z"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not meter.is_process_dead(meter.read_process_stat(child.pid)) and child.pid in meter.list_descendants(os.getpid(), set())
        assert meter.ProcessTableMeter(os.getpid(), set()).get_memory_bytes() > 0
    finally:
        child.kill()
        child.wait(20)


@pytest.mark.parametrize(("program", "word"), [
    (Program("", limits=Limits(memory_mb=1 << 20)), "memory_mb"),
    (Program("", limits=Limits(processes=100_000)), "processes"),
    (Program("", files={"../x": b""}), "plain"),
], ids=["memory", "processes", "a file name"])  # fmt: skip
def test_what_a_task_asks_for_and_is_not_there_is_marked_as_refused(program: Program, word: str) -> None:
    for name, settings in (("process", {"trusted": True}), ("docker", {})):
        with build("sandbox", name, **settings) as sandbox:
            outcome = sandbox.run(program)
            assert outcome.status is ExitStatus.INTERNAL_ERROR and outcome.unsupported and word in outcome.reason, outcome


def test_a_limit_that_the_sandbox_does_not_have_is_the_tasks_fault(process_sandbox: Sandbox) -> None:
    reference = {"kind": "stdio", "cases": [{"stdin": "", "stdout": "1"}], "limits": {"memory_mb": 1 << 20}}
    verdict = build("verifier", "unit_tests", sandbox=process_sandbox).verify(
        Task(make_user_prompt("x"), reference, id="t"), "```python\nprint(1)\n```"
    )
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict


@pytest.mark.docker
def test_a_source_is_compiled_once_and_its_renaming_is_its_own_affair(docker_sandbox: Sandbox) -> None:
    source = '#include <iostream>\n#include <cstdio>\nint main() { int n; std::cin >> n; rename("answer", "x"); std::cout << n * 2; }'
    limits = Limits(wall_s=60, cpu_s=20, memory_mb=900)
    with build("sandbox", "docker", containers=1) as sandbox:
        spent = []
        for n in range(3):
            began = time.monotonic()
            outcome = sandbox.run(Program(source, str(n).encode(), "cpp", limits))
            if "no toolchain" in outcome.reason and os.environ.get("RLVR_REQUIRE_DOCKER") != "1":
                pytest.skip(f"NOT RUN: {outcome.reason}")
            assert (outcome.status, outcome.stdout) == (ExitStatus.OK, str(2 * n)), outcome
            spent.append(time.monotonic() - began)
        (container,) = sandbox.list_container_ids()
        assert sandbox.run(Program("print(1)")).stdout == "1\n" and sandbox.list_container_ids() == [container]
    assert max(spent[1:]) < spent[0] / 2, spent


def test_what_is_kept_of_compilers_is_bounded() -> None:
    kept = BinaryCache(max_entries=2, max_bytes=10)
    for name in (b"a", b"b", b"c"):
        kept.put("cpp", name, name * 4)
    assert kept.get("cpp", b"a") is None and kept.get("cpp", b"c") == b"cccc"
    kept.put("cpp", b"d", b"d" * 9)
    assert kept.get("cpp", b"c") is None and kept.get("cpp", b"d") is not None
    assert compute_compiler_limits({"cpu_s": 100, "wall_s": 1})["cpu_s"] == 20


def test_folders_are_emptied_under_names_that_no_program_can_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, rename = list[str](), os.rename
    monkeypatch.chdir(tmp_path)

    def spied(old: str, new: str) -> None:
        names.append(new)
        rename(old, new)

    monkeypatch.setattr(os, "rename", spied)
    for place in (tmp_path / "a", tmp_path / "b"):
        (place / "x" / "y" / "z").mkdir(parents=True)
        (place / "x" / "y" / "file").touch()
        places._remove_subfolders(str(place))
        assert not os.listdir(place)
    assert len(names) == len(set(names)) == 4 and all(re.fullmatch(r"\.up[0-9a-f]{24}", name) for name in names)
