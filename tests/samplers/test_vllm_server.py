"""The vllm sampler with servers: a stand-in that speaks the engine's words and can be told to fail, and the real one."""

from __future__ import annotations

import copy
import importlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlvr.config.config import LoraConfig, ModelConfig
from rlvr.contracts import Completion, Request, SamplingParams
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.models.model_loading import load_model
from rlvr.models.plain_weights import compute_model_logprobs
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers._http import HttpClient
from rlvr.samplers._local.process_group import kill_process_group
from rlvr.samplers._servers import weight_transfer as transfer
from rlvr.samplers.hf import HFSampler
from rlvr.samplers.vllm import VLLMSampler
from rlvr.training.train import train
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.policy_weights import AdaptedModelWeights
from tests.fixtures.boards import Boards
from tests.fixtures.endpoint import closed_port, endpoint, hang_up, silent
from tests.fixtures.tiny import tiny_run
from tests.samplers.test_vllm import MODEL, STOPS, TOKENIZER, fresh, largest_difference, nudged, requests

GENERATE = "/inference/v1/generate"


class Stand:
    """A vLLM server as the sampler sees it: it loads what it is told to, scores, samples, and says under which name."""

    def __init__(self) -> None:
        self.model: Any = fresh(9)  # what it was started with
        self.name = "default"
        self.trouble: dict[str, Any] = {}
        """Path to what it does instead of its work."""
        self.after = 0
        """How many completions it gives before that."""
        self.keeps_its_weights = False
        self.adapters: dict[str, Any] | None = None
        """The models with an adapter that it has, by the adapter's name; None: it cannot load adapters."""
        self.given = 0
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.long_body: dict[str, Any] = {}
        self.lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any], before: int) -> Any:
        self.bodies.append((path, body))
        if path in self.trouble and self.given >= self.after:
            return self.trouble[path]
        plain = {"/health": {}, "/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"max_model_len": 128}]}}
        if path in plain:
            return 200, plain[path]
        if path == "/collective_rpc":
            if not self.keeps_its_weights:
                self.model = load_model(ModelConfig(path=body["kwargs"]["weights_path"]))
            return 200, {"results": [None]}
        if path == "/update_weight_version":
            self.name = body["new_version"]
        if path == "/weight_info":
            return 200, {"weight_version": self.name}
        if path.endswith("_lora_adapter"):
            return self.adapted(path, body)
        if body.get("model", "") not in {"", *(self.adapters or ())}:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist"}}
        return (200, self.generated(body)) if path == GENERATE else (200, {"success": True})

    def adapted(self, path: str, body: dict[str, Any]) -> Any:
        if self.adapters is None:
            return 404, {"detail": "Not Found"}
        if "lora_name" not in body:
            return 400, {"error": {"message": "lora_name: Field required"}}
        if path.startswith("/v1/unload"):
            return (200, {}) if self.adapters.pop(body["lora_name"], None) else (404, {"error": {"message": "cannot be found"}})
        if body["lora_name"] in self.adapters:
            return 400, {"error": {"message": "has already been loaded"}}
        made = importlib.import_module("peft").PeftModel.from_pretrained(copy.deepcopy(self.model), body["lora_path"])
        self.adapters[body["lora_name"]] = made.merge_and_unload()
        return 200, {}

    def generated(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, params = body["token_ids"], body["sampling_params"]
        model = self.adapters[body["model"]] if self.adapters is not None and body.get("model") else self.model
        with self.lock:
            if "prompt_logprobs" in params:
                scores = compute_model_logprobs(model, ids)
                return {"prompt_logprobs": [None, *({str(i): {"logprob": s}} for i, s in zip(ids[1:], scores, strict=True))]}
            self.given += "seed" in params
            sampler = HFSampler()
            sampler.update_from_model(model, 0)
            sampling = SamplingParams(
                params.get("temperature", 1.0), 1.0, params.get("top_k", 0), frozenset(params.get("stop_token_ids", ()))
            )
            said = sampler.sample([Request(ids, params["max_tokens"], params.get("seed", 0))], sampling)[0]
        spans = [{"version": self.name, "start": 0, "end": len(said.tokens)}]
        content = [{"token_id": token, "logprob": score} for token, score in zip(said.tokens, said.logprobs, strict=True)]
        choice = {"token_ids": said.tokens, "logprobs": {"content": content}, "finish_reason": said.finish_reason, "weight_versions": spans}
        return {"choices": [choice]}


def served(*urls: str, **settings: Any) -> VLLMSampler:
    given: dict[str, Any] = {"start_timeout_s": 20.0, "heartbeat_timeout_s": 2.0, "completion_timeout_s": 30.0} | settings
    return VLLMSampler(placement="server", urls=list(urls), **given)


@pytest.fixture
def stand() -> Iterator[tuple[Stand, str]]:
    script = Stand()
    with endpoint(script) as seen:
        yield script, seen.url


def test_weights_go_over_and_completions_come_back(stand: tuple[Stand, str]) -> None:
    script, url = stand
    model, asked = fresh(), requests(12)
    with served(url) as sampler:
        for version in range(3):
            sampler.update_from_model(nudged(model, 0.05, version), version)
            found = sampler.sample(asked, SamplingParams(stop_ids=STOPS))
            assert largest_difference(model, asked, found) < 1e-4 and script.name.endswith(f"-{version}")
        engine: Any = sampler._engine
        home = engine._folder
        assert len([path for path in home.iterdir() if path.is_dir()]) == 1  # of the weights that were sent only the newest are kept
    assert not home.exists()


def test_weights_that_a_killed_run_left_are_swept(stand: tuple[Stand, str], tmp_path: Path) -> None:
    script = "import sys; from rlvr.runs.folder_owner import create_owned_folder; print(create_owned_folder('rlvr-weights-', sys.argv[1]), flush=True); input()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        (left / "weights").mkdir()
        with served(stand[1], weights_folder=str(tmp_path)) as sampler:
            sampler.update_from_model(fresh(), 0)
            assert len(list(tmp_path.iterdir())) == 2  # its owner still lives
        process.kill()
        process.wait(30)
    with served(stand[1], weights_folder=str(tmp_path)) as sampler:
        sampler.update_from_model(fresh(), 0)
        assert not left.exists() and len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(ConfigError, match=r"weights_folder .*No such file"),
        served(stand[1], weights_folder=str(tmp_path / "no")) as sampler,
    ):
        sampler.update_from_model(fresh(), 0)


def test_a_group_goes_to_one_server_and_all_servers_get_work() -> None:
    with endpoint(Stand()) as one, endpoint(Stand()) as two, served(one.url, two.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        before = [len(one.asked), len(two.asked)]
        prompts = [TOKENIZER.render([{"role": "user", "content": str(i)}]) for i in range(12)]
        sampler.sample([Request(prompt, 2, seed) for prompt in prompts for seed in range(3)], SamplingParams())
        # among the completions the heartbeat asks too, where they take their time
        asked = [[body for path, body in seen.asked[n:] if path == GENERATE] for seen, n in zip((one, two), before, strict=True)]
        groups = [{tuple(body["token_ids"]) for body in bodies} for bodies in asked]
    assert groups[0] and groups[1] and not groups[0] & groups[1]


class Slow(Stand):
    """Answers after a pause."""

    def generated(self, body: dict[str, Any]) -> Any:
        time.sleep(0.3)
        return super().generated(body)


@pytest.mark.slow
def test_a_slow_server_gets_fewer_requests() -> None:
    """By a hash of their prompts, both would get the same number, and one would wait for the other."""
    with endpoint(Slow()) as one, endpoint(Stand()) as two, served(one.url, two.url, concurrency=2) as sampler:
        sampler.update_from_model(fresh(), 0)
        before = [len(seen.asked) for seen in (one, two)]
        prompts = [TOKENIZER.render([{"role": "user", "content": str(i)}]) for i in range(40)]
        found = sampler.sample([Request(prompt, 2, 0) for prompt in prompts], SamplingParams(stop_ids=STOPS))
        slow, fast = (sum(path == GENERATE for path, _ in seen.asked[n:]) for seen, n in zip((one, two), before, strict=True))
    assert len(found) == 40 and 0 < slow < fast  # on a busy machine the fast one is slow too


def moved(adapted: Any, seed: int) -> Any:
    """What an update does to an adapter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in (p for p in adapted.parameters() if p.requires_grad):
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return adapted


def asked_of(seen: Any) -> list[str]:
    """The orders that a server has been given, by path."""
    return [path for path, _ in seen.asked if path.endswith(("collective_rpc", "_lora_adapter"))]


@pytest.mark.slow
def test_a_server_that_takes_adapters_gets_the_frozen_weights_once() -> None:
    script = Stand()
    script.adapters = {}
    adapted, asked = adapter.add_adapter(fresh(), LoraConfig(rank=4)), requests(12)
    weights = AdaptedModelWeights(adapted)
    with endpoint(script) as seen, served(seen.url) as sampler:
        for version in range(3):
            moved(adapted, version)
            sampler.update_weights(weights, version)
            assert largest_difference(adapted, asked, sampler.sample(asked, SamplingParams(stop_ids=STOPS))) < 1e-4
            engine: Any = sampler._engine
            assert list(script.adapters) == [script.name] and [path.name for path in engine._folder.iterdir() if path.is_dir()] == [
                script.name
            ]
        sampler.update_weights(weights, 2)  # the same version once more
        assert asked_of(seen).count("/collective_rpc") == 1 and weights._merged_model is None  # never merged
        script.model, script.name, script.adapters = fresh(9), "default", {}  # restarted between two steps
        sampler.update_weights(weights, 3)
        assert asked_of(seen).count("/collective_rpc") == 2
        assert largest_difference(adapted, asked, sampler.sample(asked, SamplingParams(stop_ids=STOPS))) < 1e-4
        script.name, script.adapters = "default", {}  # and while it samples
        with pytest.raises(
            SamplerError, match=r"returned 404: The model `\w+-3` does not exist; it was restarted, or another client.*--resume"
        ):
            sampler.sample(asked, SamplingParams())
        moved(adapted, 4)
        sampler.update_from_model(weights.gather_model(), 4)  # merged weights after an adapter
        assert largest_difference(adapted, asked, sampler.sample(asked, SamplingParams(stop_ids=STOPS))) < 1e-4 and script.name.endswith(
            "-4"
        )


@pytest.mark.parametrize("enable_lora, takes", [(True, False), (False, True)], ids=["a server cannot", "not wanted"])
def test_merged_weights_are_sent_where_an_adapter_cannot_be(enable_lora: bool, takes: bool) -> None:
    able, other = Stand(), Stand()
    able.adapters, other.adapters = {}, {} if takes else None
    adapted = moved(adapter.add_adapter(fresh(), LoraConfig(rank=4)), 1)
    with endpoint(able) as one, endpoint(other) as two, served(one.url, two.url, enable_lora=enable_lora) as sampler:
        for version in range(2):
            sampler.update_weights(AdaptedModelWeights(adapted), version)
        assert sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"] < 1e-4 and not able.adapters
        assert asked_of(one).count("/collective_rpc") == asked_of(two).count("/collective_rpc") == 2


def test_an_adapter_that_a_server_cannot_apply_is_said_with_what_to_do() -> None:
    script = Stand()
    script.adapters = {}
    with endpoint(script) as seen, served(seen.url) as sampler:
        adapted = adapter.add_adapter(fresh(), LoraConfig(rank=4))
        sampler.update_weights(AdaptedModelWeights(adapted), 0)
        script.adapted = lambda path, body: (500, {"error": {"message": "LoRA rank 4 is greater than max_lora_rank 2"}})  # type: ignore[method-assign]
        with pytest.raises(
            SamplerError, match=r"max_lora_rank 2, for /v1/load_lora_adapter. Start it with --enable-lora --max-lora-rank RANK, or"
        ):
            sampler.update_weights(AdaptedModelWeights(moved(adapted, 1)), 1)


def test_an_adapter_that_a_server_did_not_load_is_found_by_the_probe() -> None:
    script = Stand()
    script.adapters = {}
    with endpoint(script) as seen, served(seen.url) as sampler:
        adapted = moved(adapter.add_adapter(fresh(), LoraConfig(rank=4)), 0)
        sampler.update_weights(AdaptedModelWeights(adapted), 0)
        [old] = script.adapters.values()
        script.adapted = lambda path, body: (200, script.adapters.update({body["lora_name"]: old}) or {})  # type: ignore
        with pytest.raises(SamplerError, match="still samples from old weights"):
            sampler.update_weights(AdaptedModelWeights(moved(adapted, 1)), 1)


class Gated(Stand):
    """Gives the first completion of the first conversation only once it may, and counts how many it is asked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.now, self.most = threading.Event(), 0, 0

    def generated(self, body: dict[str, Any]) -> dict[str, Any]:
        seed = body["sampling_params"].get("seed")
        with self.lock:
            self.now += seed is not None
            self.most = max(self.most, self.now)
        try:
            assert seed != derive_seed(derive_seed(0), 0) or self.gate.wait(30)
            time.sleep(0.005)
            return super().generated(body)
        finally:
            with self.lock:
                self.now -= seed is not None


def test_a_server_gets_another_request_as_soon_as_one_ends() -> None:
    script, boards = Gated(), Boards()
    draws = [RolloutRequest(boards.task("train", i), f"g{i}", derive_seed(i)) for i in range(16)]
    with endpoint(script) as seen, served(seen.url, concurrency=3) as sampler:
        sampler.update_from_model(fresh(), 0)
        with Rollout(TokenMDP(boards, TOKENIZER), sampler=sampler, sync_turns=False) as rollout:
            order = list[int]()
            for number, episode in rollout.stream_episodes(draws, SamplingParams(stop_ids=STOPS)):
                assert episode.is_scored, episode.error
                order.append(number)
                if len(order) == 15:
                    script.gate.set()  # in waves nobody would have come to a second turn
    assert order[-1] == 0 and script.most == 3 and boards.settled
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vllm")]


FAULTS = [
    pytest.param(
        {GENERATE: hang_up, "/health": hang_up}, r"http://127\S+ closed the connection.*with \d+ answers in progress", id="killed mid-step"
    ),
    pytest.param(
        {GENERATE: silent, "/health": silent},
        r"did not respond in time: its health check failed, with \d+ answers",
        id="stops answering",
    ),
    pytest.param({GENERATE: silent, "/health": (503, {})}, r"returned 503: \{\}: its engine is dead, with \d+ answers", id="dead engine"),
    pytest.param({GENERATE: (500, {"error": {"message": "CUDA error"}})}, "returned 500: CUDA error", id="an error"),
    pytest.param({GENERATE: (200, b"<html>")}, "that is not a completion with token ids", id="garbage"),
]


@pytest.mark.slow
@pytest.mark.parametrize("trouble, words", FAULTS)
def test_a_server_that_fails_in_the_middle_stops_the_step_in_time(stand: tuple[Stand, str], trouble: dict[str, Any], words: str) -> None:
    script, url = stand
    with served(url, concurrency=4) as sampler:
        sampler.update_from_model(fresh(), 0)
        script.given, script.after, script.trouble = 0, 8, trouble
        began = time.monotonic()
        with pytest.raises(SamplerError, match=words):
            sampler.sample(requests(24), SamplingParams(stop_ids=STOPS))
        assert time.monotonic() - began < 20  # below the 30 s of a single answer's deadline: the heartbeat found it


ORDERS = [
    pytest.param({"/collective_rpc": silent, "/health": silent}, "did not respond in time: its health check failed", id="a reload"),
    pytest.param({"/collective_rpc": silent, "/health": (503, {})}, r"returned 503: \{\}: its engine is dead", id="a fatal reload"),
    pytest.param({GENERATE: silent, "/health": silent}, "did not respond in time: its health check failed", id="the probe"),
]


@pytest.mark.parametrize("trouble, words", ORDERS)
def test_a_server_that_fails_while_it_carries_out_an_order_is_found_by_its_pulse(
    stand: tuple[Stand, str], trouble: dict[str, Any], words: str
) -> None:
    script, url = stand
    with served(url, heartbeat_timeout_s=0.5) as sampler:
        sampler.update_from_model(fresh(), 0)
        script.trouble = trouble
        began = time.monotonic()
        with pytest.raises(SamplerError, match=f"{url} {words}, during {next(iter(trouble))}"):
            sampler.update_from_model(fresh(), 1)
        assert time.monotonic() - began < 20  # below the 30 s that an order may take: the heartbeat found it


def test_an_order_that_takes_its_time_is_waited_for_while_the_heart_beats(stand: tuple[Stand, str]) -> None:
    script, url = stand
    model = fresh()

    def slow(handler: Any) -> None:
        time.sleep(1.0)
        del script.trouble["/collective_rpc"]
        handler.say(200, {"results": [None]})

    with served(url, heartbeat_timeout_s=0.1) as sampler:
        script.keeps_its_weights, script.model, script.trouble = True, model, {"/collective_rpc": slow}
        sampler.update_from_model(model, 0)
        assert script.name.endswith("-0")


@pytest.mark.slow
def test_the_last_deadline_holds_where_the_heart_still_beats(stand: tuple[Stand, str]) -> None:
    script, url = stand
    with served(url, completion_timeout_s=5.0) as sampler:
        sampler.update_from_model(fresh(), 0)
        script.trouble = {GENERATE: silent}
        with pytest.raises(SamplerError, match=r"generated no token within 5 s \(completion_timeout_s\), with 3 answers in progress"):
            sampler.sample(requests(3), SamplingParams())


@pytest.mark.slow
@pytest.mark.parametrize("generates", [True, False])
def test_the_timeout_of_completions_counts_from_the_last_token_of_the_server(stand: tuple[Stand, str], generates: bool) -> None:
    """A completion that takes three timeouts arrives if the server's count of tokens grows meanwhile, and not otherwise."""
    script, url = stand
    count = iter(range(10**6))

    def take_long(handler: Any) -> None:
        time.sleep(4.5)
        script.trouble.pop(GENERATE, None)
        with suppress(OSError):
            handler.say(200, script.generated(script.long_body))

    def count_tokens(handler: Any) -> None:
        tokens = next(count) if generates else 7
        text = f'# HELP vllm:generation_tokens_total T\nvllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}.0\n'
        handler.say(200, text.encode())

    asked = requests(1)
    with served(url, completion_timeout_s=1.5, heartbeat_timeout_s=0.3) as sampler:
        sampler.update_from_model(fresh(), 0)
        expected = sampler.sample(asked, SamplingParams(stop_ids=STOPS))
        script.long_body = next(body for path, body in reversed(script.bodies) if path == GENERATE)
        script.trouble = {GENERATE: take_long, "/metrics": count_tokens}
        if generates:
            assert sampler.sample(asked, SamplingParams(stop_ids=STOPS)) == expected
        else:
            with pytest.raises(SamplerError, match=r"no token within 1.5 s"):
                sampler.sample(asked, SamplingParams(stop_ids=STOPS))


def test_a_server_with_other_weights_is_found(stand: tuple[Stand, str]) -> None:
    script, url = stand
    model = fresh()
    with served(url) as sampler:
        script.keeps_its_weights = True
        with pytest.raises(SamplerError, match=re.escape(url) + ".* does not sample from the trainer's weights: at version 0"):
            sampler.update_from_model(model, 0)
        script.keeps_its_weights = False
        sampler.update_from_model(model, 1)
        script.keeps_its_weights = True
        with pytest.raises(SamplerError, match="still samples from old weights"):
            sampler.update_from_model(nudged(model, 1e-4, 2), 2)
        script.keeps_its_weights = False
        sampler.update_from_model(model, 3)
        script.model, script.name = fresh(9), "default"  # restarted behind our back
        with pytest.raises(SamplerError, match=r"sampled with the weights default, but .*-3 were sent"):
            sampler.sample(requests(4), SamplingParams())


def test_a_reload_that_only_the_second_server_skipped_is_found() -> None:
    lazy, model = Stand(), fresh()
    with endpoint(Stand()) as one, endpoint(lazy) as two, served(one.url, two.url) as sampler:
        sampler.update_from_model(model, 0)
        lazy.keeps_its_weights = True
        with pytest.raises(SamplerError, match=re.escape(two.url) + " still samples from old weights"):
            sampler.update_from_model(nudged(model, 1e-3, 1), 1)


def test_a_thread_that_asks_only_after_the_others_were_broken_off_is_broken_off_too(
    stand: tuple[Stand, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, url = stand
    ask = HttpClient.request

    def hesitates(self: HttpClient, method: str, path: str, body: Any = None, *, deadline: float) -> Any:
        if path == GENERATE and body["sampling_params"].get("seed") == 1:
            time.sleep(0.5)
        return ask(self, method, path, body, deadline=deadline)

    monkeypatch.setattr(HttpClient, "request", hesitates)
    with served(url, heartbeat_timeout_s=0.2) as sampler:
        sampler.update_from_model(fresh(), 0)
        script.trouble = {GENERATE: silent}
        stream = sampler.stream_completions([Request([2, 5], 4, seed) for seed in range(2)], SamplingParams())
        monkeypatch.setattr(sampler._engine, "_check_health", lambda pending_description: stream_ends())
        began = time.monotonic()
        with pytest.raises(SamplerError, match="no pulse"):
            next(stream)
        assert time.monotonic() - began < 15  # not the 30 s of an answer's own deadline


def stream_ends() -> None:
    raise SamplerError("no pulse")


STARTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"/version": (200, {"version": "0.31.0"})}, ConfigError, r"vLLM on http://\S+ is 0.31.0; this sampler supports"),
    ({"/version": (404, b"nginx")}, ConfigError, r"http://\S+ is not a vLLM server"),
    ({"/health": (503, {})}, SamplerError, r"no vLLM server at http://\S+ within 1 s \(it runs but is not healthy\)"),
    (
        {"/collective_rpc": (404, {})},
        SamplerError,
        "has no /collective_rpc, so it cannot load weights; start it as `VLLM_SERVER_DEV_MODE=1",
    ),
    (
        {"/collective_rpc": (500, {"error": "shape mismatch"})},
        SamplerError,
        "shape mismatch.*Check that it serves the model that is trained",
    ),
    ({"/reset_prefix_cache": (200, {"success": False})}, SamplerError, "did not reset its prefix cache for version 0"),
    ({GENERATE: (403, {"detail": "disabled"})}, RlvrError, "returned 403: disabled.*--enable-scale-out"),
]


@pytest.mark.parametrize("trouble, error, words", STARTS, ids=[f"{next(iter(trouble))} {i}" for i, (trouble, _, _) in enumerate(STARTS)])
def test_what_cannot_work_is_said_at_once(stand: tuple[Stand, str], trouble: dict[str, Any], error: type[Exception], words: str) -> None:
    script, url = stand
    script.trouble = trouble
    with served(url, start_timeout_s=1.0) as sampler, pytest.raises(error, match=words):
        sampler.update_from_model(fresh(), 0)


def test_a_closed_port_is_said_within_its_deadline() -> None:
    began = time.monotonic()
    with served(closed_port(), start_timeout_s=1.0) as sampler, pytest.raises(SamplerError, match=r"within 1 s \(nothing listens at"):
        sampler.update_from_model(fresh(), 0)
    assert time.monotonic() - began < 20
    with pytest.raises(ConfigError, match=r"placement is 'server' and urls is None"):
        VLLMSampler(placement="server")


def run_of(url: str, steps: int = 3, **ahead: int) -> Any:
    sampler = {"name": "vllm", "placement": "server", "urls": [url], "concurrency": 1, "heartbeat_timeout_s": 2.0}
    rollout = {"sampler": sampler, "prompts_per_step": 2, "num_generations": 4, **ahead}
    return tiny_run(
        model={"config": MODEL}, rollout=rollout, train={"steps": steps, "learning_rate": 1e-3}, eval={"tasks": 4}, sft_warmup=None
    )


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("trouble", [hang_up, silent])
def test_a_run_that_lost_its_server_goes_on_to_the_bit(stand: tuple[Stand, str], tmp_path: Path, trouble: Any, ahead: int) -> None:
    script, url = stand
    config, quiet = run_of(url, max_staleness=ahead), Console(quiet=True)
    train(config, out=tmp_path / "whole", console=quiet)
    # four for the accuracy before, then in the middle of the second batch: beside the first update, where it is sampled ahead
    script.given, script.after, script.trouble = 0, 8 + 4 + 3, {GENERATE: trouble, "/health": trouble}
    began = time.monotonic()
    with pytest.raises(SamplerError, match=r"with \d+ answers in progress.*--resume"):
        train(config, out=tmp_path / "torn", console=quiet)
    assert time.monotonic() - began < 60  # an answer's own deadline is ten minutes: the heartbeat found it
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("ahead", "vllm"))]
    script.trouble, script.model, script.name = {}, fresh(9), "default"  # started anew
    train(config, out=tmp_path / "torn", resume=True, console=quiet)
    whole, torn = ([*read_jsonl(tmp_path / name / "metrics.jsonl")] for name in ("whole", "torn"))
    assert len(whole) == 3 and whole == torn


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A real server with other weights than any test trains; the last test kills it."""
    folder, url = tmp_path_factory.mktemp("served"), closed_port()
    fresh(9).save_pretrained(folder)
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    settings |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", url.rpartition(":")[2]]
    command += ["--host", "127.0.0.1", "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager", "--enable-scale-out"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-num-seqs", "32", "--served-model-name", "tiny"]
    command += ["--enable-lora", "--max-lora-rank", "8", "--weight-transfer-config", '{"backend": "gloo"}']
    command += ["--worker-extension-cls", "tests.samplers.gloo_transfer.Gloo"]
    settings |= {"PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True)
        try:
            yield server, url
        finally:
            kill_process_group(server.pid, timeout_s=20.0)
            server.wait(30)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_server_samples_one_step_ahead(real: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    """The probe holds each version against the trainer's, and each completion says of which version its tokens are."""
    _, url = real
    sampler = {"name": "vllm", "placement": "server", "urls": [url], "start_timeout_s": 500.0, "completion_timeout_s": 120.0}
    rollout = {"sampler": sampler, "prompts_per_step": 4, "num_generations": 4, "max_staleness": 1}
    config = tiny_run(
        model={"config": MODEL}, rollout=rollout, train={"steps": 4, "learning_rate": 1e-3}, eval={"tasks": 4}, log={"save_every": 2}
    )
    train(config, out=tmp_path / "x", console=Console(quiet=True))
    episodes, metrics = (list(read_jsonl(tmp_path / "x" / name)) for name in ("episodes.jsonl", "metrics.jsonl"))
    assert [{e["policy_version"] for e in episodes if e["step"] == k} for k in range(1, 5)] == [{0}, {0}, {1}, {2}]
    assert [row["staleness/mean"] for row in metrics] == [0.0, 1.0, 1.0, 1.0] and len(episodes) == 4 * 16
    checkpoints = [load_model(ModelConfig(path=str(tmp_path / "x" / "checkpoints" / f"step-00000{k}"))) for k in (2, 4)]
    apart = [0.0, 0.0]
    for e in (e for e in episodes if e["step"] == 4):
        for k, scores in enumerate(compute_model_logprobs(model, e["tokens"]) for model in checkpoints):
            apart[k] = max([apart[k], *(abs(scores[i - 1] - e["logprobs"][i]) for i, acted in enumerate(e["action_mask"]) if acted)])
    assert apart[0] < 1e-4 < apart[1]  # sampled by version 2, beside the update that made version 3 of it


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_server_applies_adapters(real: tuple[subprocess.Popen[bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen weights go once; each adapter alone gives the tokens that the merged weights give."""
    adapted, asked, orders = adapter.add_adapter(fresh(), LoraConfig(rank=4)), requests(24), list[str]()
    ask = HttpClient.request

    def noted(self: HttpClient, method: str, path: str, body: Any = None, *, deadline: float) -> Any:
        orders.append(path)
        return ask(self, method, path, body, deadline=deadline)

    monkeypatch.setattr(HttpClient, "request", noted)
    weights = AdaptedModelWeights(adapted)
    with served(real[1], start_timeout_s=500.0, completion_timeout_s=120.0) as sampler:
        for version in range(4):
            moved(adapted, version)
            sampler.update_weights(weights, version)
            found = sampler.sample(asked, SamplingParams(stop_ids=STOPS))
            assert (
                largest_difference(adapted, asked, found) < 1e-4
                and sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"] < 1e-4
            )
        assert orders.count("/collective_rpc") == 1 and weights._merged_model is None
        sampler.update_from_model(weights.gather_model(), 4)
        assert [c.tokens for c in sampler.sample(asked, SamplingParams(stop_ids=STOPS))] == [c.tokens for c in found]


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_server_receives_weights_without_files(real: tuple[subprocess.Popen[bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transfer.TRANSFER_BACKENDS, "gloo", importlib.import_module("tests.samplers.gloo_transfer").gloo)
    model, asked = fresh(), requests(24)
    for run in range(2):  # the second one finds the group that the first one left
        with served(real[1], start_timeout_s=500.0, completion_timeout_s=120.0, transfer="gloo") as sampler:
            for version in range(2):
                sampler.update_from_model(nudged(model, 0.03, 2 * run + version), version)
                assert largest_difference(model, asked, sampler.sample(asked, SamplingParams(stop_ids=STOPS))) < 1e-4


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_server_samples_from_the_trainer_s_weights_and_its_faults_are_told(real: tuple[subprocess.Popen[bytes], str]) -> None:
    server, url = real
    model, asked, found = fresh(), requests(40), list[Completion]()
    with served(url, start_timeout_s=500.0, heartbeat_timeout_s=10.0, completion_timeout_s=120.0) as sampler:
        for version in range(4):
            sampler.update_from_model(nudged(model, 0.03, version), version)
            for temperature in (0.7, 1.0):
                found = sampler.sample(asked, SamplingParams(temperature, stop_ids=STOPS))
                assert largest_difference(model, asked, found, temperature) < 1e-4
        assert {completion.finish_reason for completion in found} == {"stop", "length"}
        assert [c.tokens for c in sampler.sample(asked[::-1], SamplingParams(stop_ids=STOPS))][::-1] == [c.tokens for c in found]
        # the first answer is the only short one: the others are in progress when the server dies
        stream = sampler.stream_completions([Request([2, 5], 100 if seed else 1, seed) for seed in range(64)], SamplingParams())
        next(stream)
        kill_process_group(server.pid, timeout_s=20.0)
        with pytest.raises(SamplerError, match=re.escape(url) + r".*with \d+ answers in progress.*--resume"):
            list(stream)
