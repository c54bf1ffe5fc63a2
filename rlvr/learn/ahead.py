"""Sample the next batches while the trainer still trains on this one, with weights of a known age.

With `rollout.max_staleness: k` the batch of step t is always sampled with the weights of version max(0, t - k), however fast
sampler and trainer are: the schedule depends on the step's number only, so a repeated run gives the same numbers. With k = 1:

    worker     batch 0 by 0 | batch 1 by 0 | batch 2 by 1 | batch 3 by 2 | ...
    trainer                 | 0 -> 1       | 1 -> 2       | 2 -> 3       | ...

One worker thread samples the batches in order, so a curriculum gets the answers in the order of the steps. The trainer
changes its weights in place, so each batch that is being sampled has its own copy of them.

A rollout with several collectors can sample several batches at once (`Begins`). Then batch t + k is asked as soon as version t exists,
before batch t is awaited, so a collector with nothing left of batch t takes the next one while others still sample batch t:

    collector 1     0 0 0 0 0 0 | 1 1 1 1 | 2 2 2 ...
    collector 2     0 0 | 1 1 1 1 1 | 2 2 2 2 2 2 ...

That changes no episode, since tasks, seeds and versions are the same. Where a batch depends on the answers to the one before
(`looks_back`), it is asked when these are judged.

With several learning processes, one place samples for all of them (`Rollout.shared`): the main process asks, and the others get each
batch when it is complete. So nothing that runs ahead takes part in what the processes do together.
"""

from __future__ import annotations

import copy
import functools
import json
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import nn

from rlvr.contracts import Sampler
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.learn.collect import Begins, Harvest, begin, gathered, looks_back
from rlvr.learn.crew import Crew
from rlvr.learn.processes import by_main
from rlvr.learn.questions.dynamic import Group
from rlvr.rollout.rollout import Timing
from rlvr.task import Verdict

HOST = torch.device("cpu")
LOOK_S = 1.0
"""How often a thread that waits for a batch looks up: the loss of another process is an error that is raised in it."""


