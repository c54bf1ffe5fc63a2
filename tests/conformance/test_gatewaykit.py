"""Faults that are planted in the gateway: each is found, and nothing is found where none is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlvr.chat.tool_calling import ToolFormat
from rlvr.conformance.gatewaykit import check_gateway
from rlvr.contracts.chat_request import build_assistant_message
from rlvr.gateway import session as gateway_session
from rlvr.gateway.calls import AgentCalls, ChatReply
from rlvr.gateway.formats import ChatCompletions
from rlvr.gateway.server import Gateway
from rlvr.mdp import token_mdp
from rlvr.mdp.branches import ChatHistory, get_path_tokens
from rlvr.mdp.state import ConversationState
from rlvr.mdp.token_mdp import TokenMDP

Patch = Callable[[pytest.MonkeyPatch], None]


def rerender_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChatHistory, "find_continued_turn", lambda self, request: None)


def drop_thoughts(patch: pytest.MonkeyPatch) -> None:
    def cut(tokens: Any, segments: Any, end: int) -> list[int]:
        path = token_mdp_path(tokens, segments, end)
        text = bytes(max(0, token - 4) for token in path)
        begin, close = text.rfind(b"<think>"), text.rfind(b"</think>")
        return path if begin < 0 else [*path[:begin], *path[close + 8 :]]

    token_mdp_path = get_path_tokens
    patch.setattr(token_mdp, "get_path_tokens", cut)


def merge_turns(patch: pytest.MonkeyPatch) -> None:
    def append(self: ConversationState, request: Any, prompt: Any) -> None:
        plain(self, request, [*self.branch, *prompt] if self.segments else prompt)

    plain = ConversationState.append_request
    patch.setattr(ConversationState, "append_request", append)


def change_chunks(change: Callable[[list[Any]], list[Any]]) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        plain = ChatCompletions.stream_reply
        patch.setattr(ChatCompletions, "stream_reply", lambda self, *args: iter(change(list(plain(self, *args)))))

    return apply


def sample_retries(patch: pytest.MonkeyPatch) -> None:
    plain = AgentCalls.submit
    patch.setattr(AgentCalls, "submit", lambda self, request, key, *, is_retry=False: plain(self, request, key))


def name_another_version(patch: pytest.MonkeyPatch) -> None:
    plain = TokenMDP.build_episode
    patch.setattr(TokenMDP, "build_episode", lambda self, *args, **more: replace(plain(self, *args, **more), policy_version=3))


def cut_a_character(patch: pytest.MonkeyPatch) -> None:
    def build(*args: Any) -> dict[str, Any]:
        message = plain(*args)
        return {**message, "content": message["content"].encode()[:-1].decode("utf-8", "replace")}

    plain = build_assistant_message
    patch.setattr(gateway_session, "build_assistant_message", build)


def misplace_results(patch: pytest.MonkeyPatch) -> None:
    plain = ToolFormat.render_messages_after_turn

    def render(self: ToolFormat, messages: Any, count: int) -> list[int]:
        return plain(self, [*messages[: len(messages) - count], *reversed(messages[len(messages) - count :])], count)

    patch.setattr(ToolFormat, "render_messages_after_turn", render)


def rewrite_the_system_prompt(patch: pytest.MonkeyPatch) -> None:
    plain = ToolFormat.render_conversation

    def render(self: ToolFormat, messages: Any, tools: Any) -> list[int]:
        return plain(self, [{**m, "content": f"{m['content']} Think."} if m["role"] == "system" else m for m in messages], tools)

    patch.setattr(ToolFormat, "render_conversation", render)


def miscount(patch: pytest.MonkeyPatch) -> None:
    plain = TokenMDP._add_turn_to_history

    def add(state: ConversationState, turn: Any, number: int) -> Any:
        added = plain(state, turn, number)
        return replace(added, usage=(len(state.tokens), added.usage[1]))  # of all branches

    patch.setattr(TokenMDP, "_add_turn_to_history", staticmethod(add))


def answer_after_the_end(patch: pytest.MonkeyPatch) -> None:
    def unregister(self: Gateway, calls: AgentCalls, reason: str) -> None:
        import threading

        def serve() -> None:
            for _ in range(100):
                if (call := calls.take(timeout_s=0.1)) is not None:
                    calls.answer(call, ChatReply({"role": "assistant", "content": "late"}))

        threading.Thread(target=serve, daemon=True).start()

    patch.setattr(Gateway, "unregister", unregister)


def mix_episodes(patch: pytest.MonkeyPatch) -> None:
    """One reply goes to the agent of another episode."""
    plain, last = AgentCalls.answer, dict[int, Any]()

    def answer(self: AgentCalls, call: Any, reply: Any) -> None:
        others = [earlier for key, earlier in last.items() if key != id(self)]
        last[id(self)] = reply
        if others and not done:
            done.append(True)
            reply = replace(others[0], prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
        plain(self, call, reply)

    done = list[bool]()
    patch.setattr(AgentCalls, "answer", answer)


FAULTS: dict[str, tuple[Patch, str]] = {
    "re-rendered history": (rerender_history, "is not that of the client's messages"),
    "dropped thought": (drop_thoughts, "is not that of the client's messages"),
    "merged turn": (merge_turns, "is not that of the client's messages"),
    "lost stream chunk": (
        change_chunks(lambda chunks: [c for c in chunks if not (c[1]["choices"] and c[1]["choices"][0]["delta"].get("content"))]),
        "is that of 0 turns",
    ),
    "doubled stream chunk": (
        change_chunks(
            lambda chunks: [
                c
                for chunk in chunks
                for c in ((chunk, chunk) if chunk[1]["choices"] and chunk[1]["choices"][0]["delta"].get("content") else (chunk,))
            ]
        ),
        "is that of 0 turns",
    ),
    "retry sampled twice": (sample_retries, "calls were made, and the episode has"),
    "wrong version": (name_another_version, "was sampled by version 7, and says 3"),
    "cut in a character": (cut_a_character, "is that of 0 turns"),
    "result in another place": (misplace_results, "is not that of the client's messages"),
    "system prompt rewritten": (rewrite_the_system_prompt, "is not that of the client's messages"),
    "wrong usage": (miscount, "tokens; the turn has"),
    "answer after the end": (answer_after_the_end, "a call after the end of its episode got an answer"),
    "two episodes mixed": (mix_episodes, "is that of 0 turns"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, words = FAULTS[name]
    plant(monkeypatch)
    found = check_gateway()
    assert any(words in line for line in found), found


@pytest.mark.parametrize("repeat", range(3))
def test_nothing_is_found_where_no_fault_is(repeat: int) -> None:
    assert check_gateway() == []
