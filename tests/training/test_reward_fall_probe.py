"""What has changed when a reward falls: the verifier, the scale of its scores, the policy, or only the tasks."""

from __future__ import annotations

import io
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from rich.console import Console

import rlvr
from rlvr import Task, Verdict, Verifier
from rlvr.mdp.sessions import LazySession, build_session_record
from rlvr.training.reward_fall_probe import FallCause, KeptAnswer, Misplacement, RewardFallProbe, keep_answers
from rlvr.training.reward_history import RewardHistory
from rlvr.training.run_health.causes import explain_policy_change
from rlvr.training.run_health.evidence import RunEvidence
from rlvr.training.trainer import Trainer
from rlvr.turns import Call, Turn
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import Match, Sums


class Switched(Verifier):
    """The verifier of `Sums`, until somebody replaces the function that it ends with."""

    def __init__(self) -> None:
        self.match = Match()
        self.change: Callable[[Any], Any] = float

    def verify(self, task: Task, answer: str) -> Verdict:
        score = self.match.verify(task, answer).score
        return Verdict(self.change(score), "changed")


Known = tuple[Trainer, Switched, list[KeptAnswer]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """A trainer with a policy that knows something, and 64 of its answers."""
    env = Sums(below=5)
    env.verifier = verifier = Switched()
    config = tiny_run(
        sft_warmup={"max_steps": 120, "batch_size": 16, "learning_rate": 3e-3}, eval={"tasks": 0}, rollout={"num_generations": 16}
    )
    with Trainer(config, env=env, out=tmp_path_factory.mktemp("probe") / "run", console=Console(file=io.StringIO())) as trainer:
        batch = trainer.batch_source.next(0)
        yield trainer, verifier, keep_answers(env, [episode for group in batch.all_groups for episode in group])


def explain(known: Known, change: Callable[[Any], Any] = float) -> FallCause:
    trainer, verifier, answers = known
    verifier.change = change
    return RewardFallProbe(trainer).explain_reward_fall(answers, 0.5)


def test_one_answer_of_each_task_comes_before_the_second_of_any(known: Known) -> None:
    answers = known[2]
    number = len({answer.task.id for answer in answers})
    assert number > 2 and len({answer.task.id for answer in answers[:number]}) == number
    assert sum(answer.score for answer in answers) > 0.3 * len(answers)


def test_the_verifier_is_told_from_the_policy_and_from_the_tasks(known: Known) -> None:
    trainer = known[0]
    assert explain(known) is FallCause.TASKS  # neither has changed
    assert explain(known, lambda score: 0.5) is FallCause.VERIFIER
    assert explain(known, lambda score: score / 3) is FallCause.SCORING
    assert explain(known, lambda score: None) is FallCause.UNKNOWN  # it is down, and knows nothing
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with torch.no_grad():
        for value in trainer.model.parameters():
            value.mul_(torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    assert explain(known) is FallCause.POLICY
    trainer.model.load_state_dict(weights)
    assert explain(known) is FallCause.TASKS


def test_answers_given_to_other_tasks_show_whether_a_verifier_tells_them_apart(known: Known) -> None:
    trainer, verifier, answers = known
    right = [KeptAnswer(answer.task, str(answer.task.reference), None, 1.0) for answer in answers]
    probe = RewardFallProbe(trainer)
    verifier.change = float
    assert probe.tells_swapped_answers_apart(right)
    verifier.change = lambda score: 1.0
    assert not probe.tells_swapped_answers_apart(right)


class Stored(Sums):
    """Eighty stored sums, whose references may be those of another row."""

    def __init__(self, shift: int, apart: int = 80, power: int = 1) -> None:
        super().__init__()
        self.shift, self.apart, self.power, self.verifier = shift, apart, power, Match()

    def task(self, split: str, index: int) -> Task:
        return Task(f"{index}+100=", self.refer_to(index + self.shift), id=f"{split}/{index}")

    def refer_to(self, index: int) -> str:
        """Rows of numbers that count, or that have no order."""
        return str(100 + (index % self.apart) ** self.power % 797)

    def num_tasks(self, split: str) -> int | None:
        return 80


@pytest.mark.parametrize(
    ("shift", "apart", "power", "words"),
    [
        (1, 80, 1, "one row before"),
        (-1, 80, 1, "one row after"),
        (1, 80, 5, "one row before"),
        (0, 80, 1, ""),
        (0, 80, 5, ""),
        (1, 2, 1, ""),
    ],
)
def test_references_of_another_row_are_found(known: Known, shift: int, apart: int, power: int, words: str) -> None:
    env = Stored(shift, apart, power)
    probe = RewardFallProbe(known[0])
    probe.environment = env
    answers = []
    for index in range(64):  # the policy knows three of four sums
        task, text = env.task("train", index), env.refer_to(index) if index % 4 else "7"
        answers.append(KeptAnswer(task, text, None, Match().verify(task, text).score or 0.0, ("train", index)))
    found = probe.find_misplaced_references(answers)
    assert (found is not None) == bool(words)
    assert found is None or (words in found.what and found.is_certain == (power > 1))  # where rows count, wrong answers may be off by one


@pytest.mark.parametrize(("kind", "told"), [("permuted", True), ("right", False), ("weak", False), ("dense", False), ("classes", False)])
def test_references_in_another_order_are_found_but_not_where_any_answer_is_one(known: Known, kind: str, told: bool) -> None:
    dice = random.Random(1)
    words = sorted({"".join(dice.choice("abcdef") for _ in range(3)) for _ in range(110)})[:80]
    own = [str(100 + k) for k in range(80)] if kind == "dense" else [f"{w}{w}" for w in words[:4]] * 20 if kind == "classes" else words
    references = dice.sample(own, 80) if kind == "permuted" else own

    exact = rlvr.make_verifier("exact")

    class Rows(Sums):
        def task(self, split: str, index: int) -> Task:
            return Task(f"{index}?", references[index], id=f"{split}/{index}")

        def num_tasks(self, split: str) -> int | None:
            return 80

    probe = RewardFallProbe(known[0])
    probe.environment = env = Rows(verifier=exact)
    answers = []
    for index in range(64):
        guess = "".join(dice.choice("abcdef") for _ in range(3)) if kind in ("permuted", "weak", "right") else dice.choice(own)
        text = own[index] if kind in ("permuted", "right") and index % 4 else guess
        task = env.task("train", index)
        answers.append(KeptAnswer(task, text, None, exact.verify(task, text).score or 0.0, ("train", index)))
    found = probe.find_misplaced_references(answers)
    assert found == (found and Misplacement(found.what, is_certain=False))  # a capital that is wrong is that of another row
    assert (found is not None and "in another order than the questions" in found.what) == told


def test_a_fall_in_the_first_steps_is_measured_against_the_first() -> None:
    history = RewardHistory()
    found = []
    for reward in (0.62, 0.39, 0.37, 0.18, 0.16, 0.02, *[0.0] * 20):
        history.add(reward, 0.06)
        found.append(history.find_fall(0.5))
    first = next(k for k, fall in enumerate(found) if fall and fall.is_lasting)
    fall = found[first]
    assert fall is not None and fall.best.mean == 0.62 and (fall.since, fall.last_good) == (3, 0)
    assert history.find_last_good(len(history)) == -1  # the second step is already worse


def test_few_prompts_in_a_step_are_evidence_if_the_steps_are_many() -> None:
    history = RewardHistory()
    for step in range(80):
        history.add((0.6 if step % 2 else 0.4) if step < 40 else float(step % 8 == 0) * 0.4, 0.3)
    fall = history.find_fall(0.5)
    assert fall is not None and fall.is_lasting and fall.recent.end - fall.recent.start > 8


@pytest.mark.parametrize("prompts", [1, 2, 4, 16])
def test_chance_is_no_fall(prompts: int) -> None:
    dice, found = random.Random(prompts), 0
    for _ in range(5):
        history = RewardHistory()
        for _ in range(150):
            groups = [sum(dice.random() < 0.25 for _ in range(8)) / 8 for _ in range(prompts)]
            history.add(fmean(groups), stdev(groups) / math.sqrt(prompts) if prompts > 1 else 0.4)
            fall = history.find_fall(0.5)
            found += fall is not None and fall.is_lasting
    assert found == 0


def test_one_lucky_step_of_many_is_no_level_to_fall_from() -> None:
    history = RewardHistory()
    for step in range(100):
        history.add(1.0 if step == 20 else 0.1 + 0.1 * (step % 3), 0.1)
    best = history.find_best()
    assert best is not None and best.end - best.start >= 8 and history.find_fall(0.5) is None


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second + next(OFF_BY)


OFF_BY: Iterator[int] = itertools.repeat(0)


def play_sums(env: rlvr.Environment) -> list[KeptAnswer]:
    """Conversations that call `add` once, as they are kept."""
    kept = []
    for index in range(4):
        task = env.task("train", index)
        session = LazySession(env, task, seed=index)
        turn = Turn("add", calls=(Call("0.0", "add", {"first": index, "second": 2}),))
        step_result = session.step(turn)
        record = build_session_record(session, [turn], [step_result], session.collect_transcript((turn,), (step_result,)))
        kept.append(KeptAnswer(task, "", record, 1.0))
        session.close()
    return kept


@pytest.mark.parametrize(
    ("at_first", "later", "told"),
    [
        ([0], [7], r"in 4 of 4 recorded .*: add\({'first': 0, 'second': 2}\) gave '2', and gives '9' now"),
        ([0], [0], ""),
        ([0, 1, 2, 3, 4], [7], ""),  # it was never the same
    ],
)
def test_a_tool_that_gives_other_results_than_before_is_named(
    known: Known, monkeypatch: pytest.MonkeyPatch, at_first: list[int], later: list[int], told: str
) -> None:
    env = rlvr.make_env("arithmetic", tools=[add])
    probe = RewardFallProbe(known[0])
    probe.environment = env
    monkeypatch.setitem(globals(), "OFF_BY", itertools.cycle(at_first))
    kept = play_sums(env)
    assert kept[0].record is not None and kept[0].record["step_results"][0]["tool_results"][0]["text"] == "2"
    probe.check_tool_repeatability(kept)
    monkeypatch.setitem(globals(), "OFF_BY", itertools.cycle(later))
    found = probe.describe_changed_tool_results(kept)
    assert re.fullmatch(told, found), found
    run = RunEvidence(tiny_run())
    run.probe = probe
    monkeypatch.setattr(run, "list_best_answers", lambda: kept)
    assert ("The tools give other results" in explain_policy_change(run, 1)) is bool(told)
