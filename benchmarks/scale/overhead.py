"""What a cluster costs, and what it is worth: one collector against this process, then more rollout_workers and more judge hosts.

    python benchmarks/scale/overhead.py [--steps 4] [--unit-s 1.0] [--tokens 512] [--parts one rollout_workers judges]

Needs Ray (extra `ray`). Samplers and verifiers of fixed speed, which sleep, so that the processors of this machine do not decide.

one         seconds of a step with one collector against the same units in this process, in turns; each step begins with new weights
            (a model of `--width`), each unit has 8 answers of `--tokens` tokens. Bar: at most 5 % more.
rollout_workers  seconds of a step with 1, 2, 4 and 8 rollout_workers. Bar: 0.9 of linear.
judges      seconds of a step whose verifier sleeps, with 1, 2 and 4 judge hosts. Bar: 0.9 of linear.

One JSON line each; exit status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from rlvr.cluster.driver import NO_WEIGHTS, Driver
from rlvr.cluster.ray_transport import RayTransport
from rlvr.cluster.rollout_tasks import split_into_tasks
from rlvr.cluster.rollout_worker import RolloutWorker, WorkerSettings
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.config.config import RunConfig, validate_config
from rlvr.contracts import Completion, Environment, Request, RequestQueue, SamplingParams, Verifier
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Task, Verdict, user

MEMBERS = 8
HERE = "benchmarks/scale/overhead.py"


class Sleeps(Verifier):
    """Takes so many seconds for a verdict."""

    def __init__(self, *, seconds: float) -> None:
        self.seconds = seconds

    def verify(self, task: Task, answer: str) -> Verdict:
        """Sleep, then judge."""
        time.sleep(self.seconds)
        return Verdict(float(len(answer) % 2), "slept")


class Words(Environment):
    """Asks for words. A verdict takes `seconds`."""

    def __init__(self, *, seconds: float = 0.0, tokens: int = 512) -> None:
        self.verifier, self.max_new_tokens, self.max_prompt_tokens = Sleeps(seconds=seconds), tokens, 32

    def task(self, split: str, index: int) -> Task:
        """A question that asks for anything."""
        return Task(user("?"), id=f"words/{split}/{index}", reference="")


class Paced(ScriptedSampler):
    """Answers of a fixed length, all answers of a call in so many seconds."""

    def __init__(self, *, seconds: float, tokens: int) -> None:
        super().__init__()
        self.seconds, self.tokens = seconds, tokens

    def load_model(self, model: Any, version: int) -> None:
        """Take weights, so that they are sent."""

    def serve(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Sleep, then answer."""
        while (asked := queue.pop(sys.maxsize)) is not None:
            if asked:
                time.sleep(self.seconds)
            yield from ((number, self._said(request)) for number, request in asked)
            if not asked:
                yield None

    def _said(self, request: Request) -> Completion:
        said = [4 + (request.seed + place) % 8 for place in range(min(self.tokens, request.max_tokens))]
        return Completion(said, [-2.0] * len(said), "length")


def config_of(*, unit_s: float, verdict_s: float, tokens: int, width: int, workers: int, cluster: dict[str, Any]) -> RunConfig:
    model = {"model_type": "llama", "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 4}
    model |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1024}
    sampler = {"name": f"{HERE}:Paced", "seconds": unit_s, "tokens": tokens}
    rollout = {"sampler": sampler, "verify_workers": workers}
    env = {"name": f"{HERE}:Words", "seconds": verdict_s, "tokens": tokens}
    data = {"env": env, "tokenizer": "chars:0123456789+=", "model": {"config": model}, "rollout": rollout, "cluster": cluster}
    return validate_config(data, "the benchmark")


def draws(config: RunConfig, step: int, units: int) -> list[RolloutRequest]:
    tasks = [Task(user("?"), id=f"words/train/{place}", reference="") for place in range(units)]
    return [RolloutRequest(task, f"{step}:{task.id}", derive_seed(step, task.id, member)) for task in tasks for member in range(MEMBERS)]


def started(stack: ExitStack, config: RunConfig, facts: WorkerSettings) -> Driver:
    assert config.cluster is not None
    transport = RayTransport(config.cluster, config.model_dump(mode="json"), facts)
    return stack.enter_context(Driver(transport, config.cluster, tell=lambda line: print(f"note: {line}", file=sys.stderr)))


def stepped(driver: Driver, config: RunConfig, step: int, units: int, pack: Callable[[], WeightUpdate] = lambda: NO_WEIGHTS) -> float:
    """The seconds of a step with rollout_workers, which begins with new weights."""
    began = time.perf_counter()
    driver.load_weights(pack())
    found = driver.collect(draws(config, step, units), SamplingParams(), version=step)
    seconds = time.perf_counter() - began
    assert len(found) == units * MEMBERS and all(episode.verdict and episode.verdict.score is not None for episode in found)
    return seconds


