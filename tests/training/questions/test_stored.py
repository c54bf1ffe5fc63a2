"""Learning from stored episodes: what is read, what is refused, and that each method learns."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from rlvr.config.config import RunConfig, load_config
from rlvr.episode import StopReason
from rlvr.errors import ConfigError, NotFound
from rlvr.models.reward_model import load_reward_model
from rlvr.registry.plugins import build
from rlvr.runs.run_log import episode_to_json, read_jsonl
from rlvr.training import checkpoint
from rlvr.training.reward_model import RewardModelReport, train_reward_model
from rlvr.training.task_sampling.offline_dataset import OfflineDataset, episode_from_json
from rlvr.training.train import train
from rlvr.training.train_report import TrainReport
from tests.fixtures.tiny import tiny_run

SKILLED: dict[str, Any] = {
    "env": {"name": "tests/fixtures/worlds.py:First"},
    "sft_warmup": {"max_steps": 300, "batch_size": 32, "learning_rate": 5e-3, "target_accuracy": 0.95},
    "rollout": {"prompts_per_step": 48, "num_generations": 8},
    "train": {"steps": 6, "learning_rate": 1e-5},
    "eval": {"tasks": 200, "temperature": 1.0},
}


def run(config: RunConfig, folder: Path, *, resume: bool = False) -> TrainReport:
    return train(config, out=folder, resume=resume, console=Console(file=io.StringIO()))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(folder / "metrics.jsonl"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a policy that is right in a quarter of its answers."""
    folder = tmp_path_factory.mktemp("source") / "run"
    report = run(tiny_run(**SKILLED), folder)
    assert report.accuracy_after is not None and 0.1 < report.accuracy_after < 0.6
    return folder


def learned(name: str, source: Path, *overrides: str) -> RunConfig:
    short = ["eval.tasks=200", "eval.temperature=1.0", "train.warmup_steps=0", "train.steps=30", "train.learning_rate=3e-3"]
    return load_config(name, [f"data.run={source}", *short, "rollout.prompts_per_step=24", *overrides])


@pytest.mark.slow
def test_an_episode_comes_back_as_it_was(source: Path) -> None:
    rows = list(read_jsonl(source / "episodes.jsonl"))
    assert len(rows) == 6 * 48 * 8
    for row in rows[:50]:
        again = episode_to_json(row["step"], episode_from_json(row), [])
        assert {k: v for k, v in again.items() if k != "advantage"} == {k: v for k, v in row.items() if k != "advantage"}


def test_every_group_comes_once_before_any_comes_again(source: Path) -> None:
    groups = [[episode_from_json(row)] for row in read_jsonl(source / "episodes.jsonl")][:10]
    stored = OfflineDataset(groups, seed=3)
    order = [id(group) for group in stored.get_groups(0, 20)]
    assert set(order[:10]) == set(order[10:]) == {id(group) for group in groups} and order[:10] != order[10:]
    assert [id(group) for group in stored.get_groups(5, 10)] == order[5:15]


