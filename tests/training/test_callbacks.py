"""Callbacks: a user's own ends a run, sees what happens, and the best model is kept."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import EarlyStoppingCallback, TrainerCallback

import rlvr.synonyms
from rlvr.errors import ConfigError
from rlvr.runs.run_log import read_jsonl
from rlvr.training.callbacks import BestCheckpoint, Callback, StepRecord, check_callbacks
from rlvr.training.trainer import Trainer
from tests.fixtures.tiny import tiny_run

GRPO = {"name": "grpo", "old_from_sampler": False}


class StopEarly(Callback):
    """Ends a run when the reward's spread or the policy's entropy falls below a limit."""

    def __init__(self, metric: str, limit: float) -> None:
        self.metric, self.limit = metric, limit

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        if record.metrics[self.metric] < self.limit:
            trainer.stop(f"{self.metric} is below {self.limit:g}")


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_run_begin(self, trainer: Trainer) -> None:
        self.events.append("begin")

    def on_batch(self, trainer: Trainer, step: int, batch: Any) -> None:
        self.events.append(("batch", step, len(batch.groups)))

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        self.events.append(("step", record.step))

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        self.events.append(("evaluate", step))

    def on_save(self, trainer: Trainer, step: int) -> None:
        self.events.append(("save", step))

    def on_run_end(self, trainer: Trainer, report: Any) -> None:
        self.events.append(("end", report.steps))


def run(folder: Path, *callbacks: Callback, resume: bool = False, **changes: Any) -> Any:
    console = Console(file=io.StringIO(), width=200)
    with Trainer(tiny_run(**changes), out=folder, callbacks=callbacks, console=console, resume=resume) as trainer:
        return trainer.fit(), console.file.getvalue()  # type: ignore[attr-defined]


def test_a_callback_stops_a_run_which_is_saved_and_says_why(tmp_path: Path) -> None:
    settings: Any = {"algorithm": {"name": "dapo", "entropy_coef": 0.001}, "train": {"steps": 9}, "log": {"save_every": 5}}
    report, said = run(tmp_path / "a", StopEarly("entropy", 100.0), **settings)
    assert report.steps == 1 and report.status == "stopped: entropy is below 100" and "stopped: entropy is below 100 after 1 step" in said
    assert len(list(read_jsonl(tmp_path / "a" / "metrics.jsonl"))) == 1
    assert (tmp_path / "a" / "checkpoints" / "last").readlink().name == "step-000001"
    assert json.loads((tmp_path / "a" / "report.json").read_text())["status"] == report.status
    report, _ = run(tmp_path / "a", resume=True, **settings)
    assert report.steps == 9 and report.status == "finished"


class ComparesWeights(Callback):
    """Keeps the largest difference between the weights that are evaluated and those that were trained."""

    difference = 0.0

    def on_batch(self, trainer: Trainer, step: int, batch: Any) -> None:
        with torch.no_grad():
            trainer.model.get_input_embeddings().weight.add_(1e-3)  # weights change in every step, whatever the rewards are

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        sampled: Any = trainer.sampler
        pairs = zip(trainer.model.parameters(), sampled.model.parameters(), strict=True)
        self.difference = max(float((own.detach() - theirs.detach()).abs().max()) for own, theirs in pairs)


def test_a_run_that_is_stopped_is_evaluated_with_its_last_weights(tmp_path: Path) -> None:
    settings: Any = {"algorithm": {"name": "dapo", "entropy_coef": 0.001}, "train": {"steps": 9}, "rollout": {"max_staleness": 1}}
    compared = ComparesWeights()
    report, _ = run(tmp_path / "a", compared, StopEarly("entropy", 100.0), **settings)
    assert report.steps == 1 and compared.difference == 0.0


def test_every_event_is_told_in_its_order(tmp_path: Path) -> None:
    seen = Recorder()
    run(tmp_path / "a", seen, train={"steps": 2}, eval={"tasks": 4, "every": 1}, log={"save_every": 2})
    assert seen.events == [
        ("evaluate", 0), ("save", 0), "begin",
        ("batch", 1, 4), ("evaluate", 1), ("step", 1),
        ("batch", 2, 4), ("evaluate", 2), ("save", 2), ("step", 2),
        ("evaluate", 2), ("end", 2),
    ]  # fmt: skip


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    run(tmp_path / "a", BestCheckpoint(), train={"steps": 3, "learning_rate": 1e-3}, eval={"tasks": 10, "every": 1})
    kept = json.loads((tmp_path / "a" / "best" / "accuracy.json").read_text())
    assert (tmp_path / "a" / "best" / "model.safetensors").is_file()
    known = [row["eval/accuracy"] for row in read_jsonl(tmp_path / "a" / "metrics.jsonl")]
    before = json.loads((tmp_path / "a" / "report.json").read_text())["accuracy_before"]
    assert kept["accuracy"] == max(*known, before)


def test_one_callback_is_a_list_of_one_and_what_nothing_calls_is_refused() -> None:
    class Quiet(Callback):
        def on_step_end(self, trainer: Any, step: int, record: StepRecord) -> None:
            self._on_step()

        def _on_step(self) -> None:
            pass

        @staticmethod
        def on_save(trainer: Any, step: int) -> None:
            pass

    class StableBaselines(Callback):
        def _on_step(self) -> bool:
            return True

    class Short(Callback):
        def on_step_end(self) -> None:  # type: ignore[override]
            pass

    quiet = Quiet()
    assert check_callbacks(quiet) == check_callbacks([quiet]) == check_callbacks((quiet,)) == [quiet] and check_callbacks(()) == []
    head = r"write on_step_end\(self, trainer, step, record\)"
    with pytest.raises(ConfigError, match=f"has the method _on_step, which nothing calls; {head}"):
        check_callbacks(StableBaselines())
    with pytest.raises(ConfigError, match=rf"Short.on_step_end takes \(self\); {head}"):
        check_callbacks([Short()])
    assert rlvr.synonyms.translate_keywords("train", {"callback": quiet}) == {"callbacks": quiet}


class TransformersRecorder(TrainerCallback):
    """Notes what a trainer of transformers tells its callbacks, and ends the run at a step."""

    def __init__(self, stop_at: int = 0) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.stop_at = stop_at

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(("begin", state.max_steps, args.seed, type(kwargs["model"]).__name__))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.events.append(("log", state.global_step, logs["reward"], state.log_history[-1]["step"]))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self.events.append(("evaluate", state.global_step, metrics["eval_accuracy"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop = state.global_step == self.stop_at
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(("end", state.global_step, state.best_metric))


EVALUATED: Any = {"train": {"steps": 4, "learning_rate": 1e-3}, "eval": {"tasks": 4, "every": 1}}


def test_a_callback_of_transformers_is_called_and_ends_the_run(tmp_path: Path) -> None:
    recorder: Any = TransformersRecorder(stop_at=2)
    report, _ = run(tmp_path, recorder, **EVALUATED)
    rows = [*read_jsonl(tmp_path / "metrics.jsonl")]
    scores = [row["eval/accuracy"] for row in rows]
    begin, *events, end = recorder.events
    assert begin == ("begin", 4, 0, "LlamaForCausalLM")
    assert events[:2] == [("evaluate", 1, scores[0]), ("log", 1, rows[0]["reward"], 1)]
    assert [event[:2] for event in events] == [("evaluate", 1), ("log", 1), ("evaluate", 2), ("log", 2)]
    assert end == ("end", 2, max(scores))
    assert report.steps == 2 and "TransformersRecorder.on_step_end set control.should_training_stop" in report.status


class Odd(TrainerCallback):
    """Returns what no callback returns, or reads a setting that a run here lacks."""

    def __init__(self, returned: Any = None) -> None:
        self.returned = returned

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        return args.logging_first_step if self.returned is None else self.returned


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (Odd(5), "Odd.on_step_end returned 5; it must return its control, or nothing"),
        (Odd(), "reads args.logging_first_step, which a run here"),
    ],
)
def test_a_callback_of_transformers_that_does_not_fit_is_named(callback: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, callback, train={"steps": 1})


def test_early_stopping_of_transformers_goes_on_after_a_resume(tmp_path: Path) -> None:
    first: Any = TransformersRecorder(stop_at=2)
    run(tmp_path, first, **EVALUATED)
    resumed: Any = TransformersRecorder()
    patient: Any = EarlyStoppingCallback(early_stopping_patience=9)
    run(tmp_path, resumed, patient, resume=True, **EVALUATED)
    rows = [*read_jsonl(tmp_path / "metrics.jsonl")]
    assert [event[1] for event in resumed.events if event[0] == "log"] == [3, 4]
    assert resumed.events[-1] == ("end", 4, max(row["eval/accuracy"] for row in rows))
    report, _ = run(tmp_path / "impatient", EarlyStoppingCallback(early_stopping_threshold=2.0), **EVALUATED)
    assert report.steps == 2 and "EarlyStoppingCallback.on_evaluate" in report.status
