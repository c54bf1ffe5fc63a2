"""Sample with vLLM, in the training process, in processes that it starts, or from separate servers.

{name: vllm}                                                         one engine in this process (placement: colocated)
{name: vllm, placement: local, gpus: [6, 7]}                         engines in processes of their own, one a GPU
{name: vllm, placement: server, urls: ["http://localhost:8000"]}     one or more servers, by URL

Start a server with `VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out`. It accepts
commands from any client, so make it reachable for the trainer only. Weights are sent through `weights_folder`, which both must see.

Requests and completions are token ids, each request has its own seed, and the returned log-probabilities are those of the
sampling distribution. After every update the new weights are loaded in place, the prefix cache is cleared, and trainer and
engine score a probe: the run stops if the engine did not load the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from transformers import AutoConfig

from rlvr.config.hub import resolve_model_folder
from rlvr.contracts import (
    Completion,
    Environment,
    Request,
    RequestQueue,
    Sampler,
    SamplerTraits,
    SamplingParams,
    StaticQueue,
    Tokenizer,
    Weights,
)
from rlvr.errors import ConfigError, SamplerError, format_suggestion
from rlvr.models.device import resolve_device
from rlvr.models.plain_weights import PlainWeights
from rlvr.samplers._colocated import LORA_RANKS, ColocatedEngine, VLLMEngineConfig
from rlvr.samplers._http import HttpClient
from rlvr.samplers._local.engine_plan import plan_engines
from rlvr.samplers._local.engines import LocalEngines
from rlvr.samplers._servers.replies import BadServerReply
from rlvr.samplers._servers.server_engine import ServerEngine
from rlvr.samplers._servers.server_pool import get_base_url
from rlvr.samplers._servers.timeouts import Timeouts
from rlvr.samplers._servers.weight_transfer import TRANSFER_BACKENDS
from rlvr.samplers._vllm_version import check_vllm_version, get_installed_version
from rlvr.samplers._weight_probe import PROBE_TOKENS, WeightSyncProbe

PLACEMENTS = ("colocated", "local", "server")
START_TIMEOUTS_S = {"colocated": 600.0, "local": 600.0, "server": 120.0}
IN_PROCESS_REASON = "its engine runs in the training process; use engines beside it (placement: local)"
MIN_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this value, and so would not sample from the requested distribution."""


class Engine(Protocol):
    """Interface of the engines of all placements."""

    name: str
    max_model_len: int

    def update_weights(self, weights: Weights, version: int) -> None:
        """Load the trainer's weights and clear the prefix cache."""

    def sleep(self) -> None:
        """Release memory until the next weights."""

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions as they finish, and start new requests of the queue in between."""
        ...

    def get_logprob_scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return, by engine name, a function that returns the log-probability of each token except the first."""
        ...

    def close(self) -> None:
        """Release all resources."""


OWN_ENGINE_ARGS: Mapping[str, str] = {
    **{name: name for name in ("dtype", "max_model_len", "max_num_seqs", "tensor_parallel_size", "enforce_eager", "enable_lora")},
    **dict.fromkeys(("model", "load_format", "skip_tokenizer_init", "generation_config", "logprobs_mode", "enable_prefix_caching"), ""),
    **dict.fromkeys(("distributed_executor_backend", "worker_extension_cls", "max_loras", "max_lora_rank"), ""),
    "gpu_memory_utilization": "memory_fraction",
    "enable_sleep_mode": "sleep",
    "kv_cache_memory_bytes": "kv_cache_gb",
}
"""The engine's arguments that the sampler sets, and the setting for each, where there is one."""


