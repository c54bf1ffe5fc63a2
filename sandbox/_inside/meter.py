"""Measure a program's memory and processor time from outside it: by its control group, or else by the process table.

One container runs one program at a time, so the container's control group measures exactly that program (with its children, threads,
in-memory files and shared memory). Without control groups (the process sandbox, some runtimes) the usage of the supervisor's
descendants is added up, which is slower and has races. Runs inside the container: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from rlvr.sandbox._inside.sockets import SocketMeter

CGROUP_ROOT = "/sys/fs/cgroup"
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
EXITING_FLAG = 4  # among the flags of a process
SHARED_GROWTH_BYTES, SHARED_INTERVAL_S = 16 << 20, 0.02
FORK_COST_BYTES = 12 << 20
"""What gVisor copies of a warm interpreter for each process that is forked from it: pieces of 2 MB, where Linux copies pages."""


def list_descendants(root: int, spared_pids: set[int], *, spared_parent: int = 0) -> list[int]:
    """Return the pids of all living descendants of `root`, except those in `spared_pids` and the children of `spared_parent`."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = read_process_stat(int(name))
            if fields and not is_process_dead(fields):
                parents[int(name)] = int(fields[1])
    below = []
    for pid in parents:
        above: int | None = pid
        while above is not None and above != root and above > 1:
            above = parents.get(above)
        if above == root and pid != root and pid not in spared_pids and not (spared_parent and parents[pid] == spared_parent):
            below.append(pid)
    return below


def read_process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat starting at the state; empty if the process no longer exists."""
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def is_process_dead(stat_fields: list[str]) -> bool:
    """Return whether a process is dead. State Z alone is not enough: a living process whose first thread has exited has it too."""
    return stat_fields[0] == "X" or (stat_fields[0] == "Z" and int(stat_fields[17]) <= 1)


def find_exiting_status(pid: int) -> int | None:
    """Return the wait status of a process that has stopped running while the kernel still tears down its namespaces; else None."""
    fields = read_process_stat(pid)
    return int(fields[49]) if len(fields) > 49 and int(fields[6]) & EXITING_FLAG else None


def read_cpu_wait_s(pid: int) -> float:
    """Return the seconds that a process was runnable but waited for a processor; they do not count against its limit."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb", 0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class CgroupMeter:
    """Meter that reads the container's control group, version 1 or 2; the files stay open, so a reading costs microseconds."""

    def __init__(self, sockets: SocketMeter | None = None) -> None:
        two = os.path.exists(f"{CGROUP_ROOT}/cgroup.controllers")
        self.name = "cgroup v2" if two else "cgroup v1"
        self._memory = _open_cgroup_file("memory.current" if two else "memory/memory.usage_in_bytes")
        self._stat = _open_cgroup_file("memory.stat" if two else "memory/memory.stat")
        self._oom_kills = _open_cgroup_file("memory.events" if two else "memory/memory.oom_control")
        self._cpu = _open_cgroup_file("cpu.stat" if two else "cpuacct/cpuacct.usage")
        self._parse_cpu_s: Callable[[bytes], float] = (
            (lambda raw: _parse_field(raw, b"usage_usec") / 1e6) if two else (lambda raw: int(raw) / 1e9)
        )
        self._sockets = None if two else sockets  # version 1 counts what waits in sockets of TCP apart, and nobody limits it
        self._baseline_bytes = 0
        if self._oom_kills < 0 or self._cpu < 0:
            raise OSError("the control group cannot be read")

    def record_memory_baseline(self) -> int:
        """Record the memory in use before a program starts; return the page cache that later readings still contain."""
        self._baseline_bytes = self.get_unreclaimable_bytes()
        return self.get_memory_bytes()

    def get_memory_bytes(self) -> int:
        """Return the bytes in use above the baseline, including the page cache.

        The reading is cheap; `exceeds_memory` excludes the page cache.
        """
        return int(os.pread(self._memory, 64, 0)) - self._baseline_bytes

    def exceeds_memory(self, max_bytes: int) -> bool:
        """Return whether more than `max_bytes` are in use: a cheap check first, an exact one if the limit looks exceeded."""
        max_bytes -= self._sockets.get_bytes() if self._sockets else 0
        return self.get_memory_bytes() > max_bytes and self.get_unreclaimable_bytes() - self._baseline_bytes > max_bytes

    def has_exceeded_memory(self, peak_bytes: int, max_bytes: int) -> bool:
        """Return False: the peak of a process that has exited includes the page cache, and the control group has its own limit."""
        return False

    def get_unreclaimable_bytes(self) -> int:
        """Return the bytes in use without the page cache, which the kernel could free at any time."""
        raw = os.pread(self._stat, 16384, 0)
        return int(os.pread(self._memory, 64, 0)) - _parse_field(raw, b"active_file") - _parse_field(raw, b"inactive_file")

    def get_total_cpu_s(self) -> float:
        """Return the processor time, in seconds, of everything in the container since it started."""
        return self._parse_cpu_s(os.pread(self._cpu, 4096, 0))

    def count_oom_kills(self) -> int:
        """Return how often the kernel killed a process here because memory ran out."""
        return _parse_field(os.pread(self._oom_kills, 4096, 0), b"oom_kill")


