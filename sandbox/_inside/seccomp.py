# ruff: noqa: RUF005
"""A system-call filter that the supervisor puts on itself and, by inheritance, on every program.

It comes on top of the engine's own profile and takes away what one program could use against the next one or against the
kernel: shared memory and queues that outlive a process, tracing, sockets other than local pairs, namespaces, keys, io_uring.
A refused call fails with an error; nothing is killed for trying. Runs inside the container: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, EACCES, ENOSYS = 1, 13, 38
AF_UNIX = 1
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2

# machine: (audit architecture, socket, clone3, numbers refused)
TABLES = {
    "x86_64": (
        0xC000003E,
        41,
        435,
        # ptrace, process_vm_*, shm*, sem*, msg*, mq_*, unshare, setns, mounts, keys, bpf, perf, userfaultfd, io_uring, modules, ...
        (101, 310, 311, 29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241, 242, 243, 244, 245, 272, 308, 165, 166, 155, 161)
        + (250, 248, 249, 321, 298, 323, 425, 426, 427, 246, 320, 175, 313, 176, 304, 303, 163, 179, 169, 167, 168, 135, 312, 300)
        + (447, 438, 440, 279, 237, 238, 256, 153, 103, 154, 172, 173, 170, 171, 428, 429, 430, 431, 432, 433, 442),
    ),
    "aarch64": (
        0xC00000B7,
        198,
        435,
        (117, 270, 271, 194, 196, 195, 197, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181, 182, 183, 184, 185, 97, 268, 40, 39, 41, 51)
        + (219, 217, 218, 280, 241, 282, 425, 426, 427, 104, 294, 105, 273, 106, 265, 264, 89, 60, 142, 224, 225, 92, 272, 262)
        + (447, 438, 440, 239, 235, 237, 238, 58, 116, 161, 162, 428, 429, 430, 431, 432, 433, 442),
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def instructions(machine: str) -> bytes:
    """The filter for one kind of processor, as the kernel wants it."""
    arch, socket, clone3, refused = TABLES[machine]

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    code = [step(LOAD, 4), step(JUMP_EQUAL, arch, 1, 0), step(RETURN, ERRNO | EPERM), step(LOAD, 0)]
    code += [step(JUMP_GREATER_EQUAL, 0x40000000, 0, 1), step(RETURN, ERRNO | EPERM)]  # the x32 twin of every call
    code += [step(JUMP_EQUAL, clone3, 0, 1), step(RETURN, ERRNO | ENOSYS)]  # the C library falls back to clone
    for number in refused:
        code += [step(JUMP_EQUAL, number, 0, 1), step(RETURN, ERRNO | EPERM)]
    code += [step(JUMP_EQUAL, socket, 0, 3), step(LOAD, 16), step(JUMP_EQUAL, AF_UNIX, 1, 0), step(RETURN, ERRNO | EACCES)]
    return b"".join([*code, step(RETURN, ALLOW)])


def apply() -> bool:
    """Put the filter on this process and all its children, for good. False where the machine or the kernel has none."""
    machine = os.uname().machine
    if machine not in TABLES:
        return False
    code = instructions(machine)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0)
