"""A real `rlvr serve` in a process of its own, on a free port, ended by its process id."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
VERIFIERS = '''
import asyncio, os, signal, time
from rlvr import VerifierExample, Task, Verdict
from rlvr.contracts import Verifier, VerifierTraits


class Moody(Verifier):
    """Does what the answer says, which no real verifier does."""

    examples = (VerifierExample("4", correct=("4",), incorrect=("5",)),)

    def verify(self, task: Task, answer: str) -> Verdict:
        word, _, rest = answer.partition(" ")
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "die-once" and not os.path.exists(rest):
            open(rest, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "sleep":
            time.sleep(float(rest))
        if word == "raise":
            raise RuntimeError("broken")
        if word == "pid":
            return Verdict(1.0, str(os.getpid()))
        if word == "secret":
            return Verdict(1.0, str(os.environ.get("RLVR_SERVE_TOKEN")))
        return Verdict(float(word == task.reference or word in ("sleep", "die-once")), "compared")


class Together(Moody):
    """Counts how many answers it gets at once."""

    def verify_many(self, tasks, answers):
        time.sleep(sum(float(answer.removeprefix("sleep ")) for answer in answers if answer.startswith("sleep ")))
        return [Verdict(float(answer == "4"), f"{len(answers)} together") for answer in answers]


class Awaited(Moody):
    """Waits in a coroutine."""

    traits = VerifierTraits(is_async=True, has_batch_method=True)

    def verify(self, task, answer):
        return asyncio.run(self.averify(task, answer))

    def verify_many(self, tasks, answers):
        async def verify_all():
            return await asyncio.gather(*map(self.averify, tasks, answers))

        return asyncio.run(verify_all())

    async def averify(self, task, answer):
        word, _, rest = answer.partition(" ")
        await asyncio.sleep(float(rest) if word == "sleep" else 0.0)
        return super().verify(task, "5" if word == "sleep" else answer)
'''


@dataclass
class Server:
    """A service that runs."""

    process: subprocess.Popen[str]
    url: str
    token: str = ""
    said: list[str] = field(default_factory=list)

    def ask(self, path: str, body: Any = None, *, method: str = "", raw: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """One request on a connection of its own: the status, and the JSON or the text."""
        status, data, _ = self.exchange(path, body, method=method, raw=raw, **headers)
        try:
            return status, json.loads(data)
        except ValueError:
            return status, data.decode()

    def lines(self, rows: Sequence[Any], path: str = "/verify/batch", **headers: str) -> list[dict[str, Any]]:
        """A batch: its lines, as they came."""
        raw = b"\n".join(json.dumps(row).encode() for row in rows)
        headers["content-type"] = "application/x-ndjson"
        status, data, _ = self.exchange(path, raw=raw, **headers)
        assert status == 200, data
        return [json.loads(line) for line in data.splitlines()]

    def exchange(
        self, path: str, body: Any = None, *, method: str = "", raw: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """One request: the status, the bytes and the headers."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=30)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        head = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token and "authorization" not in head:
            head["authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, head)
            reply = connection.getresponse()
            return reply.status, reply.read(), {name.lower(): value for name, value in reply.getheaders()}
        finally:
            connection.close()

    def workers(self) -> list[int]:
        """The process ids of its worker processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
                command = (path.parent / "cmdline").read_text()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and "rlvr.serve.worker" in command:
                found.append(int(path.parent.name))
        return found

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@contextmanager
def served(*arguments: str, token: str = "", cwd: Path | None = None) -> Iterator[Server]:
    """A service; it is killed at the end if it has not ended by itself."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "RLVR_SERVE_TOKEN": token}
    command = [sys.executable, "-m", "rlvr", "serve", *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd)
    said: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    reading = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
    reading.start()
    try:
        line = process.stdout.readline()
        if not line:
            process.wait(10)
            reading.join(5)
            raise AssertionError("".join(said))
        yield Server(process, json.loads(line)["url"], token, said)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        reading.join(5)
        process.stdout.close()
        process.stderr.close()


def until(true: Any, seconds: float = 10.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.02)
