"""FSDP2 on two gloo processes: precision, memory, checkpoints and adapters. One start of the processes serves all tests."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError, RlvrError
from rlvr.models.model_loading import load_model
from rlvr.models.safetensors_files import TensorFolderReader, TensorWriter
from rlvr.training.update.policy import PolicyOutputs, require_float32
from tests.training.peers.launch import ROOT, ended, started
from tests.training.update.shards import PARTS, REFERENCE, apart, flat, groups, new

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # the start of the processes counts with the first test

MODULE = "tests.training.update.shards"
ROUNDING = 5e-6
"""The difference of weights that sums in another order may make; 4e-7 to 2e-6 was seen, by processor."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, preloaded: Path) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    alone = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(preloaded / "program"), f"from {MODULE} import main; main()", str(folder), "alone"]
    subprocess.run(command, cwd=ROOT, env=alone, check=True, timeout=700)
    run_parts(folder, *(part for part in PARTS if part != "compiled"), preloaded=preloaded)
    return folder


def run_parts(folder: Path, *parts: str, preloaded: Path) -> dict[str, Any]:
    """What two processes find out in some parts."""
    said = folder / f"said_{parts[0]}"
    codes = ended(started(2, MODULE, [str(folder), *parts], said, preloaded=preloaded), 700)
    assert codes == [0, 0], "".join(path.read_text()[-3000:] for path in sorted(said.iterdir()))
    told: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return told


