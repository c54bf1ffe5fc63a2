"""Evaluation: what counts, what is counted apart, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.config import ModelConfig
from rlvr.contracts import Environment, Verifier
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluate import evaluate
from rlvr.learn import checkpoint
from rlvr.learn.checkpoint import Progress
from rlvr.model import exported, model_from
from rlvr.runlog import rows_of
from rlvr.task import Fault, Task, Verdict, user
from rlvr.tokenizers import CharTokenizer
from tests.tiny import MODEL
from tests.worlds import DIGITS

SUMS = "tests/worlds.py:Sums"


def test_gold_is_right_and_silence_is_not() -> None:
    gold, noop, dice = (evaluate(SUMS, f"scripted:{script}", tasks=50) for script in ("gold", "noop", "random"))
    assert (gold.accuracy, gold.tasks, gold.scored, gold.unscored) == (1.0, 50, 50, 0)
    assert noop.accuracy == 0.0 and dice.accuracy is not None and dice.accuracy < 0.3 and dice.truncated > 0


def test_n_samples_a_task_and_no_more_tasks_than_there_are() -> None:
    report = evaluate({"name": SUMS, "below": 3}, "scripted:gold", tasks=100, n=4)
    assert (report.tasks, report.samples) == (9, 36)


class Sometimes(Verifier):
    """Right for even tasks; not able to judge every third."""

    def verify(self, task: Task, answer: str) -> Verdict:
        number = int(task.reference)
        if number % 3 == 0:
            return Verdict(None, "the engine is away", fault=Fault.INFRA)
        return Verdict(float(number % 2 == 0), "judged")


class Numbers(Environment):
    def __init__(self) -> None:
        self.verifier = Sometimes()

    def task(self, split: str, index: int) -> Task:
        return Task(f"{split}/{index}", user("?"), reference=index)

    def gold(self, task: Task) -> str:
        return "x"


def test_what_has_no_score_is_counted_apart_and_never_as_wrong() -> None:
    report = evaluate(Numbers(), "scripted:gold", tasks=30)
    assert (report.samples, report.scored, report.unscored, report.accuracy) == (30, 20, 10, 0.5)
    assert report.reasons == {"the engine is away": 10}


def test_a_model_in_a_folder_is_evaluated_with_its_own_tokenizer(tmp_path: Path) -> None:
    tokenizer = CharTokenizer(DIGITS)
    place = checkpoint.save(tmp_path, model_from(ModelConfig(config=MODEL), tokenizer), exported(tokenizer), {}, Progress(1))
    once, again = (evaluate(SUMS, f"hf:{place}", tasks=20, temperature=1.0, seed=3) for _ in range(2))
    assert once.samples == 20 and (once.accuracy, once.tokens) == (again.accuracy, again.tokens)


def test_the_samples_are_written_and_never_overwritten(tmp_path: Path) -> None:
    report = evaluate(SUMS, "scripted:gold", tasks=5, out=tmp_path / "e")
    rows = list(rows_of(tmp_path / "e" / "episodes.jsonl"))
    assert [row["reward"] for row in rows] == [1.0] * report.samples and rows[0]["verdict"]["reason"]
    with pytest.raises(ConfigError, match="never overwritten"):
        evaluate(SUMS, "scripted:gold", tasks=5, out=tmp_path / "e")


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("scripted", "hf:DIR"),
        ("scriptd:gold", "did you mean 'scripted'"),
        ("scripted:", "is not SAMPLER:WHAT"),
        ("", "is not SAMPLER:WHAT"),
    ],
)
def test_a_policy_that_is_none(policy: str, told: str) -> None:
    with pytest.raises(NotFound) as error:
        evaluate(SUMS, policy)
    assert told in str(error.value)


def test_other_bad_requests(tmp_path: Path) -> None:
    for policy, kwargs, told in (
        ("scripted:golden", {}, "did you mean 'gold'"),
        ("hf:nowhere", {}, "nowhere"),
        ("scripted:gold", {"tasks": 0}, "tasks is 0"),
        ("scripted:gold", {"split": "tests"}, "did you mean 'test'"),
    ):
        with pytest.raises(ConfigError, match=told):
            evaluate(SUMS, policy, **kwargs)
