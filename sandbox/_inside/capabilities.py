"""Linux capabilities: each of our processes keeps only those it needs. Runs inside the container: standard library only."""

from __future__ import annotations

import ctypes

CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 1 << 5, 1 << 6, 1 << 7, 1 << 19, 1 << 21
CAP_CHECKPOINT_RESTORE = 1 << 40
PR_CAPBSET_DROP, VERSION_3, LAST_CAPABILITY = 24, 0x20080522, 63
libc = ctypes.CDLL(None, use_errno=True)


def _get_effective() -> int:
    """Return the effective capabilities of this process as a bit mask."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)


def keep_only_capabilities(kept_mask: int) -> None:
    """Permanently drop every capability outside `kept_mask`; none is inherited across an exec."""
    left = _get_effective() & kept_mask
    head = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    low, high = left & 0xFFFFFFFF, left >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    if libc.capset(head, data) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def drop_all_capabilities() -> None:
    """Drop all capabilities of this process."""
    head = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    if libc.capset(head, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def clear_bounding_set() -> None:
    """Clear the bounding set, so that no later exec gains a capability. Needs CAP_SETPCAP; /proc/self/status shows the result."""
    for number in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
