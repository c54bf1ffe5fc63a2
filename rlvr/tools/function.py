"""A plain Python function as a tool: the policy gets its name, its docstring and its signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.contracts.schema import build_parameters_schema, strip_docstring_sections
from rlvr.contracts.tool import Tool, ToolExample, await_if_needed, format_result
from rlvr.errors import PluginLoadError
from rlvr.registry.plugins import load_function_from_file
from rlvr.turns import ToolSpec


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class FunctionTool(Tool):
    """Calls a function of yours, also an `async` one: `tools: [{name: function, function: path/to/file.py:my_function}]`.

    Its arguments need type hints; what it returns is shown to the policy as text, or as JSON.

    A function that raises ToolError rejects the call with a message for the policy; any other exception means that the tool failed.

    >>> FunctionTool(function=add)(a=2, b=3)
    '5'
    """

    examples: Sequence[ToolExample] = (ToolExample("add", {"a": 2, "b": 3}, "5"),)

    def __init__(self, *, function: Callable[..., Any] | str = add) -> None:
        """Set the function.

        Args:
            function: the function, or path/to/file.py:function; all of its conversations share it, so it must be thread-safe.
        """
        function = load_function_from_file(function, "function") if isinstance(function, str) else function
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        about = strip_docstring_sections(function.__doc__ or "")
        if not about:
            raise PluginLoadError(f"the function {self.name} has no docstring; describe in it what the tool does, for the policy")
        self.examples = self.examples if function is add else ()
        self._specs = (ToolSpec(self.name, about, build_parameters_schema(function)),)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the spec of the function."""
        return self._specs

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call the function, and convert what it returns to text."""
        return format_result(await_if_needed(self.function(**arguments)))


make = FunctionTool
