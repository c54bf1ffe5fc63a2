"""Rewards by turn and by token: paid where they were earned, carried to returns and to GAE, stored, replayed, and summed up by groups."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rlvr.contracts import Verifier
from rlvr.episode import Episode
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.rollout.replay import replay_recorded_episodes
from rlvr.runs.run_log import episode_to_json, read_jsonl
from rlvr.task import Fault, StepReward, Task, Verdict
from rlvr.training.task_sampling.offline_dataset import episode_from_json
from rlvr.training.train import train
from tests.fixtures.learning import factory
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import DIGITS, TOKENS, Sums, Talk

TOKENIZER = CharTokenizer(DIGITS)


class Tally(Verifier):
    """The score is the share of nines among the first eight characters, each earned when it is said."""

    def verify(self, task: Task, answer: str) -> Verdict:
        nines = [i for i, c in enumerate(answer[:8]) if c == "9"]
        return Verdict(len(nines) / 8, "nines", step_rewards=[StepReward(0.125, characters=i + 1) for i in nines])


class Nines(Sums):
    """One turn, paid by the character."""

    max_new_tokens = 8

    def __init__(self, *, verifier: Verifier | None = None) -> None:
        super().__init__(below=5, verifier=verifier or Tally())


class Whole(Verifier):
    """The share of nines, and nothing about when."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(min(1.0, answer.count("9") / 8), "nines")


class PaidTalk(Talk):
    """Up to three turns, each paid for its own nines."""

    def __init__(self, *, shift: int = 0, verifier: Verifier | None = None) -> None:
        super().__init__(verifier=verifier or Whole())
        self.shift = shift

    def gold(self, task: Task) -> str:
        return "9"  # in every turn

    def step_rewards(self, task: Task, completions: Sequence[str], verdict: Verdict) -> Sequence[StepReward]:
        return [StepReward(turn.count("9") / 8, turn=i + self.shift) for i, turn in enumerate(completions)]


def played(environment: Any, turns: Sequence[str], *, cut: bool = False) -> Episode:
    mdp = TokenMDP(environment, TOKENIZER)
    state = mdp.start_conversation(environment.task("train", 0))
    for number, text in enumerate(turns):
        for token in TOKENIZER.encode(text) + ([] if cut and number == len(turns) - 1 else [TOKENIZER.eos_id]):
            if state.stop_reason is None:
                mdp.step_token(state, token)
    assert state.stop_reason is not None
    return mdp.build_episode(state, mdp.verify(state), group="g")


@given(st.text("39", min_size=1, max_size=8))
def test_a_part_is_paid_on_the_token_that_completed_it(text: str) -> None:
    episode = played(Nines(), [text])
    said, paid = "", []
    for token, own in zip(episode.tokens, episode.action_mask, strict=True):
        fresh = TOKENIZER.decode([token]) if own else ""
        said += fresh
        paid.append(0.125 if fresh == "9" else 0.0)
    assert episode.rewards == paid and episode.reward == text.count("9") / 8 and said == text


def test_a_turn_is_paid_on_its_last_token() -> None:
    episode = played(PaidTalk(), ["99", "3", "97"])
    stops = [i for i, token in enumerate(episode.tokens) if token == TOKENIZER.eos_id]
    assert episode.turns == 3 and [(i, r) for i, r in enumerate(episode.rewards) if r] == [(stops[0], 0.25), (stops[2], 0.125)]
    cut = played(PaidTalk(), ["9", "39999999"], cut=True)
    assert cut.stop_reason == "truncated" and cut.rewards[-1] == 0.75 and cut.reward == 0.875


def dense() -> list[Episode]:
    return [played(PaidTalk(), turns) for turns in (["99", "3", "97"], ["9", "37"], ["7"], ["3", "97"])]


def test_returns_carry_what_is_earned_later_and_nothing_earlier() -> None:
    group = dense()
    rows = factory("reinforce_pp")(whiten="none", beta=0.0, gamma=0.5).compute_advantages([group])[0]
    for episode, row in zip(group, rows, strict=True):
        own = [t for t, flag in enumerate(episode.action_mask) if flag]
        for k, t in enumerate(own):  # only the policy's tokens are steps
            assert row[t] == pytest.approx(sum(0.5**j * episode.rewards[later] for j, later in enumerate(own[k:])), abs=1e-12)


