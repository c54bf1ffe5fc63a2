"""Limits of a turn and of a conversation's time: what is cut, what continues, and what is recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.contracts import SamplingParams
from rlvr.episode import StopReason
from rlvr.errors import ConfigError
from rlvr.evaluation.evaluate import evaluate
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.rollout.replay import find_mismatch
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Task
from tests.fixtures.endpoint import endpoint
from tests.fixtures.worlds import DIGITS, TOKENS, Sums, Talk

TOK = CharTokenizer(DIGITS)
STOPS = SamplingParams(stop_ids=TOK.stop_ids)


class Slow(Talk):
    """Takes a while for its second reply."""

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        time.sleep(0.3 * (len(completions) == 2))
        return "1"


def talked(environment: Any, answers: list[str], *, episode_timeout_s: float | None = None, **limits: Any) -> Any:
    sampler = ScriptedSampler(answers=answers)
    sampler.setup(environment, TOK)
    with Rollout(TokenMDP(environment, TOK, **limits), sampler=sampler, episode_timeout_s=episode_timeout_s) as rollout:
        (episode,) = rollout.collect([RolloutRequest(environment.task("train", 3), "g", 1, {"index": 3})], STOPS)
    return episode


def stepped(environment: Any, episode: Any, **limits: Any) -> str:
    env = TokenEnv(env=environment, tokenizer=TOKENS, **limits)
    timed = episode.meta.get("truncated") == "time"
    return find_mismatch(
        env, "train", 3, episode.tokens, episode.action_mask, episode.stop_reason.value, episode.reward, ended_by_time=timed
    )


def test_a_turn_that_is_too_long_is_cut_and_the_conversation_continues() -> None:
    episode = talked(Talk(), ["12345", "27"], max_turn_tokens=3)
    assert (episode.stop_reason, episode.turns, episode.text) == (StopReason.TERMINATED, 2, "12327")
    own = "".join("x" if acted else "." for acted in episode.action_mask)
    assert own.strip(".").startswith("xxx.") and own.endswith("xxx")  # 123, then what the environment wrote, then 27 with its end
    assert episode.tokens[own.index("xxx") + 3] == TOK.eos_id, "the cut turn is closed as the model would have, and not trained on"
    assert stepped(Talk(), episode, max_turn_tokens=3) == ""
    assert talked(Talk(), ["123456789", "27"]).turns == 1, "without the limit the first turn takes all tokens"


def test_the_limits_of_the_turn_and_of_the_whole_answer_hold_together() -> None:
    episode = talked(Talk(), ["11111", "11111", "11111"], max_turn_tokens=4, max_new_tokens=6)
    assert (sum(episode.action_mask), episode.stop_reason, episode.meta["truncated"], episode.turns) == (
        6,
        StopReason.TRUNCATED,
        "tokens",
        2,
    )
    assert stepped(Talk(), episode, max_turn_tokens=4, max_new_tokens=6) == ""


def test_an_answer_that_is_cut_in_its_turn_is_truncated() -> None:
    for environment, answers in ((Sums(), ["123"]), (Talk(), ["1237"])):  # one takes no part, the other ends with the 7
        limit = 2 if isinstance(environment, Sums) else 4
        episode = talked(environment, answers, max_turn_tokens=limit)
        assert (episode.stop_reason, episode.meta["truncated"], episode.turns) == (StopReason.TRUNCATED, "turn", 1)
        assert stepped(type(environment)(), episode, max_turn_tokens=limit) == ""


def test_a_conversation_ends_with_its_turn_when_its_time_is_up() -> None:
    long = talked(Slow(), ["1", "2", "3"])
    short = talked(Slow(), ["1", "2", "3"], episode_timeout_s=0.2)
    assert (long.turns, long.meta["truncated"]) == (3, "turns")
    assert (short.turns, short.meta["truncated"], short.stop_reason, short.text) == (2, "time", StopReason.TRUNCATED, "12"), (
        "judged as it is"
    )
    assert short.is_scored and stepped(Slow(), short) == ""
    wrong = TokenEnv(env=Slow(), tokenizer=TOKENS)
    other = [*short.tokens[:-2], 5, short.tokens[-1]]
    assert find_mismatch(wrong, "train", 4, short.tokens, short.action_mask, "truncated", 0.0, ended_by_time=True).startswith(
        "the prompt differs"
    )
    assert find_mismatch(wrong, "train", 3, other, [*short.action_mask[:-2], False, True], "truncated", 0.0, ended_by_time=True)


def test_an_endpoint_s_turn_that_is_cut_is_heard() -> None:
    def talks(path: str, body: dict[str, Any], before: int) -> Any:
        text, reason = [("123", "length"), ("27", "stop")][before]
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return 200, {"choices": [choice], "usage": {"completion_tokens": len(text)}}

    with endpoint(talks) as seen:
        report = evaluate(Talk(), f"openai:{seen.url}/v1#m", tasks=1, max_turn_tokens=3)
    assert [body["max_tokens"] for _, body in seen.asked] == [3, 3]
    assert [message["content"] for message in seen.asked[1][1]["messages"]][1:] == ["123", "6"]
    summary = report.envs["Talk"]
    assert (summary.turns, summary.truncated, summary.tokens) == (2, 0, 5)


def test_waiting_for_other_requests_is_not_the_conversation_s_time() -> None:
    def talks(path: str, body: dict[str, Any], before: int) -> Any:
        time.sleep(0.08)
        return 200, {"choices": [{"message": {"content": "1"}, "finish_reason": "stop"}]}

    with endpoint(talks) as seen:  # eight conversations of three turns, one request at a time: 2 s, of which each has 0.25 s
        report = evaluate(Talk(), f"openai:{seen.url}/v1#m", tasks=8, concurrency=1, episode_timeout_s=1.0)
    assert report.envs["Talk"].truncated_by == {"turns": 8}


def test_a_reply_that_takes_too_long_leaves_its_sample_without_a_score() -> None:
    def talks(path: str, body: dict[str, Any], before: int) -> Any:
        return 200, {"choices": [{"message": {"content": "1"}, "finish_reason": "stop"}]}

    with endpoint(talks) as seen:
        summary = evaluate(Slow(), f"openai:{seen.url}/v1#m", tasks=1, call_timeout_s=0.1).envs["Slow"]
    assert summary.unscored == 1 and list(summary.reasons) == ["Slow.reply gave nothing within 0.1 s"]


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_turn_tokens is 0"):
        evaluate(Talk(), "scripted:noop", tasks=1, max_turn_tokens=0)
    with pytest.raises(ConfigError, match="episode_timeout_s is 0"):
        Rollout(TokenMDP(Sums(), TOK), sampler=ScriptedSampler(), episode_timeout_s=0)
