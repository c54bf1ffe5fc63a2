"""The tool call formats of chat template families: formatting and parsing of calls.

>>> from rlvr.chat.dialects.table import get_dialect
>>> get_dialect("hermes").parse_turn('<tool_call>{"name": "now", "arguments": {}}</tool_call>', [ToolSpec("now", "The time.")]).calls[0].status
<CallStatus.OK: 'ok'>
"""

from rlvr.turns import ToolSpec

__all__ = ["ToolSpec"]
