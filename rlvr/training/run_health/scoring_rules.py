"""Rules about what scores answers: the verifier, its references, and the tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr.training.answer_probe import MAX_ANSWERS, SAME_SCORE, AnswerProbe, KeptAnswer
from rlvr.training.processes import run_on_main
from rlvr.training.reward_history import LASTING_STEPS
from rlvr.training.run_health import causes
from rlvr.training.run_health.evidence import PATIENCE_OF_CHECKS, Row
from rlvr.training.run_health.rule import Doubt, Finding, HealthRule, Trouble
from rlvr.training.task_changes import TaskChange, TaskChanges, list_places

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

NUM_CHECKED = 16
"""The number of the worst and of the best answers of a step that are verified again every some steps."""
STORED_TASKS = "first_tasks"
"""Where a checkpoint's progress has the tasks that are compared after a resume."""
NUM_FIRST_ANSWERS, LOW_REWARD = 64, 0.25
"""From so many first answers on, of different tasks and with at most this mean reward, is asked whether the references are of other rows."""


class UnscoredAnswers(HealthRule):
    """Too many answers have no score: the verifier fails, or its service does."""

    def check(self) -> Finding:
        """Look at the fraction of answers without a score."""
        bound, run = self.bounds.max_unscored, self.run
        if bound is None or not (count := run.count_last(lambda row: _compute_unscored_fraction(row) > bound)):
            return None
        if count < self.bounds.patience:
            return Doubt()
        since, least = run.get_first_step(count), min(map(_compute_unscored_fraction, run.rows[-count:]))
        what = f"at least {least:.0%} of the answers of every step have no score (health.max_unscored is {bound:g})"
        common = run.unscored_reasons.most_common(1)
        quoted = f" (mostly: {common[0][0]})" if common else ""
        if "log-probability nan" in quoted:
            cause = f"The weights or the logits are not numbers{quoted}: a broken checkpoint, or an update that overflowed"
            return causes.make_weight_trouble(run, "unscored", since, what, cause)
        cause = (
            f"Not the answers but the verifier, its sandbox or its service fails{quoted}; the reasons are in episodes.jsonl "
            "(`error`, `verdict`). Repair it, then continue with --resume"
        )
        return Trouble("unscored", since, what, cause)


class ChangedVerifier(HealthRule):
    """The verifier no longer tells answers apart as it did: it gives all one score, also the highest, or more to those that had less. So
    some answers are verified again every some steps.
    """

    checks_if_others_find_nothing = True
    _num_doubts = _known_until = 0
    """The number of checks in a row in which the verifier had changed, and the last step in which it had not."""

    def check(self) -> Finding:
        """Verify the checked answers again, if it is time; choose others while the verifier is as before."""
        run, probe, step = self.run, self.run.probe, int(self.run.rows[-1]["step"])
        if probe is None or (run.checked_answers and step % LASTING_STEPS and not self._num_doubts):
            return None
        if not run.checked_answers:
            self._choose_answers(probe, step)
            return None
        told = probe.describe_change(run.checked_answers, probe.verify_again(run.checked_answers))
        if not told:
            self._num_doubts, self._known_until = 0, step
            self._choose_answers(probe, step)
            return None
        self._num_doubts += 1
        if self._num_doubts < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return Doubt()
        what = f"the verifier scores answers otherwise than at first (it did not up to step {self._known_until})"
        cause = causes.explain_verifier(run, run.checked_answers, f"of step {run.checked_step}", told)
        return Trouble("verifier", step - self._num_doubts + 1, what, cause, max(0, self._known_until - 1))

    def _choose_answers(self, probe: AnswerProbe, step: int) -> None:
        """Choose answers of this step, the worst and the best; those before stay if all of these score the same."""
        found = sorted(self.run.list_step_answers(probe), key=lambda answer: answer.score)
        if found and found[-1].score - found[0].score > SAME_SCORE:
            if not self.run.checked_answers:
                probe.measure_repeatability(_select_extremes(found, NUM_CHECKED))
            # where the scores of one answer differ, only many answers show a change
            self.run.checked_answers = _select_extremes(found, NUM_CHECKED if probe.repeatability == 1.0 else MAX_ANSWERS)
            self.run.checked_step = step


