"""Both samplers: what they hand back, and what it does not depend on."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Request, Sampler, SamplingParams, StaticQueue
from rlvr.errors import ConfigError, SamplerError
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer
from rlvr.models import device_defaults as defaults
from rlvr.models.model_loading import load_model
from rlvr.samplers import _slot_cache as _slots
from rlvr.samplers import hf as hf_module
from rlvr.samplers._length_grouped_cache import LengthGroupedCache
from rlvr.samplers._padded_cache import PaddedCache
from rlvr.samplers._recomputing_cache import RecomputingCache
from rlvr.samplers._token_choice import sample_tokens
from rlvr.samplers.hf import HFSampler
from rlvr.samplers.scripted import ScriptedSampler
from tests.fixtures.families import ELSEWHERE, FAMILIES, STATE, UNUSUAL, model_of
from tests.fixtures.tiny import MODEL
from tests.fixtures.worlds import DIGITS, Sums

TOKENIZER = CharTokenizer(DIGITS)
STOPS = TOKENIZER.stop_ids


@pytest.fixture(scope="module")
def model() -> Any:
    made = load_model(ModelConfig(config=MODEL), TOKENIZER, seed=1)
    with torch.no_grad():  # a fresh model is nearly uniform; sharpen it so that order and seeds matter
        made.lm_head.weight.mul_(20)
    return made


def hf(model: Any, **settings: Any) -> HFSampler:
    sampler = HFSampler(**settings)
    sampler.update_from_model(model, 0)
    return sampler


def requests(count: int, *, max_tokens: int = 12) -> list[Request]:
    prompts = [TOKENIZER.render([{"role": "user", "content": text}]) for text in ("1+2=", "12+34=", "7=")]
    return [Request(prompts[i % 3], max_tokens, seed=100 + i) for i in range(count)]


def rescored(model: Any, request: Request, completion: Completion, temperature: float) -> list[float]:
    """The log-probability of each sampled token, by one plain forward pass over the whole sequence."""
    ids = torch.tensor([[*request.prompt, *completion.tokens]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    start = len(request.prompt)
    return [float(logits[start + i - 1].log_softmax(-1)[token]) for i, token in enumerate(completion.tokens)]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_those_of_a_plain_forward_pass(model: Any, temperature: float) -> None:
    asked = requests(30)
    for request, completion in zip(asked, hf(model).sample(asked, SamplingParams(temperature, stop_ids=STOPS)), strict=True):
        assert completion.logprobs == pytest.approx(rescored(model, request, completion, temperature), abs=1e-4)


def test_the_same_seed_gives_the_same_tokens_whatever_the_batch(model: Any) -> None:
    asked = requests(24)
    whole = hf(model).sample(asked, SamplingParams(stop_ids=STOPS))
    alone = [hf(model, batch_size=1).sample([request], SamplingParams(stop_ids=STOPS))[0] for request in asked]
    turned = hf(model, batch_size=5).sample(asked[::-1], SamplingParams(stop_ids=STOPS))[::-1]
    assert [c.tokens for c in whole] == [c.tokens for c in alone] == [c.tokens for c in turned]
    others = [Request(r.prompt, r.max_tokens, r.seed + 1) for r in asked]
    assert [c.tokens for c in hf(model).sample(others, SamplingParams(stop_ids=STOPS))] != [c.tokens for c in whole]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_samples_as_its_forward_pass_says_in_slots_or_padded(family: str) -> None:
    """Prompts from one token on, more requests than rows: some wait, and find their prompt in a live row or compute it."""
    model = model_of(family)
    prompts = [[5], [7, 9], [3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1, 8]]
    asked = [Request(prompts[i % 4], 1 + 5 * i % 17, seed=i) for i in range(24)]
    sampler = hf(model, batch_size=5)
    assert bool(sampler.slots_problem) == (family in UNUSUAL), sampler.slots_problem
    found = sampler.sample(asked, SamplingParams(0.9, stop_ids=frozenset({0})))
    assert found == hf(model, batch_size=5).sample(asked, SamplingParams(0.9, stop_ids=frozenset({0})))
    for request, completion in zip(asked, found, strict=True):
        assert completion.logprobs == pytest.approx(rescored(model, request, completion, 0.9), abs=1e-4)
        assert len(completion.tokens) == request.max_tokens or completion.tokens[-1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", STATE)
def test_a_family_with_a_state_of_its_own_samples_as_its_forward_pass_says(family: str) -> None:
    model = model_of(family)
    prompts = [[5], [7, 9], [3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1, 8]]
    asked = [Request(prompts[i % 4], 1 + 5 * i % 17, seed=i) for i in range(24)]
    sampler = hf(model, batch_size=5)
    assert sampler.slots_problem and sampler.cache_class is (RecomputingCache if family in ELSEWHERE else LengthGroupedCache)
    for request, completion in zip(asked, sampler.sample(asked, SamplingParams(0.9, stop_ids=frozenset({0}))), strict=True):
        assert completion.logprobs == pytest.approx(rescored(model, request, completion, 0.9), abs=1e-5)
        assert len(completion.tokens) == request.max_tokens or completion.tokens[-1] == 0


@pytest.mark.parametrize("family", STATE)
def test_a_state_is_noticed_however_little_it_is_worth(family: str) -> None:
    model = model_of(family)
    for name, p in model.named_parameters():
        if p.dim() > 1 and "embed" not in name:
            p.data.mul_(1e-4)
    assert hf(model).cache_class is (RecomputingCache if family in ELSEWHERE else LengthGroupedCache)


def test_a_step_that_would_differ_with_other_weights_is_not_trusted() -> None:
    model = model_of("bamba")
    layer = next(module for name, module in model.named_modules() if name.endswith("down_proj"))
    hook = layer.register_forward_pre_hook(lambda _, given: (given[0].clamp(-1, 1),) if given[0].shape[1] == 1 else None)
    assert hf(model).cache_class is RecomputingCache  # nothing reaches the limit with the weights that it has
    hook.remove()
    assert hf(model).cache_class is LengthGroupedCache


def test_rows_without_padding_are_tested_too() -> None:
    """A mask that hides nothing may be dropped on the way, and Doge of transformers 4.56 then looks ahead."""
    model = model_of("gemma2")
    assert hf(model).cache_class is PaddedCache

    def wrong(_: Any, given: Any, named: dict[str, Any], output: Any) -> None:
        if named.get("attention_mask") is not None and bool(named["attention_mask"].all()):
            output.logits = output.logits.pool(1, dims=-1)

    model.register_forward_hook(wrong, with_kwargs=True)
    assert hf(model).cache_class is not PaddedCache


def test_a_subclass_may_wrap_stream_alone(model: Any) -> None:
    class Counting(HFSampler):
        calls = 0

        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            self.calls += 1
            yield from super().stream_completions(requests, sampling)

        stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`

    wrapped = Counting()
    wrapped.update_from_model(model, 0)
    served = dict(ended for ended in wrapped.stream_from_queue(StaticQueue(requests(3)), SamplingParams()) if ended is not None)
    assert wrapped.calls == 1
    assert [served[i].tokens for i in range(3)] == [done.tokens for done in hf(model).sample(requests(3), SamplingParams())]


def test_prompts_computed_a_few_at_a_time_are_the_same(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(12)
    whole = hf(model).sample(asked, SamplingParams(stop_ids=STOPS))
    monkeypatch.setattr(_slots, "PREFILL_TOKENS", 7)
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs["input_ids"].shape[0]), with_kwargs=True)
    parts = hf(model).sample(asked, SamplingParams(stop_ids=STOPS))
    hook.remove()
    assert [c.tokens for c in parts] == [c.tokens for c in whole]
    assert calls.count(1) >= 3  # three prompts, each alone


def test_waiting_prompts_take_the_place_of_answers_that_ended(model: Any) -> None:
    """Eight rows and 64 answers of very different length: as many steps as eight busy rows need, and no prompt twice."""
    asked = [Request(TOKENIZER.render([{"role": "user", "content": f"{i % 4}="}]), 40 if i % 8 == 0 else 2, seed=i) for i in range(64)]
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs["input_ids"].shape[0]), with_kwargs=True)
    found = hf(model, batch_size=8).sample(asked, SamplingParams())
    hook.remove()
    assert [len(c.tokens) for c in found] == [r.max_tokens for r in asked]
    batches = 8 * 40  # steps of a sampler that waits for the slowest of each eight
    assert len(calls) < batches / 2 and max(calls) == 8


def test_a_random_number_next_to_one_never_picks_what_was_filtered_out() -> None:
    logits = torch.tensor([[2.0, 1.0, -30.0, -30.0]]).repeat(4, 1)
    chosen, logprob = sample_tokens(logits, SamplingParams(1.0, 1.0, 2), torch.tensor([0.0, 0.5, 1 - 2**-24, 1.0]))
    assert chosen.tolist() == [0, 0, 1, 1] and bool(logprob.isfinite().all())


def test_a_longer_cap_does_not_change_what_comes_before_it(model: Any) -> None:
    short, long = (hf(model).sample(requests(12, max_tokens=n), SamplingParams(stop_ids=STOPS)) for n in (3, 40))
    assert all(a.tokens == b.tokens[: len(a.tokens)] for a, b in zip(short, long, strict=True))


def test_finish_tells_a_stop_from_a_cap(model: Any) -> None:
    found = hf(model).sample(requests(200, max_tokens=6), SamplingParams(stop_ids=STOPS))
    assert {c.finish_reason for c in found} == {"stop", "length"}
    for completion in found:
        assert (completion.tokens[-1] in STOPS) == (completion.finish_reason == "stop")
        assert not STOPS.intersection(completion.tokens[:-1])
        assert len(completion.tokens) == 6 or completion.finish_reason == "stop"


class Ends:
    """Ends a turn with a token that is no stop id, if it is not the first."""

    def may_stop(self, token: int) -> bool:
        return token == 7

    def __call__(self, tokens: Sequence[int]) -> bool:
        return len(tokens) > 1 and tokens[-1] == 7


def test_a_turn_that_no_stop_id_ends_is_a_prefix_of_what_would_have_been_said(model: Any) -> None:
    whole = requests(60, max_tokens=12)
    plain, ended = (
        hf(model, batch_size=16).sample(asked, SamplingParams()) for asked in (whole, [replace(r, stop_criterion=Ends()) for r in whole])
    )
    early = 0
    for full, cut in zip(plain, ended, strict=True):
        length = next((n for n in range(2, 13) if full.tokens[n - 1] == 7), 12)
        assert cut.tokens == full.tokens[:length] and cut.logprobs == pytest.approx(full.logprobs[:length], abs=1e-5)
        assert cut.finish_reason == ("stop" if cut.tokens[-1] == 7 and length > 1 else "length")
        early += length < 12
    assert early > 5


def test_sampled_frequencies_are_the_model_s(model: Any) -> None:
    prompt = requests(1)[0].prompt
    draws = hf(model).sample([Request(prompt, 1, seed) for seed in range(4000)], SamplingParams(stop_ids=STOPS))
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([list(prompt)])).logits[0, -1].softmax(-1)
    for token, share in enumerate(wanted.tolist()):
        seen = sum(c.tokens == [token] for c in draws) / len(draws)
        assert abs(seen - share) < 5 * math.sqrt(share * (1 - share) / len(draws)) + 1e-3


def test_greedy_is_the_argmax_of_a_plain_forward_pass(model: Any) -> None:
    request = requests(2)[1]
    completion = hf(model).sample([request], SamplingParams(0.0, stop_ids=STOPS))[0]
    ids = list(request.prompt)
    for token in completion.tokens:
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, 0), (1.0, 3), (0.8, 4)])
def test_top_p_and_top_k_keep_the_likeliest_and_renormalise(model: Any, top_p: float, top_k: int) -> None:
    prompt = requests(1)[0].prompt
    with torch.no_grad():
        probabilities = model(input_ids=torch.tensor([list(prompt)])).logits[0, -1].softmax(-1)
    order = probabilities.argsort(descending=True).tolist()[: top_k or None]
    kept: list[int] = []
    total = float(probabilities[order].sum())
    while not kept or float(probabilities[kept].sum()) / total < top_p:
        kept.append(order[len(kept)])
    draws = hf(model).sample([Request(prompt, 1, seed) for seed in range(1500)], SamplingParams(1.0, top_p, top_k, STOPS))
    assert {c.tokens[0] for c in draws} <= set(kept)
    mass = float(probabilities[kept].sum())
    for completion in draws[:50]:
        wanted = math.log(float(probabilities[completion.tokens[0]]) / mass)
        assert completion.logprobs[0] == pytest.approx(wanted, abs=1e-4)


def test_hf_says_what_is_missing() -> None:
    with pytest.raises(SamplerError, match="no model"):
        HFSampler().sample(requests(1), SamplingParams())
    with pytest.raises(ConfigError, match="batch_size is 0"):
        HFSampler(batch_size=0)


def test_scripted_says_the_gold_and_stops() -> None:
    environment, tokenizer = Sums(), ByteTokenizer()
    sampler = ScriptedSampler(answer="gold")
    sampler.setup(environment, tokenizer)
    task = environment.task("train", 7)
    long, short = (sampler.sample([Request([1], n, task=task)], SamplingParams())[0] for n in (9, 1))
    assert tokenizer.decode(long.tokens) == task.reference and long.finish_reason == "stop"
    assert short.finish_reason == "length" and len(short.tokens) == 1


def test_scripted_random_is_seeded_and_inside_the_vocabulary() -> None:
    sampler = ScriptedSampler(answer="random")
    sampler.setup(Sums(), TOKENIZER)
    asked = [Request([1], 20, seed=seed) for seed in range(50)]
    once, again = (sampler.sample(asked, SamplingParams()) for _ in range(2))
    assert once == again and len({tuple(c.tokens) for c in once}) > 40
    assert {token for c in once for token in c.tokens} == set(range(TOKENIZER.vocab_size))


def test_scripted_refuses_an_unknown_script() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gold'"):
        ScriptedSampler(answer="golden")
    with pytest.raises(ConfigError, match="empty list"):
        ScriptedSampler(answers=[])
    with pytest.raises(SamplerError, match="got a request before"):
        ScriptedSampler().sample([Request([1], 1)], SamplingParams())


def test_a_model_in_bfloat16_uses_its_slots_and_says_what_it_says_padded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = copy.deepcopy(model).to(torch.bfloat16)
    asked, greedy = requests(12), SamplingParams(0.0, stop_ids=STOPS)
    slotted = hf(copy.deepcopy(half), batch_size=4)
    assert slotted.slots_problem == ""
    said = slotted.sample(asked, greedy)
    monkeypatch.setattr("rlvr.samplers.hf.find_slot_cache_problem", lambda _: "as the test wants it")
    padded = hf(half, batch_size=4)
    assert padded.slots_problem and [c.tokens for c in padded.sample(asked, greedy)] == [c.tokens for c in said]


@pytest.mark.parametrize("looks", [3, 8])
def test_answers_do_not_depend_on_how_often_the_sampler_looks_which_have_ended(
    model: Any, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*requests(20), *(Request([2, 5], length, seed=length) for length in (1, 2, 5))]
    seen, ends = list[int](), torch.Tensor.nonzero

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return ends(tensor)

    monkeypatch.setattr(torch.Tensor, "nonzero", noted)
    expected = hf(model, batch_size=6).sample(asked, SamplingParams(stop_ids=STOPS))
    every = len(seen)
    monkeypatch.setattr(defaults, "CPU_DEFAULTS", replace(defaults.CPU_DEFAULTS, stop_check_interval_tokens=looks))
    found = hf(model, batch_size=6).sample(asked, SamplingParams(stop_ids=STOPS))
    assert [(c.tokens, c.finish_reason) for c in found] == [(c.tokens, c.finish_reason) for c in expected]
    assert {c.finish_reason for c in found} == {"stop", "length"}
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert len(seen) - every < every  # and it waited for the device less often


def test_no_step_asks_the_device_how_wide_it_is(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other answers beside, that end and begin, each row is as long as it is."""
    asked = [Request([2, *[5 + i % 5] * (i % 7)], 3 + i % 9, seed=i) for i in range(30)]
    expected = hf(model, batch_size=1).sample(asked, SamplingParams(stop_ids=STOPS))
    several = hf(model, batch_size=8)
    monkeypatch.setattr(torch.Tensor, "max", lambda *args, **kwargs: pytest.fail("a look at the device"))
    found = several.sample(asked, SamplingParams(stop_ids=STOPS))
    assert [c.tokens for c in found] == [c.tokens for c in expected]