class VLLMSampler(Sampler):
    """Sampler that uses vLLM engines.

    >>> VLLMSampler(kv_cache_gb=1.0, max_num_seqs=64).placement  # doctest: +SKIP
    'colocated'
    """

    traits = SamplerTraits(
        runs_model=False,
        eval_batch_size=1024,
        cli_syntax="vllm:DIR",
        non_semantic_settings=frozenset(
            (
                "concurrency",
                "start_timeout_s",
                "heartbeat_timeout_s",
                "completion_timeout_s",
                "memory_fraction",
                "kv_cache_gb",
                "gpus",
                "urls",
            )
        ),
    )
    _engine: Engine | None = None
    _probe: WeightSyncProbe | None = None
    _precision: str | None = None
    _max_length = 0

    @classmethod
    def settings_from_cli(cls, argument: str) -> dict[str, Any]:
        """`vllm:DIR` is the model in that folder, with its own tokenizer, in an engine in this process."""
        return {"model": str(resolve_model_folder(argument))}

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
        engines: int | None = None,
        gpus: list[int] | None = None,
        enable_lora: bool = True,
        enforce_eager: bool = False,
        sleep: bool = True,
        engine_args: Mapping[str, Any] | None = None,
        urls: list[str] | None = None,
        weights_folder: str | None = None,
        transfer: str = "files",
        concurrency: int | None = None,
        start_timeout_s: float | None = None,
        heartbeat_timeout_s: float = 10.0,
        completion_timeout_s: float = 600.0,
        probe_tolerance: float | None = None,
    ) -> None:
        """Set where the engine runs and which resources it may use.

        Args:
            placement: colocated: in this process; local: in processes that this one starts; server: at `urls`.
            model: a folder with a model; None: the trainer's model.
            dtype: the precision of the engine and of weights sent to it; auto: the precision the trainer computes in.
            max_model_len: largest length of prompt and completion together; None: what this run needs, or the model's own.
            max_num_seqs: most completions that an engine samples at a time.
            memory_fraction: an engine's fraction of a GPU's memory, weights and cache together.
            kv_cache_gb: memory for the KV cache; None: the rest of memory_fraction.
            tensor_parallel_size: number of GPUs that a local engine is split over.
            engines: number of local engines; None: as many as `gpus` allows, or 1.
            gpus: the GPUs of local engines, as this process counts them; None: the trainer's own.
            enable_lora: send only the adapter of a model that has one (to servers, if they support it); false: send merged weights.
            enforce_eager: no CUDA graphs: samples more slowly, starts faster.
            sleep: release the trainer's GPU between rollouts.
            engine_args: further arguments of an engine that this process starts, by vLLM's names, such as {kv_cache_dtype: fp8}.
            urls: the servers, for example http://localhost:8000.
            weights_folder: where weights are written for other processes, which must see it; None: in memory for local engines.
            transfer: how weights reach servers; files: through weights_folder; nccl: from GPU to GPUs, by vLLM's weight transfer.
            concurrency: most requests in progress, on average per engine; None: max_num_seqs.
            start_timeout_s: timeout for an engine to start, in seconds; None: 120 for a server, 600 for a local engine.
            heartbeat_timeout_s: after this many seconds without a completion, a server's health is checked.
            completion_timeout_s: how long an engine or a server may generate no token, in seconds; also the timeout of loading new
                weights.
            probe_tolerance: allowed difference of the probe's log-probabilities; None: by precision.
        """
        _check_placement(placement, urls, engines, gpus, tensor_parallel_size)
        _check_weight_transfer(transfer, placement, weights_folder)
        _check_engine_args(engine_args or {}, placement)
        concurrency, start_timeout_s = (
            concurrency if concurrency is not None else max_num_seqs,
            START_TIMEOUTS_S[placement] if start_timeout_s is None else start_timeout_s,
        )
        _check_positive(
            max_num_seqs=max_num_seqs,
            concurrency=concurrency,
            start_timeout_s=start_timeout_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            completion_timeout_s=completion_timeout_s,
        )
        _check_positive(memory_fraction=memory_fraction, max_value=1)
        self.placement, self.tokenizer, self.probe_tolerance, self._model = placement, model, probe_tolerance, model
        self.urls, self.weights_folder, self.concurrency, self.enable_lora = urls or [], weights_folder, concurrency, enable_lora
        self.timeouts, self.engines, self.gpus, self.transfer = (
            Timeouts(completion_timeout_s, heartbeat_timeout_s, start_timeout_s),
            engines,
            gpus,
            transfer,
        )
        sleep &= gpus is None
        if placement == "colocated":
            self.traits = replace(type(self).traits, blocks_trainer_reason=IN_PROCESS_REASON)
        self.engine_config = VLLMEngineConfig(
            dtype, max_model_len, max_num_seqs, memory_fraction, kv_cache_gb, enforce_eager, sleep, tensor_parallel_size,
            engine_args=dict(engine_args or {}),
        )  # fmt: skip

    def setup(self, environment: Environment, tokenizer: Tokenizer, *, precision: str | None = None, max_length: int = 0) -> None:
        """Fill in `dtype` and `max_model_len` for this run where the settings leave them open; the engine starts later. Without a precision
        nothing is filled in, and what was before holds.
        """
        if precision is not None:
            self._precision, self._max_length = precision, max_length

    def prepare(self) -> None:
        """Start the engine for the configured model, if there is none yet."""
        if self._engine is None and self._model is not None:
            self._engine = self._start_engine(self._model)

    def get_weight_probe_metrics(self) -> dict[str, float]:
        """Return how much the log-probabilities of the probe differ between trainer and engine."""
        return {} if self._probe is None else self._probe.get_difference_metrics()

    def update_from_model(self, model: Any, version: int) -> None:
        """Load the weights of a model in this process."""
        self.update_weights(PlainWeights(model), version)

    def update_weights(self, weights: Weights, version: int) -> None:
        """Load the trainer's weights in place and check them with the probe."""
        model = weights.trained_model
        if self._engine is None:
            part = weights.get_adapter() if self.enable_lora else None
            self._engine = self._start_engine(model, part.rank if part and part.rank <= LORA_RANKS[-1] else 0)
        self._engine.update_weights(weights, version)
        if self._probe is None:
            vocabulary = model.get_input_embeddings().num_embeddings
            room, dtype = self._engine.max_model_len - 1, self._resolve_dtype(model)
            self._probe = WeightSyncProbe(vocabulary, dtype, precision=self._precision, tolerance=self.probe_tolerance, max_tokens=room)
        self._probe.reset()
        ours = weights.compute_logprobs(self._probe.tokens, self._precision)
        for where, score in self._engine.get_logprob_scorers().items():
            with suppress(BadServerReply):  # a server that was lost meanwhile; others are left
                self._probe.check_engine(score, model, where, version, trainer_logprobs=ours)

    def sleep(self) -> None:
        """Release the GPU's memory to the trainer until the next weights."""
        if self._engine is not None:
            self._engine.sleep()

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield each completion as soon as it finishes."""
        yield from (ended for ended in VLLMSampler.stream_from_queue(self, StaticQueue(requests), sampling) if ended is not None)

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions for a queue of requests; the engine batches new requests with the running ones."""
        self.prepare()
        if self._engine is None:
            raise SamplerError(
                "the vllm sampler has no model yet: `update_from_model` was not called and no folder is given; write vllm:DIR"
            )
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise ConfigError(f"temperature is {sampling.temperature}; vLLM samples at 0 (greedy) or at {MIN_TEMPERATURE} and above")
        yield from self._engine.stream_from_queue(queue, sampling)

    def close(self) -> None:
        """Stop the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _start_engine(self, model: Any, lora_rank: int = 0) -> Engine:
        if self.placement == "server":
            return ServerEngine(
                self.urls,
                self.timeouts,
                dtype=self._requested_dtype,
                concurrency=self.concurrency,
                folder=self.weights_folder,
                adapters=lora_rank > 0 and self.transfer == "files",
                transfer=self.transfer,
            )
        place = replace(
            self.engine_config,
            dtype=self._resolve_dtype(model),
            max_model_len=self.engine_config.max_model_len or self._compute_needed_length(model),
            lora_rank=lora_rank,
        )
        if self.placement == "colocated":
            return ColocatedEngine(model, place, completion_timeout_s=self.timeouts.completion_timeout_s)
        own = getattr(model, "device", None)
        own = own if own is not None and own.type != "cpu" else resolve_device()  # a copy of the weights may be on the CPU
        fleet = plan_engines(self.engines, self.gpus, place.tensor_parallel_size, own)
        return LocalEngines(model, place, self.timeouts, fleet, concurrency=self.concurrency, folder=self.weights_folder)

    @property
    def _requested_dtype(self) -> str | None:
        return self._precision if self.engine_config.dtype == "auto" else self.engine_config.dtype

    def _compute_needed_length(self, model: Any) -> int | None:
        """Return the length that this run needs, because the KV cache must fit one such sequence; None: the model's own."""
        if isinstance(model, str) or not self._max_length:
            return None
        needed, known = max(self._max_length, PROBE_TOKENS + 1), getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return needed if known and needed < known else None

    def _resolve_dtype(self, model: Any) -> str:
        """Return the dtype of the engine, by default the trainer's: vLLM's own "auto" would turn float32 into float16."""
        if self._requested_dtype is not None:
            return self._requested_dtype
        if not isinstance(model, str):
            return str(model.dtype).removeprefix("torch.")
        return str(AutoConfig.from_pretrained(model, trust_remote_code=False).dtype or "bfloat16").removeprefix("torch.")


