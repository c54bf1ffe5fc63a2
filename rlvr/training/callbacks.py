"""Callbacks: what happens beside the steps of a run. The shipped ones use the same interface as a user's own.

>>> class StopAtLowEntropy(Callback):
...     def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
...         if record.get("entropy", 1.0) < 0.1:  # stored answers have none
...             trainer.stop("the entropy is below 0.1")
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlvr.errors import ConfigError
from rlvr.hints import Hinted
from rlvr.runs import report as plots
from rlvr.runs.progress import ProgressReporter
from rlvr.runs.run_log import RunLog, TokenDiagnostics, episode_to_json, read_metrics
from rlvr.training.batch_sources import RolloutBatch
from rlvr.training.processes import run_on_main
from rlvr.training.task_sampling.canary import select_rewarded_canaries
from rlvr.training.train_report import TrainReport, format_closing_lines, format_score, format_turn_summary

if TYPE_CHECKING:
    from rlvr.training.run_health import RunHealth
    from rlvr.training.trainer import Trainer

PROGRESS_FRACTIONS = {"workers": "cluster/sampling_fraction", "trainer": "cluster/trainer_busy_fraction"}
"""Fractions of a step that the progress line of a cluster run shows: sampling and training."""


@dataclass(frozen=True, slots=True)
class StepRecord(Mapping[str, Any]):
    """The metrics, times and episodes of one training step."""

    step: int
    """The number of the step, from 1."""
    metrics: Mapping[str, Any]
    """The metrics of the step, as in metrics.jsonl; the page \"The run folder\" lists them. `record["reward"]` reads one."""
    timings: Mapping[str, Any]
    """Its times, as in timings.jsonl."""
    batch: RolloutBatch
    """Its episodes."""
    diagnostics: Sequence[Sequence[TokenDiagnostics]] = ()
    """The advantages and log ratios of each episode, by group; empty if episodes are not logged."""

    def __repr__(self) -> str:
        """Show the main figures; `dict(record)` has all metrics."""
        count = sum(len(group) for group in self.batch.all_groups)
        return f"<StepRecord of step {self.step}: reward {self.metrics.get('reward')}, {count} episodes, {len(self.metrics)} metrics>"

    def __getitem__(self, name: str) -> Any:
        if name not in self.metrics:
            raise KeyError(f"this step has no metric {name!r}; it has {', '.join(self.metrics)}")
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def list_episode_rows(self) -> list[dict[str, Any]]:
        """Return the policy's completions as JSON rows, as in episodes.jsonl."""
        return [
            episode_to_json(self.step, episode, *values)
            for group, of_group in zip(self.batch.all_groups, self.diagnostics, strict=True)
            for episode, values in zip(group, of_group, strict=True)
            if not episode.meta.get("mismatched")
        ]


class Callback(Hinted):
    """Called at the events of a run. Override what you need; every method does nothing here.

    In a run of several processes each of them calls its callbacks, with the same values.
    """

    _hints = {
        **dict.fromkeys(
            ("num_timesteps", "n_calls", "global_step"), "the number of the step is an argument: on_step_end(self, trainer, step, record)"
        ),
        **dict.fromkeys(
            ("model", "trainer", "training_env", "parent"), "the trainer is an argument of every method; trainer.model is the policy"
        ),
        **dict.fromkeys(
            ("locals", "logger", "state"), "metrics are in an argument: on_step_end(self, trainer, step, record), record['reward']"
        ),
    }

    def on_run_begin(self, trainer: Trainer) -> None:
        """Called before the first step of this process."""

    def on_batch(self, trainer: Trainer, step: int, batch: RolloutBatch) -> None:
        """Called when a batch has been sampled, before the update."""

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Called after each step. `trainer.stop(reason)` ends the run after it, and so does a callback that returns False."""

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Called after an evaluation on the held-out tasks; `step` is 0 before training."""

    def on_save(self, trainer: Trainer, step: int) -> None:
        """Called when the checkpoint of a step was handed to the thread that writes it."""

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Called once, when the run has ended without an error."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""The methods of a callback that a trainer calls."""
HOOKS_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("on_log", "on_epoch_end", "on_substep_end", "on_optimizer_step", "on_train_batch_end"), "on_step_end"),
    "on_step": "on_step_end",
    **dict.fromkeys(("on_train_begin", "on_train_start", "on_init_end", "on_training_start", "on_epoch_begin"), "on_run_begin"),
    **dict.fromkeys(("on_train_end", "on_training_end", "on_fit_end"), "on_run_end"),
    **dict.fromkeys(("on_step_begin", "on_rollout_end", "on_train_batch_start"), "on_batch"),
    **dict.fromkeys(("on_validation_end", "on_eval_end", "on_evaluation_end", "on_predict"), "on_evaluate"),
    **dict.fromkeys(("on_save_checkpoint", "on_checkpoint"), "on_save"),
}
"""Methods of callbacks of other libraries, and the one here that is called at that point."""


