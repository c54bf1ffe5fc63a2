"""The tool contract: a plugin whose marked methods a policy may call, with separate state for each conversation.

>>> class Counter(Tool):
...     '''Count.'''
...     def setup(self) -> None:
...         self.count = 0
...     @tool
...     def add(self, number: int = 1) -> str:
...         '''Add to the count and return it.'''
...         self.count += number
...         return str(self.count)
>>> with Counter().session() as counter:
...     run_tool_call(counter, Call("0.0", "add", {"number": 5})).text
'5'
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from rlvr.contracts.plugin import Plugin
from rlvr.contracts.sandbox import SandboxSession
from rlvr.contracts.schema import SchemaValidationError, build_parameters_schema, strip_docstring_sections, validate_arguments
from rlvr.errors import ConfigError, PluginLoadError, RlvrError, ToolError, ToolInfrastructureError, describe_exception, format_suggestion
from rlvr.turns import Call, CallStatus, ToolResult, ToolSpec

TOOL_MARKER_ATTRIBUTE = "_rlvr_tool"
MAX_RESULT_CHARACTERS = 8_000
"""The default maximum length of a result."""
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The resources of one conversation that a tool can use.

    >>> ToolContext(data={"database": "sales.db"}).sandbox_session is None
    True
    """

    sandbox_session: SandboxSession | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """Data from the task, such as the path of a database."""
    seed: int = 0


