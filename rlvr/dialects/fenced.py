"""The dialect `fenced`, for base models and templates without tools: a fenced block whose first line names the tool."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.dialects.dialect import Dialect, Found, Step
from rlvr.dialects.jsontext import Broken, dumps, whole
from rlvr.turns import Call, CallStatus, ToolSpec

FENCE = re.compile(r"(`{3,64})([^`\n]*)(\n|$)")


class Fenced(Dialect):
    """A block fenced with three or more backticks, with the tool's name after the first fence.

    For a tool with a single string argument the block is the argument; for any other tool it is a JSON object.
    A fence that does not name a tool is part of the content: code in an answer is not a call.
    """

    name = "fenced"
    about = "base models: a fenced block that names the tool"
    opens = ("```",)
    closes = ("```",)
    plain_text = True

    def write(self, calls: Sequence[Call], tools: Sequence[ToolSpec] = ()) -> str:
        """Format one block per call; the fence is longer than any in the text."""
        return "\n".join(self._block(call, tools) for call in calls)

    def _block(self, call: Call, tools: Sequence[ToolSpec]) -> str:
        key = _only_text(call.name, tools)
        given = dict(call.arguments or {})
        body = given[key] if key in given and len(given) == 1 else dumps(given)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
        return f"{fence}{call.name}\n{body}\n{fence}"

    def scan(self, text: str, at: int, tools: Sequence[ToolSpec]) -> Step | None:
        """Parse from a fence at the start of a line to the same fence at the start of another line."""
        begins = at == 0 or text[at - 1] == "\n" or any(text.endswith(close, 0, at) for _, close in self.thoughts)
        fence = FENCE.match(text, at) if begins else None
        name = fence.group(2).strip() if fence else ""
        if fence is None or name not in {spec.name for spec in tools}:
            return None
        close = re.compile(rf"^{fence.group(1)}[ \t]*$", re.MULTILINE).search(text, fence.end())
        if close is None:
            return self.unclosed(text, name)
        body = text[fence.end() : max(fence.end(), close.start() - 1)]
        key = _only_text(name, tools)
        if key:
            return Step((Found(name, {key: body}),), close.end())
        try:
            return Step((Found(name, whole(body) if body.strip() else {}),), close.end())
        except Broken as broken:
            return Step((Found(name, None, CallStatus.BAD_JSON, str(broken)),), close.end())


def _only_text(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the argument of a tool with a single string argument; '' for any other tool."""
    properties = next((spec.parameters.get("properties") or {} for spec in tools if spec.name == name), {})
    key = next(iter(properties), "")
    return key if len(properties) == 1 and properties[key].get("type") == "string" else ""
