"""A Hugging Face tokenizer and its chat template: prompts, and the tokens between the policy's turns.

History is append-only. The tokens of a reply are those that the template writes, in a small example conversation, after the policy's
last end token. So templates that rewrite earlier turns (for example to remove their reasoning) can be used too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from typing import Any

from rlvr.chat.control_tokens import ControlTokenEncoder, get_template_text
from rlvr.chat.dialects.table import detect_dialect
from rlvr.errors import ConfigError, EnvError
from rlvr.task import Message

TOOL_ROLES = frozenset({"tool", "ipython", "function", "observation"})

DEFAULT_DIALECT = "fenced"
"""The dialect if there is no chat template, or it does not support tools."""
CALL_STYLES = ((False, False), (False, True), (True, False), (True, True))
"""The styles of a turn with a tool call: (has text next to the call, arguments are a string instead of a mapping)."""


def to_reply_messages(reply: str | Sequence[Message]) -> list[Message]:
    """Convert a reply to messages; a string is one user message.

    >>> to_reply_messages("Warmer.")
    [{'role': 'user', 'content': 'Warmer.'}]
    """
    messages: list[Message] = [{"role": "user", "content": reply}] if isinstance(reply, str) else list(reply)
    if not messages or any(message["role"] == "assistant" for message in messages):
        raise EnvError(f"a reply is one or more messages of roles other than assistant, got {messages!r:.200}")
    return messages


def _add_tool_result_fields(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the fields that some templates require in a tool result: its name, and an id of nine letters and digits.

    >>> _add_tool_result_fields([{"role": "tool", "content": "4"}])
    [{'name': 'tool', 'role': 'tool', 'content': '4', 'tool_call_id': 'call00000'}]
    """
    return [
        {"name": "tool", **message, "tool_call_id": f"call{place:05d}"} if message["role"] in TOOL_ROLES else dict(message)
        for place, message in enumerate(messages)
    ]


