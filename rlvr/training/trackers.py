"""Experiment trackers (wandb, tensorboard, ...): send metrics during a run to those named in `log.report_to`, through accelerate.

All trackers get the metrics of each step; the accuracy on held-out tasks (`eval/accuracy`) is separate from the training reward. A
tracker that shows tables gets the episodes of every saved step. wandb writes into the run folder and sends nothing unless
WANDB_MODE=online is set; tensorboard and trackio always keep everything on this machine. `prometheus` is a file in the run folder.
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
from rlvr.evaluation.export import TRAINING_COLUMNS, flatten_row
from rlvr.runs.prometheus import PrometheusFile
from rlvr.runs.run_log import MetricReporter

PROJECT_NAME, PROMETHEUS_NAME = "rlvr", "prometheus"
MAX_TABLE_ROWS = 100
"""The maximum number of episodes in a table; the run folder has all of them."""


def validate_trackers(names: Sequence[str]) -> list[str]:
    """Return the trackers of `log.report_to`; raise ConfigError if one is unknown or not installed."""
    names = [name for name in names if name != PROMETHEUS_NAME]
    known, installed = ({str(getattr(name, "value", name)) for name in names} for names in (LOGGER_TYPE_TO_CLASS, get_available_trackers()))
    for name in names:
        if name not in known:
            raise ConfigError(f"log.report_to names {name!r}; {suggest(name, known | {PROMETHEUS_NAME})}")
        if name not in installed:
            raise ConfigError(f"log.report_to names {name!r}, which is not installed; `pip install {name}`, or leave it out")
    return list(names)


class Trackers(MetricReporter):
    """The trackers of one run, used through accelerate.

    >>> Trackers(accelerator, config, Path("runs/a")).metrics({"step": 1, "reward": 0.5})        # doctest: +SKIP
    """

    def __init__(self, accelerator: Accelerator, config: RunConfig, folder: Path) -> None:
        self.accelerator, self.table_interval_steps, self.last_step = accelerator, config.log.save_every, config.train.steps
        asked = config.log.report_to
        self.prometheus_gauges = PrometheusFile(folder) if PROMETHEUS_NAME in asked and accelerator.is_main_process else None
        if set(asked) - {PROMETHEUS_NAME}:
            accelerator.init_trackers(PROJECT_NAME, config={"config": config.to_yaml()}, init_kwargs=build_tracker_settings(folder))

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        """Send one step's metrics; missing values are left out."""
        numbers = {name: value for name, value in row.items() if value is not None and name != "step"}
        self.accelerator.log(numbers, step=row["step"])
        if self.prometheus_gauges is not None:
            self.prometheus_gauges.update(row)

    def log_episodes(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send one step's episodes to the trackers that show tables."""
        if step % self.table_interval_steps and step != self.last_step:
            return
        lines = [list(flatten_row(row, TRAINING_COLUMNS).values()) for row in rows[:MAX_TABLE_ROWS]]
        for tracker in self.accelerator.trackers:
            if hasattr(tracker, "log_table"):
                tracker.log_table("episodes", columns=list(TRAINING_COLUMNS), data=lines, step=step)
            elif tracker.name == "trackio":
                import trackio

                tracker.log({"episodes": trackio.Table(columns=list(TRAINING_COLUMNS), data=lines)}, step=step)


def build_tracker_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the init settings of each tracker: the run is named after its folder, and by default no data leaves this machine."""
    name = folder.resolve().name
    wandb = {"name": name, "dir": str(folder), "mode": os.environ.get("WANDB_MODE", "offline")}
    return {"wandb": wandb, "trackio": {"name": name}}
