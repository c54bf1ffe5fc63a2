"""A trouble of a run, and its likely cause where several rules share it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlvr.mdp.records import step_result_from_json
from rlvr.training.reward_fall_probe import KeptAnswer
from rlvr.training.reward_history import FALL_SIGMAS, LASTING_STEPS, Fall
from rlvr.training.run_health.evidence import WINDOW_STEPS, Row, RunEvidence, compute_mean, is_number

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

MAX_FACTOR = 3.0
"""The factor by which length and entropy may change while the reward falls."""
LARGE_UPDATE_KL, LARGE_UPDATE_FACTOR = 0.1, 5.0
"""An update that moves the policy by this much per token, and by this much more than the usual update of the run, destroys more than it
teaches; usual ones are below 0.01."""
LARGE_DECAY = 0.01
"""A weight decay that takes this fraction of the weights in each step destroys them."""
SUDDEN_FACTOR = 50.0
"""An update that is so many times the usual one, after some steps, is seldom the learning rate's fault alone."""
BLAMED_STEPS = 3
"""How many steps before a trouble an update is its likely cause."""
AGAINST_ADVANTAGES = -0.15
"""Updates whose log ratios correlate with the advantages by less go against them."""
MIN_ADVANTAGE_FIT = 0.3
"""Advantages that correlate less with the rewards of a group do not follow them."""
GROWN_FACTOR = 2.0
"""A learning rate that has grown by more since the first step, and beyond train.learning_rate, comes from a schedule that grows too far."""
MAX_DISTINCT, MIN_GROUPS = 1 / 8, 32
"""Prompts of which at most this fraction are distinct, of so many groups, are few."""
MIN_PULL = 0.25
"""A KL to the reference, times beta, of less than this fraction of the advantages does not move the policy far."""
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

    def set_aside_checkpoints_and_explain(self, trainer: Trainer, step: int) -> str:
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


def make_weight_trouble(run: RunEvidence, kind: str, since: int, what: str, cause: str) -> Trouble:
    """Make a trouble of the weights; the last good step is before `since` and before the large update that is blamed, if there is one."""
    blamed = _find_blamed_update(run, since)
    # the first update after a resume may be large because the state of the optimizer in that checkpoint is damaged
    was_saved = blamed is not None and blamed["step"] == run.first_step > 1 and _had_time(run, blamed)
    before = [since - 2, *([int(blamed["step"]) - 1 - was_saved] if blamed is not None else [])]
    return Trouble(kind, since, what, cause, max(0, min(before)))


