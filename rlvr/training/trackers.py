"""Experiment trackers (wandb, tensorboard, ...): send metrics during a run to those named in `log.report_to`, through accelerate.

All trackers get the metrics of each step; the accuracy on held-out tasks (`eval/accuracy`) is separate from the training reward. A
tracker that shows tables gets the episodes of every saved step. wandb writes into the run folder and sends nothing unless
WANDB_MODE=online is set; tensorboard and trackio always keep everything on this machine. `prometheus` is a file in the run folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from rlvr.config.config import RunConfig
from rlvr.evaluation.export import TRAINING_COLUMNS, flatten_row
from rlvr.runs.prometheus import PrometheusFile
from rlvr.training.callbacks import Callback, StepRecord
from rlvr.training.processes import PROMETHEUS_NAME

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

PROJECT_NAME = "rlvr"
MAX_TABLE_ROWS = 100
"""The maximum number of episodes in a table; the run folder has all of them."""


class Trackers(Callback):
    """Sends metrics and episodes of a run to its experiment trackers, through accelerate.

    >>> Trackers(accelerator, config, Path("runs/a")).log_metrics({"step": 1, "reward": 0.5})  # doctest: +SKIP
    """

    def __init__(self, accelerator: Accelerator, config: RunConfig, folder: Path) -> None:
        self.accelerator, self.table_interval_steps, self.last_step = accelerator, config.log.save_every, config.train.steps
        asked = config.log.report_to
        self.prometheus_gauges = PrometheusFile(folder) if PROMETHEUS_NAME in asked and accelerator.is_main_process else None
        if set(asked) - {PROMETHEUS_NAME}:
            accelerator.init_trackers(PROJECT_NAME, config={"config": config.to_yaml()}, init_kwargs=build_tracker_settings(folder))

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Send the metrics and times of a step, and at some steps its episodes."""
        if trainer.config.log.episodes and (record.step % self.table_interval_steps == 0 or record.step == self.last_step):
            self.log_episodes(record.step, record.list_episode_rows())
        self.log_metrics({**record.metrics, **record.timings})

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Send the accuracy before and after training; those in between are metrics of their step."""
        if step == 0 or trainer.is_finished:
            self.log_metrics({"step": step, "eval/accuracy": accuracy})

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        """Send one step's metrics; missing values are left out."""
        numbers = {name: value for name, value in row.items() if value is not None and name != "step"}
        self.accelerator.log(numbers, step=row["step"])
        if self.prometheus_gauges is not None:
            self.prometheus_gauges.update(row)

    def log_episodes(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send one step's episodes to the trackers that show tables."""
        lines = [list(flatten_row(row, TRAINING_COLUMNS).values()) for row in rows[:MAX_TABLE_ROWS]]
        for tracker in self.accelerator.trackers:
            if hasattr(tracker, "log_table"):
                tracker.log_table("episodes", columns=list(TRAINING_COLUMNS), data=lines, step=step)
            elif tracker.name == "trackio":
                import trackio

                tracker.log({"episodes": trackio.Table(columns=list(TRAINING_COLUMNS), data=lines)}, step=step)


def build_tracker_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the init settings of each tracker, with which by default no data leaves this machine.

    The run is named after its folder.
    """
    name = folder.resolve().name
    wandb = {"name": name, "dir": str(folder), "mode": os.environ.get("WANDB_MODE", "offline")}
    return {"wandb": wandb, "trackio": {"name": name}}
