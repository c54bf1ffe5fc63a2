"""The replay law: whatever is sampled can be stepped, bit by bit the same, and a drift of any kind is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rlvr.config.config import validate_config
from rlvr.contracts import Environment, SamplingParams
from rlvr.episode import Episode
from rlvr.errors import ConfigError, NotFound
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.registry.plugins import build_from_config
from rlvr.rollout.replay import find_mismatch, replay_recorded_episodes, replay_rows
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.runs.run_log import RunLog, episode_to_json
from rlvr.samplers.scripted import ScriptedSampler
from tests.fixtures import worlds
from tests.fixtures.boards import Boards
from tests.fixtures.worlds import DIGITS, TOKENS, Sums, Talk, Unable


def sampled(mdp: TokenMDP, split: str, index: int, rng: np.random.Generator, stop: float) -> Episode:
    """One episode as a rollout makes it: whole turns of random tokens, handed to `extend`."""
    state = mdp.start_conversation(mdp.environment.task(split, index))
    while state.stop_reason is None:
        turn: list[int] = []
        for _ in range(mdp.count_remaining_turn_tokens(state)):
            turn.append(mdp.tokenizer.eos_id if rng.random() < stop else int(rng.integers(1, mdp.tokenizer.vocab_size)))
            if turn[-1] in mdp.tokenizer.stop_ids:
                break
        mdp.step_turn(state, turn)
    return mdp.build_episode(state, mdp.verify(state), group="g")


def row(episode: Episode, split: str, index: int) -> dict[str, Any]:
    return {
        "split": split,
        "index": index,
        "task_id": episode.task_id,
        "tokens": episode.tokens,
        "action_mask": [int(own) for own in episode.action_mask],
        "stop_reason": episode.stop_reason.value,
        "reward": episode.reward,
    }


WORLDS = [
    pytest.param(lambda: Sums(), {"max_new_tokens": 4}, 0.25, id="one turn"),
    pytest.param(lambda: Sums(), {"max_new_tokens": 2}, 0.5, id="stop on the last token"),
    pytest.param(lambda: Talk(), {"max_new_tokens": 9}, 0.4, id="several turns"),
    pytest.param(lambda: Talk(), {"max_new_tokens": 9, "max_turn_tokens": 4}, 0.3, id="turns that are cut"),
    pytest.param(lambda: Talk(chatter=5), {"max_new_tokens": 8, "max_length": 21}, 0.35, id="replies against the window"),
]


@pytest.mark.parametrize("make, lengths, stop", WORLDS)
def test_what_is_sampled_can_be_stepped(make: Any, lengths: dict[str, int], stop: float) -> None:
    environment: Environment = make()
    env = TokenEnv(env=environment, tokenizer=TOKENS, obs="ids", **lengths)  # type: ignore[arg-type]
    mdp = TokenMDP(environment, CharTokenizer(DIGITS), **lengths)
    rng = np.random.default_rng(5)
    ends: dict[tuple[str, bool], int] = {}
    wrong = []
    for i in range(2500):
        episode = sampled(mdp, "train", i, rng, stop)
        key = (episode.stop_reason.value, episode.tokens[-1] == 0)
        ends[key] = ends.get(key, 0) + 1
        wrong += (
            [w]
            if (w := find_mismatch(env, "train", i, episode.tokens, episode.action_mask, episode.stop_reason.value, episode.reward))
            else []
        )
    assert wrong == []
    # every way to end was met often, so that the sweep above means something
    assert min(ends[("terminated", True)], ends[("truncated", False)]) > 100
    if environment.max_turns > 1:
        assert ends[("truncated", True)] > 100


def test_a_stop_on_the_very_last_token_is_a_stop() -> None:
    mdp = TokenMDP(Sums(), CharTokenizer(DIGITS), max_new_tokens=2)
    state = mdp.start_conversation(mdp.environment.task("train", 3))
    mdp.step_turn(state, [5, 0])
    episode = mdp.build_episode(state, mdp.verify(state), group="g")
    assert episode.stop_reason.value == "terminated"
    assert (
        find_mismatch(
            TokenEnv(env=Sums(), tokenizer=TOKENS, max_new_tokens=2),
            "train",
            3,
            episode.tokens,
            episode.action_mask,
            "terminated",
            episode.reward,
        )
        == ""
    )


@pytest.fixture
def recorded() -> tuple[TokenEnv, Episode]:
    mdp = TokenMDP(Talk(), CharTokenizer(DIGITS))
    rng = np.random.default_rng(0)
    while True:
        episode = sampled(mdp, "train", 12, rng, 0.4)
        if episode.turns > 1 and episode.stop_reason.value == "terminated" and 0 < episode.reward < 1:
            return TokenEnv(env=Talk(), tokenizer=TOKENS), episode


def drifts(e: Episode) -> list[Any]:
    reply = max(i for i, own in enumerate(e.action_mask) if not own)  # the mark that ends the environment's last answer
    last = len(e.tokens) - 1
    return [
        ("prompt", {"index": 13}, "the prompt differs"),
        ("a prompt token", {"tokens": [3, *e.tokens[1:]]}, "the prompt differs: at position 0"),
        (
            "a token of the environment",
            {"tokens": [*e.tokens[: reply - 1], 3, *e.tokens[reply:]]},
            f"the tokens differ: at position {reply - 1}",
        ),
        ("a token of the policy", {"tokens": [*e.tokens[:last], 5]}, "the episode continues after"),
        ("one token more", {"tokens": [*e.tokens, 5], "action_mask": [*e.action_mask, True]}, "stepping ended (terminated) after"),
        ("one token less", {"tokens": e.tokens[:-1], "action_mask": e.action_mask[:-1]}, "the episode continues"),
        ("an environment token more", {"tokens": [*e.tokens, 5], "action_mask": [*e.action_mask, False]}, "the tokens differ"),
        ("the end", {"stop_reason": "truncated"}, "stepping ended terminated, recorded truncated"),
        ("the reward", {"reward": float(np.nextafter(e.reward, 1.0))}, "the reward is"),
    ]


@pytest.mark.parametrize("which", range(9))
def test_a_drift_of_any_kind_is_found(recorded: tuple[TokenEnv, Episode], which: int) -> None:
    env, episode = recorded
    same = {key: value for key, value in row(episode, "train", 12).items() if key != "task_id"}
    assert find_mismatch(env, **same) == ""
    _, change, words = drifts(episode)[which]
    assert words in find_mismatch(env, **(same | change))


def test_a_token_moved_from_the_policy_to_the_environment_is_found(recorded: tuple[TokenEnv, Episode]) -> None:
    env, episode = recorded
    acted = list(episode.action_mask)
    acted[acted.index(True)] = False
    assert find_mismatch(env, "train", 12, episode.tokens, acted, episode.stop_reason.value, episode.reward) != ""


def test_a_drift_in_the_settings_is_found() -> None:
    mdp = TokenMDP(Sums(), CharTokenizer(DIGITS), max_new_tokens=3)
    rng = np.random.default_rng(1)
    rows = [row(sampled(mdp, "test", i, rng, 0.3), "test", i) for i in range(50)]
    env = TokenEnv(env=Sums(), tokenizer=TOKENS, max_new_tokens=3)
    assert replay_rows(env, rows).mismatches == 0
    longer = TokenEnv(env=Sums(), tokenizer=TOKENS, max_new_tokens=4)  # a cap that differs
    assert replay_rows(longer, rows).mismatches == sum(r["stop_reason"] == "truncated" for r in rows) > 0
    other = TokenEnv(env=Sums(below=30), tokenizer=TOKENS, max_new_tokens=3)  # other settings, other tasks
    assert replay_rows(other, rows).mismatches > 0


def test_a_verdict_that_cannot_be_had_again_is_a_mismatch_with_its_reason() -> None:
    mdp = TokenMDP(Sums(), CharTokenizer(DIGITS))
    episode = sampled(mdp, "train", 1, np.random.default_rng(0), 0.5)
    env = TokenEnv(env=Sums(verifier=Unable()), tokenizer=TOKENS)
    said = find_mismatch(env, "train", 1, episode.tokens, episode.action_mask, episode.stop_reason.value, episode.reward)
    assert said.startswith("stepping ended failed") and "the engine does not answer" in said


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = {
        "env": {"name": f"{worlds.__file__}:Talk", "chatter": 2},
        "tokenizer": TOKENS,
        "model": {"config": {"model_type": "qwen2"}},
        "rollout": {"max_new_tokens": 6, "max_length": 22},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    mdp = TokenMDP(Talk(chatter=2), CharTokenizer(DIGITS), max_new_tokens=6, max_length=22)
    rng = np.random.default_rng(2)
    rows = [row(sampled(mdp, "train", i, rng, 0.4), "train", i) for i in range(60)]
    rows.append({**rows[0], "stop_reason": "failed", "tokens": [], "action_mask": []})
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def test_a_run_folder_is_replayed_and_failed_episodes_are_counted_apart(run: Path) -> None:
    assert replay_recorded_episodes(run).to_dict() == {"episodes": 60, "mismatches": 0, "failed": 1, "details": []}


def test_a_tampered_run_folder_is_told_line_by_line(run: Path) -> None:
    path = run / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for r in rows[:30]:
        r["reward"] += 0.125
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    report = replay_recorded_episodes(run, max_details=3)
    assert (report.episodes, report.mismatches) == (60, 30)
    assert len(report.details) == 3 and report.details[0].startswith("episode 1 (talk/train/0): the reward is")


def test_a_torn_last_line_is_no_error_and_a_row_without_a_key_is(run: Path) -> None:
    path = run / "episodes.jsonl"
    path.write_text(path.read_text() + '{"split": "tra')
    assert replay_recorded_episodes(run).episodes == 60
    path.write_text('{"split": "train", "tokens": [1]}\n')
    with pytest.raises(ConfigError, match="episode 1 has no 'index', 'action_mask', 'stop_reason', 'reward'"):
        replay_recorded_episodes(run)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"has no config\.yaml"):
        replay_recorded_episodes(tmp_path)


REAL = [
    ("arithmetic", "chars:0123456789+-*=", {"levels": ["1+1"]}, "random"),
    ("arithmetic", "chars", {"show_steps": True, "verifier": {"name": "numeric", "extractor": "hash"}}, "gold"),
    ("countdown", "chars", {}, "random"),
    ("copy_reverse", "chars:abcd>", {}, "random"),
    ("digit_sum", "chars:0123456789=", {}, "random"),
    ("guess_number", "chars:0123456789", {}, "random"),
    ("guess_number", "bytes", {}, "gold"),
]


@pytest.mark.parametrize("name, tokenizer, settings, answer", REAL)
def test_what_a_rollout_collects_and_a_run_records_is_replayed(
    name: str, tokenizer: str, settings: dict[str, Any], answer: str, tmp_path: Path
) -> None:
    """The whole way: sampler, rollout, run folder, replay."""
    config = validate_config(
        {
            "env": {"name": name, **settings},
            "tokenizer": tokenizer,
            "model": {"config": {"model_type": "qwen2"}},
            "rollout": {"sampler": {"name": "scripted", "answer": answer}},
        },
        "a test",
    )
    count = 150
    env = TokenEnv(env=config.env, tokenizer=tokenizer)
    sampler = build_from_config("sampler", config.rollout.sampler)
    sampler.setup(env.environment, env.tokenizer)
    run = RunLog.create(tmp_path / "run", config)
    with Rollout(env.mdp, sampler=sampler) as rollout:
        draws = [RolloutRequest(env.environment.task("train", i), f"g{i}", i, {"split": "train", "index": i}) for i in range(count)]
        episodes = rollout.collect(draws, SamplingParams(stop_ids=env.tokenizer.stop_ids))
    run.log_episodes([episode_to_json(1, episode, [0.0] * len(episode.tokens)) for episode in episodes])
    run.close()
    env.close()
    assert replay_recorded_episodes(run.folder).to_dict() == {"episodes": count, "mismatches": 0, "failed": 0, "details": []}


def test_a_session_is_replayed_from_its_record_and_nothing_happens_again() -> None:
    boards, seen = Boards(), list[str]()
    sampler = ScriptedSampler(answer="random")
    env = TokenEnv(env=boards, tokenizer=TOKENS, obs="ids")
    sampler.setup(boards, env.tokenizer)
    draws = [RolloutRequest(boards.task("train", i), "g", derive_seed(i), {"split": "train", "index": i}) for i in range(20)]
    with Rollout(env.mdp, sampler=sampler) as rollout:
        episodes = rollout.collect(draws, SamplingParams(stop_ids=env.tokenizer.stop_ids))
    rows = [json.loads(json.dumps({**row(e, "train", i), **e.meta})) for i, e in enumerate(episodes)]
    assert {len(r["session"]["step_results"]) for r in rows} >= {0, 1, 2} and all("seed" in r["session"] for r in rows)
    boards.happens = lambda what, task, turn: seen.append(what)
    report = replay_rows(env, rows)
    assert (report.episodes, report.mismatches, report.num_recorded_sessions, seen) == (20, 0, 20, []), report.details
    assert report.to_dict()["recorded"] == 20
    asked = next(
        r
        for r in rows
        if r["session"]["step_results"] and not r["session"]["step_results"][0]["done"] and len(r["session"]["step_results"]) > 1
    )
    asked["session"]["step_results"][0]["messages"][0]["content"] += "9"
    assert replay_rows(env, rows).mismatches == 1
    env.close()
