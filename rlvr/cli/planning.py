"""`rlvr doctor --plan RECIPE`: estimate whether a training run fits into the memory of a device, and what to change."""

from __future__ import annotations

import os

from rich.text import Text

from rlvr.cli import screen
from rlvr.errors import ConfigError, MissingExtra
from rlvr.runs.tables import make_table


def check_memory_plan(recipe: str, *, memory_gb: float | None, gpus: int, json: bool) -> int:
    """Print the estimated memory on one device; returns 1 if the run does not fit. `memory_gb`: size of a GPU; default: this device."""
    from rlvr.config.config import load_config
    from rlvr.registry.plugins import build_from_config

    if gpus < 1 or (memory_gb is not None and not memory_gb > 0):
        raise ConfigError(f"--gpus is {gpus} and --memory is {memory_gb}; both must be above 0")
    config = load_config(recipe)
    try:
        import torch

        from rlvr.models.device import resolve_device
        from rlvr.models.memory_plan import estimate_bytes_while_sampling, plan_memory, suggest_savings
    except ModuleNotFoundError as error:
        raise MissingExtra((error.name or "torch").split(".")[0], "train") from error
    device = resolve_device() if memory_gb is None else torch.device("cuda")
    room = memory_gb * 1e9 if memory_gb is not None else _get_total_memory_bytes(device.type)
    parts = plan_memory(
        config,
        device,
        processes=gpus,
        sharded=gpus > 1,
        frozen_models=build_from_config("algorithm", config.algorithm).traits.scoring_models,
    )
    total, usable = sum(part.bytes for part in parts), 0.9 * room  # 10 % for fragmentation, the libraries and errors of the estimate
    sampling = estimate_bytes_while_sampling(config, parts, room) if device.type == "cuda" else 0.0
    fits = max(total, sampling) <= usable
    words = f"{total / 1e9:.2f} GB of {room / 1e9:.0f} GB: " + ("it fits" if fits else f"it does not fit; {suggest_savings(parts, config)}")
    if total <= usable < sampling:
        words = (
            f"{sampling / 1e9:.2f} GB of {room / 1e9:.0f} GB while the engine samples: it does not fit, though the update does; set "
            "rollout.sampler.memory_fraction lower, shard the weights (--gpus), or give the engine GPUs of its own"
        )
    if json:
        screen.print_json({"ok": fits, "bytes": total, "memory": room, "advice": words, "parts": [part.to_dict() for part in parts]})
        return int(not fits)
    console = screen.make_stdout_console()
    console.print(Text(f"memory of {'each of ' if gpus > 1 else ''}{gpus} {device.type}, {recipe}", style="bold"))
    console.print(make_table(("what", "GB", "why"), [(part.name, f"{part.gigabytes:.2f}", part.why) for part in parts]))
    console.print(Text.assemble(screen.make_status_mark(fits), " ", words))
    return int(not fits)


def _get_total_memory_bytes(device_type: str) -> float:
    """Return the memory of this machine's device in bytes."""
    if device_type == "cpu":
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    import torch

    return float(torch.cuda.mem_get_info()[1]) if device_type == "cuda" else 0.0
