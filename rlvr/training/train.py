"""Train as configured: `Trainer` in one call, as the command line uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.training.callbacks import Callback
from rlvr.training.components import ComponentBuilder, build_components
from rlvr.training.train_report import TrainReport
from rlvr.training.trainer import Trainer, check_arguments


def train(
    config: RunConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
    component_builder: ComponentBuilder = build_components,
) -> TrainReport:
    """Train as configured, write a run folder, and return the report.

    Args:
        config: the configuration of the run.
        out: the run folder; by default one in `runs/` with the time in its name.
        resume: continue the run in `out` from its newest checkpoint; start it if there is none.
        console: where progress is shown; by default standard error.
        callbacks: called after the shipped ones; see `Callback`.
        component_builder: builds the components; a cluster passes its own.
    """
    check_arguments(config, out, resume=resume, has_custom_builder=component_builder is not build_components)
    with Trainer(config, out=out, resume=resume, console=console, callbacks=callbacks, component_builder=component_builder) as trainer:
        return trainer.fit()
