"""Agents and clients that fail: nothing is lost, doubled, or scored 0 by a fault, and nothing is left over.

    python benchmarks/agents/failures.py requests agents runs

`requests`: 10,000 calls of 64 agents through the gateway, of which one in twenty is aborted, sent again, read slowly, cut off in a stream,
malformed, or has a wrong key. `agents`: 64 agents in boxes at once, whose processes and boxes are killed at random. `runs`: a training run
with agents is killed in the middle of episodes and resumed, with `--nodes 2` on a cluster of Ray; it must end as one that was not killed. A line
for each; exit code 1 if a limit
is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlvr
from rlvr.gateway.calls import AgentCalls, ChatReply
from rlvr.gateway.server import Gateway

FAILURES = ("abort", "abort_stream", "again", "slow", "malformed", "wrong_key")
MAX_GROWTH_MB = 64
AGENT = """
import json, os, sys, time, urllib.request
MARK = "rlvr-failing-agent"
said = []
for turn in range(int(sys.argv[2])):
    messages = [{"role": "user", "content": sys.argv[1]}, *said]
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    said += [reply, {"role": "user", "content": "Are you sure?"}]
    time.sleep(float(sys.argv[3]))
"""


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def read_memory_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


# ---- calls that fail


def call_with_failures(url: str, keys: list[str], calls: int, rate: float, results: Any) -> None:
    """Each key asks so often, one call in `rate` with a failure; the replies are compared with what was asked."""
    import http.client

    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def count(name: str) -> None:
        with lock:
            counts[name] += 1

    def ask(
        key: str, question: str, *, stream: bool, body: bytes | None = None, retry: bool = False
    ) -> tuple[http.client.HTTPConnection, Any]:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        asked = {"messages": [{"role": "user", "content": f"{question} " + "x" * 2000}], "stream": stream}
        head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        head |= {"x-stainless-retry-count": "1"} if retry else {}
        connection.request("POST", "/v1/chat/completions", json.dumps(asked).encode() if body is None else body, head)
        return connection, connection

    def read(connection: Any, question: str, *, stream: bool, pause_s: float = 0.0) -> None:
        response = connection.getresponse()
        parts = []
        while part := response.read1(64 if pause_s else 1 << 16):
            parts.append(part)
            time.sleep(pause_s)
        data = b"".join(parts)
        connection.close()
        if stream:
            lines = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
            text = "".join(choice["delta"].get("content") or "" for line in lines for choice in line.get("choices", ()))
        else:
            text = json.loads(data)["choices"][0]["message"]["content"] if response.status == 200 else f"status {response.status}"
        count("right" if text == f"reply to {question}" else "wrong")

    def play(number: int, key: str) -> None:
        dice = random.Random(number)
        for index in range(calls):
            question, stream, has_waited = f"q-{number}-{index}", dice.random() < 0.5, False
            kind = dice.choice(FAILURES) if dice.random() < rate else ""
            count(kind or "sound")
            if kind == "malformed":
                connection, _ = ask(key, question, stream=stream, body=b'{"messages": [')
                response = connection.getresponse()
                count("refused" if response.status == 400 else "wrong")
                response.read()
                connection.close()
                kind = ""
            elif kind == "wrong_key":
                connection, _ = ask("rlvr-guess", question, stream=stream)
                response = connection.getresponse()
                count("refused" if response.status == 401 else "wrong")
                response.read()
                connection.close()
                kind = ""
            elif kind in ("abort", "again"):
                connection, _ = ask(key, question, stream=stream)
                has_waited = dice.random() < 0.5
                time.sleep(0.05 if has_waited else 0.0)
                connection.close()
                if kind == "abort":
                    continue
                time.sleep(dice.choice((0.3, 0.6)))  # as clients wait before they send again
            elif kind == "abort_stream":
                connection, _ = ask(key, question, stream=True)
                connection.getresponse().read1(10)
                connection.close()
                continue
            # a client that was gone before its reply came needs no header; one that may have got it says that it asks again
            connection, _ = ask(key, question, stream=stream, retry=kind == "again" and has_waited)
            read(connection, question, stream=stream, pause_s=0.01 if kind == "slow" else 0.0)

    threads = [threading.Thread(target=play, args=pair) for pair in enumerate(keys)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(dict(counts))


def try_requests(num_calls: int, num_agents: int = 64, rate: float = 0.05) -> dict[str, Any]:
    """The calls of `requests`; `sampled_twice` counts questions with more than one sample, whatever their clients did."""
    stop, samples = threading.Event(), Counter[str]()

    def answer(episode: AgentCalls) -> None:
        while not stop.is_set():
            if (call := episode.take(timeout_s=0.2)) is not None:
                question = str(call.request.messages[0]["content"]).split()[0]
                samples[question] += 1
                time.sleep(0.02)
                episode.answer(call, ChatReply({"role": "assistant", "content": f"reply to {question}"}, "stop", 9, 5))

    def run(calls: int) -> dict[str, int]:
        episodes = [AgentCalls() for _ in range(num_agents)]
        threads = [threading.Thread(target=answer, args=(episode,), daemon=True) for episode in episodes]
        for episode, thread in zip(episodes, threads, strict=True):
            gateway.register(episode)
            thread.start()
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        keys = [episode.secret for episode in episodes]
        process = context.Process(target=call_with_failures, args=(gateway.url, keys, calls, rate, results))
        process.start()
        found: dict[str, int] = results.get(timeout=1500)
        process.join()
        results.close()
        results.join_thread()
        stop.set()
        for episode, thread in zip(episodes, threads, strict=True):
            gateway.unregister(episode, "the end")
            thread.join()
        stop.clear()
        return found

    with Gateway() as gateway:
        run(4)  # what is made once is made before the measurement
        samples.clear()
        time.sleep(1)
        before = count_descriptors(), read_memory_mb(), threading.active_count()
        counts = run(num_calls // num_agents)
        time.sleep(2)
        after = count_descriptors(), read_memory_mb(), threading.active_count()
    expected = counts["sound"] + sum(counts.get(kind, 0) for kind in ("again", "slow", "malformed", "wrong_key"))
    twice = sum(count > 1 for count in samples.values())
    row = {
        "part": "requests",
        "calls": sum(counts[kind] for kind in counts if kind in (*FAILURES, "sound")),
        "counts": counts,
        "lost": expected - counts.get("right", 0) - counts.get("wrong", 0),
        "sampled_twice": twice,
        "descriptors": after[0] - before[0],
        "threads": after[2] - before[2],
        "memory_mb": round(after[1] - before[1], 1),
    }
    row["passed"] = not (counts.get("wrong", 0) or row["lost"] or twice or row["descriptors"] > 2 or row["memory_mb"] > MAX_GROWTH_MB)
    return row


# ---- agents and boxes that are killed


def find_agents(mark: str) -> dict[int, str]:
    """The processes of agents by their ids, with the task of each."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if words[:1] and Path(words[0]).name.startswith("python") and any(mark in word for word in words) and len(words) > 4:
            found[int(place.name)] = words[3]
    return found


