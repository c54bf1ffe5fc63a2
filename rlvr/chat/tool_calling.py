"""Tool calls in a conversation: describe tools in the prompt, parse calls from a turn, render results.

The dialect is that of the tokenizer's chat template. If the template does not support tools, or there is none, the `fenced` dialect is
used (`line` with the tokenizers `chars` and `bytes`): a system message describes the tools, and results are user messages.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from rlvr.chat.dialects.dialect import Dialect, UnwritableCallError
from rlvr.chat.dialects.json_text import ValueSyntaxError, parse_call_arguments
from rlvr.chat.dialects.table import get_dialect
from rlvr.chat.hf_tokenizer import DEFAULT_DIALECT, TOOL_ROLES
from rlvr.contracts import Environment, Tokenizer
from rlvr.contracts.tool import Tool, truncate_middle
from rlvr.errors import ConfigError
from rlvr.task import Message, Task
from rlvr.turns import Call, ToolSpec, Turn

MAX_TOKENS_PER_CHARACTER, STOP_TEXT_LOOKBACK_TOKENS = 4, 8
"""A stop text is looked for in so many of the last tokens for each of its characters, a byte each at the least, and a few more."""
REASONING_LOOKBACK_TOKENS = 16
"""The number of tokens before a turn that are checked for an opened reasoning block."""


UNKNOWN_TOOL_TOKENS = 2000
"""The estimated description length of a tool whose methods are not known yet."""
MIN_RESULT_CHARACTERS = 80
"""Tool results are never truncated below this length."""


class CallStopCriterion:
    r"""Ends a turn at the line that completes its first plain-text call; otherwise the policy would invent the result."""

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer, tools: Sequence[ToolSpec], preceding_tokens: Sequence[int]) -> None:
        self.dialect, self.tokenizer, self.tools, self.preceding_tokens = dialect, tokenizer, tools, preceding_tokens

    def may_stop(self, token: int) -> bool:
        """Return whether the turn may end at this token: whether it contains a line break."""
        return "\n" in self.tokenizer.decode([token])

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Return whether the last of these tokens completes a call."""
        if not self.may_stop(tokens[-1]):
            return False
        return self.dialect.has_complete_call(
            self.tokenizer.decode(tokens),
            self.tools,
            starts_in_reasoning=self._starts_in_reasoning,
        )

    @cached_property
    def _starts_in_reasoning(self) -> bool:
        return _is_reasoning_open(self.dialect, self.tokenizer, self.preceding_tokens)

    def find_turn_length(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens belong to the turn."""
        ends = [n for n in range(1, len(tokens)) if self.may_stop(tokens[n - 1])]
        if not ends or not self._parse(tokens).calls:  # a turn without a call has no beginning with one
            return len(tokens)
        return next((n for n in ends if self(tokens[:n])), len(tokens))

    def _parse(self, tokens: Sequence[int]) -> Turn:
        return self.dialect.parse_turn(self.tokenizer.decode(tokens), self.tools, starts_in_reasoning=self._starts_in_reasoning)


class StopTexts:
    """Ends a turn where it contains one of some texts, or where another criterion ends it."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, other: CallStopCriterion | None = None) -> None:
        self.texts, self.tokenizer, self.other = tuple(texts), tokenizer, other

    def may_stop(self, token: int) -> bool:
        """Return True: a text may end with any token."""
        return True

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Return whether the last of these tokens completes one of the texts, or the other criterion ends the turn."""
        if self.other is not None and self.other(tokens):
            return True
        longest = MAX_TOKENS_PER_CHARACTER * max(map(len, self.texts))
        tail = self.tokenizer.decode(tokens[-longest - STOP_TEXT_LOOKBACK_TOKENS :])
        return any(text in tail for text in self.texts)

    def find_turn_length(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens belong to the turn."""
        longest = len(tokens) if self.other is None else self.other.find_turn_length(tokens)
        if not self._contains_text(tokens[:longest]):
            return longest
        return bisect_left(range(longest + 1), True, key=lambda n: self._contains_text(tokens[:n]))  # once there, a text stays

    def _contains_text(self, tokens: Sequence[int]) -> bool:
        decoded = self.tokenizer.decode(tokens)
        return any(text in decoded for text in self.texts)


TurnStopCriterion = CallStopCriterion | StopTexts
"""What ends a turn besides the stop ids."""


def _is_reasoning_open(dialect: Dialect, tokenizer: Tokenizer, preceding_tokens: Sequence[int]) -> bool:
    """Return whether the tokens before a turn opened its reasoning block."""
    return tokenizer.decode(preceding_tokens).rstrip().endswith(tuple(opens for opens, _ in dialect.reasoning_marks))


class ToolFormat:
    """Formats and parses tool calls for one tokenizer and one environment.

    >>> import rlvr
    >>> ToolFormat(rlvr.load_tokenizer("chars"), rlvr.make_env("arithmetic")).dialect.name
    'line'
    """

    def __init__(self, tokenizer: Tokenizer, environment: Environment) -> None:
        self.tokenizer, self.environment = tokenizer, environment
        own = str(getattr(tokenizer, "dialect", DEFAULT_DIALECT))
        self.dialect: Dialect = get_dialect(environment.dialect or own)
        self._stop_marks: Mapping[int, str] = getattr(tokenizer, "stop_marks", {})
        if missing := [mark for mark in self.dialect.stop_marks if environment.dialect and mark not in self._stop_marks.values()]:
            raise ConfigError(
                f"dialect is {environment.dialect!r}, whose calls end with {missing[0]}, and this tokenizer does not stop there; leave "
                f"dialect out ({own!r} is the one of this tokenizer), or choose another"
            )
        self.num_tool_prompt_tokens = self._count_tool_prompt_tokens(environment.tools) if environment.tools else 0
        """The number of prompt tokens that describe the tools. An estimate for the tools of a server, which only a session knows."""

    @cached_property
    def template_renders_tools(self) -> bool:
        """Whether the chat template itself describes tools and renders their results, in the dialect in use."""
        return self.dialect.name == getattr(self.tokenizer, "dialect", DEFAULT_DIALECT) and bool(
            getattr(self.tokenizer, "supports_tools", False)
        )

    def build_oracle_turns(self, task: Task) -> list[str] | None:
        """Return the policy turns of a conversation that gets the full score: the oracle turns, else the gold answer; None if unknown."""
        script = self.environment.oracle_turns(task)
        if script is None:
            return None if (gold := self.environment.gold(task)) is None else [gold]
        specs = [spec for tool in self.environment.tools for spec in tool.specs()]
        return [text for turn in script for text in self._format_oracle_turn(turn, specs)]

    def _format_oracle_turn(self, turn: str | Call | Sequence[Call], specs: Sequence[ToolSpec]) -> Iterator[str]:
        """Yield the texts of one oracle turn. If a call ends the turn, each call is a turn of its own."""
        if isinstance(turn, str):
            yield turn
            return
        calls = [turn] if isinstance(turn, Call) else list(turn)
        for some in [[call] for call in calls] if self.dialect.is_plain_text else [calls]:
            yield self.dialect.format_calls(some, specs)

    def _count_tool_prompt_tokens(self, tools: Sequence[Tool]) -> int:
        question: tuple[Message, ...] = ({"role": "user", "content": "a"},)
        specs = [spec for tool in tools for spec in tool.specs()]
        self.render_environment_reply(
            [{"role": "tool", "content": "a"}], sys.maxsize
        )  # fails early if the template cannot continue a conversation
        unknown = sum(not tool.specs() for tool in tools)
        return len(self.render_prompt(question, specs)) - len(self.render_prompt(question, ())) + unknown * UNKNOWN_TOOL_TOKENS

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Render a conversation with tools as ids, up to the policy's first turn."""
        if not tools:
            return self.tokenizer.render(messages)
        if self.template_renders_tools:
            return self.tokenizer.render(messages, [spec.to_openai_format() for spec in tools])
        about = self.dialect.format_instructions(tools)
        if messages[0]["role"] == "system":
            return self.tokenizer.render([_prepend_text(about, messages[0]), *messages[1:]])
        try:
            return self.tokenizer.render([{"role": "system", "content": about}, *messages])
        except ConfigError:  # the template does not support system messages
            return self.tokenizer.render([_prepend_text(about, messages[0]), *messages[1:]])

    def render_environment_reply(self, messages: Sequence[Message], remaining_tokens: int) -> list[int]:
        """Render the session's reply, up to the policy's next turn. Tool results are truncated to half of the remaining tokens."""
        ids, longest = self._render_reply(messages), max((len(m["content"]) for m in messages if m["role"] in TOOL_ROLES), default=0)
        while longest > MIN_RESULT_CHARACTERS and len(ids) > remaining_tokens // 2:
            longest = min(longest - 1, longest * remaining_tokens // (2 * len(ids)))
            cut: list[Message] = [
                {**message, "content": truncate_middle(message["content"], max(longest, MIN_RESULT_CHARACTERS))}
                if message["role"] in TOOL_ROLES
                else message
                for message in messages
            ]
            ids = self._render_reply(cut)
        return ids

    def render_conversation(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]) -> list[int]:
        """Render a conversation of an agent as ids, up to the policy's next turn. Turns in it are text: somebody else may have written them."""
        errors = []
        for has_text_arguments in (False, True):  # some templates take the arguments of a call as a text, some as a mapping
            prepared = self._prepare_messages(messages, tools, has_text_arguments=has_text_arguments)
            for shown in _list_plainer_forms(prepared):
                try:
                    return self.render_prompt(shown, tools)
                except ConfigError as error:
                    errors.append(error)
            if not self.template_renders_tools:
                break
        raise errors[0]

    def render_messages_after_turn(self, messages: Sequence[Mapping[str, Any]], count: int) -> list[int]:
        """Render the last `count` messages of an agent's conversation, which follow a turn of the policy, up to its next turn."""
        rest = _name_results(messages)[len(messages) - count :]
        try:
            return self._render_reply(rest)
        except ConfigError:
            if len(merged := _merge_neighbours(rest)) == len(rest):
                raise
            return self._render_reply(merged)

    def _prepare_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec], *, has_text_arguments: bool
    ) -> list[Message]:
        """Write calls and their results as the template expects them, or as text where it renders none."""
        if self.template_renders_tools:
            return [_format_calls_for_template(message, has_text_arguments=has_text_arguments) for message in _name_results(messages)]
        found = list[Message]()
        for message in _name_results(messages):
            text = self.format_as_plain_text(message)
            role = "user" if message["role"] in TOOL_ROLES else message["role"]
            if calls := [parse_openai_call(call) for call in message.get("tool_calls") or ()]:
                text = "\n".join(filter(None, (text, self._format_calls_as_text(calls, tools))))
            if found and role == "user" and found[-1]["role"] == "user":
                found[-1] = {"role": "user", "content": f"{found[-1]['content']}\n{text}"}
            else:
                found.append({"role": role, "content": text})
        return found

    def _format_calls_as_text(self, calls: Sequence[Call], tools: Sequence[ToolSpec]) -> str:
        try:
            return self.dialect.format_calls(calls, tools)
        except UnwritableCallError:
            return "\n".join(f"{call.name}({json.dumps(dict(call.arguments or {}))})" for call in calls)

    def _render_reply(self, messages: Sequence[Message]) -> list[int]:
        if self.template_renders_tools or all(message["role"] not in TOOL_ROLES for message in messages):
            return self.tokenizer.render_environment_reply(messages)
        said = [self.format_as_plain_text(message) for message in messages]
        return self.tokenizer.render_environment_reply([{"role": "user", "content": "\n".join(said)}])

    def format_as_plain_text(self, message: Message) -> str:
        """Format a message for a policy whose template does not render results of tools: a result is labelled with its tool."""
        result = message["role"] in TOOL_ROLES
        return (
            self.dialect.format_result_as_user_message(str(message.get("name", "tool")), message["content"])
            if result
            else message["content"]
        )

    def build_stop_criterion(self, tools: Sequence[ToolSpec], tokens: Sequence[int], start: int) -> CallStopCriterion | None:
        """Build the stop criterion of the turn that begins at `start` in `tokens`; None if only stop ids end it."""
        if not (tools and self.dialect.is_plain_text):
            return None
        return CallStopCriterion(self.dialect, self.tokenizer, tools, list(tokens[max(0, start - REASONING_LOOKBACK_TOKENS) : start]))

    @cached_property
    def turn_end_tokens(self) -> list[int]:
        """The tokens that the chat template writes at the end of a turn; appended if no stop id ended it."""
        return list(getattr(self.tokenizer, "turn_end_tokens", [self.tokenizer.eos_id]))

    def parse_turn(self, raw_turn: Turn, turn_number: int, tools: Sequence[ToolSpec], tokens: Sequence[int], start: int) -> Turn:
        """Parse the calls of a completed turn that begins at `start` in `tokens`.

        The tokens are only decoded. A stop token that is a mark of the dialect is part of the text, because it closes the call.
        """
        text = raw_turn.text + self._stop_marks.get(tokens[-1], "")
        thinking = _is_reasoning_open(self.dialect, self.tokenizer, tokens[max(0, start - REASONING_LOOKBACK_TOKENS) : start])
        return self.dialect.parse_turn(text, tools, turn=turn_number, finish_reason=raw_turn.finish_reason, starts_in_reasoning=thinking)


