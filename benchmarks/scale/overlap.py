"""What it is worth that rollout_workers go on to the next batch one by one. The loop, the driver and the pool are real; all else sleeps.

    python benchmarks/scale/overlap.py [--steps 10] [--rollout_workers 8] [--groups 24] [--unit-s 0.12] [--train-s 0.35] [--load-s 0.02]

A collector sleeps as long as the longest of 16 answers would take, with lengths as in the simulation (`_engines.Lengths`), the same for
every rule; the trainer sleeps too. Rules: batch after batch (as for a curriculum), and engine by engine, for each k. One JSON line each;
the bar is that engine by engine takes at most 0.9 of the time of batch after batch at k = 1, and that all episodes are the same.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence, Set
from types import SimpleNamespace
from typing import Any

import torch
from _engines import Lengths
from rlvr.training.rollout_prefetcher import RolloutPrefetcher

from rlvr.cluster.driver import Driver, PendingRollout
from rlvr.cluster.rollout_tasks import RolloutTask
from rlvr.cluster.scheduler_commands import Dispatch, LoadWeights
from rlvr.cluster.transport import Event, TaskEnded, WeightsLoaded, WorkerStarted
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import SamplerInfo, Sampling
from rlvr.contracts.algorithm import AlgorithmTraits
from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import encode_episodes
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.rollout.timing import RolloutTiming
from rlvr.task import Task, Verdict, user

MEMBERS = 16
Seconds = dict[str, float]


class Sleeping:
    """Collectors that only take time: a transport."""

    def __init__(self, seconds: Seconds, load_s: float) -> None:
        self.seconds, self.load_s, self.busy = seconds, load_s, 0.0
        self.ends, self.count = list[tuple[float, int, Event]](), 0

    def _after(self, seconds: float, event: Event) -> None:
        self.count += 1
        heapq.heappush(self.ends, (time.monotonic() + seconds, self.count, event))

    def start(self, worker: str) -> None:
        """At once."""
        self._after(0, WorkerStarted(worker))

    def stop(self, worker: str) -> None:
        """Nothing is lost here."""
        raise AssertionError(f"{worker} was lost")

    def hold(self, version: int, data: Any) -> None:
        """Nothing is sent."""

    def keep(self, versions: Set[int]) -> None:
        """Nothing is sent."""

    def load(self, order: LoadWeights) -> int:
        """Sleep a while."""
        self._after(self.load_s, WeightsLoaded(order))
        return 0

    def sample(self, order: Dispatch, unit: RolloutTask, sampling: Sampling, label: int) -> None:
        """Sleep as long as the group takes."""
        seconds = self.seconds[unit[0].group]
        self.busy += seconds
        self._after(seconds, TaskEnded(order, encode_episodes([[answered(draw, label) for draw in unit]]).to_bytes()))

    def cancel(self, order: Dispatch) -> None:
        """Nothing is copied here."""
        raise AssertionError("no backups were asked for")

    def about(self, worker: str) -> dict[str, Any]:
        """Nothing is known of a pretended one."""
        return {}

    def poll(self, timeout_s: float) -> list[Event]:
        """Sleep until something ends."""
        now = time.monotonic()
        time.sleep(max(0.0, min(timeout_s, self.ends[0][0] - now if self.ends else timeout_s)))
        found = []
        while self.ends and self.ends[0][0] <= time.monotonic():
            found.append(heapq.heappop(self.ends)[2])
        return found

    def close(self) -> None:
        """Nothing runs."""


class Collecting:
    """The rollout of a run whose rollout_workers sleep."""

    shared, timing = True, RolloutTiming()

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def begin(self, draws: Sequence[RolloutRequest], sampling: Sampling, *, version: int = 0) -> PendingRollout:
        """Ask the driver."""
        return self.driver.begin(draws, sampling, version=version)

    def collect(self, draws: Sequence[RolloutRequest], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """Ask the driver, and wait."""
        return self.begin(draws, sampling, version=version).result()

    def close(self) -> None:
        """End all waits."""
        self.driver.closed = True


class Model(torch.nn.Linear):
    """A model whose copies cost nothing."""

    device = torch.device("cpu")


def answered(draw: RolloutRequest, label: int) -> Episode:
    tokens = [5, draw.seed % 1000, 2]
    return Episode(
        draw.task.id,
        draw.group,
        tokens,
        [False, True, True],
        [0.0, -0.5, -0.25],
        [0.0] * 3,
        StopReason.TERMINATED,
        label,
        Verdict(0.0, "slept"),
    )


def crew_of(args: argparse.Namespace, driver: Driver, k: int, *, looks_back: bool) -> Any:
    """As much of a crew as sampling ahead needs."""
    rollout = SimpleNamespace(max_staleness=k, prompts_per_step=args.groups, num_generations=2)
    model = Model(1, 1)
    return SimpleNamespace(
        config=SimpleNamespace(rollout=rollout, train=SimpleNamespace(steps=args.steps), seed=0, data=None),
        accelerator=SimpleNamespace(num_processes=1, is_main_process=True, process_index=0),
        algorithm=SimpleNamespace(traits=AlgorithmTraits()),
        questions=SimpleNamespace(
            looks_back=looks_back,
            watch=None,
            take=lambda count: [(place, Task(user("?"), "4", id=f"t/{place}")) for place in range(count)],
            judged=lambda *given: None,
            figures=dict,
        ),
        sampler=SimpleNamespace(
            info=SamplerInfo(runs_model=False), metrics=dict,
            receive=lambda weights, version: driver.load(), load=lambda model, version: driver.load(),
        ),
        learner=SimpleNamespace(weights=None, whole=lambda: model),
        rollout=Collecting(driver),
        sampling=Sampling(),
        saved={},
    )  # fmt: skip


def timed(args: argparse.Namespace, seconds: Seconds, k: int, *, looks_back: bool) -> tuple[dict[str, Any], list[Any]]:
    """One run: the median seconds of a step, and all its episodes."""
    transport, told, steps = Sleeping(seconds, args.load_s), list[Any](), list[float]()
    driver = Driver(transport, ClusterConfig(rollout_workers=args.rollout_workers))
    with driver, RolloutPrefetcher(crew_of(args, driver, k, looks_back=looks_back)) as ahead:
        for step in range(args.steps):
            began = time.monotonic()
            batch = ahead.next(step)
            told += [(e.group, e.policy_version, e.tokens) for group in batch.groups for e in group]
            time.sleep(args.train_s)
            steps.append(time.monotonic() - began)
    kept = steps[args.steps // 4 : -k]  # the first batches have no trainer to wait for, and the last ones nothing ahead of them
    row = {"rule": f"k = {k}, {'batch after batch' if looks_back else 'engine by engine'}", "step_s": round(statistics.mean(kept), 3)}
    return row | {"rollout_workers_busy": round(transport.busy / args.rollout_workers / sum(steps), 2)}, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rollout_workers", type=int, default=8)
    parser.add_argument("--groups", type=int, default=24, help="groups in a step")
    parser.add_argument("--unit-s", type=float, default=0.12, help="mean seconds of a group")
    parser.add_argument("--train-s", type=float, default=0.3)
    parser.add_argument("--load-s", type=float, default=0.02)
    args = parser.parse_args()
    chance, lengths = random.Random(0), Lengths()
    longest = {f"{step + 1}:{place}": max(lengths.draw(chance, MEMBERS)) for step in range(args.steps) for place in range(args.groups)}
    mean = statistics.mean(longest.values())
    seconds = {name: length / mean * args.unit_s for name, length in longest.items()}
    passed = True
    for k in (1, 2):
        base, episodes = timed(args, seconds, k, looks_back=True)
        row, same = timed(args, seconds, k, looks_back=False)
        row |= {"of_batch_after_batch": round(row["step_s"] / base["step_s"], 3), "same_episodes": same == episodes}
        print(json.dumps(base), json.dumps(row), sep="\n", flush=True)
        passed = passed and row["same_episodes"] and (k > 1 or row["of_batch_after_batch"] <= 0.9)
    print(json.dumps({"passed": passed}))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
