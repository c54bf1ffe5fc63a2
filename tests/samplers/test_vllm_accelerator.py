"""Samplers beside a trainer on a GPU: precision, length, memory and device, with stand-ins for the engine and for the device."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from rlvr.cli import doctor
from rlvr.config.config import ModelConfig
from rlvr.contracts import SamplingParams
from rlvr.errors import ConfigError, SamplerError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.device import autocast_to, free_cached_memory, get_trainer_precision, resolve_device
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.models.plain_weights import cast_state_dict, compute_model_logprobs
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers import _colocated
from rlvr.samplers._colocated import check_no_torch_distributed, preserve_random_state
from rlvr.samplers._weight_probe import WeightSyncProbe, compute_logprob_differences
from rlvr.samplers.hf import HFSampler
from rlvr.samplers.vllm import VLLMSampler
from rlvr.training.train import train
from tests.fixtures.endpoint import endpoint, hang_up
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import DIGITS
from tests.samplers.test_vllm import MODEL, STOPS, fresh, requests
from tests.samplers.test_vllm_server import Stand, served

ON_GPU = SimpleNamespace(is_cpu=lambda: False)
TOKENIZER = CharTokenizer(DIGITS)


class Engine:
    """vLLM as the sampler sees it, on a GPU that is not there: it notes what it is told, and in which order."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.done: list[str] = []
        self.model: Any = None
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None), model_config=None)

    def LLM(self, folder: str, **told: Any) -> Engine:
        self.told = told
        self.llm_engine.model_config = SimpleNamespace(max_model_len=told["max_model_len"] or 4096)
        return self

    def SamplingParams(self, **params: Any) -> Any:
        return params

    def collective_rpc(self, order: str, kwargs: dict[str, Any]) -> None:
        self.done.append(order)
        weights = dict(kwargs["weights_iterator"])
        self.model.load_state_dict({name: weight.to(self.model.dtype) for name, weight in weights.items()}, strict=False)

    def generate(self, prompts: list[dict[str, list[int]]], params: Any, use_tqdm: bool, lora_request: Any) -> list[Any]:
        tokens = prompts[0]["prompt_token_ids"]
        scores = compute_model_logprobs(self.model, tokens)
        return [
            SimpleNamespace(prompt_logprobs=[None, *({t: SimpleNamespace(logprob=s)} for t, s in zip(tokens[1:], scores, strict=True))])
        ]

    def reset_prefix_cache(self) -> bool:
        return True

    def wake_up(self, tags: list[str]) -> None:
        self.done.append(f"wake {tags[0]}")

    def sleep(self, level: int) -> None:
        self.done.append("sleep")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made, real = Engine(), importlib.import_module
    found = {"vllm": made, "vllm.platforms": SimpleNamespace(current_platform=ON_GPU)}

    def import_module(name: str, *more: Any) -> Any:
        """The stand-in for every module of vLLM, whether or not vLLM is installed."""
        return found.get(name, SimpleNamespace()) if name.partition(".")[0] == "vllm" else real(name, *more)

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(_colocated, "free_cached_memory", lambda: made.done.append("free"))
    monkeypatch.setattr("rlvr.samplers.vllm.get_installed_version", lambda: "0.32.0")
    yield made


