"""The table of a model before a run: what is right is called right, and every planted fault is found and named."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rlvr.cli.commands import run_command
from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError, RlvrError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models import numerics_check as honesty
from rlvr.models.batch import TokenRows
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.models.numerics_check import NumericsCheck, find_untrainable_reason
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers import hf as hf_module
from rlvr.samplers.hf import HFSampler
from rlvr.training.sampler_mismatch import SAMPLER_CHECK_NAME, check_logprob_mismatch, run_numerics_checks
from rlvr.training.train import train
from tests.fixtures.families import ELSEWHERE, FAMILIES, NOISY, STATE, UNUSUAL, model_of
from tests.fixtures.tiny import tiny_run

TOKENIZER: Tokenizer = CharTokenizer("0123456789+=")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def table(model: Any, *, sampler: bool = True, **how: Any) -> dict[str, NumericsCheck]:
    own = HFSampler() if sampler else None
    if own is not None:
        own.check_model_support(model)
    return {finding.name: finding for finding in run_numerics_checks(model, own, TOKENIZER, **how)}


@pytest.mark.parametrize("family", [*FAMILIES, *NOISY])
def test_a_family_that_is_computed_right_is_called_right(family: str) -> None:
    found = table(model_of(family), temperature=0.9)
    assert find_untrainable_reason(family, list(found.values())) == ""
    assert {"a second pass", "padded rows", "rows in training mode", "packed rows", SAMPLER_CHECK_NAME, "stop ids"} <= found.keys()
    assert (found["packed rows"].gap is None) == (family in UNUSUAL) or family in NOISY
    assert found["padded rows, another row changed"].gap == 0.0 or honesty.has_experts(model_of(family))


@pytest.mark.parametrize("family", STATE)
def test_a_state_is_named_with_the_layers_that_have_it(family: str) -> None:
    found = table(model_of(family))
    assert find_untrainable_reason(family, list(found.values())) == ""
    way = "rows computed again at every token" if family in ELSEWHERE else "rows grouped by length"
    assert found[SAMPLER_CHECK_NAME].note.startswith(f"{way}, since ")
    assert found["packed rows"].note.startswith("not used: ")
    layers = {"lfm2": "2 of 4 (2 conv, 2 full_attention)", "qwen3_5_text": "1 of 2"}
    assert found["layers with attention"].note.startswith(layers.get(family, ""))


def test_nothing_is_changed_and_little_is_computed() -> None:
    model = model_of("llama").train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    sampler = HFSampler()
    sampler.check_model_support(model)
    tokens: list[int] = []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda _, given: tokens.append(given[0].numel()))
    run_numerics_checks(model, sampler, TOKENIZER)
    hook.remove()
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert sum(tokens) < 1500, f"{sum(tokens)} tokens in {len(tokens)} passes"


class Blend(nn.Module):
    """A norm that mixes the rows of a batch."""

    def __init__(self, norm: nn.Module, share: float) -> None:
        super().__init__()
        self.norm, self.share = norm, share

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) + self.share * (x.mean(0, keepdim=True) - x)


class Restless(nn.Module):
    """Noise that does not ask for the mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.1)


def test_rows_that_depend_on_each_other_are_found_however_little() -> None:
    model = model_of("llama")
    model.model.norm = Blend(model.model.norm, 1e-6)  # far below what rounding may be worth
    found = table(model, sampler=False)
    assert found["padded rows"].passed and not found["padded rows, another row changed"].passed
    assert "padded rows depend on the other rows of their batch" in find_untrainable_reason("llama", list(found.values()))


def test_a_device_that_adds_up_in_any_order_is_not_taken_for_rows_that_depend_on_each_other() -> None:
    """On some accelerators the same rows again give other last bits: only more than that is a dependence."""
    model, dice = model_of("llama").eval(), torch.Generator().manual_seed(0)

    def way(rows: TokenRows, *, leaks: float = 0.0) -> Tensor:
        found = honesty.compute_plain_logprobs(model, rows)
        return found + leaks * found[0] + 1e-6 * torch.rand(len(found), generator=dice)

    def leaking(rows: TokenRows) -> Tensor:
        return way(rows, leaks=1e-3)

    noisy, wrong = (list(honesty.compare_logprob_functions(model, {"packed rows": asked}))[-1] for asked in (way, leaking))
    assert noisy.gap and noisy.passed and "no fixed order" in noisy.note
    assert wrong.gap and not wrong.passed and "depend on the other rows" in find_untrainable_reason("llama", [wrong])