def here(config: RunConfig, facts: WorkerSettings, load: Callable[[RolloutWorker, int], None]) -> Callable[[int, int], float]:
    """The seconds of a step in this process."""
    collector = RolloutWorker(config, facts)

    def step(number: int, units: int) -> float:
        began = time.perf_counter()
        load(collector, number)
        for unit in split_into_tasks(draws(config, number, units)):
            collector.rollout.collect(unit, SamplingParams(), version=number)
        return time.perf_counter() - began

    return step


def one(args: argparse.Namespace) -> dict[str, Any]:
    """One collector against this process."""
    from rlvr.cluster.weights.packing import WeightPacker
    from rlvr.mdp.tokenizers import load_tokenizer
    from rlvr.models.model_loading import load_model

    asked = {"cluster": {"rollout_workers": 1}, "workers": 4, "verdict_s": 0.0, "width": args.width}
    config = config_of(unit_s=args.unit_s, tokens=args.tokens, **asked)
    facts = WorkerSettings("float32", False, 1)
    ours, theirs = list[float](), list[float]()
    with ExitStack() as stack:
        driver = started(stack, config, facts)

        def load(collector: RolloutWorker, version: int) -> None:
            collector.sampler.load_model(collector.model, version)

        step = here(config, facts, load)
        model = load_model(config.model, load_tokenizer(config.tokenizer_name), 0)
        packer = WeightPacker("whole", facts.precision)
        stepped(driver, config, 0, args.units, lambda: packer.pack(model))
        for number in range(1, args.steps + 1):
            ours.append(step(number, args.units))
            theirs.append(stepped(driver, config, number, args.units, lambda: packer.pack(model)))
    ratio = median(b / a for a, b in zip(ours, theirs, strict=True))
    row = {"part": "one", "here_s": rounded(ours), "collector_s": rounded(theirs), "ratio": round(ratio, 4), "bar": 1.05}
    return row | {"weights_mb": round(sum(p.numel() * 4 for p in model.parameters()) / 1e6, 1), "passed": ratio <= 1.05}


def rollout_workers(args: argparse.Namespace) -> dict[str, Any]:
    """More rollout_workers."""
    asked = {"verdict_s": 0.0, "workers": 4, "width": 16, "tokens": args.tokens, "unit_s": args.unit_s}
    return scaled(
        "rollout_workers", [1, 2, 4, 8], args, lambda count: config_of(cluster={"rollout_workers": count, "cpus": 0.1}, **asked), 8
    )


def judges(args: argparse.Namespace) -> dict[str, Any]:
    """More judge hosts, each with two threads; one collector that samples at once."""
    asked = {"verdict_s": args.unit_s / 4, "workers": 2, "width": 16, "tokens": 32, "unit_s": 0.0}
    cluster = {"rollout_workers": 1, "cpus": 0.1, "verifier_cpus": 0.1, "groups_per_task": 4}
    return scaled("judges", [1, 2, 4], args, lambda count: config_of(cluster={**cluster, "verifier_workers": count}, **asked), 4)


def scaled(part: str, counts: Sequence[int], args: argparse.Namespace, config: Callable[[int], RunConfig], units: int) -> dict[str, Any]:
    """Seconds of a step by how many there are, and the share of linear."""
    seconds = dict[int, float]()
    for count in counts:
        asked = config(count)
        with ExitStack() as stack:
            driver = started(stack, asked, WorkerSettings("float32", False, 1, weights=False))
            stepped(driver, asked, 0, 2 * units)  # all are up
            if part == "judges":
                wait_for_judges(driver, count)
            else:
                wait_for_rollout_workers(driver, count)
            seconds[count] = median(stepped(driver, asked, step, units * 2) for step in range(1, args.steps + 1))
    shares = {count: round(seconds[counts[0]] / seconds[count] / count * counts[0], 3) for count in counts}
    row = {"part": part, "step_s": {count: round(found, 3) for count, found in seconds.items()}, "of_linear": shares, "bar": 0.9}
    return row | {"passed": min(shares.values()) >= 0.9}


def wait_for_judges(driver: Driver, count: int) -> None:
    transport: Any = driver.transport
    until = time.monotonic() + 120
    while len(transport.judges.ready) < count and time.monotonic() < until:
        driver.transport.poll(0.1)


def wait_for_rollout_workers(driver: Driver, count: int) -> None:
    until = time.monotonic() + 120
    while driver.pool.workers < count and time.monotonic() < until:
        driver._look()


def rounded(seconds: Sequence[float]) -> list[float]:
    return [round(each, 3) for each in seconds]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--unit-s", type=float, default=1.0, help="how long a unit is sampled")
    parser.add_argument("--units", type=int, default=8, help="of a step, in the part `one`")
    parser.add_argument("--tokens", type=int, default=512, help="of an answer")
    parser.add_argument("--width", type=int, default=256, help="of the model whose weights are sent")
    parser.add_argument("--parts", nargs="+", default=["one", "rollout_workers", "judges"], choices=["one", "rollout_workers", "judges"])
    args = parser.parse_args(argv)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    passed = True
    for part in args.parts:
        row = {"one": one, "rollout_workers": rollout_workers, "judges": judges}[part](args)
        print(json.dumps(row), flush=True)
        passed = passed and row["passed"]
    print(json.dumps({"passed": passed}))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
