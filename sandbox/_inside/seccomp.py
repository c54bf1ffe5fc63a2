# ruff: noqa: RUF005
"""A seccomp filter that the supervisor installs on itself and, in a stricter form, on every program.

It is added to the engine's own profile and blocks calls by which a program could affect the next program or attack the kernel: shared
memory and queues that outlive a process, tracing, sockets other than local ones (and TCP, in a sandbox that has only a loopback network and
asks for that), namespaces, keys, io_uring, and every call newer than this table. A refused call fails with an error; the process is not
killed. Runs inside the container: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct

LOAD, AND, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_BITS, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, EACCES, ENOSYS = 1, 13, 38
AF_UNIX, AF_INET, AF_INET6, SOCK_STREAM, SOCKET_TYPES, IPPROTO_TCP, NEW_NAMESPACES = 1, 2, 10, 1, 0xF, 6, 0x7E020000
CLONE_PARENT = 0x8000  # a child of the zygote, which it does not know and never reaps: its PID namespace would not end
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
FOR_SUPERVISOR, FOR_PROGRAM, FOR_UNCOUNTED_PROGRAM = 1, 2, 3  # the last: no control group counts the kernel's memory of a program
WITH_LOOPBACK = 4  # added to a strictness: TCP sockets, for sandboxes whose network has nothing but the loopback device
FIRST_UNKNOWN_CALL = 450  # calls from this number on are newer than this table: refused as if the kernel did not have them

# the same numbers on both machines: open_tree and mounts, io_uring, pidfds, process_madvise, landlock, secret memory, quotactl_fd
COMMON_REFUSED_CALLS = (425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 438, 440, 443, 444, 445, 446, 447)

# kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: refused to programs for the first process, which is ours wherever they run
SIGNAL_CALLS = {"x86_64": (62, 200, 234, 129, 297), "aarch64": (129, 130, 131, 138, 240)}

# calls that succeed and do nothing for programs. sync, syncfs: they would make the machine write the files of everybody, and wait for that;
# fadvise64: it would make the machine forget, for everybody, the files of its system that it has read; sched_setscheduler, sched_setparam,
# sched_setattr: a runtime such as Mono prints a warning into the program's output if they fail
IGNORED_CALLS = {"x86_64": (162, 306, 221, 144, 142, 314), "aarch64": (81, 267, 223, 119, 118, 274)}

# inotify_init, inotify_init1: the events that wait in a queue are memory of the kernel, up to hundreds of megabytes for a user
QUEUE_CALLS = {"x86_64": (253, 294), "aarch64": (26,)}

# calls that are refused to programs for some values of an argument: (number on each machine, argument, values). fcntl: watch a folder, send
# a signal for a descriptor, enlarge a pipe (a quota of the user's), make everybody who changes a folder wait (from Linux 6.19);
# setsockopt: the sizes of buffers, which are memory of the kernel, and filters, which the kernel compiles: thousands of them keep it from
# compiling anybody's; both sockopts: a pidfd of the peer, which in a session is the supervisor
REFUSED_ARGUMENTS = (
    # F_NOTIFY, F_SETOWN, F_SETOWN_EX, F_SETSIG, F_SETPIPE_SZ, F_SETDELEG
    ({"x86_64": 72, "aarch64": 25}, 1, (1026, 8, 15, 10, 1031, 1040)),
    # SO_SNDBUF, SO_RCVBUF, and the same by force; SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF;
    # SO_PASSPIDFD; SO_PEERPIDFD
    ({"x86_64": 54, "aarch64": 208}, 2, (7, 8, 32, 33, 26, 50, 51, 52, 76)),
    ({"x86_64": 55, "aarch64": 209}, 2, (77,)),
    ({"x86_64": 157, "aarch64": 167}, 0, (22,)),  # prctl: PR_SET_SECCOMP, the other way to the same compiler
)

# machine: (audit architecture, socket, clone, clone3, refused to all, refused to programs as well)
CALL_TABLES = {
    "x86_64": (
        (0xC000003E, 41, 56, 435),
        # ptrace, process_vm_*, shm*, sem*, msg*, mq_*, unshare, setns, mounts, keys, bpf, perf, userfaultfd, modules, lookup_dcookie, ...
        (101, 310, 311, 29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241, 242, 243, 244, 245, 272, 308, 165, 166, 155, 161)
        + (250, 248, 249, 321, 298, 323, 246, 320, 175, 313, 176, 304, 303, 163, 179, 169, 167, 168, 135, 312, 300, 212)
        + (279, 237, 238, 256, 153, 103, 154, 172, 173, 170, 171),
        # pidfd_send_signal, pidfd_open, seccomp, memfd_create, execveat, ioprio_set, sched_setaffinity; sendmsg and
        # sendmmsg: descriptors in flight use up a quota of the user's; io_setup: a quota of the whole machine
        (424, 434, 317, 319, 322, 251, 203, 46, 307, 206),
    ),
    "aarch64": (
        (0xC00000B7, 198, 220, 435),
        (117, 270, 271, 194, 196, 195, 197, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181, 182, 183, 184, 185, 97, 268, 40, 39, 41, 51)
        + (219, 217, 218, 280, 241, 282, 104, 294, 105, 273, 106, 265, 264, 89, 60, 142, 224, 225, 92, 272, 262, 18)
        + (239, 235, 237, 238, 58, 116, 161, 162),
        (424, 434, 277, 279, 281, 30, 122, 211, 269, 0),
    ),
}


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def build_filter(machine: str, strictness: int) -> bytes:
    """Build the filter for one processor architecture, in the kernel's format; `strictness` is one of the three `FOR_...` above, which may
    be added to `WITH_LOOPBACK`.
    """
    strictness, has_loopback = strictness & ~WITH_LOOPBACK, strictness & WITH_LOOPBACK
    (arch, socket, clone, clone3), to_all, to_programs = CALL_TABLES[machine]
    for_program = strictness != FOR_SUPERVISOR
    refused_flags = NEW_NAMESPACES | (CLONE_PARENT if for_program else 0)
    refused = [*to_all, *COMMON_REFUSED_CALLS, *(to_programs if for_program else ())]
    refused += QUEUE_CALLS[machine] if strictness == FOR_UNCOUNTED_PROGRAM else ()

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    code = [step(LOAD, 4), step(JUMP_EQUAL, arch, 1, 0), step(RETURN, ERRNO | EPERM), step(LOAD, 0)]
    code += [step(JUMP_GREATER_EQUAL, 0x40000000, 0, 1), step(RETURN, ERRNO | EPERM)]  # the x32 twin of every call
    code += [step(JUMP_EQUAL, clone3, 0, 1), step(RETURN, ERRNO | ENOSYS)]  # the C library falls back to clone
    code += [step(JUMP_GREATER_EQUAL, FIRST_UNKNOWN_CALL, 0, 1), step(RETURN, ERRNO | ENOSYS)]
    for number in refused:
        code += [step(JUMP_EQUAL, number, 0, 1), step(RETURN, ERRNO | EPERM)]
    for number in IGNORED_CALLS[machine] if for_program else ():
        code += [step(JUMP_EQUAL, number, 0, 1), step(RETURN, ERRNO)]
    for number in SIGNAL_CALLS[machine] if for_program else ():
        code += [step(JUMP_EQUAL, number, 0, 4), step(LOAD, 16), step(JUMP_EQUAL, 1, 0, 1), step(RETURN, ERRNO | EPERM)]
        code += [step(RETURN, ALLOW)]
    for numbers, argument, values in REFUSED_ARGUMENTS if for_program else ():
        tests = [step(JUMP_EQUAL, value, 0, 1) + step(RETURN, ERRNO | EPERM) for value in values]
        code += [step(JUMP_EQUAL, numbers[machine], 0, 2 + 2 * len(tests)), step(LOAD, 16 + 8 * argument), *tests, step(RETURN, ALLOW)]
    code += [step(JUMP_EQUAL, clone, 0, 4), step(LOAD, 16), step(JUMP_BITS, refused_flags, 0, 1), step(RETURN, ERRNO | EPERM)]
    code += [step(RETURN, ALLOW)]
    families = [step(LOAD, 16), step(JUMP_EQUAL, AF_UNIX, 1, 0)]
    if has_loopback:
        families = [step(LOAD, 16), step(JUMP_EQUAL, AF_UNIX, 9, 0), step(JUMP_EQUAL, AF_INET, 1, 0), step(JUMP_EQUAL, AF_INET6, 0, 6)]
        families += [step(LOAD, 24), step(AND, SOCKET_TYPES), step(JUMP_EQUAL, SOCK_STREAM, 0, 3)]
        families += [step(LOAD, 32), step(JUMP_EQUAL, 0, 2, 0), step(JUMP_EQUAL, IPPROTO_TCP, 1, 0)]  # no other protocol is measured
    code += [step(JUMP_EQUAL, socket, 0, len(families) + 1), *families, step(RETURN, ERRNO | EACCES)]
    return b"".join([*code, step(RETURN, ALLOW)])


_FILTER_CACHE: dict[int, bytes] = {}  # a filter is built once, and inherited by every fork


def install_filter(strictness: int) -> bool:
    """Install the filter on this process and all its children, permanently. Returns False if processor or kernel do not support it."""
    if not is_architecture_supported():
        return False
    code = _FILTER_CACHE.get(strictness) or build_filter(os.uname().machine, strictness)
    _FILTER_CACHE[strictness] = code
    built = _FilterProgram(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(built), 0, 0) == 0)


def is_architecture_supported() -> bool:
    """Return whether there is a call table for this processor architecture."""
    return os.uname().machine in CALL_TABLES
