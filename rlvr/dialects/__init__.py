"""How tool calls are written in each family of chat templates, and how they are parsed.

>>> from rlvr.dialects.table import get
>>> get("hermes").read('<tool_call>{"name": "now", "arguments": {}}</tool_call>', [ToolSpec("now", "The time.")]).calls[0].status
<CallStatus.OK: 'ok'>
"""

from rlvr.turns import ToolSpec

__all__ = ["ToolSpec"]
