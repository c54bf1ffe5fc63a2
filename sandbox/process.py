"""Run programs as plain child processes; no engine needed. For code that you trust.

Uses the same supervisor as the containers, started as a child of this process: children forked from a warm interpreter, limits, a
seccomp filter, everything killed afterwards. Where the kernel allows it (as root, or with user namespaces), programs also have no
network, and a PID namespace and a working folder of their own; as root, a user id of their own.

Not a security boundary: programs can read every file of this machine that their user may read, run on its kernel without a second
barrier, and, without root, run as *you*. `ExecutionResult.isolation` lists the isolation that was really applied. This sandbox must
therefore be requested with `trusted=True`, and nothing ever falls back to it.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

from rlvr.contracts import SandboxSpec
from rlvr.errors import ConfigError, SandboxError
from rlvr.runs.folder_owner import create_owned_folder, force_remove_folder, get_owner_label, is_owner_dead, remove_orphaned_folders
from rlvr.sandbox._inside.box import cgroups as groups
from rlvr.sandbox._inside.frames import ConnectionBroken
from rlvr.sandbox._outside.local_supervisor import SYSTEM_PYTHONS, LocalSandbox, LocalSupervisorConnection
from rlvr.sandbox._outside.supervisor_connection import BOOTSTRAP_CODE

FOLDER_PREFIX = "rlvr-sandbox-"


def _find_readable_interpreter() -> str:
    """Return the path of a Python whose library other users may read: as root, every program runs as another user."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in Path(os.__file__).resolve().parents):
        return sys.executable
    for path in SYSTEM_PYTHONS:
        if os.access(path, os.X_OK):
            return path
    raise SandboxError(
        f"as root, programs run as other users, and those may not read {Path(os.__file__).parent}; install python3 in /usr/bin"
    )


class PlainSupervisor(LocalSupervisorConnection):
    """Supervisor that is a plain child process, and owns the folder that programs write to."""

    def __init__(self, disk_mb: int, *, serves_sessions: bool, namespaces: bool) -> None:
        self._folder = create_owned_folder(FOLDER_PREFIX)
        self._cgroup = f"{self._folder.name}={get_owner_label(os.getpid()).replace('/', '_')}"
        os.chmod(self._folder, 0o711)
        place = self._folder / "work"
        place.mkdir(0o700)
        process = subprocess.Popen(
            [_find_readable_interpreter(), "-I", "-B", "-c", BOOTSTRAP_CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,  # Ctrl-C is for this process: a run goes on to the end of its step
        )
        settings = {
            "places": [str(place)],
            "uid": random.SystemRandom().randrange(1 << 20, 1 << 30) if os.geteuid() == 0 else None,
            "cgroup": False,
            "namespaces": namespaces,
            "nests": namespaces,
            "disk_mb": disk_mb,
            "boxes": self._cgroup if serves_sessions else "",
        }
        super().__init__(self._folder.name, process, settings)

    def close(self) -> None:
        """Stop the supervisor (it kills what it runs) and remove the folder."""
        super().close()
        groups.remove_parent_cgroup(self._cgroup)
        with contextlib.suppress(OSError):
            force_remove_folder(self._folder)


def _start_child_supervisor(disk_mb: int, spec: SandboxSpec | None) -> PlainSupervisor:
    """Start a supervisor with namespaces of its own, or without where the kernel grants none."""
    if spec is not None and (spec.mounts or spec.loopback):
        raise ConfigError(
            "sessions of the process sandbox have no mounts and no loopback network; use the docker or the bubblewrap sandbox"
        )
    serves_sessions = spec is not None
    with contextlib.suppress(ConnectionBroken):
        return PlainSupervisor(disk_mb, serves_sessions=serves_sessions, namespaces=True)
    try:
        return PlainSupervisor(disk_mb, serves_sessions=serves_sessions, namespaces=False)
    except ConnectionBroken as error:
        raise SandboxError(f"the supervisor did not start: {error}; it needs Linux with /proc") from error


class ProcessSandbox(LocalSandbox):
    """Sandbox that runs programs as child processes of this one. Only for code that you trust: it requires `trusted=True`."""

    title = "process"

    def __init__(
        self,
        *,
        trusted: bool = False,
        processes: int = 0,
        memory_mb: int = 4096,
        disk_mb: int = 64,
        queue_timeout_s: float = 900.0,
        max_sessions: int = 32,
    ) -> None:
        """Confirm that the code is trusted, and configure the resource limits.

        Args:
            trusted: must be true: this sandbox does not protect this machine's files from untrusted code.
            processes: how many programs run at once; 0: one for each processor.
            memory_mb: memory of one program.
            disk_mb: space for the files that a program writes.
            queue_timeout_s: timeout for a program to get a free supervisor, or for a session to get a free slot.
            max_sessions: how many sessions may be open at once.
        """
        if trusted is not True:
            raise ConfigError(
                "the process sandbox does not protect this machine's files from untrusted code; use the docker or the bubblewrap sandbox, "
                "or, for code that you would run yourself, set trusted=True. In Python: sandbox={'name': 'process', 'trusted': True}. On "
                "the command line: --set 'sandbox={name: process, trusted: true}', where the plugin has a setting `sandbox`; "
                "--set 'verifier={name: unit_tests, sandbox: {name: process, trusted: true}}', where its verifier has it; "
                "--set trusted=true for `rlvr check sandbox process`"
            )
        super().__init__(
            _start_child_supervisor,
            processes=processes,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            queue_timeout_s=queue_timeout_s,
            max_sessions=max_sessions,
        )
        remove_orphaned_folders(FOLDER_PREFIX)
        for name in groups.list_parent_cgroup_names(FOLDER_PREFIX):
            if is_owner_dead(name.partition("=")[2]):  # its folder may be in another temporary folder than ours
                groups.remove_parent_cgroup(name)

    @staticmethod
    def find_problems() -> list[tuple[str, str]]:
        """Return (problem, how to fix it) for everything that prevents this sandbox from working here; used by `rlvr doctor`."""
        return [] if sys.platform == "linux" else [(f"it needs Linux, and this is {sys.platform}", "use the docker sandbox")]


make = ProcessSandbox