def _check_positive(max_value: float = math.inf, **values: float) -> None:
    """Raise ConfigError for values that are not above 0, or too large.

    >>> _check_positive(concurrency=1)
    """
    for name, value in values.items():
        if not 0 < value <= max_value:
            raise ConfigError(f"{name} is {value}; it must be above 0" + (f" and at most {max_value:g}" if max_value < math.inf else ""))


def _check_placement(
    placement: str, urls: list[str] | None, engines: int | None, gpus: list[int] | None, tensor_parallel_size: int
) -> None:
    """Raise ConfigError for settings that do not fit the placement, and for an unsupported local version of vLLM.

    >>> _check_placement("server", ["http://localhost:8000"], None, None, 1)
    """
    if placement not in PLACEMENTS:
        raise ConfigError(f"placement is {placement!r}; {format_suggestion(placement, PLACEMENTS)}")
    at = [get_base_url(HttpClient(url)) for url in urls or ()]  # rejects a URL with a password before it is shown
    if twice := sorted({one for one in at if at.count(one) > 1}):
        raise ConfigError(f"urls names {twice[0]} {at.count(twice[0])} times; name each server once")
    if (placement == "server") != bool(urls):
        raise ConfigError(f"placement is {placement!r} and urls is {urls!r}; a server needs URLs (urls: [...]), the others have none")
    if placement != "local" and (engines, gpus, tensor_parallel_size) != (None, None, 1):
        raise ConfigError(
            f"placement is {placement!r}, and tensor_parallel_size is {tensor_parallel_size}, engines {engines} and gpus {gpus}; these are settings of "
            "engines that this process starts: set placement: local, or start servers with their own settings"
        )
    if (engines is not None and engines < 1) or tensor_parallel_size < 1 or (gpus is not None and (not gpus or min(gpus) < 0)):
        raise ConfigError(
            f"engines is {engines}, tensor_parallel_size {tensor_parallel_size} and gpus {gpus}; at least one of each is needed"
        )
    if placement != "server":
        check_vllm_version(get_installed_version())