def has(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A machine with an accelerator of this kind."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))


def long(**changes: Any) -> Any:
    return fresh(max_position_embeddings=4096, **changes)


PRECISIONS = [
    ("no", "cpu", "float32", "float32"),
    ("bf16", "cpu", "float32", "float32"),
    ("no", "cuda", "float32", "float32"),
    ("no", "cuda", "bfloat16", "bfloat16"),
    ("bf16", "cuda", "float32", "bfloat16"),
    ("fp16", "cuda", "float32", "float16"),
]


@pytest.mark.parametrize("mixed, device, weights, computed", PRECISIONS)
def test_the_trainer_s_precision_follows_mixed_precision_on_an_accelerator(mixed: str, device: str, weights: str, computed: str) -> None:
    model = SimpleNamespace(dtype=getattr(torch, weights))
    assert get_trainer_precision(model, mixed, torch.device(device)) == computed


def test_the_engine_s_precision_and_length_are_the_run_s_unless_they_are_set(engine: Engine) -> None:
    engine.model = long().to(torch.bfloat16)
    for settings, dtype, length in (
        ({}, "bfloat16", 300),
        ({"dtype": "float32", "max_model_len": 512, "probe_tolerance": 9.0}, "float32", 512),
    ):
        with VLLMSampler(**settings) as sampler:  # type: ignore[arg-type]
            sampler.setup(cast(Any, None), cast(Any, None), precision="bfloat16", max_length=300)
            sampler.update_from_model(long(), 0)
            assert (engine.told["dtype"], engine.told["max_model_len"]) == (dtype, length)
    with VLLMSampler(probe_tolerance=9.0) as sampler:
        sampler.update_from_model(long(), 0)  # nobody said anything: the weights' precision and the model's own length, as before
        assert (engine.told["dtype"], engine.told["max_model_len"]) == ("float32", None)
    with VLLMSampler(probe_tolerance=9.0) as sampler:
        sampler.setup(cast(Any, None), cast(Any, None), precision="bfloat16", max_length=4096)
        sampler.update_from_model(long(), 0)
        assert engine.told["max_model_len"] is None  # the model's own, which the engine knows best
    with VLLMSampler(probe_tolerance=9.0) as sampler:
        sampler.setup(cast(Any, None), cast(Any, None), precision="bfloat16", max_length=5)
        sampler.update_from_model(long(), 0)
        assert engine.told["max_model_len"] == 33  # room for the probe


@pytest.mark.slow
def test_a_run_tells_its_sampler_the_precision_and_the_longest_sequence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(HFSampler, "setup", lambda self, environment, tokenizer, **what: told.append(what))
    monkeypatch.setattr(HFSampler, "get_weight_probe_metrics", lambda self: {"weight_probe/logprob_difference_max": 0.25})
    config = tiny_run(rollout={"max_new_tokens": 5, "max_length": 40, "prompts_per_step": 2, "num_generations": 2})
    train(config, out=tmp_path / "run", console=Console(quiet=True))
    assert told == [{"precision": "float32", "max_length": 40}, {}]  # the rollout knows no more, and what was told before holds
    assert [row["weight_probe/logprob_difference_max"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [0.25, 0.25]


def test_memory_is_returned_before_the_engine_wakes_and_after_it_sleeps(engine: Engine) -> None:
    engine.model = long()
    with VLLMSampler() as sampler:
        sampler.update_from_model(long(), 0)
        sampler.sleep()
        sampler.sleep()
        sampler.update_from_model(long(), 1)
    assert engine.told["enable_sleep_mode"]
    assert engine.done == ["free", "reload_weights", "sleep", "free", "free", "wake weights", "reload_weights", "wake kv_cache"]


def test_cached_memory_is_freed_on_an_accelerator_only(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("freed"))
    monkeypatch.setattr("gc.collect", lambda: freed.append("collected"))
    free_cached_memory()
    has(monkeypatch, "cuda")
    free_cached_memory()
    assert freed == ["collected", "collected", "freed"]


def test_the_random_state_of_the_current_device_alone_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    fork = torch.random.fork_rng

    def forked(**settings: Any) -> Any:
        asked.append(settings)
        return fork(devices=[])

    monkeypatch.setattr(torch.random, "fork_rng", forked)
    before = torch.get_rng_state()
    with preserve_random_state():
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
    has(monkeypatch, "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    with preserve_random_state():
        pass
    assert asked == [{"devices": []}, {"devices": [3], "device_type": "cuda"}]


def test_several_gpus_in_this_process_are_refused_before_anything_starts() -> None:
    with pytest.raises(
        ConfigError, match=r"placement is 'colocated', and tensor_parallel_size is 2.*set placement: local, or start servers"
    ):
        VLLMSampler(tensor_parallel_size=2)


def test_a_group_of_one_process_says_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    with pytest.raises(ConfigError, match=r"a launcher \(`accelerate launch`, `torchrun`\).*start the run with `rlvr train"):
        check_no_torch_distributed()
    monkeypatch.setattr(_colocated, "OPEN_ENGINES", {1})
    with pytest.raises(ConfigError, match="can run only one vLLM engine"):
        check_no_torch_distributed()


def test_servers_are_asked_for_as_much_as_they_run_at_once() -> None:
    assert VLLMSampler(placement="server", urls=["http://x:1"]).concurrency == 256
    assert VLLMSampler(placement="server", urls=["http://x:1"], max_num_seqs=64).concurrency == 64
    assert VLLMSampler(placement="server", urls=["http://x:1"], concurrency=9).concurrency == 9


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_sent_in_the_engine_s_precision(tmp_path: Path, tied: bool) -> None:
    model = fresh(tie_word_embeddings=tied)
    assert cast_state_dict(model, None) is None and cast_state_dict(model, "float32") is None
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "cast", state_dict=cast_state_dict(model, "bfloat16"))
    whole, cast = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cast"))
    assert whole.keys() == cast.keys() and ("lm_head.weight" in cast) is not tied
    for name, weight in whole.items():
        expected = weight.to(torch.bfloat16) if weight.ndim > 1 else weight
        assert cast[name].dtype == expected.dtype and torch.equal(cast[name], expected)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "cast")]
    assert sizes[1] < 0.6 * sizes[0]


def test_a_server_gets_bfloat16_where_the_trainer_computes_in_it() -> None:
    sent: list[set[torch.dtype]] = []

    class Looks(Stand):
        def __call__(self, path: str, body: dict[str, Any], before: int) -> Any:
            if path == "/collective_rpc":
                weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
                sent.append({weight.dtype for weight in weights.values() if weight.ndim > 1})
            return super().__call__(path, body, before)

    with endpoint(Looks()) as seen, served(seen.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        sampler.sample(requests(3), SamplingParams(stop_ids=STOPS))
    with endpoint(Looks()) as seen, served(seen.url) as sampler:
        sampler.setup(cast(Any, None), cast(Any, None), precision="bfloat16", max_length=100)
        sampler.update_from_model(fresh(), 0)
        assert (
            0
            < sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_mean"]
            < sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"]
            < 1.0
        )
    assert sent == [{torch.float32}, {torch.bfloat16}]


def test_all_servers_load_at_once() -> None:
    """Each answers the order only when both have it: one after another they would wait for ever, and the deadline would end it."""
    ordered = threading.Barrier(2, timeout=15)

    class Waits(Stand):
        def __call__(self, path: str, body: dict[str, Any], before: int) -> Any:
            if path == "/collective_rpc":
                ordered.wait()
            return super().__call__(path, body, before)

    with endpoint(Waits()) as one, endpoint(Waits()) as two, served(one.url, two.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        assert len(sampler.sample(requests(4), SamplingParams(stop_ids=STOPS))) == 4


FAILING: list[tuple[Any, str]] = [
    ((500, {"error": "out of memory"}), r"{one} .*out of memory.*; {two} .*out of memory"),
    (hang_up, r"(?:{one}|{two}) closed the connection.* during /collective_rpc"),
]


@pytest.mark.parametrize("trouble, words", FAILING, ids=["an error", "a lost connection"])
def test_servers_that_fail_together_are_one_error(trouble: Any, words: str) -> None:
    stands = Stand(), Stand()
    with endpoint(stands[0]) as one, endpoint(stands[1]) as two, served(one.url, two.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        for stand in stands:
            stand.trouble = {"/collective_rpc": trouble}
        with pytest.raises(SamplerError, match=words.format(one=one.url, two=two.url)):
            sampler.update_from_model(fresh(), 1)


def deep(seed: int = 1) -> Any:
    made = load_model(ModelConfig(config=MODEL | {"num_hidden_layers": 12}), TOKENIZER, seed=seed)
    with torch.no_grad():
        made.lm_head.weight.mul_(40)
    return made.eval()


def scored_by(model: Any) -> Callable[[Any], list[float]]:
    return lambda tokens: compute_model_logprobs(model, tokens)


def test_the_probe_scores_the_trainer_in_the_precision_that_it_trains_in() -> None:
    model, tokens = deep(), list(range(12))
    plain = compute_model_logprobs(model, tokens)
    assert compute_model_logprobs(model, tokens, "float32") == plain
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1].float().log_softmax(-1)
    trained = [float(logits[i, token]) for i, token in enumerate(tokens[1:])]
    assert compute_model_logprobs(model, tokens, "bfloat16") == trained != plain
    with autocast_to(model, "bfloat16"):
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16


def test_the_probe_takes_rounding_in_bfloat16_for_rounding_and_other_weights_for_other_weights() -> None:
    model, engine = deep(), deep().to(torch.bfloat16)
    probe = WeightSyncProbe(TOKENIZER.vocab_size, "bfloat16", precision="bfloat16")
    probe.check_engine(scored_by(engine), model, "the engine", 0)
    figures = probe.get_difference_metrics()
    assert 0 < figures["weight_probe/logprob_difference_mean"] < figures["weight_probe/logprob_difference_max"] < 1.0
    with pytest.raises(SamplerError, match=r"differ by [0-9.]+; 1 is allowed \(in the mean by [0-9.]+; 0.3 is allowed\)"):
        probe.check_engine(scored_by(deep(2).to(torch.bfloat16)), model, "the engine", 1)
    probe.reset()
    probe.check_engine(scored_by(engine), model, "the engine", 2)
    assert probe.get_difference_metrics() == figures


def test_the_mean_is_held_to_a_border_of_its_own() -> None:
    model = deep()
    shifted = scored_by(model)
    probe = WeightSyncProbe(TOKENIZER.vocab_size, "bfloat16", precision="bfloat16")
    with pytest.raises(SamplerError, match=r"in the mean by 0\.[45]"):  # no token is off by 1
        probe.check_engine(lambda tokens: [score + 0.45 for score in shifted(tokens)], model, "the engine", 0)


BORDERS = [
    ("float32", None, "cpu", (1e-4, 1e-4), 1e-6),
    ("float32", "float32", "cuda", (1e-3, 1e-2), 1e-6),
    ("bfloat16", "float32", "cpu", (0.3, 1.0), 1e-3),
    ("float32", "bfloat16", "cuda", (0.3, 1.0), 0.05),
    ("float16", "float16", "cuda", (0.04, 0.15), 0.05),
]


@pytest.mark.parametrize("engine, trained, device, allowed, noise", BORDERS)
def test_the_borders_are_those_of_the_lower_precision(
    engine: str, trained: str | None, device: str, allowed: tuple[float, float], noise: float
) -> None:
    model = SimpleNamespace(dtype=torch.float32, device=torch.device(device))
    probe = WeightSyncProbe(50, engine, precision=trained)
    assert probe.get_tolerance(model) == allowed and probe.get_stale_threshold(model) == noise
    assert WeightSyncProbe(50, engine, tolerance=0.7).get_tolerance(model) == (0.7, 0.7)


def test_differences_are_the_mean_and_the_largest() -> None:
    assert compute_logprob_differences([1.0, 2.0], [1.5, 2.0]) == (0.25, 0.5)
    assert all(number != number for number in compute_logprob_differences([1.0, float("nan")], [1.0, 2.0]))


def test_the_device_is_the_accelerator_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert resolve_device() == torch.device("cpu")
    with pytest.raises(ConfigError, match="device is 'cuda:7', which this machine does not have; it has cpu"):
        resolve_device("cuda:7")
    has(monkeypatch, "cuda")
    assert resolve_device() == torch.device("cuda") and resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert resolve_device() == torch.device("cpu")


def saved(folder: Path) -> str:
    fresh().save_pretrained(folder)
    to_transformers_tokenizer(TOKENIZER).save_pretrained(folder)
    return str(folder)


def test_a_model_from_a_folder_is_sampled_from_on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str | None] = []

    def elsewhere(name: str | None) -> torch.device:
        asked.append(name)
        return torch.device("meta")

    monkeypatch.setattr("rlvr.samplers.hf.resolve_device", elsewhere)
    found: list[torch.device] = []
    monkeypatch.setattr(HFSampler, "update_from_model", lambda self, model, version: found.append(model.device))
    samplers = HFSampler(model=saved(tmp_path)), HFSampler(model=str(tmp_path), device="cpu")
    assert not asked  # who only asks it for its rules needs no room for its model
    for sampler in samplers:
        sampler.prepare()
    assert found == 2 * [torch.device("meta")] and asked == [None, "cpu"]
    monkeypatch.undo()
    assert len(HFSampler(model=str(tmp_path), device="cpu").sample(requests(2), SamplingParams(stop_ids=STOPS))) == 2


def test_the_doctor_names_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._check_accelerator().state == "missing"
    has(monkeypatch, "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    assert doctor._check_accelerator().detail == "8 x NVIDIA H200 (cuda)"
    has(monkeypatch, "mps")
    assert doctor._check_accelerator().detail == "8 x mps (mps)"
