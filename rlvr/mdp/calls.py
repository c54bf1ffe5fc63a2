"""Calls in a conversation: how tools are described in the prompt, how calls are read from a turn, how results are written.

The dialect is the one of the tokenizer's chat template. Where a template has no place for tools, or there is none, the `fenced` dialect is
used (`line` with the tokenizers `chars` and `bytes`): a system message describes the tools, and results are messages of the user.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from rlvr.contracts import Environment, Tokenizer
from rlvr.contracts.tool import Tool, cut_middle
from rlvr.dialects.dialect import Dialect
from rlvr.dialects.table import get
from rlvr.errors import ConfigError
from rlvr.mdp.chat import PLAIN, TOOL_ROLES
from rlvr.task import Message, Task
from rlvr.turns import Call, ToolSpec, Turn

TAIL = 16
"""How many tokens before a turn are looked at, to see whether the prompt has opened the reasoning."""


UNKNOWN_TOOLS = 2000
"""How many tokens a tool may need to be described whose methods are not known yet."""
SHORTEST = 80
"""Results of tools are never cut to fewer characters than this."""


class CallEnd:
    r"""The end of a turn whose calls are plain text: the line that completes its first call. Without it the policy would invent the result.

    >>> CallEnd(get("line"), CharTokenizer(), [ToolSpec("now", "The time.")], [])(CharTokenizer().encode("!now\\n"))    # doctest: +SKIP
    True
    """

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer, tools: Sequence[ToolSpec], before: Sequence[int]) -> None:
        self.dialect, self.tokenizer, self.tools, self.before = dialect, tokenizer, tools, before

    def may(self, token: int) -> bool:
        """Whether a line ends in this token."""
        return "\n" in self.tokenizer.decode([token])

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens completes a call."""
        if not self.may(tokens[-1]):
            return False
        return self.dialect.complete(self.tokenizer.decode(tokens), self.tools, thinking=opened(self.dialect, self.tokenizer, self.before))

    def length(self, tokens: Sequence[int]) -> int:
        """How many of these tokens are the turn."""
        return next((n for n in range(1, len(tokens)) if self(tokens[:n])), len(tokens))


def opened(dialect: Dialect, tokenizer: Tokenizer, before: Sequence[int]) -> bool:
    """Whether the tokens before a turn have opened its reasoning.

    >>> opened(get("hermes"), ByteTokenizer(), ByteTokenizer().encode("<think>"))        # doctest: +SKIP
    True
    """
    return tokenizer.decode(before).rstrip().endswith(tuple(opens for opens, _ in dialect.thoughts))