class Ahead:
    """The batches that are being sampled, the next one first.

    >>> Ahead(crew).next(step=0).groups                                 # doctest: +SKIP
    """

    def __init__(self, crew: Crew) -> None:
        self.crew, self.most = crew, crew.config.rollout.max_staleness
        if crew.accelerator.num_processes > 1 and not crew.rollout.shared:
            raise ConfigError(
                f"rollout.max_staleness is {self.most}, and each of {crew.accelerator.num_processes} processes samples its share: sampling "
                "during training would interleave their messages; set it to 0, launch one process, or let a `cluster` sample for all"
            )
        if crew.sampler.holds_trainer_up:
            raise ConfigError(
                f"rollout.max_staleness is {self.most}, but the sampler {crew.config.rollout.sampler['name']!r} cannot sample while the "
                f"trainer trains: {crew.sampler.holds_trainer_up}; or set max_staleness to 0"
            )
        self._at_once = crew.rollout if isinstance(crew.rollout, Begins) and not looks_back(crew) else None
        self._asks = crew.accelerator.is_main_process
        """Whether this process asks for the batches; the line of another one holds places without results."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._line: deque[Future[Harvest]] = deque()
        self._copies: dict[int, Any] = {}

    def next(self, step: int) -> Harvest:
        """The batch of this step; when it is returned, the batches up to `most` steps ahead are being sampled.

        The deadlines of the sampler and of the verifier limit the wait.
        """
        last = min(step + self.most, self.crew.config.train.steps - 1)
        self._ask(step, last if self._at_once is not None else step, version=step)
        harvest = by_main(self.crew.accelerator, functools.partial(awaited, self._line.popleft()))
        self._ask(step + 1, last, version=step)
        return harvest

    def settle(self) -> None:
        """Before the sampler takes other weights: wait until nothing is being sampled, and raise any error.

        Collectors are not waited for: each of them loads the next weights when it has nothing left to do with its own.
        """
        if self._at_once is None:
            self._wait()

    def close(self) -> None:
        """Stop sampling: with the rollout closed, the worker exits at the next completion."""
        self.crew.rollout.close()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """The batches ahead, for the checkpoint; waits until all are sampled.

        They are stored, because sampling them again would need the older weights and a bit-identical sampler, which an engine in
        another process does not guarantee. The next step must wait for the first of them in any case.
        """
        self._wait()
        return {"batches": json.dumps([written(batch.result()) for batch in self._line] if self._asks else [])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for row in json.loads(state["batches"]):
            batch: Future[Harvest] = Future()
            batch.set_result(read_back(row))
            self._line.append(batch)

    def _wait(self) -> None:
        """Until nothing is being sampled, in all processes; raise any error in all of them."""

        def all_of_them() -> None:
            for batch in self._line:
                awaited(batch)

        by_main(self.crew.accelerator, all_of_them)

    def _ask(self, first: int, last: int, *, version: int) -> None:
        """Ask for the batches of these steps that are not asked yet, with the current weights."""
        steps = range(first + len(self._line), last + 1)
        if self._at_once is not None and steps:
            self.crew.sampler.receive(self.crew.learner.weights, version)
        for step in steps:
            model = self.crew.learner.whole() if self._at_once is None else None
            self._line.append(self._worker.submit(self._begun(model, step, version)) if self._asks else Future())

    def _begun(self, model: Any, step: int, version: int) -> Callable[[], Harvest]:
        """Start sampling the batch of a step, or prepare for it; what comes back ends it."""
        if self._at_once is not None:
            return begin(self.crew, self._at_once, step, version=version)
        place = step % self.most
        if place in self._copies:  # the copy of a finished batch: at most `most` are being sampled
            self._copies[place].load_state_dict(model.state_dict())
        else:
            self._copies[place] = copy_for(self.crew.sampler, model)
        return functools.partial(self._sampled, self._copies[place], step, version)

    def _sampled(self, model: Any, step: int, version: int) -> Harvest:
        self.crew.sampler.load(model, version)
        return gathered(self.crew, step, version=version)


def awaited(batch: Future[Harvest]) -> Harvest:
    """The harvest of a batch, when it is complete."""
    while not wait([batch], timeout=LOOK_S).done:
        pass
    return batch.result()


def copy_for(sampler: Sampler, model: Any) -> Any:
    """A copy of the weights: on the trainer's device only for a sampler that runs the model itself, otherwise in the computer's memory.

    Engines read files, so a copy on the device would only take the trainer's memory.
    """
    device = model.device if sampler.runs_model else HOST
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to(device, copy=True), p.requires_grad) for p in model.parameters()}
    memo |= {id(buffer): buffer.to(device, copy=True) for buffer in model.buffers()}
    return copy.deepcopy(model, memo)


def look_ahead(crew: Crew, stack: ExitStack) -> Ahead | None:
    """Start sampling ahead if the configuration asks for it; the batches go into the checkpoints."""
    if not crew.config.rollout.max_staleness:
        return None
    ahead = stack.enter_context(Ahead(crew))
    crew.saved["ahead"] = ahead
    return ahead


def written(harvest: Harvest) -> dict[str, Any]:
    """A batch as plain JSON, with every number exact."""
    return {
        "groups": [_rows(group) for group in harvest.groups],
        "dropped": {reason: [_rows(group) for group in groups] for reason, groups in harvest.dropped.items()},
        "figures": dict(harvest.figures),
        "timing": asdict(harvest.timing),
    }


def read_back(row: Mapping[str, Any]) -> Harvest:
    """The batch that was written."""
    dropped = {reason: [_group(rows) for rows in groups] for reason, groups in row["dropped"].items()}
    return Harvest([_group(rows) for rows in row["groups"]], dropped, row["figures"], Timing(**row["timing"]))


def _rows(group: Group) -> list[dict[str, Any]]:
    rows = [{field.name: getattr(episode, field.name) for field in fields(Episode)} for episode in group]
    return [row | {"verdict": row["verdict"] and row["verdict"].record()} for row in rows]


def _group(rows: list[dict[str, Any]]) -> Group:
    return [Episode(**{**row, "verdict": row["verdict"] and Verdict(**row["verdict"])}) for row in rows]
