"""Weight loading in the workers of an engine: each reads shared files by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open


class WeightReloadExtension:
    """Extension of vLLM's workers: every process of an engine reads the weights by itself, from shared memory."""

    def reload_from_folder(self, folder: str, second_names: dict[str, str]) -> None:
        """Load the tensors in a folder; `second_names` maps a tensor to the name under which it is loaded a second time."""
        self.reload_weights(weights_iterator=iter_tensors(folder, second_names))  # type: ignore[attr-defined]


def iter_tensors(folder: str, second_names: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a model's folder, one at a time."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- it is no mapping
                tensor = file.get_tensor(name)
                yield name, tensor
                if name in second_names:
                    yield second_names[name], tensor
