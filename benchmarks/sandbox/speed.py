"""Compare the docker sandbox with a new container, and with an exec, for every program. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rlvr.contracts import Program
from rlvr.registry.plugins import build
from rlvr.sandbox._outside.engine import IMAGE

SOURCE = "print(6 * 7)"
HARD = [
    "--network",
    "none",
    "--read-only",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--user",
    "65534",
    "--memory",
    "256m",
]


def rate(work: Callable[[int], bytes], count: int, threads: int) -> float:
    """Programs per second, from so many threads; every output is checked."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))  # warm
        began = time.perf_counter()
        said = list(pool.map(work, range(count)))
        spent = time.perf_counter() - began
    assert all(text.strip() == b"42" for text in said), said[:3]
    return count / spent


def latency(work: Callable[[int], bytes], count: int) -> tuple[float, float]:
    """The median and the 99th percentile of one program after the other, in milliseconds."""
    times = []
    for index in range(count):
        began = time.perf_counter()
        work(index)
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    return statistics.median(times), times[int(0.99 * (len(times) - 1))]


def main() -> None:
    """Measure all four in one run, on the same machine, with as many threads as containers."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=600)
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    sandbox = build("sandbox", "docker", containers=given.threads)

    def ours(_: int) -> bytes:
        return bytes(sandbox.run(Program(SOURCE)).stdout)

    def command(*words: str) -> bytes:
        return subprocess.run(words, capture_output=True, check=True).stdout

    ours(0)
    holder = command("docker", "run", "-d", "--rm", *HARD, IMAGE, "sleep", "600").decode().strip()
    try:
        rates = {
            "sandbox": rate(ours, given.count, given.threads),
            "docker_run": rate(
                lambda _: command("docker", "run", "--rm", *HARD, IMAGE, "python3", "-I", "-S", "-c", SOURCE),
                given.count // 30,
                given.threads,
            ),
            "docker_exec": rate(
                lambda _: command("docker", "exec", holder, "python3", "-I", "-S", "-c", SOURCE), given.count // 15, given.threads
            ),
        }
        one, bare = (
            latency(ours, given.count // 3),
            latency(lambda _: command("/usr/bin/python3", "-I", "-S", "-c", SOURCE), given.count // 3),
        )
    finally:
        command("docker", "rm", "-f", holder)
        sandbox.close()
    row = {name + "_per_s": round(value, 1) for name, value in rates.items()}
    row |= {
        "times_docker_run": round(rates["sandbox"] / rates["docker_run"], 1),
        "times_docker_exec": round(rates["sandbox"] / rates["docker_exec"], 1),
    }
    row |= {
        "p50_ms": round(one[0], 2),
        "p99_ms": round(one[1], 2),
        "bare_python_p50_ms": round(bare[0], 2),
        "over_bare_ms": round(one[0] - bare[0], 2),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
