"""The policy's weights for samplers and checkpoints; sharded weights are a stream of full tensors, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlvr.contracts import LoraAdapter, Weights
from rlvr.errors import RlvrError
from rlvr.models.device import get_trainer_precision
from rlvr.models.model_loading import MODEL_LOAD_LOCK
from rlvr.models.plain_weights import PlainWeights, build_file_meta_tensors, cast_if_matrix, compute_model_logprobs, to_file_tensors
from rlvr.models.safetensors_files import TensorWriter
from rlvr.training.distributed.group import all_gather_values, run_in_main_process
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.policy import Policy
from rlvr.training.update.sharded_tensors import gather_full, reshard

T = TypeVar("T")


class ShardedWeights(Weights):
    """The weights of a policy that is sharded over the processes. `dtype` is that of the gathered model.

    >>> ShardedWeights(policy, dtype=torch.bfloat16).save(Path("weights"))  # doctest: +SKIP
    """

    def __init__(self, policy: Policy, *, dtype: torch.dtype, merged: bool = True) -> None:
        """`merged`: merge the adapter, if there is one."""
        self.policy, self.dtype, self.merged = policy, dtype, merged
        self._model_copy: Any = None

    @classmethod
    def from_policy(cls, policy: Policy, accelerator: Accelerator) -> ShardedWeights:
        """Create the sharded weights of a policy.

        Gathered models have the compute precision of the trainer.
        """
        return cls(policy, dtype=getattr(torch, get_trainer_precision(policy.model, accelerator.mixed_precision, accelerator.device)))

    @property
    def trained_model(self) -> Any:
        """The sharded model."""
        return self.policy.model

    def iter_full_tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor of the plain model, with the adapter merged. Only one is gathered at a time."""
        reshard(self.policy)
        with torch.no_grad():
            for name, tensor, layer in adapter.list_base_model_tensors(self.policy.model):
                here = tensor.detach() if layer is None or not self.merged else adapter.compute_merged_weight(layer).to(tensor.dtype)
                yield name, gather_full(cast_if_matrix(here, dtype))
                del here

    def gather_model(self) -> Any:
        """Return a full copy in this process, for a sampler that runs the model; the same object each time, with updated weights."""
        if self._model_copy is None:
            with MODEL_LOAD_LOCK, torch.random.fork_rng(devices=[]):  # the random initial weights are overwritten
                made = AutoModelForCausalLM.from_config(copy.deepcopy(unwrap_adapter(self.policy.model).config), dtype=self.dtype)
                self._model_copy = made.to(next(self.policy.parameters()).device).eval()
        places = self._model_copy.state_dict()
        with torch.no_grad():
            for name, tensor in self.iter_full_tensors(str(self.dtype).removeprefix("torch.")):
                places[name].copy_(tensor)
                del tensor
        return self._model_copy

    def gather_on_main(self) -> dict[str, Tensor]:
        """Gather all tensors in the memory of the main process; return an empty dict in the others."""
        main = torch.distributed.get_rank() == 0
        found = {}
        for name, tensor in self.iter_full_tensors():
            if main:
                found[name] = tensor.detach().cpu().clone()
            del tensor
        return found

    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Write a model folder; the main process writes each tensor once it is gathered. Errors are raised in all processes."""
        main = torch.distributed.get_rank() == 0
        writing = _ShardedSaver(self.policy.model, folder, dtype) if main else None
        for name, tensor in self.iter_tensors(dtype):
            if writing is not None:
                writing.write_tensor(name, tensor)
            del tensor  # free it before the next one is gathered
        fault = "" if writing is None else writing.close()
        if fault := next(filter(None, all_gather_values(fault)), ""):
            raise RlvrError(f"the weights could not be written to {folder}: {fault}")

    def get_meta_tensors(self, dtype: str | None = None) -> dict[str, Tensor]:
        """Return the tensors of the plain model on the meta device: names, dtypes and shapes."""
        reshard(self.policy)
        return _list_merged_shapes(self.policy.model, dtype)

    def iter_tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor under its name in a model file."""
        base = unwrap_adapter(self.policy.model)
        for name, tensor in self.iter_full_tensors(dtype):
            yield from to_file_tensors(base, name, tensor).items()
            del tensor  # free it before the next one is gathered

    def compute_logprobs(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """Compute log-probabilities in one forward pass of the sharded model, in its own precision."""
        return self.policy.run_with_weights(lambda: compute_model_logprobs(self.policy.model, tokens))

    def get_adapter(self) -> LoraAdapter | None:
        """Return the adapter; its small matrices are gathered in all processes."""
        if not adapter.has_adapter(model := self.policy.model):
            return None
        reshard(self.policy)
        return _build_adapter(model, ShardedWeights(self.policy, dtype=self.dtype, merged=False))

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Run `work` in the main process; all processes get its result."""
        return run_in_main_process(work)


class AdaptedModelWeights(Weights):
    """The weights of an unsharded model with a LoRA adapter, which is merged only for checkpoints and for samplers that need it.

    >>> AdaptedModelWeights(model).get_adapter().rank  # doctest: +SKIP
    8
    """

    def __init__(self, model: Any) -> None:
        self._model, self._merged_model = model, None
        self._adapter: LoraAdapter | None = None

    @property
    def trained_model(self) -> Any:
        """The model with its adapted layers."""
        return self._model.get_base_model()

    def gather_model(self) -> Any:
        """Return a plain model with the adapter merged."""
        self._merged_model = adapter.merge_adapter(self._model, self._merged_model)
        return self._merged_model

    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Save the plain model with the adapter merged."""
        PlainWeights(self.gather_model(), run_on_main=run_in_main_process).save(folder, dtype)

    def get_meta_tensors(self, dtype: str | None = None) -> dict[str, Tensor]:
        """Return the tensors of the merged model on the meta device: names, dtypes and shapes; nothing is merged."""
        return _list_merged_shapes(self._model, dtype)

    def iter_tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the merged model."""
        return PlainWeights(self.gather_model()).iter_tensors(dtype)

    def compute_logprobs(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """Compute log-probabilities in one forward pass with the unmerged adapter, as in training."""
        return compute_model_logprobs(self._model, tokens, precision)

    def get_adapter(self) -> LoraAdapter | None:
        """Return the adapter, with base weights that are shared and not copied."""
        if self._adapter is None:
            self._adapter = _build_adapter(self._model, PlainWeights(adapter.remove_adapter(self._model), run_on_main=run_in_main_process))
        return self._adapter

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Run `work` in the main process; all processes get its result."""
        return run_in_main_process(work)


def build_policy_weights(policy: Policy, accelerator: Accelerator) -> Weights:
    """Build the `Weights` of a policy, for the sampler and the checkpoint."""
    if accelerator.is_fsdp2:
        return ShardedWeights.from_policy(policy, accelerator)
    return (
        AdaptedModelWeights(policy.model)
        if adapter.has_adapter(policy.model)
        else PlainWeights(policy.model, run_on_main=run_in_main_process)
    )


def _build_adapter(model: Any, base: Weights) -> LoraAdapter:
    """Build the `LoraAdapter` of a model: base weights and matrices."""

    def save(folder: Path) -> None:
        matrices = adapter.get_adapter_state(model) or {}
        run_in_main_process(lambda: adapter.save_adapter(model, matrices, folder))

    return LoraAdapter(int(model.peft_config[adapter.ADAPTER_NAME].r), base, save)


def unwrap_adapter(model: Any) -> Any:
    """Return the model without its adapter wrapper."""
    return model.get_base_model() if adapter.has_adapter(model) else model


def _list_merged_shapes(model: Any, dtype: str | None) -> dict[str, Tensor]:
    """Return names, dtypes and shapes of a model's tensors in its files, with its adapter merged."""
    return build_file_meta_tensors(
        unwrap_adapter(model), ((name, tensor) for name, tensor, _ in adapter.list_base_model_tensors(model)), dtype
    )


class _ShardedSaver:
    """Writes a model folder tensor by tensor in the main process. After a failure it ignores further tensors."""

    def __init__(self, model: Any, folder: Path, dtype: str | None) -> None:
        self.model, self.error = unwrap_adapter(model), ""
        self.file: TensorWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.model.config.save_pretrained(folder)
            if self.model.generation_config is not None:
                self.model.generation_config.save_pretrained(folder)
            self.file = TensorWriter(folder / "model.safetensors", _list_merged_shapes(model, dtype))
        except Exception as error:  # a full disk, and whatever a family's configuration raises
            self.error = f"{type(error).__name__}: {error}"

    def write_tensor(self, name: str, tensor: Tensor) -> None:
        """Write the next tensor."""
        if self.error or self.file is None:
            return
        try:
            self.file.write_tensor(name, tensor)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def close(self) -> str:
        """Close the file; return what failed, or an empty string."""
        try:
            with self.file or nullcontext():
                if self.error:
                    raise OSError(self.error)
        except Exception as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        return self.error