def test_one_unlikely_token_that_rounding_moved_far_does_not_refuse_a_model_in_bfloat16() -> None:
    """SmolLM2 in bfloat16: 0.29 on one token where rows are padded, 0.07 on average."""
    one, all_ = torch.zeros(80), torch.full((80,), 0.8)
    one[3] = 0.8
    for exact, gap in ((True, 0.8), (False, 0.8 / 80**0.5)):
        assert honesty.compute_max_or_rms_difference(one, torch.zeros(80), exact) == pytest.approx(gap)
        assert honesty.compute_max_or_rms_difference(all_, torch.zeros(80), exact) == pytest.approx(0.8)
    assert honesty.compute_max_or_rms_difference(torch.tensor([0.0, torch.nan]), torch.zeros(2), full_precision=False) == float("inf")


def test_a_family_whose_own_code_fails_under_autocast_is_one_sentence() -> None:
    sizes = {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4},
    }
    config = CONFIG_MAPPING["dbrx"](vocab_size=12, d_model=32, n_heads=4, n_layers=1, max_seq_len=64, **sizes)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    with pytest.raises(ConfigError, match=r"^dbrx cannot be computed in bfloat16: .*BFloat16.*; set train\.mixed_precision: 'no'$"):
        run_numerics_checks(model, None, CharTokenizer("0123456789"), autocast=autocast)
    assert run_numerics_checks(model, None, CharTokenizer("0123456789"))


def test_a_model_that_is_wrong_only_in_batches_is_refused() -> None:
    model = model_of("llama")
    model.model.norm = Blend(model.model.norm, 0.3)
    assert "padded rows do not give the probabilities of a plain forward pass (by" in find_untrainable_reason(
        "llama", list(table(model, sampler=False).values())
    )


def test_noise_is_found() -> None:
    model = model_of("llama")
    model.model.norm = nn.Sequential(model.model.norm, Restless())
    assert "two passes over the same tokens differ" in find_untrainable_reason("llama", list(table(model, sampler=False).values()))


def test_an_answer_that_can_never_end_is_refused() -> None:
    class Endless(CharTokenizer):
        stop_ids = frozenset({99})

    found = honesty.check_stop_ids(model_of("llama"), Endless("01"))
    assert find_untrainable_reason("llama", [found]).endswith(
        "its tokenizer's stop ids (99) are not among its 32 ids, so that no answer could end"
    )
    other = model_of("llama", eos_token_id=7)
    assert (
        honesty.check_stop_ids(other, TOKENIZER).passed
        and "the model's configuration says 7" in honesty.check_stop_ids(other, TOKENIZER).note
    )


def off_after(calls: int, monkeypatch: pytest.MonkeyPatch, by: float = 0.01) -> None:
    """From this call on, the sampler reports other log-probabilities than those that it samples with."""
    choose, count = hf_module.__dict__["sample_tokens"], [0]

    def wrong(*given: Any) -> Any:
        count[0] += 1
        tokens, logprobs = choose(*given)
        return tokens, logprobs - by * (count[0] > calls)

    monkeypatch.setattr(hf_module, "sample_tokens", wrong)


def test_a_wrong_sampler_stops_the_run_before_the_warm_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off_after(0, monkeypatch)
    screen = io.StringIO()
    with pytest.raises(ConfigError, match="family llama cannot be trained: the sampler's tokens do not give the probabilities of a plain"):
        train(tiny_run(), out=tmp_path / "run", console=Console(file=screen))
    assert "warmup" not in screen.getvalue() and not (tmp_path / "run").exists()


