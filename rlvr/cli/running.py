"""`rlvr train` and `rlvr replay`: run the command and print the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.text import Text

from rlvr.cli import screen
from rlvr.errors import ConfigError, MissingExtra
from rlvr.registry.plugins import build_from_config


def train_run(
    recipe: str,
    overrides: Sequence[str],
    *,
    out: Path | None,
    resume: bool,
    json: bool,
    model: str = "",
    test_data: str = "",
    verifier: str = "",
) -> None:
    """Load the recipe, or make one for a data file; train; print the report, with `json` as one line of JSON at the end."""
    from rlvr.cli import data_training as starting
    from rlvr.config.config import load_config, translate_overrides
    from rlvr.models.cpu_threads import set_openmp_passive_wait

    set_openmp_passive_wait()
    overrides = translate_overrides(overrides)
    on_data = starting.is_data_target(recipe)
    if on_data:
        config, out = starting.write_data_recipe(recipe, overrides, model=model, test_data=test_data, verifier=verifier, out=out)
    elif test_data:
        raise ConfigError("--test goes with a data file; set env.test=...")
    elif starting.needs_no_recipe(recipe):
        config = starting.make_run_without_recipe(recipe, overrides, model=model, verifier=verifier)
    else:
        overrides = [*starting.make_model_overrides(model), *overrides, *starting.make_verifier_overrides(verifier, overrides)]
        config = load_config(recipe, overrides, overrides_source="the command line")
    out = Path(config.out).expanduser() if out is None and config.out else out
    with suppress(ModuleNotFoundError):  # reported below
        build_from_config("algorithm", config.algorithm)  # a wrong setting is reported before the slow imports
    try:
        import torch  # noqa: F401 -- imported first: without torch, transformers only warns and fails later

        from rlvr.training.reward_model import train_reward_model
        from rlvr.training.train import train
    except ModuleNotFoundError as error:
        raise MissingExtra((error.name or "torch").split(".")[0], "train") from error
    method: Any = train if config.reward_model_training is None else train_reward_model
    if config.cluster is not None:
        from rlvr.cluster.training import train as method
    console = screen.make_stderr_console() if json else screen.make_stdout_console()
    report = method(config, out=out, resume=resume, console=console)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    if on_data:
        starting.write_page_and_print_next_steps(Path(report.run), console)
    if json:
        screen.print_json(report.to_dict())


def replay_recorded_episodes(run: Path, *, json: bool) -> int:
    """Step the recorded episodes through the environment again; returns 1 if any differs."""
    from rlvr.rollout.replay import replay_recorded_episodes

    report = replay_recorded_episodes(run)
    if json:
        screen.print_json(report.to_dict())
    else:
        console = screen.make_stdout_console()
        ok = not report.mismatches
        console.print(Text.assemble(screen.make_status_mark(ok), f" {report.episodes} episodes stepped again, {report.mismatches} differ"))
        if report.num_recorded_sessions:
            console.print(
                Text(f"  {report.num_recorded_sessions} had tool or multi-turn sessions, whose replies were taken from the record")
            )
        if report.failed:
            console.print(Text(f"  {report.failed} were recorded as failed and are not compared"))
        for line in report.details:
            console.print(Text(f"  {line}"))
    return 1 if report.mismatches else 0


def resample_recorded_groups(run: Path, *, num_groups: int, json: bool) -> int:
    """Sample some recorded groups again; returns 1 if any answer differs."""
    try:
        from rlvr.cluster.checks.audit import audit_recorded_groups
    except ModuleNotFoundError as error:
        raise MissingExtra((error.name or "torch").split(".")[0], "train") from error
    report = audit_recorded_groups(run, num_groups=num_groups)
    if json:
        screen.print_json(report.to_dict())
        return 1 if report.differing else 0
    console = screen.make_stdout_console()
    words = f" {report.answers} answers of {report.groups} groups sampled again, {report.differing} differ"
    console.print(Text.assemble(screen.make_status_mark(not report.differing), words))
    if report.left_out:
        console.print(Text(f"  {report.left_out} recorded groups lack answers, failed or hit a time limit, and cannot be sampled again"))
    for line in report.details:
        console.print(Text(f"  {line}"))
    return 1 if report.differing else 0