METHODS: dict[str, list[str]] = {
    "dpo": [],
    "kto": ["algorithm.desirable_weight=3"],
    "sft": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_each_method_learns_from_a_stored_run(name: str, source: Path, tmp_path: Path) -> None:
    started = [f"model={{path: {source / 'checkpoints' / 'last'}}}"]
    report = run(learned(name, source, *METHODS[name], *started), tmp_path / "a")
    rows = metrics(tmp_path / "a")
    assert report.accuracy_before is not None and report.accuracy_after is not None
    assert report.accuracy_after > report.accuracy_before + 0.1
    assert report.held_out_contaminated == 0
    if name != "sft":
        assert rows[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-6) and rows[-1]["rewards/margins"] > 0.1
        assert rows[-1]["logps/chosen"] > rows[0]["logps/chosen"] > rows[0]["logps/rejected"] > rows[-1]["logps/rejected"]
    assert not (tmp_path / "a" / "episodes.jsonl").exists()


@pytest.mark.slow
def test_gold_solutions_are_learned_from_nothing(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "env": SKILLED["env"], "sft_warmup": None, "data": {}, "algorithm": {"name": "sft"}, "rollout": {"prompts_per_step": 32},
        "train": {"steps": 60, "learning_rate": 1e-2}, "eval": SKILLED["eval"],
    }  # fmt: skip
    report = run(tiny_run(**changes), tmp_path / "a")
    assert report.accuracy_before == 0.0 and report.accuracy_after is not None and report.accuracy_after > 0.2
    assert report.held_out_contaminated == 0
    row = metrics(tmp_path / "a")[-1]
    assert row["completions/clipped_ratio"] == 0 and "mismatch_kl" not in row and not any(name.startswith("sampling/") for name in row)


@pytest.mark.slow
def test_gold_solutions_that_do_not_fit_are_cut_and_that_is_said(tmp_path: Path) -> None:
    cramped: dict[str, Any] = {"rollout": {"max_new_tokens": 1}, "algorithm": {"name": "sft"}, "data": {}}
    config, told = tiny_run(**cramped, sft_warmup={"max_steps": 1}, train={"steps": 1}, eval={"tasks": 2}), io.StringIO()
    train(config, out=tmp_path / "a", console=Console(file=told, width=400))
    assert metrics(tmp_path / "a")[0]["completions/clipped_ratio"] == 1.0
    assert "100% of the gold solutions of step 1 are longer than an answer may be" in told.getvalue()
    assert "solutions cut at rollout.max_new_tokens 64" in told.getvalue()


@pytest.mark.slow
def test_best_of_n_raises_the_reward_round_by_round(source: Path, tmp_path: Path) -> None:
    changes = SKILLED | {
        "sft_warmup": None, "model": {"path": str(source / "checkpoints" / "last")}, "algorithm": {"name": "best_of_n"},
        "train": {"steps": 12, "learning_rate": 3e-3},
    }  # fmt: skip
    report = run(tiny_run(**changes), tmp_path / "a")
    assert sum(report.rewards[-3:]) > sum(report.rewards[:3]) + 0.3
    assert {row["imitation/selected_answers"] for row in metrics(tmp_path / "a")} <= {float(n) for n in range(49)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "kto", "reward_model"])