def explain_policy_change(run: RunEvidence, step: int, fall: Fall | None = None) -> str:
    """Explain a change of the policy that shows from a step on."""
    before, after = ([row for row in run.rows if (row["step"] < step) is is_before] for is_before in (True, False))
    before, after = before[-WINDOW_STEPS:], after[-WINDOW_STEPS:]
    if run.began_after_resume_with_other_tasks(step):
        return run.change_at_resume
    if reply := _quote_common_reply(run):
        return f"{reply}. Look at the tool and its service"
    if run.probe is not None and (told := run.probe.describe_changed_tool_results(run.list_best_answers())):
        return f"The tools give other results than in step {run.best_answers_step}: {told}. Look at the tool and its service"
    rewards = compute_mean(before, "reward"), compute_mean(after, "reward")
    if rewards[0] is not None and rewards[1] is not None and rewards[1] > rewards[0] and fall is None:
        if told := _describe_few_prompts(run, rewards[0], rewards[1]):
            return told
        part = f", and {run.fallen_component.what}" if run.fallen_component is not None else ""
        return (
            f"The reward pays for it: it was {rewards[0]:.3g} before and is {rewards[1]:.3g} now{part}. Read the answers of this step in "
            "episodes.jsonl, and change the verifier"
        )
    entropies, bonus = (compute_mean(before, "entropy"), compute_mean(after, "entropy")), run.config.algorithm.get("entropy_coef")
    if bonus and entropies[0] and (entropies[1] or 0.0) > 2 * entropies[0]:
        return (
            f"The entropy bonus outweighs the reward: entropy {entropies[0]:.3g} before, {entropies[1]:.3g} now; lower "
            f"algorithm.entropy_coef (it is {bonus:g})"
        )
    if told := run.weights.explain_foreign_weight_change(*range(step - LASTING_STEPS, len(run.rows) + 2)):
        return told
    if run.foreign_reference and _pulls(before + after):
        return f"{run.foreign_reference}. Give the model that was meant, or lower algorithm.beta"
    if told := describe_penalty(run, before):
        return f"Up to step {step - 1} {told}"
    if run.advantage_fits and (fit := statistics.fmean(run.advantage_fits)) < MIN_ADVANTAGE_FIT:
        return (
            f"The advantages of {run.own_parts['advantage']} do not follow the rewards: within groups their correlation is {fit:.2f}. "
            "Look whether each answer gets its own"
        )
    gains = [gain for row in before + after if (gain := estimate_log_ratio_advantage_correlation(row)) is not None]
    if len(gains) > 1 and go_against_advantages(gains):
        return explain_updates_against_advantages(run)
    largest, rate = _find_blamed_update(run, step), run.config.train.learning_rate
    if (decay := run.config.train.weight_decay) * rate > LARGE_DECAY:
        return f"train.weight_decay ({decay:g}) takes {decay * rate:.1%} of the weights in each step: lower it"
    if told := _describe_growth(run, step):
        return told
    if largest is not None:
        usual = _measure_usual_update(run, int(largest["step"]))
        beside = f", and the updates before by {usual:.2g}" if usual is not None else ""
        damaged = "; as it was right until then, something may have damaged the state of the optimizer" if _had_time(run, largest) else ""
        return (
            f"The update of step {largest['step']} moved the policy by {largest['update_kl']:.2g} nats per token{beside}: lower "
            f"train.learning_rate (it is {rate:g}), or raise train.warmup_steps{damaged}"
        )
    if fall is not None and _is_sudden(run, fall):
        return (
            f"From step {step - 1} to step {step} the reward fell at once, and no update moved the policy so far. So look for what "
            "else changed: the tools, the tasks, the environment or the sampler"
        )
    against = [row["update_gain"] for row in before + after if is_number(row.get("update_gain"))]
    if against and sum(gain < 0 for gain in against) > 0.8 * len(against):
        return explain_updates_against_advantages(run)
    return (
        f"No single update just before was large, so many have gone the same way: train.learning_rate ({rate:g}) is too high for batches "
        "of this size, or nothing holds the policy back (algorithm.beta), or the reward pays for it. Read the answers of this step in "
        "episodes.jsonl"
    )


def explain_reward_without_held_out(run: RunEvidence, before: float, now: float) -> str:
    """Explain that the reward has risen while the held-out figure has fallen."""
    if told := _describe_few_prompts(run, before, now):
        return told
    part = f"; {run.fallen_component.what}" if run.fallen_component is not None else ""
    return (
        f"The policy learns something that the training reward pays and the held-out tasks do not: the reward rose from {before:.3g} to "
        f"{now:.3g}{part}. Read answers with a high reward in episodes.jsonl: if they are wrong, the verifier has a loophole (`rlvr audit` "
        "looks for some); if they are right, the policy knows the training tasks by heart, or the held-out tasks are of another kind"
    )


def _describe_few_prompts(run: RunEvidence, before: float, now: float) -> str:
    """Say that the reward has risen on few prompts; empty if there are many."""
    distinct, groups = run.count_prompts()
    if groups < MIN_GROUPS or distinct > MAX_DISTINCT * groups:
        return ""
    return (
        f"The policy overfits to few prompts: the {groups} groups of the last steps have {distinct} distinct ones, on which the reward "
        f"rose from {before:.3g} to {now:.3g}. Look for rows that were repeated or lost, and train on more tasks"
    )


def explain_updates_against_advantages(run: RunEvidence) -> str:
    """Explain updates that go against the advantages."""
    own = " or ".join(run.own_parts.values())
    bonus = ", or algorithm.entropy_coef outweighs the advantages" if run.config.algorithm.get("entropy_coef") else ""
    return (
        "The updates make answers with a positive advantage less likely, and the others more likely: the sign of the loss or of the "
        f"advantages is wrong{f' in {own}' if own else ''}{bonus}"
    )


