"""Does vLLM wait for tools? Conversations of several turns, and after each turn Python runs in the conversation's own sandbox box.

    python benchmarks/rollout/agents_vllm.py [--sandbox docker] [--conversations 64] [--open 32] [--turns 6] [--call-s 0.05]

The model is small and random, so the session does not read its calls: every turn but the last one runs a program that keeps a variable from
call to call, works for some milliseconds and sleeps for `--call-s`. Prints one JSON line for each collection. `idle` is the share of the
time in which the engine had no request, while at least 16 sessions were open; at most 0.1 is wanted. `outside_engine` is the share of the
same time that was not spent in the engine's steps, which run in the same thread as the rollout. Exit code 1 if the bar is missed or a call
failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Environment, RequestQueue, SamplingParams, Session, StepResult, ToolSession, Verifier
from rlvr.contracts.sampler import NumberedRequests
from rlvr.contracts.sandbox import Sandbox
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.rollout.timing import measure_covered_time
from rlvr.samplers.vllm import VLLMSampler
from rlvr.task import Task, user
from rlvr.turns import Call, Turn

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
}
CODE = """
import time
total = globals().get("total", 0) + sum(i * i % 7 for i in range(20_000))
time.sleep({seconds})
print({turn}, total)
"""
ENOUGH, BAR = 16, 0.1


class Calling(ToolSession):
    """Runs a program after every turn but the last, whatever the turn says."""

    world: Agents
    count, opened_at = 0, 0.0

    def tools(self) -> Any:
        """Time the opening of the box."""
        if self._opened is not None:
            return super().tools()
        began = time.perf_counter()
        found = super().tools()
        self.opened_at = time.perf_counter()
        self.world.note("open", began, self.opened_at)
        return found

    def hear(self, turn: Turn) -> StepResult | None:
        """The call, or the end."""
        self.count += 1
        if self.count >= self.world.turns:
            return None
        code = CODE.format(seconds=self.world.call_s, turn=self.count)
        began = time.perf_counter()
        heard = super().hear(replace(turn, content="", calls=(Call(f"{self.count - 1}.0", "python", {"code": code}),)))
        self.world.note("call", began, time.perf_counter())
        assert heard is not None
        if not heard.results[0].ok or not heard.results[0].text.startswith(f"{self.count} "):
            self.world.wrong.append(heard.results[0].text[:200])
        return heard

    def close(self) -> None:
        """Note how long it was open."""
        super().close()
        if self.opened_at:
            self.world.note("held", self.opened_at, time.perf_counter())
            self.opened_at = 0.0


class Agents(Environment):
    """Conversations of a fixed number of turns."""

    max_prompt_tokens, max_new_tokens = 16, 1200

    def __init__(self, verifier: Verifier, sandbox: Sandbox, *, turns: int, call_s: float) -> None:
        self.verifier, self.sandbox, self.tools = verifier, sandbox, (build("tool", "python"),)
        self.turns, self.call_s, self.max_turns = turns, call_s, turns
        self.spans: dict[str, list[tuple[float, float]]] = {"open": [], "call": [], "held": []}
        self.wrong, self.lock = list[str](), threading.Lock()

    def note(self, what: str, began: float, ended: float) -> None:
        """When something began and ended."""
        with self.lock:
            self.spans[what].append((began, ended))

    def task(self, split: str, index: int) -> Task:
        """Each has a question of its own."""
        return Task(user(f"{index}="), id=f"agents/{index}", reference="1")

    def open(self, task: Task, *, seed: int) -> Session:
        """A session that calls by itself."""
        session = Calling(task, self.tools, sandbox=self.sandbox, seed=seed)
        session.world = self
        return session


class Counted(RequestQueue):
    """Counts what the engine has taken."""

    def __init__(self, feed: RequestQueue) -> None:
        self.feed, self.taken = feed, 0

    def take(self, room: int) -> NumberedRequests | None:
        """As the feed says."""
        more = self.feed.take(room)
        self.taken += len(more or ())
        return more

    def wave(self) -> NumberedRequests | None:
        """As the feed says."""
        return self.feed.wave()


class Timed(VLLMSampler):
    """Notes when it had nothing to do, and when its engine worked."""

    idle: list[tuple[float, float]]
    worked: list[tuple[float, float]]

    def serve(self, feed: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """The same, with notes. The caller has the thread between two completions."""
        counted, ended = Counted(feed), 0
        served = super().serve(counted, sampling)
        while True:
            began = time.perf_counter()
            given = next(served, served)
            now = time.perf_counter()
            self.worked.append((began, now))
            if given is served:
                return
            assert not isinstance(given, Iterator)
            ended += given is not None
            yield given
            if counted.taken == ended:
                self.idle.append((now, time.perf_counter()))


def shared(spans: list[tuple[float, float]], within: list[tuple[float, float]]) -> float:
    """How much of the time of the one lies in the other."""
    cut = [(max(a, c), min(b, d)) for a, b in spans for c, d in within]
    return measure_covered_time(span for span in cut if span[0] < span[1])


def crowded(held: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """When at least 16 sessions were open."""
    changes = sorted([(begin, 1) for begin, _ in held] + [(end, -1) for _, end in held])
    found, now, since = list[tuple[float, float]](), 0, 0.0
    for at, change in changes:
        if now < ENOUGH <= now + change:
            since = at
        elif now >= ENOUGH > now + change:
            found.append((since, at))
        now += change
    return found


def middle(spans: list[tuple[float, float]], share: float = 0.5) -> float:
    """A quantile of the lengths, in milliseconds."""
    lengths = sorted(end - begin for begin, end in spans)
    return round(1000 * lengths[min(int(share * len(lengths)), len(lengths) - 1)], 1) if lengths else 0.0


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each collection with the same engine and the same sandbox, so that later ones find warm boxes."""
    tokenizer = CharTokenizer("0123456789=abcdefghijklmnop")
    sandbox: Sandbox = build("sandbox", options.sandbox, **({"trusted": True} if options.sandbox == "process" else {}))
    environment = Agents(build("verifier", "exact"), sandbox, turns=options.turns, call_s=options.call_s)
    with Timed(kv_cache_gb=0.5, max_num_seqs=256) as sampler:
        sampler.setup(environment, tokenizer)
        mdp = TokenMDP(environment, tokenizer, max_length=1800)
        sampler.load_model(load_model(ModelConfig(config=MODEL), tokenizer, 0), 0)
        for collection in range(options.collections):
            yield {"sandbox": options.sandbox, "collection": collection} | collected(options, mdp, sampler, environment)
    environment.close()


