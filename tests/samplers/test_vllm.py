"""The vLLM sampler in this process, with a real engine: what it hands back, and that it samples from the trainer's weights."""

from __future__ import annotations

import json
import random
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from rlvr.cli.commands import run_command
from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Environment, Request, RequestQueue, SamplingParams
from rlvr.contracts.sampler import NumberedRequests
from rlvr.errors import ConfigError, SamplerError
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.models.plain_weights import PlainWeights
from rlvr.rollout.replay import replay_rows
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers._vllm_version import check_vllm_version, format_supported_range
from rlvr.samplers.vllm import VLLMSampler
from rlvr.task import Task
from rlvr.training.train import train
from tests.fixtures.boards import Boards
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import DIGITS, TOKENS, Sums, Talk

pytestmark = pytest.mark.vllm

TOKENIZER = CharTokenizer(DIGITS)
STOPS = TOKENIZER.stop_ids
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # heads of 32: the smallest that the engine's CPU kernels take
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def fresh(seed: int = 1, **changes: Any) -> Any:
    made = load_model(ModelConfig(config=MODEL | changes), TOKENIZER, seed=seed)
    with torch.no_grad():  # a fresh model is nearly uniform; sharpen it so that seeds and temperatures matter
        made.lm_head.weight.mul_(10)
    return made


def test_the_trainer_s_process_is_left_as_it_was() -> None:
    """First of all tests here: a process has one engine at a time, and the others share one."""
    model = fresh()
    threads, state, set_threads = torch.get_num_threads(), torch.get_rng_state(), torch.set_num_threads
    with VLLMSampler(kv_cache_gb=0.25) as sampler:
        sampler.update_from_model(model, 0)
    assert torch.get_num_threads() == threads and torch.equal(state, torch.get_rng_state()) and torch.set_num_threads is set_threads
    assert not torch.distributed.is_initialized() and torch.is_grad_enabled()


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all weights", "an adapter"])
def test_a_run_trains_on_it_and_repeats_itself(tmp_path: Path, lora: dict[str, Any] | None) -> None:
    """The trainer agrees with the sampler at each of twenty steps, and a step done again from its checkpoint is the same to the bit."""
    rollout = {"sampler": {"name": "vllm", "kv_cache_gb": 0.25}, "prompts_per_step": 4, "num_generations": 4}
    train_ = {"steps": 20, "learning_rate": 1e-3}
    config = tiny_run(model={"config": MODEL, "lora": lora}, rollout=rollout, train=train_, log={"save_every": 19})
    folder = tmp_path / "run"
    quiet = Console(quiet=True)
    train(config, out=folder, console=quiet)
    steps = list(read_jsonl(folder / "metrics.jsonl"))
    apart = [step["sampling/logp_difference_max"] for step in steps if "sampling/logp_difference_max" in step]
    assert len(steps) == 20 and len(apart) > 15 and max(apart) < 1e-4