def explain_unscored(reasons: Mapping[str, int], num_unanswered: int, *, where: str, references: str = "") -> str:
    """Explain answers without a score: whether the verifier fails, or the policy gave no answer.

    `where`: where the reasons are, `references`: what else of the verifier may be wrong.
    """
    common = Counter(reasons).most_common(1)
    quoted = f" (mostly: {' '.join(common[0][0].split())})" if common else ""
    if 2 * num_unanswered > sum(reasons.values()):
        return f"Not the verifier: the policy gave no answer. Its sampler or the server of that fails, or the start of the session{quoted}; {where}"
    return f"Not the answers but the verifier, its sandbox or its service{references} fails{quoted}; {where}"


def explain_changed_verifier(run: RunEvidence, answers: Sequence[KeptAnswer], when: str, told: str = "") -> str:
    """Explain a verifier that no longer tells answers apart as it did; `when`: when they were given, `told`: what it does now."""
    if not told and run.probe is not None:
        told = run.probe.describe_change(answers, run.probe.verify_again(answers)) or "their scores had no order in common"
    mean = math.fsum(answer.score for answer in answers) / max(1, len(answers))
    return (
        f"Not the policy but the verifier has changed: the answers {when} that scored {mean:.3g} in the mean then were verified again, "
        f"and {told}. Look at its service, its references and its log"
    )


