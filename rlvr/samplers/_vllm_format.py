"""Convert requests and completions to and from vLLM's format, in process and over HTTP."""

from __future__ import annotations

from typing import Any

from rlvr.contracts import Completion, Request, SamplingParams
from rlvr.errors import ConfigError


def make_vllm_sampling_params(request: Request, sampling: SamplingParams) -> dict[str, Any]:
    """Make vLLM's sampling parameters for one request: its seed, exactly the given stop ids, log-probabilities of sampled tokens."""
    return {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": request.seed,
        "stop_token_ids": sorted(sampling.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


def check_request_length(request: Request, engine_name: str, max_length: int) -> None:
    """Raise ConfigError if prompt and completion may exceed an engine's maximum length.

    >>> check_request_length(Request([1, 2, 3], 5), "the engine", 8)
    """
    if (length := len(request.prompt) + request.max_tokens) > max_length:
        raise ConfigError(
            f"a prompt and its answer may be {length} tokens, and {engine_name} allows {max_length}; "
            "set rollout.max_length or rollout.max_new_tokens lower, or rollout.sampler.max_model_len higher"
        )


def make_completion(tokens: list[int], logprobs: list[float], finish_reason: str, sampling: SamplingParams) -> Completion:
    """Make a completion after checking that `finish_reason` agrees with the last token; the reason `early` means that the stop
    criterion ended it.
    """
    known = finish_reason in ("stop", "length") and tokens and (tokens[-1] in sampling.stop_ids) == (finish_reason == "stop")
    if not known and finish_reason != "early":
        return Completion([], [], "error", f"the engine ended an answer by {finish_reason!r} with the token {tokens[-1:] or 'nothing'}")
    if sampling.temperature == 0:  # greedy: each token has probability 1
        logprobs = [0.0] * len(tokens)
    return Completion(tokens, [min(logprob, 0.0) for logprob in logprobs], "length" if finish_reason == "length" else "stop")
