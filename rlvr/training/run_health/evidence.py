"""What the rules of run health look at: the metrics of the steps so far, and what else is known of the run."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from rich.console import Console

from rlvr.algorithms.base.preference import ScoredAnswersAlgorithm
from rlvr.config.config import RunConfig
from rlvr.episode import Episode
from rlvr.models.numerics_check import has_experts
from rlvr.runs.run_log import read_episodes_of_steps
from rlvr.training.callbacks import StepRecord
from rlvr.training.processes import run_on_main
from rlvr.training.reward_fall_probe import (
    LOGGED_FIELDS,
    MAX_ANSWERS,
    SAME_SCORE,
    KeptAnswer,
    RewardFallProbe,
    keep_answers,
    keep_logged_answers,
)
from rlvr.training.reward_history import LASTING_STEPS, RewardHistory
from rlvr.training.weight_changes import WeightChanges

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

Row = Mapping[str, Any]
"""The metrics of a step."""
T = TypeVar("T")

WINDOW_STEPS = 8
"""The number of steps before and after a change that are compared."""
SOLVED_REWARD = 0.99
"""Steps without a gradient are no trouble from this mean reward on: every answer is right."""
KEPT_STEPS = 4
"""The number of the best steps whose answers are kept."""
MAX_QUOTE = 300
"""How much of a reason is quoted."""


class ComponentFall(NamedTuple):
    """A component of the reward that has fallen to 0 while the reward rose."""

    what: str
    last_good_step: int
    """The last step whose weights gave answers with the component."""


class RunEvidence:
    """The metrics of a run's steps, and what else is known of the run.

    >>> from rlvr.config.config import load_config
    >>> run = RunEvidence(load_config("quickstart"))
    >>> for step, reward in enumerate((0.5, 0.0, 0.0), 1):
    ...     run.add({"step": step, "reward": reward})
    >>> run.count_last(lambda row: row["reward"] == 0.0)
    2
    """

    def __init__(self, config: RunConfig, console: Console | None = None, weights: WeightChanges | None = None) -> None:
        """`weights`: what the trainer has seen of its weights."""
        self.config, self.console = config, console or Console(quiet=True)
        self.weights = weights or WeightChanges()
        self.rows: list[Row] = []
        """The metrics of the steps so far."""
        self.scored_rows: list[Row] = []
        """Those of the steps that have a reward."""
        self.rewards = RewardHistory()
        """The rewards of `scored_rows`."""
        self.trainer: Trainer | None = None
        self.record: StepRecord | None = None
        """The newest step; None before the first one of this process, where only metrics are known."""
        self.first_step = 1
        """The first step of this process."""
        self.change_at_resume = ""
        """How the tasks have changed while the run was stopped."""
        self.misplaced_references = ""
        """How references seem to belong to other tasks."""
        self.foreign_reference = ""
        """How the reference of the KL is another model than the one that training began with."""
        self.fallen_component: ComponentFall | None = None
        """A component of the reward that has fallen to 0 while the reward rises."""
        self.solved_reward = SOLVED_REWARD
        self.unscored_reasons = Counter[str]()
        """Why answers of the steps so far have no score."""
        self.num_unanswered = 0
        """How many of these have no token of the policy."""
        self.has_penalty = True
        """Whether `algorithm.beta` weighs a KL against advantages; in a loss on pairs of answers it does not."""
        self.has_experts = False
        self.own_parts: dict[str, str] = {}
        """The functions of the algorithm that are not this project's, `loss` and `advantage`."""
        self.advantage_fits: list[float] = []
        """How the advantages of steps correlated with the rewards, where the function that computes them is not this project's."""
        self.probe: RewardFallProbe | None = None
        self.checked_answers: list[KeptAnswer] = []
        """Answers of a step in which the verifier was known to be as before, to be verified again."""
        self.checked_step = 0
        self.verified_step = -1
        """The last step in which the verifier was known to be as before; -1 until it was verified."""
        self._best_answers: list[tuple[int, list[KeptAnswer]]] = []
        """Answers of the best steps so far, with the places of the steps in `scored_rows`."""
        self._step_answers: list[KeptAnswer] | None = None
        self._prompts = deque[list[tuple[int, ...]]](maxlen=WINDOW_STEPS)
        """The prompts of the newest steps, one of each group."""
        self._examined: dict[str, tuple[int, Any]] = {}
        """What was examined last, with the number of steps then."""
        self._told_kinds: set[str] = set()
        """What has been warned of, which is told once: kinds of trouble, and others."""

    def begin(self, trainer: Trainer) -> None:
        """Note what the other methods need to know of the trainer's algorithm and model, and the first step of this process."""
        self.has_penalty = not isinstance(trainer.algorithm, ScoredAnswersAlgorithm)
        self.own_parts = _find_own_parts(trainer.algorithm)
        self.has_experts = has_experts(trainer.model)
        self.first_step = trainer.num_completed_steps + 1

    def add_step_record(self, trainer: Trainer, record: StepRecord) -> None:
        """Take in a finished step, but for its metrics."""
        self.trainer, self.record, self._step_answers = trainer, record, None
        self._prompts.append([(*group[0].tokens[: group[0].prompt_length],) for group in record.batch.all_groups if group])
        if record.metrics.get("unscored"):
            lost = [episode for episode in self.list_episodes() if not episode.is_scored and episode.error]
            self.unscored_reasons.update(str(episode.error)[:MAX_QUOTE] for episode in lost)
            self.num_unanswered += count_unanswered(lost)
        if "advantage" in self.own_parts:
            self._measure_advantages(record)

    def add(self, row: Row) -> None:
        """Add the metrics of a step."""
        self.rows.append(row)
        if row.get("reward") is not None:
            self.scored_rows.append(row)
            self.rewards.add(float(row["reward"]), self._estimate_error(row))

    def count_last(self, is_bad: Callable[[Row], bool]) -> int:
        """Count the newest steps in a row that are bad."""
        return next((k for k, row in enumerate(reversed(self.rows)) if not is_bad(row)), len(self.rows))

    def get_first_step(self, count: int) -> int:
        """Return the first of the newest steps."""
        return int(self.rows[-count]["step"])

    def find_last_step_below(self, key: str, level: float) -> int:
        """Find the step before the first one in which a metric is above a level for good; 0 if it always was."""
        above = self.count_last(lambda row: not (is_number(row.get(key)) and row[key] <= level))
        return int(self.rows[-above - 1]["step"]) if above < len(self.rows) else 0

    def taught_nothing_though_unsolved(self, row: Row) -> bool:
        """Return whether a step taught nothing, although its tasks are not solved."""
        reward = row.get("reward")
        if self.config.data is not None:  # stored answers have what rewards they have
            return bool(row.get("step/skipped"))
        if reward is None:
            return True
        # a critic with weights of its own may learn alone for some steps
        stands_still = (
            row.get("grad_norm") == 0.0 or self.weights.had_no_lasting_effect(row["step"])
        ) and self.config.train.separate_critic is None
        # with value estimates, equal rewards teach too
        is_even = (row.get("reward_std") or 0.0) <= SAME_SCORE and row.get("reward_std") is not None and "value_loss" not in row
        has_no_rate = row.get("learning_rate") == 0.0 and self.config.train.learning_rate > 0
        idle = bool(row.get("step/skipped")) or is_even or stands_still or has_no_rate
        return idle and reward < self.solved_reward

    @property
    def best_reward_step(self) -> int:
        """The step whose weights gave the last of the best rewards so far, before any steps without a gradient; -1 if no step has a reward."""
        rows = self.scored_rows
        idle = next((k for k, row in enumerate(reversed(rows)) if not self.taught_nothing_though_unsolved(row)), len(rows))
        good = self.rewards.find_last_good(len(rows) - idle)
        return min(0, len(rows) - 1) if good is None or good < 0 else int(rows[good]["step"])

    def began_after_resume_with_other_tasks(self, step: int) -> bool:
        """Whether something began soon after a resume with other tasks than before."""
        return bool(self.change_at_resume) and 0 <= step - self.first_step + 1 <= WINDOW_STEPS

    def _estimate_error(self, row: Row) -> float:
        """Estimate the standard error of a step's mean reward. Without that of its groups, the answers to one prompt count as one."""
        if is_number(row.get("reward_stderr")):
            return float(row["reward_stderr"])
        prompts = (row.get("num_completions") or 1) / self.config.rollout.num_generations
        return (row.get("reward_std") or 0.0) / math.sqrt(max(1.0, prompts))

    def _measure_advantages(self, record: StepRecord) -> None:
        """Measure how advantages of a function that is not this project's follow the rewards of the answers of each group."""
        pairs = list[tuple[float, float]]()
        for group, of_group in zip(record.batch.all_groups, record.diagnostics, strict=False):
            known = [(episode.reward, math.fsum(of[0]) / len(of[0])) for episode, of in zip(group, of_group, strict=True) if len(of[0])]
            known = [(float(reward), mean) for reward, mean in known if reward is not None]
            middle = [math.fsum(values) / len(known) for values in zip(*known, strict=True)]
            pairs += [(reward - middle[0], mean - middle[1]) for reward, mean in known]
        with suppress(statistics.StatisticsError):
            self.advantage_fits.append(statistics.correlation([reward for reward, _ in pairs], [mean for _, mean in pairs]))

    def count_prompts(self) -> tuple[int, int]:
        """Count the distinct prompts of the newest steps, and their groups."""
        prompts = [prompt for of_step in self._prompts for prompt in of_step]
        return len(set(prompts)), len(prompts)

    def list_episodes(self) -> list[Episode]:
        """List the episodes of the newest step; empty if only its metrics are known."""
        return [] if self.record is None else [episode for group in self.record.batch.all_groups for episode in group]

    def list_step_answers(self, probe: RewardFallProbe) -> list[KeptAnswer]:
        """List the answers of the newest step that have a score, one of each task before the second of any."""
        if self._step_answers is None:
            self._step_answers = keep_answers(probe.environment, self.list_episodes())
        return self._step_answers

    def keep_answers_of_best_steps(self) -> None:
        """Keep the answers of the newest step if it is one of the best so far."""
        if self.probe is None or self.rows[-1].get("reward") is None:
            return
        best, place = self.rewards.find_best(), len(self.rewards) - 1
        if best is not None and best.end == place + 1:
            answers = self.list_step_answers(self.probe)
            self._best_answers = [*[one for one in self._best_answers if one[0] >= best.start][-KEPT_STEPS + 1 :], (place, answers)]

    def restore_best_answers(self, trainer: Trainer) -> None:
        """Keep the answers of the best steps before a resume, as the run folder has them. A collective operation."""
        best = self.rewards.find_best()
        if self.probe is None or best is None:
            return
        places = {int(self.scored_rows[place]["step"]): place for place in range(best.start, best.end)[-KEPT_STEPS:]}

        def read() -> list[dict[str, Any]]:
            try:
                rows = read_episodes_of_steps(trainer.folder, places)
                return [{name: row.get(name) for name in ("step", *LOGGED_FIELDS)} for row in rows if row["text"] is not None]
            except (OSError, ValueError, LookupError, TypeError) as error:  # a damaged log: only this evidence is lost
                self.warn(f"answers of earlier steps cannot be read from episodes.jsonl ({error}), so a fall is explained less well")
                return []

        rows = sorted(run_on_main(trainer.accelerator, read), key=itemgetter("step"))
        environment = self.probe.environment
        self._best_answers = [
            (places[step], keep_logged_answers(environment, of_step)) for step, of_step in groupby(rows, itemgetter("step"))
        ]

    def list_best_answers(self) -> list[KeptAnswer]:
        """List the answers of the best steps so far."""
        return [answer for _, answers in self._best_answers for answer in answers][-MAX_ANSWERS:]

    @property
    def best_answers_step(self) -> int:
        """The step of the first of the best answers; 0 if there are none."""
        return int(self.scored_rows[self._best_answers[0][0]]["step"]) if self._best_answers else 0

    def examine_or_reuse(self, name: str, examine: Callable[[], T]) -> T:
        """Examine something that costs time, or return what was found at most some steps ago: a run that only warns goes on in trouble."""
        at, found = self._examined.get(name, (-LASTING_STEPS, None))
        if len(self.rows) - at >= LASTING_STEPS:
            found = examine()
            self._examined[name] = (len(self.rows), found)
        return cast("T", found)

    def warn(self, words: str) -> None:
        """Print a warning."""
        self.console.print(f"warning: {words}", highlight=False, markup=False, soft_wrap=True)

    def warn_once(self, kind: str, words: str) -> None:
        """Print a warning, unless one of this kind was printed before."""
        if kind not in self._told_kinds:
            self._told_kinds.add(kind)
            self.warn(words)


def _find_own_parts(algorithm: Any) -> dict[str, str]:
    """Find the functions of an algorithm that are not this project's."""
    parts = getattr(getattr(algorithm, "spec", None), "components", {"loss": type(algorithm)})
    named = {part: (getattr(function, "__module__", ""), getattr(function, "__qualname__", "")) for part, function in parts.items()}
    return {part: f"{name} (algorithm.{part})" for part, (module, name) in named.items() if name and not module.startswith("rlvr.")}


def count_unanswered(episodes: Sequence[Episode]) -> int:
    """Count the episodes without any token of the policy: what failed is the sampler, or the start of the session."""
    return sum(not any(episode.action_mask) for episode in episodes)


def compute_mean(rows: Sequence[Row], key: str) -> float | None:
    """Compute the mean of a metric over the steps that have it; None if none has."""
    values = [float(row[key]) for row in rows if is_number(row.get(key))]
    return math.fsum(values) / len(values) if values else None


def is_number(value: Any) -> bool:
    """Return whether a metric is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
