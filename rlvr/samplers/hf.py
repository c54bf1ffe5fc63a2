"""Sample with a Hugging Face causal language model, in this process: for laptops, tests and small machines.

What differs from `model.generate`:
  - each distinct prompt is computed once, however many answers it gets;
  - answers that have ended leave the batch, so the slowest one does not cost everybody;
  - every answer has random numbers of its own, so it does not depend on what is sampled beside it;
  - the log-probability handed back is under the very distribution that was sampled from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from rlvr.config import ModelConfig
from rlvr.contracts import Completion, Request, Sampler, Sampling
from rlvr.errors import ConfigError, SamplerError
from rlvr.model import model_from


class HFSampler(Sampler):
    """Samples from the trainer's own model, or from one in a folder.

    >>> HFSampler(batch_size=64).batch_size
    64
    """

    policy_form = "hf:DIR"
    company = 64

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """`hf:DIR` is the model in that folder, with its own tokenizer."""
        return {"model": rest}

    def __init__(self, *, batch_size: int = 512, model: str | None = None) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; at least 1 answer must be sampled at a time")
        self.batch_size, self.tokenizer = batch_size, model
        self.model: Any = None if model is None else model_from(ModelConfig(path=model))

    def load(self, model: Any, version: int) -> None:
        """The trainer's model is sampled from as it stands; nothing is copied."""
        self.model = model

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Batches of requests, those with a common prompt side by side."""
        if self.model is None:
            raise SamplerError("the hf sampler has no model yet; give it model: DIR, or load one")
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), tuple(requests[i].prompt)))
        training = self.model.training
        self.model.eval()
        try:
            for start in range(0, len(order), self.batch_size):
                chunk = order[start : start + self.batch_size]
                yield from _decode(self.model, [(i, requests[i]) for i in chunk], sampling)
        finally:
            self.model.train(training)


@dataclass(slots=True)
class _Rows:
    """The answers still being written, one row each. B = rows, L = tokens of the longest prompt and what follows."""

    index: list[int]
    left: list[int]
    """How many more tokens each row may take."""
    tokens: list[list[int]]
    logprobs: list[list[float]]
    mask_BL: Tensor
    position_B: Tensor
    uniform_BT: Tensor

    def keep(self, rows: list[int], at: Tensor) -> None:
        self.index = [self.index[r] for r in rows]
        self.left = [self.left[r] for r in rows]
        self.tokens = [self.tokens[r] for r in rows]
        self.logprobs = [self.logprobs[r] for r in rows]
        self.mask_BL, self.position_B, self.uniform_BT = self.mask_BL[at], self.position_B[at], self.uniform_BT[at]


@torch.inference_mode()
def _decode(model: Any, chunk: list[tuple[int, Request]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
    logits_BV, cache, rows = _prefill(model, [request for _, request in chunk])
    rows.index = [index for index, _ in chunk]
    step = 0
    while rows.index:
        chosen_B, logprob_B = _choose(logits_BV, sampling, rows.uniform_BT[:, step])
        alive = []
        for row, (token, logprob) in enumerate(zip(chosen_B.tolist(), logprob_B.tolist(), strict=True)):
            rows.tokens[row].append(token)
            rows.logprobs[row].append(logprob)
            stopped = token in sampling.stop_ids
            if stopped or len(rows.tokens[row]) >= rows.left[row]:
                yield rows.index[row], Completion(rows.tokens[row], rows.logprobs[row], "stop" if stopped else "length")
            else:
                alive.append(row)
        if not alive:
            return
        if len(alive) < len(rows.index):
            at = torch.tensor(alive, device=chosen_B.device)
            rows.keep(alive, at)
            cache.batch_select_indices(at)
            chosen_B = chosen_B[at]
        rows.mask_BL = torch.cat([rows.mask_BL, rows.mask_BL.new_ones(len(alive), 1)], dim=1)
        output = model(
            input_ids=chosen_B[:, None],
            attention_mask=rows.mask_BL,
            position_ids=rows.position_B[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        rows.position_B = rows.position_B + 1
        logits_BV = output.logits[:, -1].float()
        step += 1


def _prefill(model: Any, requests: list[Request]) -> tuple[Tensor, DynamicCache, _Rows]:
    """Each distinct prompt once, padded on the left; then one row an answer."""
    device = model.device
    distinct: dict[tuple[int, ...], int] = {}
    owner = [distinct.setdefault(tuple(request.prompt), len(distinct)) for request in requests]
    longest = max(map(len, distinct))
    ids_PL = torch.zeros(len(distinct), longest, dtype=torch.long)
    mask_PL = torch.zeros(len(distinct), longest, dtype=torch.long)
    for row, prompt in enumerate(distinct):
        ids_PL[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_PL[row, longest - len(prompt) :] = 1
    ids_PL, mask_PL = ids_PL.to(device), mask_PL.to(device)
    positions_PL = (mask_PL.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    output = model(
        input_ids=ids_PL, attention_mask=mask_PL, position_ids=positions_PL, past_key_values=cache, use_cache=True, logits_to_keep=1
    )
    owner_B = torch.tensor(owner, device=device)
    cache.batch_select_indices(owner_B)
    rows = _Rows(
        index=[],
        left=[request.max_tokens for request in requests],
        tokens=[[] for _ in requests],
        logprobs=[[] for _ in requests],
        mask_BL=mask_PL[owner_B],
        position_B=positions_PL[owner_B, -1] + 1,
        uniform_BT=_uniform(requests).to(device),
    )
    return output.logits[:, -1].float()[owner_B], cache, rows


def _uniform(requests: list[Request]) -> Tensor:
    """One row of random numbers an answer, from its own seed."""
    width = max(request.max_tokens for request in requests)
    generator = torch.Generator()
    # drawn in float32 so that the first n numbers do not depend on how many are drawn
    return torch.stack([torch.rand(width, generator=generator.manual_seed(request.seed % 2**63)) for request in requests])


def _choose(logits_BV: Tensor, sampling: Sampling, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """A token for each row by inverting the cumulative distribution, and its log-probability."""
    if sampling.temperature == 0:
        chosen_B = logits_BV.argmax(dim=-1)
        return chosen_B, torch.zeros_like(uniform_B)
    logprobs_BV = _filtered(logits_BV / sampling.temperature, sampling).log_softmax(dim=-1)
    cumulative_BV = logprobs_BV.exp().cumsum(dim=-1)
    threshold_B1 = (uniform_B * cumulative_BV[:, -1])[:, None]
    chosen_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True)[:, 0].clamp(max=logits_BV.shape[-1] - 1)
    return chosen_B, logprobs_BV.gather(1, chosen_B[:, None])[:, 0].clamp(max=0.0)


def _filtered(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Everything outside top_k and top_p at minus infinity."""
    if sampling.top_k and sampling.top_k < logits_BV.shape[-1]:
        floor_B1 = logits_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < floor_B1, -torch.inf)
    if sampling.top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
        before_BV = sorted_BV.softmax(dim=-1).cumsum(dim=-1) - sorted_BV.softmax(dim=-1)
        drop_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(1, order_BV, before_BV >= sampling.top_p)
        logits_BV = logits_BV.masked_fill(drop_BV, -torch.inf)
    return logits_BV


make = HFSampler
