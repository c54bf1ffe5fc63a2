"""Run health: find out that a run is in trouble, say in which step that began and what the likely cause is, and stop it.

Every rule needs several steps in a row, because one bad step is noise; only weights that are not finite and a fall of the held-out figure
count at once. From the first of them on no checkpoint is written, except of the last step and while steps merely have no gradient. A run that
is stopped sets aside the checkpoints since the trouble, or since the update that caused it, so that a resume goes on from before.

A falling reward alone is no trouble: tasks get harder, and steps differ. So the answers of the best steps are verified again, and their
tasks are sampled again (`AnswerProbe`). Where that decides nothing, a fall counts if the answers have changed too: their length, their
entropy, their repetition, or how many are cut.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from rich.console import Console

from rlvr.algorithms.base.preference import WholeAnswerAlgorithm
from rlvr.config.config import RunConfig
from rlvr.episode import Episode
from rlvr.errors import CheckFailed
from rlvr.mdp.records import step_result_from_json
from rlvr.models.numerics_check import has_experts
from rlvr.runs.run_log import read_metrics
from rlvr.training.answer_probe import MAX_ANSWERS, SAME_SCORE, AnswerProbe, Change, KeptAnswer, keep_answers
from rlvr.training.callbacks import Callback, StepRecord
from rlvr.training.processes import run_and_all_gather, run_on_main
from rlvr.training.reward_history import FALL_SIGMAS, LASTING_STEPS, Fall, RewardHistory
from rlvr.training.task_changes import TaskChange, TaskChanges, list_places
from rlvr.training.train_report import TrainReport
from rlvr.training.weight_changes import WeightChanges

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

Row = Mapping[str, Any]
T = TypeVar("T")

EXPECTED_CHANGES = {
    Change.TASKS: "on the tasks of before the policy is as good as it was, so the tasks are harder now",
    Change.SCORING: "the verifier gives the same answers lower scores now",
}
"""What a fall of the reward may mean without a fault."""

WINDOW_STEPS = 8
"""The number of steps whose mean reward is compared with the best earlier ones."""
FIRST_STEPS = 5
"""The number of steps that show how a run was at first."""
MAX_FACTOR = 3.0
"""The factor by which length and entropy may change while the reward falls."""
LARGE_UPDATE_KL, LARGE_UPDATE_FACTOR = 0.1, 5.0
"""An update that moves the policy by this much per token, and by this much more than the usual update of the run, destroys more than it
teaches; usual ones are below 0.01."""
SMALL_MISMATCH_KL = 1e-3
"""Sampler and trainer may always differ by this much: rounding, and what staleness does to them."""
LARGE_DECAY = 0.01
"""A weight decay that takes this fraction of the weights in each step destroys them."""
SUDDEN_FACTOR = 50.0
"""An update that is so many times the usual one, after some steps, is seldom the learning rate's fault alone."""
BLAMED_STEPS = 3
"""How many steps before a trouble an update is its likely cause."""
STORED_TASKS = "first_tasks"
"""Where a checkpoint's progress has the tasks that are compared after a resume."""
EXACT_MISMATCH_KL, JUMP_MISMATCH_KL = 1e-9, 1e-4
"""Below the first, sampler and trainer have the same weights and compute in float32; a later mismatch above the second is no rounding."""
SAMPLER_HAS_OTHER_WEIGHTS = (
    "The sampler samples from other weights than the trainer's: its weights are older, or those of another model. Look at how they reach it"
)
AGAINST_ADVANTAGES = -0.15
"""Updates whose log ratios correlate with the advantages by less go against them."""
MIN_ADVANTAGE_FIT = 0.3
"""Advantages that correlate less with the rewards of a group do not follow them."""
HIGH_TEMPERATURE = 2.0
"""From here on tokens are drawn nearly at random."""
MIN_ANSWERS_WITHOUT_REWARD = 4096
"""The number of answers that may score 0 from the first step on: where right answers are rare, a small batch has none for long."""
SOLVED_REWARD = 0.99
"""Steps without a gradient are no trouble from this mean reward on: every answer is right."""
MAX_CHANCE = 1e-3
"""Steps without a gradient are no accident if, as seldom as such steps were before, so many in a row are less probable than this."""
KEPT_STEPS = 4
"""The number of the best steps whose answers are kept."""
NUM_CHECKED, PATIENCE_OF_CHECKS = 16, 3
"""The number of the worst and of the best kept answers that are verified again every some steps, and how often in a row they must show that
the verifier has changed."""
MAX_QUOTE = 300
"""How much of a reason is quoted."""
NUM_FIRST_ANSWERS, LOW_REWARD = 64, 0.25
"""From so many first answers on, of different tasks and with at most this mean reward, is asked whether the references are of other rows."""
COMMON_REPLY_FRACTION, MIN_REPLIES = 0.8, 10
"""One reply to this fraction of the calls is a likely cause."""


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
        self.config, self.bounds, self.console = config, config.health, console or Console(quiet=True)
        self.rows: list[Row] = []
        """The metrics of the steps so far."""
        self._rewards = RewardHistory()
        """The rewards of `_scored_rows`."""
        self._kept: list[tuple[int, list[KeptAnswer]]] = []
        """Answers of the best steps so far, with the places of the steps in `_scored_rows`."""
        self._kept_held_out: list[KeptAnswer] = []
        """Answers of the best evaluation so far."""
        self._best_accuracy = -math.inf
        self._probe: AnswerProbe | None = None
        self._examined: dict[str, tuple[int, Any]] = {}
        """What was examined last, with the number of steps then."""
        self._record: StepRecord | None = None
        self._solved_reward = SOLVED_REWARD
        self._checked: list[KeptAnswer] = []
        """Answers of a step in which the verifier was known to be as before, to be verified again."""
        self._checked_step = 0
        self._verifier_doubts, self._verifier_known_until = 0, 0
        """The number of checks in a row in which the verifier had changed, and the last step in which it had not."""
        self._weights = weights or WeightChanges()
        self._tasks: TaskChanges | None = None
        self._tasks_changed_for = 0
        """For how many steps in a row the tasks have been others than at first."""
        self._first_answers: list[KeptAnswer] | None = []
        """Answers of the first steps, one of each task; None once they were examined."""
        self._shift = ""
        """How references seem to belong to other tasks."""
        self.is_in_doubt = False
        """True from the first step that looks like trouble until a step that does not; no checkpoint is written meanwhile."""
        self._has_penalty = True
        """Whether `algorithm.beta` weighs a KL against advantages; in a loss on pairs of answers it does not."""
        self._own_parts: dict[str, str] = {}
        """The functions of the algorithm that are not this project's, `loss` and `advantage`."""
        self._advantage_fits: list[float] = []
        """How the advantages of steps correlated with the rewards, where the function that computes them is not this project's."""
        self._change_at_resume = ""
        """How the tasks have changed while the run was stopped."""
        self._has_experts = False
        self._first_step = 1
        """The first step of this process."""
        self.safe_step = 0
        """The last step that is older than the steps that any rule needs; while a rule is in doubt it stays."""
        self._told_kinds: set[str] = set()
        """What has been warned of, which is told once: kinds of trouble, and others."""
        self._unscored_reasons = Counter[str]()
        """Why answers of the steps so far have no score."""

    def on_run_begin(self, trainer: Trainer) -> None:
        """Read the steps before a resume."""
        self._has_penalty = not isinstance(trainer.algorithm, WholeAnswerAlgorithm)
        self._own_parts = _find_own_parts(trainer.algorithm)
        self._has_experts = has_experts(trainer.model)
        self._first_step = trainer.num_completed_steps + 1
        if trainer.is_resumed:
            for row in run_on_main(trainer.accelerator, lambda: list(read_metrics(trainer.folder))):
                self.observe(row)
        if self.config.data is None and self.bounds.action != "off":  # stored answers are what they are
            self._probe, self._tasks = AnswerProbe(trainer), TaskChanges(trainer.environment)
            self._compare_tasks_with_checkpoint(trainer, self._tasks)
        self._move_safe_step()

    def on_step_end(self, trainer: Trainer, step: int, record: StepRecord) -> None:
        """Check the step; stop the run or warn if it is in trouble."""
        self._unscored_reasons.update(_list_unscored_reasons(record) if record.metrics.get("unscored") else ())
        self._record = record
        self._measure_advantages(record)
        trouble = self.observe(record.metrics) or self._find_held_out_fall(step, trainer.report_values.get("accuracy_before"))
        trouble = self._find_changed_tasks(trainer, step, record) or trouble or self._find_changed_verifier(step)
        trouble = self._find_broken_weights(trainer) or trouble
        self._keep_best_answers(trainer, record)
        self._examine_references(record)
        self._tell_of_penalty(step)
        self._move_safe_step()
        trainer.healthy_step, trainer.safe_step = self.healthy_step, self.safe_step
        if trouble is None or self.bounds.action == "off":
            return
        if self.bounds.action == "stop":
            raise CheckFailed(self._format_stop(trainer, step, trouble))
        self._warn_once(trouble.kind, f"since step {trouble.since} {trouble.what}\nlikely cause: {trouble.cause}")

    def on_evaluate(self, trainer: Trainer, step: int, accuracy: float | None) -> None:
        """Say where a held-out figure is withheld; do not begin a run that cannot score its held-out answers."""
        if accuracy is not None and accuracy >= self._best_accuracy:
            self._best_accuracy = accuracy
            self._kept_held_out = keep_answers(trainer.environment, trainer.held_out_episodes)
        if accuracy is not None or not trainer.config.eval.tasks or self.bounds.action == "off":
            return
        lost = [str(episode.error) for episode in trainer.held_out_episodes if not episode.is_scored]
        if not step and self.bounds.action == "stop" and len(lost) == len(trainer.held_out_episodes):
            raise CheckFailed(
                f"none of the {len(lost)} held-out answers before training has a score (mostly: {Counter(lost).most_common(1)[0][0][:MAX_QUOTE]})\n"
                "likely cause: Not the answers but the verifier, its sandbox or the references of the split "
                f"{trainer.config.eval.split!r}. Repair it, or measure nothing with eval.tasks=0"
            )
        if step:
            self._warn_once("withheld", f"the held-out figure of step {step} is withheld: more than 2 % of the answers have no score")

    def on_run_end(self, trainer: Trainer, report: TrainReport) -> None:
        """Stop a run that never had a gradient, or whose policy is much worse than before: it must not end as if it had trained. A few
        steps without a gradient may be bad luck.
        """
        if self.bounds.action != "stop":
            return
        idle = bool(self.rows) and all(map(self._lacks_gradient, self.rows))
        unscored = all(row.get("reward") is None for row in self.rows)
        if idle and (unscored or len(self.rows) >= self.bounds.patience):
            raise CheckFailed(f"no step of this run changed the weights\nlikely cause: {self._explain_missing_gradient(self.rows)}")
        answers, lost = report.held_out_answers, report.held_out_unscored
        if report.accuracy_after is None and answers and lost > answers * (self.bounds.max_unscored or 1.0):
            raise CheckFailed(
                f"the run has finished and is saved, but {lost} of {answers} held-out answers have no score\nlikely cause: Not the answers but "
                f"the verifier, its sandbox or the references of the split {trainer.config.eval.split!r}; the reasons are in the log"
            )
        before, after, count = report.accuracy_before, report.accuracy_after, report.held_out_tasks
        if before is None or after is None or not self.rows or before <= after:
            return
        told = f"held-out {before:.1%} -> {after:.1%} on {count} tasks"
        if not self._has_fallen(before, after, count):
            if (
                self._has_fallen(before, after, count, bound=0.0)
                and self._explain_held_out_fall(before, after, count, 0.0) is Change.UNKNOWN
            ):
                self._warn(f"the policy is worse than before training, beyond chance: {told}")
            return
        if (change := self._explain_held_out_fall(before, after, count)) is Change.SCORING:
            self._warn(f"{told}; the verifier scores the same answers so much lower now, so the policy may be as good as before")
            return
        since = max(1, self.healthy_step + 1)
        trouble = self._make_weight_trouble("held-out", since, f"the policy has become much worse: {told}", self._explain_change(since))
        if change is Change.VERIFIER:
            trouble = trouble._replace(cause=self._explain_verifier(self._kept_held_out))
        raise CheckFailed(self._format_stop(trainer, trainer.num_completed_steps, trouble))

    def observe(self, row: Row) -> Trouble | None:
        """Add the metrics of a step; return what is wrong, if anything is for long enough."""
        self.rows.append(row)
        if row.get("reward") is not None:
            self._rewards.add(float(row["reward"]), self._estimate_error(row))
        rules = (
            self._find_unscored, self._find_nonfinite, self._find_wrong_sign, self._find_missing_gradient, self._find_repetition,
            self._find_other_weights, self._find_mismatch, self._find_collapse,
        )  # fmt: skip
        found = [find() for find in rules]
        self.is_in_doubt = self.bounds.action == "stop" and any(doubt for doubt, _ in found)
        return next((trouble for _, trouble in found if trouble is not None), None)

    def _move_safe_step(self) -> None:
        if self.rows and not self.is_in_doubt:
            longest = max(self.bounds.max_steps_without_gradient or 0, self.bounds.patience, LASTING_STEPS + PATIENCE_OF_CHECKS)
            self.safe_step = max(self.safe_step, int(self.rows[-1]["step"]) - longest)

    @property
    def _scored_rows(self) -> list[Row]:
        """The metrics of the steps that have a reward."""
        return [row for row in self.rows if row.get("reward") is not None]

    @property
    def healthy_step(self) -> int:
        """The step whose weights gave the last of the best rewards so far, before any steps without a gradient; -1 if no step has a reward."""
        rows = self._scored_rows
        idle = next((k for k, row in enumerate(reversed(rows)) if not self._lacks_gradient(row)), len(rows))
        good = self._rewards.find_last_good(len(rows) - idle)
        return min(0, len(rows) - 1) if good is None or good < 0 else int(rows[good]["step"])

    # ---- rules: whether the last step is in doubt, and the trouble if it has lasted long enough --------------------------

    def _find_unscored(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_unscored
        count = self._count_last(lambda row: _compute_unscored_fraction(row) > bound) if bound is not None else 0
        if count < self.bounds.patience:
            return count > 0, None
        shares = [_compute_unscored_fraction(row) for row in self.rows[-count:]]
        what = f"at least {min(shares):.0%} of the answers of every step have no score (health.max_unscored is {bound:g})"
        cause = (
            f"Not the answers but the verifier, its sandbox or its service fails{self._quote_reason()}; the reasons are in episodes.jsonl "
            "(`error`, `verdict`). Repair it, then continue with --resume"
        )
        if (common := self._unscored_reasons.most_common(1)) and "log-probability nan" in common[0][0]:
            cause = f"The weights or the logits are not numbers{self._quote_reason()}: a broken checkpoint, or an update that overflowed"
            return True, self._make_weight_trouble("unscored", self._get_first_step(count), what, cause)
        return True, Trouble("unscored", self._get_first_step(count), what, cause)

    def _find_nonfinite(self) -> tuple[bool, Trouble | None]:
        count = self._count_last(lambda row: bool(row.get("step/nonfinite_minibatches")) and not row.get("optimizer_steps"))
        if count < self.bounds.patience:
            return count > 0, None
        what = "every gradient is infinite or not a number, so nothing is learned"
        return True, self._make_weight_trouble("nonfinite", self._get_first_step(count), what, self._explain_nonfinite())

    def _find_missing_gradient(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_steps_without_gradient
        if bound is None or self.config.data is not None:  # stored answers are what they are
            return False, None
        count = self._count_last(self._lacks_gradient)
        if count < bound:
            return False, None
        rows, earlier = self.rows[-count:], self.rows[:-count]
        had_gradient = sum(not self._lacks_gradient(row) for row in earlier) / len(earlier) if earlier else 1.0
        if (1 - had_gradient) ** count > MAX_CHANCE:  # such steps were as common before
            return False, None
        never_right = count == len(self.rows) and not any(row.get("reward") for row in rows) and any(row.get("reward") == 0 for row in rows)
        is_cut = (_mean(rows, "completions/clipped_ratio") or 0.0) > 0.5
        if never_right and not is_cut and sum(row.get("num_completions") or 0 for row in rows) < MIN_ANSWERS_WITHOUT_REWARD:
            return False, None
        what = f"no step has changed the weights for {count} steps (health.max_steps_without_gradient is {bound})"
        cause, reward = self._explain_missing_gradient(rows), _mean(rows, "reward")
        if (probe := self._probe) is not None and reward is not None:
            if told := self._examine("verifier", lambda: probe.describe_change(self._checked, probe.verify_again(self._checked))):
                cause = self._explain_verifier(self._checked, told)
            elif reward > 0 and self._examine("saturation", lambda: self._is_saturated(rows, reward)):
                self._solved_reward = reward - SAME_SCORE
                self._warn(
                    f"since step {rows[0]['step']} every answer scores {reward:.3g}, and a wrong one would score less: nothing is left to learn"
                )
                return False, None
        return True, self._make_weight_trouble("gradient", self._get_first_step(count), what, cause)

    def _is_saturated(self, rows: Sequence[Row], reward: float) -> bool:
        """Whether all answers score the same because all are as good as can be: no step was better, and other answers score less."""
        best = self._rewards.find_best()
        if self._probe is None or self._record is None or best is None or reward < best.mean - 2 * best.error - SAME_SCORE:
            return False
        if max((row.get("reward_std") or 0.0) for row in rows) > SAME_SCORE:
            return False
        return self._probe.tells_apart(keep_answers(self._probe.environment, _list_episodes(self._record)))

    def _find_repetition(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_repetition
        first = _mean(self.rows[:FIRST_STEPS], "completions/repetition")
        if bound is None or first is None or first > bound / 2:
            return False, None
        count = self._count_last(lambda row: (row.get("completions/repetition") or 0.0) > bound)
        if count < self.bounds.patience:
            return count > 0, None
        now = _mean(self.rows[-count:], "completions/repetition") or 0.0
        what = f"answers repeat themselves: {now:.0%} of their four-token sequences occur before in the same answer, at first {first:.0%}"
        first_step = self._get_first_step(count)
        trouble = self._make_weight_trouble("repetition", first_step, what, self._explain_change(first_step))
        good = self._find_last_step_below("completions/repetition", first + 0.1 * (now - first))
        return True, trouble._replace(last_good_step=min(trouble.last_good_step, max(0, good - 1)))

    def _find_wrong_sign(self) -> tuple[bool, Trouble | None]:
        """Find that the updates of a run, from the first on, make answers with a positive advantage less likely."""
        known = [(int(row["step"]), gain) for row in self.rows if (gain := _measure_gain(row)) is not None]
        gains = [gain for _, gain in known]
        if self.config.data is not None or len(gains) < WINDOW_STEPS // 2 or not _are_against(gains):
            return False, None
        if len(gains) < WINDOW_STEPS:
            return True, None
        if self._describe_penalty(self.rows[-WINDOW_STEPS:]):  # it may well outweigh the advantages
            return False, None
        what = f"the updates of {len(gains)} steps went against the advantages (update_gain is below 0)"
        return True, Trouble("sign", known[0][0], what, self._explain_wrong_sign(), known[0][0] - 1)

    def _find_other_weights(self) -> tuple[bool, Trouble | None]:
        """Find that sampler and trainer, which agreed to the last digits, no longer do."""
        agreed = find_last_exact_step(self.rows, self.config)
        if agreed is None or self.bounds.max_mismatch_kl is None or self._has_experts:
            return False, None
        count = self._count_last(lambda row: (row.get("mismatch_kl") or 0.0) > JUMP_MISMATCH_KL)
        if count < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return count > 0, None
        least = max(row["mismatch_kl"] for row in self.rows if row["step"] <= agreed and _is_number(row.get("mismatch_kl")))
        now = _mean(self.rows[-count:], "mismatch_kl") or 0.0
        what = f"the sampler and the trainer differ by {now:.2g} nats per token; up to step {agreed} it was {least:.1g}"
        cause = self._weights.explain_foreign_step(agreed + 1, agreed + 2) or SAMPLER_HAS_OTHER_WEIGHTS
        return True, Trouble("mismatch", self._get_first_step(count), what, cause, max(0, agreed - 1))

    def _find_mismatch(self) -> tuple[bool, Trouble | None]:
        bound = self.bounds.max_mismatch_kl
        first = min((row["mismatch_kl"] for row in self.rows[:FIRST_STEPS] if _is_number(row.get("mismatch_kl"))), default=None)
        if bound is None or first is None or self.config.data is not None:
            return False, None
        count = self._count_last(lambda row: (row.get("mismatch_kl") or 0.0) > max(bound, 10 * first))
        if count < self.bounds.patience:
            return count > 0, None
        now = _mean(self.rows[-count:], "mismatch_kl") or 0.0
        what = f"the sampler and the trainer differ by {now:.2g} nats per token (health.max_mismatch_kl is {bound:g}), at first {first:.2g}"
        cause = (
            "Answers come from weights up to rollout.max_staleness steps older: lower it, or train.learning_rate"
            if self.config.rollout.max_staleness
            else "The sampler does not have the weights of the trainer, or computes in another precision: `rlvr doctor` compares them"
        )
        good = self._find_last_step_below("mismatch_kl", max(10 * first, SMALL_MISMATCH_KL))
        return True, Trouble("mismatch", self._get_first_step(count), what, cause, max(0, good - 1))

    def _find_changed_verifier(self, step: int) -> Trouble | None:
        """Find, every some steps, that the verifier no longer tells answers apart as it did: also one that pays for everything."""
        if (probe := self._probe) is None or (self._checked and step % LASTING_STEPS and not self._verifier_doubts):
            return None
        if not self._checked:
            self._choose_checked_answers(probe, step)
            return None
        told = probe.describe_change(self._checked, probe.verify_again(self._checked))
        self._verifier_doubts = self._verifier_doubts + 1 if told else 0
        self.is_in_doubt |= bool(told) and self.bounds.action == "stop"
        if not told:
            self._verifier_known_until = step
            self._choose_checked_answers(probe, step)
        if self._verifier_doubts < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return None
        since, good = step - self._verifier_doubts + 1, max(0, self._verifier_known_until - 1)
        what = f"the verifier scores answers otherwise than at first (it did not up to step {self._verifier_known_until})"
        return Trouble("verifier", since, what, self._explain_verifier(self._checked, told), good)

    def _find_broken_weights(self, trainer: Trainer) -> Trouble | None:
        """Find weights that are not finite, in any process: no later step mends them."""
        found = run_and_all_gather(trainer.accelerator, lambda: [self._weights.broken])
        broken = next((one for one in found if one is not None), None)
        self.is_in_doubt |= broken is not None and self.bounds.action == "stop"
        return None if broken is None else Trouble("broken", *broken)

    def _measure_advantages(self, record: StepRecord) -> None:
        """Measure how advantages of a function that is not this project's follow the rewards of the answers of each group."""
        if "advantage" not in self._own_parts:
            return
        pairs = list[tuple[float, float]]()
        for group, of_group in zip(record.batch.all_groups, record.diagnostics, strict=False):
            known = [(episode.reward, math.fsum(of[0]) / len(of[0])) for episode, of in zip(group, of_group, strict=True) if len(of[0])]
            known = [(float(reward), mean) for reward, mean in known if reward is not None]
            middle = [math.fsum(values) / len(known) for values in zip(*known, strict=True)]
            pairs += [(reward - middle[0], mean - middle[1]) for reward, mean in known]
        with suppress(statistics.StatisticsError):
            self._advantage_fits.append(statistics.correlation(*zip(*pairs, strict=True)))

    def _find_changed_tasks(self, trainer: Trainer, step: int, record: StepRecord) -> Trouble | None:
        """Find that the environment's tasks are not those that they were, or that questions no longer reach the policy."""
        if (tasks := self._tasks) is None:
            return None
        groups = record.batch.all_groups

        def look() -> TaskChange | None:
            tasks.watch(list_places(groups))
            if tasks.is_watching_all:
                trainer.report_values.setdefault(STORED_TASKS, tasks.to_json())
            return tasks.find()

        change, are_lost = run_on_main(trainer.accelerator, look), tasks.have_lost_questions(groups)
        if change is not None and not change.breaks_contract and not are_lost:
            self._warn_once("ids", f"since step {step} {change.what}. Tasks should depend on the settings, the split and the index only")
            change = None
        self._tasks_changed_for = self._tasks_changed_for + 1 if change is not None or are_lost else 0
        self.is_in_doubt |= self._tasks_changed_for > 0 and self.bounds.action == "stop"
        if self._tasks_changed_for < min(PATIENCE_OF_CHECKS, self.bounds.patience):
            return None
        since = step - self._tasks_changed_for + 1
        what = change.what if change is not None else "tasks with different references have one and the same prompt"
        cause = (
            "The tasks changed, not the policy: a file, a template or a service of the environment is not as it was when the run began, or "
            "its `task` depends on more than the settings, the split and the index"
        )
        return Trouble("tasks", since, what, cause, since - 1)

    def _compare_tasks_with_checkpoint(self, trainer: Trainer, tasks: TaskChanges) -> None:
        """Warn if the tasks are others than before a resume. They may be repaired, so that alone is no reason to stop."""
        rows = trainer.report_values.pop(STORED_TASKS, None)
        change = run_on_main(trainer.accelerator, lambda: tasks.restore(rows)) if rows else None
        if change is not None and change.breaks_contract:
            self._change_at_resume = (
                f"The tasks have changed between step {self._first_step - 1} and the resume: {change.what}. If that is no repair, a file, a "
                "template or a service of the environment is not as it was"
            )
            self._warn(self._change_at_resume)

    def _examine_references(self, record: StepRecord) -> None:
        """Warn, once in a run, if answers are right for the tasks of the next row and hardly for their own."""
        if self._probe is None or self._first_answers is None:
            return
        known = {answer.task.id for answer in self._first_answers}
        for answer in keep_answers(self._probe.environment, _list_episodes(record)):
            if answer.task.id not in known:
                known.add(answer.task.id)
                self._first_answers.append(answer)
        if len(self._first_answers) < NUM_FIRST_ANSWERS and len(self.rows) < NUM_FIRST_ANSWERS:
            return
        answers, self._first_answers = self._first_answers[:NUM_FIRST_ANSWERS], None
        if math.fsum(answer.score for answer in answers) <= LOW_REWARD * len(answers):
            self._shift = self._probe.find_row_of_references(answers)
        if self._shift:
            self._warn(self._shift)

    def _tell_of_penalty(self, step: int) -> None:
        """Warn, once in a run, if the KL to the reference weighs more than the advantages."""
        if self.bounds.action != "off" and (told := self._describe_penalty(self.rows[-WINDOW_STEPS:])):
            self._warn_once("penalty", f"up to step {step} {told}")

    def _describe_penalty(self, rows: Sequence[Row]) -> str:
        """Say that the KL to the reference weighs more than the advantages in all of some steps; empty otherwise."""
        if not self._has_penalty:
            return ""
        weights = [row["beta"] * row["kl"] for row in rows if _is_number(row.get("beta")) and _is_number(row.get("kl"))]
        spreads = [row["advantage/std"] for row in rows if _is_number(row.get("advantage/std"))]
        if self.config.data is not None or min(len(weights), len(spreads)) < WINDOW_STEPS:
            return ""
        if any(weight <= spread for weight, spread in zip(weights, spreads, strict=True)):
            return ""
        return (
            f"the KL to the reference, times algorithm.beta ({rows[-1]['beta']:g}), is {math.fsum(weights) / len(weights):.2g}, more than the "
            f"advantages ({math.fsum(spreads) / len(spreads):.2g}): the policy can hardly move away. Lower algorithm.beta"
        )

    def _choose_checked_answers(self, probe: AnswerProbe, step: int) -> None:
        """Choose answers of this step to verify again, the worst and the best; those before stay if all of these score the same."""
        found = keep_answers(probe.environment, _list_episodes(self._record)) if self._record is not None else []
        found.sort(key=lambda answer: answer.score)
        if found and found[-1].score - found[0].score > SAME_SCORE:
            if not self._checked:
                probe.measure_repeatability(_select_extremes(found, NUM_CHECKED))
            # where the scores of one answer differ, only many answers show a change
            self._checked = _select_extremes(found, NUM_CHECKED if probe.repeatability == 1.0 else MAX_ANSWERS)
            self._checked_step = step

    def _find_held_out_fall(self, step: int, before: Any) -> Trouble | None:
        """Find that the newest held-out figure has fallen far below the best earlier one."""
        known = [(0, before), *((row["step"], row.get("eval/accuracy")) for row in self.rows)]
        figures = [(int(at), float(value)) for at, value in known if _is_number(value)]
        if len(figures) < 2 or figures[-1][0] != step:
            return None
        (at, high), (_, now) = max(figures[:-1], key=lambda one: one[1]), figures[-1]
        if not self._has_fallen(high, now, self.config.eval.tasks):
            return None
        change = self._explain_held_out_fall(high, now, self.config.eval.tasks)
        if change is Change.SCORING:
            return None
        since = next(later for later, value in figures if later > at and value < (high + now) / 2)
        what = f"the held-out figure is {now:.1%}; at step {at} it was {high:.1%}"
        cause = self._explain_verifier(self._kept_held_out) if change is Change.VERIFIER else self._explain_change(since)
        return self._make_weight_trouble("held-out", since, what, cause)._replace(last_good_step=at)

    def _explain_held_out_fall(self, high: float, now: float, num_tasks: int, bound: float | None = None) -> Change:
        """Find what a fall of the held-out figure means, by verifying the answers of the best evaluation again."""
        if self._probe is None or not self._kept_held_out:
            return Change.UNKNOWN
        scores = self._probe.verify_again(self._kept_held_out)
        pairs = [(answer.score, score) for answer, score in zip(self._kept_held_out, scores, strict=True) if score is not None]
        if self._probe.describe_change(self._kept_held_out, scores):
            return Change.VERIFIER
        before, again = (math.fsum(values) for values in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        return Change.SCORING if before and not self._has_fallen(high * again / before, now, num_tasks, bound) else Change.UNKNOWN

    def _has_fallen(self, high: float, now: float, num_tasks: int, bound: float | None = None) -> bool:
        """Whether one held-out figure is so far below another that it is no accident of the tasks."""
        bound, count = self.bounds.max_reward_drop if bound is None else bound, max(1, num_tasks)
        error = math.sqrt((high * (1 - high) + now * (1 - now)) / count) if 0 <= now <= high <= 1 else math.inf
        return bound is not None and self.config.data is None and high - now > max(bound * high, FALL_SIGMAS * error, 1 / count)

    def _find_collapse(self) -> tuple[bool, Trouble | None]:
        """Find a reward that has fallen from its best steps, and that neither harder tasks nor another scale of scores explain."""
        bound = self.bounds.max_reward_drop
        if bound is None or self.config.data is not None or (fall := self._rewards.find_fall(bound)) is None:
            return False, None
        rows, (best, recent) = self._scored_rows, fall[:2]
        changes = _describe_changes(rows[best.start : best.end], rows[recent.start : recent.end])
        if not fall.is_lasting:
            return self._probe is not None or bool(changes), None
        kept = self._list_kept()
        probe = self._probe
        change = self._examine("fall", lambda: probe.explain_fall(kept, bound)) if probe is not None and kept else Change.UNKNOWN
        if change in EXPECTED_CHANGES:
            told = f"since step {rows[fall.since]['step']} the reward is {recent.mean:.3g}, before {best.mean:.3g}"
            self._warn_once(f"fall: {change}", f"{told}: {EXPECTED_CHANGES[change]}")
            self._rewards.begin_anew(fall.since)
            return False, None
        step = int(rows[fall.since]["step"])
        if change is Change.UNKNOWN and not changes and not self._is_since_resume(step):
            return False, None
        what = f"the reward has fallen from {best.mean:.3g} to {recent.mean:.3g}"
        if change is Change.VERIFIER:
            return True, self._build_reward_trouble(fall, step, what, self._explain_verifier(kept))
        if changes:
            what += f" and the answers have changed: {'; '.join(changes)}"
        return True, self._build_reward_trouble(fall, step, what, self._explain_change(step, fall))

    def _build_reward_trouble(self, fall: Fall, step: int, what: str, cause: str) -> Trouble:
        trouble = self._make_weight_trouble("reward", step, what, cause)
        good = int(self._scored_rows[fall.last_good]["step"]) if fall.last_good >= 0 else 0
        return trouble._replace(last_good_step=min(good, trouble.last_good_step))

    def _keep_best_answers(self, trainer: Trainer, record: StepRecord) -> None:
        """Keep the answers of a step that is one of the best so far."""
        best, place = self._rewards.find_best(), len(self._rewards) - 1
        if self._probe is not None and best is not None and best.end == place + 1 and record.metrics.get("reward") is not None:
            answers = keep_answers(trainer.environment, _list_episodes(record))
            self._kept = [*[(at, kept) for at, kept in self._kept if at >= best.start][-KEPT_STEPS + 1 :], (place, answers)]

    def _examine(self, name: str, examine: Callable[[], T]) -> T:
        """Examine something that costs time, or return what was found at most some steps ago: a run that only warns goes on in trouble."""
        at, found = self._examined.get(name, (-LASTING_STEPS, None))
        if len(self.rows) - at >= LASTING_STEPS:
            found = examine()
            self._examined[name] = (len(self.rows), found)
        return cast("T", found)

    def _list_kept(self) -> list[KeptAnswer]:
        return [answer for _, answers in self._kept for answer in answers][-MAX_ANSWERS:]

    # ---- causes --------------------------------------------------------------------------------------------------------

    def _find_blamed_update(self, step: int) -> Row | None:
        """Find a large update just before the step in which a trouble begins."""
        known = [row for row in self.rows if _is_number(row.get("update_kl"))]
        near = [row for row in known if step - BLAMED_STEPS <= row["step"] <= step]
        largest = max(near, key=lambda row: float(row["update_kl"]), default=None)
        if largest is None:
            return None
        bound = max(LARGE_UPDATE_KL, LARGE_UPDATE_FACTOR * (self._measure_usual_update(int(largest["step"])) or 0.0))
        return largest if largest["update_kl"] > bound else None

    def _make_weight_trouble(self, kind: str, since: int, what: str, cause: str) -> Trouble:
        """Build a trouble of the weights: those that sampled the last good step are from before it, and from before a large update."""
        blamed = self._find_blamed_update(since)
        # the first update after a resume may be large because the state of the optimizer in that checkpoint is damaged
        was_saved = blamed is not None and blamed["step"] == self._first_step > 1 and self._had_time(blamed)
        before = [since - 2, *([int(blamed["step"]) - 1 - was_saved] if blamed is not None else [])]
        return Trouble(kind, since, what, cause, max(0, min(before)))

    def _quote_reason(self) -> str:
        """Quote the most common reason for which answers have no score."""
        common = self._unscored_reasons.most_common(1)
        return f" (mostly: {common[0][0]})" if common else ""

    def _explain_verifier(self, kept: Sequence[KeptAnswer], told: str = "") -> str:
        """Explain a verifier that no longer tells answers apart as it did."""
        if not told and self._probe is not None:
            told = self._probe.describe_change(kept, self._probe.verify_again(kept)) or "their scores had no order in common"
        first = self._checked_step if kept is self._checked else int(self._scored_rows[self._kept[0][0]]["step"]) if self._kept else 0
        steps = f"of step {first}" if kept is not self._kept_held_out else "before"
        mean = math.fsum(answer.score for answer in kept) / max(1, len(kept))
        return (
            f"Not the policy but the verifier has changed: the answers {steps} that scored {mean:.3g} in the mean then were verified again, "
            f"and {told}. Look at its service, its references and its log"
        )

    def _explain_change(self, step: int, fall: Fall | None = None) -> str:
        """Explain a change of the policy that shows from a step on."""
        before, after = ([row for row in self.rows if (row["step"] < step) is is_before] for is_before in (True, False))
        before, after = before[-WINDOW_STEPS:], after[-WINDOW_STEPS:]
        if self._is_since_resume(step):
            return self._change_at_resume
        if reply := self._quote_common_reply():
            return f"{reply}. Look at the tool and its service"
        rewards = _mean(before, "reward"), _mean(after, "reward")
        if rewards[0] is not None and rewards[1] is not None and rewards[1] > rewards[0] and fall is None:
            return (
                f"The reward pays for it: it was {rewards[0]:.3g} before and is {rewards[1]:.3g} now. Read the answers of this step in "
                "episodes.jsonl, and change the verifier"
            )
        entropies = _mean(before, "entropy"), _mean(after, "entropy")
        if self.config.algorithm.get("entropy_coef") and entropies[0] and (entropies[1] or 0.0) > 2 * entropies[0]:
            return (
                f"The entropy bonus outweighs the reward: entropy {entropies[0]:.3g} before, {entropies[1]:.3g} now; lower "
                f"algorithm.entropy_coef (it is {self.config.algorithm['entropy_coef']:g})"
            )
        if told := self._weights.explain_foreign_step(*range(step - LASTING_STEPS, len(self.rows) + 2)):
            return told
        if told := self._describe_penalty(before):
            return f"Up to step {step - 1} {told}"
        if self._advantage_fits and (fit := statistics.fmean(self._advantage_fits)) < MIN_ADVANTAGE_FIT:
            return (
                f"The advantages of {self._own_parts['advantage']} do not follow the rewards: within groups their correlation is {fit:.2f}. "
                "Look whether each answer gets its own"
            )
        gains = [gain for row in before + after if (gain := _measure_gain(row)) is not None]
        if len(gains) > 1 and _are_against(gains):
            return self._explain_wrong_sign()
        largest, rate = self._find_blamed_update(step), self.config.train.learning_rate
        if (decay := self.config.train.weight_decay) * rate > LARGE_DECAY:
            return f"train.weight_decay ({decay:g}) takes {decay * rate:.1%} of the weights in each step: lower it"
        if largest is not None:
            usual = self._measure_usual_update(int(largest["step"]))
            beside = f", and the updates before by {usual:.2g}" if usual is not None else ""
            damaged = (
                "; as it was right until then, something may have damaged the state of the optimizer" if self._had_time(largest) else ""
            )
            return (
                f"The update of step {largest['step']} moved the policy by {largest['update_kl']:.2g} nats per token{beside}: lower "
                f"train.learning_rate (it is {rate:g}), or raise train.warmup_steps{damaged}"
            )
        if fall is not None and self._is_sudden(fall):
            return (
                f"From step {step - 1} to step {step} the reward fell at once, and no update moved the policy so far. So look for what "
                "else changed: the tools, the tasks, the environment or the sampler"
            )
        against = [row["update_gain"] for row in before + after if _is_number(row.get("update_gain"))]
        if against and sum(gain < 0 for gain in against) > 0.8 * len(against):
            return self._explain_wrong_sign()
        return (
            f"No single update just before was large, so many have gone the same way: train.learning_rate ({rate:g}) is too high for batches "
            "of this size, or nothing holds the policy back (algorithm.beta), or the reward pays for it. Read the answers of this step in "
            "episodes.jsonl"
        )

    def _explain_wrong_sign(self) -> str:
        own = " or ".join(self._own_parts.values())
        bonus = ", or algorithm.entropy_coef outweighs the advantages" if self.config.algorithm.get("entropy_coef") else ""
        return (
            "The updates make answers with a positive advantage less likely, and the others more likely: the sign of the loss or of the "
            f"advantages is wrong{f' in {own}' if own else ''}{bonus}"
        )

    def _had_time(self, row: Row) -> bool:
        """Whether an update is far larger than the usual one, after some steps."""
        usual = self._measure_usual_update(int(row["step"]))
        return usual is not None and row["step"] > WINDOW_STEPS and row["update_kl"] > SUDDEN_FACTOR * usual

    def _is_since_resume(self, step: int) -> bool:
        """Whether something began soon after a resume with other tasks than before."""
        return bool(self._change_at_resume) and 0 <= step - self._first_step + 1 <= WINDOW_STEPS

    def _is_sudden(self, fall: Fall) -> bool:
        """Whether nearly all of a fall came from one step to the next."""
        rewards = [float(row["reward"]) for row in self._scored_rows[max(0, fall.since - 1) : fall.since + 1]]
        return len(rewards) == 2 and rewards[0] - rewards[1] > 0.7 * (fall.best.mean - fall.recent.mean)

    def _measure_usual_update(self, step: int) -> float | None:
        """Return the median of the updates before a step; None if there was none."""
        usual = sorted(float(row["update_kl"]) for row in self.rows if row["step"] < step and _is_number(row.get("update_kl")))
        return usual[len(usual) // 2] if usual else None

    def _quote_common_reply(self) -> str:
        """Say that nearly all tool calls of the last step got one reply, if they did not before; empty otherwise."""
        now = [episode.meta.get("session") for episode in _list_episodes(self._record)] if self._record is not None else []
        reply, fraction = _find_common_reply(now)
        if (
            fraction < COMMON_REPLY_FRACTION
            or _find_common_reply([answer.record for answer in self._list_kept()])[1] >= COMMON_REPLY_FRACTION
        ):
            return ""
        return f"{fraction:.0%} of the tool calls got one and the same reply, {reply[:80]!r}"

    def _explain_nonfinite(self) -> str:
        """Explain gradients that are infinite or not a number: weights that are not finite would have been found."""
        if own := " or ".join(self._own_parts.values()):
            return f"The weights are finite, so {own} or its gradient is infinite or not a number: look for a division, a log or a root"
        precision = ", or use model.dtype=float32 with train.mixed_precision=bf16 or no" if self.config.model.dtype != "float32" else ""
        return f"The loss or its gradient overflows, and the weights are finite: lower train.learning_rate{precision}"

    def _explain_missing_gradient(self, rows: Sequence[Row]) -> str:
        """Explain why steps have no gradient."""
        earlier = self.rows[: len(self.rows) - len(rows)]
        if any(row.get("step/nonfinite_minibatches") for row in rows):
            return self._explain_nonfinite()
        if any((row.get("reward_std") or 0.0) > 0 and row.get("grad_norm") == 0.0 for row in rows):
            if {row.get("advantage/std") for row in rows} == {0.0}:
                return "The rewards differ and the advantages do not: look at algorithm.advantage"
            own = self._own_parts.get("loss", "")
            own = f"{own} gives 0, or does not depend on the policy; else " if own else ""
            return f"The rewards differ and the gradient is 0: {own}no weight is trainable, or train.max_grad_norm removes all of it"
        # a rate that is set between two steps shows in the next one
        if all(row.get("learning_rate") == 0.0 for row in rows[len(rows) > 1 :]) and self.config.train.learning_rate:
            return f"The learning rate is 0, and train.learning_rate is {self.config.train.learning_rate:g}: something sets that of the optimizer"
        if any(row["step"] in self._weights.undone_steps for row in rows):
            return "Something other than the optimizer puts the weights back after each step: look for a callback that writes them"
        if any(row["step"] in self._weights.idle_steps and row.get("grad_norm") for row in rows):
            dtype = self.config.model.dtype
            small = "" if dtype == "float32" else f", or each update is smaller than {dtype} can express; use model.dtype=float32"
            return f"There is a gradient and the weights stay as they are: the optimizer does not hold these weights{small}"
        if self._shift:
            return self._shift
        reward, cut = _mean(rows, "reward"), _mean(rows, "completions/clipped_ratio") or 0.0
        if reward is None:
            reasons = self._unscored_reasons.most_common(1)
            why = f" Most often: {' '.join(reasons[0][0].split())}" if reasons else ""
            return f"No answer has a score: the verifier or its sandbox fails, and the reasons are in episodes.jsonl.{why}"
        changes = _describe_changes(earlier[-WINDOW_STEPS:], rows[-WINDOW_STEPS:]) if earlier else []
        if changes:
            return f"The answers have changed: {'; '.join(changes)}. {self._explain_change(int(rows[0]['step']))}"
        told = f"All answers of every group score the same, {reward:.3g} in the mean"
        if (temperature := self.config.rollout.temperature) > HIGH_TEMPERATURE and not reward:
            return f"{told}: at rollout.temperature={temperature:g} tokens are drawn nearly at random; 1 is usual"
        if cut > 0.5:
            return f"{told}, and {cut:.0%} of them are cut at the length limit: raise rollout.max_new_tokens, or check the stop tokens"
        if reward > 0:
            return f"{told}: the verifier does not tell answers apart, or each task has one answer for good. Read answers in episodes.jsonl"
        return (
            f"{told}: the tasks are too hard, or no answer can be read. Compare an answer in episodes.jsonl with what the verifier expects "
            "(`rlvr verify --explain`); easier tasks, a longer sft_warmup or more rollout.num_generations help where answers are readable"
        )

    def _warn_once(self, kind: str, words: str) -> None:
        if kind not in self._told_kinds:
            self._told_kinds.add(kind)
            self._warn(words)

    def _warn(self, words: str) -> None:
        self.console.print(f"warning: {words}", highlight=False, markup=False, soft_wrap=True)

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def _lacks_gradient(self, row: Row) -> bool:
        """Return whether a step taught nothing, although its tasks are not solved."""
        reward = row.get("reward")
        if self.config.data is not None:  # stored answers have what rewards they have
            return bool(row.get("step/skipped"))
        if reward is None:
            return True
        # a critic with weights of its own may learn alone for some steps
        stands_still = (row.get("grad_norm") == 0.0 or self._weights.was_in_vain(row["step"])) and self.config.train.separate_critic is None
        # with value estimates, equal rewards teach too
        is_even = (row.get("reward_std") or 0.0) <= SAME_SCORE and row.get("reward_std") is not None and "value_loss" not in row
        has_no_rate = row.get("learning_rate") == 0.0 and self.config.train.learning_rate > 0
        idle = bool(row.get("step/skipped")) or is_even or stands_still or has_no_rate
        return idle and reward < self._solved_reward

    def _count_last(self, is_bad: Callable[[Row], bool]) -> int:
        """Count the newest steps in a row that are bad."""
        return next((k for k, row in enumerate(reversed(self.rows)) if not is_bad(row)), len(self.rows))

    def _find_last_step_below(self, key: str, level: float) -> int:
        """Find the step before the first one in which a metric is above a level for good; 0 if it always was."""
        above = self._count_last(lambda row: not (_is_number(row.get(key)) and row[key] <= level))
        return int(self.rows[-above - 1]["step"]) if above < len(self.rows) else 0

    def _get_first_step(self, count: int) -> int:
        return int(self.rows[-count]["step"])

    def _estimate_error(self, row: Row) -> float:
        """Estimate the standard error of a step's mean reward. Without that of its groups, the answers to one prompt count as one."""
        if _is_number(row.get("reward_stderr")):
            return float(row["reward_stderr"])
        prompts = (row.get("num_completions") or 1) / self.config.rollout.num_generations
        return (row.get("reward_std") or 0.0) / math.sqrt(max(1.0, prompts))

    def _format_stop(self, trainer: Trainer, step: int, trouble: Trouble) -> str:
        good = trouble.last_good_step if trouble.last_good_step >= 0 else trainer.last_saved_step
        kept = trainer.set_aside_checkpoints_after(good)
        which = "from before that" if kept <= good else f"the oldest there is, though the weights were surely good only up to step {good}"
        return (
            f"the run stopped after step {step}: since step {trouble.since} {trouble.what}\n"
            f"likely cause: {trouble.cause}\n"
            f"kept: the checkpoint of step {kept} in {trainer.folder / 'checkpoints'}, {which}. --resume continues there with the same "
            f"settings, but for those of health; with others, start a new run with model.path={trainer.folder / 'checkpoints' / 'last'}"
        )


def _select_extremes(answers: list[KeptAnswer], count: int) -> list[KeptAnswer]:
    """Select the first and the last of some answers in order."""
    return [*answers[:count], *answers[max(count, len(answers) - count) :]]


def _list_unscored_reasons(record: StepRecord) -> list[str]:
    """List why the answers of a step have no score."""
    return [str(episode.error)[:MAX_QUOTE] for episode in _list_episodes(record) if not episode.is_scored and episode.error]


def _list_episodes(record: StepRecord) -> list[Episode]:
    return [episode for group in record.batch.all_groups for episode in group]


def _find_common_reply(sessions: Sequence[Mapping[str, Any] | None]) -> tuple[str, float]:
    """Find the most common reply to tool calls, and its fraction of all; 0 if there are few."""
    steps = [step_result_from_json(row) for session in sessions if session for row in session.get("step_results", ())]
    replies = Counter(result.text for step in steps for result in step.tool_results)
    if replies.total() < MIN_REPLIES:
        return "", 0.0
    reply, count = replies.most_common(1)[0]
    return reply, count / replies.total()


def _compute_unscored_fraction(row: Row) -> float:
    count = row.get("num_completions") or 0
    return (row.get("unscored") or 0) / count if count else 0.0


def _describe_changes(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Describe how answers differ from earlier ones by more than a healthy policy changes while its reward falls."""
    found = []
    for name, key in (("mean length", "completions/mean_length"), ("entropy", "entropy")):
        old, new = _mean(before, key), _mean(after, key)
        if old and new is not None and not old / MAX_FACTOR <= new <= old * MAX_FACTOR:
            found.append(f"{name} {old:.3g} before, {new:.3g} now")
    for name, key, rise in (
        ("repeated sequences", "completions/repetition", 0.3),
        ("cut at the length limit", "completions/clipped_ratio", 0.5),
    ):
        old, new = _mean(before, key) or 0.0, _mean(after, key) or 0.0
        if new - old > rise:
            found.append(f"{name} {old:.0%} before, {new:.0%} now")
    return found


def find_last_exact_step(rows: Sequence[Row], config: RunConfig) -> int | None:
    """Find the step up to which sampler and trainer agreed to the last digits, as they do where both compute in float32 with the same
    weights; None if they never did, or later ones may differ.
    """
    if config.data is not None or config.rollout.is_off_policy or config.rollout.top_p < 1 or config.rollout.top_k:
        return None
    known = [(int(row["step"]), row["mismatch_kl"]) for row in rows if _is_number(row.get("mismatch_kl"))]
    exact = list(takewhile(lambda one: one[1] < EXACT_MISMATCH_KL, known))
    return exact[-1][0] if len(exact) > 1 else None


def _measure_gain(row: Row) -> float | None:
    """Return how far an update went along the advantages: about the correlation of the log ratios with these; None if it did not move."""
    gain, moved, spread = (float(row[key]) if _is_number(row.get(key)) else 0.0 for key in ("update_gain", "update_kl", "advantage/std"))
    # without a gradient only the momentum of earlier steps moves it
    return gain / math.sqrt(2 * moved) / spread if moved and spread and row.get("grad_norm") else None


def _are_against(gains: Sequence[float]) -> bool:
    """Return whether updates surely went against the advantages: nearly all of them, and on average by several standard errors."""
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
    return mean < min(AGAINST_ADVANTAGES, -FALL_SIGMAS * error) and sum(gain < 0 for gain in gains) > 0.8 * len(gains)


def _find_own_parts(algorithm: Any) -> dict[str, str]:
    """Find the functions of an algorithm that are not this project's."""
    parts = getattr(getattr(algorithm, "spec", None), "components", {"loss": type(algorithm)})
    named = {part: (getattr(function, "__module__", ""), getattr(function, "__qualname__", "")) for part, function in parts.items()}
    return {part: f"{name} (algorithm.{part})" for part, (module, name) in named.items() if name and not module.startswith("rlvr.")}


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [float(row[key]) for row in rows if _is_number(row.get(key))]
    return math.fsum(values) / len(values) if values else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
