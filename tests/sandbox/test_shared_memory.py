"""Memory that processes share without a file counts for as long as one of them keeps it, whoever has touched it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox, SandboxSpec
from rlvr.sandbox._inside import meter

KEEP = """
import mmap, os, time
for _ in range({count}):
    shared = mmap.mmap(-1, {size} << 20)
    for place in range(0, {size} << 20, 4096):
        shared[place] = 1
    if os.fork() == 0:
        time.sleep(9)
        os._exit(0)
    shared.close()
time.sleep({rest})
print("kept", flush=True)
"""


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.bubblewrap), pytest.param("docker", marks=pytest.mark.docker)])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    chosen: Sandbox = request.getfixturevalue(f"{request.param}_sandbox")
    return chosen


def test_a_program_hides_no_memory_in_a_child_that_sleeps(sandbox: Sandbox) -> None:
    fine = sandbox.run(Program(KEEP.format(count=2, size=60, rest=0.2), limits=Limits(memory_mb=256)))
    assert (fine.status, fine.stdout) == (ExitStatus.OK, "kept\n")
    late = sandbox.run(Program(KEEP.format(count=6, size=100, rest=1), limits=Limits(memory_mb=256)))
    assert late.status is ExitStatus.MEMORY_LIMIT


def test_a_session_hides_no_memory_in_a_child_that_sleeps(sandbox: Sandbox) -> None:
    with sandbox.create_session(SandboxSpec(memory_mb=300)) as box:
        assert box.run(KEEP.format(count=2, size=60, rest=0.2), language="python").stdout == "kept\n"
        assert box.run(KEEP.format(count=6, size=100, rest=1), language="python").status is ExitStatus.MEMORY_LIMIT
        assert box.run("echo well").stdout == "well\n"


def test_what_is_mapped_no_more_counts_for_nothing_and_what_cannot_be_measured_as_far_as_it_is_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = mmap.mmap(-1, 8 << 20)
    shared[0] = 1
    for error, size in ((FileNotFoundError, 0), (ProcessLookupError, 0), (PermissionError, 8 << 20)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", lambda path, error=error: fail(error))
            sizes = meter.SharedMemoryMeter._measure_objects([os.getpid()])
        assert sum(sizes.values()) == size
    shared.close()


def fail(error: type[Exception]) -> None:
    raise error


@pytest.fixture
def shared_meter() -> meter.SharedMemoryMeter:
    """A meter that always looks: else what other processes of this machine free meanwhile hides that sharing has grown."""
    made = meter.SharedMemoryMeter()
    made._least_bytes = 0
    return made


HEADLESS = """
import mmap, os, sys, threading
def keep():
    shared = mmap.mmap(-1, 64 << 20)
    for place in range(0, 64 << 20, 4096):
        shared[place] = 1
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=keep).start()
import ctypes
ctypes.CDLL(None).syscall({exit}, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the call is that of x86_64")
def test_a_process_whose_first_thread_has_exited_hides_nothing(shared_meter: meter.SharedMemoryMeter) -> None:
    with subprocess.Popen([sys.executable, "-c", HEADLESS.format(exit=60)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdin and holder.stdout.readline() == b"ready\n"
        assert shared_meter.get_bytes([holder.pid]) == 64 << 20
        holder.stdin.close()


SHRINK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = libc.mmap.argtypes = None
size = 64 << 20
place = libc.mmap(None, ctypes.c_size_t(size), 3, 0x21, -1, ctypes.c_long(0))
ctypes.memset(place, 1, size)
assert libc.munmap(ctypes.c_void_p(place + 4096), ctypes.c_size_t(size - 4096)) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="without a capability only what is mapped can be seen")
def test_the_whole_of_an_object_counts_of_which_a_page_is_mapped(shared_meter: meter.SharedMemoryMeter) -> None:
    with subprocess.Popen([sys.executable, "-c", SHRINK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdin and holder.stdout.readline() == b"ready\n"
        assert shared_meter.get_bytes([holder.pid]) == 64 << 20
        holder.stdin.close()
    assert shared_meter.get_bytes([]) == 0
