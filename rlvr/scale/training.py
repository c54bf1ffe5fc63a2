"""Train with rollout workers: the training loop of `rlvr.learn`, with a trainer that samples remotely."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config.cluster import ClusterConfig
from rlvr.config.config import RunConfig
from rlvr.contracts import Request, Sampler, Sampling, Weights
from rlvr.episode import Episode
from rlvr.errors import CollectorsLost, SamplerError
from rlvr.learn import train as loop
from rlvr.learn.collect import check_parts
from rlvr.learn.crew import Crew, assemble
from rlvr.learn.processes import by_main
from rlvr.model.device import trained_in
from rlvr.rollout.draws import Draw
from rlvr.rollout.rollout import Rollout
from rlvr.rollout.timing import Timing
from rlvr.scale.collector import check_place
from rlvr.scale.driver import NOTHING, Batch, Driver
from rlvr.scale.record import Record
from rlvr.scale.units import units_of
from rlvr.scale.weights.packing import Packer

PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""The delay before a run that lost all rollout workers is resumed: the first one, and the maximum."""


def train(config: RunConfig, *, out: str | Path | None = None, resume: bool = False, verify: bool = False, **how: Any) -> loop.TrainReport:
    """Run `rlvr.learn.train.train` for a configuration with a section `cluster`.

    A run that lost all rollout workers is resumed from its newest checkpoint, at most `cluster.auto_resume` times, with growing delays.
    """
    folder = out if out is not None or resume else loop.folder_for(config)
    record = Record(None if folder is None else Path(folder))
    resumes = config.cluster.resumes if config.cluster and os.environ.get("WORLD_SIZE", "1") == "1" else 0
    crew_from, times = functools.partial(assembled, record=record), 0
    while True:
        try:
            return loop.train(config, out=folder, resume=resume, verify=verify, crew_from=crew_from, **how)
        except CollectorsLost as error:
            if times == resumes:
                raise
            why = str(error)
        times, pause, resume, verify = times + 1, min(PAUSE_S * 2**times, LONGEST_PAUSE_S), True, False
        record.add("resumed", why=why, times=times, pause_s=pause)
        tell(f"{why.partition(';')[0]}; the run is resumed in {pause:g} s (resume {times} of {resumes}, cluster.auto_resume)")
        time.sleep(pause)
        gc.collect()  # free the model and the optimizer of the failed run


def assembled(
    config: RunConfig, accelerator: Accelerator, stack: ExitStack, *, weights: Path | None = None, record: Record | None = None
) -> Crew:
    """Build the trainer of a run, which samples as `cluster` says. `record`: the event log of the workers."""
    crew, settings = assemble(config, accelerator, stack, weights=weights), config.cluster
    if settings is None:
        return crew
    check(crew)
    if settings.collectors == 0:
        crew.rollout = InUnits(crew.rollout, settings)  # type: ignore[assignment]
        return crew
    precision, vectors = precision_of(crew), crew.sampler.runs_model
    packer = Packer(settings.weights, precision, vectors=vectors) if takes_weights(crew.sampler) else None
    made = list[Driver]()
    by_main(accelerator, lambda: made.append(driver_for(crew, settings, stack, record)))
    driver = made[0] if made else None
    crew.rollout = Elsewhere(crew.rollout, settings, driver)  # type: ignore[assignment]
    crew.sampler = Sending(crew.sampler, driver, packer)
    return crew


def driver_for(crew: Crew, settings: ClusterConfig, stack: ExitStack, record: Record | None) -> Driver:
    """Start the rollout workers of a run, in its main process."""
    from rlvr.scale.actors import Actors
    from rlvr.scale.collector import Facts

    facts = Facts(precision_of(crew), crew.rollout.lockstep, torch.get_num_threads(), weights=takes_weights(crew.sampler))
    actors = Actors(settings, crew.config.model_dump(mode="json"), facts)
    stack.callback(actors.close)
    driver = stack.enter_context(Driver(actors, settings, tell=tell, record=record))
    if (judges := actors.judges) is not None:
        driver.figures.judging = lambda: judges.busy
    return driver


