"""What other engines and runtimes than Docker's own do otherwise (Podman, gVisor), as far as it shows without them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox, SandboxSpec
from rlvr.errors import SandboxError
from rlvr.registry.plugins import build
from rlvr.sandbox._inside import meter, namespaces, process_killer, streams, workdirs, zygote
from rlvr.sandbox._outside import container, engine, supervisor_connection

PODMAN = {"Components": [{"Name": "Podman Engine", "Version": "4.3.1"}, {"Name": "Conmon"}], "ApiVersion": "1.41"}


class Client:
    """An engine that answers with its version only."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.api, self.version = self, lambda: answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(PODMAN, True), ({"Components": [{"Name": "Engine"}]}, False), ({"Components": None}, False), ({}, False)],
)
def test_podman_is_known_by_its_version(answer: dict[str, Any], expected: bool) -> None:
    assert engine.is_podman(Client(answer)) is expected


def test_podman_gets_no_option_that_it_refuses_and_no_folder_that_it_opens_by_itself() -> None:
    wanted = container.build_host_config(256, 16, 64, None, is_podman=True)
    assert not any("nr_inodes" in options for options in wanted["tmpfs"].values())
    assert wanted["tmpfs"]["/var/tmp"].startswith("ro,") and wanted["tmpfs"]["/run"].startswith("ro,")
    assert "SYS_ADMIN" in wanted["cap_add"]  # while the supervisor starts: it limits the inodes by mounting the disks again
    plain = container.build_host_config(256, 16, 64, None)
    assert set(plain["tmpfs"]) == {"/tmp", "/dev/shm"} and all("nr_inodes" in options for options in plain["tmpfs"].values())


def test_a_runtime_with_a_kernel_of_its_own_has_room_for_it() -> None:
    plain, other = (container.build_host_config(256, 16, 64, runtime) for runtime in (None, "runsc"))
    assert other["pids_limit"] >= plain["pids_limit"] + 1000
    assert int(other["mem_limit"][:-1]) >= int(plain["mem_limit"][:-1]) + 512 and other["mem_limit"] == other["memswap_limit"]


@pytest.fixture
def as_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_podman", lambda client: True)


FILES = "n = 0\ntry:\n    for i in range(9000):\n        open(f'f{i}', 'w').close()\n        n += 1\nexcept OSError:\n    print('stopped')"


@pytest.mark.docker
def test_containers_as_podman_gets_them_are_no_weaker(as_podman: None, docker_sandbox: Sandbox) -> None:
    with build("sandbox", "docker", containers=1) as sandbox:
        outcome = sandbox.run(Program(FILES, limits=Limits(processes=8)))
        assert (outcome.status, outcome.stdout) == (ExitStatus.OK, "stopped\n")
        assert set(outcome.isolation) >= set(docker_sandbox.run(Program("")).isolation)
        written = sandbox.run(
            Program("for place in ('/run', '/var/tmp', '/'):\n    try: print(open(place + '/x', 'w'))\n    except OSError: pass")
        )
        assert (written.status, written.stdout) == (ExitStatus.OK, "")
        with sandbox.create_session(SandboxSpec(disk_mb=8)) as session:
            assert "total" in session.run("df -m --total /tmp /dev/shm").text
            assert session.run("head -c 9M /dev/zero >big").status is ExitStatus.RUNTIME_ERROR


def change(config: Callable[..., dict[str, Any]], **changed: Any) -> Callable[..., dict[str, Any]]:
    return lambda *given, **named: config(*given, **named) | changed


@pytest.mark.docker
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"mem_limit": None, "memswap_limit": None}, "no limit of memory"),
        ({"read_only": False}, "a root that can be written to"),
        (
            {"tmpfs": {"/tmp": "rw,exec,mode=0700", "/dev/shm": "rw,mode=0700", "/var/tmp": "rw,mode=1777"}},
            "the folder /var/tmp, which every",
        ),
    ],
)
def test_an_engine_that_does_not_apply_what_was_asked_is_refused(
    monkeypatch: pytest.MonkeyPatch, docker_sandbox: Sandbox, changed: dict[str, Any], named: str
) -> None:
    """What rootless Podman does without delegated control groups, and Podman's writable folders in a read-only container."""
    monkeypatch.setattr(container, "build_host_config", change(container.build_host_config, **changed))
    with build("sandbox", "docker", containers=1) as sandbox:
        outcome = sandbox.run(Program("print(1)"))
        assert outcome.status is ExitStatus.INTERNAL_ERROR and named in outcome.reason and "bubblewrap" in outcome.reason
        with pytest.raises(SandboxError, match=named):
            sandbox.create_session()


def test_no_limit_of_processes_is_refused() -> None:
    held = {"isolation": ["no network", "read-only root", "memory limited"], "writable": []}
    assert container.find_missing_isolation(held) == ["no limit of processes"]
    held["isolation"].append("process count limited by the kernel")
    assert container.find_missing_isolation(held) == []


