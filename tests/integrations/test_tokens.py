"""Conversations in tokens: the same as a rollout's, whatever samples."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlvr.contracts import Completion, Request, SamplingParams
from rlvr.episode import StopReason
from rlvr.integrations.tokens import TokenConversationRunner, make_completion, make_token_conversation_runner, make_token_row
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import HFTokenizer
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault
from rlvr.turns import Call
from tests.fixtures.worlds import First, Raises
from tests.integrations.worlds import Counts, Engine, Hangs, Twice, Watched, tokenizer, wire

LONGEST = 1024
GOLD: dict[str, tuple[Any, list[str | Call]]] = {
    "first": (First(), ["3"]),
    "twice": (Twice(), ["7", "7"]),
    "counts": (Counts(), [Call("0.0", "add", {"number": 7}), "7"]),
}


def play(player: TokenConversationRunner, engine: Engine, index: int = 7) -> Any:
    async def generate(request: Request) -> Completion:
        return make_completion(*engine.next(request.prompt), player.mdp.tokenizer.stop_ids)

    task = player.mdp.environment.task("train", index)
    episode = asyncio.run(player.run_conversation(RolloutRequest(task, task.id, 0), generate))
    return make_token_row(episode, player.mdp.tokenizer.eos_id), episode


@pytest.mark.parametrize("name", GOLD)
def test_a_played_conversation_is_that_of_a_rollout(name: str) -> None:
    env, turns = GOLD[name]
    player, engine = make_token_conversation_runner(env, tokenizer(), max_length=LONGEST), Engine(wire(env, turns))
    row, episode = play(player, engine)
    mdp = TokenMDP(env, HFTokenizer(tokenizer()), max_length=LONGEST)
    texts = [tokenizer().decode(turn[:-1]) for turn in engine.turns]
    sampler = ScriptedSampler(answers=texts)
    sampler.setup(env, mdp.tokenizer)
    with Rollout(mdp, sampler=sampler) as rollout:
        (expected,) = rollout.collect([RolloutRequest(env.task("train", 7), "g", 0)], SamplingParams(stop_ids=mdp.tokenizer.stop_ids))
    assert (row.prompt_ids + row.response_ids, row.verdict) == (expected.tokens, expected.verdict)
    assert [bool(own) for own in row.action_mask] == expected.action_mask[len(row.prompt_ids) :]
    assert row.verdict.score == (1.0 if name != "first" else float(env.task("train", 7).reference == "3"))
    said = [token for token, own in zip(row.response_ids, row.action_mask, strict=True) if own]
    assert said == [token for turn in engine.turns[: row.turns] for token in turn]
    assert all((p != 0.0) == bool(own) for p, own in zip(row.logprobs, row.action_mask, strict=True))
    assert engine.asked[0] == row.prompt_ids and episode.stop_reason is StopReason.TERMINATED
    player.close()
    assert not Watched.alive


@pytest.mark.parametrize(
    ("env", "engine", "words"),
    [
        (Counts(), Engine([[]]), "returned no token"),
        (Counts(), Engine([], fails=True), "ConnectionError: the engine is gone"),
        (Hangs(), Engine(wire(First(), ["7"])), "returned nothing within 0.2 s"),
        (First(verifier=Raises()), Engine(wire(First(), ["7"])), "the judge fell over"),
    ],
)
def test_what_fails_has_no_score_and_leaves_nothing_open(env: Any, engine: Engine, words: str) -> None:
    player = make_token_conversation_runner(env, tokenizer(), max_length=LONGEST, call_timeout_s=0.2)
    row, episode = play(player, engine)
    assert (row.verdict.score, row.verdict.fault, episode.stop_reason) == (None, Fault.INFRA, StopReason.FAILED)
    assert words in row.verdict.reason
    assert row.response_ids, "trainers take no empty answers"
    player.close()
    assert not Watched.alive


def test_a_call_that_alone_breaks_its_tool_is_the_answers_own_zero() -> None:
    player = make_token_conversation_runner(Counts(), tokenizer(), max_length=LONGEST)
    row, _ = play(player, Engine(wire(Counts(), [Call("0.0", "add", {"number": 999})])))
    assert (row.verdict.score, row.verdict.fault) == (0.0, Fault.ANSWER) and "the counter fell over" in row.verdict.reason
    player.close()
    assert not Watched.alive


def test_a_conversation_that_is_cancelled_closes_its_session() -> None:
    player = make_token_conversation_runner(Counts(), tokenizer())
    task = player.mdp.environment.task("train", 7)

    async def never(request: Request) -> Completion:
        await asyncio.sleep(60)
        raise AssertionError

    async def cancelled() -> None:
        running = asyncio.create_task(player.run_conversation(RolloutRequest(task, "g", 0), never))
        while not Watched.alive:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(cancelled(), 10))
    player.close()
    assert not Watched.alive


def test_log_probabilities_of_another_length_are_refused() -> None:
    assert make_completion([7, 2], [-0.1], {2}).finish_reason == "error"
    assert make_completion([7], None, {2}).finish_reason == "length"
