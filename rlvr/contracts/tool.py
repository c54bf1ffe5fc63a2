"""The tool contract: a plugin whose marked methods a policy may call, with separate state for each conversation.

>>> class Counter(Tool):
...     '''Count.'''
...     def begin(self) -> None:
...         self.count = 0
...     @tool
...     def add(self, number: int = 1) -> str:
...         '''Add to the count and return it.'''
...         self.count += number
...         return str(self.count)
>>> with Counter().session() as counter:
...     run_call(counter, Call("0.0", "add", {"number": 5})).text
'5'
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from rlvr.contracts.plugin import Plugin
from rlvr.contracts.sandbox import Box
from rlvr.contracts.schema import Misfit, arguments, parameters_of, summary_of
from rlvr.errors import ConfigError, PluginError, RlvrError, ToolCrash, ToolError, suggest
from rlvr.turns import Call, CallStatus, Result, ToolSpec

MARK = "_rlvr_tool"
MAX_CHARACTERS = 8_000
"""The default maximum length of a result."""
Method = TypeVar("Method", bound=Callable[..., str])


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The resources of one conversation that a tool can use.

    >>> ToolContext(data={"database": "sales.db"}).box is None
    True
    """

    box: Box | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """Data from the task, such as the path of a database."""
    seed: int = 0


class Final(str):
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
    holds: str
    """A substring of the expected result."""
    ok: bool = True
    """False if the tool must reject the call with ToolError."""


def tool(method: Method) -> Method:
    """Mark a method as a tool: the policy gets its name, docstring and signature."""
    setattr(method, MARK, True)
    return method


class Tool(Plugin):
    """A plugin with one or more methods marked with `@tool`, which take plain arguments and return a string.

    The plugin holds the state that all conversations share. Each conversation gets a copy (`start`): its `setup` creates the
    conversation's state and its `teardown` removes it. A copy is used by one thread at a time.
    A method raises ToolError with a message for the policy. Any other exception means that the tool failed.
    """

    needs_box: ClassVar[bool] = False
    """True if the tool needs a `SandboxSession` for the conversation."""
    examples: ClassVar[Sequence[ToolExample]] = ()
    """Calls that `rlvr check` executes in this order in one conversation."""
    context: ToolContext = ToolContext()

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the specs of the marked methods, in definition order. The tools of a server are known only after `start`."""
        found = []
        for name, method in _marked(type(self)).items():
            about = summary_of(method.__doc__ or "")
            if not about:
                raise PluginError(f"{type(self).__name__}.{name} has no docstring; describe in it what the tool does, for the policy")
            found.append(ToolSpec(name, about, parameters_of(method)))
        if not found:
            raise PluginError(f"{type(self).__name__} has no method marked with @tool; mark the methods that the policy may call")
        return tuple(found)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute one call. Name and arguments are already validated against the specs."""
        text: str = getattr(self, name)(**arguments)
        return text

    def begin(self) -> None:
        """Create the state of one conversation; `self.context` has its data."""

    def end(self) -> None:
        """Remove the state of the conversation. May be called more than once, also after a failed `setup`."""

    def open(self, context: ToolContext | None = None) -> Self:
        """Return a copy of the tool for one conversation. The caller must call `teardown` on it."""
        context = context or ToolContext()
        if self.needs_box and context.box is None:
            raise ConfigError(
                f"{type(self).__name__} needs a sandbox, and this conversation has none; use the tool in an environment with a sandbox"
            )
        one = copy.copy(self)
        one.context = context
        try:
            one.begin()
        except BaseException:
            one.end()
            raise
        return one

    @contextmanager
    def session(self, context: ToolContext | None = None) -> Iterator[Self]:
        """Run a block between `start` and `teardown`."""
        one = self.open(context)
        try:
            yield one
        finally:
            one.end()

    @property
    def box(self) -> Box:
        """The conversation's sandbox session."""
        if self.context.box is None:
            raise ToolCrash(f"{type(self).__name__} was started without a sandbox session")
        return self.context.box


def run_call(opened: Tool, call: Call, *, max_characters: int = MAX_CHARACTERS) -> Result:
    """Execute one call of a conversation. An error of the policy gives a result with `ok` False.

    A call that could not be parsed is not executed; its result explains the problem.

    Raises:
        ToolFailure: the tool itself failed.
    """
    if call.status is not CallStatus.OK:
        return Result(call.id, call.told, ok=False)
    spec = next((spec for spec in opened.specs() if spec.name == call.name), None)
    if spec is None:
        return _refused(call, CallStatus.UNKNOWN_TOOL, f"{call.name!r} is unknown; {suggest(call.name, [s.name for s in opened.specs()])}")
    try:
        fitted = arguments(spec.parameters, call.arguments or {})
    except Misfit as wrong:
        return _refused(call, CallStatus.BAD_ARGUMENTS, str(wrong))
    start = time.monotonic()
    try:
        text, ok = opened.call(spec.name, fitted), True
    except ToolError as told:
        text, ok = f"Error: {told}", False
    except RlvrError as error:
        raise ToolCrash(f"the tool {spec.name!r} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise ToolCrash(f"the tool {spec.name!r} raised {type(error).__name__}: {error}") from error
    seconds = time.monotonic() - start
    if not isinstance(text, str):
        raise ToolCrash(f"the tool {spec.name!r} returned {text!r:.80}; a tool returns a text")
    if isinstance(text, Final):
        return Result(call.id, str(text), ok, seconds, over=True)
    short = cut_middle(text, max_characters)
    return Result(call.id, short, ok, seconds, cut=short is not text)


def cut_middle(text: str, limit: int) -> str:
    """Shorten a text to at most `limit` characters by replacing its middle with a note.

    >>> cut_middle("a" * 500 + "b" * 500, 100).replace(chr(10), "|")
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaa|[... 944 of 1000 characters left out ...]|bbbbbbbbbbbbbbbbbbbbbbbbbbbb'
    """
    if len(text) <= limit:
        return text
    note = "\n[... {} of {} characters left out ...]\n"
    room = limit - len(note.format(len(text), len(text)))
    if room < 2:
        return text[:limit]
    head, tail = (room + 1) // 2, room // 2
    return text[:head] + note.format(len(text) - head - tail, len(text)) + text[len(text) - tail :]


def _refused(call: Call, status: CallStatus, why: str) -> Result:
    return Result(call.id, Call(call.id, call.name, status=status, why=why).told, ok=False)


def _marked(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the marked methods by name, those of base classes first."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(cls.__mro__):
        found |= {name: method for name, method in vars(base).items() if getattr(method, MARK, False)}
    return found
