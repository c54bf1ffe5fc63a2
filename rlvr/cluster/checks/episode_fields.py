"""Check the fields of episodes that rollout workers send: what a rollout cannot have written is named.

Readers of the episodes trust their types and bounds, so a wrong value would end the run or distort a metric.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rlvr.episode import Episode, StopReason
from rlvr.errors import EnvError
from rlvr.mdp.records import load_step_results, tool_spec_from_json, turn_from_json
from rlvr.mdp.sessions import load_recorded_transcript
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.runs.conversation_stats import count_turns_and_calls
from rlvr.task import MAX_REWARD, Task, Verdict

MAX_TEXT_CHARACTERS = 1_000_000
"""The longest text, reason or error of an episode."""
MAX_COMPONENTS = 10_000
"""The most partial scores of a verdict. The metrics of a step with so many take a second."""
MAX_TURNS = 1_000_000
"""The most turns of an episode whose environment is not known here."""
MIN_LOGPROB = -1e4
"""The smallest log-probability of a token that can have been sampled."""
MAX_REWARD_ROUNDING = 1e-6
TRUNCATION_REASONS = ("turns", "tokens", "turn", "window", "time")
READING_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""The exceptions of the readers of a session record that is not one."""
SESSION_KEYS = frozenset(
    ("seed", "tools", "initial_messages", "first_request", "turns", "step_results", "verdict", "answer", "values", "files")
)


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """The limits that the environment and the settings of a run give its episodes.

    >>> EpisodeLimits(vocab_size=100).max_turns
    1000000
    """

    vocab_size: float = math.inf
    max_new_tokens: float = math.inf
    max_length: float = math.inf
    max_turns: int = MAX_TURNS
    may_count_own_tokens: bool = True
    """Whether the policy may be an endpoint with another tokenizer, for which the token limits hold in its own tokens."""
    has_bounded_score: bool = False
    """Whether every score lies between 0 and 1, and every step reward between -1 and 1."""
    render_prompt: Callable[[Task], list[int]] | None = None
    """Renders the prompt of a task; None: prompts are not known here."""
    stop_ids: frozenset[int] | None = None
    """The token ids of which one ends an answer; None: other things end it too, such as a reply, a call or an endpoint."""

    @classmethod
    def from_mdp(cls, mdp: TokenMDP, *, may_count_own_tokens: bool) -> EpisodeLimits:
        """Return the limits of this MDP. Prompts are known if they do not depend on a session."""

        def render_prompt(task: Task) -> list[int]:
            state = mdp.create_state_without_prompt(task)
            mdp.render_prompt(state)
            return state.tokens

        return cls(
            mdp.tokenizer.vocab_size,
            mdp.max_new_tokens,
            mdp.max_length,
            mdp.environment.max_turns,
            may_count_own_tokens,
            mdp.environment.verifier.has_bounded_score,
            None if mdp.has_sessions else render_prompt,
            None if mdp.is_interactive or may_count_own_tokens else frozenset(mdp.tokenizer.stop_ids),
        )

    def render_prompts(self, tasks: Sequence[Task]) -> dict[str, list[int]]:
        """Return the token ids of each task's prompt, by the id of the task.

        Prompts that cannot be rendered are left out: their episodes fail.
        """
        found = dict[str, list[int]]()
        if self.render_prompt is None:
            return found
        for name, task in {task.id: task for task in tasks}.items():
            with suppress(EnvError):
                found[name] = self.render_prompt(task)
        return found


def find_invalid_text(episode: Episode) -> str:
    """Return which field of an episode should be a text and is none, or is too long; '' if all are valid."""
    reason = episode.verdict.reason if episode.verdict is not None else ""
    for name, text in (("text", episode.text), ("error", episode.error), ("reason", reason)):
        if not _is_text(text):
            return f"its {name} is not a text of at most {MAX_TEXT_CHARACTERS} characters"
    return ""


def cut_texts(episode: Episode) -> Episode:
    """Return an episode with the beginnings of its texts that are too long."""
    if not find_invalid_text(episode):
        return episode
    verdict = episode.verdict
    if verdict is not None:
        verdict = replace(verdict, reason=verdict.reason[:MAX_TEXT_CHARACTERS])
    return replace(episode, text=episode.text[:MAX_TEXT_CHARACTERS], error=episode.error[:MAX_TEXT_CHARACTERS], verdict=verdict)


