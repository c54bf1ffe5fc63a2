"""Run many programs, a tenth of them hostile, from many threads, and check for leaks and wrong results. One JSON line.

Memory is the resident memory of this process, the one that uses the sandbox. It is measured after a warm-up: every thread
has, ten times and at the same moment, sent the longest source and received the largest output, because memory that the
allocator keeps for reuse is not a leak. After that `growth` is the largest of twenty readings over the first, and `slope`
the line through them; `blocks` counts living objects, independent of the allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlvr.contracts import ExitStatus, Limits, Program, Sandbox
from rlvr.registry.plugins import build
from rlvr.sandbox._outside import engine
from tests.attacks.harm import HARM
from tests.attacks.task import LIMITS

PARTS = 20


def resident_kb() -> int:
    """Memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def containers() -> int:
    """Containers with our label, of any process."""
    client = engine.connect()
    try:
        return len(client.containers.list(all=True, filters={"label": engine.LABEL}, ignore_removed=True))
    finally:
        client.close()


def inside(sandbox: Any) -> int:
    """Processes in the sandbox's containers that are not ours: those under a program's user id."""
    client = engine.connect()
    try:
        rows = [row for name in sandbox.containers() for row in client.containers.get(name).top(ps_args="-eo uid,pid")["Processes"]]
        return sum(int(row[0]) != 0 for row in rows)
    finally:
        client.close()


def left_files() -> int:
    """Folders of sandboxes among the temporary files."""
    return len(list(Path(tempfile.gettempdir()).glob("rlvr-*")))


def warm(sandbox: Sandbox, threads: int) -> None:
    """Let every thread hold the longest source and the largest output at the same time."""
    together = threading.Barrier(threads)
    most = LIMITS["output_bytes"]
    padding = "#" * max(len(attack.code) for attack in HARM)

    def hold(_: int) -> int:
        outcome = sandbox.run(Program(f"print('x' * {most + 1}) {padding}", limits=Limits(**LIMITS)))
        together.wait(120)
        return len(outcome.stdout)

    with ThreadPoolExecutor(threads) as pool:
        assert set(pool.map(hold, range(10 * threads))) == {most}


def main() -> None:
    """Run the programs, and measure before, during and after."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=10_000)
    arguments.add_argument("--threads", type=int, default=8)
    given = arguments.parse_args()
    before = containers(), descriptors(), left_files()
    sandbox = build("sandbox", "docker")
    hostile = [attack.code for attack in HARM]

    def one(index: int) -> bool:
        if index % 10 == 0:
            return sandbox.run(Program(random.Random(index).choice(hostile), b"3", limits=Limits(**LIMITS))).stop is not ExitStatus.IE
        outcome = sandbox.run(Program("print(int(input()) ** 2)", str(index).encode()))
        return outcome.stop is ExitStatus.OK and int(outcome.stdout) == index * index

    cold = resident_kb()
    warm(sandbox, given.threads)
    began, memory, blocks, wrong = time.perf_counter(), [resident_kb()], sys.getallocatedblocks(), 0
    with ThreadPoolExecutor(given.threads) as pool:
        for part in range(PARTS):
            share = range(part * given.count // PARTS, (part + 1) * given.count // PARTS)
            wrong += sum(not good for good in pool.map(one, share))
            memory.append(resident_kb())
    spent = time.perf_counter() - began
    processes = inside(sandbox)
    sandbox.close()
    slope = statistics.linear_regression(range(len(memory)), memory).slope * PARTS / given.count * 1000
    row = {"programs": given.count, "wrong": wrong, "seconds": round(spent, 1)}
    row |= {"memory_kb_cold": cold, "memory_kb_warm": memory[0], "memory_kb_end": memory[-1], "memory_kb_most": max(memory)}
    row |= {"growth": round(max(memory) / memory[0] - 1, 4), "slope_kb_per_1000": round(slope, 1)}
    row["blocks_growth"] = round(sys.getallocatedblocks() / blocks - 1, 4)
    row |= {"containers_left": containers() - before[0], "processes_left": processes}
    row |= {"descriptors_left": descriptors() - before[1], "files_left": left_files() - before[2]}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