def test_a_run_on_stored_episodes_resumes_to_the_bit(name: str, source: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    config = learned(name, source, "train.steps=4", "log.save_every=2", "eval.tasks=5")
    begin: Any = train_reward_model if name == "reward_model" else train
    quiet = Console(file=io.StringIO())
    begin(config, out=whole, console=quiet)
    shutil.copytree(whole, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "step-000004")
    begin(config, out=cut, resume=True, console=quiet)
    one, two = (load_file(folder / "checkpoints" / "last" / "model.safetensors") for folder in (whole, cut))
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    assert (whole / "metrics.jsonl").read_bytes() == (cut / "metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "reward_model"])
def test_episodes_that_changed_since_are_told_at_resume(name: str, source: Path, tmp_path: Path) -> None:
    moving, folder = tmp_path / "moving", tmp_path / "run"
    shutil.copytree(source, moving, symlinks=True)
    config = learned(name, moving, "train.steps=2", "log.save_every=1", "eval.tasks=5")
    begin: Any = train_reward_model if name == "reward_model" else train
    quiet = Console(file=io.StringIO())
    begin(config, out=folder, console=quiet)
    shutil.rmtree(folder / "checkpoints" / "step-000002")
    lines = (moving / "episodes.jsonl").read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if json.loads(line)["reward"] == 1.0)
    row = json.loads(lines[at])
    changed = json.dumps(row | {"reward": 0.0, "verdict": row["verdict"] | {"score": 0.0}}) + "\n"
    for other in ([*lines[:at], changed, *lines[at + 1 :]], lines[:-8]):
        (moving / "episodes.jsonl").write_text("".join(other))
        with pytest.raises(ConfigError, match=r"moving are not those that this run began with \(fingerprint \w{12} then, \w{12} now\)"):
            begin(config, out=folder, resume=True, console=quiet)
    (moving / "episodes.jsonl").write_text("".join(lines))
    begin(config, out=folder, resume=True, console=quiet)


# ---- the reward model, and the verifier that it becomes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def rewarder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RewardModelReport]:
    folder = tmp_path_factory.mktemp("reward") / "model"
    config = learned("reward_model", source, "train.steps=100", "train.learning_rate=1e-3", "rollout.prompts_per_step=64", "eval.every=50")
    return folder, train_reward_model(config, out=folder, console=Console(file=io.StringIO()))


@pytest.mark.slow
def test_a_reward_model_ranks_held_out_pairs(rewarder: tuple[Path, RewardModelReport]) -> None:
    folder, report = rewarder
    assert report.held_out_pairs > 20 and report.accuracy is not None and report.accuracy > 0.9
    assert report.correlation is not None and report.correlation > 0.5
    rows = metrics(folder)
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"] and rows[-1]["eval/verifier_correlation"] == report.correlation
    assert {"accuracy", "margin", "mean_reward", "min_reward", "max_reward"} <= rows[0].keys()
    assert abs(rows[-1]["mean_reward"]) < 2  # held around 0


def test_learned_scores_as_the_model_does_and_takes_the_least_of_several(rewarder: tuple[Path, RewardModelReport], source: Path) -> None:
    place = str(rewarder[0] / "checkpoints" / "last")
    environment = build("env", "tests/fixtures/worlds.py:First")
    learned_ = build("verifier", "learned", models=[place])
    episodes = [episode_from_json(row) for row in read_jsonl(source / "episodes.jsonl")][:40]
    scorer = load_reward_model(Path(place))
    for e in (e for e in episodes if e.stop_reason is StopReason.TERMINATED):
        verdict = learned_.verify(environment.task("train", e.meta["index"]), e.text)
        assert verdict.score == pytest.approx(float(torch.sigmoid(scorer([e.tokens])[0])), rel=1e-5)
        assert verdict.components == {"true": e.reward, "learned": verdict.score}
    task, other = environment.task("train", 3), build("verifier", "learned", models=[place])
    both = build("verifier", "learned", models=[place, place])
    other.models[0].scorer.model.score.weight.data *= -1
    both.models[1] = other.models[0]
    scores = [v.verify(task, task.reference).score for v in (learned_, other, both)]
    assert scores[2] == min(scores[:2]) and scores[0] != scores[1]
    with pytest.raises(ConfigError, match="not a folder"):
        build("verifier", "learned", models=["nowhere"])


@pytest.mark.slow
def test_a_policy_trains_on_a_learned_reward_and_the_log_has_the_true_one(
    rewarder: tuple[Path, RewardModelReport], source: Path, tmp_path: Path
) -> None:
    place = str(rewarder[0] / "checkpoints" / "last")
    env = {"name": "tests/fixtures/worlds.py:Judged", "verifier": {"name": "learned", "models": [place]}}
    skilled = {"path": str(source / "checkpoints" / "last")}
    run(tiny_run(env=env, sft_warmup=None, model=skilled, train={"steps": 2, "learning_rate": 1e-3}), tmp_path / "a")
    for row in metrics(tmp_path / "a"):
        assert row["rewards/learned/mean"] == pytest.approx(row["reward"])
        assert 0 <= row["rewards/true/mean"] <= 1 and (
            row["rewards/learned_true_correlation"] is None or -1 <= row["rewards/learned_true_correlation"] <= 1
        )


# ---- what is refused ----------------------------------------------------------------------------------------------------------


def edited(source: Path, folder: Path, **changes: Any) -> Path:
    """The same run with every episode changed."""
    shutil.copytree(source, folder, symlinks=True)
    rows = [row | {key: change(row) for key, change in changes.items()} for row in read_jsonl(source / "episodes.jsonl")]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


def flat(row: dict[str, Any]) -> dict[str, Any]:
    return {"score": 0.0, "reason": "", "fault": "none"}


@pytest.mark.slow
def test_what_cannot_be_learned_from_is_refused_with_the_way_out(source: Path, tmp_path: Path) -> None:
    zeros = edited(source, tmp_path / "zeros", reward=lambda row: 0.0, verdict=flat)
    empty = edited(source, tmp_path / "empty", stop_reason=lambda row: "failed", reward=lambda row: 0.0)
    silent = edited(source, tmp_path / "silent")
    (silent / "episodes.jsonl").unlink()
    quiet = Console(file=io.StringIO())
    for name, folder, more, error, said in (
        ("dpo", zeros, [], ConfigError, "no pairs to train on.*temperature"),
        ("kto", zeros, [], ConfigError, "all 2304 answers are undesirable"),
        ("reward_model", zeros, [], ConfigError, "no pairs to train on"),
        ("kto", source, ["algorithm.desirable_threshold=-1"], ConfigError, "are desirable: KTO needs both"),
        ("dpo", empty, [], ConfigError, "no episode with a score"),
        ("dpo", silent, [], NotFound, "log.episodes"),
        ("dpo", source, ["tokenizer=chars:9876543210+="], ConfigError, "common tokens differ.*leave tokenizer out"),
        ("dpo", source, ["env={name: arithmetic}"], ConfigError, "do not fit this run"),
        ("dpo", source, ["algorithm={name: grpo}"], ConfigError, "fresh answers only"),
        (
            "reward_model",
            source,
            ["train.mixed_precision=bf16"],
            ConfigError,
            "mixed_precision is bf16, which has no effect.*to auto",
        ),
        ("reward_model", source, ["train.gradient_checkpointing=true"], ConfigError, "max_tokens_per_microbatch; set it to False"),
        ("reward_model", source, ["train.minibatches_per_step=2"], ConfigError, "prompts_per_step pairs; set it to 1"),
        ("reward_model", source, ["sft_warmup={max_steps: 5}"], ConfigError, "sft_warmup is set, which has no effect on a reward model"),
        ("reward_model", source, ["algorithm=ppo"], ConfigError, "algorithm is set"),
        ("reward_model", source, ["log.report_to=[tensorboard]"], ConfigError, "log.report_to is set"),
    ):
        begin: Any = train_reward_model if name == "reward_model" else train
        with pytest.raises(error, match=said):
            begin(learned(name, folder, *more), out=tmp_path / "out", console=quiet)
        assert not (tmp_path / "out").exists()
    with pytest.raises(NotFound, match="is not a run folder"):
        load_config("dpo", ["data.run=nowhere"])
    for name in ("dpo", "kto", "reward_model"):
        with pytest.raises(ConfigError, match=r"data\.run=runs/DIR"):
            load_config(name)


@pytest.mark.slow
def test_every_recipe_starts_from_the_command_line(source: Path, tmp_path: Path, preloaded: Path) -> None:
    for k, name in enumerate(("dpo", "reward_model")):
        words = [name, f"data.run={source}", "train.steps=1", "eval.tasks=2", "--out", str(tmp_path / str(k)), "--json"]
        done = subprocess.run([preloaded / "rlvr", "train", *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["status"] == "finished"
    done = subprocess.run([preloaded / "rlvr", "train", "kto"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "data.run=runs/DIR" in done.stderr and "Traceback" not in done.stderr


def test_a_reward_model_killed_while_it_made_its_folder_begins_anew(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".config.part").write_text("seed: 0\nen")
    screen = io.StringIO()
    config = learned("reward_model", source, "train.steps=1", "train.learning_rate=1e-5", "model.dtype=bfloat16")
    ended = train_reward_model(config, out=tmp_path / "out", resume=True, console=Console(file=screen, width=300))
    assert ended.status == "finished" and "the weights hardly change" in screen.getvalue()


def test_a_resumed_reward_model_counts_the_time_of_the_processes_before(source: Path, tmp_path: Path) -> None:
    config, quiet = learned("reward_model", source, "train.steps=2", "log.save_every=1"), Console(file=io.StringIO())
    folder = tmp_path / "run"
    train_reward_model(config, out=folder, console=quiet)
    shutil.rmtree(folder / "checkpoints" / "step-000002")
    place = folder / "checkpoints" / "step-000001"
    progress = json.loads((place / "progress.json").read_text())
    assert progress["report_values"]["seconds"] > 0
    progress["report_values"]["seconds"] = 1000.0  # as if the first process had been slow
    (place / "progress.json").write_text(json.dumps(progress))
    (place / "manifest.json").write_text(json.dumps(checkpoint._hash_files(place)))
    again = train_reward_model(config, out=folder, resume=True, console=quiet)
    told = [row["seconds"] for row in read_jsonl(folder / "timings.jsonl")]
    assert told[0] < 1000 < told[1] and 1000 < again.seconds == json.loads((folder / "report.json").read_text())["seconds"] < 2000
