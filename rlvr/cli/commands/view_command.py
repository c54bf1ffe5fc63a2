"""The command `rlvr view` and its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlvr.cli.commands.app import Json, app


@app.command()
def view(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of `rlvr train` or `rlvr eval`, or a folder of many runs.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; default: view.html in the (first) run's folder.")] = None,
    against: Annotated[Path | None, typer.Option(help="Another run of the same kind, as B of the difference A - B.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on this machine, and update it until the run is finished.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --watch: the port; 0 is a free one.")] = 0,
    json: Json = False,
) -> None:
    """Write runs as one HTML file: curves, episodes, tokens."""
    from rlvr.cli import viewing

    viewing.view_runs(runs, out=out, against=against, serve_live=watch, port=port, json=json)
