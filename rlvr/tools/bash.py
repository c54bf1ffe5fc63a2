"""A shell in the sandbox session of the conversation; files and the working folder persist between calls."""

from __future__ import annotations

from rlvr.contracts.tool import Tool, tool
from rlvr.tools._sandbox_run import run_in_sandbox, validate_timeout_setting


class Bash(Tool):
    """Run commands in the sandbox. A command that exceeds its timeout is stopped, and the session stays usable.

    >>> Bash().call_timeout_s
    30.0
    """

    needs_sandbox = True

    def __init__(self, *, call_timeout_s: float = 30.0) -> None:
        """Keyword arguments are the settings.

        Args:
            call_timeout_s: timeout of one command, in seconds.
        """
        self.call_timeout_s = validate_timeout_setting(call_timeout_s)

    @tool
    def bash(self, command: str) -> str:
        """Run a bash command and get what it writes. Files and the working folder stay for the next call.

        Args:
            command: one command or several lines.
        """
        return run_in_sandbox(self.sandbox_session, command, "bash", self.call_timeout_s)


make = Bash
