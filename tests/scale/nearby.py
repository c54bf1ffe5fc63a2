"""`rlvr train` with collectors that live in the main process and are lost at random.

    python -m tests.scale.nearby [sharded | refused] RECIPE ...

`sharded`: the weights are cut in two, as by fsdp2.yaml; `refused`: the collectors cannot be started.
"""

from __future__ import annotations

import sys
from typing import Any

import rlvr.learn.train
from rlvr.commands.cli import run_command
from rlvr.errors import ConfigError
from rlvr.scale import actors
from tests.learn.fsdp2 import sharding
from tests.scale.test_training import InThisProcess


def refused(*given: Any) -> Any:
    raise ConfigError("no cluster answers")


if __name__ == "__main__":
    how, *rest = sys.argv[1:] if sys.argv[1] in ("sharded", "refused") else ["", *sys.argv[1:]]
    vars(actors)["Actors"] = refused if how == "refused" else InThisProcess
    if how == "sharded":
        vars(rlvr.learn.train)["accelerator_from"] = sharding
    sys.exit(run_command(["train", *rest]))
