"""Prefetch rollout batches while the trainer trains on the current one, with weights of a known age.

With `rollout.max_staleness: k` the batch of step t is always sampled with the weights of version max(0, t - k), independent of timing, so
a run is repeatable. With k = 1:

    worker     batch 0 by 0 | batch 1 by 0 | batch 2 by 1 | batch 3 by 2 | ...
    trainer                 | 0 -> 1       | 1 -> 2       | 2 -> 3       | ...

One worker thread samples the batches in order, so that a curriculum sees the results in the order of the steps. The trainer changes its
weights in place, so each batch in progress has its own copy of them.

A cluster can sample several batches concurrently (`AsyncRollout`). Then batch t + k is requested as soon as version t exists, before
batch t is complete, so an idle rollout worker starts the next batch while others still sample batch t:

    rollout worker 1     0 0 0 0 0 0 | 1 1 1 1 | 2 2 2 ...
    rollout worker 2     0 0 | 1 1 1 1 1 | 2 2 2 2 2 2 ...

The episodes are the same, because tasks, seeds and versions are. If a batch depends on the results of the previous one
(`needs_previous_batch`), it is requested when these are verified.

With several training processes, the main process samples for all (`Rollout.main_process_samples`) and sends each complete batch to the
others. So prefetching never participates in collective operations.
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
from rlvr.rollout.rollout import RolloutTiming
from rlvr.task import Verdict
from rlvr.training.collect import AsyncRollout, RolloutBatch, collect_batch, needs_previous_batch, start_batch
from rlvr.training.processes import run_on_main
from rlvr.training.task_sampling.dynamic_sampling import Group
from rlvr.training.trainer import Trainer

CPU_DEVICE = torch.device("cpu")
POLL_INTERVAL_S = 1.0
"""The poll interval of a thread that waits for a batch, so that PeerLost can be raised in it."""


class RolloutPrefetcher:
    """Prefetches rollout batches; holds the batches in progress, the next one first.

    >>> RolloutPrefetcher(trainer).next(step=0).groups                                 # doctest: +SKIP
    """

    def __init__(self, crew: Trainer) -> None:
        self.trainer, self.max_staleness = crew, crew.config.rollout.max_staleness
        if crew.accelerator.num_processes > 1 and not crew.rollout.main_process_samples:
            raise ConfigError(
                f"rollout.max_staleness is {self.max_staleness}, and each of {crew.accelerator.num_processes} processes samples its share: sampling "
                "during training would interleave their messages; set it to 0, launch one process, or let a `cluster` sample for all"
            )
        if crew.sampler.blocks_trainer_reason:
            raise ConfigError(
                f"rollout.max_staleness is {self.max_staleness}, but the sampler {crew.config.rollout.sampler['name']!r} cannot sample while the "
                f"trainer trains: {crew.sampler.blocks_trainer_reason}; or set max_staleness to 0"
            )
        self._async_rollout = crew.rollout if isinstance(crew.rollout, AsyncRollout) and not needs_previous_batch(crew) else None
        self._is_requesting_process = crew.accelerator.is_main_process
        """True if this process requests batches; in other processes the pending batches are placeholders."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._pending_batches: deque[Future[RolloutBatch]] = deque()
        self._copies: dict[int, Any] = {}

    def next_batch(self, step: int) -> RolloutBatch:
        """Return the batch of a step, and start sampling the batches up to `max_staleness` steps ahead.

        The timeouts of the sampler and of the verifier limit the wait.
        """
        last = min(step + self.max_staleness, self.trainer.config.train.steps - 1)
        self._request_batches(step, last if self._async_rollout is not None else step, version=step)
        harvest = run_on_main(self.trainer.accelerator, functools.partial(wait_for_batch, self._pending_batches.popleft()))
        self._request_batches(step + 1, last, version=step)
        return harvest

    def drain(self) -> None:
        """Wait until nothing is being sampled, before the sampler gets other weights; raise any error.

        Does not wait for rollout workers: each loads the next weights when it has finished with its own.
        """
        if self._async_rollout is None:
            self._wait_for_all()

    def close(self) -> None:
        """Stop sampling: with the rollout closed, the worker exits at the next completion."""
        self.trainer.rollout.close()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> RolloutPrefetcher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Wait for the prefetched batches, and return them for the checkpoint.

        They are stored because resampling them would need the older weights and a bitwise deterministic sampler. The next step must wait
        for the first of them in any case.
        """
        self._wait_for_all()
        return {
            "batches": json.dumps([batch_to_json(batch.result()) for batch in self._pending_batches] if self._is_requesting_process else [])
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        for row in json.loads(state["batches"]):
            batch: Future[RolloutBatch] = Future()
            batch.set_result(batch_from_json(row))
            self._pending_batches.append(batch)

    def _wait_for_all(self) -> None:
        """Wait in all processes until nothing is being sampled; raise any error in all of them."""

        def all_of_them() -> None:
            for batch in self._pending_batches:
                wait_for_batch(batch)

        run_on_main(self.trainer.accelerator, all_of_them)

    def _request_batches(self, first: int, last: int, *, version: int) -> None:
        """Request the batches of these steps that are not requested yet, with the current weights."""
        steps = range(first + len(self._pending_batches), last + 1)
        if self._async_rollout is not None and steps:
            self.trainer.sampler.update_weights(self.trainer.learner.weights, version)
        for step in steps:
            model = self.trainer.learner.gather_model() if self._async_rollout is None else None
            self._pending_batches.append(
                self._worker.submit(self._start_batch(model, step, version)) if self._is_requesting_process else Future()
            )

    def _start_batch(self, model: Any, step: int, version: int) -> Callable[[], RolloutBatch]:
        """Start or prepare sampling the batch of a step; return a function that completes it."""
        if self._async_rollout is not None:
            return start_batch(self.trainer, self._async_rollout, step, version=version)
        place = step % self.max_staleness
        if place in self._copies:  # the copy of a finished batch: at most `most` are being sampled
            self._copies[place].load_state_dict(model.state_dict())
        else:
            self._copies[place] = copy_model_for_sampler(self.trainer.sampler, model)
        return functools.partial(self._sample_batch, self._copies[place], step, version)

    def _sample_batch(self, model: Any, step: int, version: int) -> RolloutBatch:
        self.trainer.sampler.load_model(model, version)
        return collect_batch(self.trainer, step, version=version)


def wait_for_batch(batch: Future[RolloutBatch]) -> RolloutBatch:
    """Wait for a batch and return it."""
    while not wait([batch], timeout=POLL_INTERVAL_S).done:
        pass
    return batch.result()


def copy_model_for_sampler(sampler: Sampler, model: Any) -> Any:
    """Copy the model: to the trainer's device for a sampler that runs the model itself, otherwise to host memory.

    Engines read files, so a copy on the device would waste memory.
    """
    device = model.device if sampler.runs_model else CPU_DEVICE
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to(device, copy=True), p.requires_grad) for p in model.parameters()}
    memo |= {id(buffer): buffer.to(device, copy=True) for buffer in model.buffers()}
    return copy.deepcopy(model, memo)


def make_prefetcher(crew: Trainer, stack: ExitStack) -> RolloutPrefetcher | None:
    """Create a prefetcher if `rollout.max_staleness` is set; its batches are saved in checkpoints."""
    if not crew.config.rollout.max_staleness:
        return None
    ahead = stack.enter_context(RolloutPrefetcher(crew))
    crew.extra_state["ahead"] = ahead
    return ahead


def batch_to_json(batch: RolloutBatch) -> dict[str, Any]:
    """Convert a batch to JSON, losslessly."""
    return {
        "groups": [_group_to_json(group) for group in batch.groups],
        "dropped": {reason: [_group_to_json(group) for group in groups] for reason, groups in batch.dropped.items()},
        "figures": dict(batch.metrics),
        "timing": asdict(batch.timing),
    }


def batch_from_json(row: Mapping[str, Any]) -> RolloutBatch:
    """Build a batch from JSON."""
    dropped = {reason: [_group_from_json(rows) for rows in groups] for reason, groups in row["dropped"].items()}
    return RolloutBatch([_group_from_json(rows) for rows in row["groups"]], dropped, row["figures"], RolloutTiming(**row["timing"]))


def _group_to_json(group: Group) -> list[dict[str, Any]]:
    rows = [{field.name: getattr(episode, field.name) for field in fields(Episode)} for episode in group]
    return [row | {"verdict": row["verdict"] and row["verdict"].to_dict()} for row in rows]


def _group_from_json(rows: list[dict[str, Any]]) -> Group:
    return [Episode(**{**row, "verdict": row["verdict"] and Verdict(**row["verdict"])}) for row in rows]
