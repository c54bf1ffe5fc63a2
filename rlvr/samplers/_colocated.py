"""vLLM in the training process: one engine, stepped by this module, so that each completion is returned as soon as it finishes."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from rlvr.contracts import Completion, Request, RequestQueue, SamplingParams, Weights
from rlvr.errors import ConfigError, SamplerError
from rlvr.models.device import find_accelerator, free_cached_memory
from rlvr.runs.folder_owner import create_owned_folder, remove_orphaned_folders
from rlvr.samplers._local.rendezvous import redirect_vllm_rendezvous_files
from rlvr.samplers._vllm_format import check_request_length, make_completion, make_vllm_sampling_params

FOLDER_PREFIX = "rlvr-vllm-"
SLEEP_TAGS = ["weights", "kv_cache"]
"""Tags of the memory that an engine releases, in the order in which it is restored."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM supports."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the engine in this process, which has the trainer's tensors
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class VLLMEngineConfig:
    """Configuration of a vLLM engine: the resources that it may use.

    >>> VLLMEngineConfig(dtype="float32", kv_cache_gb=1.0).max_num_seqs
    256
    """

    dtype: str
    max_model_len: int | None = None
    max_num_seqs: int = 256
    memory_fraction: float = 0.4
    """Fraction of a GPU's memory for weights and KV cache together; the trainer uses the rest."""
    kv_cache_gb: float | None = None
    enforce_eager: bool = False
    sleep: bool = True
    """Whether the engine releases its GPU memory to the trainer between sampling and the next weights."""
    tensor_parallel_size: int = 1
    """Number of GPUs that the engine is split over; above 1 only in a process of its own."""
    lora_rank: int = 0
    """Rank of an adapter that is sent separately from the weights; 0: no adapter, or merged weights are sent."""
    engine_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments, by vLLM's names."""


class StallTimer:
    """Measures for how long an engine has generated no token, however long its completions are.

    >>> timer = StallTimer()
    >>> [timer.update(num_tokens, step_s=2.0) for num_tokens in (5, 5, 5, 6)]
    [0.0, 2.0, 4.0, 0.0]
    """

    MAX_PAUSE_S = 1.0
    """The most that a pause between two steps counts: the consumer of the completions may be busy for long, or stopped."""

    def __init__(self) -> None:
        self._num_tokens, self._idle_s, self._last_step_at = -1, 0.0, time.monotonic()

    def update(self, num_tokens: int, *, step_s: float) -> float:
        """Return the seconds without progress, given the tokens so far and the duration of the last step."""
        now = time.monotonic()
        pause = min(max(now - self._last_step_at - step_s, 0.0), self.MAX_PAUSE_S)
        self._last_step_at = now
        self._idle_s = 0.0 if num_tokens != self._num_tokens else self._idle_s + step_s + pause
        self._num_tokens = num_tokens
        return self._idle_s


