"""The wire formats of the gateway: OpenAI's chat completions, responses and completions, and Anthropic's messages.

Each format reads a body into a `ChatRequest`, and writes a `ChatReply` as one object or as the events of a stream. Settings of sampling in
a request, such as a temperature, are ignored: the run decides how its policy is sampled. A field that would change the meaning of the
conversation and is not supported is refused.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlvr.chat.dialects.json_text import MAX_DEPTH, is_nested_deeper
from rlvr.contracts.chat_request import ChatRequest
from rlvr.gateway.calls import ChatReply, GatewayError
from rlvr.turns import EMPTY_PARAMETERS_SCHEMA, ToolSpec

Event = tuple[str, dict[str, Any]]
"""The name of an event of a stream, empty where the format names none, and its data."""
Messages = tuple[Mapping[str, Any], ...]
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
"""The types of parts of a content that are texts."""
MAX_TOOLS, MAX_STOPS, MAX_ITEMS = 512, 64, 20_000
"""How many tools the policy sees, how many texts may end a reply, and how many messages or tools a request may have: each costs time in a
thread that answers all agents.
"""
BUILT_IN_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The arguments of a tool that takes a free text instead of JSON."""


class WireFormat(ABC):
    """One route of the gateway."""

    path: ClassVar[str]

    @abstractmethod
    def parse(self, body: Mapping[str, Any], conversations: Mapping[str, Messages]) -> ChatRequest:
        """Read a request; raise GatewayError with status 400 if it is none. `conversations`: what earlier replies can be referred to by."""

    @abstractmethod
    def format_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> dict[str, Any]:
        """Write a reply as one object."""

    @abstractmethod
    def stream_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> Iterator[Event]:
        """Write a reply as the events of a stream."""

    def format_error(self, status: int, message: str) -> dict[str, Any]:
        """Write an error as the client expects it."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            status, "invalid_request_error" if status < 500 else "server_error"
        )
        return {"error": {"message": message, "type": kind, "param": None, "code": "invalid_api_key" if status == 401 else None}}

    end_of_stream: ClassVar[str] = ""
    """What follows the last event."""


def make_reply_id() -> str:
    """Return a new id for a reply, without the prefix of a format."""
    return secrets.token_hex(12)


def _refuse(message: str) -> GatewayError:
    return GatewayError(400, message)


def _read_text(content: Any, where: str) -> str:
    """Return the text of a content: a text, or parts that are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _refuse(f"the content of {where} is {content!r:.60}; it must be a text or a list of parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type", "text") in TEXT_PARTS:
            texts.append(str(part.get("text") or part.get("refusal") or ""))
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise _refuse(f"the content of {where} has a part of the type {kind!r}; the policy reads text alone")
    return "\n".join(texts)