def test_a_sampler_that_fails_on_a_model_refuses_it_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does on recurrent_gemma of transformers 4.56, which keeps the batch of the last pass in its modules."""

    def broken(*given: Any) -> Any:
        raise IndexError("list index\nout of range")

    monkeypatch.setattr(hf_module, "sample_tokens", broken)
    with pytest.raises(ConfigError, match=r"llama cannot be trained: sampling from it fails \(IndexError: list index out of range\);"):
        train(tiny_run(), out=tmp_path / "run", console=Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(hf_module, "sample_tokens", lambda *given: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory")))
    with pytest.raises(torch.OutOfMemoryError):
        train(tiny_run(), out=tmp_path / "run", console=Console(file=io.StringIO()))


def test_a_sampler_that_becomes_wrong_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off_after(100, monkeypatch)
    with pytest.raises(RlvrError, match=r"sampler and trainer differ by 0\.01 in the log-probability of a token"):
        train(tiny_run(train={"steps": 50, "learning_rate": 1e-3}), out=tmp_path / "run", console=Console(file=io.StringIO()))


def test_rounding_does_not_stop_a_run_and_other_distributions_have_no_limit() -> None:
    check_logprob_mismatch({"sampling/logp_difference_max": 9e-5}, 1e-4, check_every_token=True)
    check_logprob_mismatch({"sampling/logp_difference_max": 3.0}, None, check_every_token=True)
    check_logprob_mismatch({}, 1e-4, check_every_token=True)
    routed = {"sampling/logp_difference_max": 0.5, "sampling/ratio_p01": 1.0, "sampling/ratio_p99": 1.00001}
    check_logprob_mismatch(routed, 1e-4, check_every_token=False)
    for figures in (routed | {"sampling/ratio_p01": 0.9}, routed | {"sampling/ratio_p99": 1.1}, routed | {"sampling/ratio_p01": 0.0}):
        with pytest.raises(RlvrError, match="sampler and trainer differ"):
            check_logprob_mismatch(figures, 1e-4, check_every_token=False)
    with pytest.raises(RlvrError, match="differ by nan"):
        check_logprob_mismatch({"sampling/logp_difference_max": float("nan")}, 1e-4, check_every_token=True)


HYBRID = {
    "model_type": "lfm2", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"], "max_position_embeddings": 64,
}  # fmt: skip


def test_a_hybrid_trains_with_the_default_sampler_and_the_banner_says_how(tmp_path: Path) -> None:
    screen = io.StringIO()
    changes = {"sft_warmup": {"max_steps": 60, "batch_size": 16, "learning_rate": 1e-2}, "train": {"steps": 3, "learning_rate": 1e-3}}
    ended = train(tiny_run(model={"config": HYBRID}, **changes), out=tmp_path, console=Console(file=screen, width=400))
    assert "log-probabilities differ from those of a plain forward pass by at most" in screen.getvalue()
    assert re.search(r"layers with attention: 1 of 2 \(1 conv.*\); token ids that end an answer: \d+\n", screen.getvalue())
    rows = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert len(rows) == 3 and all(row["sampling/logp_difference_max"] < 1e-5 for row in rows)
    assert ended.status == "finished"


def test_the_doctor_shows_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of("lfm2", vocab_size=TOKENIZER.vocab_size + 20, max_position_embeddings=256)
    model.save_pretrained(tmp_path)
    to_transformers_tokenizer(TOKENIZER).save_pretrained(tmp_path)
    assert run_command(["doctor", "--model", str(tmp_path), "--env", "tests/fixtures/worlds.py:Sums", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ways = {row["name"]: row for row in told["checks"]}
    assert ways["padded rows"]["ok"] and ways["padded rows"]["gap"] < 1e-5
    assert ways[SAMPLER_CHECK_NAME]["note"].startswith("rows grouped by length, since")
    assert run_command(["doctor", "--model", str(tmp_path), "--env", "tests/fixtures/worlds.py:Sums"]) == 0
    assert "not used: 2 of its 4 layers" in " ".join(capsys.readouterr().out.split())
