"""Measure sandboxes side by side, in turns, on one machine: starts, programs, sessions, memory, and what is left. One JSON line each.

    python benchmarks/sandbox/providers.py docker docker,runtime=runsc docker@unix:///run/podman/podman.sock bubblewrap process

A sandbox is NAME[@ADDRESS OF ITS ENGINE][,KEY=VALUE...]. Each runs in a process of its own; every figure is taken from all of them in
turns, so that a busy moment of the machine is everybody's. `--commands` adds a new container and an exec for each program (with the
command `docker`), which the sandboxes replace. Exit code 1 if something is left over or a program gave a wrong output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.sandbox import boxes
from benchmarks.sandbox._chosen import build_sandbox, get_used
from rlvr.contracts import ExitStatus, Program, Sandbox, SandboxSession
from rlvr.sandbox._inside import meter
from rlvr.sandbox._outside import engine

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
    "--ulimit",
    "nproc=16384",
    "--ulimit",
    "nofile=1024",
]
IMPORTS = [sys.executable, "-I", "-S", "-c", SOURCE]
ROUND = 20  # how many programs or calls of one sandbox are measured before it is the next one's turn


class Measured:
    """One sandbox, in its own process."""

    def __init__(self, name: str, settings: list[str], threads: int, at_once: int) -> None:
        self.args = argparse.Namespace(sandbox=name, set=settings)
        self.threads, self.at_once = threads, at_once
        self.before = boxes.left()
        self.sandbox: Sandbox = build_sandbox(self.args, at_once=threads, max_sessions=at_once, queue_timeout_s=300.0)
        self.sessions: list[SandboxSession] = []

    def program(self) -> float:
        """The seconds that one program takes."""
        began = time.perf_counter()
        outcome = self.sandbox.run(Program(SOURCE))
        taken = time.perf_counter() - began
        if outcome.stdout_bytes != b"42\n":
            raise SystemExit(f"{self.args.sandbox}: {outcome.status.value} {outcome.reason}")
        return taken

    def programs(self, count: int) -> list[float]:
        """One program after the other."""
        return [self.program() for _ in range(count)]

    def rate(self, count: int) -> float:
        """Programs per second, from as many threads as run at once."""
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(lambda _: self.program(), range(self.threads)))
            began = time.perf_counter()
            list(pool.map(lambda _: self.program(), range(count)))
            return count / (time.perf_counter() - began)

    def isolation(self) -> list[str]:
        """What the kernel granted, as each result lists it."""
        return list(self.sandbox.run(Program(SOURCE)).isolation)

    def open(self) -> tuple[float, float]:
        """Open one session more, which stays open: its seconds, and those of its first call."""
        began = time.perf_counter()
        self.sessions.append(self.sandbox.create_session(boxes.PLACE))
        opened = time.perf_counter()
        self._call(self.sessions[-1], "true")
        return opened - began, time.perf_counter() - opened

    @staticmethod
    def _call(session: SandboxSession, source: str) -> bytes:
        outcome = session.run(source)
        if outcome.status is not ExitStatus.OK:
            raise SystemExit(f"a session: {outcome.status.value} {outcome.reason}")
        return outcome.stdout_bytes

    def calls(self, count: int) -> list[float]:
        """Calls of bash in the open session, 100 ms after each other: a waiting shell has been started by then."""
        taken = []
        for _ in range(count):
            time.sleep(0.1)
            began = time.perf_counter()
            self._call(self.sessions[-1], "true")
            taken.append(time.perf_counter() - began)
        return taken

    def in_a_row(self, count: int) -> list[float]:
        """Open a session, leave a file and a process in it, and close it; the seconds of each opening."""
        taken = []
        for number in range(count):
            began = time.perf_counter()
            with self.sandbox.create_session(boxes.PLACE) as session:
                taken.append(time.perf_counter() - began)
                if self._call(session, f"ls -A; echo {number} >left; sleep {boxes.MARK} >/dev/null 2>&1 &"):
                    raise SystemExit("a session found a file of another one")
        return taken

    def open_at_once(self) -> dict[str, float]:
        """Open sessions until there are as many as there may be, call each, and add up what they use while they wait."""
        began = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self.open(), range(self.at_once - len(self.sessions))))
        spent = time.perf_counter() - began
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda pair: self._call(pair[1], f"echo {pair[0]} >own"), enumerate(self.sessions)))
            right = sum(pool.map(lambda pair: self._call(pair[1], "cat own") == b"%d\n" % pair[0], enumerate(self.sessions)))
        figures = {"sessions": len(self.sessions), "right": right, "open_s": round(spent, 1), "mb_each": self.memory_mb()}
        began = time.perf_counter()
        self.close_sessions()
        return figures | {"close_s": round(time.perf_counter() - began, 1)}

    def memory_mb(self) -> float:
        """The memory of each open session, with what serves it outside: the proportional sizes of the processes in its tree."""
        return round(sum(map(read_tree_bytes, self._find_roots())) / (len(self.sessions) or 1) / (1 << 20), 1)

    def _find_roots(self) -> list[int]:
        """The first process of each session's tree: the engine's monitor of its container, or the supervisor that we started."""
        used = get_used(self.sandbox)
        supervisors = used._sessions.list_supervisors()
        if not hasattr(used, "list_container_ids"):
            return [channel._process.pid for channel in supervisors]
        client = engine.connect()
        try:
            pids = [int(client.containers.get(each.id).attrs["State"]["Pid"]) for each in supervisors]
        finally:
            client.close()
        return [int(meter.read_process_stat(pid)[1]) for pid in pids]

    def close_sessions(self) -> None:
        """Close every session."""
        for session in self.sessions:
            session.close()
        self.sessions.clear()

    def end(self) -> list[str]:
        """Close the sandbox; what is left of it after at most ten seconds."""
        self.close_sessions()
        self.sandbox.close()
        until = time.monotonic() + 10
        while (rest := self._find_rest()) and time.monotonic() < until:
            time.sleep(0.2)
        return rest

    def _find_rest(self) -> list[str]:
        children = meter.list_descendants(os.getpid(), set())
        return sorted(boxes.left() - self.before) + [f"process {pid}" for pid in children]

    def command(self, kind: str, count: int) -> list[float]:
        """The seconds of a new container (`run`), or of an exec in one that runs, for each program."""
        holder = run_docker("run", "-d", "--rm", *HARD, engine.IMAGE, "sleep", "600") if kind == "exec" else ""
        where = ["exec", holder] if holder else ["run", "--rm", *HARD, engine.IMAGE]
        taken = []
        try:
            for _ in range(count):
                began = time.perf_counter()
                assert run_docker(*where, "python3", "-I", "-S", "-c", SOURCE) == "42"
                taken.append(time.perf_counter() - began)
        finally:
            if holder:
                run_docker("rm", "-f", holder)
        return taken


def run_docker(*words: str) -> str:
    """What a command of docker prints."""
    return subprocess.run(["docker", *words], capture_output=True, check=True, text=True).stdout.strip()


def read_tree_bytes(root: int) -> int:
    """The proportional size of a process and all its descendants."""
    total = 0
    for pid in [root, *meter.list_descendants(root, set())]:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


_measured: Measured


def _begin(address: str, name: str, settings: list[str], threads: int, at_once: int) -> None:
    global _measured
    if address:
        os.environ["DOCKER_HOST"] = address
    _measured = Measured(name, settings, threads, at_once)


def _do(method: str, *arguments: Any) -> Any:
    return getattr(_measured, method)(*arguments)


def start(named: str, threads: int, at_once: int) -> ProcessPoolExecutor:
    """A process for one sandbox of the command line, with its engine's address in its environment."""
    first, *settings = named.split(",")
    name, _, address = first.partition("@")
    context = multiprocessing.get_context("spawn")  # a child that has none of this process's state
    return ProcessPoolExecutor(1, context, _begin, (address, name, settings, threads, at_once))


