"""The command line: `rlvr`."""

from rlvr.cli.commands import eval_command, export_command, verifier_commands, view_command  # noqa: F401 -- they add their commands
from rlvr.cli.commands.app import app, main, run_command

__all__ = ["app", "main", "run_command"]