def _check_engine_args(engine_args: Mapping[str, Any], placement: str) -> None:
    """Raise ConfigError for arguments of an engine that this process does not start, or that the sampler sets itself.

    >>> _check_engine_args({"kv_cache_dtype": "fp8"}, "local")
    """
    if engine_args and placement == "server":
        raise ConfigError(f"engine_args is {dict(engine_args)!r}, and placement 'server': give them to the command that starts the server")
    for name in engine_args:
        if name in OWN_ENGINE_ARGS:
            own = OWN_ENGINE_ARGS[name]
            raise ConfigError(f"engine_args has {name!r}, which the sampler sets itself" + (f"; write {own}=" if own else ""))


make = VLLMSampler


def _check_weight_transfer(transfer: str, placement: str, folder: str | None) -> None:
    """Raise ConfigError for a weight transfer that the placement does not support.

    >>> _check_weight_transfer("files", "local", None)
    """
    if transfer not in (known := ("files", *TRANSFER_BACKENDS)):
        raise ConfigError(f"transfer is {transfer!r}; {format_suggestion(transfer, known)}")
    if transfer == "files":
        return
    if placement != "server" or folder is not None:
        raise ConfigError(
            f"transfer is {transfer!r}, placement {placement!r} and weights_folder {folder!r}; it sends weights to servers (placement: "
            "server), without a folder"
        )
    check_vllm_version(get_installed_version())
