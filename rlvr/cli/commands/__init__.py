"""The command line: `rlvr`."""

from rlvr.cli.commands import eval_command as measuring
from rlvr.cli.commands import export_command as exporting
from rlvr.cli.commands import verifier_commands as judging
from rlvr.cli.commands import view_command as viewing
from rlvr.cli.commands.app import app, main, run_command

__all__ = ["app", "main", "run_command"]
