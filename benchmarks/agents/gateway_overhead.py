"""What the gateway adds to a call: from the client's request to its reply, where the sampler takes no time. For 1 and for 64 agents at once.

Each agent has an episode and a session of its own, as in a rollout, and sends a conversation of 20 messages. Limits: a median of 5 ms for one agent
and of 20 ms for 64, whose client runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlvr.gateway.calls import AgentCalls, ChatReply
from rlvr.gateway.server import Gateway

LIMITS_MS = {1: 5.0, 64: 20.0}
BODY = json.dumps(
    {"messages": [{"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n} " * 40} for n in range(21)]}
).encode()


def call_many(url: str, keys: list[str], calls: int, gap_s: float, results: Any) -> None:
    """Each key calls so often, with a pause in which an agent would work."""
    import http.client

    times: list[float] = []

    def play(key: str, delay_s: float) -> None:
        time.sleep(delay_s)
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        for _ in range(calls):
            began = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", BODY, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            reply = connection.getresponse()
            data = reply.read()
            times.append(time.perf_counter() - began)
            assert reply.status == 200, data
            time.sleep(gap_s)
        connection.close()

    threads = [threading.Thread(target=play, args=(key, gap_s * number / len(keys))) for number, key in enumerate(keys)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(times)


def measure(num_agents: int, calls: int, gap_s: float) -> dict[str, Any]:
    stop = threading.Event()
    with Gateway() as gateway:
        episodes = [AgentCalls() for _ in range(num_agents)]

        def answer(episode: AgentCalls) -> None:
            while not stop.is_set():
                if (call := episode.take(timeout_s=0.2)) is not None:
                    episode.answer(call, ChatReply({"role": "assistant", "content": "so be it"}, "stop", 900, 5))

        threads = [threading.Thread(target=answer, args=(episode,), daemon=True) for episode in episodes]
        for episode, thread in zip(episodes, threads, strict=True):
            gateway.register(episode)
            thread.start()
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        process = context.Process(target=call_many, args=(gateway.url, [episode.secret for episode in episodes], calls, gap_s, results))
        process.start()
        times = results.get(timeout=300)
        process.join()
        stop.set()
    p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    return {"agents": num_agents, "calls": len(times), "p50_ms": round(1000 * p50, 2), "p99_ms": round(1000 * p99, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--gap-s", type=float, default=1.0, help="the pause of an agent between two calls, with 64 agents")
    given = parser.parse_args()
    rows = [measure(1, 5 * given.calls, 0.0), measure(64, given.calls, given.gap_s)]
    for row in rows:
        print(json.dumps(row), flush=True)
    passed = all(row["p50_ms"] <= LIMITS_MS[row["agents"]] for row in rows)
    print(json.dumps({"passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