def find_wrong_size(episode: Episode, limits: EpisodeLimits) -> str:
    """Return which limit on turns or tokens an episode exceeds, or that its turns are not those of its tokens; '' if there is nothing."""
    failed, spans = episode.stop_reason is StopReason.FAILED, episode.turn_spans
    if type(episode.turns) is not int or not 0 <= episode.turns <= limits.max_turns:
        return f"its number of turns is not a whole number from 0 to {limits.max_turns}"
    if not failed and len(spans) > episode.turns:
        return f"its tokens are of {len(spans)} turns of the policy, and it says {episode.turns}"
    if not failed and limits.max_turns == 1 and not all(episode.action_mask[episode.prompt_length :]):
        return "after its prompt there are tokens that the policy did not generate, and there is only one turn"
    if "usage" in episode.meta:
        return "" if limits.may_count_own_tokens else "the tokens are counted as by an endpoint, and the policy is none"
    if not failed and episode.turns > episode.num_policy_tokens:
        return f"it has {episode.turns} turns and {episode.num_policy_tokens} tokens of the policy"
    if episode.num_policy_tokens > limits.max_new_tokens:
        return f"it has {episode.num_policy_tokens} tokens of the policy, and {limits.max_new_tokens} are allowed"
    if (longest := max(sum(end - start for start, end in branch) for branch in episode.branches)) > limits.max_length:
        return f"it has {longest} tokens in a branch, and {limits.max_length} are allowed"
    return ""


def find_contradictory_end(episode: Episode, limits: EpisodeLimits) -> str:
    """Return what contradicts the way in which an episode has ended; '' if nothing does. A failure may come after any end."""
    if episode.stop_reason is StopReason.FAILED:
        return ""
    end, is_cut = episode.stop_reason.value, episode.stop_reason is StopReason.TRUNCATED
    if episode.meta.get("finish") != end:
        return f"it ended as {end}, and meta['finish'] is {episode.meta.get('finish')!r:.40}"
    if ("truncated" in episode.meta) != is_cut:
        return f"it ended as {end}, and meta['truncated'] is {episode.meta.get('truncated')!r:.40}"
    if episode.error:
        return "it has a score and an error"
    if limits.stop_ids is None:
        return ""
    if not limits.stop_ids.isdisjoint(episode.tokens[episode.prompt_length : -1]):
        return "it has tokens after the one that ends an answer"
    if (episode.tokens[-1] in limits.stop_ids) == is_cut:
        return f"it ended as {end}, and its last token is {episode.tokens[-1]}"
    return ""


def find_wrong_prompt(episode: Episode, prompt: Sequence[int] | None) -> str:
    """Return what is wrong with the prompt of an episode, if it is known; '' if nothing is. A failed episode may lack its end."""
    if prompt is None:
        return ""
    length = len(prompt)
    if episode.tokens[:length] != list(prompt[: len(episode.tokens)]) or any(episode.action_mask[:length]):
        return "its prompt is not that of its task"
    if episode.stop_reason is not StopReason.FAILED and episode.prompt_length != length:
        return f"its prompt has {episode.prompt_length} tokens, and that of its task has {length}"
    return ""


def find_wrong_components(verdict: Verdict) -> str:
    """Return what is wrong with the partial scores of an episode, each of which becomes a metric; '' if nothing is."""
    count = len(verdict.components)
    return f"its verdict has {count} components, and {MAX_COMPONENTS} are allowed" if count > MAX_COMPONENTS else ""


def find_wrong_rewards(episode: Episode, verdict: Verdict, limits: EpisodeLimits) -> str:
    """Say how the rewards of an episode contradict the score or the step rewards of its verdict; "" if they agree."""
    low, high = (0.0, 1.0) if limits.has_bounded_score else (-MAX_REWARD, MAX_REWARD)
    if verdict.score is not None and not low <= verdict.score <= high:
        return f"its score is {verdict.score:g}, outside of {low:g} to {high:g}"
    paid = math.fsum(episode.rewards)
    if not abs(paid - (verdict.score or 0.0)) <= MAX_REWARD_ROUNDING:
        return f"its rewards add up to {paid:g}, and its score is {verdict.score}"
    places = [place for place, reward in enumerate(episode.rewards) if reward]
    if not verdict.step_rewards:
        spans = episode.turn_spans
        return "" if not places or places == [spans[-1][1] - 1] else "it has no step rewards, and its reward is not on its last token"
    if any(abs(part.amount) > high + MAX_REWARD_ROUNDING for part in verdict.step_rewards):
        return f"a step reward is above {high:g}"
    if not all(-episode.turns <= part.turn < episode.turns for part in verdict.step_rewards):
        return f"a step reward is for a turn beyond its {episode.turns}"
    if len(places) > len(verdict.step_rewards):
        return f"{len(places)} tokens have rewards, and there are {len(verdict.step_rewards)} step rewards"
    return _find_wrong_step_sum(episode, verdict)


def _find_wrong_step_sum(episode: Episode, verdict: Verdict) -> str:
    """Return which turn was not paid its step rewards. Turns whose tokens cannot be told apart are taken together."""
    spans = episode.turn_spans
    if len(spans) != episode.turns:
        spans = [(0, len(episode.tokens))]
    earned_by_turn = defaultdict[int, list[float]](list)
    for part in verdict.step_rewards:
        earned_by_turn[part.turn % len(spans)].append(part.amount)
    for turn, (begin, end) in enumerate(spans):
        earned = earned_by_turn[turn]
        paid, most = episode.rewards[begin:end], math.fsum(map(abs, earned)) + MAX_REWARD_ROUNDING
        if abs(math.fsum(paid) - math.fsum(earned)) > MAX_REWARD_ROUNDING or any(abs(reward) > most for reward in paid):
            return f"the rewards of turn {turn} are not its step rewards"
    return ""


