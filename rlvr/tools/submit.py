"""Submit the answer and end the conversation."""

from __future__ import annotations

from rlvr.contracts.tool import FinalAnswer, Tool, ToolExample, tool


class Submit(Tool):
    """For tasks whose answer is given by a tool call instead of a message.

    >>> Submit().submit("42")
    '42'
    """

    examples = (ToolExample("submit", {"answer": "42"}, "42"),)

    @tool
    def submit(self, answer: str) -> str:
        """Submit the final answer. The conversation ends with it.

        Args:
            answer: the answer, and nothing else.
        """
        return FinalAnswer(answer)


make = Submit
