"""The bubblewrap sandbox, as the user of the tests and as an ordinary one: no way out, nothing left, and a refusal where isolation is missing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from rlvr.contracts import ExitStatus, Program, Sandbox
from rlvr.errors import ConfigError, SandboxError
from rlvr.registry.plugins import build
from rlvr.sandbox import bubblewrap
from rlvr.sandbox._inside import seccomp
from rlvr.sandbox._outside.local_supervisor import find_system_python
from tests.attacks.escapes import find_escapes, find_files_read_through_links

ROOT = Path(__file__).resolve().parents[2]
ORDINARY_USER = 65534
needs_bubblewrap = pytest.mark.bubblewrap
needs_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT RUN: the numbers of system calls are those of x86_64")


def run_as_ordinary_user(script: str, *arguments: str) -> str:
    """Run a script with the project and its packages, as a user that is not root, and return what it prints."""
    packages = sysconfig.get_path("purelib")
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": f"{ROOT}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    user = {"user": ORDINARY_USER, "group": ORDINARY_USER, "extra_groups": []} if os.geteuid() == 0 else {}
    for python in (sys.executable, find_system_python()):
        try:
            tried = subprocess.run(
                [python, "-c", "import rlvr.registry.plugins, tests"], env=environment, cwd="/", capture_output=True, **user
            )  # type: ignore[call-overload]
        except OSError:
            continue
        if tried.returncode == 0:
            done = subprocess.run(
                [python, "-c", script, *arguments],
                env=environment,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                **user,
            )  # type: ignore[call-overload]
            assert done.returncode == 0, done.stderr
            return str(done.stdout)
    pytest.skip(f"NOT RUN: user {ORDINARY_USER} can read no Python with the packages of the project")


@needs_x86
@needs_bubblewrap
def test_there_is_no_way_out(bubblewrap_sandbox: Sandbox) -> None:
    assert find_escapes(bubblewrap_sandbox) == []
    assert find_files_read_through_links(bubblewrap_sandbox) == []


USER_ESCAPES = """
from rlvr.registry.plugins import build
from tests.attacks.escapes import find_escapes, find_files_read_through_links
with build("sandbox", "bubblewrap", processes=1) as sandbox:
    print(find_escapes(sandbox) + find_files_read_through_links(sandbox))
"""
USER_CORPUS = """
from rlvr.registry.plugins import build
from rlvr.verifiers.unit_tests import UnitTests
from tests.sandbox.test_attacks import RIGHT, judge, runs
wrong = []
with build("sandbox", "bubblewrap", processes=1) as sandbox:
    verifier = UnitTests(sandbox=sandbox)
    for attack, kind in list(runs())[::3]:
        verdict, after = judge(verifier, kind, attack.code), judge(verifier, kind, RIGHT)
        wrong += [] if (verdict.score, after.score) == (0.0, 1.0) else [f"{attack.family} {attack.name}: {verdict} {after}"]
print(wrong)
"""
USER_BOXES = """
import os
from rlvr.registry.plugins import build
from tests.attacks.boxes import BOX_CORPUS
from tests.attacks.own_box import BREAKAGES, judged
from tests.sandbox.test_box_attacks import SECRET, attack, disturbed, victim
from tests.sandbox.test_own_box import QUICK
os.environ["RLVR_HIDDEN"] = SECRET
wrong = []
with build("sandbox", "bubblewrap", max_sessions=4) as sandbox:
    with victim(sandbox) as box:
        for one in BOX_CORPUS[::5]:
            wrong += attack(sandbox, one)
        wrong += [line for line in [disturbed(box)] if line]
    tools = [build("tool", "bash", call_timeout_s=5.0), build("tool", "python", call_timeout_s=5.0), build("tool", "files")]
    for one in BREAKAGES:
        if one.name in QUICK[::2]:
            verdict = judged(sandbox, tools, one)[0]
            wrong += [] if verdict.score == 0.0 else [f"{one.name}: {verdict}"]
