"""Sampling ahead: batches of a known age, a run that repeats itself to the bit all the same, and an overlap that is real."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config.config import ModelConfig
from rlvr.contracts import SamplerTraits
from rlvr.errors import ConfigError, SamplerError
from rlvr.models.model_loading import load_model
from rlvr.models.plain_weights import compute_model_logprobs
from rlvr.rollout.rollout import RolloutTiming
from rlvr.runs.run_log import RunLog, read_jsonl
from rlvr.samplers.hf import HFSampler
from rlvr.samplers.vllm import VLLMSampler
from rlvr.task import Fault, StepReward, Verdict
from rlvr.training import batch_sources as ahead
from rlvr.training import checkpoint
from rlvr.training.batch_sources import PrefetchedSource, RolloutBatch, batch_from_json, batch_to_json, check_sampling_supported
from rlvr.training.train import train
from rlvr.training.update.learner import Learner
from tests.algorithms.test_credit import said
from tests.fixtures.tiny import tiny_run

ROOT = Path(__file__).parents[2]


def settings(most: int, **changes: Any) -> dict[str, Any]:
    """Six steps with dynamic sampling, a curriculum, an adaptive KL, two minibatches a step and an accuracy in the middle."""
    return {
        "env": {"name": "tests/fixtures/worlds.py:Sums", "below": 12},
        "rollout": {
            "prompts_per_step": 4,
            "num_generations": 4,
            "curriculum": {"meta_key": "carries", "candidates_per_task": 3},
            "max_staleness": most,
        },
        "algorithm": {"name": "dapo", "beta": 0.1, "kl_target": 0.01, "kl_horizon": 100, "dynamic_sampling_rounds": 3},
        "train": {"steps": 6, "learning_rate": 1e-3, "minibatches_per_step": 2},
        "eval": {"tasks": 10, "every": 3},
        "log": {"save_every": 2},
    } | changes


def run(folder: Path, *, resume: bool = False, **changes: Any) -> str:
    """Train; what was said."""
    console = Console(file=io.StringIO(), width=300)
    try:
        train(tiny_run(**changes), out=folder, resume=resume, console=console)
    finally:
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def logs(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("metrics.jsonl", "episodes.jsonl")]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "last" / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    assert logs(one) == logs(other)
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module", params=[1, 2])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("ahead") / "whole"
    run(folder, **settings(request.param))
    return request.param, folder


# ---- the schedule -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_token_is_of_the_version_that_the_schedule_says(whole: tuple[int, Path]) -> None:
    most, folder = whole
    episodes = list(read_jsonl(folder / "episodes.jsonl"))
    for step in range(6):
        assert {e["policy_version"] for e in episodes if e["step"] == step + 1} == {max(0, step - most)}
    model = load_model(ModelConfig(path=str(folder / "checkpoints" / "step-000004")))  # what version 4 was
    others = load_model(ModelConfig(path=str(folder / "checkpoints" / "step-000006")))
    mine = [e for e in episodes if e["step"] == 4 + most + 1]
    assert bool(mine) == (most == 1)
    for e in mine:
        ours, later = compute_model_logprobs(model, e["tokens"]), compute_model_logprobs(others, e["tokens"])
        acted = [i for i, flag in enumerate(e["action_mask"]) if flag]
        assert all(ours[i - 1] == pytest.approx(e["logprobs"][i], abs=1e-5) for i in acted)
        assert any(abs(later[i - 1] - e["logprobs"][i]) > 1e-4 for i in acted)


def test_the_histogram_counts_every_sampled_token_by_its_age(whole: tuple[int, Path]) -> None:
    most, folder = whole
    for step, row in enumerate(read_jsonl(folder / "metrics.jsonl")):
        age = min(step, most)
        counted = {name: value for name, value in row.items() if name.startswith("staleness/")}
        empty = {f"staleness/{n}": 0.0 for n in range(most + 1)}
        assert counted == empty | {f"staleness/{age}": row["tokens/sampled"], "staleness/mean": float(age)}


@pytest.mark.slow
def test_only_the_age_of_the_weights_makes_a_difference(tmp_path: Path) -> None:
    """With weights that never move, questions, seeds and answers are those of a run that samples and trains in turns."""
    still = {"train": {"steps": 6, "learning_rate": 0.0, "minibatches_per_step": 2}}
    told = []
    for most in (0, 1, 3):
        run(tmp_path / str(most), **settings(most, **still))
        rows = read_jsonl(tmp_path / str(most) / "episodes.jsonl")
        told.append([{name: value for name, value in row.items() if name != "policy_version"} for row in rows])
        metrics = list(read_jsonl(tmp_path / str(most) / "metrics.jsonl"))
        assert any("staleness" in name for row in metrics for name in row) == bool(most)
    assert told[0] == told[1] == told[2] and len(told[0]) >= 96


# ---- to the bit, after whatever happened ------------------------------------------------------------------------------

MOMENTS: dict[str, tuple[Any, str, int]] = {
    "sampling beside an update": (HFSampler, "stream_from_queue", 10),
    "updating beside a sampler": (Learner, "update_with_diagnostics", 4),
    "writing the logs": (RunLog, "log_episodes", 5),
    "waiting before a checkpoint": (PrefetchedSource, "state_dict", 3),
    "inside a checkpoint": (checkpoint, "_replace_link", 3),
    "behind a checkpoint": (checkpoint, "_fsync", 20),
}
"""Per moment: what is called then, and at which call the process is killed."""


def dying_at(moment: str) -> None:
    """Have this process killed at a moment."""
    owner, name, last = MOMENTS[moment]
    original, calls = getattr(owner, name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


KILLED = """
import os, sys
from pathlib import Path
from tests.training import test_ahead as t
for k, moment in enumerate(sys.argv[3:]):
    child = os.fork()
    if child == 0:
        t.dying_at(moment)
        t.run(Path(sys.argv[1]) / str(k), **t.settings(int(sys.argv[2])))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9, moment
