"""The callback that asks every rule of run health after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from rlvr.config.config import RunConfig
from rlvr.errors import CheckFailed
from rlvr.runs.run_log import read_metrics
from rlvr.training.callbacks import Callback, StepRecord
from rlvr.training.processes import run_on_main
from rlvr.training.reward_fall_probe import RewardFallProbe
from rlvr.training.reward_history import LASTING_STEPS
from rlvr.training.run_health.causes import Trouble
from rlvr.training.run_health.evidence import Row, RunEvidence
from rlvr.training.run_health.rules import PATIENCE_OF_CHECKS, RULES
from rlvr.training.train_report import TrainReport
from rlvr.training.weight_changes import WeightChanges

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer


class RunHealth(Callback):
    """Stops a run beyond the bounds of the section `health`.

    >>> from rlvr.config.config import load_config
    >>> health = RunHealth(load_config("quickstart"))
    >>> for step in range(1, 6):
    ...     trouble = health.observe({"step": step, "reward": 1.0, "unscored": 120, "num_completions": 128})
    >>> trouble.kind, trouble.since
    ('unscored', 1)
    """

    def __init__(self, config: RunConfig, console: Console | None = None, weights: WeightChanges | None = None) -> None:
        """`weights`: what the trainer has seen of its weights."""
        self.config, self.bounds = config, config.health
        self.run = RunEvidence(config, console, weights)
        self.rules = [rule(self.run) for rule in RULES]
        self.is_in_doubt = False
        """True from the first step that looks like trouble until a step that does not; no checkpoint is written meanwhile."""
        self.safe_step = 0
        """The last step that is older than the steps that any rule needs; while a rule is in doubt, or a component of the reward has fallen,
        it stays.
        """

    def on_run_begin(self, trainer: Trainer) -> None:
        """Prepare the rules; after a resume, with the metrics of the earlier steps."""
        self.run.begin(trainer)
        if trainer.is_resumed:
            rows = run_on_main(trainer.accelerator, lambda: list(read_metrics(trainer.folder)))
            for row in rows[:-1]:
                self.run.add(row)
            for row in rows[-1:]:
                self.observe(row)
        if self.config.data is None and self.bounds.action != "off":  # stored answers are what they are
            self.run.probe = RewardFallProbe(trainer)
            for rule in self.rules:
                rule.begin(trainer)
            if trainer.is_resumed and not self.run.change_at_resume:
                self.run.restore_best_answers(trainer)
        self._move_safe_step()

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Check the step; stop the run or warn if it is in trouble."""
        self.run.add_step_record(trainer, record)
        trouble = self.observe(record.metrics)
        self.run.keep_answers_of_best_steps()
        self._move_safe_step()
        trainer.best_reward_step, trainer.safe_step, trainer.verified_step = (
            self.run.best_reward_step,
            self.safe_step,
            self.run.verified_step,
        )
        if trouble is None or self.bounds.action == "off":
            return
        if self.bounds.action == "stop":
            raise CheckFailed(trouble.set_aside_checkpoints_and_explain(trainer, step))
        self.run.warn_once(trouble.kind, f"since step {trouble.since} {trouble.what}\nlikely cause: {trouble.cause}")

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Show the rules an evaluation."""
        for rule in self.rules:
            rule.check_evaluation(trainer, step, accuracy)

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Let every rule check the finished run; raise CheckFailed if one finds that nothing was trained."""
        for rule in self.rules if self.bounds.action == "stop" else ():
            rule.check_end(trainer, report)

    def observe(self, row: Row) -> Trouble | None:
        """Add the metrics of a step; return what is wrong, if anything is for long enough."""
        self.run.add(row)
        trouble, self.is_in_doubt = None, False
        for rule in self.rules:
            if trouble is not None and rule.checks_if_others_find_nothing:
                continue
            found = rule.check()
            self.is_in_doubt |= found is not None and self.bounds.action == "stop"
            trouble = found if trouble is None and isinstance(found, Trouble) else trouble
        return trouble

    def _move_safe_step(self) -> None:
        if self.run.rows and not self.is_in_doubt:
            longest = max(self.bounds.max_steps_without_gradient or 0, self.bounds.patience, LASTING_STEPS + PATIENCE_OF_CHECKS)
            safe, fallen = int(self.run.rows[-1]["step"]) - longest, self.run.fallen_component
            self.safe_step = max(self.safe_step, safe if fallen is None else min(safe, fallen.last_good_step))
