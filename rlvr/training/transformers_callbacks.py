"""Callbacks written for the trainers of transformers and TRL, as callbacks of a run here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState

from rlvr.errors import ConfigError
from rlvr.runs.run_log import read_metrics
from rlvr.training.callbacks import Callback, StepRecord
from rlvr.training.processes import run_on_main
from rlvr.training.train_report import TrainReport

if TYPE_CHECKING:
    from rlvr.training.batch_sources import RolloutBatch
    from rlvr.training.trainer import Trainer

logger = logging.getLogger(__name__)


class TransformersCallback(Callback):
    """Calls a `transformers.TrainerCallback` at the events of a run.

    The callback gets the numbers of each step in `on_log`, and the accuracy on held-out tasks as `eval_accuracy` in `on_evaluate`.
    `control.should_training_stop` ends the run. A callback cannot ask for a checkpoint or an evaluation at one step: `log.save_every`
    and `eval.every` of the run say when there is one. `args` has the settings that mean the same here; others it lacks.
    """

    def __init__(self, callback: TrainerCallback) -> None:
        self.callback, self.state, self.control = callback, TrainerState(), TrainerControl()
        self._has_warned, self._evaluated_step, self._stop_reason = False, 0, ""

    def on_run_begin(self, trainer: Trainer) -> None:
        """Call `on_init_end`, `on_train_begin` and `on_epoch_begin`."""
        config = trainer.config
        self.state.max_steps, self.state.global_step = trainer.num_steps, trainer.num_completed_steps
        self.state.num_train_epochs, self.state.logging_steps = 1, 1
        self.state.save_steps, self.state.eval_steps = config.log.save_every, config.eval.every
        self.state.is_world_process_zero = trainer.accelerator.is_main_process
        self.state.is_local_process_zero = trainer.accelerator.is_local_main_process
        self._args = SimpleNamespace(
            output_dir=str(trainer.folder),
            max_steps=trainer.num_steps,
            num_train_epochs=1,
            learning_rate=config.train.learning_rate,
            logging_steps=1,
            save_steps=config.log.save_every,
            eval_steps=config.eval.every,
            eval_strategy="steps" if config.eval.every else "no",
            seed=config.seed,
            run_name=trainer.folder.name,
            report_to=list(config.log.report_to),
            load_best_model_at_end=False,
            metric_for_best_model="eval_accuracy",
            greater_is_better=True,
            world_size=trainer.accelerator.num_processes,
            process_index=trainer.accelerator.process_index,
        )
        for row in run_on_main(trainer.accelerator, lambda: list(read_metrics(trainer.folder))) if trainer.is_resumed else ():
            logs = self._note_metrics(trainer, row["step"], row)
            if "eval/accuracy" in logs:
                self._note_accuracy(row["step"], logs["eval/accuracy"])
        for event in ("on_init_end", "on_train_begin", "on_epoch_begin"):
            self._call(trainer, event)

    def on_batch(self, trainer: Trainer, step: int, batch: RolloutBatch) -> None:
        """Call `on_step_begin`."""
        self._call(trainer, "on_step_begin")

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Call `on_step_end`, and `on_log` with the numbers of the step."""
        logs = self._note_metrics(trainer, step, record)
        self._call(trainer, "on_step_end")
        self._call(trainer, "on_log", logs=logs)
        # all processes stop in the same step: where each decides for itself, such as by the clock, the main one does
        if reason := run_on_main(trainer.accelerator, lambda: self._stop_reason):
            trainer.stop(reason)

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Call `on_evaluate`, once for a step; the evaluation before training comes before the start of the run, and is not shown."""
        if step == 0 or accuracy is None or step == self._evaluated_step:
            return
        self._evaluated_step = step
        self.state.global_step, self.state.epoch = step, step / trainer.num_steps
        self._call(trainer, "on_evaluate", metrics={"eval_accuracy": accuracy, "epoch": self.state.epoch})
        self._note_accuracy(step, accuracy)  # after the call, which compares with the best one before

    def on_save(self, trainer: Trainer, step: int) -> None:
        """Call `on_save`; the checkpoint of step 0 comes before the start of the run, and is not shown."""
        if step:
            self.state.global_step, self.state.epoch = step, step / trainer.num_steps
            self._call(trainer, "on_save")

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Call `on_epoch_end` and `on_train_end`."""
        for event in ("on_epoch_end", "on_train_end"):
            self._call(trainer, event)

    def _note_metrics(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> Mapping[str, float]:
        """Add the numbers of a step to the history, and return them."""
        self.state.global_step, self.state.epoch = step, step / trainer.num_steps
        logs = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "step"}
        self.state.log_history.append({**logs, "epoch": self.state.epoch, "step": step})
        return logs

    def _note_accuracy(self, step: int, accuracy: float) -> None:
        if self.state.best_metric is None or accuracy > self.state.best_metric:
            self.state.best_metric, self.state.best_global_step = accuracy, step

    def _call(self, trainer: Trainer, event: str, **given: Any) -> None:
        objects = {"model": trainer.model, "processing_class": trainer.tokenizer, "optimizer": trainer.learner.optimizer}
        name = type(self.callback).__name__
        try:
            returned = getattr(self.callback, event)(self._args, self.state, self.control, **objects, **given)
        except AttributeError as error:
            if error.obj is not self._args:
                raise
            raise ConfigError(
                f"{name}.{event} reads args.{error.name}, which a run here does not have; args has {', '.join(sorted(vars(self._args)))}"
            ) from error
        if not isinstance(returned, TrainerControl | None):
            raise ConfigError(f"{name}.{event} returned {returned!r:.60}; it must return its control, or nothing")
        self.control = self.control if returned is None else returned
        if self.control.should_training_stop and not self._stop_reason:
            self._stop_reason = f"{name}.{event} set control.should_training_stop"
        if (self.control.should_save or self.control.should_evaluate) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s.%s asks for a checkpoint or an evaluation at this step; log.save_every and eval.every say when there is one",
                name,
                event,
            )
        self.control.should_save = self.control.should_evaluate = False


def wrap_transformers_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks, one or several, as a list, in which each one of transformers is a `TransformersCallback`."""
    given = callbacks if isinstance(callbacks, Sequence | set) else [callbacks]
    return [TransformersCallback(callback) if isinstance(callback, TrainerCallback) else callback for callback in given]