def find_wrong_meta(request: RolloutRequest, episode: Episode, policy_version: int) -> str:
    """Return which key of `Episode.meta` no rollout of this request writes, or not with this value; '' if there is none."""
    checks: Mapping[str, Callable[[Any], bool]] = {
        "finish": lambda value: value in [end.value for end in StopReason],
        "truncated": lambda value: value in TRUNCATION_REASONS,
        "trouble": _is_text,
        "malformed_turns": lambda value: _is_turn_list(value, episode.turns),
        "masked_turns": lambda value: _is_turn_list(value, episode.turns),
        "session": lambda value: is_session_record(value, episode.turns),
        "usage": lambda value: _is_list(value, _is_count) and len(value) == 2,
        "reasoning": lambda value: _is_list(value, _is_text) and len(value) == episode.turns,
        "versions": lambda value: _are_versions(value, request, episode, policy_version),
    }
    for name, value in episode.meta.items():
        if name in request.meta:
            continue  # compared with the request
        if name not in checks:
            return f"its meta has {name!r:.40}, which no rollout writes"
        if not checks[name](value):
            return f"meta[{name!r}] is not what a rollout writes"
    return ""


def is_session_record(record: object, turns: int) -> bool:
    """Return whether a value is the record of a session of so many turns, which all readers can read.

    >>> is_session_record({"seed": 1, "turns": [{"text": "4"}], "step_results": [], "answer": "4"}, 1)
    True
    """
    if not isinstance(record, dict) or not record.keys() <= SESSION_KEYS or type(record.get("seed", 0)) is not int:
        return False
    try:
        return _has_session_types(record, turns) and _is_readable(record, turns)
    except READING_ERRORS:
        return False


def _has_session_types(record: Mapping[str, Any], turns: int) -> bool:
    said, heard = record["turns"], record["step_results"]
    whole = _is_list(said, _is_turn) and len(said) == turns and _is_list(heard, _is_step_result) and len(heard) <= turns
    return (
        whole
        and _is_list(record.get("tools", []), lambda row: _has_texts(row, "name", "description") and isinstance(row["parameters"], dict))
        and _is_list(record.get("initial_messages", []), lambda row: _has_texts(row, "role", "content"))
        and isinstance(record.get("answer", ""), str)
        and isinstance(record.get("values", {}), dict)
        and isinstance(record.get("files", {}), dict)
    )


def _is_readable(record: Mapping[str, Any], turns: int) -> bool:
    """Return whether the readers of a record get through; they raise if they do not."""
    _ = [turn_from_json(row).has_malformed_call for row in record.get("turns", ())]
    _ = load_step_results(record)
    _ = [tool_spec_from_json(row) for row in record.get("tools", ())]
    if "answer" in record or "verdict" in record:
        load_recorded_transcript(record)
    return math.isfinite(count_turns_and_calls(turns, record).seconds)


def _is_turn(row: Any) -> bool:
    texts = all(isinstance(row.get(name, ""), str) for name in ("content", "reasoning"))
    return (
        _has_texts(row, "text")
        and texts
        and row.get("finish_reason", "stop") in ("stop", "length")
        and _is_list(row.get("calls", []), _is_call)
    )


def _is_call(row: Any) -> bool:
    texts = all(isinstance(row.get(name, ""), str) for name in ("status", "raw", "error_detail"))
    return _has_texts(row, "id", "name") and texts and isinstance(row.get("arguments"), dict | None)


def _is_step_result(row: Any) -> bool:
    return _is_list(row["messages"], lambda said: _has_texts(said, "role", "content")) and _is_list(row.get("tool_results", []), _is_result)


def _is_result(row: Any) -> bool:
    duration_s = row.get("duration_s", 0.0)
    return _has_texts(row, "call", "text") and not isinstance(duration_s, str) and 0 <= duration_s < math.inf


def _has_texts(row: Any, *names: str) -> bool:
    return isinstance(row, dict) and all(isinstance(row[name], str) for name in names)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_list(value: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(fits(item) for item in value)


def _is_turn_list(value: Any, turns: int) -> bool:
    return _is_list(value, lambda turn: _is_count(turn) and turn < turns) and sorted(set(value)) == list(value)


def _are_versions(value: Any, request: RolloutRequest, episode: Episode, policy_version: int) -> bool:
    """Return whether spans of versions are those of the partial completion, and the rest of the policy's tokens is of the asked version."""
    if request.partial_completion is None or not _is_list(value, lambda span: _is_list(span, lambda n: type(n) is int) and len(span) == 2):
        return False
    before = request.partial_completion.version_spans
    added = episode.num_policy_tokens - sum(count for _, count in before)
    if before and before[-1][0] == policy_version:
        expected = [*before[:-1], [policy_version, before[-1][1] + added]]
    else:
        expected = [*before, [policy_version, added]] if added else list(before)
    return added >= 0 and [list(span) for span in value] == [list(span) for span in expected]
