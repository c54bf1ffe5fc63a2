"""`rlvr train` with rollout_workers that live in the main process and are lost at random.

    python -m tests.cluster.nearby [sharded | refused] RECIPE ...

`sharded`: the weights are cut in two, as by fsdp2.yaml; `refused`: the rollout_workers cannot be started.
"""

from __future__ import annotations

import sys
from typing import Any

import rlvr.training.trainer
from rlvr.cli.commands import run_command
from rlvr.cluster import ray_transport as actors
from rlvr.errors import ConfigError
from tests.cluster.test_training import InThisProcess
from tests.training.fsdp2 import sharding


def refused(*given: Any) -> Any:
    raise ConfigError("no cluster answers")


if __name__ == "__main__":
    how, *rest = sys.argv[1:] if sys.argv[1] in ("sharded", "refused") else ["", *sys.argv[1:]]
    vars(actors)["RayTransport"] = refused if how == "refused" else InThisProcess
    if how == "sharded":
        vars(rlvr.training.trainer)["build_accelerator"] = sharding
    sys.exit(run_command(["train", *rest]))