def check_callbacks(callbacks: Any) -> list[Callback]:
    """Return the callbacks, one or several, as a list. Raise ConfigError for what is no callback, and for methods that would never be
    called, or not as they are written.
    """
    given = list(callbacks) if isinstance(callbacks, Sequence | set) else [callbacks]
    for callback in given:
        kind = callback if isinstance(callback, type) else type(callback)
        if isinstance(callback, type) or not isinstance(callback, Callback):
            what = "class" if isinstance(callback, type) else f"{kind.__module__}.{kind.__name__}, which is no rlvr.Callback"
            raise ConfigError(
                f"the callback {kind.__name__!r} is a {what}; give an object of a subclass of rlvr.Callback (or of "
                "transformers.TrainerCallback), with methods such as "
                f"{_format_hook('on_step_end')}, where record['reward'] is a metric and trainer.stop(reason) ends the run"
            )
        written = {name for base in kind.__mro__ if base is not Callback for name in vars(base)}
        for name in sorted(name for name in written if re.match("_?on_", name) and callable(getattr(kind, name))):
            taken = [*inspect.signature(getattr(kind, name)).parameters]
            if name not in HOOKS:
                meant = HOOKS_ELSEWHERE.get(name.lstrip("_"), "")
                if name.startswith("_") and (not meant or not written.isdisjoint(HOOKS)):
                    continue  # a method of its own
                metric = ", where step is its number and record['reward'] a metric" if meant == "on_step_end" else ""
                if name == "_on_step":  # of stable-baselines3
                    metric += "; there is no self.n_calls, and no self.locals"
                advice = f"write {_format_hook(meant)}{metric}" if meant else f"allowed: {', '.join(map(_format_hook, HOOKS))}"
                raise ConfigError(f"the callback {kind.__name__!r} has the method {name}, which nothing calls; {advice}")
            if "control" in taken:
                raise ConfigError(
                    f"{kind.__name__}.{name} takes {', '.join(taken[1:])}, as in transformers; write {_format_hook(name)}, and return False "
                    "to end the run"
                )
            try:
                inspect.signature(getattr(callback, name)).bind(*[*inspect.signature(getattr(Callback, name)).parameters][1:])
            except TypeError:
                raise ConfigError(f"{kind.__name__}.{name} takes ({', '.join(taken)}); write {_format_hook(name)}") from None
    return given


def _format_hook(name: str) -> str:
    """Format the head of a hook.

    >>> _format_hook("on_save")
    'on_save(self, trainer, step)'
    """
    return f"{name}({', '.join(inspect.signature(getattr(Callback, name)).parameters)})"


class RunLogWriter(Callback):
    """Writes episodes, rewarded canaries, metrics and the report to the run folder."""

    def __init__(self, run_log: RunLog) -> None:
        self.run_log = run_log

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Write the episodes and the metrics of a step; the metrics last, so that a step with a metrics line has all its episodes even
        if the run is killed.
        """
        if trainer.config.log.episodes:
            self.run_log.log_episodes(record.list_episode_rows())
        if "canary" in record.batch.dropped:
            self.run_log.log_rewarded_canaries(record.step, select_rewarded_canaries(record.batch.dropped["canary"]))
        self.run_log.log_metrics(record.metrics, record.timings)

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Write report.json."""
        self.run_log.write_json("report.json", report.to_dict())


