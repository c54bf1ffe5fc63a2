"""The doctor of log-probabilities: it finds what is planted, and calls rounding rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.cli.commands import run_command
from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Request, SamplingParams
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.samplers.hf import HFSampler
from rlvr.training import sampler_mismatch as agreement
from rlvr.training.sampler_mismatch import (
    PRECISIONS,
    LogprobGap,
    compute_logprob_gaps_by_position,
    measure_logprob_gaps,
    summarize_logprob_gaps,
)

TOKENIZER = CharTokenizer("0123456789+-*=# \n")
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def fresh(seed: int = 0) -> Any:
    return load_model(ModelConfig(config=MODEL), TOKENIZER, seed=seed).eval()


def sampled(model: Any, temperature: float, asked: float | None = None) -> list[LogprobGap]:
    requests = [Request([2, 5, 6 + i % 5], 40, seed=i) for i in range(24)]
    sampler = HFSampler()
    sampler.update_from_model(model, 0)
    found = sampler.sample(requests, SamplingParams(temperature, stop_ids=TOKENIZER.stop_ids))
    return list(compute_logprob_gaps_by_position(fresh(), requests, found, "float32", temperature if asked is None else asked))


def test_rounding_is_called_rounding() -> None:
    rows = [row for temperature in (0.7, 1.0) for row in sampled(fresh(), temperature)]
    assert summarize_logprob_gaps(rows) == (True, "They agree: the differences are rounding.") and max(row.largest for row in rows) < 1e-4
    assert {row.position for row in rows} == {"0-3", "4-15", "16-63"} and sum(row.tokens for row in rows) > 300


def test_other_weights_are_seen_everywhere() -> None:
    sound, words = summarize_logprob_gaps(sampled(fresh(5), 1.0))
    assert not sound and "other weights" in words


def test_another_temperature_is_seen_at_that_temperature() -> None:
    sound, words = summarize_logprob_gaps([*sampled(fresh(), 1.0), *sampled(fresh(), 1.0, asked=1.4)])
    assert not sound and "at temperature 1.4, only at some temperatures" in words


def test_what_goes_wrong_with_depth_or_precision_is_told_apart() -> None:
    fine = LogprobGap("float32", 1.0, "0-3", 10, 1e-7, 1e-6, 2e-6, 0.0)
    deep = LogprobGap("float32", 1.0, "16-63", 10, 0.4, 0.9, 1.0, 0.1)
    coarse = LogprobGap("bfloat16", 1.0, "0-3", 10, 0.4, 1.0, 3.0, 0.1)
    nothing = LogprobGap("float32", 1.0, "0-3", 10, float("nan"), float("nan"), float("nan"), float("nan"))
    assert (
        "deep in the answers" in summarize_logprob_gaps([fine, deep])[1] and "lower precision" in summarize_logprob_gaps([fine, coarse])[1]
    )
    assert summarize_logprob_gaps([nothing])[0] is False
    assert summarize_logprob_gaps([]) == (False, "Nothing was compared: no answer was complete.")


def test_the_doctor_prints_the_differences_and_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh().save_pretrained(tmp_path)
    to_transformers_tokenizer(TOKENIZER).save_pretrained(tmp_path)
    assert run_command(["doctor", "--model", str(tmp_path), "--sampler", "hf", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["verdict"].startswith("They agree")
    assert {(row["precision"], row["temperature"]) for row in told["rows"]} == {
        (p, t) for p in ("float32", "bfloat16") for t in (0.7, 1.0, 1.3)
    }
    assert run_command(["doctor", "--model", str(tmp_path), "--sampler", "scripted"]) == 1  # it says what it was told, with no model at all
    out = capsys.readouterr().out
    assert "They do not agree" in out and "float32" in out and "largest" in out


def test_mixed_precision_is_measured_as_it_is_trained(tmp_path: Path) -> None:
    """Float32 weights that compute in bfloat16: apart from a sampler in float32 by its rounding, and by no more."""
    fresh().save_pretrained(tmp_path)
    to_transformers_tokenizer(TOKENIZER).save_pretrained(tmp_path)
    asked: dict[str, Any] = {"env_name": "arithmetic", "num_completions": 8, "temperatures": [1.0]}
    apart = {name: max(row.largest for row in measure_logprob_gaps(str(tmp_path), "hf", precisions=[name], **asked)) for name in PRECISIONS}
    assert apart["float32"] < 1e-4 < apart["mixed bf16"] < 0.1


def test_the_trainer_stands_on_the_accelerator_and_mixed_precision_is_compared_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh().save_pretrained(tmp_path)
    to_transformers_tokenizer(TOKENIZER).save_pretrained(tmp_path)
    moved: list[str] = []
    prepared: list[str] = []

    class Elsewhere:
        """A model that is moved to a device this machine does not have."""

        def __init__(self, config: ModelConfig) -> None:
            self.model = load_model(config).eval()

        def eval(self) -> Elsewhere:
            return self

        def to(self, place: torch.device) -> Any:
            moved.append(str(place))
            return self.model

    monkeypatch.setattr(agreement, "load_model", Elsewhere)
    monkeypatch.setattr(agreement, "resolve_device", lambda name: torch.device(name or "cuda"))
    setup = HFSampler.setup

    def noted(self: HFSampler, *given: Any, precision: str | None = None, max_length: int = 0) -> None:
        prepared.append(str(precision))
        setup(self, *given, precision=precision, max_length=max_length)

    monkeypatch.setattr(HFSampler, "setup", noted)
    asked: dict[str, Any] = {"env_name": "arithmetic", "num_completions": 2, "temperatures": [1.0]}
    assert {row.precision for row in measure_logprob_gaps(str(tmp_path), "hf", **asked)} == {"float32", "bfloat16", "mixed bf16"}
    assert moved == 3 * ["cuda"] and prepared == ["float32", "bfloat16", "bfloat16"]
    assert {row.precision for row in measure_logprob_gaps(str(tmp_path), "hf", device="cpu", **asked)} == {"float32", "bfloat16"}
    monkeypatch.undo()
    assert run_command(["doctor", "--model", str(tmp_path), "--device", "cuda:9"]) == 2
    assert "device is 'cuda:9', which this machine does not have" in capsys.readouterr().err


def test_an_answer_that_is_none_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="gave no answer at temperature 1: gone"):
        list(compute_logprob_gaps_by_position(fresh(), [Request([2], 4)], [Completion([], [], "error", "gone")], "float32", 1.0))
