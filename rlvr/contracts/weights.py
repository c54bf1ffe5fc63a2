"""The trainer's weights as a sampler receives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # torch is heavy and optional; this module is neither
    from torch import Tensor

T = TypeVar("T")


class Weights(ABC):
    """The current weights of the policy, in one process or sharded over several. Its methods are collective operations."""

    @property
    @abstractmethod
    def trained_model(self) -> Any:
        """The model, perhaps with sharded tensors, for reading its configuration and module structure.

        Use `gather_model` for one that can be run.
        """

    @abstractmethod
    def gather_model(self) -> Any:
        """Return a model with these weights that can be run. If the weights are sharded, each process gets a full copy."""

    def gather_on_main(self) -> Mapping[str, Tensor]:
        """Return the full tensors of the plain model by their names in it. If the weights are sharded, only the main process has them, in
        host memory, and the others get an empty mapping.
        """
        return dict(self.gather_model().state_dict(keep_vars=True))

    @abstractmethod
    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Write a folder for transformers and vLLM, in the main process. `dtype` is that of the matrices; None keeps it."""

    @abstractmethod
    def get_meta_tensors(self, dtype: str | None = None) -> dict[str, Tensor]:
        """Return the tensors that `iter_tensors` yields, by name, on the meta device; nothing is gathered or copied."""

    @abstractmethod
    def iter_tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield each full tensor under its name in a model file.

        A tensor is valid until the next one. All processes iterate together.
        """

    @abstractmethod
    def compute_logprobs(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """Compute the log-probability of each token except the first, as in training, in the given compute precision."""

    def get_adapter(self) -> LoraAdapter | None:
        """Return the LoRA adapter, for engines that apply it themselves; None if there is none."""
        return None

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Run `work` in the main process only; all processes get its result or raise its error."""
        return work()


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter: frozen base weights, which are sent once, and small matrices, which are sent after every update."""

    rank: int
    base: Weights
    """The frozen base model, without the matrices."""
    save: Callable[[Path], None]
    """Writes the matrices in the format of peft. A collective operation; the main process writes."""
