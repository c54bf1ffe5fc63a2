"""A shell in the conversation's sandbox box; files and the working folder stay from call to call."""

from __future__ import annotations

from rlvr.contracts.tool import Tool, tool
from rlvr.tools._boxed import run, seconds


class Bash(Tool):
    """Runs commands in the box. A command over its time limit is stopped, and the box stays usable.

    >>> Bash().timeout
    30.0
    """

    needs_box = True

    def __init__(self, *, timeout: float = 30.0) -> None:
        """Keyword arguments are the settings.

        Args:
            timeout: how many seconds one command may take.
        """
        self.timeout = seconds(timeout)

    @tool
    def bash(self, command: str) -> str:
        """Run a bash command and get what it writes. Files and the working folder stay for the next call.

        Args:
            command: one command or several lines.
        """
        return run(self.box, command, "bash", self.timeout)


make = Bash
