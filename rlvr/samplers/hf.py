"""Sample with a Hugging Face causal language model, in this process: for laptops, tests and small machines.

Differences from `model.generate`:
  - each distinct prompt is computed once, for any number of completions;
  - a finished completion leaves the batch, and a waiting request takes its row;
  - keys and values are in preallocated memory, and no row is padded (`_slot_cache`; for other models see `_cache_selection`);
  - every completion has its own random numbers, so it does not depend on the other rows of the batch;
  - the returned log-probability is under the distribution that was actually sampled from.

The same seed gives the same tokens in any batch, except for rounding: the last bits of a logit depend on how many rows are
multiplied together, and a random number that close to the border between two tokens selects the other one. In
float32 that is about one token in a million. The same requests in the same order always give the same bits.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Environment, Request, RequestQueue, Sampler, SamplerTraits, SamplingParams, StaticQueue, Tokenizer
from rlvr.errors import ConfigError, SamplerError
from rlvr.models.device import free_cached_memory, resolve_device
from rlvr.models.device_defaults import get_device_defaults
from rlvr.models.model_loading import load_model
from rlvr.samplers._cache_selection import KVCache, choose_fallback_cache, find_slot_cache_problem
from rlvr.samplers._length_grouped_cache import LengthGroupedCache
from rlvr.samplers._padded_cache import PaddedCache
from rlvr.samplers._recomputing_cache import RecomputingCache
from rlvr.samplers._slot_cache import GROWTH_FACTOR, SlotCache
from rlvr.samplers._token_choice import draw_uniforms, sample_tokens

FREE_MEMORY_FRACTION = 0.7
"""Fraction of the free accelerator memory for keys and values; rows grow by copying, layer by layer."""


class HFSampler(Sampler):
    """Sample from the trainer's own model, or from one in a folder.

    >>> HFSampler(batch_size=64).batch_size
    64
    """

    traits = SamplerTraits(validates_model=True, eval_batch_size=64, cli_syntax="hf:DIR")

    @classmethod
    def settings_from_cli(cls, argument: str) -> dict[str, Any]:
        """`hf:DIR` is the model in that folder, with its own tokenizer."""
        return {"model": argument}

    def __init__(self, *, batch_size: int = 512, model: str | None = None, device: str | None = None) -> None:
        """Set the model and the batch size.

        Args:
            batch_size: most completions that are sampled at the same time.
            model: a folder with a model; None: the trainer passes its own.
            device: the device of that model, for example cuda:1; None: the accelerator, or the CPU without one.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size!r}; it must be a number of completions that are sampled at a time, such as 64")
        self.batch_size, self.tokenizer = batch_size, model
        self.model: Any = None
        self.slots_problem = ""
        """Why the slot cache cannot be used; empty if it can."""
        self.cache_class: type[KVCache] = SlotCache
        self.is_memory_limited = False
        """Whether the memory of the model's device limits the batch."""
        self.make_batch: Callable[..., _RunningBatch] = _RunningBatch
        self._precision: str | None = None
        self._max_length = 0
        self._trainer_model: Any = None
        self._device = device

    def prepare(self) -> None:
        """Load the configured model, if the trainer has passed none."""
        if self.model is None and isinstance(self.tokenizer, str):
            self.update_from_model(load_model(ModelConfig(path=self.tokenizer)).to(resolve_device(self._device)), 0)

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Set the precision that the trainer computes in, and the maximum length of sequences, for which memory is reserved. Without a
        precision nothing is set, and what was set before holds.
        """
        if precision is not None:
            self._precision, self._max_length = precision, max_length

    def update_from_model(self, model: Any, version: int) -> None:
        """Use the trainer's model directly, or a copy if the trainer computes in another precision than the model has."""
        if model is not self._trainer_model:
            self._trainer_model, self.model = model, self._convert_precision(model)
            device = self.model.device
            self.is_memory_limited, every = device.type == "cuda", get_device_defaults(device).stop_check_interval_tokens
            self.make_batch = partial(_LazyStopBatch, every=every) if every > 1 else _RunningBatch
            self.slots_problem = find_slot_cache_problem(self.model)
            self.cache_class = choose_fallback_cache(self.model) if self.slots_problem else SlotCache
        elif self.model is not model:
            _copy_weights(model, self.model)

    @property
    def cache_description(self) -> str:
        """Description of the KV cache in use, for tables."""
        names: dict[type[KVCache], str] = {
            SlotCache: "slots", PaddedCache: "padded", LengthGroupedCache: "rows grouped by length", RecomputingCache: "rows computed again at every token",
        }  # fmt: skip
        return f"{names[self.cache_class]}{', since ' + self.slots_problem if self.slots_problem else ''}"

    def _convert_precision(self, model: Any) -> Any:
        """Return the model to sample from: a copy in the sampling precision, because autocast would convert it for every token."""
        dtype = getattr(torch, self._precision) if self._precision else model.dtype
        if dtype == model.dtype:
            return model
        made = copy.deepcopy(model).to(dtype)
        for weight in made.parameters():
            weight.requires_grad_(False)
        return made

    def check_model_support(self, model: Any) -> str:
        """Raise ConfigError for a model that cannot be sampled from; return why it is slow, or ''."""
        self.update_from_model(model, 0)
        return f"each token computes its whole row again, since {self.slots_problem}" if self.cache_class is RecomputingCache else ""

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield completions; up to `batch_size` at a time, requests with a common prompt side by side."""
        yield from (ended for ended in HFSampler.stream_from_queue(self, StaticQueue(requests), sampling) if ended is not None)

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions for a queue of requests; waiting requests take free rows, later turns first."""
        if self.model is None:
            self.prepare()
        if self.model is None:
            raise SamplerError(
                "the hf sampler has no model; give one: rlvr.make_sampler('hf', model=folder), or in a recipe {name: hf, model: DIR}"
            )
        training, batch, waiting = self.model.training, None, list[tuple[int, Request]]()
        self.model.eval()
        try:
            while (arrived := queue.pop(sys.maxsize)) is not None or waiting or batch:
                if arrived:
                    waiting = sorted([*waiting, *arrived], key=lambda asked: (-asked[1].turn, len(asked[1].prompt), tuple(asked[1].prompt)))
                if waiting and not batch:
                    most = self._compute_max_rows(waiting) if self.is_memory_limited else self.batch_size
                    batch = self.make_batch(
                        self.cache_class(self.model), sampling, rows=min(most, len(waiting) + queue.max_future_requests)
                    )
                if batch and waiting and (free := batch.num_startable_rows):
                    admitted, waiting = waiting[:free], waiting[free:]
                    batch.add_requests(admitted)
                yield from (batch.step() if batch else []) or (None,)
                if batch and not batch.num_live and not waiting:
                    batch = None  # later requests start with an empty cache, as if they came alone
        finally:
            self.model.train(training)

    def _compute_max_rows(self, queue: Sequence[tuple[int, Request]]) -> int:
        """Return how many rows fit into memory, each at the maximum length."""
        width = max(self._max_length, *(len(request.prompt) + request.max_tokens for _, request in queue))
        return min(self.batch_size, count_rows_that_fit(self.model, width))


