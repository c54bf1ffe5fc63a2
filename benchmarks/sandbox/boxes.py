"""How fast boxes open and answer, what an idle one costs, how many fit, and what is left after kills. JSON lines.

    python benchmarks/sandbox/boxes.py --sandbox docker --sessions 10000 --at-once 256 --kills 200
    RLVR_ENGINE_STATE=DIR python benchmarks/sandbox/boxes.py --engine .ci/engine --daemons 5      kills a Docker daemon of its own

Bars: open p50 60 ms, call p50 10 ms, 256 open at once on 24 GiB, nothing left over, a fault is never a score of 0, nobody else's box
disturbed. `paced` calls come 100 ms after the one before, as a policy's do; `back to back` calls wait for the shell
that is started ahead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.sandbox._chosen import add_arguments, build_sandbox, get_used
from rlvr.cli.settings import parse_settings
from rlvr.contracts import ExitStatus, Sandbox, SandboxSession, SandboxSpec
from rlvr.errors import SandboxError
from rlvr.runs.folder_owner import is_owner_dead
from rlvr.sandbox._inside.box import cgroups as groups
from rlvr.sandbox.process import FOLDER_PREFIX

PLACE = SandboxSpec(memory_mb=192, disk_mb=32)
MARK = "31337.5"  # seconds that the background processes sleep: their name in the process table


def say(what: str, **figures: Any) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def spread(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: the middle, the 99th percentile and the largest."""
    ordered = sorted(1000 * value for value in seconds)
    return {
        "n": len(ordered),
        "p50_ms": round(statistics.median(ordered), 2),
        "p99_ms": round(ordered[len(ordered) * 99 // 100], 2),
        "max_ms": round(ordered[-1], 1),
    }


def opened(args: argparse.Namespace, boxes: int) -> Sandbox:
    return build_sandbox(args, max_sessions=boxes, queue_timeout_s=120.0)


def calls(args: argparse.Namespace) -> None:
    """The first open, and calls in both languages, paced and back to back."""
    with opened(args, 1) as sandbox:
        began = time.perf_counter()
        with sandbox.create_session(PLACE) as box:
            say("open, nothing warm", seconds=round(time.perf_counter() - began, 3), isolation=box.run("true").isolation)
            languages: tuple[tuple[Literal["bash", "python"], str], ...] = (("bash", "true"), ("python", "pass"))
            for language, source in languages:
                for pause, count in ((0.1, args.calls // 4), (0.0, args.calls)):
                    taken = []
                    for _ in range(count):
                        time.sleep(pause)
                        began = time.perf_counter()
                        assert box.run(source, language=language).status is ExitStatus.OK
                        taken.append(time.perf_counter() - began)
                    say(f"call {language}, {'paced' if pause else 'back to back'}", **spread(taken), bar_p50_ms=10)


def sessions(args: argparse.Namespace) -> None:
    """One session after another: open, one call in each language, close. What is left after all of them."""
    before, taken, wrong = left(), [], Counter[str]()
    began = time.perf_counter()
    with opened(args, 1) as sandbox:
        for number in range(args.sessions):
            start = time.perf_counter()
            box = sandbox.create_session(PLACE)
            taken.append(time.perf_counter() - start)
            told = [box.run(f"ls -A; echo {number} > left; sleep {MARK} & true"), box.run(f"print({number})", language="python")]
            wrong[f"{told[0].status.value} {told[1].status.value} {'clean' if not told[0].stdout_bytes else 'NOT CLEAN'}"] += 1
            box.close()
    say(
        "sessions in a row",
        **spread(taken),
        seconds=round(time.perf_counter() - began, 1),
        outcomes=wrong,
        left_over=sorted(left() - before),
        bar_p50_ms=60,
    )


def at_once(args: argparse.Namespace) -> None:
    """Many boxes open at once: how long that takes, the memory of each, and whether each is its own."""
    free, before, began = available_mb(), left(), time.perf_counter()
    with opened(args, args.at_once) as sandbox, contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(4) as threads:
            boxes = list(threads.map(lambda _: stack.enter_context(sandbox.create_session(PLACE)), range(args.at_once)))
        spent, idle = time.perf_counter() - began, free - available_mb()

        def own(pair: tuple[int, SandboxSession]) -> bool:
            number, box = pair
            box.run(f"x = {number}; open('x', 'w').write(str(x))", language="python")
            return box.run("print(x, open('x').read())", language="python").stdout_bytes == f"{number} {number}\n".encode()

        with ThreadPoolExecutor(8) as threads:
            right = sum(threads.map(own, enumerate(boxes)))
        used = free - available_mb()
        began = time.perf_counter()
    say(
        "open at once", boxes=len(boxes), right=right, seconds=round(spent, 1), closing_s=round(time.perf_counter() - began, 1),
        idle_mb_each=round(idle / len(boxes), 1), with_session_mb_each=round(used / len(boxes), 1), machine_mb=round(used),
        bar_mb=24 * 1024,
        left_over=sorted(left() - before),
    )  # fmt: skip


def kills(args: argparse.Namespace) -> None:
    """Kill a call, a supervisor, its container or nothing, at a random moment. A neighbour is asked after each."""
    before, seen, rng = left(), Counter[str](), random.Random(args.seed)
    with opened(args, 3) as sandbox, sandbox.create_session(PLACE) as neighbour:
        neighbour.run("count = 0", language="python")
        for number in range(1, args.kills + 1):
            what = rng.choice(("call", "close", "supervisor"))
            box = sandbox.create_session(PLACE)
            box.run(f"sleep {MARK} >/dev/null 2>&1 &")
            timer = threading.Timer(rng.random() * 0.3, strike, (sandbox, box, what))
            timer.start()
            outcome = box.run(f"sleep 20 & sleep {MARK}", timeout=0.4 if what == "call" else 20.0)
            timer.join()
            later = box.run("echo well", timeout=20)
            seen[f"{what}: {outcome.status.value}, then {later.status.value}{' (lost)' if box.has_failed else ''}"] += 1
            box.close()
            asked = neighbour.run("count += 1; print(count)", language="python", timeout=20)
            seen["neighbour right" if asked.stdout_bytes == b"%d\n" % number else "NEIGHBOUR DISTURBED"] += 1
    say("random kills", outcomes=seen, left_over=sorted(left() - before))


def strike(sandbox: Any, box: SandboxSession, what: str) -> None:
    if what == "close":
        box.close()
    elif what == "supervisor":
        for channel in get_used(sandbox)._sessions.list_supervisors():
            if channel.id.startswith(box.id.rpartition(".")[0]):
                with contextlib.suppress(Exception):
                    channel.client.api.kill(channel.id) if hasattr(channel, "client") else channel._process.kill()


OWNER = f"""
import json, sys, rlvr
sandbox = rlvr.make_sandbox(sys.argv[1], max_sessions=4, **json.loads(sys.argv[2]))
for _ in range(3):
    box = sandbox.create_session()
    box.run("sleep {MARK} >/dev/null 2>&1 &")
print("open", flush=True)
box.run("sleep {MARK}", timeout=600)
"""


def owners(args: argparse.Namespace) -> None:
    """Kill our own process with three boxes open; what is left then, and after the next start."""
    before, at_kill = left(), Counter[str]()
    settings = json.dumps(({"trusted": True} if args.sandbox == "process" else {}) | parse_settings(args.set))
    for _ in range(args.owners):
        owner = subprocess.Popen([sys.executable, "-c", OWNER, args.sandbox, settings], stdout=subprocess.PIPE)
        assert owner.stdout and owner.stdout.readline() == b"open\n"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        time.sleep(2)
        at_kill["something left" if left() - before else "nothing left"] += 1
    with opened(args, 1) as sandbox, sandbox.create_session(PLACE) as box:
        assert box.run("true").status is ExitStatus.OK
    time.sleep(2)
    say("our process killed", times=args.owners, boxes=3 * args.owners, after_2_s=at_kill, left_over=sorted(left() - before))


def engine_started(args: argparse.Namespace) -> int:
    """Start the daemon that RLVR_ENGINE_STATE names, and use it from now on: its process id."""
    told = subprocess.run([args.engine, "start"], capture_output=True, text=True, timeout=300, check=True).stdout
    os.environ["DOCKER_HOST"] = told.split("DOCKER_HOST=", 1)[1].split()[0]
    return int(Path(os.environ["RLVR_ENGINE_STATE"], "dockerd.pid").read_text())


def daemons(args: argparse.Namespace) -> None:
    """Kill the Docker daemon while a call runs, and start it again: what the call and the files give, how long it takes, what is left."""
    if args.sandbox != "docker" or not args.engine or not os.environ.get("RLVR_ENGINE_STATE"):
        raise SystemExit("--daemons kills a Docker daemon: give --sandbox docker, --engine .ci/engine, and a folder in RLVR_ENGINE_STATE")
    seen, taken, closing, before, still = Counter[str](), list[float](), list[float](), set[str](), set[str]()
    for number in range(args.daemons):
        daemon = engine_started(args)
        before = before if number else left()
        with opened(args, 2) as sandbox:
            box = sandbox.create_session(PLACE)
            box.run(f"sleep {MARK} >/dev/null 2>&1 &")
            threading.Timer(0.5, os.kill, (daemon, signal.SIGKILL)).start()
            began = time.perf_counter()
            outcome = box.run(f"sleep {MARK}", timeout=20)
            taken.append(time.perf_counter() - began - 0.5)
            try:
                files = f"{len(box.read_file('x', 10))} bytes"
            except (OSError, SandboxError) as error:
                files = type(error).__name__
            began = time.perf_counter()
            box.close()
        closing.append(time.perf_counter() - began)
        seen[f"call {outcome.status.value}, files {files}, lost {box.has_failed}"] += 1
        engine_started(args)
        with opened(args, 1) as again, again.create_session(PLACE) as fresh:
            seen[f"after the next start {fresh.run('true').status.value}"] += 1
        until = time.monotonic() + 10
        while (rest := left() - before) and time.monotonic() < until:
            time.sleep(0.2)
        seen["something left" if rest else "nothing left"] += 1
        still |= rest
    subprocess.run([args.engine, "stop"], capture_output=True, timeout=120, check=True)
    spreads = {"noticed": spread(taken), "closed": spread(closing)}
    say("daemon killed in mid-session", times=args.daemons, outcomes=seen, **spreads, left_over=sorted(still))


def left() -> set[str]:
    """Marked processes, and the containers, folders and control groups of dead owners and of ours: by name."""
    found = {f"group {name}" for name in groups.list_parent_cgroup_names(FOLDER_PREFIX) if is_concerned(name.partition("=")[2])}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == f"sleep\0{MARK}\0".encode():
                found.add(f"process {path.parent.name}")
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if is_concerned((folder / "owner").read_text()):
                found.add(f"folder {folder.name}")
    with contextlib.suppress(SandboxError):
        from rlvr.sandbox._outside import engine

        client = engine.connect(10)
        try:
            for one in client.containers.list(all=True, filters={"label": engine.LABEL}, ignore_removed=True):
                if is_concerned(one.labels.get(engine.LABEL) or ""):
                    found.add(f"container {one.id}")
        finally:
            client.close()
    return found


def is_concerned(owner: str) -> bool:
    """Whether the owner of something is dead, or this process: what others that run at the same time have open is no leftover."""
    return is_owner_dead(owner) or owner.split("|")[3] == str(os.getpid())


def available_mb() -> float:
    text = Path("/proc/meminfo").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("MemAvailable"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--owners", type=int, default=5, help="how often a process of ours is killed, with three boxes open")
    parser.add_argument("--daemons", type=int, default=0, help="how often a Docker daemon of its own is killed in mid-session")
    parser.add_argument("--engine", default="", help="the script that starts and stops that daemon, such as .ci/engine")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    say("machine", sandbox=" ".join([args.sandbox, *args.set]), processors=os.cpu_count(), load=os.getloadavg())
    for count, part in (
        (args.calls, calls),
        (args.sessions, sessions),
        (args.kills, kills),
        (args.owners, owners),
        (args.at_once, at_once),
        (args.daemons, daemons),
    ):
        if count:
            part(args)


if __name__ == "__main__":
    main()