class ProcessTableMeter:
    """Meter that adds up the usage of the supervisor's descendants; used where there is no control group."""

    name = "process table"

    def __init__(self, root: int, spared_pids: set[int], sockets: SocketMeter | None = None, namespace_helper_pid: int = 0) -> None:
        self._root, self._spared_pids, self._exited_cpu_s, self._cpu_s_by_pid = root, spared_pids, 0.0, dict[int, float]()
        self._shared, self._sockets, self._namespace_helper_pid = SharedMemoryMeter(), sockets, namespace_helper_pid

    def _list_pids(self) -> list[int]:
        """List the processes of programs: the children of the namespace helper are the inits of their namespaces, which are ours."""
        return list_descendants(self._root, self._spared_pids, spared_parent=self._namespace_helper_pid)

    def record_memory_baseline(self) -> int:
        """Return 0: before a program starts, it has no processes."""
        return 0

    def get_memory_bytes(self) -> int:
        """Return the bytes of memory of all living descendants; shared memory is divided among the processes that share it."""
        pids = self._list_pids()
        shown = [_read_pss_bytes(pid) for pid in pids]
        # what a process shares and has not touched itself is in no process's count, while it keeps the memory in use
        hidden = max(self._shared.get_bytes(pids) - sum(shared for _, shared in shown), 0)
        return sum(total for total, _ in shown) + hidden + self._get_socket_bytes()

    def exceeds_memory(self, max_bytes: int) -> bool:
        """Return whether more than `max_bytes` are in use: an upper bound first, because the exact count is slow."""
        return self._estimate_max_memory_bytes() > max_bytes and self.get_memory_bytes() > max_bytes

    def has_exceeded_memory(self, peak_bytes: int, max_bytes: int) -> bool:
        """Return whether a process that has exited had more than `max_bytes` at its peak, as the kernel counts it: what lasts for less than
        the time between two measurements is seen in none of them.

        The pages that it shares with the interpreter it was forked from are not its own.
        """
        return peak_bytes > max_bytes and peak_bytes - max(map(_read_rss_bytes, self._spared_pids), default=0) > max_bytes

    def _estimate_max_memory_bytes(self) -> int:
        """Return an upper bound of the memory of all living descendants: shared memory is counted once per process."""
        pids = self._list_pids()
        return sum(_read_rss_bytes(pid) for pid in pids) + self._shared.get_bytes(pids) + self._get_socket_bytes()

    def _get_socket_bytes(self) -> int:
        return self._sockets.get_bytes() if self._sockets else 0

    def get_total_cpu_s(self) -> float:
        """Return the processor time, in seconds, of all descendants seen so far."""
        living: dict[int, float] = {}
        for pid in self._list_pids():
            fields = read_process_stat(pid)
            if fields:
                living[pid] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S
        self._exited_cpu_s += sum(seconds for pid, seconds in self._cpu_s_by_pid.items() if pid not in living)
        self._cpu_s_by_pid = living
        return self._exited_cpu_s + sum(living.values())

    def count_oom_kills(self) -> int:
        """Return 0: without a control group, kills for lack of memory are not counted."""
        return 0


class SharedMemoryMeter:
    """Meter for the memory that processes share without a file. Such memory exists for as long as any process has any part of it mapped,
    and the kernel shows it only in processes that have touched it: a child that sleeps keeps it unseen.

    Its exact size needs CAP_CHECKPOINT_RESTORE; without it, the part that is mapped counts.
    """

    def __init__(self) -> None:
        self._least_bytes, self._measured_at, self._bytes = read_machine_memory("Shmem"), 0.0, 0

    def get_bytes(self, pids: list[int]) -> int:
        """Return the bytes that the processes have in use; 0 while all sharing of the whole machine has hardly grown, which is cheap to
        know.
        """
        now = read_machine_memory("Shmem")
        self._least_bytes = min(self._least_bytes, now)
        if now - self._least_bytes < SHARED_GROWTH_BYTES:
            return 0
        if time.monotonic() - self._measured_at > SHARED_INTERVAL_S:
            self._bytes = sum(self._measure_objects(pids).values())
            self._measured_at = time.monotonic()  # after the measurement: many processes make it slow
        return self._bytes

    @staticmethod
    def _measure_objects(pids: list[int]) -> dict[bytes, int]:
        sizes: dict[bytes, int] = {}
        for pid in pids:
            thread, listed = _read_maps(pid)
            for line in listed.splitlines():
                if not line.endswith(b"/dev/zero (deleted)"):
                    continue
                place, _, offset, _, inode, *_ = line.split()
                first, last = (int(address, 16) for address in place.split(b"-"))
                try:
                    size = os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}").st_blocks * 512
                except OSError as error:
                    if not isinstance(error, PermissionError) and thread == pid:
                        continue  # it is mapped no more; of a process whose first thread has exited the kernel shows no such files
                    size = int(offset, 16) + last - first
                sizes[inode] = max(sizes.get(inode, 0), size)
        return sizes


