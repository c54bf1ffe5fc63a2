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

from rlvr.contracts import Adapter, Weights
from rlvr.errors import RlvrError
from rlvr.learn.peers.group import gather, in_main
from rlvr.learn.update import adapter
from rlvr.learn.update.policy import Policy
from rlvr.learn.update.shards import folded, whole
from rlvr.model.device import trained_in
from rlvr.model.handover import Plain, announced, as_saved, lowered, trainer_scores
from rlvr.model.tensorfiles import TensorWriter
from rlvr.model.weights import LOADING

T = TypeVar("T")


class Sharded(Weights):
    """The weights of a policy that is sharded over the processes. `dtype` is that of the gathered model.

    >>> Sharded(policy, dtype=torch.bfloat16).save(Path("weights"))     # doctest: +SKIP
    """

    def __init__(self, policy: Policy, *, dtype: torch.dtype, merged: bool = True) -> None:
        """`merged`: merge the adapter, if there is one."""
        self.policy, self.dtype, self.merged = policy, dtype, merged
        self._spare: Any = None

    @classmethod
    def of(cls, policy: Policy, accelerator: Accelerator) -> Sharded:
        """Create the weights of a policy; gathered models have the trainer's compute precision."""
        return cls(policy, dtype=getattr(torch, trained_in(policy.model, accelerator.mixed_precision, accelerator.device)))

    @property
    def structure(self) -> Any:
        """The sharded model."""
        return self.policy.model

    def stream(self, dtype: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor of the plain model, with the adapter merged. Only one is gathered at a time."""
        folded(self.policy)
        with torch.no_grad():
            for name, tensor, layer in adapter.plain_tensors(self.policy.model):
                here = tensor.detach() if layer is None or not self.merged else adapter.merged_weight(layer).to(tensor.dtype)
                yield name, whole(lowered(here, dtype))
                del here

    def model(self) -> Any:
        """Return a full copy in this process, for a sampler that runs the model; the same object each time, with updated weights."""
        if self._spare is None:
            with LOADING, torch.random.fork_rng(devices=[]):  # the random initial weights are overwritten
                made = AutoModelForCausalLM.from_config(copy.deepcopy(base_of(self.policy.model).config), dtype=self.dtype)
                self._spare = made.to(next(self.policy.parameters()).device).eval()
        places = self._spare.state_dict()
        with torch.no_grad():
            for name, tensor in self.stream(str(self.dtype).removeprefix("torch.")):
                places[name].copy_(tensor)
                del tensor
        return self._spare

    def held(self) -> dict[str, Tensor]:
        """Gather all tensors in the memory of the main process; return an empty dict in the others."""
        main = torch.distributed.get_rank() == 0
        found = {}
        for name, tensor in self.stream():
            if main:
                found[name] = tensor.detach().cpu().clone()
            del tensor
        return found

    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Write a model folder; the main process writes each tensor once it is gathered. Errors are raised in all processes."""
        main = torch.distributed.get_rank() == 0
        writing = _Writing(self.policy.model, folder, dtype) if main else None
        for name, tensor in self.tensors(dtype):
            if writing is not None:
                writing.take(name, tensor)
            del tensor  # free it before the next one is gathered
        fault = "" if writing is None else writing.done()
        if fault := next(filter(None, gather(fault)), ""):
            raise RlvrError(f"the weights could not be written to {folder}: {fault}")

    def shapes(self, dtype: str | None = None) -> dict[str, Any]:
        """Return names, dtypes and shapes of the plain model."""
        folded(self.policy)
        return shapes_of(self.policy.model, dtype)

    def tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Any]]:
        """Yield each full tensor under its name in a model file."""
        base = base_of(self.policy.model)
        for name, tensor in self.stream(dtype):
            yield from as_saved(base, name, tensor).items()
            del tensor  # free it before the next one is gathered

    def score(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """Compute log-probabilities in one forward pass of the sharded model, in its own precision."""
        return self.policy.look(lambda: trainer_scores(self.policy.model, tokens))

    def adapter(self) -> Adapter | None:
        """Return the adapter; its small matrices are gathered in all processes."""
        if not adapter.is_on(model := self.policy.model):
            return None
        folded(self.policy)
        return apart(model, Sharded(self.policy, dtype=self.dtype, merged=False))

    def once(self, work: Callable[[], T]) -> T:
        """Run `work` in the main process; all processes get its result."""
        return in_main(work)


class Adapted(Weights):
    """The weights of an unsharded model with an adapter. They are merged only for samplers that need it.

    >>> Adapted(model).adapter().rank                                   # doctest: +SKIP
    8
    """

    def __init__(self, model: Any) -> None:
        self._model, self._spare = model, None
        self._apart: Adapter | None = None

    @property
    def structure(self) -> Any:
        """The model with its adapted layers."""
        return self._model.get_base_model()

    def model(self) -> Any:
        """Return a plain model with the adapter merged."""
        self._spare = adapter.merged(self._model, self._spare)
        return self._spare

    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Save the plain model with the adapter merged."""
        Plain(self.model(), once=in_main).save(folder, dtype)

    def shapes(self, dtype: str | None = None) -> dict[str, Any]:
        """Return names, dtypes and shapes of the merged model."""
        return shapes_of(self._model, dtype)

    def tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the tensors of the merged model."""
        return Plain(self.model()).tensors(dtype)

    def score(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """Compute log-probabilities in one forward pass with the unmerged adapter, as in training."""
        return trainer_scores(self._model, tokens, precision)

    def adapter(self) -> Adapter | None:
        """Return the adapter, with base weights that are shared and not copied."""
        if self._apart is None:
            self._apart = apart(self._model, Plain(adapter.bare(self._model), once=in_main))
        return self._apart

    def once(self, work: Callable[[], T]) -> T:
        """Run `work` in the main process; all processes get its result."""
        return in_main(work)


def handed(policy: Policy, accelerator: Accelerator) -> Weights:
    """Build the `Weights` of a policy, for the sampler and the checkpoint."""
    if accelerator.is_fsdp2:
        return Sharded.of(policy, accelerator)
    return Adapted(policy.model) if adapter.is_on(policy.model) else Plain(policy.model, once=in_main)


def apart(model: Any, base: Weights) -> Adapter:
    """Build the `Adapter` of a model: base weights and matrices."""

    def save(folder: Path) -> None:
        matrices = adapter.weights(model) or {}
        in_main(lambda: adapter.save(model, matrices, folder))

    return Adapter(int(model.peft_config[adapter.NAME].r), base, save)


def base_of(model: Any) -> Any:
    """Return the model without its adapter wrapper."""
    return model.get_base_model() if adapter.is_on(model) else model


def shapes_of(model: Any, dtype: str | None) -> dict[str, Tensor]:
    """Return names, dtypes and shapes of a model's tensors in its files, with its adapter merged."""
    return announced(base_of(model), ((name, tensor) for name, tensor, _ in adapter.plain_tensors(model)), dtype)


class _Writing:
    """Writes a model folder tensor by tensor in the main process. After a failure it ignores further tensors."""

    def __init__(self, model: Any, folder: Path, dtype: str | None) -> None:
        self.model, self.fault = base_of(model), ""
        self.file: TensorWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.model.config.save_pretrained(folder)
            if self.model.generation_config is not None:
                self.model.generation_config.save_pretrained(folder)
            self.file = TensorWriter(folder / "model.safetensors", shapes_of(model, dtype))
        except Exception as error:  # a full disk, and whatever a family's configuration raises
            self.fault = f"{type(error).__name__}: {error}"

    def take(self, name: str, tensor: Tensor) -> None:
        """Write the next tensor."""
        if self.fault or self.file is None:
            return
        try:
            self.file.write(name, tensor)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"

    def done(self) -> str:
        """Close the file; return what failed, or an empty string."""
        try:
            with self.file or nullcontext():
                if self.fault:
                    raise OSError(self.fault)
        except Exception as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"
        return self.fault
