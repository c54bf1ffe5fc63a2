"""OpenMP threads on a CPU that other programs use too.

OpenMP threads wait for each other at the end of every operation, by default in a busy loop. If another program uses one of the cores,
each operation takes as long as that program's time slice: with two threads on two busy cores, ten times as long as it should. Passive
waiting avoids this. The number of threads, on which the last bits of results depend, is not changed.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

WAIT_POLICY_VARIABLE = "OMP_WAIT_POLICY"
CGROUP_FOLDER = Path("/sys/fs/cgroup")


def set_openmp_passive_wait() -> None:
    """Make OpenMP threads wait passively. OpenMP reads this when torch is imported; a user's setting is kept."""
    if not any(name in os.environ for name in (WAIT_POLICY_VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        os.environ[WAIT_POLICY_VARIABLE] = "passive"


def count_cores(cgroup: Path = CGROUP_FOLDER) -> int:
    """Return how many cores this process may use, by its affinity and the quota of its control group; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name, total in (("cpu.max", ""), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = (cgroup / name).read_text().split() if not total else [(cgroup / part).read_text() for part in (name, total)]
            if float(quota) > 0:
                return max(1, min(allowed, math.ceil(float(quota) / float(period))))
        except (OSError, ValueError):  # no control group of this version, or "max": no quota
            continue
    return allowed
