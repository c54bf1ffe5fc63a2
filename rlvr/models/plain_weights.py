"""The `Weights` of a model that is complete in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlvr.contracts.weights import Weights
from rlvr.models.device import autocast_to

T = TypeVar("T")


class PlainWeights(Weights):
    """The weights of an unsharded model without an adapter."""

    def __init__(self, model: Any, *, run_on_main: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        """`run_on_main` runs a function in the main process only; None for a single process."""
        self._model, self._run_on_main = model, run_on_main

    @property
    def trained_model(self) -> Any:
        """The model itself, to read its module tree and config; its forward pass may be run."""
        return self._model

    def gather_model(self) -> Any:
        """Return the model itself, without a copy."""
        return self._model

    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Save the model with transformers."""

        def written() -> None:
            self._model.save_pretrained(folder, state_dict=cast_state_dict(self._model, dtype))

        self.run_on_main(written)

    def get_meta_tensors(self, dtype: str | None = None) -> dict[str, torch.Tensor]:
        """Return the saved tensors on the meta device: names, dtypes and shapes."""
        return build_file_meta_tensors(self._model, self._iter_unique_tensors(), dtype)

    def iter_tensors(self, dtype: str | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the model's own tensors; converted ones are copies, one at a time."""
        for name, tensor in self._iter_unique_tensors():
            yield from to_file_tensors(self._model, name, cast_if_matrix(tensor.detach(), dtype)).items()

    def _iter_unique_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors; tied weights once, under their first name."""
        seen: set[int] = set()
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def compute_logprobs(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """Compute log-probabilities in one forward pass."""
        return compute_model_logprobs(self._model, tokens, precision)

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Run `work` here, or in the main process if there are several."""
        result: T = work() if self._run_on_main is None else self._run_on_main(work)
        return result


@torch.no_grad()
def compute_model_logprobs(model: Any, tokens: Sequence[int], precision: str | None = None) -> list[float]:
    """Compute the log-probability of each token except the first, in one forward pass in a precision."""
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(tokens)], device=model.device)
        with autocast_to(model, precision):
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        logprobs = logits.float().log_softmax(-1)
        return [float(x) for x in logprobs.gather(1, ids[0, 1:, None])[:, 0]]
    finally:
        model.train(training)


def cast_if_matrix(weight: torch.Tensor, dtype: str | None) -> torch.Tensor:
    """Cast a matrix to the engine's precision. Vectors are not converted: engines keep some of them in float32."""
    return weight.to(getattr(torch, dtype)) if dtype and weight.is_floating_point() and weight.ndim > 1 else weight


def cast_state_dict(model: Any, dtype: str | None) -> dict[str, torch.Tensor] | None:
    """Cast the weights to the engine's precision, on the CPU; None if they already have it."""
    if dtype is None or getattr(torch, dtype) == model.dtype:
        return None
    made: dict[tuple[int, torch.Size], torch.Tensor] = {}
    cast = {}
    for name, weight in model.state_dict().items():
        key = weight.data_ptr(), weight.shape  # tied weights stay tied
        if key not in made:
            made[key] = cast_if_matrix(weight, dtype).to("cpu")
        cast[name] = made[key]
    return cast


def build_file_meta_tensors(model: Any, named_tensors: Iterable[tuple[str, torch.Tensor]], dtype: str | None) -> dict[str, torch.Tensor]:
    """Return meta tensors with the names, dtypes and shapes of a model's files."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named_tensors:
        like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        found |= to_file_tensors(model, name, cast_if_matrix(like, dtype))
    return found


def to_file_tensors(model: Any, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Convert one tensor to its file names: transformers fuses the experts of a layer, files store them separately."""
    try:
        loading: Any = importlib.import_module("transformers.core_model_loading")
    except ModuleNotFoundError:  # in transformers 4, names equal file names
        return {name: tensor}
    return dict(loading.revert_weight_conversion(model, {name: tensor}))