class OwnKernelMeter(ProcessTableMeter):
    """Meter for a kernel that serves this container only (gVisor), so that the machine's memory is the container's.

    The kernel shows no control group, and counts shared pages in every process; /proc shows the memory of the machine.
    """

    name = "a kernel of its own"

    def __init__(self, root: int, spared_pids: set[int]) -> None:
        super().__init__(root, spared_pids)
        self._baseline_bytes = 0

    def record_memory_baseline(self) -> int:
        """Record the memory in use before a program starts, so that it is not charged; return 0."""
        self._baseline_bytes = read_machine_memory("AnonPages")
        return 0

    def get_memory_bytes(self) -> int:
        """Return the bytes in use above the baseline: those of processes, and of files in memory."""
        return max(read_machine_memory("AnonPages") - self._baseline_bytes, 0)

    def exceeds_memory(self, max_bytes: int) -> bool:
        """Return whether more than `max_bytes` are in use, without what the kernel spends on each process that is not the only one."""
        excess = self.get_memory_bytes() - max_bytes
        return excess > 0 and excess > FORK_COST_BYTES * max(len(list_descendants(self._root, self._spared_pids)) - 1, 0)

    def has_exceeded_memory(self, peak_bytes: int, max_bytes: int) -> bool:
        """Return False: what this kernel reports of a process that has exited is not its own memory alone."""
        return False


def make_meter(
    root: int,
    spared_pids: set[int],
    use_cgroup: bool,
    memory_bytes: int = 0,
    sockets: SocketMeter | None = None,
    namespace_helper_pid: int = 0,
) -> CgroupMeter | ProcessTableMeter:
    """Return the best available meter; `memory_bytes` is the limit that the engine was given for this container, `sockets` the meter of
    what control groups count themselves, and `namespace_helper_pid` the process whose children are no programs.
    """
    if use_cgroup:
        with contextlib.suppress(OSError, ValueError):
            return CgroupMeter(sockets)
        if has_own_kernel(memory_bytes):
            return OwnKernelMeter(root, spared_pids)
    return ProcessTableMeter(root, spared_pids, sockets, namespace_helper_pid)


def has_own_kernel(memory_bytes: int) -> bool:
    """Return whether the kernel has no more memory than the engine was told to give to this container: it serves nothing else."""
    return 0 < read_machine_memory("MemTotal") <= memory_bytes


def read_machine_memory(name: str) -> int:
    """Return a line of /proc/meminfo, in bytes."""
    with open("/proc/meminfo", "rb", 0) as file:
        return _parse_field(file.read().replace(b":", b""), name.encode()) << 10


def _read_pss_bytes(pid: int) -> tuple[int, int]:
    """Return a process's memory with its part of what it shares, and that part; what the kernel does not show to us counts in full."""
    for thread in _list_threads(pid):  # any living thread can report it; the first one may have exited
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/smaps_rollup", "rb", 0) as file:
            raw = file.read().replace(b":", b"")
            return _parse_field(raw, b"Pss") << 10, _parse_field(raw, b"Pss_Shmem") << 10
    return _read_rss_bytes(pid), 0


def _read_maps(pid: int) -> tuple[int, bytes]:
    """Return what a process has mapped, and the thread that showed it: the first one may have exited, and shows nothing then."""
    for thread in _list_threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/maps", "rb") as file:
            if raw := file.read():
                return int(thread), raw
    return pid, b""


def _read_rss_bytes(pid: int) -> int:
    """Return a process's memory, with all that it shares."""
    for thread in _list_threads(pid):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/task/{thread}/statm", "rb", 0) as file:
            if pages := int(file.read().split()[1]):
                return pages * PAGE_BYTES
    return 0


def _list_threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _open_cgroup_file(name: str) -> int:
    return os.open(f"{CGROUP_ROOT}/{name}", os.O_RDONLY | os.O_CLOEXEC)


def _parse_field(raw: bytes, name: bytes) -> int:
    for line in raw.splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value.split()[0])
    return 0
