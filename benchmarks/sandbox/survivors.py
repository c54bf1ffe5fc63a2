# ruff: noqa: E501  (each program is on one line)
"""Attack a sandbox with programs that try to outlive their run, delay a verdict or affect the next answer. Thousands of attempts; one JSON line.

Every attack uses random timing. After each one the kernel shows, from outside, which processes still run under a program's user id in
the sandbox's containers (or below this process); at the end honest answers are judged. The verdicts' times are taken in the same run.
Exit code 1 if a process survived, a program got no verdict, or an honest answer was not right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.sandbox._chosen import add_arguments, build_sandbox, get_used
from rlvr.contracts import ExitStatus, Limits, Program, Verifier
from rlvr.registry.plugins import build
from rlvr.task import Task, make_user_prompt

Made = tuple[str, Literal["python", "cpp", "javascript"]]
LEAVE = "import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)\ndef leave(): libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
RUNNER = """
#include <cstdio>
#include <csignal>
#include <ctime>
#include <unistd.h>
int main(int, char **) {
    long delay = 0; int spin = 0; if (scanf("%ld %d", &delay, &spin) != 2) return 3;
    int ends[2]; if (pipe(ends)) return 4;
    if (fork() == 0) {
        close(0); close(1); close(2); close(ends[1]); char c; (void)!read(ends[0], &c, 1);
        timespec pause_for = {0, delay}; nanosleep(&pause_for, nullptr);
        for (int i = 0; i < 12; i++) { if (fork()) _exit(0); for (volatile int k = 0; k < spin; k++); }
        while (1) pause();
    }
    usleep(20000); return 0;
}
"""


def headless(rng: random.Random) -> Made:
    """The main process ends its first thread and stays alive."""
    return (
        f"{LEAVE}threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\ntime.sleep({rng.uniform(0, 0.02):.4f})\nleave()",
        "python",
    )


def hidden(rng: random.Random) -> Made:
    """A child does so, and the main process exits."""
    return (
        f"{LEAVE}if os.fork() == 0:\n    threading.Thread(target=time.sleep, args=(300,)).start()\n    leave()\ntime.sleep({rng.uniform(0, 0.1):.4f})",
        "python",
    )


def below(rng: random.Random) -> Made:
    """Children of such a child."""
    return (
        f"{LEAVE}def go():\n    for _ in range(3):\n        if os.fork() == 0:\n            os.setsid()\n            time.sleep(300)\n    time.sleep(300)\n"
        f"if os.fork() == 0:\n    threading.Thread(target=go).start()\n    leave()\ntime.sleep({rng.uniform(0, 0.1):.4f})",
        "python",
    )


def row(rng: random.Random) -> Made:
    """A chain of processes that each fork and exit, started around the moment of the kill."""
    return RUNNER, "cpp"


def row_in_python(rng: random.Random) -> Made:
    """The same without a compiler."""
    return (
        f"{LEAVE}r, w = os.pipe()\nif os.fork() == 0:\n    os.close(w)\n    for n in (0, 1, 2): os.close(n)\n    os.read(r, 1)\n    time.sleep({rng.uniform(0, 0.003):.5f})\n"
        "    for _ in range(12):\n        if libc.fork(): libc._exit(0)\n    time.sleep(300)\ntime.sleep(0.01)",
        "python",
    )


def swelling(rng: random.Random) -> Made:
    """A hidden child that takes memory once the next program runs."""
    return (
        f"{LEAVE}def swell():\n    time.sleep({rng.uniform(0.05, 0.3):.3f})\n    held = []\n    for _ in range(160):\n        held.append(bytearray(1 << 20))\n    time.sleep(300)\n"
        "if os.fork() == 0:\n    try: open('/proc/self/oom_score_adj', 'w').write('0')\n    except OSError: pass\n    threading.Thread(target=swell).start()\n    leave()\ntime.sleep(0.02)",
        "python",
    )


def renaming(rng: random.Random) -> Made:
    """The program renames its own source."""
    return "require('fs').renameSync('answer.js', 'x' + Math.random() + '.js')", "javascript"


ATTACKS: list[Callable[[random.Random], Made]] = [headless, hidden, below, row, row_in_python, swelling, renaming]


def under_programs(pids: list[int]) -> int:
    """How many processes in these process spaces (or below these processes) run under a program's user id, threads included."""
    spaces = {os.readlink(f"/proc/{pid}/ns/pid") for pid in pids}
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                ids = {
                    int(word)
                    for line in (entry / "status").read_text().splitlines()
                    if line.startswith("Uid:")
                    for word in line.split()[1:]
                }
                if min(ids) >= 1 << 20:
                    found += bool(spaces) and _within(int(entry.name), set(pids))
            except (OSError, ValueError):
                continue
    return found


