"""Conversations in the loop: what their figures mean where one question has many answers and turns run out."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from rlvr.episode import StopReason
from rlvr.training.step_metrics import compute_sampling_metrics
from rlvr.training.train import train
from tests.algorithms.test_credit import said
from tests.fixtures.tiny import tiny_run


def test_one_that_used_up_its_turns_was_not_cut_off() -> None:
    group = [said(1.0), *(said(0.0, end=StopReason.TRUNCATED, truncated=cut) for cut in ("turns", "tokens", "window"))]
    assert compute_sampling_metrics([group])["completions/clipped_ratio"] == 0.5


def test_tasks_with_one_question_and_other_answers_are_other_tasks(tmp_path: Path) -> None:
    talk = {"env": {"name": "guess_number", "max_number": 1000}, "tokenizer": "chars", "sft_warmup": None, "train": {"steps": 1}}
    talk["rollout"] = {"prompts_per_step": 4, "num_generations": 2, "max_length": 64}
    report = train(tiny_run(**talk), out=tmp_path / "a", console=Console(file=io.StringIO()))
    assert report.held_out_tasks > 5 and report.held_out_contaminated == 0
