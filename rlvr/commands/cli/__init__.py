"""The command line: `rlvr`."""

from rlvr.commands.cli import exporting as exporting
from rlvr.commands.cli import judging as judging
from rlvr.commands.cli import measuring as measuring
from rlvr.commands.cli import viewing as viewing
from rlvr.commands.cli.app import app, main, run_command

__all__ = ["app", "main", "run_command"]