def collected(options: argparse.Namespace, mdp: TokenMDP, sampler: Timed, environment: Agents) -> dict[str, Any]:
    """One collection, and where its time went."""
    sampler.idle, sampler.worked, environment.wrong = [], [], []
    environment.spans = {"open": [], "call": [], "held": []}
    draws = [RolloutRequest(environment.task("train", i), str(i), derive_seed(i)) for i in range(options.conversations)]
    with Rollout(mdp, sampler=sampler, open_sessions=options.open, sync_turns=options.sync_turns) as rollout:
        began = time.perf_counter()
        episodes = rollout.collect(draws, SamplingParams(stop_ids=mdp.tokenizer.stop_ids))
        seconds = time.perf_counter() - began
    busy = crowded(environment.spans["held"])
    length = measure_covered_time(busy)
    timed = length > 0 and not rollout.sync_turns  # waves do not pass the notes of `Timed`: `idle_of_the_whole_rollout` is their figure
    tokens = sum(sum(episode.acted) for episode in episodes)
    return {
        "sync_turns": rollout.sync_turns,
        "conversations": options.conversations,
        "open_at_once": options.open,
        "seconds": round(seconds, 2),
        "seconds_with_16_open": round(length, 2),
        "idle": round(shared(sampler.idle, busy) / length, 4) if timed else None,
        "outside_engine": round(1 - shared(sampler.worked, busy) / length, 4) if timed else None,
        "idle_of_the_whole_rollout": round(rollout.timing.idle / rollout.timing.sampling, 4),
        "tokens_per_s": round(tokens / seconds),
        "tokens_per_turn": round(tokens / sum(e.turns for e in episodes), 1),
        "turns": round(statistics.mean(e.turns for e in episodes), 2),
        "calls": len(environment.spans["call"]),
        "open_ms": [middle(environment.spans["open"]), middle(environment.spans["open"], 0.95)],
        "call_ms": [middle(environment.spans["call"]), middle(environment.spans["call"], 0.95)],
        "failed_episodes": sum(not e.scored for e in episodes),
        "errors": sorted({e.error[:200] for e in episodes if e.error})[:3] + environment.wrong[:3],
    }


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", default="docker", choices=("docker", "process"))
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--open", type=int, default=32, help="how many sessions are open at once")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--call-s", type=float, default=0.05, help="how long each program sleeps")
    parser.add_argument("--collections", type=int, default=2)
    parser.add_argument("--sync_turns", action="store_true", help="let all conversations wait for the slowest, to compare")
    met = True
    for line in measured(parser.parse_args()):
        idle = line["idle_of_the_whole_rollout"] if line["sync_turns"] else line["idle"]
        fine = idle is not None and idle <= BAR and not line["failed_episodes"] and not line["errors"]
        print(json.dumps(line | {"bar": BAR, "met": fine}), flush=True)
        met = met and fine
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
