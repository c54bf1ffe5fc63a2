"""The loop, run for real on a tiny model: what it writes, what it refuses, and that a kill changes nothing."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from rich.console import Console
from safetensors.torch import load_file

from rlvr.config.config import load_config
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.registry.plugins import list_entries
from rlvr.rollout.replay import replay_recorded_episodes
from rlvr.runs.run_log import RunLog, load_run_config, lock_run_folder, read_jsonl
from rlvr.samplers.hf import HFSampler
from rlvr.training import checkpoint
from rlvr.training.batch_sources import RolloutBatch
from rlvr.training.callbacks import Callback
from rlvr.training.components import build_components
from rlvr.training.run_summary import build_run_table
from rlvr.training.stop_signals import StopSignals
from rlvr.training.train import train
from rlvr.training.train_report import TrainReport
from rlvr.training.trainer import Trainer
from rlvr.training.update.learner import Learner, OptimizationSettings
from tests.fixtures.preloaded import started_program
from tests.fixtures.tiny import MODEL, tiny_run

ROOT = Path(__file__).parents[2]


def run(folder: Path, *, resume: bool = False, **changes: Any) -> TrainReport:
    return train(tiny_run(**changes), out=folder, resume=resume, console=Console(file=io.StringIO()))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "last" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainReport]:
    folder = tmp_path_factory.mktemp("run") / "a"
    return folder, run(folder, train={"steps": 4, "learning_rate": 1e-3}, log={"save_every": 2})


def test_everything_is_written(finished: tuple[Path, TrainReport]) -> None:
    folder, report = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml", "versions.json", "metrics.jsonl", "timings.jsonl", "episodes.jsonl", "checkpoints", "reward.png", "report.json",
        "plugins.json", "plugins",
    }  # fmt: skip
    assert json.loads((folder / "report.json").read_text()) == report.to_dict()
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert load_run_config(folder) == tiny_run(train={"steps": 4, "learning_rate": 1e-3}, log={"save_every": 2})


def test_the_logs_have_a_line_a_step_and_a_line_an_episode(finished: tuple[Path, TrainReport]) -> None:
    folder, _ = finished
    metrics, episodes = (list(read_jsonl(folder / name)) for name in ("metrics.jsonl", "episodes.jsonl"))
    assert [row["step"] for row in metrics] == [1, 2, 3, 4] and len(episodes) == 4 * 16
    for row in metrics:
        mine = [e["reward"] for e in episodes if e["step"] == row["step"]]
        assert row["reward"] == pytest.approx(sum(mine) / len(mine))
        assert {"loss", "grad_norm", "reward_std", "frac_reward_zero_std", "completions/mean_length"} <= row.keys()
    groups: dict[str, set[str]] = {}
    for e in episodes:
        groups.setdefault(e["group"], set()).add(e["task_id"])
    assert len(groups) == 16 and all(len(tasks) == 1 for tasks in groups.values())
    assert any(e["advantage"] != 0 for e in episodes) and all(e["verdict"]["reason"] for e in episodes)


def test_an_episode_records_how_the_trainer_found_its_tokens(finished: tuple[Path, TrainReport]) -> None:
    episodes = list(read_jsonl(finished[0] / "episodes.jsonl"))
    assert all((e["advantage"] != 0) == ("log_ratio" in e) for e in episodes), "what teaches nothing is never looked at"
    seen = [e for e in episodes if "log_ratio" in e]
    assert all(len(e["log_ratio"]) == len(e["tokens"]) for e in seen)
    assert max(abs(ratio) for e in seen for ratio in e["log_ratio"]) < 1e-4, "the sampler has the trainer's weights"


def test_training_continues_while_a_checkpoint_is_written(
    finished: tuple[Path, TrainReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 2 is written when step 3 has ended, and is what it would have been."""
    write, lines, waited = checkpoint.publish_checkpoint, tmp_path / "a" / "metrics.jsonl", list[int]()

    def late(partial: Path, tokenizer: Any, state: Any, progress: checkpoint.Progress, **limits: Any) -> Path:
        until = time.monotonic() + 30
        while progress.num_completed_steps == 2 and len(lines.read_text().splitlines()) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        waited.append(len(lines.read_text().splitlines()) if lines.exists() else 0)
        return write(partial, tokenizer, state, progress, **limits)

    monkeypatch.setattr(checkpoint, "publish_checkpoint", late)
    run(tmp_path / "a", train={"steps": 4, "learning_rate": 1e-3}, log={"save_every": 2})
    assert waited[1] >= 3
    for name in ("model.safetensors", "learner.pt"):
        ours, theirs = (folder / "checkpoints" / "step-000002" / name for folder in (tmp_path / "a", finished[0]))
        assert ours.read_bytes() == theirs.read_bytes()
    assert same(weights(tmp_path / "a"), weights(finished[0]))


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint._write_files

    def full(place: Path, tokenizer: Any, state: Any, progress: checkpoint.Progress) -> None:
        if progress.num_completed_steps == 2:
            raise OSError(28, "No space left on device")
        write(place, tokenizer, state, progress)

    monkeypatch.setattr(checkpoint, "_write_files", full)
    with pytest.raises(RlvrError, match=r"the checkpoint of step 2 could not be written to .*No space left on device"):
        run(tmp_path / "a", train={"steps": 40, "learning_rate": 1e-3}, log={"save_every": 2})
    assert len((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()) < 5
    assert [path.name for path in (tmp_path / "a" / "checkpoints").glob("*step-*")] == ["step-000000"]


def test_where_memory_is_short_a_checkpoint_is_written_before_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, threads = checkpoint.publish_checkpoint, list[int]()
    monkeypatch.setattr(checkpoint, "measure_copy_budget_bytes", lambda: 1000)
    monkeypatch.setattr(checkpoint, "copy_to_host", lambda value: pytest.fail("it was copied"))

    def noted(partial: Path, tokenizer: Any, state: Any, progress: checkpoint.Progress, **limits: Any) -> Path:
        threads.append(progress.num_completed_steps)
        return write(partial, tokenizer, state, progress, **limits)

    monkeypatch.setattr(checkpoint, "publish_checkpoint", noted)
    run(tmp_path / "a", train={"steps": 2, "learning_rate": 1e-3})
    assert threads == [0, 1, 2]


def test_every_recorded_episode_replays(finished: tuple[Path, TrainReport]) -> None:
    found = replay_recorded_episodes(finished[0])
    assert (found.episodes, found.mismatches) == (64, 0)


@pytest.mark.slow
def test_training_moves_the_weights_and_repeats_itself(finished: tuple[Path, TrainReport], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"train": {"steps": 4, "learning_rate": 1e-3}, "log": {"save_every": 2}}
    run(tmp_path / "again", **settings)
    run(tmp_path / "other", seed=1, **settings)
    assert same(weights(finished[0]), weights(tmp_path / "again")) and not same(weights(finished[0]), weights(tmp_path / "other"))
    assert (finished[0] / "metrics.jsonl").read_text() == (tmp_path / "again" / "metrics.jsonl").read_text()


KILLED = """
import sys
from pathlib import Path
from rlvr.training.stop_signals import StopSignals
from rlvr.training.train import train
from tests.fixtures.tiny import tiny_run
train(tiny_run(train={"steps": 24, "learning_rate": 1e-3}, log={"save_every": 3}), out=Path(sys.argv[1]), resume=sys.argv[2] == "resume")
"""


@pytest.mark.slow
def test_a_killed_and_resumed_run_ends_like_one_that_was_not(tmp_path: Path, preloaded: Path) -> None:
    settings: dict[str, Any] = {"train": {"steps": 24, "learning_rate": 1e-3}, "log": {"save_every": 3}}
    run(tmp_path / "whole", **settings)
    folder = tmp_path / "killed"
    with started_program(preloaded, KILLED, str(folder), "new", said=tmp_path / "output") as program:
        deadline = time.monotonic() + 120
        while program.client.poll() is None and time.monotonic() < deadline:
            if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= 8:
                break
            time.sleep(0.01)
        assert program.client.poll() is None, (tmp_path / "output").read_text()
        program.kill()
    assert not (folder / "report.json").exists()
    run(folder, resume=True, **settings)
    assert same(weights(folder), weights(tmp_path / "whole"))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (folder / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert load_run_config(folder) == load_run_config(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_saves_its_step_says_how_to_go_on_and_resumes_to_the_bit(
    tmp_path: Path, number: signal.Signals
) -> None:
    settings: dict[str, Any] = {"train": {"steps": 24, "learning_rate": 1e-3}, "log": {"save_every": 20}}
    run(tmp_path / "whole", **settings)
    folder, code = tmp_path / "stopped", KILLED.replace('"save_every": 3', '"save_every": 20')
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", code, str(folder), "new"], cwd=ROOT, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= 5:
                break
            time.sleep(0.01)
        process.send_signal(number)
        exit_code = process.wait(60)
    said, done = (tmp_path / "output").read_text(), len((folder / "metrics.jsonl").read_text().splitlines())
    assert exit_code == (143 if number == signal.SIGTERM else -signal.SIGINT) and 5 <= done < 20, said  # Python ends itself by SIGINT
    assert f"stopping after step {done} of 24, which is then saved; Ctrl-C again stops at once" in said
    assert f"stopped after step {done} of 24; saved: {folder}/checkpoints/step-{done:06d}" in said
    assert f"continue with: rlvr train {folder}/config.yaml --out {folder} --resume" in said
    run(folder, resume=True, **settings)
    assert same(weights(folder), weights(tmp_path / "whole"))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (folder / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_the_second_signal_ends_a_run_at_once_and_a_caller_s_own_handler_stays(tmp_path: Path) -> None:
    signals, said = StopSignals(), list[str]()

    def describe() -> str:
        said.append("once")
        return ""

    with signals.receive(describe):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # a launcher sends it after Ctrl-C
        assert signals.received is signal.SIGINT and said == ["once"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    before = signal.signal(signal.SIGTERM, lambda *_: said.append("mine"))
    try:
        with signals.receive(describe):
            os.kill(os.getpid(), signal.SIGTERM)
        assert said[-1] == "mine" and signals.received is None
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


PRESETS = [entry.name for entry in list_entries("algorithm")]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_algorithm_trains_and_resumes_to_the_bit(tmp_path: Path, name: str, finished: tuple[Path, TrainReport]) -> None:
    minibatches = 1 if name in ("dpo", "kto") or name.startswith("online_") else 2
    settings: dict[str, Any] = {
        "algorithm": {"name": name},
        "train": {"steps": 2, "learning_rate": 1e-3, "minibatches_per_step": minibatches},
        "log": {"save_every": 1},
    }
    if name == "distill":
        settings["frozen_models"] = {"reference": str(finished[0] / "checkpoints" / "last")}
    if name == "gigpo":  # it needs several turns
        talk = {"name": "tests/fixtures/worlds.py:Talk"}
        settings |= {"env": talk, "sft_warmup": None, "rollout": {"prompts_per_step": 16, "num_generations": 8}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, **settings)
    shutil.copytree(whole, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "step-000002")
    (cut / "report.json").unlink()
    run(cut, resume=True, **settings)
    assert same(weights(whole), weights(cut)) and (whole / "metrics.jsonl").read_text() == (cut / "metrics.jsonl").read_text()
    initial = load_file(whole / "checkpoints" / "step-000001" / "model.safetensors")
    assert not same(weights(whole), initial)


EVERYTHING: dict[str, Any] = {
    "algorithm": {"name": "dapo", "beta": 0.1, "kl_target": 0.01, "kl_horizon": 100, "dynamic_sampling_rounds": 3},
    "rollout": {"prompts_per_step": 4, "num_generations": 4, "curriculum": {"meta_key": "carries", "candidates_per_task": 3}},
    "train": {"steps": 4, "learning_rate": 1e-3, "minibatches_per_step": 2},
    "env": {"name": "tests/fixtures/worlds.py:Sums", "below": 12},
    "log": {"save_every": 2},
}
"""Dynamic sampling, a curriculum, an adaptive KL and two minibatches a step, all at once."""


@pytest.mark.slow
def test_what_dynamic_sampling_and_the_curriculum_do_survives_a_resume(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, **EVERYTHING)
    shutil.copytree(whole, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "step-000004")
    (cut / "report.json").unlink()
    run(cut, resume=True, **EVERYTHING)
    assert same(weights(whole), weights(cut))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (whole / name).read_text() == (cut / name).read_text()
    metrics, episodes = (list(read_jsonl(whole / name)) for name in ("metrics.jsonl", "episodes.jsonl"))
    assert max(row["dynamic_sampling/rounds"] for row in metrics) > 1 and len({row["beta"] for row in metrics}) == 4
    assert metrics[-1]["curriculum/num_solve_rates"] == 2
    for row in metrics:
        mine = [e for e in episodes if e["step"] == row["step"]]
        assert row["reward"] == pytest.approx(sum(e["reward"] for e in mine) / len(mine))  # before the filter
        assert row["tokens/sampled"] == sum(sum(e["action_mask"]) for e in mine)
        assert row["tokens/sampled"] == row["tokens/trained"] + row["tokens/masked"] + row["tokens/dropped"]
        assert len([e for e in mine if "dropped" not in e]) == 16
        assert len({e["group"] for e in mine}) == row["dynamic_sampling/sampled_groups"]


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_anew(finished: tuple[Path, TrainReport], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"train": {"steps": 4, "learning_rate": 1e-3}, "log": {"save_every": 2}}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text(tiny_run(**settings).to_yaml())
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1, "torn')
    run(tmp_path / "a", resume=True, **settings)
    assert same(weights(finished[0]), weights(tmp_path / "a"))


def test_a_run_killed_in_its_first_step_resumes_from_the_checkpoint_before_it(tmp_path: Path) -> None:
    class Killed(Callback):
        def on_batch(self, trainer: Trainer, step: int, batch: RolloutBatch) -> None:
            raise RuntimeError("killed")

    settings: dict[str, Any] = {"train": {"steps": 1, "learning_rate": 1e-3}, "log": {"save_every": 1}}
    with pytest.raises(RuntimeError, match="killed"):
        train(tiny_run(**settings), out=tmp_path, console=Console(file=io.StringIO()), callbacks=[Killed()])
    assert (tmp_path / "checkpoints" / "last").readlink().name == "step-000000"
    assert not (tmp_path / "metrics.jsonl").exists()
    assert run(tmp_path, resume=True, **settings).steps == 1


@pytest.mark.slow
def test_a_run_killed_while_it_made_its_folder_begins_anew(finished: tuple[Path, TrainReport], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"train": {"steps": 4, "learning_rate": 1e-3}, "log": {"save_every": 2}}
    for name, resume in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".config.part").write_text("seed: 0\nen")
        run(tmp_path / name, resume=resume, **settings)
        assert same(weights(finished[0]), weights(tmp_path / name))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="is not a run folder"):
        run(tmp_path / "c", resume=True, **settings)


@pytest.mark.slow
def test_a_run_killed_between_its_logs_still_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    logged: list[int] = []

    def dying(whole: Any) -> Any:
        def log(self: RunLog, first: Any, *rest: Any) -> None:
            step = first["step"] if isinstance(first, dict) else first[0]["step"]
            if step in logged and step == 2:
                raise Killed
            logged.append(step)
            whole(self, first, *rest)

        return log

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunLog, "log_metrics", dying(RunLog.log_metrics))
        patch.setattr(RunLog, "log_episodes", dying(RunLog.log_episodes))
        run(tmp_path / "a", log={"save_every": 1})
    run(tmp_path / "a", resume=True, log={"save_every": 1})
    run(tmp_path / "b", log={"save_every": 1})
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_a_run_is_never_overwritten(finished: tuple[Path, TrainReport]) -> None:
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(ConfigError, match="is not overwritten"):
        run(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_folder_in_which_another_process_trains_is_left_alone(finished: tuple[Path, TrainReport]) -> None:
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with lock_run_folder(folder), pytest.raises(ConfigError, match="another trainer is at work in"):
        run(folder, resume=True, train={"steps": 4, "learning_rate": 1e-3}, log={"save_every": 2})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_is_not_resumed_with_another_configuration(finished: tuple[Path, TrainReport], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.learning_rate: 0.001 -> 0.5"):
        run(finished[0], resume=True, train={"steps": 4, "learning_rate": 0.5}, log={"save_every": 2})
    with pytest.raises(
        ConfigError, match=r"train.steps: 4 -> 3.*a new run from its weights: rlvr train .*config.yaml --model .*checkpoints/last$"
    ):
        run(finished[0], resume=True, train={"steps": 3, "learning_rate": 1e-3}, log={"save_every": 2})
    with pytest.raises(NotFound, match="is not a run folder"):
        (tmp_path / "file").write_text("mine")
        run(tmp_path / "file", resume=True)


def test_a_finished_run_goes_on_with_more_steps_as_if_it_had_had_them_from_the_start(
    finished: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    settings: dict[str, Any] = {"log": {"save_every": 2}}
    run(whole, train={"steps": 6, "learning_rate": 1e-3}, **settings)
    shutil.copytree(finished[0], longer, symlinks=True)
    report = run(longer, resume=True, train={"steps": 6, "learning_rate": 1e-3}, **settings)
    assert report.steps == 6 and same(weights(longer), weights(whole))
    for name in ("config.yaml", "metrics.jsonl", "episodes.jsonl"):
        assert (longer / name).read_text("utf-8") == (whole / name).read_text("utf-8")


def test_a_schedule_that_ends_gets_no_more_steps(tmp_path: Path) -> None:
    train: dict[str, Any] = {"learning_rate": 1e-3, "lr_scheduler": "linear"}
    run(tmp_path / "a", train=train | {"steps": 1})
    with pytest.raises(ConfigError, match=r"train.steps: 1 -> 2, which the learning rate of linear depends on"):
        run(tmp_path / "a", resume=True, train=train | {"steps": 2})


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
def test_resume_begins_where_nothing_is(finished: tuple[Path, TrainReport], tmp_path: Path, there: bool) -> None:
    """So that a job which always says --resume starts, and goes on wherever it was killed."""
    folder, said = tmp_path / "deep" / "a", io.StringIO()
    if there:
        folder.mkdir(parents=True)
    config = tiny_run(train={"steps": 4, "learning_rate": 1e-3}, log={"save_every": 2})
    train(config, out=folder, resume=True, console=Console(file=said, width=400))
    assert "contains no run yet: starting a new one" in said.getvalue() and same(weights(finished[0]), weights(folder))


LFM2 = MODEL | {"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
RWKV = {"model_type": "rwkv", "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}


@pytest.mark.parametrize(
    ("shape", "slow", "why"), [(LFM2, False, "1 of its 2 layers (such as 0)"), (RWKV, True, "its attention is 'eager'")]
)
def test_a_model_with_a_state_of_its_own_is_trained_and_what_is_slow_is_said(tmp_path: Path, shape: Any, slow: bool, why: str) -> None:
    said = io.StringIO()
    train(tiny_run(model={"config": shape}), out=tmp_path / "a", console=Console(file=said, width=400))
    assert ("sampling is slow: each token computes its whole row again" in said.getvalue()) == slow
    assert f"rows are padded instead of packed: {why}" in said.getvalue()
    assert all(row["mismatch_kl"] < 1e-9 for row in read_jsonl(tmp_path / "a" / "metrics.jsonl"))


@pytest.mark.slow
def test_a_hybrid_model_learns(tmp_path: Path) -> None:
    """A convolution and an attention layer: more of its sampled answers are right at the end, and more of its greedy ones."""
    report = run(
        tmp_path / "a", model={"config": LFM2}, sft_warmup={"max_steps": 60, "batch_size": 32, "learning_rate": 3e-3},
        rollout={"prompts_per_step": 16, "num_generations": 8}, train={"steps": 50, "learning_rate": 2e-3}, eval={"tasks": 25},
        log={"save_every": 50},
    )  # fmt: skip
    assert report.accuracy_before is not None and report.accuracy_after is not None
    assert report.accuracy_after > report.accuracy_before
    assert sum(report.rewards[-10:]) / 10 > sum(report.rewards[:10]) / 10 + 0.15


def test_a_model_that_cannot_be_sampled_from_is_refused_before_the_warm_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.samplers._cache_selection.are_close", lambda *_: False)
    monkeypatch.setattr("rlvr.samplers.hf.find_slot_cache_problem", lambda _: "as the test wants it")
    monkeypatch.setattr("rlvr.training.trainer.run_sft_warmup", lambda *_: pytest.fail("work began"))
    with pytest.raises(ConfigError, match=r"cannot sample from a model of the family llama \(its log-probabilities differ by"):
        run(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_positions_that_the_longest_row_of_a_batch_decides_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    shape = MODEL | {"model_type": "phi3", "original_max_position_embeddings": 16, "rope_parameters": rope}
    with pytest.raises(ConfigError, match=r"beyond 16 this model encodes positions with another factor.*rollout.max_length=16"):
        run(tmp_path / "a", model={"config": shape}, rollout={"max_length": 40, "max_new_tokens": 30})
    run(tmp_path / "a", model={"config": shape}, rollout={"max_length": 16, "prompts_per_step": 4, "num_generations": 4})


def test_a_finished_run_resumed_stays_as_it_is(finished: tuple[Path, TrainReport]) -> None:
    folder, report = finished
    before = (folder / "metrics.jsonl").read_text()
    again = run(folder, resume=True, train={"steps": 4, "learning_rate": 1e-3}, log={"save_every": 2})
    assert (folder / "metrics.jsonl").read_text() == before and again.accuracy_after == report.accuracy_after


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout": {"max_length": 3}}, "rollout.max_length: the prompt of task"),
        ({"env": {"name": "tests/fixtures/worlds.py:LongTest"}}, "rollout.max_length: the prompt of task 'sums/test/3' is "),
        (
            {"algorithm": {"name": "online_dpo"}, "train": {"minibatches_per_step": 2}},
            "minibatches_per_step is 2; this algorithm takes one step per batch",
        ),
        (
            {"model": {"config": MODEL, "lora": {"rank": 2}}, "algorithm": {"name": "grpo", "beta": 0.1, "ref_model_sync_steps": 1}},
            "ref_model_sync_steps is set, but with model.lora",
        ),
        ({"env": {"name": "tests/fixtures/worlds.py:Sums", "bellow": 5}}, "no setting 'bellow'; did you mean 'below'"),
        ({"algorithm": {"name": "grop"}}, "did you mean 'grpo'"),
        ({"eval": {"split": "tset"}}, "eval.split is 'tset'; did you mean 'test'"),
        ({"model": {"path": "nowhere"}}, "'nowhere' is not a folder, and not an id of the Hugging Face Hub"),
        ({"model": {"config": {"model_type": "qwenn2"}}}, "model.config does not build a model"),
        ({"rollout": {"curriculum": {}}}, "generated and never repeat.*available: carries"),
        ({"rollout": {"curriculum": {"meta_key": "carry"}}}, "curriculum.meta_key is 'carry'.*did you mean 'carries'"),
        ({"algorithm": {"name": "gigpo"}}, "gigpo compares turns .* in .*tests/fixtures/worlds.py:Sums the policy has one turn.* use grpo"),
        (
            {"algorithm": {"name": "grpo", "advantage": "gigpo"}},
            "the advantage gigpo compares turns .* the policy has one turn.*; leave out its trait multi_turn, or take an environment",
        ),
        ({"rollout": {"num_generations": 1}}, "num_generations is 1, but grpo compares an answer with others"),
        (
            {"algorithm": {"name": "ppo", "dynamic_sampling_rounds": 3}},
            "advantage of ppo such a group still gives a learning signal",
        ),
        ({"log": {"report_to": ["wandbb"]}}, "log.report_to names 'wandbb'; did you mean 'wandb'"),
        ({"log": {"report_to": ["aim"]}}, "log.report_to names 'aim', which is not installed"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_written(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        run(tmp_path / "x", **changes)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "reinforce_baseline", "reinforce_pp", "remax", "best_of_n"])
def test_one_answer_a_prompt_is_enough_where_none_is_compared_with_its_neighbours(name: str, tmp_path: Path) -> None:
    run(tmp_path / "a", algorithm={"name": name}, rollout={"prompts_per_step": 16, "num_generations": 1, "temperature": 2.0})
    first, last = (load_file(tmp_path / "a" / "checkpoints" / f"step-00000{step}" / "model.safetensors") for step in (1, 2))
    assert any(not torch.equal(first[key], last[key]) for key in first)


def test_the_quickstart_asks_for_what_it_says() -> None:
    config = load_config("quickstart")
    assert config.sft_warmup is not None and config.eval.split == "test" and config.rollout.num_generations >= 2


def test_the_engine_rests_after_each_look_of_a_warm_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, load = list[str](), HFSampler.update_from_model

    def loaded(self: HFSampler, model: Any, version: int) -> None:
        done.append("load")
        load(self, model, version)

    monkeypatch.setattr(HFSampler, "update_from_model", loaded)
    monkeypatch.setattr(HFSampler, "check_model_support", lambda self, model: "")
    monkeypatch.setattr(HFSampler, "sleep", lambda self: done.append("rest"))
    started = {"max_steps": 10, "batch_size": 16, "learning_rate": 1e-6, "target_accuracy": 0.99}
    train(tiny_run(sft_warmup=started, train={"steps": 1}), out=tmp_path / "run", console=Console(file=io.StringIO()))
    assert done[:5] == ["load", "rest", "load", "rest", "load"]  # two looks, then the run


def test_the_warm_start_keeps_to_the_memory_that_training_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    made = Learner.__init__

    def noted(self: Learner, model: Any, algorithm: Any, optimization: OptimizationSettings, **settings: Any) -> None:
        seen.append(optimization)
        made(self, model, algorithm, optimization, **settings)

    monkeypatch.setattr(Learner, "__init__", noted)
    steps = {"steps": 1, "learning_rate": 1e-3, "max_grad_norm": 0.5, "weight_decay": 0.1}
    run(tmp_path / "a", train={**steps, "gradient_checkpointing": True, "max_tokens_per_microbatch": 256})
    assert [(o.gradient_checkpointing, o.max_tokens_per_microbatch) for o in seen] == [(True, 256)] * 2
    assert seen[0] == OptimizationSettings(learning_rate=3e-3, gradient_checkpointing=True, max_tokens_per_microbatch=256)


@pytest.mark.parametrize(
    ("model", "rate", "warned"),
    [
        ({"dtype": "bfloat16"}, 1e-5, True),
        ({"dtype": "bfloat16"}, 1e-4, False),
        ({"dtype": "bfloat16", "lora": {"rank": 2}}, 1e-5, False),
        ({}, 1e-5, False),
    ],
)
def test_steps_that_bfloat16_would_round_away_are_told_before_work_begins(model: dict[str, Any], rate: float, warned: bool) -> None:
    config = tiny_run(model={"config": MODEL, **model}, train={"learning_rate": rate})
    screen = io.StringIO()
    with ExitStack() as stack:
        components = build_components(config, Accelerator(cpu=True), stack)
        Console(file=screen, width=300).print(build_run_table(components, Path("x")))
    assert ("the weights hardly change; use model.dtype=float32 with train.mixed_precision=bf16" in screen.getvalue()) is warned


@pytest.mark.parametrize(
    "asked, deterministic, waits, told",
    [
        ("auto", "auto", True, "to the bit, if its tools are"),
        (False, "auto", False, "rollout.sync_turns=true fixes that"),
        ("auto", False, False, "train.deterministic=true asks for the same bits"),
        (True, False, True, "train.deterministic=true asks for the same bits"),
    ],
)
def test_conversations_wait_for_each_other_in_a_deterministic_run(
    asked: bool | str, deterministic: bool | str, waits: bool, told: str
) -> None:
    """On a CPU a run is deterministic by default; then it must not depend on how long its sessions take."""
    rollout = {"num_generations": 2, "sync_turns": asked}
    train = {"deterministic": deterministic}
    config = tiny_run(env={"name": "tests/fixtures/boards.py:Boards"}, rollout=rollout, train=train, sft_warmup=None)
    with ExitStack() as stack:
        components, screen = build_components(config, Accelerator(cpu=True), stack), io.StringIO()
        Console(file=screen, width=300).print(build_run_table(components, Path("x")))
    assert (
        components.rollout.sync_turns is waits
        and told in screen.getvalue()
        and components.is_bitwise_repeatable is told.startswith("to the bit")
    )