@pytest.mark.parametrize(
    ("mapped", "expected"),
    [
        ("0 0 4294967295\n", (1 << 20, 1 << 30)),
        ("0 1001 1\n1 100000 65536\n", None),  # an engine without root, with the usual range of /etc/subuid
    ],
)
def test_user_ids_are_among_those_that_are_mapped(tmp_path: Path, mapped: str, expected: tuple[int, int] | None) -> None:
    (tmp_path / "uid_map").write_text(mapped)
    for wanted in (1 << 20, (1 << 30) - 1):
        users = namespaces.choose_user_ids(wanted, str(tmp_path / "uid_map"))
        if expected:
            assert users.first == wanted and users.last > wanted + 40_000 and users.unused > users.last
        else:
            assert users.first > 1000 and users.last == 65536 and users.last - users.first > 20_000 and users.unused == users.first


def test_too_few_user_ids_are_said(tmp_path: Path) -> None:
    (tmp_path / "uid_map").write_text("0 1001 1\n")
    with pytest.raises(OSError, match="only 1 are mapped"):
        namespaces.choose_user_ids(1 << 20, str(tmp_path / "uid_map"))


def test_a_kernel_of_its_own_is_known_by_its_memory_and_counts_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"MemTotal": 512 << 20, "AnonPages": 40 << 20, "Shmem": 0}
    monkeypatch.setattr(meter, "read_machine_memory", shown.__getitem__)
    monkeypatch.setattr(meter, "CGROUP_ROOT", "/nowhere")
    assert not isinstance(meter.make_meter(1, set(), True, 511 << 20), meter.OwnKernelMeter)
    measured = meter.make_meter(1, set(), True, 512 << 20)
    assert isinstance(measured, meter.OwnKernelMeter) and measured.record_memory_baseline() == 0
    shown["AnonPages"] += 100 << 20
    monkeypatch.setattr(meter, "list_descendants", lambda root, spared: [7])
    assert measured.get_memory_bytes() == 100 << 20
    assert measured.exceeds_memory((100 << 20) - 1) and not measured.exceeds_memory(100 << 20)
    monkeypatch.setattr(meter, "list_descendants", lambda root, spared: [7, 8, 9])  # two forks cost the kernel, not the program
    assert not measured.exceeds_memory(80 << 20) and measured.exceeds_memory(70 << 20)


def test_a_process_that_is_listed_late_is_killed_before_the_next_program(monkeypatch: pytest.MonkeyPatch) -> None:
    killer = process_killer.ProcessKiller(None, use_cgroup=False, spared_pids=set(), unused_uid=1 << 30)
    assert killer.mechanism == process_killer.BY_USER_ID_AND_TABLE
    listed, killed = [[], [], [4321], [], [], [], [], []], []
    monkeypatch.setattr(killer, "list_program_pids", lambda: listed.pop(0))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    assert not killer.wait_until_empty(0.01) and killed == [4321]
    assert killer.wait_until_empty(0.01) and listed == []


def test_pipes_without_a_mode_and_limits_of_queues_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    streams.open_to_all(1)
    assert set(zygote.QUEUE_LIMITS) == {"MSGQUEUE", "SIGPENDING"}  # none that protects the machine


class WithoutFilesystemUsers:
    """A C library on a kernel without setfsuid."""

    def setfsuid(self, uid: int) -> int:
        return -1

    setfsgid = setfsuid


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
def test_files_are_accessed_as_another_user_where_only_the_whole_user_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdirs, "libc", WithoutFilesystemUsers())
    assert workdirs.run_as_user(4321, 4321, lambda: 7 if os.getresuid() == os.getresgid() == (4321,) * 3 else 8) == 7


@pytest.mark.docker
@pytest.mark.parametrize("kind", ["programs", "sessions"])
def test_a_supervisor_whose_user_ids_are_used_up_is_replaced(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    read = supervisor_connection._read_source
    few = "UserIds(wanted, wanted + 6, wanted + UNUSED_DISTANCE)"
    many = "UserIds(wanted, wanted + UNUSED_DISTANCE - 1, wanted + UNUSED_DISTANCE)"
    assert many in read("namespaces")
    monkeypatch.setattr(supervisor_connection, "_read_source", lambda name: read(name).replace(many, few))
    with build("sandbox", "docker", containers=1) as sandbox:
        used = []
        for _ in range(5):
            if kind == "programs":
                assert sandbox.run(Program("print(1)")).status is ExitStatus.OK
                used += sandbox.list_container_ids()
            else:
                with sandbox.create_session() as session:
                    assert session.run("echo well").text == "well\n"
                    used.append(session.id.partition(".")[0])
        assert len(set(used)) >= 2
