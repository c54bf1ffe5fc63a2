"""How vLLM is asked and how it answers, the same in this process and over HTTP."""

from __future__ import annotations

from typing import Any

from rlvr.contracts import Completion, Request, Sampling


def settings(request: Request, sampling: Sampling) -> dict[str, Any]:
    """One request in vLLM's words: its own seed, the whole stop set and nothing but it, and the log-probability of what was sampled."""
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


def finished(tokens: list[int], logprobs: list[float], reason: str, sampling: Sampling) -> Completion:
    """A completion, held to its contract: the engine's word for the end and its last token must say the same."""
    if reason not in ("stop", "length") or not tokens or (tokens[-1] in sampling.stop_ids) != (reason == "stop"):
        return Completion([], [], "error", f"the engine ended an answer by {reason!r} with the token {tokens[-1:] or 'nothing'}")
    if sampling.temperature == 0:  # a choice without chance: certain, whatever the logits
        logprobs = [0.0] * len(tokens)
    return Completion(tokens, [min(logprob, 0.0) for logprob in logprobs], "stop" if reason == "stop" else "length")
