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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from transformers import AutoConfig

from rlvr.config.hub import folder_of
from rlvr.contracts import Completion, Feed, Listed, Request, Sampler, Sampling, Weights
from rlvr.errors import ConfigError, SamplerError, suggest
from rlvr.model.device import device_from
from rlvr.model.handover import Plain
from rlvr.samplers._colocated import RANKS, Colocated, Place
from rlvr.samplers._http import Http
from rlvr.samplers._local.engines import Engines
from rlvr.samplers._local.fleet import fleet_of
from rlvr.samplers._probe import LENGTH, Probe
from rlvr.samplers._servers.patience import Patience
from rlvr.samplers._servers.replies import Unfit
from rlvr.samplers._servers.roll import address
from rlvr.samplers._servers.servers import Servers
from rlvr.samplers._servers.transfer import TRANSFERS
from rlvr.samplers._vllm_version import check_version, installed

PLACEMENTS = ("colocated", "local", "server")
START_S = {"colocated": 600.0, "local": 600.0, "server": 120.0}
IN_PROCESS = "its engine runs in the training process; use engines beside it (placement: local)"
COLDEST = 0.01
"""vLLM raises lower temperatures to this value, and so would not sample from the requested distribution."""


class Engine(Protocol):
    """Interface of the engines of all placements."""

    where: str
    max_model_len: int

    def take(self, weights: Weights, version: int) -> None:
        """Load the trainer's weights and clear the prefix cache."""

    def rest(self) -> None:
        """Release memory until the next weights."""

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions as they finish, and start new requests of the queue in between."""
        ...

    def scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return, by engine name, a function that returns the log-probability of each token except the first."""
        ...

    def close(self) -> None:
        """Release all resources."""


class VLLMSampler(Sampler):
    """Sampler that uses vLLM engines.

    >>> VLLMSampler(kv_cache_gb=1.0, max_num_seqs=64).placement                         # doctest: +SKIP
    'colocated'
    """

    policy_form = "vllm:DIR"
    incidental = frozenset(("concurrency", "start_s", "heartbeat_s", "deadline_s", "memory_fraction", "kv_cache_gb", "gpus", "urls"))
    company = 1024
    runs_model = False
    _engine: Engine | None = None
    _probe: Probe | None = None
    _precision: str | None = None
    _longest = 0

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """`vllm:DIR` is the model in that folder, with its own tokenizer, in an engine in this process."""
        return {"model": str(folder_of(rest))}

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
        urls: list[str] | None = None,
        weights_folder: str | None = None,
        transfer: str = "files",
        concurrency: int | None = None,
        start_s: float | None = None,
        heartbeat_s: float = 10.0,
        deadline_s: float = 600.0,
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
            urls: the servers, for example http://localhost:8000.
            weights_folder: where weights are written for other processes, which must see it; None: in memory for local engines.
            transfer: how weights reach servers; files: through weights_folder; nccl: from GPU to GPUs, by vLLM's weight transfer.
            concurrency: most requests in progress, on average per engine; None: max_num_seqs.
            start_s: timeout for an engine to start, in seconds; None: 120 for a server, 600 for a local engine.
            heartbeat_s: after this many seconds without a completion, a server's health is checked.
            deadline_s: timeout of one completion, and of loading new weights, in seconds.
            probe_tolerance: allowed difference of the probe's log-probabilities; None: by precision.
        """
        check_placement(placement, urls, engines, gpus, tensor_parallel_size)
        check_transfer(transfer, placement, weights_folder)
        concurrency, start_s = concurrency if concurrency is not None else max_num_seqs, START_S[placement] if start_s is None else start_s
        above_zero(max_num_seqs=max_num_seqs, concurrency=concurrency, start_s=start_s, heartbeat_s=heartbeat_s, deadline_s=deadline_s)
        above_zero(memory_fraction=memory_fraction, most=1)
        self.placement, self.tokenizer, self.probe_tolerance, self._model = placement, model, probe_tolerance, model
        self.urls, self.weights_folder, self.concurrency, self.enable_lora = urls or [], weights_folder, concurrency, enable_lora
        self.patience, self.engines, self.gpus, self.transfer = Patience(deadline_s, heartbeat_s, start_s), engines, gpus, transfer
        sleep &= gpus is None
        self.place = Place(dtype, max_model_len, max_num_seqs, memory_fraction, kv_cache_gb, enforce_eager, sleep, tensor_parallel_size)

    @property
    def holds_trainer_up(self) -> str:  # type: ignore[override]
        """Why this sampler cannot run concurrently with training; empty if it can."""
        return IN_PROCESS if self.placement == "colocated" else ""

    def prepare(self, *, precision: str, max_length: int) -> None:
        """Set the defaults of `dtype` and `max_model_len` for this run."""
        self._precision, self._longest = precision, max_length

    def ready(self) -> None:
        """Start the engine for the configured model, if there is none yet."""
        if self._engine is None and self._model is not None:
            self._engine = self._started(self._model)

    def figures(self) -> dict[str, float]:
        """Return how much the log-probabilities of the probe differ between trainer and engine."""
        return {} if self._probe is None else self._probe.figures()

    def load(self, model: Any, version: int) -> None:
        """Load the weights of a model in this process."""
        self.receive(Plain(model), version)

    def receive(self, weights: Weights, version: int) -> None:
        """Load the trainer's weights in place and check them with the probe."""
        model = weights.structure
        if self._engine is None:
            part = weights.adapter() if self.enable_lora else None
            self._engine = self._started(model, part.rank if part and part.rank <= RANKS[-1] else 0)
        self._engine.take(weights, version)
        if self._probe is None:
            vocabulary = model.get_input_embeddings().num_embeddings
            room, dtype = self._engine.max_model_len - 1, self._dtype(model)
            self._probe = Probe(vocabulary, dtype, precision=self._precision, tolerance=self.probe_tolerance, room=room)
        self._probe.begin()
        ours = weights.score(self._probe.tokens, self._precision)
        for where, score in self._engine.scorers().items():
            with suppress(Unfit):  # a server that was lost meanwhile; others are left
                self._probe.check(score, model, where, version, ours=ours)

    def rest(self) -> None:
        """Release the GPU's memory to the trainer until the next weights."""
        if self._engine is not None:
            self._engine.rest()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield each completion as soon as it finishes."""
        yield from (ended for ended in VLLMSampler.serve(self, Listed(requests), sampling) if ended is not None)

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions for a queue of requests; the engine batches new requests with the running ones."""
        self.ready()
        if self._engine is None:
            raise SamplerError("the vllm sampler has no model yet: `load` was not called and no folder is given; write vllm:DIR")
        if 0 < sampling.temperature < COLDEST:
            raise ConfigError(f"temperature is {sampling.temperature}; vLLM samples at 0 (greedy) or at {COLDEST} and above")
        yield from self._engine.serve(feed, sampling)

    def close(self) -> None:
        """Stop the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _started(self, model: Any, lora_rank: int = 0) -> Engine:
        if self.placement == "server":
            return Servers(
                self.urls,
                self.patience,
                dtype=self._asked,
                concurrency=self.concurrency,
                folder=self.weights_folder,
                adapters=lora_rank > 0 and self.transfer == "files",
                transfer=self.transfer,
            )
        place = replace(
            self.place, dtype=self._dtype(model), max_model_len=self.place.max_model_len or self._needed(model), lora_rank=lora_rank
        )
        if self.placement == "colocated":
            return Colocated(model, place, deadline_s=self.patience.deadline_s)
        own = getattr(model, "device", None)
        own = own if own is not None and own.type != "cpu" else device_from()  # a copy of the weights may be on the CPU
        fleet = fleet_of(self.engines, self.gpus, place.tensor_parallel_size, own)
        return Engines(model, place, self.patience, fleet, concurrency=self.concurrency, folder=self.weights_folder)

    @property
    def _asked(self) -> str | None:
        return self._precision if self.place.dtype == "auto" else self.place.dtype

    def _needed(self, model: Any) -> int | None:
        """Return the length that this run needs, because the KV cache must fit one such sequence; None: the model's own."""
        if isinstance(model, str) or not self._longest:
            return None
        needed, known = max(self._longest, LENGTH + 1), getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return needed if known and needed < known else None

    def _dtype(self, model: Any) -> str:
        """Return the dtype of the engine, by default the trainer's: vLLM's own "auto" would turn float32 into float16."""
        if self._asked is not None:
            return self._asked
        if not isinstance(model, str):
            return str(model.dtype).removeprefix("torch.")
        return str(AutoConfig.from_pretrained(model).dtype or "bfloat16").removeprefix("torch.")


