"""The trainer's weights as a sampler receives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Weights(ABC):
    """The current weights of the policy, whole in one process or sharded over several. All processes call its methods together."""

    @property
    @abstractmethod
    def structure(self) -> Any:
        """The model for its configuration and its modules; its tensors may be sharded, and it must not be run."""

    @abstractmethod
    def model(self) -> Any:
        """A plain model with these weights, which can be run. Where weights are sharded, each process gets a copy of its own."""

    @abstractmethod
    def save(self, folder: Path, dtype: str | None = None) -> None:
        """Write a folder that transformers and vLLM load; the main process writes. `dtype`: of its matrices; None: as they are."""

    @abstractmethod
    def shapes(self, dtype: str | None = None) -> dict[str, Any]:
        """What `tensors` yields, by name, on the meta device: nothing is gathered or copied."""

    @abstractmethod
    def tensors(self, dtype: str | None = None) -> Iterator[tuple[str, Any]]:
        """Each tensor under the name that it has in a model's files, whole until the next one. All processes iterate together."""

    @abstractmethod
    def score(self, tokens: Sequence[int], precision: str | None = None) -> list[float]:
        """The log-probability of each token except the first, computed as in training; `precision`: that of the computation."""

    def adapter(self) -> Adapter | None:
        """The trained matrices alone, for engines that apply them by themselves; None: there are none."""
        return None

    def once(self, work: Callable[[], T]) -> T:
        """Run something in the main process only; all processes get its result or raise its error."""
        return work()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A policy in two parts: frozen weights, which are sent once, and small matrices, which are sent after every update.

    >>> Adapter(rank=8, base=weights, save=print).save(Path("adapter"))         # doctest: +SKIP
    """

    rank: int
    base: Weights
    """The model without the matrices; it never changes."""
    save: Callable[[Path], None]
    """Writes the matrices in the format of peft; all processes call it together, and the main one writes."""
