"""What the replies of vLLM servers mean: whether one can be used, and what is wrong where an order was not carried out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlvr.errors import ConfigError, SamplerError
from rlvr.samplers._http import Http, NoReply, Reply
from rlvr.samplers._servers.transfer import BY_NCCL
from rlvr.samplers._vllm_version import check_version

COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out"
ORDERS = ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
ADAPTERS = "/v1/load_lora_adapter"
AGAIN = "Fix it, then continue with `rlvr train ... --resume`; no training progress is lost"


def fault_of(server: Http, path: str, reply: Reply) -> str:
    """What is wrong with the reply to a command; empty if nothing is."""
    if reply.status == 404 and path in ORDERS:
        return f"{server.url} has no {path}, so it cannot load weights; start it as `{COMMAND}`"
    hints = {
        "/collective_rpc": " Check that it serves the model that is trained.",
        "/init_weight_transfer_engine": f" Start it with {BY_NCCL}.",
        "/start_weight_update": " If a run was killed while it sent weights, restart the server.",
        ADAPTERS: " Start it with --enable-lora --max-lora-rank RANK, or send merged weights (enable_lora: false).",
    }
    return "" if reply.status == 200 else f"{server.told(reply)}, for {path}.{hints.get(path, '')} {AGAIN}"


def met(server: Http, start_s: float, choice: Callable[[Http, dict[str, Any]], dict[str, Any]]) -> int:
    """Wait for a server to start and check its version and its log-probabilities; return its longest sequence.

    `choice` asks a server for an answer.
    """
    until = time.monotonic() + start_s
    while True:
        try:
            if server.ask("GET", "/health", until=until).status == 200:
                break
            told = "it runs but is not healthy"
        except NoReply as error:
            told = str(error)
        if time.monotonic() + 0.5 > until:
            raise SamplerError(f"no vLLM server at {server.url} within {start_s:g} s ({told}); start it as `{COMMAND}`")
        time.sleep(0.5)
    try:
        check_version(str(server.ask("GET", "/version", until=until).json()["version"]), server.url, "server")
        length = int(server.ask("GET", "/v1/models", until=until).json()["data"][0]["max_model_len"])
        sure = choice(server, {"token_ids": [0, 0], "sampling_params": {"max_tokens": 1, "top_k": 1, "logprobs": 0, "ignore_eos": True}})
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{server.url} is not a vLLM server: {type(error).__name__}: {error}; start one as `{COMMAND}`") from error
    if abs(sure["logprobs"]["content"][0]["logprob"]) > 1e-6:  # with top_k 1, the only possible token
        raise ConfigError(f"{server.url} reports raw log-probabilities, not the sampling distribution's; start it as `{COMMAND}`")
    return length
