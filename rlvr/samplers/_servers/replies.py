"""Parse and check the replies of vLLM servers, and describe failed commands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlvr.contracts import Completion, SamplingParams
from rlvr.episode import LOGPROB_EPS
from rlvr.errors import ConfigError, SamplerError
from rlvr.samplers._http import HttpClient, HttpResponse, NoReply
from rlvr.samplers._servers.weight_transfer import NCCL_ARGUMENT
from rlvr.samplers._vllm_format import make_completion
from rlvr.samplers._vllm_version import check_vllm_version

SERVE_COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out"
WEIGHT_PATHS = ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
LOAD_ADAPTER_PATH = "/v1/load_lora_adapter"
RESUME_HINT = "Fix it, then continue with `rlvr train ... --resume`; no training progress is lost"
PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Exceptions raised by parsing an unexpected reply."""
RETRY_STATUSES = (408, 429)
"""Statuses, besides 5xx, after which another server may succeed."""


class BadServerReply(SamplerError):
    """Raised if a server replies incorrectly: with other weights than were sent, with an error, or with an invalid completion."""


def find_failure(server: HttpClient, path: str, reply: HttpResponse) -> str:
    """Describe what is wrong with the reply to a command; empty if nothing is."""
    if reply.status == 404 and path in WEIGHT_PATHS:
        return f"{server.url} has no {path}, so it cannot load weights; start it as `{SERVE_COMMAND}`"
    hints = {
        "/collective_rpc": " Check that it serves the model that is trained.",
        "/init_weight_transfer_engine": f" Start it with {NCCL_ARGUMENT}.",
        "/start_weight_update": " If a run was killed while it sent weights, restart the server.",
        LOAD_ADAPTER_PATH: " Start it with --enable-lora --max-lora-rank RANK, or send merged weights (enable_lora: false).",
    }
    return "" if reply.status == 200 else f"{server.format_error(reply)}, for {path}.{hints.get(path, '')} {RESUME_HINT}"


def is_unavailable(reply: HttpResponse) -> bool:
    """Return whether a server is unavailable at present, so that another one should be used."""
    return reply.status >= 500 or reply.status in RETRY_STATUSES


def confirms_cache_reset(reply: HttpResponse) -> bool:
    """Return whether a server has reset its prefix cache."""
    try:
        return bool(reply.json()["success"])
    except PARSE_ERRORS:
        return False


def parse_choice(server: HttpClient, reply: HttpResponse) -> dict[str, Any]:
    """Return the first and only choice of a server's completion reply. Raises BadServerReply if there is none."""
    try:
        choice = reply.json()["choices"][0]
        if not isinstance(choice["token_ids"], list) or not isinstance(choice["logprobs"]["content"], list):
            raise TypeError("not lists")
        return dict(choice)
    except PARSE_ERRORS as error:
        raise BadServerReply(
            f"{server.format_error(reply)}; that is not a completion with token ids and log-probabilities; start it as `{SERVE_COMMAND}`"
        ) from error


def parse_completion(
    server: HttpClient, choice: dict[str, Any], weights_name: str, sampling: SamplingParams, max_tokens: int
) -> Completion:
    """Parse the completion of a choice, of at most `max_tokens` tokens.

    Raises BadServerReply if it was sampled by weights of another name, or is not a usable completion.
    """
    try:
        spans = {str(span["version"]) for span in choice.get("weight_versions") or []}
        tokens = [_check_token_id(token) for token in choice["token_ids"]]
        logprobs = [_check_logprob(one["logprob"]) for one in choice["logprobs"]["content"]]
        if len(tokens) != len(logprobs) or len(tokens) > max_tokens:
            raise ValueError(f"{len(tokens)} tokens but {len(logprobs)} log-probabilities, and at most {max_tokens} were asked for")
        if (reason := str(choice["finish_reason"])) not in ("stop", "length"):
            raise ValueError(f"finish_reason is {reason[:40]!r}, so the answer is not complete")
    except PARSE_ERRORS as error:
        raise BadServerReply(
            f"{server.url} gave a completion that cannot be read: {type(error).__name__}: {error}. {RESUME_HINT}"
        ) from error
    if spans != {weights_name} and weights_name:
        raise BadServerReply(
            f"{server.url} sampled with the weights {', '.join(sorted(spans)) or '(no name)'}, but {weights_name} were sent. "
            f"It was restarted, or another client loads weights into it. {RESUME_HINT}"
        )
    return make_completion(tokens, logprobs, reason, sampling)


def _check_token_id(token: Any) -> int:
    """Check and return a token id.

    >>> _check_token_id(7)
    7
    """
    if type(token) is not int or not 0 <= token < 1 << 31:
        raise ValueError(f"the token id {str(token)[:40]!r} is not a whole number of at least 0")
    return token


def _check_logprob(value: Any) -> float:
    """Check and return the log-probability of a sampled token.

    >>> _check_logprob(-0.5)
    -0.5
    """
    if type(value) not in (int, float) or not -math.inf < value <= LOGPROB_EPS:
        raise ValueError(f"the log-probability {str(value)[:40]!r} is not a finite number of at most 0")
    return float(value)


def parse_prompt_logprobs(server: HttpClient, reply: HttpResponse, tokens: Sequence[int]) -> list[float]:
    """Parse the log-probability of each prompt token but the first. Raises BadServerReply if they are missing."""
    try:
        found = reply.json()["prompt_logprobs"]
        return [float(scores[str(token)]["logprob"]) for token, scores in zip(tokens[1:], found[1:], strict=True)]
    except PARSE_ERRORS as error:
        words = f"these are no log-probabilities of the prompt ({type(error).__name__}: {error})"
        raise BadServerReply(f"{server.format_error(reply)}; {words}") from error


def wait_and_get_max_length(
    server: HttpClient, start_timeout_s: float, request_choice: Callable[[HttpClient, dict[str, Any]], dict[str, Any]]
) -> int:
    """Wait for a server to start, and check its version and its log-probabilities; return its maximum length.

    `request_choice` requests a completion from a server.
    """
    until = time.monotonic() + start_timeout_s
    while True:
        try:
            if server.request("GET", "/health", deadline=until).status == 200:
                break
            told = "it runs but is not healthy"
        except NoReply as error:
            told = str(error)
        if time.monotonic() + 0.5 > until:
            raise SamplerError(f"no vLLM server at {server.url} within {start_timeout_s:g} s ({told}); start it as `{SERVE_COMMAND}`")
        time.sleep(0.5)
    try:
        check_vllm_version(str(server.request("GET", "/version", deadline=until).json()["version"]), server.url, "server")
        length = int(server.request("GET", "/v1/models", deadline=until).json()["data"][0]["max_model_len"])
        sure = request_choice(
            server, {"token_ids": [0, 0], "sampling_params": {"max_tokens": 1, "top_k": 1, "logprobs": 0, "ignore_eos": True}}
        )
        logprob = float(sure["logprobs"]["content"][0]["logprob"])
    except PARSE_ERRORS as error:
        raise ConfigError(f"{server.url} is not a vLLM server: {type(error).__name__}: {error}; start one as `{SERVE_COMMAND}`") from error
    if not abs(logprob) <= 1e-6:  # with top_k 1, the only possible token
        raise ConfigError(f"{server.url} reports raw log-probabilities, not the sampling distribution's; start it as `{SERVE_COMMAND}`")
    return length
