"""A run that is killed while boxes are open: it resumes to the bit, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.config.config import validate_config
from rlvr.runs.folder_owner import get_owner_label
from rlvr.training.train import train
from tests.fixtures.boxed import EVENTS, birth, descendants, happenings, left, timeless
from tests.fixtures.preloaded import COMMAND, started_program
from tests.fixtures.tiny import MODEL, tiny_run

ROOT = Path(__file__).resolve().parents[2]


def outcome(folder: Path) -> Any:
    last, episodes = folder / "checkpoints" / "last", (folder / "episodes.jsonl").read_text().splitlines()
    files = [(path.name, path.read_bytes()) for path in (last / "model.safetensors", last / "learner.pt", folder / "metrics.jsonl")]
    return dict(files) | {"episodes": [timeless(json.loads(line)) for line in episodes]}


@pytest.mark.slow
def test_a_run_killed_with_open_boxes_resumes_to_the_bit_and_leaves_nothing(tmp_path: Path, preloaded: Path) -> None:
    env = {"name": f"{ROOT}/tests/fixtures/boxed.py:Adds", "sandbox": {"name": "process", "trusted": True}}
    rollout = {"prompts_per_step": 2, "num_generations": 2, "sync_turns": True}
    model = {"config": MODEL | {"max_position_embeddings": 128}}
    config = tiny_run(
        env=env, rollout=rollout, model=model, sft_warmup=None, eval={"tasks": 2}, seed=5
    )  # both of its steps have a gradient
    (tmp_path / "recipe.yaml").write_text(config.to_yaml(), "utf-8")
    arguments = ("train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "killed"))
    events, until = tmp_path / "events", time.monotonic() + 120
    with started_program(preloaded, COMMAND, *arguments, said=tmp_path / "said", env={**os.environ, EVENTS: str(events)}) as process:
        while True:
            assert process.client.poll() is None and time.monotonic() < until
            saved = (tmp_path / "killed" / "checkpoints" / "last").resolve().name == "step-000001"  # the second rollout is under way
            if saved and "call" in events.read_text().rpartition("open")[2]:
                os.kill(process.pid, signal.SIGSTOP)  # what is open now stays open until it is killed
                if happenings(events, "open") > happenings(events, "close"):
                    break
                os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.002)
        label, below = get_owner_label(process.pid), list(descendants(process.pid))
        process.kill()
        for one, born in below:  # so that nobody but the next start can clean up
            if birth(one) == born:
                with suppress(ProcessLookupError):  # it ended in this moment
                    os.kill(one, signal.SIGKILL)
    assert happenings(events, "open") > happenings(events, "close") and below and left(label, below)["folders"]
    quiet = Console(quiet=True)
    again = validate_config(config.model_dump(mode="json"), "recipe")
    train(again, out=tmp_path / "killed", resume=True, console=quiet)
    assert left(label, below) == {"containers": 0, "processes": 0, "folders": 0}
    train(config, out=tmp_path / "whole", console=quiet)
    whole, killed = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    assert whole == killed and len(whole["episodes"]) == 8 and len({row["turns"] for row in whole["episodes"]}) > 1
    assert all(json.loads(line)["grad_norm"] > 0 for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    assert len({row["reward"] for row in whole["episodes"]}) == 2
