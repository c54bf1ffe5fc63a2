"""Parse and check the replies of vLLM servers, and describe failed commands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlvr.contracts import Completion, Sampling
from rlvr.episode import ABOVE_ZERO
from rlvr.errors import ConfigError, SamplerError
from rlvr.samplers._dialect import finished
from rlvr.samplers._http import Http, NoReply, Reply
from rlvr.samplers._servers.transfer import BY_NCCL
from rlvr.samplers._vllm_version import check_version

COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out"
ORDERS = ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
ADAPTERS = "/v1/load_lora_adapter"
AGAIN = "Fix it, then continue with `rlvr train ... --resume`; no training progress is lost"
WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Exceptions raised by parsing an unexpected reply."""
BUSY = (408, 429)
"""Statuses, besides 5xx, after which another server may succeed."""


class Unfit(SamplerError):
    """Raised if a server replies incorrectly: with other weights than were sent, with an error, or with an invalid completion."""


def fault_of(server: Http, path: str, reply: Reply) -> str:
    """Describe what is wrong with the reply to a command; empty if nothing is."""
    if reply.status == 404 and path in ORDERS:
        return f"{server.url} has no {path}, so it cannot load weights; start it as `{COMMAND}`"
    hints = {
        "/collective_rpc": " Check that it serves the model that is trained.",
        "/init_weight_transfer_engine": f" Start it with {BY_NCCL}.",
        "/start_weight_update": " If a run was killed while it sent weights, restart the server.",
        ADAPTERS: " Start it with --enable-lora --max-lora-rank RANK, or send merged weights (enable_lora: false).",
    }
    return "" if reply.status == 200 else f"{server.told(reply)}, for {path}.{hints.get(path, '')} {AGAIN}"


def fails(reply: Reply) -> bool:
    """Return whether a server is unavailable at present, so that another one should be used."""
    return reply.status >= 500 or reply.status in BUSY


def is_cleared(reply: Reply) -> bool:
    """Return whether a server has reset its prefix cache."""
    try:
        return bool(reply.json()["success"])
    except WRONG:
        return False


def choice_of(server: Http, reply: Reply) -> dict[str, Any]:
    """Parse the only choice of a reply. Raises BadServerReply if there is none."""
    try:
        choice = reply.json()["choices"][0]
        if not isinstance(choice["token_ids"], list) or not isinstance(choice["logprobs"]["content"], list):
            raise TypeError("not lists")
        return dict(choice)
    except WRONG as error:
        raise Unfit(
            f"{server.told(reply)}; that is not a completion with token ids and log-probabilities; start it as `{COMMAND}`"
        ) from error


def completion_of(server: Http, choice: dict[str, Any], name: str, sampling: Sampling, most: int) -> Completion:
    """Parse the completion of a choice, of at most `most` tokens.

    Raises BadServerReply if it was sampled by weights of another name, or is not a usable completion.
    """
    try:
        spans = {str(span["version"]) for span in choice.get("weight_versions") or []}
        tokens = [whole(token) for token in choice["token_ids"]]
        logprobs = [logprob(one["logprob"]) for one in choice["logprobs"]["content"]]
        if len(tokens) != len(logprobs) or len(tokens) > most:
            raise ValueError(f"{len(tokens)} tokens but {len(logprobs)} log-probabilities, and at most {most} were asked for")
        if (reason := str(choice["finish_reason"])) not in ("stop", "length"):
            raise ValueError(f"finish_reason is {reason[:40]!r}, so the answer is not complete")
    except WRONG as error:
        raise Unfit(f"{server.url} gave a completion that cannot be read: {type(error).__name__}: {error}. {AGAIN}") from error
    if spans != {name} and name:
        raise Unfit(
            f"{server.url} sampled with the weights {', '.join(sorted(spans)) or '(no name)'}, but {name} were sent. "
            f"It was restarted, or another client loads weights into it. {AGAIN}"
        )
    return finished(tokens, logprobs, reason, sampling)


def whole(token: Any) -> int:
    """Check and return a token id.

    >>> whole(7)
    7
    """
    if type(token) is not int or not 0 <= token < 1 << 31:
        raise ValueError(f"the token id {str(token)[:40]!r} is not a whole number of at least 0")
    return token


def logprob(said: Any) -> float:
    """Check and return the log-probability of a sampled token.

    >>> logprob(-0.5)
    -0.5
    """
    if type(said) not in (int, float) or not -math.inf < said <= ABOVE_ZERO:
        raise ValueError(f"the log-probability {str(said)[:40]!r} is not a finite number of at most 0")
    return float(said)


def scores_of(server: Http, reply: Reply, tokens: Sequence[int]) -> list[float]:
    """Parse the log-probability of each prompt token but the first. Raises BadServerReply if they are missing."""
    try:
        found = reply.json()["prompt_logprobs"]
        return [float(scores[str(token)]["logprob"]) for token, scores in zip(tokens[1:], found[1:], strict=True)]
    except WRONG as error:
        words = f"these are no log-probabilities of the prompt ({type(error).__name__}: {error})"
        raise Unfit(f"{server.told(reply)}; {words}") from error


def met(server: Http, start_s: float, choice: Callable[[Http, dict[str, Any]], dict[str, Any]]) -> int:
    """Wait for a server to start, and check its version and its log-probabilities; return its maximum length.

    `choice` requests a completion from a server.
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
        logprob = float(sure["logprobs"]["content"][0]["logprob"])
    except WRONG as error:
        raise ConfigError(f"{server.url} is not a vLLM server: {type(error).__name__}: {error}; start one as `{COMMAND}`") from error
    if not abs(logprob) <= 1e-6:  # with top_k 1, the only possible token
        raise ConfigError(f"{server.url} reports raw log-probabilities, not the sampling distribution's; start it as `{COMMAND}`")
    return length