"""


@pytest.mark.slow
@pytest.mark.parametrize("moments", [["sampling beside an update", "inside a checkpoint"], [*MOMENTS]], ids=["at two", "at any"])
def test_a_run_killed_at_any_moment_ends_like_one_that_was_not(
    whole: tuple[int, Path], moments: list[str], tmp_path: Path, preloaded: Path
) -> None:
    most, folder = whole
    done = subprocess.run(
        [preloaded / "program", KILLED, str(tmp_path), str(most), *moments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    begun = set()
    for k, moment in enumerate(moments):
        last = tmp_path / str(k) / "checkpoints" / "last"
        begun.add(last.readlink().name if last.is_symlink() else "nothing")  # the first checkpoint is written by a thread too
        assert not (tmp_path / str(k) / "report.json").exists(), moment
        run(tmp_path / str(k), resume=True, **settings(most))
        assert_same(tmp_path / str(k), folder)
    assert len(begun) > 1


@pytest.mark.parametrize("lacking", ["logprobs", "batches", "scheduler"])
def test_a_checkpoint_of_an_earlier_version_is_refused_in_a_sentence(whole: tuple[int, Path], tmp_path: Path, lacking: str) -> None:
    """Its batches ahead may lack what is recorded today, and so may the learner's state."""
    most, folder = whole
    shutil.copytree(folder, tmp_path / "old", symlinks=True)
    place = tmp_path / "old" / "checkpoints" / "step-000004"
    shutil.rmtree(place.with_name("step-000006"))
    state = torch.load(place / "learner.pt", weights_only=True)
    if lacking == "logprobs":
        batches = json.loads(state["batch_source"]["batches"])
        del batches[0]["groups"][0][0]["logprobs"]
        state["batch_source"]["batches"] = json.dumps(batches)
    else:
        del state[{"batches": "batch_source", "scheduler": "learner"}[lacking]][lacking]
    torch.save(state, place / "learner.pt")
    (place / "manifest.json").write_text(json.dumps(checkpoint._hash_files(place)))
    before = logs(tmp_path / "old")
    with pytest.raises(ConfigError, match=rf"step-000004 is not a checkpoint of this version of rlvr: .*'{lacking}'") as caught:
        run(tmp_path / "old", resume=True, **settings(most))
    assert "resume with the version that wrote it" in str(caught.value)
    assert logs(tmp_path / "old") == before