def test_it_samples_in_the_precision_that_the_trainer_computes_in() -> None:
    model = load_model(ModelConfig(config=MODEL), TOKENIZER, seed=1)
    sampler = HFSampler()
    sampler.setup(Sums(), TOKENIZER, precision="bfloat16", max_length=40)
    sampler.update_from_model(model, 0)
    own = sampler.model
    assert own.dtype is torch.bfloat16 and model.dtype is torch.float32
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.25)
    sampler.update_from_model(model, 1)
    assert sampler.model is own  # no second copy
    pairs = zip(own.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(mine, given.bfloat16()) and not mine.requires_grad for mine, given in pairs)
    other = HFSampler()
    other.setup(Sums(), TOKENIZER, precision="float32", max_length=40)
    other.update_from_model(model, 1)
    assert other.model is model


@pytest.mark.slow
def test_as_many_answers_at_a_time_as_have_room_on_the_device(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SimpleNamespace(num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    qwen = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, config=SimpleNamespace(get_text_config=lambda: shape))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 140 << 30))
    rows = hf_module.count_rows_that_fit(qwen, 4096)
    assert rows * 4096 * 1.5 * 114_688 == pytest.approx(0.7 * (80 << 30), rel=0.02)  # 114,688 bytes a token
    assert hf_module.count_rows_that_fit(qwen, 1 << 30) == 1 and not hf(model).is_memory_limited  # a CPU has no such limit
    widths = list[int]()

    def two(model: Any, width: int) -> int:
        widths.append(width)
        return 2

    monkeypatch.setattr(hf_module, "count_rows_that_fit", two)
    sampler = hf(model)
    sampler.is_memory_limited = True
    assert len(sampler.sample(requests(7), SamplingParams(stop_ids=STOPS))) == 7
    sampler.setup(Sums(), TOKENIZER, precision="float32", max_length=99)
    sampler.sample(requests(1), SamplingParams(stop_ids=STOPS))
    assert widths == [max(len(r.prompt) + r.max_tokens for r in requests(7)), 99]
