"""A rule of run health, and what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rlvr.training.run_health.evidence import RunEvidence
from rlvr.training.train_report import TrainReport

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer


class Trouble(NamedTuple):
    """What is wrong with a run.

    >>> Trouble("reward", 7, "the reward fell from 0.6 to 0.1", "lower train.learning_rate").since
    7
    """

    kind: str
    since: int
    """The first step of the trouble."""
    what: str
    cause: str
    """The likely cause, and what to do."""
    last_good_step: int = -1
    """The last step whose weights are from before the trouble and its cause; -1: the trouble is not one of the weights."""

    def format_stop(self, trainer: Trainer, step: int) -> str:
        """Set aside the checkpoints since the trouble; return why the run stops after a step, and how it goes on."""
        good = self.last_good_step if self.last_good_step >= 0 else trainer.last_saved_step
        kept = trainer.set_aside_checkpoints_after(good)
        which = "from before that" if kept <= good else f"the oldest there is, though the weights were surely good only up to step {good}"
        return (
            f"the run stopped after step {step}: since step {self.since} {self.what}\n"
            f"likely cause: {self.cause}\n"
            f"kept: the checkpoint of step {kept} in {trainer.folder / 'checkpoints'}, {which}. --resume continues there with the same "
            f"settings, but for those of health; with others, start a new run with model.path={trainer.folder / 'checkpoints' / 'last'}"
        )


class Doubt(NamedTuple):
    """A step that looks like trouble, while too few steps have. No checkpoint is written of it."""


Finding = Trouble | Doubt | None
"""What a rule finds in the newest step; None: the step is good, or the rule cannot say."""


class HealthRule:
    """One way in which a run can go wrong. A rule looks at the evidence, and has its bounds from the section `health`.

    >>> from rlvr.config.config import load_config
    >>> class LongAnswers(HealthRule):
    ...     def check(self) -> Finding:
    ...         count = self.run.count_last(lambda row: row["completions/mean_length"] > 500)
    ...         since = self.run.get_first_step(count) if count else 0
    ...         return Trouble("length", since, "answers are long", "the reward pays for it") if count > 2 else Doubt() if count else None
    >>> rule = LongAnswers(RunEvidence(load_config("quickstart")))
    >>> for step in range(1, 4):
    ...     rule.run.add({"step": step, "completions/mean_length": 900.0})
    >>> rule.check().since
    1
    """

    checks_if_others_find_nothing: ClassVar[bool] = False
    """True for a rule that is asked only in steps in which no rule before it has found trouble."""

    def __init__(self, run: RunEvidence) -> None:
        self.run, self.config, self.bounds = run, run.config, run.config.health

    def begin(self, trainer: Trainer) -> None:
        """Prepare for the steps of this process. Not called for runs on stored answers, nor if `health.action` is off."""

    def check(self) -> Finding:
        """Look at the newest step, the last of `self.run.rows`."""
        raise NotImplementedError

    def check_evaluation(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Look at an evaluation on the held-out tasks; `step` is 0 before training."""

    def check_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Raise CheckFailed at the end of a run that must not end as if it had trained. Called only if `health.action` is stop."""
