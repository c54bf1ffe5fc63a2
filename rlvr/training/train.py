"""Train as configured: `Trainer` in one call, as the command line uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.errors import ConfigError
from rlvr.models.determinism import configure_device
from rlvr.models.device import resolve_device
from rlvr.runs.run_log import is_empty_run
from rlvr.training.callbacks import Callback
from rlvr.training.components import ComponentBuilder, build_components
from rlvr.training.processes import build_accelerator, run_on_main
from rlvr.training.repeat_step import repeat_one_step
from rlvr.training.train_report import TrainReport
from rlvr.training.trainer import Trainer, check_arguments


def train(
    config: RunConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    verify_repeatability: bool = False,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
    component_builder: ComponentBuilder = build_components,
) -> TrainReport:
    """Train as configured, write a run folder, and return the report.

    Args:
        config: the configuration of the run.
        out: the run folder; by default one in `runs/` with the time in its name.
        resume: continue the run in `out` from its newest checkpoint; start it if there is none.
        verify_repeatability: first repeat a recorded step of the run that is resumed, and compare it with the log.
        console: where progress is shown; by default standard error.
        callbacks: called after the shipped ones; see `Callback`.
        component_builder: builds the components; a cluster passes its own.
    """
    accelerator = None
    check_arguments(config, out, resume=resume, has_custom_builder=component_builder is not build_components)
    if verify_repeatability and not resume:
        raise ConfigError("--verify repeats a step of a run that is resumed; give --resume too")
    if verify_repeatability and out is not None:
        configure_device(config, resolve_device())
        accelerator = build_accelerator(config, folder := Path(out))
        if run_on_main(accelerator, lambda: not is_empty_run(folder)):
            told = repeat_one_step(config, accelerator, folder, component_builder)
            if accelerator.is_main_process:
                (console or Console(stderr=True)).print(told, highlight=False)
    with Trainer(
        config,
        out=out,
        resume=resume,
        console=console,
        accelerator=accelerator,
        callbacks=callbacks,
        component_builder=component_builder,
    ) as trainer:
        return trainer.fit()