def _prepend_text(about: str, message: Message) -> Message:
    return {"role": message["role"], "content": f"{about}\n\n{message['content']}"}


def _list_plainer_forms(messages: Sequence[Message]) -> list[list[Message]]:
    """Return a conversation as it is, and in forms that more templates take: the system message in the first question, and one message of a
    user at a time.
    """
    forms = [list(messages)]
    if len(messages) > 1 and messages[0]["role"] == "system" and messages[1]["role"] == "user":
        forms.append([_prepend_text(messages[0]["content"], messages[1]), *messages[2:]])
    return [*forms, *(merged for form in forms if len(merged := _merge_neighbours(form)) < len(form))]


def _merge_neighbours(messages: Sequence[Any]) -> list[Any]:
    r"""Merge each message of a user into the one before it, if that is a user's or the result of a call.

    >>> _merge_neighbours([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    [{'role': 'user', 'content': 'a\n\nb'}]
    """
    found = list[Any]()
    for message in messages:
        if found and message["role"] == "user" and found[-1]["role"] in ("user", *TOOL_ROLES):
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found


def _name_results(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Give each result the name of its call, and texts as contents; calls get ids of nine letters and digits, as some templates require."""
    ids, names, found = dict[str, str](), dict[str, str](), list[Any]()
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
            ids[call["id"]] = f"call{len(ids):05d}"
        shown = {**message, "content": str(message.get("content") or "")}
        if message["role"] in TOOL_ROLES:
            own = str(message.get("tool_call_id", ""))
            shown |= {"name": str(message.get("name") or names.get(own, "tool")), "tool_call_id": ids.get(own, "call00000")}
        if message.get("tool_calls"):
            shown["tool_calls"] = [{**call, "id": ids[call["id"]]} for call in message["tool_calls"]]
        found.append(shown)
    return found


def _format_calls_for_template(message: Mapping[str, Any], *, has_text_arguments: bool) -> Any:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if not has_text_arguments and isinstance(arguments, str):
            with suppress(ValueSyntaxError):
                arguments = parse_call_arguments(arguments)
        calls.append({"type": "function", "id": call["id"], "function": {"name": call["function"]["name"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def parse_openai_call(call: Mapping[str, Any]) -> Call:
    """Parse a call in OpenAI's format; arguments that are no JSON object become none.

    >>> parse_openai_call({"id": "a", "function": {"name": "now", "arguments": "{}"}}).arguments
    {}
    """
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = parse_call_arguments(arguments)
        except ValueSyntaxError:
            arguments = None
    return Call(str(call.get("id", "")), str(call["function"]["name"]), arguments if isinstance(arguments, Mapping) else {})