def test_a_folder_is_evaluated_and_examined_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh(tie_word_embeddings=True).save_pretrained(tmp_path / "model")  # the engine's CPU build keeps a copy of a tied head
    to_transformers_tokenizer(TOKENIZER).save_pretrained(tmp_path / "model")
    asked = ["eval", "tests/fixtures/worlds.py:Sums", "--tasks", "30", "--temperature", "1", "--json", "--policy"]
    figures = []
    for engine in ("vllm", "hf"):
        assert run_command([*asked, f"{engine}:{tmp_path / 'model'}", "--out", str(tmp_path / engine)]) == 0
        (env,) = json.loads(capsys.readouterr().out.splitlines()[-1])["envs"].values()
        figures.append((env["samples"], env["unscored"], {row["tokens"][0] for row in read_jsonl(tmp_path / engine / "episodes.jsonl")}))
    assert figures[0] == figures[1] and figures[0][:2] == (30, 0)  # both read the prompts alike
    assert (
        run_command(["doctor", "--model", str(tmp_path / "model"), "--sampler", "vllm", "--env", "tests/fixtures/worlds.py:Sums", "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["verdict"].startswith("They agree") and {row["precision"] for row in told["rows"]} == {"float32", "bfloat16"}


def test_a_real_engine_has_the_run_s_precision_and_length() -> None:
    """A model that knows more positions than the cache has room for."""
    model = fresh(max_position_embeddings=1 << 18)
    with VLLMSampler(kv_cache_gb=0.1) as sampler:
        sampler.setup(cast(Any, None), cast(Any, None), precision="bfloat16", max_length=300)
        sampler.update_from_model(model, 0)
        real: Any = sampler._engine
        assert real.max_model_len == 300 and real._llm.llm_engine.model_config.dtype is torch.bfloat16
        assert (
            1e-4
            < sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_mean"]
            < sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"]
            < 0.3
        )
        assert len(sampler.sample(requests(6), SamplingParams(stop_ids=STOPS))) == 6


@pytest.fixture(scope="module")
def model() -> Any:
    return fresh()


@pytest.fixture(scope="module")
def vllm(model: Any) -> Iterator[VLLMSampler]:
    with VLLMSampler(kv_cache_gb=0.25, max_num_seqs=64) as sampler:
        sampler.update_from_model(model, 0)
        yield sampler


def requests(count: int, *, max_tokens: int = 12) -> list[Request]:
    prompts = [TOKENIZER.render([{"role": "user", "content": text}]) for text in ("1+2=", "12+34=", "7=" * 20)]
    return [Request(prompts[i % 3], max_tokens, seed=derive_seed("request", i)) for i in range(count)]


class Ends:
    """Ends a turn with a token that is no stop id."""

    def may_stop(self, token: int) -> bool:
        return token == 7

    def __call__(self, tokens: Sequence[int]) -> bool:
        return tokens[-1] == 7


def test_a_turn_that_no_stop_id_ends_is_a_prefix_of_what_would_have_been_said(vllm: VLLMSampler) -> None:
    whole = requests(40)
    plain, ended = (vllm.sample(asked, SamplingParams()) for asked in (whole, [replace(r, stop_criterion=Ends()) for r in whole]))
    lengths = [full.tokens.index(7) + 1 if 7 in full.tokens else 12 for full in plain]
    assert [cut.tokens for cut in ended] == [full.tokens[:length] for full, length in zip(plain, lengths, strict=True)]
    assert [len(cut.logprobs) for cut in ended] == lengths and min(lengths) < 12
    assert {(cut.tokens[-1] == 7, cut.finish_reason) for cut in ended} <= {(True, "stop"), (False, "length")}


def largest_difference(model: Any, asked: list[Request], found: list[Completion], temperature: float = 1.0) -> float:
    worst = 0.0
    for request, completion in zip(asked, found, strict=True):
        ids = torch.tensor([[*request.prompt, *completion.tokens]])
        with torch.no_grad():
            scores = (model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1].float() / temperature).log_softmax(-1)
        ours = scores.gather(1, ids[0, len(request.prompt) :, None])[:, 0]
        worst = max(worst, float((ours - torch.tensor(completion.logprobs)).abs().max()))
    return worst


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_logprobs_are_those_of_the_trainer_under_the_sampling_distribution(vllm: VLLMSampler, model: Any, temperature: float) -> None:
    asked = requests(40)
    assert largest_difference(model, asked, vllm.sample(asked, SamplingParams(temperature, stop_ids=STOPS)), temperature) < 1e-5


def test_top_p_and_top_k_are_in_the_logprobs(vllm: VLLMSampler, model: Any) -> None:
    request = Request(requests(1)[0].prompt, 1)
    with torch.no_grad():
        probabilities = model(input_ids=torch.tensor([list(request.prompt)])).logits[0, -1].softmax(-1)
    best = probabilities.argsort(descending=True)[:3]
    draws = vllm.sample([Request(request.prompt, 1, seed) for seed in range(60)], SamplingParams(top_k=3, stop_ids=STOPS))
    assert {c.tokens[0] for c in draws} == set(best.tolist())
    for completion in draws:
        wanted = (probabilities[completion.tokens[0]] / probabilities[best].sum()).log()
        assert completion.logprobs[0] == pytest.approx(float(wanted), abs=1e-5)
    one = vllm.sample([request], SamplingParams(top_p=1e-6, stop_ids=STOPS))[0]
    assert one.tokens == [int(best[0])] and one.logprobs == [0.0]


def test_the_same_seed_gives_the_same_tokens_whatever_is_sampled_beside_it(vllm: VLLMSampler) -> None:
    asked = requests(90)  # more than the engine runs at once
    whole = vllm.sample(asked, SamplingParams(stop_ids=STOPS))
    turned = vllm.sample(asked[::-1], SamplingParams(stop_ids=STOPS))[::-1]
    alone = [vllm.sample([request], SamplingParams(stop_ids=STOPS))[0] for request in asked[:8]]
    assert [c.tokens for c in whole] == [c.tokens for c in turned] and [c.tokens for c in whole[:8]] == [c.tokens for c in alone]
    others = [Request(r.prompt, r.max_tokens, r.seed + 1) for r in asked]
    assert [c.tokens for c in vllm.sample(others, SamplingParams(stop_ids=STOPS))] != [c.tokens for c in whole]


def test_the_whole_stop_set_ends_an_answer_and_nothing_else_does(vllm: VLLMSampler) -> None:
    for stops in (STOPS, frozenset({0, 5, 9}), frozenset({7}), frozenset[int]()):
        found = vllm.sample(requests(80, max_tokens=6), SamplingParams(stop_ids=stops))
        ends = Counter(completion.finish_reason for completion in found)
        assert ends["length"] and bool(ends["stop"]) == bool(stops) and not ends["error"]
        for completion in found:
            assert (completion.tokens[-1] in stops) == (completion.finish_reason == "stop")
            assert not stops.intersection(completion.tokens[:-1])
            assert len(completion.tokens) == 6 or completion.finish_reason == "stop"


def test_greedy_is_the_argmax(vllm: VLLMSampler, model: Any) -> None:
    request = requests(1)[0]
    completion = vllm.sample([request], SamplingParams(0.0, stop_ids=STOPS))[0]
    ids = list(request.prompt)
    for token in completion.tokens:
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert set(completion.logprobs) == {0.0}


def test_completions_come_as_they_end_and_an_abandoned_stream_leaves_nothing_running(vllm: VLLMSampler) -> None:
    asked = [Request([2, 5], length, seed=length) for length in (40, 3, 20)]
    assert [index for index, _ in vllm.stream_completions(asked, SamplingParams())] == [1, 2, 0]
    stream = vllm.stream_completions(asked, SamplingParams())
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    engine: Any = vllm._engine
    assert not engine._llm.llm_engine.has_unfinished_requests()


class Later(RequestQueue):
    """A long request, and a short one once the sampler has said `after` times that nothing has ended."""

    def __init__(self, after: int) -> None:
        self.asked, self.calls, self.after = [Request([2, 5], 60, seed=1), Request([2, 6], 3, seed=2)], 0, after

    def pop(self, max_requests: int) -> NumberedRequests | None:
        self.calls += 1
        if self.calls == 1:
            return [(7, self.asked[0])]
        if self.calls <= self.after:
            return []
        return [(8, self.asked[1])] if self.calls == self.after + 1 else None

    def pop_all_if_idle(self) -> NumberedRequests | None:
        raise AssertionError("asked in waves")


def test_a_request_that_comes_later_joins_those_that_run(vllm: VLLMSampler) -> None:
    feed = Later(5)
    found = [given for given in vllm.stream_from_queue(feed, SamplingParams()) if given is not None]
    assert [number for number, _ in found] == [8, 7]
    assert [c.tokens for _, c in found[::-1]] == [c.tokens for c in vllm.sample(feed.asked, SamplingParams())]


def test_conversations_have_the_tokens_of_the_waves_however_long_sessions_take(vllm: VLLMSampler) -> None:
    model = fresh(3)
    with torch.no_grad():
        model.lm_head.weight[[0, 11]] *= 1.5  # a stop id is likely enough for several turns
    vllm.update_from_model(model, 0)
    dice, found = random.Random(0), list[list[Any]]()

    def happens(what: str, task: Task, turn: int) -> None:
        time.sleep(dice.random() * 0.01)

    for sync_turns in (True, False):
        boards = Boards(happens=happens)
        draws = [RolloutRequest(boards.task("train", i), f"g{i}", derive_seed(i)) for i in range(40)]
        with Rollout(TokenMDP(boards, TOKENIZER, max_new_tokens=30), sampler=vllm, sync_turns=sync_turns, max_open_sessions=16) as rollout:
            episodes = rollout.collect(draws, SamplingParams(stop_ids=STOPS))
        found.append([(e.tokens, e.action_mask, e.reward, e.turns) for e in episodes])
        assert all(e.is_scored for e in episodes) and boards.settled and rollout.sync_turns == sync_turns
    assert found[0] == found[1] and {turns for *_, turns in found[0]} >= {1, 2, 3}


def nudged(model: Any, amount: float, seed: int) -> Any:
    """What an update does to the weights, for tests that need no gradient."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * amount)
    return model


def test_sample_train_reload_for_twenty_steps(vllm: VLLMSampler) -> None:
    model, asked = fresh(), requests(12)
    engine: Any = vllm._engine
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    worst, said = 0.0, set()
    for step in range(20):
        vllm.update_from_model(model, step)
        found = vllm.sample(asked, SamplingParams(stop_ids=STOPS))
        worst = max(worst, largest_difference(model, asked, found))
        said.add(tuple(engine.compute_logprobs(range(16))))
        loss = torch.zeros(())
        for request, completion in zip(asked, found, strict=True):
            ids = torch.tensor([[*request.prompt, *completion.tokens]])
            loss = loss + (1.0 if 7 in completion.tokens else -0.2) * model(input_ids=ids, labels=ids).loss / len(asked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert worst < 1e-4
    assert len(said) == 20  # the weights that were sampled from were other ones at every step


@pytest.mark.parametrize("amount", [0.05, 1e-5])
def test_a_skipped_reload_is_caught_at_once(vllm: VLLMSampler, monkeypatch: pytest.MonkeyPatch, amount: float) -> None:
    model = fresh()
    vllm.update_from_model(model, 0)
    engine: Any = vllm._engine
    with monkeypatch.context() as patch:
        patch.setattr(engine._llm, "collective_rpc", lambda *args, **kwargs: None)
        with pytest.raises(SamplerError, match=r"still samples from old weights.*version 1 was sent.*reload had no effect"):
            vllm.update_from_model(nudged(model, amount, 1), 1)
    vllm.update_from_model(model, 1)


def test_other_weights_are_caught_at_once(vllm: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = fresh(), fresh(2)
    engine: Any = vllm._engine
    take = engine.update_weights
    with monkeypatch.context() as patch:
        patch.setattr(engine, "update_weights", lambda _, version: take(PlainWeights(other), version))
        with pytest.raises(SamplerError, match=r"does not sample from the trainer's weights: at version 1 .* differ by [0-9.]+; 0.0001"):
            vllm.update_from_model(model, 1)
    vllm.update_from_model(model, 2)


def test_an_update_that_moves_nothing_is_no_stale_reload(vllm: VLLMSampler, model: Any) -> None:
    for version in range(3):
        vllm.update_from_model(model, version)
    assert vllm._probe is not None and 0 < vllm._probe.max_difference < 1e-5


def test_what_was_cached_under_old_weights_is_forgotten(vllm: VLLMSampler) -> None:
    model, asked = fresh(), [Request([2, *range(4, 14)] * 8, 8, seed=3)]  # a prompt of many cache blocks
    vllm.update_from_model(model, 0)
    vllm.sample(asked * 3, SamplingParams())
    vllm.update_from_model(nudged(model, 0.05, 5), 1)
    assert largest_difference(model, asked, vllm.sample(asked, SamplingParams())) < 1e-5


WORLDS = [
    pytest.param(lambda: Sums(), {"max_new_tokens": 4}, 400, id="one turn"),
    pytest.param(lambda: Sums(), {"max_new_tokens": 1}, 400, id="a stop on the last token"),
    pytest.param(lambda: Talk(), {"max_new_tokens": 9}, 400, id="several turns"),
]


def test_the_range_of_versions_is_stated_once() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["vllm"] == [f"vllm{format_supported_range()}"]


@pytest.mark.parametrize("make, lengths, count", WORLDS)
def test_the_replay_law_holds_on_what_it_samples(vllm: VLLMSampler, make: Any, lengths: dict[str, int], count: int) -> None:
    model = fresh(3)
    with torch.no_grad():  # stop ids and the digit that ends the talk are likely enough to be met often
        model.lm_head.weight[[0, 11]] *= 1.5
    vllm.update_from_model(model, 0)
    environment: Environment = make()
    mdp = TokenMDP(environment, TOKENIZER, **lengths)
    draws = [RolloutRequest(environment.task("train", i), f"g{i}", derive_seed(i), {"split": "train", "index": i}) for i in range(count)]
    with Rollout(mdp, sampler=vllm) as rollout:
        episodes = rollout.collect(draws, SamplingParams(stop_ids=STOPS))
    rows = [
        {
            **e.meta,
            "tokens": e.tokens,
            "action_mask": [int(own) for own in e.action_mask],
            "stop_reason": e.stop_reason.value,
            "reward": e.reward,
        }
        for e in episodes
    ]
    env = TokenEnv(env=make(), tokenizer=TOKENS, obs="ids", **lengths)  # type: ignore[arg-type]
    report = replay_rows(env, rows)
    assert (report.episodes, report.mismatches, report.failed) == (count, 0, 0)
    ends = Counter((e.stop_reason.value, e.tokens[-1] in STOPS) for e in episodes)
    assert ends[("terminated", True)] > 5 and ends[("truncated", False)] > 5
    if lengths["max_new_tokens"] == 1:
        assert all(e.num_policy_tokens == 1 for e in episodes)  # so each of the stops above fell on the cap
    if environment.max_turns > 1:
        assert Counter(e.turns for e in episodes).keys() >= {2, 3}


def test_what_cannot_be_is_refused_in_words(vllm: VLLMSampler) -> None:
    with pytest.raises(ConfigError, match="134 tokens, and the vLLM engine in this process allows 128"):
        vllm.sample([Request([2] * 34, 100)], SamplingParams())
    with pytest.raises(ConfigError, match=r"temperature is 0.001; vLLM samples at 0"):
        vllm.sample(requests(1), SamplingParams(0.001))
    with pytest.raises(SamplerError, match="no model yet"):
        VLLMSampler().sample(requests(1), SamplingParams())
    with pytest.raises(ConfigError, match="placement is 'colocatd'; did you mean 'colocated'"):
        VLLMSampler(placement="colocatd")
    with pytest.raises(ConfigError, match=r"vLLM on this machine is 0.28.2; this sampler supports >=0.29,<0.33"):
        check_vllm_version("0.28.2")
    with pytest.raises(ConfigError, match=r"vLLM on a server is 0.31.2; this sampler supports >=0.32,<0.33"):
        check_vllm_version("0.31.2", "a server", "server")
    check_vllm_version("0.29.0")
    check_vllm_version("0.32.9+cpu", "a server", "server")


def test_an_engine_in_this_process_is_not_asked_while_the_trainer_trains(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"max_staleness is 1, but the sampler 'vllm' cannot.* runs in the training process; use engines beside it"
    ):
        train(tiny_run(rollout={"sampler": {"name": "vllm"}, "max_staleness": 1}), out=tmp_path / "x", console=Console(quiet=True))
    assert not (tmp_path / "x").exists()
