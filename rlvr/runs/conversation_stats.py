"""Count turns and tool calls of conversations from their session records, for metrics, progress and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr.episode import Episode
from rlvr.mdp.records import step_result_from_json, turn_from_json
from rlvr.turns import CallStatus


@dataclass(frozen=True, slots=True)
class ConversationStats:
    """The counts of turns and tool calls of one conversation.

    >>> ConversationStats(turns=3, calls=2, errors=1, seconds=0.5, by_tool={"calculator": 2}).errors
    1
    """

    turns: int = 1
    calls: int | None = None
    """The number of calls outside of the reasoning, including those that could not be executed; None without tools."""
    errors: int = 0
    """The number of calls that could not be executed or whose tool reported an error."""
    seconds: float = 0.0
    """The total time of the tools."""
    by_tool: Mapping[str, int] = field(default_factory=dict)
    """The number of calls of each available tool; unknown names are not counted."""


def count_turns_and_calls(num_turns: int, record: Mapping[str, Any] | None) -> ConversationStats:
    """Count the turns and calls of a conversation, from its session record if there is one.

    >>> count_turns_and_calls(1, {"tools": [{"name": "now"}], "turns": [{"text": "4"}], "step_results": []})
    ConversationStats(turns=1, calls=0, errors=0, seconds=0.0, by_tool={'now': 0})
    >>> count_turns_and_calls(2, None).calls is None
    True
    """
    if not record or not record.get("tools"):
        return ConversationStats(num_turns)
    calls = [call for row in record.get("turns", ()) for call in turn_from_json(row).calls_needing_result_or_error]
    results = {result.call: result for row in record["step_results"] for result in step_result_from_json(row).tool_results}
    failed = [call for call in calls if call.status is not CallStatus.OK or (call.id in results and not results[call.id].ok)]
    named = Counter(call.name for call in calls)
    by_tool = {tool["name"]: named[tool["name"]] for tool in record["tools"]}
    return ConversationStats(num_turns, len(calls), len(failed), sum((result.duration_s for result in results.values()), 0.0), by_tool)


def compute_conversation_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Compute the mean number of turns, and of tool calls if there are tools, over episodes.

    >>> compute_conversation_metrics([])
    {}
    """
    if not episodes:
        return {}
    count = len(episodes)
    row = {"turns/mean_per_episode": sum(episode.turns for episode in episodes) / count}
    if conversations := _count_tool_conversations(episodes):
        row |= {
            "tools/calls_per_episode": sum(conversation.calls or 0 for conversation in conversations) / count,
            "tools/errors_per_episode": sum(conversation.errors for conversation in conversations) / count,
        }
        for name in sorted({name for conversation in conversations for name in conversation.by_tool}):
            row[f"tools/{name}/calls"] = sum(conversation.by_tool.get(name, 0) for conversation in conversations) / count
    return row


def compute_tool_time_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Compute the metric `tools/total_time`, the total seconds of all tools; empty if there are no tools."""
    conversations = _count_tool_conversations(episodes)
    return {"tools/total_time": sum(conversation.seconds for conversation in conversations)} if conversations else {}


def _count_tool_conversations(episodes: Sequence[Episode]) -> list[ConversationStats]:
    conversations = [count_turns_and_calls(episode.turns, episode.meta.get("session")) for episode in episodes]
    return [conversation for conversation in conversations if conversation.calls is not None]
