"""Weights sent to servers by vLLM's weight transfer, with gloo in place of NCCL. The servers are stand-ins, the transfer is vLLM's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlvr.contracts import Request, SamplingParams
from rlvr.errors import ConfigError, SamplerError
from rlvr.samplers._servers import weight_transfer as transfer
from rlvr.samplers._servers.server_engine import ServerEngine
from rlvr.samplers.vllm import VLLMSampler
from tests.fixtures.endpoint import endpoint
from tests.samplers.test_vllm import fresh, nudged
from tests.samplers.test_vllm_server import Stand, served

pytestmark = pytest.mark.vllm
SENT = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")


class Member(Stand):
    """A server with one worker that takes part in the group; `trouble` by path, where "hangs" is an order that never ends."""

    def __init__(self, **trouble: Any) -> None:
        super().__init__()
        self.troubles, self.orders, self.over = trouble, list[str](), threading.Event()
        self.group: Any = None

    def __call__(self, path: str, body: Any, before: int) -> Any:
        from tests.samplers.gloo_transfer import Group

        if path == "/get_world_size":
            return 200, {"world_size": 1}
        if path in (*SENT, "/shutdown_weight_transfer_engine"):
            self.orders.append(path)
        match self.troubles.get(path.strip("/")):
            case "hangs":
                self.over.wait(60)
                return 500, {}
            case (status, told):
                return status, told
        if path == "/init_weight_transfer_engine":
            info = body["init_info"]
            self.group = Group(info["master_address"], info["master_port"], info["rank_offset"], info["world_size"])
        elif path == "/update_weights":
            told = body["update_info"]
            weights = {}
            for name, kind, shape in zip(told["names"], told["dtype_names"], told["shapes"], strict=True):
                weights[name] = torch.empty(shape, dtype=getattr(torch, kind))
                self.group.broadcast(weights[name])
            self.received = weights
            self.model = fresh(3)
            self.model.load_state_dict(weights, strict=False)
            self.model.tie_weights()
        elif path not in SENT:
            return super().__call__(path, body, before)
        return 200, {}


@pytest.fixture(autouse=True)
def gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.samplers import gloo_transfer

    monkeypatch.setitem(transfer.TRANSFER_BACKENDS, "gloo", gloo_transfer.gloo)


@pytest.fixture
def sent(request: pytest.FixtureRequest) -> Iterator[tuple[list[Member], VLLMSampler]]:
    trouble = getattr(request, "param", {})
    members, deadline_s = [Member(), Member(**trouble)], 3.0 if "hangs" in trouble.values() else 60.0
    with (
        endpoint(members[0]) as one,
        endpoint(members[1]) as two,
        served(one.url, two.url, transfer="gloo", completion_timeout_s=deadline_s) as sampler,
    ):
        try:
            yield members, sampler
        finally:
            for member in members:
                member.over.set()


def test_every_server_gets_the_weights_without_a_file(sent: tuple[list[Member], VLLMSampler]) -> None:
    members, sampler = sent
    for version in range(3):
        model = nudged(fresh(), 0.03, version)
        sampler.update_from_model(model, version)  # the probe compares both servers' log-probabilities with the trainer's
        for member in members:
            assert {name: t.shape for name, t in member.received.items()} == {n: t.shape for n, t in model.named_parameters()}
            assert all(torch.equal(t, dict(model.named_parameters())[n]) for n, t in member.received.items())
    assert len(sampler.sample([Request([2, 5], 8, seed) for seed in range(8)], SamplingParams())) == 8
    engine = sampler._engine
    assert isinstance(engine, ServerEngine) and [path.name for path in engine._folder.iterdir()] == ["owner"]
    rounds = [path for path in members[1].orders if path in SENT]
    assert rounds == [SENT[0], *(3 * SENT[1:])]
    sampler.close()
    assert members[1].orders[-1] == "/shutdown_weight_transfer_engine"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"init_weight_transfer_engine": (500, {"error": "Weight transfer not configured"})}, "not configured.*--weight-transfer-config"),
        ({"start_weight_update": (500, {"error": "already active"})}, "already active.*restart the server"),
        ({"update_weights": (500, {"error": "shape mismatch"})}, "shape mismatch.*/update_weights"),
        ({"update_weights": "hangs"}, r"completion_timeout_s \(3 s\)|/update_weights"),
        ({"init_weight_transfer_engine": "hangs"}, r"completion_timeout_s \(3 s\)|/init_weight"),
    ],
    indirect=["sent"],
)
def test_a_server_that_does_not_take_part_ends_the_step_with_words(sent: tuple[list[Member], VLLMSampler], words: str) -> None:
    _, sampler = sent
    with pytest.raises(SamplerError, match=words):
        sampler.update_from_model(fresh(), 0)


def test_what_cannot_work_is_said_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="transfer is 'ncl'; did you mean 'nccl'"):
        served("http://localhost:1", transfer="ncl")
    with pytest.raises(ConfigError, match="weights_folder '/x'; it sends weights to servers"):
        served("http://localhost:1", transfer="nccl", weights_folder="/x")
    with pytest.raises(ConfigError, match="placement 'colocated'"):
        VLLMSampler(transfer="nccl")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA GPU; set transfer: files"):
            transfer.make_nccl_settings("127.0.0.1", 1, 2, 0)
