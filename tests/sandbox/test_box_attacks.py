"""The attacks from inside a box: nothing of anybody is seen, nobody is disturbed, nothing stays, and no attack makes a fault of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlvr.contracts import ExitStatus, Sandbox, SandboxSession, SandboxSpec
from rlvr.registry.plugins import build
from tests.attacks.boxes import BOX_CORPUS, BoxAttack

SECRET = "SECRET-of-somebody-else"
PLACE = SandboxSpec(memory_mb=160, disk_mb=24, file_mb=16, processes=24, output_bytes=200_000)
LOOK = """
import os
found = [name for name in (*os.listdir('.'), *os.listdir('/dev/shm'), *os.listxattr('.')) if not name.startswith('kept')]
for pid in filter(str.isdecimal, os.listdir('/proc')):
    try: owner = os.stat(f'/proc/{pid}').st_uid
    except OSError: continue
    if owner not in (0, os.getuid()): found.append(f'process {pid} of {owner}')
print(found, sorted(globals().keys() & {'me', 'pids', 'libc', 'k', 's'}))
"""
STRIKES = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    spared, end = (os.getpid(), os.getppid()), time.monotonic() + 300
    while time.monotonic() < end:
        for pid in map(int, filter(str.isdecimal, os.listdir('/proc'))):
            if pid not in spared:
                try: os.kill(pid, signal.SIGKILL if pid % 2 else signal.SIGSTOP)
                except OSError: pass
    os._exit(0)
"""
KINDS = [pytest.param("docker", marks=pytest.mark.docker), pytest.param("bubblewrap", marks=pytest.mark.bubblewrap), "process"]


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLVR_HIDDEN", SECRET)
        settings = {"trusted": True} if request.param == "process" else {}
        with build("sandbox", request.param, max_sessions=8, **settings) as built:
            yield built


def victim(sandbox: Sandbox) -> SandboxSession:
    box = sandbox.create_session(SandboxSpec(files={"hidden": SECRET.encode()}, memory_mb=160, disk_mb=24))
    box.run(f"export HIDDEN={SECRET}; exec -a {SECRET} sleep 600 >/dev/null 2>&1 & echo $! > pid")
    box.run(f"hidden = {SECRET!r}; count = 0", language="python")
    return box


def disturbed(box: SandboxSession) -> str:
    """What is wrong with the victim; '' if it is as it was."""
    shell = box.run("kill -0 $(cat pid) && cat hidden && ls | tr '\\n' ' '", timeout=60)
    session = box.run("count += 1; print(hidden)", language="python", timeout=60)
    right = shell.stdout_bytes.decode() == f"{SECRET}hidden pid " and session.stdout_bytes.decode() == f"{SECRET}\n"
    return "" if right else f"{shell.status} {shell.stdout!r} {shell.stderr!r}, {session.status} {session.stdout!r} {session.stderr!r}"


def attack(sandbox: Sandbox, one: BoxAttack) -> list[str]:
    wrong: list[str] = []
    with sandbox.create_session(PLACE) as box:
        for language, source in one.calls:
            outcome = box.run(source, language=language, timeout=1.0)
            if outcome.status is ExitStatus.INTERNAL_ERROR:
                wrong.append(f"a fault of ours: {outcome.reason}")
            if SECRET.encode() in outcome.stdout_bytes + outcome.stderr_bytes or b"BREACH" in outcome.stdout_bytes:
                wrong.append(f"it saw {outcome.stdout[-300:]!r}")
        after = box.run("echo well", timeout=20)
        if one.own == "works" and after.stdout_bytes != b"well\n":
            wrong.append(f"its own box: {after.status} {after.reason} {after.stderr[-200:]!r}")
        again = box.run("print('well')", language="python", timeout=20)
        if box.has_failed or ExitStatus.INTERNAL_ERROR in (after.status, again.status):
            wrong.append(f"its own box is lost: {after.reason or again.reason}")
    with sandbox.create_session(PLACE) as later:
        shell, session = later.run("echo clean; ls; cat /dev/null", timeout=60), later.run(LOOK, language="python", timeout=60)
        if shell.stdout_bytes != b"clean\n" or session.stdout_bytes != b"[] []\n":
            wrong.append(f"a later box: {shell.stdout!r} {shell.stderr!r}, {session.stdout!r} {session.stderr!r}")
    return [f"{one.name}: {line}" for line in wrong]


def test_the_corpus_is_large_and_every_attack_is_another() -> None:
    assert len(BOX_CORPUS) >= 40
    assert len({one.name for one in BOX_CORPUS}) == len({one.calls for one in BOX_CORPUS}) == len(BOX_CORPUS)


@pytest.mark.timeout(600)
def test_no_attack_from_a_box_sees_disturbs_or_stays(sandbox: Sandbox, request: pytest.FixtureRequest) -> None:
    assert os.environ["RLVR_HIDDEN"] == SECRET
    complaints: list[str] = []
    with victim(sandbox) as box, ThreadPoolExecutor(3) as threads:
        assert disturbed(box) == ""
        # without an engine a share of them: each family is there
        for lines in threads.map(lambda one: attack(sandbox, one), BOX_CORPUS if "docker" in request.node.name else BOX_CORPUS[::6]):
            complaints += lines
        complaints += [f"the victim: {line}" for line in [disturbed(box)] if line]
    assert complaints == []


def test_a_background_program_that_stops_and_kills_all_it_may_disturbs_no_file(sandbox: Sandbox) -> None:
    with sandbox.create_session(PLACE) as box:
        assert box.run(STRIKES, language="python", timeout=20).status is ExitStatus.OK
        for number in range(200):
            box.write_file("file", b"%d" % number)
            assert box.read_file("file", 10) == b"%d" % number
        assert not box.has_failed