def try_agents(num_agents: int, sandbox: str) -> dict[str, Any]:
    """Sixty-four agents at once, of which some are killed, and some lose their box."""
    killed, unboxed = set[str](), set[str]()
    done = threading.Event()
    mark = f"rlvr-failing-{os.getpid()}"
    source = AGENT.replace("rlvr-failing-agent", mark)
    env = rlvr.make_env(
        "agent",
        env="arithmetic",
        command=["python3", "-c", source, "{task}", "4", "0.5"],
        sandbox={"name": sandbox, "max_sessions": num_agents},
        memory_mb=256,
        disk_mb=16,
    )
    tasks = [env.task("train", index) for index in range(num_agents)]
    golds = {task.question: str(env.env.gold(task)) for task in tasks}  # type: ignore[attr-defined]

    def kill_some() -> None:
        dice = random.Random(1)
        while not done.wait(0.4):
            alive = [(pid, task) for pid, task in find_agents(mark).items() if task not in killed | unboxed]
            if not alive or len(killed) + len(unboxed) >= num_agents // 2:
                continue
            pid, task = dice.choice(alive)
            if sandbox == "bubblewrap" and dice.random() < 0.3:
                box = find_box(pid)
                if box:
                    unboxed.add(task)
                    os.kill(box, signal.SIGKILL)
                continue
            killed.add(task)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                killed.discard(task)

    chaos = threading.Thread(target=kill_some, daemon=True)
    before = count_descriptors()
    began = time.monotonic()
    chaos.start()
    with rlvr.Rollout(
        env, "bytes", lambda messages: golds.get(messages[0]["content"], "?"), max_length=4000, max_open_sessions=num_agents
    ) as rollout:
        episodes = [episode for [episode] in rollout.sample(tasks, seed=1)]
    done.set()
    chaos.join()
    env.close()
    deadline = time.monotonic() + 20
    while find_agents(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    by_task = {task.question: episode for task, episode in zip(tasks, episodes, strict=True)}
    wrong = [task for task, e in by_task.items() if task not in killed | unboxed and not (e.is_scored and e.reward == 1.0)]
    unsaid = [task for task in killed if by_task[task].is_scored and "trouble" not in by_task[task].meta and by_task[task].turns < 4]
    zeros = [task for task in unboxed if by_task[task].is_scored and by_task[task].reward == 0.0]
    row = {
        "part": "agents",
        "sandbox": sandbox,
        "agents": num_agents,
        "killed": len(killed),
        "lost_their_box": len(unboxed),
        "others_not_right": len(wrong),
        "killed_and_not_said": len(unsaid),
        "scored_0_by_a_lost_box": len(zeros),
        "processes_left": len(find_agents(mark)),
        "descriptors": count_descriptors() - before,
        "seconds": round(time.monotonic() - began, 1),
    }
    row["passed"] = bool(killed) and not (wrong or unsaid or zeros or row["processes_left"] or row["descriptors"] > 4)
    return row


def find_box(pid: int) -> int:
    """The outermost process of the box in which a process runs; 0 if it is gone."""
    while True:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            parent = int(stat[1])
            name = Path(f"/proc/{parent}/comm").read_text().strip()
        except (OSError, IndexError):
            return 0
        if parent in (0, 1, os.getpid()):
            return 0
        if name == "bwrap":
            return parent
        pid = parent


# ---- runs that are killed

REWARD = """
def reward(answer, reference):
    return sum(map(ord, answer)) % 7 / 6
"""
RECIPE = """
env:
  name: agent
  env: {name: arithmetic, verifier: "reward.py:reward"}
  command: [env, python3, "{here}/agent.py", "{task}", "3", "0.05"]
  sandbox: %s
  memory_mb: 256
  disk_mb: 16
tokenizer: bytes
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 512}}
rollout: {prompts_per_step: 2, num_generations: 4, max_new_tokens: 24, max_turn_tokens: 8, max_length: 400}
train: {steps: 6}
log: {save_every: 1}
eval: {tasks: 0}
"""


@contextmanager
def start_nodes(count: int) -> Iterator[str]:
    """A cluster of Ray's with so many nodes on this machine, and its address; "" without nodes."""
    if not count:
        yield ""
        return
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    from ray.cluster_utils import Cluster

    memory = 200 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": memory, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=2, object_store_memory=memory)
        yield cluster.address
    finally:
        cluster.shutdown()


def try_runs(kills: int, sandbox: str, nodes: int = 0, worker_kills: int = 0) -> dict[str, Any]:
    """A run that is killed and resumed until it ends, and one that is not killed; with nodes, on a cluster with a rollout worker on each, of
    which some are killed, too, with the models that they sample from.
    """
    dice, resumed, lost = random.Random(3), 0, 0
    with tempfile.TemporaryDirectory(prefix="rlvr-failing-", dir="/var/tmp") as folder, start_nodes(nodes) as address:
        os.chmod(folder, 0o755)
        Path(folder, "agent.py").write_text(AGENT)
        Path(folder, "reward.py").write_text(REWARD)
        cluster = f"cluster: {{address: '{address}', rollout_workers: {nodes}}}\n" if nodes else ""
        Path(folder, "run.yaml").write_text(RECIPE % sandbox + cluster)
        command = [sys.executable, "-m", "rlvr", "train", "run.yaml"]

        def start(*words: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([*command, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        whole = start("--out", "whole")
        _, said = whole.communicate(timeout=900)
        if whole.returncode:
            return {"part": "runs", "passed": False, "error": said.decode()[-500:]}
        left = 0
        while True:
            process = start("--out", "killed", *(["--resume"] if resumed else []))
            if resumed < kills:
                wait_for_agents(folder, process, dice.uniform(0.1, 1.5))
                process.kill()
                resumed += 1
                process.communicate()
                deadline = time.monotonic() + (60 if nodes else 10)  # Ray's workers notice the end of their driver by themselves
                while list_agents_of(folder) and time.monotonic() < deadline:
                    time.sleep(0.1)
                left += len(list_agents_of(folder))
                continue
            for _ in range(worker_kills):
                wait_for_agents(folder, process, dice.uniform(0.1, 0.5))
                lost += kill_worker_of_an_agent(folder)
                time.sleep(2)
            _, said = process.communicate(timeout=900)
            break
        if process.returncode:
            return {"part": "runs", "passed": False, "resumed": resumed, "error": said.decode()[-500:]}
        runs = [read_run(Path(folder, name)) for name in ("whole", "killed")]
    row = {
        "part": "runs",
        "sandbox": sandbox,
        "nodes": nodes,
        "killed_in_an_episode": resumed,
        "workers_killed": lost,
        "episodes": len(runs[0][0]),
        "equal_episodes": runs[0][0] == runs[1][0],
        "equal_weights": runs[0][1] == runs[1][1],
        "processes_left": left,
    }
    row["passed"] = bool(row["equal_episodes"] and row["equal_weights"] and not left and lost == worker_kills and len(runs[0][0]) == 6 * 8)
    return row


def kill_worker_of_an_agent(folder: str) -> bool:
    """Kill the process of Ray in which the episode of an agent is sampled; false if no agent runs."""
    for pid in list_agents_of(folder):
        try:
            while pid > 1 and not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid > 1:
                os.kill(pid, signal.SIGKILL)
                return True
        except (OSError, ValueError, IndexError):
            continue
    return False


def list_agents_of(folder: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{folder}/agent.py".encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def wait_for_agents(folder: str, process: subprocess.Popen[bytes], more_s: float) -> None:
    """Wait until an agent runs, and then a little longer."""
    deadline = time.monotonic() + 120
    while not list_agents_of(folder) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(more_s)


def read_run(folder: Path) -> tuple[list[Any], str]:
    """The tokens and rewards of a run's episodes in order, and a digest of its weights."""
    import hashlib

    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    kept = sorted((row["step"], row["group"], row["tokens"], row["reward"]) for row in rows)
    weights = next(iter(sorted(folder.rglob("model.safetensors"), key=lambda path: path.stat().st_mtime)[-1:]))
    return kept, hashlib.sha256(weights.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["requests", "agents", "runs", []], help="none: all")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--sandbox", default="bubblewrap", choices=("bubblewrap", "docker"))
    parser.add_argument("--nodes", type=int, default=0, help="the runs sample on a cluster of so many nodes on this machine; needs ray")
    parser.add_argument("--worker-kills", type=int, default=0, help="how many of the rollout workers on the nodes are killed")
    given = parser.parse_args()
    parts = given.parts or ["requests", "agents", "runs"]
    rows = []
    for part in parts:
        if part == "requests":
            rows.append(try_requests(given.calls))
        elif part == "agents":
            rows.append(try_agents(given.agents, given.sandbox))
        else:
            rows.append(try_runs(given.kills, given.sandbox, given.nodes, given.worker_kills))
        print(json.dumps(rows[-1]), flush=True)
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
