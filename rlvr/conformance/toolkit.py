"""The conformance kit of tools: descriptions for the policy, effects of calls, and robustness to any argument."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN, UnwritableCallError
from rlvr.chat.dialects.table import DIALECTS
from rlvr.conformance.check_runner import CheckResult, CheckSkipped, Steps, check_closing_twice, describe_first_problem, run_checks
from rlvr.contracts.schema import TYPE_DESCRIPTIONS
from rlvr.contracts.tool import MAX_RESULT_CHARACTERS, Tool, ToolContext, ToolExample, run_tool_call
from rlvr.errors import ConfigError, ToolInfrastructureError
from rlvr.registry.plugins import build
from rlvr.turns import STATUS_MESSAGES, Call, CallStatus, ToolResult, ToolSpec

JUNK_ARGUMENTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "'; drop table x; --",
    "../" * 40 + "etc/passwd",
    "<tool_call>",
    "9" * 5_000,
    "(" * 5_000,
    "a" * 100_000,
)
"""Texts that a policy may write as an argument."""
JUNK_NUMBERS = (0, -1, 2**70, 1e308, -0.5)
"""Numbers that a policy may write as an argument; the whole ones also for integers."""


def check_tool_in_context(name: str, context: ToolContext, **settings: Any) -> list[CheckResult]:
    """Run the kit on a tool with a given context: a sandbox session, or the database of a task.

    >>> from rlvr.conformance import list_failures
    >>> list_failures(check_tool_in_context("calculator", ToolContext()))
    []
    """
    return list(run_checks(iter_tool_checks(name, settings, context)))


def iter_tool_checks(name: str, settings: Mapping[str, Any], context: ToolContext | None = None) -> Steps:
    """Yield the checks of one tool, in the order in which they run."""
    made: Any = build("tool", name, **settings)
    kit = _ToolChecks(made, context or ToolContext(data=dict(getattr(made, "example_data", {}))))
    try:
        yield "it can be built", lambda: "" if isinstance(made, Tool) else f"it is a {type(made).__name__}, not an rlvr.Tool"
        yield "it says what it is for", kit.check_docstring
        yield "opening it without its box is refused", kit.check_sandbox_required
        yield "it can be opened", kit.check_opening
        yield "its names and descriptions are complete", kit.check_descriptions
        yield "its schemas are plain and strict", kit.check_schemas
        yield "its examples do what they say", kit.check_examples
        yield "wrong arguments give the policy an error message", kit.check_bad_arguments
        yield "no argument of the right type breaks it", kit.check_junk_arguments
        yield "two conversations share nothing", kit.check_isolation
        yield "a long result is cut", kit.check_truncation
        yield "its calls can be written and read in every dialect", kit.check_dialects
        yield "it can be ended twice", kit.check_double_end
    finally:
        made.close()
    yield "it can be closed twice", partial(check_closing_twice, made)


class _ToolChecks:
    """The checks of one tool; each opens its own conversation."""

    def __init__(self, tool: Tool, context: ToolContext) -> None:
        self.tool, self.context = tool, context

    def open_session(self) -> AbstractContextManager[Tool]:
        if self.tool.needs_sandbox and self.context.sandbox_session is None:
            raise CheckSkipped("it needs a sandbox box; give one with check_tool_in_context(name, ToolContext(sandbox_session=...))")
        if self.opening_problem:
            raise CheckSkipped("it cannot be opened")
        return self.tool.session(self.context)

    @cached_property
    def opening_problem(self) -> str:
        """Why the tool cannot be opened, and what to do; empty if it can be, or if it needs a sandbox box first."""
        if self.tool.needs_sandbox and self.context.sandbox_session is None:
            return ""
        try:
            self.tool.start(self.context).teardown()
        except LookupError as error:
            return (
                f"it raised {type(error).__name__}: {error}. If it reads data of its world (`self.context.data`), write an example of that data "
                f"into its class: `example_data = {{...}}`, or call check_tool_in_context(name, ToolContext(data=...))"
            )
        except (Exception, SystemExit) as error:
            return f"it raised {type(error).__name__}: {error}"
        return ""

    def check_opening(self) -> str:
        if self.tool.needs_sandbox and self.context.sandbox_session is None:
            self.open_session()
        return self.opening_problem

    def open_for_inspection(self) -> AbstractContextManager[Tool]:
        """Open the tool for checks that make no calls, which need no sandbox session."""
        return nullcontext(self.tool) if self.tool.needs_sandbox and self.context.sandbox_session is None else self.open_session()

    def check_docstring(self) -> str:
        return "" if (type(self.tool).__doc__ or "").strip() else "its class has no docstring; say what it is for"

    def check_sandbox_required(self) -> str:
        if not self.tool.needs_sandbox:
            raise CheckSkipped("it needs no sandbox box")
        try:
            self.tool.start(ToolContext()).teardown()
        except ConfigError:
            return ""
        return "`needs_sandbox` is set, but it opens without a box"

    def check_descriptions(self) -> str:
        with self.open_for_inspection() as opened:
            specs = opened.specs()
            if not specs:
                return "it has no function that can be called"
            names = [spec.name for spec in specs]
            twice = [f"the name {name!r} is used twice" for name in names if names.count(name) > 1]
            again = "" if opened.specs() == specs else "two calls of specs() differ"
            return describe_first_problem(iter([again, *twice, *(self._find_missing_description(spec) for spec in specs)]))

    def _find_missing_description(self, spec: ToolSpec) -> str:
        if not TOOL_NAME_PATTERN.fullmatch(spec.name):
            return f"{spec.name!r} is not a valid tool name: use letters, digits, _ - and ."
        if not spec.description.strip():
            return f"{spec.name} has no description"
        if "call" in vars(type(self.tool)):
            return ""  # the descriptions of arguments come from a server
        bare = [key for key, one in spec.parameters.get("properties", {}).items() if not one.get("description")]
        return f"argument {bare[0]!r} of {spec.name} has no description; add it under Args:" if bare else ""

    def check_schemas(self) -> str:
        with self.open_for_inspection() as opened:
            specs = opened.specs()
        for spec in specs:
            json.dumps(spec.to_openai_format(), allow_nan=False)
            if spec.parameters.get("type") != "object":
                return f"the parameters of {spec.name} are not an object"
        return describe_first_problem(self._find_unknown_type(spec.name, spec.parameters) for spec in specs)

    def _find_unknown_type(self, name: str, schema: Any) -> str:
        if not isinstance(schema, Mapping):
            return ""
        kinds = schema.get("type", "object")
        strange = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind not in TYPE_DESCRIPTIONS]
        inner = [*(schema.get("properties") or {}).values(), *schema.get("anyOf", ()), schema.get("items")]
        return (
            f"{name} has the type {strange[0]!r}"
            if strange
            else describe_first_problem(self._find_unknown_type(name, one) for one in inner)
        )

    def check_examples(self) -> str:
        examples = self._require_examples()
        with self.open_session() as opened:
            return describe_first_problem(self._describe_difference(example, self._run_example(opened, example)) for example in examples)

    def _describe_difference(self, example: ToolExample, result: ToolResult) -> str:
        if result.ok is not example.ok:
            return f"{example.name}{dict(example.arguments)!r:.80} gave ok={result.ok}: {result.text!r:.120}"
        return (
            ""
            if example.contains in result.text
            else f"{example.name}{dict(example.arguments)!r:.80}: {example.contains!r} is not in {result.text!r:.120}"
        )

    def check_bad_arguments(self) -> str:
        with self.open_for_inspection() as opened:
            for spec in opened.specs():
                for arguments in iter_bad_arguments(spec):
                    result = run_tool_call(opened, Call("0.0", spec.name, arguments))
                    if result.ok or STATUS_MESSAGES[CallStatus.BAD_ARGUMENTS] not in result.text:
                        return f"{spec.name} accepted {arguments!r:.80}: {result.text!r:.80}"
            result = run_tool_call(opened, Call("0.0", "no_such_tool", {}))
            return "" if not result.ok else "a call to a tool that it does not have was run"

    def check_junk_arguments(self) -> str:
        with self.open_session() as opened:
            for spec in opened.specs():
                for arguments in _iter_junk_arguments(spec):
                    try:
                        run_tool_call(opened, Call("0.0", spec.name, arguments))
                    except ToolInfrastructureError as crash:
                        return f"{spec.name} broke on {arguments!r:.60}: {crash}; raise ToolError for mistakes of the policy"
        return ""

    def check_isolation(self) -> str:
        examples = self._require_examples()
        with self.open_session() as one, self.open_session() as other:
            for example in examples:
                results = [self._run_example(opened, example) for opened in (one, other)]
                if wrong := describe_first_problem(self._describe_difference(example, result) for result in results):
                    return f"with a second conversation open: {wrong}"
        return ""

    def check_truncation(self) -> str:
        examples = self._require_examples()
        with self.open_session() as opened:
            for example in examples:
                result = run_tool_call(opened, Call("0.0", example.name, dict(example.arguments)), max_characters=60)
                if len(result.text) > 60 and result.ok and not result.done:
                    return f"{example.name} gave {len(result.text)} characters where 60 were allowed"
        return ""

    def check_dialects(self) -> str:
        with self.open_for_inspection() as opened:
            specs = opened.specs()
        calls = [(spec, arguments) for spec in specs if (arguments := fill_arguments(spec, "a text")) is not None]
        return describe_first_problem(
            self._check_round_trip(name, spec, arguments, specs) for name in DIALECTS for spec, arguments in calls
        )

    def _check_round_trip(self, name: str, spec: ToolSpec, arguments: dict[str, Any], specs: Sequence[ToolSpec]) -> str:
        try:
            text = DIALECTS[name].format_calls([Call("0.0", spec.name, arguments)], specs)
        except UnwritableCallError as refused:
            return f"{name}: {refused}"
        calls = DIALECTS[name].parse_turn(text, specs).calls
        read = [(call.name, call.arguments) for call in calls if call.status is CallStatus.OK]
        return "" if read == [(spec.name, arguments)] else f"{name}: {text!r:.120} was read as {calls!r:.200}"

    def check_double_end(self) -> str:
        with self.open_session() as opened:
            opened.teardown()
            opened.teardown()
        return ""

    def _require_examples(self) -> Sequence[ToolExample]:
        if self.tool.needs_sandbox and self.context.sandbox_session is None:
            self.open_session()
        if not self.tool.examples:
            raise CheckSkipped("it has no `examples`")
        return self.tool.examples

    @staticmethod
    def _run_example(opened: Tool, example: ToolExample) -> ToolResult:
        return run_tool_call(opened, Call("0.0", example.name, dict(example.arguments)), max_characters=MAX_RESULT_CHARACTERS)


def iter_bad_arguments(spec: ToolSpec) -> Iterator[dict[str, Any]]:
    """Yield arguments that the schema forbids: an unknown one, each required one missing, each one with a wrong type."""
    right = fill_arguments(spec, "a text")
    if right is None:
        return
    if spec.parameters.get("properties") or spec.parameters.get("additionalProperties") is False:
        yield {**right, "no_such_argument": 1}
    for key in spec.parameters.get("required", ()):
        yield {name: value for name, value in right.items() if name != key}
    for key, one in (spec.parameters.get("properties") or {}).items():
        if isinstance(one.get("type"), str):
            yield {**right, key: 5 if one["type"] in ("string", "boolean", "array", "object") else "5"}


def _iter_junk_arguments(spec: ToolSpec) -> Iterator[dict[str, Any]]:
    """Yield arguments that the schema allows and that a policy in trouble may write: one strange value at a time, also of optional ones."""
    if (right := fill_arguments(spec, "a text")) is None:
        return
    yield right
    for key, one in (spec.parameters.get("properties") or {}).items():
        if "enum" in one:
            continue
        if one.get("type") == "string":
            yield from ({**right, key: text} for text in JUNK_ARGUMENTS)
        elif one.get("type") in ("integer", "number"):
            yield from ({**right, key: n} for n in JUNK_NUMBERS if one["type"] == "number" or isinstance(n, int))
        elif one.get("type") == "array" and not one.get("minItems"):
            yield {**right, key: []}


def fill_arguments(spec: ToolSpec, text: str) -> dict[str, Any] | None:
    """Fill the required arguments, with this text for each string; None if there is no simple way to fill them."""
    values: dict[str, Any] = {"string": text, "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    found: dict[str, Any] = {}
    for key in spec.parameters.get("required", ()):
        one = spec.parameters["properties"][key]
        kind = one.get("type")
        if "enum" in one:
            found[key] = one["enum"][0]
        elif not isinstance(kind, str) or one.get("required") or one.get("minItems"):
            return None
        else:
            found[key] = values[kind]
    return found
