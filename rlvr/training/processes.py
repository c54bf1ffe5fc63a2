"""Helpers for training in several processes with accelerate; with one process they do nothing.

Group k belongs to process k mod W, which samples it and later trains on it. With `Rollout.main_process_samples`, the main process samples
all groups. After sampling every process has all groups, so decisions that depend on them are the same everywhere. Only the main process
writes. An error in one process stops all, and `train.collective_timeout_s` limits every wait.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, DistributedType
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from rlvr.config.config import RunConfig
from rlvr.errors import ConfigError, RlvrError, format_suggestion
from rlvr.models.device import resolve_device
from rlvr.models.device_defaults import resolve_mixed_precision
from rlvr.training.distributed.group import all_gather_values, init_control_group, is_peer_lost, run_in_main_process
from rlvr.training.distributed.peer_monitor import PeerMonitor
from rlvr.training.update.malloc_settings import keep_freed_memory

S = TypeVar("S")
T = TypeVar("T")
LAUNCH_CONFIG_FOLDER = Path(__file__).parent / "launch"
"""Configurations for `accelerate launch`."""
PROMETHEUS_NAME = "prometheus"
"""The tracker that is a file in the run folder, and none of accelerate's."""
logger = logging.getLogger(__name__)


def build_accelerator(config: RunConfig, folder: Path) -> Accelerator:
    """Build the Accelerator: devices, precision, trackers and processes, as set up by `accelerate launch`."""
    trackers: Any = validate_trackers(config.log.report_to) or None
    if "MASTER_ADDR" in os.environ and "LOCAL_RANK" not in os.environ and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
        raise ConfigError(
            "`accelerate launch --cpu --num_processes N` starts a single process; several on a CPU are started with "
            f"`accelerate launch --config_file {LAUNCH_CONFIG_FOLDER / 'cpu.yaml'} --num_processes N`"
        )
    cpu = not torch.accelerator.is_available()
    if cpu and config.train.mixed_precision == "fp16":
        raise ConfigError("train.mixed_precision is fp16, which has no effect on a CPU; use bf16 or no")
    precision = resolve_mixed_precision(config.train.mixed_precision, resolve_device(), config.model.dtype)
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=config.train.collective_timeout_s))
    accelerator = Accelerator(
        cpu=cpu, mixed_precision=precision, log_with=trackers,
        project_dir=str(folder), kwargs_handlers=[timeout, DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )  # fmt: skip
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and accelerator.device.type == "cpu" and not accelerator.is_fsdp2:
        raise ConfigError(
            "this process was launched to shard the weights (fsdp2.yaml), which accelerate does not do on a CPU: every process would hold all "
            f"of them; launch with `accelerate launch --config_file {LAUNCH_CONFIG_FOLDER / 'cpu.yaml'} --num_processes N`"
        )
    if accelerator.num_processes > 1:
        init_control_group(config.train.collective_timeout_s)
    if accelerator.distributed_type is DistributedType.DEEPSPEED:
        configure_deepspeed(accelerator, config)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    return accelerator


def validate_trackers(names: Sequence[str]) -> list[str]:
    """Return the trackers of `log.report_to`; raise ConfigError if one is unknown or not installed."""
    names = [name for name in names if name != PROMETHEUS_NAME]
    known, installed = ({str(getattr(name, "value", name)) for name in names} for names in (LOGGER_TYPE_TO_CLASS, get_available_trackers()))
    for name in names:
        if name not in known:
            raise ConfigError(f"log.report_to names {name!r}; {format_suggestion(name, known | {PROMETHEUS_NAME})}")
        if name not in installed:
            raise ConfigError(f"log.report_to names {name!r}, which is not installed; `pip install {name}`, or leave it out")
    return list(names)


def configure_deepspeed(accelerator: Accelerator, config: RunConfig) -> None:
    """Give DeepSpeed the settings that it applies instead of the trainer: gradient clipping and batch size."""
    told: Any = accelerator.state.deepspeed_plugin
    told.deepspeed_config |= {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": config.train.max_grad_norm}


def get_local_shard(accelerator: Accelerator, items: Sequence[T]) -> list[T]:
    """Return the shard of a sequence that belongs to this process."""
    return list(items[accelerator.process_index :: accelerator.num_processes])


def map_sharded(accelerator: Accelerator, items: Sequence[S], work: Callable[[Sequence[S]], Sequence[T]], *, on_main_only: bool) -> list[T]:
    """Run `work` in each process on its shard, or with `on_main_only` in the main process on everything; all processes get all results."""
    if on_main_only:
        return run_on_main(accelerator, lambda: list(work(items)))
    return run_and_all_gather(accelerator, lambda: work(get_local_shard(accelerator, items)))


def run_and_all_gather(accelerator: Accelerator, work: Callable[[], Sequence[T]]) -> list[T]:
    """Run `work` in each process and all-gather the results, in order. If one process fails, all raise its error."""
    return list(work()) if accelerator.num_processes == 1 else _run_and_gather(work)


def _run_and_gather(work: Callable[[], Sequence[T]]) -> list[T]:
    done: Sequence[T] = ()
    fault = ""
    try:
        done = work()
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    shares = all_gather_values((done, fault))
    for rank, (_, said) in enumerate(shares):
        if said:
            raise RlvrError(f"process {rank} of {len(shares)} failed: {said}")
    return [shares[k % len(shares)][0][k // len(shares)] for k in range(sum(len(part) for part, _ in shares))]


def run_on_main(accelerator: Accelerator, work: Callable[[], T]) -> T:
    """Run `work` in the main process; all processes get its result or raise its error."""
    return work() if accelerator.num_processes == 1 else run_in_main_process(work)


@contextmanager
def monitor_peers(accelerator: Accelerator) -> Iterator[None]:
    """Raise a clear error if another process is lost inside the block, with any backend. Enter it last."""
    with wrap_peer_loss_errors(accelerator):
        watch = PeerMonitor.connect_all()
    if watch is None and accelerator.num_processes > 1 and accelerator.is_main_process:
        logger.warning(
            "the processes could not connect to the main one, so a lost process is noticed by the backend only; open the ports between "
            "the machines"
        )
    with watch or nullcontext(), wrap_peer_loss_errors(accelerator, watch):
        yield


@contextmanager
def wrap_peer_loss_errors(accelerator: Accelerator, monitor: PeerMonitor | None = None) -> Iterator[None]:
    """Convert the network error after the loss of another process to an RlvrError that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not is_peer_lost(error):
            raise
        who = monitor.wait_for_failure() if monitor is not None else ""
        raise RlvrError(
            f"process {accelerator.process_index} of {accelerator.num_processes} waited for another process that exited or did not answer "
            f"in train.collective_timeout_s{': ' if who else ''}{who}; see its message, raise the limit if it was only slow, then continue "
            f"with --resume ({' '.join(str(error).split())[-160:]})"
        ) from error
