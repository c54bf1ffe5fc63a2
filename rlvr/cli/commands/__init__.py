"""The command line: `rlvr`."""

import os
import sys

try:
    from rlvr.cli.commands import eval_command, export_command, verifier_commands, view_command  # noqa: F401 -- they add their commands
    from rlvr.cli.commands.app import app, main, run_command
except KeyboardInterrupt:  # Ctrl-C in the first moments, while the modules are imported: no traceback, and the exit code of later
    os.write(2, b"stopped\n")
    sys.exit(130)

__all__ = ["app", "main", "run_command"]