class ChangedTasks(HealthRule):
    """The environment's tasks are not those that they were, or questions no longer reach the policy."""

    _tasks: TaskChanges | None = None
    _num_changed = 0
    """For how many steps in a row the tasks have been others than at first."""

    def begin(self, trainer: Trainer) -> None:
        """Warn if the tasks are others than before a resume. They may be repaired, so that alone is no reason to stop."""
        self._tasks = tasks = TaskChanges(trainer.environment)
        rows = trainer.report_values.pop(STORED_TASKS, None)
        change = run_on_main(trainer.accelerator, lambda: tasks.restore(rows)) if rows else None
        if change is not None and change.breaks_contract:
            self.run.change_at_resume = (
                f"The tasks have changed between step {self.run.first_step - 1} and the resume: {change.what}. If that is no repair, a file, a "
                "template or a service of the environment is not as it was"
            )
            self.run.warn(self.run.change_at_resume)

    def check(self) -> Finding:
        """Ask for the first tasks again, and look at the prompts of the newest step."""
        tasks, trainer, record = self._tasks, self.run.trainer, self.run.record
        if tasks is None or trainer is None or record is None:
            return None
        groups, step = record.batch.all_groups, record.step

        def look() -> TaskChange | None:
            tasks.watch(list_places(groups))
            if tasks.is_watching_all:
                trainer.report_values.setdefault(STORED_TASKS, tasks.to_json())
            return tasks.find()

        change, are_lost = run_on_main(trainer.accelerator, look), tasks.have_lost_questions(groups)
        if change is not None and not change.breaks_contract and not are_lost:
            told = f"since step {step} {change.what}. Tasks should depend on the settings, the split and the index only"
            self.run.warn_once("ids", told)
            change = None
        self._num_changed = self._num_changed + 1 if change is not None or are_lost else 0
        if self._num_changed < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return Doubt() if self._num_changed else None
        since = step - self._num_changed + 1
        what = change.what if change is not None else "tasks with different references have one and the same prompt"
        cause = (
            "The tasks changed, not the policy: a file, a template or a service of the environment is not as it was when the run began, or "
            "its `task` depends on more than the settings, the split and the index"
        )
        return Trouble("tasks", since, what, cause, since - 1)


class MisplacedReferences(HealthRule):
    """Answers are right for the tasks of another row, and hardly for their own. It only warns, once in a run."""

    _first_answers: Sequence[KeptAnswer] | None = ()
    """Answers of the first steps, one of each task; None once they were examined."""

    def check(self) -> Finding:
        """Collect answers of the first steps; once there are enough, verify them with the references of other rows."""
        run, probe, answers = self.run, self.run.probe, self._first_answers
        if probe is None or answers is None:
            return None
        by_task = {answer.task.id: answer for answer in answers}
        for answer in run.list_step_answers(probe):
            by_task.setdefault(answer.task.id, answer)
        self._first_answers = answers = [*by_task.values()]
        if len(answers) < NUM_FIRST_ANSWERS and len(run.rows) < NUM_FIRST_ANSWERS:
            return None
        answers, self._first_answers = answers[:NUM_FIRST_ANSWERS], None
        if math.fsum(answer.score for answer in answers) <= LOW_REWARD * len(answers):
            run.misplaced_references = probe.find_row_of_references(answers)
        if run.misplaced_references:
            run.warn(run.misplaced_references)
        return None


def _compute_unscored_fraction(row: Row) -> float:
    count = row.get("num_completions") or 0
    return (row.get("unscored") or 0) / count if count else 0.0


def _select_extremes(answers: list[KeptAnswer], count: int) -> list[KeptAnswer]:
    """Select the first and the last of some answers in order."""
    return [*answers[:count], *answers[max(count, len(answers) - count) :]]