class FinalAnswer(str):
    """A tool result that ends the conversation; its text is the answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ToolExample:
    """An example call of a tool and a part of its expected result, for checks and documentation.

    >>> ToolExample("calculator", {"expression": "2+2"}, "4").ok
    True
    """

    name: str
    arguments: Mapping[str, Any]
    contains: str
    """A substring of the expected result."""
    ok: bool = True
    """False if the tool must reject the call with ToolError."""


def tool(method: Method) -> Method:
    """Mark a method of a `Tool`, or a function, as a tool: the policy gets its name, docstring and signature.

    It stays a plain function, with the attributes `name`, `description`, `parameters` (a JSON Schema), and `schema`
    with these three.

    >>> @tool
    ... def double(number: int) -> int:
    ...     '''Double a number.'''
    ...     return 2 * number
    >>> double(4), double.name, double.description, double.parameters["required"]
    (8, 'double', 'Double a number.', ['number'])
    """
    if _makes_a_tool(method):
        raise ConfigError(
            f"@rlvr.tool is on {method.__name__}, which has no docstring and makes another function; decorate the function that does the "
            f"work, with type hints and a docstring: @rlvr.tool def {method.__name__}(x: int, y: int) -> str: ..."
        )
    made: Any = method
    setattr(made, TOOL_MARKER_ATTRIBUTE, True)
    made.name, made.description = getattr(method, "__name__", ""), strip_docstring_sections(method.__doc__ or "")
    with suppress(PluginLoadError):  # what cannot be expressed is told when the tool is used, with the name of its class
        made.parameters = build_parameters_schema(method)
        made.schema = {"name": made.name, "description": made.description, "parameters": made.parameters}  # as chat servers have it
    return method


def _makes_a_tool(method: Any) -> bool:
    """Whether a function only defines another one, as tools of Inspect are written."""
    code = getattr(method, "__code__", None)
    if code is None or method.__doc__ or "self" in code.co_varnames[:1]:
        return False
    return any(inspect.iscode(inner) and inner.co_name.isidentifier() for inner in code.co_consts)


class Tool(Plugin):
    """A plugin with one or more methods marked with `@tool`, which take plain arguments and return a text; other values are shown as JSON.

    The plugin holds the state that all conversations share. Each conversation gets a copy (`start`): its `setup` creates the
    conversation's state and its `teardown` removes it. A copy is used by one thread at a time, unless `parallel` is True. A method
    raises ToolError with a message for the policy. Any other exception means that the tool failed: the conversation ends, with score 0
    if only its own calls cause that (`rlvr.contracts.fault_rule`), without a score if the tool's `examples` fail too.
    """

    needs_sandbox: ClassVar[bool] = False
    """True if the tool needs a `SandboxSession` for the conversation."""
    parallel: ClassVar[bool] = False
    """True if calls of one turn may run at the same time, each in a thread: no call changes what another one returns."""
    examples: Sequence[ToolExample] = ()
    """Calls that `rlvr check` executes in this order in one conversation."""
    example_data: ClassVar[Mapping[str, Any]] = {}
    """The data (`ToolContext.data`) of the conversations of `rlvr check`, for a tool that reads data of its world."""
    context: ToolContext = ToolContext()

    _hints = dict.fromkeys(
        ("schema", "parameters", "description", "json_schema", "spec", "to_dict"),
        "write .specs(): name, description and parameters of each",
    )

    def __repr__(self) -> str:
        """Show the calls that the policy can make."""
        try:
            calls = [f"{spec.name}({', '.join(spec.parameters.get('properties', {}))})" for spec in self.specs()]
        except Exception:  # an object that is not complete, or needs its server first, must be shown too
            return object.__repr__(self)
        return f"<{type(self).__name__}: {', '.join(calls)}>"

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the specs of the marked methods, in definition order. The tools of a server are known only after `setup`."""
        found = []
        for name, method in _find_tool_methods(type(self)).items():
            about = strip_docstring_sections(method.__doc__ or "")
            if not about:
                raise PluginLoadError(f"{type(self).__name__}.{name} has no docstring; describe in it what the tool does, for the policy")
            found.append(ToolSpec(name, about, build_parameters_schema(method)))
        if not found:
            raise PluginLoadError(f"{type(self).__name__} has no method marked with @tool; mark the methods that the policy may call")
        return tuple(found)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute one call. Name and arguments are already validated against the specs. A method may be a coroutine function."""
        return format_result(await_if_needed(getattr(self, name)(**arguments)))

    def setup(self) -> None:
        """Create the state of one conversation; `self.context` has its data."""

    def teardown(self) -> None:
        """Remove the state of the conversation. May be called more than once, also after a failed `setup`."""

    def start(self, context: ToolContext | None = None) -> Self:
        """Return a copy of the tool for one conversation. The caller must call `teardown` on it."""
        context = context or ToolContext()
        if self.needs_sandbox and context.sandbox_session is None:
            raise ConfigError(
                f"{type(self).__name__} needs a sandbox, and this conversation has none; use the tool in an environment with a sandbox"
            )
        one = copy.copy(self)
        one.context = context
        try:
            one.setup()
        except BaseException:
            one.teardown()
            raise
        return one

    def __call__(self, *values: Any, **arguments: Any) -> str:
        """Call the tool once by hand, in a conversation of its own, and return the text that a policy would see.

        Args:
            values: the name of the method first, if the tool has several; then arguments of the call, in order.
            arguments: further arguments of the call, by name.

        Raises:
            ToolError: the call was rejected.
        """
        with self.session() as one:
            specs = {spec.name: spec for spec in one.specs()}
            if len(specs) > 1 and (not values or values[0] not in specs):
                raise ConfigError(f"the tool has {len(specs)} methods; name one of them first: {', '.join(map(repr, specs))}")
            name, values = (values[0], values[1:]) if len(specs) > 1 else (next(iter(specs)), values)
            by_order = dict(zip(specs[name].parameters.get("properties", {}), values, strict=False))
            result = run_tool_call(one, Call("0.0", name, by_order | arguments))
        if not result.ok:
            raise ToolError(result.text.removeprefix("Error: "))
        return result.text

    @contextmanager
    def session(self, context: ToolContext | None = None) -> Iterator[Self]:
        """Run a block between `start` and `teardown`."""
        one = self.start(context)
        try:
            yield one
        finally:
            one.teardown()

    @property
    def sandbox_session(self) -> SandboxSession:
        """The conversation's sandbox session."""
        if self.context.sandbox_session is None:
            raise ToolInfrastructureError(f"{type(self).__name__} was started without a sandbox session")
        return self.context.sandbox_session


