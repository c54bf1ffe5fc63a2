"""Two learning processes and rollout_workers that sample for both: the run that one process makes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlvr.cluster.training import train
from tests.fixtures.tiny import tiny_run
from tests.training.test_processes import WAYS, alike, launched, recipe_at, weights
from tests.training.test_train import EVERYTHING

PLAIN: dict[str, Any] = {
    "rollout": {"prompts_per_step": 4, "num_generations": 4, "max_staleness": 1},
    "train": {"steps": 4, "learning_rate": 1e-3}, "eval": {"tasks": 9, "every": 2}, "log": {"save_every": 2},
}  # fmt: skip
"""Each batch can be asked before the one before is judged."""
GUIDED: dict[str, Any] = EVERYTHING | {"rollout": EVERYTHING["rollout"] | {"max_staleness": 1}, "eval": {"tasks": 9, "every": 2}}
"""Each batch depends on the answers to the one before."""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "settings", "rollout_workers"), [("cpu", PLAIN, 2), ("fsdp2", PLAIN, 2), ("cpu", GUIDED, 0)])
def test_the_main_process_samples_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: Path, way: str, settings: dict[str, Any], rollout_workers: int
) -> None:
    monkeypatch.setitem(WAYS, way, ["tests.cluster.nearby", *(["sharded"] if way == "fsdp2" else [])])
    alone, two, cut = tmp_path / "alone", tmp_path / "two", tmp_path / "cut"
    train(tiny_run(**settings, cluster={"rollout_workers": 0}), out=alone, console=Console(file=io.StringIO()))
    recipe = recipe_at(tmp_path / "run.yaml", **settings, cluster={"rollout_workers": rollout_workers, "max_restarts_per_worker": 100})
    done = launched(way, recipe, "--out", str(two), "--json", preloaded=preloaded)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["steps"] == 4
    alike(alone, two)

    if way == "cpu" and rollout_workers:
        shutil.copytree(two, cut, symlinks=True)
        shutil.rmtree(cut / "checkpoints" / "step-000004")
        done = launched("cpu", recipe, "--out", str(cut), "--resume", preloaded=preloaded)
        assert done.returncode == 0, done.stderr[-3000:]
        assert torch.equal(weights(cut), weights(two))
        for name in ("metrics.jsonl", "episodes.jsonl"):
            assert (cut / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.slow
def test_rollout_workers_that_cannot_be_started_end_all_processes_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: Path
) -> None:
    monkeypatch.setitem(WAYS, "cpu", ["tests.cluster.nearby", "refused"])
    recipe = recipe_at(tmp_path / "run.yaml", **PLAIN, cluster={})
    done = launched("cpu", recipe, "--out", str(tmp_path / "run"), timeout=120, preloaded=preloaded)
    assert done.returncode and done.stderr.count("error: no cluster answers") == 2, done.stderr[-3000:]
