"""`rlvr train` under DeepSpeed on CPUs: `accelerate launch --config_file rlvr/training/launch/deepspeed_zero2.yaml -m
tests.training.zero2 RECIPE_FILE ...`.

accelerate hands over to DeepSpeed on accelerators only. Here it is told that it is in that mode, with the plugin that it makes of the
launch configuration; the engine, its optimizer and everything else are the real ones. Needs `pip install deepspeed ninja` and a C++
compiler, which DeepSpeed uses to build how processes of one machine talk.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DeepSpeedPlugin, DistributedType

import rlvr.training.trainer
from rlvr.cli.commands import run_command
from rlvr.config.config import RunConfig
from rlvr.training import processes


def sharding(config: RunConfig, folder: Path) -> Accelerator:
    accelerator = processes.build_accelerator(config, folder)
    state: Any = accelerator.state
    plugin: Any = DeepSpeedPlugin()
    plugin.set_mixed_precision("no")
    # in both places: every new view of the state is made from the second
    state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.DEEPSPEED
    state.deepspeed_plugins = {"default": plugin}
    plugin.select(_from_accelerator_state=True)
    accelerator.deepspeed_engine_wrapped = None
    processes.configure_deepspeed(accelerator, config)
    import_module("deepspeed").init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    return accelerator


if __name__ == "__main__":
    vars(rlvr.training.trainer)["build_accelerator"] = sharding
    sys.exit(run_command(["train", *sys.argv[1:]]))