def test_a_batch_is_written_and_read_to_the_last_digit() -> None:
    earned = (StepReward(0.1, turn=0), StepReward(0.2, characters=3))
    verdict = Verdict(0.1 + 0.2, "nearly", components={"place": 1 / 3}, detail={"forms": ["x", 1]}, step_rewards=earned)
    failed = Verdict(None, "down", fault=Fault.INFRA)
    group = [said(0.1 + 0.2), said(None)]
    for episode, judged in zip(group, (verdict, failed), strict=True):
        object.__setattr__(episode, "verdict", judged)
        episode.meta.update(index=3, dropped="surplus")
    batch = RolloutBatch([group], {"surplus": [group[:1]]}, {"kept": 1 / 3}, RolloutTiming(1 / 3, 0.1))
    assert batch_from_json(batch_to_json(batch)) == batch


# ---- faults -----------------------------------------------------------------------------------------------------------


def failing(call: int, then: Callable[[], None]) -> Any:
    original, calls = HFSampler.stream_from_queue, [0]

    def stream_from_queue(self: HFSampler, *args: Any) -> Iterator[Any]:
        calls[0] += 1
        for pair in original(self, *args):
            yield pair
            if calls[0] == call and pair is not None:
                then()

    return stream_from_queue


@pytest.mark.slow
def test_a_sampler_that_fails_beside_an_update_is_told_and_the_run_goes_on(
    whole: tuple[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, folder = whole

    def fall() -> None:
        raise SamplerError("the engine fell over")

    with monkeypatch.context() as patched, pytest.raises(SamplerError, match="the engine fell over"):
        patched.setattr(HFSampler, "stream_from_queue", failing(9, fall))
        run(tmp_path / "torn", **settings(most))
    assert 0 < len((tmp_path / "torn" / "metrics.jsonl").read_text().splitlines()) < 6
    run(tmp_path / "torn", resume=True, **settings(most))
    assert_same(tmp_path / "torn", folder)


@pytest.mark.slow
def test_a_trainer_that_fails_does_not_wait_for_the_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends at one of the next completions, not after all sixteen."""
    torn, sampled = threading.Event(), count()

    def slowly() -> None:
        torn.set()
        next(sampled)
        time.sleep(0.5)

    def update(self: Learner, groups: Any) -> Any:
        torn.wait(20)
        raise MemoryError("no room")

    monkeypatch.setattr(
        HFSampler, "stream_from_queue", failing(4, slowly)
    )  # the model check, the accuracy before, the first batch, the second
    monkeypatch.setattr(Learner, "update_with_diagnostics", update)
    plain = settings(1, algorithm={"name": "grpo"})
    with pytest.raises(MemoryError, match="no room"):
        run(tmp_path / "x", **plain)
    assert torn.is_set() and next(sampled) < 12


# ---- the overlap ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_takes_as_long_as_the_longer_of_its_two_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nap = 0.3
    sample, update = HFSampler.stream_from_queue, Learner.update_with_diagnostics

    def stream_from_queue(self: HFSampler, *args: Any) -> Iterator[Any]:
        time.sleep(nap)
        yield from sample(self, *args)

    def slow(self: Learner, groups: Any) -> Any:
        time.sleep(nap)
        return update(self, groups)

    monkeypatch.setattr(HFSampler, "stream_from_queue", stream_from_queue)
    monkeypatch.setattr(Learner, "update_with_diagnostics", slow)
    share = {}
    for most in (0, 1):
        plain = settings(most, algorithm={"name": "grpo"}, eval={"tasks": 1})
        run(tmp_path / str(most), **plain)
        rows = [row for row in read_jsonl(tmp_path / str(most) / "timings.jsonl")][1:-1]
        share[most] = statistics.median(row["step_time"] / (row["time/sample"] + row["time/update"]) for row in rows)
    assert share[0] > 0.95 and share[1] < 0.75  # half would be all of it


# ---- what is refused, and what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "held", "told"),
    [
        (2, "", "max_staleness is 1, and each of 2 processes samples its share"),
        (1, "it is one engine", "'hf' cannot sample.*one engine"),
    ],
)
def test_what_cannot_overlap_is_refused(processes: int, held: str, told: str) -> None:
    components: Any = SimpleNamespace(
        config=tiny_run(**settings(1)),
        accelerator=SimpleNamespace(num_processes=processes),
        rollout=SimpleNamespace(main_process_samples=False),
        sampler=SimpleNamespace(traits=SamplerTraits(blocks_trainer_reason=held)),
    )
    components.config.rollout.sampler.update(name="hf")
    with pytest.raises(ConfigError, match=told):
        check_sampling_supported(components)


def test_with_nothing_to_sample_there_is_nothing_to_sample_ahead() -> None:
    with pytest.raises(ConfigError, match="max_staleness is 1, but with `data` nothing is sampled"):
        tiny_run(data={}, algorithm={"name": "sft"}, rollout={"max_staleness": 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ({"name": "grpo"}, "corrected by importance_sampling_correction=token_truncate"),
        (
            {"name": "grpo", "importance_sampling_correction": "geometric_mask"},
            "corrected by importance_sampling_correction=geometric_mask",
        ),
        ({"name": "grpo", "importance_sampling_correction": "none"}, "not corrected, as requested"),
        ({"name": "grpo", "old_from_sampler": True}, "the clipped ratio is to the sampler's own probabilities"),
        ({"name": "online_dpo"}, "this algorithm has no correction for it"),
    ],
)
def test_the_correction_is_on_unless_somebody_says_otherwise(tmp_path: Path, algorithm: dict[str, Any], told: str) -> None:
    said = run(tmp_path / "x", rollout={"prompts_per_step": 2, "num_generations": 4, "max_staleness": 2}, algorithm=algorithm)
    assert f"up to 2 steps, with weights that much older; {told}" in said and "exactly on-policy" not in said


def test_a_copy_is_on_the_trainer_s_device_only_for_a_sampler_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """k copies on the device would take the memory of k models from the trainer, for engines that read files."""
    monkeypatch.setattr(ahead, "CPU_DEVICE", torch.device("meta"))  # another device, where there is one device only
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, **shape))
    model.lm_head.weight = model.get_input_embeddings().weight
    for runs, where in ((True, "cpu"), (False, "meta")):
        copied = ahead.copy_model_for_sampler(SimpleNamespace(traits=SamplerTraits(runs_model=runs)), model)  # type: ignore[arg-type]
        assert {t.device.type for t in copied.state_dict().values()} == {where}
        assert copied.lm_head.weight is copied.get_input_embeddings().weight and copied.lm_head.weight is not model.lm_head.weight
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert HFSampler.traits.runs_model and not VLLMSampler.traits.runs_model


def test_a_sampler_with_an_engine_gets_the_weights_of_batches_ahead(tmp_path: Path) -> None:
    rollout = {"prompts_per_step": 4, "num_generations": 4, "max_staleness": 1}
    for name in ("hf", "tests/fixtures/engine.py:Engine"):
        run(tmp_path / name[-6:], rollout={**rollout, "sampler": {"name": name}}, train={"steps": 4, "learning_rate": 1e-2})
    assert_same(tmp_path / "hf", tmp_path / "Engine")