def spread(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: the middle and the 99th percentile."""
    return {"p50_ms": round(1000 * statistics.median(seconds), 1), "p99_ms": round(1000 * sorted(seconds)[len(seconds) * 99 // 100], 1)}


def measure_bare(count: int) -> list[float]:
    """The seconds of a plain Python without any sandbox."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(IMPORTS, capture_output=True, check=True)
        taken.append(time.perf_counter() - began)
    return taken


def main() -> int:
    """Measure all in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sandboxes", nargs="+", metavar="SANDBOX")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=200, help="sessions one after another")
    parser.add_argument("--long", action="store_true", help="1,000 sessions one after another")
    parser.add_argument("--at-once", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--commands", type=int, default=0, help="how many programs by `docker run` and `docker exec`")
    args = parser.parse_args()
    workers = {named: start(named, args.threads, args.at_once) for named in args.sandboxes}
    rows: dict[str, dict[str, Any]] = {named: {"sandbox": named} for named in workers}

    def each(name: str, work: Callable[[Callable[..., Any]], Any]) -> None:
        """One figure of every sandbox, one after the other."""
        for named, worker in workers.items():
            rows[named][name] = work(lambda method, *given, worker=worker: worker.submit(_do, method, *given).result())

    def in_turns(method: str, count: int) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {named: [] for named in workers}
        for at in range(0, count, ROUND):
            for named, worker in workers.items():
                taken[named] += worker.submit(_do, method, min(ROUND, count - at)).result()
        return taken

    each("start_s", lambda do: round(do("program"), 2))
    each("isolation", lambda do: do("isolation"))
    bare = spread(measure_bare(args.programs // 4))["p50_ms"]
    programs = in_turns("programs", args.programs)
    each("programs_per_s", lambda do: round(do("rate", args.programs), 1))
    each("open_cold_s", lambda do: round(do("open")[0], 2))
    each("idle_session_mb", lambda do: do("memory_mb"))
    calls = in_turns("calls", args.calls)
    each("closed", lambda do: do("close_sessions"))
    opened = in_turns("in_a_row", 1000 if args.long else args.sessions)
    each("at_once", lambda do: do("open_at_once"))
    if args.commands:
        for kind in ("run", "exec"):
            for named, worker in workers.items():
                if named.startswith("docker"):
                    rows[named][f"docker_{kind}"] = spread(worker.submit(_do, "command", kind, args.commands).result())
    each("left_over", lambda do: do("end"))
    for worker in workers.values():
        worker.shutdown()
    for named, row in rows.items():
        row |= {"program": spread(programs[named]), "bare_python_p50_ms": bare, "call": spread(calls[named])}
        row |= {"open": spread(opened[named]), "sessions_in_a_row": len(opened[named])}
        del row["closed"]
        print(json.dumps(row), flush=True)
    return int(any(row["left_over"] or row["at_once"]["right"] != args.at_once for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
