"""Several processes are one run: the same lines and weights as alone, and no waiting for one that is gone."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from rich.console import Console
from safetensors.torch import load_file

from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.device_defaults import CPU_DEFAULTS
from rlvr.runs.run_log import read_jsonl
from rlvr.training import components, processes
from rlvr.training.distributed import group
from rlvr.training.distributed.serialization import deserialize, serialize
from rlvr.training.processes import build_accelerator
from rlvr.training.train import train
from rlvr.training.update.fsdp import FolderWeightLoader
from tests.fixtures.families import model_of
from tests.fixtures.tiny import MODEL, tiny_run
from tests.training.peers.launch import ended, free_port, started
from tests.training.test_train import EVERYTHING

ROOT = Path(__file__).parents[2]
# the last two are those of some rows of each process
NOT_COMPARED = {"tokens/computed_with_padding", "sampling/logp_difference_max", "update_kl", "update_gain"}
"""How many tokens went through the model depends on who computes what, and so does the largest of all rounding errors."""


WAYS = {"cpu": ["rlvr", "train"], "fsdp2": ["tests.training.fsdp2"]} | (
    {"deepspeed_zero2": ["tests.training.zero2"]} if find_spec("deepspeed") else {}
)
"""The launch configuration, and what is launched with it. DeepSpeed is no part of any extra: it is tried where it is installed."""


def launched(way: str, recipe: Path, *more: str, timeout: float = 240, preloaded: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run two processes: through accelerate's launcher, or, with `preloaded`, in forks of a process that has done the imports."""
    if preloaded is not None and way == "cpu":
        (module, *args), said = WAYS[way], recipe.with_name(f"{recipe.stem}_said_{free_port()}")
        codes = ended(started(2, module, [*args, str(recipe), *more], said, preloaded=preloaded, errors_apart=True), timeout)
        out, err = ("".join((said / f"{rank}.{end}").read_text("utf-8") for rank in range(2)) for end in ("out", "err"))
        return subprocess.CompletedProcess([module, *args], max(codes), out, err)
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(ROOT / "rlvr" / "training" / "launch" / f"{way}.yaml"),
    ]
    command += ["--num_processes", "2", "--main_process_port", str(free_port()), "-m", *WAYS[way], str(recipe), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def recipe_at(path: Path, **changes: Any) -> Path:
    path.write_text(tiny_run(**changes).to_yaml())
    return path


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([w.double().flatten() for w in load_file(folder / "checkpoints" / "last" / "model.safetensors").values()])


def spoken(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["group"], row["task_id"], row["tokens"], row.get("dropped")


def alike(ours: Path, theirs: Path) -> None:
    """The same run up to the order in which numbers are added."""
    assert float((weights(theirs) - weights(ours)).norm() / weights(ours).norm()) < 1e-6
    lines = [list(read_jsonl(folder / "metrics.jsonl")) for folder in (ours, theirs)]
    assert len(lines[0]) == len(lines[1]) == 4
    for a, b in zip(*lines, strict=True):
        a, b = ({k: v for k, v in row.items() if k not in NOT_COMPARED} for row in (a, b))
        assert b == pytest.approx(a, rel=1e-6, abs=1e-7)
    said = [[spoken(row) for row in read_jsonl(folder / "episodes.jsonl")] for folder in (ours, theirs)]
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_make_the_run_that_one_makes_and_resume_it(tmp_path: Path, way: str, preloaded: Path) -> None:
    """Replicated, and with weights, gradients and optimizer state cut in two."""
    alone, two, cut = tmp_path / "alone", tmp_path / "two", tmp_path / "cut"
    settings = {**EVERYTHING, "eval": {"tasks": 9, "every": 2}}
    train(tiny_run(**settings), out=alone, console=Console(file=io.StringIO()))
    recipe = recipe_at(tmp_path / "run.yaml", **settings)
    done = launched(way, recipe, "--out", str(two), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    *others, said = done.stdout.splitlines()
    assert ("model check: log-probabilities differ from those of a plain forward pass" in done.stderr) == (way == "fsdp2"), done.stderr[
        -3000:
    ]
    assert json.loads(said)["steps"] == 4 and (not others or way == "deepspeed_zero2")  # one JSON object: one process speaks
    alike(alone, two)
    if way == "deepspeed_zero2":
        done = launched(way, recipe, "--out", str(two), "--resume")
        assert done.returncode and "--resume under DeepSpeed is not supported" in done.stderr
        return

    shutil.copytree(two, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "step-000004")
    (cut / "report.json").unlink()
    exact = way == "cpu"  # the first sharded step of a new process was seen to differ in the last bit of its loss
    done = launched(way, recipe, "--out", str(cut), "--resume", preloaded=preloaded)
    assert done.returncode == 0, done.stderr[-3000:]
    alike(two, cut)
    if exact:
        assert torch.equal(weights(cut), weights(two))
        for name in ("metrics.jsonl", "episodes.jsonl"):
            assert (cut / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raises", "process 1 of 2 failed: SamplerError: the engine fell over"),
        ("hangs", "process 0 of 2 waited for another process that exited or did not answer"),
    ],
)
def test_an_error_in_one_process_ends_the_others(tmp_path: Path, how: str, told: str, preloaded: Path) -> None:
    rollout = {"sampler": {"name": "tests/fixtures/moody.py:Moody", "how": how}, "prompts_per_step": 4, "num_generations": 2}
    recipe = recipe_at(tmp_path / "run.yaml", rollout=rollout, train={"steps": 3, "collective_timeout_s": 5.0})
    began = time.monotonic()
    # the one that hangs is before a release only, and there it is in the hands of the launcher
    done = launched("cpu", recipe, "--out", str(tmp_path / "run"), preloaded=preloaded if how == "raises" else None)
    assert done.returncode != 0 and f"error: {told}" in done.stderr, done.stderr[-3000:]
    assert time.monotonic() - began < 200  # the one that hangs would sleep for 300 s


@pytest.mark.slow
def test_no_model_is_wrapped_any_more_when_the_group_of_processes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        WAYS, "cpu", ["tests.fixtures.held"]
    )  # the last wrapper would wait for the group's thread, which may wait for the GIL
    done = launched("cpu", recipe_at(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run"))
    assert done.returncode == 0 and (done.stdout + done.stderr).count("held 0") == 2, done.stderr[-2000:]


def test_a_launch_that_starts_one_process_where_several_were_asked_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ConfigError, match=r"starts a single process.*cpu\.yaml"):
        train(tiny_run(), out=tmp_path / "x", console=Console(file=io.StringIO()))


def test_gradients_are_not_held_a_second_time_for_other_processes(tmp_path: Path) -> None:
    made = build_accelerator(tiny_run(), tmp_path)
    assert made.ddp_handler is not None and made.ddp_handler.gradient_as_bucket_view


def test_the_precision_of_the_device_is_accelerate_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the recipe says otherwise; here the default of an accelerator is the CPU's."""
    monkeypatch.setattr("rlvr.models.device_defaults.CPU_DEFAULTS", replace(CPU_DEFAULTS, mixed_precision="bf16"))
    try:
        for train_in, expected in (({}, "bf16"), ({"mixed_precision": "no"}, "no")):
            AcceleratorState._reset_state(reset_partial_state=True)
            assert build_accelerator(tiny_run(train={"steps": 1, **train_in}), tmp_path).mixed_precision == expected
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_before_it_is_sharded_a_model_is_whole_in_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the CPU nor on the device: each process reads its own rows of the folder."""
    model_of("qwen2", vocab_size=40).save_pretrained(tmp_path)
    monkeypatch.setattr(components, "load_model", lambda *args: pytest.fail("a whole model was loaded"))
    config = tiny_run(model={"path": str(tmp_path)}, tokenizer="chars:0123456789+=")
    sharding: Any = SimpleNamespace(is_fsdp2=True)
    model, fill = components.build_policy_model(config, sharding, CharTokenizer("0123456789+="), None)
    assert {p.device.type for p in model.parameters()} == {"meta"} and isinstance(fill, FolderWeightLoader)


def test_a_precision_that_a_cpu_passes_over_in_silence_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="fp16, which has no effect on a CPU"):
        train(tiny_run(train={"steps": 1, "mixed_precision": "fp16"}), out=tmp_path / "x", console=Console(file=io.StringIO()))


def test_what_fails_in_the_main_process_fails_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    two: Any = SimpleNamespace(num_processes=2)
    monkeypatch.setattr(group, "get_control_group", lambda: "two processes")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)

    def send(told: Any) -> Any:
        sent.append(serialize(told))
        return told

    monkeypatch.setattr(group, "broadcast", send)

    def full() -> None:
        raise OSError(28, "No space left on device")

    def wrong() -> None:
        raise NotFound("no such run")

    with pytest.raises(RlvrError, match=r"the main process failed: OSError: .*No space left") as caught:
        processes.run_on_main(two, full)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(NotFound, match="no such run"):
        processes.run_on_main(two, wrong)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(group, "broadcast", lambda told: deserialize(sent[0]))
    with pytest.raises(RlvrError, match="No space left"):
        processes.run_on_main(two, full)
    monkeypatch.setattr(group, "broadcast", lambda told: deserialize(sent[1]))
    with pytest.raises(NotFound, match="no such run"):
        processes.run_on_main(two, full)


def test_a_launch_that_would_shard_on_a_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate does not shard there, and every process would hold all weights without a word."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(ConfigError, match=r"launched to shard the weights .* launch with .*cpu.yaml"):
        build_accelerator(tiny_run(), tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_ids_that_the_tokenizer_lacks_are_refused_in_a_new_model(tmp_path: Path) -> None:
    config = tiny_run(model={"config": MODEL | {"vocab_size": 64}})
    with pytest.raises(ConfigError, match=r"vocab_size makes 64 ids, but the tokenizer has only 16, .* leave vocab_size out"):
        train(config, out=tmp_path / "run", console=Console(quiet=True))
