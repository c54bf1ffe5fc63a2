"""Inputs of one call in a session: its descriptors, its limits, and for bash the script that wraps the policy's script.

Runs inside the container: standard library only.
"""

from __future__ import annotations

import os
from typing import Any

from rlvr.sandbox._inside import streams

GO, STATE_OUT, STATE_IN, GROUP, SETTLED, SOURCE = 3, 5, 6, 7, 8, 9
MOST_STATE = 256 << 10
MEGABYTE = 1 << 20
LISTED, SCRIPT = b"listed\n", b"script\n"
STEPS = (
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


def bash(processes: int | None) -> list[str]:
    """Build the command of a shell that restores the state of the last call, waits for its call, runs it, and saves the state.

    The shell starts with a process limit slightly above the session's and then lowers it, so that a session that is full of processes
    can still run a call that ends them.
    """
    limit = [f"ulimit -u {processes} 2>/dev/null"] if processes else []
    return ["/bin/bash", "-c", "; ".join([*limit, *STEPS]), "bash"]  # on one line: bash counts the lines of the source from 1


def state(said: bytes) -> bytes | None:
    """Return the last complete record of folder and variables that a bash call wrote; None if there is none or it is too large."""
    records = said.split(b"\0")
    return records[-2] if len(records) > 1 and len(records[-2]) <= MOST_STATE else None


def rlimits(limits: dict[str, Any], uid: int | None, measured: bool) -> dict[str, int]:
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
    if uid is not None:
        chosen["NPROC"] = int(limits["processes"])
    if not measured:
        chosen["AS"] = (int(limits["memory_mb"]) + 512) * MEGABYTE
    return chosen


class Ports:
    """Descriptors of one call: those passed to the call, by their number there, and the ends that we read.

    >>> ports = Ports()
    >>> ports.out(1, "stdout"), sorted(ports.theirs)
    (None, [1])
    """

    def __init__(self) -> None:
        self.theirs: dict[int, int] = {}
        self.ours: dict[int, str] = {}
        self._lent: set[int] = set()

    def give(self, place: int, data: bytes) -> None:
        """Add an input that holds `data`."""
        self.theirs[place] = streams.memory_file(data)

    def later(self, place: int) -> int:
        """Add an input that is written later; return our descriptor for writing it."""
        number = os.memfd_create("source", os.MFD_CLOEXEC)
        os.fchmod(number, 0o444)
        self.theirs[place] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        return number

    def lend(self, place: int, number: int) -> None:
        """Add a descriptor of ours that is shared with the call and stays open here."""
        self.theirs[place] = number
        self._lent.add(place)

    def out(self, place: int, name: str) -> None:
        """Add an output that the call writes to and we read."""
        read, self.theirs[place] = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        os.fchmod(self.theirs[place], 0o222)  # so that /dev/stdout opens for a user that is not ours
        self.ours[read] = name

    def handed_over(self) -> None:
        """Close the call's ends in this process once the call has its own."""
        for place, number in self.theirs.items():
            if place not in self._lent:
                os.close(number)
        self.theirs = {}
