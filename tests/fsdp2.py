"""`rlvr train` under FSDP2 on CPUs: `accelerate launch --config_file rlvr/launch/fsdp2.yaml -m tests.fsdp2 RECIPE ...`.

accelerate shards on accelerators only. Here it is told that it is in FSDP mode, with the plugin that it makes of the launch
configuration; everything from there on is its own path and ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType

import rlvr.learn.train
from rlvr.cli import run
from rlvr.config.config import RunConfig
from rlvr.learn.processes import accelerator_from


def sharding(config: RunConfig, folder: Path) -> Accelerator:
    accelerator = accelerator_from(config, folder)
    state: Any = accelerator.state
    state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, FullyShardedDataParallelPlugin()
    assert accelerator.is_fsdp2
    return accelerator


if __name__ == "__main__":
    vars(rlvr.learn.train)["accelerator_from"] = sharding
    sys.exit(run(["train", *sys.argv[1:]]))
