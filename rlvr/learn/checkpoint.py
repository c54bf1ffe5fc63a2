"""Checkpoints: written atomically, and loadable by transformers.

    checkpoints/step-000050/     model.safetensors config.json ... (Hugging Face), learner.pt, progress.json, manifest.json
                                 sharded/ (under FSDP2: the optimizer state, in a file from each process)
    checkpoints/last             a link to the newest

A checkpoint is written under a temporary name, hashed, and then renamed, so it is either complete or absent, even if the run is
killed. The newest two are kept. If the files of one do not match its manifest, the one before is used.

Where memory allows, a checkpoint is copied and then written by a thread, while training continues (`Writer`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.learn.peers.group import lost
from rlvr.model.device import device_random_state

KEPT, HASHED_AT_ONCE = 2, 8
SHARE = 0.5
"""Of the free memory: what a copy of a checkpoint may take."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    >>> Progress(step=50).offsets
    {}
    """

    step: int
    """How many steps are complete."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """The length of each log at that step."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Values that the final report needs: accuracy_before, seconds so far."""


def save(folder: Path, model: Any, tokenizer: Any, state: Mapping[str, Any], progress: Progress) -> Path:
    """Write one checkpoint and make it the last. `state`: tensors and plain values, by component."""
    partial = begin(folder, progress.step)
    with told(partial):
        model.save_pretrained(partial)
    return finish(partial, tokenizer, complete(state), progress)


def complete(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with that of the random numbers of this moment."""
    return {**state, "rng": torch.get_rng_state(), "device_rng": device_random_state()}


def begin(folder: Path, step: int) -> Path:
    """An empty folder for a checkpoint that is being written."""
    partial = folder / "checkpoints" / f".step-{step:06d}.part"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def finish(partial: Path, tokenizer: Any, state: Mapping[str, Any], progress: Progress, *, keep: int | None = KEPT) -> Path:
    """Write what belongs to the weights, flush all to the disk, and make it the last. `state`: a complete one. `keep`: None is all."""
    home = partial.parent
    place = home / f"step-{progress.step:06d}"
    with told(partial):
        _write(partial, tokenizer, state, progress)
    if place.exists():
        shutil.rmtree(place)
    partial.rename(place)
    _point(home / "last", place.name)
    _sync(home)
    for old in _in_order(home.parent)[:-keep] if keep else ():
        shutil.rmtree(old)
    return place


class Writer:
    """Writes one checkpoint at a time in a thread. A failed write is raised at the next step, never lost.

    >>> with Writer(timeout_s=60) as writer:                            # doctest: +SKIP
    ...     writer.start(5, lambda: finish(partial, tokenizer, state, progress))
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self.step = timeout_s, 0
        self._written: Future[None] | None = None

    def start(self, step: int, write: Callable[[], object]) -> None:
        """Begin to write the checkpoint of a step; what `write` reads must not change any more."""
        self.wait()
        done: Future[None] = Future()
        self.step, self._written = step, done

        def work() -> None:
            try:
                write()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, name="checkpoint", daemon=True).start()  # a disk that hangs must not keep the process

    def check(self) -> None:
        """Raise the error of a write that has failed; does not wait."""
        if self._written is not None and self._written.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is complete, and raise its error if it has one."""
        written, self._written = self._written, None
        if written is None:
            return
        try:
            written.result(self.timeout_s)
        except TimeoutError as error:
            raise RlvrError(
                f"the checkpoint of step {self.step} was not written in {self.timeout_s:g} s (train.process_timeout_s); is the disk of "
                "the run folder reachable? Continue with --resume"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.wait()
        else:  # what ended the run is the error to report
            with suppress(Exception):
                self.wait()


def copied(value: Any) -> Any:
    """Plain values and tensors, with the tensors copied to this computer's memory; those that share memory still do.

    >>> copied({"a": [torch.ones(2)], "b": "x"})
    {'a': [tensor([1., 1.])], 'b': 'x'}
    """
    made: dict[tuple[Any, ...], torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            key = _identity(value)
            if key not in made:
                made[key] = value.detach().to("cpu", copy=True)
            return made[key]
        if isinstance(value, Mapping):
            return {name: copy(item) for name, item in value.items()}
        return type(value)(map(copy, value)) if type(value) in (list, tuple) else value

    return copy(value)


def size_of(*values: Any) -> int:
    """How many bytes the tensors in plain values have."""
    found: dict[tuple[Any, ...], int] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[_identity(value)] = value.numel() * value.element_size()
        elif isinstance(value, Mapping | list | tuple):
            for item in value.values() if isinstance(value, Mapping) else value:
                look(item)

    look(values)
    return sum(found.values())


def room() -> int:
    """How many bytes a copy may take: a share of the memory that is free on this computer and in its control group."""
    free = []
    with suppress(OSError, ValueError, IndexError):
        [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
        free.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return int(SHARE * max(0, min(free, default=0)))


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype


@contextmanager
def told(partial: Path) -> Iterator[None]:
    """A clear message where a checkpoint cannot be written; what there is of it is removed."""
    try:
        yield
    except Exception as error:  # each library raises its own error when a disk is full
        if lost(error):
            raise
        shutil.rmtree(partial, ignore_errors=True)
        home, step = partial.parent, int(partial.name.strip(".").removeprefix("step-").removesuffix(".part"))
        raise RlvrError(
            f"the checkpoint of step {step} could not be written to {home}, where {shutil.disk_usage(home).free / 1e9:.1f} GB are "
            f"left: {type(error).__name__}: {error}; free some space, then continue with --resume"
        ) from error


def _write(place: Path, tokenizer: Any, state: Mapping[str, Any], progress: Progress) -> None:
    """Write the files of one checkpoint besides its weights, and flush all to the disk."""
    if tokenizer is not None:
        tokenizer.save_pretrained(place)
    torch.save(state, place / "learner.pt")
    (place / "progress.json").write_text(json.dumps(asdict(progress)), "utf-8")
    (place / "manifest.json").write_text(json.dumps(_hashes(place), indent=2), "utf-8")
    for path in place.rglob("*"):
        _sync(path)


def _in_order(folder: Path) -> list[Path]:
    """A run's checkpoints, sorted by step as numbers; other files in the folder are ignored."""
    found = (folder / "checkpoints").glob("step-*")
    return sorted((place for place in found if place.name.removeprefix("step-").isdecimal()), key=step_of)