def precision_of(crew: Crew) -> str:
    """Return the precision of the run and of its rollout workers."""
    return trained_in(crew.model, crew.accelerator.mixed_precision, crew.accelerator.device)


def takes_weights(sampler: Sampler) -> bool:
    """Whether a sampler loads the weights of the trainer."""
    return type(sampler).load is not Sampler.load


def tell(line: str) -> None:
    """Print a note to standard error."""
    print(f"note: {line}", file=sys.stderr, flush=True)


def check(crew: Crew) -> None:
    """Raise an error for configurations that rollout workers do not support."""
    check_place(crew.sampler, crew.config.rollout.sampler["name"])
    check_parts(crew)


class InUnits:
    """Sample in this process, task by task as rollout workers do: the reference for a cluster run."""

    shared = True

    def __init__(self, inner: Rollout, settings: ClusterConfig) -> None:
        self.inner, self.settings, self.timing, self.lockstep = inner, settings, Timing(), inner.lockstep

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """Return one episode for each draw, in order."""
        found, self.timing = list[Episode](), Timing()
        for unit in units_of(draws, self.settings.groups_per_call):
            found += self.inner.collect(unit, sampling, version=version)
            self.timing = self.timing + self.inner.timing
        return found

    def measured(self, times: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of the local rollout."""
        return self.inner.measured(times)

    def close(self) -> None:
        """Close the local rollout."""
        self.inner.close()


class Elsewhere(InUnits):
    """Sample with the rollout workers of the driver. Only the main process has a driver."""

    def __init__(self, inner: Rollout, settings: ClusterConfig, driver: Driver | None) -> None:
        super().__init__(inner, settings)
        self.driver = driver

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """Return one episode for each draw, in order."""
        batch = self.begin(draws, sampling, version=version)
        found, self.timing = batch.result(), batch.timing
        return found

    def measured(self, times: Mapping[str, float]) -> dict[str, float]:
        """Return how workers and trainer spent the time of this step, and the counters."""
        if self.driver is None:
            return {}
        return self.driver.figures.of_step() | {"cluster/trainer": times["time/update"] / max(times["step_time"], 1e-9)}

    def begin(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Batch:
        """Start to sample one episode for each draw; does not block."""
        if self.driver is None:
            raise SamplerError("only the main process has rollout workers, and this is another process")
        return self.driver.begin(draws, sampling, version=version)

    def close(self) -> None:
        """Stop to wait for the rollout workers."""
        if self.driver is not None:
            self.driver.closed = True
        super().close()


class Sending(Sampler):
    """Replaces the sampler of the run: sends the weights to the rollout workers, in the process that has a driver."""

    def __init__(self, inner: Sampler, driver: Driver | None, packer: Packer | None) -> None:
        """`packer`: None if the sampler loads no weights."""
        self.inner, self.driver, self.packer = inner, driver, packer
        self._sent: int | None = None
        for name in ("company", "gives_text", "tokenizer", "runs_model"):
            setattr(self, name, getattr(inner, name))

    def receive(self, weights: Weights, version: int) -> None:
        """Send new weights, unless an evaluation has sent them already. All weights of a warm start are version 0."""
        if version != self._sent or version == 0:
            self.load(weights.model(), version)

    def load(self, model: Any, version: int) -> None:
        """Send the weights of a model."""
        self._sent = version
        if self.driver is not None:
            self.driver.load(NOTHING if self.packer is None else self.packer.pack(model))

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Any:
        """Raise an error: rollout workers sample whole tasks."""
        raise SamplerError("rollout workers sample the completions, not this process")

    def close(self) -> None:
        """Close the sampler of this process."""
        self.inner.close()
