"""Checkpoints: written atomically, and loadable by transformers.

    checkpoints/step-000050/     model.safetensors config.json ... (Hugging Face), learner.pt, progress.json, manifest.json
                                 sharded/ (under FSDP2: the optimizer state, in a file from each process)
    checkpoints/last             a link to the newest

A checkpoint is written under a temporary name, hashed, and then renamed, so it is either complete or absent, even if the run is
killed. By default the newest two are kept, the newest one from the best steps so far, and where checkpoints are frequent an older one, from
before any trouble that can still show. If the files of a checkpoint do not match its manifest, the previous one is used.

If memory allows, a checkpoint is copied and then written by a thread while training continues (`CheckpointWriter`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open

from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.models.device import restore_and_get_device_rng_state
from rlvr.training.distributed.group import is_peer_lost

DEFAULT_SAVE_TOTAL_LIMIT, NUM_HASH_WORKERS = 2, 8
MAX_COPY_MEMORY_FRACTION = 0.5
"""The maximum fraction of the free memory for a copy of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    >>> Progress(50).log_offsets
    {}
    """

    num_completed_steps: int
    """The number of completed steps."""
    log_offsets: Mapping[str, int] = field(default_factory=dict)
    """The length of each log file at that step."""
    report_values: Mapping[str, Any] = field(default_factory=dict)
    """Values for the final report: accuracy_before, seconds so far."""


def save_checkpoint(folder: Path, model: Any, tokenizer: Any, state: Mapping[str, Any], progress: Progress) -> Path:
    """Write a checkpoint and make it the last. `state` has tensors and plain values, by component."""
    partial = create_partial_folder(folder, progress.num_completed_steps)
    with handle_write_errors(partial):
        model.save_pretrained(partial)
    return publish_checkpoint(partial, tokenizer, add_random_state(state), progress)


def add_random_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Add the current state of the random generators to a state."""
    return {**state, "rng": torch.get_rng_state(), "device_rng": restore_and_get_device_rng_state()}


def create_partial_folder(folder: Path, step: int) -> Path:
    """Create an empty folder for a new checkpoint."""
    partial = folder / "checkpoints" / f".step-{step:06d}.part"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def publish_checkpoint(
    partial: Path,
    tokenizer: Any,
    state: Mapping[str, Any],
    progress: Progress,
    *,
    save_total_limit: int | None = DEFAULT_SAVE_TOTAL_LIMIT,
    best_reward_step: int = -1,
    safe_step: int = -1,
    verified_step: int = -1,
) -> Path:
    """Write the state next to the weights, flush to disk, and publish the checkpoint.

    `save_total_limit`: how many to keep; None for all. The newest ones up to `best_reward_step`, up to `safe_step` and up to
    `verified_step` are kept besides.
    """
    home = partial.parent
    place = home / f"step-{progress.num_completed_steps:06d}"
    with handle_write_errors(partial):
        _write_files(partial, tokenizer, state, progress)
    if place.exists():
        shutil.rmtree(place)
    partial.rename(place)
    _replace_link(home / "last", place.name)
    _fsync(home)
    found = _list_checkpoints(home.parent)
    for old in set(found) - _choose_kept(found, save_total_limit, best_reward_step, (safe_step, verified_step)):
        shutil.rmtree(old)
    return place


def _choose_kept(found: list[Path], save_total_limit: int | None, best_reward_step: int, good_steps: Sequence[int]) -> set[Path]:
    """Choose the checkpoints that stay."""
    if not save_total_limit:
        return set(found)
    kept = {*found[-save_total_limit:], *[place for place in found if parse_step(place) <= best_reward_step][-1:]}
    for step in good_steps:
        if step >= 0:
            good = max(1, sum(parse_step(place) <= step for place in found))
            kept |= {*found[good - 1 : good + 1]}  # with the next one, which takes its place later
    return kept