def _within(pid: int, above: set[int]) -> bool:
    while pid > 1:
        if pid in above:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def supervisors(sandbox: Any) -> tuple[list[int], list[Path]]:
    """The first processes of a sandbox by their pids on this machine, and the files in which the kernel counts its processes."""
    if not hasattr(sandbox, "list_container_ids"):
        return [channel._process.pid for channel in sandbox._pool.list_supervisors()], []
    from rlvr.sandbox._outside import engine

    client = engine.connect()
    try:
        pids = [int(client.containers.get(each).attrs["State"]["Pid"]) for each in sandbox.list_container_ids()]
    finally:
        client.close()
    groups = []
    for pid in pids:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, kinds, where = line.split(":", 2)
            if "pids" in kinds.split(",") or (number == "0" and kinds == ""):
                path = Path("/sys/fs/cgroup") / ("pids" if kinds else "") / where.lstrip("/") / "pids.current"
                if path.exists():
                    groups.append(path)
                    break
    return pids, groups


def attack(args: argparse.Namespace) -> dict[str, Any]:
    """So many attacks on the sandbox, then sixty honest answers."""
    rng = random.Random(args.seed)
    limits = Limits(cpu_s=1, wall_s=1, memory_mb=128, processes=16)
    left, late, slowest, which, unfair, worst, stops = 0, 0, 0.0, "", 0, 0, dict[str, int]()
    with build_sandbox(args, at_once=1) as sandbox:
        used = get_used(sandbox)
        sandbox.run(Program("print(1)"))
        sandbox.run(Program(RUNNER, b"0 0", "cpp", Limits(cpu_s=20, wall_s=60)))
        idle = sum(int(path.read_text()) for path in supervisors(used)[1])
        for _ in range(args.runs):
            chosen = rng.choice(ATTACKS)
            source, language = chosen(rng)
            stdin = f"{rng.randrange(0, 2_000_000)} {rng.choice((0, 20_000, 100_000))}".encode() if language == "cpp" else b""
            began = time.monotonic()
            outcome = sandbox.run(Program(source, stdin, language, limits))
            beyond = time.monotonic() - began - limits.wall_s
            if language == "cpp" and outcome.status is ExitStatus.COMPILE_ERROR:
                raise SystemExit(f"the chain of forks did not compile: {outcome.reason}")
            late += beyond > 2
            if beyond > slowest:
                slowest, which = beyond, f"{chosen.__name__}: {outcome.status.value}, {outcome.wall_s:.2f} s"
            unfair += outcome.status is ExitStatus.INTERNAL_ERROR
            stops[outcome.status.value] = stops.get(outcome.status.value, 0) + 1
            pids, groups = supervisors(used)
            left += under_programs(pids)
            worst = max(worst, sum(int(path.read_text()) for path in groups) - idle)
        verifier = build("verifier", "unit_tests", sandbox=sandbox)
        wrong = [told for n in range(60) if (told := honest(verifier, n))]
    return {
        **{"sandbox": " ".join([args.sandbox, *args.set]), "runs": args.runs, "survivors": left},
        **{"most_processes_above_idle": worst, "no_verdict": unfair},
        **{
            "later_than_wall_plus_2_s": late,
            "slowest_beyond_wall_s": round(slowest, 2),
            "slowest": which,
            "honest_wrong": wrong,
            "of": 60,
            "stops": stops,
        },
    }


def honest(verifier: Verifier, n: int) -> str:
    """One honest answer after the attacks: '' if it gets the full score, else what it got."""
    reference = {"kind": "asserts", "entry_point": "f", "test": f"assert f({n}) == {n * 7919 + 131}", "limits": {"memory_mb": 128}}
    verdict = verifier.verify(Task(make_user_prompt("?"), reference, id="t"), "```python\ndef f(x):\n    return x * 7919 + 131\n```")
    return "" if verdict.score == 1.0 else f"{verdict.score}: {verdict.reason}"


def main() -> None:
    """Attack the chosen sandbox; exit status 1 if something survived, came late, or cost an honest answer its verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    row = attack(parser.parse_args())
    print(json.dumps(row), flush=True)
    sys.exit(int(row["survivors"] > 0 or row["no_verdict"] > 0 or row["honest_wrong"] != []))


if __name__ == "__main__":
    main()
