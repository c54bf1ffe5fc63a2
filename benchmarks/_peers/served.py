"""A `rlvr serve` in a process of its own, and the rows that its benchmark sends."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-benchmark-0123456789"
NDJSON = {"content-type": "application/x-ndjson", "authorization": f"Bearer {TOKEN}"}


class Service:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.host, self.port = str(urlsplit(url).hostname), urlsplit(url).port or 80

    def pids(self) -> list[int]:
        """The server and its workers."""
        found = [self.process.pid]
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(path.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    found.append(int(path.parent.name))
        return found

    def cpus(self) -> dict[int, float]:
        """Seconds of CPU time of each of its processes so far, the server first."""
        found = {}
        for pid in self.pids():
            with suppress(OSError):  # nanoseconds, of the threads that live
                found[pid] = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
        return found

    def memory(self) -> float:
        """The resident memory of the server, in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6

    def ask(self, path: str, data: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request("POST", path, data, NDJSON if headers is None else headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


@contextmanager
def serving(*arguments: str) -> Iterator[Service]:
    """A server that ends with the block."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RLVR_SERVE_TOKEN": TOKEN}
    command = [sys.executable, "-m", "rlvr", "serve", *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield Service(process, json.loads(process.stdout.readline())["url"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def lines_of(count: int, seed: int = 0) -> list[bytes]:
    """Answers as a policy writes them: some reasoning, then a number, a fraction or a formula; half of them right."""
    dice, rows = random.Random(seed), []
    for number in range(count):
        top, low = dice.randrange(2, 900), dice.randrange(2, 90)
        reference = dice.choice([str(top), rf"\frac{{{top}}}{{{low}}}", rf"{top}\sqrt{{{low}}}", f"x^2 + {top}x - {low}"])
        answer = reference if dice.random() < 0.5 else reference.replace(str(top), str(top + 1))
        text = f"We add {top} and {low}, and then simplify what is left. " * 6 + rf"The answer is $\boxed{{{answer}}}$."
        rows.append(json.dumps({"id": number, "reference": reference, "answer": text}).encode())
    return rows
