"""Python in the sandbox session of the conversation; variables persist between calls."""

from __future__ import annotations

from rlvr.contracts.tool import Tool, tool
from rlvr.tools._sandbox_run import run_in_sandbox, validate_timeout_setting


class Python(Tool):
    """Run code in a Python session of the sandbox. Code that exceeds its timeout is stopped, and the session stays usable.

    >>> Python(call_timeout_s=5).call_timeout_s
    5.0
    """

    needs_sandbox = True

    def __init__(self, *, call_timeout_s: float = 10.0) -> None:
        """Keyword arguments are the settings.

        Args:
            call_timeout_s: timeout of one call, in seconds.
        """
        self.call_timeout_s = validate_timeout_setting(call_timeout_s)

    @tool
    def python(self, code: str) -> str:
        """Run Python code and get what it prints. Variables and imports stay for the next call.

        Args:
            code: the code; print what you want to see.
        """
        return run_in_sandbox(self.sandbox_session, code, "python", self.call_timeout_s)


make = Python
