"""The conformance kit of the gateway: a client plays conversations of several shapes, and what it saw is compared with the episode.

The comparison uses nothing of the gateway but the episode: contexts are rendered here, with the tokenizer `bytes`, from the messages that
the client sent. So it finds a token that was encoded again, lost, doubled, or trained after something that the policy did not see.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr.chat.dialects.table import get_dialect
from rlvr.contracts import Completion, Request, Sampler, SamplerTraits, SamplingParams
from rlvr.episode import Episode
from rlvr.gateway.agents import AgentClient
from rlvr.mdp.tokenizers import EOS, POLICY, USER, ByteTokenizer
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout
from rlvr.task import Task
from rlvr.turns import Call

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"mark": {"type": "string"}}}}}
VERSION = 7
TIMEOUT_S = 60.0
FILLER = "a question that is long enough to be shared"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call as its client saw it.

    >>> Exchange(({"role": "user", "content": "2+2="},), "4", (3, 2)).is_retry
    False
    """

    messages: tuple[Mapping[str, Any], ...]
    text: str
    """The content of the reply; of a call, its argument `mark`."""
    usage: tuple[int, int]
    has_tools: bool = False
    is_retry: bool = False
    """Whether the client had sent the call before."""


@dataclass(slots=True)
class RecordingClient:
    """Calls a gateway by HTTP and notes what it sends and receives."""

    base_url: str
    api_key: str
    exchanges: list[Exchange] = field(default_factory=list)

    def ask(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, tools: bool = False, retry: bool = False
    ) -> dict[str, Any]:
        """Return the assistant's message for a conversation; raise ConnectionError for an error reply."""
        body: dict[str, Any] = {"messages": list(messages), "stream": stream, "stream_options": {"include_usage": True}}
        body |= {"tools": [TOOL]} if tools else {}
        status, text = self._post(body, {"x-stainless-retry-count": "1"} if retry else {})
        if status != 200:
            raise ConnectionError(f"status {status}: {text[:200]}")
        message, usage = _join_chunks(text) if stream else _read_whole(text)
        calls = message.get("tool_calls") or ()
        seen = json.loads(calls[0]["function"]["arguments"]).get("mark", "") if calls else message["content"]
        tokens = (usage["prompt_tokens"], usage["completion_tokens"])
        self.exchanges.append(Exchange(tuple(messages), str(seen), tokens, has_tools=tools, is_retry=retry))
        return message

    def _post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, str]:
        address, _, root = self.base_url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        try:
            sent = {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json", **headers}
            connection.request("POST", f"/{root}/chat/completions", json.dumps(body).encode(), sent)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def _read_whole(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    reply = json.loads(text)
    return reply["choices"][0]["message"], reply["usage"]


def _join_chunks(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    usage: dict[str, Any] = {"prompt_tokens": -1, "completion_tokens": -1}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
    return message, usage


def play_shapes(client: RecordingClient) -> None:
    """Play conversations of the shapes that agents have: long ones, with characters of several bytes and forged control tokens, streamed,
    with a tool, with a rewritten history, repeated, sent again, and several at once.
    """
    system = {"role": "system", "content": "Be brief. <user> <eos> \x00"}
    messages: list[Mapping[str, Any]] = [system, _user(f"{FILLER} 日本語 🙂")]
    for number in range(3):
        messages += [client.ask(messages, stream=number == 1), _user(f"and then? {number} ünïcödé")]
    client.ask(messages)
    client.ask([*messages[:2], {"role": "assistant", "content": "a summary of what was said"}, _user("go on")])
    client.ask([_user("another conversation, for a title")])
    for _ in range(2):
        client.ask(messages[:2])
    client.ask(messages[:2], retry=True)
    with_tool: list[Mapping[str, Any]] = [_user(f"{FILLER}, with a tool")]
    reply = client.ask(with_tool, tools=True)
    result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "the result of the tool"}
    client.ask([*with_tool, reply, result, _user("and now?")], tools=True)
    threads = [threading.Thread(target=client.ask, args=([_user(f"{FILLER}, at once {number}")],)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class MarkingSampler(Sampler):
    """Answers each request with a text that occurs once, after some reasoning, and with spaces around it; with a call if there are tools."""

    traits = SamplerTraits(loads_weights=False)

    def __init__(self) -> None:
        self.count = 0

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield the completions."""
        for place, request in enumerate(requests):
            self.count += 1
            mark = f"mark-{self.count}-é🙂"
            has_tools = request.chat_prompt is not None and bool(request.chat_prompt.tools)
            is_answered = has_tools and request.chat_prompt is not None and request.chat_prompt.messages[-1]["role"] != "user"
            wants_call = has_tools and not is_answered and len(request.chat_prompt.messages if request.chat_prompt else ()) == 1
            text = (
                get_dialect("line").format_calls([Call("0.0", "look", {"mark": mark})])
                if wants_call
                else f"<think>so {mark}</think>  {mark} \n"
            )
            tokens = [*ByteTokenizer().encode(text), EOS]
            yield place, Completion(tokens, [-0.01 * (1 + index % 7) for index in range(len(tokens))], "stop")


def find_gateway_faults(exchanges: Sequence[Exchange], episode: Episode, *, version: int = VERSION) -> list[str]:
    """Compare what a client saw with the episode; return what does not agree.

    Args:
        exchanges: what the client sent and received.
        episode: what the gateway made of it.
        version: the version of the weights that sampled.
    """
    tokenizer, faults = ByteTokenizer(), list[str]()
    spans, turns = episode.turn_spans, dict[str, int]()
    texts = [tokenizer.decode(episode.tokens[start:end]) for start, end in spans]
    distinct = [exchange for exchange in exchanges if not exchange.is_retry]
    if len(spans) != len(distinct):
        faults.append(f"{len(distinct)} calls were made, and the episode has {len(spans)} turns")
    if episode.policy_version != version:
        faults.append(f"the episode was sampled by version {version}, and says {episode.policy_version}")
    for number, exchange in enumerate(exchanges):
        found = [turn for turn, text in enumerate(texts) if exchange.text and exchange.text in text.split()]
        found = found or [turn for turn, text in enumerate(texts) if exchange.has_tools and exchange.text and exchange.text in text]
        if len(found) != 1:
            faults.append(f"reply {number}, {exchange.text!r}, is that of {len(found)} turns")
            continue
        turn = turns[exchange.text] = found[0]
        start, end = spans[turn]
        context = _list_context(episode, start)
        if problem := _compare_context(exchange, context, exchanges, episode, turns):
            faults.append(f"turn {turn}: {problem}")
        if exchange.usage != (len(context), end - start):
            faults.append(f"reply {number} says {exchange.usage} tokens; the turn has {(len(context), end - start)}")
    return faults


def _list_context(episode: Episode, position: int) -> list[int]:
    """Return the tokens that lead to a position."""
    for branch in episode.branches:
        path = [place for start, end in branch for place in range(start, end)]
        if position in path:
            return [episode.tokens[place] for place in path[: path.index(position)]]
    return []


def _compare_context(
    exchange: Exchange, context: Sequence[int], exchanges: Sequence[Exchange], episode: Episode, turns: Mapping[str, int]
) -> str:
    """Say how the tokens before a turn are not those of the messages that the client sent."""
    tokenizer, spans, expected = ByteTokenizer(), episode.turn_spans, list[int]()
    for place, message in enumerate(exchange.messages):
        text = str(message.get("content") or "")
        if message["role"] != "assistant":
            is_result = message["role"] == "tool"
            words = get_dialect("line").format_result_as_user_message("look", text) if is_result else text
            last = exchange.messages[place - 1]["role"] if place else ""
            joined = last in ("tool", "user") and bool(expected) and exchange.has_tools
            expected += [*tokenizer.encode("\n"), *tokenizer.encode(words)] if joined else [USER, *tokenizer.encode(words)]
            continue
        calls = message.get("tool_calls") or ()
        said = json.loads(calls[0]["function"]["arguments"])["mark"] if calls else text
        earlier = next((other for other in exchanges if other.text == said and other.messages == exchange.messages[:place]), None)
        if earlier is not None and said in turns:
            start, end = spans[turns[said]]
            expected += [POLICY, *episode.tokens[start:end]]
            expected += [] if expected[-1] == EOS else [EOS]
        else:
            expected += [POLICY, *tokenizer.encode(text), EOS]
    expected.append(POLICY)
    if exchange.has_tools:  # what describes the tools comes first
        context = context[len(context) - len(expected) :]
    if list(context) == expected:
        return ""
    shown = next(
        (at for at, (one, other) in enumerate(zip(context, expected, strict=False)) if one != other), min(len(context), len(expected))
    )
    ours, theirs = (tokenizer.decode(list(tokens)[max(0, shown - 10) : shown + 20]) for tokens in (context, expected))
    return f"token {shown} of its context is not that of the client's messages: {ours!r} for {theirs!r}"


def check_gateway(play: Callable[[RecordingClient], None] = play_shapes) -> list[str]:
    """Play the shapes against the gateway of this installation; return the faults that are found, among them calls after the end that got
    an answer.

    >>> check_gateway()
    []
    """
    clients = list[RecordingClient]()

    def agent(client: AgentClient, task: Task) -> None:
        clients.append(RecordingClient(client.base_url, client.api_key))
        play(clients[-1])

    env = build("env", "agent", env="arithmetic", function=agent)
    rollout = Rollout(env, "bytes", MarkingSampler(), max_length=50_000)
    rollout.version = VERSION
    try:
        tasks = [env.task("train", index) for index in range(2)]
        episodes = [episode for [episode] in rollout.sample(tasks, seed=0)]
        late = [_is_answered_after_end(client) for client in clients]
    finally:
        rollout.close()
        env.close()
    faults = ["a call after the end of its episode got an answer"] * any(late)
    for episode in episodes:
        texts = ByteTokenizer().decode(episode.tokens)
        own = max(clients, key=lambda client: sum(exchange.text in texts for exchange in client.exchanges))
        faults += [str(episode.meta.get("trouble") or episode.error)] if "trouble" in episode.meta or episode.error else []
        faults += find_gateway_faults(own.exchanges, episode)
    return faults


def _is_answered_after_end(client: RecordingClient) -> bool:
    late = RecordingClient(client.base_url, client.api_key)
    try:
        late.ask([_user("late")])
    except (OSError, http.client.HTTPException):
        return False
    return True
