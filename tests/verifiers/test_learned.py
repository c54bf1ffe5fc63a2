"""The verifier `learned`: what is no reward model is refused, and what is no score is none."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.models.reward_model import build_reward_model
from rlvr.registry.plugins import build
from rlvr.task import Fault, Task, make_user_prompt
from tests.fixtures.tiny import MODEL
from tests.fixtures.worlds import DIGITS

TOKENIZER = CharTokenizer(DIGITS)
TASK = Task(make_user_prompt("2+2="), id="t", reference="4")


def kept(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    to_transformers_tokenizer(TOKENIZER).save_pretrained(folder)
    return str(folder)


def test_a_policy_is_no_reward_model(tmp_path: Path) -> None:
    folder = kept(load_model(ModelConfig(config=MODEL), TOKENIZER, seed=1), tmp_path)
    with pytest.raises(ConfigError, match=r"does not contain a reward model but a LlamaForCausalLM.*rlvr train reward_model"):
        build("verifier", "learned", models=[folder])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_a_score_that_is_no_number_is_no_score(tmp_path: Path, number: float, place: int) -> None:
    sound = build_reward_model(ModelConfig(config=MODEL), TOKENIZER, seed=0)
    learned = build("verifier", "learned", models=[kept(sound, tmp_path / "0"), kept(sound, tmp_path / "1")])
    assert learned.verify(TASK, "4").score is not None
    learned.models[place].scorer.forward = lambda rows: torch.full((len(rows),), number)
    verdict = learned.verify(TASK, "4")
    assert verdict.score is None and verdict.fault is Fault.INFRA


def test_answers_that_wait_are_scored_together_and_none_fails_for_another(tmp_path: Path) -> None:
    folder = kept(build_reward_model(ModelConfig(config=MODEL), TOKENIZER, seed=0), tmp_path)
    learned = build("verifier", "learned", models=[folder], device="cpu")
    answers = [str(number) for number in range(8)]
    alone = [learned.verify(TASK, answer).score for answer in answers]
    model, calls = learned.models[0], list[int]()
    assert model.max_batch_size == 1
    model.max_batch_size, forward = 16, model.scorer.forward

    def noted(rows: Any) -> torch.Tensor:
        calls.append(len(rows))
        if any(len(row) > 40 for row in rows):
            raise IndexError("a row longer than the model's positions")
        scores: torch.Tensor = forward(rows)
        return scores

    model.scorer.forward = noted
    with ThreadPoolExecutor(9) as pool:
        with model.lock:
            found = [pool.submit(learned.verify, TASK, answer) for answer in answers]
            while len(model.pending_rows) < 8:
                time.sleep(0.001)
        assert [one.result(30).score for one in found] == pytest.approx(alone, abs=1e-5) and calls == [8]
        with model.lock:
            found = [pool.submit(learned.verify, TASK, answer) for answer in [*answers, "1" * 50]]
            while len(model.pending_rows) < 9:
                time.sleep(0.001)
        verdicts = [one.result(30) for one in found]
    assert [verdict.score for verdict in verdicts[:8]] == pytest.approx(alone, abs=1e-5)
    assert verdicts[8].score is None and verdicts[8].fault is Fault.INFRA and calls == [8, 9, *[1] * 9]


def test_a_reward_model_computes_on_the_device_that_is_named(tmp_path: Path) -> None:
    folder = kept(build_reward_model(ModelConfig(config=MODEL), TOKENIZER, seed=0), tmp_path)
    with pytest.raises(ConfigError, match="device is 'cuda:7', which this machine does not have"):
        build("verifier", "learned", models=[folder], device="cuda:7")
    [model] = build("verifier", "learned", models=[folder], device="meta").models  # another device, where there is one device only
    assert {p.device.type for p in model.scorer.parameters()} == {"meta"} and model.max_batch_size > 1


def test_many_answers_are_scored_in_batches_as_they_are_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_reward_model(ModelConfig(config=MODEL), TOKENIZER, seed=0)
    learned = build("verifier", "learned", models=[kept(model, tmp_path)])
    answers = ["4", "44+4", "4" * 9, "2", "4444"]
    alone = [learned.verify(TASK, answer).score for answer in answers]
    forward, sizes = learned.models[0].scorer.forward, list[int]()

    def counted(rows: list[list[int]]) -> Any:
        sizes.append(len(rows))
        return forward(rows)

    monkeypatch.setattr(learned.models[0].scorer, "forward", counted)
    many = learned.verify_many([TASK] * 5, answers)
    assert sizes == [5] and [verdict.score for verdict in many] == pytest.approx(alone, abs=1e-5)
    assert [verdict.components["true"] for verdict in many] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_an_answer_that_breaks_a_batch_costs_no_other_its_score(tmp_path: Path) -> None:
    learned = build("verifier", "learned", models=[kept(build_reward_model(ModelConfig(config=MODEL), TOKENIZER, seed=0), tmp_path)])
    scores, long = learned.models[0]._compute_scores, len(learned.models[0]._tokenize(TASK, "44"))

    def broken(rows: list[list[int]]) -> list[float]:
        if any(len(row) == long for row in rows):
            raise IndexError("too long")
        return list(scores(rows))

    learned.models[0]._compute_scores = broken
    one, two, three = learned.verify_many([TASK] * 3, ["4", "44", "2"])
    assert (two.score, two.fault) == (None, Fault.INFRA) and one.is_scored and three.is_scored