print(wrong)
"""


@needs_x86
@needs_bubblewrap
@pytest.mark.parametrize("script", [USER_ESCAPES, USER_CORPUS, USER_BOXES], ids=["escapes", "answers", "boxes"])
@pytest.mark.timeout(400)
def test_an_ordinary_user_has_the_same_protection(script: str) -> None:
    assert run_as_ordinary_user(script).strip() == "[]"


@needs_bubblewrap
def test_what_was_applied_is_told(bubblewrap_sandbox: Sandbox) -> None:
    isolation = bubblewrap_sandbox.run(Program("")).isolation
    assert bubblewrap.find_missing_isolation(list(isolation)) == []
    assert "memory and processor time by process table" in isolation, "there is no control group, and nothing else may be said"
    assert ("a user id of its own" in isolation) == bubblewrap.can_separate_user_ids()


OWNER = """
import sys
from rlvr.registry.plugins import build
from rlvr.contracts import Program
sandbox = build("sandbox", "bubblewrap", processes=1)
sandbox.run(Program(""))
box = sandbox.create_session()
box.run("exec -a rlvr-left-over sleep 3333 >/dev/null 2>&1 &")
print("open", flush=True)
box.run("exec -a rlvr-left-over sleep 3333", timeout=600)
"""


def count_left_over() -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().startswith(b"rlvr-left-over\0")
        except OSError:
            continue
    return found


@needs_bubblewrap
def test_a_killed_run_leaves_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout and owner.stdout.readline() == b"open\n"
        time.sleep(0.3)
        assert count_left_over() == 2
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
    deadline = time.monotonic() + 10
    while count_left_over():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs_bubblewrap
def test_a_supervisor_outlives_the_thread_that_asked_for_it() -> None:
    import threading

    with build("sandbox", "bubblewrap", processes=1) as sandbox:
        asking = threading.Thread(target=lambda: sandbox.run(Program("")))
        asking.start()
        asking.join()
        time.sleep(0.2)
        [first] = sandbox._pool.list_supervisors()
        assert sandbox.run(Program("print(1)")).stdout == "1\n"
        assert sandbox._pool.list_supervisors() == [first]


def test_a_missing_program_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "PROGRAM", "bwrap-that-is-not-there")
    with build("sandbox", "bubblewrap") as sandbox:
        outcome = sandbox.run(Program(""))
        assert outcome.status is ExitStatus.INTERNAL_ERROR and "install the package bubblewrap" in outcome.reason
        with pytest.raises(SandboxError, match="install the package bubblewrap"):
            sandbox.create_session()
    assert bubblewrap.BubblewrapSandbox.find_problems()[0][1] == bubblewrap.INSTALL_HINT


@needs_bubblewrap
@pytest.mark.parametrize(("removed", "word"), [("--unshare-net", "network"), ("--unshare-ipc", "ipc"), ("--unshare-pid", "processes")])
def test_it_does_not_start_with_less(monkeypatch: pytest.MonkeyPatch, removed: str, word: str) -> None:
    complete = bubblewrap.build_supervisor_command
    monkeypatch.setattr(bubblewrap, "build_supervisor_command", lambda *given: [part for part in complete(*given) if part != removed])
    with build("sandbox", "bubblewrap") as sandbox:
        outcome = sandbox.run(Program(""))
    assert outcome.status is ExitStatus.INTERNAL_ERROR and f"no namespace of {word}" in outcome.reason, outcome


@needs_bubblewrap
def test_it_does_not_start_where_programs_have_no_process_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ordinary user nothing else would keep a program from its supervisor."""
    complete, less = bubblewrap.build_supervisor_command, {} if bubblewrap.can_separate_user_ids() else {"ALL": "CAP_SETPCAP"}
    monkeypatch.setattr(bubblewrap, "ROOT_CAPABILITIES", ("SETUID", "SETGID", "KILL", "SETPCAP"))
    monkeypatch.setattr(bubblewrap, "build_supervisor_command", lambda *given: [less.get(part, part) for part in complete(*given)])
    with build("sandbox", "bubblewrap") as sandbox:
        assert sandbox.run(Program("")).status is ExitStatus.INTERNAL_ERROR


def test_wrong_settings_are_told() -> None:
    with pytest.raises(ConfigError, match="bubblewrap sandbox: disk_mb is 0"):
        build("sandbox", "bubblewrap", disk_mb=0)


def test_the_first_process_gets_no_signal_from_a_program() -> None:
    for machine, numbers in seccomp.SIGNAL_CALLS.items():
        code = seccomp.build_filter(machine, seccomp.FOR_PROGRAM)
        assert all(number.to_bytes(4, "little") in code for number in numbers)


@needs_bubblewrap
def test_a_program_keeps_nobody_from_changing_its_folder(bubblewrap_sandbox: Sandbox) -> None:
    """Also on kernels that do not know the call yet: the error is that of the filter."""
    source = "import fcntl, os\ntry: fcntl.fcntl(os.open('.', 0), 1040, bytes(8))\nexcept OSError as error: print(error.errno)"
    assert bubblewrap_sandbox.run(source).stdout == f"{errno.EPERM}\n"


def test_a_python_elsewhere_is_shown_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_system_python", lambda: "")
    python, mounts = bubblewrap.find_python()
    assert os.path.isfile(python) and python in mounts
    if os.path.isdir(packages := os.path.join(os.path.dirname(os.path.realpath(os.__file__)), "site-packages")):
        assert mounts[mounts.index("--tmpfs") + 1] == packages


@needs_bubblewrap
@pytest.mark.skipif(sys.base_prefix == "/usr", reason="this Python is the system's")
def test_a_python_elsewhere_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_system_python", lambda: "")
    with build("sandbox", "bubblewrap", processes=1) as sandbox:
        assert sandbox.run(Program("import sys, ssl, json\nprint(sys.base_prefix)")).stdout.strip() == str(Path(sys.base_prefix).resolve())
