"""What rollouts of all kinds of environments write passes the checks of the driver, and what they cannot have written does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlvr import make_env
from rlvr.cluster.checks.episode_fields import EpisodeLimits, is_session_record
from rlvr.cluster.rollout_tasks import check_task_episodes
from rlvr.contracts import Environment, SamplingParams
from rlvr.episode import Episode
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.rollout.episode_encoding import CorruptData, EncodedEpisodes, decode_episodes, encode_episodes
from rlvr.rollout.rollout import Rollout
from rlvr.rollout.rollout_request import PartialCompletion, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from tests.tools.desks import Desks

TOK = ByteTokenizer()


def sample(environment: Environment, mdp: TokenMDP, **sampler_settings: Any) -> tuple[list[RolloutRequest], list[Episode]]:
    """Two completions of two tasks, as they arrive from a worker."""
    sampler = ScriptedSampler(**sampler_settings)
    sampler.setup(environment, TOK)
    draws = [RolloutRequest(environment.task("train", i), f"1:{i}", 10 * i + k, {"index": i}) for i in range(2) for k in range(2)]
    with Rollout(mdp, sampler=sampler) as rollout:
        found = rollout.collect(draws, SamplingParams(stop_ids=TOK.stop_ids), version=3)
    [arrived] = decode_episodes(EncodedEpisodes.from_bytes(encode_episodes([found]).to_bytes()))
    return draws, arrived


def check(mdp: TokenMDP, draws: Sequence[RolloutRequest], episodes: Sequence[Episode]) -> None:
    limits = EpisodeLimits.from_mdp(mdp, may_count_own_tokens=False)
    check_task_episodes(
        "0:0", list(draws), episodes, policy_version=3, limits=limits, prompts=limits.render_prompts([d.task for d in draws])
    )


@pytest.mark.parametrize("answer", ["gold", "random"])
@pytest.mark.parametrize("name", ["arithmetic", "guess_number", "mastermind", "calculator_sums", "copy_reverse"])
def test_what_honest_rollouts_write_passes(name: str, answer: str) -> None:
    environment = make_env(name)
    mdp = TokenMDP(environment, TOK, max_new_tokens=64)
    draws, episodes = sample(environment, mdp, answer=answer)
    check(mdp, draws, episodes)
    assert any(episode.is_scored for episode in episodes)


def test_the_record_of_a_session_with_tools_passes_and_no_part_of_it_may_be_of_another_type() -> None:
    desks = Desks()
    mdp = TokenMDP(desks, TOK)
    draws, episodes = sample(desks, mdp, answers=["!add 3", '!add {"amount": "x"}', "!add 4", "done"])
    check(mdp, draws, episodes)
    record, turns = episodes[0].meta["session"], episodes[0].turns
    assert turns > 2 and is_session_record(record, turns) and not is_session_record(record, turns + 1)
    values: tuple[Any, ...] = (5, [5], [[]], {"a": []}, [{}], None)
    for name in record:
        for value in values:
            if isinstance(value, int) and name == "seed":
                continue
            refused = not is_session_record(record | {name: value}, turns)
            assert refused or (name == "values" and isinstance(value, dict)), (name, value)


@pytest.mark.parametrize("begin", [-1, 1])
def test_where_the_prompt_ends_is_not_for_the_worker_to_say(begin: int) -> None:
    """One token of the prompt marked as the policy's, or one of the policy's as the prompt's."""
    environment = make_env("arithmetic")
    mdp = TokenMDP(environment, TOK, max_new_tokens=8)
    draws, episodes = sample(environment, mdp, answer="gold")
    first = episodes[0]
    place = first.prompt_length + begin
    mask = [False] * place + [True] * (len(first.tokens) - place)
    logprobs = [value if acted else 0.0 for value, acted in zip(first.logprobs, mask, strict=True)]
    with pytest.raises(CorruptData, match="prompt"):
        check(mdp, draws, [replace(first, action_mask=mask, logprobs=logprobs), *episodes[1:]])


def test_the_limits_are_those_of_the_environment_and_its_settings() -> None:
    environment = make_env("guess_number")
    mdp = TokenMDP(environment, TOK, max_new_tokens=64)
    draws, episodes = sample(environment, mdp, answer="random")
    check(mdp, draws, episodes)
    for wrong in (
        replace(episodes[0], turns=environment.max_turns + 1),
        replace(episodes[0], meta={**episodes[0].meta, "usage": [1, 1]}),
    ):
        with pytest.raises(CorruptData, match="cannot be one"):
            check(mdp, draws, [wrong, *episodes[1:]])
    shorter = TokenMDP(environment, TOK, max_new_tokens=1)
    with pytest.raises(CorruptData, match="tokens of the policy, and 1 are allowed"):
        check(shorter, draws, episodes)


@pytest.mark.parametrize(
    ("versions", "fits"),
    [
        ([[1, 1], [3, 2]], True),
        ([[1, 1], [3, 1]], False),
        ([[1, 1], [4, 2]], False),
        ([[-(10**12), 1], [3, 2]], False),
        ([[1, 3]], False),
        ([[1, 1], [2, 1], [3, 1]], False),
        ("xx", False),
        (5, False),
    ],
)
def test_the_versions_of_a_continued_completion_are_those_it_began_with_and_the_one_that_was_asked(versions: Any, fits: bool) -> None:
    environment = make_env("arithmetic")
    mdp = TokenMDP(environment, TOK, max_new_tokens=8)
    draws, episodes = sample(environment, mdp, answers=["12"])
    [draw], [episode] = draws[:1], episodes[:1]
    begin = episode.prompt_length
    assert episode.num_policy_tokens == 3
    begun = replace(
        draw, partial_completion=PartialCompletion(episode.tokens[begin : begin + 1], episode.logprobs[begin : begin + 1], [[1, 1]])
    )
    continued = replace(episode, meta={**episode.meta, "versions": versions})
    if fits:
        check(mdp, [begun], [continued])
        return
    with pytest.raises(CorruptData):
        check(mdp, [begun], [continued])
