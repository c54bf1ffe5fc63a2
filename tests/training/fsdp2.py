"""`rlvr train` under FSDP2 on CPUs: `accelerate launch --config_file rlvr/training/launch/fsdp2.yaml -m tests.training.fsdp2 RECIPE_FILE
...`.

accelerate shards on accelerators only. Here it is told that it is in FSDP mode, with the plugin that it makes of the launch
configuration; everything from there on is its own path and ours.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType

import rlvr.training.trainer
from rlvr.cli.commands import run_command
from rlvr.config.config import RunConfig
from rlvr.training.processes import build_accelerator


def sharding(config: RunConfig, folder: Path) -> Accelerator:
    launched = os.environ.pop("ACCELERATE_USE_FSDP")  # a launch that accelerate would ignore is refused
    accelerator = build_accelerator(config, folder)
    os.environ["ACCELERATE_USE_FSDP"] = launched
    state: Any = accelerator.state
    # in both places: every new view of the state is made from the second
    state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin()
    assert accelerator.is_fsdp2
    return accelerator


if __name__ == "__main__":
    vars(rlvr.training.trainer)["build_accelerator"] = sharding
    sys.exit(run_command(["train", *sys.argv[1:]]))
