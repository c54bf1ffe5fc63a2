"""Training with collectors: the same loop, whose crew samples elsewhere."""

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
"""How long a run that lost all its collectors waits before it is resumed: the first time, and at most."""


def train(config: RunConfig, *, out: str | Path | None = None, resume: bool = False, verify: bool = False, **how: Any) -> loop.TrainReport:
    """`rlvr.learn.train.train` for a configuration with a section `cluster`.

    A run that has lost all its collectors is resumed from its newest checkpoint, at most `cluster.resumes` times, after a growing pause.
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
        tell(f"{why.partition(';')[0]}; the run is resumed in {pause:g} s ({times} of {resumes} times, cluster.resumes)")
        time.sleep(pause)
        gc.collect()  # the model and the optimizer of the run that failed


def assembled(
    config: RunConfig, accelerator: Accelerator, stack: ExitStack, *, weights: Path | None = None, record: Record | None = None
) -> Crew:
    """The crew of a run, which samples where `cluster` says. `record`: of what happens to collectors."""
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
    """Start the collectors of a run, in its main process."""
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
    """The precision that the run computes in, and its collectors too."""
    return trained_in(crew.model, crew.accelerator.mixed_precision, crew.accelerator.device)


def takes_weights(sampler: Sampler) -> bool:
    """Whether a sampler is given the trainer's weights at all."""
    return type(sampler).load is not Sampler.load


def tell(line: str) -> None:
    """Print a note."""
    print(f"note: {line}", file=sys.stderr, flush=True)


def check(crew: Crew) -> None:
    """Refuse what cannot be sampled by collectors yet."""
    check_place(crew.sampler, crew.config.rollout.sampler["name"])
    check_parts(crew)


class InUnits:
    """Samples in this process, unit by unit as collectors do: what a cluster's run is compared with.

    >>> InUnits(rollout, ClusterConfig(collectors=0)).collect(draws, Sampling())            # doctest: +SKIP
    """

    shared = True

    def __init__(self, inner: Rollout, settings: ClusterConfig) -> None:
        self.inner, self.settings, self.timing, self.lockstep = inner, settings, Timing(), inner.lockstep

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """One episode a draw, in order."""
        found, self.timing = list[Episode](), Timing()
        for unit in units_of(draws, self.settings.groups_per_call):
            found += self.inner.collect(unit, sampling, version=version)
            self.timing = self.timing + self.inner.timing
        return found

    def measured(self, times: Mapping[str, float]) -> dict[str, float]:
        """Nothing more than a rollout of this process measures."""
        return self.inner.measured(times)

    def close(self) -> None:
        """Close the rollout of this process."""
        self.inner.close()


class Elsewhere(InUnits):
    """Lets the driver's collectors sample. Only the main process has a driver.

    >>> Elsewhere(rollout, settings, driver).collect(draws, Sampling())                               # doctest: +SKIP
    """

    def __init__(self, inner: Rollout, settings: ClusterConfig, driver: Driver | None) -> None:
        super().__init__(inner, settings)
        self.driver = driver

    def collect(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> list[Episode]:
        """One episode a draw, in order."""
        batch = self.begin(draws, sampling, version=version)
        found, self.timing = batch.result(), batch.timing
        return found

    def measured(self, times: Mapping[str, float]) -> dict[str, float]:
        """What collectors and the trainer did with the time of this step, and what was lost."""
        if self.driver is None:
            return {}
        return self.driver.figures.of_step() | {"cluster/trainer": times["time/update"] / max(times["step_time"], 1e-9)}

    def begin(self, draws: Sequence[Draw], sampling: Sampling, *, version: int = 0) -> Batch:
        """Ask for one episode a draw, without waiting for them."""
        if self.driver is None:
            raise SamplerError("collectors are asked by the main process alone, and this is another one")
        return self.driver.begin(draws, sampling, version=version)

    def close(self) -> None:
        """Stop waiting for collectors."""
        if self.driver is not None:
            self.driver.closed = True
        super().close()


class Sending(Sampler):
    """In the place of the run's sampler: what it would load is sent to the collectors, by the process that has a driver.

    >>> Sending(sampler, driver, packer).receive(learner.weights, 1)                        # doctest: +SKIP
    """

    def __init__(self, inner: Sampler, driver: Driver | None, packer: Packer | None) -> None:
        """Without a packer the sampler takes no weights."""
        self.inner, self.driver, self.packer = inner, driver, packer
        self._sent: int | None = None
        for name in ("company", "gives_text", "tokenizer", "runs_model"):
            setattr(self, name, getattr(inner, name))

    def receive(self, weights: Weights, version: int) -> None:
        """Send new weights. An evaluation may have sent them already; those of a warm start are all version 0."""
        if version != self._sent or version == 0:
            self.load(weights.model(), version)

    def load(self, model: Any, version: int) -> None:
        """Send the weights of a model."""
        self._sent = version
        if self.driver is not None:
            self.driver.load(NOTHING if self.packer is None else self.packer.pack(model))

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Any:
        """Never asked: collectors sample whole units."""
        raise SamplerError("answers are sampled by collectors, not in this process")

    def close(self) -> None:
        """Close the sampler of this process."""
        self.inner.close()