def run_tool_call(tool: Tool, call: Call, *, max_characters: int = MAX_RESULT_CHARACTERS) -> ToolResult:
    """Execute one call of a conversation. An error of the policy gives a result with `ok` False.

    A call that could not be parsed is not executed; its result explains the problem.

    Raises:
        ToolInfrastructureError: the tool itself failed.
    """
    if call.status is not CallStatus.OK:
        return ToolResult(call.id, call.error_message, ok=False)
    spec = next((spec for spec in tool.specs() if spec.name == call.name), None)
    if spec is None:
        return _build_rejection(
            call, CallStatus.UNKNOWN_TOOL, f"{call.name!r} is unknown; {format_suggestion(call.name, [s.name for s in tool.specs()])}"
        )
    try:
        fitted = validate_arguments(spec.parameters, call.arguments or {})
    except SchemaValidationError as wrong:
        return _build_rejection(call, CallStatus.BAD_ARGUMENTS, str(wrong))
    start = time.monotonic()
    try:
        text, ok = tool.call(spec.name, fitted), True
    except ToolError as told:
        text, ok = f"Error: {told}", False
    except RlvrError as error:
        raise ToolInfrastructureError(f"the tool {spec.name!r} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise ToolInfrastructureError(f"the tool {spec.name!r} raised {describe_exception(error)}") from error
    seconds = time.monotonic() - start
    if not isinstance(text, str):
        raise ToolInfrastructureError(f"the tool {spec.name!r} returned {text!r:.80}; a tool returns a text")
    if isinstance(text, FinalAnswer):
        return ToolResult(call.id, str(text), ok, seconds, done=True)
    short = truncate_middle(text, max_characters)
    return ToolResult(call.id, short, ok, seconds, truncated=short is not text)


def await_if_needed(returned: Any) -> Any:
    """Wait for the result of a coroutine; return any other value as it is.

    >>> async def nap() -> str: return "slept"
    >>> await_if_needed(nap()), await_if_needed("awake")
    ('slept', 'awake')
    """
    if not inspect.isawaitable(returned):
        return returned

    async def wait() -> Any:
        return await returned

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as executor:  # this thread runs a loop already, as in a notebook
        return executor.submit(asyncio.run, wait()).result()


def format_result(returned: Any) -> str:
    """Return a text as it is, and any other value as JSON.

    >>> format_result("4"), format_result([4, None])
    ('4', '[4, null]')
    """
    return returned if isinstance(returned, str) else json.dumps(returned, default=str)


def truncate_middle(text: str, max_characters: int) -> str:
    """Shorten a text to at most `max_characters` characters by replacing its middle with a note.

    >>> truncate_middle("a" * 500 + "b" * 500, 100).replace(chr(10), "|")
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaa|[... 944 of 1000 characters left out ...]|bbbbbbbbbbbbbbbbbbbbbbbbbbbb'
    """
    if len(text) <= max_characters:
        return text
    note = "\n[... {} of {} characters left out ...]\n"
    room = max_characters - len(note.format(len(text), len(text)))
    if room < 2:
        return text[:max_characters]
    head, tail = (room + 1) // 2, room // 2
    return text[:head] + note.format(len(text) - head - tail, len(text)) + text[len(text) - tail :]


def _build_rejection(call: Call, status: CallStatus, error_detail: str) -> ToolResult:
    return ToolResult(call.id, Call(call.id, call.name, status=status, error_detail=error_detail).error_message, ok=False)


def _find_tool_methods(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the marked methods by name, those of base classes first."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(cls.__mro__):
        found |= {name: method for name, method in vars(base).items() if getattr(method, TOOL_MARKER_ATTRIBUTE, False)}
    return found
