"""Conversations with tools are stored whole, and replayed and judged from the record without calling anything again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlvr.contracts import SamplingParams, Transcript
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.sessions import load_recorded_transcript
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.mdp.vector import TokenVectorEnv
from rlvr.rollout.replay import find_mismatch
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.runs.run_log import episode_to_json
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.turns import CallStatus
from tests.tools.desks import Desks

TOK = ByteTokenizer()
SAID = ["!add 3", '!add {"amount": "x"}', "!add 4", "done"]


def recorded(desks: Desks) -> dict[str, Any]:
    sampler = ScriptedSampler(answers=SAID)
    sampler.setup(desks, TOK)
    draw = RolloutRequest(desks.task("train", 5), "g", 0, {"split": "train", "index": 5})
    with Rollout(TokenMDP(desks, TOK), sampler=sampler) as rollout:
        (episode,) = rollout.collect([draw], SamplingParams(stop_ids=TOK.stop_ids))
    row: dict[str, Any] = json.loads(json.dumps(episode_to_json(1, episode, [])))
    return row


def replayed(row: dict[str, Any], desks: Desks) -> str:
    env = TokenEnv(env=desks, tokenizer=TOK)
    try:
        return find_mismatch(env, "train", 5, row["tokens"], row["action_mask"], row["stop_reason"], row["reward"], row["session"])
    finally:
        env.close()


def test_a_recorded_conversation_is_replayed_without_its_world() -> None:
    row, again = recorded(Desks()), Desks()
    assert row["reward"] == 1.0 and replayed(row, again) == ""
    assert not again.opened  # nothing was called again


@pytest.mark.parametrize("part", ["tools", "opening", "step_results"])
def test_a_record_that_was_changed_is_noticed(part: str) -> None:
    row = recorded(Desks())
    if part == "tools":
        row["session"]["tools"] = row["session"]["tools"][:1]
    elif part == "opening":
        row["session"]["initial_messages"] = []
    else:
        row["session"]["step_results"][0]["messages"][0]["content"] = "9"
    assert "differ" in replayed(row, Desks())


def test_the_record_holds_all_that_a_verifier_may_look_at() -> None:
    desks = Desks()
    ending = load_recorded_transcript(recorded(desks)["session"])
    assert isinstance(ending, Transcript) and ending.artifacts == {"total": 12} and ending.answer == "done"
    assert [call.status for turn in ending.turns for call in turn.calls] == [CallStatus.OK, CallStatus.BAD_ARGUMENTS, CallStatus.OK]
    results = [result for heard in ending.step_results for result in heard.tool_results]
    assert [(result.text, result.ok, result.truncated) for result in results][::2] == [("8", True, False), ("12", True, False)]
    assert results[0].duration_s > 0 and not results[1].ok
    assert desks.verifier.verify_transcript(desks.task("train", 5), ending).score == 1.0


def test_stepping_and_vectors_drive_the_same_sessions() -> None:
    desks = Desks()
    tokens = [token for text in SAID for token in [*TOK.encode(text), TOK.eos_id]]
    envs = TokenVectorEnv(2, env=desks, tokenizer=TOK, obs="ids")
    try:
        envs.reset(seed=[7, 7], options={"index": 5})
        for token in tokens:
            _, rewards, ended, _, infos = envs.step([token, token])
        assert list(rewards) == [1.0, 1.0] and list(ended) == [True, True] and list(infos["turns"]) == [4, 4]
    finally:
        envs.close()
    assert desks.settled and len(desks.opened) == 2
