"""Branches: where the calls of an agent continue what this episode has sampled.

An agent sends its whole conversation with each call. Where it begins with messages that this episode knows, up to a turn that was sampled,
the tokens of these are used again, and never encoded a second time. Any other conversation is rendered. Either way the call continues the
longest path of tokens that its prompt begins with; if that path has gone on otherwise, there is a new branch.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.chat.dialects.json_text import ValueSyntaxError, parse_call_arguments
from rlvr.contracts.chat_request import ChatRequest, build_assistant_message
from rlvr.episode import Segment, find_path
from rlvr.turns import Turn

MIN_SHARED_TOKENS = 16
"""A branch with fewer tokens in common begins anew: each fork is a segment more to compute."""


class ChatHistory:
    """The conversations in which turns were sampled, by their messages.

    The reasoning of a turn need not be there, nor the ids of its calls: agents leave out the first and rename the others. Where several turns
    have one visible text, they decide if they are there.

    >>> history, first = ChatHistory(), ChatRequest(({"role": "user", "content": "2+2="},))
    >>> history.add_turn(first, Turn("4", content="4"), end=9)
    >>> later = ({"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3+3?"})
    >>> history.find_continued_turn(ChatRequest((*first.messages, *later)))
    (9, ({'role': 'user', 'content': 'And 3+3?'},))
    """

    def __init__(self) -> None:
        self._turns: dict[bytes, list[tuple[int, Mapping[str, Any]]]] = {}
        """The position after each sampled turn, and its message, by the digest of the conversation up to this message."""

    def add_turn(self, request: ChatRequest, turn: Turn, end: int, number: int = 0) -> None:
        """Add a turn that was sampled for a request, with the position after its last token. Its number is in the ids of its calls."""
        message = build_assistant_message(turn, request, f"call_{number}")
        digest = _digest_prefixes(ChatRequest((*request.messages, message), request.tools))[-1]
        self._turns.setdefault(digest, []).append((end, message))

    def find_continued_turn(self, request: ChatRequest) -> tuple[int, tuple[Mapping[str, Any], ...]] | None:
        """Return the position after the last sampled turn that a request continues, and the messages that follow; None if there is none, or
        if somebody else's turn follows.
        """
        digests = _digest_prefixes(request)
        for place in range(len(request.messages) - 1, -1, -1):
            if (message := request.messages[place])["role"] == "assistant":
                same = self._turns.get(digests[place], [])
                return (_choose_turn(same, message), request.messages[place + 1 :]) if same else None
        return None


def _choose_turn(turns: Sequence[tuple[int, Mapping[str, Any]]], message: Mapping[str, Any]) -> int:
    """Return the end of the turn that an agent means: the one with these ids of calls, else with this reasoning, else the last."""
    for read in (lambda one: [call["id"] for call in one.get("tool_calls") or ()], lambda one: one.get("reasoning_content")):
        if found := [end for end, own in turns if read(message) and read(own) == read(message)]:
            return found[-1]
    return turns[-1][0]


def _digest_prefixes(request: ChatRequest) -> list[bytes]:
    """Return a digest of the conversation up to each message, with its tools."""
    sums = hashlib.blake2b(digest_size=16)
    for tool in request.tools:
        sums.update(_to_bytes([tool.name, tool.description, tool.parameters]))
    found = []
    for message in request.messages:
        calls = [
            [call["function"]["name"], _parse_arguments(call["function"]["arguments"])] for call in message.get("tool_calls") or () if call
        ]
        sums.update(_to_bytes([message["role"], str(message.get("content") or "").strip(), calls]))
        found.append(sums.digest())
    return found


def _to_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode() + b"\n"


def _parse_arguments(arguments: Any) -> Any:
    """Parse the arguments of a call, which agents write again with other spaces; a text that is no JSON stays itself."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return parse_call_arguments(arguments)
    except ValueSyntaxError:
        return arguments


def get_path_tokens(tokens: Sequence[int], segments: Sequence[Segment], end: int) -> list[int]:
    """Return the tokens on the path that leads to a position.

    >>> get_path_tokens([5, 6, 7, 8], [Segment(0), Segment(2, parent=0)], 3)
    [5, 6, 7]
    """
    number = bisect_right([segment.start for segment in segments], end - 1) - 1
    *before, (start, _) = find_path(segments, number, len(tokens))
    return [token for a, b in [*before, (start, end)] for token in tokens[a:b]]


def find_longest_path(tokens: Sequence[int], segments: Sequence[Segment], prompt: Sequence[int]) -> tuple[int, int, int]:
    """Find the path that has the most tokens in common with the beginning of a prompt: how many, the segment in which they end, and the
    position after the last.

    >>> find_longest_path([5, 6, 7, 8], [Segment(0), Segment(3, parent=0)], [5, 6, 9])
    (2, 0, 2)
    """
    ends = [*(segment.start for segment in segments[1:]), len(tokens)]
    whole: dict[int, int] = {-1: 0}  # how many tokens lead to the end of each segment that the prompt has whole
    best = (0, -1, 0)
    for number, (segment, end) in enumerate(zip(segments, ends, strict=True)):
        if (before := whole.get(segment.parent)) is not None:
            common = _count_common(tokens, segment.start, end, prompt, before)
            if common == end - segment.start:
                whole[number] = before + common
            if before + common > best[0]:
                best = (before + common, number, segment.start + common)
    return best


def _count_common(tokens: Sequence[int], start: int, end: int, prompt: Sequence[int], at: int) -> int:
    """Count how many tokens from `start` on are those of the prompt from `at` on. Slices compare a thousand tokens at once."""
    longest = min(end - start, len(prompt) - at)
    done, step = 0, 1024
    while done < longest:
        size = min(step, longest - done)
        if tokens[start + done : start + done + size] == prompt[at + done : at + done + size]:
            done += size
        elif size == 1:
            break
        else:
            step = size // 2
    return done


def add_branch_segments(tokens: Sequence[int], segments: Sequence[Segment], prompt: Sequence[int]) -> tuple[list[Segment], int]:
    """Return the segments with a place for a prompt, whose new tokens come at the end of `tokens`, and how many of its tokens are known.

    >>> add_branch_segments([5, 6, 7], [Segment(0)], [5, 6, 7, 8])
    ([Segment(start=0, parent=-1)], 3)
    >>> add_branch_segments([5] * 20, [Segment(0)], [5] * 18 + [8])
    ([Segment(start=0, parent=-1), Segment(start=18, parent=0), Segment(start=20, parent=0)], 18)
    """
    depth, number, position = find_longest_path(tokens, segments, prompt)
    if position == len(tokens):
        return list(segments), depth  # it goes on where the list ends
    if depth < min(MIN_SHARED_TOKENS, len(prompt)):
        return [*segments, Segment(len(tokens))], 0
    ends = [*(segment.start for segment in segments[1:]), len(tokens)]
    if position == ends[number]:
        return [*segments, Segment(len(tokens), number)], depth
    moved = [replace(s, parent=s.parent + 1) if s.parent >= number else s for s in segments[number + 1 :]]
    return [*segments[: number + 1], Segment(position, number), *moved, Segment(len(tokens), number)], depth