class ColocatedEngine:
    """A vLLM engine in this process.

    `model` is the trainer's model, the name of a folder with a model, or the path of a folder with a configuration, whose weights are sent
    later. `tied_weights`: the names of its output head and of the embeddings, if they are one tensor.
    """

    name = "the vLLM engine in this process"

    def __init__(
        self,
        model: Any,
        config: VLLMEngineConfig,
        *,
        completion_timeout_s: float,
        tied_weights: Sequence[str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder`: an empty folder for the engine's files; None: a temporary one."""
        self.config, self.completion_timeout_s, self._tied_weights = (
            config,
            completion_timeout_s,
            tied_weights or find_tied_head_and_embeddings(model),
        )
        self.is_on_gpu = False
        self._sleeping_tags = list[str]()
        """Tags of the memory that the engine has released."""
        self._adapter: Any = None
        """The LoRA request of all requests, if the engine has an adapter separate from its weights."""
        self._has_base_weights = False
        """Whether the engine has the base weights of the adapter."""
        self._request_ids = count()
        self._num_ended_tokens = 0
        check_no_torch_distributed()
        if folder is None:
            remove_orphaned_folders(FOLDER_PREFIX)
        self._folder = create_owned_folder(FOLDER_PREFIX) if folder is None else folder
        try:
            with self._restore_process_state(), redirect_vllm_rendezvous_files(self._folder):
                self.is_on_gpu = not importlib.import_module("vllm.platforms").current_platform.is_cpu()  # vLLM decides this, not torch
                free_cached_memory()
                self._llm = self._create_llm(model)
                OPEN_ENGINES.add(id(self))
        except BaseException:
            self.close()
            raise
        self.max_model_len = int(self._llm.llm_engine.model_config.max_model_len)

    def update_weights(self, weights: Weights, version: int) -> None:
        """Load the trainer's weights and clear the prefix cache of the old ones."""
        part = weights.get_adapter() if self.config.lora_rank else None
        if part is None:
            self._adapter, self._has_base_weights = None, False
            return self.reload_weights("reload_weights", {"weights_iterator": self._list_weights(weights.gather_model())}, version)
        if not self._has_base_weights:
            self.reload_weights("reload_weights", {"weights_iterator": self._list_weights(part.base.gather_model())}, version)
            self._has_base_weights = True
        folder = self._folder / "adapter"
        part.save(folder)
        self.load_adapter(str(folder), version)

    def load_adapter(self, folder: str, version: int) -> None:
        """Replace the adapter by the one in a folder, and clear the prefix cache."""
        asked = partial(importlib.import_module("vllm.lora.request").LoRARequest, "policy", 1, folder)
        self._wake_up()
        try:
            self._llm.llm_engine.add_lora(asked(load_inplace=True))
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"vLLM cannot apply this model's adapter: {' '.join(str(error).split())[:300]}; send merged weights (enable_lora: false)"
            ) from error
        self._adapter = asked()
        self._reset_prefix_cache(version)

    def reload_weights(self, method: str, settings: dict[str, Any], version: int) -> None:
        """Load weights through a method of the engine's workers, and clear the prefix cache."""
        self._wake_up("weights")
        with self._restore_process_state():
            self._llm.collective_rpc(method, kwargs=settings)
        self._wake_up()
        self._reset_prefix_cache(version)

    def _list_weights(self, model: Any) -> list[tuple[str, Any]]:
        return [(name, weight.detach()) for name, weight in [*model.named_parameters(), *self._list_untied_head(model)]]

    def _wake_up(self, only_tag: str = "") -> None:
        """Restore the engine's memory: all that it released, or only that with the given tag."""
        if self._sleeping_tags == SLEEP_TAGS:
            free_cached_memory()  # the trainer's; the engine then allocates its own again
        for tag in [tag for tag in self._sleeping_tags if only_tag in ("", tag)]:
            self._llm.wake_up(tags=[tag])
            self._sleeping_tags.remove(tag)

    def _reset_prefix_cache(self, version: int) -> None:
        if not self._llm.reset_prefix_cache():
            raise SamplerError(f"{self.name} did not reset its prefix cache for version {version}: requests are still running")

    def sleep(self) -> None:
        """Release the GPU memory to the trainer; loading weights wakes the engine."""
        if self.config.sleep and self.is_on_gpu and not self._sleeping_tags:
            self._llm.sleep(level=1 if self._adapter else 2)  # level 1 keeps frozen weights in host memory, because they are not sent again
            self._sleeping_tags = list(SLEEP_TAGS)
            free_cached_memory()

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield each completion as it finishes, and add new requests before each engine step.

        The engine runs only while this iterator is consumed. It accepts all requests at once and schedules them itself.
        """
        engine, running, timer = self._llm.llm_engine, dict[str, tuple[int, Request]](), StallTimer()
        try:
            while (arrived := queue.pop(sys.maxsize)) is not None or running:
                if not running:
                    timer = StallTimer()
                for number, request in arrived or ():
                    check_request_length(request, self.name, self.max_model_len)
                    name = str(next(self._request_ids))
                    engine.add_request(
                        name,
                        {"prompt_token_ids": list(request.prompt)},
                        self._make_sampling_params(request, sampling),
                        lora_request=self._adapter,
                    )
                    running[name] = number, request
                began = time.monotonic()
                outputs = engine.step() if running else []
                step_s = time.monotonic() - began
                ended = [output for output in outputs if output.finished or _has_turn_ended(output, running[output.request_id][1])]
                engine.abort_request([output.request_id for output in ended if not output.finished])
                for output in ended:
                    number, request = running.pop(output.request_id)
                    self._num_ended_tokens += len(output.outputs[0].token_ids)
                    yield (
                        number,
                        _convert_vllm_output(
                            output.outputs[0], sampling, ended_early=not output.finished or _has_turn_ended(output, request)
                        ),
                    )
                if running and timer.update(self.count_all_generated_tokens(), step_s=step_s) > self.completion_timeout_s:
                    raise SamplerError(
                        f"{self.name} generated no token of {len(running)} completions within {self.completion_timeout_s:g} s "
                        "(completion_timeout_s)"
                    )
                if not ended:
                    yield None
        finally:
            if running:
                engine.abort_request(list(running))

    def count_all_generated_tokens(self) -> int:
        """Count all tokens that the engine has sampled, those of unfinished completions included."""
        states = self._llm.llm_engine.output_processor.request_states.values()
        return self._num_ended_tokens + sum(state.detokenizer.num_output_tokens() for state in states)

    def get_logprob_scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return the scoring function of the one engine, by name."""
        return {self.name: self.compute_logprobs}

    def compute_logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Return the engine's log-probability of each token except the first."""
        params = _vllm().SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        output = self._llm.generate([{"prompt_token_ids": list(tokens)}], params, use_tqdm=False, lora_request=self._adapter)[0]
        return [float(found[token].logprob) for token, found in zip(tokens[1:], output.prompt_logprobs[1:], strict=True)]

    def close(self) -> None:
        """Free the memory and vLLM's distributed environment, of which a process can have only one."""
        llm = self.__dict__.pop("_llm", None)
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            OPEN_ENGINES.discard(id(self))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _create_llm(self, model: Any) -> Any:
        folder, place = str(self._folder), self.config
        if isinstance(model, str):
            folder = model
        else:
            config = AutoConfig.from_pretrained(model, trust_remote_code=False) if isinstance(model, Path) else deepcopy(model.config)
            if self._tied_weights and not self.is_on_gpu:  # see `_list_untied_head`
                config.tie_word_embeddings = False
            config.save_pretrained(folder)
        memory: dict[str, Any] = {"gpu_memory_utilization": place.memory_fraction, "enable_sleep_mode": self.is_on_gpu and place.sleep}
        if place.kv_cache_gb or not self.is_on_gpu:
            memory["kv_cache_memory_bytes"] = int((place.kv_cache_gb or 1.0) * 2**30)
        if place.lora_rank:
            memory |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= place.lora_rank)}
        try:
            return _vllm().LLM(
                folder,
                load_format="auto" if isinstance(model, str) else "dummy",  # the trainer's weights are loaded later
                skip_tokenizer_init=True,  # requests and completions are token ids
                generation_config="vllm",  # ignore the defaults in the model's folder: `SamplingParams` sets everything
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                dtype=place.dtype,
                max_model_len=place.max_model_len,
                max_num_seqs=place.max_num_seqs,
                distributed_executor_backend="uni" if place.tensor_parallel_size == 1 else "mp",
                tensor_parallel_size=place.tensor_parallel_size,
                worker_extension_cls="rlvr.samplers._local.weight_loading.WeightReloadExtension",
                enforce_eager=place.enforce_eager or not self.is_on_gpu,
                **memory,
                **place.engine_args,
            )
        except (TypeError, ValueError, RuntimeError, NotImplementedError, AssertionError) as error:
            said = " ".join(str(error).split())[:400]
            if "LoRA" in said:
                raise ConfigError(f"vLLM cannot apply adapters to this model: {said}; send merged weights (enable_lora: false)") from error
            hint = "" if self.is_on_gpu else "; on a CPU the size of an attention head must be a multiple of 32"
            raise ConfigError(f"vLLM cannot run this model: {type(error).__name__}: {said}{hint}") from error

    def _list_untied_head(self, model: Any) -> list[tuple[str, Any]]:
        """Return the output head as a separate parameter, if vLLM needs it.

        On a CPU vLLM keeps a packed copy of the head, which it updates only if the head is not tied to the embeddings.
        """
        return [(self._tied_weights[0], model.get_output_embeddings().weight)] if self._tied_weights and not self.is_on_gpu else []

    def _make_sampling_params(self, request: Request, sampling: SamplingParams) -> Any:
        kinds = _vllm().sampling_params.RequestOutputKind
        kind = kinds.CUMULATIVE if request.stop_criterion else kinds.FINAL_ONLY
        # flat: a few lists per completion instead of a dict per token, which would burden the garbage collector
        return _vllm().SamplingParams(**make_vllm_sampling_params(request, sampling), output_kind=kind, flat_logprobs=True)

    @contextmanager
    def _restore_process_state(self) -> Iterator[None]:
        """Restore the process state afterwards: vLLM reseeds torch, changes the thread count and replaces `set_num_threads`."""
        from_before = {name: os.environ.get(name) for name in ENVIRONMENT}
        os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
        set_threads, threads, dtype = torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype()
        try:
            with preserve_random_state(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # vLLM's own warnings, which users cannot fix
                yield
        finally:
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            for name, value in from_before.items():
                if value is None:
                    os.environ.pop(name, None)


OPEN_ENGINES: set[int] = set()
"""Ids of the open engines of this process."""


def _vllm() -> Any:
    return importlib.import_module("vllm")  # by name, because type checkers would resolve it to rlvr.samplers.vllm


def preserve_random_state() -> AbstractContextManager[None]:
    """Return a context that restores the random state of the CPU and the current device; other devices would allocate memory."""
    current = find_accelerator()
    if current is None:
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[getattr(torch, current.type).current_device()], device_type=current.type)


def check_no_torch_distributed() -> None:
    """Raise if torch.distributed is already initialized: vLLM needs it for itself, and destroys it when it closes."""
    if not torch.distributed.is_initialized():
        return
    if OPEN_ENGINES:
        raise ConfigError("a process can run only one vLLM engine; close the other vllm sampler first")
    if torch.distributed.get_world_size() == 1:
        raise ConfigError(
            "the vLLM engine in this process needs torch.distributed for itself, but a launcher (`accelerate launch`, `torchrun`) has "
            "already initialized it; one process needs no launcher: start the run with `rlvr train ...`"
        )
    raise ConfigError(
        "the vLLM engine cannot run inside a training run with several processes; set placement: local (each process starts an engine "
        "beside it), or start `vllm serve` as a separate server and set placement: server, urls: [...]"
    )


def find_tied_head_and_embeddings(model: Any) -> list[str] | None:
    """Return the names of a model's output head and embeddings if they are one tensor, else None."""
    if isinstance(model, str | Path):
        return None
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is not table.weight:
        return None
    return [f"{next(name for name, module in model.named_modules() if module is part)}.weight" for part in (head, table)]


def _has_turn_ended(output: Any, request: Request) -> bool:
    """Return whether the stop criterion ends the turn, although the engine would continue: plain-text calls have no stop id."""
    tokens = output.outputs[0].token_ids
    return bool(request.stop_criterion and tokens and request.stop_criterion.may_stop(tokens[-1]) and request.stop_criterion(list(tokens)))


def _convert_vllm_output(output: Any, sampling: SamplingParams, *, ended_early: bool = False) -> Completion:
    """Convert a vLLM output to a Completion. The finish reason is `error` unless it ended by a stop id, by the limit, or `ended_early`."""
    tokens, flat = list(output.token_ids), output.logprobs
    if list(flat.token_ids) != tokens:
        return Completion([], [], "error", f"the engine returned {len(tokens)} tokens, and log-probabilities of others")
    return make_completion(tokens, list(map(float, flat.logprobs)), "early" if ended_early else str(output.finish_reason), sampling)
