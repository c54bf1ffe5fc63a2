"""Python code in the conversation's sandbox box; variables stay from call to call."""

from __future__ import annotations

from rlvr.contracts.tool import Tool, tool
from rlvr.tools._boxed import run, seconds


class Python(Tool):
    """Runs code in a Python session of the box. Code over its time limit is stopped, and the box stays usable.

    >>> Python(timeout=5).timeout
    5.0
    """

    needs_box = True

    def __init__(self, *, timeout: float = 10.0) -> None:
        """Keyword arguments are the settings.

        Args:
            timeout: how many seconds one call may take.
        """
        self.timeout = seconds(timeout)

    @tool
    def python(self, code: str) -> str:
        """Run Python code and get what it prints. Variables and imports stay for the next call.

        Args:
            code: the code; print what you want to see.
        """
        return run(self.box, code, "python", self.timeout)


make = Python
