"""Two training processes, each with an engine of its own: `python -m tests.samplers.trainers FOLDER` in each of them.

Each writes FOLDER/RANK.json. The engines are stand-ins, as in `test_vllm_local`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import distributed

from rlvr.contracts import SamplingParams
from rlvr.models.plain_weights import PlainWeights
from rlvr.samplers import vllm
from rlvr.samplers._local import engine_plan as fleet
from rlvr.samplers._local import engine_process as process
from rlvr.training.distributed.group import all_gather_values, init_control_group, run_in_main_process
from tests.samplers.test_vllm import STOPS, fresh, largest_difference, nudged, requests


def main(folder: Path) -> None:
    process.WORKER_MODULE, fleet.SHARED_MEMORY = "tests.samplers.engine_stand", folder
    assert "get_installed_version" in vars(vllm)
    vars(vllm)["get_installed_version"] = lambda: "0.32.0"
    Accelerator(cpu=True)
    init_control_group(60.0)
    rank, model, asked = distributed.get_rank(), fresh(), requests(8)
    told: dict[str, Any] = {"probe": [], "differences": [], "written": []}
    with vllm.VLLMSampler(placement="local", max_num_seqs=4, start_timeout_s=120.0, completion_timeout_s=60.0) as sampler:
        for version in range(2):
            sampler.update_weights(PlainWeights(nudged(model, 0.05, version), run_on_main=run_in_main_process), version)
            told["probe"].append(sampler.get_weight_probe_metrics()["weight_probe/logprob_difference_max"])
            told["differences"].append(largest_difference(model, asked, sampler.sample(asked, SamplingParams(stop_ids=STOPS))))
            engines: Any = sampler._engine
            told["written"].append(len(list(engines._weights_folder.iterdir())))
        told["engine"] = engines.slots[0].process.pid
        all_gather_values(rank)  # the main one's files are used by all
    (folder / f"{rank}.json").write_text(json.dumps(told))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