class PeriodicCheckpoints(Callback):
    """Saves a checkpoint every `log.save_every` steps and at the end; before the end, none while the run's health is in doubt.

    A step in which Ctrl-C or SIGTERM ends the run is saved even in doubt: else a job that is stopped often would never get on.
    """

    def __init__(self, health: RunHealth) -> None:
        self.health, self._is_due = health, False

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Save, if it is time."""
        self._is_due |= step == trainer.num_steps or step % trainer.config.log.save_every == 0 or trainer.is_interrupted
        if self._is_due and (step == trainer.num_steps or trainer.is_interrupted or not self.health.is_in_doubt):
            self._is_due = False
            trainer.save()


class ProgressLine(Callback):
    """Shows the progress of the run with its main metrics."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._shown: list[ProgressReporter] = []

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Print the accuracy before training."""
        if step == 0:
            is_partial = bool(trainer.report_values.get("has_partial_scores"))
            name = "mean held-out score" if is_partial else "held-out accuracy"
            self.console.print(f"{name} before: {format_score(accuracy, is_partial=is_partial)}", highlight=False)

    def on_run_begin(self, trainer: Trainer) -> None:
        """Show the progress bar."""
        shown = ProgressReporter(self.console, "training", trainer.num_steps, trainer.num_completed_steps)
        self._shown = [trainer.enter_context(shown)]

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Advance the progress bar, with the main metrics of the step."""
        for shown in self._shown:
            shown.advance(_select_progress_metrics(record.metrics, record.timings))

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Remove the progress bar."""
        for shown in self._shown:
            shown.__exit__()


class RewardCurve(Callback):
    """Draws the rewards of a run, in the terminal and as reward.png, above its closing lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Draw the curve, and print how the run ended."""
        folder, before, after = trainer.folder, report.accuracy_before, report.accuracy_after
        run_on_main(trainer.accelerator, lambda: plots.save_reward_plot(folder / "reward.png", report.rewards, before, after))
        steps = run_on_main(trainer.accelerator, lambda: list(read_metrics(folder)))
        if self.console.is_jupyter and (folder / "reward.png").is_file():
            _display_image(folder / "reward.png")
        else:
            self.console.print(plots.plot_curve(report.rewards, "reward", encoding=self.console.encoding), highlight=False)
        if line := format_turn_summary(steps[-1] if steps else {}):
            self.console.print(line, highlight=False)
        if steps and all(row.get("step/skipped") for row in steps):
            self.console.print("note: no step changed the weights: the checkpoint is the model that training began with", highlight=False)
        self.console.print(format_closing_lines(report, folder), highlight=False, markup=False, soft_wrap=True)


def _display_image(path: Path) -> None:
    """Show an image below the cell of the notebook in which the run was started."""
    display: Any = importlib.import_module("IPython.display")
    display.display(display.Image(filename=str(path)))


class CanaryGuard(Callback):
    """Ends the run with an error when too many canary tasks were rewarded."""

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Raise CheckFailed if the verifier has rewarded more canaries than allowed."""
        if trainer.task_sampler.reward_monitor is not None:
            trainer.task_sampler.reward_monitor.raise_if_too_many_rewarded(record.metrics)


class BestCheckpoint(Callback):
    """Keeps the model with the best held-out accuracy so far in a folder of its own; needs `eval.every`.

    >>> import rlvr
    >>> rlvr.train("quickstart", {"eval.every": 50}, callbacks=[rlvr.BestCheckpoint()])  # doctest: +SKIP
    """

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where the model is written; None: `best` in the run folder."""
        self.folder, self.best_accuracy = folder, -math.inf  # plain rewards may be negative

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Write the model if it is better than all before, also than those before a resume."""
        folder = self.folder or trainer.folder / "best"
        found = run_on_main(trainer.accelerator, lambda: _read_accuracy(folder))
        if accuracy is not None and accuracy > max(self.best_accuracy, found):
            self.best_accuracy = accuracy
            trainer.save_model(folder)
            run_on_main(trainer.accelerator, lambda: _write_accuracy(folder, step, accuracy))


def _read_accuracy(folder: Path) -> float:
    path = folder / "accuracy.json"
    return float(json.loads(path.read_text("utf-8"))["accuracy"]) if path.is_file() else -math.inf


def _write_accuracy(folder: Path, step: int, accuracy: float) -> None:
    (folder / "accuracy.json").write_text(json.dumps({"step": step, "accuracy": accuracy}), "utf-8")


def _select_progress_metrics(row: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, float | str]:
    """Select the metrics shown next to the progress bar."""
    numbers = {"reward": row["reward"], "length": row["completions/mean_length"], "turns": row.get("turns/mean_per_episode")}
    numbers |= {"calls": row.get("tools/calls_per_episode"), "kl": row.get("kl"), "tok/s": times["tokens_per_second"]}
    if row.get("unscored"):
        numbers |= {"unscored": f"{row['unscored']} of {row['num_completions']}"}
    cluster = {name: f"{times[key]:.0%}" for name, key in PROGRESS_FRACTIONS.items() if key in times}
    shown = {name: value if isinstance(value, str) else float(value) for name, value in numbers.items() if value is not None}
    return shown | cluster