def _copy_weights(model: Any, target: Any) -> None:
    """Copy new weights into a model of another precision."""
    with torch.no_grad():
        for own, weight in zip(target.state_dict().values(), model.state_dict().values(), strict=True):
            own.copy_(weight)


def count_rows_that_fit(model: Any, row_length: int) -> int:
    """Return how many sequences of this length fit into the accelerator's free memory with their keys and values."""
    shape = model.config.get_text_config()
    own = getattr(shape, "num_attention_heads", None) or 1  # without attention, the state is about as large as one row of keys
    heads = getattr(shape, "num_key_value_heads", None) or own
    wide = getattr(shape, "head_dim", None) or shape.hidden_size // own
    each = 2 * shape.num_hidden_layers * heads * wide * model.dtype.itemsize * int(row_length * GROWTH_FACTOR)
    free_cached_memory()
    return max(1, int(torch.cuda.mem_get_info(model.device)[0] * FREE_MEMORY_FRACTION) // each)


class _RunningBatch:
    """The running batch: completions in the first `num_live` rows. B = rows, T = the largest token limit of a completion."""

    def __init__(self, memory: KVCache, sampling: SamplingParams, *, rows: int) -> None:
        self.cache, self.sampling = memory, sampling
        self.max_rows, self.num_live = rows, 0
        self.requests = list[tuple[int, Request]]()
        """The request of each live row."""
        device = memory.model.device
        self.state_4B = torch.zeros(4, self.max_rows, dtype=torch.long, device=device)
        self.token_B, self.position_B, self.count_B, self.cap_B = self.state_4B
        self.uniform_BT, self.logprob_BT = torch.zeros(2, self.max_rows, 0, device=device)
        self.tokens_BT = torch.zeros(self.max_rows, 0, dtype=torch.long, device=device)
        self.stop_ids = torch.tensor(sorted(sampling.stop_ids), dtype=torch.long, device=device)
        self.stopped_B = torch.zeros(self.max_rows, dtype=torch.bool, device=device)

    @property
    def num_startable_rows(self) -> int:
        """Number of rows that may start now: several at a time or none, because a prefill for one row would delay all others."""
        free = self.max_rows - self.num_live
        return free if not self.num_live or (self.cache.can_add_rows and free >= max(1, self.max_rows // 8)) else 0

    @torch.inference_mode()
    def add_requests(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Start a row for each request; a prompt that a live row already has is copied from there."""
        prompts = [tuple(request.prompt) for _, request in requests]
        known = self._copy_known_prompt(self.cache, prompts) if self.num_live and isinstance(self.cache, SlotCache) else 0
        if new := prompts[known:]:
            distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(new))}
            self.cache.add_rows(
                list(distinct), [distinct[prompt] for prompt in new], first_row=self.num_live + known, max_rows=self.max_rows
            )
        here = slice(self.num_live, self.num_live + len(requests))
        asked, device = [request for _, request in requests], self.token_B.device
        self.requests += requests
        self.stopped_B[here] = False
        numbers_B4 = [(request.prompt[-1], len(request.prompt) - 1, 0, request.max_tokens) for request in asked]
        self.state_4B[:, here] = torch.tensor(numbers_B4, device=device).T
        if (more := max(request.max_tokens for request in asked) - self.tokens_BT.shape[1]) > 0:
            self.uniform_BT, self.logprob_BT, self.tokens_BT = (
                pad(s, (0, more)) for s in (self.uniform_BT, self.logprob_BT, self.tokens_BT)
            )
        self.uniform_BT[here] = draw_uniforms(asked, self.uniform_BT.shape[1]).to(device)
        self.num_live += len(requests)

    def _copy_known_prompt(self, cache: SlotCache, prompts: Sequence[tuple[int, ...]]) -> int:
        """Copy the first prompt from a live row that has it; return how many of the (adjacent) prompts are equal to it."""
        source = next((row for row, (_, live) in enumerate(self.requests) if tuple(live.prompt) == prompts[0]), None)
        if source is None:
            return 0
        known = prompts.count(prompts[0])
        cache.copy_prompt(source, start=self.num_live, count=known, length=len(prompts[0]) - 1)
        return known

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """Sample one more token in every row; return the completions that end with it."""
        live = slice(0, self.num_live)
        at, count_B = torch.arange(self.num_live, device=self.token_B.device), self.count_B[live]
        logits_BV = self.cache.step(self.token_B[live], self.position_B[live])
        chosen_B, logprob_B = sample_tokens(logits_BV, self.sampling, self.uniform_BT[at, count_B])
        self.tokens_BT[at, count_B], self.logprob_BT[at, count_B] = chosen_B, logprob_B
        self.token_B[live] = chosen_B
        self.position_B[live] += 1
        count_B += 1
        self.stopped_B[live] |= torch.isin(chosen_B, self.stop_ids)
        if any(request.stop_criterion for _, request in self.requests):
            self.stopped_B[live] |= torch.tensor(self._find_turn_ends(chosen_B.tolist()), device=chosen_B.device)
        return self._collect_ended()

    def _collect_ended(self) -> list[tuple[int, Completion]]:
        """Collect the completions that have ended, and free their rows."""
        ended_B = self.stopped_B[: self.num_live] | (self.count_B >= self.cap_B)[: self.num_live]
        ended = ended_B.nonzero()[:, 0].tolist()
        if not ended:
            return []
        done = list[tuple[int, Completion]]()
        for row, length, stopped in zip(ended, self.count_B[ended].tolist(), self.stopped_B[ended].tolist(), strict=True):
            said, logprobs = self.tokens_BT[row, :length].tolist(), self.logprob_BT[row, :length].tolist()
            done.append((self.requests[row][0], Completion(said, logprobs, "stop" if stopped else "length")))
        self._compact(ended_B, self.num_live - len(ended))
        return done

    def _find_turn_ends(self, chosen: Sequence[int]) -> list[bool]:
        """Return which rows end by their stop criterion, although the chosen token is not a stop id."""
        return [
            request.stop_criterion is not None
            and request.stop_criterion.may_stop(token)
            and request.stop_criterion(self.tokens_BT[row, : int(self.count_B[row])].tolist())
            for row, ((_, request), token) in enumerate(zip(self.requests, chosen, strict=True))
        ]

    def _compact(self, ended_B: Tensor, num_kept: int) -> None:
        """Move the last live rows to the indices of finished rows."""
        holes, movers = ended_B[:num_kept].nonzero()[:, 0], (~ended_B[num_kept:]).nonzero()[:, 0] + num_kept
        self.state_4B[:, holes] = self.state_4B[:, movers]
        for state in (self.uniform_BT, self.logprob_BT, self.tokens_BT, self.stopped_B):
            state[holes] = state[movers]
        for hole, mover in zip(holes.tolist(), movers.tolist(), strict=True):
            self.requests[hole] = self.requests[mover]
        del self.requests[num_kept:]
        self.cache.compact(num_kept, holes, movers)
        self.num_live = num_kept


class _LazyStopBatch(_RunningBatch):
    """Running batch for an asynchronous device, which is queried only every few tokens for the rows that have ended."""

    def __init__(self, memory: KVCache, sampling: SamplingParams, *, rows: int, every: int) -> None:
        super().__init__(memory, sampling, rows=rows)
        self.check_interval, self.num_unchecked, self.num_sampled = every, 0, 0
        """Tokens between two checks, tokens sampled since the last check, and tokens sampled in all."""
        self.end_by_request = dict[int, int]()
        """By request: the value of `num_sampled` at which it reaches its token limit, so that no row exceeds it."""

    def add_requests(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Start rows for these requests, and record when each reaches its token limit."""
        super().add_requests(requests)
        self.end_by_request |= {number: self.num_sampled + request.max_tokens for number, request in requests}

    def _collect_ended(self) -> list[tuple[int, Completion]]:
        self.num_sampled += 1
        self.num_unchecked += 1
        told = any(request.stop_criterion for _, request in self.requests)  # the device was queried already
        if not told and self.num_unchecked < self.check_interval and self.num_sampled < min(self.end_by_request.values()):
            return []
        self.num_unchecked = 0
        done = super()._collect_ended()
        for number, _ in done:
            del self.end_by_request[number]
        return [(number, self._truncate_at_stop(completion)) for number, completion in done]

    def _truncate_at_stop(self, completion: Completion) -> Completion:
        """Truncate a completion after its first stop id, which may have been sampled before the last token."""
        stops = (place for place, token in enumerate(completion.tokens, 1) if token in self.sampling.stop_ids)
        length = next(stops, len(completion.tokens))
        return replace(completion, tokens=completion.tokens[:length], logprobs=completion.logprobs[:length])


make = HFSampler
