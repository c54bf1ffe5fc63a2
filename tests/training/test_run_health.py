"""Run health: runs in trouble stop and name the step and the cause; healthy ones go on."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from rich.table import Table

import rlvr
from rlvr import Fault, Verdict, Verifier
from rlvr.config.config import validate_config
from rlvr.episode import Episode, StopReason
from rlvr.errors import CheckFailed, ConfigError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.runs.run_log import read_jsonl
from rlvr.task import Task
from rlvr.training.callbacks import PeriodicCheckpoints
from rlvr.training.components import compute_max_prompt_length
from rlvr.training.reward_fall_probe import KeptAnswer, Misplacement, RewardFallProbe
from rlvr.training.run_health import RunHealth, Trouble
from rlvr.training.run_health.causes import describe_penalty, explain_policy_change, find_common_reply
from rlvr.training.run_health.rules import ChangedVerifier, EqualAnswers, HeldOutFall, MisplacedReferences
from rlvr.training.run_summary import print_run_table
from rlvr.training.step_metrics import compute_repetition, estimate_entropy
from rlvr.training.train_report import TrainReport, format_closing_lines
from rlvr.training.trainer import Trainer
from rlvr.training.weight_changes import WeightChanges
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import Match, Sums


def health(**bounds: Any) -> RunHealth:
    return RunHealth(tiny_run(health=bounds, rollout={"prompts_per_step": 16, "num_generations": 8}))


def row(step: int, reward: float | None = 0.5, **changes: Any) -> dict[str, Any]:
    """The metrics of a healthy step."""
    usual = {
        "step": step, "reward": reward, "reward_std": 0.4, "unscored": 0, "num_completions": 128, "entropy": 0.5, "update_kl": 1e-3,
        "completions/mean_length": 40.0, "completions/clipped_ratio": 0.02, "completions/repetition": 0.05, "frac_reward_zero_std": 0.2,
        "grad_norm": 0.7, "mismatch_kl": 1e-5, "learning_rate": 1e-3, "step/skipped": 0.0, "step/nonfinite_minibatches": 0.0,
    }  # fmt: skip
    return usual | changes


def first_trouble(found: RunHealth, rows: list[dict[str, Any]]) -> tuple[int, Trouble] | None:
    for one in rows:
        if (trouble := found.observe(one)) is not None:
            return one["step"], trouble
    return None


def test_a_run_that_learns_slowly_or_noisily_or_is_done_is_healthy() -> None:
    dice = random.Random(0)
    noisy = [row(k, min(1.0, max(0.0, 0.3 + k / 800 + dice.gauss(0, 0.08)))) for k in range(1, 400)]
    solved = [row(k, 1.0, reward_std=0.0, **{"step/skipped": 1.0, "frac_reward_zero_std": 1.0}) for k in range(1, 100)]
    longer = [row(k, 0.2 + k / 500, **{"completions/mean_length": 20.0 + 2 * k, "entropy": 2 / k}) for k in range(1, 200)]
    harder = [row(k, 0.6 if k < 50 else 0.1) for k in range(1, 100)]  # other tasks, and answers like before
    now_and_then = [
        row(k, 0.0, reward_std=0.0, **{"step/skipped": float(k % 5 > 0)}) | {"reward_std": float(k % 5 == 0)} for k in range(1, 99)
    ]
    some_unscored = [row(k, unscored=60) for k in range(1, 50)]
    for rows in (noisy, solved, longer, harder, now_and_then, some_unscored):
        assert first_trouble(health(), rows) is None


@pytest.mark.parametrize(
    ("reason", "words", "good"),
    [
        ("Match raised ConnectionError: refused", "its sandbox or its service fails (mostly: Match raised ConnectionError: refused)", -1),
        ("the sampler gave a token the log-probability nan", "The weights or the logits are not numbers", 2),
    ],
)
def test_the_most_common_reason_of_answers_without_a_score_is_quoted(reason: str, words: str, good: int) -> None:
    found = health()
    found.run.unscored_reasons.update({reason: 9, "another": 1})
    _, trouble = first_trouble(found, [row(k, unscored=120 if k > 3 else 0) for k in range(1, 20)]) or (0, None)
    assert trouble is not None and words in trouble.cause and trouble.last_good_step == good


def test_a_withheld_held_out_figure_is_said_once_while_the_run_goes_on() -> None:
    shown = io.StringIO()
    found = RunHealth(tiny_run(eval={"tasks": 8}), Console(file=shown, width=200))
    trainer = cast(Any, SimpleNamespace(config=found.config, held_out_episodes=[], environment=Sums(), report_values={}))
    for step, accuracy in ((5, None), (10, None), (15, 0.5)):
        found.on_evaluate(trainer, step, accuracy)
    assert shown.getvalue().count("held-out figure of step") == 1 and "step 5 is withheld" in shown.getvalue()


def test_small_batches_may_have_no_right_answer_for_long() -> None:
    nothing = {"reward": 0.0, "reward_std": 0.0, "step/skipped": 1.0, "num_completions": 32}
    assert first_trouble(health(), [row(k) | nothing for k in range(1, 120)]) is None
    assert first_trouble(health(), [row(1), *(row(k) | nothing for k in range(2, 120))]) is not None  # there was something to lose


def test_steps_with_equal_rewards_teach_an_algorithm_with_value_estimates() -> None:
    even = [row(k, 0.0, reward_std=0.0, value_loss=0.1, grad_norm=5.0) for k in range(1, 60)]
    assert first_trouble(health(), even) is None


@pytest.mark.parametrize(("large", "good", "blamed"), [(None, 8, False), (10, 8, True), (8, 7, True), (3, 8, False)])
def test_the_checkpoint_to_go_on_from_is_from_before_the_trouble_and_the_update_that_caused_it(
    large: int | None, good: int, blamed: bool
) -> None:
    rows = [row(k, 0.5 if k < 10 else 0.0, **{"completions/mean_length": 40.0 if k < 10 else 400.0}) for k in range(1, 40)]
    for one in rows:
        one["update_kl"] = 5.0 if one["step"] == large else 1e-3
    _, trouble = first_trouble(health(), rows) or (0, None)
    assert trouble is not None and trouble.kind == "reward" and trouble.since == 10
    assert trouble.last_good_step == good and ("The update of step" in trouble.cause) == blamed


def test_a_held_out_figure_far_below_an_earlier_one_is_trouble() -> None:
    def find(figures: dict[int, float], tasks: int = 100) -> Trouble | None:
        found = RunHealth(tiny_run(eval={"tasks": tasks, "every": 5}))
        rows = [row(k, **({"eval/accuracy": figures[k]} if k in figures else {})) for k in range(1, max(figures) + 1)]
        return (first_trouble(found, rows) or (0, None))[1]

    trouble = find({5: 0.6, 10: 0.55, 15: 0.05})
    assert trouble is not None and (trouble.since, trouble.last_good_step) == (15, 10) and "at step 5 it was 60.0%" in trouble.what
    assert find({5: 0.6, 10: 0.35}) is None and find({5: 0.6, 10: 0.0}, tasks=20) is not None and find({5: 0.6, 10: 0.0}, tasks=5) is None


def test_answers_without_a_score_stop_a_run_after_some_steps_in_a_row() -> None:
    rows = [row(k, unscored=120 if k > 3 else 0) for k in range(1, 20)]
    assert first_trouble(health(), rows) == (8, Trouble("unscored", 4, *first_trouble(health(), rows)[1][2:]))  # type: ignore[index]
    assert first_trouble(health(), [row(k, unscored=120 if k % 5 else 0) for k in range(1, 50)]) is None
    step, trouble = first_trouble(health(patience=2, max_unscored=0.1), [row(k, unscored=14) for k in range(1, 20)]) or (0, None)
    assert step == 2 and trouble is not None and "at least 11%" in trouble.what and "max_unscored is 0.1" in trouble.what


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"reward": 0.0, "reward_std": 0.0, "step/skipped": 1.0, "num_completions": 256}, "gradient", "too hard, or no answer can be read"),
        ({"reward": 0.3, "reward_std": 0.0, "step/skipped": 1.0}, "gradient", "does not tell answers apart"),
        ({"reward": 0.0, "reward_std": 0.0, "step/skipped": 1.0, "completions/clipped_ratio": 0.9}, "gradient", "max_new_tokens"),
        ({"reward": None, "reward_std": None, "step/skipped": 1.0, "unscored": 128}, "unscored", "Not the answers but the verifier"),
        ({"grad_norm": 0.0}, "gradient", "no weight is trainable"),
        ({"grad_norm": 0.0, "advantage/std": 0.0}, "gradient", "look at algorithm.advantage"),
        ({"learning_rate": 0.0}, "gradient", "something sets that of the optimizer"),
        ({"step/nonfinite_minibatches": 1.0, "update_kl": None}, "nonfinite", "overflow"),
        ({"step/nonfinite_minibatches": 1.0, "update_kl": 0.0, "grad_norm": 0.0, "optimizer_steps": 0.0}, "nonfinite", "overflow"),
    ],
)
def test_a_run_that_learns_nothing_from_the_start_says_why(changes: dict[str, Any], kind: str, words: str) -> None:
    step, trouble = first_trouble(health(), [row(k) | changes for k in range(1, 60)]) or (0, None)
    assert trouble is not None and trouble.kind == kind and trouble.since == 1 and step <= 20
    assert words in trouble.cause


def test_an_update_that_destroys_the_policy_is_named() -> None:
    broken = {"completions/mean_length": 3.0, "entropy": 0.01, "update_kl": None, "reward_std": 0.0, "step/skipped": 1.0, "grad_norm": 0.0}
    rows = [row(k, 0.4, update_kl=5.0 if k == 12 else 1e-3) if k <= 12 else row(k, 0.0) | broken for k in range(1, 60)]
    found = health()
    step, trouble = first_trouble(found, rows) or (0, None)
    assert trouble is not None and trouble.since == 13 and step <= 21
    assert "mean length 40 before, 3 now" in trouble.what and "update of step 12" in trouble.cause and "learning_rate" in trouble.cause
    assert found.is_in_doubt
    slow = [row(k, max(0.0, 0.6 - k / 60), entropy=0.5 * 1.06**k, update_kl=0.01) for k in range(1, 120)]
    step, trouble = first_trouble(health(), slow) or (0, None)
    assert trouble is not None and "many have gone the same way" in trouble.cause


def test_repetition_and_mismatch_count_against_the_first_steps() -> None:
    said = "completions/repetition"
    assert first_trouble(health(), [row(k, **{said: 0.9}) for k in range(1, 50)]) is None  # the tasks are like that
    _, trouble = first_trouble(health(), [row(k, **{said: 0.05 if k < 20 else 0.9}) for k in range(1, 50)]) or (0, None)
    assert trouble is not None and (trouble.kind, trouble.since) == ("repetition", 20)
    _, trouble = first_trouble(health(), [row(k, mismatch_kl=1e-4 if k < 30 else 2.0) for k in range(1, 50)]) or (0, None)
    assert trouble is not None and (trouble.kind, trouble.since) == ("mismatch", 30) and "rlvr doctor" in trouble.cause
    off: dict[str, Any] = dict.fromkeys(
        ("max_unscored", "max_steps_without_gradient", "max_reward_drop", "max_repetition", "max_mismatch_kl")
    )
    worst = row(0, 0.0, unscored=128, mismatch_kl=9.0, **{said: 1.0, "step/skipped": 1.0})
    assert first_trouble(health(**off), [worst | {"step": k} for k in range(1, 99)]) is None


def test_the_checkpoint_is_from_before_repetition_or_mismatch_began_to_rise() -> None:
    said = "completions/repetition"
    for key, rising in ((said, [0.05] * 10 + [0.3, 0.5] + [0.95] * 20), ("mismatch_kl", [1e-6] * 10 + [0.01, 0.2] + [2.0] * 20)):
        _, trouble = first_trouble(health(), [row(k, **{key: value}) for k, value in enumerate(rising, 1)]) or (0, None)
        assert trouble is not None and (trouble.since, trouble.last_good_step) == (13, 9)


def test_a_schedule_that_grows_is_named_with_the_rate_of_the_step() -> None:
    for grows in (True, False):
        found = RunHealth(tiny_run(train={"learning_rate": 3e-4}))
        for step in range(1, 21):  # a warmup may reach train.learning_rate
            rate = 3e-4 * (10 ** ((step - 1) / 8) if grows else min(1.0, step / 10))
            found.observe(row(step, learning_rate=rate, update_kl=0.5 if step == 19 else 1e-3))
        told = explain_policy_change(found.run, 12)
        assert ("it was 0.0003 in step 1, 0.00711 in step 12 and is 0.0711 in step 20 (237 times as much)" in told) == grows
        assert ("train.lr_scheduler" in explain_policy_change(found.run, 20)) == grows


def test_few_prompts_are_the_cause_where_the_reward_rises_and_something_else_falls() -> None:
    def answer(prompt: int) -> list[Episode]:
        return [Episode("t", "g", [1, prompt, 3], [False, False, True], [0.0] * 3, [0.0] * 3, StopReason.TERMINATED)]

    for distinct in (2, 40):
        found = health()
        for step in range(1, 17):
            groups = [answer((16 * step + k) % distinct) for k in range(16)]
            record = SimpleNamespace(metrics={}, batch=SimpleNamespace(all_groups=groups))
            found.run.add_step_record(cast(Any, None), cast(Any, record))
            found.run.add(row(step, 0.2 if step < 9 else 0.6))
        told = explain_policy_change(found.run, 9)
        assert ("the 128 groups of the last steps have 2 distinct ones" in told) == (distinct == 2)
        assert ("change the verifier" in told) == (distinct != 2)


def test_a_learning_rate_that_stays_0_stops_a_run_soon_unless_it_rises_later(tmp_path: Path) -> None:
    schedules = tmp_path / "schedules.py"
    schedules.write_text("def zero(step, total):\n    return step // total\n\n\ndef late(step, total):\n    return float(step > 6)\n")
    for name, stop in (("zero", r"after step 5: since step 1 the learning rate is 0, and .*:zero keeps it so"), ("late", "")):
        with pytest.raises(CheckFailed, match=stop) if stop else nullcontext():
            run_sums(
                tmp_path / name,
                Match(),
                train={"steps": 12, "learning_rate": 1e-3, "lr_scheduler": f"{schedules}:{name}"},
                rollout={"prompts_per_step": 16, "num_generations": 8},
                eval={"tasks": 0},
            )


def test_equal_answers_of_each_group_are_no_chance_unless_the_policy_is_sure_of_them() -> None:
    def answer(said: int, logprob: float) -> Episode:
        return Episode("t", "g", [1, said], [False, True], [0.0, logprob], [0.0] * 2, StopReason.TERMINATED)

    for logprob, varied, stops in ((-1.0, False, True), (-0.01, False, False), (-1.0, True, False)):
        found = health()
        [rule] = [rule for rule in found.rules if isinstance(rule, EqualAnswers)]
        groups = [[answer(k + (varied and k == 3 and member == 1), logprob) for member in range(4)] for k in range(8)]
        findings = []
        for step in range(1, 8):
            record = SimpleNamespace(metrics={}, batch=SimpleNamespace(all_groups=groups))
            found.run.add_step_record(cast(Any, None), cast(Any, record))
            found.run.add(row(step))
            findings.append(rule.check())
        trouble = next((one for one in findings if isinstance(one, Trouble)), None)
        assert (trouble is not None) == stops and [one is None for one in findings] == [not stops] * 7
        assert trouble is None or (findings.index(trouble) == 4 and trouble.since == 1 and "one and the same seed" in trouble.cause)


def test_a_reference_that_is_another_model_is_named_and_stops_a_run_unless_it_is_configured() -> None:
    far = {"beta": 0.3, "kl": 3.0, "optimizer_steps": 1.0, "advantage/std": 0.9}
    step, trouble = first_trouble(health(), [row(k) | far for k in range(1, 9)]) or (0, None)
    assert step == 3 and trouble is not None and (trouble.since, trouble.last_good_step) == (1, 0)
    assert "so the reference is another model than the one that training began with" in trouble.cause
    for usual in ({"kl": 0.01}, {"beta": 0.0}, {"optimizer_steps": 4.0}):
        assert first_trouble(health(), [row(k) | far | usual for k in range(1, 30)]) is None
    assert first_trouble(health(), [row(k) | far | ({"kl": 0.0} if k == 1 else {}) for k in range(1, 30)]) is None  # the policy moved away

    shown = io.StringIO()
    found = RunHealth(
        tiny_run(algorithm={"name": "grpo", "beta": 0.3}, frozen_models={"reference": "a/teacher"}), Console(file=shown, width=400)
    )
    assert first_trouble(found, [row(k) | far for k in range(1, 30)]) is None
    assert shown.getvalue().count("so frozen_models.reference (a/teacher) is another model") == 1
    assert "frozen_models.reference (a/teacher) is another model" in explain_policy_change(found.run, 29)
    weak = RunHealth(tiny_run(frozen_models={"reference": "a/teacher"}))
    assert first_trouble(weak, [row(k) | far | {"beta": 0.001} for k in range(1, 30)]) is None
    assert "a/teacher" not in explain_policy_change(weak.run, 29)


def test_a_component_that_falls_to_0_while_the_reward_rises_is_told_and_a_checkpoint_from_before_is_kept() -> None:
    def parts(step: int, *, fades: bool = True, pays: float = 0.3) -> dict[str, Any]:
        correct = 0.7 if step <= 30 or not fades else 0.0
        long = 1.0 if step <= 30 else 1.0 + pays * (step - 30)
        return row(step, correct + long, **{"rewards/correct/mean": correct, "rewards/long/mean": long})

    def follow(config: Any = None, **changes: Any) -> tuple[RunHealth, str]:
        shown = io.StringIO()
        config = config or tiny_run(rollout={"prompts_per_step": 16, "num_generations": 8})
        found = RunHealth(config, Console(file=shown, width=400))
        for step in range(1, 101):
            assert found.observe(parts(step, **changes)) is None
            found._move_safe_step()
        return found, shown.getvalue()

    found, told = follow()
    assert told.count("warning") == 1 and "since step 31 the component 'correct' of the reward has fallen from 0.7 to 0 while" in told
    assert found.safe_step == 29 and "the component 'correct'" in explain_policy_change(found.run, 31)
    for found, told in (follow(fades=False), follow(pays=0.0), follow(tiny_run(rollout={"prompts_per_step": 1, "num_generations": 128}))):
        assert not told and found.safe_step == 80

    said = "completions/repetition"
    found = health()
    _, trouble = first_trouble(found, [parts(k) | {said: 0.9 if k > 60 else 0.05} for k in range(1, 99)]) or (0, None)
    assert trouble is not None and (trouble.kind, trouble.since, trouble.last_good_step) == ("repetition", 61, 29)


def test_a_weight_decay_that_takes_the_weights_is_named() -> None:
    found = RunHealth(tiny_run(train={"learning_rate": 1e-4, "weight_decay": 500.0}))
    for step in range(1, 20):
        found.observe(row(step))
    assert "train.weight_decay (500) takes 5.0% of the weights in each step" in explain_policy_change(found.run, 20)


def test_entropy_and_repetition_of_answers() -> None:
    def answer(said: list[int], logprob: float, version: int = 0) -> Episode:
        prompt = [1, 2, 3]
        mask = [False] * 3 + [True] * len(said)
        return Episode(
            "t", "g", prompt + said, mask, [0.0] * 3 + [logprob] * len(said), [0.0] * (3 + len(said)), StopReason.TERMINATED, version
        )

    assert estimate_entropy([answer([4, 5], -0.5), answer([4, 5, 6, 7], -2.0)]) == {"entropy": 1.5}
    assert estimate_entropy([answer([4, 5], 0.0, version=-1)]) == {}  # gold answers have no policy
    assert compute_repetition([answer(list(range(40)), -1.0), answer([7] * 15, -1.0)]) == 0.0
    assert compute_repetition([answer([7] * 40, -1.0)]) == pytest.approx(1 - 1 / 37)
    assert compute_repetition([answer([1, 2, 3, 4] * 10, -1.0)]) == pytest.approx(1 - 4 / 37)


DOWN = {"from": 10**9, "calls": 0}


@pytest.fixture(autouse=True)
def service() -> None:
    DOWN.update({"from": 10**9, "calls": 0})


class Unsteady(Verifier):
    """Right if the answer is the sum; no score while its service is down."""

    def verify(self, task: Task, answer: str) -> Verdict:
        DOWN["calls"] += 1
        if DOWN["from"] <= DOWN["calls"]:
            return Verdict(None, "the service is down", fault=Fault.INFRA)
        return Verdict(float(answer == str(task.reference)), "compared")


def run(folder: Path, *, resume: bool = False, **changes: Any) -> TrainReport:
    env = Sums(below=5)
    env.verifier = Unsteady()
    shown = Console(file=io.StringIO(), width=200)
    with Trainer(tiny_run(**changes), env=env, out=folder, console=shown, resume=resume) as trainer:
        return trainer.fit()


class Changed(Verifier):
    """Counts right characters, until something is done to each score."""

    def __init__(self, change: Callable[[float], float]) -> None:
        self.change = change

    def verify(self, task: Task, answer: str) -> Verdict:
        DOWN["calls"] += 1
        score = Match().verify(task, answer).score or 0.0
        return Verdict(self.change(score) if DOWN["from"] <= DOWN["calls"] else score, "counted")


def run_sums(folder: Path, verifier: Verifier, *callbacks: rlvr.Callback, **changes: Any) -> TrainReport:
    env = Sums(below=5)
    env.verifier = verifier
    with Trainer(tiny_run(**changes), env=env, out=folder, console=Console(quiet=True), callbacks=callbacks) as trainer:
        return trainer.fit()


def test_a_verifier_that_gives_one_score_to_everything_is_named_and_not_the_policy(tmp_path: Path) -> None:
    DOWN["from"] = 16 * 4 + 1  # the answers of the first step are verified twice
    with pytest.raises(
        CheckFailed, match=r"after step \d+: since step 4 no step .*\nlikely cause: Not the policy but the verifier has changed"
    ):
        run_sums(
            tmp_path / "run", Changed(lambda score: 0.5), train={"steps": 16}, eval={"tasks": 0}, health={"max_steps_without_gradient": 4}
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda score: 1.0, "all score the same now"),
        (lambda score: 1 - score, "those that scored more do not score more now"),
        (lambda score: float(random.random() < 0.8 * score + 0.1), "answers score otherwise from one time to the next"),
        (lambda score: score / 2, ""),
    ],
)
def test_a_verifier_that_pays_for_everything_or_turns_round_is_found_though_no_reward_falls(
    tmp_path: Path, change: Callable[[float], float], words: str
) -> None:
    DOWN["from"] = 16 * 10 + 1  # the best steps are then those that the changed verifier pays for
    with (
        pytest.raises(CheckFailed, match=f"after step 16: since step 9 the verifier scores .*\n.*{words}.*\nkept: .* of step 8 ")
        if words
        else nullcontext()
    ):
        run_sums(tmp_path / "run", Changed(change), train={"steps": 17}, eval={"tasks": 0}, health={"patience": 1})


@pytest.mark.parametrize(("flips", "inverts", "stops"), [(0.4, False, False), (0.0, True, True), (0.1, True, True)])
def test_a_verifier_that_is_noisy_from_the_start_has_not_changed(tmp_path: Path, flips: float, inverts: bool, stops: bool) -> None:
    dice = random.Random(0)

    class Noisy(Verifier):
        def verify(self, task: Task, answer: str) -> Verdict:
            DOWN["calls"] += 1
            is_right = (sum(map(int, filter(str.isdigit, answer))) % 2 == 0) != (dice.random() < flips)  # half of the answers
            return Verdict(float(is_right != (inverts and DOWN["calls"] > 64 * 12)), "judged")

    rollout = {"prompts_per_step": 8, "num_generations": 8}
    with pytest.raises(CheckFailed, match="do not score more now") if stops else nullcontext():
        run_sums(
            tmp_path / "run",
            Noisy(),
            train={"steps": 40, "learning_rate": 1e-5},
            rollout=rollout,
            eval={"tasks": 0},
            health={"patience": 3},
        )


@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step")
def test_weights_that_an_optimizer_does_not_change_are_no_training(tmp_path: Path) -> None:
    class Freeze(rlvr.Callback):
        def on_step_end(self, trainer: rlvr.Trainer, step: int, record: Any) -> None:
            optimizer: Any = trainer.learner.optimizer
            getattr(optimizer, "optimizer", optimizer).step = lambda *args, **kwargs: None

    with pytest.raises(
        CheckFailed,
        match=r"since step [12] no step has changed the weights.*\n.*There is a gradient, and the step of the optimizer leaves the weights as they are",
    ):
        run_sums(tmp_path / "run", Match(), Freeze(), train={"steps": 9}, eval={"tasks": 0}, health={"max_steps_without_gradient": 3})


def test_a_model_that_somebody_froze_is_no_internal_error(tmp_path: Path) -> None:
    class Freeze(rlvr.Callback):
        def on_step_end(self, trainer: rlvr.Trainer, step: int, record: Any) -> None:
            trainer.model.requires_grad_(False)

    with pytest.raises(ConfigError, match="no weight of the model is trainable: requires_grad is False for all of them"):
        run_sums(tmp_path / "run", Match(), Freeze(), train={"steps": 9}, eval={"tasks": 0})


def test_who_else_writes_the_weights_is_the_likely_cause() -> None:
    found, model = health(), torch.nn.Linear(4, 4)
    for step in range(1, 4):
        found.run.weights.begin_step(model, step)
        with torch.no_grad():  # the optimizer, whose step ends here
            model.weight.add_(1.0)
        found.run.weights.end_step(model, step, has_learned=True)
        if step == 2:
            model.weight.data.add_(1.0)
        found.observe(row(step))
    assert found.run.weights.foreign_steps == {3} and not found.run.weights.idle_steps
    assert "Something other than the optimizer changed the weights before step 3" in explain_policy_change(found.run, 4)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("on_step_end", r"after step [5-9]: since step [12] .*\n.*than the optimizer puts the weights back after each step"),
        ("on_batch", r"in step 2: .*\n.*: Something other than the optimizer changed the weights before step 2"),
    ],
)
def test_steps_that_somebody_undoes_are_no_training(tmp_path: Path, hook: str, words: str) -> None:
    class Reset(rlvr.Callback):
        def on_run_begin(self, trainer: rlvr.Trainer) -> None:
            self.first = {name: value.clone() for name, value in trainer.model.state_dict().items()}

        def put_back(self, trainer: rlvr.Trainer, step: int, given: Any) -> None:
            trainer.model.load_state_dict(self.first)

    setattr(Reset, hook, Reset.put_back)
    with pytest.raises(CheckFailed, match=words):
        run_sums(
            tmp_path / "run",
            Match(),
            Reset(),
            train={"steps": 20, "learning_rate": 1e-3},
            rollout={"prompts_per_step": 8, "num_generations": 8},  # so that each step has a gradient
            eval={"tasks": 0},
            health={"max_steps_without_gradient": 5},
        )


def test_a_penalty_that_outweighs_the_advantages_is_told_once_and_named() -> None:
    shown = io.StringIO()
    found = RunHealth(tiny_run(), Console(file=shown, width=300))
    for step in range(1, 30):
        found.observe(row(step, beta=1000.0, kl=0.003, **{"advantage/std": 0.9}))
    assert (
        shown.getvalue().count("Lower algorithm.beta") == 1
        and "algorithm.beta (1000), is 3, more than the advantages (0.9)" in shown.getvalue()
    )
    assert "Lower algorithm.beta" in explain_policy_change(found.run, 30)
    for usual in ({"beta": 0.04, "kl": 0.5, "advantage/std": 0.9}, {"beta": 1000.0, "kl": 0.003}, {}):  # not every algorithm has advantages
        assert not describe_penalty(health().run, [row(step) | usual for step in range(1, 9)])


@pytest.mark.parametrize(("algorithm", "told"), [("grpo", True), ("online_dpo", False)])
def test_beta_is_a_penalty_only_where_there_are_advantages_to_weigh_it_against(tmp_path: Path, algorithm: str, told: bool) -> None:
    rows: list[bool] = []

    class Heavy(rlvr.Callback):
        def on_batch(self, trainer: rlvr.Trainer, step: int, batch: Any) -> None:
            [found] = [callback for callback in trainer.callbacks if isinstance(callback, RunHealth)]
            rows.append(bool(describe_penalty(found.run, [row(k, beta=1000.0, kl=0.003, **{"advantage/std": 0.9}) for k in range(1, 9)])))

    run_sums(tmp_path / "run", Match(), Heavy(), algorithm={"name": algorithm}, eval={"tasks": 0}, train={"steps": 1})
    assert rows == [told]


def test_updates_that_low_precision_rounds_away_change_nothing() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128, bias=False) for _ in range(8))).to(torch.bfloat16)
    for rate, idle in ((1e-7, {1}), (1e-1, set[int]())):
        changes = WeightChanges()
        changes.begin_step(model, 1)
        with torch.no_grad():
            for value in model.parameters():
                value.add_(rate * torch.ones_like(value))
        changes.end_step(model, 1, has_learned=True)
        assert changes.idle_steps == idle


def test_equal_scores_are_no_trouble_where_a_wrong_answer_would_score_less() -> None:
    even = {"reward_std": 1e-16, "step/skipped": 1.0, "frac_reward_zero_std": 1.0}
    for tells_swapped_answers_apart in (True, False):
        found = health()
        found.run.probe = cast(
            Any,
            SimpleNamespace(
                check_tool_repeatability=lambda answers: None,
                describe_changed_tool_results=lambda answers: "",
                tells_swapped_answers_apart=lambda answers, told=tells_swapped_answers_apart: told,
                verify_again=lambda answers: [],
                describe_change=lambda answers, scores: "",
                environment=None,
            ),
        )
        found.run.record = cast(Any, SimpleNamespace(batch=SimpleNamespace(all_groups=[])))
        assert (first_trouble(found, [row(k, 0.9) | even for k in range(1, 60)]) is None) == tells_swapped_answers_apart


def test_updates_against_the_advantages_are_a_loss_with_the_wrong_sign(tmp_path: Path) -> None:
    found = health()
    for step in range(1, 20):
        found.observe(row(step, update_gain=-0.01))
    assert "the sign of the loss or of the advantages is wrong" in explain_policy_change(found.run, 20)
    run_sums(tmp_path / "run", Match(), eval={"tasks": 0}, train={"steps": 4, "learning_rate": 1e-3})
    gains = [one["update_gain"] for one in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "update_gain" in one]
    assert gains and min(gains) > 0  # a right update goes along the advantages


def test_a_wrong_sign_stops_a_run_after_eight_steps_and_comes_before_the_learning_rate(tmp_path: Path) -> None:
    against = {"update_gain": -0.02, "advantage/std": 1.0}
    step, trouble = first_trouble(health(), [row(k) | against for k in range(1, 20)]) or (0, None)
    assert step == 8 and trouble is not None and (trouble.kind, trouble.since, trouble.last_good_step) == ("sign", 1, 0)
    dice = random.Random(0)
    noise = [row(k) | against | {"update_gain": dice.gauss(0, 0.02)} for k in range(1, 1000)]
    turned = [row(k) | against | {"update_gain": 0.02 if k < 9 else -0.02} for k in range(1, 40)]  # until the reward falls
    still = [row(k) | against | {"update_gain": -0.002} for k in range(1, 99)]
    momentum = [row(k) | against | {"grad_norm": 0.0} for k in range(1, 20)]
    heavy = [row(k, beta=1000.0, kl=0.003) | against | {"advantage/std": 0.1} for k in range(1, 99)]
    for rows in (noise, turned, still, momentum, heavy):
        assert first_trouble(health(), rows) is None

    found = health()
    for k in range(1, 8):
        found.observe(row(k) | against | {"update_kl": 0.3 if k == 7 else 1e-3})
    assert "the sign of the loss" in explain_policy_change(found.run, 8)

    def wrong(x: Any) -> Any:
        return (x.logprobs - x.old_logprobs).exp() * x.advantages

    env = Sums(below=5)
    with (
        pytest.raises(CheckFailed, match=r"went against the advantages.*\n.*the sign of .* is wrong in .*wrong \(algorithm.loss\)"),
        Trainer(
            tiny_run(train={"steps": 20, "learning_rate": 1e-3}, eval={"tasks": 0}, rollout={"prompts_per_step": 16, "num_generations": 8}),
            env=env,
            algorithm=rlvr.make_algorithm("grpo", loss=wrong),
            out=tmp_path / "run",
            console=Console(quiet=True),
        ) as trainer,
    ):
        trainer.fit()


def test_a_sampler_whose_weights_are_no_longer_the_trainers_is_named_at_once() -> None:
    rows = [row(k, mismatch_kl=1e-14 if k < 10 else 0.002) for k in range(1, 30)]
    step, trouble = first_trouble(health(), rows) or (0, None)
    assert step == 12 and trouble is not None and (trouble.since, trouble.last_good_step) == (10, 9)
    assert "samples from other weights than the trainer's" in trouble.cause
    once = [row(k, mismatch_kl=1e-14 if k < 2 else 0.1) for k in range(1, 30)]  # the sampler took the weights once
    step, trouble = first_trouble(health(), once) or (0, None)
    assert step == 4 and trouble is not None and (trouble.since, trouble.last_good_step) == (2, 1)
    config = tiny_run()
    rounded = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})})
    assert first_trouble(RunHealth(rounded), once) is None
    for usual in ({"rollout": {"max_staleness": 1}}, {"rollout": {"top_p": 0.9}}, {"health": {"max_mismatch_kl": None}}):
        assert first_trouble(RunHealth(tiny_run(**usual)), rows) is None
    assert first_trouble(health(), [row(k, mismatch_kl=1e-6 if k < 10 else 0.002) for k in range(1, 30)]) is None  # kernels differ


def test_a_sampler_that_never_had_the_trainers_model_or_prompts_is_named_in_the_first_steps() -> None:
    apart = [row(k, mismatch_kl=None if k == 2 else kl) for k, kl in enumerate((1.1, 0.5, 0.5, 0.4, 0.3, 0.6), 1)]  # 2: no gradient
    step, trouble = first_trouble(health(), apart) or (0, None)
    assert (
        step == 4 and trouble is not None and (trouble.since, trouble.last_good_step) == (1, 0) and "gets another prompt" in trouble.cause
    )
    assert first_trouble(health(), [row(k, mismatch_kl=0.2) for k in range(1, 30)]) is None  # weights of few bits
    for usual in ({"rollout": {"max_staleness": 1}}, {"rollout": {"top_p": 0.9}}, {"health": {"max_mismatch_kl": 3.0}}):
        assert first_trouble(RunHealth(tiny_run(**usual)), apart) is None


@pytest.mark.parametrize("at_last", [False, True])
def test_one_weight_that_is_not_a_number_is_named_at_once_and_never_kept(tmp_path: Path, at_last: bool) -> None:
    class Spoil(rlvr.Callback):
        def on_step_end(self, trainer: rlvr.Trainer, step: int, record: Any) -> None:
            if step == 3:
                next(trainer.model.parameters()).data[15, -1] = float("nan")

    with pytest.raises(
        CheckFailed,
        match=r"step 4: since step 4 1 of the \d+ weights of \S+ are not finite\n.*Something other than the optimizer wrote.*\nkept: .* of step 3",
    ):
        run_sums(tmp_path / "run", Match(), Spoil(), train={"steps": 4 if at_last else 9}, eval={"tasks": 0})


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_a_loss_of_ones_own_that_is_0_or_no_number_is_named(tmp_path: Path, factor: float) -> None:
    def mine(x: Any) -> Any:
        return -(x.logprobs - x.old_logprobs).exp() * x.advantages * factor

    words = r"mine \(algorithm.loss\) gives 0" if factor == 0 else r"The weights are finite, so .*mine \(algorithm.loss\)"
    with (
        pytest.raises(CheckFailed, match=rf"since step 1 .*\n.*{words}"),
        Trainer(
            tiny_run(train={"steps": 9}, eval={"tasks": 0}, health={"max_steps_without_gradient": 6}),
            env=Sums(below=5),
            algorithm=rlvr.make_algorithm("grpo", loss=mine),
            out=tmp_path / "run",
            console=Console(quiet=True),
        ) as trainer,
    ):
        trainer.fit()


def test_advantages_of_ones_own_that_do_not_follow_the_rewards_are_named(tmp_path: Path) -> None:
    def shifted(answers: Any) -> list[list[float]]:
        centred = [[(reward or 0.0) - sum(r or 0.0 for r in group) / len(group) for reward in group] for group in answers.rewards]
        return [group[1:] + group[:1] for group in centred] if is_wrong else centred

    for is_wrong in (True, False):
        with Trainer(
            tiny_run(train={"steps": 3}, eval={"tasks": 0}),
            env=Sums(below=5),
            algorithm=rlvr.make_algorithm("grpo", advantage=shifted),
            out=tmp_path / f"run{is_wrong}",
            console=Console(quiet=True),
        ) as trainer:
            trainer.fit()
            [found] = [callback for callback in trainer.callbacks if isinstance(callback, RunHealth)]
        assert ("shifted (algorithm.advantage) do not follow the rewards" in explain_policy_change(found.run, 4)) == is_wrong


def test_a_rate_that_is_0_from_the_next_step_on_and_a_high_temperature_are_named() -> None:
    idle: dict[str, Any] = {"learning_rate": 0.0}
    found = health()
    found.run.weights.idle_steps = set(range(8, 60))
    _, trouble = first_trouble(found, [row(k) | (idle if k > 8 else {}) for k in range(1, 60)]) or (0, None)
    assert trouble is not None and trouble.since == 8 and "The learning rate is 0" in trouble.cause
    hot = RunHealth(tiny_run(rollout={"temperature": 5.0}))
    nothing: dict[str, Any] = {"reward": 0.0, "reward_std": 0.0, "num_completions": 256, "completions/clipped_ratio": 0.7}
    _, trouble = first_trouble(hot, [row(k) | nothing for k in range(1, 60)]) or (0, None)
    assert trouble is not None and "at rollout.temperature=5" in trouble.cause


def test_a_first_update_after_a_resume_that_destroys_the_policy_blames_the_checkpoint_of_the_resume() -> None:
    for first, good in ((13, 11), (1, 12)):
        found = health()
        found.run.first_step = first
        rows = [row(k, 0.5 if k < 14 else 0.0, entropy=0.5 if k < 14 else 9.0, update_kl=20.0 if k == 13 else 1e-3) for k in range(1, 40)]
        _, trouble = first_trouble(found, rows) or (0, None)
        assert trouble is not None and "state of the optimizer" in trouble.cause and trouble.last_good_step == good


def test_a_fall_right_after_a_resume_with_other_tasks_stops_a_run() -> None:
    for told, first, stops in (("The tasks have changed", 13, True), ("The tasks have changed", 3, False), ("", 13, False)):
        found = health()
        found.run.first_step, found.run.change_at_resume = first, told
        step, trouble = first_trouble(found, [row(k, 0.7 if k < 13 else 0.0) for k in range(1, 40)]) or (0, None)
        assert (trouble is not None) == stops
        assert trouble is None or (step, trouble.since, trouble.cause) == (20, 13, told)


def test_the_safe_step_moves_on_but_not_in_doubt_and_the_kept_checkpoint_is_told_for_what_it_is() -> None:
    found = health()
    for k in range(1, 60):
        found.observe(row(k, unscored=120 if k > 49 else 0))
        found._move_safe_step()
    assert found.safe_step == 49 - 20
    trainer = cast(Any, SimpleNamespace(folder=Path("r"), last_saved_step=30, set_aside_checkpoints_after=lambda step: 21))
    told = Trouble("mismatch", 29, "what", "cause", 7).set_aside_checkpoints_and_explain(trainer, 33)
    assert "kept: the checkpoint of step 21" in told and "surely good only up to step 7" in told and "none is" not in told


def test_one_reply_to_all_calls_is_named_if_it_was_not_so_before() -> None:
    def session(*replies: str) -> dict[str, Any]:
        results = [{"call": f"0.{k}", "text": reply, "ok": True} for k, reply in enumerate(replies)]
        return {"step_results": [{"messages": [], "done": True, "tool_results": results}]}

    reply, fraction = find_common_reply([session("503", "503", "4")] * 6)
    assert reply == "503" and fraction == pytest.approx(2 / 3)
    assert find_common_reply([session("503")] * 9) == ("", 0.0)  # too few to say


def test_a_signal_saves_also_while_the_run_is_in_doubt() -> None:
    saved: list[int] = []
    for doubt, interrupted in ((True, False), (True, True), (False, False)):
        trainer = cast(Any, SimpleNamespace(num_steps=9, config=tiny_run(), is_interrupted=interrupted, save=lambda: saved.append(1)))
        PeriodicCheckpoints(cast(Any, SimpleNamespace(is_in_doubt=doubt))).on_step_end(trainer, 3, cast(Any, None))
    assert len(saved) == 2


@pytest.mark.slow
def test_a_run_whose_verifier_goes_down_stops_and_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train": {"steps": 12, "learning_rate": 1e-3}, "health": {"patience": 3}, "eval": {"tasks": 0}}
    DOWN.update({"from": 10**9, "calls": 0})
    whole = run(tmp_path / "whole", **changes)
    DOWN.update({"from": 16 * 5 + 1, "calls": 0})  # the answers of the first step are verified twice
    with pytest.raises(
        CheckFailed, match=r"stopped after step 7: since step 5 at least 100% .*\n.*Not the answers.*\nkept: the checkpoint of step [1-4] "
    ):
        run(tmp_path / "cut", **changes)
    DOWN.update({"from": 10**9, "calls": 0})
    again = run(tmp_path / "cut", resume=True, **changes)
    assert again.rewards == whole.rewards and again.steps == 12
    assert [*read_jsonl(tmp_path / "cut" / "metrics.jsonl")] == [*read_jsonl(tmp_path / "whole" / "metrics.jsonl")]


def test_the_answers_of_the_best_steps_are_known_after_a_resume(tmp_path: Path) -> None:
    """A fall that began before the resume would otherwise have an unknown cause, and go on."""
    changes: dict[str, Any] = {"train": {"steps": 3, "learning_rate": 1e-3}, "rollout": {"num_generations": 8}, "eval": {"tasks": 0}}
    DOWN.update({"from": 10**9, "calls": 0})
    kept = []
    for resume in (False, True):
        env = Sums(below=5)
        env.verifier = Unsteady()
        console = Console(file=io.StringIO(), width=200)
        with Trainer(tiny_run(**changes), env=env, out=tmp_path / "run", console=console, resume=resume) as trainer:
            (found,) = [callback for callback in trainer.callbacks if isinstance(callback, RunHealth)]
            if resume:
                found.on_run_begin(trainer)
            else:
                trainer.fit()
            kept.append((found.run.best_answers_step, [(a.task.id, a.text, a.score, a.place) for a in found.run.list_best_answers()]))
    assert kept[0] == kept[1] and len(kept[0][1]) > 8
    log = tmp_path / "run" / "episodes.jsonl"
    log.write_bytes(b'{"step": 1, "damaged\n' + log.read_bytes())
    env.verifier = Unsteady()
    with Trainer(tiny_run(**changes), env=env, out=tmp_path / "run", console=console, resume=True) as trainer:
        (found,) = [callback for callback in trainer.callbacks if isinstance(callback, RunHealth)]
        found.on_run_begin(trainer)
    assert not found.run.list_best_answers()


@pytest.mark.slow
def test_a_run_without_any_gradient_does_not_end_as_if_it_had_trained(tmp_path: Path) -> None:
    DOWN.update({"from": 0, "calls": 0})
    with pytest.raises(CheckFailed, match=r"no step of this run changed the weights\nlikely cause: No answer has a score"):
        run(tmp_path / "short", eval={"tasks": 0})
    assert (tmp_path / "short" / "report.json").is_file()
    with pytest.raises(
        CheckFailed, match=r"none of the 10 held-out answers before training has a score\n.*the verifier.*\(mostly: the service is down"
    ):
        run(tmp_path / "refused")
    report = run(tmp_path / "warned", health={"action": "warn"})
    assert report.accuracy_after is None and report.held_out_unscored == 10
    assert "not judged -> withheld (10 answers have no score" in format_closing_lines(report, tmp_path)


def test_a_few_steps_without_a_gradient_may_be_bad_luck() -> None:
    idle = {"reward": 0.0, "reward_std": 0.0, "step/skipped": 1.0}
    for steps, stops in ((2, False), (5, True)):
        found = health()
        assert first_trouble(found, [row(k) | idle for k in range(1, steps + 1)]) is None
        with pytest.raises(CheckFailed, match="no step of this run") if stops else nullcontext():
            found.on_run_end(
                cast(Any, None), TrainReport("r", steps=steps, seconds=1.0, accuracy_before=None, accuracy_after=None, held_out_tasks=0)
            )


def test_a_run_whose_held_out_answers_have_no_score_does_not_end_as_if_it_was_measured() -> None:
    trainer = cast(Any, SimpleNamespace(config=SimpleNamespace(eval=SimpleNamespace(split="test")), held_out_episodes=[]))
    for lost, stops in ((100, True), (51, True), (3, False)):
        found = health()
        found.observe(row(1))
        told: dict[str, Any] = {"held_out_tasks": 94, "held_out_answers": 100, "held_out_unscored": lost}
        report = TrainReport("r", steps=1, seconds=1.0, accuracy_before=None, accuracy_after=None, **told)
        with pytest.raises(CheckFailed, match=f"{lost} of 100 held-out answers have no score") if stops else nullcontext():
            found.on_run_end(trainer, report)


@pytest.mark.parametrize(("score", "told", "certain"), [(0.0, True, False), (0.0, True, True), (0.5, False, False)])
def test_references_of_another_row_are_told_once_or_stop_a_run_and_named_if_nothing_is_learned(
    score: float, told: bool, certain: bool
) -> None:
    def answer(index: int, score: float) -> list[Episode]:
        meta = {"split": "test", "index": index}
        return [
            Episode("t", "g", [1, 2], [False, True], [0.0] * 2, [0.0] * 2, StopReason.TERMINATED, 0, Verdict(score, ""), "7", meta=meta)
        ]

    shown, asked = io.StringIO(), list[int]()
    found = RunHealth(tiny_run(), Console(file=shown, width=200))

    def find(answers: list[Any]) -> Misplacement:
        asked.append(len(answers))
        return Misplacement("right for the row before: the references seem shifted", certain)

    found.run.probe = cast(
        Any,
        SimpleNamespace(
            check_tool_repeatability=lambda answers: None,
            describe_changed_tool_results=lambda answers: "",
            environment=Sums(below=50),
            find_misplaced_references=find,
            verify_again=lambda answers: [],
            describe_change=lambda answers, scores: "",
        ),
    )
    [rule] = [rule for rule in found.rules if isinstance(rule, MisplacedReferences)]
    findings = []
    for step in range(8):
        groups = [answer(16 * step + k, score) for k in range(16)]
        found.run.add_step_record(cast(Any, None), cast(Any, SimpleNamespace(metrics={}, batch=SimpleNamespace(all_groups=groups))))
        findings.append(rule.check())
    stops = [(step, one.kind, one.since, one.last_good_step) for step, one in enumerate(findings) if isinstance(one, Trouble)]
    assert stops == ([(3, "references", 1, 0)] if certain else [])
    assert asked == ([64] if told else [])
    assert shown.getvalue().count("right for the row before: the references seem shifted") == int(told and not certain)
    _, trouble = first_trouble(found, [row(k, 0.0, reward_std=0.0, num_completions=256) for k in range(1, 60)]) or (0, None)
    assert trouble is not None and ("the references seem shifted" in trouble.cause) == told


def test_an_error_in_a_step_says_what_is_saved_and_how_to_go_on(tmp_path: Path) -> None:
    class Down(Sums):
        def task(self, split: str, index: int) -> Task:
            if (tmp_path / "run" / "checkpoints" / "step-000002").exists():
                raise ConnectionError("tasks.internal: no route to host")
            return super().task(split, index)

    with (
        pytest.raises(ConnectionError) as raised,
        Trainer(
            tiny_run(train={"steps": 9}, eval={"tasks": 0}), env=Down(below=5), out=tmp_path / "run", console=Console(quiet=True)
        ) as trainer,
    ):
        trainer.fit()
    told = "".join(raised.value.__notes__)
    assert re.match(r"step [3-9] of 9 failed; saved: .*/checkpoints/step-00000[2-8]\ncontinue with: rlvr train .* --resume$", told)


def test_tasks_whose_question_does_not_reach_the_policy_are_refused() -> None:
    class Silent(rlvr.Environment):
        needs = {"verifier": "exact"}
        splits = ("train",)

        def __init__(self, *, verifier: rlvr.Verifier, shown: bool = False) -> None:
            self.verifier, self.shown = verifier, shown

        def num_tasks(self, split: str) -> int | None:
            return 20

        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task(f"{index}+1=" if self.shown else "", id=str(index), reference=str(index + 1))

    tokenizer = rlvr.load_tokenizer("chars")
    with pytest.raises(ConfigError, match="the first 8 tasks of split 'train' have different references and the same prompt"):
        compute_max_prompt_length(TokenMDP(rlvr.make_env(Silent), tokenizer), "train", range(20))
    assert compute_max_prompt_length(TokenMDP(rlvr.make_env(Silent, shown=True), tokenizer), "train", range(20)) > 3
    assert compute_max_prompt_length(TokenMDP(rlvr.make_env(Silent), tokenizer), "train", range(5)) > 0  # too few to say


def test_a_run_that_ends_much_worse_than_it_began_says_so() -> None:
    for after, tasks, stops in ((0.0, 21, True), (0.3, 21, False), (0.2, 500, True), (0.2, 21, False)):
        found = health()
        found.observe(row(1))
        report = TrainReport("r", steps=1, seconds=1.0, accuracy_before=0.6, accuracy_after=after, held_out_tasks=tasks)
        folder = {"folder": Path("r"), "last_saved_step": 1, "set_aside_checkpoints_after": lambda step: step}
        trainer = cast(Any, SimpleNamespace(num_completed_steps=1, **folder))
        with pytest.raises(CheckFailed, match=r"policy has become much worse: held-out 60.0%.*\n.*\nkept:") if stops else nullcontext():
            found.on_run_end(trainer, report)


@pytest.mark.slow
def test_the_bounds_may_change_in_a_resumed_run_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path / "a")
    report = run(tmp_path / "a", resume=True, health={"action": "off"})
    assert report.steps == 2
    with pytest.raises(Exception, match="another configuration"):
        run(tmp_path / "a", resume=True, seed=1)


def test_a_mean_of_partial_scores_is_not_called_an_accuracy() -> None:
    report = TrainReport("a", 1, 2.0, 0.25, 0.5, 8, has_partial_scores=True, interval_after=[0.25, 0.75])
    assert format_closing_lines(report, Path("a")).startswith("mean held-out score 0.250 -> 0.500 (95 %: 0.250 to 0.750) on 8 tasks")
    assert format_closing_lines(TrainReport("a", 1, 2.0, 0.25, 0.5, 8), Path("a")).startswith("held-out accuracy 25.0% -> 50.0% on 8 tasks")


def test_answers_to_tasks_that_were_drawn_more_than_once_are_counted_as_answers() -> None:
    report = TrainReport("a", 1, 2.0, 0.24, 0.1, held_out_tasks=30, held_out_answers=50)
    line = "held-out accuracy 24.0% -> 10.0% on 50 answers to 30 different tasks, 0 of these trained on; 2 s"
    assert format_closing_lines(report, Path("a")).splitlines()[0] == line
    assert " on 30 tasks, 0 of them trained on; " in format_closing_lines(replace(report, held_out_answers=30), Path("a"))


def test_the_table_of_a_run_has_no_blanks_at_the_ends_of_lines_in_a_file() -> None:
    table = Table(show_header=False, box=None)
    table.add_row("policy", "5 parameters")
    table.add_row("episodes a step", "8 prompts x 2 generations")
    for is_terminal in (False, True):
        file = io.StringIO()
        print_run_table(Console(file=file, width=60, force_terminal=is_terminal, force_jupyter=False), table)
        lines = file.getvalue().splitlines()
        assert [line.split() for line in lines] == [
            ["policy", "5", "parameters"],
            ["episodes", "a", "step", "8", "prompts", "x", "2", "generations"],
        ]
        assert (lines == [line.rstrip() for line in lines]) == (not is_terminal)


def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(Exception, match=r"health.max_unscored"):
        validate_config({"env": "arithmetic", "model": {"path": "x"}, "health": {"max_unscored": 2.0}}, "here")


def measure_gap(
    held_out: Callable[[int], float], reward: Callable[[int], float], *, tasks: int = 40, resume_at: int = 0, steps: int = 40
) -> tuple[list[str], Trouble | None]:
    """Follow a run with an evaluation every 4 steps, in which the first so many of the tasks are right; return what it warned of."""
    shown = io.StringIO()
    config = tiny_run(eval={"tasks": tasks, "every": 4}, rollout={"prompts_per_step": 16, "num_generations": 8})
    found, dice = RunHealth(config, Console(file=shown, width=1000)), random.Random(0)
    one_process = SimpleNamespace(num_processes=1)
    trainer = cast(Any, SimpleNamespace(config=config, environment=Sums(), report_values={}, is_resumed=True, accelerator=one_process))
    for step in range(steps + 1):
        one = row(step, reward(step) + dice.gauss(0, 0.05), reward_stderr=0.05)
        if step % 4 == 0:
            right = [index < held_out(step) * tasks for index in range(tasks)]
            trainer.held_out_episodes = [
                Episode(
                    "t", "g", [index, 1], [False, True], [0.0] * 2, [0.0, float(ok)], StopReason.TERMINATED, 0, Verdict(float(ok), ""), "7"
                )
                for index, ok in enumerate(right)
            ]
            found.on_evaluate(trainer, step, sum(right) / tasks)
            one["eval/accuracy"] = sum(right) / tasks
        if not step:
            trainer.report_values["accuracy_before"] = one["eval/accuracy"]
        elif (trouble := found.observe(one)) is not None:
            return shown.getvalue().splitlines(), trouble
        if step and step == resume_at:
            rows, found = found.run.rows, RunHealth(config, Console(file=shown, width=1000))
            trainer.report_values = json.loads(json.dumps(trainer.report_values))
            for earlier in rows:
                found.run.add(earlier)
            for rule in found.rules:
                if isinstance(rule, HeldOutFall):
                    rule.begin(trainer)
        found.run.trainer = trainer
    return shown.getvalue().splitlines(), None


@pytest.mark.parametrize("resume_at", [0, 22])
def test_a_reward_that_rises_while_the_held_out_figure_falls_is_told_once_and_far_below_it_stops_the_run(resume_at: int) -> None:
    rises = lambda step: 0.4 + step / 80  # noqa: E731
    told, trouble = measure_gap(lambda step: 0.45 if step < 24 else 0.25, rises, resume_at=resume_at)
    assert trouble is None and len(told) == 1 and "learns something that the training reward pays" in told[0]
    told, trouble = measure_gap(lambda step: 0.45 if step < 24 else 0.05, rises, tasks=100, resume_at=resume_at)
    assert trouble is not None and (trouble.since, trouble.last_good_step) == ((24, 20))
    assert "learns something that the training reward pays" in trouble.cause


@pytest.mark.parametrize(
    ("held_out", "reward"),
    [
        (lambda step: 0.45 if step < 24 else 0.3, lambda step: 0.4),  # neither is learned
        (lambda step: 0.4 + step / 80, lambda step: 0.4 + step / 80),
        (lambda step: 0.85 - 0.1 * (step % 8 == 0), lambda step: 0.4 + step / 80),  # samples get as good as the greedy answer
        (lambda step: 0.05 + step / 200 - 0.05 * (step % 8 == 0), lambda step: 0.4 + step / 80),  # harder tasks
    ],
)
def test_a_noisy_held_out_figure_of_few_tasks_is_no_gap(held_out: Callable[[int], float], reward: Callable[[int], float]) -> None:
    assert measure_gap(held_out, reward) == ([], None)


def test_five_tasks_that_are_all_right_by_luck_once_are_no_level_to_fall_from() -> None:
    told, trouble = measure_gap(lambda step: 1.0 if step == 8 else 0.2 if step == 20 else 0.6, lambda step: 0.5, tasks=5)
    assert (told, trouble) == ([], None)


def test_a_verifier_that_seldom_gives_another_score_has_not_changed() -> None:
    """Where nearly all answers are wrong, one that scored by accident is the only one that scored."""
    for seed in range(60):
        dice, found = random.Random(seed), health()
        [rule] = [rule for rule in found.rules if isinstance(rule, ChangedVerifier)]
        calls = [0]

        def verify(asked: Any, dice: random.Random = dice, calls: list[int] = calls) -> list[float]:
            calls[0] += len(asked)
            return [float(dice.random() < (0.02 if calls[0] > 32 else 0.0)) for _ in asked]

        probe = RewardFallProbe(cast(Any, SimpleNamespace(environment=None, config=found.config, accelerator=None)))
        setattr(probe, "_verify", verify)  # noqa: B010
        found.run.probe = probe
        for step in range(1, 41):
            scores = [1.0] + [0.0] * 31 if step % 8 in (0, 1) else [float(dice.random() < 0.02) for _ in range(32)]
            found.run._step_answers = [KeptAnswer(Task(f"{k}", id=str(k)), "x", None, score) for k, score in enumerate(scores)]
            found.run.rows.append(row(step))
            assert not isinstance(rule.check(), Trouble), seed


@pytest.mark.parametrize("when", ["before", "end", "steps"])
@pytest.mark.parametrize("said", [0, 3])
def test_answers_that_the_sampler_did_not_give_are_not_the_verifiers_fault(when: str, said: int) -> None:
    reason = "HTTP 503 from http://gpu7:8000: model not loaded" if not said else "Match raised ConnectionError: refused"
    tokens = [False, *[True] * said]
    one = Episode("t", "g", [1] * len(tokens), tokens, [0.0] * len(tokens), [0.0] * len(tokens), StopReason.FAILED, error=reason)
    found = RunHealth(tiny_run(eval={"tasks": 8}))
    if when == "steps":
        trouble = None
        for step in range(1, 6):
            record = SimpleNamespace(metrics={"unscored": 128}, batch=SimpleNamespace(all_groups=[[one] * 8]))
            found.run.add_step_record(cast(Any, None), cast(Any, record))
            trouble = found.observe(row(step, None, unscored=128))
        assert trouble is not None
        told = trouble.cause
    else:
        trainer = cast(Any, SimpleNamespace(config=found.config, held_out_episodes=[one] * 8, environment=Sums(), report_values={}))
        found.run.rows.append(row(1))
        counts: dict[str, Any] = {"held_out_tasks": 8, "held_out_answers": 8, "held_out_unscored": 8}
        with pytest.raises(CheckFailed) as raised:
            if when == "before":
                found.on_evaluate(trainer, 0, None)
            else:
                found.on_run_end(trainer, TrainReport("r", steps=1, seconds=1.0, accuracy_before=None, accuracy_after=None, **counts))
        told = str(raised.value)
    assert reason in told and ("Not the verifier" in told) == (not said)
