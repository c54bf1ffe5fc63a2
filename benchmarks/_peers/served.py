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
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
                if int(parent) == self.process.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def cpus(self) -> dict[int, float]:
        """Seconds of CPU time of each of its processes so far, the server first."""
        found = {}
        for pid in self.pids():
            with suppress(OSError):  # nanoseconds, of the threads that live
                found[pid] = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
        return found

    def memory(self, *, workers: bool = False) -> float:
        """The resident memory of the server, and if wanted of its workers, in MB."""
        total = 0
        for pid in self.pids() if workers else [self.process.pid]:
            with suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return total * 4096 / 1e6

    def ask(self, path: str, data: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request("POST", path, data, NDJSON if headers is None else headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


ECHO = """
import asyncio, json, socket, uvicorn
LINE = b'{"index": 123, "id": 123, "score": 1.0, "reason": "equal to the reference", "fault": "none"}\\n'

async def app(scope, receive, send):
    body, more = [], True
    while more:
        message = await receive()
        body.append(message.get("body", b""))
        more = message.get("more_body", False)
    reply = LINE * (b"".join(body).count(b"\\n") + 1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": reply})

link = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{link.getsockname()[1]}"}), flush=True)
server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", ws="none"))
asyncio.run(server.serve(sockets=[link]))
"""
"""A server that reads a body and replies a fixed line for each of its lines: what HTTP alone costs."""


@contextmanager
def serving(*arguments: str) -> Iterator[Service]:
    """A server that ends with the block; `echo` is one that judges nothing."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RLVR_SERVE_TOKEN": TOKEN}
    command = [sys.executable, "-m", "rlvr", "serve", *arguments, "--port", "0", "--json"]
    if arguments == ("echo",):
        command = [sys.executable, "-c", ECHO]
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
