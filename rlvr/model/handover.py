"""Weights that are whole in this process, as a sampler receives them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlvr.contracts.weights import Weights
from rlvr.model.device import computing_in

T = TypeVar("T")


class Plain(Weights):
    """A model that this process holds completely.

    >>> Plain(model).model() is model                                   # doctest: +SKIP
    True
    """

    def __init__(self, model: Any, *, once: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        """`once` runs something in the main process of several; None: there is one."""
        self._model, self._once = model, once

    @property
    def structure(self) -> Any:
        """The model itself."""
        return self._model

    def model(self) -> Any:
        """The model itself: nothing is copied."""
        return self._model

    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Write it as transformers does."""

        def written() -> None:
            self._model.save_pretrained(folder, state_dict=in_precision(self._model, dtype))

        self.once(written)

    def shapes(self, dtype: str | None = None) -> dict[str, Any]:
        """Names, types and shapes."""
        return announced(self._model, self._named(), dtype)

    def tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Any]]:
        """The model's own tensors; those in another precision are copies, one at a time."""
        for name, tensor in self._named():
            yield from as_saved(self._model, name, lowered(tensor.detach(), dtype)).items()

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Tied weights come once, under their first name."""
        seen: set[int] = set()
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def score(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """One forward pass."""
        return trainer_scores(self._model, tokens, precision)

    def once(self, work: Callable[[], T]) -> T:
        """Run it here, or in the main process if there are several."""
        result: T = work() if self._once is None else self._once(work)
        return result


@torch.no_grad()
def trainer_scores(model: Any, tokens: Sequence[int], precision: str | None = None) -> list[float]:
    """The model's log-probability of each token except the first, from one forward pass in a precision."""
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(tokens)], device=model.device)
        with computing_in(model, precision):
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        logprobs = logits.float().log_softmax(-1)
        return [float(x) for x in logprobs.gather(1, ids[0, 1:, None])[:, 0]]
    finally:
        model.train(training)


def lowered(weight: torch.Tensor, dtype: str | None) -> torch.Tensor:
    """A weight in the engine's precision. Vectors are not converted: they are small, and engines keep some of them (in routers
    and state-space layers) in float32.
    """
    return weight.to(getattr(torch, dtype)) if dtype and weight.is_floating_point() and weight.ndim > 1 else weight


def in_precision(model: Any, dtype: str | None) -> dict[str, torch.Tensor] | None:
    """The weights in the engine's precision, on the CPU: bfloat16 halves what is written and read. None if they are in it already."""
    if dtype is None or getattr(torch, dtype) == model.dtype:
        return None
    made: dict[tuple[int, torch.Size], torch.Tensor] = {}
    cast = {}
    for name, weight in model.state_dict().items():
        key = weight.data_ptr(), weight.shape  # tied weights stay tied
        if key not in made:
            made[key] = lowered(weight, dtype).to("cpu")
        cast[name] = made[key]
    return cast


def announced(model: Any, named: Iterable[tuple[str, torch.Tensor]], dtype: str | None) -> dict[str, torch.Tensor]:
    """Tensors with the names, types and shapes that they have in a model's files, without their values."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        found |= as_saved(model, name, lowered(like, dtype))
    return found


def as_saved(model: Any, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """One tensor under the names of the file format: transformers keeps the experts of a layer as one tensor, files have them apart."""
    try:
        loading: Any = importlib.import_module("transformers.core_model_loading")
    except ModuleNotFoundError:  # transformers 4 has the names of the files
        return {name: tensor}
    return dict(loading.revert_weight_conversion(model, {name: tensor}))
