"""How fast conversations get through a limited number of sandbox sessions and threads, and that none hangs. JSON lines.

    python benchmarks/sandbox/admission.py --sandbox sleep                  the whole grid; a step only sleeps
    python benchmarks/sandbox/admission.py --sandbox process --counts 97,500
    DOCKER_HOST=... python benchmarks/sandbox/admission.py --sandbox docker --counts 97,500

Each conversation opens a session, makes two calls in it and closes it. `best_s` is the best that an order of admission can give, measured right
after: as many threads as there are sessions, each of which does one conversation after the other without any scheduler. With `sleep`,
`ideal_s` is computed: the longest conversations first, on as many machines as there are sessions or threads, and nothing costs anything.
Bars: every conversation is scored, and `efficiency` (best_s / seconds) is at least 0.9.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from typing import Any

from rlvr.contracts import (
    CapacityLimiter,
    Environment,
    ExecutionResult,
    ExitStatus,
    Program,
    SamplingParams,
    Sandbox,
    SandboxSession,
    SandboxSpec,
    Session,
    StepResult,
    Verifier,
)
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.sandbox._outside.sessions import SessionPool
from rlvr.sandbox._outside.supervisor_connection import SupervisorConnection
from rlvr.task import Task, Verdict, user
from rlvr.turns import Turn

SPEC = SandboxSpec(memory_mb=192, disk_mb=32)
NUM_STEPS = 2
SLEEP_S, MIN_SLEEP_S = 6.0, 0.05
"""With `sleep`, conversations are so long that a row takes about so many seconds, and none is shorter than this on average."""
TIMEOUT_S = 120.0
"""A call that takes longer hangs: then there is a conversation without a score."""


class NoSupervisor(SupervisorConnection):
    """Stands for a supervisor, and does nothing."""

    handshake: Mapping[str, Any] = {"isolation": ()}

    def request(self, header: Mapping[str, Any], parts: Mapping[str, bytes], deadline: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Confirm."""
        return {"fatal": "", "error": ""}, {}

    def send(self, data: bytes, deadline: float) -> None:
        """Send nothing."""

    def receive(self, buffer: memoryview, deadline: float) -> int:
        """Receive nothing."""
        return 0

    def is_alive(self) -> bool:
        """Return true."""
        return True

    def disconnect(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class NoSandbox(Sandbox):
    """The pool of sessions without anything in them."""

    def __init__(self, max_sessions: int) -> None:
        self.pool = SessionPool[NoSupervisor](lambda spec: NoSupervisor(), max_sessions, 900.0)

    def run_program(self, program: Program) -> ExecutionResult:
        """Run nothing."""
        return ExecutionResult(ExitStatus.OK)

    @property
    def session_limiter(self) -> CapacityLimiter:
        """The limiter of the pool."""
        return self.pool.limiter

    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        """Open a session of the pool."""
        return self.pool.open_session(spec or SPEC)


class Work(Session):
    """Two calls in a sandbox session of its own."""

    def __init__(self, works: Works, task: Task) -> None:
        self.works, self.task, self.count = works, task, 0
        self.box: SandboxSession | None = None

    def tools(self) -> Sequence[Any]:
        """Open the sandbox session."""
        assert self.works.sandbox is not None
        self.box = self.works.sandbox.create_session(SPEC)
        return ()

    def step(self, turn: Turn) -> StepResult | None:
        """Make one call."""
        assert self.box is not None
        self.works.call(self.box, self.task)
        self.count += 1
        return StepResult(({"role": "user", "content": "1"},)) if self.count < NUM_STEPS else None

    def close(self) -> None:
        """Close the sandbox session."""
        if self.box is not None:
            self.box.close()


class Full(Verifier):
    """Every answer is right."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """Score 1."""
        return Verdict(1.0, "")


class Works(Environment):
    """Conversations of two calls; how long one takes is in its task."""

    max_turns, max_prompt_tokens, max_new_tokens = NUM_STEPS, 12, 9

    def __init__(self, sandbox: Any, mean_s: float) -> None:
        self.sandbox, self.mean_s, self.verifier = sandbox, mean_s, Full()

    def task(self, split: str, index: int) -> Task:
        """Make a task with the length of its calls."""
        return Task(user("1="), "1", id=f"work/{index}", meta={"seconds": random.Random(index).uniform(0.5, 1.5) * self.mean_s / NUM_STEPS})

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Create the session."""
        return Work(self, task)

    def call(self, box: SandboxSession, task: Task) -> None:
        """Sleep, or run a program that does nothing."""
        if self.mean_s:
            time.sleep(task.meta["seconds"])
        elif (outcome := box.run("true")).status is not ExitStatus.OK:
            raise RuntimeError(outcome.reason)


def measure_rollout(works: Works, count: int, actors: int) -> tuple[float, int]:
    """The seconds of a rollout, and how many conversations had a score."""
    tokenizer, sampler = CharTokenizer("0123456789="), ScriptedSampler(answers=["1"] * NUM_STEPS)
    sampler.setup(works, tokenizer)
    requests = [RolloutRequest(works.task("train", i), f"g{i}", derive_seed(i)) for i in range(count)]
    with Rollout(TokenMDP(works, tokenizer), sampler=sampler, session_workers=actors, call_timeout_s=TIMEOUT_S) as rollout:
        began = time.perf_counter()
        episodes = rollout.collect(requests, SamplingParams(stop_ids=tokenizer.stop_ids))
        return time.perf_counter() - began, sum(episode.is_scored for episode in episodes)


def simulate_best(works: Works, count: int, machines: int) -> float:
    """The seconds of the longest conversations first, each on the machine that is free first."""
    lengths = sorted((NUM_STEPS * works.task("train", i).meta["seconds"] for i in range(count)), reverse=True)
    free = [0.0] * machines
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def warm_up(sandbox: Sandbox, count: int) -> None:
    """Open so many sessions at once: their supervisors are started, and wait for the next ones."""
    with ThreadPoolExecutor(8) as pool:
        for box in list(pool.map(lambda _: sandbox.create_session(SPEC), range(count))):
            box.close()


def measure_direct(works: Works, count: int, boxes: int, actors: int) -> float:
    """The seconds of a thread for each session, which does one conversation after the other; at most `actors` calls at once."""
    gate = threading.Semaphore(actors) if actors < boxes else nullcontext()

    def gated(call: Callable[..., Any], *arguments: Any) -> Any:
        with gate:
            return call(*arguments)

    def play(index: int) -> None:
        session = works.new_session(works.task("train", index), seed=0)
        gated(session.tools)
        for _ in range(NUM_STEPS):
            gated(session.step, Turn("1"))
        gated(session.close)

    began = time.perf_counter()
    with ThreadPoolExecutor(boxes) as pool:
        list(pool.map(play, range(count)))
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", choices=("sleep", "process", "docker"), default="sleep")
    parser.add_argument("--counts", default="1,97,500,2000")
    parser.add_argument("--boxes", default="1,8,64")
    parser.add_argument("--actors", default="1,8,64")
    options = parser.parse_args()
    counts, boxes, actors = ([int(number) for number in listed.split(",")] for listed in (options.counts, options.boxes, options.actors))
    worst, all_scored = 1.0, True
    for count, num_boxes, num_actors in product(counts, boxes, actors):
        settings = {"trusted": True} if options.sandbox == "process" else {}
        sleeps = options.sandbox == "sleep"
        sandbox = NoSandbox(num_boxes) if sleeps else build("sandbox", options.sandbox, max_sessions=num_boxes, **settings)
        works = Works(sandbox, max(SLEEP_S * min(num_boxes, num_actors, count) / count, MIN_SLEEP_S) if sleeps else 0.0)
        if not sleeps:
            warm_up(sandbox, min(count, num_boxes))
        seconds, scored = measure_rollout(works, count, num_actors)
        best = measure_direct(works, count, num_boxes, num_actors)
        row = {"sandbox": options.sandbox, "conversations": count, "boxes": num_boxes, "actors": num_actors}
        row |= {"scored": scored, "seconds": round(seconds, 2), "best_s": round(best, 2), "efficiency": round(best / seconds, 3)}
        row |= {"ideal_s": round(simulate_best(works, count, min(num_boxes, num_actors)), 2)} if sleeps else {}
        print(json.dumps(row), flush=True)
        all_scored &= scored == count
        if best > 1:
            worst = min(worst, best / seconds)
        sandbox.close()
    print(json.dumps({"what": "all", "all_scored": all_scored, "worst_efficiency_above_1_s": round(worst, 3)}), flush=True)
    return 0 if all_scored else 1


if __name__ == "__main__":
    sys.exit(main())