class Calls:
    """The tools of conversations, for one tokenizer and one environment.

    >>> Calls(CharTokenizer(), make("env", "arithmetic")).dialect.name                                   # doctest: +SKIP
    'line'
    """

    def __init__(self, tokenizer: Tokenizer, environment: Environment) -> None:
        self.tokenizer, self.environment = tokenizer, environment
        own = str(getattr(tokenizer, "dialect", PLAIN))
        self.dialect: Dialect = get(environment.dialect or own)
        self._stop_marks: Mapping[int, str] = getattr(tokenizer, "stop_marks", {})
        if missing := [mark for mark in self.dialect.stops if environment.dialect and mark not in self._stop_marks.values()]:
            raise ConfigError(
                f"dialect is {environment.dialect!r}, whose calls end with {missing[0]}, and this tokenizer does not stop there; leave "
                f"dialect out ({own!r} is the one of this tokenizer), or choose another"
            )
        self.room = self._room(environment.tools) if environment.tools else 0
        """How many tokens describe the tools. Those of a server are not known before a session is open: an estimate."""

    @cached_property
    def native(self) -> bool:
        """Whether the chat template describes tools and writes results by itself."""
        return self.dialect.name == getattr(self.tokenizer, "dialect", PLAIN) and bool(getattr(self.tokenizer, "takes_tools", False))

    def gold(self, task: Task) -> list[str] | None:
        """The policy's turns of a conversation that gets the full score: the environment's script, else its gold answer."""
        script = self.environment.script(task)
        if script is None:
            return None if (gold := self.environment.gold(task)) is None else [gold]
        specs = [spec for tool in self.environment.tools for spec in tool.specs()]
        return [text for turn in script for text in self._written(turn, specs)]

    def _written(self, turn: str | Call | Sequence[Call], specs: Sequence[ToolSpec]) -> Iterator[str]:
        """A turn of a script. Where a call ends the turn, several calls are several turns."""
        if isinstance(turn, str):
            yield turn
            return
        calls = [turn] if isinstance(turn, Call) else list(turn)
        for some in [[call] for call in calls] if self.dialect.plain_text else [calls]:
            yield self.dialect.write(some, specs)

    def _room(self, tools: Sequence[Tool]) -> int:
        question: tuple[Message, ...] = ({"role": "user", "content": "a"},)
        specs = [spec for tool in tools for spec in tool.specs()]
        self.reply([{"role": "tool", "content": "a"}], sys.maxsize)  # a template that cannot go on is found now
        unknown = sum(not tool.specs() for tool in tools)
        return len(self.render(question, specs)) - len(self.render(question, ())) + unknown * UNKNOWN_TOOLS

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """A conversation with tools to ids, ready for the policy's first turn."""
        if not tools:
            return self.tokenizer.render(messages)
        if self.native:
            return self.tokenizer.render(messages, [spec.wire() for spec in tools])
        about = self.dialect.instructions(tools)
        if messages[0]["role"] == "system":
            return self.tokenizer.render([_after(about, messages[0]), *messages[1:]])
        try:
            return self.tokenizer.render([{"role": "system", "content": about}, *messages])
        except ConfigError:  # a template without system messages
            return self.tokenizer.render([_after(about, messages[0]), *messages[1:]])

    def reply(self, messages: Sequence[Message], room: int) -> list[int]:
        """What the session said, up to the policy's next turn. Results of tools are cut in the middle to half of the room that is left."""
        ids, longest = self._reply(messages), max((len(m["content"]) for m in messages if m["role"] in TOOL_ROLES), default=0)
        while longest > SHORTEST and len(ids) > room // 2:
            longest = min(longest - 1, longest * room // (2 * len(ids)))
            cut: list[Message] = [
                {**message, "content": cut_middle(message["content"], max(longest, SHORTEST))} if message["role"] in TOOL_ROLES else message
                for message in messages
            ]
            ids = self._reply(cut)
        return ids

    def _reply(self, messages: Sequence[Message]) -> list[int]:
        if self.native or all(message["role"] not in TOOL_ROLES for message in messages):
            return self.tokenizer.render_reply(messages)
        said = [self._labelled(message) for message in messages]
        return self.tokenizer.render_reply([{"role": "user", "content": "\n".join(said)}])

    def _labelled(self, message: Message) -> str:
        result = message["role"] in TOOL_ROLES
        return self.dialect.result(str(message.get("name", "tool")), message["content"]) if result else message["content"]

    def end(self, tools: Sequence[ToolSpec], tokens: Sequence[int], start: int) -> CallEnd | None:
        """What ends the turn that begins at `start` in `tokens`, besides the stop ids; None if nothing does."""
        if not (tools and self.dialect.plain_text):
            return None
        return CallEnd(self.dialect, self.tokenizer, tools, list(tokens[max(0, start - TAIL) : start]))

    @cached_property
    def closing(self) -> list[int]:
        """The tokens that end a turn which no stop id ended, as the chat template would."""
        return list(getattr(self.tokenizer, "turn_end", [self.tokenizer.eos_id]))

    def turn(self, plain: Turn, number: int, tools: Sequence[ToolSpec], tokens: Sequence[int], start: int) -> Turn:
        """A closed turn as the session hears it, with its calls and their statuses; it begins at `start` in `tokens`.

        The tokens are only decoded. A stop token that is a mark of the dialect is part of the text: it closes the call.
        """
        text = plain.text + self._stop_marks.get(tokens[-1], "")
        thinking = opened(self.dialect, self.tokenizer, tokens[max(0, start - TAIL) : start])
        return self.dialect.read(text, tools, turn=number, finish=plain.finish, thinking=thinking)


def _after(about: str, message: Message) -> Message:
    return {"role": message["role"], "content": f"{about}\n\n{message['content']}"}