def test_gae_carries_what_is_earned_in_each_turn() -> None:
    group, gamma, lam = dense(), 0.9, 0.7
    values = [[0.01 * (t % 7) for t in range(len(e.tokens))] for e in group]
    rows = factory("ppo")(whiten="none", beta=0.0, gamma=gamma, lam=lam).compute_advantages([group], values=[values])[0]
    for episode, seen, row in zip(group, values, rows, strict=True):
        own = [t for t, flag in enumerate(episode.action_mask) if flag]
        after = [*(seen[t] for t in own[1:]), 0.0]
        surprises = [episode.rewards[t] + gamma * v - seen[t] for t, v in zip(own, after, strict=True)]
        for k, t in enumerate(own):
            assert row[t] == pytest.approx(sum((gamma * lam) ** j * d for j, d in enumerate(surprises[k:])), abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "cispo", "sapo"])
def test_a_group_is_compared_by_sums(name: str) -> None:
    paid, whole = dense(), [played(Talk(verifier=Whole()), turns) for turns in (["99", "3", "97"], ["9", "37"], ["7"], ["3", "97"])]
    assert [e.reward for e in paid] == [0.375, 0.125, 0.0, 0.125] and [e.tokens for e in paid] == [e.tokens for e in whole]
    assert factory(name)().compute_advantages([paid]) == factory(name)().compute_advantages([whole])


def test_it_is_stored_and_comes_back() -> None:
    for episode in dense():
        row = episode_to_json(1, episode, [])
        assert ("rewards" in row) == any(episode.rewards[: -1 - episode.tokens[::-1].index(TOKENIZER.eos_id)])
        again = episode_from_json(row)
        assert again.rewards == episode.rewards and again.verdict == episode.verdict and episode_to_json(1, again, []) == row


def test_stepping_pays_the_sum_at_the_end() -> None:
    env = TokenEnv(env=PaidTalk(), tokenizer=TOKENS, obs="ids")
    env.reset_to_task(env.environment.task("train", 0))
    paid = [env.step(token)[1] for text in ("99", "97") for token in [*TOKENIZER.encode(text), TOKENIZER.eos_id]]
    assert paid == [0.0] * 5 + [0.375]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("env", ["PaidTalk", "Nines"])
def test_a_run_trains_on_it_and_replays(tmp_path: Path, env: str, algorithm: str) -> None:
    config = tiny_run(env={"name": f"tests/mdp/test_earned.py:{env}"}, sft_warmup=None, algorithm={"name": algorithm})
    train(config, out=tmp_path / "run", console=Console(file=io.StringIO()))
    rows = list(read_jsonl(tmp_path / "run" / "episodes.jsonl"))
    assert any("rewards" in row for row in rows) and all(math.fsum(row.get("rewards", [row["reward"]])) == row["reward"] for row in rows)
    report = replay_recorded_episodes(tmp_path / "run")
    assert report.episodes == 32 and report.mismatches == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"add up to 0.5, and the score is 1.0"):
        Verdict(1.0, "", step_rewards=[StepReward(0.5)])
    with pytest.raises(ValueError, match="add up to 0, and the score is None"):
        Verdict(None, "", fault=Fault.INFRA, step_rewards=[StepReward(0.0)])
    bad: list[dict[str, Any]] = [{"amount": math.nan}, {"amount": 1.0, "turn": 0.5}, {"amount": 1.0, "characters": -1}]
    for wrong in bad:
        with pytest.raises(ValueError, match=r"must be"):
            StepReward(**wrong)
    lost = played(PaidTalk(shift=1), ["9", "7"])
    assert not lost.is_scored and lost.verdict is not None and lost.verdict.fault is Fault.INFRA
    assert "PaidTalk.step_rewards raised ValueError: a step reward is for turn 2, and there were 2" in lost.error
