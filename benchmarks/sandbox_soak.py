"""Does anything leak or go wrong over many programs, a tenth of them hostile, from many threads? One JSON line."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlvr.contracts import Limits, Program, Stop
from rlvr.registry import build
from rlvr.sandbox import _engine
from tests.attacks.harm import HARM
from tests.attacks.task import LIMITS


def resident_kb() -> int:
    """Memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def containers() -> int:
    """Containers with our label, of anybody."""
    client = _engine.connect()
    try:
        return len(client.containers.list(all=True, filters={"label": _engine.LABEL}, ignore_removed=True))
    finally:
        client.close()


def main() -> None:
    """Run them, and look before, in the middle and after."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=10_000)
    arguments.add_argument("--threads", type=int, default=8)
    given = arguments.parse_args()
    before = containers(), descriptors()
    sandbox = build("sandbox", "docker")
    hostile = [attack.code for attack in HARM]

    def one(index: int) -> bool:
        if index % 10 == 0:
            return sandbox.run(Program(random.Random(index).choice(hostile), b"3", limits=Limits(**LIMITS))).stop is not Stop.IE
        outcome = sandbox.run(Program("print(int(input()) ** 2)", str(index).encode()))
        return outcome.stop is Stop.OK and int(outcome.stdout) == index * index

    began, memory, wrong = time.perf_counter(), [], 0
    with ThreadPoolExecutor(given.threads) as pool:
        for part in range(10):
            share = range(part * given.count // 10, (part + 1) * given.count // 10)
            wrong += sum(not good for good in pool.map(one, share))
            memory.append(resident_kb())
    spent = time.perf_counter() - began
    sandbox.close()
    growth = max(memory[1:]) / memory[1] - 1
    row = {"programs": given.count, "wrong": wrong, "seconds": round(spent, 1), "memory_growth": round(growth, 4)}
    row |= {"containers_left": containers() - before[0], "descriptors_left": descriptors() - before[1]}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
