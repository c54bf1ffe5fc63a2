"""Inputs of one call in a session: its descriptors, its limits, and for bash the script that wraps the policy's script.

Runs inside the container: standard library only.
"""

from __future__ import annotations

import os
from typing import Any

from rlvr.sandbox._inside import streams

GO_FD, STATE_OUT_FD, STATE_IN_FD, CGROUP_FD, READY_FD, SOURCE_FD = 3, 5, 6, 7, 8, 9
MAX_STATE_BYTES = 256 << 10
MEGABYTE = 1 << 20
ARGV_CALL, SCRIPT_CALL = b"listed\n", b"script\n"
BASH_STEPS = (
    'IFS= read -r -d "" __rlvr <&6',
    "exec 6<&-",
    'eval "$__rlvr"',
    "__rlvr_gone='{ cd; echo \"bash: the working folder is gone; back in $PWD\" >&2; }'",
    '__rlvr_save() { { declare -px; printf "cd -- %q 2>/dev/null || %s\\n\\0" "$PWD" "$__rlvr_gone"; } >&5; }',
    "trap '__rlvr_save 2>/dev/null' EXIT",
    "IFS= read -r __rlvr <&3 || exit",
    "exec 3<&-",
    'if [ "$__rlvr" = listed ]; then mapfile -d "" -t __rlvr <&9; exec 9<&-; "${__rlvr[@]}"',
    'else IFS= read -r -d "" __rlvr <&9; exec 9<&-; eval "$__rlvr"',
    "fi",
    "__rlvr=$?",
    "__rlvr_save 2>/dev/null",
    'exit "$__rlvr"',
)


def build_stateful_shell_command(max_processes: int | None) -> list[str]:
    """Build the command of a shell that restores the state of the last call, waits for its call, runs it, and saves the state.

    The shell starts with a process limit slightly above the session's and then lowers it, so that a session that is full of processes
    can still run a call that ends them.
    """
    limit = [f"ulimit -u {max_processes} 2>/dev/null"] if max_processes else []
    return ["/bin/bash", "-c", "; ".join([*limit, *BASH_STEPS]), "bash"]  # on one line: bash counts the lines of the source from 1


def parse_last_bash_state(output: bytes) -> bytes | None:
    """Return the last complete state of bash that a call wrote, its folder and variables; None if there is none or it is too large."""
    records = output.split(b"\0")
    return records[-2] if len(records) > 1 and len(records[-2]) <= MAX_STATE_BYTES else None


def build_rlimits(limits: dict[str, Any], max_processes: int | None, has_cgroup_meter: bool) -> dict[str, int]:
    """Build the rlimits of each process; they include memory if nothing measures the session as a whole."""
    chosen = {
        "FSIZE": int(limits["file_mb"]) * MEGABYTE,
        "CORE": 1,  # 0 would not keep a core from the machine's crash handler; 1 does
        "NOFILE": 1024,
        "MSGQUEUE": 0,
        "MEMLOCK": MEGABYTE,
        "SIGPENDING": 256,
        "STACK": 64 * MEGABYTE,
    }
    if max_processes is not None:
        chosen["NPROC"] = max_processes
    if not has_cgroup_meter and limits.get("limit_addresses", True):
        chosen["AS"] = (int(limits["memory_mb"]) + 512) * MEGABYTE
    return chosen


class CallDescriptors:
    """Descriptors of one call: those passed to the call, by their number there, and the ends that we read.

    >>> descriptors = CallDescriptors()
    >>> descriptors.add_output(1, "stdout"), sorted(descriptors.child_fds)
    (None, [1])
    """

    def __init__(self) -> None:
        self.child_fds: dict[int, int] = {}
        self.read_ends: dict[int, str] = {}
        self._shared_fds: set[int] = set()

    def add_input(self, fd: int, data: bytes) -> None:
        """Add an input that holds `data`."""
        self.child_fds[fd] = streams.create_memory_file(data)

    def add_deferred_input(self, fd: int) -> int:
        """Add an input that is written later; return our descriptor for writing it."""
        number = os.memfd_create("source", os.MFD_CLOEXEC)
        os.fchmod(number, 0o444)
        self.child_fds[fd] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        return number

    def add_shared(self, fd: int, own_fd: int) -> None:
        """Add our descriptor `own_fd` as the call's descriptor `fd`; ours stays open."""
        self.child_fds[fd] = own_fd
        self._shared_fds.add(fd)

    def add_output(self, fd: int, name: str) -> None:
        """Add an output that the call writes to and we read."""
        read, self.child_fds[fd] = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        streams.open_to_all(self.child_fds[fd])
        self.read_ends[read] = name

    def close_child_ends(self) -> None:
        """Close the call's ends in this process once the call has its own."""
        for place, number in self.child_fds.items():
            if place not in self._shared_fds:
                os.close(number)
        self.child_fds = {}
