"""Trackers: who is told of a run while it goes on. Nobody, unless `log.report_to` names them; accelerate talks to them.

Numbers go to all of them, step by step, the accuracy on held-out tasks (`eval/accuracy`) apart from the reward of training. A tracker
that shows tables gets the episodes of every step that is saved. wandb writes into the run folder and sends nothing, until the user
says so with WANDB_MODE=online; tensorboard and trackio keep everything on this machine anyway.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from rlvr.config.config import RunConfig
from rlvr.errors import ConfigError, suggest
from rlvr.evaluation.export import TRAINED, flat
from rlvr.runs.runlog import Reports

PROJECT = "rlvr"
ROWS = 100
"""Episodes in a table: it is for reading, the run folder has them all."""


def checked_trackers(names: Sequence[str]) -> list[str]:
    """The trackers of `log.report_to`, each of them known and installed."""
    known, installed = ({str(getattr(name, "value", name)) for name in names} for names in (LOGGER_TYPE_TO_CLASS, get_available_trackers()))
    for name in names:
        if name not in known:
            raise ConfigError(f"log.report_to names {name!r}; {suggest(name, known)}")
        if name not in installed:
            raise ConfigError(f"log.report_to names {name!r}, which is not installed; `pip install {name}`, or leave it out")
    return list(names)


class Trackers(Reports):
    """The trackers of one run, told through accelerate.

    >>> Trackers(accelerator, config, Path("runs/a")).metrics({"step": 1, "reward": 0.5})        # doctest: +SKIP
    """

    def __init__(self, accelerator: Accelerator, config: RunConfig, folder: Path) -> None:
        self.accelerator, self.every, self.last = accelerator, config.log.save_every, config.train.steps
        if config.log.report_to:
            accelerator.init_trackers(PROJECT, config={"config": config.dump()}, init_kwargs=settings(folder))

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One step's numbers; what could not be measured is left out."""
        numbers = {name: value for name, value in row.items() if value is not None and name != "step"}
        self.accelerator.log(numbers, step=row["step"])

    def episodes(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """One step's episodes, for those who show tables."""
        if step % self.every and step != self.last:
            return
        lines = [list(flat(row, TRAINED).values()) for row in rows[:ROWS]]
        for tracker in self.accelerator.trackers:
            if hasattr(tracker, "log_table"):
                tracker.log_table("episodes", columns=list(TRAINED), data=lines, step=step)
            elif tracker.name == "trackio":
                import trackio

                tracker.log({"episodes": trackio.Table(columns=list(TRAINED), data=lines)}, step=step)


def settings(folder: Path) -> dict[str, dict[str, Any]]:
    """How each tracker is started: the run is called as its folder, and nothing leaves this machine unasked."""
    name = folder.resolve().name
    wandb = {"name": name, "dir": str(folder), "mode": os.environ.get("WANDB_MODE", "offline")}
    return {"wandb": wandb, "trackio": {"name": name}}
