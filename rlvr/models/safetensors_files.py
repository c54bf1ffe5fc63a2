"""Safetensors files, read by rows and written one tensor at a time, so that a full model is never in memory.

The format is a length in eight bytes, a JSON table of names, types, shapes and offsets, and then the bytes of all tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from rlvr.errors import ConfigError

DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


DTYPES_BY_NAME = {name: kind for kind, name in DTYPE_NAMES.items()}


class _TensorLocation(NamedTuple):
    """The dtype, shape and position of a tensor in a file."""

    dtype: torch.dtype
    shape: list[int]
    offset: int


class TensorFolderReader:
    """The tensors of a Hugging Face model folder, with access to single rows.

    Files are read instead of memory-mapped, because a private mapping counts in full toward memory limits.

    >>> TensorFolderReader("checkpoints/last").read_slice("model.norm.weight", (slice(0, 16),)).shape  # doctest: +SKIP
    torch.Size([16])
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._headers: dict[str, dict[str, _TensorLocation]] = {}
        index = self.folder / "model.safetensors.index.json"
        single = self.folder / "model.safetensors"
        self._files: dict[str, str] = {}
        if index.is_file():
            self._files = dict(json.loads(index.read_text("utf-8"))["weight_map"])
        elif single.is_file():
            self._files = dict.fromkeys(self._read_header(single.name), single.name)

    def has_tensors(self, expected: Mapping[str, Sequence[int]]) -> bool:
        """Return whether the folder has all expected tensors with exactly the expected shapes."""
        places = {name: self._read_header(self._files[name]).get(name) for name in expected if name in self._files}
        return all((place := places.get(name)) is not None and place.shape == list(shape) for name, shape in expected.items())

    def read_slice(self, name: str, slices: tuple[slice, ...]) -> Tensor:
        """Read a slice of one tensor; only the bytes of its rows are read."""
        dtype, shape, begin = self._read_header(self._files[name])[name]
        first, last, _ = slices[0].indices(shape[0]) if slices else (0, 1, 1)
        found = torch.empty([max(0, last - first), *shape[1:]] if slices else shape, dtype=dtype)
        if found.numel():
            row = math.prod(shape[1:]) * dtype.itemsize
            with (self.folder / self._files[name]).open("rb", buffering=0) as file:
                file.seek(begin + first * row)
                data = memoryview(found.reshape(-1).view(torch.uint8).numpy().data)
                while data:
                    if not (count := file.readinto(data)):
                        raise _build_file_error(file.name, "it ends too early")
                    data = data[count:]
        return found[(slice(None), *slices[1:])] if len(slices) > 1 else found

    def _read_header(self, name: str) -> dict[str, _TensorLocation]:
        """Read the header of one file. Tensors with dtypes that torch lacks are omitted."""
        if name not in self._headers:
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    size, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
                    if length > size:
                        raise ValueError("it ends too early")
                    table = json.loads(file.read(length))
                table.pop("__metadata__", None)
                if size < 8 + length + max((entry["data_offsets"][1] for entry in table.values()), default=0):
                    raise ValueError("it ends too early")
                self._headers[name] = {
                    key: _TensorLocation(DTYPES_BY_NAME[entry["dtype"]], list(entry["shape"]), 8 + length + entry["data_offsets"][0])
                    for key, entry in table.items()
                    if entry["dtype"] in DTYPES_BY_NAME
                }
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise _build_file_error(path, str(error)) from error
        return self._headers[name]


def _build_file_error(path: object, why: str) -> ConfigError:
    return ConfigError(f"{path} is not a complete safetensors file: {why}; is it an incomplete copy?")


class TensorWriter:
    """Writes one safetensors file, tensor by tensor, in the declared order.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with TensorWriter(f"{folder}/model.safetensors", {"w": torch.empty(2, device="meta")}) as file:
    ...         file.write_tensor("w", torch.ones(2))
    ...     TensorFolderReader(folder).read_slice("w", (slice(0, 1),))
    tensor([1.])
    """

    def __init__(self, path: str | Path, expected: Mapping[str, Tensor]) -> None:
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, like in expected.items():
            begin, end = end, end + like.numel() * like.element_size()
            table[name] = {"dtype": DTYPE_NAMES[like.dtype], "shape": list(like.shape), "data_offsets": [begin, end]}
        self._expected = iter(expected.items())
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._file = Path(path).open("wb")  # noqa: SIM115 -- closed by __exit__
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write_tensor(self, name: str, tensor: Tensor) -> None:
        """Write the next tensor."""
        expected, like = next(self._expected)
        if (expected, like.shape, like.dtype) != (name, tensor.shape, tensor.dtype):
            raise ValueError(f"{name} {tuple(tensor.shape)} {tensor.dtype} was written, but {expected} with {like} was expected")
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        if plain.numel():
            self._file.write(plain.view(torch.uint8).numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if kind is None and (missing := [name for name, _ in self._expected]):
            raise ValueError(f"{len(missing)} declared tensors were not written, such as {missing[0]}")