@pytest.fixture(scope="module")
def found(home: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((home / "found.json").read_text())
    return told


def test_in_bf16_log_probabilities_leave_the_model_in_float32(found: dict[str, Any]) -> None:
    bf16 = found["precision"]
    assert bf16["dtypes"] == ["torch.float32"] and bf16["packed"]
    assert bf16["reduced"] == ["torch.float32"]  # gradients; in bfloat16 each addition would lose what is 256 times smaller
    errors = bf16["logprobs"]
    assert errors["ours"] < 4 * errors["autocast"] and errors["ours"] < 0.5 * errors["cast outputs"], errors
    assert bf16["heads"] == {"shared": "torch.bfloat16", "exact": "torch.float32"}  # with fp32_head it is not rounded on the way
    assert bf16["gradient"] < 0.03  # 2 ** -8 is 0.004 for one number, and a gradient goes through some thirty products


def test_scores_in_half_precision_are_refused() -> None:
    with pytest.raises(RlvrError, match=r"torch.bfloat16, and must be float32; .* remove output_dtype"):
        require_float32(PolicyOutputs(torch.zeros(3, dtype=torch.bfloat16), None, None))


@pytest.mark.parametrize("kind", ["plain", "reference"])
def test_two_steps_of_several_microbatches_are_those_of_one_process(found: dict[str, Any], kind: str) -> None:
    steps = found["updates"][kind]
    assert steps["microbatches"] > 4 and steps["weights"] < 1e-5
    assert steps["kl"] == pytest.approx(steps["kl_alone"], rel=1e-4, abs=1e-9)


def test_no_process_holds_more_than_its_shards(found: dict[str, Any]) -> None:
    steps = found["updates"]
    assert steps["kept_whole"] == 0  # no_sync: gradients would be added up whole
    assert all(0.49 < steps[kind]["share"] < 0.55 for kind in ("plain", "reference"))  # a reference is sharded too


@pytest.mark.parametrize("what", ["hand-over", "checkpoint", "resume"])
def test_one_tensor_is_whole_at_a_time(found: dict[str, Any], what: str) -> None:
    figures = found["stream"][what]
    assert figures["most"] <= 1
    assert what == "resume" or figures["made"] >= 30


def test_a_resumed_run_is_the_run_that_went_on(found: dict[str, Any]) -> None:
    assert found["stream"]["same"] and found["stream"]["apart_from_alone"] < ROUNDING
    assert found["stream"]["parts"] == ["__0_0.distcp", "__1_0.distcp"]
    assert found["stream"]["probe"] < 1e-5


def test_what_two_processes_wrote_is_resumed_in_one(home: Path) -> None:
    state = torch.load(home / "kept" / "state.pt")
    assert not state["optimizer"]["state"] and state["reference"] is None  # both are in the shards
    model = load_model(ModelConfig(path=str(home / "kept")))
    learner = new(Accelerator(cpu=True), model, REFERENCE, frozen_models={"reference": copy.deepcopy(model)})
    learner.load_state_dict(state, home / "kept")
    learner.update(groups())
    assert apart(flat(learner.gather_model()), torch.load(home / "truth.pt")["reference"]["weights"]) < ROUNDING


def test_an_engine_gets_matrices_in_its_precision_and_a_folder_that_transformers_loads(home: Path) -> None:
    sent, kept = (load_file(home / name / "model.safetensors") for name in ("engine", "kept"))
    assert {w.dtype for w in sent.values() if w.ndim > 1} == {torch.bfloat16} and sent["model.norm.weight"].dtype is torch.float32
    assert "lm_head.weight" not in sent  # tied
    before = load_file(home / "start" / "model.safetensors")
    assert list(before) == list(kept) and not torch.equal(before["model.norm.weight"], kept["model.norm.weight"])
    model: Any = AutoModelForCausalLM.from_pretrained(home / "engine", dtype=torch.float32)
    assert all(torch.equal(p, sent[name].float()) for name, p in model.named_parameters())


def test_an_adapter_on_sharded_weights_learns_as_in_one_process(found: dict[str, Any], home: Path) -> None:
    lora = found["adapters"]
    assert lora["weights"] < ROUNDING and lora["most"] <= 1 and lora["adapter"] > 0
    assert lora["kl"] == pytest.approx(lora["kl_alone"], rel=1e-4, abs=1e-9) and lora["kl"][1] > 0
    before, merged = (load_file(home / name / "model.safetensors") for name in ("start", "merged"))
    assert list(before) == list(merged)
    changed = {name for name in before if not torch.equal(before[name], merged[name])}
    assert changed and all("proj" in name for name in changed)


def test_experts_are_read_and_written_under_the_names_of_files(found: dict[str, Any]) -> None:
    assert found["experts"] == {"converted": True, "same": True}


def test_layers_of_a_sharded_model_are_compiled(found: dict[str, Any], home: Path, preloaded: Path) -> None:
    for checkpointing, part in run_parts(home, "compiled", preloaded=preloaded)["compiled"].items():
        assert (part["reason"], part["failures"]) == ("", []) and "forward" in part["functions"], checkpointing
        assert part["weights"] < ROUNDING, checkpointing


def test_a_sharded_model_is_compared_with_its_plain_forward_pass(found: dict[str, Any]) -> None:
    """The weights are there only when they are sharded, so it is looked at then; all processes refuse it together."""
    said, tables = found["honest"]["said"], found["honest"]["tables"]
    table = {row["name"]: row for row in tables["right"]}
    assert {"a second pass", "padded rows", "rows in training mode", "packed rows", "packed rows, another row changed"} <= table.keys()
    assert table["layers with attention"]["note"].startswith("3 of 3") and all(row["ok"] for row in tables["right"])
    assert list(said) == ["mixing"] and "family qwen2 cannot be trained: padded rows do not give the probabilities" in said["mixing"]


def test_a_file_is_read_by_rows_and_written_as_announced(tmp_path: Path) -> None:
    whole = {"a": torch.randn(6, 3), "b": torch.arange(4, dtype=torch.bfloat16), "c": torch.tensor(2.0), "d": torch.empty(0, 3)}
    with TensorWriter(tmp_path / "model.safetensors", whole) as file:
        for name, tensor in whole.items():
            file.write_tensor(name, tensor)
    loaded = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor) and loaded[name].dtype is tensor.dtype for name, tensor in whole.items())
    folder = TensorFolderReader(tmp_path)
    assert torch.equal(folder.read_slice("a", (slice(2, 4), slice(0, 3))), whole["a"][2:4]) and torch.equal(
        folder.read_slice("c", ()), whole["c"]
    )
    assert torch.equal(folder.read_slice("a", (slice(5, 6), slice(1, 3))), whole["a"][5:6, 1:3])
    assert folder.read_slice("a", (slice(6, 6), slice(0, 3))).shape == (0, 3)  # the share of a process for which no row is left
    assert folder.has_tensors({"a": (6, 3)}) and not folder.has_tensors({"a": (3, 6)}) and not folder.has_tensors({"x": (1,)})
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"model.safetensors is not a complete safetensors file: it ends too early"):
        TensorFolderReader(tmp_path)
    wrong = r"b .*was written, but a with"
    with pytest.raises(ValueError, match=wrong), TensorWriter(tmp_path / "other", whole) as file:
        file.write_tensor("b", whole["b"])
    with pytest.raises(ValueError, match="4 declared tensors were not written, such as a"), TensorWriter(tmp_path / "other", whole):
        pass
