"""Sample with vLLM: in the training process, or from servers of its own.

{name: vllm}                                                         one engine in this process (placement: colocated)
{name: vllm, placement: server, urls: ["http://localhost:8000"]}     one or more servers, found by URL

A server is started as `VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out`. It takes
orders from whoever reaches it, so let only the trainer reach it. Weights go by way of `weights_folder`, which both must see.

Token ids go in and come out, each request has a seed of its own, and the log-probability handed back is under the very
distribution that was sampled from. New weights are loaded in place after every update, the prefix cache is emptied, and a
probe is scored on both sides: the run stops if the engine did not take them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from transformers import AutoConfig

from rlvr.contracts import Completion, Request, Sampler, Sampling
from rlvr.errors import ConfigError, SamplerError, suggest
from rlvr.samplers._colocated import Colocated, Place
from rlvr.samplers._probe import Probe
from rlvr.samplers._server import Patience, Servers
from rlvr.samplers._vllm_version import check_version, installed

PLACEMENTS = ("colocated", "server")
COLDEST = 0.01
"""vLLM raises a lower temperature to this one, and would sample from another distribution than the one asked for."""


class Engine(Protocol):
    """What both placements offer."""

    where: str
    max_model_len: int

    def take(self, model: Any, version: int) -> None:
        """Load the trainer's weights and forget what was cached."""

    def rest(self) -> None:
        """Nothing is sampled until the next weights."""

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Completions as they end."""
        ...

    def scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Each engine by its name, and how it scores: the log-probability of each token but the first."""
        ...

    def close(self) -> None:
        """Give everything back."""


class VLLMSampler(Sampler):
    """Samples groups with vLLM.

    >>> VLLMSampler(kv_cache_gb=1.0, max_num_seqs=64).placement                         # doctest: +SKIP
    'colocated'
    """

    policy_form = "vllm:DIR"
    company = 1024
    _engine: Engine | None = None
    _probe: Probe | None = None

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """`vllm:DIR` is the model in that folder, with its own tokenizer, in an engine in this process."""
        return {"model": rest}

    def __init__(
        self,
        *,
        placement: str = "colocated",
        model: str | None = None,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        memory_fraction: float = 0.4,
        kv_cache_gb: float | None = None,
        tensor_parallel_size: int = 1,
        enforce_eager: bool = False,
        sleep: bool = True,
        urls: list[str] | None = None,
        weights_folder: str | None = None,
        concurrency: int = 128,
        start_s: float = 120.0,
        heartbeat_s: float = 10.0,
        deadline_s: float = 600.0,
        probe_tolerance: float | None = None,
    ) -> None:
        """Say where the engine stands, and what it may have.

        Args:
            placement: colocated: in this process; server: found by `urls`.
            model: a folder that holds a model; None: the trainer hands its own over.
            dtype: the engine's precision; auto: the trainer's.
            max_model_len: the longest prompt and answer together; None: the model's own.
            max_num_seqs: how many answers are under way at once.
            memory_fraction: the engine's share of a GPU's memory, weights and cache together.
            kv_cache_gb: room for keys and values; None: what is left of its share.
            tensor_parallel_size: over how many GPUs the engine cuts the model.
            enforce_eager: no captured graphs: slower, and up sooner.
            sleep: leave the GPU's memory to the trainer between rollouts.
            urls: the servers, as in http://localhost:8000.
            weights_folder: where weights are left for servers; they and the trainer must see it.
            concurrency: how many requests are under way at once, over all servers.
            start_s: how long a server may take to come up.
            heartbeat_s: after so long without an answer a server is asked for a sign of life.
            deadline_s: how long one answer may take, or new weights.
            probe_tolerance: how far the probe's log-probabilities may be off; None: by precision.
        """
        if placement not in PLACEMENTS:
            raise ConfigError(f"placement is {placement!r}; {suggest(placement, PLACEMENTS)}")
        if (placement == "server") != bool(urls):
            raise ConfigError(
                f"placement is {placement!r} and urls is {urls!r}; a server has a URL (urls: [...]), an engine in this process none"
            )
        above_zero(max_num_seqs=max_num_seqs, tensor_parallel_size=tensor_parallel_size, concurrency=concurrency)
        above_zero(start_s=start_s, heartbeat_s=heartbeat_s, deadline_s=deadline_s)
        if not 0 < memory_fraction <= 1:
            raise ConfigError(f"memory_fraction is {memory_fraction}; it is the engine's share of a GPU's memory, above 0 and at most 1")
        if placement == "colocated":
            check_version(installed())
            self.holds_trainer_up = "an engine in this process takes turns with it; start a server (placement: server, urls: [...])"
        self.placement, self.tokenizer, self.probe_tolerance = placement, model, probe_tolerance
        self.urls, self.weights_folder, self.concurrency = urls or [], weights_folder, concurrency
        self.patience = Patience(deadline_s, heartbeat_s, start_s)
        self.place = Place(dtype, max_model_len, max_num_seqs, memory_fraction, kv_cache_gb, tensor_parallel_size, enforce_eager, sleep)
        self._model = model

    def load(self, model: Any, version: int) -> None:
        """The trainer's weights, loaded in place and proven by the probe."""
        if self._engine is None:
            self._engine = self._started(model)
        self._engine.take(model, version)
        if self._probe is None:
            vocabulary = model.get_input_embeddings().num_embeddings
            self._probe = Probe(vocabulary, self._dtype(model), tolerance=self.probe_tolerance, room=self._engine.max_model_len - 1)
        for where, score in self._engine.scorers().items():
            self._probe.check(score, model, where, version)

    def rest(self) -> None:
        """Leave the GPU's memory to the trainer until the next weights come."""
        if self._engine is not None:
            self._engine.rest()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Each completion the moment it ends."""
        if self._engine is None:
            if self._model is None:
                raise SamplerError("the vllm sampler has no model yet; the trainer hands it over, or write vllm:DIR")
            self._engine = self._started(self._model)
        if 0 < sampling.temperature < COLDEST:
            raise ConfigError(f"temperature is {sampling.temperature}; vLLM samples at 0 (greedy) or at {COLDEST} and above")
        longest = max((len(request.prompt) + request.max_tokens for request in requests), default=0)
        if longest > self._engine.max_model_len:
            raise ConfigError(
                f"a prompt and its answer may be {longest} tokens, and {self._engine.where} holds {self._engine.max_model_len}; "
                "set rollout.max_length or rollout.max_completion_length lower, or rollout.sampler.max_model_len higher"
            )
        yield from self._engine.stream(requests, sampling)

    def close(self) -> None:
        """Stop the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _started(self, model: Any) -> Engine:
        if self.placement == "server":
            return Servers(self.urls, self.patience, concurrency=self.concurrency, folder=self.weights_folder)
        return Colocated(model, replace(self.place, dtype=self._dtype(model)), deadline_s=self.patience.deadline_s)

    def _dtype(self, model: Any) -> str:
        """The trainer's own precision where none is asked for; vLLM's own "auto" makes float16 out of float32."""
        if self.place.dtype != "auto":
            return self.place.dtype
        if not isinstance(model, str):
            return str(model.dtype).removeprefix("torch.")
        return str(AutoConfig.from_pretrained(model).dtype or "bfloat16").removeprefix("torch.")


def above_zero(**values: float) -> None:
    """Refuse counts and waits that are none.

    >>> above_zero(concurrency=1)
    """
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value}; it must be above 0")


make = VLLMSampler
