"""Break the infrastructure while a batch is judged, and count the verdicts. A table, and one JSON line.

    python benchmarks/sandbox/faults.py          (root, and an engine at DOCKER_HOST that has the image)

A second Docker Engine is started for this alone, by `.ci/engine` in a separate folder, so that it can be killed. Half of the
answers of every batch are right and half are wrong. While the batch runs one thing is broken; then the same verifier, in the
same process, judges another batch. `wrong` counts right answers without the full score and wrong ones with a score,
if there was a verdict; `none` counts those without a score, each of which must have the fault `infra`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlvr.registry.plugins import build
from rlvr.sandbox._outside import engine as docker_engine
from rlvr.sandbox._outside import supervisor_connection as channel
from rlvr.task import Fault, Task, Verdict, user

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "engine"
WALL_S = 2.0
DEADLINE_S = channel.MAX_WALL_FACTOR * WALL_S + channel.REPLY_TIMEOUT_S + channel.CLEANUP_TIMEOUT_S
RIGHT = "import time\ntime.sleep(0.2)\nprint(int(input()) ** 2)"
WRONG = RIGHT.replace("** 2", "** 3")
REFERENCE = {"kind": "stdio", "cases": [{"stdin": "7", "stdout": "49"}], "limits": {"wall_s": WALL_S}}


class Engine:
    """A separate Docker Engine that may be killed; the one that others use is never touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "RLVR_ENGINE_STATE": str(folder), "RLVR_ENGINE_ARCHIVE": str(folder / "image.tar")}

    def start(self) -> None:
        """Start or restart it, and let this process use it."""
        said = subprocess.run([SCRIPT, "start"], env=self.environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        os.environ["DOCKER_HOST"] = said.strip().partition("=")[2]

    def kill(self) -> None:
        """Kill the daemon without warning."""
        os.kill(int((self.folder / "dockerd.pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        """Stop it in the regular way."""
        subprocess.run([SCRIPT, "stop"], env=self.environment, check=True)


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """The second engine, with the image of the first; it is removed completely afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rlvr-faults-"))
    before = os.environ.get("DOCKER_HOST")
    made = Engine(folder)
    try:
        save_image(folder / "image.tar")
        made.start()
        yield made
    finally:
        made.stop()
        for line in Path("/proc/self/mounts").read_text().splitlines():  # what a killed daemon left mounted
            if line.split()[1].startswith(str(folder)):
                subprocess.run(["umount", "--lazy", line.split()[1]], check=False)
        shutil.rmtree(folder)
        os.environ.pop("DOCKER_HOST")
        if before is not None:
            os.environ["DOCKER_HOST"] = before


def save_image(path: Path) -> None:
    """The files of the first engine's image, as one archive."""
    client = docker_engine.connect()
    try:
        container = client.containers.create(docker_engine.IMAGE, ["true"], network_mode="none")
        with path.open("wb") as file:
            file.writelines(container.export())
        container.remove()
    finally:
        client.close()


Break = Callable[[], None]


def batch(verifier: Any, count: int, threads: int, broken: Break | None) -> dict[str, Any]:
    """Judge so many answers; a third of the way through, break something."""
    done, third = [], threading.Event()

    def one(index: int) -> tuple[bool, Verdict, float]:
        began = time.monotonic()
        verdict = verifier.verify(Task(user("x"), REFERENCE, id=f"t{index}"), f"```python\n{RIGHT if index % 2 else WRONG}\n```")
        done.append(index)
        if len(done) > count // 3:
            third.set()
        return bool(index % 2), verdict, time.monotonic() - began

    with ThreadPoolExecutor(threads + 1) as pool:
        began = time.monotonic()
        fault = pool.submit(lambda: third.wait(600) and broken()) if broken else None
        rows = list(pool.map(one, range(count)))
        if fault:
            fault.result(600)
    given = [(right, verdict) for right, verdict, _ in rows if verdict.score is not None]
    without = [verdict for _, verdict, _ in rows if verdict.score is None]
    return {
        "judged": len(given),
        "wrong": sum(verdict.score != float(right) for right, verdict in given),
        "none": len(without),
        "none_not_infra": sum(verdict.fault is not Fault.INFRA for verdict in without),
        "longest_s": round(max(seconds for *_, seconds in rows), 1),
        "seconds": round(time.monotonic() - began, 1),
        "reason": without[0].reason if without else "",
    }


class Hands:
    """The ways to break a running sandbox from outside."""

    def __init__(self, sandbox: Any, engine: Engine) -> None:
        self.sandbox, self.engine = sandbox, engine

    def each(self, work: Callable[[Any], object]) -> None:
        """Run a function on every running container."""
        client = docker_engine.connect()
        try:
            for name in self.sandbox.containers():
                work(client.containers.get(name))
        finally:
            client.close()

    def signal_supervisors(self, number: int) -> None:
        """Send a signal to the first process of every container, from outside."""
        self.each(lambda container: os.kill(container.attrs["State"]["Pid"], number))

    def fill_disks(self) -> None:
        """Fill both folders of every container, from outside."""
        command = ["sh", "-c", "cat /dev/zero >/tmp/filled; cat /dev/zero >/dev/shm/filled; true"]
        self.each(lambda container: container.exec_run(command, user="0:0"))

    def restart_engine(self) -> None:
        """Kill the daemon, be without one for three seconds, start it again."""
        self.engine.kill()
        time.sleep(3)
        self.engine.start()

    def faults(self) -> dict[str, Break]:
        """Every fault, by its name in the table."""
        return {
            "supervisor killed": lambda: self.signal_supervisors(signal.SIGKILL),
            "supervisor frozen": lambda: self.signal_supervisors(signal.SIGSTOP),
            "container killed": lambda: self.each(lambda container: container.kill()),
            "container removed": lambda: self.each(lambda container: container.remove(force=True)),
            "container's disk filled": self.fill_disks,
            "daemon killed, back after 3 s": self.restart_engine,
        }


def main() -> None:
    """Break one thing after another."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=60)
    arguments.add_argument("--threads", type=int, default=4)
    given = arguments.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    with engine() as own:
        own.stop()
        with build("sandbox", "docker", containers=2) as sandbox:
            verifier = build("verifier", "unit_tests", sandbox=sandbox)
            rows["no engine at the start"] = batch(verifier, given.count, given.threads, None)
            own.start()
            for name, broken in [("no engine at the start", None), *Hands(sandbox, own).faults().items()]:
                if broken:
                    rows[name] = batch(verifier, given.count, given.threads, broken)
                after = batch(verifier, given.count, given.threads, None)
                rows[name]["after"] = {key: after[key] for key in ("judged", "wrong", "none", "longest_s")}
        client = docker_engine.connect()
        left = len(client.containers.list(all=True))
        client.close()
    show(rows)
    totals = {key: sum(row[key] + row["after"].get(key, 0) for row in rows.values()) for key in ("wrong", "none_not_infra")}
    recovered = all(row["after"]["judged"] == given.count for row in rows.values())
    longest = max(row["longest_s"] for row in rows.values())
    print(json.dumps({**totals, "recovered": recovered, "longest_s": longest, "deadline_s": DEADLINE_S, "containers_left": left, **rows}))


def show(rows: dict[str, dict[str, Any]]) -> None:
    """The table, on standard error."""
    table = Table("fault", "judged", "wrong", "none", "not infra", "longest s", "judged after", "none after", "said")
    for name, row in rows.items():
        cells = [row[key] for key in ("judged", "wrong", "none", "none_not_infra", "longest_s")]
        table.add_row(
            name, *map(str, [*cells, row["after"]["judged"], row["after"]["none"]]), row["reason"].removeprefix("the sandbox failed: ")[:70]
        )
    Console(file=sys.stderr, width=200).print(table)


if __name__ == "__main__":
    main()