class HFTokenizer:
    """Adapts a loaded Hugging Face tokenizer to the `Tokenizer` interface; what the interface lacks is that of the tokenizer itself."""

    def __init__(self, tokenizer: Any, extra_stop_ids: Iterable[int] = (), *, model_vocab_size: int = 0) -> None:
        self.tokenizer: Any = tokenizer
        self.num_text_ids = len(tokenizer)
        self.vocab_size = max(self.num_text_ids, model_vocab_size)
        """The number of ids. A model may have more than its tokenizer (Qwen3: 151,936 and 151,669): those have no text."""
        if tokenizer.eos_token_id is None:
            raise ConfigError("this tokenizer has no EOS token, so no answer could ever end; set tokenizer.eos_token")
        self.eos_id = int(tokenizer.eos_token_id)
        native = detect_dialect(get_template_text(tokenizer.chat_template))
        self.dialect = native.name if native else DEFAULT_DIALECT
        """The name of the tool call format."""
        known = {str(token.content): int(i) for i, token in tokenizer.added_tokens_decoder.items()}
        self.stop_marks = {known[mark]: mark for mark in (native.stop_marks if native else ()) if mark in known}
        """Stop tokens that are marks of the dialect; without them the policy would continue and invent the result of its call."""
        self.stop_ids = frozenset({self.eos_id, *extra_stop_ids, *self.stop_marks})
        if not 0 <= min(self.stop_ids) <= max(self.stop_ids) < self.num_text_ids:
            raise ConfigError(
                f"the stop ids {sorted(self.stop_ids)} are not all in a vocabulary of {self.num_text_ids}; fix generation_config.json"
            )
        self.control = ControlTokenEncoder(tokenizer, self.stop_ids)
        self._turn_ends_by_roles: dict[tuple[str, ...], tuple[tuple[bool, bool], int]] = {}
        self._has_checked_user_text = False

    def __getattr__(self, name: str) -> Any:
        """Return what the tokenizer of transformers has, such as `apply_chat_template` and `pad_token_id`."""
        if name == "tokenizer" or name.startswith("__"):  # while it is copied or loaded
            raise AttributeError(name)
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # a property that raised AttributeError: raise its own error again
        return getattr(self.tokenizer, name)

    def __call__(self, *texts: Any, **settings: Any) -> Any:
        """Encode texts as the tokenizer of transformers does."""
        return self.tokenizer(*texts, **settings)

    def __len__(self) -> int:
        return len(self.tokenizer)

    @cached_property
    def supports_tools(self) -> bool:
        """Whether the chat template describes tools and renders their results."""
        if self.dialect == DEFAULT_DIALECT:
            return False
        about = {"name": self._turn_placeholder, "description": "a", "parameters": {"type": "object", "properties": {}}}
        with suppress(ConfigError):
            shown = self._apply_template([{"role": "user", "content": "a"}], [{"type": "function", "function": about}])
            return self._turn_placeholder in shown and bool(self.render_environment_reply([{"role": "tool", "content": "a"}]))
        return False

    def encode(self, text: str) -> list[int]:
        """Convert text to ids, without special tokens, even if the text spells some. Marks such as <think> become tokens."""
        return self.control.encode_marks_only(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text; stop ids are left out.

        Ids that only the model has become replacement characters.
        """
        said = [i for i in ids if i not in self.stop_ids]
        if said and max(said) >= self.num_text_ids:
            runs = groupby(said, key=lambda i: i >= self.num_text_ids)
            return "".join("\ufffd" * len(list(run)) if beyond else self.decode(list(run)) for beyond, run in runs)
        return str(self.tokenizer.decode(said, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Render messages with the chat template; without one, their plain text after the model's BOS token."""
        if self.tokenizer.chat_template:
            ids = self._render_masked(messages, tools)[0]
            self._check_user_text()
            return ids
        if tools:
            raise ConfigError("this tokenizer has no chat template, so it cannot describe tools to the policy; use one with a template")
        return self._get_bos_ids() + self._encode_without_template("\n".join(message["content"] for message in messages))

    def render_environment_reply(self, reply: str | Sequence[Message]) -> list[int]:
        """Render the template's tokens between the policy's stop id and its next turn."""
        messages = _add_tool_result_fields(to_reply_messages(reply))
        if not self.tokenizer.chat_template:
            return self._encode_without_template("\n" + "\n".join(message["content"] for message in messages) + "\n")
        roles = tuple(message["role"] for message in messages)
        if roles not in self._turn_ends_by_roles:
            self._turn_ends_by_roles[roles] = self._find_call_style(messages, CALL_STYLES[: 1 if TOOL_ROLES.isdisjoint(roles) else None])
        way, end = self._turn_ends_by_roles[roles]
        ids, masked = self._render_masked([*self._build_example_conversation(messages, way), *messages])
        head = masked[: masked.rfind(self._turn_placeholder)]
        past = len(self.control.select_control_ids(self.control.encode_raw(head))) + end
        places = [place for place, token in enumerate(ids) if token in self.control.control_ids]
        return ids[places[past - 1] + 1 :]

    @cached_property
    def turn_end_tokens(self) -> list[int]:
        """The tokens that the template writes at the end of a policy turn; empty without a template."""
        return [self._find_end_token()] if self.tokenizer.chat_template else []

    def describe_history_difference(self) -> str:
        """Describe how the sampled history differs from the template's rendering of it; empty if it does not."""
        if not self.tokenizer.chat_template:
            return ""
        prompt, reply = self.render([{"role": "user", "content": "a"}]), self.render_environment_reply("c")
        end = self._find_end_token()
        opened = self._apply_template([{"role": "user", "content": "a"}]).rstrip().endswith("<think>")
        thought = ("" if opened else "<think>\n") + "t\n</think>\n\nb"
        differs = []
        for kind, answer in (("answers", "b"), ("answers with reasoning", thought)):
            whole: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
            if [*prompt, *self.encode(answer), end, *reply] != self.render([*whole, {"role": "user", "content": "c"}]):
                differs.append(kind)
        if not differs:
            return ""
        return (
            f"this chat template rewrites earlier {' and '.join(differs)} when a conversation continues; here every turn stays in the "
            "context exactly as the policy wrote it, while a chat server with this template shows the model the rewritten one"
        )

    def _check_user_text(self) -> None:
        """Raise ConfigError if the template drops a user's text (image templates may expect lists of parts). Checked once."""
        if not self._has_checked_user_text and self._turn_placeholder not in self._apply_template(
            [{"role": "user", "content": self._turn_placeholder}]
        ):
            raise ConfigError("this chat template does not write the text of a user's message (it may expect contents as lists of parts)")
        self._has_checked_user_text = True

    @property
    def _turn_placeholder(self) -> str:
        return self.control.nonce + "turn"

    def _encode_without_template(self, text: str) -> list[int]:
        return self.control.encode_without_forged_tokens(
            None if self.control.has_forged_token(text) else text, self.control.mask_content(text)
        )

    def _get_bos_ids(self) -> list[int]:
        """Return the BOS token, for models whose tokenizer adds one."""
        bos = self.tokenizer.bos_token_id
        return [int(bos)] if bos is not None and list(self.tokenizer.encode("a"))[:1] == [bos] else []

    def _render_masked(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[list[int], str]:
        """Render a conversation; return its ids and its text with masked contents."""
        everything = [list(messages), list(tools)]
        masked_messages, masked_tools = masked = self.control.mask_content(everything)
        if masked == everything:
            text = self._apply_template(messages, tools)
            return self.control.encode_raw(text), text
        plain: str | None = None
        if not self.control.has_forged_token(everything):
            with suppress(ConfigError):  # the template rejects a content; the masked rendering is used
                plain = self._apply_template(messages, tools)
        safe = self._apply_template(masked_messages, masked_tools)
        return self.control.encode_without_forged_tokens(plain, safe), safe

    def _apply_template(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, add_generation_prompt: bool = True
    ) -> str:
        try:
            write = self.tokenizer.apply_chat_template
            return str(write(list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=add_generation_prompt))
        except Exception as error:  # a template may reject unknown input, such as a system message
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(f"the tokenizer's chat template cannot render a conversation of {roles}: {error}") from error

    def _build_example_conversation(
        self, messages: Sequence[Mapping[str, Any]], call_style: tuple[bool, bool] = CALL_STYLES[0]
    ) -> list[dict[str, Any]]:
        """Build the example before a reply: a question, and a policy turn with one tool call per result in the reply."""
        results = [message for message in messages if message["role"] in TOOL_ROLES]
        arguments = json.dumps({"text": self._turn_placeholder}) if call_style[1] else {"text": self._turn_placeholder}
        turn: dict[str, Any] = {"role": "assistant", "content": "" if results and not call_style[0] else self._turn_placeholder}
        if results:
            turn["tool_calls"] = [
                {
                    "type": "function",
                    "id": message["tool_call_id"],
                    "function": {"name": message["name"], "arguments": arguments},
                }
                for message in results
            ]
        return [{"role": "user", "content": "a"}, turn]

    def _find_call_style(
        self, messages: Sequence[Mapping[str, Any]], call_styles: Sequence[tuple[bool, bool]]
    ) -> tuple[tuple[bool, bool], int]:
        """Find the first call style that the template accepts, and the number of control tokens at the end of its turn; raise the first
        ConfigError if there is none.
        """
        reasons = []
        for way in call_styles:
            try:
                return way, self._count_turn_end_tokens(messages, way)
            except ConfigError as error:
                reasons.append(error)
        raise reasons[0]

    def _count_turn_end_tokens(self, messages: Sequence[Mapping[str, Any]], call_style: tuple[bool, bool]) -> int:
        """Count the control tokens after the policy's last word, up to the end of its turn; raise ConfigError if the turn has no end."""
        roles, frames, between = ", ".join(message["role"] for message in messages), set(), ""
        for sample in ("x", "yzyz"):
            words = [f"{self.control.nonce}{sample}{place}" for place in range(len(messages))]
            probe = [{**message, "content": word} for message, word in zip(messages, words, strict=True)]
            text = self._apply_template([*self._build_example_conversation(probe, call_style), *probe])
            if (at := text.rfind(self._turn_placeholder)) < 0:
                raise ConfigError(
                    "this chat template leaves out the policy's turn, so a conversation cannot be continued token by token "
                    "(one for images may expect contents as lists of parts; only plain text is supported here)"
                )
            after = text[at + len(self._turn_placeholder) :]
            if missing := [word for word in words if word not in after]:
                role = messages[words.index(missing[0])]["role"]
                raise ConfigError(f"this chat template does not write messages of role {role} after a turn of the policy")
            between = after[: after.index(words[0])]
            for word in words:
                after = after.replace(word, "")
            frames.add(after)
        if len(frames) > 1:
            raise ConfigError(f"the text of this chat template around a reply of {roles} depends on the text of the reply")
        ids = self.control.select_control_ids(self.control.encode_raw(between))
        for place, token in enumerate(ids):
            if token in self.stop_ids:
                return place + 1
        closed = self._apply_template(self._build_example_conversation(messages, call_style), add_generation_prompt=False)
        closed_ids = self.control.select_control_ids(
            self.control.encode_raw(closed[closed.rfind(self._turn_placeholder) + len(self._turn_placeholder) :])
        )
        if ids and closed_ids and closed_ids[0] in self.stop_ids:  # harmony: <|return|> at the end, <|end|> in the past
            return 1
        stops, ends = (", ".join(self.tokenizer.convert_ids_to_tokens(found)) for found in (sorted(self.stop_ids), ids[:1]))
        raise ConfigError(
            f"this chat template ends no turn with a token at which the policy stops ({stops}), so a conversation cannot continue; "
            f"add the token that it ends turns with{f' (here {ends})' if ends else ''} to eos_token_id in the model's "
            "generation_config.json"
        )

    def _find_end_token(self) -> int:
        """Return the stop id that the template writes at the end of a policy turn."""
        text = self._apply_template(self._build_example_conversation([]), add_generation_prompt=False)
        stops = [i for i in self.control.encode_raw(text[text.rfind(self._turn_placeholder) :]) if i in self.stop_ids]
        return stops[0] if stops else self.eos_id