def step_of(place: Path) -> int:
    """How many steps were done at a checkpoint.

    >>> step_of(Path("runs/a/checkpoints/step-000050"))
    50
    """
    return int(place.name.removeprefix("step-"))


def any_in(folder: Path) -> bool:
    """Whether a run has written a checkpoint; without one it can only start from the beginning."""
    return bool(_in_order(folder))


def newest(folder: Path) -> Path:
    """The newest complete checkpoint of a run."""
    found = _in_order(folder)
    whole = next(whole_ones(folder), None)
    if whole is None:
        state = f"{len(found)} found, none of them complete" if found else "none was written yet"
        raise NotFound(f"{folder} has no checkpoint to resume from ({state}); start a new run with another --out")
    return whole


def whole_ones(folder: Path) -> Iterator[Path]:
    """The complete checkpoints, the newest first."""
    for place in reversed(_in_order(folder)):
        if not torn(place):
            yield place


def torn(place: Path) -> str:
    """Why a checkpoint cannot be used; empty if it is complete."""
    try:
        manifest = json.loads((place / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read ({error})"
    now = _hashes(place)
    wrong = sorted(name for name in manifest.keys() | now.keys() if manifest.get(name) != now.get(name))
    return f"these files do not match the manifest: {', '.join(wrong)}" if wrong else ""


def read(place: Path) -> tuple[dict[str, Any], Progress]:
    """The components' states and the progress. The model itself is loaded by transformers."""
    with understood(place):
        # mapped and not read: each of several processes copies only the part of the optimizer state that it keeps
        state = torch.load(place / "learner.pt", map_location="cpu", weights_only=True, mmap=True)
        progress = Progress(**json.loads((place / "progress.json").read_text("utf-8")))
        torch.set_rng_state(state.pop("rng").clone())
        device_random_state(state.pop("device_rng", None))
    return state, progress


@contextmanager
def understood(place: Path) -> Iterator[None]:
    """A clear message where a checkpoint's state has another form, as that of an earlier version may have."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RlvrError | torch.OutOfMemoryError) or lost(error):
            raise
        raise ConfigError(
            f"{place} is not a checkpoint of this version of rlvr: {type(error).__name__}: {error}; resume with the version that wrote it "
            f"(versions.json in the run folder), or start a new run with its weights: model.path={place}"
        ) from error


def clean(folder: Path) -> None:
    """Remove files that a killed run left incomplete."""
    for partial in (folder / "checkpoints").glob(".*"):
        if partial.is_dir() and not partial.is_symlink():
            shutil.rmtree(partial)
        else:
            partial.unlink()


def _hashes(place: Path) -> dict[str, str]:
    """The hash of every file except the manifest, by its path in the checkpoint; a tokenizer may write folders too."""
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path != place / "manifest.json"]
    with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
        return {path.relative_to(place).as_posix(): digest for path, digest in zip(files, pool.map(_hash, files), strict=True)}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _point(link: Path, target: str) -> None:
    """Replace a link atomically, so that `last` always exists."""
    fresh = link.with_name(f".{link.name}.part")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
