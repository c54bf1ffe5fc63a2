"""Measure `rlvr serve`: throughput against judging in this process, latency, overload, a killed worker, slow clients, large bodies.

    python benchmarks/judging/service.py                         all parts; a JSON line for each
    python benchmarks/judging/service.py --parts throughput,kill --rows 20000 --verifier symbolic

Throughput is compared in CPU time: that of the server and its workers against that of this process, which reads the same JSON lines and
writes the same verdicts with `json`, in rounds that take turns; `times_the_cpu` is the median of the rounds, and
`times_the_cpu_with_its_reader` the same against a process that reads and writes as the service does. `--verifier busy:5` takes five
milliseconds for an answer, as one that runs a program. `floor` is what the same bodies cost a server that only reads them and replies:
the part of the difference that is HTTP. Bars: at most 1.3 times the CPU time; no verdict lost, and none that is 0 for an answer that is
right; the server's memory grows by less than four times the bodies that it admits (`--memory`); 401, 413 and 429 where they belong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks._peers.served import TOKEN, Service, lines_of, serving  # noqa: E402
from rlvr.registry.plugins import build  # noqa: E402
from rlvr.serve.rows import format_verdict_line, parse_row  # noqa: E402
from rlvr.task import Task, Verdict, make_user_prompt  # noqa: E402
from rlvr.verifiers.remote import ServiceClient  # noqa: E402


def throughput(asked: argparse.Namespace) -> dict[str, Any]:
    """CPU time of rows in batches, against this process. Both judge the same rows, round by round in turn, and no row comes twice."""
    settings, name = _verifier(asked.verifier)
    rounds = [lines_of(asked.rows // asked.repeats, seed) for seed in range(asked.repeats)]
    limits = ("--workers", str(asked.workers), "--threads", "1", "--queue", str(2 * asked.rows))
    here_s, server_s, worker_s, wall, ratios, strict, same = 0.0, 0.0, 0.0, 0.0, list[float](), list[float](), True
    with build("verifier", name, **settings) as verifier, serving(_text(asked.verifier), *limits) as service:
        for early in (lines_of(400, seed=-1), lines_of(400, seed=-2)):
            here = [_judged(verifier, line) for line in early]
            service.ask("/verify/batch", b"\n".join(early))
        for turn, rows in enumerate(rounds):
            for side in ("here", "there") if turn % 2 else ("there", "here"):
                if side == "here":
                    began = time.process_time()
                    here = [_judged(verifier, line) for line in rows]
                    mine = time.process_time() - began
                    other = lines_of(len(rows), seed=1000 + turn)  # no row comes twice: a verifier may remember it
                    began = time.process_time()
                    for row, task, answer in map(parse_row, other):  # as a worker of the service does it
                        format_verdict_line(row, verifier.verify(task, answer))
                    alike = time.process_time() - began
                else:
                    before, clock = service.cpus(), time.monotonic()
                    parts = [rows[place : place + asked.batch] for place in range(0, len(rows), asked.batch)]
                    there = b"".join(service.ask("/verify/batch", b"\n".join(part))[1] for part in parts)
                    after, wall = service.cpus(), wall + time.monotonic() - clock
                    used = [after[pid] - before.get(pid, 0.0) for pid in after]
            here_s, server_s, worker_s = here_s + mine, server_s + used[0], worker_s + sum(used[1:])
            ratios.append(sum(used) / mine)
            strict.append(sum(used) / alike)
            scores = [Counter(json.loads(line)["score"] for line in lines) for lines in (here, there.splitlines())]
            same = same and scores[0] == scores[1]
    count = sum(map(len, rounds))
    return {
        "rows": count,
        "batch": asked.batch,
        "us_per_row_here": round(1e6 * here_s / count, 1),
        "us_per_row_server": round(1e6 * server_s / count, 1),
        "us_per_row_workers": round(1e6 * worker_s / count, 1),
        "rows_per_second_served": round(count / wall),
        "times_the_cpu": round(statistics.median(ratios), 2),
        "times_the_cpu_by_round": [round(ratio, 2) for ratio in sorted(ratios)],
        "times_the_cpu_with_its_reader": round(statistics.median(strict), 2),
        "bar": 1.3,
        "same_scores": same,
    }


BUSY = '''
import time
from rlvr.verifiers.numeric import make as Numeric


class Busy(Numeric):
    """As `numeric`, after so many milliseconds of work."""

    def __init__(self, *, ms: float = 5.0) -> None:
        super().__init__()
        self.ms = ms

    def verify(self, task, answer):
        until = time.thread_time() + self.ms / 1000
        while time.thread_time() < until:
            pass
        return super().verify(task, answer)
'''
BUSY_FILE = Path(tempfile.gettempdir()) / f"rlvr-busy-{os.getpid()}.py"


def _verifier(verifier: str) -> tuple[dict[str, Any], str]:
    """The settings and the name of a verifier; `busy:5` takes five milliseconds of CPU time for an answer."""
    if not verifier.startswith("busy:"):
        return {}, verifier
    BUSY_FILE.write_text(BUSY, "utf-8")
    return {"ms": float(verifier.partition(":")[2])}, f"{BUSY_FILE}:Busy"


def _text(verifier: str) -> str:
    """The same for the command line."""
    settings, name = _verifier(verifier)
    return json.dumps({"name": name, **settings}) if settings else name


def _judged(verifier: Any, line: bytes) -> str:
    """A row as a script without the service judges it: read with `json`, written with `json`."""
    row = json.loads(line)
    task = Task(make_user_prompt(""), row["reference"], id=str(row["id"]))
    return json.dumps({"id": row["id"], **verifier.verify(task, row["answer"]).record()})


def floor(asked: argparse.Namespace) -> dict[str, Any]:
    """What the same bodies cost without any judging: in a server that only reads them and replies as many lines, and as JSON alone."""
    rounds, used, wall = [lines_of(asked.rows // asked.repeats, seed) for seed in range(asked.repeats)], 0.0, 0.0
    with serving("echo") as service:
        service.ask("/", b"\n".join(lines_of(400, seed=-1)))
        for rows in rounds:
            before, clock = service.cpus(), time.monotonic()
            for place in range(0, len(rows), asked.batch):
                service.ask("/", b"\n".join(rows[place : place + asked.batch]))
            used, wall = used + sum(service.cpus().values()) - sum(before.values()), wall + time.monotonic() - clock
    began, told = time.process_time(), Verdict(1.0, "equal to the reference")
    for rows in rounds:
        for line in rows:
            format_verdict_line(parse_row(line)[0], told)
    count = sum(map(len, rounds))
    return {
        "rows": count,
        "batch": asked.batch,
        "us_per_row_http": round(1e6 * used / count, 1),
        "us_per_row_read_and_written": round(1e6 * (time.process_time() - began) / count, 1),
        "rows_per_second": round(count / wall),
    }


def latency(asked: argparse.Namespace) -> dict[str, Any]:
    """The time of a single verdict, with many clients that each wait for one after the other."""
    rows, found = lines_of(2000), {}
    with serving(_text(asked.verifier), "--workers", str(asked.workers)) as service:
        os.environ["RLVR_BENCHMARK_TOKEN"] = TOKEN
        client = ServiceClient(service.url, token_env="RLVR_BENCHMARK_TOKEN", retries=6)

        async def one(times: list[float], place: int, each: int) -> None:
            for turn in range(each):
                began = time.monotonic()
                await client.verify_batch([rows[(place * each + turn) % len(rows)]])
                times.append(time.monotonic() - began)

        async def many(clients: int, each: int) -> list[float]:
            times: list[float] = []
            await asyncio.gather(*(one(times, place, each) for place in range(clients)))
            return times

        asyncio.run(many(8, 10))
        for clients in (64, 512):
            began = time.monotonic()
            times = sorted(asyncio.run(many(clients, max(2, asked.requests // clients))))
            told = {"p50_ms": statistics.median(times), "p99_ms": times[int(0.99 * len(times))]}
            found[str(clients)] = {name: round(1000 * value, 1) for name, value in told.items()}
            found[str(clients)] |= {"requests": len(times), "requests_per_second": round(len(times) / (time.monotonic() - began))}
    return {"clients": found, "note": "client and server share the same cores"}


def overload(asked: argparse.Namespace) -> dict[str, Any]:
    """Twenty times more rows at once than may wait: some requests are refused with 429, and clients that retry get every verdict."""
    queue, batch = 500, 50
    rows = halves(20 * queue)
    parts = [rows[place : place + batch] for place in range(0, len(rows), batch)]
    with serving(_text(asked.verifier), "--workers", str(asked.workers), "--queue", str(queue)) as service:
        before, refused, got = service.memory(), Counter[int](), list[bytes]()
        lock, most = threading.Lock(), [0.0]

        def client(mine: list[list[bytes]]) -> None:
            for part in mine:
                while True:
                    status, data = service.ask("/verify/batch", b"\n".join(part))
                    with lock:
                        refused[status] += 1
                        most[0] = max(most[0], service.memory())
                    if status == 200:
                        with lock:
                            got.extend(data.splitlines())
                        break
                    time.sleep(0.05 + 0.1 * random.random())

        threads = [threading.Thread(target=client, args=(parts[place::100],)) for place in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = service.memory(workers=True)
    told = compared(len(rows), got)
    memory = {"memory_mb_before": round(before), "memory_mb_most": round(most[0]), "memory_mb_with_workers": round(after)}
    return {"rows": len(rows), "queue": queue, "statuses": dict(refused), **told, **memory}


def halves(count: int) -> list[bytes]:
    """Rows whose number says the verdict: even ones are right."""
    return [json.dumps({"id": n, "reference": str(n), "answer": rf"so \boxed{{{n + n % 2}}}"}).encode() for n in range(count)]


def compared(count: int, got: list[bytes]) -> dict[str, Any]:
    """How many rows of `halves` have no verdict, more than one, no score, or a wrong score."""
    found = [json.loads(line) for line in got]
    counts = Counter(row["id"] for row in found)
    wrong = [row for row in found if row["score"] is not None and row["score"] != float(row["id"] % 2 == 0)]
    told = {"lost": count - len(counts), "twice": len(found) - len(counts), "wrong_scores": len(wrong)}
    reasons = Counter(row["reason"][:80] for row in found if row["score"] is None)
    return {**told, "without_score": reasons.total(), "reasons": dict(reasons.most_common(3)), "ok": not any(told.values())}


def kill(asked: argparse.Namespace) -> dict[str, Any]:
    """`kill -9` of a worker, again and again, while answers are judged: none may be lost, and none may get a wrong score."""
    rows = halves(asked.rows)
    parts, kills = [rows[place : place + 500] for place in range(0, len(rows), 500)], 0
    with serving(_text(asked.verifier), "--workers", str(asked.workers), "--queue", "100000") as service:
        got: list[bytes] = []
        lock = threading.Lock()

        def client(mine: list[list[bytes]]) -> None:
            for part in mine:
                status, data = service.ask("/verify/batch", b"\n".join(part))
                assert status == 200, data
                with lock:
                    got.extend(data.splitlines())

        threads = [threading.Thread(target=client, args=(parts[place::4],)) for place in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(asked.every)
            if workers := service.pids()[1:]:
                os.kill(random.choice(workers), signal.SIGKILL)
                kills += 1
        for thread in threads:
            thread.join()
        most = service.memory(workers=True)
    return {"rows": len(rows), "kills": kills, **compared(len(rows), got), "memory_mb_with_workers": round(most)}


def hostile(asked: argparse.Namespace) -> dict[str, Any]:
    """Slow clients, wrong tokens, bodies of 10 MB: each is refused as it should be, and honest clients are served meanwhile."""
    row, statuses = lines_of(1)[0], {}
    limits = ("--max-body", str(4 << 20), "--memory", str(32 << 20))
    with serving(_text(asked.verifier), "--workers", "1", *limits) as service:
        before = service.memory()
        statuses["wrong token"] = service.ask("/verify", row, {"authorization": "Bearer wrong"})[0]
        statuses["no token"] = service.ask("/verify", row, {})[0]
        large = json.dumps({"reference": "4", "answer": "4" * 10_000_000}).encode()
        with suppress(ConnectionError):
            statuses["10 MB"] = service.ask("/verify", large)[0]
        slow = [socket.create_connection((service.host, service.port)) for _ in range(200)]
        head = f"POST /verify HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n".encode()
        for link in slow:
            link.sendall(head)
        began = time.monotonic()
        honest = [service.ask("/verify", row)[0] for _ in range(20)]
        seconds = time.monotonic() - began
        heavy = [threading.Thread(target=lambda: _send(service, 3 << 20)) for _ in range(64)]
        for thread in heavy:
            thread.start()
        most = before
        while any(thread.is_alive() for thread in heavy):
            most = max(most, service.memory())
            time.sleep(0.02)
        slow[0].settimeout(60)
        statuses["slow body"] = int(slow[0].recv(100).split()[1])
        for link in slow:
            link.close()
    return {
        "statuses": statuses,
        "honest_with_200_slow_clients": dict(Counter(honest)),
        "honest_ms_each": round(50 * seconds, 1),
        "bodies_at_once": dict(BODIES),
        "memory_mb_before": round(before),
        "memory_mb_most": round(most),
        "memory_mb_admitted": 32,
        "ok": statuses == {"wrong token": 401, "no token": 401, "10 MB": 413, "slow body": 408} and most - before < 4 * 32,
    }


BODIES: Counter[str] = Counter()


def _send(service: Service, size: int) -> None:
    try:
        status, _ = service.ask("/verify", json.dumps({"reference": "4", "answer": "4" * size}).encode())
        BODIES[str(status)] += 1
    except OSError:
        BODIES["closed"] += 1


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "throughput": throughput,
    "floor": floor,
    "latency": latency,
    "overload": overload,
    "kill": kill,
    "hostile": hostile,
}


def main() -> None:
    """Run the parts and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--verifier", default="symbolic")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=6, help="rounds of the throughput")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=2000, help="for the latency")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between kills")
    asked = parser.parse_args()
    for name in asked.parts.split(","):
        began = time.monotonic()
        print(
            json.dumps({"part": name, "verifier": asked.verifier, **PARTS[name](asked), "seconds": round(time.monotonic() - began, 1)}),
            flush=True,
        )


if __name__ == "__main__":
    main()
