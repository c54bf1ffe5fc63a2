"""The command line: `rlvr`."""

from rlvr.cli import exporting as exporting
from rlvr.cli import judging as judging
from rlvr.cli import measuring as measuring
from rlvr.cli import viewing as viewing
from rlvr.cli.app import app, main, run

__all__ = ["app", "main", "run"]