def above_zero(most: float = math.inf, **values: float) -> None:
    """Raise ConfigError for values that are not above 0, or too large.

    >>> above_zero(concurrency=1)
    """
    for name, value in values.items():
        if not 0 < value <= most:
            raise ConfigError(f"{name} is {value}; it must be above 0" + (f" and at most {most:g}" if most < math.inf else ""))


def check_placement(placement: str, urls: list[str] | None, engines: int | None, gpus: list[int] | None, width: int) -> None:
    """Raise ConfigError for settings that do not fit the placement, and for an unsupported local version of vLLM.

    >>> check_placement("local", None, 2, None, 1)                              # doctest: +SKIP
    """
    if placement not in PLACEMENTS:
        raise ConfigError(f"placement is {placement!r}; {suggest(placement, PLACEMENTS)}")
    at = [address(Http(url)) for url in urls or ()]  # rejects a URL with a password before it is shown
    if twice := sorted({one for one in at if at.count(one) > 1}):
        raise ConfigError(f"urls names {twice[0]} {at.count(twice[0])} times; name each server once")
    if (placement == "server") != bool(urls):
        raise ConfigError(f"placement is {placement!r} and urls is {urls!r}; a server needs URLs (urls: [...]), the others have none")
    if placement != "local" and (engines, gpus, width) != (None, None, 1):
        raise ConfigError(
            f"placement is {placement!r}, and tensor_parallel_size is {width}, engines {engines} and gpus {gpus}; these are settings of "
            "engines that this process starts: set placement: local, or start servers with their own settings"
        )
    if (engines is not None and engines < 1) or width < 1 or (gpus is not None and (not gpus or min(gpus) < 0)):
        raise ConfigError(f"engines is {engines}, tensor_parallel_size {width} and gpus {gpus}; at least one of each is needed")
    if placement != "server":
        check_version(installed())


make = VLLMSampler


def check_transfer(transfer: str, placement: str, folder: str | None) -> None:
    """Raise ConfigError for a weight transfer that the placement does not support.

    >>> check_transfer("files", "local", None)
    """
    if transfer not in (known := ("files", *TRANSFERS)):
        raise ConfigError(f"transfer is {transfer!r}; {suggest(transfer, known)}")
    if transfer == "files":
        return
    if placement != "server" or folder is not None:
        raise ConfigError(
            f"transfer is {transfer!r}, placement {placement!r} and weights_folder {folder!r}; it sends weights to servers (placement: "
            "server), without a folder"
        )
    check_version(installed())
