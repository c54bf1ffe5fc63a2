"""The command `rlvr export-env` and its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr.cli.commands.app import Json, Settings, app


@app.command("export-env")
def export_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An environment: a name, or path/to/file.py:Object.")],
    to: Annotated[
        str, typer.Option(help="trl, verl, openrlhf, skyrl, ms-swift, nemo-gym, inspect, lm-eval, verifiers, openenv or aviary.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
    split: Annotated[str, typer.Option(help="The split of the tasks.")] = "train",
    count: Annotated[int | None, typer.Option(help="How many tasks; default: all, or 1000 if the environment generates its tasks.")] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Write an environment as files for another trainer."""
    from rlvr.cli import scaffold

    scaffold.write_env_export(env, to, out=out, split=split, count=count, setting_pairs=settings or [], json=json)