def describe_answer_changes(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Describe how answers differ from earlier ones by more than a healthy policy changes while its reward falls."""
    found = []
    for name, key in (("mean length", "completions/mean_length"), ("entropy", "entropy")):
        old, new = compute_mean(before, key), compute_mean(after, key)
        if old and new is not None and not old / MAX_FACTOR <= new <= old * MAX_FACTOR:
            found.append(f"{name} {old:.3g} before, {new:.3g} now")
    for name, key, rise in (
        ("repeated sequences", "completions/repetition", 0.3),
        ("cut at the length limit", "completions/clipped_ratio", 0.5),
    ):
        old, new = compute_mean(before, key) or 0.0, compute_mean(after, key) or 0.0
        if new - old > rise:
            found.append(f"{name} {old:.0%} before, {new:.0%} now")
    return found


def describe_penalty(run: RunEvidence, rows: Sequence[Row]) -> str:
    """Say that the KL to the reference weighs more than the advantages in all of some steps; empty otherwise."""
    if not run.has_penalty or run.config.data is not None:
        return ""
    weights = [row["beta"] * row["kl"] for row in rows if is_number(row.get("beta")) and is_number(row.get("kl"))]
    spreads = [row["advantage/std"] for row in rows if is_number(row.get("advantage/std"))]
    if min(len(weights), len(spreads)) < WINDOW_STEPS or any(weight <= spread for weight, spread in zip(weights, spreads, strict=True)):
        return ""
    return (
        f"the KL to the reference, times algorithm.beta ({rows[-1]['beta']:g}), is {math.fsum(weights) / len(weights):.2g}, more than the "
        f"advantages ({math.fsum(spreads) / len(spreads):.2g}): the policy can hardly move away. Lower algorithm.beta"
    )


def _describe_growth(run: RunEvidence, step: int) -> str:
    """Say that a schedule has raised the learning rate far above that of the configuration, by a step or after it; empty otherwise."""
    rates = [(int(row["step"]), float(row["learning_rate"])) for row in run.rows if is_number(row.get("learning_rate"))]
    if not rates or rates[-1][1] <= GROWN_FACTOR * max(rates[0][1], run.config.train.learning_rate):
        return ""
    (first, least), (last, rate), train = rates[0], rates[-1], run.config.train
    then = "".join(f", {value:.3g} in step {at}" for at, value in rates if at == step < last)
    grown = f" ({rate / least:.3g} times as much)" if least else ""
    return (
        f"The learning rate grows: it was {least:.3g} in step {first}{then} and is {rate:.3g} in step {last}{grown}, and "
        f"train.learning_rate is {train.learning_rate:g}. Look at train.lr_scheduler={train.lr_scheduler}: its factor should not exceed 1"
    )


def _pulls(rows: Sequence[Row]) -> bool:
    """Return whether the KL to the reference weighs as much as advantages do, so that it may move the policy far."""
    weights = [row["beta"] * row["kl"] for row in rows if is_number(row.get("beta")) and is_number(row.get("kl"))]
    return bool(weights) and statistics.fmean(weights) > MIN_PULL * (compute_mean(rows, "advantage/std") or 0.0)


def estimate_log_ratio_advantage_correlation(row: Row) -> float | None:
    """Return how far an update went along the advantages: about the correlation of the log ratios with these; None if it did not move."""
    gain, moved, spread = (float(row[key]) if is_number(row.get(key)) else 0.0 for key in ("update_gain", "update_kl", "advantage/std"))
    # without a gradient only the momentum of earlier steps moves it
    return gain / math.sqrt(2 * moved) / spread if moved and spread and row.get("grad_norm") else None


def go_against_advantages(gains: Sequence[float]) -> bool:
    """Return whether updates surely went against the advantages: nearly all of them, and on average by several standard errors."""
    mean = statistics.fmean(gains)
    if mean >= AGAINST_ADVANTAGES or sum(gain < 0 for gain in gains) <= 0.8 * len(gains):
        return False
    return mean < -FALL_SIGMAS * statistics.stdev(gains) / math.sqrt(len(gains))


def find_common_reply(sessions: Sequence[Mapping[str, Any] | None]) -> tuple[str, float]:
    """Find the most common reply to tool calls, and its fraction of all; 0 if there are few."""
    steps = [step_result_from_json(row) for session in sessions if session for row in session.get("step_results", ())]
    replies = Counter(result.text for step in steps for result in step.tool_results)
    if replies.total() < MIN_REPLIES:
        return "", 0.0
    reply, count = replies.most_common(1)[0]
    return reply, count / replies.total()


def _quote_common_reply(run: RunEvidence) -> str:
    """Say that nearly all tool calls of the last step got one reply, if they did not before; empty otherwise."""
    reply, fraction = find_common_reply([episode.meta.get("session") for episode in run.list_episodes()])
    before = find_common_reply([answer.record for answer in run.list_best_answers()])[1]
    if fraction < COMMON_REPLY_FRACTION or before >= COMMON_REPLY_FRACTION:
        return ""
    return f"{fraction:.0%} of the tool calls got one and the same reply, {reply[:80]!r}"


def _find_blamed_update(run: RunEvidence, step: int) -> Row | None:
    """Find a large update just before the step in which a trouble begins."""
    near = [row for row in run.rows if step - BLAMED_STEPS <= row["step"] <= step and is_number(row.get("update_kl"))]
    largest = max(near, key=lambda row: float(row["update_kl"]), default=None)
    if largest is None:
        return None
    bound = max(LARGE_UPDATE_KL, LARGE_UPDATE_FACTOR * (_measure_usual_update(run, int(largest["step"])) or 0.0))
    return largest if largest["update_kl"] > bound else None


def _measure_usual_update(run: RunEvidence, step: int) -> float | None:
    """Return the median of the updates before a step; None if there was none."""
    usual = sorted(float(row["update_kl"]) for row in run.rows if row["step"] < step and is_number(row.get("update_kl")))
    return usual[len(usual) // 2] if usual else None


def _had_time(run: RunEvidence, row: Row) -> bool:
    """Whether an update is far larger than the usual one, after some steps."""
    usual = _measure_usual_update(run, int(row["step"]))
    return usual is not None and row["step"] > WINDOW_STEPS and row["update_kl"] > SUDDEN_FACTOR * usual


def _is_sudden(run: RunEvidence, fall: Fall) -> bool:
    """Whether nearly all of a fall came from one step to the next."""
    rewards = [float(row["reward"]) for row in run.scored_rows[max(0, fall.since - 1) : fall.since + 1]]
    return len(rewards) == 2 and rewards[0] - rewards[1] > 0.7 * (fall.best.mean - fall.recent.mean)