def _read_list(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = body.get(key)
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise _refuse(f"{key} is {found!r:.60}; it must be a list of objects")
    if len(found) > MAX_ITEMS:
        raise _refuse(f"{key} has {len(found)} objects; at most {MAX_ITEMS:,} are allowed")
    return found


def _read_limit(body: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        if (value := body.get(key)) is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _refuse(f"{key} is {value!r}; it must be a whole number above 0")
            return value
    return None


def _read_stop(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    stop = body.get(key) or ()
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise _refuse(f"{key} is {stop!r:.60}; it must be a text or a list of texts, none of them empty")
    if len(texts) > MAX_STOPS:
        raise _refuse(f"{key} has {len(texts)} texts; at most {MAX_STOPS} are allowed")
    return tuple(texts)


def check_reply_options(body: Mapping[str, Any]) -> None:
    """Refuse the settings of a reply that cannot be read, before anything is sampled."""
    for key in ("stream_options", "metadata"):
        if not isinstance(body.get(key) or {}, Mapping):
            raise _refuse(f"{key} is {body[key]!r:.60}; it must be an object")
    if not isinstance(body.get("stream") or False, bool):
        raise _refuse(f"stream is {body['stream']!r:.60}; it must be true or false")


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Return whether a stream of chunks ends with the numbers of tokens."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def _read_tool(name: Any, description: Any, parameters: Any) -> ToolSpec:
    if not isinstance(name, str) or not name:
        raise _refuse(f"a tool has the name {name!r:.60}; it must be a text")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _refuse(f"the parameters of the tool {name!r} are {parameters!r:.60}; they must be a JSON schema")
    if is_nested_deeper(parameters):
        raise _refuse(f"the parameters of the tool {name!r:.60} are nested more than {MAX_DEPTH} deep; write a flatter schema")
    return ToolSpec(name, str(description or ""), dict(parameters or EMPTY_PARAMETERS_SCHEMA))


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> Messages:
    if not messages:
        raise _refuse("the request has no message")
    if (count := sum(len(message.get("tool_calls") or ()) for message in messages)) > MAX_ITEMS:
        raise _refuse(f"the messages have {count} calls of tools; at most {MAX_ITEMS:,} are allowed")
    if messages[-1]["role"] == "assistant":
        raise _refuse("the last message is the assistant's; a reply that begins with a given text is not supported")
    return tuple(messages)


def _make_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    if not isinstance(name, str) or not name:
        raise _refuse(f"a call in the history names the tool {name!r:.60}; it must be a text")
    if is_nested_deeper(arguments):
        raise _refuse(f"the arguments of a call of {name!r:.60} are nested more than {MAX_DEPTH} deep")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
    return {"id": str(call_id or ""), "type": "function", "function": {"name": name, "arguments": text}}


class ChatCompletions(WireFormat):
    """OpenAI's `/v1/chat/completions`, which most agents call.

    >>> ChatCompletions().parse({"messages": [{"role": "user", "content": "2+2="}]}, {}).messages[0]["content"]
    '2+2='
    """

    path = "/v1/chat/completions"
    end_of_stream = "[DONE]"

    def parse(self, body: Mapping[str, Any], conversations: Mapping[str, Messages]) -> ChatRequest:
        """Read a request."""
        if body.get("n") not in (None, 1):
            raise _refuse(f"n is {body['n']!r}; one completion is sampled for each call")
        if body.get("functions"):
            raise _refuse("functions is not supported; send tools")
        messages = [self._read_message(message) for message in _read_list(body, "messages")]
        tools = []
        for tool in _read_list(body, "tools") if body.get("tools") else ():
            spec = tool.get("function")
            if tool.get("type", "function") != "function" or not isinstance(spec, Mapping):
                raise _refuse(f"a tool is {tool!r:.80}; it must be {{'type': 'function', 'function': {{...}}}}")
            tools.append(_read_tool(spec.get("name"), spec.get("description"), spec.get("parameters")))
        return ChatRequest(
            _check_messages(messages),
            () if body.get("tool_choice") == "none" else tuple(tools[:MAX_TOOLS]),
            _read_limit(body, "max_completion_tokens", "max_tokens"),
            _read_stop(body, "stop"),
        )

    def _read_message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        role = {"developer": "system", "function": "tool"}.get(str(message.get("role")), message.get("role"))
        if role not in ("system", "user", "assistant", "tool"):
            raise _refuse(f"a message has the role {role!r:.40}; allowed: system, developer, user, assistant, tool")
        found: dict[str, Any] = {"role": role, "content": _read_text(message.get("content"), f"a message of the role {role}")}
        if role == "tool":
            found["tool_call_id"] = str(message.get("tool_call_id") or "")
            if message.get("name"):
                found["name"] = str(message["name"])
        if role == "assistant":
            reasoning = message.get("reasoning_content") or message.get("reasoning")
            if isinstance(reasoning, str):
                found["reasoning_content"] = reasoning
            if calls := message.get("tool_calls"):
                if not isinstance(calls, list) or not all(isinstance(c, Mapping) and isinstance(c.get("function"), Mapping) for c in calls):
                    raise _refuse(f"tool_calls is {calls!r:.80}; each must have a function")
                found["tool_calls"] = [
                    _make_call(call.get("id"), call["function"].get("name"), call["function"].get("arguments")) for call in calls
                ]
        return found

    def _format_usage(self, reply: ChatReply) -> dict[str, Any]:
        return {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }

    def format_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> dict[str, Any]:
        """Write a reply as one object."""
        content = reply.message["content"] or (None if reply.message.get("tool_calls") else "")
        choice = {"index": 0, "message": {**reply.message, "content": content}, "logprobs": None, "finish_reason": reply.finish_reason}
        return self._format_head(body, reply_id, "chat.completion") | {"choices": [choice], "usage": self._format_usage(reply)}

    def stream_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> Iterator[Event]:
        """Write a reply as chunks."""
        head = self._format_head(body, reply_id, "chat.completion.chunk")

        def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> Event:
            return "", head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]}

        yield chunk({"role": "assistant", "content": ""})
        for key in ("reasoning_content", "content"):
            if text := reply.message.get(key):
                yield chunk({key: text})
        for place, call in enumerate(reply.message.get("tool_calls") or ()):
            function = call["function"]
            yield chunk({"tool_calls": [{"index": place, **call, "function": {"name": function["name"], "arguments": ""}}]})
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": function["arguments"]}}]})
        yield chunk({}, reply.finish_reason)
        if wants_usage(body):
            yield "", head | {"choices": [], "usage": self._format_usage(reply)}

    def _format_head(self, body: Mapping[str, Any], reply_id: str, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{reply_id}", "object": kind, "created": int(time.time()), "model": str(body.get("model") or "policy")}


class Completions(ChatCompletions):
    """OpenAI's `/v1/completions`: the prompt is one user message.

    >>> Completions().parse({"prompt": "2+2="}, {}).messages
    ({'role': 'user', 'content': '2+2='},)
    """

    path = "/v1/completions"

    def parse(self, body: Mapping[str, Any], conversations: Mapping[str, Messages]) -> ChatRequest:
        """Read a request."""
        prompt = body.get("prompt")
        prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
        if not isinstance(prompt, str) or body.get("n") not in (None, 1) or body.get("suffix") or body.get("echo"):
            raise _refuse("the request must have one prompt that is a text, and no n, suffix or echo")
        message = {"role": "user", "content": prompt}
        return ChatRequest((message,), (), _read_limit(body, "max_tokens"), _read_stop(body, "stop"))

    def format_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> dict[str, Any]:
        """Write a reply as one object."""
        choice = {"index": 0, "text": reply.message["content"], "logprobs": None, "finish_reason": reply.finish_reason}
        return self._format_head(body, reply_id, "text_completion") | {"choices": [choice], "usage": self._format_usage(reply)}

    def stream_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> Iterator[Event]:
        """Write a reply as chunks."""
        whole = self.format_reply(body, reply, reply_id)
        yield "", {**whole, "usage": None}
        if wants_usage(body):
            yield "", {**whole, "choices": []}


class Responses(WireFormat):
    """OpenAI's `/v1/responses`. Tools that a server would run itself are left out; one that takes a free text has the argument `input`.

    >>> Responses().parse({"input": "2+2=", "instructions": "Be brief."}, {}).messages[0]["role"]
    'system'
    """

    path = "/v1/responses"

    def parse(self, body: Mapping[str, Any], conversations: Mapping[str, Messages]) -> ChatRequest:
        """Read a request."""
        messages: list[Any] = []
        if before := body.get("previous_response_id"):
            if not isinstance(before, str) or before not in conversations:
                raise GatewayError(404, f"there is no response {before!r:.60} in this episode")
            messages += [message for message in conversations[before] if not message.get("is_instructions")]
        if body.get("instructions"):
            instructions = _read_text(body["instructions"], "instructions")
            messages.insert(0, {"role": "system", "content": instructions, "is_instructions": True})
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else _read_list(body, "input")
        for item in items:
            self._append_item(messages, item)
        tools = [
            _read_tool(
                tool.get("name"), tool.get("description"), BUILT_IN_FREE_TEXT if tool.get("type") == "custom" else tool.get("parameters")
            )
            for tool in (_read_list(body, "tools") if body.get("tools") else ())
            if tool.get("type") in ("function", "custom")
        ]
        has_tools = body.get("tool_choice") != "none"
        return ChatRequest(_check_messages(messages), tuple(tools[:MAX_TOOLS]) if has_tools else (), _read_limit(body, "max_output_tokens"))

    def _append_item(self, messages: list[Any], item: Mapping[str, Any]) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
            if role not in ("system", "user", "assistant"):
                raise _refuse(f"a message has the role {role!r:.40}; allowed: system, developer, user, assistant")
            self._append_message(messages, {"role": role, "content": _read_text(item.get("content"), f"a message of the role {role}")})
        elif kind in ("function_call", "custom_tool_call"):
            arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
            call = _make_call(item.get("call_id") or item.get("id"), item.get("name"), arguments)
            self._append_message(messages, {"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            text = output if isinstance(output, str) else _read_text(output, "an output of a call")
            messages.append({"role": "tool", "content": text, "tool_call_id": str(item.get("call_id") or "")})
        elif kind != "reasoning":
            raise _refuse(f"input has an item of the type {kind!r:.40}; allowed: messages, calls of functions and their outputs, reasoning")

    def _append_message(self, messages: list[Any], message: dict[str, Any]) -> None:
        """Append a message; the text and the calls of one turn are items of their own, and become one message."""
        last = messages[-1] if messages else {}
        if message["role"] == "assistant" == last.get("role") and "tool_calls" in message:
            messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), *message["tool_calls"]]}
        else:
            messages.append(message)

    def _list_output(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> list[dict[str, Any]]:
        custom = {tool.get("name") for tool in body.get("tools") or () if tool.get("type") == "custom"}
        items: list[dict[str, Any]] = []
        if reasoning := reply.message.get("reasoning_content"):
            items.append({"type": "reasoning", "id": f"rs_{reply_id}", "summary": [{"type": "summary_text", "text": reasoning}]})
        calls = reply.message.get("tool_calls") or ()
        if reply.message["content"] or not calls:
            part = {"type": "output_text", "text": reply.message["content"], "annotations": []}
            items.append({"type": "message", "id": f"msg_{reply_id}", "role": "assistant", "status": "completed", "content": [part]})
        for place, call in enumerate(calls):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            head = {"id": f"fc_{reply_id}_{place}", "call_id": call["id"], "name": name, "status": "completed"}
            if name in custom:
                items.append({"type": "custom_tool_call", **head, "input": _read_free_text(arguments)})
            else:
                items.append({"type": "function_call", **head, "arguments": arguments})
        return items

    def format_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> dict[str, Any]:
        """Write a reply as one object."""
        return self._format_response(body, reply, reply_id, self._list_output(body, reply, reply_id))

    def _format_response(
        self, body: Mapping[str, Any], reply: ChatReply, reply_id: str, output: Sequence[Mapping[str, Any]] | None
    ) -> dict[str, Any]:
        """Write the response; `output` is None while it is in progress."""
        is_cut = reply.finish_reason == "length"
        status = "in_progress" if output is None else "incomplete" if is_cut else "completed"
        usage = {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }
        return {
            "id": f"resp_{reply_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": str(body.get("model") or "policy"),
            "output": list(output or ()),
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "reasoning": {"effort": None, "summary": None},
            "store": bool(body.get("store", True)),
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": list(body.get("tools") or ()),
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None if output is None else usage,
            "metadata": dict(body.get("metadata") or {}),
        }

    def stream_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> Iterator[Event]:
        """Write a reply as events."""
        number = 0
        output = self._list_output(body, reply, reply_id)

        def event(kind: str, **data: Any) -> Event:
            nonlocal number
            number += 1
            return kind, {"type": kind, "sequence_number": number - 1, **data}

        begun = self._format_response(body, reply, reply_id, None)
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        for place, item in enumerate(output):
            where = {"output_index": place, "item_id": item["id"]}
            kind = item["type"]
            if kind == "message":
                part = item["content"][0]
                empty = {**part, "text": ""}
                yield event("response.output_item.added", output_index=place, item={**item, "status": "in_progress", "content": []})
                yield event("response.content_part.added", **where, content_index=0, part=empty)
                yield event("response.output_text.delta", **where, content_index=0, delta=part["text"], logprobs=[])
                yield event("response.output_text.done", **where, content_index=0, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **where, content_index=0, part=part)
            elif kind == "reasoning":
                yield event("response.output_item.added", output_index=place, item={**item, "summary": []})
                text = item["summary"][0]["text"]
                yield event("response.reasoning_summary_part.added", **where, summary_index=0, part={"type": "summary_text", "text": ""})
                yield event("response.reasoning_summary_text.delta", **where, summary_index=0, delta=text)
                yield event("response.reasoning_summary_text.done", **where, summary_index=0, text=text)
                yield event("response.reasoning_summary_part.done", **where, summary_index=0, part=item["summary"][0])
            else:
                field, name = (
                    ("input", "custom_tool_call_input") if kind == "custom_tool_call" else ("arguments", "function_call_arguments")
                )
                yield event("response.output_item.added", output_index=place, item={**item, "status": "in_progress", field: ""})
                yield event(f"response.{name}.delta", **where, delta=item[field])
                yield event(f"response.{name}.done", **where, **{field: item[field]})
            yield event("response.output_item.done", output_index=place, item=item)
        whole = self._format_response(body, reply, reply_id, output)
        yield event(f"response.{whole['status']}", response=whole)


def _read_free_text(arguments: str) -> str:
    """Return the argument `input` of a call of a tool that takes a free text; all of the arguments if there is none."""
    try:
        found = json.loads(arguments)
        return str(found["input"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return arguments


class AnthropicMessages(WireFormat):
    """Anthropic's `/v1/messages`. Tools that a server would run itself are left out.

    >>> AnthropicMessages().parse({"max_tokens": 8, "messages": [{"role": "user", "content": "2+2="}]}, {}).max_tokens
    8
    """

    path = "/v1/messages"

    def parse(self, body: Mapping[str, Any], conversations: Mapping[str, Messages]) -> ChatRequest:
        """Read a request."""
        messages: list[Mapping[str, Any]] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _read_text(body["system"], "system")})
        for message in _read_list(body, "messages"):
            messages += self._read_message(message)
        tools = [
            _read_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"))
            for tool in (_read_list(body, "tools") if body.get("tools") else ())
            if "input_schema" in tool
        ]
        choice = body.get("tool_choice")
        has_tools = not (isinstance(choice, Mapping) and choice.get("type") == "none")
        limit, stop = _read_limit(body, "max_tokens"), _read_stop(body, "stop_sequences")
        return ChatRequest(_check_messages(messages), tuple(tools[:MAX_TOOLS]) if has_tools else (), limit, stop)

    def _read_message(self, message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        role, content = message.get("role"), message.get("content")
        if role == "system":
            return [{"role": "system", "content": _read_text(content, "a message of the role system")}]
        if role not in ("user", "assistant"):
            raise _refuse(f"a message has the role {role!r:.40}; allowed: user, assistant")
        if not isinstance(content, list):
            return [{"role": role, "content": _read_text(content, f"a message of the role {role}")}]
        texts, calls, results, thoughts = list[Any](), list[Any](), list[Mapping[str, Any]](), list[str]()
        for block in content:
            kind = block.get("type") if isinstance(block, Mapping) else "text"
            if kind == "tool_use":
                calls.append(_make_call(block.get("id"), block.get("name"), block.get("input")))
            elif kind == "tool_result":
                text = _read_text(block.get("content"), "a tool_result")
                results.append({"role": "tool", "content": text, "tool_call_id": str(block.get("tool_use_id") or "")})
            elif kind in ("thinking", "redacted_thinking"):
                thoughts.append(str(block.get("thinking") or ""))
            else:
                texts.append(block)
        text = _read_text(texts, f"a message of the role {role}")
        if role == "user":
            return [*results, *([{"role": "user", "content": text}] if texts or not results else [])]
        found: dict[str, Any] = {"role": "assistant", "content": text}
        found |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        return [found | ({"tool_calls": calls} if calls else {})]

    def _list_blocks(self, body: Mapping[str, Any], reply: ChatReply) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        thinks = isinstance(body.get("thinking"), Mapping) and body["thinking"].get("type") in ("enabled", "adaptive")
        if thinks and (reasoning := reply.message.get("reasoning_content")):
            blocks.append({"type": "thinking", "thinking": reasoning, "signature": "rlvr"})
        calls = reply.message.get("tool_calls") or ()
        if reply.message["content"] or not calls:
            blocks.append({"type": "text", "text": reply.message["content"]})
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
        return blocks

    def _format_message(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str, blocks: Sequence[Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{reply_id}",
            "type": "message",
            "role": "assistant",
            "model": str(body.get("model") or "policy"),
            "content": list(blocks),
            "stop_reason": _name_anthropic_end(reply),
            "stop_sequence": reply.stop_text or None,
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "output_tokens": reply.completion_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
            },
        }

    def format_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> dict[str, Any]:
        """Write a reply as one object."""
        return self._format_message(body, reply, reply_id, self._list_blocks(body, reply))

    def stream_reply(self, body: Mapping[str, Any], reply: ChatReply, reply_id: str) -> Iterator[Event]:
        """Write a reply as events."""
        whole = self._format_message(body, reply, reply_id, ())
        usage = whole["usage"]
        yield "message_start", {"type": "message_start", "message": {**whole, "stop_reason": None, "usage": {**usage, "output_tokens": 0}}}
        for index, block in enumerate(self._list_blocks(body, reply)):
            deltas: list[dict[str, Any]]
            if block["type"] == "text":
                start, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
            elif block["type"] == "thinking":
                start = {**block, "thinking": "", "signature": ""}
                deltas = [
                    {"type": "thinking_delta", "thinking": block["thinking"]},
                    {"type": "signature_delta", "signature": block["signature"]},
                ]
            else:
                start = {**block, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}]
            yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": start}
            for delta in deltas:
                yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
            yield "content_block_stop", {"type": "content_block_stop", "index": index}
        ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        yield "message_delta", {"type": "message_delta", "delta": ending, "usage": {"output_tokens": usage["output_tokens"]}}
        yield "message_stop", {"type": "message_stop"}

    def format_error(self, status: int, message: str) -> dict[str, Any]:
        """Write an error as the client expects it."""
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}


def _name_anthropic_end(reply: ChatReply) -> str:
    if reply.finish_reason == "stop":
        return "stop_sequence" if reply.stop_text else "end_turn"
    return {"length": "max_tokens", "tool_calls": "tool_use"}[reply.finish_reason]


WIRE_FORMATS: tuple[WireFormat, ...] = (ChatCompletions(), Completions(), Responses(), AnthropicMessages())