def set_aside_checkpoints_after(folder: Path, step: int) -> int:
    """Set aside the checkpoints after a step, so that a resume goes on from the newest one up to it; return the step of that one.

    If all are later, or have weights that are not finite, the oldest stays.
    """
    found = _list_checkpoints(folder)
    usable = (place for place in reversed(found) if parse_step(place) <= step and not find_damage(place) and _has_finite_weights(place))
    stays = next(usable, found[0])
    for place in found:
        if parse_step(place) > parse_step(stays):
            aside = place.with_name(f"set-aside-{place.name}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
    _replace_link(stays.parent / "last", stays.name)
    return parse_step(stays)


def _has_finite_weights(checkpoint_folder: Path) -> bool:
    for path in checkpoint_folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as weights:
            if not all(bool(weights.get_tensor(name).isfinite().all()) for name in weights.keys()):  # noqa: SIM118
                return False
    return True


class CheckpointWriter:
    """Writes one checkpoint at a time, in a thread.

    The error of a failed write is raised at the first step after it.

    >>> with CheckpointWriter(write_timeout_s=60) as writer:  # doctest: +SKIP
    ...     writer.start_write(5, lambda: publish_checkpoint(partial, tokenizer, state, progress))
    """

    def __init__(self, write_timeout_s: float) -> None:
        self.write_timeout_s, self.step = write_timeout_s, 0
        self._pending_write: Future[None] | None = None

    def start_write(self, step: int, write: Callable[[], object]) -> None:
        """Start writing the checkpoint of a step; `write` must not read mutable state."""
        self.wait_for_write()
        done: Future[None] = Future()
        self.step, self._pending_write = step, done

        def work() -> None:
            try:
                write()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, name="checkpoint", daemon=True).start()  # a daemon, so that a hanging disk does not block the exit

    def raise_if_failed(self) -> None:
        """Raise the error of a failed write, without waiting."""
        if self._pending_write is not None and self._pending_write.done():
            self.wait_for_write()

    def wait_for_write(self) -> None:
        """Wait until the checkpoint is complete, and raise its error if it has one."""
        written, self._pending_write = self._pending_write, None
        if written is None:
            return
        try:
            written.result(self.write_timeout_s)
        except TimeoutError as error:
            raise RlvrError(
                f"the checkpoint of step {self.step} was not written in {self.write_timeout_s:g} s (train.collective_timeout_s); is the disk of "
                "the run folder reachable? Continue with --resume"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.wait_for_write()
        else:  # keep the original error
            with suppress(Exception):
                self.wait_for_write()


def copy_to_host(value: Any) -> Any:
    """Copy plain values and tensors, with tensors in host memory; shared memory stays shared.

    >>> copy_to_host({"a": [torch.ones(2)], "b": "x"})
    {'a': [tensor([1., 1.])], 'b': 'x'}
    """
    made: dict[tuple[Any, ...], torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            key = _tensor_identity(value)
            if key not in made:
                made[key] = value.detach().to("cpu", copy=True)
            return made[key]
        if isinstance(value, Mapping):
            return {name: copy(item) for name, item in value.items()}
        return type(value)(map(copy, value)) if type(value) in (list, tuple) else value

    return copy(value)


def count_tensor_bytes(*values: Any) -> int:
    """Return the total size in bytes of the tensors in nested values."""
    found: dict[tuple[Any, ...], int] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[_tensor_identity(value)] = value.numel() * value.element_size()
        elif isinstance(value, Mapping | list | tuple):
            for item in value.values() if isinstance(value, Mapping) else value:
                look(item)

    look(values)
    return sum(found.values())


def measure_copy_budget_bytes() -> int:
    """Return how many bytes a copy may use: a fraction of the free memory of the machine and its control group."""
    free = []
    with suppress(OSError, ValueError, IndexError):
        [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
        free.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return int(MAX_COPY_MEMORY_FRACTION * max(0, min(free, default=0)))


def _tensor_identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype


@contextmanager
def handle_write_errors(partial: Path) -> Iterator[None]:
    """Remove the partial checkpoint and raise a clear RlvrError if writing fails."""
    try:
        yield
    except Exception as error:  # each library raises its own error when a disk is full
        if is_peer_lost(error):
            raise
        shutil.rmtree(partial, ignore_errors=True)
        home, step = partial.parent, int(partial.name.strip(".").removeprefix("step-").removesuffix(".part"))
        raise RlvrError(
            f"the checkpoint of step {step} could not be written to {home}, where {shutil.disk_usage(home).free / 1e9:.1f} GB are "
            f"left: {type(error).__name__}: {error}; free some space, then continue with --resume"
        ) from error


def _write_files(checkpoint_folder: Path, tokenizer: Any, state: Mapping[str, Any], progress: Progress) -> None:
    """Write the files of a checkpoint other than its weights, and flush all to disk."""
    if tokenizer is not None:
        tokenizer.save_pretrained(checkpoint_folder)
    torch.save(state, checkpoint_folder / "learner.pt")
    (checkpoint_folder / "progress.json").write_text(json.dumps(asdict(progress)), "utf-8")
    (checkpoint_folder / "manifest.json").write_text(json.dumps(_hash_files(checkpoint_folder), indent=2), "utf-8")
    for path in checkpoint_folder.rglob("*"):
        _fsync(path)


def _list_checkpoints(folder: Path) -> list[Path]:
    """List a run's checkpoints, sorted by step; other files are ignored."""
    found = (folder / "checkpoints").glob("step-*")
    return sorted((place for place in found if place.name.removeprefix("step-").isdecimal()), key=parse_step)


def parse_step(checkpoint_folder: Path) -> int:
    """Parse the number of completed steps from the name of a checkpoint.

    >>> parse_step(Path("runs/a/checkpoints/step-000050"))
    50
    """
    return int(checkpoint_folder.name.removeprefix("step-"))


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run has written a checkpoint."""
    return bool(_list_checkpoints(folder))


def find_newest_checkpoint(folder: Path) -> Path:
    """Return the newest complete checkpoint of a run."""
    found = _list_checkpoints(folder)
    whole = next(iter_complete_checkpoints(folder), None)
    if whole is None:
        state = f"{len(found)} found, none of them complete" if found else "none was written yet"
        raise NotFound(f"{folder} has no checkpoint to resume from ({state}); start a new run with another --out")
    return whole


def iter_complete_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the complete checkpoints, newest first."""
    for place in reversed(_list_checkpoints(folder)):
        if not find_damage(place):
            yield place


def describe_skipped(folder: Path, used: Path) -> list[str]:
    """Describe the checkpoints that are newer than the one that a resume uses, and why they cannot be used."""
    newer = (place for place in reversed(_list_checkpoints(folder)) if parse_step(place) > parse_step(used))
    return [f"{place} is passed over: {damage}" for place in newer if (damage := find_damage(place))]


def find_damage(checkpoint_folder: Path) -> str:
    """Return why a checkpoint cannot be used; empty if it is complete."""
    path = checkpoint_folder / "manifest.json"
    try:
        if path.exists() and not path.is_file():
            return "its manifest is no file"  # reading a pipe would wait for ever
        manifest = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"its manifest cannot be read ({error})"
    if not isinstance(manifest, dict):
        return f"its manifest is {type(manifest).__name__}, not a mapping of files to their checksums"
    try:
        now = _hash_files(checkpoint_folder)
    except OSError as error:
        return f"its files cannot be read ({error})"
    wrong = sorted(name for name in manifest.keys() | now.keys() if manifest.get(name) != now.get(name))
    return f"these files do not match the manifest: {', '.join(wrong)}" if wrong else ""


def load_checkpoint_state(checkpoint_folder: Path) -> tuple[dict[str, Any], Progress]:
    """Load the components' states and the progress. The model itself is loaded by transformers."""
    with handle_load_errors(checkpoint_folder):
        # memory-mapped: each process copies only its part of the optimizer state
        state = torch.load(checkpoint_folder / "learner.pt", map_location="cpu", weights_only=True, mmap=True)
        progress = Progress(**json.loads((checkpoint_folder / "progress.json").read_text("utf-8")))
        torch.set_rng_state(state.pop("rng").clone())
        restore_and_get_device_rng_state(state.pop("device_rng", None))
    return state, progress


def find_unloadable_value(state: Any, place: str = "") -> str:
    """Return what in a state cannot be loaded again, as text; "" if everything can: a checkpoint is loaded without running code of its own.

    >>> find_unloadable_value({"batch": [1, {"end": print}]})
    "a builtin_function_or_method at ['batch'][1]['end']"
    """
    if isinstance(state, Mapping):
        return next(filter(None, (find_unloadable_value(value, f"{place}[{name!r}]") for name, value in state.items())), "")
    if type(state) in (list, tuple):
        return next(filter(None, (find_unloadable_value(value, f"{place}[{i}]") for i, value in enumerate(state))), "")
    if state is None or type(state) in (str, bytes, bool, int, float) or isinstance(state, torch.Tensor):
        return ""
    return f"a {type(state).__name__} at {place or 'its top'}"


@contextmanager
def handle_load_errors(checkpoint_folder: Path) -> Iterator[None]:
    """Raise a clear ConfigError if a checkpoint's state has another format, such as that of an earlier version."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RlvrError | torch.OutOfMemoryError) or is_peer_lost(error):
            raise
        raise ConfigError(
            f"{checkpoint_folder} is not a checkpoint of this version of rlvr: {type(error).__name__}: {error}; resume with the version that wrote it "
            f"(versions.json in the run folder), or start a new run with its weights: model.path={checkpoint_folder}"
        ) from error


def remove_partial_checkpoints(folder: Path) -> None:
    """Remove files that a killed run left incomplete."""
    for partial in (folder / "checkpoints").glob(".*"):
        if partial.is_dir() and not partial.is_symlink():
            shutil.rmtree(partial)
        else:
            partial.unlink()


def _hash_files(checkpoint_folder: Path) -> dict[str, str]:
    """Hash every file except the manifest, by its path in the checkpoint."""
    files = [path for path in sorted(checkpoint_folder.rglob("*")) if path.is_file() and path != checkpoint_folder / "manifest.json"]
    with ThreadPoolExecutor(NUM_HASH_WORKERS) as pool:
        return {
            path.relative_to(checkpoint_folder).as_posix(): digest for path, digest in zip(files, pool.map(_hash_file, files), strict=True)
        }


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace_link(link: Path, target: str) -> None:
    """Replace a link atomically, so that `last` always exists."""
    fresh = link.with_name(f".{link.name}.part")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
